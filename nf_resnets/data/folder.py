"""A data set from a folder of image files."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from nf_resnets import places
from nf_resnets.data.dataset import Dataset, from_arrays
from nf_resnets.data.pictures import check_sides, decode, fitted

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""Of the files that are images; others are passed over, and so are names that begin with a dot."""

TESTS = ("test", "val", "valid", "validation")
"""What the folder of the test split may be called; the first that is there is used."""


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
      size: height and width in pixels, or one number for both: what is in the middle of an image,
        in these proportions, is resized with a bicubic filter. Without it all images must be of
        one size.

    Returns:
      The data set, uint8 images [N, H, W, C] and int32 labels [N].

    Raises:
      ValueError: if there is no such folder, it has less than two classes, a class has no images,
        an image cannot be read, or sizes differ; the sentence names the folder or the file.

    Example:
      >>> import tempfile
      >>> from PIL import Image
      >>> folder = Path(tempfile.mkdtemp())
      >>> for name, colour in (("cat", "black"), ("dog", "tan")):
      ...     (folder / name).mkdir()
      ...     for index in range(5):
      ...         Image.new("RGB", (40, 30), colour).save(folder / name / f"{index}.png")
      >>> dataset = from_folder(folder, size=8)
      >>> dataset.class_names, dataset.train.images.shape, len(dataset.test.labels)
      (('cat', 'dog'), (8, 8, 8, 3), 2)
    """
    folder = places.expanded(path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; expected one with a folder for each class.")
    sides = _sides(size)
    tests = [folder / name for name in TESTS if (folder / name).is_dir()]
    has_splits = bool(tests) and (folder / "train").is_dir()
    if not has_splits:
        _refuse_splits(folder)
    train = _files(folder / "train" if has_splits else folder)
    test = _files(tests[0]) if has_splits else {}
    if has_splits and not test:
        raise ValueError(f"{tests[0]} has no folder; expected one for each class, as in train.")
    names = list(train)
    if len(names) < 2:
        found = f"one class only, {names[0]!r}" if names else "no folder of images"
        raise ValueError(
            f"{folder} has {found}; expected a folder for each of two or more classes."
        )
    for name in test:
        if name not in train:
            raise ValueError(f"{tests[0] / name} is a class without images to train on; expected "
                             f"one of {', '.join(names)}.")  # fmt: skip
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


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width; refuses what is no number of pixels, or two of them."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"size={size!r} found; expected one number, or (height, width).")
    check_sides(f"size={size!r}", *sides)
    return int(sides[0]), int(sides[1])


def _refuse_splits(folder: Path) -> None:
    """Refuses folders that are splits by their names, or by what is in them: the same folders."""
    inside = {each.name: sorted(below.name for below in each.iterdir() if below.is_dir())
              for each in sorted(folder.iterdir())
              if each.is_dir() and not each.name.startswith(".")}  # fmt: skip
    names = list(inside)
    same = len(names) > 1 and all(inside[name] == inside[names[0]] for name in names)
    if (
        same
        and len(inside[names[0]]) > 1
        and not any(
            file.suffix.lower() in ENDINGS for name in names for file in (folder / name).iterdir()
        )
    ):
        raise ValueError(
            f"{folder} has the folders {', '.join(names)}, each with {', '.join(inside[names[0]])} "
            f"in it; expected a folder for each class, or splits called train and {TESTS[0]} "
            f"(or {', '.join(TESTS[1:])})."
        )
    for name, below in inside.items():
        if below and name.lower() in ("train", "training", *TESTS):
            raise ValueError(
                f"{folder / name} has the folders {', '.join(below)}, as a split has; expected "
                f"splits called train and {TESTS[0]} (or {', '.join(TESTS[1:])}), or none."
            )


def _files(folder: Path) -> dict[str, list[Path]]:
    """The images of each class, at any depth, in the order of their names."""
    found = {}
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.name.startswith("."):
            found[each.name] = [
                file for file in sorted(each.rglob("*"))
                if file.suffix.lower() in ENDINGS and not file.is_dir()
                and not any(part.startswith(".") for part in file.relative_to(each).parts)
            ]  # fmt: skip
            if not found[each.name]:
                raise ValueError(
                    f"{each} has no images; expected files that end in {', '.join(ENDINGS)}."
                )
    return found


def _images(files: list[Path], sides: tuple[int, int] | None) -> np.ndarray:
    def read(file: Path) -> np.ndarray:
        try:
            encoded = places.read_file(file)
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}.") from None
        picture = decode(file, encoded)
        pixels = np.asarray(fitted(picture, *sides) if sides else picture)
        is_grey = bool((pixels == pixels[..., :1]).all())
        return pixels[..., :1] if is_grey else pixels

    found: list[np.ndarray] = []
    with ThreadPoolExecutor() as pool:
        for file, pixels in zip(files, pool.map(read, files), strict=True):
            found.append(pixels)
            (height, width), first = pixels.shape[:2], found[0].shape[:2]
            if (height, width) != first:
                pool.shutdown(cancel_futures=True)
                raise ValueError(
                    f"{file} has {height} x {width} pixels, and {files[0]} {first[0]} x "
                    f"{first[1]}; expected images of one size, or a size to resize them to, such "
                    "as size=32 (--dataset PATH@32)."
                )
    shape = *found[0].shape[:2], max(pixels.shape[-1] for pixels in found)
    return np.stack([np.broadcast_to(pixels, shape) for pixels in found])


__all__ = ["ENDINGS", "TESTS", "from_folder", "parse"]
