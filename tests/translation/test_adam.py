"""Adam for Transformers is the library's AdamW with another ``b2``."""

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import optim, translation


def test_it_is_adamw_with_the_published_b2():
    params = {"head": {"kernel": jnp.arange(6.0).reshape(3, 2)}, "bias_head": jnp.float32(0.4)}
    made = translation.adam(0.3, weight_decay=0.01, scheme="fixup")
    expected, other = (
        optim.adamw(0.3, b2=b2, weight_decay=0.01, scheme="fixup") for b2 in (0.98, 0.999)
    )
    states = [rule.init(params) for rule in (made, expected, other)]
    for factor in (1.0, 3.0):  # after one step alone b2 has no effect
        grads = jax.tree.map(lambda leaf, factor=factor: factor * (leaf + 1), params)
        found = [
            rule.update(grads, state, params)
            for rule, state in zip((made, expected, other), states, strict=True)
        ]
        states = [state for _, state in found]
    kernels = [updates["head"]["kernel"] for updates, _ in found]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert not np.allclose(kernels[0], kernels[2])
