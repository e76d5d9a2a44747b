"""Training in one call, and predictions from image files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from nf_resnets import data, models, schemes
from nf_resnets.trained import fit as training_fit
from nf_resnets.trained import predict as prediction
from nf_resnets.trained.file import Trained, TrainedError, load
from nf_resnets.trained.pictures import read_picture
from nf_resnets.trained.run import Watch
from nf_resnets.training.callbacks import Callback
from nf_resnets.training.display import Display


def fit(
    dataset: data.Dataset | str | os.PathLike[str],
    *,
    model: Any = "wrn-16-1",
    scheme: str | None = None,
    callback: Callback | None = None,
    show: bool = True,
    **recipe: Any,
) -> Trained:
    """Trains a network for images without normalisation, and tests it.

    Args:
      dataset: what it is trained and tested on; or its name or the path of a folder, see
        :func:`nf_resnets.data.load`.
      model: a network by name, such as ``"wrn-16-4"``, ``"cifar-resnet-110"`` or ``"resnet-50"``;
        or one of :mod:`nf_resnets.models`, which has its own scheme.
      scheme: how a network given by name is initialised; by default ``"fixup"``.
      callback: receives the events of the training, such as
        :class:`TensorBoard <nf_resnets.sweep.TensorBoard>`.
      show: whether the progress is printed.
      recipe: fields of :class:`nf_resnets.trained.fit.Recipe`: ``epochs``, ``batch_size``,
        ``learning_rate``, ``flip``, ...

    Returns:
      The network; its ``notes`` have ``test_accuracy`` and ``test_loss``, and ``save(path)`` writes
      it into one file.

    Raises:
      TrainedError: if the run diverges.
      ValueError: if an argument is not in order, or does not fit the data.

    Example:
      >>> import nf_resnets
      >>> network = nf_resnets.fit("photos@32", epochs=20, flip=True)         # doctest: +SKIP
      >>> nf_resnets.predict(network, ["new/1.jpg"])                          # doctest: +SKIP
      [('cat', 0.97)]
    """
    known = [field.name for field in dataclasses.fields(training_fit.Recipe)]
    for name in recipe:
        if name not in known:
            raise ValueError(f"{name}={recipe[name]!r} found; expected one of {', '.join(known)}.")
    how = training_fit.Recipe(**recipe)
    if not isinstance(dataset, data.Dataset):
        if not isinstance(dataset, str | os.PathLike):
            raise TypeError(
                f"dataset is a {type(dataset).__name__}; expected a name, the path of a folder, or "
                "a Dataset, as data.from_arrays(images, labels) makes one."
            )
        dataset = data.load(os.fspath(dataset))
    if callback is not None and not hasattr(callback, "on_epoch"):
        raise TypeError(
            f"callback is a {type(callback).__name__}; expected a nf_resnets.sweep.Callback, such "
            "as sweep.TensorBoard(folder)."
        )
    name = model if isinstance(model, str) else type(model).__name__
    if isinstance(model, str):
        model = make_network(model, scheme or "fixup", dataset)
    models.architectures.architecture_of(model)  # refuses other libraries' networks
    own = schemes.get(model.scheme)
    if scheme not in (None, own, own.name):
        raise ValueError(f"scheme={scheme!r} found for a model that has {own.name!r}.")
    watch = Watch(settings={"dataset": dataset.name, "model": name})
    callbacks: list[Callback] = [callback] if callback else []
    with contextlib.ExitStack() as stack:
        if show:
            callbacks.append(stack.enter_context(Display()))
        watch = dataclasses.replace(watch, callbacks=tuple(callbacks))
        made = training_fit.fit(model, dataset, how, watch=watch)
    return dataclasses.replace(made, notes={"network": name, "dataset": dataset.name, **made.notes})


def predict(
    network: Trained | str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | np.ndarray,
) -> list[tuple[str, float]]:
    """The likeliest class of each image, with its probability.

    :func:`nf_resnets.trained.predict.predict` gives the probabilities of all classes.

    Args:
      network: as :func:`fit` returns it, or its file.
      images: image files, or raw pixels ``[B, H, W, C]``. Files are cropped in the middle, resized,
        and made grey or coloured as the network needs them.

    Raises:
      TrainedError: if the network does not take images, an image cannot be read, which is named, or
        pixels are scaled to 0 to 1 or to mean 0 where the network takes raw ones.
    """
    if not isinstance(network, Trained):
        network = load(network)
    inputs = prediction.images_of(network)
    if isinstance(images, str | os.PathLike):
        images = [images]
    if isinstance(images, np.ndarray | jax.Array):
        images = np.asarray(images)
        _refuse_scaled(images, inputs.max_value)
    else:
        files = list(images) if isinstance(images, Iterable) else [images]
        for file in files:
            if not isinstance(file, str | os.PathLike):
                raise TrainedError(
                    f"images has a {type(file).__name__}; expected image files, or raw pixels "
                    f"[B, {', '.join(map(str, inputs.shape))}] in one array."
                )
        images = np.array([read_picture(file, inputs) for file in files], np.float32)
        images = images.reshape(-1, *inputs.shape)
    found = prediction.predict(network, images)
    return [prediction.ranked(each, inputs.class_names, 1)[0] for each in found]


def _refuse_scaled(pixels: np.ndarray, max_value: float) -> None:
    """Refuses pixels of 0 to 1, or about 0, where the network takes raw ones, as of 0 to 255."""
    if max_value < 8 or pixels.dtype.kind != "f" or not pixels.size:
        return
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or 0 < high <= 1:
        raise TrainedError(
            f"images with pixels from {low:.3g} to {high:.3g} found, which look scaled; expected "
            f"raw ones, from 0 to {max_value:g}, as the network was trained on."
        )


def make_network(
    name: str, scheme: str, dataset: data.Dataset, *, dtype: str = models.DTYPES[0],
    stem_channels: int = 0,
) -> Any:  # fmt: skip
    """Makes a network for a data set; refuses one that does not fit its images.

    Args:
      name: of the network.
      scheme: how it is initialised.
      dataset: what it is to be trained on.
      dtype: what it computes in.
      stem_channels: channels of the first convolution; 0 for the published.

    Raises:
      ValueError: if the names are unknown, or they and the images do not fit each other.
    """
    if models.architectures.find(name).inputs != "images":
        raise ValueError(f"--model {name} found; expected a network for images.")
    options: dict[str, Any] = {"num_classes": dataset.num_classes, "dtype": models.dtype_of(dtype)}
    if stem_channels:
        options["stem_channels"] = stem_channels
    model = models.make(name, scheme, **options)
    # Images that do not fit the network are refused before the first step.
    image = np.zeros((1, *dataset.train.images.shape[1:]), np.float32)
    what = f"{name} with stem_channels={stem_channels}"
    models.architectures.refuse_too_large(model, image, what)
    return model


__all__ = ["fit", "make_network", "predict"]
