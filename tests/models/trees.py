"""Random variables for the models, and ways to look into their trees."""

import functools
import math

import jax
import numpy as np

from nf_resnets.models import Transformer

# Without LLVM's optimisations, and in older versions XLA's fused loops, programs for a CPU compile
# two to six times faster. Convolutions and matrix products stay a library's; only rounding changes.
_OPTIONS = {"xla_backend_optimization_level": 0}
if jax.__version_info__ < (0, 11):
    _OPTIONS["xla_cpu_use_fusion_emitters"] = False
quick_jit = functools.partial(jax.jit, compiler_options=_OPTIONS)


@functools.cache
def _traced(model, image_shape):
    inputs = (jax.ShapeDtypeStruct((2, *image_shape), np.float32),)
    if isinstance(model, Transformer):
        inputs = (jax.ShapeDtypeStruct((2, 4), np.int32),) * 2
    return jax.eval_shape(model.init, jax.random.key(0), *inputs)


def shapes(model, image_shape=(32, 32, 3)):
    """What ``model.init`` would return, as shapes: nothing is computed or compiled."""
    # A tree of its own for each caller.
    return jax.tree.map(lambda leaf: leaf, _traced(model, tuple(image_shape)))


def filled_with(value, model, image_shape=(32, 32, 3)):
    """Parameters that are all one number."""
    params = shapes(model, image_shape)["params"]
    return jax.tree.map(lambda leaf: np.full(leaf.shape, value, leaf.dtype), params)


def random_variables(model, seed, image_shape=(32, 32, 3), branch=0.5):
    """Draws every leaf away from zero and from one, so that none can be left out unnoticed.

    Weights are He (fan_in), those of the branches times ``branch`` so that deep networks neither
    grow nor vanish: a branch adds ``branch**(2m)`` of its input's second moment.
    """
    tree = dict(shapes(model, image_shape))
    return random_like(tree, seed, 2**0.5, branch=branch, shift=0.1)


def random_like(shapes, seed, scale=1.0, *, branch=1.0, shift=0.3):
    """The same for any tree, such as a Transformer's; weights have the variance ``1 / fan_in``."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        *above, name = (key.key for key in path)
        noise = rng.standard_normal(leaf.shape)
        if name in ("kernel", "embedding"):
            # Stacked kernels have an odd number of axes.
            fan_in = leaf.shape[-1:] if name == "embedding" else leaf.shape[leaf.ndim % 2 : -1]
            factor = branch if above[-1].startswith("conv_") else 1.0
            value = scale * factor * noise * math.prod(fan_in) ** -0.5
        elif name in ("multiplier", "alpha", "scale", "gain", "input_scale"):
            value = 1 + 0.2 * np.tanh(noise)
        elif name == "var":
            value = np.exp(0.5 * np.tanh(noise))
        else:
            value = shift * noise
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
