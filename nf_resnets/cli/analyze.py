"""`nf-resnets analyze`: one page about a network, before training or trained."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets import data, places, roles, schemes, trained
from nf_resnets.analysis.bounds import excess_loss
from nf_resnets.analysis.closed_form import ClosedForm
from nf_resnets.analysis.observe import Activations, Network, slopes
from nf_resnets.analysis.predicted import predicted
from nf_resnets.analysis.signal import eta, signal_of
from nf_resnets.analysis.weights import multipliers, random_head
from nf_resnets.init.tree import float_leaves
from nf_resnets.models import architectures
from nf_resnets.plotting.page import page_figure
from nf_resnets.plotting.style import NO_MATPLOTLIB, can_draw
from nf_resnets.roles import Role, RoleMap
from nf_resnets.sweep.options import DataDir
from nf_resnets.trained.predict import images_of
from nf_resnets.training.program import quick_jit

FIGURE, TABLE = "page.png", "blocks.csv"

CLOSED = ("skip", "branch", "sum", "share")
"""What the closed form has of a block."""


@dataclasses.dataclass(frozen=True)
class Analyze:
    """Write a page about a residual network: signal propagation, gradients and correlations.

    Beside it stands the closed form for weights of these sizes, where one is known.
    """

    model: str = "wrn-28-1"
    """A residual network's name: wrn-28-10, cifar-resnet-110, resnet-50, resnet-50-v2, ..."""
    scheme: str = "fixup"
    """A registered scheme that fits the network: fixup, skipinit, rescalenet, batchnorm, ..."""
    file: Path | None = None
    """Instead of model and scheme, a trained network's file, such as train writes, or from-torch of
    a published checkpoint."""
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
    stem_channels: int = 0
    """Channels of the stem, of which all others are multiples; 0 for the network's own."""
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


@dataclasses.dataclass(frozen=True)
class Page:
    """The measures of a network.

    Attributes:
      rows: one for each residual block. ``squared_mean`` and ``variance`` are the sum's, the
        columns ``closed_`` the closed form's.
      notes: sentences about the whole network.
    """

    rows: list[dict[str, Any]]
    notes: list[str]


def page_of(options: Analyze) -> Page:
    """Measures a network at initialisation, a trained one, or one of the user's own."""
    keys = jax.random.split(jax.random.key(options.seed), 3)
    if options.network:
        return _page_of_function(options.network, keys[2])
    if options.file:
        return _page_of_file(options, keys[2])
    family = _family(architectures.find(options.model), f"--model {options.model}")
    scheme = schemes.fitting(options.scheme, family)
    dataset = data.load(options.dataset, options.data_dir)
    images, labels = _batch(dataset, options)
    more = {"stem_channels": options.stem_channels} if options.stem_channels else {}
    model = architectures.make(options.model, scheme, num_classes=dataset.num_classes, **more)
    variables = start(model, scheme, images, keys)
    return _measure_model(model, family, variables, images, labels, keys[2])


def _page_of_function(name: str, key: jax.Array) -> Page:
    """A network of the user's own, whose structure is read off its computation."""
    module, _, function = name.partition(":")
    if not all(map(str.isidentifier, (*module.split("."), function))):
        raise ValueError(f"--network {name} found; expected module:function.")
    sys.path.insert(0, os.getcwd())
    make = getattr(importlib.import_module(module), function, None)
    if make is None:
        raise ValueError(
            f"--network {name} found; expected module:function, and {module} has none."
        )
    network, params, inputs, labels = make()
    return _measure(network, params, inputs, labels, roles.read(network, params, *inputs), key)


