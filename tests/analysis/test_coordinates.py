"""Coordinate checks: what they measure, and that muP's are flat in the width.

The network is a residual MLP of a user's own: stacked kernels, two layers in a branch, ``rules=``.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets import optim
from nf_resnets.analysis import coordinates, growth
from nf_resnets.init import Rules
from tests.models.trees import quick_jit

RULES = Rules(branch=r"(blocks)/linear_(\d)", stacked="^blocks/", stem="^stem", head="^head")
INPUTS = jax.random.normal(jax.random.key(0), (16, 8))
LABELS = jnp.arange(16) % 4
WIDTHS = (128, 512)
STEPS, DRAWS = 3, 16


def draw(width, depth, head=1.0, seed=1):
    """He's draw; the head's standard deviation is ``head / sqrt(width)``."""
    keys = jax.random.split(jax.random.key(seed), 4)
    kernels = jax.random.normal(keys[0], (2, depth, width, width)) / width**0.5
    return {
        "stem": {"kernel": jax.random.normal(keys[1], (8, width)) / 8**0.5},
        "blocks": {"linear_1": 2**0.5 * kernels[0], "linear_2": kernels[1]},
        "head": {"kernel": head * jax.random.normal(keys[2], (width, 4)) / width**0.5},
    }


def network(params, x):
    def block(x, kernels):
        return x + jax.nn.relu(x @ kernels["linear_1"]) @ kernels["linear_2"], None

    x, _ = jax.lax.scan(block, x @ params["stem"]["kernel"], params["blocks"])
    return x @ params["head"]["kernel"]


@functools.cache
def by_width():
    """Under muP with Adam, the change of every sum and of the logits at each width.

    The mean over draws: of one the slope scatters by 0.4, since four logits are few.
    """
    found = {}
    for width in WIDTHS:
        head = (width / WIDTHS[0]) ** -0.5
        draws = [draw(width, 4, head, seed) for seed in range(DRAWS)]
        rule = optim.parametrized(
            optax.adam(1e-5), draws[0], "mup", base=draw(WIDTHS[0], 4), kind="adam", rules=RULES
        )
        run = functools.partial(coordinates, network, optimizer=rule, steps=STEPS)
        one = quick_jit(lambda params, run=run: run(params, INPUTS, LABELS))
        found[width] = jax.tree.map(lambda *each: sum(each) / DRAWS, *map(one, draws))
    return found


def slope(found, place=-2):
    return growth(found, (each.change[STEPS, place] for each in found.values()))


# Fitted over a factor of four or eight in size; over depths, of one draw of the weights for each.
FLAT = 0.2


def test_mup_is_flat_in_the_width():
    found = by_width()
    for place in (0, -2, -1):
        assert abs(slope(found, place)) < FLAT, place
    sizes = [each.size[0, -2] for each in found.values()]
    assert abs(growth(found, sizes)) < FLAT


def test_the_numbers_are_root_mean_squares():
    params = draw(32, 4)
    run = functools.partial(coordinates, network, optimizer=optax.sgd(0.1), steps=1)
    found = quick_jit(run)(params, INPUTS, LABELS)
    assert found.size.shape == found.change.shape == (2, 6)
    np.testing.assert_array_equal(found.change[0], 0)
    logits = network(params, INPUTS)

    def loss(params):
        log_p = jax.nn.log_softmax(network(params, INPUTS))
        return -jnp.take_along_axis(log_p, LABELS[:, None], 1).mean()

    moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))
    after = network(moved, INPUTS)
    # A float32 sum over 32 channels, after five layers.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4)
    close(found.size[:, -1], [np.square(z).mean() ** 0.5 for z in (logits, after)])
    close(found.change[1, -1], np.square(after - logits).mean() ** 0.5)
    close(found.size[0, 0], np.square(INPUTS @ params["stem"]["kernel"]).mean() ** 0.5)
