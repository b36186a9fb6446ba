"""Runs read from files, which may come from a stranger: nothing is allocated or believed before it is checked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import choice, instance, integer, number, refuse, signed
from icl_theory.engine.descent import METHODS
from icl_theory.engine.trajectory import Label, Phases, Stop, Trajectory, named
from icl_theory.files import checked_path
from icl_theory.memory import check_fits

UNKNOWN = ("steps", "phases", "regime", "command", "version", "error", "states_error", "family")  # may be None


def read_run(path: str | os.PathLike[str]) -> Trajectory:
    """Read what `Trajectory.save` has written; ``family`` is what the file says of it, see `icl_theory.load`."""
    try:
        file = checked_path(path)
        if file.is_dir():
            raise ValueError("it is a folder; icl_theory.load_sweep reads the store of a sweep")
        with open(file, "rb") as stream:
            check_fits("path", os.fspath(path), 3.0 * os.fstat(stream.fileno()).st_size)
            arrays = _arrays(stream)
        return _checked(arrays, json.loads(str(arrays.pop("meta")[()])))
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # damage shows as anything, a SyntaxError of a header among others
        reason = " ".join(str(error).split())[:200]
        raise refuse("path", path, f"a file written by Trajectory.save ({reason})") from None


def _arrays(stream: BinaryIO, most: int = 100) -> dict[str, NDArray[Any]]:
    """Read the arrays of an archive that holds, byte by byte, what it claims: then they fit, as the file does."""
    with ZipFile(stream) as archive:
        members = archive.infolist()
        claimed = sum(member.file_size for member in members)
        if len(members) > most or claimed > os.fstat(stream.fileno()).st_size:
            raise ValueError("it claims more than it holds")
        if any(member.compress_type for member in members):
            raise ValueError("it is compressed")
        if (damaged := archive.testzip()) is not None:  # NumPy stops where a header says that an array ends
            raise ValueError(f"{damaged} is damaged")
    stream.seek(0)
    with np.load(stream) as file:
        return dict(file)


def _checked(arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> Trajectory:
    t, loss, states = (arrays.pop(name) for name in ("t", "loss", "states"))
    observed = named({name.removeprefix("observed_"): values for name, values in arrays.items()})
    if t.dtype != np.int64 or t.ndim != 1 or not t.size or t[0] != 0 or (np.diff(t) <= 0).any():
        raise ValueError("t has no increasing steps from 0 on")
    if loss.shape != t.shape:
        raise ValueError(f"loss has shape {loss.shape}, and {t.shape} is right")
    for name, values in {"loss": loss, "states": states, **observed}.items():
        if values.shape[:1] != t.shape or values.dtype.kind not in "fiub" or not np.isfinite(values).all():
            raise ValueError(f"{name} is not a finite number or array at each of {len(t)} steps")
    step = partial(integer, "step", minimum=0, maximum=int(t[-1]))

    def phases(found: dict[str, Any]) -> Phases:
        every = {name: pair and (step(pair[0]), step(pair[1])) for name, pair in found.items()}
        if any(pair and pair[0] > pair[1] for pair in every.values()):
            raise ValueError("a phase ends before it begins")
        return Phases(every)

    def error(value: Any) -> float:
        return math.inf if value == math.inf else number("error", value, zero=True)

    checks: dict[str, Callable[[Any], Any]] = {
        "stop": Stop.__getitem__, "eta": partial(number, "eta"), "steps": step, "phases": phases, "family": dict,
        "method": lambda method: choice("method", method, METHODS),
        "notes": lambda notes: {name: _text(note) for name, note in notes.items()},
        "info": lambda info: {name: math.inf if value == "inf" else value for name, value in info.items()},
        "labels": lambda labels: {name: Label(*map(_text, label)) for name, label in labels.items()},
        **dict.fromkeys(("floor", "epsilon"), partial(signed, "floor or epsilon")),
        **dict.fromkeys(("error", "states_error"), error),
        **dict.fromkeys(("stop_reason", "rule", "regime", "command", "version"), _text),
    }  # fmt: skip
    absent = {name for name in UNKNOWN if meta[name] is None}
    facts: dict[str, Any] = {n: None if n in absent else check(meta[n]) for n, check in checks.items()}
    run = Trajectory(t=t, loss=loss, states=states, observed=observed, **facts)
    if meta["holds"] != (holds := run.holds()):
        raise ValueError(f"it says that it holds {meta['holds']}, and holds {holds}")
    return run


def _text(value: Any) -> str:
    return instance("text", value, str, "text")
