"""The pages of the API reference: one for each package, of the names that users import.

These are what the packages export, what single modules beside them export, and ``DIRECT``.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import pydoc
from pathlib import Path
from types import ModuleType

import nf_resnets

INTERNAL = ("calibration", "command_line", "machine", "manifest", "places", "random")
"""Modules beside the packages that the commands and models use, and users do not."""

DIRECT = {
    "init.describe": ("Description", "Row"),
    "models.nnx_parts": ("Multiplier", "ResidualScale", "ScalarBias", "ScaledWSConv", "SkipInit"),
    "plotting.signal": ("Quantity", "signal_figure"),
    "plotting.theory": ("Curves", "Dots", "ExponentMap", "theory_figure"),
    "sweep.regimes": ("LeftOut", "Point", "Residual", "Smooth"),
    "trained.export": ("export", "load_export", "save_export"),
    "trained.fit": ("fit",),
    "trained.fit_translation": ("TranslationRecipe", "fit_translation"),
    "trained.pictures": ("read_picture", "write_picture"),
    "trained.predict": ("classify", "logits_of", "predict", "ranked"),
    "trained.torch_layouts": ("Layout",),
    "trained.torch_parts": ("Part",),
    "trained.transfer": ("transfer",),
    "training.checkpoint": ("Checkpoints",),
    "training.hosts": ("initialize", "is_process_zero"),
    "training.preemption": ("Preemption",),
}  # fmt: skip
"""What users import from a module inside a package, or get from its functions."""


@functools.cache
def module_names() -> tuple[str, ...]:
    """The package's public modules, packages before what is in them; commands are left out."""
    found = ["nf_resnets"]
    for info in pkgutil.walk_packages(nf_resnets.__path__, "nf_resnets."):
        if not any(part.startswith("_") for part in info.name.split(".")):
            found.append(info.name)
    return tuple(found)


def commands() -> tuple[str, ...]:
    """The packages that ``python -m`` runs."""
    return tuple(
        info.name.removesuffix(".__main__")
        for info in pkgutil.walk_packages(nf_resnets.__path__, "nf_resnets.")
        if info.name.endswith(".__main__")
    )


def page_name(module: str) -> str:
    """The name of the page that a module is on, that of its package.

    Example:
      >>> page_name("nf_resnets.init.fixup")
      'init'
    """
    return module.split(".")[1] if "." in module else "index"


def public_place(module: ModuleType, name: str) -> tuple[str, str]:
    """From where users import what a module defines: from its package, if that exports it."""
    package = module.__name__.rpartition(".")[0]
    above = importlib.import_module(package) if package else module
    value = getattr(module, name)
    exported = package != "nf_resnets" and name in getattr(above, "__all__", ())
    if exported and getattr(above, name) is value:
        return package, name
    return module.__name__, name


def documented_place(target: str) -> str:
    """Where an entry stands that a docstring calls by another of its places.

    Functions are entered under the package that exports them, constants under the module that sets
    them.

    Example:
      >>> documented_place("nf_resnets.analysis.observe.observe")
      'nf_resnets.analysis.observe'
    """
    module_name, _, name = target.rpartition(".")
    if module_name not in module_names():
        return target
    module = importlib.import_module(module_name)
    if name not in getattr(module, "__all__", ()):
        return target
    if _kind(importlib.import_module(_defined_in(module, name)), name) == "data":
        return f"{_defined_in(module, name)}.{name}"
    return ".".join(public_place(module, name))


def is_there(target: str) -> bool:
    """Whether the package has what a docstring names.

    Example:
      >>> is_there("nf_resnets.places"), is_there("nf_resnets.roles.Rules.head")
      (True, True)
      >>> is_there("nf_resnets.roles.Rule")
      False
    """
    try:
        pydoc.resolve(target)
    except (ImportError, AttributeError):
        return False
    return True


def pages() -> dict[str, str]:
    """The text of every page of the reference, in reStructuredText, by the page's name."""
    names = module_names()
    found = {"index": _index(_top(names))}
    for name in _top(names):
        inside = [other for other in names if other.startswith(f"{name}.")]
        found[page_name(name)] = _page(name, [each for each in inside if entries(each)])
    return found


@functools.cache
def entries(name: str) -> tuple[str, ...]:
    """The public names that a module defines, in the order of its ``__all__``."""
    module = importlib.import_module(name)
    own = tuple(public for public in _public(module) if _defined_in(module, public) == name)
    _, _, inside = name.partition("nf_resnets.")
    if "." not in inside:
        return () if inside in INTERNAL else own
    exported, direct = _exported(), DIRECT.get(inside, ())
    whole = (name, "") in exported
    return tuple(each for each in own if whole or each in direct or (name, each) in exported)


@functools.cache
def _exported() -> frozenset[tuple[str, str]]:
    """What packages export, with the modules that define it; of whole modules no name."""
    found = set()
    for package in module_names():
        module = importlib.import_module(package)
        for name in module.__all__ if hasattr(module, "__path__") else ():
            value = getattr(module, name)
            whole = inspect.ismodule(value)
            found.add((value.__name__, "") if whole else (_defined_in(module, name), name))
    return frozenset(found)


def _top(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.count(".") == 1 and page_name(name) not in INTERNAL]


