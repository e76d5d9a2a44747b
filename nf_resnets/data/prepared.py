"""Data sets that TensorFlow Datasets has prepared on disk: found, or said where they are not.

Nothing is ever downloaded here. TensorFlow Datasets is imported by the call that needs it, so that
importing the library does not cost its time.
"""

import contextlib
import json
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any


def open_builder(name: str, data_dir: str | os.PathLike[str] | None = None) -> Any:
    """Returns the builder of a data set that is on disk, ready to be read.

    The arguments are those of :func:`nf_resnets.data.open_encoded`.

    Raises:
      FileNotFoundError: if the data set is not there; the message has the command to prepare it.
      ModuleNotFoundError: if TensorFlow Datasets is not installed.
      OSError: if its description is damaged.
    """
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{name} is read with TensorFlow Datasets, and {error.name} is not installed: "
            "pip install 'nf_resnets[data]', or give the path of its files, such as "
            "cifar-10-batches-bin or an .npz, in place of the name."
        ) from None

    if data_dir is not None:
        data_dir = os.path.expanduser(data_dir)
    with quiet():
        root = tfds.core.constants.DATA_DIR if data_dir is None else data_dir
        with readable(name, os.path.join(root, name)):
            try:
                builder = tfds.builder(name, data_dir=data_dir)
            except tfds.core.registered.DatasetNotFoundError:
                builder = None
        if builder is None:
            raise FileNotFoundError(
                f"{name} is not in {root}, and TensorFlow Datasets knows no data set of that name."
            )
        if not builder.is_prepared():
            raise FileNotFoundError(_missing(name, builder))
    return builder


def has_random_access(builder: Any) -> bool:
    """Tells whether the files can be read at any position, without TensorFlow."""
    import tensorflow_datasets as tfds

    return builder.info.file_format in tfds.core.FileFormat.with_random_access()


def with_tensorflow() -> Any:
    """Returns TensorFlow Datasets for copies that only TensorFlow reads, in tfrecord format."""
    import tensorflow_datasets as tfds

    if "tensorflow" not in sys.modules:
        import tensorflow as tf

        # TensorFlow would reserve all accelerator memory, which JAX needs. A program that already
        # uses TensorFlow has made this choice for itself.
        tf.config.set_visible_devices([], "GPU")
    return tfds


def prepare_command(name: str, data_dir: Any) -> str:
    """Returns the command that prepares a data set in a folder, in backquotes."""
    # Double quotes inside, so that the shell's single quotes around them stay readable.
    root = json.dumps(str(data_dir), ensure_ascii=False)
    code = (
        f'import tensorflow_datasets as tfds; tfds.builder("{name}", data_dir={root})'
        '.download_and_prepare(file_format="array_record")'
    )
    return f"`python -c {shlex.quote(code)}`"


@contextlib.contextmanager
def readable(name: str, folder: Any) -> Iterator[None]:
    """Makes one sentence, an ``OSError``, of whatever a reader of files raises in the block."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # ArrayRecord, Pillow, protobuf and TensorFlow each raise their own
        reason = str(error).strip().split("\n")[0]
        raise OSError(
            f"{name} in {folder} cannot be read ({reason}); if its files are damaged, delete that"
            " folder and prepare the data set again."
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Holds back the warnings of TensorFlow Datasets about absent folders and OpenCV."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)


def root_of(builder: Any) -> Any:
    """Returns the folder that TensorFlow Datasets was given for a data set."""
    return builder.data_path.parents[2 if builder.builder_config else 1]


def _missing(name: str, builder: Any) -> str:
    folder, root = builder.data_path, root_of(builder)
    inside = folder.parent.relative_to(root)
    children = sorted(root.iterdir()) if root.is_dir() else []
    found = [
        str(near)
        for near in (*children, root.parent, root.parent.parent)
        if near.is_dir() and any((near / inside).glob("*/dataset_info.json"))
    ]
    if found:
        return f"{name} is not in {folder}, but it is in {found[0]}: pass data_dir={found[0]!r}."
    by_hand = (
        f", once its archives have been put into {root / 'downloads' / 'manual'} by hand"
        if getattr(builder, "MANUAL_DOWNLOAD_INSTRUCTIONS", None)
        else ""
    )
    return (
        f"{name} is not in {folder}; with network access and TensorFlow (pip install"
        f" 'nf_resnets[tensorflow]') it is prepared by {prepare_command(name, root)}{by_hand}."
    )


__all__ = [
    "has_random_access", "open_builder", "prepare_command", "quiet", "readable", "root_of",
    "with_tensorflow",
]  # fmt: skip
