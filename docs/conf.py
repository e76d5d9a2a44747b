"""How Sphinx builds the documentation: offline, from the checkout, leaving it as it was.

It runs no code of a page: what code prints and measures is kept with the page, and tests compare.
"""

from __future__ import annotations

import os
import pydoc
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from docutils import nodes  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402

import nf_resnets  # noqa: E402
from docs.machinery import pages  # noqa: E402

project = "nf_resnets"
author = "The nf_resnets authors"
copyright = "The nf_resnets authors, Apache-2.0"
release = version = nf_resnets.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
templates_path = ["_templates"]
exclude_patterns = [
    "_templates",
    "_build",
    "generated/schemes",
    "machinery",
    "**/.ipynb_checkpoints",
]

# --- Pages and notebooks -----------------------------------------------------------------------

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True
# Plain blocks are tables and messages; code says its language.
highlight_language = "text"

# --- The reference -----------------------------------------------------------------------------

autosummary_ignore_module_all = False
# The page of the reference is that of the package, whose modules it lists.
suppress_warnings = ["autosummary.import_cycle"]
autosummary_imported_members = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Source", "returns_style")]
# What our own names link to must be there; those of other projects are not looked up.
nitpicky = True
# (The command line's annotations are no names.)
nitpick_ignore_regex = [("py:.*", r"(?!nf_resnets\.).*|.*Annotated(\[.*)?")]

# --- Looks -------------------------------------------------------------------------------------

html_theme = "furo"
html_title = "nf_resnets"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_js_files = ["claims.js"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0062a3", "color-brand-content": "#0062a3"},
    "dark_css_variables": {"color-brand-primary": "#6cb8ee", "color-brand-content": "#6cb8ee"},
}


def setup(app: Any) -> None:
    """Writes the generated pages, and keeps fields of tuples out of the reference.

    Formulas are MathML, written by docutils: no script, nothing to fetch.
    """
    pages.write_all()
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _by_another_place)


def _skip(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    # A NamedTuple's fields stand in its docstring; what Python says of them is their number.
    return True if type(value).__name__ == "_tuplegetter" else None


def _by_another_place(app: Any, env: Any, node: Any, child: Any) -> Any:
    # Docstrings call a name by the module that defines it; it stands where users import it.
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("nf_resnets."):
        return None
    package, name = (*target.split("."), "")[1], target.rpartition(".")[2]
    if name in getattr(getattr(nf_resnets, package, None), "__all__", ()):
        target = f"nf_resnets.{package}.{name}"
    else:
        try:
            pydoc.resolve(target)
        except (ImportError, AttributeError):
            return None
    domain = env.get_domain("py")
    entry = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, child)
    # Docstrings also name what is there and not for users.
    return entry or child


def _inline(self: Any, node: nodes.math) -> None:
    formula = tex2mathml(node.astext(), as_block=False)
    self.body.append(f'<span class="math notranslate">{formula}</span>')
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate"))
    self.body.append(tex2mathml(node.astext(), as_block=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode
