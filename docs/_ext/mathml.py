r"""Formulas as MathML, which browsers draw by themselves: MathJax would have to come from a server at every view.

The converter is that of docutils. What it does not know is a warning; what it silently reads differently from TeX
is put right here where that is simple, and a warning elsewhere.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

SHORT_FRACTION = re.compile(r"\\([td]?frac)(\d)(\w)")  # 12 in \tfrac12 is one half
FUNCTION = re.compile(r"(\\(?:ln|log|exp|cos|sin)|\\operatorname\{\w+\})\s*(?=[A-Za-z]|\\(?![bB]igl))")
BEFORE_FUNCTION = re.compile(
    r"((?<![A-Za-z\\])[A-Za-z]|[\d)\]}]|\\(?:eta|gamma|lambda|sigma))\s*"
    r"(?=\\(?:ln|log|exp|cos|sin|max|min|sup|inf|operatorname)\b)"
)
AFTER = {"/": "0", "max": "0.1667em", "min": "0.1667em", "sup": "0.1667em", "inf": "0.1667em"}
READ_OTHERWISE = re.compile(r"[\^_]\d\d|\\sqrt\d\d|\\operatorname\*")
SPACE = "{http://www.w3.org/1998/Math/MathML}"
ElementTree.register_namespace("", SPACE[1:-1])
logger = logging.getLogger(__name__)


def mathml(tex: str, as_block: bool = False) -> str:
    r"""Convert a formula.

    >>> mathml(r"\hat y_k").count("<msub><mover>")
    1
    """
    if found := READ_OTHERWISE.search(tex):
        raise MathError(f"Not read as TeX does: {found[0]}")
    spelt = BEFORE_FUNCTION.sub(r"\1\\,", SHORT_FRACTION.sub(r"\\\1{\2}{\3}", tex))
    spelt = FUNCTION.sub(r"\1\\,", spelt)
    converted = tex2mathml(spelt, as_block=as_block).replace("&ApplyFunction;", "\N{FUNCTION APPLICATION}")
    root = ElementTree.fromstring(converted)
    for parent in list(root.iter()):
        for place, child in enumerate(parent):
            child.tail = None
            tags = [part.tag.removeprefix(SPACE) for part in child]
            if child.tag == SPACE + "munderover" and tags[0] != "mo" and tags[2] == "mo":
                parent[place] = _beside(child)
            elif child.tag == SPACE + "mo":
                _space(child)
        parent.text = parent.text if len(parent) == 0 else None
    return ElementTree.tostring(root, encoding="unicode")


def _beside(accented: ElementTree.Element) -> ElementTree.Element:
    r"""Put the index of an accented letter, \hat y_k, beside the letter instead of below it."""
    index = accented[1]
    accented.remove(index)
    accented.tag = SPACE + "mover"
    whole = ElementTree.Element(SPACE + "msub")
    whole.extend([accented, index])
    return whole


def _space(operator: ElementTree.Element) -> None:
    r"""Give a prime its shape, and slashes, \lvert and \rvert, \max and the like the spaces that TeX gives them."""
    text = operator.text or ""
    if text == "'":
        operator.text = "′"
    elif text in ("|", "‖") and operator.get("class") == "mathopen":
        operator.attrib.update(form="prefix", stretchy="false")
    elif text in ("|", "‖") and not operator.attrib:
        operator.attrib.update(form="postfix", stretchy="false", lspace="0", rspace="0")
    elif text in AFTER:
        operator.attrib.update(lspace="0", rspace=AFTER[text])


def _write(translator: HTML5Translator, node: nodes.Element, as_block: bool) -> None:
    tex = node.astext()
    try:
        formula = mathml(tex, as_block)
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
