"""Data: sources, a deterministic order, and augmentation on the device."""

from nf_resnets.data.augment import (
    Mixture,
    cutout,
    example_keys,
    mixture,
    normalize,
    random_crop,
    random_flip,
)
from nf_resnets.data.batch import Augmentation, DeviceData, training_batch
from nf_resnets.data.dataset import Dataset, Split, fingerprint, from_arrays, from_splits
from nf_resnets.data.imagenet import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    EncodedDataset,
    EncodedSplit,
    open_encoded,
)
from nf_resnets.data.order import (
    batch_indices,
    epoch_order,
    local_positions,
    seed_key,
    steps_per_epoch,
)
from nf_resnets.data.sources import DATASETS, from_cifar, from_folder, from_npz, load
from nf_resnets.data.stream import RandomCrop, evaluation_stream, training_stream

__all__ = [
    "DATASETS", "IMAGENET_MEAN", "IMAGENET_STD", "Augmentation", "Dataset", "DeviceData",
    "EncodedDataset", "EncodedSplit", "Mixture", "RandomCrop", "Split",
    "batch_indices", "cutout", "epoch_order", "evaluation_stream", "example_keys",
    "fingerprint", "from_arrays", "from_cifar", "from_folder", "from_npz", "from_splits",
    "load", "local_positions", "mixture", "normalize", "open_encoded", "random_crop",
    "random_flip", "seed_key", "steps_per_epoch", "training_batch", "training_stream",
]  # fmt: skip
