"""Training: the step of one replica, its compiled form on a mesh, evaluation, the loop."""

from nf_resnets.training.apply import ApplyFn, eval_apply, train_apply
from nf_resnets.training.average import Average, moved_average, start_average
from nf_resnets.training.evaluate import make_evaluate
from nf_resnets.training.feed import Feed, local_rows
from nf_resnets.training.loop import train
from nf_resnets.training.loss import cross_entropy
from nf_resnets.training.mesh import DATA, SWEEP, make_mesh
from nf_resnets.training.place import replicate, spread_runs
from nf_resnets.training.run import Run
from nf_resnets.training.state import TrainState, create_state
from nf_resnets.training.statistics import make_estimate_batch_stats
from nf_resnets.training.step import make_train_step, replica_step, stack, unstack
from nf_resnets.training.steps import LONGEST, Steps, make_train_steps
from nf_resnets.training.streamed import make_streamed_evaluate, make_streamed_step
from nf_resnets.training.streamed_loop import StreamedRun, train_streamed

__all__ = [
    "DATA",
    "LONGEST",
    "SWEEP",
    "ApplyFn",
    "Average",
    "Feed",
    "Run",
    "Steps",
    "StreamedRun",
    "TrainState",
    "create_state",
    "cross_entropy",
    "eval_apply",
    "local_rows",
    "make_estimate_batch_stats",
    "make_evaluate",
    "make_mesh",
    "make_streamed_evaluate",
    "make_streamed_step",
    "make_train_step",
    "make_train_steps",
    "moved_average",
    "replica_step",
    "replicate",
    "spread_runs",
    "stack",
    "start_average",
    "train",
    "train_apply",
    "train_streamed",
    "unstack",
]
