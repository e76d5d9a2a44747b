"""Case 20: a checkpoint of another model, settings or version. Refused by name, never cast."""

from __future__ import annotations

import warnings

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import manifest as manifests
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints, CheckpointWarning
from tests.faults.saving import (
    IDENTITY,
    assert_same,
    checkpoints,
    contents,
    restored_step,
    saved,
    tree,
)
from tests.training.small import he_variables, host, state_of, wide_resnet


@pytest.fixture
def folder(tmp_path):
    return saved(tmp_path / "run", 9, 10)


def assert_refused(folder, match, *, like=None, identity=IDENTITY):
    """Refused in one sentence, with nothing moved, warned of or written."""
    before = contents(folder)
    ours = Checkpoints(folder, identity)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        with pytest.raises(CheckpointError, match=match) as raised:
            ours.restore(tree(0) if like is None else like)
    ours.close()
    assert "\n" not in str(raised.value) and str(folder / "step_10") in str(raised.value)
    assert contents(folder) == before
    # Negative control: what was saved there is still restored by the run that it belongs to.
    assert restored_step(folder) == 10


def changed(**leaves):
    return {**tree(0), **leaves}


LIKES = {
    "another shape": (
        changed(mask=np.zeros(6, bool)),
        r"has mask bool\[5\]; expected mask bool\[6\]",
    ),
    "another rank of one size": (
        changed(mask=np.zeros((5, 1), bool)),
        r"has mask bool\[5\]; expected mask bool\[5, 1\]",
    ),
    "a wider dtype": (
        changed(params={"kernel": tree(0)["params"]["kernel"], "bias": np.zeros(7, np.float32)}),
        r"has params/bias bfloat16\[7\]; expected params/bias float32\[7\]",
    ),
    "a narrower dtype": (
        changed(params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree(0)["params"])),
        r"has params/kernel float32\[3, 3, 4, 8\]; expected params/kernel bfloat16\[3, 3, 4, 8\]",
    ),
    "another sign": (
        changed(seed=np.int32(0)),
        r"has seed uint32\[\]; expected seed int32\[\]",
    ),
    "another name": (
        {("mask_2" if name == "mask" else name): leaf for name, leaf in tree(0).items()},
        r"has mask bool\[5\]; expected mask_2 bool\[5\]",
    ),
    "one leaf more": (
        changed(zeta=np.zeros(2, np.float32)),
        r"has 6 leaves; expected 7, .* zeta float32\[2\]",
    ),
    "one leaf less": (
        {name: leaf for name, leaf in tree(0).items() if name != "step"},
        r"has 6 leaves; expected 5, .* step int32\[\]",
    ),
    "one in front less": (
        {name: leaf for name, leaf in tree(0).items() if name != "empty"},
        r"has empty float32\[0, 3\]; expected mask bool\[5\]",
    ),
    "no leaf": ({}, r"has 6 leaves; expected 0, .* empty float32\[0, 3\]"),
    "shapes only": (
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*leaf.shape, 1), leaf.dtype), tree(0)),
        r"has empty float32\[0, 3\]; expected empty float32\[0, 3, 1\]",
    ),
}


@pytest.mark.parametrize("name", LIKES)
def test_another_tree_is_refused_by_its_first_difference(folder, name):
    like, match = LIKES[name]
    assert_refused(folder, match, like=like)


