"""Training: the step of one replica, its compiled forms on a mesh, programs, waves of runs."""

from nf_resnets.training.apply import ApplyFn, Functions, eval_apply, functions_of, train_apply
from nf_resnets.training.images import (
    LONGEST,
    ImageTraining,
    device_splits,
    image_program,
    image_test,
    lower_image_steps,
    tested_stats,
)
from nf_resnets.training.initial import CALIBRATION_EXAMPLES, draw_params, make_initial
from nf_resnets.training.loss import cross_entropy, image_loss
from nf_resnets.training.mesh import DATA, SWEEP, make_mesh, replicate, shard_runs, stack, unstack
from nf_resnets.training.program import Program, Start, Steps
from nf_resnets.training.relative import relative_to
from nf_resnets.training.run import Plan, Run
from nf_resnets.training.state import TrainState, create_state
from nf_resnets.training.step import replica_step
from nf_resnets.training.streamed import Streamed, streamed_program
from nf_resnets.training.wave import Hooks, Stopped, train

__all__ = [
    "CALIBRATION_EXAMPLES", "DATA", "LONGEST", "SWEEP", "ApplyFn", "Functions", "Hooks",
    "ImageTraining", "Plan", "Program", "Run", "Start", "Steps", "Stopped", "Streamed",
    "TrainState", "create_state", "cross_entropy", "device_splits", "draw_params", "eval_apply",
    "functions_of", "image_loss", "image_program", "image_test", "lower_image_steps",
    "make_initial", "make_mesh", "relative_to", "replica_step", "replicate",
    "shard_runs", "stack", "streamed_program", "tested_stats", "train", "train_apply", "unstack",
]  # fmt: skip
