"""The curves file: whole, resumable, and in step with the rows."""

import numpy as np
import pytest

from experiments.curves import CurvesFile, GrowingCurve, thinned
from experiments.folder import ResultsFolder

COLUMNS = ("variant", "seed", "step", "loss")
KEY = ("variant", "seed")


def folder(path):
    return ResultsFolder(path, {"rate": 0.1}, grid=(), columns=(*KEY, "accuracy"), key=KEY)


def curves(held):
    return CurvesFile(held, columns=COLUMNS, key=KEY)


def steps(*losses):
    return [{"step": step, "loss": loss, "grad_norm": 1} for step, loss in enumerate(losses, 1)]


def test_curves_come_back_as_they_were_written(tmp_path):
    held = folder(tmp_path)
    kept = curves(held)
    kept.put({"variant": "a", "seed": 0}, steps(1 / 3, 0.25))
    kept.put({"variant": "b", "seed": 0}, steps(2.5))
    again = curves(held).of({"variant": "a", "seed": "0"})
    assert [float(line["loss"]) for line in again] == [1 / 3, 0.25]
    assert [line["step"] for line in again] == ["1", "2"]


def test_a_run_made_again_replaces_its_lines_only(tmp_path):
    held = folder(tmp_path)
    first = curves(held)
    first.put({"variant": "a", "seed": 0}, steps(1.0, 2.0))
    first.put({"variant": "b", "seed": 0}, steps(3.0))
    # Cut off here: neither row was written. The next start makes run a again.
    second = curves(held)
    second.put({"variant": "a", "seed": 0}, steps(7.0))
    third = curves(held)
    assert [line["loss"] for line in third.of({"variant": "a", "seed": 0})] == ["7.0"]
    assert [line["loss"] for line in third.of({"variant": "b", "seed": 0})] == ["3.0"]


def test_a_row_without_its_curve_is_refused(tmp_path):
    held = folder(tmp_path)
    curves(held).put({"variant": "a", "seed": 0}, steps(1.0))
    held.add({"variant": "a", "seed": 0, "accuracy": 0.5})
    curves(held)
    (tmp_path / "curves.csv").unlink()
    with pytest.raises(SystemExit, match="has no lines of the run a, 0, whose row is in rows.csv"):
        curves(held)


def test_a_thinned_curve_keeps_the_mean():
    losses = np.random.default_rng(0).uniform(size=60)
    curve = [{"loss": loss, "accuracy": 1 - loss} for loss in losses]
    for points in (1, 7, 20, 60, 100):
        found = thinned(curve, points)
        assert len(found) <= points and found[-1]["step"] == 60
        weights = np.diff([0, *(point["step"] for point in found)])
        means = [point["loss"] for point in found]
        np.testing.assert_allclose(np.average(means, weights=weights), losses.mean(), rtol=1e-12)


def test_the_points_of_a_run_that_went_on_count_from_its_first_step():
    curve = [{"loss": float(step), "accuracy": step / 1000} for step in range(1000)]
    found = thinned(curve, 200, first_step=50)
    assert len(found) == 200 and found[-1]["step"] == 1050
    assert found[0] == {"step": 55, "loss": 2.0, "accuracy": pytest.approx(0.002)}
    assert [point["step"] for point in thinned(curve[:3], 200)] == [1, 2, 3]
    assert thinned([], 200) == []


def test_a_resumed_run_keeps_what_was_made_before(tmp_path):
    columns, key = (*KEY, "step", "loss", "accuracy"), {"variant": "a", "seed": 0}

    def grow(first, last, points):
        file = CurvesFile(held, columns=columns, key=KEY)
        curve = GrowingCurve(file, key, points)
        for step in range(first, last + 1):
            curve.add(step, {"loss": float(step), "accuracy": 0.5, "grad_norm": 1.0})
            if step in (10, 20):  # checkpoints
                curve.keep()
        return [(int(line["step"]), float(line["loss"])) for line in file.found(key)]

    held = folder(tmp_path)
    assert grow(1, 14, 5) == [(step, step - 0.5) for step in (2, 4, 6, 8, 10)]
    # Cut off at step 14: it goes on from the checkpoint of step 10, with other points.
    assert grow(11, 20, 2) == [
        *[(step, step - 0.5) for step in (2, 4, 6, 8, 10)],
        (15, 13.0),
        (20, 18.0),
    ]
    # A damaged newest checkpoint: it goes on from an earlier one, and what came after it is gone.
    assert grow(7, 10, 4) == [(2, 1.5), (4, 3.5), (6, 5.5), *[(s, float(s)) for s in range(7, 11)]]
    assert grow(1, 0, 4)[-1] == (10, 10.0)


def test_the_mean_is_that_of_the_steps_that_all_of_them_have(tmp_path):
    kept = curves(folder(tmp_path))
    kept.put({"variant": "a", "seed": 0}, steps(1.0, 2.0, 9.0))
    kept.put({"variant": "a", "seed": 1}, steps(3.0, 5.0))
    keys = [{"variant": "a", "seed": seed} for seed in (0, 1)]
    assert kept.mean(keys, "loss") == ([1, 2], [2.0, 3.5])
    # A short run is thinned less: its positions are other steps.
    kept.put({"variant": "a", "seed": 2}, [{"step": 2, "loss": 0.0}, {"step": 4, "loss": 0.0}])
    keys = [{"variant": "a", "seed": seed} for seed in (0, 2)]
    assert kept.mean(keys, "loss") == ([2], [1.0])
