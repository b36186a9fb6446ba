"""The explorer: the closed forms of all families on one page of HTML that needs no network.

The page is made of a template, a style, shared scripts, and the scripts, titles and
parameters of each family. Runs of further models, at the settings of papers, are in
``runs.json``, which ``scripts/recorded.py`` writes.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from icl_theory import families
from icl_theory._validate import EXACT
from icl_theory._version import __version__
from icl_theory.families import filled_slots
from icl_theory.families.family import Family
from icl_theory.families.parameters import Fraction, Number
from icl_theory.families.plug_ins import left_out
from icl_theory.statements.audit import known

HERE = Path(__file__).parent
# scripts of the page itself
SHARED = (
    "numbers",
    "drawing",
    "settings",
    "training",
    "figures",
    "tour",
    "shell",
)

__all__ = ["page"]


def __dir__() -> list[str]:
    return sorted(__all__)


def page() -> str:
    """Return the explorer, a page of HTML that a browser shows from any file or server; see docs/explorer.md.

    A panel that cannot be read is left out, with a warning of one line.
    """
    found, lines = panels()
    for line in lines:
        warnings.warn(line, stacklevel=2)
    found |= recorded()
    parts = {
        "style": _read(HERE / "style.css"),
        "modules": "\n</script>\n<script>\n".join(
            ["\n".join(shared()), *found.values()]
        ),  # a wrong one ends itself
        "families": _json([*found]),
        "papers": _json([*papers()]),
        "version": __version__,
    }
    made = _read(HERE / "page.html")
    for name, text in parts.items():
        made = made.replace(f"[[{name}]]", text)
    return made


def shared() -> Iterator[str]:
    """Yield the modules of every page."""
    yield _read(HERE / "modules.js")
    for name in SHARED:
        yield _module(name, _read(HERE / f"{name}.js"))


def panels() -> tuple[dict[str, str], list[str]]:
    """Return the modules of each family that has a panel, by its name, and a line for each that is left out."""
    found: dict[str, str] = {}
    slots, lines = filled_slots("explorer")
    for name, panel in slots.items():
        with left_out(f"the slot explorer of the family {name}", lines):
            said = {
                "family": description(families.families_known()[name]),
                "constants": panel.constants(),
            }
            scripts = {
                script.removesuffix(".js"): _read(panel.folder / script)
                for script in panel.scripts
            }
            found[name] = _modules(name, said, scripts)
    return found, lines


def recorded() -> dict[str, str]:
    """Return the modules of the panels of runs that were computed beforehand, by the names of their papers."""
    records = json.loads(_read(HERE / "runs.json"))
    known_here = families.families_known()
    script = _read(HERE / "recorded.js")
    found = dict[str, str]()
    for name, record in records.items():
        if record["family"] not in known_here:
            continue
        family = description(known_here[record["family"]])
        under = {"tab": "More models"} if not found else {"under": next(iter(found))}
        found[name] = _modules(
            name, {"family": family, "record": record | under}, {"panel": script}
        )
    return found


def papers() -> Iterator[dict[str, str]]:
    """Yield what is shown of papers: authors and year, title, address, and a text."""
    every = [paper for claims in known()[0].values() for paper in claims.papers]
    for paper in every:
        if paper.setting is None:
            continue
        last = [name.split()[-1] for name in paper.authors.split(", ")]
        authors = " and ".join(last) if len(last) < 3 else f"{last[0]} et al."
        yield {
            "short": f"{authors} {paper.year}",
            "title": paper.title,
            "place": paper.setting.place,
            "text": paper.setting.text,
        }


def _modules(name: str, said: dict[str, Any], scripts: dict[str, str]) -> str:
    """Return the modules of a panel: what is said of it, and scripts."""
    sources = {
        part: f"module.exports = {_json(value)};" for part, value in said.items()
    } | scripts
    return "\n".join(
        _module(f"{name}/{part}", source) for part, source in sources.items()
    )


def description(family: type[Family]) -> dict[str, Any]:
    """Return the words of a family for the page, and the symbol, unit and limits of each parameter."""
    labels = family.labels()
    module = (
        "icl_theory"
        if family.__module__.startswith("icl_theory.")
        else family.__module__
    )
    parameters = {
        name: {
            "symbol": labels[name].text,
            "unit": labels[name].unit,
            "meaning": labels[name].meaning,
            "whole": declared.kind.whole,
            **_limits(declared.kind),
        }
        for name, declared in family.parameters().items()
    }
    return {
        "name": family.name,
        "title": family.title,
        "module": module,
        "class": family.__name__,
        "loss_unit": family.loss_unit,
        "parameters": parameters,
    }


def _limits(kind: Any) -> dict[str, float | None]:
    """Return the bounds of a number, with None for infinite ones, which JSON does not have."""
    if not isinstance(kind, Number):
        return {}
    minimum = kind.minimum
    maximum = kind.maximum
    least = math.ulp(0.0)
    if isinstance(kind, Fraction):
        minimum = least
        maximum = math.nextafter(1.0, 0.0)
    elif kind.whole:
        maximum = min(maximum, EXACT)  # larger integers are no numbers of JavaScript
    elif kind.signed:
        minimum = -maximum
    elif not kind.zero:
        minimum = max(minimum, least)
    bounds = {"minimum": minimum, "maximum": maximum}
    return {
        name: value if math.isfinite(value) else None for name, value in bounds.items()
    }


def _module(name: str, source: str) -> str:
    return f'explorer.define("{name}", function (module, require) {{\n{source}}});'


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False).replace("</", "<\\/")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
