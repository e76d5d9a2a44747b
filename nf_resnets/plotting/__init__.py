"""Rows in, figures out; nothing here knows of JAX.

The figures and the report of a sweep are made of rows, one for each run:

>>> import dataclasses, pathlib, tempfile
>>> from nf_resnets import sweep
>>> rows = [
...     {"state": "finished", "scheme": "fixup", "batch_size": 32, "seed": 0, "peak_lr": rate,
...      "test_accuracy": 1 - loss, "train_loss": loss,
...      "measures": {"curve": {"step": [1, 2], "loss": [1.0, loss]}}}
...     for rate, loss in ((0.05, 0.3), (0.1, 0.1), (0.2, 0.2))]
>>> found = sweep.optima(rows)
>>> optima = [dataclasses.asdict(each) for each in found]
>>> regimes = [dataclasses.asdict(each) for each in sweep.regimes_of(found)]
>>> only = [dataclasses.asdict(sweep.isolated(rows, "peak_lr", fields=("peak_lr",)))]
>>> reached = sweep.steps_to_target(rows, 0.5)
>>> targets, knees = (
...     [dataclasses.asdict(each) for each in made] for made in (reached, sweep.knees(reached)))
>>> folder, said = pathlib.Path(tempfile.mkdtemp()), {"title": "Rates", "subtitle": "digits"}
>>> rates_figure(optima, folder / "rates.svg", **said)
>>> optima_figure(optima, regimes, folder / "optima.svg", **said)
>>> heat_figure(optima, folder / "heat.svg", **said)
>>> isolation_figure(only, folder / "isolation.svg", **said)
>>> steps_figure(targets, knees, folder / "steps.svg", **said)
>>> results = SweepResults("Rates", rows, optima, regimes)
>>> report(folder / "report.html", results, {})
>>> len(list(folder.iterdir()))
6
>>> sweep_figures(folder, results)  # all at once  # doctest: +SKIP
"""

from nf_resnets.plotting.coordinates import coordinates_figure
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, moving_average
from nf_resnets.plotting.depth import depth_figure
from nf_resnets.plotting.heat import heat_figure
from nf_resnets.plotting.isolation import isolation_figure
from nf_resnets.plotting.optima import optima_figure
from nf_resnets.plotting.rates import rates_figure
from nf_resnets.plotting.report import SweepResults, report
from nf_resnets.plotting.steps import steps_figure
from nf_resnets.plotting.sweep import sweep_figures
from nf_resnets.plotting.transfer import transfer_figure

__all__ = [
    "Curve",
    "Panel",
    "SweepResults",
    "coordinates_figure",
    "curves_figure",
    "depth_figure",
    "heat_figure",
    "isolation_figure",
    "moving_average",
    "optima_figure",
    "rates_figure",
    "report",
    "steps_figure",
    "sweep_figures",
    "transfer_figure",
]
