"""Decoding: the pixels are Pillow's of the whole image, whatever the file holds."""

import functools
import io

import numpy as np
import pytest
from PIL import Image

from nf_resnets.data.imagenet import Example
from nf_resnets.data.stream import central_box
from tests.photographs import encoded, photographs


@functools.cache
def photograph():
    return Image.fromarray(photographs()[0])


@functools.cache
def whole():
    return encoded(photograph(), quality=90)


def whole_then_cropped(content, box, size):
    image = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


def test_the_pixels_of_a_box():
    found = Example(whole()).pixels((100, 50, 400, 250), 96)
    assert found.shape == (96, 96, 3) and found.dtype == np.uint8
    np.testing.assert_array_equal(found, whole_then_cropped(whole(), (100, 50, 400, 250), 96))
    flipped = Example(whole()).pixels((100, 50, 400, 250), 96, flip=True)
    np.testing.assert_array_equal(flipped, found[:, ::-1])


def test_the_central_crop_is_that_of_the_published_order():
    """Resize the whole until its shorter side is 256, then take the middle 224 x 224."""
    image = Image.open(io.BytesIO(whole()))
    width, height = image.size
    short = min(width, height)
    resized = image.resize((256 * width // short, 256 * height // short), Image.BILINEAR)
    left, top = round((resized.width - 224) / 2), round((resized.height - 224) / 2)
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    found = Example(whole()).pixels(central_box(height, width, 224, 256), 224)
    # The filter's weights are rounded to 8 bits at places that differ by the last bit of a float.
    assert abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "LA"])
def test_every_mode_becomes_rgb(mode):
    content = encoded(photograph().convert(mode), "JPEG" if mode in ("L", "CMYK") else "PNG")
    found = Example(content).pixels((0, 0, 640, 427), 32)
    assert found.shape == (32, 32, 3)
    # The photograph's own colours, but for what few colours or none leave of them.
    expected = whole_then_cropped(whole(), (0, 0, 640, 427), 32).astype(int)
    assert abs(found.mean() - expected.mean()) < 12


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: b"Dear reader,\n", "13 bytes that begin with b'Dear reader,'"),
        (lambda: encoded(photograph(), "BMP"), "bytes that begin with b'BM"),
        (lambda: whole()[:10_000], "a damaged image of 640 x 427 pixels"),
        (lambda: whole()[:300], "300 bytes that begin with"),
    ],
)
def test_what_is_no_image_is_refused(content, message):
    with pytest.raises(ValueError) as error:
        Example(content()).pixels((0, 0, 8, 8), 8)
    assert message in str(error.value) and "\n" not in str(error.value)
