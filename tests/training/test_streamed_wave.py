"""A wave on streamed batches: resumed it ends where it would have, on any number of devices."""

import json

import numpy as np
import pytest

from nf_resnets import data, training
from nf_resnets.training import Stopped
from nf_resnets.training.checkpoint import Checkpoints
from tests import photographs
from tests.training import streamed_process as small
from tests.training.pair import Pair
from tests.training.small import Log


@pytest.fixture(scope="module")
def whole(photographs_dir):
    """The run that nothing interrupted."""
    return small.run(photographs_dir)


def run_of_two(photographs_dir, folder):
    """What each of two processes says at its end."""
    module = "tests.training.streamed_process"
    command = lambda port, index: (module, photographs_dir, folder / "both", port, index)  # noqa: E731
    with Pair(folder, command, devices=1) as two:
        assert two.codes() == [0, 0], two.said()
        return [json.loads(said.splitlines()[-1]) for said in two.said()]


def assert_twins(found, whole):
    """The same program on the same numbers: to the last bit."""
    assert found.status == "finished"
    np.testing.assert_array_equal(found.curve, whole.curve)
    assert small.digest(found.state) == small.digest(whole.state)


def test_it_trains_and_is_tested(whole, photographs_dir):
    assert whole.status == "finished" and whole.first_step == 0
    assert int(whole.state.step) == len(whole.curve) == small.STEPS
    assert np.isfinite(whole.curve).all()
    begun = small.begin().params["head"]["kernel"]
    assert np.abs(whole.state.params["head"]["kernel"] - begun).max() > 0.01
    # All 22 photographs at a time, against two batches of 16, of which the second is filled up.
    photos = training.Streamed(data.open_encoded(photographs_dir), data.RandomCrop(small.SIZE), 16)
    (batch,) = photos.test_batches("validation", photographs.VALIDATION)
    x = (batch["image"] - np.float64(data.IMAGENET_MEAN)) / data.IMAGENET_STD
    z = x.reshape(len(x), -1) @ np.float64(whole.state.params["head"]["kernel"])
    losses = np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), batch["label"]]
    for devices in (1, 2):
        ours = small.program(photographs_dir, devices, 3)
        found = ours.test(ours.begin([whole.state]))
        # Float32 sums of 432 products of order 1.
        np.testing.assert_allclose(found["loss"], losses.mean(), rtol=1e-5)
        right = (z.argmax(1) == batch["label"]).mean()
        assert found["accuracy"] == pytest.approx(right, abs=1e-7)


def test_a_run_that_is_told_to_stop_saves_and_resumes(photographs_dir, whole, tmp_path):
    with pytest.raises(Stopped):
        small.run(photographs_dir, tmp_path, Log(stop_at=6))
    assert Checkpoints(tmp_path).steps()[-1] == 6
    resumed = small.run(photographs_dir, tmp_path, threads=7)
    assert resumed.first_step == 6
    assert_twins(resumed, whole)


@pytest.mark.slow
def test_two_hosts_read_their_own_halves(photographs_dir, whole, tmp_path):
    found = run_of_two(photographs_dir, tmp_path)
    assert found[0]["digest"] == found[1]["digest"]
    np.testing.assert_allclose(found[0]["loss"], whole.column("loss"), rtol=2e-4)
    # Both of them begin where the checkpoint of process 0 is.
    again = run_of_two(photographs_dir, tmp_path)
    assert again[0]["first_step"] == again[1]["first_step"] > 0
    assert {one["digest"] for one in again} == {found[0]["digest"]}
