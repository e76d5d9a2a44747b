"""The commands: each is a dataclass of options, and ``run`` does what it says."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from nf_resnets import data, models, places, schemes, translation
from nf_resnets.command_line import MISTAKE, finish, program
from nf_resnets.sweep.config import Config
from nf_resnets.sweep.overrides import BUILT, Overrides
from nf_resnets.sweep.settings import RunSettings, make
from nf_resnets.trained import export as exports
from nf_resnets.trained import file, fit, pictures, predict, transfer
from nf_resnets.trained import settings as settings_of
from nf_resnets.trained.file import Trained, TrainedError
from nf_resnets.trained.fit_translation import TranslationRecipe, fit_translation
from nf_resnets.trained.from_torch import from_torch
from nf_resnets.trained.inputs import Images, Sentences
from nf_resnets.trained.run import ENDING, StoppedError, Watch, unfinished
from nf_resnets.training.display import Display
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB

# The options of several commands.
NetworkFile = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(help="A network's file.")]]
Out = Annotated[Path, tyro.conf.arg(help="The file to write.")]
Overwrite = Annotated[bool, tyro.conf.arg(help="Replace the file if it is there.")]
DataDir = Annotated[
    str | None,
    tyro.conf.arg(
        help="Where tensorflow-datasets keeps its data, or CIFAR's binary files lie; by default "
        "where tensorflow-datasets looks. What is made here, and the digits, need none."
    ),
]
StemChannels = Annotated[
    int,
    tyro.conf.arg(
        help="Channels of the first convolution, of which the others are multiples; 0 for the "
        "published."
    ),
]
RunOptions = Annotated[RunSettings, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="run")]


@dataclasses.dataclass(frozen=True)
class Logs:
    """Where else a training is logged."""

    tensorboard: Path | None = None
    """A folder for TensorBoard logs, in a folder of the training's own there."""
    wandb: str | None = None
    """A project of Weights & Biases to log to: into the folder wandb/ here, and offline unless
    WANDB_MODE is online."""

    def open(self) -> list[Any]:
        """The callbacks, which are context managers."""
        found: list[Any] = []
        if self.tensorboard is not None:
            found.append(TensorBoard(places.try_folder(self.tensorboard, "--tensorboard")))
        if self.wandb is not None:
            found.append(WandB(Path(), project=self.wandb))
        return found


Logged = Annotated[Logs, tyro.conf.OmitArgPrefixes]


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a network for images without normalisation, and keep it in one file.

    The handwritten digits inside scikit-learn need no download and take about a minute; --dataset
    says what else can be read.
    """

    out: Out = Path("digits.safetensors")
    settings: RunOptions = fit.SETTINGS
    config: Config = None
    samples: Path | None = None
    """A folder for ten images of the test split, to try predict on."""
    data_dir: DataDir = None
    logs: Logged = Logs()
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Trains a network and saves it."""
        out = _tried(self)
        samples = None if self.samples is None else places.try_folder(self.samples, "--samples")
        settings = make(vars(self.settings))
        dataset = data.load(settings.dataset, self.data_dir)
        task, settings = fit.task_of(settings, Overrides(), lambda _: dataset)
        where = f"{settings.model} ({settings.scheme}) on {settings.dataset}"
        print(f"Training {where}, {_device()}", flush=True)
        _make(self, out, {}, partial(fit.fit_one, task, settings))
        if samples is not None:
            _write_samples(samples, dataset)
            print(f"Images to try it on: {program()} predict {out} {samples}/*.png")


