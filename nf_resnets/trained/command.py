"""The commands: each is a dataclass of options and a function that returns the exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import sys
import tempfile
import time
import unicodedata
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

from nf_resnets import data, models, places, schemes, translation
from nf_resnets.manifest import digest
from nf_resnets.trained import export as exports
from nf_resnets.trained import file, fit, pictures, predict, transfer
from nf_resnets.trained import settings as settings_of
from nf_resnets.trained.file import Trained, TrainedError
from nf_resnets.trained.fit_translation import TranslationRecipe, fit_translation
from nf_resnets.trained.from_torch import from_torch
from nf_resnets.trained.inputs import Images, Sentences
from nf_resnets.trained.resume import ENDING, StoppedError, unfinished
from nf_resnets.training.checkpoint import CheckpointError

MISTAKE = 2
"""The exit code of what the user can mend."""


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a network for images without normalisation, and keep it in one file.

    The handwritten digits inside scikit-learn need no download and take about a minute; the other
    data sets are read with tensorflow-datasets.
    """

    out: Path = Path("digits.safetensors")
    """The file to write."""
    dataset: str = "digits"
    """digits, cifar10, cifar100, svhn_cropped or fashion_mnist."""
    network: str = "wrn-16-1"
    """A network by name: wrn-16-4, cifar-resnet-110, resnet-50, resnet-50-v2, vgg-16."""
    scheme: str = "fixup"
    """How it is initialised: fixup, skipinit, rescalenet, batchnorm, ..."""
    stem_channels: int = 0
    """Channels of the first convolution, of which the others are multiples; 0 for the published."""
    recipe: Annotated[fit.Recipe, tyro.conf.OmitArgPrefixes] = dataclasses.field(
        default_factory=fit.Recipe
    )
    samples: Path | None = None
    """A folder for ten images of the test split, to try predict on."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default. Digits need none."""
    overwrite: bool = False
    """Replace the file if it is there."""


@dataclasses.dataclass(frozen=True)
class TrainTranslator:
    """Train a Transformer without LayerNorm to translate, and keep it with its vocabulary.

    The sentences that the code makes (German to English) need no download and take a few minutes;
    others are read with tensorflow-datasets. It needs the extra nf_resnets[translation].
    """

    out: Path = Path("translator.safetensors")
    """The file to write."""
    dataset: str = "made"
    """A set with its languages, such as wmt16_translate/de-en, or "made"."""
    source: str | None = None
    """The language to translate from; by default the one named first."""
    scheme: str = "fixup"
    """fixup, layernorm_post, layernorm_pre, t_fixup, rezero or plain."""
    tested: int = 100
    """Test pairs that are translated at the end, for BLEU."""
    recipe: Annotated[TranslationRecipe, tyro.conf.OmitArgPrefixes] = dataclasses.field(
        default_factory=TranslationRecipe
    )
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default."""
    overwrite: bool = False
    """Replace the file if it is there."""


@dataclasses.dataclass(frozen=True)
class FromTorch:
    """Keep a published PyTorch checkpoint as a network of this library, leaf by leaf.

    Known are ResNets, Wide ResNets and VGG with BatchNorm, Fixup's and RescaleNet's own, and timm's
    NF-ResNets. What does not fit, or would compute something else, is refused.
    """

    file: tyro.conf.Positional[Path]
    """A safetensors file; a .pt file where PyTorch is installed."""
    out: Path
    """The file to write."""
    network: str
    """A network by name: resnet-50, resnet-50-v2, cifar-resnet-110, wrn-28-10, vgg-16."""
    scheme: str
    """The scheme of the published network: batchnorm, fixup, nf_resnet_timm, ..."""
    class_names: Path | None = None
    """A text file with the name of a class in each line; by default they are called 0, 1, ..."""
    stem_channels: int = 0
    """Channels of the first convolution, of which the others are multiples; 0 for the published."""
    width: int = 1
    """How many times as many channels bottlenecks have inside: 2 for wide_resnet50_2."""
    overwrite: bool = False
    """Replace the file if it is there."""


@dataclasses.dataclass(frozen=True)
class Show:
    """Say what a network's file holds; its weights are checked."""

    file: tyro.conf.Positional[Path]
    """A network's file."""


