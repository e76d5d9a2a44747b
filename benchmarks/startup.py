"""Start-up: what the import of a training's modules costs.

It is compared with that of JAX, Flax and Optax; each is the whole life of a process, Python's own
start included. There is no target.

Cost: a minute on two cores; ``--quick`` ten seconds.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator

from benchmarks import fresh
from benchmarks.timing import Row, interleaved, ratio, spread

TITLE = "Start-up: imports of a fresh process"
IMPORTS = {
    "bare": "import jax, flax.linen, optax",
    "package": "import nf_resnets",
    "training": "from nf_resnets import data, models, optim, training",
}


def measure(*, quick: bool) -> Iterator[Row]:
    def run(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], cwd=fresh.ROOT, check=True)

    functions = {name: functools.partial(run, code) for name, code in IMPORTS.items()}
    # The first round reads the files from the disk, and compiles what Python has not yet.
    seconds = interleaved(functions, 2 if quick else 9, warm_up=1)
    for name in ("package", "training"):
        yield Row(
            part="startup",
            what=IMPORTS[name],
            compared=f"time of a process, this / {IMPORTS['bare']}",
            ratio=ratio(seconds[name], seconds["bare"]),
            numbers={f"{each}_s": spread(seconds[each]) for each in (name, "bare")},
        )