def _index(top: list[str]) -> str:
    lines = [
        "Reference",
        "=========",
        "",
        ".. py:module:: nf_resnets",
        "",
        "What users import, from the docstrings. The tests run their examples. Names are listed",
        "under the place from which they are imported; :ref:`all of them <genindex>` by alphabet.",
        "",
        ".. list-table::",
        "   :widths: 30 70",
        "",
    ]
    for name in _public(nf_resnets):
        defined = _defined_in(nf_resnets, name)
        lines += [
            f"   * - :py:obj:`nf_resnets.{name} <{defined}.{name}>`",
            f"     - {_summary(nf_resnets, name)}",
        ]
    for name in top:
        lines += [f"   * - :doc:`{name} <{page_name(name)}>`", f"     - {_sentence(name)}"]
    lines += ["", "Commands, each with ``--help``:", ""]
    for name in commands():
        lines.append(f"- ``python -m {name}``: {_sentence(f'{name}.__main__')}")
    lines += ["", ".. toctree::", "   :hidden:", ""]
    lines += [f"   {name} <{page_name(name)}>" for name in top]
    return "\n".join(lines) + "\n"


def _page(name: str, inside: list[str]) -> str:
    """A package: what it exports, then its modules one after another."""
    lines = _section(name, "=")
    for module in inside:
        lines += _section(module, "-")
    return "\n".join(lines) + "\n"


def _section(name: str, underline: str) -> list[str]:
    module = importlib.import_module(name)
    # nf_resnets.init.fixup, for one, is a function too, and no module may be declared beside it.
    package, _, last = name.rpartition(".")
    above = importlib.import_module(package)
    exported_too = package != "nf_resnets" and last in getattr(above, "__all__", ())
    declared = "currentmodule" if exported_too else "module"
    lines = ["", f".. _module-{name}:", "", name, underline * len(name), ""]
    lines += [f".. py:{declared}:: {name}", "", inspect.getdoc(module) or "", ""]
    defined_in = {public: _defined_in(module, public) for public in _public(module)}
    exported = [(public, place) for public, place in defined_in.items() if place != name]
    if exported:
        lines += [".. list-table::", "   :widths: 30 70", ""]
        for public, defined in exported:
            lines += [
                f"   * - {_link(module, public, defined)}",
                f"     - {_summary(module, public)}",
            ]
        lines.append("")
    for public in entries(name):
        lines += _entry(module, public)
    return lines


def _public(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]


@functools.cache
def _defined_in(module: ModuleType, name: str) -> str:
    """The public module that a name comes from; for constants the one whose source sets it."""
    defined = getattr(getattr(module, name), "__module__", None)
    if (
        isinstance(defined, str)
        and defined.startswith("nf_resnets")
        and callable(getattr(module, name))
    ):
        return defined if defined in module_names() else module.__name__
    value = getattr(module, name)
    inside = (each for each in module_names() if each.startswith(f"{module.__name__}."))
    for other in (module.__name__, *inside, *module_names()):
        found = importlib.import_module(other)
        exported = name in getattr(found, "__all__", ()) and getattr(found, name) is value
        if exported and _constant_docs(other, name):
            return other
    return module.__name__


def _link(module: ModuleType, name: str, defined: str) -> str:
    place, _ = public_place(importlib.import_module(defined), name)
    if _kind(module, name) is None:
        return f":ref:`{name} <module-{defined}>`"
    return f":py:obj:`{name} <{place}.{name}>`"


def _entry(module: ModuleType, name: str) -> list[str]:
    kind = _kind(module, name)
    if kind is None:
        return []
    place, _ = public_place(module, name)
    lines = [f".. auto{kind}:: {place}::{name}"]
    if kind == "class":
        lines += ["   :members:"]
    if kind == "data":
        lines += ["   :no-value:"] if len(repr(getattr(module, name))) > 60 else []
        lines[0] = f".. auto{kind}:: {module.__name__}::{name}"
    return [*lines, ""]


def _kind(module: ModuleType, name: str) -> str | None:
    """What autodoc calls it; None for constants that say nothing of themselves."""
    value = getattr(module, name)
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    if inspect.isroutine(value):
        return "function"
    return "data" if _constant_docs(module.__name__, name) else None


def _constant_docs(module: str, name: str) -> str:
    return _documented_constants(module).get(name, "")


@functools.cache
def _documented_constants(module: str) -> dict[str, str]:
    """The constants of a module that a string stands below, and that string."""
    lines = ast.parse(inspect.getsource(importlib.import_module(module))).body
    found = {}
    for line, below in itertools.pairwise(lines):
        text = below.value if isinstance(below, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            targets = getattr(line, "targets", [getattr(line, "target", None)])
            said = " ".join(inspect.cleandoc(text.value).split())
            found |= {target.id: said for target in targets if isinstance(target, ast.Name)}
    return found


def _summary(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return _constant_docs(_defined_in(module, name), name) or "A constant."
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")


def _sentence(module: str) -> str:
    """The first sentence of a module's docstring; a command is not imported for it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
    return docstring.split("\n\n")[0].replace("\n", " ")


__all__ = [
    "DIRECT", "INTERNAL", "commands", "documented_place", "entries", "is_there", "module_names",
    "page_name", "pages", "public_place",
]  # fmt: skip
