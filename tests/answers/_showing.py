"""How grids, tables, figures, files and commands are put into the record."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from icl_theory._version import __version__
from icl_theory.families import _Listed

PARTS, PLACE = r"(part-\d{6})-\w{8}-\w{16}", r"\1"
PICTURE = re.compile(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+")


def unversioned(text: str) -> str:
    """Return a text without the version of the package."""
    return text.replace(__version__, "VERSION")


def held(values: Any) -> Any:
    """Return an array as the record takes it: one value where all are the same, missing ones as None."""
    values = np.asarray(values)
    if values.dtype.kind in "OU":
        listed = [
            None if each is None or each is not each or str(each) == "<NA>" else each
            for each in values.ravel().tolist()
        ]
        same = len(listed) > 1 and all(each == listed[0] for each in listed)
        return {"all": listed[0], "size": len(listed)} if same else listed
    if values.size > 1 and (values == values.ravel()[0]).all():
        return {
            "all": values.ravel()[0].item(),
            "shape": list(values.shape),
            "of": values.dtype.name,
        }
    return values


def values_of(dataset: Any) -> dict[str, Any]:
    """Return what a dataset holds, without what it says of its quantities."""
    names = [*dataset.coords, *dataset.data_vars]
    found = {"dims": {str(name): int(size) for name, size in dataset.sizes.items()}}
    return found | {str(name): held(dataset[name].values) for name in names}


def said_of(dataset: Any) -> dict[str, Any]:
    """Return what a dataset says: its attributes, and those of parameters and quantities."""
    names = [*dataset.coords, *dataset.data_vars]
    attributes = {str(name): dict(dataset[name].attrs) for name in names}
    return json.loads(
        unversioned(
            json.dumps({"whole": dict(dataset.attrs), **attributes}, default=str)
        )
    )


def table_of(frame: Any) -> dict[str, Any]:
    """Return a table of pandas with what is attached to it."""
    columns = [
        [str(name), held(frame.iloc[:, place])]
        for place, name in enumerate(frame.columns)
    ]
    return {"columns": columns, "rows": len(frame), "attached": dict(frame.attrs)}


def drawing(figure: Any) -> Any:
    """Return all that a figure shows, with colours and looks, by its axes."""
    from matplotlib.collections import LineCollection, QuadMesh
    from matplotlib.colors import to_hex
    from matplotlib.text import Text

    figure = getattr(figure, "figure", figure)
    figure = getattr(figure, "figure", figure) or figure
    found = []
    for ax in figure.axes:
        words = [
            [
                each.get_text(),
                *(
                    " ".join(f"{float(value):.6g}" for value in place)
                    for place in (
                        each.get_position(),
                        *([each.xy] if hasattr(each, "xy") else []),
                    )
                ),
                to_hex(each.get_color()),
                each.get_ha(),
                each.get_fontsize(),
            ]
            for each in ax.findobj(Text)
            if each.get_text()
        ]
        told: dict[str, Any] = {
            "limits": [ax.get_xlim(), ax.get_ylim()],
            "scales": [ax.get_xscale(), ax.get_yscale()],
            "words": words,
        }
        told["lines"] = [
            [
                str(line.get_label()),
                to_hex(line.get_color()),
                line.get_linestyle(),
                str(line.get_marker()),
                str(line.get_markerfacecolor()),
                line.get_linewidth(),
                *(
                    np.ma.filled(np.ma.asarray(part, float), np.nan)
                    for part in line.get_data()
                ),
            ]
            for line in ax.lines
        ]
        told["shapes"] = [
            [
                to_hex(shape.get_facecolor(), True),
                np.asarray(shape.get_path().vertices, float),
                np.asarray(shape.get_xy(), float),
                [getattr(shape, f"get_{side}", str)() for side in ("width", "height")],
            ]
            for shape in ax.patches
            if hasattr(shape, "get_xy")
        ]
        told["many"] = []
        kept: list[Any]
        for many in (*ax.collections, *ax.images):
            if isinstance(many, LineCollection):
                segments = [
                    np.asarray(each, float)
                    for each in many.get_segments()
                    if np.ndim(each) == 2
                ]
                kept = [np.concatenate(segments or [np.zeros(0)])]
            elif isinstance(many, QuadMesh):
                kept = [
                    np.asarray(many.get_coordinates(), float),
                    many.get_cmap()(0.3),
                    many.get_cmap()(0.9),
                ]
            else:
                paths = (
                    [np.asarray(path.vertices, float) for path in many.get_paths()]
                    if hasattr(many, "get_paths")
                    else []
                )
                kept = [
                    " ".join(
                        to_hex(each, True)
                        for each in getattr(many, "get_facecolor", list)()
                    )
                ]
                kept += [np.concatenate(paths)] if paths else []
            if many.get_array() is not None:
                kept.append(
                    np.ma.filled(np.ma.asarray(many.get_array(), float), np.nan)
                )
            told["many"].append([type(many).__name__, *kept])
        found.append(told)
    legends = [
        [text.get_text() for text in legend.get_texts()] for legend in figure.legends
    ]
    return {
        "size": figure.get_size_inches().tolist(),
        "legends": legends,
        "axes": found,
    }


def plotted(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call whose answer is the drawing of a figure."""
    return lambda: drawing(make())


