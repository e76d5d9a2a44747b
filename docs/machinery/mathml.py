"""Formulas as MathML, written by docutils when the pages are built: no script, nothing to fetch."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

_LOG = logging.getLogger(__name__)


def mathml(tex: str, *, as_block: bool = False) -> str:
    r"""Translates a formula.

    Args:
      tex: LaTeX, without dollars.
      as_block: whether it stands on lines of its own.

    Raises:
      ValueError: if it has a command that cannot be translated; the message has the formula.
    """
    try:
        return tex2mathml(tex, as_block=as_block)
    except (MathError, SyntaxError) as error:
        raise ValueError(f"the formula {tex!r} cannot be written as MathML: {error}") from None


def setup(app: Sphinx) -> dict[str, Any]:
    """Makes it the renderer of formulas in HTML pages."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(f'<span class="math notranslate">{_of(node)}</span>')
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate"))
    self.body.append(_of(node, as_block=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def _of(node: nodes.Element, *, as_block: bool = False) -> str:
    tex = node.astext()
    try:
        return mathml(tex, as_block=as_block)
    except ValueError as error:
        _LOG.warning(str(error), location=node)
        return nodes.make_id(tex)


__all__ = ["mathml", "setup"]
