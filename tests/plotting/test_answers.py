"""Sentences on a sweep: they say what its optima hold."""

from nf_resnets.plotting.answers import (
    bearable,
    best_at,
    best_of_all,
    fewest_steps,
    growth,
    growth_of_all,
    largest_effects,
    lowest_end,
    moves_of_all,
)
from tests.plotting.sweep_results import group, rate

RATES = [rate(0.25, 0.5), rate(0.5, 0.9), rate(1.0, 0.6, diverged=1), rate(2.0, None, diverged=3)]


def called(group):
    return group["scheme"]


def power(value):
    return f"{value:g}"


def optimum(scheme, size, best, mean, **changes):
    one = {**group(scheme, size, RATES), "best": best, "mean": mean, "low": best, "high": best}
    return {**one, **changes}


def test_growth_names_both_ends_with_their_ranges():
    optima = [
        optimum("Fixup", 512, 0.5, 0.8, low=0.25), optimum("Fixup", 8, 0.125, 0.9),
        optimum("LSUV", 8, 0.5, 0.7), optimum("LSUV", 512, 0.25, 0.6),
        optimum("He", 8, 0.5, 0.7), optimum("He", 512, None, None),
        optimum("gone", 8, None, None),
    ]  # fmt: skip
    assert growth(optima, called, power=power) == [
        "Fixup: the best rate grows from 0.125 at B = 8 to 0.5 (0.25 to 0.5) at B = 512",
        "LSUV: the best rate falls from 0.5 at B = 8 to 0.25 at B = 512",
        "He: the best rate is 0.5",
        "gone: no run finished",
    ]
    said = growth_of_all(optima, called)
    assert said.startswith("The best rate moves with the batch size: Fixup $2^{-3}$ to $2^{-1}$, L")
    assert growth_of_all(optima[:2], called).startswith("The best rate grows with the batch size")
    assert growth_of_all(optima[4:5], called).startswith("Best test accuracy: 70.0%, He at B = 8")


def test_the_best_of_all_is_the_lowest_of_a_loss():
    both = [optimum("Fixup", 8, 0.5, 0.8), optimum("LSUV", 8, 0.25, 0.9)]
    said = best_of_all(both, called, power=power)
    assert said == "Best test accuracy: 90.0%, LSUV at B = 8 and rate 0.25"
    losses = [{**one, "metric": "train_loss"} for one in both]
    assert best_of_all(losses, called).startswith("Best training loss: 0.8, Fixup at B = 8")
    assert best_of_all([optimum("He", 8, None, None)], called) == "No run finished"


def test_the_lowest_end_is_that_of_the_mean_over_seeds():
    def run(scheme, size, *losses):
        return {"group": {"scheme": scheme, "batch_size": size}, "train_loss": losses}

    curves = [
        run("Fixup", 8, 2.3, 0.1), run("Fixup", 8, 2.3, 0.5), run("Fixup", 32, 0.01, 0.25),
        run("gone", 8, 2.3, float("nan")), run("LSUV", 8, 2.3, 0.31),
    ]  # fmt: skip
    assert lowest_end(curves, called) == "Lowest training loss at the end: 0.25, Fixup at B = 32"
    assert lowest_end(curves[3:4], called) == "No run finished"


def test_a_rate_is_borne_where_no_seed_diverged_with_any_batch_size():
    wide = group("Fixup", 512, [rate(0.25, 0.5), rate(0.5, 0.4, diverged=1), rate(1.0, 0.3)])
    optima = [group("Fixup", 8, RATES), wide, group("He", 8, [rate(0.5, None, diverged=3)])]
    # At 1 a seed of the smaller batch diverged.
    assert bearable(optima, called, power=power) == ["Fixup 0.25", "He none"]


def test_the_fewest_steps_are_named_with_their_batch():
    def target(scheme, size, steps):
        return {"group": {"scheme": scheme, "batch_size": size}, "steps": steps}

    targets = [target("Fixup", 8, 90), target("Fixup", 32, 40), target("He", 8, None)]
    said = "The fewest steps to the target: Fixup 40 with B = 32, He not at all"
    assert fewest_steps(targets, called) == said


def test_it_is_told_whose_best_rate_stays_and_where_others_go():
    def move(scheme, size, best, low=None):
        return {"group": {"scheme": scheme}, "size": size, "best": best, "low": low or best,
                "high": best}  # fmt: skip

    moves = [
        move("SkipInit", 10, 1.0), move("SkipInit", 100, 0.25), move("Fixup", 100, 0.5),
        move("Fixup", 10, 0.5), move("Fixup", 34, 0.1), move("P", 10, 1.0),
        move("P", 100, 2.0, 1.0),
        move("He", 10, 0.5), move("He", 100, None),
    ]  # fmt: skip
    said = moves_of_all(moves, called, "depth")
    assert said == (
        "From depth 10 to 100 the best rate stays for Fixup and P, falls 4-fold for SkipInit; no "
        "run of He finishes at depth 100"
    )
    assert moves_of_all(moves[-2:], called, "depth") == "No run of He finishes at depth 100"
    assert "No best rate is known at two sizes" in moves_of_all(moves[:1], called, "depth")


def test_the_largest_networks_and_the_settings_that_move_most():
    def at(scheme, depth, best, mean):
        group = {"scheme": scheme, "depth": depth}
        return {"group": group, "metric": "train_loss", "best": best, "mean": mean}

    def name(group):
        return group["scheme"]

    optima = [at("a", 10, 0.5, 0.1), at("a", 90, 0.25, 0.4), at("b, c", 90, 0.1, 0.3),
              at("d", 90, None, None)]  # fmt: skip
    assert best_at(optima, name, "depth") == (
        "At depth 90 the lowest training loss is 0.3 with “b, c” (rate 0.1), the next 0.4 with a "
        "(rate $2^{-2}$); no run of d finishes"
    )
    assert best_at(optima[3:], name, "depth") == "No run finished at depth 90"

    def alone(field, *means):
        best = [None if mean is None else {"mean": mean} for mean in means]
        return {"field": field, "metric": "test_accuracy", "best": best}

    isolations = [alone("peak_lr", 0.9, 0.5, None), alone("batch_size", 0.9, 0.95),
                  alone("batch_size", 0.2, 0.9)]  # fmt: skip
    assert largest_effects(isolations) == (
        "The best test accuracy of a scheme moves by up to 70.0 points with the batch size and "
        "40.0 points with the learning rate"
    )
    assert largest_effects([alone("peak_lr", None)]) == "No run finished"


def test_a_rate_at_which_no_run_finished_is_not_borne():
    failed = group("Fixup", 8, [rate(0.25, 0.5), rate(1.0, None)])
    assert bearable([failed], called, power=power) == ["Fixup 0.25"]
