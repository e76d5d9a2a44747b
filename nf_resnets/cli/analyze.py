"""`nf-resnets analyze`: one page about a network, before training or trained."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import data, places, roles, schemes, trained
from nf_resnets.cli.page import Page, measure, measure_model, start
from nf_resnets.data.pictures import check_sides
from nf_resnets.models import DTYPES, Dtype, architectures, dtype_of
from nf_resnets.plotting.page import page_figure
from nf_resnets.plotting.style import NO_MATPLOTLIB, can_draw
from nf_resnets.sweep.options import DataDir

FAMILIES = ("pre_activation", "post_activation")
FIGURE, TABLE = "page.png", "blocks.csv"

MOST_PIXELS = 1 << 26
"""Pixels of a batch; every layer takes memory for them."""

NOT_AT_START = ("k", "name", "transition", "bound")
"""The columns that a trained network has once; the others it has as it started, too."""


@dataclasses.dataclass(frozen=True)
class Analyze:
    """Write a page about a residual network: signal propagation, gradients and correlations.

    A network before training stands beside its closed form, a trained one beside its start.
    """

    model: str = "wrn-28-1"
    """A residual network's name: wrn-28-10, cifar-resnet-110, resnet-50, resnet-50-v2, ..."""
    scheme: str = "fixup"
    """A registered scheme that fits the network: fixup, skipinit, rescalenet, batchnorm, ..."""
    file: Path | None = None
    """Instead of model and scheme, a trained network's file, such as train writes, or from-torch of
    a published checkpoint; it is drawn beside its own initialisation."""
    network: str | None = None
    """Instead of model and scheme, module:function of your own, of any library: called without
    arguments, it returns network(params, *inputs) -> logits, params, a tuple of inputs, and labels.
    """
    dataset: str = "digits"
    """digits, cifar10, cifar100, svhn_cropped, svhn_extra, fashion_mnist; or the path of an .npz
    file or of CIFAR's binary files; or PATH or PATH@SIZE of a folder with a folder of images for
    each class."""
    data_dir: DataDir = None
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
    out: Path | None = None
    """The folder to write; by default runs/analysis/MODEL-SCHEME-DATASET."""

    def __call__(self) -> None:
        """Measures, writes, and says where the results are."""
        page = page_of(self)
        title, name = _named(self)
        folder = places.try_folder(self.out or Path("runs/analysis") / name)
        files = [each for each in (FIGURE, TABLE) if (folder / each).exists()]
        if self.out and files:
            raise ValueError(f"--out {folder} has {files[0]}; expected a folder without one.")
        write(page, self, folder)
        first, last = page.rows[0], page.rows[-1]
        print(
            f"{title}: L = {len(page.rows)}, Var {first['input']:.3g} at the first "
            f"block's input and {last['sum']:.3g} after the last sum. In {folder.resolve()}:"
        )
        print("\n".join(f"  {each}" for each in (FIGURE, TABLE) if (folder / each).exists()))


def page_of(options: Analyze) -> Page:
    """Measures a network at initialisation, a trained one beside it, or one of the user's own."""
    keys = jax.random.split(jax.random.key(options.seed), 3)
    if options.network:
        return _page_of_function(options.network, keys[2])
    if options.file:
        return _page_of_file(options, keys)
    family = architectures.find(options.model).family
    _check_family(family, f"--model {options.model}")
    scheme = schemes.fitting(options.scheme, family)
    dataset = data.load(options.dataset, options.data_dir)
    images, labels = _batch(dataset, options)
    more: dict[str, Any] = {"dtype": dtype_of(options.dtype)}
    if options.stem_channels:
        more["stem_channels"] = options.stem_channels
    model = architectures.make(options.model, scheme, num_classes=dataset.num_classes, **more)
    variables = start(model, scheme, images, keys)
    return measure_model(model, family, variables, images, labels, keys[2])


def _page_of_function(name: str, key: jax.Array) -> Page:
    """A network of the user's own, whose structure is read off its computation."""
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    make = getattr(importlib.import_module(module), function, None)
    if make is None:
        raise ValueError(
            f"--network {name} found; expected module:function, and {module} has none."
        )
    network, params, inputs, labels = make()
    return measure(network, params, inputs, labels, roles.read(network, params, *inputs), key)


