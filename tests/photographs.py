"""A small data set in ImageNet's format, of real photographs, written by the tests themselves.

Its images are pieces of the two photographs inside scikit-learn; TFDS's own builder of
`imagenet2012` writes them, and only the download is replaced.
"""

import functools
import io

import numpy as np
from PIL import Image

TRAIN, VALIDATION = 150, 22
# Of the training split: what ImageNet has among its RGB JPEGs.
GREY, CMYK, PNG = 3, 4, 5


@functools.cache
def photographs():
    from sklearn.datasets import load_sample_images

    return load_sample_images().images


def encoded(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def example(number, rng):
    """One piece of a photograph: its class is which of the two, and which quarter of it."""
    label = number % 8
    whole = photographs()[label % 2]
    height, width = rng.integers(40, 120, 2)
    top, left = (rng.integers(0, side // 2 - 120) for side in whole.shape[:2])
    top += (label // 4) * whole.shape[0] // 2
    left += (label // 2 % 2) * whole.shape[1] // 2
    image = Image.fromarray(whole[top : top + height, left : left + width])
    name = f"n{label:08}_{number}.JPEG"
    if number == GREY:
        return encoded(image.convert("L"), quality=90), label, name
    if number == CMYK:
        return encoded(image.convert("CMYK"), quality=90), label, name
    if number == PNG:
        return encoded(image, "PNG"), label, name
    return encoded(image, quality=90), label, name


@functools.cache
def examples():
    """{split: [(bytes, label, name), ...]} of the usual set."""
    rng = np.random.default_rng(0)
    sizes = {"train": TRAIN, "validation": VALIDATION}
    return {split: [example(i, rng) for i in range(size)] for split, size in sizes.items()}


def write(data_dir, splits, name="imagenet2012"):
    """Writes {split: [(bytes, label, name), ...]} as a prepared data set."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_dir)

    def generate(found):
        for content, label, file_name in found:
            yield (
                file_name,
                {"image": io.BytesIO(content), "label": label, "file_name": file_name},
            )

    builder._split_generators = lambda _: {
        split: generate(found) for split, found in splits.items()
    }
    tfds.disable_progress_bar()
    builder.download_and_prepare(
        download_dir=data_dir / "downloads",
        file_format="array_record",
        download_config=tfds.download.DownloadConfig(
            try_download_gcs=False, manual_dir=str(data_dir)
        ),
    )
    return builder.data_path


_WRITTEN = {}


def data_dir(tmp_path_factory):
    """The folder of the usual set, written once for all tests of a process."""
    if "usual" not in _WRITTEN:
        folder = tmp_path_factory.mktemp("imagenet")
        write(folder, examples())
        _WRITTEN["usual"] = folder
    return _WRITTEN["usual"]
