"""Networks made norm-free: the norms taken out, the parts of a scheme put in.

The structure of a network is read off its program, which then runs with changed operands:

1. The statistics of every norm become their values on data of mean 0 and variance 1, its scale
   becomes 1 and its shift 0, so that the norm is the identity.
2. The parts of the scheme's anatomy are put in.
3. The new network is read in turn: no norm may be left, and every part must be what it is meant to
   be.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import schemes
from nf_resnets.norm_free.insertion import Insertion
from nf_resnets.norm_free.norms import Norm, norms_of
from nf_resnets.norm_free.rewriting import Edits, Part, Places, run
from nf_resnets.roles import Leaf, Role, RoleMap
from nf_resnets.roles.reading import Reading
from nf_resnets.roles.running import Path
from nf_resnets.roles.uses import Use
from nf_resnets.schemes import Scheme


@dataclasses.dataclass(frozen=True)
class NormFree:
    """A network without norms.

    Attributes:
      apply: ``apply(params, *inputs)``, its forward pass.
      params: ``{"network": ..., "parts": ...}``: the given tree, with None for the leaves of norms,
        and what was put in, each initialised.
      roles: the roles of ``params``, for optimizers and checks.
      norms: the norms that were taken out, by the paths of their leaves, or the layer before them.
    """

    apply: Callable[..., Any]
    params: Any
    roles: RoleMap
    norms: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.norms)} norms taken out", *(f"  {name}" for name in self.norms)]
        places = self.params["parts"]
        lines.append(f"{sum(map(len, places.values()))} parts put in")
        for place, parts in places.items():
            shapes = (f"{name} {list(jnp.shape(value))}" for name, value in parts.items())
            lines.append(f"  {place}: {', '.join(shapes)}")
        return "\n".join([*lines, str(self.roles)])


def norm_free(
    network: Callable[..., Any],
    params: Any,
    *inputs: Any,
    scheme: str | Scheme = "fixup",
    depth: int,
    keep: str | None = None,
    key: jax.Array | None = None,
    **answers: Any,
) -> NormFree:
    """Takes the norms out of a residual network, and puts a scheme's parts in.

    The network is traced at every call of ``apply``, which within ``jax.jit`` costs nothing; so it
    may close over arrays that change, and take batches of any size.

    Args:
      network: ``network(params, *inputs)``, its forward pass, of any library.
      params: its parameters. They are not changed.
      *inputs: arrays, or trees of them; shapes are enough.
      scheme: which initialisation, with the parts that it needs.
      depth: ``L``, the number of residual branches, checked against the network.
      keep: a regular expression for norms that stay, by the paths of their leaves, or of the layer
        next to a norm without any. Those stay in any case that no layer follows, as in
        L2-normalized embeddings, and those of the inputs themselves; ``""`` keeps not even them.
      key: a JAX PRNG key to draw the weights afresh; without it they are rescaled.
      **answers: ``nested=`` and others of :func:`nf_resnets.roles.read`.

    Returns:
      The :class:`NormFree` network, initialised.

    Raises:
      ValueError: if the structure cannot be known, ``depth`` is another, ``keep`` matches no norm,
        the scheme needs what cannot be put in, a norm or a branch is in a ``cond``, ``while`` or
        ``shard_map``, or a norm is of a form that cannot be taken out.

    Example:
      >>> block = {"up": jnp.full((4, 8), 0.5), "down": jnp.ones((8, 4)), "scale": jnp.ones((1, 4))}
      >>> tree = {"block_1": block, "block_2": block}
      >>> def network(params, x):
      ...     for block in params.values():
      ...         h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True)) * block["scale"]
      ...         x = x + jax.nn.relu(h @ block["up"]) @ block["down"]
      ...     return x
      >>> x = jnp.ones((1, 4))
      >>> net = norm_free(network, tree, x, scheme="fixup", depth=2)
      >>> net.norms
      ('block_1/scale', 'block_2/scale')
      >>> list(net.params["parts"]["branch_1"])
      ['bias_activation_1', 'bias_layer_1', 'bias_layer_2', 'multiplier']
    """
    chosen = schemes.get(scheme)
    _refuse_scheme(chosen)
    reading = Reading(network, params, inputs, **answers)
    reading.role_map(params).check_depth(depth)
    treedef: Any = jax.tree.structure(params)
    leaves = jax.tree.leaves(params)
    first = _Plan(reading, chosen, keep)
    # Nothing depends on a leaf that is gone.
    ones = {at: np.ones(leaves[at].shape, leaves[at].dtype) for at in first.gone}

    def apply(params: Any, *inputs: Any) -> Any:
        given = treedef.flatten_up_to(params["network"])
        given = [ones.get(at, leaf) for at, leaf in enumerate(given)]
        reading = Reading(network, treedef.unflatten(given), inputs, **answers)
        traced, now = reading.trace, _Plan(reading, chosen, keep)
        if now.expected != first.expected:
            raise ValueError(
                f"for these inputs the network has the parts {_differing(now, first)}; expected "
                f"{_differing(first, now)}, as for the inputs that it was made with."
            )
        arrays = [given[at] for at in traced.positions]
        values = {part.key: now.value(part, params["parts"]) for part in now.parts}
        results, _ = run(traced.program, [*arrays, *jax.tree.leaves(inputs)], now.edits, values)
        return jax.tree.unflatten(jax.tree.structure(traced.result), results)

    kept = [None if at in first.gone else leaf for at, leaf in enumerate(leaves)]
    new = {"network": treedef.unflatten(kept), "parts": first.initial()}
    role_map = _checked(apply, new, inputs, first, answers)
    role_map.check_depth(depth)
    made = chosen.init(new, depth, key=key, rules=role_map)
    return NormFree(apply, made, role_map, tuple(norm.name for norm in first.removed))


class _Plan:
    """What changes in a program."""

    def __init__(self, reading: Reading, scheme: Scheme, keep: str | None) -> None:
        self.scheme, traced, flow = scheme, reading.trace, reading.flow
        norms = norms_of(traced, flow, reading.uses)
        kept = _kept(norms, keep)
        self.removed = [norm for norm in norms if norm not in kept]
        faults = [norm.fault for norm in self.removed if norm.fault]
        if faults:
            raise ValueError(faults[0])
        # The divisions by roots in norms that stay.
        self.num_kept = sum(len(flow.normalized & norm.nodes) for norm in kept)
        replaced = {key for norm in self.removed for key in norm.numbers}
        insertion = Insertion(reading, scheme.anatomy, replaced)
        self.parts = insertion.parts
        places = Places(traced)
        numbers: dict[Path, dict[int, float]] = collections.defaultdict(dict)
        for norm in self.removed:
            for (node, at), number in norm.numbers.items():
                for path in places.of_step(node, f"the norm {norm.name!r}"):
                    numbers[path][at] = number
        parts: dict[Path, dict[int, list[Part]]] = collections.defaultdict(dict)
        for (value, step), some in insertion.edges.items():
            for path, at in places.of_edge(value, step):
                there = parts[path].setdefault(at, [])
                there += [part for part in some if part not in there]
        self.edits = Edits(numbers, parts)

        def is_replaced(use: Use) -> bool:
            operands = [at for at, each in flow[use.node].uses if use.view in each.views]
            return all((use.node, at) in replaced for at in operands)

        # The leaves, as jax.tree.leaves numbers them, on which nothing depends any more.
        self.gone = {
            traced.positions[leaf]
            for leaf, uses in enumerate(reading.uses)
            if uses and all(map(is_replaced, uses))
        }

    @property
    def expected(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """The shapes of the learnt parts."""
        learnt = [part for part in self.parts if part.constant is None]
        return {p.key: (math.prod(p.turns),) * bool(p.loops) + p.shape for p in learnt}

    def initial(self) -> dict[str, dict[str, jax.Array]]:
        """The learnt parts: zeros, and multipliers of 1."""
        tree: dict[str, dict[str, jax.Array]] = {}
        for (place, name), shape in self.expected.items():
            tree.setdefault(place, {})[name] = jnp.full(shape, float(name == "multiplier"))
        return tree

    def value(self, part: Part, tree: Any) -> jax.Array:
        """A part's value, an axis for each loop."""
        if part.constant is not None:
            return jnp.asarray(part.constant)
        value = jnp.asarray(tree[part.place][part.name])
        return value.reshape(part.turns + part.shape)


