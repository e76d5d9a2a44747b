"""The option ``--dtype`` of every command that trains or compiles: one meaning, and other runs."""

import jax.numpy as jnp
import pytest

from nf_resnets import data, models
from nf_resnets.sweep import image_task
from nf_resnets.sweep.settings import make
from tests.sweep import small


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def test_networks_of_a_sweep(digits):
    for dtype in models.DTYPES:
        settings = make({**small.BASE, "dtype": dtype})
        found = image_task.make_model(image_task.kind_of(settings, digits), digits)
        assert found.dtype == jnp.dtype(dtype)
    with pytest.raises(ValueError, match="dtype='float16' found; expected float32 or bfloat16."):
        make({"dtype": "float16"})


def test_runs_of_a_sweep_that_compute_in_other_dtypes_are_other_runs():
    plain, cast = small.make({"dtype": models.DTYPES, "seed": (0,)}).plans
    assert plain.key != cast.key and plain.program != cast.program
