"""The explorer: one page of HTML that evaluates closed forms while sliders move.

The page needs no network. It is made of a template, a style, shared scripts, and the
scripts, titles and parameters of families. A family has a panel on the page if it has a
value for its attribute ``explorer``, one of the slots that plug-ins may fill. Further
models have panels of recorded runs, at the settings of papers, from ``runs.json``,
which ``scripts/recorded.py`` writes. Each script is a module of JavaScript: it exports
names, and other modules require it by its name.
"""

from __future__ import annotations

import html
import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from icl_theory._validate import EXACT, integer, text
from icl_theory._version import __version__
from icl_theory.families import registry
from icl_theory.families.family import Family
from icl_theory.families.parameters import Fraction, Number
from icl_theory.families.plug_ins import left_out
from icl_theory.statements.audit import all_claims

HERE = Path(__file__).parent
# The scripts of the page itself. Each comes after the scripts that it needs.
SHARED = (
    "numbers",
    "drawing",
    "settings",
    "training",
    "figures",
    "diagram",
    "tour",
    "story",
    "shell",
)

__all__ = ["Embedded", "embed", "page"]


def __dir__() -> list[str]:
    return sorted(__all__)


class Embedded(NamedTuple):
    """The explorer in a frame, which a notebook shows as the value of a cell.

    Attributes
    ----------
    place : str
        The settings at which the explorer opens.
    height : int
        Height of the frame in pixels.
    """

    place: str
    height: int

    def _repr_html_(self) -> str:
        """Return the frame in HTML; notebooks call this method."""
        # The frame holds the whole page, so that the notebook needs no other file.
        source = html.escape(page(self.place), quote=True)
        return (
            '<iframe title="The explorer of icl-theory" srcdoc="'
            f'{source}" style="width: 100%; height: {self.height}px; border: 0">'
            "</iframe>"
        )


def embed(place: str = "", height: int = 900) -> Embedded:
    """Return the explorer for a cell of a notebook.

    Parameters
    ----------
    place : str
        Settings as in an address of the explorer, after its ``#``. By default the
        explorer opens at its own default settings.
    height : int
        Height in pixels, from 200 to 10,000.

    Returns
    -------
    Embedded
        A notebook shows it if it is the value of a cell.

    Raises
    ------
    ValueError
        ``place`` is not a text, or ``height`` is out of range.

    Examples
    --------
    >>> from icl_theory import explorer
    >>> cell = explorer.embed("regression?L=5&t=1000")
    >>> cell.height
    900
    """
    place = text("place", place)
    height = integer("height", height, minimum=200, maximum=10_000)
    return Embedded(place, height)


def page(place: str = "") -> str:
    """Return the explorer as one page of HTML, which works from a file or a server.

    Parameters
    ----------
    place : str
        Settings at which the page opens if its own address names none, such as
        ``"regression?L=5"``.

    Returns
    -------
    str
        The page. A panel that cannot be read is left out, with a warning of one line.
        See docs/explorer.md.
    """
    place = text("place", place)
    modules, messages = panels()
    for message in messages:
        warnings.warn(message, stacklevel=2)
    modules |= recorded()
    # Each panel has a script element of its own. A browser that stops at an error in
    # one element still runs the others.
    scripts = ["\n".join(shared()), *modules.values()]
    # The template has the name of each of these contents, in double brackets, at the
    # place where the content belongs.
    contents = {
        "style": _read(HERE / "style.css"),
        "modules": "\n</script>\n<script>\n".join(scripts),
        "families": _json([*modules]),
        "papers": _json([*papers()]),
        "place": _json(place),
        "version": __version__,
    }
    document = _read(HERE / "page.html")
    for name, content in contents.items():
        document = document.replace(f"[[{name}]]", content)
    return document


def shared() -> Iterator[str]:
    """Yield the JavaScript modules that every page has."""
    yield _read(HERE / "modules.js")
    for name in SHARED:
        yield _module(name, _read(HERE / f"{name}.js"))


def panels() -> tuple[dict[str, str], list[str]]:
    """Return the modules of each family's panel by the name of the family.

    The second result has a message for each panel that is left out because it cannot be
    read.
    """
    modules: dict[str, str] = {}
    panel_of_family, messages = registry.filled_slots("explorer")
    for name, panel in panel_of_family.items():
        # An error in the code of a family becomes a message, and its panel is left out.
        with left_out(f"the slot explorer of the family {name}", messages):
            data = {
                "family": description(registry.families_known()[name]),
                "constants": panel.constants(),
            }
            scripts = {
                script.removesuffix(".js"): _read(panel.folder / script)
                for script in panel.scripts
            }
            modules[name] = _modules(name, data, scripts)
    return modules, messages


