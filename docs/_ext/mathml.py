"""Formulas as MathML, which browsers draw by themselves: MathJax would have to come from a server at every view."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

SHORT_FRACTION = re.compile(r"\\([td]?frac)(\d)(\w)")
FUNCTION = re.compile(r"\\(ln|cos|exp)\s*(?=[A-Za-z]|\\(?![bB]igl))")
logger = logging.getLogger(__name__)


def _spelt_out(tex: str) -> str:
    r"""Say what the converter does not know: that 12 in \tfrac12 is one half, and that \ln g has a space."""
    return FUNCTION.sub(r"\\\1\\,", SHORT_FRACTION.sub(r"\\\1{\2}{\3}", tex))


def _write(translator: HTML5Translator, node: nodes.Element, as_block: bool) -> None:
    tex = node.astext()
    try:
        formula = tex2mathml(_spelt_out(tex), as_block=as_block).replace("<mo>'</mo>", "<mo>′</mo>")
    except MathError as error:
        logger.warning("%s In the formula %s", error, tex, location=node)
        raise nodes.SkipNode from None
    translator.body.append(f'<div class="formula">{formula}</div>' if as_block else formula)
    raise nodes.SkipNode


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in the text."""
    _write(translator, node, as_block=False)


def visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on lines of its own, which scrolls where the page is too narrow."""
    _write(translator, node, as_block=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
