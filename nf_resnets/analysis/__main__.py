"""The command ``python -m nf_resnets.analysis``: one page about how a network starts.

It initialises a network, sends one batch through it and back, and writes what
:mod:`nf_resnets.analysis` measures of every residual block: a figure and a table.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import (  # noqa: F401 (init registers the schemes)
    command_line,
    data,
    init,
    places,
    roles,
    schemes,
)
from nf_resnets.analysis.bounds import excess_loss
from nf_resnets.analysis.closed_form import ClosedForm
from nf_resnets.analysis.correlation import eta, multipliers
from nf_resnets.analysis.head import random_head
from nf_resnets.analysis.homogeneous import refuse_inhomogeneous
from nf_resnets.analysis.observe import branches, observe
from nf_resnets.analysis.predicted import predicted
from nf_resnets.analysis.signal import gradient_norms, signal_of
from nf_resnets.models import DTYPES, Dtype, architectures, dtype_of
from nf_resnets.plotting.page import page_figure
from nf_resnets.roles import Role
from nf_resnets.topology import topology_devices
from nf_resnets.training.program import quick_compile

COLUMNS = (
    "k", "name", "transition", "input", "skip", "branch", "sum", "share", "squared_mean",
    "variance", "gradient_norm", "bound", "eta", "scalar", "closed_skip", "closed_branch",
    "closed_sum", "closed_share", "closed_gradient",
)  # fmt: skip
"""Of the table; ``squared_mean`` and ``variance`` are the sum's, ``closed_`` the closed form's."""

FIGURE, TABLE, SETTINGS = "page.png", "blocks.csv", "settings.json"


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command."""

    model: str = "wrn-28-1"
    """A residual network's name: wrn-28-10, cifar-resnet-110, resnet-50, resnet-50-v2, ..."""
    scheme: str = "fixup"
    """A registered scheme that fits the network: fixup, skipinit, rescalenet, batchnorm, ..."""
    dataset: str = "digits"
    """digits, cifar10, cifar100, svhn_cropped, fashion_mnist; or PATH or PATH@SIZE of a folder with
    a folder of images for each class."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default. Digits need none."""
    batch_size: int = 64
    """Training images that are sent through; RescaleNet's biases are set from the same ones."""
    seed: int = 0
    """Of the weights and of the choice of images."""
    image_size: int = 0
    """Resize images to so many pixels a side; 0 leaves them. (resnet-* is made for 224.)"""
    stem_channels: int = 0
    """Channels of the stem, of which all others are multiples; 0 for the network's own."""
    dtype: Dtype = DTYPES[0]
    """What the network computes in; its parameters are float32 in either case."""
    compile_for: str | None = None
    """Instead, compile a training step of the network on this batch for this TPU slice, such as
    v5e:4x4, all its chips together; print what it needs of them, and write nothing."""
    out: Path | None = None
    """The folder to write; by default runs/analysis/MODEL-SCHEME-DATASET. One that holds anything
    but this command's results of the same options is left alone."""


@dataclasses.dataclass(frozen=True)
class Page:
    """What the command found.

    Attributes:
      rows: one for each residual block.
      notes: sentences about the whole network.
    """

    rows: list[dict[str, Any]]
    notes: list[str]


