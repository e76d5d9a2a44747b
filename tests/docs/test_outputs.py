"""The pages that show what their code prints show what it prints."""

import jax
import matplotlib
import pytest

from docs.machinery import outputs
from nf_resnets import schemes

PAGES = outputs.executed_pages()
# Nothing is trained on these; the others take a minute together.
QUICK = ("own_tree", "questions", "resume")


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A page may register a scheme, which tests of other files must not meet."""
    monkeypatch.setattr(schemes, "_REGISTRY", dict(schemes._REGISTRY))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.slow) for path in PAGES],
    ids=lambda path: path.stem,
)
def test_a_page_shows_what_its_code_prints(path, tmp_path, monkeypatch):
    if path.stem == "translation":
        pytest.importorskip("sentencepiece")
    matplotlib.use("agg")
    text, shown = path.read_text(), [said for _, said in outputs.blocks(path.read_text())]
    # Readers' processes broadcast as JAX does by default.
    monkeypatch.chdir(tmp_path)
    with jax.numpy_rank_promotion("allow"):
        printed = list(outputs.run(text))
    for at, pair in enumerate(zip(printed, shown, strict=True)):
        assert outputs.agree(*pair), (at, *pair)


def test_the_pages_are_found():
    assert {path.stem for path in PAGES} >= {"guide", "translation", *QUICK}
    for path in PAGES:
        # An output that stands below nothing would be compared with nothing.
        text = path.read_text()
        assert text.count("```text\n") == sum(bool(said) for _, said in outputs.blocks(text))


def test_outputs_are_put_below_their_code_and_replaced():
    page = "# Page\n\n```python\nx = 2\n```\n\nNow:\n\n```python\nprint(x)\nx + 1\n```\n\nEnd.\n"
    once = outputs.refreshed(page, list(outputs.run(page)))
    assert once == page.replace("x + 1\n```\n", "x + 1\n```\n\n```text\n2\n3\n```\n")
    assert outputs.refreshed(once, list(outputs.run(once))) == once


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("loss 0.95 after 3 steps", "loss 0.99 after 3 steps", True),
        ("loss 0.95 after 3 steps", "loss 1.35 after 3 steps", False),
        ("loss 0.95 after 3 steps", "loss 0.95 after 4 steps", False),
    ],
)
def test_only_floats_may_differ_and_not_by_much(printed, shown, same):
    assert outputs.agree(printed, shown) is same
