"""Where the time of a sweep goes."""

import time

from nf_resnets.sweep import claims


def test_the_clock_tells_work_from_waiting_and_from_the_rest():
    watch = claims.Clock()
    with watch.spent("working"):
        with watch.spent("computing"):
            time.sleep(0.06)
        with watch.spent("idle"):
            time.sleep(0.04)
        time.sleep(0.02)
    seconds = watch.seconds()
    assert seconds["computing"] >= 0.06 and seconds["idle"] >= 0.04
    assert seconds["outside"] >= 0.02
    # Waiting is no overhead: 0.02 of 0.08; sleeps are never shorter, seldom much longer.
    assert 0.1 < watch.fraction_outside() < 0.6
