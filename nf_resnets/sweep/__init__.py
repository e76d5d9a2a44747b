"""Sweeps: grids of runs that share compiled programs, a ledger that survives, the best rates."""

from nf_resnets.sweep.image_task import Sweep, make_sweep
from nf_resnets.sweep.ledger import Ledger, LedgerError, open_ledger
from nf_resnets.sweep.regimes import Regimes, regimes, regimes_of
from nf_resnets.sweep.select import Optimum, isolated, optima, optimum
from nf_resnets.sweep.settings import RunSettings
from nf_resnets.sweep.targets import common_target, knees, steps_to_target
from nf_resnets.sweep.transfer import Move, moves
from nf_resnets.sweep.worker import Outcome, enter, run_sweep
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB

__all__ = [
    "Callback", "Callbacks", "Ledger", "LedgerError", "Move", "Optimum", "Outcome", "Regimes",
    "RunSettings", "Sweep", "TensorBoard", "WandB", "common_target", "enter", "isolated", "knees",
    "make_sweep", "moves", "open_ledger", "optima", "optimum", "regimes", "regimes_of", "run_sweep",
    "steps_to_target",
]  # fmt: skip
