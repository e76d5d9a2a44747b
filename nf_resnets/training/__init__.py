"""Training: the step of one replica, its compiled form on a mesh, evaluation, the loop."""

from nf_resnets.training.apply import ApplyFn, eval_apply, train_apply
from nf_resnets.training.evaluate import make_evaluate
from nf_resnets.training.loop import Run, train
from nf_resnets.training.mesh import DATA, SWEEP, make_mesh
from nf_resnets.training.place import replicate, spread_runs
from nf_resnets.training.state import TrainState, create_state
from nf_resnets.training.statistics import make_estimate_batch_stats
from nf_resnets.training.step import make_train_step, replica_step, stack, unstack
from nf_resnets.training.steps import LONGEST, Steps, make_train_steps

__all__ = [
    "DATA",
    "LONGEST",
    "SWEEP",
    "ApplyFn",
    "Run",
    "Steps",
    "TrainState",
    "create_state",
    "eval_apply",
    "make_estimate_batch_stats",
    "make_evaluate",
    "make_mesh",
    "make_train_step",
    "make_train_steps",
    "replica_step",
    "replicate",
    "spread_runs",
    "stack",
    "train",
    "train_apply",
    "unstack",
]
