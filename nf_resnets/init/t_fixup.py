"""T-Fixup: small branches and embeddings, with which a Transformer trains without warm-up."""

from __future__ import annotations

from typing import Any

import jax

from nf_resnets import roles
from nf_resnets.init import needs
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.stacks import DECODER, find_stacks, is_value_path
from nf_resnets.init.tree import refuse_shapes, scaled
from nf_resnets.init.xavier import xavier
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme


@takes_network()
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
    The network has neither LayerNorm nor Fixup's scalars, and Adam needs no warm-up. (In the
    authors' code the value matrix is Xavier too, query and key are smaller by ``sqrt(2)``, and the
    head is ``N(0, 1 / D)`` or the target's embedding.)

    Without ``key`` the weights given are rescaled, and calling it twice rescales twice: no tree can
    be told from a scaled one. With ``key`` they are drawn first, and the call may be repeated.

    A branch of four layers is an attention, one of two a feed-forward branch, of which there are
    ``N``. ``rules`` must order the layers of attention as query, key, value, out
    (``Rules(order=("query", "key", "value", "out"))`` where the names do not).

    Args:
      params: a parameter tree of a Transformer; weights ``[D_in, D_out]``, or attention's
        ``[D, heads, head_dim]`` and ``[heads, head_dim, D]``, stacked or not. It is not changed.
      depth: ``L``, the number of residual branches (6 + 6 layers: 30), checked against the tree.
      decoder: a regular expression, found in the paths of the decoder's branches and embeddings.
      key: a JAX PRNG key to draw the weights afresh.
      rules: what the paths of the tree mean; by default the names of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, the tree has none, holds
        shapes or numbers that are not finite, has a norm in a branch, two factors of
        zeros at the end of one, or does not fit the rules; if a branch has neither 2
        nor 4 layers, a convolution of several taps, or two of which the second does not take what
        the first gives (as where query, key and value are one weight), encoder or decoder has not
        the branches of one, or ``decoder`` is no regular expression or matches nothing.
      TypeError: if ``depth`` is not an integer or ``key`` not a PRNG key.

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
      >>> [round(float(rescaled["encoder"]["self"][name].max()), 3) for name in "qkvo"]
      [1.0, 1.0, 0.67, 0.67]
      >>> [round(float(rescaled["decoder"]["cross"][name].max()), 3) for name in "qkvo"]
      [1.0, 1.0, 0.577, 0.577]
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    stacks = find_stacks(SCHEME.title, role_map, decoder)
    layers = stacks.layers
    needs.check_parts(SCHEME, role_map)
    if key is not None:
        params = xavier(params, key, rules=role_map)
    else:
        refuse_shapes(params, role_map)

    def rescale(leaf: Leaf, value: Any) -> Any:
        side = stacks.in_decoder(leaf)
        if leaf.role is Role.EMBEDDING:
            return scaled(value, (9 * layers.get(side, max(layers.values()))) ** -0.25)
        if is_value_path(leaf):
            number = layers[side]
            return scaled(value, (9 * number) ** -0.25 if side else 0.67 * number**-0.25)
        return value

    return needs.check_zeros(SCHEME, role_map, role_map.map(rescale, params))


SCHEME = Scheme(
    name="t_fixup",
    title="T-Fixup",
    init=t_fixup,
    anatomy=Anatomy(conv_biases=True),
    reference="Huang, Perez, Ba, Volkovs: Improving Transformer Optimization Through Better "
    "Initialization, ICML 2020, section 3.2",
    fits=frozenset({"transformer"}),
    norm_free=True,
)

__all__ = ["SCHEME", "t_fixup"]
