"""What the ImageNet experiments share: the digits as JPEG files, options, runs that go on."""

import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from experiments import imagenet
from nf_resnets import data
from nf_resnets.data import imagenet as encoded
from tests.experiments.as_a_user import ROOT, lines_of, one_device


@pytest.mark.slow
def test_a_killed_command_goes_on_with_the_run_that_was_cut(tmp_path):
    """A run of streamed images, killed after a checkpoint, and its twin."""

    def start(out):
        arguments = ("--scale", "smoke", "--out", out, "--save-seconds", 1)
        arguments += ("--grid", "scheme=fixup", "mixup=0", "steps=800")
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.fixup_table2_imagenet", *map(str, arguments)],
            cwd=ROOT,
            env=one_device(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    cut, whole = tmp_path / "cut", tmp_path / "whole"
    process = start(cut)
    while not list(cut.glob("checkpoints/*/*.npz")) and process.poll() is None:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (cut / "rows.csv").exists()
    rows = []
    for out in (cut, whole):
        shown, errors = (process := start(out)).communicate(timeout=900)
        assert process.returncode == 0, errors + shown
        (row,) = lines_of(out / "rows.csv")
        rows.append(row)
        assert not (out / "checkpoints").exists()
    assert int(rows[0]["first_step"]) > 0 == int(rows[1]["first_step"])
    for column in ("steps", "test_accuracy", "test_loss", "train_loss"):
        assert rows[0][column] == rows[1][column]
    assert math.isfinite(float(rows[0]["test_loss"]))
    # The curve is whole: what was made before the kill, and what came after.
    steps = [int(line["step"]) for line in lines_of(cut / "curves.csv")]
    assert steps[0] < 10 and steps[-1] == 800 and max(np.diff(steps)) < 10


def test_the_digits_are_streamed_as_they_are(tmp_path):
    imagenet.write_digits(tmp_path, most=60)
    found = encoded.open_encoded(tmp_path, imagenet.DIGITS)
    assert found.num_classes == 10 and found.class_names == tuple("0123456789")
    digits = data.load("digits")
    for name, split in (("train", digits.train), ("validation", digits.test)):
        stored = found.splits[name]
        assert stored.num_examples == 60
        for index in range(60):
            read = stored[index]
            number = int(read.where.split("digit_")[1].split(".")[0])
            assert read.label == split.labels[number]
            pixels = read.pixels((0, 0, 32, 32), 32).astype(float)
            grey = np.round(split.images[number, :, :, 0] * (255 / 16)).astype(np.uint8)
            wanted = np.asarray(Image.fromarray(grey).resize((32, 32), Image.Resampling.BICUBIC))
            # What a JPEG of quality 95 loses of so small an image: two or three levels of 255.
            assert abs(pixels - wanted[:, :, None]).mean() < 4
