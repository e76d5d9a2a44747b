"""What the ImageNet experiments share: the digits as JPEG files."""

import numpy as np
from PIL import Image

from experiments import imagenet
from nf_resnets import data


def test_the_digits_are_streamed_as_they_are():
    found = imagenet.digits_jpeg(most=60)
    assert found.num_classes == 10 and found.class_names == tuple("0123456789")
    digits = data.load("digits")
    for name, split in (("train", digits.train), ("validation", digits.test)):
        stored = found.splits[name]
        assert stored.num_examples == 60
        for index in range(60):
            read = stored[index]
            assert read.label == split.labels[index]
            pixels = read.pixels((0, 0, 32, 32), 32).astype(float)
            grey = np.round(split.images[index, :, :, 0] * (255 / 16)).astype(np.uint8)
            wanted = np.asarray(Image.fromarray(grey).resize((32, 32), Image.Resampling.BICUBIC))
            # What a JPEG of quality 95 loses of so small an image: two or three levels of 255.
            assert abs(pixels - wanted[:, :, None]).mean() < 4