@dataclasses.dataclass(frozen=True)
class Predict:
    """Say what a network sees in images, or translate sentences.

    Images are turned as their camera says, cropped in the middle, resized, and made grey or
    coloured as the network needs them. A line for each: the likeliest classes with their
    probabilities. Sentences come from --sentence, or a line each from standard input.
    """

    file: tyro.conf.Positional[Path]
    """A network's file."""
    images: tyro.conf.Positional[tuple[Path, ...]] = ()
    """PNG, JPEG or other image files."""
    top: int = 3
    """How many classes to name."""
    invert: bool = False
    """Let dark and light change places: the digits are light on black, a photographed page dark on
    white."""
    sentence: tuple[str, ...] = ()
    """Sentences to translate."""
    beam: int = 4
    """Hypotheses that a translation follows."""


@dataclasses.dataclass(frozen=True)
class Tune:
    """Fine-tune a network on another data set: its head is new, the rest goes on from the file."""

    file: tyro.conf.Positional[Path]
    """The network's file; it is not changed."""
    out: Path
    """The file to write."""
    dataset: str = "digits"
    """digits, cifar10, cifar100, svhn_cropped or fashion_mnist."""
    learn: transfer.Learn = "all"
    """What is trained: all; small: the head, and the biases, multipliers and norms; head. The rest
    stays as it is."""
    recipe: Annotated[fit.Recipe, tyro.conf.OmitArgPrefixes] = dataclasses.field(
        default_factory=lambda: fit.Recipe(epochs=5.0, learning_rate=0.02)
    )
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default. Digits need none."""
    overwrite: bool = False
    """Replace the file if it is there."""


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a network for images as a StableHLO program, weights inside, for batches of any size.

    jax.export.deserialize(bytes).call(pixels) runs it without this library.
    """

    file: tyro.conf.Positional[Path]
    """A network's file."""
    out: Path
    """The file to write, such as net.stablehlo."""
    platforms: tuple[str, ...] = exports.PLATFORMS
    """What it is to run on: cpu, cuda, tpu."""
    overwrite: bool = False
    """Replace the file if it is there."""


Command = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[TrainTranslator, tyro.conf.subcommand("train-translator")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[FromTorch, tyro.conf.subcommand("from-torch")]
    | Annotated[Show, tyro.conf.subcommand("show")]
)


def printable(text: Any) -> str:
    r"""A text without what would steer a terminal: what files hold may come from anybody.

    Example:
      >>> printable(chr(27) + "[31m")
      '\\x1b[31m'
    """
    return "".join(
        ascii(letter)[1:-1] if unicodedata.category(letter) in _STEERING else letter
        for letter in str(text)
    )


