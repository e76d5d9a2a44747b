"""The command ``python -m nf_resnets.analysis``: one page about a network, as it starts or trained.

It initialises a network, or opens a trained one, sends one batch through it and back, and writes
what :mod:`nf_resnets.analysis` measures of every residual block: a figure and a table. A trained
network stands beside its own initialisation.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import sys
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
    trained,
)
from nf_resnets.analysis.bounds import excess_loss
from nf_resnets.analysis.closed_form import ClosedForm
from nf_resnets.analysis.correlation import eta, multipliers
from nf_resnets.analysis.head import random_head
from nf_resnets.analysis.homogeneous import refuse_inhomogeneous
from nf_resnets.analysis.observe import branches, observe
from nf_resnets.analysis.predicted import predicted
from nf_resnets.analysis.signal import gradient_norms, signal_of
from nf_resnets.data.pictures import check_sides
from nf_resnets.models import DTYPES, Dtype, architectures, dtype_of
from nf_resnets.plotting.page import page_figure
from nf_resnets.plotting.style import NO_MATPLOTLIB, can_draw
from nf_resnets.roles import Role
from nf_resnets.topology import topology_devices
from nf_resnets.training.program import quick_compile

COLUMNS = (
    "k", "name", "transition", "input", "skip", "branch", "sum", "share", "squared_mean",
    "variance", "gradient_norm", "bound", "eta", "scalar", "closed_skip", "closed_branch",
    "closed_sum", "closed_share", "closed_gradient",
)  # fmt: skip
"""Of the table; ``squared_mean`` and ``variance`` are the sum's, ``closed_`` the closed form's."""
MEASURED = (
    "input", "skip", "branch", "sum", "share", "squared_mean", "variance", "gradient_norm", "eta",
    "scalar",
)  # fmt: skip
"""What the table of a trained network has as it started, too, as ``start_``."""

MOST_PIXELS = 1 << 26
"""Of all images that are sent through together."""

FIGURE, TABLE, SETTINGS = "page.png", "blocks.csv", "settings.json"


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command."""

    model: str = "wrn-28-1"
    """A residual network's name: wrn-28-10, cifar-resnet-110, resnet-50, resnet-50-v2, ..."""
    scheme: str = "fixup"
    """A registered scheme that fits the network: fixup, skipinit, rescalenet, batchnorm, ..."""
    file: Path | None = None
    """Instead of model and scheme, a trained network's file, such as train writes, or from-torch of
    a published checkpoint; it is drawn beside its own initialisation."""
    dataset: str = "digits"
    """digits, cifar10, cifar100, svhn_cropped, svhn_extra, fashion_mnist; or the path of an .npz
    file or of CIFAR's binary files; or PATH or PATH@SIZE of a folder with a folder of images for
    each class."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data, or CIFAR's binary files lie; by default where
    tensorflow-datasets looks. Digits need none."""
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
    """Measures a network at initialisation, or a trained one beside it.

    Raises:
      ValueError: if there is no such network, scheme or data set, they do not fit each other, or
        an option is out of its range.
      ImportError: if the data set needs a package that is not installed.
    """
    if options.seed not in range(2**32):
        raise ValueError(f"--seed {options.seed} found; expected 0 <= seed < 2**32.")
    if options.image_size:
        check_sides(f"--image-size {options.image_size}", options.image_size)
    if options.stem_channels < 0:
        raise ValueError(f"--stem-channels {options.stem_channels} found; expected 0 or more.")
    if options.file:
        return _analyse_trained(options)
    family = _family(options.model)
    scheme = schemes.fitting(options.scheme, family)
    dataset = data.load(options.dataset, options.data_dir)
    images, labels = _batch(dataset, options)
    more: dict[str, Any] = {"dtype": dtype_of(options.dtype)}
    if options.stem_channels:
        more["stem_channels"] = options.stem_channels
    model = architectures.make(options.model, scheme, num_classes=dataset.num_classes, **more)
    what = f"--model {options.model} with --stem-channels {options.stem_channels}"
    architectures.refuse_too_large(model, images[:1], what)
    keys = jax.random.split(jax.random.key(options.seed), 3)
    return _measure(model, family, _start(model, scheme, images, keys), images, labels, keys[2])


