"""Sweeps: grids of runs that share compiled programs, rows that survive, the best rates."""

from nf_resnets.sweep.engine import Execution, Outcome, make
from nf_resnets.sweep.from_python import run
from nf_resnets.sweep.grid import Sweep, make_sweep
from nf_resnets.sweep.regimes import Regimes, regimes_of
from nf_resnets.sweep.rows import Rows
from nf_resnets.sweep.select import Move, Optimum, moves, optima, optimum
from nf_resnets.sweep.settings import RunSettings
from nf_resnets.sweep.targets import steps_to_target
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB

__all__ = [
    "Callback", "Callbacks", "Execution", "Move", "Optimum", "Outcome", "Regimes", "Rows",
    "RunSettings", "Sweep", "TensorBoard", "WandB", "make", "make_sweep", "moves", "optima",
    "optimum", "regimes_of", "run", "steps_to_target",
]  # fmt: skip
