"""Batches on devices: each process reads its own rows."""

import jax
import numpy as np
import pytest

from nf_resnets.training.host_steps import local_rows, on_devices
from nf_resnets.training.mesh import make_mesh


@pytest.mark.parametrize(("sweep", "data"), [(1, 8), (2, 4), (8, 1)])
def test_every_device_gets_its_slice_of_the_batch(sweep, data):
    mesh = make_mesh(sweep, data)
    assert local_rows(mesh, 16).tolist() == list(range(16))
    values = {"image": np.arange(48).reshape(16, 3), "label": np.arange(16, dtype=np.int32)}
    (batch,) = on_devices(iter([values]), mesh)
    for name, array in batch.items():
        np.testing.assert_array_equal(np.asarray(array), values[name])
        assert array.dtype == jax.dtypes.canonicalize_dtype(values[name].dtype)
        assert {shard.data.shape[0] for shard in array.addressable_shards} == {16 // data}
        assert len(array.addressable_shards) == 8


def test_a_loader_may_use_its_memory_again():
    def again():
        # At a multiple of 64 bytes, where JAX takes memory as it is.
        memory = np.empty(4 * 1024 + 16, np.float32)
        start = -memory.ctypes.data % 64 // 4
        values = memory[start : start + 4 * 1024].reshape(4, 1024)
        for value in range(3):
            values[:] = value
            yield {"image": values}

    found = list(on_devices(again(), make_mesh(devices=jax.devices()[:1])))
    assert [float(batch["image"].mean()) for batch in found] == [0.0, 1.0, 2.0]
