"""A data set from a folder of image files."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from nf_resnets import places
from nf_resnets.data.dataset import Dataset, from_arrays
from nf_resnets.data.pictures import check_sides, decode, fitted

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""Of the files that are images; others are passed over, and so are names that begin with a dot."""

TESTS = ("test", "val", "valid", "validation")
"""The names of a folder of the test split; the first that is there is used."""


def from_folder(
    path: str | os.PathLike[str], *, size: int | tuple[int, int] | None = None
) -> Dataset:
    """Reads a data set from a folder that has a folder of image files for each class.

    The classes are the folders' names, in their order. Where ``train/`` and ``test/`` (or ``val/``,
    ``valid/``, ``validation/``) lie in the folder, they are the splits, and the classes lie in
    them; otherwise the images are split as :func:`from_arrays` does, in the order of classes and
    file names. Image files end in ``.png``, ``.jpg``, ``.jpeg``, ``.webp``, ``.bmp``, ``.tif``,
    ``.tiff``, ``.ppm`` or ``.pgm``; other files are passed over. Images have one channel if all of
    them are grey, else three. All are held in memory.

    Args:
      path: of the folder; ``~`` is expanded.
      size: height and width in pixels, or one number for both: the middle of an image, in these
        proportions, is resized with a bicubic filter. Without it all images must be of one size.

    Returns:
      The data set, uint8 images [N, H, W, C] and int32 labels [N].

    Raises:
      ValueError: if it has less than two classes, a class has no images, an image cannot be read,
        or sizes differ; the sentence names the folder or the file.
    """
    folder = Path(path).expanduser()
    sides = size if size is None or isinstance(size, tuple) else (size, size)
    if sides is not None:
        check_sides(f"size={size!r}", *sides)
    tests = [folder / name for name in TESTS if (folder / name).is_dir()]
    has_splits = bool(tests) and (folder / "train").is_dir()
    train = _files(folder / "train" if has_splits else folder)
    test = _files(tests[0]) if has_splits else {}
    names = list(train)
    if len(names) < 2 or (has_splits and not test) or not test.keys() <= train.keys():
        raise ValueError(
            f"{folder} has the classes {', '.join(names) or 'none'} to train on and "
            f"{', '.join(test) or 'none'} to test on; expected a folder of images for each of two "
            "or more classes."
        )
    if not has_splits and {name.lower() for name in names} & {"train", "training", *TESTS}:
        raise ValueError(
            f"{folder} has the folders {', '.join(names)}; expected a folder for each class, or "
            f"splits called train and {TESTS[0]} (or {', '.join(TESTS[1:])})."
        )
    labelled = [(file, names.index(name)) for split in (train, test)
                for name, files in split.items() for file in files]  # fmt: skip
    images = _images([file for file, _ in labelled], sides)
    labels = np.array([label for _, label in labelled], np.int32)
    count = sum(map(len, train.values()))
    return from_arrays(
        images[:count], labels[:count], test=(images[count:], labels[count:]) if test else None,
        class_names=tuple(names), name=str(folder),
    )  # fmt: skip


def parse(name: str) -> tuple[str, tuple[int, int] | None]:
    """Reads PATH, PATH@SIZE or PATH@HEIGHTxWIDTH.

    Example:
      >>> parse("photos@32"), parse("me@home/photos")
      (('photos', (32, 32)), ('me@home/photos', None))
    """
    match = re.fullmatch(r"(.+)@(\d+)(?:x(\d+))?", name)
    return (match[1], (int(match[2]), int(match[3] or match[2]))) if match else (name, None)


def _files(folder: Path) -> dict[str, list[Path]]:
    """The images of each class, at any depth, in the order of their names."""
    files = {
        each.name: [
            file for file in sorted(each.rglob("*"))
            if file.suffix.lower() in ENDINGS and not file.is_dir()
            and not any(part.startswith(".") for part in file.relative_to(each).parts)
        ]
        for each in sorted(folder.iterdir())
        if each.is_dir() and not each.name.startswith(".")
    }  # fmt: skip
    for name in files:
        if not files[name]:
            raise ValueError(
                f"{folder / name} has no images; expected files that end in {', '.join(ENDINGS)}."
            )
    return files


def _images(files: list[Path], sides: tuple[int, int] | None) -> np.ndarray:
    def read(file: Path) -> np.ndarray:
        picture = decode(file, places.read_file(file))
        pixels = np.asarray(fitted(picture, *sides) if sides else picture)
        return pixels[..., :1] if (pixels == pixels[..., :1]).all() else pixels

    images: list[np.ndarray] = []
    with ThreadPoolExecutor() as pool:
        for file, pixels in zip(files, pool.map(read, files), strict=True):
            images.append(pixels)
            if pixels.shape[:2] != images[0].shape[:2]:
                pool.shutdown(cancel_futures=True)
                raise ValueError(
                    f"{file} has {pixels.shape[:2]} pixels, and {files[0]} {images[0].shape[:2]}; "
                    "expected images of one size, or a size to resize them to, such as size=32 "
                    "(--dataset PATH@32)."
                )
    shape = *images[0].shape[:2], max(pixels.shape[-1] for pixels in images)
    return np.stack([np.broadcast_to(pixels, shape) for pixels in images])


__all__ = ["from_folder", "parse"]