def analyse(options: Options) -> Page:
    """Measures a network at initialisation.

    Raises:
      ValueError: if there is no such network, scheme or data set, they do not fit each other, or
        an option is out of its range.
      ImportError: if the data set needs a package that is not installed.
    """
    if options.seed not in range(2**32):
        raise ValueError(f"--seed {options.seed} found; expected 0 <= seed < 2**32.")
    if min(options.image_size, options.stem_channels) < 0:
        raise ValueError("--image-size and --stem-channels are to be 0 or more.")
    family = _family(options.model)
    scheme = schemes.fitting(options.scheme, family)
    dataset = data.load(options.dataset, options.data_dir)
    images, labels = _batch(dataset, options)
    more: dict[str, Any] = {"dtype": dtype_of(options.dtype)}
    if options.stem_channels:
        more["stem_channels"] = options.stem_channels
    model = architectures.make(options.model, scheme, num_classes=dataset.num_classes, **more)
    # Everything runs once: what counts is how long it takes to compile.
    quickly = quick_compile(jax.devices()[0])
    keys = jax.random.split(jax.random.key(options.seed), 3)

    def start(key: jax.Array, draw_key: jax.Array) -> Any:
        variables = model.init(key, images[:1])
        params = scheme.init(variables["params"], model.num_branches, key=draw_key)
        return params, variables.get("batch_stats")

    params, batch_stats = jax.jit(start, compiler_options=quickly)(keys[0], keys[1])
    if scheme.calibrate is not None:
        params = scheme.calibrate(model.apply, params, images)
    observed = observe(model, batch_stats=batch_stats)

    notes = []
    shown, blocked = params, _zero_head(params)
    if blocked:
        shown = random_head(params, keys[2])
        notes.append(
            "Backward: the scheme starts the head at 0, which lets no gradient through; here it is "
            "drawn from N(0, 1/fan_in)."
        )
    logits, taps = jax.jit(observed, compiler_options=quickly)(shown, images)
    norms = jax.jit(
        lambda at: gradient_norms(observed, at, images, labels=labels), compiler_options=quickly
    )(shown)
    form = predicted(params, scheme, taps, family=family)
    if form is None:
        notes.append("Closed form: none is known for this scheme in this network.")
    else:
        notes.append(
            "Closed form: the recursion for independent wide layers with these weights' sizes and "
            "this padding, from the first block's input on"
            + (", with the ReLU after every sum." if family == "post_activation" else ".")
        )
    excess = float(excess_loss(logits, labels).mean())
    homogeneous = _homogeneous(params)
    if homogeneous:
        notes.append(
            f"Theorem 1: excess loss l - H = {excess:.3g}; the norm of the gradient at a block's "
            "input is at least that over the norm of the input."
        )
    return Page(
        _rows(taps, params, np.asarray(norms), excess if homogeneous else None, form), notes
    )


def _rows(
    taps: Any, params: Any, norms: np.ndarray, excess: float | None, form: ClosedForm | None
) -> list[dict[str, Any]]:
    found = jax.tree.map(np.asarray, signal_of(taps))
    etas, scalars = np.asarray(eta(taps)), multipliers(params)
    rows = []
    for at, block in enumerate(branches(taps)):
        x, y = block["input"], block["sum"]
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        row |= {
            "k": at + 1,
            "name": block["name"],
            "transition": x.shape != y.shape,
            "share": found.share[at],
            "squared_mean": found.sum.squared_mean[at],
            "variance": found.sum.variance[at],
            "gradient_norm": norms[at],
            "eta": etas[at],
            "scalar": scalars[at],
        }
        for name in ("input", "skip", "branch", "sum"):
            row[name] = getattr(found, name).second[at]
        if excess is not None:
            row["bound"] = excess / (x.size * float(found.input.second[at])) ** 0.5
        if form is not None:
            for name in ("skip", "branch", "sum", "share"):
                row[f"closed_{name}"] = getattr(form, name)[at]
            # The form says how gradients grow from the last block on.
            row["closed_gradient"] = norms[-1] * form.gradient[at] / form.gradient[-1]
        rows.append(row)
    return [{name: _number(value) for name, value in row.items()} for row in rows]


def _number(value: Any) -> Any:
    if isinstance(value, str | bool | int):
        return value
    return "" if np.isnan(value) else float(f"{float(value):.6g}")


def _family(name: str) -> str:
    family = architectures.find(name).family
    if family not in ("pre_activation", "post_activation"):
        raise ValueError(
            f"--model {name} found; expected a residual network for images, such as wrn-28-10, "
            "cifar-resnet-110 or resnet-50."
        )
    return family


def _batch(dataset: data.Dataset, options: Options) -> tuple[jax.Array, jax.Array]:
    """Normalised images ``[B, H, W, C]`` and labels ``[B]``, chosen by the seed."""
    count = len(dataset.train.labels)
    if not 2 <= options.batch_size <= count:
        raise ValueError(
            f"--batch-size {options.batch_size} found; expected 2 to {count}, the training images "
            f"of {dataset.name}."
        )
    chosen = np.random.default_rng(options.seed).permutation(count)[: options.batch_size]
    images = data.normalize(
        jnp.asarray(dataset.train.images[chosen]),
        jnp.asarray(dataset.mean),
        jnp.asarray(dataset.std),
    )
    if options.image_size:
        side = options.image_size
        shape = (images.shape[0], side, side, images.shape[3])
        images = jax.image.resize(images, shape, "linear")
    return images, jnp.asarray(dataset.train.labels[chosen])


def _zero_head(params: Any) -> bool:
    heads = [
        value
        for leaf, value in zip(roles.assign(params).leaves, jax.tree.leaves(params), strict=True)
        if leaf.role is Role.HEAD and leaf.weight
    ]
    return not any(np.any(np.asarray(value)) for value in heads)


