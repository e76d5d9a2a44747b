"""Data sets that TensorFlow Datasets has prepared on disk; nothing is ever downloaded here.

TensorFlow Datasets is imported by the call that needs it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from nf_resnets.machine import needed


def open_builder(name: str, data_dir: str | os.PathLike[str] | None = None) -> Any:
    """Returns the builder of a data set that is on disk, ready to be read.

    Raises:
      FileNotFoundError: if the data set is not there; the message has the command to prepare it.
      ModuleNotFoundError: if TensorFlow Datasets is not installed.
      OSError: if its description is damaged.
    """
    tfds = needed("tensorflow_datasets", "data")
    with quiet():
        root = os.path.expanduser(tfds.core.constants.DATA_DIR if data_dir is None else data_dir)
        with readable(name, os.path.join(root, name)):
            try:
                builder = tfds.builder(name, data_dir=root)
            except tfds.core.registered.DatasetNotFoundError:
                builder = None
        if builder is None or not builder.is_prepared():
            where = root if builder is None else builder.data_path
            manual = getattr(builder, "MANUAL_DOWNLOAD_INSTRUCTIONS", None)
            raise FileNotFoundError(
                f"{name} is not in {where}; with network access and TensorFlow (pip install "
                "'nf_resnets[tensorflow]') a set that TensorFlow Datasets knows is prepared by "
                f"`python -c 'import tensorflow_datasets as tfds; "
                f'tfds.builder("{name}", data_dir="{root}")'
                '.download_and_prepare(file_format="array_record")\'`'
                + (", once its archives are in downloads/manual there." if manual else ".")
            )
    return builder


def has_random_access(builder: Any) -> bool:
    """Tells whether the files can be read at any position, without TensorFlow."""
    import tensorflow_datasets as tfds

    return builder.info.file_format in tfds.core.FileFormat.with_random_access()


def read_examples(builder: Any, split: str) -> Iterator[Any]:
    """Reads the examples of a split in the order of the files; tfrecord needs TensorFlow."""
    import tensorflow_datasets as tfds

    if has_random_access(builder):
        source = builder.as_data_source(split)
        # In chunks: one record at a time takes twice as long, all at once twice the memory.
        for start in range(0, len(source), 1000):
            yield from source.__getitems__(list(range(start, min(start + 1000, len(source)))))
        return
    if "tensorflow" not in sys.modules:
        import tensorflow as tf

        # TensorFlow would reserve all accelerator memory, which JAX needs.
        tf.config.set_visible_devices([], "GPU")
    # A cycle length of one reads the files one after another, as ArrayRecord does.
    config = tfds.ReadConfig(interleave_cycle_length=1)
    yield from tfds.as_numpy(builder.as_dataset(split, shuffle_files=False, read_config=config))


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
