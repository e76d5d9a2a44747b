"""Every public function and class of the reference has an example."""

import ast
import collections
import doctest
import importlib
import inspect
import re

import pytest

from docs.machinery import reference


def code_of(value):
    """The code of the examples in a docstring, those of a class's methods included."""
    members = vars(value).items() if inspect.isclass(value) else ()
    documented = [value, *(each for name, each in members if not name.startswith("_"))]
    texts = [inspect.getdoc(each) or "" for each in documented]
    examples = [each for text in texts for each in doctest.DocTestParser().get_examples(text)]
    return "".join(example.source for example in examples)


def used(code):
    """The names that code uses: its own, and those of modules."""
    nodes = list(ast.walk(ast.parse(code)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    owned = [node for node in nodes if isinstance(node, ast.Attribute)]
    return names | {node.attr for node in owned if isinstance(node.value, ast.Name)}


def given(value):
    """The names in what a function returns, or a class's methods and fields are."""
    if not inspect.isclass(value):
        return set(re.findall(r"\w+", str(inspect.get_annotations(value).get("return"))))
    methods = [getattr(each, "fget", None) or each for each in vars(value).values()]
    fields = [str(each) for each in inspect.get_annotations(value).values()]
    return {name for each in methods if inspect.isfunction(each) for name in given(each)} | {
        name for text in fields for name in re.findall(r"\w+", text)
    }


def without_example(modules):
    """The public functions and classes of a page that no example of it uses, returns or holds."""
    read = [importlib.import_module(name) for name in modules]
    values = {
        (name, each): getattr(module, each)
        for name, module in zip(modules, read, strict=True)
        for each in reference.entries(name)
    }
    shown = {name for value in (*read, *values.values()) for name in used(code_of(value))}
    plain = {
        place: value for place, value in values.items()
        if inspect.isroutine(value)
        or (inspect.isclass(value) and not issubclass(value, BaseException))
    }  # fmt: skip
    before = None
    while shown != before:
        before = set(shown)
        for (_, name), value in plain.items():
            shown |= given(value) if name in shown or code_of(value) else set()
    return [
        f"{module}.{name}" for (module, name), value in plain.items()
        if name not in shown and not code_of(value)
    ]  # fmt: skip


PAGES = collections.defaultdict(list)
for each in reference.module_names():
    if reference.page_name(each) not in ("index", *reference.INTERNAL):
        PAGES[reference.page_name(each)].append(each)


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_a_page_has_an_example(page):
    assert without_example(PAGES[page]) == []


def test_a_name_without_an_example_is_found(monkeypatch):
    monkeypatch.setattr(reference, "entries", lambda module: ("agree", "refreshed", "FIGURES"))
    found = without_example(["docs.machinery.outputs"])  # agree has an example, FIGURES needs none
    assert found == ["docs.machinery.outputs.refreshed"]
    code = "model.apply(params)[images.T] + f(x).mean"
    assert used(code) == {"model", "apply", "params", "images", "T", "f", "x"}