def _homogeneous(params: Any) -> bool:
    try:
        refuse_inhomogeneous(params, roles.assign(params))
    except ValueError:
        return False
    return True


def folder_for(options: Options) -> Path:
    """The folder that the options name, checked to be free.

    Raises:
      ValueError: if it cannot be made, or holds anything but results of the same options.
    """
    named = f"{options.model}-{options.scheme}-{options.dataset}"
    folder = options.out or Path("runs") / "analysis" / named
    folder = places.try_folder(folder, "--out")
    try:
        names = {path.name for path in folder.iterdir()}
        same = not names
        if SETTINGS in names:
            same = json.loads((folder / SETTINGS).read_text()) == settings_of(options)
    except (OSError, ValueError) as error:
        raise ValueError(f"--out {folder} cannot be used ({error}); choose another.") from None
    if not same:
        raise ValueError(
            f"--out {folder} holds something else already; choose another folder with --out."
        )
    return folder


def settings_of(options: Options) -> dict[str, Any]:
    """All that the results depend on, as JSON values; the default ``dtype`` is left out."""
    left_out = {"out", "compile_for"} | ({"dtype"} if options.dtype == DTYPES[0] else set())
    return {n: value for n, value in dataclasses.asdict(options).items() if n not in left_out}


def write(page: Page, options: Options, folder: Path) -> None:
    """Writes the figure, the table and the settings."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(page.rows)
    # The settings come first, and whole: a folder that an interrupt left is known by them.
    for name, text in (
        (SETTINGS, json.dumps(settings_of(options), indent=2) + "\n"),
        (TABLE, stream.getvalue()),
    ):
        (folder / f"{name}.new").write_text(text)
        os.replace(folder / f"{name}.new", folder / name)
    title = schemes.get(options.scheme).title
    page_figure(
        page.rows,
        folder / FIGURE,
        title=f"{options.model}, {title}, at initialisation",
        subtitle=(
            f"{len(page.rows)} residual branches; {options.batch_size} images of "
            f"{options.dataset}, seed {options.seed}; dots: measured, vertical lines: a stage "
            "begins"
        ),
        notes=page.notes,
    )


def main(options: Options) -> int:
    """Measures, writes, and says where the results are; returns the exit code."""
    try:
        if options.compile_for:
            return _compile_for(options)
        folder = folder_for(options)
        page = analyse(options)
        write(page, options, folder)
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(str(error)) from None
    last = page.rows[-1]
    print(
        f"{options.model}, {options.scheme}: L = {len(page.rows)}, Var {page.rows[0]['input']:.3g} "
        f"at the first block's input and {last['sum']:.3g} after the last sum. "
        f"In {folder.resolve()}:"
    )
    for name in (FIGURE, TABLE, SETTINGS):
        print(f"  {name}")
    return 0


def _compile_for(options: Options) -> int:
    """Prints what a training step needs of a slice's chips; 1 if it does not fit on them."""
    # A page needs none of it.
    from nf_resnets.sweep import for_topology, make_sweep
    from nf_resnets.sweep.programs import Execution

    chips = topology_devices(str(options.compile_for))
    if options.image_size:
        raise ValueError(
            f"--image-size {options.image_size} found beside --compile-for; expected none, since "
            "networks train on images as they are."
        )
    names = ("model", "scheme", "dataset", "batch_size", "stem_channels", "dtype")
    base = {**{name: getattr(options, name) for name in names}, "epochs": 1.0}
    grid = make_sweep(
        {"seed": (options.seed,)}, base, load=lambda name: data.load(name, options.data_dir)
    )
    run = grid.task.resolve(grid.kinds[0].settings)
    grid.task.check(run, len(chips))
    execution = Execution(devices_per_run=0, runs_per_device=1)
    return for_topology.report(grid.task, {run.program: (run, 1)}, chips, execution,
                               options.compile_for)  # fmt: skip


def run(prog: str = "") -> int:
    """Does what the command line says; its help calls it ``prog``. Returns the exit code."""
    options = command_line.read(
        Options,
        prog,
        "One page about how a residual network starts: signal propagation, gradients, "
        "correlations, beside their closed forms.",
    )
    return command_line.finish(lambda: main(options), "Stopped; nothing was written.")


__all__ = ["Options", "Page", "analyse", "folder_for", "main", "run", "settings_of", "write"]

if __name__ == "__main__":
    raise SystemExit(run())
