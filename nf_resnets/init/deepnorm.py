"""DeepNorm: LayerNorm after sums whose skip path is enlarged, smaller weights in the branches."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.init import needs
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.stacks import DECODER, find_stacks, is_value_path
from nf_resnets.init.tree import refuse_shapes, scaled
from nf_resnets.init.xavier import xavier
from nf_resnets.roles import Leaf, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Need, Scheme


@takes_network()
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
    the decoder begins; this library's Transformer has it.

    Without ``key`` the weights given are divided, and calling it twice divides twice; with ``key``
    they are drawn first.

    Args:
      params: a parameter tree of a Transformer, as :func:`nf_resnets.init.t_fixup` takes it; the
        rules name its norms. It is not changed.
      depth: ``L``, the number of residual branches (6 + 6 layers: 30), checked against the tree.
      decoder: a regular expression, found in the paths of the decoder's branches.
      key: a JAX PRNG key to draw the weights afresh.
      rules: what the paths of the tree mean; by default the names of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if the tree has no norm, ``depth`` is not the number of residual branches, or the
        branches are none, or not those that :func:`nf_resnets.init.t_fixup` takes.
      TypeError: if ``depth`` is not an integer or ``key`` not a PRNG key.

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
    stacks = find_stacks(SCHEME.title, role_map, decoder)
    needs.check_parts(SCHEME, role_map)
    constants = alpha_beta(*(stacks.layers.get(side, 0) for side in (False, True)))
    if key is not None:
        params = xavier(params, key, rules=role_map)
    else:
        refuse_shapes(params, role_map)

    def rescale(leaf: Leaf, value: Any) -> Any:
        _, beta = constants[stacks.in_decoder(leaf)]
        return scaled(value, 1 / beta) if is_value_path(leaf) else value

    return role_map.map(rescale, params)


def alpha_beta(encoder: float, decoder: float) -> tuple[tuple[float, float], tuple[float, float]]:
    r"""``(alpha, beta)`` of the encoder and of the decoder, figure 2 of the paper.

    In a stack of ``n`` branches by itself, and in a decoder of ``n = 3 M`` beside an encoder, a
    step of gradient descent moves the output by at most a multiple of ``sum_k (v_k**2 + w_k**2) /
    alpha**2``, with ``v = w = 1 / beta`` the sizes of a branch's two matrices; the constants make
    it 1 at every depth. That of an encoder is multiplied by ``M v w / alpha`` of the decoder.

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


def _alpha(transitions: tuple[bool, ...]) -> np.ndarray:
    in_decoder = np.logical_or.accumulate(np.asarray(transitions, bool))
    branches = int(sum(~in_decoder)), int(sum(in_decoder))
    (encoder, _), (decoder, _) = alpha_beta(branches[0] / 2, branches[1] / 3)
    return np.where(in_decoder, decoder, encoder)


SCHEME = Scheme(
    name="deepnorm",
    title="DeepNorm",
    init=deepnorm,
    anatomy=Anatomy(conv_biases=True, norm="layer", norm_place="post", identity=_alpha),
    reference="Wang et al.: DeepNet: Scaling Transformers to 1,000 Layers, 2022, figure 2",
    fits=frozenset({"transformer"}),
    needs=(Need("norm", "fails", "every sum enlarges the skip path by alpha, above 1"),),
)

__all__ = ["SCHEME", "alpha_beta", "deepnorm"]
