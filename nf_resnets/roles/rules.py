"""The regular expressions that say what the leaves of a tree are, by their paths."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nf_resnets.roles.leaf import Role

LAYOUTS = {"HWIO": "[H, W, C_in, C_out]", "OIHW": "[C_out, C_in, H, W]"}


@dataclasses.dataclass(frozen=True)
class Rules:
    r"""Regular expressions that say what each leaf is, searched for in its ``/``-joined path.

    Args:
      branch: the layers of the residual branches. Its last group orders the layers within a
        branch, the groups before it name and order the branches; digits in a group are ordered as
        numbers, and a group that took no part stands first. Texts that differ in more than digits
        must stand in ``order`` if they name layers; if they name branches, letters order them.
        ``r"stage(\d+)/block_(\d+)/conv_(\d+)/kernel"`` makes ``block_10`` follow ``block_9``. A
        layer has one weight and at most one bias vector.
      head: the classification layer, weight and bias.
      embedding: tables ``[V, D]`` of vectors, one row for each word or position.
      stem: the layers before the first branch.
      shortcut: the layers on the skip path, such as 1x1 down-sampling convolutions.
      scalar_bias: Fixup's scalar biases.
      channel_bias: RescaleNet's vectors, which are added to the inputs of layers.
      multiplier: Fixup's (and RescaleNet's) learnable branch multipliers.
      alpha: SkipInit's learnable scalar, one for each branch.
      norm: parameters of normalisation layers.
      keep: what a scheme must not touch. Vectors and scalars that no rule names are kept too; a
        *weight* that no rule names is an error.
      stacked: leaves with a leading axis that runs over branches, as in scanned blocks; it orders
        the branches within what the groups of ``branch`` name. Branches are of one scan, and take
        turns (as attention and feed-forward of a Transformer's layer), if their paths agree up to
        the end of the key in which this match ends, or if its groups find the same.
      order: texts that the groups of ``branch`` find, in their order; they stand before all others.
      optional: names of rules that may match nothing; any other rule that does is an error.
      layout: ``"HWIO"`` where the last two axes of a weight are ``[C_in, C_out]`` (Flax, Haiku;
        the default), ``"OIHW"`` where the first two are ``[C_out, C_in]`` (Equinox, PyTorch).
      axes: the axes of weights that are otherwise laid out: a word for each expression, with a
        letter for each axis but the stacked one. ``I`` are inputs, ``O`` outputs, ``D``, ``H`` and
        ``W`` taps, ``N`` copies that are drawn one by one, as experts and the kernels of a
        depthwise convolution (``"HWIN"``) are:
        ``{r"/(?:q|k|v)/kernel": "IOO", r"/o/kernel": "IIO"}`` for ``[D, heads, head_dim]`` and
        ``[heads, head_dim, D]``.

    Raises:
      ValueError: if an expression does not compile, if ``branch`` has no group, if the layout is
        not one of the two, or a word of ``axes`` has other letters.
      TypeError: if ``order`` or ``optional`` is no tuple of texts.

    Example:
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)/kernel", head=r"^dense/", keep=r"^stem/")
      >>> rules.stem is None, rules.keep
      (True, '^stem/')
    """

    branch: str | None = None
    head: str | None = None
    embedding: str | None = None
    stem: str | None = None
    shortcut: str | None = None
    scalar_bias: str | None = None
    channel_bias: str | None = None
    multiplier: str | None = None
    alpha: str | None = None
    norm: str | None = None
    keep: str | None = None
    stacked: str | None = None
    order: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    layout: str | None = None
    axes: Mapping[str, str] | tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # Pairs, so that rules stay hashable.
        object.__setattr__(self, "axes", _refuse_words(self.axes))
        for name in ("order", "optional"):
            object.__setattr__(self, name, _refuse_no_names(name, getattr(self, name)))
        for name in (*(role.value for role in Role), "stacked"):
            pattern = getattr(self, name)
            if pattern is None:
                continue
            if not compiled(f"rules.{name}", pattern).groups and name == "branch":
                raise ValueError(
                    f"rules.branch={pattern!r} has no group; its last group must order the layers "
                    r"of a branch, the groups before it the branches, as in "
                    r"'block_(\d+)/conv_(\d+)/kernel'."
                )
        if self.layout not in (None, *LAYOUTS):
            raise ValueError(
                f"rules.layout={self.layout!r} found; expected one of "
                + ", ".join(f"{name!r} for {axes}" for name, axes in LAYOUTS.items())
                + "."
            )

    def patterns(self) -> Iterator[tuple[Role, str]]:
        """Yields each role that has an expression, with it."""
        for role in Role:
            pattern = getattr(self, role.value)
            if pattern is not None:
                yield role, pattern


def compiled(name: str, pattern: Any) -> re.Pattern[str]:
    """Compiles an expression that the user gave under a name.

    Raises:
      ValueError: if it is no regular expression.
    """
    try:
        found = re.compile(pattern)
        found.search("")  # refuses patterns of bytes
    except (re.error, TypeError) as error:
        raise ValueError(f"{name}={pattern!r} is not a regular expression: {error}.") from None
    return found


def _refuse_no_names(name: str, given: Any) -> tuple[str, ...]:
    """Refuses what is no tuple or list of texts, one text above all."""
    if not isinstance(given, tuple | list) or not all(isinstance(text, str) for text in given):
        raise TypeError(f"rules.{name}={given!r} found; expected a tuple of texts.")
    return tuple(given)


def _refuse_words(axes: Any) -> tuple[tuple[str, str], ...]:
    """Refuses what are no words for axes, and returns the pairs of ``rules.axes``."""
    pairs = tuple(axes.items()) if isinstance(axes, Mapping) else axes
    if not isinstance(pairs, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in pairs
    ):
        raise ValueError(
            f"rules.axes={axes!r} found; expected a dict from an expression to a word such as "
            "'IOO'."
        )
    for pattern, word in pairs:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"rules.axes has {pattern!r}, which is not a regular expression: {error}."
            ) from None
        if not word or set(word) - set("IODHWN"):
            raise ValueError(
                f"rules.axes={{{pattern!r}: {word!r}}} found; expected one letter for each axis: "
                "I (an input), O (an output), D, H, W (taps), N (copies that are drawn one by one)."
            )
    return pairs


OUR_RULES = Rules(
    branch=(
        r"(stage_\d+|encoder|decoder)/(first|rest|layers/\w+)/"
        r"(conv_\d+|query|key|value|out|linear_\d+)/(?:kernel|bias)$"
    ),
    head=r"(?:^|/)head/(?:kernel|bias)$",
    embedding=r"(?:^|/)embed(?:ding)?(?:_\w+)?(?:/embedding)?$",
    stem=r"(?:^|/)(?:stem|features_\d+|classifier_\d+)/(?:kernel|bias)$",
    shortcut=r"/shortcut/(?:kernel|bias)$",
    scalar_bias=r"(?:^|/)bias_\w+$",
    channel_bias=r"(?:^|/)bias_\w+/vector$",
    multiplier=r"/multiplier$",
    alpha=r"/alpha$",
    norm=r"(?:^|/)norm(?:_\w+)?/\w+$|/gain$",
    stacked=r"stage_\d+/rest/|(?:encoder|decoder)/layers/",
    order=("encoder", "decoder", "query", "key", "value", "out"),
)
"""The names of this library's own models."""

__all__ = ["LAYOUTS", "OUR_RULES", "Rules", "compiled"]
