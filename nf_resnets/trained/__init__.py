"""Using a trained network: one file for it, predictions, fine-tuning, export."""

from nf_resnets.trained.file import Trained, TrainedError, load, save
from nf_resnets.trained.from_torch import from_torch
from nf_resnets.trained.inputs import Images, Sentences

__all__ = ["Images", "Sentences", "Trained", "TrainedError", "from_torch", "load", "save"]
