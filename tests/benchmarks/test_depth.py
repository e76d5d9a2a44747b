"""What the benchmark of depth counts: layers and bytes, of one network in all its forms."""

import pytest

from benchmarks import depth
from benchmarks.cases import Case


@pytest.mark.slow
def test_the_forms_take_turns_on_one_network():
    seconds = depth.in_turns("wrn-10-1", 4, 8, rounds=2)
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys(depth.FORMS, 2)


@pytest.mark.slow
def test_the_unrolled_form_has_no_loop():
    case = Case("wrn-22-1", batch=4, side=8)
    loops = {
        form: depth.lowered_step(case, **options(22))[0].as_text().count("stablehlo.while")
        for form, options in depth.FORMS.items()
    }
    # Forwards and backwards, in each of three stages; a remat'ed group has a loop of its own.
    assert loops["scanned"] == 6
    assert loops["unrolled"] == 0
    assert loops["remat"] > 6
