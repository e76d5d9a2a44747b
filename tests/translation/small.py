"""A small Transformer with random parameters, and a small corpus, shared by these tests."""

import functools

import jax
import numpy as np

from nf_resnets import models, translation

SIZE = 40  # tokens of the vocabulary


def transformer(scheme="fixup", **options):
    sizes = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 24, "max_length": 64}
    return models.Transformer(**({"vocab_size": SIZE, "scheme": scheme} | sizes | options))


@functools.cache
def random_params(model, seed=0, scale=1.0):
    """Draws every leaf away from zero and from one: no path of the network is shut."""
    tokens = jax.ShapeDtypeStruct((1, 2), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name, noise = path[-1].key, rng.standard_normal(leaf.shape)
        if name in ("kernel", "embedding"):
            value = scale * noise * leaf.shape[-2 if name == "kernel" else -1] ** -0.5
        elif name in ("multiplier", "alpha", "scale"):
            value = 1 + 0.2 * np.tanh(noise)
        else:
            value = 0.3 * noise
        return np.asarray(value, np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


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
