"""Ready rules for the networks of this library and of others: Flax's, Haiku's, PyTorch's names.

Each function returns the :class:`~nf_resnets.roles.Rules` of one family of networks. A network that
adds names of its own, such as scalars, says so with ``dataclasses.replace``. The rules leave
normalisation unnamed, so that an initialiser for networks without normalisation can object to a
norm that was left in a branch; ``norm=True`` says that the network is meant to have it. A network's
parameters fit the rules under ``"params"`` too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from nf_resnets import schemes
from nf_resnets.init.ordered import ordered
from nf_resnets.roles import OUR_RULES, Role, Rules
from nf_resnets.schemes import Scheme

# A path begins, and ends, at any of these: NNX adds a key to a Param's path, and the keys of a
# state_dict are joined by dots.
_START = r"(?:^|[./])"
_VALUE = r"(?:/(?:raw_)?value)?$"
_END = rf"[./](?:kernel|bias|weight|w|b){_VALUE}"
_NORM = r"(?:[nN]orm|bn|BN|(?:^|[./_])(?:[gl]n|[GL]N)(?![a-z]))\w*"
_OF_NORM = rf"[./](?:scale|bias|offset|weight){_VALUE}"
# A ready rule serves many networks, and not each has all of its parts.
_OPTIONAL = (*(role.value for role in Role if role is not Role.BRANCH), "order")

_ATTENTION = (
    "MultiHeadDotProductAttention", "MultiHeadAttention", "SelfAttention",
    "self_attention", "self_attn", "attention", "attn", "mha",
)  # fmt: skip
_FEED_FORWARD = ("MlpBlock", "MLP", "Mlp", "mlp", "feed_forward", "ffn", "ff")
_ORDER = (*_ATTENTION, *_FEED_FORWARD, "query", "key", "value", "out")


def own() -> Rules:
    """Those of this library's models, which hold where none are given.

    They are there to be changed: a rule that is left as it is may match nothing, one that is
    replaced may not.

    Returns:
      The rules.

    Example:
      >>> import jax.numpy as jnp
      >>> from nf_resnets import roles
      >>> conv = jnp.ones((3, 3, 4, 4))
      >>> tree = {"stem": {"kernel": conv}, "teacher": {"kernel": conv}}
      >>> rules = dataclasses.replace(own(), keep=r"^teacher/")
      >>> [leaf.role.value for leaf in roles.assign(tree, rules).leaves]
      ['stem', 'keep']
    """
    return OUR_RULES


def flax_resnet(*, norm: bool = False) -> Rules:
    """The ResNets of the Flax ImageNet example, in Linen: ``ResNetBlock_0/Conv_0/kernel``.

    Source: the ImageNet example of the Flax repository, ``models.py``.

    Example:
      >>> import jax.numpy as jnp
      >>> from nf_resnets import roles
      >>> block = {"Conv_0": {"kernel": jnp.ones((3, 3, 4, 4))},
      ...          "Conv_1": {"kernel": jnp.ones((3, 3, 4, 4))}}
      >>> tree = {f"ResNetBlock_{number}": block for number in range(12)}
      >>> [branch.name for branch in roles.assign(tree, flax_resnet()).branches][:3]
      ['ResNetBlock_0', 'ResNetBlock_1', 'ResNetBlock_2']
    """
    return _rules(
        norm,
        branch=rf"{_START}(?:Bottleneck)?ResNetBlock_(\d+)/Conv(?:Local)?_(\d+){_END}",
        stem=rf"{_START}conv_init{_END}",
        shortcut=rf"/conv_proj{_END}",
        head=rf"{_START}Dense_\d+{_END}",
    )


def nnx_resnet(*, norm: bool = False) -> Rules:
    """ResNets in Flax NNX with the usual attribute names: ``layer1/0/conv1/kernel``.

    Blocks stand in numbered groups (``layer1/0``, ``stages/0/blocks/1``) or in one list
    (``blocks/3``), their convolutions are ``conv1``, ``conv2``, ..., the projection is
    ``downsample``, ``shortcut``, ``proj`` or the like, the stem ``conv1``, ``stem`` or
    ``conv_init``, the head ``fc``, ``head``, ``linear`` or ``classifier``.

    Example:
      >>> import numpy as np
      >>> from nf_resnets import roles
      >>> conv = {"kernel": np.ones((3, 3, 4, 4))}
      >>> tree = {"layer1": {0: {"conv1": conv, "conv2": conv}}, "fc": {"kernel": np.ones((4, 9))}}
      >>> [leaf.role.value for leaf in roles.assign(tree, nnx_resnet()).leaves]
      ['head', 'branch', 'branch']
    """
    group = r"(?:layer|stage|group)s?[_/]?(\d+)/(?:(?:layers|blocks)/)?(?:blocks?_?)?"
    return _rules(
        norm,
        norms=rf"{_NORM}|/downsample/(?:layers/)?1",
        branch=rf"{_START}(?:{group}|blocks?[_/]?)(\d+)/(?:layers/)?conv_?(\d+){_END}",
        stem=rf"^(?:params/)?(?:conv_?1|stem|conv_init|conv_stem|initial_conv)(?:/conv\w*)?{_END}",
        shortcut=rf"/(?:downsample|shortcut|projection|proj)(?:_conv|/(?:layers/)?0|/conv\w*)?{_END}"
        rf"|/conv_(?:proj|shortcut){_END}",
        head=rf"{_START}(?:fc|head|linear|classifier|logits|dense){_END}",
    )


def torch_resnet(*, norm: bool = False, avg_down: bool = False) -> Rules:
    """The ``state_dict`` of torchvision's and timm's ResNets: ``layer1.0.conv1.weight``.

    Kernels are ``[C_out, C_in, H, W]``, dense weights ``[C_out, C_in]``. The keys of the tree may
    be the dotted names themselves or dicts within dicts, as an Equinox module of those names has.

    With ``avg_down`` the projection stands behind an average pool, as in timm's ResNet-D: it is
    ``downsample.1`` then, and its norm ``downsample.2``.

    Example:
      >>> import jax.numpy as jnp
      >>> from nf_resnets import roles
      >>> tree = {f"layer1.{block}.conv{j}.weight": jnp.ones((8, 8, 3, 3))
      ...         for block in range(11) for j in (1, 2)}
      >>> roles.assign(tree, torch_resnet()).branches[10].name
      'layer1.10.conv1.weight'
    """
    projection = 1 if avg_down else 0
    sequence = r"[./](?:layers[./])?"
    return _rules(
        norm,
        norms=rf"{_NORM}|downsample{sequence}{projection + 1}|conv1{sequence}[14]",
        branch=rf"{_START}layer(\d+){sequence}(\d+)[./]conv(\d+){_END}",
        # A deep stem is a sequence in which each third module is a convolution.
        stem=rf"^(?:(?!layer\d)\w+[./])*conv1(?:{sequence}[036])?{_END}",
        shortcut=rf"[./]downsample{sequence}{projection}{_END}",
        head=rf"{_START}fc{_END}",
        layout="OIHW",
    )


def haiku_resnet(*, norm: bool = False) -> Rules:
    """``haiku.nets.ResNet18`` to ``ResNet200``, of version 1 and 2.

    Source: ``haiku.nets.ResNet``.

    Example:
      >>> import numpy as np
      >>> from nf_resnets import roles
      >>> block = "res_net18/~/block_group_0/~/block_0/~/"
      >>> tree = {block + name: {"w": np.ones((3, 3, 4, 4))} for name in ("conv_0", "conv_1")}
      >>> roles.assign(tree, haiku_resnet()).num_branches
      1
    """
    # A scale has four axes, [1, 1, 1, C], and would be taken for a weight that no rule names.
    named = {} if norm else {"keep": rf"/\w*batchnorm\w*{_OF_NORM}"}
    return _rules(
        norm,
        **named,
        branch=rf"/block_group_(\d+)/~/block_(\d+)/~/conv_(\d+){_END}",
        stem=rf"/initial_conv(?:_\d+)?{_END}",
        shortcut=rf"/shortcut_conv{_END}",
        head=rf"/logits{_END}",
    )


def flax_vit(*, norm: bool = False) -> Rules:
    """Vision Transformers in Flax: those of ``vit_jax`` and ``big_vision``, and their like in NNX.

    A block has an attention (``query``, ``key``, ``value``, ``out``: m = 4) and a feed-forward
    branch (m = 2): ``Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel``. In NNX its attributes
    are ``blocks/0/attn`` and ``blocks/0/mlp`` or the like. The embedding of patches is the stem;
    class token and positions stay as they are.

    Source: ``vit_jax/models_vit.py`` of the Vision Transformer repository.
    """
    return _rules(
        norm,
        **_transformer(),
        stem=rf"{_START}(?:embedding|patch_embed(?:ding)?s?(?:/proj)?|stem){_END}",
        head=rf"{_START}(?:head|classifier|fc){_END}",
        keep=rf"{_START}(?:cls|cls_token|class_token|pos\w*|pre_logits)(?:/|$)",
    )


def flax_gpt(*, norm: bool = False) -> Rules:
    """Decoder-only Transformers in Flax: the LM1B example, and GPTs of the usual names.

    As :func:`flax_vit`, but with a table of tokens, and a head that is absent where the table
    serves as one: ``decoder/encoderdecoderblock_0/MlpBlock_0/Dense_1/kernel``,
    ``decoder/Embed_0/embedding``, ``decoder/logitdense/kernel``.

    Source: the LM1B example of the Flax repository, ``models.py``.

    Example:
      >>> import numpy as np
      >>> from nf_resnets import roles
      >>> mlp = {"Dense_0": {"kernel": np.ones((4, 8))}, "Dense_1": {"kernel": np.ones((8, 4))}}
      >>> tree = {"decoder": {"encoderdecoderblock_0": {"MlpBlock_0": mlp}}}
      >>> roles.assign(tree, flax_gpt()).num_branches
      1
    """
    table = r"(?:Embed_\d+|shared_embedding|embed(?:ding)?s?|wte|tok\w*|word\w*)"
    return _rules(
        norm,
        **_transformer(),
        embedding=rf"^(?:(?!wpe|pos)\w+/)*{table}(?:/embeddings?)?{_VALUE}",
        head=rf"{_START}(?:logitdense|lm_head|head|logits){_END}",
        keep=rf"{_START}(?:wpe|pos\w*)(?:/|$)",
    )


def with_parts(rules: Rules, scheme: str | Scheme) -> Rules:
    r"""The same network built with the parts of ``nf_resnets.models``, such as ``ScalarBias``.

    Args:
      rules: those of its layers.
      scheme: its name, or itself; its anatomy says which parts there are.

    Returns:
      The rules with ``scalar_bias``, ``channel_bias``, ``multiplier``, ``alpha`` and, for the gains
      of standardised weights, ``norm``, as far as the scheme has them.

    Example:
      >>> with_parts(Rules(branch=r"Block_(\d+)/Conv_(\d+)/kernel"), "skipinit").alpha
      '(?:^|[/.])alpha(?:/(?:raw_)?value)?$'
    """
    anatomy = schemes.get(scheme).anatomy
    parts = {
        "scalar_bias": (anatomy.scalar_biases, "bias_scalar"),
        "channel_bias": (anatomy.channel_biases, "vector"),
        "multiplier": (anatomy.multiplier, "multiplier"),
        "alpha": (anatomy.alpha, "alpha"),
        "norm": (anatomy.standardized, "gain"),
    }
    found: dict[str, Any] = {
        role: rf"(?:^|[/.]){name}{_VALUE}" for role, (there, name) in parts.items() if there
    }
    if rules.norm is not None and "norm" in found:
        found["norm"] += f"|{rules.norm}"
    return dataclasses.replace(rules, **found)


def scanned(rules: Rules, stacked: str) -> Rules:
    """The same network with its blocks scanned: every leaf of a block has a leading axis.

    Args:
      rules: those of the network with separate blocks.
      stacked: a regular expression for the paths of the stacked leaves; its match ends where the
        path of one block begins.

    Returns:
      The rules with ``stacked``.

    Example:
      >>> scanned(flax_vit(), r"encoderblock/").stacked
      'encoderblock/'
    """
    return dataclasses.replace(rules, stacked=stacked)


def _transformer() -> dict[str, str]:
    block = r"(?:\w*?(?:[bB]lock|[lL]ayer)s?|h)(?:[_/](\d+))?"
    layer = r"(?:\w+/)*?(query|key|value|out|(?:[dD]ense|linear|fc|layers|c|w)[_/]?\w+)"
    kind = "|".join((*_ATTENTION, *_FEED_FORWARD))
    return {"branch": rf"{_START}{block}/({kind})(?:_\d+)?/{layer}{_END}"}


def _rules(norm: bool, *, norms: str = _NORM, **patterns: Any) -> Rules:
    if norm:
        patterns["norm"] = rf"(?:{norms}){_OF_NORM}"
    return Rules(**patterns, order=_ORDER, optional=_OPTIONAL)


__all__ = [
    "flax_gpt", "flax_resnet", "flax_vit", "haiku_resnet", "nnx_resnet", "ordered", "own",
    "scanned", "torch_resnet", "with_parts",
]  # fmt: skip
