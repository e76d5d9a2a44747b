"""The order in which the modules may import each other, held by their syntax trees."""

from __future__ import annotations

import ast
import graphlib
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "nf_resnets"

# A module may import its own package and those of a lower rank. Those of one rank know nothing of
# each other: neither init of models, nor data of optim.
RANKS = {
    "roles": 0, "random": 0, "taps": 0, "calibration": 0, "places": 0, "topology": 0,
    "command_line": 0, "machine": 0,
    "manifest": 1, "parametrization": 1,
    "schemes": 2,
    "init": 3, "models": 3, "norm_free": 3,
    "data": 4, "optim": 4,
    "analysis": 5,
    "training": 6,
    "plotting": 7, "translation": 7,
    "sweep": 8,
    "trained": 9,
}  # fmt: skip
# Rows in, figures out: it imports itself alone.
ALONE = ("plotting",)
# `python -m nf_resnets.PART` stands above the package: nobody imports it, and it may import all.
COMMAND = "__main__"
ABOVE = ("experiments", "tests", "benchmarks", "notebooks", "conftest")
OF_JAX = ("jax", "jaxlib", "flax", "optax")

# What a class may inherit from; everything else is a value or a function.
BASES = {
    "nn.Module": "a Flax module",
    "nnx.Module": "a Flax module",
    "enum.Enum": "an enumeration",
    "enum.StrEnum": "an enumeration",
    "NamedTuple": "a tuple",
    "Protocol": "a type",
    "TypedDict": "a type",
}
NAMES_THAT_SAY_NOTHING = ("utils", "util", "helpers", "misc", "common")


def module_name(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str) -> set[str]:
    """The dotted names that a source imports, anywhere in it; ``from a import b`` is ``a.b``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            found |= {f"{start}.{alias.name}" for alias in node.names}
    return found


def import_faults(module: str, source: str) -> list[str]:
    """What a module of the package imports and must not."""
    faults = []
    own = (module.split(".") + [""])[1].replace(COMMAND, "")
    if own and own not in RANKS:
        faults.append(f"{own} has no rank in tests/test_structure.py")
    for name in sorted(imports(source)):
        top, *rest = name.split(".")
        if name.startswith("."):
            faults.append(f"the relative import {name}")
        elif top in ABOVE:
            faults.append(f"{name}, which stands above the package")
        elif own in ALONE and (top in OF_JAX or (top == "nf_resnets" and (rest or [""])[0] != own)):
            faults.append(f"{name}, of which {own} knows nothing")
        elif top == "nf_resnets" and COMMAND in rest:
            faults.append(f"{name}, which is a command")
        elif own and top == "nf_resnets":
            other = rest[0] if rest else ""
            if other == own or (other in RANKS and module.endswith(f".{COMMAND}")):
                continue
            if other not in RANKS:
                faults.append(f"{name}, which has no rank")
            elif RANKS[other] >= RANKS.get(own, 0):
                faults.append(f"{name}, which is not below {own}")
    return faults


def class_faults(source: str) -> list[str]:
    """Classes that inherit from what is not in the list, or is not an exception."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for base in map(ast.unparse, node.bases):
                is_exception = base.endswith(("Error", "Exception", "Warning"))
                if base.split("[")[0] not in BASES and not is_exception:
                    faults.append(f"class {node.name}({base})")
    return faults


SOURCES = {module_name(path): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.mark.parametrize("module", SOURCES)
def test_imports_go_downwards(module):
    assert import_faults(module, SOURCES[module]) == []


def circle_of_imports(sources: dict[str, str]) -> list[str]:
    """Modules that import each other in a circle, within a function or not."""
    below = {
        module: {name if name in sources else name.rpartition(".")[0] for name in imports(source)}
        & (set(sources) - {module})
        for module, source in sources.items()
    }
    # A package's own file hands names on, and its modules may ask the package for its name.
    packages = {name.rpartition(".")[0] for name in sources}
    try:
        graphlib.TopologicalSorter(
            {module: found - packages for module, found in below.items() if module not in packages}
        ).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other_in_a_circle():
    assert circle_of_imports(SOURCES) == []
    assert circle_of_imports({
        "a.b": "from a.c import d", "a.c": "def f():\n    from a.b import d", "a.e": "import a.b",
    }) == ["a.b", "a.c", "a.b"]  # fmt: skip


@pytest.mark.parametrize("module", SOURCES)
def test_no_class_inherits_but_from_the_list(module):
    assert class_faults(SOURCES[module]) == []


def asks_for_the_default_backend(source: str) -> bool:
    """Whether a source asks where JAX computes by default, not where its program will run."""
    names = {"default_backend", "get_backend"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and any(each.name in names for each in node.names))
        for node in ast.walk(ast.parse(source))
    )


def test_the_platform_comes_from_where_a_program_will_run():
    # A program for a TPU is compiled where there is none; benchmarks may ask what they measure.
    found = [
        str(path)
        for place in (PACKAGE, ROOT / "experiments", ROOT / "docs", ROOT / "notebooks")
        for path in place.rglob("*.py")
        if asks_for_the_default_backend(path.read_text())
    ]
    assert found == []
    assert asks_for_the_default_backend("if jax.default_backend() == 'cpu': pass")
    assert asks_for_the_default_backend("from jax import default_backend as asked")


