"""The regular expressions that say what the leaves of a tree are, by their paths."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Literal

from nf_resnets.roles.leaf import Role


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
      norm: parameters of normalization layers.
      keep: what a scheme must not touch. Vectors and scalars that no rule names are kept too; a
        *weight* that no rule names is an error.
      stacked: leaves with a leading axis that runs over branches, as in scanned blocks; it orders
        the branches within what the groups of ``branch`` name. Branches are of one scan, and take
        turns (as attention and feed-forward of a Transformer's layer), if their paths agree up to
        the end of the key in which this match ends, or if its groups find the same.
      order: texts that the groups of ``branch`` find, in their order; they stand before all others.
      layout: ``"HWIO"`` where the last two axes of a weight are ``[C_in, C_out]`` (Flax, Haiku;
        the default), ``"OIHW"`` where the first two are ``[C_out, C_in]`` (Equinox, PyTorch).
      axes: the axes of weights that are otherwise laid out: a word for each expression, with a
        letter for each axis but the stacked one. ``I`` are inputs, ``O`` outputs, ``D``, ``H`` and
        ``W`` taps, ``N`` copies that are drawn one by one, as experts and the kernels of a
        depthwise convolution (``"HWIN"``) are:
        ``{r"/(?:q|k|v)/kernel": "IOO", r"/o/kernel": "IIO"}`` for ``[D, heads, head_dim]`` and
        ``[heads, head_dim, D]``.

    Raises:
      ValueError: if ``branch`` has no group, or ``layout`` or a word of ``axes`` is none of these.

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
    layout: Literal["HWIO", "OIHW"] | None = None
    axes: Mapping[str, str] | tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple(dict(self.axes).items()))  # hashable
        if self.branch is not None and not re.compile(self.branch).groups:
            raise ValueError(
                f"rules.branch={self.branch!r} has no group; its last group must order the layers "
                r"of a branch, the groups before it the branches, as in "
                r"'block_(\d+)/conv_(\d+)/kernel'."
            )
        if self.layout not in (None, "HWIO", "OIHW"):
            raise ValueError(
                f"rules.layout={self.layout!r} found; expected 'HWIO' for [H, W, C_in, C_out] or "
                "'OIHW' for [C_out, C_in, H, W]."
            )
        for pattern, word in dict(self.axes).items():
            if not word or set(word) - set("IODHWN"):
                raise ValueError(
                    f"rules.axes={{{pattern!r}: {word!r}}} found; expected for each axis I (an "
                    "input), O (an output), D, H, W (taps) or N (copies that are drawn one by one)."
                )

    def patterns(self) -> Iterator[tuple[Role, str]]:
        """Yields each role that has an expression, with it."""
        for role in Role:
            pattern = getattr(self, role.value)
            if pattern is not None:
                yield role, pattern


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