IDENTITIES = {
    "another model": ({**IDENTITY, "model": "cifar_resnet"}, "'model' is 'wide_resnet' there; "),
    "another setting": (
        {**IDENTITY, "settings": {"peak_lr": 0.2, "batch_size": 128}},
        "'settings.peak_lr' is 0.1 there; expected 0.2",
    ),
    "the next float": (
        {**IDENTITY, "settings": {"peak_lr": float(np.nextafter(0.1, 1)), "batch_size": 128}},
        "'settings.peak_lr' is 0.1 there; expected 0.10000000000000002",
    ),
    "a float for an int": (
        {**IDENTITY, "settings": {"peak_lr": 0.1, "batch_size": 128.0}},
        "'settings.batch_size' is 128 there; expected 128.0",
    ),
    "one more": ({**IDENTITY, "extra": None}, "'extra' is missing there; expected None"),
    "one less": ({"model": "wide_resnet"}, "'settings' is .* there; expected missing"),
    "another kind": ({**IDENTITY, "settings": "laptop"}, "'settings' is .* there; expected 'lap"),
    "nothing": ({}, "'model' is 'wide_resnet' there; expected missing"),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_another_identity_is_refused_by_its_first_difference(folder, name):
    identity, match = IDENTITIES[name]
    assert_refused(folder, f"belongs to another run: identity {match}", identity=identity)


@pytest.mark.parametrize("name", IDENTITIES)
def test_a_run_does_not_save_among_the_checkpoints_of_another(folder, name):
    identity, match = IDENTITIES[name]
    before = contents(folder)
    ours = Checkpoints(folder, identity)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=match):
            ours.save(11, tree(11))
    assert contents(folder) == before


@pytest.mark.parametrize(
    "identity",
    [
        {"settings": {"batch_size": np.int64(128), "peak_lr": np.float64(1e-1)}, **IDENTITY},
        flax.core.freeze(IDENTITY).unfreeze(),
        dict(reversed(IDENTITY.items())),
    ],
)
def test_the_same_identity_written_otherwise_is_the_same(folder, identity):
    """Negative control: order and NumPy's scalars are no difference."""
    assert Checkpoints(folder, identity).restore(tree(0))[0] == 10


@pytest.mark.parametrize("identity", [{"a": object()}, {"a": {1, 2}}, {"a": np.zeros(2)}])
def test_an_identity_that_is_not_json_is_refused(tmp_path, identity):
    with pytest.raises(ValueError, match="expected a mapping of JSON values"):
        Checkpoints(tmp_path, identity)


@pytest.mark.parametrize("version", [0, 2, "2", None])
def test_another_format_is_refused(folder, version):
    path = folder / "step_10/manifest.json"
    # As another version would write it, with the little that all versions share.
    path.write_text(manifests.seal({"format": version, "step": 10}))
    ours = checkpoints(folder)
    for refused in (lambda: ours.restore(tree(0)), lambda: ours.save(11, tree(11))):
        with pytest.raises(CheckpointError, match=f"has format {version!r}; expected 1, which"):
            refused()
    assert ours.steps() == [9, 10]


def test_an_older_step_is_not_tried_when_the_newest_is_of_another_model(folder):
    """A run whose model was changed must not quietly fall back to before the change."""
    other = Checkpoints(folder.with_name("other"), {"model": "vgg"})
    other.save(11, tree(11))
    (folder.with_name("other") / "step_11").rename(folder / "step_11")
    with pytest.raises(CheckpointError, match="step_11 belongs to another run"):
        checkpoints(folder).restore(tree(0))


def test_a_network_of_another_scheme_width_or_optimizer_is_refused(tmp_path):
    """The real thing: training states of two schemes, two depths, and with another optimizer."""

    def state(scheme, depth=10, **kwargs):
        return host(state_of(he_variables(wide_resnet(scheme, depth)), **kwargs))

    ours = Checkpoints(tmp_path / "run", {})
    fixup = state("fixup")
    ours.save(3, fixup)
    step, found = ours.restore(fixup)
    assert (step, type(found)) == (3, type(fixup))
    assert_same(found, fixup)
    others = {
        "another scheme": (state("skipinit"), "expected .*/alpha float32|expected params/"),
        "another optimizer": (
            state("fixup", optimizer=lambda hyper: optax.adam(hyper["learning_rate"])),
            "opt_state",
        ),
        "another depth": (state("fixup", depth=16), r"float32\[.*expected .*float32\["),
    }
    for other, match in others.values():
        with pytest.raises(CheckpointError, match=match):
            ours.restore(other)