@dataclasses.dataclass(frozen=True)
class TrainTranslator:
    """Train a Transformer without LayerNorm to translate, and keep it with its vocabulary.

    The sentences that the code makes (German to English) need no download and take a few minutes;
    others are read with tensorflow-datasets. It needs the extra nf_resnets[translation].
    """

    out: Out = Path("translator.safetensors")
    dataset: str = "made"
    """A set with its languages, such as wmt16_translate/de-en, or "made"."""
    source: str | None = None
    """The language to translate from; by default the one named first."""
    scheme: str = "fixup"
    """fixup, layernorm_post, layernorm_pre, t_fixup, rezero, dyt, derf, deepnorm, admin or
    plain."""
    tested: int = 100
    """Test pairs that are translated at the end, for BLEU."""
    dtype: models.Dtype = models.DTYPES[0]
    """What the network computes in; its parameters are float32 in either case."""
    recipe: Annotated[TranslationRecipe, tyro.conf.OmitArgPrefixes] = TranslationRecipe()
    data_dir: DataDir = None
    logs: Logged = Logs()
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Trains a Transformer and saves it with its vocabulary."""
        out = _tried(self)
        schemes.fitting(self.scheme, "transformer")
        pairs = translation.load_pairs(self.dataset, self.data_dir, source=self.source)
        if self.tested < 1:
            raise ValueError(f"--tested {self.tested} found; expected at least 1.")
        print(f"Training a Transformer ({self.scheme}) on {self.dataset}, "
              f"{' to '.join(pairs.languages)}, {len(pairs.train.source):,} pairs, "
              f"{_device()}", flush=True)  # fmt: skip
        make = partial(
            fit_translation, pairs, self.scheme, self.recipe, dtype=self.dtype, tested=self.tested
        )
        _make(self, out, {"dataset": self.dataset}, make)
        print(f'{program()} predict {out} --sentence "{pairs.test.source[0]}"')


@dataclasses.dataclass(frozen=True)
class FromTorch:
    """Keep a published PyTorch checkpoint as a network of this library, leaf by leaf.

    Known are torchvision's and timm's ResNets, the authors' Fixup and RescaleNet, and timm's
    NF-ResNets. What does not fit, or would compute something else, is refused.
    """

    file: tyro.conf.Positional[Path]
    """A safetensors file; a .pt file where PyTorch is installed."""
    out: Out
    model: str
    """A network by name: resnet-50, resnet-50-v2, cifar-resnet-110."""
    scheme: str
    """The scheme of the published network: batchnorm, fixup, nf_resnet_timm, ..."""
    class_names: Path | None = None
    """A text file with the name of a class in each line; by default they are called 0, 1, ..."""
    stem_channels: StemChannels = 0
    width: int = 1
    """How many times as many channels bottlenecks have inside: 2 for wide_resnet50_2."""
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Writes a published checkpoint as a network's file."""
        path = places.try_file(self.out, "--out", overwrite=self.overwrite)
        options: dict[str, Any] = {}
        if self.stem_channels:
            options["stem_channels"] = self.stem_channels
        if self.width != 1:
            options["width"] = self.width
        found = from_torch(self.file, self.model, self.scheme, **options)
        inputs = predict.images_of(found)
        if self.class_names is not None:
            names = places.read_file(places.expanded(self.class_names))
            lines = _lines(str(self.class_names), names, "a class in each line")
            inputs = dataclasses.replace(inputs, class_names=lines)
        dataclasses.replace(found, inputs=inputs).save(path, overwrite=self.overwrite)
        leaves = jax.tree.leaves(found.variables)
        print(f"{path}: {sum(leaf.size for leaf in leaves):,} numbers in {len(leaves)} leaves, "
              f"laid out as {found.notes['from_torch']}")  # fmt: skip
        print(f"  {program()} show {path}")


@dataclasses.dataclass(frozen=True)
class Show:
    """Say what a network's file holds; its weights are checked."""

    file: NetworkFile

    def __call__(self) -> None:
        """Prints what a file holds."""
        trained = file.load(self.file)
        leaves = jax.tree.leaves(trained.variables["params"])
        dtypes = ", ".join(sorted({leaf.dtype.name for leaf in leaves}))
        print(f"{type(trained.model).__name__}, {sum(leaf.size for leaf in leaves):,} parameters "
              f"in {len(leaves)} leaves ({dtypes})")  # fmt: skip
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


@dataclasses.dataclass(frozen=True)
class Predict:
    """Say what a network sees in images, or translate sentences.

    Images are turned as their camera says, cropped in the middle, resized, and made grey or
    coloured as the network needs them. A line for each: the likeliest classes with their
    probabilities. Sentences come from --sentence, or a line each from standard input.
    """

    file: NetworkFile
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

    def __call__(self) -> int | None:
        """Prints a line for each image or sentence."""
        trained = file.load(self.file)
        if isinstance(trained.inputs, Sentences):
            _translations(trained, trained.inputs, self)
            return None
        if self.sentence:
            raise TrainedError(
                f"{self.file} holds a network for images, and --sentence was given; expected image "
                "files."
            )
        if not self.images:
            raise TrainedError("no image given; expected image files after the network's.")
        if self.top < 1:
            raise TrainedError(f"--top {self.top} found; expected at least 1.")
        pixels, found, faults = pictures.read_pictures(
            self.images, trained.inputs, invert=self.invert
        )
        wide = max((len(str(self.images[index])) for index in found), default=0)
        for index, each in zip(found, predict.predict(trained, pixels), strict=True):
            best = predict.ranked(each, trained.inputs.class_names, self.top)
            line = "   ".join(f"{name} {100 * chance:.1f}%" for name, chance in best)
            _print(f"{self.images[index]!s:<{wide}}  {line}")
        for fault in faults:
            print(printable(fault), file=sys.stderr)
        return MISTAKE if faults else 0


