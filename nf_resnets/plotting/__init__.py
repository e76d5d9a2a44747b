"""Rows in, figures out; nothing here knows of JAX.

The figures and the report of a sweep are made of rows, one for each run:

>>> import dataclasses, pathlib, tempfile
>>> from nf_resnets import sweep
>>> rows = [
...     {"key": "", "state": "finished", "scheme": "fixup", "batch_size": 32, "seed": 0,
...      "peak_lr": rate, "test_accuracy": 1 - loss, "train_loss": loss}
...     for rate, loss in ((0.05, 0.3), (0.1, 0.1), (0.2, 0.2))]
>>> optima = [dataclasses.asdict(each) for each in sweep.optima(rows)]
>>> folder = pathlib.Path(tempfile.mkdtemp())
>>> rates_figure(optima, folder / "rates.svg", title="Rates", subtitle="digits")
>>> results = SweepResults("Rates", rows, optima, [], settings=["scheme", "peak_lr"])
>>> sweep_figures(folder, results)
['table.txt', 'figure.png', 'figure.svg', 'report.html']
"""

from nf_resnets.plotting.curves import Curve, Panel, curves_figure, curves_of, moving_average
from nf_resnets.plotting.rates import rates_figure
from nf_resnets.plotting.report import SweepResults
from nf_resnets.plotting.sizes import coordinates_figure, depth_figure, transfer_figure
from nf_resnets.plotting.sweep import sweep_figures

__all__ = [
    "Curve", "Panel", "SweepResults", "coordinates_figure", "curves_figure", "curves_of",
    "depth_figure", "moving_average", "rates_figure", "sweep_figures", "transfer_figure",
]  # fmt: skip