# Control characters, surrogates, and the marks that change the direction of writing, among others
# of their kind.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def run(command: Any) -> int:
    """Does what a command says; returns the exit code, 2 for what the user can mend."""
    functions: dict[type, Callable[[Any], int]] = {
        Train: train,
        TrainTranslator: train_translator,
        Predict: predictions,
        Tune: tune,
        Export: export_,
        FromTorch: from_torch_,
        Show: show,
    }
    try:
        code = functions[type(command)](command)
        sys.stdout.flush()
        return code
    except StoppedError as error:
        print(printable(error), file=sys.stderr)
        return error.exit_code
    except (TrainedError, CheckpointError, ValueError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError):
            # Nobody reads on (`| head`).
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            # A training stops there; the same command resumes it.
            return 0 if isinstance(command, Show | Predict) else 128 + signal.SIGPIPE
        print(printable(error), file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("Stopped; nothing was written.", file=sys.stderr)
        return 130


def train(command: Train) -> int:
    """Trains a network and saves it."""
    out = _tried(command)
    samples = None if command.samples is None else places.try_folder(command.samples, "--samples")
    dataset = data.load(command.dataset, command.data_dir)
    model = _network(command, dataset)
    inputs = Images.of(dataset)
    where = f"{command.network} ({command.scheme}) on {command.dataset}"
    print(f"Training {where}, {jax.devices()[0].device_kind}", flush=True)
    identity = _identity(model, dataset, command.recipe)
    notes = {"network": command.network, "dataset": command.dataset}
    _fit(
        command,
        out,
        Trained(model, {}, inputs, notes),
        dataset,
        identity,
        lambda: fit.initial(model, dataset, command.recipe.seed),
    )
    if samples is not None:
        _write_samples(samples, dataset, inputs)
        print(f"Images to try it on: python -m nf_resnets.trained predict {out} {samples}/*.png")
    return 0


def tune(command: Tune) -> int:
    """Fine-tunes a network and saves it under another name."""
    out = _tried(command)
    old = file.load(command.file)
    dataset = data.load(command.dataset, command.data_dir)
    key = jax.random.key(command.recipe.seed)
    new = transfer.transfer(old, inputs=Images.of(dataset), key=key)
    labels = jax.tree.leaves(transfer.label_tree(new.variables["params"], command.learn))
    print(f"Fine-tuning {command.file} on {command.dataset}: {labels.count('learns')} of "
          f"{len(labels)} leaves learn, {jax.devices()[0].device_kind}", flush=True)  # fmt: skip
    identity = {
        **_identity(new.model, dataset, command.recipe),
        "learn": command.learn,
        "tuned_from": digest(*jax.tree.leaves(old.variables)),
    }
    notes = {
        "network": old.notes.get("network", type(new.model).__name__),
        "dataset": command.dataset,
        "tuned_from": dict(old.notes),
        "learn": command.learn,
    }
    network = dataclasses.replace(new, notes=notes)
    _fit(command, out, network, dataset, identity, lambda: new.variables, learn=command.learn)
    return 0


def _fit(
    command: Train | Tune,
    out: Path,
    network: Trained,
    dataset: data.Dataset,
    identity: dict[str, Any],
    initial: Callable[[], Any],
    **options: Any,
) -> None:
    """Trains a network for images, saves it, and prints how good it is."""
    start = time.monotonic()
    with unfinished(out, identity) as checkpoints:
        found = fit.fit(
            network.model,
            initial(),
            dataset,
            command.recipe,
            on_epoch=_print_epoch,
            checkpoints=checkpoints,
            **options,
        )
        notes = {
            **network.notes,
            "recipe": dataclasses.asdict(command.recipe),
            "steps": found.steps,
            "test_accuracy": found.test_accuracy,
            "test_loss": found.test_loss,
        }
        _save(out, command, network.model, found.variables, network.inputs, notes)
    print(f"{100 * found.test_accuracy:.1f}% of the test images right after {found.steps} steps, "
          f"{time.monotonic() - start:.0f} s; in {out}")  # fmt: skip


def train_translator(command: TrainTranslator) -> int:
    """Trains a Transformer and saves it with its vocabulary."""
    out = _tried(command)
    schemes.fitting(command.scheme, "transformer")
    pairs = translation.load_pairs(command.dataset, command.data_dir, source=command.source)
    if command.tested < 1:
        raise ValueError(f"--tested {command.tested} found; expected at least 1.")
    source, target = pairs.languages
    print(
        f"Training a Transformer ({command.scheme}) on {command.dataset}, {source} to {target}, "
        f"{len(pairs.train.source):,} pairs, {jax.devices()[0].device_kind}",
        flush=True,
    )
    steps, start = command.recipe.steps, time.monotonic()

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if step % 50 == 0 or step == steps:
            print(f"  step {step:>{len(str(steps))}} of {steps}: negative log-likelihood of a "
                  f"token {metrics['likelihood']:.3f}", flush=True)  # fmt: skip

    recipe = dataclasses.asdict(command.recipe)
    texts = digest(*pairs.languages, *pairs.train.source, *pairs.train.target)
    identity = {"scheme": command.scheme, "recipe": recipe, "pairs": texts}
    with unfinished(out, identity) as checkpoints:
        found = fit_translation(
            pairs,
            command.scheme,
            command.recipe,
            tested=command.tested,
            on_step=on_step,
            checkpoints=checkpoints,
        )
        notes = {
            "dataset": command.dataset,
            "recipe": recipe,
            "test_bleu": found.bleu.score,
            "test_bleu_of_copies": found.copy_bleu.score,
            "signature": found.bleu.signature,
        }
        inputs = Sentences(source, target, found.vocabulary.source, found.vocabulary.target)
        _save(out, command, found.model, {"params": found.params}, inputs, notes)
    print(f"BLEU {found.bleu.score:.1f} on test pairs ({found.copy_bleu.score:.1f} of copies; "
          f"{found.bleu.signature})")  # fmt: skip
    print(f"{time.monotonic() - start:.0f} s; in {out}")
    print(f'python -m nf_resnets.trained predict {out} --sentence "{pairs.test.source[0]}"')
    return 0


def show(command: Show) -> int:
    """Prints what a file holds."""
    trained = file.load(command.file)
    leaves = jax.tree.leaves(trained.variables["params"])
    dtypes = ", ".join(sorted({leaf.dtype.name for leaf in leaves}))
    print(f"{type(trained.model).__name__}, {sum(leaf.size for leaf in leaves):,} parameters in "
          f"{len(leaves)} leaves ({dtypes})")  # fmt: skip
    settings = settings_of.to_json(trained.model)["fields"]
    scheme = settings["scheme"]
    settings["scheme"] = scheme["name"] if isinstance(scheme, dict) else scheme
    _print("  " + ", ".join(f"{name} {value}" for name, value in settings.items()))
    if isinstance(trained.inputs, Images):
        height, width, channels = trained.inputs.shape
        colour = "grey" if channels == 1 else "colour"
        print(f"takes {colour} images of {height} x {width} pixels")
        _print(f"classes: {', '.join(trained.inputs.class_names)}")
    else:
        _print(f"translates from {trained.inputs.source} to {trained.inputs.target}")
    for name, value in trained.notes.items():
        _print(f"{name}: {value}")
    _print("written by " + ", ".join(f"{name} {v}" for name, v in trained.versions.items()))
    return 0


def predictions(command: Predict) -> int:
    """Prints a line for each image or sentence."""
    trained = file.load(command.file)
    if isinstance(trained.inputs, Sentences):
        if command.images:
            raise TrainedError(
                f"{command.file} holds a network that translates, and {command.images[0]} was "
                "given; expected --sentence, or lines on standard input."
            )
        return _translations(trained, trained.inputs, command)
    if command.sentence:
        raise TrainedError(
            f"{command.file} holds a network for images, and --sentence was given; expected image "
            "files."
        )
    if not command.images:
        raise TrainedError("no image given; expected one image file or more after the network's.")
    if command.top < 1:
        raise TrainedError(f"--top {command.top} found; expected at least 1.")
    pixels, found, faults = pictures.read_pictures(
        command.images, trained.inputs, invert=command.invert
    )
    probabilities = predict.predict(trained, pixels)
    wide = max((len(str(command.images[index])) for index in found), default=0)
    for index, each in zip(found, probabilities, strict=True):
        best = predict.ranked(each, trained.inputs.class_names, command.top)
        line = "   ".join(f"{name} {100 * chance:.1f}%" for name, chance in best)
        _print(f"{command.images[index]!s:<{wide}}  {line}")
    for fault in faults:
        print(printable(fault), file=sys.stderr)
    return MISTAKE if faults else 0


def export_(command: Export) -> int:
    """Writes a StableHLO program."""
    path = places.try_file(command.out, "--out", overwrite=command.overwrite)
    trained = file.load(command.file)
    exports.save_export(path, trained, overwrite=command.overwrite, platforms=command.platforms)
    inputs = predict.images_of(trained)
    shape = ", ".join(map(str, inputs.shape))
    print(f"{path}: {path.stat().st_size:,} bytes, for {', '.join(command.platforms)}")
    print(f"  from pixels float32 [b, {shape}], 0 to {inputs.max_value:g}, "
          f"to logits float32 [b, {len(inputs.class_names)}]")  # fmt: skip
    print(f'  jax.export.deserialize(bytearray(open("{path}", "rb").read())).call(pixels)')
    return 0


def from_torch_(command: FromTorch) -> int:
    """Writes a published checkpoint as a network's file."""
    path = places.try_file(command.out, "--out", overwrite=command.overwrite)
    options: dict[str, Any] = {}
    if command.stem_channels:
        options["stem_channels"] = command.stem_channels
    if command.width != 1:
        options["width"] = command.width
    found = from_torch(command.file, command.network, command.scheme, **options)
    inputs = predict.images_of(found)
    if command.class_names is not None:
        inputs = dataclasses.replace(inputs, class_names=_lines_of(command.class_names))
    file.save(path, found.model, found.variables, inputs=inputs, notes=found.notes,
              overwrite=command.overwrite)  # fmt: skip
    leaves = jax.tree.leaves(found.variables)
    print(f"{path}: {sum(leaf.size for leaf in leaves):,} numbers in {len(leaves)} leaves, laid "
          f"out as {found.notes['from_torch']}")  # fmt: skip
    print(f"  python -m nf_resnets.trained show {path}")
    return 0


def _lines_of(path: Path) -> tuple[str, ...]:
    try:
        return tuple(places.read_file(places.expanded(path)).decode().splitlines())
    except UnicodeDecodeError:
        raise TrainedError(f"{path} is no text in UTF-8; expected a class in each line.") from None


def _tried(command: Train | TrainTranslator | Tune) -> Path:
    """The file that a training is to end in, after everything on the way there was tried."""
    return places.try_file(command.out, "--out", overwrite=command.overwrite, ending=ENDING)


def _identity(model: Any, dataset: data.Dataset, recipe: fit.Recipe) -> dict[str, Any]:
    """On what a training depends."""
    return {
        "network": settings_of.to_json(model),
        "dataset": dataset.name,
        "labels": digest(dataset.train.labels),
        "recipe": dataclasses.asdict(recipe),
    }


def _save(
    path: Path,
    command: Train | TrainTranslator | Tune,
    model: Any,
    variables: Any,
    inputs: Images | Sentences,
    notes: dict[str, Any],
) -> None:
    """Saves a network; one that cannot be saved there, in another folder.

    Raises:
      TrainedError: if it could not be saved where it was to be; it says where it is.
    """
    try:
        file.save(path, model, variables, inputs=inputs, notes=notes, overwrite=command.overwrite)
    except TrainedError as error:
        name = f"network-{uuid.uuid4().hex[:8]}.safetensors"
        for folder in (path.parent, Path(tempfile.gettempdir()), Path.cwd()):
            with contextlib.suppress(TrainedError):
                kept = file.save(folder / name, model, variables, inputs=inputs, notes=notes)
                break
        else:
            raise
        text = str(error).partition("; expected")[0].removesuffix(".")
        raise TrainedError(f"{text}; the network is kept in {kept}.") from None


def _network(command: Train, dataset: data.Dataset) -> Any:
    if models.architectures.find(command.network).inputs != "images":
        raise ValueError(f"--network {command.network} found; expected a network for images.")
    options: dict[str, Any] = {"num_classes": dataset.num_classes}
    if command.stem_channels:
        options["stem_channels"] = command.stem_channels
    model = models.make(command.network, command.scheme, **options)
    # Images that do not fit the network are refused before the first step.
    image = np.zeros((1, *dataset.train.images.shape[1:]), np.float32)
    jax.eval_shape(model.init, jax.random.key(0), image)
    return model


def _print_epoch(step: int, steps: int, loss: float, accuracy: float) -> None:
    print(f"  step {step:>{len(str(steps))}} of {steps}: training loss {loss:.3f}, "
          f"accuracy {100 * accuracy:.1f}%", flush=True)  # fmt: skip


def _write_samples(folder: Path, dataset: data.Dataset, inputs: Images) -> None:
    """Ten images of the test split, by index and class; none that is there is replaced."""
    for index in range(min(10, len(dataset.test.labels))):
        name = re.sub(r"[^\w.-]", "_", dataset.class_names[dataset.test.labels[index]])
        path = folder / f"test_{index}_is_{name[:50]}.png"
        if not path.exists():
            pictures.write_picture(path, dataset.test.images[index], inputs)


def _translations(trained: Trained, inputs: Sentences, command: Predict) -> int:
    sentences = list(command.sentence)
    if not sentences:
        try:
            sentences = [line.rstrip("\r\n") for line in sys.stdin]
        except UnicodeDecodeError:
            raise TrainedError("standard input is no text in UTF-8; expected sentences.") from None
    if not sentences:
        raise TrainedError("no sentence given; expected --sentence, or lines on standard input.")
    vocabulary = translation.Vocabulary(inputs.source_vocabulary, inputs.target_vocabulary)
    params = trained.variables["params"]
    for sentence in translation.translate(
        trained.model, params, vocabulary, sentences, beam=command.beam
    ):
        _print(sentence)
    return 0


def _print(text: str) -> None:
    print(printable(text))


__all__ = [
    "Command", "Export", "FromTorch", "Predict", "Show", "Train", "TrainTranslator", "Tune", "run",
]  # fmt: skip
