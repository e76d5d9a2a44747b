"""Schemes for Transformers: T-Fixup, DeepNorm, Admin, DyT and Derf.

A branch of four layers is an attention, in the order query, key, value, out; one of two is a
feed-forward branch, of which a stack of ``N`` layers has ``N``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from functools import partial
from typing import Any

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.init.standard import standard, xavier
from nf_resnets.init.tree import cast_like, check_positive, refuse_norms, scaled, takes_network
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme

DECODER = r"(?:^|/)decoder"
"""Where the paths of the decoder's branches and embeddings are, by default."""

_SCALED = {4: (3, 4), 2: (1, 2)}  # the layers that depth scales, by how many a branch has


def _stacks(title: str, role_map: RoleMap, decoder: str) -> dict[bool, int]:
    """``N`` of the encoder (``False``) and of the decoder (``True``), where they are."""
    for branch in role_map.branches:
        if branch.m not in _SCALED:
            raise ValueError(
                f"residual branch {branch.name!r} has m = {branch.m} layers; {title} knows "
                "attention with 4 (query, key, value, out) and feed-forward with 2."
            )
    first: dict[tuple[int, ...], Leaf] = {}
    for leaf in sorted(role_map.leaves, key=lambda leaf: leaf.layer):
        if leaf.role is not Role.BRANCH or not leaf.weight or leaf.m != 2:
            continue
        before = first.setdefault(leaf.branches, leaf)
        given, taken = roles.fans(before)[1], roles.fans(leaf)[0]
        if before is not leaf and given != taken:
            raise ValueError(
                f"leaf {before.path!r} gives {given} channels and {leaf.path!r}, the second layer "
                f"of its branch, takes {taken}; {title}, which scales value and not query and key, "
                "expected a feed-forward branch, or attention with 4 weights."
            )
    layers: dict[bool, int] = {}
    attentions = 0  # of the encoder
    for branch in role_map.branches:
        side = re.search(decoder, branch.name) is not None
        layers[side] = layers.get(side, 0) + (branch.m == 2)
        attentions += branch.m == 4 and not side
    if decoder != DECODER and True not in layers:
        raise ValueError(f"decoder={decoder!r} matches no residual branch.")
    if attentions > layers.get(False, 0) > 0:
        raise ValueError(
            f"{attentions} attention and {layers[False]} feed-forward branches found in paths that "
            f"decoder={decoder!r} does not match; expected as many of both in an encoder, and "
            "decoder= to match the branches of a decoder."
        )
    if not all(layers.values()):
        raise ValueError("attention without feed-forward branches found in a stack.")
    return layers


def _is_value_path(leaf: Leaf) -> bool:
    """Whether a leaf is a value, an out or a feed-forward matrix, and not a query or key."""
    return leaf.role is Role.BRANCH and leaf.weight and leaf.layer in _SCALED[leaf.m]


