"""Runs read from files, which may come from a stranger: nothing is allocated or believed before it is checked."""

from __future__ import annotations

import json
import math
import os
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from icl_theory._validate import choice, integer, number, refuse, signed
from icl_theory.engine.descent import METHODS
from icl_theory.engine.trajectory import Interval, Label, Phases, Stop, Trajectory, named
from icl_theory.files import checked_path
from icl_theory.memory import check_fits

MOST_ARRAYS = 100


def read_run(path: str | os.PathLike[str]) -> Trajectory:
    """Read what `Trajectory.save` has written; ``family`` is what the file says of it, see `icl_theory.load`."""
    try:
        file = checked_path(path)
        if file.is_dir():
            raise ValueError("it is a folder; icl_theory.load_sweep reads the store of a sweep")
        if file.is_file() and not is_zipfile(file):
            raise BadZipFile("it is no zip file")
        with open(file, "rb") as stream:
            check_fits("path", os.fspath(path), 3.0 * os.fstat(stream.fileno()).st_size)
            arrays = _arrays(stream)
        return _checked(arrays, json.loads(str(arrays.pop("meta")[()])))
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # damage shows as anything, a SyntaxError of a header among others
        reason = " ".join(str(error).split())[:200]
        raise refuse("path", path, f"a file written by Trajectory.save ({reason})") from None


def _arrays(stream: BinaryIO) -> dict[str, NDArray[Any]]:
    """Read the arrays of an archive, none of which may claim more bytes than there are."""
    whole = os.fstat(stream.fileno()).st_size
    found = {}
    with ZipFile(stream) as archive:
        members = archive.infolist()
        if len(members) > MOST_ARRAYS or sum(member.file_size for member in members) > whole:
            raise ValueError("it claims more than it holds")
        for member in members:
            if member.compress_type != ZIP_STORED or member.flag_bits & 1:
                raise ValueError(f"{member.filename} is compressed or encrypted")
            with archive.open(member) as part:
                version = npy.read_magic(part)  # type: ignore[no-untyped-call]
                header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                shape, order, dtype = header(part)  # type: ignore[no-untyped-call]
                content = part.read()
            if dtype.hasobject or order or math.prod(shape) * dtype.itemsize != len(content):
                raise ValueError(f"{member.filename} is not the array that it says it is")
            found[member.filename.removesuffix(".npy")] = np.frombuffer(content, dtype).reshape(shape).copy()
    return found


def _checked(arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> Trajectory:
    """Put a run together from parts that belong together."""
    t, loss, states = (arrays.pop(name) for name in ("t", "loss", "states"))
    observed = named(
        {name.removeprefix("observed_"): values for name, values in arrays.items() if name.startswith("observed_")}
    )
    if t.dtype != np.int64 or t.ndim != 1 or not t.size or t[0] != 0 or (np.diff(t) <= 0).any():
        raise ValueError("t has no increasing steps from 0 on")
    if loss.shape != t.shape:
        raise ValueError(f"loss has shape {loss.shape}, and {t.shape} is right")
    for name, values in {"loss": loss, "states": states, **observed}.items():
        if values.shape[:1] != t.shape or values.dtype.kind not in "fiub" or not np.isfinite(values).all():
            raise ValueError(f"{name} is not a finite number or array at each of {len(t)} steps")
    steps, last = meta["steps"], int(t[-1])
    phases = None if meta["phases"] is None else meta["phases"].items()
    run = Trajectory(
        t=t,
        loss=loss,
        states=states,
        observed=observed,
        steps=None if steps is None else integer("steps", steps, minimum=0, maximum=last),
        stop=Stop[meta["stop"]],
        stop_reason=_text(meta["stop_reason"]),
        floor=signed("floor", meta["floor"]),
        method=choice("method", meta["method"], METHODS),
        rule=_text(meta["rule"]),
        eta=number("eta", meta["eta"]),
        epsilon=signed("epsilon", meta["epsilon"]),
        error=_error(meta["error"]),
        states_error=_error(meta["states_error"]),
        phases=None if phases is None else Phases({_text(name): _interval(pair, last) for name, pair in phases}),
        regime=None if meta["regime"] is None else _text(meta["regime"]),
        notes={_text(name): _text(note) for name, note in meta["notes"].items()},
        info={name: math.inf if value == "inf" else value for name, value in meta["info"].items()},
        labels={name: Label(*map(_text, label)) for name, label in meta.get("labels", {}).items()},
        family=meta["family"] if meta["family"] is None else dict(meta["family"]),
        command=None if meta["command"] is None else _text(meta["command"]),
        version=None if meta.get("version") is None else _text(meta["version"]),
    )
    says, holds = meta.get("holds"), run.holds()  # older files say nothing
    if says is not None and says != holds:
        raise ValueError(f"it says that it holds {says}, and holds {holds}")
    return run


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _error(value: Any) -> float | None:
    return None if value is None else math.inf if value == math.inf else number("error", value, zero=True)


def _interval(pair: Any, last: int) -> Interval | None:
    if pair is None:
        return None
    begins, ends = (integer("phases", step, minimum=0, maximum=last) for step in pair)
    if begins > ends:
        raise ValueError(f"a phase from step {begins} to {ends}")
    return begins, ends
