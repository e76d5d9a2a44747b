"""The program on tokens: a run in two parts is the run in one."""

import jax
import numpy as np
import pytest

from nf_resnets import schemes, training
from nf_resnets.training import Stopped
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.translation import (
    TokenTraining,
    adam,
    batch_shapes,
    epoch_batches,
    mean_likelihood,
    token_program,
)
from tests.models.trees import quick_jit
from tests.training.small import Log
from tests.translation.small import corpus, random_params, transformer

MODEL = transformer()
# Of one width, so that one step is compiled; the order over widths is tested by itself.
PAIRS = corpus(count=24, longest=7, max_length=8)
PER_EPOCH = len(epoch_batches(PAIRS, 5, 0, batch_shapes(PAIRS, max_tokens=60)))
STEPS = 12 * PER_EPOCH + 1
MESH = training.make_mesh(devices=jax.devices()[:1])
START = training.Start(schemes.get("fixup"), 5, {"learning_rate": 0.01})


def optimizer(hyper):
    return adam(hyper["learning_rate"])


def state_of():
    params = random_params(MODEL, 2)
    return training.create_state(params, optimizer, {"learning_rate": 0.01}, seed=5)


@pytest.fixture(scope="module")
def program():
    return token_program(MODEL, PAIRS, optimizer, MESH, TokenTraining(60, STEPS), START)


@pytest.fixture(scope="module")
def whole(program):
    return train(program)


def train(program, log=None, **options):
    hooks = (log or Log()).hooks
    (run,) = training.train(program, [state_of()], hooks=hooks, keep_states=True, **options)
    return run


def test_every_epoch_has_all_tokens_and_the_run_learns(program, whole):
    assert whole.status == "finished" and program.steps_per_epoch == PER_EPOCH > 2
    tokens = whole.column("tokens")
    everything = sum(map(len, PAIRS.target))
    assert tokens[:PER_EPOCH].sum() == tokens[PER_EPOCH : 2 * PER_EPOCH].sum() == everything
    before = mean_likelihood(MODEL, random_params(MODEL, 2), PAIRS, max_tokens=100)
    after = mean_likelihood(MODEL, whole.state.params, PAIRS, max_tokens=100)
    assert after < before - 1


def test_a_run_that_is_stopped_resumes_from_its_checkpoint(program, whole, tmp_path):
    log = Log(stop_at=PER_EPOCH + 3)
    with pytest.raises(Stopped):
        train(program, log=log, checkpoints=Checkpoints(tmp_path), call_seconds=0.0)
    resumed = train(program, checkpoints=Checkpoints(tmp_path))
    assert resumed.first_step == PER_EPOCH + 3
    np.testing.assert_array_equal(resumed.curve, whole.curve)
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 9}, r"the target token \d+ found in a corpus"),
        ({"source_vocab_size": 8}, "the source token"),
        ({"max_length": 2}, r"sentences in batches of \d+ tokens"),
    ],
)
def test_a_corpus_that_does_not_fit_the_model_is_refused(change, message):
    """A token without an embedding became NaN, and a long sentence ended a run when it came."""
    model = MODEL.clone(**{"source_vocab_size": 50, **change})
    with pytest.raises(ValueError, match=message):
        token_program(model, PAIRS, optimizer, MESH, TokenTraining(60, STEPS), START)


def test_a_run_without_steps_is_refused():
    with pytest.raises(ValueError, match="num_steps=0 found; expected 1 or more"):
        token_program(MODEL, PAIRS, optimizer, MESH, TokenTraining(60, 0), START)


def test_a_start_is_the_network_s_own_draw_changed_by_the_scheme(program):
    start = training.Start(schemes.get("fixup"), 7, {"learning_rate": 0.01})
    found = training.unstack(program.begin([start]), 0)
    tokens = np.ones((1, 2), np.int32)
    params = quick_jit(MODEL.init)(jax.random.key(7), tokens, tokens)["params"]
    expected = schemes.get("fixup").init(params, MODEL.num_branches)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found.params, expected)
    assert found.seed == 7 and found.step == 0