def _page_of_file(options: Analyze, key: jax.Array) -> Page:
    """A trained network; for images of other classes the loss is that of those it predicts."""
    loaded = trained.load(str(options.file))
    family = _family(architectures.architecture_of(loaded.model), f"--file {options.file}")
    dataset, inputs = data.load(options.dataset, options.data_dir), images_of(loaded)
    if (found := dataset.train.images.shape[-1]) != inputs.shape[-1]:
        raise ValueError(
            f"--dataset {options.dataset} has images of {found} channels, and the network of "
            f"{options.file} takes {inputs.shape[-1]}; expected the same number."
        )
    # As the network was trained, with white the same.
    white = dataset.max_value / inputs.max_value
    mean, std = (tuple(white * each for each in of) for of in (inputs.mean, inputs.std))
    images, labels = _batch(dataclasses.replace(dataset, mean=mean, std=std), options)
    if list(dataset.class_names) != list(inputs.class_names):
        labels = jnp.argmax(loaded.model.apply(loaded.variables, images), axis=-1)
    return _measure_model(loaded.model, family, dict(loaded.variables), images, labels, key)


def _family(architecture: architectures.Architecture, what: str) -> str:
    if architecture.family not in ("pre_activation", "post_activation"):
        raise ValueError(
            f"{what} found; expected a residual network for images, such as wrn-28-10, "
            "cifar-resnet-110 or resnet-50."
        )
    return architecture.family


def _batch(dataset: data.Dataset, options: Analyze) -> tuple[jax.Array, jax.Array]:
    """Normalized images ``[B, H, W, C]`` and labels ``[B]``, chosen by the seed."""
    count = len(dataset.train.labels)
    if not 1 <= options.batch_size <= count:
        raise ValueError(
            f"--batch-size {options.batch_size} found; expected 1 to {count}, the training images."
        )
    chosen = np.random.default_rng(options.seed).permutation(count)[: options.batch_size]
    images = data.normalize(dataset.train.images[chosen], dataset.mean, dataset.std)
    return images, jnp.asarray(dataset.train.labels[chosen])


# --- The measures of each residual branch, for one batch ------------------------------------------


def start(model: Any, scheme: schemes.Scheme, images: jax.Array, keys: jax.Array) -> Any:
    """Parameters and batch statistics of a network at initialisation."""

    def drawn(key: jax.Array, draw_key: jax.Array) -> Any:
        variables = dict(model.init(key, images[:1]))
        params = scheme.init(variables["params"], model.num_branches, key=draw_key)
        return {**variables, "params": params}

    def network(params: Any, images: jax.Array) -> Any:
        return model.apply({"params": params}, images)

    variables = quick_jit(drawn)(keys[0], keys[1])
    if scheme.calibrate is not None:
        params = scheme.calibrate(variables["params"], network=network, inputs=(images,))
        variables["params"] = params
    return variables


def _measure_model(
    model: Any, family: str, variables: Any, images: jax.Array, labels: jax.Array, key: jax.Array
) -> Page:
    """Measures a network of this library, beside its closed form."""
    params = variables["params"]
    rest = {name: tree for name, tree in variables.items() if name == "batch_stats"}

    def network(params: Any, images: jax.Array) -> jax.Array:
        state = {"params": params, **rest}
        return model.apply(state, images, train=bool(rest), mutable=list(rest))[0]

    def form_of(blocks: list[Activations]) -> ClosedForm | None:
        return predicted(params, model.scheme, blocks, family=family)

    page = _measure(network, params, (images,), labels, roles.assign(params), key, form_of)
    note = "Closed form: none is known for this scheme in this network."
    if "closed_sum" in page.rows[0]:
        note = (
            "Closed form: the recursion for independent wide layers with these weights' sizes and "
            "this padding, from the first block's input on"
            + (", with the ReLU after every sum." if family == "post_activation" else ".")
        )
    return Page(page.rows, [*page.notes, note])


