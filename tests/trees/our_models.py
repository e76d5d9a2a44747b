"""This library's own models, with the multipliers of Fixup and the alphas of SkipInit."""

import jax

from nf_resnets import models
from tests.trees.network import CLASSES, IMAGES, Network, filled


def _network(model, scalar_biases, blocks):
    shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGES)["params"]
    anatomy = model.scheme
    kinds = {"stem/kernel": "stem", "head/kernel": "head", "head/bias": "head_bias"}
    if anatomy == "skipinit":
        kinds["stem/bias"] = "bias"
    order = []
    for stage in (1, 2, 3):
        order.append(f"stage_{stage}/first")
        order += [f"stage_{stage}/rest[{index}]" for index in range(blocks - 1)]
        for part in ("first", "rest"):
            block = f"stage_{stage}/{part}"
            kinds |= {f"{block}/conv_1/kernel": "inner", f"{block}/conv_2/kernel": "last"}
            if anatomy == "skipinit":
                kinds |= {f"{block}/conv_1/bias": "inner_bias"}
                kinds |= {f"{block}/conv_2/bias": "last_bias", f"{block}/alpha": "alpha"}
            else:
                kinds |= {f"{block}/{name}": "scalar_bias" for name in scalar_biases}
                kinds[f"{block}/multiplier"] = "multiplier"
    return Network(filled(shapes), None, kinds, tuple(order))


def cifar_resnet(scheme):
    model = models.CifarResNet(depth=20, scheme=scheme, num_classes=CLASSES, stem_channels=3)
    net = _network(model, ("bias_1a", "bias_1b", "bias_2a", "bias_2b"), blocks=3)
    if scheme == "fixup":
        net.kinds.update(bias_stem="scalar_bias", bias_head="scalar_bias")
    return net


def wide_resnet(scheme):
    model = models.WideResNet(depth=22, scheme=scheme, num_classes=CLASSES, stem_channels=3)
    net = _network(model, ("bias_1", "bias_2", "bias_3", "bias_4"), blocks=3)
    for stage in (2, 3):
        net.kinds[f"stage_{stage}/first/shortcut/kernel"] = "shortcut"
        if scheme == "skipinit":
            net.kinds[f"stage_{stage}/first/shortcut/bias"] = "bias"
    if scheme == "fixup":
        net.kinds.update(bias_relu="scalar_bias", bias_head="scalar_bias")
    return net
