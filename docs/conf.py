"""How `make site` builds these pages."""

import re
from importlib import metadata

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project = "milzoo"
author = "The milzoo authors"
release = metadata.version("milzoo")
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# `make notebooks` has run them: what they show here is what they showed there.
nb_execution_mode = "off"
nb_merge_streams = True
# Formulas need neither a script nor a network: browsers render MathML.
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "milzoo"
html_static_path = ["_static"]
html_css_files = ["milzoo.css"]
templates_path = ["_templates"]
# Tables that a page has, and pieces that pages include.
exclude_patterns = ["league/*.md"]

# A page for each public name, from its docstring: `__all__` says which there are.
autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
# Two names differ by their capitals alone, which is one file where a file system ignores these.
autosummary_filename_map = {"milzoo.estimators.miSVM": "milzoo.estimators.miSVM_of_instances"}
autodoc_typehints = "none"  # docstrings have types and shapes
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
# Prompts and outputs of examples are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def skip_inherited_of_scikit_learn(
    app: object, what: str, name: str, member: object, skip: bool, options: object
) -> bool:
    """Leave out what scikit-learn gives every estimator: its own pages have it."""
    return skip or (getattr(member, "__module__", None) or "").startswith("sklearn.")


def name_default_distributions(
    app: object,
    what: str,
    name: str,
    member: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Write the family of a default distribution in the place of its address in memory."""
    if signature is not None:
        signature = re.sub(r"<[\w.]*?(\w+) object at 0x[^>]*>", r"\1(…)", signature)
    return signature, returns


def write_formula(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def write_displayed_formula(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula that has a paragraph for itself."""
    text = node.astext().replace("{aligned}", "{align*}")  # which latex2mathml knows
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    formula = convert(text, display="block")
    writer.body.append(f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (write_formula, None), (write_displayed_formula, None))
    app.connect("autodoc-skip-member", skip_inherited_of_scikit_learn)
    app.connect("autodoc-process-signature", name_default_distributions)
