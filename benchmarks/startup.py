"""Start-up: what an import costs, and how soon a fresh process has made its first training step.

There is no target. The import of what training needs is compared with that of JAX, Flax and Optax;
each is the whole life of a process, Python's own start included.

The first step counts from the start of the process to its loss: imports, parameters, compilation,
step. It is made cold, without a persistent compilation cache; warm, from a cache in a temporary
folder that one process before has filled (it is checked that nothing is compiled again); and in
PyTorch eager, with PyTorch's own initialisation.

Cost: three and a half minutes on two cores; ``--quick`` half a minute, with a smaller network.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import fresh
from benchmarks.rows import Row
from benchmarks.timing import interleaved, ratio, spread

# JAX is imported inside functions: a process that measures PyTorch, or imports, is without it.

TITLE = "Start-up: imports, and the first step of a fresh process"
IMPORTS = {
    "bare": "import jax, flax.linen, optax",
    "ours": "from nf_resnets import data, models, optim, training",
}
WORDS = {"cold": "no cache", "warm": "filled cache", "torch": "PyTorch eager"}


def unavailable() -> str | None:
    return None


def measure(*, quick: bool) -> Iterator[Row]:
    yield imports(rounds=2 if quick else 9)
    from benchmarks.cases import Case

    case = Case("cifar-resnet-14", 32) if quick else Case("cifar-resnet-20")
    yield from first_steps(case, rounds=1 if quick else 5)


def imports(rounds: int) -> Row:
    """Times processes that do nothing but import, in turn."""

    def run(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], cwd=fresh.ROOT, check=True)

    functions = {name: functools.partial(run, code) for name, code in IMPORTS.items()}
    # The first round reads the files from the disk, and compiles what Python has not yet.
    seconds = interleaved(functions, rounds, warm_up=1)
    return Row(
        part="startup",
        what=IMPORTS["ours"],
        compared=f"time of a process, this / {IMPORTS['bare']}",
        ratio=ratio(seconds["ours"], seconds["bare"]),
        numbers={f"{name}_s": spread(each) for name, each in seconds.items()},
    )


def first_steps(case: Any, rounds: int, *, torch: bool | None = None) -> Iterator[Row]:
    """Times the first step of fresh processes, in turn.

    Args:
      case: the network and its batch.
      rounds: how many processes of each kind.
      torch: whether PyTorch is among them; by default where it is installed.

    Raises:
      RuntimeError: if a process with a filled cache compiles a program anew.
    """
    torch = importlib.util.find_spec("torch") is not None if torch is None else torch
    with tempfile.TemporaryDirectory() as folder:
        # A process of its own must find memory on a GPU beside this one.
        environments = {
            "cold": {"JAX_ENABLE_COMPILATION_CACHE": "false"},
            "warm": {
                "JAX_COMPILATION_CACHE_DIR": folder,
                "JAX_ENABLE_COMPILATION_CACHE": "true",
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            },
        } | ({"torch": {}} if torch else {})  # fmt: skip
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in environments}

        def make(name: str) -> dict[str, Any]:
            function = "first_step_in_torch" if name == "torch" else "first_step"
            environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environments[name]}
            # The clock that processes share.
            given = time.time(), dataclasses.asdict(case)
            result: dict[str, Any] = fresh.call(
                f"benchmarks.startup:{function}", *given, **environment
            )
            return result

        make("warm")  # fills the cache
        functions = {
            name: functools.partial(lambda name: found[name].append(make(name)), name)
            for name in found
        }
        interleaved(functions, rounds, warm_up=0)
    check_warmth(found)
    numbers = {
        f"{name}_{part}": spread([value[part] for value in values])
        for name, values in found.items()
        for part in ("imported_s", "prepared_s", "compiled_s", "first_step_s")
    }
    seconds = {name: [value["first_step_s"] for value in found[name]] for name in found}
    for over, under in [("cold", "warm")] + [(n, "torch") for n in ("cold", "warm") if torch]:
        yield Row(
            part="startup",
            what=case.title,
            compared=f"process start to first step, {WORDS[over]} / {WORDS[under]}",
            ratio=ratio(seconds[over], seconds[under]),
            numbers=numbers,
        )


def check_warmth(found: dict[str, list[dict[str, Any]]]) -> None:
    """Refuses processes that compiled though they had a filled cache, or did not though cold."""
    for name, hits in (("cold", False), ("warm", True)):
        for value in found[name]:
            if bool(value["hits"]) != hits or value["misses"]:
                raise RuntimeError(f"a process that began {name} found {value} of the cache.")


def first_step(started: float, case: dict[str, Any]) -> dict[str, Any]:
    """Makes a step in this process.

    Args:
      started: when the process was started, by ``time.time()``.
      case: the fields of a :class:`benchmarks.cases.Case`.

    Returns:
      ``imported_s``, ``prepared_s``, ``compiled_s`` and ``first_step_s``, each since the start;
      ``hits`` and ``misses`` of the persistent compilation cache.
    """
    import jax

    from benchmarks import cases

    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    found: dict[str, Any] = {"imported_s": time.time() - started}
    wanted = cases.Case(**case)
    state = jax.device_put(cases.make_state(wanted))
    batches = jax.device_put(cases.make_batches(wanted))
    jax.block_until_ready((state, batches))
    found["prepared_s"] = time.time() - started
    steps = cases.make_steps(wanted.model()).lower(state, batches).compile()
    found["compiled_s"] = time.time() - started
    _, losses = steps(state, batches)
    found["loss"] = float(losses[0])
    found["first_step_s"] = time.time() - started
    for kind in ("hits", "misses"):
        found[kind] = events.count(f"/jax/compilation_cache/cache_{kind}")
    return found


def first_step_in_torch(started: float, case: dict[str, Any]) -> dict[str, Any]:
    """The same in PyTorch; nothing is compiled, so ``compiled_s`` is ``prepared_s``."""
    import torch

    from benchmarks import torch_networks
    from benchmarks.machine import cores

    found: dict[str, Any] = {"imported_s": time.time() - started}
    torch.set_num_threads(cores())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch_networks.Network(case["network"], 10)
    model = model.to(device=device, memory_format=torch.channels_last)
    optimizer = torch_networks.make_optimizer(model, learning_rate=0.05, weight_decay=5e-4)
    step = torch_networks.make_step(model, optimizer, getattr(torch, case["dtype"]))
    images = torch.randn(case["batch"], 3, case["side"], case["side"], device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (case["batch"],), device=device)
    found["prepared_s"] = found["compiled_s"] = time.time() - started
    found["loss"] = float(step(images, labels))
    found["first_step_s"] = time.time() - started
    return found
