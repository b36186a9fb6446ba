"""HTML of tables and figures, for notebooks and reports. All texts are escaped.

Packages that take long to import are imported at their first use. `load_whole` does
this such that Ctrl-C cannot leave a package half imported.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from icl_theory._version import __version__
from icl_theory.engine.interrupts import load_whole
from icl_theory.results.numbers import is_right_aligned, number
from icl_theory.results.plots.style import release, styled, whole_figure

if TYPE_CHECKING:
    import jinja2
    from matplotlib.axes import Axes

# Characters that HTML does not allow: control characters, halves of surrogate pairs,
# and code points that Unicode reserves.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]"
)
# [text](target), but not the picture ![caption](file)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\([^)\s]+\)")
# A column whose longest text has at most this many characters does not wrap. With a
# larger limit, a table with many columns of words would be wider than a page.
SHORT = 16


def _without_forbidden(content: str) -> str:
    """Return a text with replacements for characters that HTML does not allow."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", content)


def text(value: object) -> str:
    """Return a number, a word or a missing value as HTML, written by `number`."""
    return html.escape(_without_forbidden(number(value)))


@cache
def _templates() -> jinja2.Environment:
    """Return the templates of a page and its pieces.

    The templates escape all values, and write them as the function `number` does.
    """
    load_whole("jinja2")
    import jinja2

    def finalize(value: Any) -> Any:
        """Return a value as a template writes it; jinja2 then escapes texts."""
        # By convention, a value with this method is HTML already.
        if hasattr(value, "__html__"):
            return value
        return _without_forbidden(number(value))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("icl_theory.results"),
        autoescape=True,
        # A name in a template that has no value is an error instead of an empty text.
        undefined=jinja2.StrictUndefined,
        # A line with nothing but a tag of the template leaves no empty line.
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    # The template of a table uses these two functions.
    environment.filters["side"] = _side
    environment.globals["zip"] = zip
    return environment


def page(
    title: str,
    body: Iterable[str],
    commands: Sequence[str] | None,
    **origin: str | None,
) -> str:
    """Return a page whose body consists of parts in HTML; empty parts are left out.

    The footer has the ``commands`` that made the results. ``commands`` is empty if the
    commands are unknown, and None if the body names them itself. ``origin`` may have
    more entries for the footer: the ``version`` of the package that computed the
    results, the ``source`` from which they were read, and the ``date``.
    """
    footer = {
        "version": None,
        "source": None,
        "date": None,
        # The version that writes the page; another one may have computed the results.
        "package": __version__,
        **origin,
    }
    parts = [part for part in body if part]
    template = _templates().get_template("page.html")
    return template.render(
        title=title, body="\n".join(parts), commands=commands, **footer
    )


def section(title: str, *parts: str) -> str:
    """Return parts in HTML under a heading, or "" if all of them are empty."""
    if not any(parts):
        return ""
    return "\n".join([f"<h2>{text(title)}</h2>", *filter(None, parts)])


def paragraph(words: str) -> str:
    """Return words as a paragraph in HTML."""
    return f"<p>{text(words)}</p>"


def prose(markdown: str) -> str:
    """Return text in Markdown as HTML.

    A link becomes its text, because a page is one file that refers to no other.
    """
    load_whole("markdown_it")
    from markdown_it import MarkdownIt

    without_links = _LINK.sub(r"\g<text>", markdown)
    # HTML in the text is escaped.
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    return str(parser.render(_without_forbidden(without_links)))


def _macro(name: str, *arguments: Any) -> str:
    """Return the HTML that a macro of the template pieces.html makes."""
    macros = _templates().get_template("pieces.html").module
    macro = getattr(macros, name)
    return str(macro(*arguments)).strip()


def table(columns: Mapping[str, Sequence[Any]], caption: str = "") -> str:
    """Return a table; ``columns`` has the cells of each column by its heading.

    Columns of numbers are right-aligned.
    """
    return _macro("table", columns, caption)


def facts(pairs: Mapping[str, Any]) -> str:
    """Return a table with a row for each name and its value."""
    return _macro("facts", pairs)


def figure(source: str, caption: str) -> str:
    """Return a picture with its caption; ``source`` is a URL, such as a data URL."""
    return _macro("figure", source, caption)


def image(ax: Axes, alternative: str) -> str:
    """Return the figure of axes as an inline image.

    ``alternative`` describes the image to readers who cannot see it. Like `picture`,
    this function closes the figure.
    """
    return _macro("image", picture(ax), alternative)


def picture(ax: Axes) -> str:
    """Return the figure of some axes as a data URL of an SVG file, and close it.

    The file has neither fonts nor a date nor random names: the same figure gives the
    same text.
    """
    load_whole("matplotlib.backends.backend_svg")
    buffer = io.BytesIO()
    # Letters are drawn as paths. The names of elements are hashes, which are random
    # without a salt.
    repeatable = {"svg.fonttype": "path", "svg.hashsalt": "icl-theory"}
    # The value None leaves an entry of the metadata out.
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with styled(repeatable):
        whole_figure(ax).savefig(buffer, format="svg", metadata=no_metadata)
    # A notebook would otherwise show the figure once more.
    release(ax)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/svg+xml;base64,{encoded}"


def _side(values: Sequence[Any]) -> str:
    """Return the CSS class of a column of a table, from the ``values`` of its cells.

    "right" aligns numbers at the right. Cells of the classes "right" and "short" do not
    wrap; cells of the class "long" do.
    """
    if is_right_aligned(values):
        return "right"
    longest = max((len(number(value)) for value in values), default=0)
    return "short" if longest <= SHORT else "long"
