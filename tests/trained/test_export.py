"""An exported network computes what the network does, for batches of any size."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import trained
from nf_resnets.models import ARCHITECTURES
from nf_resnets.trained.export import export, save_export
from tests.models.smallest import smallest
from tests.models.trees import quick_jit
from tests.trained.networks import drawn, network, takes

# The same operations in float32 of a network of at most 19 layers, fused otherwise: some roundings
# of 2**-24 a layer, on the scale of the largest logit.
TOLERANCE = 1e-5


def pixels(count, image=(8, 8, 1)):
    return np.random.default_rng(1).uniform(0, 16, (count, *image)).astype(np.float32)


def assert_near(found, expected):
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.every(3)
@pytest.mark.parametrize("scheme", ["fixup", "batchnorm", "groupnorm"])
def test_the_round_trip_through_a_file(tmp_path, scheme):
    made = network(scheme)
    path = save_export(tmp_path / "net.stablehlo", made)
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    assert program.platforms == ("cpu", "cuda", "tpu")
    images = pixels(3)
    apply = quick_jit(made.model.apply)
    expected = np.asarray(apply(made.variables, (images - np.float32(4.9)) / np.float32(6)))
    for count in (1, 3):
        found = program.call(images[:count])
        assert found.shape == (count, 10) and found.dtype == jnp.float32
        assert_near(np.asarray(found), expected[:count])
    with pytest.raises(FileExistsError, match="is there already"):
        save_export(path, made)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "transformer"])
def test_every_architecture_is_exported(architecture):
    image = (32, 32, 3)
    model = smallest(ARCHITECTURES[architecture], "plain")
    made = trained.Trained(model, drawn(model, image), takes(image, model.num_classes))
    program = jax.export.deserialize(export(made).serialize())
    images = pixels(2, image)
    expected = made.model.apply(made.variables, (images - np.float32(4.9)) / np.float32(6))
    assert_near(np.asarray(program.call(images)), np.asarray(expected))
