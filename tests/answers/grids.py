"""Grids, sweeps and stores: tiles, columns, evaluation, what is kept on disk and gone on with, estimates."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import icl_theory as icl
from icl_theory.sweeps import (
    estimate,
    evaluate,
    exponents,
    grid,
    manifest,
    model,
    store,
    sweep,
    workers,
)
from icl_theory.sweeps.grid import Axis, Column, Filled, Grid
from tests.answers import Call
from tests.answers._families import Bowl, Dish, Plain
from tests.answers._showing import (
    clocked,
    every,
    held,
    installed,
    refused,
    said_of,
    values_of,
)

Asked = Iterator[tuple[str, Call | Callable[[], Any]]]
X = Axis("x", np.array([3.0, 1.0, 2.0, 7.0, 5.0]), "m", "a length", True, "ξ", r"\xi")
N = Axis("n", np.array([4, 9, 2**53 + 1]), "", "a count", True)
W = Axis("w", np.array(["one", "other"]), "", "a word", True)
F = Axis("f", np.array([0.25]), "s", "a time", False, "t")
INFINITE = Axis("y", np.array([1.0, math.inf, -math.inf]), "", "a number", True)
COLUMNS = (
    Column("value", "f8", "m", "a length", "v", "v", "steps"),
    Column("many", "i8", "", "a count"),
    Column("sign", "i1", "", "a sign", role="verdict"),
    Column("word", "U5", "", "a word", role="word", extra=(("table", 1),)),
    Column("text", "O", "", "a text"),
)
QUIET: dict[str, Any] = {"progress": False}


def _all(made: Grid) -> dict[str, Any]:
    return {
        "grid": made,
        "sizes": made.sizes,
        "regions": [str(made.region(chunk)) for chunk in range(made.chunks)],
        "where": [made.where(chunk) for chunk in range(made.chunks)],
        "of_swept": made.of_swept(made.shape),
        "points": made.points(np.array([0, made.size // 2, made.size - 1])),
        "of tiles": [made.points_of(chunk) for chunk in (0, made.chunks - 1)],
    }


def _many(size: int, axes: int, chunk: int) -> Grid:
    return Grid.cut(
        tuple(Axis(f"a{i}", np.arange(float(size)), "", "", True) for i in range(axes)),
        chunk,
    )


def _cut(size: int, axes: int, chunk: int) -> Any:
    made = _many(size, axes, chunk)
    return [made.chunk, made.tile, made.tiles, made.chunks, made.sizes]


def _too_large(made: Grid) -> Any:
    with patch("icl_theory.sweeps.store.LARGEST", 100):
        return refused(_kept, made)


def _unnamed() -> Any:
    return lambda: 1


def layouts() -> Asked:
    for axes, chunk in (
        ((X,), 2),
        ((X, F, N), 4),
        ((N, W, X), 7),
        ((W, X), 100),
        ((F,), 1),
        ((X, W, F, N), 6),
    ):
        yield (
            f"{[axis.name for axis in axes]} by {chunk}",
            partial(lambda axes, chunk: _all(Grid(axes, chunk)), axes, chunk),
        )
    for size, axes, chunk in (
        (1000, 2, 1),
        (11, 6, 8),
        (7, 8, 8),
        (4000, 2, 65536),
        (10, 3, 10**7),
    ):
        yield f"cut {size} {axes} {chunk}", partial(_cut, size, axes, chunk)
    for chunk in (0, 2**20, 2**20 + 1, 1.5, True):
        yield f"chunk {chunk}", partial(lambda chunk: Grid((X,), chunk).chunk, chunk)
    yield "no points", lambda: Grid((Axis("x", np.zeros(0), "", "", True),), 3)
    yield (
        "too many chunks",
        lambda: Grid((Axis("x", np.arange(2.0**17 + 1), "", "", True),), 1),
    )
    yield (
        "as many chunks as may be",
        lambda: Grid((Axis("x", np.arange(2.0**17), "", "", True),), 1).chunks,
    )
    five = tuple(Axis(f"a{i}", np.arange(10.0), "", "", True) for i in range(5))
    yield (
        "too many chunks of five axes",
        lambda: Grid((*five, Axis("b", np.arange(2.0), "", "", True)), 1),
    )
    yield "too many points", lambda: _many(10**4, 5, 8)


def columns() -> Asked:
    yield (
        "blank",
        lambda: {name: held(each) for name, each in grid.blank(COLUMNS, 3).items()},
    )
    yield (
        "empty",
        lambda: [
            grid.empty(column) for column in (*COLUMNS, grid.STATUS, grid.MESSAGE)
        ],
    )
    yield (
        "uniform",
        lambda: {
            name: [held(each), each.dtype.str, each.flags.writeable]
            for name, each in grid.uniform(
                COLUMNS,
                2,
                {"value": 1.5, "word": "longer than five", "status": "failed"},
            ).items()
        },
    )
    yield (
        "as_block",
        lambda: [
            grid.as_block(np.array(given), (2, 3))
            for given in ([7.0], [1.0, 2, 3, 4, 5, 6])
        ],
    )
    for given in (
        [1.0, 1.0],
        [math.nan, math.nan],
        [0.0, -0.0],
        [1.0, 2.0, 1.0],
        ["a", "a"],
        ["a", "b"],
        [3, 3, 3],
        [5.0],
    ):
        yield f"once {given}", partial(lambda given: grid.once(np.array(given)), given)
    yield "bytes_of", lambda: [grid.bytes_of(COLUMNS, 10), grid.bytes_of((), 1)]
    with_free = partial(patch, "icl_theory.sweeps.grid.free")

    def room() -> Any:
        with with_free(lambda: 1000.0):
            made = Grid((X,), 2)
            return [
                grid.room(1e9),
                grid.room(10.0),
                grid.room(1e9, 0.5),
                [grid.is_large(COLUMNS, made, most) for most in (249.0, 1e9)],
                grid.is_large((), made),
            ]

    yield "room", room
    yield (
        "described",
        lambda: [
            grid.described(each)
            for each in (X, F, N, *COLUMNS, Column("c", "f8", "", ""))
        ],
    )
    yield "defaults of a column", lambda: Column("c", "f8", "u", "d")
    yield "plain", lambda: [axis.plain for axis in (X, N, W)]
    yield (
        "whole_numbers",
        lambda: [
            grid.whole_numbers(np.array(each))
            for each in (
                [1.0, -3.0],
                [1.0, math.inf],
                [2.0**63],
                [-(2.0**62)],
                [2.7, 1.0],
            )
        ],
    )


def filled() -> Asked:
    class Stops:
        size, shape = 2, (2,)

        def reshape(self, lengths: Any) -> Any:
            raise KeyboardInterrupt

    def placed(interrupted: bool) -> Any:
        made = Grid((X, W), 4)
        there = Filled(COLUMNS, made)
        values = {
            "value": np.array([1.0, 2, 3, 4]),
            "many": np.array([7]),
            "sign": np.array([1, 0, -1, 1]),
            "word": np.array(["a", "b", "c", "d"]),
            "text": np.array(["t"], object),
            "status": np.array(["failed"]),
            "message": np.array(["m", "", "", "n"], object),
        }
        there.place(1, values)
        if interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                there.place(1, values | {"sign": Stops()})  # type: ignore[dict-item]
        there.place(
            2,
            {
                name: value[:1] if value.size == 1 else value[:2]
                for name, value in values.items()
            },
        )
        return {name: held(value) for name, value in there.values().items()}

    yield "placed", partial(placed, False)
    yield "interrupted", partial(placed, True)
    yield (
        "assembled",
        lambda: (lambda found: [values_of(found), said_of(found)])(
            grid.assembled(
                Grid((X, F, W), 4), COLUMNS, grid.blank(COLUMNS, 10), {"title": "of it"}
            )
        ),
    )

    def checked(given: Any) -> Any:
        return [icl.families.Number(maximum=50.0).check("x", each) for each in given]

    def words(given: Any) -> Any:
        return [str(each) for each in given]

    for given, check in (
        (2.0, checked),
        ([3.0, 1.0], checked),
        ([], checked),
        ([[1.0]], checked),
        ([1.0, 2.0, 1.0, 2.0], checked),
        ([51.0, 2.0], checked),
        ("a", words),
        (["a", "b"], words),
        (["b", "b"], words),
        (np.array([0.1, 0.1]), checked),
        (range(3, 5), checked),
        (b"x", words),
        (np.array(4.0), checked),
    ):
        yield (
            f"axis {given!r} {check.__name__}",
            partial(
                lambda given, check: grid.axis_values("x", given, check), given, check
            ),
        )


@dataclass(frozen=True)
class Cubes:
    """x³ and what follows; some x fail in ways of their own, or press Ctrl-C."""

    pressed: float = math.nan

    @property
    def columns(self) -> tuple[Column, ...]:
        return COLUMNS

    def evaluate(self, points: Mapping[str, Any]) -> Any:
        x = points["x"]
        if (x == self.pressed).any():
            raise KeyboardInterrupt
        if (x == 7.0).any():
            raise ValueError("x = 7.0: must be\n  another")
        if (x == 5.0).any():
            raise OverflowError("half of a letter \ud800 and " + 120 * "long ")
        values = grid.blank(COLUMNS, len(x))
        values["value"], values["many"], values["sign"][:] = x**3, x.astype(int), 1
        values["word"][:], values["status"][:] = (
            np.where(x > 1.5, "much", "few"),
            "reached",
        )
        values["text"][:] = [f"text of {each}" if each == 3.0 else "" for each in x]
        return values


class Odd(Executor):
    """An executor that loses some of what it is given."""

    def __init__(self, loses: Mapping[int, BaseException]) -> None:
        self.loses, self.asked = loses, 0

    def submit(self, task: Any, /, *given: Any, **more: Any) -> Any:
        future: Future[Any] = Future()
        lost = self.loses.get(self.asked)
        self.asked += 1
        if lost is None:
            future.set_result(task(*given, **more))
        else:
            future.set_exception(lost)
        return future


def _evaluated(made: Grid, which: Any = Cubes(), **more: Any) -> Any:
    seen: list[Any] = []
    found = evaluate.evaluate(
        made, which, progress=lambda *each: seen.append(each), **more
    )
    return {
        "values": {name: held(each) for name, each in found.values.items()},
        "interrupted": found.interrupted,
        "progress": seen,
    }


def _kept(
    made: Grid,
    where: str = "kept",
    argument: Any = 1,
    command: str | None = None,
    columns: Any = COLUMNS,
    which: Any = Cubes(),
    **more: Any,
) -> Any:
    with store.opened(
        where, made, columns, {"version": "1", "seed": argument}, command
    ) as there:
        found = _evaluated(made, which, storage=there, **more)
        return found | {"done": there.done, "commands": [*there.commands]}


def evaluation() -> Asked:
    made = Grid((X, W), 3)
    yield "all", partial(_evaluated, made)
    yield (
        "threads",
        lambda: {
            name: value
            for name, value in _evaluated(made, executor=ThreadPoolExecutor(2)).items()
            if name == "values"
        },
    )
    yield "not held", partial(_evaluated, made, hold=False)
    yield "interrupted", partial(_evaluated, made, Cubes(pressed=2.0))
    errors = {
        "lost": OSError("it is\nlost"),
        "refused": ValueError("no"),
        "gone": BrokenExecutor("a worker died"),
        "cancelled": CancelledError(),
    }
    for name, error in errors.items():
        yield (
            f"executor: {name}",
            partial(lambda error: _evaluated(made, executor=Odd({1: error})), error),
        )
    yield (
        "executor: lost and stored",
        lambda: [_kept(made, executor=Odd({1: OSError("lost")})), _kept(made)],
    )
    yield (
        "parts",
        patch.object(evaluate, "MOST_CHUNKS", 1)(
            lambda: [
                [chunk, keep]
                for chunk, _, keep in evaluate._finished_chunks(
                    made,
                    Cubes(),
                    np.array([3, 1]),
                    Odd({}),
                    partial(
                        evaluate._evaluate_chunk,
                        Cubes(),
                        made,
                        (evaluate._HOME, os.getpid()),
                    ),
                )
            ]
        ),
    )
    yield (
        "one_line",
        lambda: [
            evaluate.one_line(error)
            for error in (
                ValueError("a\n b"),
                ValueError(),
                OSError(2, "none", "f"),
                KeyError("k"),
                TypeError(""),
                ValueError(600 * "x"),
                RuntimeError("\ud800"),
            )
        ],
    )
    yield (
        "failed",
        lambda: {
            name: held(each)
            for name, each in evaluate.failed(
                COLUMNS, 2, ZeroDivisionError("by 0")
            ).items()
        },
    )
    yield (
        "plain texts",
        lambda: evaluate._plain_texts(
            np.array([["a", "é"], ["\udc00b", 1001 * "c"]], object)
        ),
    )
    yield (
        "exponents",
        lambda: [
            exponents.local_exponent(np.array(steps), np.array(values), axis)
            for steps, values, axis in (
                ([100, 25, 400], [1.0, 2.0, 0.5], 0),
                ([8, 0, 2, 1], [1.0, 2.0, 4.0, 8.0], 0),
                ([[1, 2, 8], [-1, 3, 9]], [1.0, 2.0, 3.0], 1),
                ([[1, 2], [5, 3], [25, 9]], [1.0, 5.0, 25.0], 0),
            )
        ],
    )
    yield (
        "all points that fail",
        partial(_evaluated, Grid((Axis("x", np.array([7.0, 5.0]), "", "", True),), 2)),
    )


def stores() -> Asked:
    made = Grid((X, W), 3)
    other = {"grid": Grid((X, W), 4), "argument": Grid((X, W), 3)}

    def again(*damage: Callable[[Path], Any], **more: Any) -> Any:
        _kept(made, command="first 'call'")
        said = [each(Path("kept")) for each in damage]
        return {
            "said": [str(each) if isinstance(each, Path) else each for each in said],
            "again": every({"again": partial(_kept, made, command="second", **more)}),
            "names": sorted(name.split("-")[0] for name in os.listdir("kept")),
        }

    def part(folder: Path, chunk: int = 1) -> Path:
        return next(folder.glob(f"part-{chunk:06d}-*"))

    def cut(folder: Path) -> None:
        part(folder).write_bytes(part(folder).read_bytes()[:-1])

    def flipped(folder: Path) -> None:
        part(folder).write_bytes(b"x" + part(folder).read_bytes()[1:])

    def longer(folder: Path) -> None:
        part(folder).write_bytes(part(folder).read_bytes() + b"x")

    def renamed(folder: Path) -> None:
        part(folder).rename(
            folder
            / part(folder).name.replace("part-000001", "part-000003").replace("x", "x")
        )

    def beyond(folder: Path) -> None:
        part(folder).rename(
            folder / part(folder).name.replace("part-000001", "part-000009")
        )

    def moved(folder: Path) -> None:
        part(folder, 3).unlink()
        part(folder).rename(
            folder / part(folder).name.replace("part-000001", "part-000003")
        )

    def removed(folder: Path) -> None:
        part(folder).unlink()

    def stranger(folder: Path) -> None:
        (folder / "notes.txt").write_text("mine")

    def passing(folder: Path) -> None:
        (folder / ".passing-1").write_text("half")

    def linked(folder: Path) -> None:
        there = part(folder)
        there.rename(folder.parent / "elsewhere")
        there.symlink_to(Path("elsewhere").absolute())

    def no_manifest(folder: Path) -> None:
        (folder / "_sweep.json").unlink()

    def manifest_folder(folder: Path) -> None:
        no_manifest(folder)
        (folder / "_sweep.json").mkdir()

    def old(folder: Path) -> None:
        no_manifest(folder)
        (folder / "zarr.json").write_text("{}")

    def manifest_changed(folder: Path) -> None:
        (folder / "_sweep.json").write_text(
            (folder / "_sweep.json").read_text().replace("first", "First")
        )

    def manifest_format(folder: Path) -> None:
        (folder / "_sweep.json").write_text(
            '{"format": "a format of more than twenty letters"}'
        )

    def no_json(folder: Path) -> None:
        (folder / "_sweep.json").write_text("{")

    def emptied(folder: Path) -> None:
        for path in folder.iterdir():
            path.unlink()

    for damage in (
        cut,
        flipped,
        longer,
        renamed,
        beyond,
        moved,
        removed,
        stranger,
        passing,
        linked,
        no_manifest,
        manifest_folder,
        old,
        manifest_changed,
        manifest_format,
        no_json,
        emptied,
    ):
        yield f"damage: {damage.__name__}", partial(again, damage)
        yield (
            f"existing: {damage.__name__}",
            partial(
                lambda damage: [
                    _kept(made) and None,
                    damage(Path("kept")),
                    every(
                        {
                            "opened": lambda: (
                                lambda there: [
                                    there.done,
                                    there.commands,
                                    every(
                                        {
                                            "read": lambda: [
                                                there.read(chunk, COLUMNS[:2])
                                                for chunk in np.flatnonzero(there.done)
                                            ]
                                        }
                                    ),
                                ]
                            )(store.existing("kept"))
                        }
                    ),
                ],
                damage,
            ),
        )
    yield (
        "interrupted, and gone on with",
        lambda: [
            _kept(made, which=Cubes(pressed=2.0)),
            _kept(made),
            store.existing("kept").done,
        ],
    )
    yield (
        "the same command is kept once",
        lambda: [
            _kept(made, command=each)["commands"] for each in ("a", "b", "a", None)
        ],
    )
    yield "another chunk", lambda: [_kept(made) and None, refused(_kept, other["grid"])]
    yield (
        "another argument",
        lambda: [_kept(made) and None, refused(_kept, made, argument=2)],
    )
    yield (
        "another axis",
        lambda: [
            _kept(made) and None,
            refused(_kept, Grid((X, W._replace(values=np.array(["one", "two"]))), 3)),
            refused(_kept, Grid((X._replace(values=X.values[:4]), W, F), 3)),
            refused(_kept, Grid((W, X), 3)),
        ],
    )
    yield (
        "other columns",
        lambda: [
            _kept(made) and None,
            refused(
                _kept,
                made,
                columns=(COLUMNS[0]._replace(description=80 * "long "), *COLUMNS[1:]),
            ),
            refused(_kept, made, columns=COLUMNS[:2]),
        ],
    )
    yield "not held", partial(_kept, made, hold=False)

    def two() -> Any:
        with store.opened("kept", made, COLUMNS, {"version": "1", "seed": 1}):
            return refused(_kept, made)

    yield "open elsewhere", two
    yield (
        "a file in its place",
        lambda: [
            Path("kept").write_text("x"),
            refused(_kept, made),
            refused(store.existing, "kept"),
        ],
    )
    yield (
        "no folder",
        lambda: [
            refused(store.existing, "none"),
            refused(store.existing, ""),
            refused(_kept, made, "a/b"),
        ],
    )
    yield "too large", partial(_too_large, made)
    yield (
        "not installed",
        lambda: [
            refused(
                store.check_installed, "numpy", "no_such_library", extra="distributed"
            ),
            refused(store.check_installed, "no_such_library"),
            refused(store.check_installed, "numpy"),
        ],
    )

    def system(number: int) -> str:
        def fails() -> None:
            with store.plain_errors(Path("there")):
                raise OSError(number, "as the system says", "a file")

        return refused(fails)

    yield (
        "what the system refuses",
        lambda: [system(each) for each in (errno.ENOSPC, errno.EDQUOT, errno.EACCES)],
    )
    yield (
        "table",
        lambda: (lambda table: [str(table.schema), table.to_pydict()])(
            store._table(
                {
                    "a": np.array([1.5]),
                    "b": np.array([1, 2, 3]),
                    "c": np.array(["x"]),
                    "d": np.array(["x", "", "z"], object),
                    "e": np.array([1, 0, -1], "i1"),
                },
                3,
            )
        ),
    )

    def lazily() -> Any:
        _kept(made, which=Cubes(pressed=5.0))
        values = store.lazy_values(store.existing("kept"))
        return {
            name: [str(each.chunks), held(each.compute(scheduler="synchronous"))]
            for name, each in values.items()
        }

    yield "lazily", lazily

    def read_wrong(column: Column, chunk: int = 0) -> str:
        return refused(store.existing("kept").read, chunk, [column])

    yield (
        "columns that are not there",
        lambda: [
            _kept(made) and None,
            *(
                read_wrong(column)
                for column in (
                    Column("none", "f8", "", ""),
                    Column("many", "f8", "", ""),
                    Column("word", "U2", "", ""),
                    Column("value", "U5", "", ""),
                )
            ),
        ],
    )
    yield (
        "parquet is read by others",
        lambda: [
            _kept(made) and None,
            [
                (lambda frame: [list(frame.columns), frame.to_dict("list")])(
                    _read_parquet(path)
                )
                for path in sorted(Path("kept").glob("*.parquet"))
            ],
        ],
    )


def _read_parquet(path: Path) -> Any:
    import pandas as pd

    return pd.read_parquet(path).fillna("none")


def manifests() -> Asked:
    made = manifest.Manifest(
        Grid((X, INFINITE, N, F, W), 5),
        (*COLUMNS, grid.STATUS, grid.MESSAGE),
        {"b": [1, {"x": 2.5}], "a": "é"},
    )
    yield "facts", lambda: made.facts
    yield (
        "written",
        lambda: [
            made.digest,
            json.loads(made.written(["one", "two"]))["digest"],
            made.written(["one"]).decode()[:300],
        ],
    )
    yield (
        "parsed",
        lambda: (
            lambda found: [
                found[0].facts == made.facts,
                found[1],
                found[0].grid,
                found[0].columns,
            ]
        )(manifest.parsed(made.written(["one", "two"]))),
    )
    names = {
        "two of a name": (Grid((X, X), 5), COLUMNS),
        "as a column": (Grid((X._replace(name="value"),), 5), COLUMNS),
        "no word": (Grid((X._replace(name="a b"),), 5), COLUMNS),
        "too many": (
            Grid(tuple(F._replace(name=f"f{i}") for i in range(31)), 5),
            COLUMNS,
        ),
        "type": (Grid((X,), 5), (Column("c", "f4", "", ""),)),
        "long": (Grid((X,), 5), (Column("c", "U1000", "", ""),)),
        "most": (
            Grid(tuple(F._replace(name=f"f{i}") for i in range(30)), 5),
            (Column("c", "U999", "", ""),),
        ),
    }
    for name, (laid, kept) in names.items():
        yield (
            f"names: {name}",
            partial(
                lambda laid, kept: manifest.Manifest(laid, kept, {}).columns, laid, kept
            ),
        )
    yield (
        "arguments that no file can say",
        lambda: [
            refused(
                lambda given: manifest.Manifest(Grid((X,), 5), COLUMNS, given).facts,
                given,
            )
            for given in ({"a": X}, {"b": 1, "a": (2, 3)})
        ],
    )
    yield (
        "digests",
        lambda: [
            manifest.digest(b""),
            manifest.digest(b"a", b"b"),
            manifest.digest(b"ab"),
            manifest.digest(b"ab", b""),
        ],
    )

    def changed(change: Callable[[Any], Any]) -> str:
        said = json.loads(made.written(["one"]))
        change(said)
        said.pop("digest")
        said |= {"digest": manifest.digest(manifest._bytes(said))}
        return refused(manifest.parsed, manifest._bytes(said))

    changes: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda said: None,
        "format 2": lambda said: said.update(format=2),
        "format 30 letters": lambda said: said.update(format=30 * "a"),
        "no axis value": lambda said: said["axes"][0].update(values=[]),
        "several fixed": lambda said: said["axes"][3].update(values=[0.1, 0.2]),
        "type": lambda said: said["axes"][0].update(type="float32"),
        "columns": lambda said: said["columns"].pop(),
        "chunk": lambda said: said.update(chunk=0),
        "commands": lambda said: said.update(commands=[1]),
        "extra": lambda said: said.update(more=1),
        "swept": lambda said: said["axes"][0].update(swept=1),
        "order of arguments": lambda said: said.update(arguments={"z": 1, "b": 2}),
        "no axes": lambda said: said.update(axes=[]),
        "axes": lambda said: said.update(axes=3),
    }
    for name, change in changes.items():
        yield f"changed: {name}", partial(changed, change)
    yield (
        "damaged",
        lambda: [
            refused(manifest.parsed, content)
            for content in (
                b"",
                b"\xff",
                b"[]",
                b"{}",
                made.written(["one"])[:-1],
                made.written(["one"]).replace(b"one", b"two"),
                made.written(["one"]) + b" ",
                b"[" * 100_000,
            )
        ],
    )
    base: dict[str, Any] = {
        "chunk": 3,
        "arguments": {"a": 1, "b": "x"},
        "axes": [
            {"name": "x", "values": [1, 2, 3, 4], "swept": True},
            {"name": "y", "values": [5], "swept": False},
        ],
        "columns": [{"name": "c", "dtype": "f8", "description": "of it"}],
    }
    others: dict[str, Any] = {
        "chunk": {"chunk": 4},
        "arguments": {"arguments": {"a": 2, "c": 70 * "y"}},
        "axes": {
            "axes": [
                base["axes"][0] | {"values": [1, 2, 3]},
                base["axes"][1] | {"values": [6]},
            ]
        },
        "columns": {
            "columns": [
                base["columns"][0] | {"description": "of another"},
                {"name": "d", "dtype": "i8", "description": "more"},
            ]
        },
        "order": {"axes": base["axes"][::-1]},
        "five": {"chunk": 4, "arguments": {"a": 2, "b": "y", "d": 1}, "axes": []},
        "longer axis": {
            "axes": [base["axes"][0] | {"values": [1, 2, 3, 4, 9.5]}, base["axes"][1]]
        },
    }
    for name, change in others.items():
        yield (
            f"difference: {name}",
            partial(
                lambda change: [
                    manifest.difference(base, base | change),
                    manifest.difference(base | change, base),
                ],
                change,
            ),
        )


def _swept(*given: Any, **more: Any) -> Any:
    return values_of(icl.sweep(*given, **QUIET, **more))


def _planned(family: Any, **given: Any) -> Any:
    made = sweep.plan(family, given)
    arguments = {
        name: value for name, value in made.arguments.items() if name != "version"
    }
    common = {
        name: repr(value) if name in ("made", "task", "features") else value
        for name, value in made.model.common.items()
    }
    return {"grid": made.grid, "common": common, "arguments": arguments}


def sweeps() -> Asked:
    yield (
        "bowl",
        lambda: (lambda found: [values_of(found), said_of(found)])(
            icl.sweep(
                Bowl,
                eta=[0.5, 0.3],
                width=[1.0, 3.0, 1.5],
                epsilon=0.01,
                count=[4, 3],
                **QUIET,
            )
        ),
    )
    yield (
        "words",
        partial(
            _swept, Bowl, eta="auto", shape=["flat", "round"], width=2.5, max_steps=9
        ),
    )
    yield (
        "dish",
        lambda: (lambda found: [values_of(found), said_of(found)["width"]])(
            icl.sweep(
                Dish, eta=[0.5, 0.01], width=[1.0, 2.5, 6.0, 3.0], max_steps=90, **QUIET
            )
        ),
    )
    yield (
        "dish, epsilon",
        partial(
            _swept,
            Dish,
            eta=0.01,
            width=[1.0, 2.5, 6.0, 45.0],
            share=0.25,
            epsilon=[0.02, 0.5],
            max_steps=90,
            shape="flat",
        ),
    )
    yield (
        "dish, above",
        partial(_swept, Dish, eta=0.01, width=[1.0, 2.5], above=0.02, max_steps=90),
    )
    yield "no target", partial(_swept, Plain, eta=[0.1, 1e3], width=[1.0], max_steps=40)
    yield (
        "one point",
        partial(_swept, Plain, eta=0.1, width="wide", above=0.03, max_steps=400),
    )
    yield (
        "regression",
        lambda: (lambda found: [values_of(found), said_of(found)])(
            icl.sweep(
                L=[0.3, 4.0, 1.0],
                delta=2.0,
                eta=[0.2],
                K=[3, 50],
                epsilon=1e-3,
                **QUIET,
            )
        ),
    )
    yield (
        "regression, exact",
        partial(
            _swept,
            L=[2.0],
            delta=1.0,
            eta=1.5,
            K=4,
            N=[5, math.inf],
            noise=0.2,
            above=1e-2,
            max_steps=60,
        ),
    )
    yield (
        "by name",
        partial(
            _swept,
            "recall",
            triggers=[4, 9],
            V=30,
            eta=0.3,
            alpha=[0.0, 0.1],
            counts=2,
            above=0.05,
            max_steps=300,
        ),
    )
    yield "by position", partial(_swept, 2.0, 1.0, [0.5, 1.0], epsilon=1e-2)
    yield (
        "class and position",
        partial(_swept, Plain, [1.0, 2.0], eta=0.3, epsilon=0.01),
    )
    yield (
        "interrupted",
        lambda: (lambda found: [values_of(found), found.attrs["interrupted"]])(
            _pressed()
        ),
    )
    for name, given in {
        "bowl": {"eta": [0.1], "width": [1.0, 2.0]},
        "bowl, many": {"eta": 0.1, "width": np.linspace(1, 2, 700).tolist()},
        "dish": {"eta": np.linspace(0.1, 0.2, 40), "width": [1.0, 2.0], "max_steps": 7},
        "dish, some": {
            "eta": np.linspace(0.1, 0.2, 40),
            "width": [1.0, 6.0, 7.0],
            "max_steps": 7,
        },
        "dish, nearly all": {
            "eta": np.linspace(0.1, 0.2, 40),
            "width": [1.0, 2.0, 6.0],
            "count": [2, 3, 4, 5],
            "tilt": [0.0, 1.0, 2.0, 3.0],
            "max_steps": 7,
        },
        "objects": {
            "eta": "auto",
            "made": {"a": 1},
            "sizes": (3, 4),
            "weights": (0.25, 0.75),
        },
        "count": {"eta": 0.1, "count": [2.0, 3.0]},
    }.items():
        yield (
            f"plan: {name}",
            partial(
                lambda family, given: _planned(family, **given),
                Dish if "dish" in name else Bowl,
                given,
            ),
        )
    closed = {"L": np.geomspace(0.1, 1, 20), "delta": 1.0, "eta": 0.1}
    yield "plan: closed", partial(_planned, icl.Regression, **closed)
    yield (
        "plan: closed, stepped",
        partial(_planned, icl.Regression, **closed, N=7, task=icl.tasks.Linear),
    )
    yield (
        "plan: batches",
        partial(
            _planned,
            icl.Regression,
            L=[1.0, 2.0],
            delta=1.0,
            eta=0.1,
            K=[3, 4],
            probs=None,
            N=[9, 8],
            noise=0.1,
            epsilon=0.1,
        ),
    )
    yield (
        "refusals",
        lambda: every(
            {
                "both targets": lambda: _planned(
                    Bowl, eta=0.1, epsilon=0.1, above=[0.2]
                ),
                "unknown": lambda: _planned(Bowl, eta=0.1, widht=2),
                "missing": lambda: _planned(Bowl),
                "missing width": lambda: _planned(Plain, eta=0.1),
                "twice": lambda: icl.sweep(Plain, 1.0, width=2.0, eta=0.1),
                "too many": lambda: icl.sweep(Plain, *range(9)),
                "no family": lambda: icl.sweep("regresion", L=1),
                "no class": lambda: icl.sweep(dict, L=1),
                "points": lambda: sweep._count(
                    Bowl,
                    {
                        "eta": range(3),
                        "width": [1, 2],
                        "shape": ["round"],
                        "count": 5,
                        "tilt": "ab",
                    },
                ),
                "empty": lambda: _planned(Bowl, eta=[]),
                "twice a value": lambda: _planned(Bowl, eta=[0.1, 0.2, 0.1]),
                "wrong": lambda: _planned(Bowl, eta=[0.1, -1.0]),
                "word": lambda: _planned(Bowl, eta=0.1, shape=["round", "square"]),
                "matrix": lambda: _planned(Bowl, eta=[[0.1]]),
                "auto among": lambda: _planned(Bowl, eta=["auto", 0.1]),
                "hopeless": lambda: _planned(
                    Bowl, eta=[0.1, 0.2], width=[41.0, 42.0][:1], shape="flat"
                ),
                "not quite": lambda: (
                    _planned(Bowl, eta=[0.1, 0.2], width=[1.0, 42.0], shape="flat")[
                        "grid"
                    ].size
                ),
                "steps": lambda: _planned(Bowl, eta=0.1, max_steps=0),
                "steps swept": lambda: _planned(Bowl, eta=0.1, max_steps=[5, 6]),
                "count": lambda: _planned(Bowl, eta=0.1, count=[2.5]),
                "executor": lambda: icl.sweep(Bowl, eta=0.1, executor=3),
                "both": lambda: icl.sweep(Bowl, eta=0.1, executor=Odd({}), workers=2),
                "workers": lambda: icl.sweep(Bowl, eta=0.1, workers=0),
                "many workers": lambda: icl.sweep(Bowl, eta=0.1, workers=10_001),
                "progress": lambda: icl.sweep(Bowl, eta=0.1, progress=1),
                "store": lambda: icl.sweep(Bowl, eta=0.1, store="", **QUIET),
            }
        ),
    )
    yield (
        "identity",
        lambda: [
            sweep._identity(each)
            for each in (
                True,
                3,
                "a",
                2.5,
                [1, (2.0, "b")],
                Plain,
                math.floor,
                math.inf,
                None,
                np.array([1.0, 2.5]),
            )
        ],
    )
    models = (
        model.FamilyModel(Bowl, {"made": 3}),
        model.FamilyModel(Bowl, {"a": 1, "made": _unnamed()}),
        model.FamilyModel(type("Local", (Bowl,), {}), {"a": 1}),
    )
    yield (
        "picklable",
        lambda: [
            re.sub("0x[0-9a-f]+", "THERE", refused(sweep.check_picklable, each))
            for each in models
        ],
    )

    def stored(*calls: dict[str, Any], large: bool = False) -> Any:
        said = []
        for given in calls:
            with (
                installed(Bowl, Dish),
                patch("icl_theory.sweeps.sweep.is_large", lambda columns, grid: large),
            ):
                found = icl.sweep(Bowl, store="it", **QUIET, **given)
                said.append(
                    [
                        found.attrs.get("command"),
                        found.attrs["interrupted"],
                        held(found["steps"].values),
                        type(found["steps"].data).__name__,
                    ]
                )
                read = icl.load_sweep("it")
        return [said, values_of(read.compute()), said_of(read)["whole"]]

    yield (
        "stored",
        partial(
            stored,
            {"eta": [0.5, 0.2], "width": [1.0, 2.0]},
            {"width": [1.0, 2.0], "eta": [0.5, 0.2], "epsilon": 0.01},
        ),
    )
    yield (
        "stored, large",
        partial(stored, {"eta": [0.5, 0.2], "width": [1.0, 2.0, 3.0]}, large=True),
    )
    yield (
        "stored, other call",
        lambda: [
            stored({"eta": [0.5]}) and None,
            refused(icl.sweep, Bowl, eta=[0.25], store="it", **QUIET),
            refused(icl.sweep, Bowl, eta=[0.5], count=4, store="it", **QUIET),
            refused(icl.sweep, Dish, eta=[0.5], width=1.0, store="it", **QUIET),
        ],
    )
    yield (
        "no family of the store",
        lambda: [
            _kept(Grid((X, W), 3), "it") and None,
            refused(icl.load_sweep, "it"),
            refused(icl.load_sweep, "nothing"),
        ],
    )

    def other_columns() -> Any:
        laid = sweep.plan(icl.Recall, {"triggers": [4]})
        with store.opened("it", laid.grid, laid.model.columns[:-1], laid.arguments):
            pass
        with store.opened("at", laid.grid, laid.model.columns, {"family": "recall"}):
            pass
        return [refused(icl.load_sweep, "it"), refused(icl.load_sweep, "at")]

    yield "other columns of the store", other_columns


def _pressed() -> Any:
    with patch.object(Bowl, "measure", side_effect=[{}, {}, {}, KeyboardInterrupt]):
        return icl.sweep(
            Bowl, eta=[0.5], width=np.linspace(1.0, 2.5, 10).tolist(), **QUIET
        )


def models() -> Asked:
    made = model.FamilyModel(Dish, {"max_steps": 50, "sizes": (2, 3)})
    points = {
        "eta": np.array([0.5, 0.01, 0.02, 0.03]),
        "width": np.array([1.0, 6.0, 2.5, 1.5]),
    }
    shown = partial(lambda values: {name: held(each) for name, each in values.items()})
    yield "batched", lambda: shown(made.batched(points))
    yield (
        "batched, epsilon",
        lambda: shown(
            made.batched(points | {"epsilon": np.array([1.0, 2.0, 0.25, 0.125])})
        ),
    )
    yield (
        "batched, above, shares",
        lambda: shown(
            made.batched(
                points
                | {"above": np.array([1.0, 2.0, 0.25, 0.125]), "share": np.full(4, 0.1)}
            )
        ),
    )
    yield "batched, other steps", lambda: shown(made.batched(points, max_steps=400))
    yield "nothing batched", lambda: shown(model.FamilyModel(Bowl, {}).batched(points))
    yield "evaluated", lambda: shown(made.evaluate(points))
    yield (
        "one by one",
        lambda: shown(
            made.one_by_one(points | {"width": np.array([3.0, 1.0, 51.0, 2.0])})
        ),
    )
    yield (
        "problem",
        lambda: [
            made.problem(
                {
                    "eta": np.float64(0.5),
                    "width": np.array(2.0),
                    "shape": np.str_("flat"),
                },
                count=9,
            ).arguments(),
            made.columns,
        ],
    )


def _estimated(
    family: Any,
    workers: int = 1,
    given: Mapping[str, Any] | None = None,
    free: float = 8e9,
    tick: float = 0.25,
    **more: Any,
) -> Any:
    with (
        clocked("icl_theory.sweeps.estimate.time.perf_counter", tick=tick),
        patch("icl_theory.sweeps.estimate.free", lambda: free),
        patch("icl_theory.sweeps.grid.free", lambda: free),
    ):
        return [*estimate.estimate(sweep.plan(family, given or {}), workers, **more)]


def estimates() -> Asked:
    bowl = {"eta": [0.1, 0.2], "width": [1.0, 2.0, 4.0], "epsilon": 1e-6}
    yield "alone", partial(_estimated, Bowl, given=bowl)
    yield "three workers", partial(_estimated, Bowl, 3, given=bowl)
    yield "one point", partial(_estimated, Bowl, given={"eta": 0.1})
    yield (
        "one chunk of eight",
        partial(_estimated, Bowl, given={"eta": np.linspace(0.1, 0.2, 8)}),
    )
    yield "failing", partial(_estimated, Bowl, given={"eta": [0.1], "width": [3.0]})
    yield (
        "failing together",
        partial(
            _estimated,
            Dish,
            given={
                "eta": np.linspace(0.1, 0.4, 30),
                "width": [3.0, 5.5],
                "max_steps": 100,
            },
        ),
    )
    yield (
        "together",
        partial(
            _estimated,
            Dish,
            2,
            given={
                "eta": np.linspace(0.1, 0.4, 30),
                "width": [1.0, 5.5, 2.0],
                "max_steps": 100,
            },
        ),
    )
    yield (
        "together, slow",
        partial(
            _estimated,
            Dish,
            given={
                "eta": np.linspace(0.1, 0.4, 300),
                "width": [1.0, 2.0],
                "max_steps": 100,
            },
            tick=2.0,
        ),
    )
    yield (
        "about",
        partial(
            _estimated,
            Dish,
            given={"eta": np.linspace(0.1, 0.4, 300), "width": [1.0, 5.5, 2.0]},
            asked=100,
        ),
    )
    yield "no memory known", partial(_estimated, Bowl, given=bowl, free=math.inf)
    yield "large", partial(_estimated, Bowl, given=bowl, free=1000.0)
    yield (
        "long",
        partial(
            _estimated,
            Bowl,
            given={"eta": [1e-4], "epsilon": 1e-9},
            tick=1.0,
            budget=5.0,
        ),
    )
    yield (
        "long, exact",
        partial(
            _estimated,
            Bowl,
            given={"eta": [1e-4], "epsilon": 1e-9, "method": "exact"},
            tick=1.0,
        ),
    )
    yield (
        "max_steps",
        partial(
            _estimated,
            Bowl,
            given={"eta": [1e-4, 1e-5], "epsilon": 1e-9, "max_steps": 20},
            tick=1.0,
        ),
    )
    yield (
        "closed",
        partial(
            _estimated,
            icl.Regression,
            2,
            given={
                "L": np.geomspace(0.1, 10, 40),
                "delta": 1.0,
                "eta": 0.1,
                "K": [3, 9],
            },
        ),
    )
    seen = [(float(i), 10 * i * i + 5) for i in range(6)]
    yield (
        "left",
        lambda: [
            estimate._remaining(
                [estimate.Progressed(*moment) for moment in each], expected, whole
            )
            for each in (seen, seen[:2], seen[:3])
            for expected in (1e4, 200.0, math.inf)
            for whole in (True, False)
        ],
    )


def clusters() -> Asked:
    def connected(reach: Any = None, wait: Any = None) -> Any:
        closed: list[Any] = []

        class Client:
            def __init__(self, address: str, **given: Any) -> None:
                closed.append([address, given])

            def wait_for_workers(self, count: int, timeout: float) -> None:
                closed.append([count, timeout])
                if wait is not None:
                    raise wait

            def get_executor(self, **given: Any) -> Any:
                return given

            def close(self, timeout: float) -> None:
                closed.append(["closed", timeout])

        class There:
            async def close(self) -> None:
                closed.append("probed")

        async def reached(address: str, timeout: float) -> Any:
            if reach is not None:
                raise reach
            return There()

        with (
            patch("distributed.Client", Client),
            patch("distributed.comm.core.connect", reached),
        ):
            try:
                with workers.cluster("tcp://there:1") as executor:
                    return [executor, closed]
            except ValueError as error:
                return [str(error), closed]

    yield "reached", connected
    yield (
        "no scheduler",
        lambda: [connected(OSError("nobody")), connected(ValueError())],
    )
    yield "no workers", lambda: connected(wait=TimeoutError())

    def without() -> Any:
        with patch.dict("sys.modules", {"distributed": None}), workers.cluster("a"):
            pass

    yield "not installed", without
