r"""Fixup's figure 3: depth of residual networks against test accuracy after the first epoch.

Claim (section 4.1): Fixup trains networks of up to 10,000 layers with the learning rate of batch
normalisation, while scaling each block by sqrt(1/2) fails past 100 layers. The SkipInit paper
(table 1) adds that `alpha = 0` trains at 1,000 layers and `alpha = 1` does not.

Setting: WRN-n-1, learning rate 0.1, momentum 0.9, weight decay 5e-4, one seed. `--scale paper` is
the published one: CIFAR-10, batch 128 (64 from 10,000 layers), one epoch; with crop and flip.
Expected (read off the figure): Fixup and BatchNorm near 50% at every depth, of which others
reproduced about 40% for Fixup; sqrt(1/2) near chance past 100 layers. Nobody here has run it yet;
it needs a GPU.

`--scale laptop` takes the same networks to the 8x8 digits inside scikit-learn: batch 64, 44 steps
(two epochs), two to five minutes on two cores. Expected at 1,000 layers: Fixup and SkipInit above
70%, BatchNorm above 50%, `alpha = 1` and sqrt(1/2) at chance, 10%. `--scale smoke` takes seconds a
run and shows nothing.

Not as published: all schemes start from one draw, He (fan_in), which for a network of one grey
input channel keeps the stem's signal four times as large as fan_out would; LSUV is left out,
SkipInit and `alpha = 1` are added; crop and flip are the usual ones, which the paper does not
spell out. SkipInit's alpha trains at a tenth of the rate, as Fixup's scalars do: at the full 0.1,
the alphas of 150 branches or more swing so far in the first steps that some seeds diverge (its
paper chose the best rate for each depth; here all schemes share one). And `laptop` tests BatchNorm
with the statistics of four training batches at the final weights, since after 44 steps of a deep
network the running ones are those of a network that is gone.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro

from experiments.folder import ResultsFolder
from experiments.progress import Display, flush
from nf_resnets import data, init, models, optim, plotting, schemes, training
from nf_resnets.roles import Role


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the figure's rows depend on."""

    dataset: str
    depths: tuple[int, ...]
    schemes: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    width: int = 1
    stem_channels: int = 16
    batch_size: int = 128
    batch_size_from_10000_layers: int = 64
    steps: int | None = None  # None: one epoch
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    scalar_factor: float = 0.1
    slow_alpha: bool = True  # SkipInit's alpha, too, at scalar_factor times the rate
    bn_groups: int = 1
    bn_estimate_batches: int = 0  # 0: test with the running statistics
    padding: int = 0
    flip: bool = False
    remat_from: int = 5_000  # layers
    eval_batch_size: int = 500


