"""A small Transformer with random parameters, and a small corpus, shared by these tests."""

import functools

import numpy as np

from nf_resnets import models, translation
from tests.models.trees import random_like, shapes

SIZE = 40  # tokens of the vocabulary


def transformer(scheme="fixup", **options):
    sizes = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 24, "max_length": 64}
    return models.Transformer(**({"vocab_size": SIZE, "scheme": scheme} | sizes | options))


@functools.cache
def random_params(model, seed=0, scale=1.0):
    return random_like(shapes(model)["params"], seed, scale)


def corpus(count=60, longest=30, seed=0, max_length=32):
    """Random tokens of random lengths, each sentence ended."""
    rng = np.random.default_rng(seed)

    def sentence():
        return (*rng.integers(4, SIZE, rng.integers(1, longest)).tolist(), translation.END)

    source = tuple(sentence() for _ in range(count))
    target = tuple(sentence() for _ in range(count))
    return translation.Corpus(source, target, max_length)


@functools.cache
def vocabulary(**options):
    pairs = translation.made_pairs(300)
    german, english = zip(*pairs, strict=True)
    return translation.train_vocabulary(german, english, **({"size": 120} | options))
