"""Ctrl-C while the first table or figure of a process loads what it needs.

python -m tests.presses 60

Each press has a process of its own, which is forked from one that has loaded no more
than a sweep needs. There Ctrl-C is pressed at one of the modules that a call loads. The
call then ends by KeyboardInterrupt, or with its answer, and the same call afterwards
gives its answer.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import icl_theory as icl
from icl_theory.engine.interrupts import _Deferred
from icl_theory.results.plots import save
from icl_theory.results.tables import write_table

GIVEN: dict[str, Any] = {
    "L": [1.0, 2.0, 3.0],
    "delta": 1.0,
    "eta": [1.0, 2.0],
    "progress": False,
}


def table(path: Path) -> Any:
    return icl.phase_table(icl.sweep(**GIVEN, store=path / "store"))


def written(path: Path) -> Any:
    dataset = icl.sweep(**GIVEN)
    for ending in ("csv", "md", "tex", "parquet"):
        write_table(dataset, path / f"table.{ending}")
    return icl.transition_table(dataset)


def figure(path: Path) -> Any:
    axes = icl.simulate(2.0, 1.0, 4.0).plot()
    for ending in ("svg", "png"):
        save(axes, path / f"figure.{ending}")
    return axes


CALLS: dict[str, Callable[[Path], Any]] = {
    "a table": table,
    "files of a table": written,
    "a figure": figure,
    "a figure of a sweep": lambda path: icl.plot_sweep(icl.sweep(**GIVEN)),
    "a report of a run": lambda path: icl.html_report(icl.simulate(2.0, 1.0, 4.0)),
    "a report of a sweep": lambda path: icl.html_report(icl.sweep(**GIVEN)),
    "a labelled run": lambda path: icl.simulate(2.0, 1.0, 4.0).to_xarray(),
}


def exposed(call: Callable[[Path], Any], path: Path) -> list[str]:
    """Return the packages and compiled modules that a call loads while Ctrl-C would end their loading.

    A module of Python alone is loaded again by the next call.
    """
    names = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and not isinstance(
            signal.getsignal(signal.SIGINT), _Deferred
        ):
            names.append(arguments[0])

    sys.addaudithook(hook)
    call(path)
    own = {"icl_theory", *sys.stdlib_module_names}
    others = {
        name
        for name in names
        if name in sys.modules and name.partition(".")[0] not in own
    }
    return sorted(
        name for name in others if "." not in name or not _is_python(sys.modules[name])
    )


def _is_python(module: Any) -> bool:
    return str(getattr(module, "__file__", "")).endswith(".py")


def pressed(call: Callable[[Path], Any], path: Path, at: int) -> str:
    """Press Ctrl-C at the n-th module that a call loads; return what is wrong afterwards."""
    left = [at]

    def hook(event: str, _: object) -> None:
        if event == "import":
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)

    sys.addaudithook(hook)
    try:
        call(path)
    except KeyboardInterrupt:
        pass
    except BaseException as error:
        return f"the first call: {type(error).__name__}: {error}"
    try:
        call(path)
    except BaseException as error:
        return f"the second call: {type(error).__name__}: {error}"
    return ""


def apart(act: Callable[[Path], str]) -> str:
    """Return what a function says in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        child = os.fork()
        if not child:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                said.write_text(act(Path(folder)))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return said.read_text() if said.exists() else "it crashed"


def main(count: int) -> int:
    """Print what is exposed, and what is wrong after ``count`` presses; return how much that is."""
    wrong = []
    for name, call in CALLS.items():
        names = apart(lambda path, call=call: ", ".join(exposed(call, path)))  # type: ignore[misc]
        if names:
            wrong.append(f"{name} loads {names}, and Ctrl-C would end that")
    rng = random.Random(0)
    for turn in range(count):
        name, call = [*CALLS.items()][turn % len(CALLS)]
        at = rng.randint(1, 600)
        fault = apart(lambda path, call=call, at=at: pressed(call, path, at))  # type: ignore[misc]
        if fault:
            wrong.append(f"{name}, at module {at}: {fault}")
    for line in wrong:
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"{len(CALLS)} calls, {count} presses, {len(wrong)} wrong\n")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1])) else 0)
