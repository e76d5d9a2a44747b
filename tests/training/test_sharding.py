"""The state of a run, where it is sharded, how networks are called."""

import jax
import jax.numpy as jnp
import pytest

from nf_resnets import models, training
from tests.training import small


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
