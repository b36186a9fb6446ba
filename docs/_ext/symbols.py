"""Symbols in the search: each row of the sheet of symbols is an entry of the index, as its symbol and in code."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


def names(cells: list[nodes.entry]) -> list[str]:
    """Return what one may look for to find a row: symbols, ``L*`` among them, and plain names in code."""
    symbols = [
        re.sub(r"\(.*", "", each).strip()
        for each in re.split(r", (?![^(]*\))", cells[0].astext())
    ]
    code = [each.astext() for each in cells[2].findall(nodes.literal)]
    return [
        *filter(None, symbols),
        *(each for each in code if re.fullmatch(r"\w+", each)),
    ]


def index(app: Sphinx, doctree: nodes.document) -> None:
    """Add the entries to the sections of the sheet."""
    for section in (
        doctree.findall(nodes.section) if app.env.docname == "symbols" else ()
    ):
        tables = [child for child in section.children if isinstance(child, nodes.table)]
        rows = [
            [*row.findall(nodes.entry)]
            for table in tables
            for row in table.findall(nodes.row)
        ]
        sheet = bool(rows) and [cell.astext() for cell in rows[0]][2:3] == ["in code"]
        found = [name for row in rows[1:] for name in names(row)] if sheet else []
        if found:
            entries = [
                ("single", name, section["ids"][0], "main", None)
                for name in dict.fromkeys(found)
            ]
            section.insert(1, addnodes.index(entries=entries))


def setup(app: Sphinx) -> dict[str, Any]:
    """Look at each page once it is read."""
    app.connect("doctree-read", index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
