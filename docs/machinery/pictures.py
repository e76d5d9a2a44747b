"""The pictures of the schemes: the network that a page's code makes is measured, then drawn.

To measure takes seconds a scheme, so what was found is kept in ``docs/schemes/starts.json``, and a
build only draws. ``python -m docs.machinery.pictures [NAME ...]`` measures, all schemes unless some
are named; a slow test compares.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from docs.machinery.results import ROOT
from docs.machinery.scheme_pages import FOLDER, SchemePage, all_pages
from nf_resnets import analysis, models, roles, schemes
from nf_resnets.analysis.head import random_head
from nf_resnets.plotting.signal import Quantity, signal_figure
from nf_resnets.roles import Role
from nf_resnets.training.program import quick_compile

STARTS = FOLDER / "starts.json"
"""What was measured, by scheme."""

FAMILIES = {
    models.WideResNet: "pre_activation",
    models.CifarResNet: "post_activation",
    models.Transformer: "transformer",
}
ARRAYS = ("params", "batch_stats", "images", "tokens")
CURVES = (("skip", "skip path"), ("branch", "branch"), ("sum", "sum"))


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


def measure(page: SchemePage) -> dict[str, Any]:
    """Sends the batch of a page through its network, and a gradient back.

    Returns:
      For each block, in lists, whether the shape changes in it (``transition``), the second moments
      of ``skip``, ``branch`` and ``sum``, and the ``gradient`` at its input. ``form`` has the
      closed forms of these four, or is None. ``share`` is the branch's share of the last sum;
      ``zero_head`` says that the head is 0, and was drawn for the gradients; ``code`` is
      :func:`code_mark`.
    """
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
    form = analysis.predicted(params, scheme, taps, family=family)
    forms = None
    if form is not None:
        forms = {name: _digits(getattr(form, name)) for name, _ in CURVES}
        # The form says how gradients grow from the last block on.
        forms["gradient"] = _digits(gradients[-1] * form.gradient / form.gradient[-1])
    return {
        "code": code_mark(page),
        "zero_head": zero_head,
        "share": _digits(found.share[-1:])[0],
        "transition": [
            block["input"].shape != block["sum"].shape for block in analysis.branches(taps)
        ],
        **{name: _digits(getattr(found, name).second) for name, _ in CURVES},
        "gradient": _digits(gradients),
        "form": forms,
    }


def code_mark(page: SchemePage) -> str:
    """A mark of the code that a network was made by."""
    return hashlib.sha256(page.code.encode()).hexdigest()[:16]


def read(path: Path = STARTS) -> dict[str, Any]:
    """What was measured, by scheme."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write(starts: Mapping[str, Any], path: Path = STARTS) -> None:
    """Writes what was measured, a scheme a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(starts[name])}" for name in sorted(starts))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def draw(page: SchemePage, start: Mapping[str, Any], path: Path) -> None:
    """Draws the picture of a page."""
    forms = start["form"] or {}
    rows = {
        name: [
            {"k": at + 1, "transition": start["transition"][at], "title": title, "value": value,
             "form": forms[name][at] if forms else ""}
            for at, value in enumerate(start[name])
        ]
        for name, title in (*CURVES, ("gradient", "gradient"))
    }  # fmt: skip
    backward = rows.pop("gradient")
    label = r"$\|\partial\ell/\partial x_{k-1}\|$"
    signal_figure(
        [
            ("Forward", sum(rows.values(), []), Quantity("value", "Var", "form", scale="log2")),
            ("Backward", backward, Quantity("value", label, "form", scale="log10")),
        ],
        path,
        title=f"{schemes.get(page.name).title}, at initialisation",
        subtitle="the network of the code above; blocks from the input on",
    )


def keep(page: SchemePage, folder: Path) -> tuple[Path, str]:
    """The picture and the sentences below it, drawn anew only if what is drawn has changed.

    Raises:
      ValueError: if the page's code is not what was measured.
    """
    start = read().get(page.name, {})
    if start.get("code") != code_mark(page):
        raise ValueError(
            f"the code of docs/schemes/{page.name}.md is not what {STARTS.name} was measured with; "
            f"run python -m docs.machinery.pictures {page.name}."
        )
    digest = hashlib.sha256(json.dumps(start).encode())
    plotting = [*(ROOT / "nf_resnets/plotting").glob("*.py"), ROOT / "nf_resnets/looks.py"]
    for path in [Path(__file__), *sorted(plotting)]:
        digest.update(path.read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    picture, mark = folder / f"{page.name}.png", folder / f"{page.name}.txt"
    if not (picture.exists() and mark.exists() and mark.read_text() == digest.hexdigest()):
        draw(page, start, picture)
        mark.write_text(digest.hexdigest())
    return picture, sentences(start)


def sentences(start: Mapping[str, Any]) -> str:
    """What a picture shows, in words."""
    first, last = start["sum"][0], start["sum"][-1]
    growth = start["gradient"][0] / start["gradient"][-1]
    words = [
        f"From the first block's sum to the last, `Var` goes from {first:.3g} to {last:.3g}; the "
        f"branch's share of the last sum is {start['share']:.3g}; the gradient at the first "
        f"block's input is {growth:.3g} times that at the last block's."
    ]
    if not any(start["branch"]):
        words.append("The branches are 0, and the sum hides the skip path, which it is.")
    if start["form"] is None:
        words.append("No closed form is known to the library for this network.")
    else:
        words.append(
            "Dashed: the recursion for wide layers of independent weights with these weights' "
            "sizes."
        )
    if start["zero_head"]:
        words.append(
            "The head starts at 0 and lets no gradient through; for the gradients it is drawn at "
            "random."
        )
    return " ".join(words)


def _digits(values: Any) -> list[float]:
    """Four significant digits, which is more than a picture shows."""
    return [float(f"{value:.4g}") for value in np.asarray(values, np.float64)]


def _quickly() -> dict[str, Any] | None:
    """Options for programs that run once: what counts is how long they take to compile."""
    return quick_compile(jax.devices()[0])


def _zero_head(params: Any) -> bool:
    heads = [
        value
        for leaf, value in zip(roles.assign(params).leaves, jax.tree.leaves(params), strict=True)
        if leaf.role is Role.HEAD and leaf.weight
    ]
    return bool(heads) and not any(bool(jnp.any(value)) for value in heads)


__all__ = ["STARTS", "code_mark", "draw", "keep", "measure", "read", "run", "sentences", "write"]

if __name__ == "__main__":
    for page in all_pages():
        if page.name in sys.argv[1:] or not sys.argv[1:]:
            write(read() | {page.name: measure(page)})
            print(page.name, flush=True)