@takes_network
def t_fixup(
    params: Any,
    depth: int,
    *,
    decoder: str = DECODER,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Turns a Xavier initialisation of a Transformer into T-Fixup's, section 3.2 of its paper.

    With ``N`` layers in the encoder, or in the decoder,

    1. value, out and both feed-forward matrices of the encoder are multiplied by
       ``0.67 N**(-1/4)``;
    2. value, out (of self- and cross-attention) and both feed-forward matrices of the decoder by
       ``(9 N)**(-1/4)``;
    3. every embedding by ``(9 N)**(-1/4)``, one that encoder and decoder share by the encoder's.

    The paper's network has both. Of a network with one stack of layers, this library's extension
    takes the rule of that side: 1 and 3 where no path is a decoder's (a ViT), 2 and 3 where all
    are (a GPT, without cross-attention: say ``decoder=""``). Learnt positions that ``embedding=``
    names are scaled too; the paper's are constants, so name learnt ones in ``keep=``.

    Query, key and the head keep their Xavier initialisation, embeddings start from ``N(0, 1 / D)``.
    (In the authors' code query and key are smaller by ``sqrt(2)``, and the head is ``N(0, 1 / D)``
    or the target's embedding.) Without ``key`` the weights given are rescaled, and calling it twice
    rescales twice. Other arguments as in :func:`nf_resnets.init.fixup`.

    Args:
      params: a parameter tree of a Transformer, stacked or not.
      depth: ``L``, the number of residual branches (6 + 6 layers: 30).
      decoder: a regular expression, found in the paths of the decoder's branches and embeddings.
      key: a JAX PRNG key to draw the weights afresh.
      rules: ``order`` says which layers of attention are query, key, value and out.

    Raises:
      ValueError: if a branch contains a norm, has neither 2 nor 4 layers, or two of which the
        second does not take what the first gives (as where query, key and value are one weight),
        or ``decoder`` does not match a decoder with cross-attention.

    Source: Huang, Perez, Ba, Volkovs, *Improving Transformer Optimization Through Better
    Initialization*, ICML 2020.

    Example:
      >>> import jax.numpy as jnp
      >>> attention = {name: jnp.ones((8, 8)) for name in ("q", "k", "v", "o")}
      >>> mlp = {"w1": jnp.ones((8, 16)), "w2": jnp.ones((16, 8))}
      >>> tree = {"encoder": {"self": attention, "mlp": mlp},
      ...         "decoder": {"self": attention, "cross": attention, "mlp": mlp}}
      >>> rules = Rules(branch=r"(\w+)/(\w+)/(\w+)$", order=("encoder", "q", "k", "v", "o"))
      >>> rescaled = t_fixup(tree, depth=5, rules=rules)
      >>> [round(float(rescaled["decoder"]["cross"][name].max()), 3) for name in "qkvo"]
      [1.0, 1.0, 0.577, 0.577]
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    layers = _stacks("T-Fixup", role_map, decoder)
    refuse_norms(role_map, "T-Fixup")
    if key is not None:
        params = xavier(params, key, rules=role_map)

    def rescale(leaf: Leaf, value: Any) -> Any:
        side = re.search(decoder, leaf.path) is not None
        if leaf.role is Role.EMBEDDING:
            return scaled(value, (9 * layers.get(side, max(layers.values()))) ** -0.25)
        if _is_value_path(leaf):
            number = layers[side]
            return scaled(value, (9 * number) ** -0.25 if side else 0.67 * number**-0.25)
        return value

    return role_map.map(rescale, params)


@takes_network
def deepnorm(
    params: Any,
    depth: int,
    *,
    decoder: str = DECODER,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Divides value, out and feed-forward matrices by ``beta``, figure 2 of the paper.

    They belong to ``x_k = LN(alpha x_{k-1} + F_k(x_{k-1}))``. With ``N`` layers in the encoder and
    ``M`` in the decoder (:func:`alpha_beta`),

    1. in one stack alone ``alpha = (2 N)**(1/4)``, ``beta = (8 N)**(1/4)``;
    2. in an encoder with a decoder ``alpha = 0.81 (N**4 M)**(1/16)``, ``beta = (N**4 M)**(1/16) /
       1.15``;
    3. in a decoder with an encoder ``alpha = (3 M)**(1/4)``, ``beta = (12 M)**(1/4)``.

    Query, key, embeddings and head keep their Xavier initialisation. The forward pass must have
    ``alpha``: ``schemes.get("deepnorm").constants(depth, transitions).identity``, with True where
    the decoder begins; this library's Transformer has it. Without ``key`` the weights given are
    divided, and calling it twice divides twice. Arguments as in :func:`nf_resnets.init.t_fixup`; a
    tree without norms is refused.

    Source: Wang, Ma, Dong, Huang, Zhang, Wei, *DeepNet: Scaling Transformers to 1,000 Layers*,
    2022; torchscale, ``architecture/encoder.py`` and ``decoder.py``.

    Example:
      >>> import jax.numpy as jnp
      >>> layer = {"q": jnp.ones((8, 8)), "k": jnp.ones((8, 8)), "v": jnp.ones((8, 8)),
      ...          "o": jnp.ones((8, 8)), "ln": jnp.ones(8)}
      >>> mlp = {"w1": jnp.ones((8, 16)), "w2": jnp.ones((16, 8))}
      >>> rules = Rules(branch=r"(\w+)/(q|k|v|o|w\d)$", order=("q", "k", "v", "o"), norm="ln")
      >>> rescaled = deepnorm({"attention": layer, "mlp": mlp}, depth=2, rules=rules)
      >>> [round(float(rescaled["attention"][name].max()), 3) for name in "qkvo"]  # 8**-0.25
      [1.0, 1.0, 0.595, 0.595]
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    layers = _stacks("DeepNorm", role_map, decoder)
    if not any(leaf.role is Role.NORM for leaf in role_map.leaves):
        raise ValueError(
            "no norms found in params; expected one after every sum, whose skip path is enlarged."
        )
    constants = alpha_beta(*(layers.get(side, 0) for side in (False, True)))
    if key is not None:
        params = xavier(params, key, rules=role_map)

    def rescale(leaf: Leaf, value: Any) -> Any:
        _, beta = constants[re.search(decoder, leaf.path) is not None]
        return scaled(value, 1 / beta) if _is_value_path(leaf) else value

    return role_map.map(rescale, params)


def alpha_beta(encoder: float, decoder: float) -> tuple[tuple[float, float], tuple[float, float]]:
    r"""``(alpha, beta)`` of the encoder and of the decoder, figure 2 of the paper.

    A step of gradient descent moves the output of ``n`` branches by at most a multiple of ``sum_k
    (v_k**2 + w_k**2) / alpha**2``, with ``v = w = 1 / beta`` the sizes of a branch's two matrices;
    the constants make it 1 at every depth.

    Args:
      encoder: layers of the encoder, 0 if there is none.
      decoder: layers of the decoder, 0 if there is none.

    Example:
      >>> (alpha, beta), _ = alpha_beta(100, 0)
      >>> round(200 * (2 / beta**2) / alpha**2, 6)
      1.0
    """
    if not (encoder and decoder):
        layers = encoder or decoder
        alone = (2 * layers) ** 0.25, (8 * layers) ** 0.25
        return alone, alone
    both = (encoder**4 * decoder) ** (1 / 16)
    return (0.81 * both, both / 1.15), ((3 * decoder) ** 0.25, (12 * decoder) ** 0.25)


def _skips(transitions: tuple[bool, ...], *, of_admin: bool) -> np.ndarray:
    """``[L]``: a constant for the branches of the encoder, and one for those of the decoder."""
    in_decoder = np.logical_or.accumulate(np.asarray(transitions, bool))
    encoder, decoder = int(sum(~in_decoder)), int(sum(in_decoder))
    if of_admin:
        return np.where(in_decoder, omega(decoder), omega(encoder))
    (first, _), (second, _) = alpha_beta(encoder / 2, decoder / 3)
    return np.where(in_decoder, second, first)


def omega(branches: int) -> float:
    r"""``sqrt((n + 1) / ln(n + 1) - 1)``, by which Admin enlarges the skips of ``n`` branches.

    In ``x_k = LN(omega x_{k-1} + F_k(x_{k-1}))`` a branch of variance 1 has the share ``1 / (1 +
    omega**2) = ln(n + 1) / (n + 1)`` of its sum, so that the shares of all come to about ``ln n``,
    where ``omega = 1`` gives ``n / 2``. ``n`` is ``2 N`` in an encoder, ``3 M`` in a decoder.

    Source: admin_torch, ``admin.py``; in the paper it is made of variances measured on a batch.
    """
    return math.sqrt((branches + 1) / math.log(branches + 1) - 1) if branches else 1.0


@takes_network
def dyt(
    params: Any,
    depth: int,
    *,
    alpha: float = 0.5,
    attention: float | None = None,
    alphas: str = r"/norm/input_scale$",
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Sets the input scales of DyT, ``gamma tanh(alpha x) + beta``, or Derf: section 4.

    All other leaves stay as they are (``gamma`` is 1 and ``beta`` 0 as a model's ``init`` has
    them), or, with ``key``, weights are drawn as by :func:`nf_resnets.init.standard`. Language
    models are said to want a larger ``alpha`` before attention than elsewhere, and smaller ones the
    wider they are. Other arguments as in :func:`nf_resnets.init.fixup`.

    Args:
      params: a parameter tree with such functions in the place of norms.
      depth: ``L``, the number of residual branches.
      alpha: what every input scale starts from.
      attention: what those start from whose path has "attention" or "attn" in it; by default
        ``alpha``.
      alphas: a regular expression that finds the paths of the input scales.
      key: a JAX PRNG key to draw the weights afresh.
      rules: the roles of the leaves.

    Raises:
      ValueError: if ``alphas`` finds nothing.

    Source: Zhu, Chen, He, LeCun, Liu, *Transformers without Normalization*, CVPR 2025; Chen, Lu,
    Zhu, Sun, Liu, *Stronger Normalization-Free Transformers*, 2025.

    Example:
      >>> import jax.numpy as jnp
      >>> mlp = {"w1": jnp.ones((8, 16)), "w2": jnp.ones((16, 8)), "dyt": {"alpha": jnp.ones(1)}}
      >>> rules = Rules(branch=r"(\w+)/(w\d)$", norm=r"/dyt/")
      >>> dyt({"mlp": mlp}, 1, alphas=r"/dyt/alpha", rules=rules)["mlp"]["dyt"]["alpha"].tolist()
      [0.5]
    """
    attention = alpha if attention is None else attention
    check_positive(alpha=alpha, attention=attention)
    role_map = roles.assign(params, rules)
    params = standard(params, depth, key=key, rules=role_map)
    if not any(re.search(alphas, leaf.path) for leaf in role_map.leaves):
        raise ValueError(f"no input scale of DyT found by alphas={alphas!r}; expected some.")

    def fill(leaf: Leaf, value: Any) -> Any:
        if not re.search(alphas, leaf.path):
            return value
        return cast_like(value, attention if re.search("attention|attn", leaf.path) else alpha)

    return role_map.map(fill, params)


_for_transformers = partial(Scheme, fits=frozenset({"transformer"}))
_post = partial(Anatomy, conv_biases=True, norm="layer", norm_place="post")
DYT = _for_transformers(
    name="dyt",
    title="DyT",
    init=dyt,
    anatomy=Anatomy(conv_biases=True, norm="dyt", norm_place="pre"),
    reference="Zhu, Chen, He, LeCun, Liu: Transformers without Normalization, CVPR 2025, section 4",
)
SCHEMES = (
    _for_transformers(
        name="t_fixup",
        title="T-Fixup",
        init=t_fixup,
        anatomy=Anatomy(conv_biases=True),
        reference="Huang, Perez, Ba, Volkovs: Improving Transformer Optimization Through Better "
        "Initialization, ICML 2020, section 3.2",
    ),
    _for_transformers(
        name="deepnorm",
        title="DeepNorm",
        init=deepnorm,
        anatomy=_post(identity=partial(_skips, of_admin=False)),
        reference="Wang et al.: DeepNet: Scaling Transformers to 1,000 Layers, 2022, figure 2",
    ),
    _for_transformers(
        name="admin",
        title="Admin",
        init=standard,
        anatomy=_post(identity=partial(_skips, of_admin=True)),
        reference="Liu et al.: Understanding the Difficulty of Training Transformers, EMNLP 2020; "
        "constants of admin_torch",
    ),
    DYT,
    dataclasses.replace(
        DYT,
        name="derf",
        title="Derf",
        anatomy=dataclasses.replace(DYT.anatomy, norm="derf"),
        reference="Chen, Lu, Zhu, Sun, Liu: Stronger Normalization-Free Transformers, 2025",
    ),
)
