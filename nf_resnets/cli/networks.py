"""The commands about one network."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

from nf_resnets import data, models, places, schemes, translation
from nf_resnets.cli.sweep import RunOptions
from nf_resnets.command_line import MISTAKE, printable, program
from nf_resnets.sweep.command import watched
from nf_resnets.sweep.options import DataDir, Logs
from nf_resnets.sweep.overrides import BUILT, DRAWN, Overrides
from nf_resnets.sweep.settings import RunSettings, make
from nf_resnets.trained import file, fit, pictures, predict, transfer
from nf_resnets.trained.export import PLATFORMS, save_export
from nf_resnets.trained.file import Trained, TrainedError, to_json
from nf_resnets.trained.fit_translation import TranslationRecipe, fit_translation
from nf_resnets.trained.from_torch import from_torch
from nf_resnets.trained.inputs import Images, Sentences
from nf_resnets.trained.run import Watch, unfinished

# The options of several commands.
NetworkFile = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(help="A network's file.")]]
Out = Annotated[Path, tyro.conf.arg(help="The file to write.")]
Overwrite = Annotated[bool, tyro.conf.arg(help="Replace the file if it is there.")]


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a network for images without normalization, and keep it in one file.

    The handwritten digits inside scikit-learn need no download and take about a minute; --dataset
    says what else can be read.
    """

    out: Out = Path("digits.safetensors")
    settings: RunOptions = fit.SETTINGS
    samples: Path | None = None
    """A folder for ten images of the test split, to try predict on."""
    data_dir: DataDir = None
    logs: Logs = Logs()
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Trains a network and saves it."""
        out = places.try_file(self.out, overwrite=self.overwrite)
        samples = None if self.samples is None else places.try_folder(self.samples)
        settings = make(vars(self.settings))
        dataset = data.load(settings.dataset, self.data_dir)
        task, settings = fit.task_of(settings, Overrides(), lambda _: dataset)
        name = f"{settings.model} ({settings.scheme}) on {settings.dataset}"
        print(f"Training {name}, {_device()}", flush=True)
        _make(self, out, {}, partial(fit.fit_one, task, settings))
        if samples is not None:
            _write_samples(samples, dataset)
            print(f"Images to try it on: {program()} predict {_typed(out)} {_typed(samples)}/*.png")


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
    recipe: TranslationRecipe = TranslationRecipe()
    data_dir: DataDir = None
    logs: Logs = Logs()
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Trains a Transformer and saves it with its vocabulary."""
        out = places.try_file(self.out, overwrite=self.overwrite)
        schemes.fitting(self.scheme, "transformer")
        pairs = translation.load_pairs(self.dataset, self.data_dir, source=self.source)
        print(f"Training a Transformer ({self.scheme}) on {self.dataset}, "
              f"{' to '.join(pairs.languages)}, {len(pairs.train.source):,} pairs, "
              f"{_device()}", flush=True)  # fmt: skip
        make = partial(
            fit_translation, pairs, self.scheme, self.recipe, dtype=self.dtype, tested=self.tested
        )
        _make(self, out, {"dataset": self.dataset}, make)
        sentence = shlex.quote(pairs.test.source[0])
        _say(f"{program()} predict {_typed(out)} --sentence {sentence}")


@dataclasses.dataclass(frozen=True)
class FromTorch:
    """Keep a published PyTorch checkpoint as a network of this library, leaf by leaf.

    Known are torchvision's and timm's ResNets, the authors' Fixup and RescaleNet, and timm's
    NF-ResNets. What does not fit, or would compute something else, is refused.
    """

    file: tyro.conf.Positional[Path]
    """A safetensors file."""
    out: Out
    model: str
    """A network by name: resnet-50, resnet-50-v2, cifar-resnet-110."""
    scheme: str
    """The scheme of the published network: batchnorm, fixup, nf_resnet_timm, ..."""
    class_names: Path | None = None
    """A text file with the name of a class in each line; by default they are called 0, 1, ..."""
    stem_channels: int = 0
    """Channels of the first convolution, of which the others are multiples; 0 for the published."""
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Writes a published checkpoint as a network's file."""
        path = places.try_file(self.out, overwrite=self.overwrite)
        stem = {"stem_channels": self.stem_channels}
        options: dict[str, Any] = stem if self.stem_channels else {}
        network = from_torch(self.file, self.model, self.scheme, **options)
        inputs = predict.images_of(network)
        if self.class_names is not None:
            text = places.read_file(self.class_names).decode("utf-8-sig")
            inputs = dataclasses.replace(inputs, class_names=tuple(text.splitlines()))
        dataclasses.replace(network, inputs=inputs).save(path, overwrite=self.overwrite)
        leaves = jax.tree.leaves(network.variables)
        print(f"{path}: {sum(leaf.size for leaf in leaves):,} numbers in {len(leaves)} leaves, "
              f"laid out as {network.notes['from_torch']}")  # fmt: skip
        print(f"  {program()} show {_typed(path)}")


