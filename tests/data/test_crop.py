"""Crops: the boxes are those of an independent computation, and cover what they should."""

import math

import numpy as np
import pytest

from nf_resnets.data.stream import DRAWS, RandomCrop, random_box


def boxes(height, width, crop, count=2_000):
    rng = np.random.default_rng(0)
    return np.array(
        [random_box(height, width, crop, rng.random(DRAWS).tolist()) for _ in range(count)]
    )


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (224, 224)])
def test_area_and_ratio_are_uniform_over_their_ranges(height, width):
    found = boxes(height, width, RandomCrop(area=(0.1, 0.3)))
    w, h = found[:, 2] - found[:, 0], found[:, 3] - found[:, 1]
    # So small an area always fits at the first try: the draws themselves are seen. Rounding to
    # whole pixels changes an area of 0.1 by at most 1.5%, the log of a ratio by 0.015.
    area, ratio = w * h / (height * width), np.log(w / h)
    assert area.min() > 0.098 and area.max() < 0.305
    assert abs(ratio).max() < math.log(4 / 3) + 0.015
    # Of 2,000 draws the mean of a uniform variable has a standard deviation of 0.0129 of its half
    # range; four of them.
    assert abs(area.mean() - 0.2) < 4 * 0.0129 * 0.1
    assert abs(ratio.mean()) < 4 * 0.0129 * math.log(4 / 3)
    assert abs(np.quantile(area, 0.25) - 0.15) < 0.01
    # Each place where it fits is as likely as another: up to the borders, and in the middle mean.
    for start, room in ((found[:, 0], width - w), (found[:, 1], height - h)):
        assert start.min() == 0 and (start - room).max() == 0
        assert abs((start / room).mean() - 0.5) < 4 * 0.0129 * 0.5 + 0.5 / room.min()


def test_the_eleventh_draw_is_not_looked_at():
    # Nine tries that do not fit, and a tenth that does.
    nine = [0.999, 0.0, 0.5, 0.5] * 9
    tenth = [0.0, 0.5, 0.0, 0.0]
    left, top, right, bottom = random_box(100, 100, RandomCrop(), nine + tenth)
    assert (left, top) == (0, 0) and (right, bottom) == (28, 28)  # sqrt(0.08) of 100
    nothing = nine + [0.999, 0.0, 0.5, 0.5]
    assert random_box(100, 100, RandomCrop(), nothing + tenth) == (0, 0, 100, 100)
    # A whole image of this shape fits no ratio within 3/4 and 4/3: 10 * 4/3 in the middle.
    whole = RandomCrop(area=(1.0, 1.0))
    assert random_box(10, 400, whole, nothing + tenth) == (193, 0, 206, 10)
