"""The explorer: the closed forms of all families on one page of HTML that needs no network.

The page is made of a template, a style, shared scripts, and the scripts, titles and parameters of each family.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from icl_theory._version import __version__
from icl_theory.families import families_known
from icl_theory.families.family import Family
from icl_theory.families.parameters import Number

HERE = Path(__file__).parent
SHARED = ("numbers", "drawing", "settings", "figures", "tour", "shell")  # scripts of the page itself


def page() -> str:
    """Return the explorer, a page of HTML that a browser shows from any file or server; see docs/explorer.md."""
    parts = {
        "style": _read(HERE / "style.css"),
        "modules": "\n".join(modules()),
        "families": _json([name for name, family in families_known().items() if family.explorer is not None]),
        "version": __version__,
    }
    found = _read(HERE / "page.html")
    for name, text in parts.items():
        found = found.replace(f"[[{name}]]", text)
    return found


def modules() -> Iterator[str]:
    """Yield the modules of the page, each as a script that defines it."""
    yield _read(HERE / "modules.js")
    for name in SHARED:
        yield _module(name, _read(HERE / f"{name}.js"))
    for name, family in families_known().items():
        if (panel := family.explorer) is None:
            continue
        yield _module(f"{name}/family", f"module.exports = {_json(description(family))};")
        yield _module(f"{name}/constants", f"module.exports = {_json(panel.constants())};")
        for script in panel.scripts:
            yield _module(f"{name}/{script.removesuffix('.js')}", _read(panel.folder / script))


def description(family: type[Family]) -> dict[str, Any]:
    """Return the words of a family for the page, and the symbol, unit and limits of each parameter."""
    labels = family.labels()
    module = "icl_theory" if family.__module__.startswith("icl_theory.") else family.__module__
    parameters = {
        name: {
            "symbol": labels[name].text, "unit": labels[name].unit, "meaning": labels[name].meaning,
            "whole": declared.kind.whole, **_limits(declared.kind),
        }
        for name, declared in family.parameters().items()
    }  # fmt: skip
    return {
        "name": family.name, "title": family.title, "module": module, "class": family.__name__,
        "loss_unit": family.loss_unit, "parameters": parameters,
    }  # fmt: skip


def _limits(kind: Any) -> dict[str, float | None]:
    """Return the bounds of a number, with None for infinite ones, which JSON does not have."""
    if not isinstance(kind, Number):
        return {}
    positive = not (kind.zero or kind.signed)
    minimum = -math.inf if kind.signed else max(kind.minimum, math.ulp(0.0) if positive else 0.0)
    bounds = {"minimum": minimum, "maximum": kind.maximum}
    return {name: value if math.isfinite(value) else None for name, value in bounds.items()}


def _module(name: str, source: str) -> str:
    return f'explorer.define("{name}", function (module, require) {{\n{source}}});'


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False).replace("</", "<\\/")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
