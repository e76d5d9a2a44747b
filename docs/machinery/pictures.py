"""The pictures of the schemes: a page's own code is run, and the network it makes is measured.

`python -m docs.machinery.pictures FOLDER NAME ...` keeps those of some schemes in a folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from docs.machinery.results import ROOT
from docs.machinery.scheme_pages import SchemePage, all_pages
from nf_resnets import analysis, models, roles, schemes
from nf_resnets.analysis.head import random_head
from nf_resnets.plotting.signal import Quantity, signal_figure
from nf_resnets.roles import Role
from nf_resnets.training.program import quick_compile

FAMILIES = {
    models.WideResNet: "pre_activation",
    models.CifarResNet: "post_activation",
    models.Transformer: "transformer",
}
ARRAYS = ("params", "batch_stats", "images", "tokens")
CURVES = (("skip", "skip path"), ("branch", "branch"), ("sum", "sum"))


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a network does to a batch as it starts.

    Attributes:
      forward: rows of skip, branch and sum at every block, with the closed form where there is one.
      backward: rows of the gradients at every block's input.
      sentences: what stands below the picture.
    """

    forward: list[dict[str, Any]]
    backward: list[dict[str, Any]]
    sentences: list[str]


def run(page: SchemePage) -> tuple[Any, dict[str, Any]]:
    """Runs the code of a page as one compiled program.

    Returns:
      The network, and the arrays ``params``, ``batch_stats``, and ``images`` or ``tokens``.

    Raises:
      ValueError: if the code does not make what the picture needs.
    """
    code, models_made = compile(page.code, str(page.path), "exec"), []

    def program() -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec(code, names)
        if not {"model", "params"} <= names.keys() or not {"images", "tokens"} & names.keys():
            raise ValueError(
                f"the code of {page.path.name} makes {sorted(set(names) - {'__builtins__'})}; "
                "expected model, params, and images or tokens."
            )
        models_made.append(names["model"])
        return {name: names[name] for name in ARRAYS if name in names}

    arrays = jax.jit(program, compiler_options=_quickly())()
    return models_made[0], arrays


def measure(page: SchemePage) -> Measured:
    """Sends the batch of a page through its network, and a gradient back."""
    model, made = run(page)
    params = made["params"]
    scheme, family = schemes.get(page.name), FAMILIES[type(model)]
    batch = made["images"] if "images" in made else made["tokens"]
    observed = analysis.observe(model, batch_stats=made.get("batch_stats"))
    key = jax.random.key(2)

    def both(params: Any, headed: Any, batch: Any) -> tuple[Any, jax.Array]:
        _, taps = observed(params, batch)
        return taps, analysis.gradient_norms(observed, headed, batch, key=key)

    zero_head = _zero_head(params)
    headed = random_head(params, key) if zero_head else params
    taps, gradients = jax.jit(both, compiler_options=_quickly())(params, headed, batch)
    found = jax.jit(analysis.signal_of, compiler_options=_quickly())(taps)
    found = jax.tree.map(np.asarray, found)
    form = analysis.predicted(params, scheme, taps, family=family)

    changes = [block["input"].shape != block["sum"].shape for block in analysis.branches(taps)]
    forward, backward = [], []
    for at, transition in enumerate(changes):
        place = {"k": at + 1, "transition": transition}
        for name, title in CURVES:
            row = {"title": title, "value": float(getattr(found, name).second[at])}
            row["form"] = "" if form is None else float(getattr(form, name)[at])
            forward.append(place | row)
        row = {"title": "gradient", "value": float(gradients[at])}
        if form is not None:
            # The form says how gradients grow from the last block on.
            row["form"] = float(gradients[-1] * form.gradient[at] / form.gradient[-1])
        backward.append(place | row)
    return Measured(forward, backward, _sentences(found, gradients, form, zero_head=zero_head))


def draw(page: SchemePage, path: Path) -> list[str]:
    """Draws the picture of a page, and gives the sentences for below it."""
    measured = measure(page)
    scheme = schemes.get(page.name)
    signal_figure(
        [
            ("Forward", measured.forward, Quantity("value", "Var", "form", scale="log2")),
            (
                "Backward",
                measured.backward,
                Quantity("value", r"$\|\partial\ell/\partial x_{k-1}\|$", "form", scale="log10"),
            ),
        ],
        path,
        title=f"{scheme.title}, at initialisation",
        subtitle="the network of the code above; blocks from the input on",
    )
    return measured.sentences


def keep(page: SchemePage, folder: Path) -> tuple[Path, str]:
    """The picture and its sentences, drawn anew only if the page's code or the package changed."""
    digest = hashlib.sha256()
    for path in [Path(__file__), *sorted((ROOT / "nf_resnets").rglob("*.py"))]:
        digest.update(path.read_bytes())
    digest.update(page.code.encode())
    folder.mkdir(parents=True, exist_ok=True)
    picture, words = folder / f"{page.name}.png", folder / f"{page.name}.txt"
    mark = f"{digest.hexdigest()}\n"
    if not (picture.exists() and words.exists() and words.read_text().startswith(mark)):
        words.write_text(mark + " ".join(draw(page, picture)) + "\n")
    return picture, words.read_text().removeprefix(mark).strip()


def keep_all(pages: Sequence[SchemePage], folder: Path) -> None:
    """Keeps the pictures of many pages, in one process a core: they mostly compile, on one thread.

    Raises:
      subprocess.CalledProcessError: if one cannot be drawn; the process has said why.
    """
    count = min(os.cpu_count() or 1, 8)
    command = [sys.executable, "-m", "docs.machinery.pictures", str(folder)]
    parts = [[*command, *(page.name for page in pages[at::count])] for at in range(count)]
    processes = [subprocess.Popen(part, cwd=ROOT) for part in parts]
    for part, code in [(process.args, process.wait()) for process in processes]:
        if code:
            raise subprocess.CalledProcessError(code, part)


def _quickly() -> dict[str, Any] | None:
    """Options for programs that run once: what counts is how long they take to compile."""
    return quick_compile(jax.devices()[0])


def _sentences(found: Any, gradients: np.ndarray, form: Any, *, zero_head: bool) -> list[str]:
    first, last = (float(found.sum.second[at]) for at in (0, -1))
    share = float(np.asarray(found.share)[-1])
    words = [
        f"From the first block's sum to the last, `Var` goes from {first:.3g} to {last:.3g}; the "
        f"branch's share of the last sum is {share:.3g}; the gradient at the first block's input "
        f"is {float(gradients[0] / gradients[-1]):.3g} times that at the last block's."
    ]
    if not np.any(np.asarray(found.branch.second)):
        words.append("The branches are 0, and the sum hides the skip path, which it is.")
    if form is None:
        words.append("No closed form is known to the library for this network.")
    else:
        words.append(
            "Dashed: the recursion for wide layers of independent weights with these weights' "
            "sizes."
        )
    if zero_head:
        words.append(
            "The head starts at 0 and lets no gradient through; for the gradients it is drawn at "
            "random."
        )
    return words


def _zero_head(params: Any) -> bool:
    heads = [
        value
        for leaf, value in zip(roles.assign(params).leaves, jax.tree.leaves(params), strict=True)
        if leaf.role is Role.HEAD and leaf.weight
    ]
    return bool(heads) and not any(bool(jnp.any(value)) for value in heads)


__all__ = ["Measured", "draw", "keep", "keep_all", "measure", "run"]

if __name__ == "__main__":
    for page in all_pages():
        if page.name in sys.argv[2:]:
            keep(page, Path(sys.argv[1]))
