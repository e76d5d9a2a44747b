"""What the benchmark of depth counts: layers and bytes, of one network in all its forms."""

import pytest

from benchmarks import depth
from benchmarks.cases import Case


@pytest.mark.slow
def test_the_forms_take_turns_on_one_network():
    seconds = depth.in_turns("wrn-10-1", 4, 8, rounds=2)
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys(depth.FORMS, 2)


def test_seconds_are_those_of_a_layer(monkeypatch):
    """With a clock that each call of a step moves by its number of layers."""
    clock = [0.0]

    class Ticking:
        def __init__(self, compiled, state, batch, repeats):
            self.seconds = repeats * compiled

        def __call__(self):
            clock[0] += self.seconds

    monkeypatch.setattr(depth, "Steps", Ticking)
    monkeypatch.setattr(depth, "make_state", lambda case: None)
    layers = {"wrn-10-1": 10.0, "wrn-100-1": 200.0}  # of the deep one each takes twice as long
    monkeypatch.setattr(depth, "compiled_step", lambda case, **_: (layers[case.network], None))
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    found = depth.layer_seconds([10, 100], 4, 8, rounds=3)
    assert found == {"10": pytest.approx([1.0] * 3), "100": pytest.approx([2.0] * 3)}


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


@pytest.mark.slow
def test_activations_are_what_images_need():
    shallow, deep = (depth.activations_mib(n, "scanned", 64, 8) for n in (22, 52))
    image = 64 * 8 * 8 * 16 * 4 / depth.MIB
    # Five blocks more in each stage keep at least what enters two convolutions, and two ReLU masks
    # of a byte; an activation of the next stage is half as large.
    assert deep - shallow >= 2.5 * 5 * image * (1 + 1 / 2 + 1 / 4)
