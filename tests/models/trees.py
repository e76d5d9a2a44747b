"""Random variables for the models, and ways to look into their trees."""

import functools
import math

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

# Without LLVM's optimisations, and in older versions XLA's fused loops, programs for a CPU compile
# two to six times faster. Convolutions and matrix products stay a library's; only rounding changes.
_OPTIONS = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):
    _OPTIONS["xla_cpu_use_fusion_emitters"] = False
quick_jit = functools.partial(jax.jit, compiler_options=_OPTIONS)


@functools.cache
def _traced(model, image_shape, batch):
    images = jax.ShapeDtypeStruct((batch, *image_shape), np.float32)
    return jax.eval_shape(model.init, jax.random.key(0), images)


def shapes(model, image_shape=(8, 8, 3), batch=2):
    """What ``model.init`` would return, as shapes: nothing is computed or compiled."""
    # A tree of its own for each caller.
    return jax.tree.map(lambda leaf: leaf, _traced(model, tuple(image_shape), batch))


def random_variables(model, seed, image_shape=(8, 8, 3), branch=0.5):
    """Draws every leaf away from zero and from one, so that none can be left out unnoticed.

    Weights are He (fan_in), those of the branches times ``branch`` so that deep networks neither
    grow nor vanish: a branch adds ``branch**(2m)`` of its input's second moment.
    """
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        names = [key.key for key in path]
        noise = rng.standard_normal(leaf.shape)
        if names[-1] == "kernel":
            stacked = leaf.ndim == 5
            factor = branch if names[-2].startswith("conv_") else 1.0
            value = factor * noise * (2 / math.prod(leaf.shape[stacked:-1])) ** 0.5
        elif names[-1] in ("multiplier", "alpha", "scale", "gain"):
            value = 1 + 0.2 * np.tanh(noise)
        elif names[-1] == "var":
            value = np.exp(0.5 * np.tanh(noise))
        else:
            value = 0.1 * noise
        return np.asarray(value, np.float32)

    return jax.tree_util.tree_map_with_path(draw, dict(shapes(model, image_shape)))


def random_like(shapes, seed, scale=1.0):
    """The same for a Transformer, whose weights have the variance ``1 / fan_in``."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name, noise = path[-1].key, rng.standard_normal(leaf.shape)
        if name in ("kernel", "embedding"):
            value = scale * noise * leaf.shape[-2 if name == "kernel" else -1] ** -0.5
        elif name in ("multiplier", "alpha", "scale", "input_scale"):
            value = 1 + 0.2 * np.tanh(noise)
        else:
            value = 0.3 * noise
        return np.asarray(value, np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def images(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def block_trees(stage):
    """The trees of a stage's blocks, in order, out of the first one's and the stacked rest."""
    yield stage["first"]
    if "rest" in stage:
        for index in range(len(jax.tree.leaves(stage["rest"])[0])):
            yield jax.tree.map(lambda leaf, i=index: leaf[i], stage["rest"])


def jaxprs_within(jaxpr):
    """Yields a jaxpr and all that its equations hold."""
    yield jaxpr
    for eqn in jaxpr.eqns:
        for inner in jaxprs_in_params(eqn.params):
            yield from jaxprs_within(inner)


def assert_close(actual, expected, tolerance, floor=0.0):
    """Compares each leaf to within ``tolerance`` times its largest magnitude, or ``floor``."""

    def compare(path, a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape, path
        error, scale = np.abs(a - b).max(), np.abs(b).max()
        assert error <= max(tolerance * scale, floor), (
            f"{path}: off by {error:.2e}, values up to {scale:.2e}"
        )

    jax.tree_util.tree_map_with_path(
        lambda path, a, b: compare(jax.tree_util.keystr(path), a, b), actual, expected
    )
