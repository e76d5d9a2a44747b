"""One run: looking at its state on the way changes nothing."""

import functools

import jax
import numpy as np
import pytest

from experiments.program import build_program
from experiments.training_run import OUTCOME, describe, outcome, train_and_test
from nf_resnets import data, models, optim, schemes


def make_program(steps):
    model = models.CifarResNet(depth=8, scheme="fixup", stem_channels=2)
    return build_program(
        model,
        data.load("digits"),
        lambda hyper: optim.sgd(hyper["learning_rate"]),
        batch_size=64,
        steps=steps,
    )


@pytest.mark.slow
def test_looks_see_the_states_on_the_way_and_change_nothing():
    program, scheme, hyper = make_program(5), schemes.get("fixup"), {"learning_rate": 0.1}
    plain = train_and_test(program, scheme, 0, hyper, lambda step, metrics: None)
    seen, ticks = {}, []

    def look(step, state):
        assert int(state.step) == step
        # Copied: the step may overwrite a state's memory.
        seen[step] = np.array(state.params["head"]["kernel"])

    looked = train_and_test(
        program, scheme, 0, hyper, lambda step, metrics: ticks.append(step), look=look, look_every=2
    )
    assert list(seen) == [0, 2, 4, 5] and ticks == [1, 2, 3, 4, 5]
    # The same program on the same inputs: equal to the last bit.
    assert looked.curve == plain.curve and looked.test == plain.test
    assert not seen[0].any() and np.abs(seen[5] - seen[4]).max() > 0


def test_a_run_that_diverges_is_not_tested_and_not_looked_at_again():
    program, looks = make_program(5), []
    made = train_and_test(
        program,
        schemes.get("fixup"),
        0,
        {"learning_rate": 1e30},
        lambda step, metrics: None,
        look=lambda step, state: looks.append(step),
        look_every=1,
    )
    assert made.status == "diverged" and len(made.curve) < 5
    assert looks == list(range(len(made.curve)))
    row = outcome(program, made)
    assert tuple(row) == OUTCOME and np.isnan(row["test_accuracy"])
    assert describe(row).startswith(f"diverged at step {len(made.curve)}")


@pytest.mark.slow
def test_weights_come_from_one_draw_or_from_the_schemes_own():
    model = models.CifarResNet(depth=8, scheme="skipinit", stem_channels=2)
    digits, key = data.load("digits"), jax.random.key(0)

    @functools.cache
    def program(draw):
        return build_program(
            model,
            digits,
            lambda hyper: optim.sgd(hyper["learning_rate"]),
            batch_size=64,
            steps=1,
            draw=draw,
        )

    def stem(scheme, draw):
        variables = program(draw).initial(schemes.get(scheme), key)
        return np.asarray(variables["params"]["stem"]["kernel"])

    # SkipInit and alpha = 1 have one anatomy, change no weights, and draw from He (fan_in).
    np.testing.assert_array_equal(stem("skipinit", "fan_in"), stem("alpha_one", "fan_in"))
    np.testing.assert_array_equal(stem("skipinit", "fan_in"), stem("skipinit", "own"))
    # One grey channel in, two out: fan_out is twice fan_in. Rounding of float32.
    np.testing.assert_allclose(
        stem("skipinit", "fan_in"), 2**0.5 * stem("skipinit", "fan_out"), rtol=1e-6
    )
