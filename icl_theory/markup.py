"""HTML of tables, figures and whole pages, with the standard library: everything that comes in is escaped."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# characters that HTML has no place for
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")
STYLE = """
:root { color-scheme: light dark; --line: #d0d0d0; --soft: #f4f4f4; --ink: #1a1a1a; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --line: #4a4a4a; --soft: #262626; --ink: #e6e6e6; --paper: #161616; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p, li { max-width: 45rem; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .6rem; margin: .25rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.table { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .25rem 0; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { white-space: nowrap; } td { max-width: 32rem; overflow-wrap: break-word; }
thead th { background: var(--soft); }
td.right, th.right { text-align: right; } td.right, td.short { white-space: nowrap; }
td.long { min-width: 10rem; }
figure { margin: 1rem 0; } figcaption { font-size: .875rem; max-width: 45rem; }
figure img { background: #ffffff; width: 32rem; max-width: 100%; height: auto; }
footer { margin-top: 2rem; font-size: .875rem; }
@media print {
  :root { color-scheme: light; --line: #999999; --soft: #f4f4f4; --ink: #000000; --paper: #ffffff; }
  main { max-width: none; padding: 0; } body { font-size: 10pt; } table { font-size: 8pt; }
  .table { overflow: visible; } th, td { padding: .1rem .3rem; } tr, figure, pre { break-inside: avoid; }
  h2 { break-after: avoid; } td.long { min-width: 0; }
}
"""
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<h1>$title</h1>
$body
</main>
</body>
</html>
""")


def page(title: str, body: str) -> str:
    """Return a whole page that needs nothing from outside, from a title and the HTML of its body."""
    return _PAGE.substitute(title=text(title), style=STYLE, body=body)


def text(value: object) -> str:
    """Return any text escaped, with what HTML cannot hold replaced.

    Examples
    --------
    >>> from icl_theory.markup import text
    >>> text("<b> & 'b'")
    '&lt;b&gt; &amp; &#x27;b&#x27;'
    """
    return html.escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", str(value)))


def number(value: Any) -> str:
    """Return a value as it stands in a table: integers in full, other numbers to four digits, missing as nothing.

    Examples
    --------
    >>> from icl_theory.markup import number
    >>> [number(value) for value in (1187646524, 0.123456, float("nan"), None, float("inf"), True, "flat")]
    ['1,187,646,524', '0.1235', '', '', '∞', '✓', 'flat']
    """
    if hasattr(value, "item"):
        value = value.item()
    if value is None or str(value) == "<NA>" or value != value:
        return ""
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "∞" if value > 0 else "−∞"
    return str(value)


def table(columns: Mapping[str, Sequence[Any]], caption: str = "") -> str:
    """Return a table, from its columns by heading; columns of numbers are set to the right.

    Examples
    --------
    >>> from icl_theory.markup import table
    >>> print(table({"L": [0.5], "regime": ["<flat>"]}))
    <div class="table"><table>
    <thead><tr><th class="right" scope="col">L</th><th class="short" scope="col">regime</th></tr></thead>
    <tbody>
    <tr><td class="right">0.5</td><td class="short">&lt;flat&gt;</td></tr>
    </tbody>
    </table></div>
    """
    sides = [_side(values) for values in columns.values()]
    head = "".join(f'<th{side} scope="col">{text(name)}</th>' for side, name in zip(sides, columns, strict=True))
    rows = [
        "<tr>" + "".join(f"<td{side}>{text(number(value))}</td>" for side, value in zip(sides, row, strict=True))
        + "</tr>"
        for row in zip(*columns.values(), strict=True)
    ]  # fmt: skip
    return "\n".join([
        '<div class="table"><table>',
        *([f"<caption>{text(caption)}</caption>"] if caption else []),
        f"<thead><tr>{head}</tr></thead>",
        "<tbody>", *rows, "</tbody>",
        "</table></div>",
    ])  # fmt: skip


def facts(pairs: Mapping[str, Any]) -> str:
    """Return a table of two columns, names and values."""
    rows = [
        f'<tr><th scope="row" style="text-align:left">{text(name)}</th>'
        f'<td style="text-align:left;white-space:pre-wrap">{text(number(value))}</td></tr>'
        for name, value in pairs.items()
    ]
    return "\n".join(['<div class="table"><table>', "<tbody>", *rows, "</tbody>", "</table></div>"])


def image(ax: Axes, alternative: str) -> str:
    """Return the figure of some axes as an image that is part of the text, with words for those who cannot see it.

    It is a scalable picture without fonts, date or random names: the same figure gives the same text.
    """
    import matplotlib as mpl

    from icl_theory.plotting import STYLE as FIGURE_STYLE
    from icl_theory.plotting import whole_figure

    buffer = io.BytesIO()
    with mpl.rc_context({**FIGURE_STYLE, "svg.fonttype": "path", "svg.hashsalt": "icl-theory"}):
        whole_figure(ax).savefig(
            buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    style = "max-width:100%;background:#ffffff"
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{text(alternative)}" style="{style}">'


def figure(ax: Axes, caption: str) -> str:
    """Return the figure of some axes with its caption."""
    return f"<figure>\n{image(ax, caption)}\n<figcaption>{text(caption)}</figcaption>\n</figure>"


def _side(values: Sequence[Any]) -> str:
    """Numbers go to the right; they and short words are not wrapped."""
    shown = [value for value in values if number(value)]
    if shown and not any(isinstance(value, str | bool) for value in shown):
        return ' class="right"'
    return f' class="{"short" if max(map(len, map(number, shown)), default=0) <= 16 else "long"}"'