def _analyse_trained(options: Options) -> Page:
    """A trained network, and in the columns ``start_`` the same network at initialisation."""
    network = trained.load(str(options.file))
    model, inputs = network.model, network.inputs
    if not isinstance(inputs, trained.Images):
        raise ValueError(f"--file {options.file} translates; expected a network for images.")
    if options.image_size or options.stem_channels or options.dtype != DTYPES[0]:
        raise ValueError(
            "--image-size, --stem-channels or --dtype found beside --file, which says them."
        )
    family = architectures.architecture_of(model).family
    _check_family(family, f"--file {options.file}")
    dataset = data.load(options.dataset, options.data_dir)
    images, labels = _batch(dataset, options, inputs)
    notes = []
    known = list(dataset.class_names) == list(inputs.class_names)
    if not known:
        labels = jnp.argmax(model.apply(network.variables, images), axis=-1)
        notes.append(
            f"Backward: {dataset.name} has other classes, so that the loss is that of the classes "
            "that the network itself predicts."
        )
    keys = jax.random.split(jax.random.key(options.seed), 3)
    scheme = schemes.get(model.scheme)
    first = _start(model, scheme, images, keys)
    last = network.variables["params"], network.variables.get("batch_stats")
    start, page = (_measure(model, family, at, images, labels, keys[2]) for at in (first, last))
    rows = [
        {
            **{name: row[name] for name in COLUMNS if not name.startswith("closed")},
            **{f"start_{name}": before[name] for name in MEASURED},
        }
        for row, before in zip(page.rows, start.rows, strict=True)
    ]
    notes += [note for note in page.notes if not note.startswith("Closed form")]
    notes += [f"At initialisation: {note}" for note in start.notes if note.startswith("Backward")]
    return Page(rows, notes)


def _start(
    model: Any, scheme: schemes.Scheme, images: jax.Array, keys: jax.Array
) -> tuple[Any, Any]:
    """Parameters and batch statistics of a network at initialisation."""

    def start(key: jax.Array, draw_key: jax.Array) -> Any:
        variables = model.init(key, images[:1])
        params = scheme.init(variables["params"], model.num_branches, key=draw_key)
        return params, variables.get("batch_stats")

    params, batch_stats = _quickly(start)(keys[0], keys[1])
    if scheme.calibrate is not None:

        def network(params: Any, images: Any) -> Any:
            return model.apply({"params": params}, images)

        params = scheme.calibrate(params, network=network, inputs=(images,))
    return params, batch_stats


def _quickly(function: Any) -> Any:
    # Everything runs once: what counts is how long it takes to compile.
    return jax.jit(function, compiler_options=quick_compile(jax.devices()[0]))


def _measure(
    model: Any, family: str, state: Any, images: jax.Array, labels: jax.Array, head_key: jax.Array
) -> Page:
    """Sends a batch through a network and back; ``state``: parameters and batch statistics."""
    params, batch_stats = state
    observed = observe(model, batch_stats=batch_stats)

    notes = []
    shown, blocked = params, _zero_head(params)
    if blocked:
        shown = random_head(params, head_key)
        notes.append(
            "Backward: the scheme starts the head at 0, which lets no gradient through; here it is "
            "drawn from N(0, 1/fan_in)."
        )
    logits, taps = _quickly(observed)(shown, images)
    norms = _quickly(lambda at: gradient_norms(observed, at, images, labels=labels))(shown)
    form = predicted(params, schemes.get(model.scheme), taps, family=family)
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
    _check_family(family, f"--model {name}")
    return family


def _check_family(family: str, what: str) -> None:
    if family not in ("pre_activation", "post_activation"):
        raise ValueError(
            f"{what} found; expected a residual network for images, such as wrn-28-10, "
            "cifar-resnet-110 or resnet-50."
        )


