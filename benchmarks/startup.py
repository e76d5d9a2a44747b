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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import fresh
from benchmarks.rows import Row
from benchmarks.timing import interleaved, ratio, spread

# JAX is imported inside functions: a process that measures PyTorch, or imports, is without it.

TITLE = "Start-up: imports, and the first step of a fresh process"

BARE = "import jax, flax.linen, optax"
PARTS = "from nf_resnets import data, models, optim, training"

NETWORK, QUICK_NETWORK = "cifar-resnet-20", "cifar-resnet-14"

# A process of its own must find memory on a GPU beside this one.
SHARING = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
COLD = {**SHARING, "JAX_ENABLE_COMPILATION_CACHE": "false"}


def unavailable() -> str | None:
    return None


def measure(*, quick: bool) -> Iterator[Row]:
    yield from imports(rounds=2 if quick else 9)
    from benchmarks.cases import Case

    case = Case(QUICK_NETWORK, 32) if quick else Case(NETWORK)
    yield from first_steps(case, rounds=1 if quick else 5)


def imports(rounds: int) -> Iterator[Row]:
    """Times processes that do nothing but import, in turn."""
    functions = {
        "bare": functools.partial(_python, BARE),
        "ours": functools.partial(_python, PARTS),
    }
    # The first round reads the files from the disk, and compiles what Python has not yet.
    seconds = interleaved(functions, rounds, warm_up=1)
    yield Row(
        part="startup",
        what=PARTS,
        compared=f"time of a process, this / {BARE}",
        ratio=ratio(seconds["ours"], seconds["bare"]),
        numbers={f"{name}_s": spread(each) for name, each in seconds.items()},
    )


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=fresh.ROOT, check=True)


def first_steps(case: Any, rounds: int, *, torch: bool | None = None) -> Iterator[Row]:
    """Times the first step of fresh processes, in turn.

    Args:
      case: the network and its batch.
      rounds: how many processes of each kind.
      torch: whether PyTorch is among them; by default where it is installed and has the device.

    Raises:
      RuntimeError: if a process with a filled cache compiles a program anew.
    """
    torch = _torch_has_the_device() if torch is None else torch
    with tempfile.TemporaryDirectory() as folder:
        warm = {
            **SHARING,
            "JAX_ENABLE_COMPILATION_CACHE": "true",
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        ours = functools.partial(_first_step, "first_step", dataclasses.asdict(case))
        makers: dict[str, Callable[[], dict[str, Any]]] = {
            "cold": functools.partial(ours, COLD),
            "warm": functools.partial(ours, warm),
        }
        if torch:
            from benchmarks.cases import HYPER

            arguments = (case.network, case.batch, case.side, case.dtype, HYPER)
            makers["torch"] = functools.partial(
                _first_step, "first_step_in_torch", *arguments, SHARING
            )
        makers["warm"]()  # fills the cache
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in makers}

        def keep(name: str) -> None:
            found[name].append(makers[name]())

        interleaved({name: functools.partial(keep, name) for name in makers}, rounds, warm_up=0)
        numbers: dict[str, Any] = {
            "programs": found["warm"][0]["hits"],
            "cache_mib": sum(f.stat().st_size for f in Path(folder).rglob("*")) / 2**20,
        }
    check_warmth(found)
    for name, values in found.items():
        for part in ("imported_s", "prepared_s", "compiled_s", "first_step_s"):
            numbers[f"{name}_{part}"] = spread([value[part] for value in values])
    seconds = {name: [value["first_step_s"] for value in found[name]] for name in found}
    words = {"cold": "no cache", "warm": "filled cache", "torch": "PyTorch eager"}
    pairs = [("cold", "warm")] + [(name, "torch") for name in ("cold", "warm") if torch]
    for over, under in pairs:
        yield Row(
            part="startup",
            what=case.title,
            compared=f"process start to first step, {words[over]} / {words[under]}",
            ratio=ratio(seconds[over], seconds[under]),
            numbers=numbers,
        )


def check_warmth(found: dict[str, list[dict[str, Any]]]) -> None:
    """Refuses processes that compiled though they had a filled cache, or did not though cold."""
    for name, hits in (("cold", False), ("warm", True)):
        for value in found[name]:
            if bool(value["hits"]) != hits or value["misses"]:
                raise RuntimeError(f"a process that began {name} found {value} of the cache.")


def _first_step(function: str, *arguments: Any) -> dict[str, Any]:
    *given, environment = arguments
    # The clock that processes share.
    return fresh.call(f"benchmarks.startup:{function}", time.time(), *given, **environment)


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


def first_step_in_torch(
    started: float, network: str, batch: int, side: int, dtype: str, hyper: dict[str, float]
) -> dict[str, Any]:
    """The same in PyTorch; nothing is compiled, so ``compiled_s`` is ``prepared_s``."""
    import torch

    from benchmarks import torch_networks
    from benchmarks.machine import cores

    found: dict[str, Any] = {"imported_s": time.time() - started}
    torch.set_num_threads(cores())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    classes = 1000 if side > 64 else 10
    model = torch_networks.Network(network, classes)
    model = model.to(device=device, memory_format=torch.channels_last)
    optimizer = torch_networks.make_optimizer(model, **hyper)
    step = torch_networks.make_step(model, optimizer, getattr(torch, dtype))
    images = torch.randn(batch, 3, side, side, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, classes, (batch,), device=device)
    found["prepared_s"] = found["compiled_s"] = time.time() - started
    found["loss"] = float(step(images, labels))
    found["first_step_s"] = time.time() - started
    return found


def _torch_has_the_device() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import jax

    if jax.default_backend() != "gpu":
        return True
    import torch

    return torch.cuda.is_available()
