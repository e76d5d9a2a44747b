"""Every example of a split counts once, however it is cut and spread."""

import jax
import numpy as np
import pytest

from nf_resnets import models, training
from nf_resnets.training.evaluate import make_evaluate
from tests.models.trees import random_variables
from tests.training import linear, small

COUNT = 53  # a prime, so that no batch divides it
SPLIT = small.split(COUNT)
# Float32 sums over 53 losses of order 3, against float64; measured: 5e-8.
CLOSE = {"rtol": 1e-6}


def loss_and_accuracy(logits):
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(COUNT), SPLIT.labels]
    return losses.mean(), (logits.argmax(axis=1) == SPLIT.labels).mean()


def evaluate(apply_fn, params, batch_stats, *, data, batch_size=16):
    mesh = small.mesh_of(1, data)
    compiled = make_evaluate(apply_fn, mesh, batch_size=batch_size)
    params, batch_stats = training.shard_runs((params, batch_stats), mesh)
    return jax.device_get(compiled(params, batch_stats, training.replicate(SPLIT, mesh)))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("batch_size", "data"), [(1, 2), (7, 1), (16, 1), (16, 8), (53, 2), (200, 8)]
)
def test_the_whole_split_once(batch_size, data):
    rng = np.random.default_rng(2)
    kernel = np.float32(0.3 * rng.standard_normal((64, 10)))
    params = {"head": {"kernel": kernel[None]}}
    found = evaluate(linear.apply, params, {}, data=data, batch_size=batch_size)
    x = (SPLIT.images.reshape(COUNT, -1) - np.float64(8)) / 5
    loss, accuracy = loss_and_accuracy(x @ kernel)
    assert found["loss"].shape == found["accuracy"].shape == (1,)
    np.testing.assert_allclose(found["loss"], loss, **CLOSE)
    # A count of 53 divided by 53 in float32: one example more or less is 2e-2.
    np.testing.assert_allclose(found["accuracy"], accuracy, rtol=1e-7)


def test_batch_norm_uses_its_running_statistics():
    model = small.wide_resnet("batchnorm")
    variables = random_variables(model, 0, (8, 8, 1), branch=1.0)
    rng = np.random.default_rng(5)
    statistics = jax.tree.map(
        lambda leaf: leaf + rng.uniform(0, 0.5, leaf.shape).astype(np.float32),
        variables["batch_stats"],
    )
    stacked = training.stack([variables["params"]] * 2)
    both = training.stack([statistics, variables["batch_stats"]])
    found = evaluate(training.eval_apply(model), stacked, both, data=2)

    images = (SPLIT.images.astype(np.float32) - 8) / 5
    apply = jax.jit(model.apply)
    for run in range(2):
        used = {"params": variables["params"], "batch_stats": training.unstack(both, run)}
        loss, _ = loss_and_accuracy(np.float64(apply(used, images)))
        # Float32 through ten layers, batches of 8 against one of 53; measured: 3e-8.
        np.testing.assert_allclose(found["loss"][run], loss, rtol=2e-6)
    assert abs(found["loss"][0] - found["loss"][1]) > 1e-2


def test_batch_norm_slices_are_spread_or_refused():
    def model(scheme, groups):
        return models.WideResNet(depth=10, scheme=scheme, stem_channels=4, bn_groups=groups)

    for groups, shards in ((1, 8), (8, 3), (12, 8)):
        with pytest.raises(ValueError, match=f"^bn_groups={groups} cannot be spread over {shards}"):
            training.train_apply(model("batchnorm", groups), shards=shards)
    # Without BatchNorm the number of slices does not matter.
    training.train_apply(model("fixup", 3), shards=8)