def _page_of_file(options: Analyze, keys: jax.Array) -> Page:
    """A trained network, and in the columns ``start_`` the same network at initialisation."""
    loaded = trained.load(str(options.file))
    model, inputs = loaded.model, loaded.inputs
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
    if list(dataset.class_names) != list(inputs.class_names):
        labels = jnp.argmax(model.apply(loaded.variables, images), axis=-1)
        notes.append(
            f"Backward: {dataset.name} has other classes, so that the loss is that of the classes "
            "that the network itself predicts."
        )
    variables = start(model, schemes.get(model.scheme), images, keys)
    before, page = (
        measure_model(model, family, each, images, labels, keys[2])
        for each in (variables, dict(loaded.variables))
    )
    rows = []
    for row, first in zip(page.rows, before.rows, strict=True):
        names = [name for name in row if not name.startswith("closed")]
        again = {f"start_{name}": first[name] for name in names if name not in NOT_AT_START}
        rows.append({name: row[name] for name in names} | again)
    notes += [note for note in page.notes if not note.startswith("Closed form")]
    notes += [f"At initialisation: {note}" for note in before.notes if note.startswith("Backward")]
    return Page(rows, notes)


def _check_family(family: str, what: str) -> None:
    if family not in FAMILIES:
        raise ValueError(
            f"{what} found; expected a residual network for images, such as wrn-28-10, "
            "cifar-resnet-110 or resnet-50."
        )


def _batch(
    dataset: data.Dataset, options: Analyze, inputs: trained.Images | None = None
) -> tuple[jax.Array, jax.Array]:
    """Normalized images ``[B, H, W, C]`` and labels ``[B]``, chosen by the seed.

    Mean, deviation and size are those of the data set, or of what a trained network takes.
    """
    rng = np.random.default_rng(options.seed)
    chosen = rng.permutation(len(dataset.train.labels))[: options.batch_size]
    pixels, scale = jnp.asarray(dataset.train.images[chosen]), inputs or dataset
    if inputs:
        pixels = pixels.astype(jnp.float32) * (inputs.max_value / dataset.max_value)
    images = data.normalize(pixels, jnp.asarray(scale.mean), jnp.asarray(scale.std))
    side = (options.image_size,) * 2 if options.image_size else images.shape[1:3]
    check_sides(f"--image-size {options.image_size}", *side)
    shape = (len(images), *(inputs.shape[:2] if inputs else side), images.shape[3])
    if shape[0] * shape[1] * shape[2] > MOST_PIXELS:
        raise ValueError(
            f"--batch-size {shape[0]} images of {shape[1]} x {shape[2]} pixels found; expected at "
            f"most {MOST_PIXELS:,} pixels together."
        )
    if images.shape != shape:
        images = jax.image.resize(images, shape, "linear")
    return images, jnp.asarray(dataset.train.labels[chosen])


def _named(options: Analyze) -> tuple[str, str]:
    """What a page is called: in its title, and as a folder."""
    if options.network:
        return options.network, options.network.replace(":", "-")
    if options.file:
        title = f"{options.file.name}, trained, and at initialisation"
        return title, f"{options.file.stem}-{options.dataset}"
    title = f"{options.model}, {schemes.get(options.scheme).title}, at initialisation"
    return title, f"{options.model}-{options.scheme}-{options.dataset}"


def write(page: Page, options: Analyze, folder: Path) -> None:
    """Writes the table, and the figure if Matplotlib is there."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(page.rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(page.rows)
    places.write_whole(folder / TABLE, stream.getvalue().encode(), overwrite=True)
    if not can_draw():
        print(NO_MATPLOTLIB, file=sys.stderr)
        return
    about = f"{options.batch_size} images of {options.dataset}, seed {options.seed}; "
    page_figure(
        page.rows,
        folder / FIGURE,
        title=_named(options)[0],
        subtitle=(
            f"{len(page.rows)} residual branches; {'' if options.network else about}dots: "
            f"measured, vertical lines: a stage begins. {' '.join(page.notes)}"
        ),
        reference="start" if options.file else "closed",
    )


__all__ = ["Analyze", "page_of", "write"]
