"""Programs on sentence pairs: batches of tokens that the host makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nf_resnets import models
from nf_resnets.data import example_keys, local_positions
from nf_resnets.training.host_steps import HostSteps, host_step
from nf_resnets.training.initial import make_initial
from nf_resnets.training.mesh import DATA
from nf_resnets.training.program import Program, Start, build
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.translation.batches import Corpus, batch_of, batch_shapes, epoch_batches
from nf_resnets.translation.loss import token_loss

METRICS = ("loss", "accuracy", "likelihood", "tokens", "grad_norm", "update_norm")
"""The metrics of a step, in the order of a curve's columns."""


@dataclasses.dataclass(frozen=True)
class TokenTraining:
    """How the steps of a program on sentence pairs are made.

    Attributes:
      max_tokens: of a batch; see :func:`nf_resnets.translation.batch_shapes`.
      num_steps: steps of a run.
      label_smoothing: the fraction of the target that is spread over the vocabulary.
    """

    max_tokens: int
    num_steps: int
    label_smoothing: float = 0.1


def token_program(
    model: models.Transformer,
    corpus: Corpus,
    optimizer: OptimizerFn,
    mesh: Mesh,
    training: TokenTraining,
    example: Start | TrainState,
) -> Program:
    """As :func:`nf_resnets.training.image_program`, but on sentence pairs; one slot.

    The schemes change the weights that the network's own initialisers draw. The program tests
    nothing: :func:`nf_resnets.translation.mean_likelihood` and BLEU are for whole networks.

    Args:
      model: the network.
      corpus: the training pairs.
      optimizer: see there.
      mesh: with a ``sweep`` axis of one.
      training: how the steps are made.
      example: the start of one of the runs.

    Raises:
      ValueError: if the corpus has tokens that the model lacks, or sentences too long for it.
    """
    _check_corpus(model, corpus)
    shapes = batch_shapes(corpus, max_tokens=training.max_tokens)

    def batches(seed: int, first_step: int) -> Iterator[dict[str, np.ndarray]]:
        index, epoch = first_step, -1
        while True:
            if index // steps_per_epoch != epoch:
                epoch = index // steps_per_epoch
                order = epoch_batches(corpus, seed, epoch, shapes)
            yield batch_of(corpus, order[index % steps_per_epoch], devices=mesh.shape[DATA])
            index += 1

    # Every epoch has as many batches as the first.
    steps_per_epoch = len(epoch_batches(corpus, 0, 0, shapes))
    tokens = jnp.ones((1, 2), jnp.int32)
    step = token_step(model, optimizer, mesh, label_smoothing=training.label_smoothing)
    return build(
        mesh,
        make_initial(model, (tokens, tokens), optimizer, draw="model"),
        example,
        slots=1,
        steps=HostSteps(step, batches, mesh, METRICS),
        metrics=METRICS,
        batch=lambda: None,
        make_test=lambda states: lambda states: {},
        num_steps=training.num_steps,
        model=model,
        steps_per_epoch=steps_per_epoch,
    )


def token_step(
    model: models.Transformer, optimizer: OptimizerFn, mesh: Mesh, *, label_smoothing: float = 0.1
) -> jax.stages.Wrapped:
    """Compiles the step on ``source``, ``inputs`` and ``targets`` int32 [B, T]."""

    def prepare(state: TrainState, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        # A row's dropout depends on its position in the batch, not on the number of devices.
        positions = local_positions(batch["source"].shape[0] * mesh.shape[DATA], DATA)
        return {**batch, "keys": example_keys(state.seed, state.step, positions)}

    loss = token_loss(model, label_smoothing=label_smoothing, axis_name=DATA)
    return host_step(loss, prepare, optimizer, mesh)


def _check_corpus(model: models.Transformer, corpus: Corpus) -> None:
    for name, sentences, size in (
        ("source", corpus.source, model.source_vocab_size or model.vocab_size),
        ("target", corpus.target, model.vocab_size),
    ):
        largest = max(map(max, sentences))
        if largest >= size:
            raise ValueError(
                f"the {name} token {largest:,} found in a corpus; expected less than {size:,}, the "
                "model's vocabulary."
            )
    longest = int(corpus.widths.max())
    if longest > model.max_length:
        raise ValueError(
            f"sentences in batches of {longest:,} tokens found; expected at most the model's "
            f"max_length={model.max_length:,}."
        )
