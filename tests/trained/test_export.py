"""An exported network computes what the network does, for batches of any size."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.trained.export import save_export
from tests.models.trees import quick_jit
from tests.trained.networks import network

# The same operations in float32 of a network of ten layers, fused otherwise: some roundings of
# 2**-24 a layer, on the scale of the largest logit.
TOLERANCE = 1e-5


@pytest.mark.every(3)
@pytest.mark.parametrize("scheme", ["fixup", "batchnorm", "groupnorm"])
def test_the_round_trip_through_a_file(tmp_path, scheme):
    made = network(scheme)
    path = save_export(tmp_path / "net.stablehlo", made)
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    assert program.platforms == ("cpu", "cuda", "tpu")
    images = np.random.default_rng(1).uniform(0, 16, (3, 8, 8, 1)).astype(np.float32)
    apply = quick_jit(made.model.apply)
    expected = np.asarray(apply(made.variables, (images - np.float32(4.9)) / np.float32(6)))
    for count in (1, 3):
        found = program.call(images[:count])
        assert found.shape == (count, 10) and found.dtype == jnp.float32
        off = np.abs(found - expected[:count]).max()
        assert off <= TOLERANCE * np.abs(expected[:count]).max()
    with pytest.raises(FileExistsError, match="is there already"):
        save_export(path, made)
