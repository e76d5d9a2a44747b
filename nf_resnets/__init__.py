"""Residual networks without normalization: initialisation schemes, models, training.

``nf_resnets.fit`` trains a network for images in one call, and ``nf_resnets.predict`` applies it.
``nf_resnets.init`` and ``nf_resnets.schemes`` are there at once; the other parts are imported when
they are first used, so that an initialiser costs no more than JAX itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

from nf_resnets import init, roles, schemes
from nf_resnets.norm_free import norm_free

if TYPE_CHECKING:
    from nf_resnets import (
        analysis,
        data,
        models,
        optim,
        plotting,
        sweep,
        trained,
        training,
        translation,
    )
    from nf_resnets.trained.fit import fit
    from nf_resnets.trained.predict import classify as predict

__version__ = "0.2.0"

_FUNCTIONS = {"fit": ("fit", "fit"), "predict": ("predict", "classify")}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        module, function = _FUNCTIONS[name]
        return getattr(importlib.import_module(f"nf_resnets.trained.{module}"), function)
    if name in __all__:  # a part that is not there yet
        return importlib.import_module(f"nf_resnets.{name}")
    raise AttributeError(f"module 'nf_resnets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "analysis",
    "data",
    "fit",
    "init",
    "models",
    "norm_free",
    "optim",
    "plotting",
    "predict",
    "roles",
    "schemes",
    "sweep",
    "trained",
    "training",
    "translation",
]
