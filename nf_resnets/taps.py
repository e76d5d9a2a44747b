"""Looking into a network while it computes: activations recorded, or shifted, by name.

A module that taps its activations computes the same numbers as before. Whoever applies it with
``mutable=["taps"]`` gets them back as a tree; whoever adds a collection ``"perturbations"`` of the
same names shifts them, and by differentiating gets the gradients at those places. A residual block
of one's own needs two lines::

    x = tap(self, "input", x)             # as the block begins
    y = merge(self, shortcut, branch)     # where the two paths meet; returns their sum
"""

from __future__ import annotations

from typing import Any

import jax

TAPS = "taps"
"""The Flax collection in which activations are recorded."""

PERTURBATIONS = "perturbations"
"""The Flax collection from which activations are shifted."""


def tap(module: Any, name: str, value: jax.Array) -> jax.Array:
    """Records an activation under a name, and shifts it where a perturbation of that name is given.

    Args:
      module: the Flax module that computes it.
      name: one of its own within the module; residual blocks use ``input``, ``skip``, ``branch``
        and ``sum``.
      value: the activation, of any shape.

    Returns:
      The activation; but for a perturbation it is the one given.

    Raises:
      ValueError: if the name was recorded before in this call, as of a block that is applied twice.
    """
    if module.has_variable(PERTURBATIONS, name):
        value = value + module.get_variable(PERTURBATIONS, name)
    # Of `init` every collection is mutable, and its result is to hold parameters only.
    if module.is_mutable_collection(TAPS) and not module.is_initializing():
        if module.has_variable(TAPS, name):
            raise ValueError(
                f"tap {'/'.join((*module.path, name))!r} is recorded twice in one call, as of a "
                "block that is applied several times; expected a module for each application, such "
                "as one without parameters that taps, merges and calls the block."
            )
        module.put_variable(TAPS, name, value)
    return value


def merge(module: Any, skip: jax.Array, branch: jax.Array) -> jax.Array:
    """Adds the two paths of a residual block, recorded as ``skip``, ``branch`` and ``sum``.

    Args:
      module: the block.
      skip: the skip path as it enters the sum.
      branch: the residual branch as it enters the sum, of the same shape.

    Returns:
      ``skip + branch``.

    Example:
      >>> import flax.linen as nn, jax.numpy as jnp
      >>> class Block(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, x):
      ...         x = tap(self, "input", x)
      ...         return merge(self, x, 2 * x)
      >>> y, found = Block().apply({}, jnp.ones(2), mutable=["taps"])
      >>> y.tolist(), sorted(found["taps"])
      ([3.0, 3.0], ['branch', 'input', 'skip', 'sum'])
    """
    return tap(module, "sum", tap(module, "skip", skip) + tap(module, "branch", branch))


__all__ = ["PERTURBATIONS", "TAPS", "merge", "tap"]