def content(path: Path) -> Any:
    """Return what is in a file, as far as it is the same on every machine."""
    if path.suffix.lower() in (".png", ".pdf", ".gif", ".mp4"):
        return path.read_bytes()[:4].decode("latin-1")
    if path.suffix == ".svg":
        return path.read_text(encoding="utf-8")[:5]
    if path.suffix == ".npz":
        with np.load(path) as kept:
            return {
                name: held(kept[name])
                for name in sorted(kept.files)
                if kept[name].dtype.kind in "fiub"
            }
    if path.name == "_sweep.json":  # the record of grids has all of it
        said = json.loads(unversioned(path.read_text(encoding="utf-8")))
        return {name: said[name] for name in ("arguments", "commands", "chunk")}
    if path.name.startswith("part-"):
        return "a part"
    if path.suffix == ".parquet":
        import pandas as pd

        return table_of(pd.read_parquet(path)) | {"attached": {}}
    text = PICTURE.sub("PICTURE", path.read_text(encoding="utf-8"))
    text = re.sub(
        r'"digest": "\w+"', "DIGEST", re.sub(r"\d{4}-\d\d-\d\d", "DATE", text)
    )
    text = re.sub(r"<style>.*?</style>", "STYLE", text, flags=re.DOTALL)
    lines = unversioned(text).splitlines()
    if path.suffix == ".html":  # the record of reports has all of them
        return [line for line in lines if re.match("<(h1|h2|pre|p>|footer)|icl", line)]
    return lines


def files(folder: str = ".") -> dict[str, Any]:
    """Return what is in all files below a folder; parts of stores under names without what depends on the version."""
    paths = sorted(
        path
        for path in Path(folder).rglob("*")
        if path.is_file() and path.name != ".lock"
    )
    return {re.sub(PARTS, PLACE, path.as_posix()): content(path) for path in paths}


@contextlib.contextmanager
def clocked(*places: str, tick: float = 0.25) -> Iterator[None]:
    """Have clocks that are read go on by the same time at every look."""
    times = iter(np.arange(0.0, 1e6, tick).tolist())
    with contextlib.ExitStack() as stack:
        for place in places:
            stack.enter_context(patch(place, lambda: next(times)))
        yield


def command(*lines: Iterable[str] | str, shown: bool = True, **environment: str) -> Any:
    """Run command lines one after the other in this process; return statuses, and what is in files in the end."""
    from icl_theory.cli import main

    statuses = []
    with patch.dict(os.environ, {"COLUMNS": "100", "TERM": "dumb", **environment}):
        for line in lines:
            try:
                main(line.split() if isinstance(line, str) else [*line])
            except SystemExit as stop:
                statuses.append(stop.code)
    return {"status": statuses, "files": files() if shown else sorted(files())}


def write(**texts: str) -> None:
    """Write texts to files in the present folder: ``a_csv`` is a.csv."""
    for name, text in texts.items():
        Path(name.replace("_", ".")).write_text(text, encoding="utf-8")


def every(asked: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Return the answers to some questions; a refusal of one is an answer, too."""
    found: dict[str, Any] = {}
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except (Exception, SystemExit) as error:
            found[name] = told(error)
    return found


def told(error: BaseException) -> str:
    """Return what an error says, without what depends on versions of the package and of libraries."""
    return f"{type(error).__name__}: {unversioned(re.sub(PARTS, PLACE, str(error)))}"


@contextlib.contextmanager
def installed(*families: Any, lines: tuple[str, ...] = ()) -> Iterator[None]:
    """Have families known as if other packages had brought them."""
    with patch(
        "icl_theory.families._installed",
        lambda: _Listed({each.name: each for each in families}, lines),
    ):
        yield


def refused(ask: Callable[..., Any], *given: Any, **more: Any) -> str:
    """Return what a call that is refused says, or that it is not."""
    try:
        ask(*given, **more)
    except (Exception, SystemExit) as error:
        return told(error)
    return "not refused"


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return a value of JSON as what is at each of its places, by their names."""
    if isinstance(value, dict):
        return {
            key: each
            for part, inner in value.items()
            for key, each in flat(inner, f"{name}.{part}").items()
        }
    if (
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(each, int | float) for each in value)
    ):
        return {name: np.array(value)}
    if isinstance(value, list) and value:
        return {
            key: each
            for i, inner in enumerate(value)
            for key, each in flat(inner, f"{name}[{i}]").items()
        }
    return {name: value}