@dataclasses.dataclass(frozen=True)
class Tune:
    """Fine-tune a network on another data set: its head is new, the rest goes on from the file.

    It takes five epochs if neither --epochs nor --steps is given.
    """

    file: NetworkFile
    out: Out
    learn: transfer.Learn = "all"
    """What is trained: all; small: the head, and the biases, multipliers and norms; head. The rest
    stays as it is."""
    settings: RunOptions = dataclasses.replace(fit.SETTINGS, peak_lr=0.02)
    data_dir: DataDir = None
    logs: Logged = Logs()
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Fine-tunes a network and saves it under another name."""
        out = _tried(self)
        old, wanted = file.load(self.file), self.settings
        for name in (*BUILT, "alpha", "branch_scale"):
            if name != "dtype" and getattr(wanted, name) != getattr(RunSettings(), name):
                raise ValueError(
                    f"--{name.replace('_', '-')} {getattr(wanted, name)} found; expected none, for "
                    f"the network is that of {self.file}."
                )
        if not wanted.epochs and not wanted.steps:
            wanted = dataclasses.replace(wanted, epochs=5.0)
        dataset = data.load(wanted.dataset, self.data_dir)
        key = jax.random.key(wanted.seed)
        new = transfer.transfer(old, inputs=Images.of(dataset), key=key)
        dtype = models.dtype_of(wanted.dtype)
        new = dataclasses.replace(new, model=new.model.clone(dtype=dtype))
        overrides = fit.run_overrides(new, learn=self.learn)
        settings = make({**vars(wanted), **overrides.settings})
        task, settings = fit.task_of(settings, overrides, lambda _: dataset)
        labels = jax.tree.leaves(transfer.label_tree(new.variables["params"], self.learn))
        print(f"Fine-tuning {self.file} on {wanted.dataset}: {labels.count('learns')} of "
              f"{len(labels)} leaves learn, {_device()}", flush=True)  # fmt: skip
        _make(self, out, {"tuned_from": dict(old.notes), "learn": self.learn},
              partial(fit.fit_one, task, settings))  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a network for images as a StableHLO program, weights inside, for batches of any size.

    jax.export.deserialize(bytes).call(pixels) runs it without this library.
    """

    file: NetworkFile
    out: Out
    """The file to write, such as net.stablehlo."""
    platforms: tuple[str, ...] = exports.PLATFORMS
    """What it is to run on: cpu, cuda, tpu."""
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Writes a StableHLO program."""
        path = places.try_file(self.out, "--out", overwrite=self.overwrite)
        trained = file.load(self.file)
        exports.save_export(path, trained, overwrite=self.overwrite, platforms=self.platforms)
        inputs = predict.images_of(trained)
        shape = ", ".join(map(str, inputs.shape))
        print(f"{path}: {path.stat().st_size:,} bytes, for {', '.join(self.platforms)}")
        print(f"  from pixels float32 [b, {shape}], 0 to {inputs.max_value:g}, "
              f"to logits float32 [b, {len(inputs.class_names)}]")  # fmt: skip
        print(f'  jax.export.deserialize(bytearray(open("{path}", "rb").read())).call(pixels)')


COMMANDS: Mapping[str, type] = {
    "train": Train, "train-translator": TrainTranslator, "predict": Predict, "tune": Tune,
    "export": Export, "from-torch": FromTorch, "show": Show,
}  # fmt: skip


def run(command: Any) -> int:
    """Does what a command says; returns the exit code, 2 for what the user can mend."""

    def main() -> int | None:
        try:
            return command()
        except BrokenPipeError:
            raise
        except (TrainedError, ValueError, OSError, ImportError) as error:
            print(printable(error), file=sys.stderr)
            return error.exit_code if isinstance(error, StoppedError) else MISTAKE

    # A training that nobody reads any more stops; the same command resumes it.
    unread = 0 if isinstance(command, Show | Predict) else 128 + signal.SIGPIPE
    return finish(main, "Stopped; nothing was written.", unread)


# --- Trainings ------------------------------------------------------------------------------------


def _device() -> str:
    return jax.devices()[0].device_kind


def _tried(command: Train | TrainTranslator | Tune) -> Path:
    """The file that a training is to end in, after everything on the way there was tried."""
    return places.try_file(command.out, "--out", overwrite=command.overwrite, ending=ENDING)


def _make(
    command: Train | TrainTranslator | Tune,
    out: Path,
    notes: dict[str, Any],
    make: Callable[..., Trained],
) -> None:
    """Trains a network, saves it, and prints how good it is."""
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(unfinished(out))
        callbacks = [stack.enter_context(each) for each in (*command.logs.open(), Display())]
        network = make(watch=Watch(tuple(callbacks), checkpoints))
        _save(out, dataclasses.replace(network, notes={**notes, **network.notes}),
              overwrite=command.overwrite)  # fmt: skip
    found = network.notes
    if "test_bleu" in found:
        text = (f"BLEU {found['test_bleu']:.1f} on test pairs ({found['test_bleu_of_copies']:.1f} "
                f"of copies; {found['signature']})")  # fmt: skip
    else:
        accuracy, steps = 100 * found["test_accuracy"], found["steps"]
        text = f"{accuracy:.1f}% of the test images right after {steps} steps"
    print(f"{text}, {time.monotonic() - start:.0f} s; in {out}")


def _save(path: Path, network: Trained, *, overwrite: bool) -> None:
    """Saves a network; one that cannot be saved there, in another folder.

    Raises:
      TrainedError: if it could not be saved where it was to be; it says where it is.
    """
    try:
        network.save(path, overwrite=overwrite)
    except TrainedError as error:
        name = f"network-{uuid.uuid4().hex[:8]}.safetensors"
        for folder in (path.parent, Path(tempfile.gettempdir()), Path.cwd()):
            with contextlib.suppress(TrainedError):
                kept = network.save(folder / name)
                break
        else:
            raise
        text = str(error).partition("; expected")[0].removesuffix(".")
        raise TrainedError(f"{text}; the network is kept in {kept}.") from None


def _write_samples(folder: Path, dataset: data.Dataset) -> None:
    """Ten images of the test split, by index and class; none that is there is overwritten."""
    for index in range(min(10, len(dataset.test.labels))):
        name = re.sub(r"[^\w.-]", "_", dataset.class_names[dataset.test.labels[index]])
        path = folder / f"test_{index}_is_{name[:50]}.png"
        if not os.path.lexists(path):
            pictures.write_picture(path, dataset.test.images[index], Images.of(dataset))


# --- Networks that are there ----------------------------------------------------------------------


def _translations(trained: Trained, inputs: Sentences, command: Predict) -> None:
    if command.images:
        raise TrainedError(
            f"{command.file} holds a network that translates, and {command.images[0]} was given; "
            "expected --sentence, or lines on standard input."
        )
    sentences = command.sentence
    if not sentences and sys.stdin is not None:  # None where it is closed
        sentences = _lines("standard input", sys.stdin.buffer.read(), "sentences")
    if not sentences:
        raise TrainedError("no sentence given; expected --sentence, or lines on standard input.")
    vocabulary = translation.Vocabulary(inputs.source_vocabulary, inputs.target_vocabulary)
    params = trained.variables["params"]
    for sentence in translation.translate(
        trained.model, params, vocabulary, sentences, beam=command.beam
    ):
        _print(sentence)


def _lines(where: str, data: bytes, expected: str) -> tuple[str, ...]:
    """The lines of a text in UTF-8, whatever encoding the locale has."""
    try:
        text = data.decode("utf-8-sig")  # editors of Windows begin a file with a mark
    except UnicodeDecodeError:
        raise TrainedError(f"{where} is no text in UTF-8; expected {expected}.") from None
    # str.splitlines breaks at form feeds and at U+2028, too, which may be within a sentence.
    return tuple(line.rstrip("\r\n") for line in io.StringIO(text))


# --- Printing -------------------------------------------------------------------------------------


def printable(text: Any) -> str:
    r"""A text without what would steer a terminal: what files hold may come from anybody.

    Example:
      >>> printable(chr(27) + "[31m")
      '\\x1b[31m'
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def _print(text: str) -> None:
    print(printable(text))


__all__ = [
    "COMMANDS", "Export", "FromTorch", "Predict", "Show", "Train", "TrainTranslator", "Tune", "run",
]  # fmt: skip
