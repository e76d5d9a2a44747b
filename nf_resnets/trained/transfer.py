"""Fine-tuning: a trained network with a new head, and the leaves that are to stay as they are."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from nf_resnets import roles, schemes
from nf_resnets.roles import Leaf, Role
from nf_resnets.trained.file import Trained, TrainedError
from nf_resnets.trained.inputs import Images
from nf_resnets.trained.predict import images_of, refuse_other_network
from nf_resnets.training.program import quick_jit

Learn = Literal["all", "small", "head"]

_SMALL = {Role.SCALAR_BIAS, Role.CHANNEL_BIAS, Role.MULTIPLIER, Role.ALPHA, Role.NORM}


def transfer(trained: Trained, *, inputs: Images, key: jax.Array) -> Trained:
    """Gives a network a new head, for other classes; all other leaves stay as they are.

    The head starts as the network's scheme has it: with Fixup at 0, elsewhere drawn.

    Args:
      trained: a network for images.
      inputs: :meth:`Images.of` of the new data set, whose mean and standard deviation give the
        network inputs of the size that it is used to.
      key: a JAX PRNG key to draw the head.

    Raises:
      TrainedError: if the network is not for images of that many channels, or not one of this
        library with its variables.

    Source: Zhang, Dauphin, Ma, ICLR 2019, section 3, for the head.
    """
    old = images_of(trained)
    refuse_other_network(trained)
    if inputs.shape[-1] != old.shape[-1]:
        raise TrainedError(
            f"images of {inputs.shape[-1]} channels found; expected {old.shape[-1]}, as the "
            "network was trained on."
        )
    model = trained.model.clone(num_classes=len(inputs.class_names))
    scheme = schemes.get(model.scheme)
    image = jnp.zeros((1, *inputs.shape))

    @quick_jit
    def head_of(key: jax.Array) -> dict[str, jax.Array]:
        params = model.init(key, image)["params"]
        params = scheme.init(params, model.num_branches, key=key)
        leaves = roles.assign(params).items(params)
        return {leaf.path: value for leaf, value in leaves if leaf.role is Role.HEAD}

    head = jax.device_get(head_of(key))

    def renewed(leaf: Leaf, value: Any) -> Any:
        return head[leaf.path].astype(value.dtype) if leaf.path in head else value

    params = trained.variables["params"]
    params = roles.assign(params).map(renewed, params)
    return Trained(model, {**trained.variables, "params": params}, inputs)


def label_tree(params: Any, learn: Learn) -> Any:
    """Labels each leaf ``"learns"`` or ``"stays"``.

    ``learn`` is ``"all"``; ``"small"`` for the head, and the biases, multipliers and norms; or
    ``"head"``. A ``ValueError`` refuses another.
    """
    if learn not in get_args(Learn):
        raise ValueError(f"learn={learn!r} found; expected one of {', '.join(get_args(Learn))}.")

    def label(leaf: Leaf) -> str:
        is_vector = not leaf.weight and leaf.role in roles.LAYER_ROLES
        is_small = learn == "small" and (is_vector or leaf.role in _SMALL)
        return "learns" if learn == "all" or is_small or leaf.role is Role.HEAD else "stays"

    return roles.assign(params).labels(label)


def partly(
    transformation: optax.GradientTransformation, learn: Learn
) -> optax.GradientTransformation:
    """The same update rule for the leaves that learn; the others do not move, nor decay.

    (BatchNorm's running statistics are no parameters, and go on following the batches.)
    """
    if learn == "all":
        return transformation

    def stays(params: Any) -> Any:
        return jax.tree.map(lambda label: label == "stays", label_tree(params, learn))

    # Gradients of what stays are set to 0 before, for clipping and the like; updates, after.
    frozen = optax.masked(optax.set_to_zero(), stays)
    return optax.chain(frozen, transformation, frozen)
