"""The networks that are measured, and their training step as this library makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import schemes, training
from nf_resnets.models import architectures
from nf_resnets.optim import sgd

NUM_CLASSES = 10
HYPER = {"learning_rate": 0.05, "weight_decay": 5e-4}


@dataclasses.dataclass(frozen=True)
class Case:
    """A network by its name, and the batch of its training step: ``batch`` images of a ``side``."""

    network: str
    batch: int = 128
    side: int = 32
    scheme: str = "fixup"
    dtype: str = "float32"

    @property
    def title(self) -> str:
        short = "" if self.dtype == "float32" else f", {self.dtype}"
        return f"{self.network} {self.scheme}, {self.batch} x {self.side}x{self.side}{short}"

    def model(self, **options: Any) -> Any:
        options |= {"num_classes": NUM_CLASSES, "dtype": jnp.dtype(self.dtype)}
        return architectures.make(self.network, self.scheme, **options)


def optimizer(hyper: dict[str, Any]) -> Any:
    return sgd(hyper["learning_rate"], weight_decay=hyper["weight_decay"])


def make_state(case: Case, *, abstract: bool = False) -> training.TrainState:
    """The state before the first step; ``abstract`` gives its shapes only."""
    model = case.model()
    images = jax.ShapeDtypeStruct((case.batch, case.side, case.side, 3), np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)

    def create(variables: Any) -> training.TrainState:
        draw = schemes.get(case.scheme).init
        params = draw(variables["params"], model.num_branches, key=jax.random.key(0))
        stats = variables.get("batch_stats")
        return training.create_state(params, optimizer, HYPER, batch_stats=stats)

    if abstract:
        return jax.eval_shape(create, shapes)
    # The shapes are enough: the scheme draws every weight, and BatchNorm's variance begins at 1.
    filled = jax.tree_util.tree_map_with_path(_standard, shapes)
    return create(filled)


def _standard(path: Any, leaf: Any) -> np.ndarray:
    name = path[-1].key
    return np.full(leaf.shape, float(name in ("multiplier", "alpha", "scale", "var")), leaf.dtype)


def make_batches(case: Case, steps: int = 1) -> dict[str, np.ndarray]:
    """``image`` float32 [steps, B, H, W, 3] and ``label`` int32 [steps, B]."""
    rng = np.random.default_rng(0)
    shape = (steps, case.batch, case.side, case.side, 3)
    return {
        "image": rng.standard_normal(shape, dtype=np.float32),
        "label": rng.integers(0, NUM_CLASSES, shape[:2], dtype=np.int32),
    }


def make_step(model: Any) -> Callable[..., Any]:
    """``step(state, batch) -> (state, metrics)``, not yet compiled."""
    loss = training.image_loss(training.train_apply(model))

    def step(state: training.TrainState, batch: dict[str, jax.Array]) -> Any:
        return training.replica_step(state, batch, loss=loss, optimizer=optimizer)

    return step


def make_steps(model: Any) -> Callable[..., Any]:
    """``steps(state, batches) -> (state, losses)``: a step on each batch, in one dispatch."""
    step = make_step(model)

    def steps(state: training.TrainState, batches: dict[str, jax.Array]) -> Any:
        def one(state: training.TrainState, batch: dict[str, jax.Array]) -> Any:
            state, metrics = step(state, batch)
            return state, metrics["loss"]

        return jax.lax.scan(one, state, batches)

    return jax.jit(steps, donate_argnums=(0,))


def make_run(case: Case, steps: int) -> tuple[Callable[[], list[float]], Any]:
    """A function that makes so many steps in one dispatch and gives their losses; its program."""
    state = jax.device_put(make_state(case))
    batches = jax.device_put(make_batches(case, steps))
    program = make_steps(case.model()).lower(state, batches).compile()

    def run() -> list[float]:
        nonlocal state
        state, losses = program(state, batches)
        if not np.isfinite(np.asarray(losses)).all():
            raise RuntimeError(f"{case.title}: losses {losses} found; expected finite ones.")
        return np.asarray(losses).tolist()

    return run, program
