"""The state of a run, where it is sharded, how networks are called."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from nf_resnets import models, training
from tests.training import small


def test_sharding():
    mesh = training.make_mesh(2, 4)
    tree = {"a": np.arange(12.0).reshape(4, 3), "b": [jnp.arange(2, dtype=jnp.int32)]}
    sharded, whole = training.shard_runs(tree, mesh), training.replicate(tree, mesh)
    assert sharded["a"].sharding.spec == PartitionSpec("sweep")
    assert {shard.data.shape for shard in sharded["a"].addressable_shards} == {(2, 3)}
    assert whole["a"].sharding.is_fully_replicated and len(whole["a"].sharding.device_set) == 8
    for array in (sharded, whole, training.replicate(sharded, mesh)):
        small.assert_close(array, tree, rtol=0, atol=0)
    assert sharded["b"][0].dtype == jnp.int32


def test_batch_norm_slices_are_spread_or_refused():
    def model(groups):
        return models.WideResNet(depth=10, scheme="batchnorm", stem_channels=4, bn_groups=groups)

    for groups, shards in ((1, 8), (8, 3), (4, 8), (12, 8)):
        with pytest.raises(
            ValueError, match=rf"^bn_groups={groups} cannot be spread over {shards} "
        ):
            training.train_apply(model(groups), shards=shards)
    # Without BatchNorm the number of slices does not matter.
    plain = models.WideResNet(depth=10, scheme="fixup", stem_channels=4, bn_groups=3)
    training.train_apply(plain, shards=8)

    # Four images in slices of two on each of two devices, but not in slices of one and a third.
    variables = small.he_variables(model(8))
    images = jnp.ones((4, 8, 8, 1))
    apply = training.train_apply(model(4), shards=2)
    logits, _ = jax.eval_shape(apply, variables["params"], variables["batch_stats"], images)
    assert logits.shape == (4, 10)
    apply = training.train_apply(model(6), shards=2)
    with pytest.raises(ValueError, match="4 images cannot be cut into bn_groups=3"):
        jax.eval_shape(apply, variables["params"], variables["batch_stats"], images)
