"""The order in which the modules may import each other, and what classes inherit from."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# A module may import its own package and those of a lower rank. Those of one rank know nothing of
# each other: neither init of models, nor data of optim.
RANKS = {
    "roles": 0, "random": 0, "places": 0, "topology": 0,
    "command_line": 0, "machine": 0,
    "parametrization": 1,
    "schemes": 2,
    "init": 3, "models": 3, "norm_free": 3,
    "data": 4, "optim": 4,
    "analysis": 5,
    "training": 6,
    "plotting": 7, "translation": 7,
    "sweep": 8,
    "trained": 9,
    "cli": 10,
}  # fmt: skip
# `python -m nf_resnets` stands above the package: nobody imports it, and it may import all.
COMMAND = "__main__"
ABOVE = ("experiments", "tests", "benchmarks", "notebooks", "conftest")
# Everything else is a value or a function.
BASES = ("nn.Module", "nnx.Module", "enum.Enum", "enum.StrEnum", "NamedTuple", "Protocol",
         "TypedDict")  # fmt: skip
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        path.read_text()
    )
    for path in sorted((ROOT / "nf_resnets").rglob("*.py"))
}


def imports(tree):
    """The dotted names that a module imports, anywhere in it; ``from a import b`` is ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def import_faults(module, tree):
    """What a module of the package imports and must not."""
    part = (module.split(".") + [""])[1].replace(COMMAND, "")
    for name in imports(tree):
        top, *rest = name.split(".")
        below = part == "" or (rest and rest[0] in RANKS and RANKS[rest[0]] < RANKS[part])
        allowed = top not in ABOVE and top != "" and COMMAND not in rest
        if top == "nf_resnets":
            allowed = allowed and (below or rest[:1] == [part] or module.endswith(f".{COMMAND}"))
            allowed = allowed and (part != "plotting" or rest[0] in ("plotting", "places"))
        elif top in ("jax", "jaxlib", "flax", "optax"):  # rows in, figures out
            allowed = part != "plotting"
        if not allowed:
            yield name


@pytest.mark.parametrize("module", SOURCES)
def test_imports_go_downwards_and_classes_are_values(module):
    assert list(import_faults(module, SOURCES[module])) == []
    for node in ast.walk(SOURCES[module]):
        for base in map(ast.unparse, getattr(node, "bases", ())):
            is_exception = base.endswith(("Error", "Exception", "Warning"))
            assert base.split("[")[0] in BASES or is_exception, (node.name, base)


def test_no_modules_import_each_other_in_a_circle():
    below = {
        module: {name if name in SOURCES else name.rpartition(".")[0] for name in imports(tree)}
        & (set(SOURCES) - {module})
        for module, tree in SOURCES.items()
    }
    # A package's own file hands names on, and its modules may ask the package for its name.
    packages = {name.rpartition(".")[0] for name in SOURCES}
    graphlib.TopologicalSorter(
        {module: found - packages for module, found in below.items() if module not in packages}
    ).prepare()


def test_the_platform_comes_from_where_a_program_will_run():
    """A program for a TPU is compiled where there is none."""
    for place in ("nf_resnets", "experiments", "docs", "notebooks"):
        for path in (ROOT / place).rglob("*.py"):
            assert "default_backend" not in path.read_text(), path
