"""The looks of schemes: the same everywhere, and told apart by colour-blind eyes and in grey."""

import itertools

import numpy as np
import pytest

from nf_resnets import schemes
from nf_resnets.looks import LOOKS, Look, looks

# Machado, Oliveira and Fernandes 2009, table 1, severity 1: on linear RGB.
SIMULATIONS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
}  # fmt: skip


def seen(look, kind):
    """A colour as CIELAB sees it after a simulation."""
    parts = np.array([int(look.color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(SIMULATIONS[kind]) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = (np.array(to_xyz) @ linear) / (0.9505, 1, 1.089)
    f = np.vectorize(lambda t: np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116)
    return np.array([116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))])


def test_no_two_schemes_look_the_same_in_grey():
    """Alike in marker and line only where two titles are one scheme."""
    for (a, one), (b, other) in itertools.combinations(LOOKS.items(), 2):
        if one != other:
            without = [(each.marker, each.linestyle, each.fillstyle) for each in (one, other)]
            assert without[0] != without[1], (a, b)


@pytest.mark.parametrize("kind", SIMULATIONS)
def test_the_main_schemes_differ_for_colour_blind_eyes(kind):
    main = ("Fixup", "SkipInit", "RescaleNet", "BatchNorm")
    for a, b in itertools.combinations(main, 2):
        # 2.3 is a just noticeable difference; thin lines need several.
        assert np.linalg.norm(seen(LOOKS[a], kind) - seen(LOOKS[b], kind)) > 12, (a, b)


def test_a_scheme_looks_the_same_whatever_else_is_drawn():
    titles = [schemes.get(name).title for name in schemes.names()]
    together = looks(titles)
    assert len(set(together.values())) == len(titles)
    for title in LOOKS:
        assert looks(["something else", title])[title] == LOOKS[title] == looks([title])[title]
    assert LOOKS["BatchNorm"].muted and not LOOKS["Fixup"].muted


def test_variants_keep_the_colour_of_their_scheme_and_others_have_a_spare_one():
    found = looks(["fixup", "Fixup + mixup", "Fixup, 2", "Fixups", "α = 1/√L", "α = 1.5"])
    assert found["fixup"] == LOOKS["Fixup"]
    assert {found[name].marker for name in ("Fixup + mixup", "Fixup, 2")} == {"o"}
    assert found["Fixup + mixup"].color == "#4095C5"  # a quarter of the way to white
    assert found["Fixup + mixup"] != found["Fixup, 2"]
    assert found["α = 1/√L"] == LOOKS["α = 1/√L"]
    spare = [found[name] for name in ("Fixups", "α = 1.5")]
    assert not {look.color for look in spare} & {look.color for look in LOOKS.values()}
    assert looks(["Fixups"])["Fixups"] == found["Fixups"]  # by its name, not by its place


def test_a_scheme_from_outside_can_choose(monkeypatch):
    monkeypatch.setitem(LOOKS, "Mine", Look("#123456", "v"))
    assert looks(["Mine"])["Mine"].color == "#123456"
    many = looks([f"scheme {i}" for i in range(12)])
    assert len(set(many.values())) == 12
