"""One colour, marker and line for each scheme, the same in every figure.

Colours are those of Okabe and Ito and of Tol's muted scheme, which colour-blind readers can tell
apart; markers and lines say the same in grey. Baselines are grey or brown, and thin.
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Look:
    """How a curve is drawn, in Matplotlib's terms.

    Attributes:
      color: as ``#RRGGBB``.
      marker: of its points.
      linestyle: of its line.
      muted: whether it is a baseline: a thin line below the others.
      fillstyle: which part of a marker is filled, ``"full"`` or ``"none"``, or ``"bottom"``, ...
    """

    color: str
    marker: Any
    linestyle: str = "-"
    muted: bool = False
    fillstyle: str = "full"

    @property
    def dots(self) -> dict[str, Any]:
        """Matplotlib's arguments for the points."""
        return {
            "color": self.color, "marker": self.marker, "fillstyle": self.fillstyle,
            "markerfacecoloralt": "white",
        }  # fmt: skip

    @property
    def line(self) -> dict[str, Any]:
        """Matplotlib's arguments for the line."""
        width = 1.1 if self.muted else 1.9
        return {"color": self.color, "linestyle": self.linestyle, "linewidth": width}


LOOKS: dict[str, Look] = {
    "Fixup": Look("#0072B2", "o"),
    "SkipInit": Look("#D55E00", "s"),
    "RescaleNet": Look("#009E73", "D"),
    "NF-ResNet": Look("#CC79A7", "v"),
    "ReZero": Look("#56B4E9", "p"),
    "T-Fixup": Look("#332288", "h"),
    "α = 1/√L": Look("#E69F00", "^"),
    "regularised SkipInit": Look("#9C4500", "s", "--", fillstyle="none"),
    "α = 0": Look("#D55E00", "s"),  # SkipInit, as its paper calls it
    "LSUV": Look("#882255", "P"),
    "CompleteP": Look("#B2182B", "8"),
    "depth-μP": Look("#542788", "8", "--"),
    "μP": Look("#01665E", "8", ":"),
    "orthogonal": Look("#999933", "<"),
    "DyT": Look("#997700", "X"),
    "Derf": Look("#994455", "X", "--"),
    "BatchNorm": Look("#707070", "d", muted=True),
    "one BatchNorm": Look("#303030", "d", "--", muted=True),
    "GroupNorm": Look("#8A8A8A", "H", "--", muted=True),
    "LayerNorm": Look("#5A5A5A", (4, 1, 0), "-.", muted=True),
    "DeepNorm": Look("#3E5A6E", (5, 1, 0), "-", muted=True),
    "Admin": Look("#7488A0", (5, 1, 0), "--", muted=True),
    "plain residual": Look("#4A3B2A", (6, 1, 0), ":", muted=True),
    "no LayerNorm": Look("#4A3B2A", (6, 1, 0), ":", muted=True),
    "He": Look("#4A3B2A", (6, 1, 0), ":", muted=True),
    "Xavier": Look("#7F6A4D", ">", "-.", muted=True),
    "α = 1": Look("#8C510A", ">", "--", muted=True),
    "(x + F)/√2": Look("#B08A3E", "<", ":", muted=True),
}
"""The look of each scheme by its title. A scheme of your own may have a line here; without one it
has a spare colour, the same in every figure."""

_SPARE = (
    ("#117733", "P"), ("#CC6677", "^"), ("#222255", "s"), ("#44AA99", "v"), ("#661100", "o"),
    ("#6699CC", "p"),
)  # fmt: skip
# The first variant of a scheme in a figure has the first of these, and so on.
_VARIANTS = (("--", "none", 0.25), (":", "bottom", -0.4), ("-.", "left", 0.4), ("--", "top", -0.5))


def looks(titles: Iterable[str]) -> dict[str, Look]:
    """A look for each title, no two of them the same.

    A title that begins with a scheme's is a variant of it: its colour, lighter or darker, and its
    marker, not filled, on another line; the scheme's own look where that is not among them. Other
    titles have spare colours.

    Args:
      titles: what the curves of a figure are called; repeated ones count once.

    Example:
      >>> found = looks(["Fixup", "Fixup + mixup", "mine"])
      >>> found["Fixup"].color, found["Fixup + mixup"].fillstyle
      ('#0072B2', 'none')
    """
    titles = list(dict.fromkeys(titles))
    there = {title.casefold() for title in titles}
    found: dict[str, Look] = {}
    for title in titles:
        scheme, choices = _scheme(title), list[Look]()
        if scheme is not None:
            look = LOOKS[scheme]
            # Where the scheme itself is not drawn, its first variant looks as it does.
            plain = title.casefold() == scheme.casefold() or scheme.casefold() not in there
            choices = [look] * plain + [
                dataclasses.replace(
                    look, color=_tone(look.color, tone), linestyle=line, fillstyle=f
                )
                for line, f, tone in _VARIANTS
            ]
        start = zlib.crc32(title.encode()) % len(_SPARE)  # the same in every figure
        spare = [*_SPARE[start:], *_SPARE[:start]]
        choices += [Look(*colour, line) for line in ("-", "--", ":") for colour in spare]
        free = [look for look in choices if look not in found.values()]
        found[title] = (free or choices)[0]
    return found


def _scheme(title: str) -> str | None:
    """The longest title of a scheme with which a title begins."""
    begun = [
        name for name in LOOKS if re.match(rf"{re.escape(name)}(?![\w.])", title, re.IGNORECASE)
    ]
    return max(begun, key=len, default=None)


def _tone(color: str, lighter: float) -> str:
    """A colour moved towards white, or towards black where ``lighter`` is negative."""
    end = 255 if lighter > 0 else 0
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + abs(lighter) * (end - part)):02X}" for part in parts)


__all__ = ["LOOKS", "Look", "looks"]
