"""What a sweep of many tiny runs spends outside its compiled functions.

Target: of 2,000 runs of one epoch on the digits (WRN-10-1 of 4 channels, 22 steps and a test each,
about 50 ms), under 5% of the time goes into everything else: claiming a run in the ledger, seating
it, fetching its numbers, writing its result. Compiling, once, is counted apart.

And the ledger does not grow slow: the runs of the last tenth take as long as those of the first.

On two idle cores (jax 0.10.2): 5.1%, 4.3 ms a run, so the target is missed by a hair there; the
last tenth took 1.05 times as long a run as the first.

Cost: two minutes on two cores; ``--points 200`` half a minute.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import jax
import tyro

from nf_resnets.sweep import drive, enter, make_sweep, open_ledger
from nf_resnets.sweep.several import Several

LIMIT = 0.05


@dataclasses.dataclass(frozen=True)
class Command:
    """Measure what a sweep of many tiny runs spends outside its compiled functions."""

    points: int = 2_000
    """How many runs."""
    lanes: int = 0
    """Programs at work at a time; 0 for one a core."""
    json: Path | None = None
    """Write the numbers to this file, too."""


def main(command: Command) -> int:
    sweep = make_sweep(
        {"seed": range(command.points // 2), "peak_lr": (0.05, 0.1)},
        {"model": "wrn-10-1", "stem_channels": 4, "epochs": 1.0},
    )
    with tempfile.TemporaryDirectory() as name, open_ledger(Path(name) / "ledger.db") as ledger:
        enter(sweep, ledger)
        start = time.perf_counter()
        outcome = drive(sweep, ledger, Path(name) / "checkpoints", Several(), lanes=command.lanes)
        wall = time.perf_counter() - start
        ended = sorted(row["finished_at"] for row in ledger.rows())
    seconds = outcome.clock.seconds()
    gaps = [later - earlier for earlier, later in zip(ended, ended[1:], strict=False)]
    tenth = max(1, len(gaps) // 10)
    # Of the first tenth the beginning is left out, in which the program was compiled.
    first = statistics.fmean(gaps[tenth // 2 : tenth + tenth // 2])
    last = statistics.fmean(gaps[-tenth:])
    found = {
        "points": len(sweep.plans),
        "wall_seconds": round(wall, 1),
        "lane_seconds": {kind: round(value, 2) for kind, value in seconds.items()},
        "share_outside": round(outcome.clock.share_outside(), 4),
        "last_tenth_over_first": round(last / first, 3),
        "programs": len(outcome.programs),
        "machine": {
            "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
            "cores": os.cpu_count(),
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "jax": jax.__version__,
        },
    }
    print(json.dumps(found, indent=2))
    if command.json is not None:
        command.json.write_text(json.dumps(found, indent=2) + "\n")
    print(
        f"{100 * outcome.clock.share_outside():.1f}% of the time outside compiled functions "
        f"(target: under {100 * LIMIT:.0f}%); the last tenth took {last / first:.2f} times as long "
        "a run as the first."
    )
    return 0 if outcome.clock.share_outside() < LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Command)))
