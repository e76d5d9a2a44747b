"""Sweeps: grids of runs that share compiled programs, a ledger that survives, the best rates."""

from nf_resnets.sweep.callback import Callback, Callbacks
from nf_resnets.sweep.grid import Sweep, make_sweep
from nf_resnets.sweep.ledger import Ledger, LedgerError, open_ledger
from nf_resnets.sweep.pool import Outcome, enter, run_sweep
from nf_resnets.sweep.select import Optimum, Regimes, optima, optimum, regimes, regimes_of
from nf_resnets.sweep.settings import RunSettings

__all__ = [
    "Callback",
    "Callbacks",
    "Ledger",
    "LedgerError",
    "Optimum",
    "Outcome",
    "Regimes",
    "RunSettings",
    "Sweep",
    "enter",
    "make_sweep",
    "open_ledger",
    "optima",
    "optimum",
    "regimes",
    "regimes_of",
    "run_sweep",
]