def _kept(norms: list[Norm], keep: str | None) -> list[Norm]:
    if keep == "":
        return []
    named = [norm for norm in norms if keep and any(re.search(keep, path) for path in norm.paths)]
    if keep and not named:
        shown = ", ".join(repr(norm.paths[0]) for norm in norms[:3])
        raise ValueError(f"keep={keep!r} matches no norm; expected one of paths like {shown}.")
    return [norm for norm in norms if norm in named or not norm.is_inner]


def _refuse_scheme(scheme: Scheme) -> None:
    anatomy = scheme.anatomy
    wanted = {
        "norms": anatomy.normalized,
        "standardised weights": anatomy.standardized,
        "dropout": anatomy.dropout,
        "networks without branches": not anatomy.branches,
        "constants before the branches": anatomy.beta != 1,
    }
    for what, is_wanted in wanted.items():
        if is_wanted:
            raise ValueError(
                f"scheme={scheme.name!r} is for {what}; expected one whose parts can be put into a "
                "network, such as 'fixup', 'skipinit', 'rezero' or 'rescalenet'."
            )


def _differing(one: _Plan, two: _Plan) -> list[str]:
    return ["/".join(key) for key in one.expected if key not in two.expected][:3]


def _checked(apply: Any, new: Any, inputs: Any, plan: _Plan, answers: Any) -> RoleMap:
    """The roles of the new network, if it is what it is meant to be."""
    reading = Reading(apply, new, inputs, **answers)
    traced, flow = reading.trace, reading.flow
    left = [flow[at] for at in sorted(flow.normalized)]
    if len(left) > plan.num_kept:
        raise ValueError(
            f"{len(left) - plan.num_kept} divisions by the root of a statistic are left, such as "
            f"{left[0].name} {list(left[0].shape)}; expected norms of one input each."
        )
    role_map = reading.role_map(new, plan.scheme.anatomy.alpha)
    parts = {"/".join(("parts", *part.key)): part for part in plan.parts}
    views = (view for node in flow.nodes for _, use in node.uses for view in use.views)
    used = {traced.paths[view.leaf] for view in views}
    leaves = [_known(leaf, parts.get(leaf.path), used) for leaf in role_map.leaves]
    branches = tuple(
        dataclasses.replace(branch, normalized=None) if branch.normalized == "data" else branch
        for branch in role_map.branches
    )
    return dataclasses.replace(role_map, leaves=tuple(leaves), branches=branches)


def _known(leaf: Leaf, part: Part | None, used: set[str]) -> Leaf:
    """A leaf as it is read, but for what is known of it."""
    if part is None:
        # A norm that is left is meant, and a scalar of the network itself is no alpha.
        other = {Role.NORM: Role.KEEP, Role.ALPHA: Role.MULTIPLIER}
        return dataclasses.replace(leaf, role=other.get(leaf.role, leaf.role))
    is_scalar = part.operation == "multiply"
    if leaf.path not in used or (is_scalar and leaf.role != part.name):
        does = f"is read as {leaf.role.value!r}" if leaf.path in used else "does nothing"
        raise ValueError(
            f"the new part {leaf.path!r} {does}; expected a network whose branches are each a "
            "product with one last layer."
        )
    if is_scalar or part.name.startswith("bias_vector"):
        return leaf
    role = Role.CHANNEL_BIAS if part.shape else Role.SCALAR_BIAS
    return Leaf(leaf.path, role, leaf.shape, leaf.stacked)
