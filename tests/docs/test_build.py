"""The documentation is built as `make docs` builds it, and its pages lead where they say."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

for package in ("sphinx", "myst_nb", "furo"):
    pytest.importorskip(package, reason=f"{package} is not installed: make docs installs it")

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page links to, loads, and can be linked at."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.places = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name in ("src", "href"):
            if tag in ("script", "img", "link", "iframe", "source") and name in values:
                self.loads.append(values[name])


def broken(folder):
    """Links and files of a folder's pages that lead nowhere within it, and what is loaded from
    elsewhere."""
    read = {path: Page(path.read_text()) for path in sorted(folder.resolve().rglob("*.html"))}
    places = {path: page.places for path, page in read.items()}
    faults = []
    for path, page in read.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") or link.startswith("//"):
                if link in page.loads:
                    faults.append((path.name, link, "loaded from elsewhere"))
                continue
            if parts.scheme in ("data", "mailto"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                faults.append((path.name, link, "no such file"))
            elif parts.fragment and unquote(parts.fragment) not in places.get(target, link):
                faults.append((path.name, link, "no such place"))
    return faults


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "html"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto",
               "-b", "html", "docs"]  # fmt: skip
    before = _status()
    done = subprocess.run(
        [*command, str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert _status() == before, "the build changed what git sees"
    return folder


def _status():
    command = ["git", "status", "--porcelain", "docs", "results"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_nothing_is_broken(built):
    assert broken(built) == []


@pytest.mark.slow
def test_formulas_are_formulas(built):
    text = (built / "schemes/fixup.html").read_text()
    assert "<math" in text and "$" not in text[text.index("<h2>Equation") : text.index("<h2>Code")]
