"""HTML of tables and figures, for notebooks and reports: everything that comes in is escaped."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from icl_theory.results.numbers import goes_right, number
from icl_theory.results.plots.style import release, styled, whole_figure

if TYPE_CHECKING:
    import jinja2
    from matplotlib.axes import Axes

# characters that HTML has no place for
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")


def allowed(value: object) -> str:
    """Return a value as text, with what HTML cannot hold replaced."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", number(value))


def text(value: object) -> str:
    """Return a value as HTML.

    Examples
    --------
    >>> from icl_theory.results.notebook import text
    >>> text("<b> & 'b'")
    '&lt;b&gt; &amp; &#x27;b&#x27;'
    """
    return html.escape(allowed(value))


@cache
def templates() -> jinja2.Environment:
    """Return the templates, which escape whatever is put in and write numbers in the one way."""
    import jinja2

    def finalize(value: Any) -> Any:
        return value if hasattr(value, "__html__") else allowed(value)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("icl_theory.results"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=finalize,
    )  # fmt: skip
    environment.globals |= {"sides": sides, "zip": zip}
    return environment


def render(template: str, **values: Any) -> str:
    """Return a template with values put in."""
    return templates().get_template(template).render(**values)


def _piece(name: str, *arguments: Any) -> str:
    return str(getattr(templates().get_template("pieces.html").module, name)(*arguments)).strip()


def table(columns: Mapping[str, Sequence[Any]], caption: str = "") -> str:
    """Return a table, from its columns by heading; columns of numbers are set to the right.

    Examples
    --------
    >>> from icl_theory.results.notebook import table
    >>> print(table({"L": [0.5], "regime": ["<flat>"]}))
    <div class="table"><table>
    <thead><tr><th class="right" scope="col">L</th><th class="short" scope="col">regime</th></tr></thead>
    <tbody>
    <tr><td class="right">0.5</td><td class="short">&lt;flat&gt;</td></tr>
    </tbody>
    </table></div>
    """
    return _piece("table", columns, caption)


def facts(pairs: Mapping[str, Any]) -> str:
    """Return a table of two columns, names and values."""
    return _piece("facts", pairs)


def image(ax: Axes, alternative: str) -> str:
    """Return the figure of some axes as an image that is part of the text, with words for those who cannot see it.

    It is a scalable picture without fonts, date or random names: the same figure gives the same text.
    """
    return _piece("image", picture(ax), alternative)


def picture(ax: Axes) -> str:
    """Return the figure of some axes as the address of a scalable picture that carries its data."""
    buffer = io.BytesIO()
    with styled({"svg.fonttype": "path", "svg.hashsalt": "icl-theory"}):
        whole_figure(ax).savefig(
            buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    release(ax)
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def sides(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the class of each column: numbers go to the right; they and short words are not wrapped."""

    def side(values: Sequence[Any]) -> str:
        longest = max(map(len, map(number, values)), default=0)
        return "right" if goes_right(values) else "short" if longest <= 16 else "long"

    return [side(values) for values in columns.values()]