def recorded() -> dict[str, str]:
    """Return the modules of the panels of recorded runs, by the name of the paper.

    The record of a paper has the name of its ``family``, the runs that are shown, and
    the words about them.
    """
    records = json.loads(_read(HERE / "runs.json"))
    families = registry.families_known()
    script = _read(HERE / "recorded.js")
    modules: dict[str, str] = {}
    for name, record in records.items():
        # The family may belong to a plug-in that is not installed.
        if record["family"] not in families:
            continue
        # The first of these panels has a tab of its own, and the others are choices
        # below it.
        position = {"under": next(iter(modules))} if modules else {"tab": "More models"}
        data = {
            "family": description(families[record["family"]]),
            "record": record | position,
        }
        modules[name] = _modules(name, data, {"panel": script})
    return modules


def papers() -> Iterator[dict[str, str]]:
    """Yield an entry for each paper that has a setting of the explorer.

    An entry has the authors and the year, the title, the setting and its description.
    """
    claims_by_family, _messages = all_claims()
    for claims in claims_by_family.values():
        for paper in claims.papers:
            if paper.setting is None:
                continue
            yield {
                "short": f"{_short_authors(paper.authors)} {paper.year}",
                "title": paper.title,
                "place": paper.setting.place,
                "text": paper.setting.text,
            }


def _short_authors(authors: str) -> str:
    """Return the surnames of one or two authors, or the first surname and "et al.".

    ``authors`` are full names, separated by commas.
    """
    surnames = [name.split()[-1] for name in authors.split(", ")]
    if len(surnames) > 2:
        return f"{surnames[0]} et al."
    return " and ".join(surnames)


def _modules(name: str, data: dict[str, Any], scripts: dict[str, str]) -> str:
    """Return the modules of a panel, one for each piece of data and for each script.

    ``name`` is the name of the panel. ``data`` has values that are written as JSON, and
    ``scripts`` has JavaScript. The keys of both are names of modules within the panel,
    such as "family".
    """
    sources = {}
    for key, value in data.items():
        sources[key] = f"module.exports = {_json(value)};"
    sources |= scripts
    return "\n".join(
        _module(f"{name}/{key}", source) for key, source in sources.items()
    )


def description(family: type[Family]) -> dict[str, Any]:
    """Return the words on a family for the page, and the limits of its parameters."""
    labels = family.labels()
    parameters = {}
    for name, declared in family.parameters().items():
        label = labels[name]
        parameters[name] = {
            "symbol": label.text,
            "unit": label.unit,
            "meaning": label.meaning,
            "whole": declared.kind.whole,
            **_limits(declared.kind),
        }
    # The page shows Python code that imports the class. All public families of this
    # package are attributes of its root.
    is_ours = family.__module__.startswith("icl_theory.")
    return {
        "name": family.name,
        "title": family.title,
        "module": "icl_theory" if is_ours else family.__module__,
        "class": family.__name__,
        "loss_unit": family.loss_unit,
        "parameters": parameters,
    }


def _limits(kind: Any) -> dict[str, float | None]:
    """Return the smallest and the largest value that a kind of parameter allows.

    An infinite limit is None, because JSON has no infinite numbers. A parameter that is
    not a number has no limits. A number may be negative if the attribute ``signed`` of
    its kind is true, and 0 if the attribute ``zero`` is true.
    """
    if not isinstance(kind, Number):
        return {}
    minimum = kind.minimum
    maximum = kind.maximum
    smallest_positive = math.ulp(0.0)
    if isinstance(kind, Fraction):
        # A fraction lies strictly between 0 and 1.
        minimum = smallest_positive
        maximum = math.nextafter(1.0, 0.0)
    elif kind.whole:
        # The numbers of JavaScript are floats, which hold every integer only up to
        # EXACT.
        maximum = min(maximum, EXACT)
    elif kind.signed:
        minimum = -maximum
    elif not kind.zero:
        minimum = max(minimum, smallest_positive)
    return {"minimum": _finite_or_none(minimum), "maximum": _finite_or_none(maximum)}


def _finite_or_none(value: float) -> float | None:
    """Return a number if it is finite, and otherwise None."""
    return value if math.isfinite(value) else None


def _module(name: str, source: str) -> str:
    """Return a script as a module that other modules can require by its name.

    ``modules.js`` defines the function ``explorer.define``.
    """
    return f'explorer.define("{name}", function (module, require) {{\n{source}}});'


def _json(value: Any) -> str:
    r"""Return a value as JSON for a script element of HTML.

    A "</" in a text could end the element, so it is written as "<\/", which means the
    same in JSON.
    """
    return json.dumps(value, allow_nan=False, ensure_ascii=False).replace("</", "<\\/")


def _read(path: Path) -> str:
    """Return the text of a file, whatever the default encoding of the system."""
    return path.read_text(encoding="utf-8")
