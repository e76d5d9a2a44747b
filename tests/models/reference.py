"""Parts of the networks in NumPy, written with nothing of ours, and what is compared with them."""

import re

import jax
import numpy as np


def numpy_conv(x, kernel, stride):
    """``(K - 1) / 2`` pixels of padding on every side; one output position at a time."""
    size = kernel.shape[0]
    padding = (size - 1) // 2
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height = (x.shape[1] - size) // stride + 1
    width = (x.shape[2] - size) // stride + 1
    y = np.empty((x.shape[0], height, width, kernel.shape[3]))
    for i in range(height):
        for j in range(width):
            patch = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
            y[:, i, j] = patch.reshape(len(x), -1) @ kernel.reshape(-1, kernel.shape[3])
    return y


GROUPS = {4: 1, 8: 2, 16: 4, 32: 8, 64: 16, 128: 32}  # of GroupNorm, by channels


def numpy_norm(x, p, stats, name, scheme, train):
    """Normalizes; in training, BatchNorm brings the running statistics in ``stats`` up to date."""
    if scheme == "batchnorm":
        scale, bias, running = p[name]["scale"], p[name]["bias"], stats[name]
        mean, var = running["mean"].copy(), running["var"].copy()
        if train:
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            unbiased = x.reshape(-1, x.shape[-1]).var(axis=0, ddof=1)
            running["mean"][...] = 0.9 * running["mean"] + 0.1 * mean
            running["var"][...] = 0.9 * running["var"] + 0.1 * unbiased
        return (x - mean) / np.sqrt(var + 1e-5) * scale + bias
    if scheme == "groupnorm":
        groups = x.reshape(*x.shape[:3], GROUPS[x.shape[-1]], -1)
        mean, var = groups.mean((1, 2, 4), keepdims=True), groups.var((1, 2, 4), keepdims=True)
        normal = ((groups - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
        return normal * p[name]["norm"]["scale"] + p[name]["norm"]["bias"]
    return x


def numpy_max_pool(x, size, stride, padding=0):
    """The maxima over windows, those of the padding left out."""
    widths = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    x = np.pad(x, widths, constant_values=-np.inf)
    rows, columns = ((x.shape[axis] - size) // stride + 1 for axis in (1, 2))
    y = np.empty((x.shape[0], rows, columns, x.shape[3]))
    for i, j in np.ndindex(rows, columns):
        y[:, i, j] = x[:, i * stride :, j * stride :][:, :size, :size].max((1, 2))
    return y


def numpy_average_pool(x, size):
    """The means over the squares that tile the image, those at the edge over what is there."""
    rows, columns = -(-x.shape[1] // size), -(-x.shape[2] // size)
    y = np.empty((x.shape[0], rows, columns, x.shape[3]))
    for i, j in np.ndindex(rows, columns):
        y[:, i, j] = x[:, i * size : (i + 1) * size, j * size : (j + 1) * size].mean((1, 2))
    return y


def torch_names(variables, names):
    """Our tree, or a part of it, under a module's names and in PyTorch's layouts, in float64.

    Args:
      variables: ``{"params": ..., "batch_stats": ...}``, or one of the two.
      names: what is replaced in paths such as ``layer1.0.conv_1.kernel``.
    """
    flat = {}
    for tree in variables.values():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            keys, leaf = [key.key for key in path], np.asarray(leaf, np.float64)
            stage = re.fullmatch(r"stage_(\d)", keys[0])
            if stage is None:
                flat[".".join(keys)] = leaf
            elif keys[1] == "first":
                flat[".".join([f"layer{stage[1]}.0", *keys[2:]])] = leaf
            else:
                for index, own in enumerate(leaf, start=1):
                    flat[".".join([f"layer{stage[1]}.{index}", *keys[2:]])] = own
    renamed = {}
    for path, leaf in flat.items():
        name = path
        for pattern, replacement in names.items():
            name = re.sub(pattern, replacement, name)
        if leaf.ndim == 4:
            leaf = leaf.transpose(3, 2, 0, 1)
        elif leaf.ndim == 2:
            leaf = leaf.T
        elif name.endswith("._bias"):
            leaf = leaf.reshape(1, -1, 1, 1)
        renamed[name] = np.array(leaf.reshape(1) if leaf.ndim == 0 else leaf, order="C")
    return renamed