@dataclasses.dataclass(frozen=True)
class Show:
    """Print the contents of a network's file; its weights are checked."""

    file: NetworkFile

    def __call__(self) -> None:
        """Prints the network, its inputs, and how it was trained."""
        trained = file.load(self.file)
        leaves, model = jax.tree.leaves(trained.variables["params"]), trained.model
        # What is as the class has it by default is not what makes this network.
        defaults = {each.name: each.default for each in dataclasses.fields(model)}
        fields = to_json(model)["fields"]
        made = [f"{name}={value}" for name, value in fields.items()
                if name != "dtype" and (name == "scheme" or getattr(model, name) != defaults[name])
                ]  # fmt: skip
        _say(f"{type(model).__name__}({', '.join(made)})")
        dtypes = ", ".join(sorted({leaf.dtype.name for leaf in leaves}))
        print(f"{sum(leaf.size for leaf in leaves):,} parameters in {len(leaves)} leaves of "
              f"{dtypes}; computes in {fields['dtype']}")  # fmt: skip
        if isinstance(trained.inputs, Images):
            height, width, channels = trained.inputs.shape
            colour = "grey" if channels == 1 else "colour"
            print(f"takes {colour} images of {height} x {width} pixels")
            _say(f"classes: {', '.join(trained.inputs.class_names)}")
        else:
            _say(f"translates from {trained.inputs.source} to {trained.inputs.target}")
        for name, value in trained.notes.items():
            _say(f"{name}: {value}")
        versions = ", ".join(f"{name} {value}" for name, value in trained.versions.items())
        _say(f"written by {versions}")


@dataclasses.dataclass(frozen=True)
class Predict:
    """Name the classes of images, or translate sentences.

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

    def __call__(self) -> int:
        """Prints a line for each image or sentence."""
        trained = file.load(self.file)
        if isinstance(trained.inputs, Sentences):
            self._translate(trained, trained.inputs)
            return 0
        if self.top < 1:
            raise ValueError(f"--top {self.top} found; expected 1 or more.")
        if self.sentence or not self.images:
            raise TrainedError(f"{self.file} holds a network for images; expected image files.")
        files, images, failed = [], [], False
        for path in self.images:
            try:
                images.append(pictures.read_picture(path, trained.inputs, invert=self.invert))
                files.append(path)
            except (ValueError, OSError) as error:
                print(printable(error), file=sys.stderr)
                failed = True
        wide = max((len(str(path)) for path in files), default=0)
        probabilities = predict.predict(trained, np.array(images)) if images else ()
        for path, each in zip(files, probabilities, strict=True):
            best = predict.ranked(each, trained.inputs.class_names, self.top)
            line = "   ".join(f"{name} {100 * chance:.1f}%" for name, chance in best)
            _say(f"{path!s:<{wide}}  {line}")
        return MISTAKE if failed else 0

    def _translate(self, trained: Trained, inputs: Sentences) -> None:
        if self.images:
            raise TrainedError(f"{self.file} holds a network that translates; expected --sentence.")
        sentences = self.sentence
        if not sentences:
            text = sys.stdin.buffer.read().decode("utf-8-sig")
            # str.splitlines breaks at characters that may be within a sentence, too.
            sentences = tuple(re.split("\r?\n", text.rstrip("\r\n")))
        vocabulary = translation.Vocabulary(inputs.source_vocabulary, inputs.target_vocabulary)
        for sentence in translation.translate(
            trained.model, trained.variables["params"], vocabulary, sentences, beam=self.beam
        ):
            _say(sentence)


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
    logs: Logs = Logs()
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Fine-tunes a network and saves it under another name."""
        out = places.try_file(self.out, overwrite=self.overwrite)
        old, wanted = file.load(self.file), self.settings
        for name in (*BUILT, *DRAWN):
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
    platforms: tuple[str, ...] = PLATFORMS
    """The platforms to run on: cpu, cuda, tpu."""
    overwrite: Overwrite = False

    def __call__(self) -> None:
        """Writes a StableHLO program."""
        path = places.try_file(self.out, overwrite=self.overwrite)
        trained = file.load(self.file)
        save_export(path, trained, overwrite=self.overwrite, platforms=self.platforms)
        inputs = predict.images_of(trained)
        shape = ", ".join(map(str, inputs.shape))
        print(f"{path}: {path.stat().st_size:,} bytes, for {', '.join(self.platforms)}")
        print(f"  from pixels float32 [b, {shape}], 0 to {inputs.max_value:g}, "
              f"to logits float32 [b, {len(inputs.class_names)}]")  # fmt: skip
        print(f'  jax.export.deserialize(bytearray(open({str(path)!r}, "rb").read())).call(pixels)')


def _typed(path: Path) -> str:
    """A path as a shell reads it."""
    return shlex.quote(str(path))


def _device() -> str:
    return jax.devices()[0].device_kind


def _make(
    command: Train | TrainTranslator | Tune,
    out: Path,
    notes: dict[str, Any],
    make: Callable[..., Trained],
) -> None:
    """Trains a network, saves it, and prints how good it is."""
    start = time.monotonic()
    with unfinished(out) as checkpoints, watched((), command.logs, out.parent) as callback:
        network = make(watch=Watch((callback,), checkpoints))
        network = dataclasses.replace(network, notes={**notes, **network.notes})
        network.save(out, overwrite=command.overwrite)
    result = network.notes
    if "test_bleu" in result:
        text = (f"BLEU {result['test_bleu']:.1f} on test pairs ({result['test_bleu_of_copies']:.1f}"
                f" of copies; {result['signature']})")  # fmt: skip
    else:
        accuracy, steps = 100 * result["test_accuracy"], result["steps"]
        text = f"{accuracy:.1f}% of the test images right after {steps} steps"
    print(f"{text}, {time.monotonic() - start:.0f} s; in {out}")


def _write_samples(folder: Path, dataset: data.Dataset) -> None:
    """Ten images of the test split, by index and class; a file that is there stays."""
    for index in range(min(10, len(dataset.test.labels))):
        name = re.sub(r"[^\w.-]", "_", dataset.class_names[dataset.test.labels[index]])
        path = folder / f"test_{index}_is_{name[:50]}.png"
        if not os.path.lexists(path):
            pictures.write_picture(path, dataset.test.images[index], Images.of(dataset))


def _say(text: str) -> None:
    """Prints a :func:`printable` text."""
    print(printable(text))
