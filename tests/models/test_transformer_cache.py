"""Decoding token by token, with kept keys and values, against decoding the whole sequence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_transformer import ALL, HEADS, SOURCE, TARGET, D, random_params, small
from tests.models.trees import quick_jit

# The same products and sums in float32, of another shape: 6e-8 of the largest logit each, which
# add up over five layers; seen: 6e-7. A token at a wrong position gives 1e-1 and more.
TOLERANCE = 1e-5


def step_by_step(model, params, length=8):
    """The logits of every position of TARGET, and the shapes of what is kept."""
    apply = quick_jit(lambda variables, source: model.apply(variables, source, method="encode"))
    memory = apply({"params": params}, SOURCE)

    def one(variables, memory, token, position):
        return model.apply(
            variables, memory, SOURCE, token, position, length=length, method="decode_next",
            mutable=["cache"],
        )  # fmt: skip

    one = quick_jit(one)
    kept, found = {}, []
    for position in range(TARGET.shape[1]):
        # Once its keys and values are kept, the encoder's output itself is not read any more.
        seen = memory if position == 0 else jnp.full_like(memory, jnp.nan)
        logits, kept = one({"params": params, **kept}, seen, TARGET[:, position], position)
        found.append(np.asarray(logits))
    return np.stack(found, axis=1), jax.tree.map(jnp.shape, kept)


@pytest.mark.every(5)
@pytest.mark.parametrize("scheme", ALL)
def test_the_logits_are_those_of_the_whole_sequence(scheme):
    model = small(scheme)
    params = random_params(model)
    found, _ = step_by_step(model, params)
    whole = np.asarray(quick_jit(model.apply)({"params": params}, SOURCE, TARGET))
    # A padding token of the target is looked up as 0 in both, so padded positions agree too.
    assert np.abs(found - whole).max() <= TOLERANCE * np.abs(whole).max()
    assert np.ptp(whole) > 1


def test_what_is_kept():
    _, shapes = step_by_step(small(), random_params(small()), length=9)
    own = (3, 2, 9, HEADS, D // HEADS)
    of_source = (3, 2, SOURCE.shape[1], HEADS, D // HEADS)
    assert shapes["cache"]["decoder"]["layers"] == {
        "attention": {"keys": own, "values": own},
        "cross_attention": {"keys": of_source, "values": of_source},
    }
