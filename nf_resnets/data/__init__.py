"""Data: sources, a deterministic order, and augmentation on the device."""

from nf_resnets.data.augment import example_keys, normalize, random_crop, random_flip
from nf_resnets.data.batch import (
    CIFAR_AUGMENTATION,
    Augmentation,
    DeviceData,
    training_batch,
)
from nf_resnets.data.order import (
    batch_indices,
    epoch_order,
    local_positions,
    seed_key,
    steps_per_epoch,
)
from nf_resnets.data.sources import DATASETS, Dataset, Split, from_splits, load

__all__ = [
    "CIFAR_AUGMENTATION",
    "DATASETS",
    "Augmentation",
    "Dataset",
    "DeviceData",
    "Split",
    "batch_indices",
    "epoch_order",
    "example_keys",
    "from_splits",
    "load",
    "local_positions",
    "normalize",
    "random_crop",
    "random_flip",
    "seed_key",
    "steps_per_epoch",
    "training_batch",
]
