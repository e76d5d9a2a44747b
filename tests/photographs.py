"""A small data set in ImageNet's format, of real photographs, written by the tests themselves.

Its images are pieces of the two photographs inside scikit-learn; TFDS's own builder of
`imagenet2012` writes them, and only the download is replaced.
"""

import functools
import io

import numpy as np
from PIL import Image

TRAIN, VALIDATION = 150, 22


@functools.cache
def photographs():
    from sklearn.datasets import load_sample_images

    return load_sample_images().images


def encoded(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def example(number, rng):
    """A piece of a photograph, of any size and place."""
    label, whole = number % 8, photographs()[number % 2]
    height, width = rng.integers(40, 120, 2)
    top, left = (rng.integers(0, side - 120) for side in whole.shape[:2])
    image = Image.fromarray(whole[top : top + height, left : left + width])
    return encoded(image, quality=90), label, f"n{label:08}_{number}.JPEG"


@functools.cache
def examples():
    """{split: [(bytes, label, name), ...]} of the usual set."""
    rng = np.random.default_rng(0)
    sizes = {"train": TRAIN, "validation": VALIDATION}
    return {split: [example(i, rng) for i in range(size)] for split, size in sizes.items()}


def prepare(builder, splits):
    """Writes {split: [(key, example), ...]} with a builder of TFDS's, as a prepared data set."""
    import tensorflow_datasets as tfds

    builder._split_generators = lambda _: {name: iter(each) for name, each in splits.items()}
    tfds.disable_progress_bar()
    options = {"try_download_gcs": False, "manual_dir": str(builder.data_path)}
    builder.download_and_prepare(
        file_format="array_record", download_config=tfds.download.DownloadConfig(**options)
    )


def write(data_dir, splits):
    """Writes {split: [(bytes, label, name), ...]} as a prepared data set."""
    import tensorflow_datasets as tfds

    def stored(content, label, name):
        return name, {"image": io.BytesIO(content), "label": label, "file_name": name}

    examples = {split: [stored(*each) for each in found] for split, found in splits.items()}
    prepare(tfds.builder("imagenet2012", data_dir=data_dir), examples)