def _measure(
    network: Network,
    params: Any,
    inputs: Any,
    labels: Any,
    role_map: RoleMap,
    key: jax.Array,
    form_of: Callable[[list[Activations]], ClosedForm | None] = lambda blocks: None,
) -> Page:
    """Sends a batch through a network and back; ``form_of(blocks)`` is its closed form."""
    notes, shown = [], params
    heads = [v for leaf, v in role_map.items(params) if leaf.role is Role.HEAD and leaf.weight]
    if heads and not any(np.any(np.asarray(value)) for value in heads):
        shown = random_head(params, key, rules=role_map)
        notes.append(
            "Backward: the scheme starts the head at 0, which lets no gradient through; here it is "
            "drawn from N(0, 1/fan_in)."
        )

    def loss(logits: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def measures(params: Any) -> Any:
        logits, blocks, gradients = slopes(loss, network, params, *inputs)
        at, by = ([of.input.astype(jnp.float32) for of in each] for each in (blocks, gradients))
        sizes = ([jnp.linalg.norm(x.ravel()) for x in each] for each in (at, by))
        along = [(x * slope).sum() for x, slope in zip(at, by, strict=True)]
        excess = excess_loss(logits, labels).mean()
        return blocks, signal_of(blocks), eta(blocks), *map(jnp.stack, (*sizes, along)), excess

    arrays, put = float_leaves(shown)  # other leaves may be no arrays
    measured = jax.device_get(quick_jit(lambda arrays: measures(put(arrays)))(arrays))
    blocks, signal, etas, inputs_norms, norms, along, excess = measured
    form, scalars = form_of(blocks), multipliers(params, rules=role_map)
    # Equation 6; what is not homogeneous is off by more than rounding.
    homogeneous = np.allclose(along, excess, rtol=0.01, atol=1e-5 * max(norms * inputs_norms))
    if homogeneous:
        notes.append(
            f"Theorem 1: excess loss l - H = {excess:.3g}; the norm of the gradient at a block's "
            "input is at least that over the norm of the input."
        )
    rows = []
    for at, (branch, block) in enumerate(zip(role_map.branches, blocks, strict=True)):
        values = {
            **{name: getattr(signal, name).second[at] for name in signal._fields},
            "share": signal.share[at],
            "squared_mean": signal.sum.squared_mean[at],
            "variance": signal.sum.variance[at],
            "gradient_norm": norms[at],
            "bound": excess / inputs_norms[at] if homogeneous else np.nan,
            "eta": etas[at],
            "scalar": scalars[at],
        }
        if form is not None:
            values |= {f"closed_{name}": getattr(form, name)[at] for name in CLOSED}
        transition = block.input.shape != block.sum.shape
        row = {"k": at + 1, "name": branch.name, "transition": transition}
        rows.append(row | {name: _number(value) for name, value in values.items()})
    return Page(rows, notes)


def _number(value: Any) -> Any:
    return "" if np.isnan(value) else float(f"{float(value):.6g}")


# --- Its files ------------------------------------------------------------------------------------


def _named(options: Analyze) -> tuple[str, str]:
    """What a page is called: in its title, and as a folder."""
    if options.network:
        return options.network, options.network.replace(":", "-")
    if options.file:
        return f"{options.file.name}, trained", f"{options.file.stem}-{options.dataset}"
    title = f"{options.model}, {schemes.get(options.scheme).title}, at initialisation"
    return title, f"{options.model}-{options.scheme}-{options.dataset}"


def write(page: Page, options: Analyze, folder: Path) -> None:
    """Writes the table, and the figure if Matplotlib is there."""
    places.write_csv(folder / TABLE, page.rows)
    if not can_draw():
        print(NO_MATPLOTLIB, file=sys.stderr)
        return
    about = f"{options.batch_size} images of {options.dataset}, seed {options.seed}; "
    subtitle = (
        f"{len(page.rows)} residual branches; {'' if options.network else about}dots: "
        f"measured, vertical lines: a stage begins. {' '.join(page.notes)}"
    )
    page_figure(page.rows, folder / FIGURE, title=_named(options)[0], subtitle=subtitle)
