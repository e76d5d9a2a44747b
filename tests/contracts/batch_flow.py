"""Whether a statistic of the batch flows into a function's output, read off its jaxpr.

The examples of a batch are told from everything else by their number, a prime that divides no other
length. A value that depends on them and has no axis left whose length that prime divides has put
them together: it is a statistic of the batch, and so is whatever is computed from it. (A value that
mixes the examples and keeps their axis, such as a cumulative sum, is not noticed.)
"""

import jax
from jax.extend.core import Literal, jaxprs_in_params

BATCH = 13

# What a value depends on.
NOTHING, EXAMPLES, STATISTICS = 0, 1, 2


def flow(function, *arguments, of):
    """Returns for each output of ``function`` what it depends on of the argument number ``of``.

    Args:
      function: what is traced.
      *arguments: arrays or trees of them.
      of: the argument that holds the examples, ``[BATCH, ...]``.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    levels = [
        EXAMPLES if index == of else NOTHING
        for index, argument in enumerate(arguments)
        for _ in jax.tree.leaves(argument)
    ]
    return _through(closed.jaxpr, levels)


def _through(jaxpr, levels):
    """The levels of a jaxpr's outputs from those of its inputs."""
    known = {}

    def level(atom):
        return NOTHING if isinstance(atom, Literal) else known.get(atom, NOTHING)

    def note(variables, found):
        for variable, value in zip(variables, found, strict=True):
            known[variable] = _settled(value, variable.aval)

    note(jaxpr.invars, levels)
    for eqn in jaxpr.eqns:
        note(eqn.outvars, _of_equation(eqn, [level(atom) for atom in eqn.invars]))
    return [level(atom) for atom in jaxpr.outvars]


def _settled(level, aval):
    shape = getattr(aval, "shape", ())
    together = level == EXAMPLES and not any(n and n % BATCH == 0 for n in shape)
    return STATISTICS if together else level


def _of_equation(eqn, levels):
    name = eqn.primitive.name
    inner = [getattr(jaxpr, "jaxpr", jaxpr) for jaxpr in jaxprs_in_params(eqn.params)]
    if name == "scan":
        (body,) = inner
        # What is no row of a longer array: constants and carry going in, the carry coming out.
        last, carried = _alike(eqn.invars, body.invars), _alike(eqn.outvars, body.outvars)
        return _loop(body, levels, last - carried, last)
    if name == "while":
        condition, body = (eqn.params[key].jaxpr for key in ("cond_jaxpr", "body_jaxpr"))
        skipped = eqn.params["cond_nconsts"]
        outputs = _loop(body, levels[skipped:], eqn.params["body_nconsts"], None)
        decided = _through(condition, levels[:skipped] + outputs)[0]
        return [max(decided, output) for output in outputs]
    if name == "cond":
        outcomes = [_through(branch, levels[1:]) for branch in inner]
        return [max(levels[0], *found) for found in zip(*outcomes, strict=True)]
    if inner:  # a call: of jit, of remat, of a function with a derivative of its own
        (body, *_) = [jaxpr for jaxpr in inner if len(jaxpr.invars) == len(levels)]
        return _through(body, levels)
    return [max(levels, default=NOTHING)] * len(eqn.outvars)


def _alike(outside, inside):
    pairs = zip(outside, inside, strict=True)
    return sum(getattr(a.aval, "shape", ()) == getattr(b.aval, "shape", ()) for a, b in pairs)


def _loop(body, levels, first, last):
    """Turns until the levels of what is carried, ``levels[first:last]``, stay."""
    levels = list(levels)
    while True:
        outputs = _through(body, levels)
        carried = [
            max(pair)
            for pair in zip(levels[first:last], outputs[: len(levels[first:last])], strict=True)
        ]
        if carried == levels[first:last]:
            return outputs
        levels[first:last] = carried
