"""Tables and figures of runs that diverged early, and of a part of an experiment's runs."""

import pytest

from experiments import fixup_fig3_depth as fig3
from experiments import (
    fixup_multipliers,
    rate_transfer,
    rescale_calibration,
    rescale_multipliers,
    theory_updates,
)
from experiments import fixup_table4_regularized as table4
from experiments import skipinit_table1_depth as table1_depth
from experiments import skipinit_table2_placement as table2_placement
from experiments.experiment import Results, curve_lines, flat
from experiments.grid import telling
from experiments.main import Command, chosen
from experiments.rates import table as rate_table
from experiments.table import mean_curves
from nf_resnets import schemes


def diverged(point, steps, looks, seed=0):
    """The row of a run that diverged; in JSON None stands for what was not finite."""
    curve = {"step": [steps], "loss": [None], "accuracy": [0.1]}
    history = [{"epoch": at, "step": 2 * at, "measures": look} for at, look in enumerate(looks)]
    return {
        **point, "seed": seed, "state": "diverged", "steps_done": steps, "seconds": 1.0,
        "history": history, "measures": {"curve": curve}, "resolved": {"num_steps": 8},
    }  # fmt: skip


def results(experiment, rows):
    with schemes.registered(*experiment.schemes):
        lines = [line for row in rows for line in curve_lines(row, experiment)]
        return Results(experiment.scales["smoke"], [flat(row, experiment) for row in rows], lines)


def test_a_look_at_what_was_about_to_diverge_may_be_infinite(tmp_path):
    block = {"block": 1, "multiplier": 1.0, "weight_norm": 1.0, "gain": 1.0}
    looks = [{"blocks": [{**block, "variance": variance}]} for variance in (2.0, None)]
    experiment = rescale_multipliers.EXPERIMENT
    found = results(experiment, [diverged(experiment.scales["smoke"][0], 3, looks)])
    assert experiment.table(found).split()[-3:] == ["2", "nan", "diverged"]
    experiment.figure(found, tmp_path / "figure.svg")


def test_runs_without_a_step_that_all_have_are_marked_where_they_diverged(tmp_path):
    look = dict.fromkeys(fixup_multipliers.LOOKED_AT, 1.0)
    experiment = fixup_multipliers.EXPERIMENT
    rows = [diverged(experiment.scales["smoke"][1], steps, [look]) for steps in (1, 2)]
    found = results(experiment, [{**row, "seed": seed} for seed, row in enumerate(rows)])
    experiment.figure(found, tmp_path / "figure.svg")  # whose slopes begin after the first look
    lines = [{"title": "Fixup", "seed": row["seed"], "step": 1 + row["seed"], "accuracy": 0.1}
             for row in found.rows]  # fmt: skip
    (curve,) = mean_curves(Results([], found.rows, lines), found.rows)
    assert list(curve.x) == [] and list(curve.lost) == [1, 2]
    rows = [{**found.rows[0], "status": "finished"}, found.rows[1]]
    (curve,) = mean_curves(Results([], rows, lines), rows)
    assert list(curve.lost) == [2]


def test_batchnorm_s_second_test_has_a_line_where_its_first_run_diverged():
    rows = [
        {"title": "BatchNorm", "depth": 10, "seed": 0, "status": "diverged"},
        {"title": "BatchNorm", "depth": 10, "seed": 1, "status": "finished", "test_accuracy": 0.5,
         fig3.SECOND: 0.75},
    ]  # fmt: skip
    last = fig3.table(Results([], rows)).splitlines()[-1]
    assert last.split() == ["BatchNorm,", "estimated", "statistics", "75.0", "(1", "diverged)"]


def test_a_column_of_best_rates_has_the_width_of_its_own_network():
    points = [{"model": model} for model in ("wrn-16-2", "wrn-1000-1", "wrn-10-1", "wrn-10-2")]
    row = {"title": "Fixup", "status": "diverged", "peak_lr": 0.5, "seed": 0, "test_accuracy": ""}
    rows = [{**row, "depth": depth} for depth in (10, 16, 1000)]
    head = rate_table(Results(points, rows)).splitlines()[0]
    assert head.split() == ["scheme", "10-1", "or", "-2", "16-2", "1,000-1"]


def test_a_setting_leaves_a_part_that_cannot_have_it_as_it_is():
    """The start of a network has no rate: with two of them its seeds counted twice."""
    experiment = rescale_calibration.EXPERIMENT
    with schemes.registered(*experiment.schemes):
        of = {
            axis: chosen(experiment, Command(scale="laptop", grid=(axis,)))
            for axis in ("peak_lr=0.05,0.2", "peak_lr=0.1", "images=2,8")
        }
    starts = [point for point in experiment.scales["laptop"] if "model" not in point]
    for axis, points in of.items():
        kept = [point for point in points if "model" not in point]
        assert kept == [point for point in starts if axis[0] == "p" or point["images"] in (2, 8)]
        assert len(points) - len(kept) == {"peak_lr=0.1": 6, "images=2,8": 18}.get(axis, 12)


def test_rates_of_networks_on_two_data_sets_are_lines_of_their_own():
    """In the scale the rate differs between the data sets, which the table tells apart."""
    points = chosen(table4.EXPERIMENT, Command(scale="paper", grid=("peak_lr=0.05,0.2",)))
    title = telling(table4.title, table4.SCALES["paper"], points)
    assert len({(point["dataset"], title(point)) for point in points}) == len(points) == 8


@pytest.mark.parametrize("figure", [rescale_calibration.figure, theory_updates.figure])
def test_a_figure_of_some_parts_is_drawn_and_one_depth_has_no_slope(figure, tmp_path):
    trained = {"part": "training", "images": 0, "rate": 0.1, "status": "finished"}
    rows = [
        {**trained, "test_accuracy": 0.5, "title": "RescaleNet"},
        {"part": "depth", "title": "Fixup", "x": 3, "y": "", "value": 0.5},
    ]
    found = Results(theory_updates.SCALES["smoke"], rows)
    figure(found, tmp_path / "figure.svg")
    assert theory_updates.table(found).splitlines()[1].split() == ["Fixup", "0.5", "nan"]


def test_networks_and_schemes_of_one_s_own_have_their_own_names():
    row = {"scheme": "fixup", "weight_decay": 0.0}
    for experiment in (table1_depth.EXPERIMENT, table2_placement.EXPERIMENT):
        assert experiment.title(row) == "Fixup"
    assert table1_depth.EXPERIMENT.title({**row, "scheme": "skipinit"}) == "α = 0, no L2"
    measures = {"curve": {"loss": [1.0] * 4}}
    for model, width in (("wrn-10-2", 2), ("cifar-resnet-20", 1), ("resnet-50-v2", 1)):
        assert rate_transfer.columns({"model": model, "measures": measures})["width"] == width