@pytest.mark.parametrize("module", SOURCES)
def test_every_module_says_what_is_public(module):
    imported = importlib.import_module(module)
    public = getattr(imported, "__all__", None)
    assert public is not None, f"{module} has no __all__"
    assert len(set(public)) == len(public)
    missing = [name for name in public if not hasattr(imported, name)]
    assert not missing, f"{module}.__all__ names {missing}, which it does not have"


def test_every_part_is_a_package_or_a_module():
    names = {module.split(".")[1] for module in SOURCES if "." in module} - {COMMAND}
    assert names <= set(RANKS), "give the new part its rank in RANKS"
    # The test looked at something.
    assert {"schemes", "roles", "random", "init", "models", "data", "optim", "training"} <= names
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_names_say_something():
    places = [PACKAGE, ROOT / "experiments", ROOT / "benchmarks", ROOT / "tests"]
    found = [path for place in places for path in place.rglob("*.py")]
    assert [str(path) for path in found if path.stem in NAMES_THAT_SAY_NOTHING] == []
    assert [str(path) for path in found if path.parent.name in NAMES_THAT_SAY_NOTHING] == []


def test_experiments_do_not_import_the_tests():
    for path in (ROOT / "experiments").rglob("*.py"):
        faults = [name for name in imports(path.read_text()) if name.split(".")[0] == "tests"]
        assert faults == [], path


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("init.mine", "from nf_resnets import models", "nf_resnets.models, which is not below"),
        ("init.mine", "from nf_resnets.models.conv import conv", "nf_resnets.models.conv.conv, w"),
        ("models.mine", "import nf_resnets.init.he as he", "nf_resnets.init.he, which is not bel"),
        ("models.mine", "def f():\n  from nf_resnets import init", "nf_resnets.init, which is not"),
        ("roles", "from nf_resnets import schemes", "nf_resnets.schemes, which is not below"),
        ("schemes", "from nf_resnets.init import he", "nf_resnets.init.he, which is not below"),
        ("data.mine", "import nf_resnets.optim", "nf_resnets.optim, which is not below data"),
        ("optim.mine", "from nf_resnets import data, roles", "nf_resnets.data, which is not bel"),
        ("analysis.mine", "from nf_resnets import training", "nf_resnets.training, which is not"),
        ("training.mine", "from nf_resnets import sweep", "nf_resnets.sweep, which is not below"),
        ("training.mine", "from nf_resnets import plotting", "nf_resnets.plotting, which is not"),
        ("training.mine", "import nf_resnets", "nf_resnets, which has no rank"),
        ("training.mine", "from nf_resnets import new", "nf_resnets.new, which has no rank"),
        ("training.mine", "from . import step", "the relative import ..step"),
        ("sweep.mine", "from experiments import grid", "experiments.grid, which stands above"),
        ("sweep.mine", "import tests.training.small", "tests.training.small, which stands above"),
        ("plotting.mine", "import jax.numpy as jnp", "jax.numpy, of which plotting knows nothing"),
        ("plotting.mine", "from nf_resnets import schemes", "nf_resnets.schemes, of which plott"),
        ("analysis.__main__", "from nf_resnets import new", "nf_resnets.new, which has no rank"),
        (
            "analysis.__main__",
            "import experiments.grid",
            "experiments.grid, which stands above",
        ),
        ("analysis.__main__x", "from nf_resnets import plotting", "nf_resnets.plotting, which is"),
        (
            "sweep.mine",
            "from nf_resnets.analysis import __main__",
            "nf_resnets.analysis.__main__, w",
        ),
        ("new", "import math", "new has no rank in tests/test_structure.py"),
        ("", "from experiments import grid", "experiments.grid, which stands above"),
    ],
)
def test_the_check_finds_a_made_up_violation(module, source, fault):
    (found,) = import_faults(f"nf_resnets.{module}".rstrip("."), source)
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("init.mine", "from nf_resnets import roles, schemes\nfrom nf_resnets.init.he import he"),
        ("training.mine", "from nf_resnets.data.batch import DeviceData\nimport jax, numpy"),
        ("plotting.mine", "import matplotlib\nfrom nf_resnets.plotting.style import colours"),
        ("", "from nf_resnets import init, training"),
        ("analysis.__main__", "from nf_resnets.plotting.page import page_figure"),
    ],
)
def test_the_check_allows_what_is_allowed(module, source):
    assert import_faults(f"nf_resnets.{module}".rstrip("."), source) == []


def test_the_check_finds_made_up_inheritance():
    source = """
class A(nn.Module): ...
class B(A): ...
class C(enum.StrEnum): ...
class D(ValueError): ...
class E(ABC, Generic[T]): ...
class F: ...
def f():
    class G(Scheme): ...
"""
    assert class_faults(source) == [
        "class B(A)", "class E(ABC)", "class E(Generic[T])", "class G(Scheme)"
    ]  # fmt: skip
