"""The explorer's own scripts in a JavaScript engine, without a page."""

from __future__ import annotations

from functools import cache
from typing import Any

from py_mini_racer import MiniRacer

from icl_theory.explorer import panels, recorded, shared


@cache
def engine() -> MiniRacer:
    """Return an engine in which ``explorer.require`` finds every module of the page."""
    made = MiniRacer()
    made.eval("\n".join([*shared(), *panels()[0].values(), *recorded().values()]))
    return made


def call(body: str, *arguments: Any) -> Any:
    """Evaluate ``(...arguments) => body`` in the engine; values come and go as JSON."""
    made = engine()
    made.eval(
        f"var tested = (...given) => {{ const require = explorer.require; {body} }};"
    )
    return made.call("tested", *arguments)