def _batch(
    dataset: data.Dataset, options: Options, inputs: trained.Images | None = None
) -> tuple[jax.Array, jax.Array]:
    """Normalised images ``[B, H, W, C]`` and labels ``[B]``, chosen by the seed.

    Mean, deviation and size are those of the data set, or of what a trained network takes.
    """
    count = len(dataset.train.labels)
    if not 2 <= options.batch_size <= count:
        raise ValueError(
            f"--batch-size {options.batch_size} found; expected 2 to {count}, the training images "
            f"of {dataset.name}."
        )
    chosen = np.random.default_rng(options.seed).permutation(count)[: options.batch_size]
    pixels, scale = dataset.train.images[chosen], inputs or dataset
    if inputs and pixels.shape[-1] != inputs.shape[-1]:
        raise ValueError(
            f"--dataset {options.dataset} has images of {pixels.shape[-1]} channels; "
            f"--file {options.file} takes {inputs.shape[-1]}."
        )
    raw = jnp.asarray(pixels)
    if inputs:
        raw = raw.astype(jnp.float32) * (inputs.max_value / dataset.max_value)
    images = data.normalize(raw, jnp.asarray(scale.mean), jnp.asarray(scale.std))
    side = (options.image_size,) * 2 if options.image_size else images.shape[1:3]
    size = inputs.shape[:2] if inputs else side
    if len(chosen) * size[0] * size[1] > MOST_PIXELS:
        raise ValueError(
            f"--batch-size {len(chosen)} images of {size[0]} x {size[1]} pixels found; expected at "
            f"most {MOST_PIXELS:,} pixels together, which every layer takes memory for."
        )
    if images.shape[1:3] != size:
        images = jax.image.resize(images, (len(images), *size, images.shape[3]), "linear")
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
    if options.file:
        named = f"{options.file.stem}-{options.dataset}"
    folder = options.out or Path("runs") / "analysis" / named
    folder = places.try_folder(folder)
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
    left_out |= {"model", "scheme"} if options.file else {"file"}
    found = {n: value for n, value in dataclasses.asdict(options).items() if n not in left_out}
    return {n: str(value) if isinstance(value, Path) else value for n, value in found.items()}


def write(page: Page, options: Options, folder: Path) -> None:
    """Writes the figure, the table and the settings."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(page.rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(page.rows)
    # The settings come first, and whole: a folder that an interrupt left is known by them.
    for name, text in (
        (SETTINGS, json.dumps(settings_of(options), indent=2) + "\n"),
        (TABLE, stream.getvalue()),
    ):
        places.write_whole(folder / name, text.encode(), overwrite=True)
    if not can_draw():
        print(NO_MATPLOTLIB, file=sys.stderr)
        return
    title = f"{options.model}, {schemes.get(options.scheme).title}, at initialisation"
    page_figure(
        page.rows,
        folder / FIGURE,
        title=f"{options.file.name}, trained, and at initialisation" if options.file else title,
        subtitle=(
            f"{len(page.rows)} residual branches; {options.batch_size} images of "
            f"{options.dataset}, seed {options.seed}; dots: measured, vertical lines: a stage "
            f"begins. {' '.join(page.notes)}"
        ),
        reference="start" if options.file else "closed",
    )


def main(options: Options) -> int:
    """Measures, writes, and says where the results are; returns the exit code."""
    try:
        if options.compile_for:
            return _compile_for(options)
        folder = folder_for(options)
        page = analyse(options)
        write(page, options, folder)
    except (ValueError, OSError, ImportError, trained.TrainedError) as error:
        raise SystemExit(str(error)) from None
    last, what = page.rows[-1], options.file or f"{options.model}, {options.scheme}"
    print(
        f"{what}: L = {len(page.rows)}, Var {page.rows[0]['input']:.3g} "
        f"at the first block's input and {last['sum']:.3g} after the last sum. "
        f"In {folder.resolve()}:"
    )
    for name in (FIGURE, TABLE, SETTINGS) if can_draw() else (TABLE, SETTINGS):
        print(f"  {name}")
    return 0


def _compile_for(options: Options) -> int:
    """Prints what a training step needs of a slice's chips; 1 if it does not fit on them."""
    # A page needs none of it.
    from nf_resnets.sweep import for_topology, make_sweep
    from nf_resnets.sweep.engine import Execution

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
    run = grid.task.plan(grid.kinds[0].settings)
    grid.task.check(run, len(chips))
    execution = Execution(devices_per_run=0, runs_per_device=1)
    return for_topology.report(grid.task, {run.program: (run, 1)}, chips, execution,
                               options.compile_for)  # fmt: skip


def run(prog: str = "") -> int:
    """Does what the command line says; its help calls it ``prog``. Returns the exit code."""
    options = command_line.read(
        Options,
        prog,
        "One page about a residual network, as it starts or trained: signal propagation, "
        "gradients, correlations, beside their closed forms or their start.",
    )
    return command_line.finish(lambda: main(options), "Stopped; nothing was written.")


__all__ = ["Options", "Page", "analyse", "folder_for", "main", "run", "settings_of", "write"]

if __name__ == "__main__":
    raise SystemExit(run())
