"""Looking into networks: the branches in order, scanned or not, of images and of sentences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import analysis, models
from nf_resnets.models import architectures

# What runs once needs no optimisation.
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def started(model, *inputs):
    """Variables with random weights; nothing is compiled."""
    rng = np.random.default_rng(0)

    def draw(leaf):
        values = rng.standard_normal(leaf.shape, dtype=np.float32)
        if leaf.ndim < 2:
            return 1 + 0.1 * values
        return values * (2 * leaf.shape[-1] / leaf.size) ** 0.5

    return jax.tree.map(draw, dict(jax.eval_shape(model.init, jax.random.key(0), *inputs)))


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["wrn", "resnet"])
def test_each_branch_begins_where_the_one_before_ends(name):
    architecture = architectures.ARCHITECTURES[name]
    inputs = architecture.example(2)
    model = architecture.smallest("plain")
    params = started(model, *inputs)["params"]
    _, taps = quick(analysis.observe(model))(params, *inputs)
    blocks = analysis.branches(taps)
    assert len(blocks) == model.num_branches
    after = jax.nn.relu if architecture.family == "post_activation" else lambda x: x
    for before, block in zip(blocks, blocks[1:], strict=False):
        np.testing.assert_array_equal(block["input"], after(before["sum"]), err_msg=block["name"])
    for block in blocks:
        np.testing.assert_allclose(block["skip"] + block["branch"], block["sum"], rtol=1e-6)


def test_as_many_images_as_pixels_on_a_side_are_no_stack_of_blocks():
    images = jnp.ones((8, 8, 8, 3))
    model = models.WideResNet(depth=16, stem_channels=4)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    found = jax.eval_shape(
        lambda params: analysis.signal(analysis.observe(model), params, images), params
    )
    assert found.sum.second.shape == (6,)


def test_a_scan_and_an_unrolled_loop_show_the_same():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 3)), jnp.float32)
    scanned, unrolled = (
        models.WideResNet(depth=22, stem_channels=4, scheme="plain", unroll=unroll)
        for unroll in (1, 10)
    )
    params = started(scanned, images)["params"]
    found = [
        analysis.branches(quick(analysis.observe(model))(params, images)[1])
        for model in (scanned, unrolled)
    ]
    for one, other in zip(*found, strict=True):
        assert one["name"] == other["name"]
        for part in ("input", "skip", "branch", "sum"):
            # float32 sums in another order, over 9 blocks
            np.testing.assert_allclose(one[part], other[part], rtol=1e-4, atol=1e-5)


def test_ten_stages_are_in_the_order_of_their_numbers():
    block = {name: jnp.ones((1, 2, 2, 3)) for name in ("input", "skip", "branch", "sum")}
    stacked = {name: jnp.ones((11, *value.shape)) for name, value in block.items()}
    taps = {f"stage_{n}": {"first": block, "rest": stacked} for n in (10, 2, 1)}
    names = [found["name"] for found in analysis.branches(taps)]
    assert names[:3] == ["stage_1/first", "stage_1/rest[0]", "stage_1/rest[1]"]
    assert names[12] == "stage_2/first" and names[24] == "stage_10/first"
    assert names[35] == "stage_10/rest[10]" and len(names) == 36


def test_a_transformers_branches_are_in_order_and_its_inputs_a_tuple():
    architecture = architectures.ARCHITECTURES["transformer"]
    source, target = architecture.example(2)
    model = architecture.smallest("plain")
    params = started(model, source, target)["params"]
    observed = analysis.observe(model)
    labels = jnp.asarray(target)

    @quick
    def measured(at):
        norms = analysis.gradient_norms(observed, at, (source, target), labels=labels)
        return *observed(at, (source, target)), norms

    logits, taps, norms = measured(params)
    blocks = analysis.branches(taps)
    assert len(blocks) == model.num_branches == 15
    assert [block["name"] for block in blocks[:6]] == [
        "encoder/layers/attention[0]",
        "encoder/layers/feed_forward[0]",
        "encoder/layers/attention[1]",
        "encoder/layers/feed_forward[1]",
        "encoder/layers/attention[2]",
        "encoder/layers/feed_forward[2]",
    ]
    assert [block["name"].rpartition("/")[2] for block in blocks[6:10]] == [
        "attention[0]",
        "cross_attention[0]",
        "feed_forward[0]",
        "attention[1]",
    ]
    within = [(at, at + 1) for at in range(14) if at != 5]  # the encoder ends, the decoder begins
    for before, block in ((blocks[at], blocks[after]) for at, after in within):
        np.testing.assert_array_equal(block["input"], before["sum"], err_msg=block["name"])
    assert logits.shape[:2] == target.shape
    # And the measures take them as they are.
    assert analysis.signal_of(taps).share.shape == (15,)
    assert norms.shape == (15,) and bool((norms > 0).all())


def test_dropout_is_off_unless_asked_for_and_batch_norm_uses_the_batch():
    images = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8, 8, 3)), jnp.float32)
    model = models.CifarResNet(depth=8, stem_channels=4, scheme="rescalenet")
    jax.eval_shape(analysis.observe(model), started(model, images)["params"], images)

    model = models.CifarResNet(depth=8, stem_channels=4, scheme="batchnorm")
    variables = started(model, images)
    params, stats = variables["params"], variables["batch_stats"]

    @quick
    def logits(params):
        modes = (None, True, False)
        return [
            analysis.observe(model, batch_stats=stats, train=train)(params, images)[0]
            for train in modes
        ]

    default, with_batch, with_averages = logits(params)
    np.testing.assert_array_equal(default, with_batch)
    assert not np.allclose(default, with_averages)


def test_a_network_without_taps_is_refused():
    with pytest.raises(ValueError, match="no activation found in taps"):
        analysis.branches({})