SCHEMES = ("fixup", "skipinit", "batchnorm", "sqrt_half", "alpha_one")
SCALES = {
    "smoke": Settings("digits", (10, 16), SCHEMES, stem_channels=4, batch_size=64, steps=4),
    "laptop": Settings(
        "digits", (10, 34, 100, 1000), SCHEMES, batch_size=64, steps=44, bn_estimate_batches=4
    ),
    "paper": Settings("cifar10", (10, 34, 100, 304, 1000, 10_000), SCHEMES, padding=4, flip=True),
}
GRID = ("depths", "schemes", "seeds")
KEY = ("scheme", "depth", "seed")
COLUMNS = (
    "scheme", "title", "depth", "branches", "seed", "status", "steps", "batch_size",
    "test_accuracy", "test_loss", "first_loss", "last_loss", "last_grad_norm",
    "seconds", "seconds_per_step",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command:
    """Redraw Fixup's figure 3: test accuracy against depth, one curve for each scheme."""

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds; laptop: digits, minutes on two cores; paper: CIFAR-10 as published."""
    depths: tuple[int, ...] = ()
    """Depths in layers, 6N + 4 each, with spaces between; by default those of the scale."""
    schemes: tuple[str, ...] = ()
    """Of fixup, skipinit, alpha_rsqrt_depth, alpha_one, plain, sqrt_half, batchnorm, groupnorm; by
    default those of the scale."""
    seeds: tuple[int, ...] = ()
    """Seeds; several make points with error bars."""
    steps: int = 0
    """Steps of each run; 0 for the scale's number."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default. Digits need none."""
    out: Path | None = None
    """The results folder; by default runs/fixup_fig3_depth-SCALE. Started again with the same
    folder, the command makes only what is missing."""
    workers: int = 0
    """Runs at a time; 0 for two on a CPU of two cores or more, else one."""


def resolve(command: Command) -> Settings:
    """The scale's settings with what the command line changes, checked."""
    settings = SCALES[command.scale]
    for name in GRID:
        if getattr(command, name):
            settings = dataclasses.replace(settings, **{name: getattr(command, name)})
    if command.steps:
        settings = dataclasses.replace(settings, steps=command.steps)
    if command.workers < 0:
        raise SystemExit(f"--workers {command.workers} found; expected at least 1, or 0 to choose.")
    if command.out is not None and command.out == Path():
        raise SystemExit("--out names no folder; expected one, such as --out runs/my_figure.")
    if settings.steps is not None and settings.steps < 1:
        raise SystemExit(f"--steps {settings.steps} found; expected at least 1.")
    for name in GRID:
        values = getattr(settings, name)
        if len(set(values)) < len(values):
            raise SystemExit(
                f"--{name} {' '.join(map(str, values))} found; expected no repetition."
            )
    for seed in settings.seeds:
        if not 0 <= seed < 2**32:
            raise SystemExit(f"--seeds {seed} found; expected 0 <= seed < 2**32.")
    try:
        for depth in settings.depths:
            models.WideResNet(depth=depth)
        for scheme in settings.schemes:
            schemes.get(scheme)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return settings


@dataclasses.dataclass(frozen=True)
class Program:
    """What all runs of one architecture share: the compiled functions, and where they run."""

    model: models.WideResNet
    mesh: jax.sharding.Mesh
    batch_size: int
    steps: int
    initial: Callable[..., Any]
    step: Any
    estimate: Any
    evaluate: Any
    train_data: data.DeviceData
    test_data: data.DeviceData


def make_program(
    settings: Settings, dataset: data.Dataset, depth: int, scheme: schemes.Scheme
) -> Program:
    """Builds (lazily compiled) what the runs of one depth and one anatomy need."""
    batch_size = settings.batch_size
    if depth >= 10_000:
        batch_size = min(batch_size, settings.batch_size_from_10000_layers)
    model = models.WideResNet(
        depth=depth,
        width=settings.width,
        scheme=scheme,
        num_classes=dataset.num_classes,
        stem_channels=settings.stem_channels,
        bn_groups=settings.bn_groups,
        remat=depth >= settings.remat_from,
    )
    # As many devices as divide the batch, and, for BatchNorm, the batch's slices.
    slices = settings.bn_groups if scheme.anatomy.norm == "batch" else batch_size
    devices = math.gcd(math.gcd(slices, batch_size), len(jax.devices()))
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    image = jnp.zeros((1, *dataset.train.images.shape[1:]))

    # It runs once a run, for milliseconds: what counts is how long it takes to compile.
    on_cpu = jax.default_backend() == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if on_cpu else None

    @functools.partial(jax.jit, static_argnums=0, compiler_options=quickly)
    def initial(scheme: schemes.Scheme, key: jax.Array) -> Any:
        # The weights of every scheme come from one draw, He (fan_in): a scheme only changes them.
        variables = model.init(key, image)
        params = init.he(variables["params"], key, mode="fan_in")
        return {**variables, "params": scheme.init(params, model.num_branches)}

    apply_fn = training.train_apply(model, shards=devices)
    estimate = None
    if scheme.anatomy.norm == "batch" and settings.bn_estimate_batches:
        estimate = training.make_estimate_batch_stats(
            apply_fn, mesh, batch_size=batch_size, batches=settings.bn_estimate_batches
        )
    return Program(
        model=model,
        mesh=mesh,
        batch_size=batch_size,
        steps=settings.steps or data.steps_per_epoch(dataset.train.labels.shape[0], batch_size),
        initial=initial,
        step=training.make_train_step(
            apply_fn,
            functools.partial(optimizer, settings),
            mesh,
            batch_size=batch_size,
            augmentation=data.Augmentation(settings.padding, settings.flip),
        ),
        estimate=estimate,
        evaluate=training.make_evaluate(
            training.eval_apply(model), mesh, batch_size=settings.eval_batch_size
        ),
        train_data=training.replicate(data.DeviceData.of(dataset, dataset.train), mesh),
        test_data=training.replicate(data.DeviceData.of(dataset, dataset.test), mesh),
    )


def optimizer(settings: Settings, hyper: dict[str, jax.Array]) -> Any:
    """SGD with the settings' constants and the run's own numbers."""
    return optim.sgd(
        hyper["learning_rate"],
        momentum=settings.momentum,
        weight_decay=hyper["weight_decay"],
        scalar_factor=settings.scalar_factor,
        scalars=(*optim.SCALARS, Role.ALPHA) if settings.slow_alpha else optim.SCALARS,
    )


def run(
    settings: Settings,
    program: Program,
    scheme: schemes.Scheme,
    seed: int,
    on_step: Callable[[int, dict[str, float]], Any],
) -> dict[str, Any]:
    """Trains one network and returns its row."""
    start = time.perf_counter()
    variables = program.initial(scheme, jax.random.key(seed))
    state = training.create_state(
        variables["params"],
        functools.partial(optimizer, settings),
        {"learning_rate": settings.learning_rate, "weight_decay": settings.weight_decay},
        batch_stats=variables.get("batch_stats"),
        seed=seed,
    )
    times = [time.perf_counter()]

    def tick(made: int, metrics: dict[str, float]) -> None:
        times.append(time.perf_counter())
        on_step(made, metrics)

    result = training.train(
        program.step,
        state,
        program.train_data,
        program.mesh,
        num_steps=program.steps,
        batch_size=program.batch_size,
        on_step=tick,
    )
    status = result.status
    test = {"accuracy": math.nan, "loss": math.nan}
    if status == "finished":
        stacked = training.stack([result.state])
        if program.estimate is not None:
            count = program.train_data.labels.shape[0]
            order = training.spread_runs(data.epoch_order(seed, 0, count)[None], program.mesh)
            batch_stats = program.estimate(stacked, program.train_data, order)
            stacked = stacked.replace(batch_stats=batch_stats)
        found = program.evaluate(stacked.params, stacked.batch_stats, program.test_data)
        test = {name: float(value[0]) for name, value in found.items()}
        # The last update itself may have been the one too many.
        if not math.isfinite(test["loss"]):
            status, test["accuracy"] = "diverged", math.nan
    # The first step contains the compilation.
    per_step = (times[-1] - times[1]) / (len(times) - 2) if len(times) > 2 else math.nan
    return {
        "scheme": scheme.name,
        "title": scheme.title,
        "depth": program.model.depth,
        "branches": program.model.num_branches,
        "seed": seed,
        "status": status,
        "steps": len(result.curve),
        "batch_size": program.batch_size,
        "test_accuracy": test["accuracy"],
        "test_loss": test["loss"],
        "first_loss": result.curve[0]["loss"],
        "last_loss": result.curve[-1]["loss"],
        "last_grad_norm": result.curve[-1]["grad_norm"],
        "seconds": round(time.perf_counter() - start, 2),
        "seconds_per_step": round(per_step, 5),
    }


def wanted_rows(rows: list[dict[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """Those rows of a folder that the settings ask for; it may hold more."""
    return [
        row
        for row in rows
        if row["scheme"] in settings.schemes
        and int(row["depth"]) in settings.depths
        and int(row["seed"]) in settings.seeds
    ]


def plot(rows: list[dict[str, Any]], settings: Settings, path: Path, *, chance: float) -> None:
    """Draws the figure from its rows, the curves in the order of the settings."""
    order = [schemes.get(name).title for name in settings.schemes]
    wanted = wanted_rows(rows, settings)
    wanted.sort(key=lambda row: order.index(row["title"]))
    after = "the first epoch" if settings.steps is None else f"{settings.steps} steps"
    plotting.depth_figure(
        wanted,
        path,
        title=f"Test accuracy after {after} against depth",
        subtitle=(
            f"WRN-n-{settings.width} on {settings.dataset}, {settings.stem_channels} channels, "
            f"learning rate {settings.learning_rate:g}, batch {settings.batch_size}, "
            f"{len(settings.seeds)} seed{'s' if len(settings.seeds) > 1 else ''}"
        ),
        chance=chance,
    )


def table(rows: list[dict[str, Any]], settings: Settings) -> str:
    """The mean test accuracies in percent as a text table, schemes down, depths across.

    A mean is that of the finished runs; the others are counted beside it.
    """
    cells = [["scheme", *(f"{depth:,}" for depth in settings.depths)]]
    for name in settings.schemes:
        line = [schemes.get(name).title]
        for depth in settings.depths:
            here = [
                row
                for row in wanted_rows(rows, settings)
                if row["scheme"] == name and int(row["depth"]) == depth
            ]
            finished = [float(r["test_accuracy"]) for r in here if r["status"] == "finished"]
            gone = len(here) - len(finished)
            mean = f"{100 * sum(finished) / len(finished):.1f}" if finished else ""
            line.append(" ".join(filter(None, [mean, f"({gone} diverged)" if gone else ""])) or "-")
        cells.append(line)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def cost(depth: int, scheme: schemes.Scheme, settings: Settings) -> float:
    """A guess of what a run costs, in layer-steps, by which the time to go is told."""
    # Compiling costs about as much as 3,000 layer-steps; BatchNorm half as much again per layer.
    return 3_000 + depth * (settings.steps or 390) * (1.5 if scheme.anatomy.norm else 1.0)


def jobs_of(settings: Settings, folder: ResultsFolder) -> list[tuple[int, list[tuple[str, int]]]]:
    """The runs still to be made: a job is a depth and the schemes and seeds that share a program.

    Shallow networks come first, so that there is soon something to look at; at one depth the
    costly ones do, so that the workers finish together.
    """
    jobs = []
    for depth in settings.depths:
        programs: dict[schemes.Anatomy, list[tuple[str, int]]] = {}
        for name in settings.schemes:
            for seed in settings.seeds:
                if not folder.has(scheme=name, depth=depth, seed=seed):
                    programs.setdefault(schemes.get(name).anatomy, []).append((name, seed))
        jobs += [(depth, runs) for runs in programs.values()]

    def weight(job: tuple[int, list[tuple[str, int]]]) -> float:
        return sum(cost(job[0], schemes.get(name), settings) for name, _ in job[1])

    return sorted(jobs, key=lambda job: (job[0], -weight(job)))


def describe(row: dict[str, Any]) -> str:
    """What came of a run, in a few words."""
    if row["status"] == "diverged":
        return f"diverged at step {row['steps']}, {row['seconds']:.0f} s"
    return f"{100 * row['test_accuracy']:.1f}% test accuracy, {row['seconds']:.0f} s"


def make_rows(
    settings: Settings, dataset: data.Dataset, folder: ResultsFolder, workers: int
) -> list[str]:
    """Makes all runs that are missing; returns what went wrong, a traceback for each failed run."""
    jobs = jobs_of(settings, folder)
    missing = [(depth, name) for depth, runs in jobs for name, _ in runs]
    total = sum(cost(depth, schemes.get(name), settings) for depth, name in missing)
    everything = len(settings.depths) * len(settings.schemes) * len(settings.seeds)
    failures: list[str] = []
    writing = threading.Lock()

    def work(job: tuple[int, list[tuple[str, int]]]) -> None:
        depth, runs = job
        program: Program | None = None
        for name, seed in runs:
            scheme = schemes.get(name)
            label = f"{scheme.title}, {depth:,} layers"
            if len(settings.seeds) > 1:
                label += f", seed {seed}"
            weight = cost(depth, scheme, settings)
            try:
                program = program or make_program(settings, dataset, depth, scheme)
                with display.run(label, weight, program.steps) as on_step:
                    row = run(settings, program, scheme, seed, on_step)
                with writing:
                    folder.add(row)
                display.ended(f"{label}: {describe(row)}", weight)
            except Exception as error:  # one run must not take the others with it
                with writing:
                    failures.append(f"{label}:\n{traceback.format_exc()}")
                display.ended(f"{label}: failed with {type(error).__name__}: {error}", weight)

    display = Display(total, done=everything - len(missing), runs=everything)
    if not missing:
        display.note(f"All {everything} runs are there already.")
        return []

    def leave_word() -> str:
        display.stop()
        return (
            f"Stopped. The rows of finished runs, {len(folder.rows)} by now, are kept in "
            f"{folder.path}; the same command makes what is missing."
        )

    stop_at_once(leave_word)
    with display, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(work, jobs):
            pass
    return failures


def stop_at_once(word: Callable[[], str]) -> None:
    """Makes Ctrl-C and SIGTERM end the process at once: finished rows are on disk already.

    Args:
      word: tidies up the terminal, and gives the sentence to leave with.
    """

    def leave(number: int, _: Any) -> None:
        try:
            print(word(), file=sys.stderr)
            flush()
        finally:  # also where nobody reads the sentence any more
            os._exit(128 + number)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)


def main(command: Command) -> int:
    """Makes what is missing, prints the table, draws the figure; returns the exit code."""
    stop_at_once(lambda: "Stopped before anything was made.")
    settings = resolve(command)
    try:
        dataset = data.load(settings.dataset, command.data_dir)
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(str(error)) from None
    out = command.out or Path("runs") / f"fixup_fig3_depth-{command.scale}"
    folder = ResultsFolder(out, dataclasses.asdict(settings), grid=GRID, columns=COLUMNS, key=KEY)
    on_cpu = jax.default_backend() == "cpu"
    workers = command.workers or (2 if on_cpu and (os.cpu_count() or 1) > 1 else 1)

    print(
        f"Fixup figure 3, scale {command.scale}: {settings.dataset}, "
        f"{len(settings.schemes)} schemes x {len(settings.depths)} depths x "
        f"{len(settings.seeds)} seeds on {len(jax.devices())} {jax.devices()[0].device_kind}; "
        f"results in {out.resolve()}",
        flush=True,
    )
    start = time.monotonic()
    failures = make_rows(settings, dataset, folder, workers)
    # First of all, lest something else that goes wrong take them along.
    (out / "failures.txt").unlink(missing_ok=True)
    if failures:
        folder.write_text("failures.txt", "\n".join(failures))

    text = table(folder.rows, settings)
    print(f"\nTest accuracy (%) by depth in layers, chance {100 / dataset.num_classes:.0f}%:\n")
    print(text)
    folder.write_text("table.txt", text + "\n")
    if wanted_rows(folder.rows, settings):
        plot(folder.rows, settings, out / "figure.png", chance=1 / dataset.num_classes)
    print(f"\n{time.monotonic() - start:.0f} s. In {out.resolve()}:")
    for file in ("figure.png", "table.txt", "rows.csv", "settings.json", "failures.txt"):
        if (out / file).exists():
            print(f"  {file}")
    if failures:
        print(f"Failed runs: {len(failures)}; the same command tries them again.")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Command)))
