"""Programs: how their runs begin, what is refused before anything is compiled."""

import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import schemes, training
from nf_resnets.training.program import build
from tests.training import linear, small
from tests.training.linear import program


def kernel_of(value, **hyper):
    hyper = {"learning_rate": 0.1, "bad_step": -1, **hyper}
    return training.create_state({"head": {"kernel": value}}, linear.optimizer, hyper)


def test_a_state_of_another_program_is_refused_and_not_broadcast():
    for other, leaf in (
        (kernel_of(jnp.ones((1, 10))), r"params/head/kernel \[1, 10\] float32"),
        (kernel_of(jnp.ones((64, 10), jnp.bfloat16)), r"params/head/kernel \[64, 10\] bfloat16"),
        (kernel_of(jnp.ones((64, 10)), more=1.0), r"hyper/more"),
    ):
        with pytest.raises(ValueError, match=f"^a state with {leaf}"):
            training.train(program(), [other])


def test_runs_of_a_model_begin_with_their_scheme_and_seed():
    model = small.wide_resnet("fixup")
    start = training.Start(schemes.get("fixup"), 5, dict(small.HYPER), branch_scale=0.5)
    other = training.Start(schemes.get("fixup"), 5, dict(small.HYPER))
    ours = build(
        small.mesh_of(), training.make_initial(model, (jnp.zeros((1, 8, 8, 1)),), small.sgd), start,
        slots=2, batch=lambda: None, steps=lambda states, counts: None,
        make_test=lambda states: None, num_steps=1, model=model, steps_per_epoch=1, metrics=(),
    )  # fmt: skip
    states = ours.begin([start, other])
    half, whole = (training.unstack(states, slot).params for slot in (0, 1))
    kernel = whole["stage_1"]["first"]["conv_1"]["kernel"]
    np.testing.assert_array_equal(half["stage_1"]["first"]["conv_1"]["kernel"], kernel / 2)
    np.testing.assert_array_equal(half["stem"]["kernel"], whole["stem"]["kernel"])
    assert kernel.std() > 0 and ours.slots == 2 and states.seed.tolist() == [5, 5]
