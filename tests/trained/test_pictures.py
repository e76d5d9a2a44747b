"""Image files come to the network as it was trained on them; what is no image is said so."""

import io
import subprocess
import zlib

import numpy as np
import pytest
from PIL import Image

from nf_resnets import data
from nf_resnets.trained import Images
from nf_resnets.trained.pictures import read_picture, write_picture
from tests.trained.networks import takes

GREY, COLOUR = takes((8, 8, 1)), takes((8, 8, 3), max_value=255.0)


def kept(path, array, **options):
    Image.fromarray(np.asarray(array, np.uint8)).save(path, **options)
    return path


def test_digits_come_back(tmp_path):
    """16 levels of grey as 256 and back: rounded to half of one of the 256, 16 / 255 / 2."""
    dataset = data.load("digits")
    inputs = Images.of(dataset)
    for index in range(5):
        write_picture(tmp_path / "digit.png", dataset.test.images[index], inputs)
        found = read_picture(tmp_path / "digit.png", inputs)
        assert found.shape == (8, 8, 1) and found.dtype == np.float32
        assert np.abs(found - dataset.test.images[index]).max() <= 16 / 255 / 2 + 1e-6


def test_grey_and_colour_become_each_other(tmp_path):
    grey = kept(tmp_path / "grey.png", np.full((8, 8), 100))
    np.testing.assert_array_equal(read_picture(grey, COLOUR), np.full((8, 8, 3), 100, np.float32))
    colour = kept(tmp_path / "colour.png", np.full((8, 8, 3), (200, 100, 50)))
    # ITU-R 601 luma, rounded to a whole grey level.
    luma = 0.299 * 200 + 0.587 * 100 + 0.114 * 50
    assert np.abs(read_picture(colour, GREY) / 16 * 255 - luma).max() <= 0.51
    palette = Image.open(colour).quantize(4)
    palette.save(tmp_path / "palette.gif")
    assert np.abs(read_picture(tmp_path / "palette.gif", COLOUR) - (200, 100, 50)).max() <= 8


def test_the_middle_is_looked_at(tmp_path):
    """A picture twice as wide as high: its outer quarters are cut off."""
    wide = np.zeros((40, 80), np.uint8)
    wide[:, 20:60] = 200
    path = kept(tmp_path / "wide.png", wide)
    # The filter reaches two pixels of the result beyond the edge, and overshoots there a little.
    inner = read_picture(path, GREY)[:, 2:-2] / 16 * 255
    np.testing.assert_allclose(inner, 200, atol=1e-3)
    assert read_picture(path, GREY).min() / 16 * 255 > 150
    # Of a picture with a frame of an eighth, the crop of 3/4 leaves what is inside.
    framed = np.zeros((80, 80), np.uint8)
    framed[10:70, 10:70] = 160
    path = kept(tmp_path / "framed.png", framed)
    cropped = read_picture(path, takes((8, 8, 1), crop=0.75))
    np.testing.assert_allclose(cropped[2:-2, 2:-2] / 16 * 255, 160, atol=1e-3)
    assert cropped.min() / 16 * 255 > 120
    assert read_picture(path, GREY).min() < 1


def test_cameras_and_transparency_are_heeded(tmp_path):
    left = np.zeros((64, 64), np.uint8)
    left[:, :32] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by a quarter, clockwise: left is up
    path = kept(tmp_path / "turned.png", left, exif=exif)
    found = read_picture(path, GREY)[..., 0]
    assert found[0].min() > 15 and found[-1].max() < 1
    clear = np.zeros((8, 8, 4), np.uint8)
    clear[..., 3] = np.where(np.arange(8) < 4, 0, 255)
    path = kept(tmp_path / "clear.png", clear)
    found = read_picture(path, COLOUR)
    assert (found[:, :4] == 255).all() and (found[:, 4:] == 0).all()


def encoded(kind, **options):
    stream = io.BytesIO()
    Image.new("RGB", (64, 64)).save(stream, kind, **options)
    return stream.getvalue()


def bomb():
    """A PNG of 100,000 pixels a side: its header, whose sum of bytes is right, and little else."""
    png = encoded("PNG")
    head = b"IHDR" + (100_000).to_bytes(4, "big") * 2 + png[24:29]
    return png[:12] + head + zlib.crc32(head).to_bytes(4, "big") + png[33:]


def floats():
    stream = io.BytesIO()
    Image.fromarray(np.ones((8, 8), np.float32)).save(stream, "TIFF")
    return stream.getvalue()


FILES = {
    "a text": b"not an image\n", "nothing": b"", "EPS": encoded("EPS"), "a bomb": bomb(),
    "a cut PNG": encoded("PNG")[:-20], "a cut JPEG": encoded("JPEG")[:300], "floats": floats(),
}  # fmt: skip


@pytest.mark.parametrize("content", FILES)
def test_files_from_strangers_are_refused_by_what_they_hold(tmp_path, content, monkeypatch):
    """Other formats than ours are not tried: Pillow gives EPS to Ghostscript, whatever its name."""
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a program was started"))
    file = tmp_path / "class" / "x.png"
    file.parent.mkdir()
    file.write_bytes(FILES[content])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "y.png").write_bytes(encoded("PNG"))
    for read in (lambda: read_picture(file, COLOUR), lambda: data.from_folder(tmp_path, size=8)):
        with pytest.raises(ValueError) as found:
            read()
        text = str(found.value)
        assert text.startswith(f"{file}") and "\n" not in text, text
