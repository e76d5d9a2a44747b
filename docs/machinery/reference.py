"""The pages of the API reference: one for each package, of the names that users import."""

from __future__ import annotations

import importlib
import inspect
import pydoc

import nf_resnets

MODULES = ("norm_free", "parametrization", "taps", "topology")
"""What the reference has beside the packages that ``nf_resnets`` exports."""

DIRECT = {
    "init.describe": ("Description", "Row"),
    "models.nnx_parts": (
        "FixupNorm",
        "Multiplier",
        "ScalarBias",
        "ScaledWSConv",
        "SkipInit",
    ),
    "plotting.signal": ("Quantity", "signal_figure"),
    "plotting.theory": ("Curves", "ExponentMap", "theory_figure"),
    "sweep.regimes": ("LeftOut", "Point", "Residual", "Smooth"),
    "trained.export": ("export", "save_export"),
    "trained.fit": ("fit",),
    "trained.fit_translation": ("TranslationRecipe", "fit_translation"),
    "trained.pictures": ("read_picture", "write_picture"),
    "trained.predict": ("classify", "logits_of", "predict", "ranked"),
    "trained.torch_layouts": ("Layout",),
    "trained.transfer": ("transfer",),
    "training.checkpoint": ("Checkpoints",),
    "training.hosts": ("initialize", "is_process_zero"),
    "training.preemption": ("Preemption",),
}
"""What users import from a module inside a package, or get from its functions."""


def pages() -> dict[str, str]:
    """The text of every page of the reference, in reStructuredText, by the page's name."""
    exported = [name for name in nf_resnets.__all__ if inspect.ismodule(getattr(nf_resnets, name))]
    names = sorted({*exported, *MODULES})
    lines = ["Reference", "=========", "", "What users import, from the docstrings.", ""]
    lines += [".. py:module:: nf_resnets", "", ".. toctree::", "   :titlesonly:", ""]
    return {"index": "\n".join([*lines, *(f"   {name}" for name in names)]) + "\n"} | {
        name: _page(name) for name in names
    }


def place(target: str) -> str | None:
    """Where an entry stands that a docstring calls by another of its places.

    Example:
      >>> place("nf_resnets.analysis.observe.observe"), place("nf_resnets.roles.Rule")
      ('nf_resnets.analysis.observe', None)
    """
    package, name = (*target.split("."), "")[1], target.rpartition(".")[2]
    if name in getattr(getattr(nf_resnets, package, None), "__all__", ()):
        return f"nf_resnets.{package}.{name}"
    try:
        pydoc.resolve(target)
    except (ImportError, AttributeError):
        return None
    return target


def _page(package: str) -> str:
    name = f"nf_resnets.{package}"
    lines = [name, "=" * len(name), "", f".. automodule:: {name}", "   :members:"]
    lines += [f"   :exclude-members: {', '.join(_from_elsewhere(package))}", ""]
    for module, names in DIRECT.items():
        if module.startswith(f"{package}."):
            lines += [f"nf_resnets.{module}", "-" * (11 + len(module)), ""]
            for each in names:
                value = getattr(importlib.import_module(f"nf_resnets.{module}"), each)
                kind = "class" if inspect.isclass(value) else "function"
                members = ["   :members:"] * (kind == "class")
                lines += [f".. auto{kind}:: nf_resnets.{module}::{each}", *members, ""]
    return "\n".join(lines) + "\n"


def _from_elsewhere(package: str) -> list[str]:
    """What a package exports of another one, which documents it."""
    module = importlib.import_module(f"nf_resnets.{package}")
    found = []
    for name in module.__all__:
        origin = getattr(getattr(module, name), "__module__", None)
        other = str(origin).removeprefix("nf_resnets.").split(".")[0]
        if other != package and name in getattr(getattr(nf_resnets, other, None), "__all__", ()):
            found.append(name)
    return found


__all__ = ["DIRECT", "pages", "place"]
