"""Runs: their states, files and comparisons, and what is measured along them; coordinates and statements."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.sparse import csc_array

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine import (
    Affine,
    Embedding,
    Factored,
    Map,
    Phases,
    Pullback,
    comparison,
    progress,
)
from icl_theory.engine.collocation import Solved, legendre, radau, valued, weights_of
from icl_theory.engine.display import Displayable
from icl_theory.engine.interrupts import is_for_the_user, is_pressed, returns_runs
from icl_theory.engine.pullback import Linear, core_params, core_risk, replace_core
from icl_theory.engine.sharpness import largest_stable_eta, sharpness_along
from icl_theory.engine.trajectory import Label, Stop, Trajectory
from icl_theory.statements.statement import (
    BoundCheck,
    Statement,
    Status,
    require,
    stated,
    words,
)
from tests.answers import Call
from tests.answers._told import Bowl, Saddle, Slope, Unknown, bent, of_risk, told

Asked = Iterator[tuple[str, Call | Any]]
FEATURES = icl.Features.random(4, 3, 0.8, seed=3, probs=[0.4, 0.3, 0.2, 0.1])
POPULATION = icl.PopulationRisk(FEATURES, icl.tasks.Quadratic(1.3), N=7, noise=0.4)
SCORES = np.random.default_rng(5).normal(size=(4, 4))


def _bowl() -> Trajectory:
    return icl.descend(Bowl(), 0.02, above=1e-3)


def _problem(**changes: Any) -> Trajectory:
    given = {
        "L": 1.3,
        "delta": 0.8,
        "eta": 1.7,
        "K": 4,
        "N": 9,
        "noise": 0.3,
        "above": 0.02,
    }
    return icl.Regression(**given | changes).simulate()


def _steep() -> Trajectory:
    """A run with a learning rate that exact gradients stand, and those of few prompts do not."""
    return icl.LinearAttention(
        d=3, N=9, noise=0.4, start=0.05, eta=0.3, above=0.05
    ).simulate()


def _closed() -> Trajectory:
    return icl.Regression(L=1.3, delta=0.8, eta=1.7, K=5, epsilon=0.002).simulate()


RUNS: dict[str, Callable[[], Trajectory]] = {
    "bowl": _bowl,
    "problem": _problem,
    "closed": _closed,
    "unknown": lambda: icl.descend(Unknown(), 0.02, steps=50),
    "blocks": partial(_problem, rule="ngd-blocks", eta=0.05, above=0.05),
    "infinite prompts": partial(
        _problem, N=math.inf, noise=0.0, above=None, epsilon=0.01
    ),
}


def _loaded(run: Trajectory) -> Trajectory:
    run.save("run.npz")
    return icl.load("run.npz")


# ---- runs


def runs() -> Asked:
    for name, made in RUNS.items():
        yield name, lambda made=made: told(made())
        for t in (0, 1, 18, 40, 10**4, 2.0, -1, 1.5, "last"):
            yield f"{name}, at {t}", lambda made=made, t=t: _state(made(), t)
        yield f"{name}, firsts", lambda made=made: _firsts(made())
        yield f"{name}, counts", Call(lambda made=made: _counts(made()), 1e-3)
        yield f"{name}, facts", lambda made=made: made().facts()
        yield f"{name}, holds", lambda made=made: made().holds()
        yield f"{name}, dict", lambda made=made: _dict(made().to_dict())
        yield f"{name}, dataset", lambda made=made: _dataset(made())
        yield f"{name}, loaded", lambda made=made: _again(_loaded(made()))
    yield "first of no function", lambda: _bowl().first(3)  # type: ignore[arg-type]
    yield "first after the end", lambda: _bowl().first(lambda state: True, after=10**6)
    yield "no attention", lambda: icl.descend(Slope(), 0.1, steps=3).attention
    yield (
        "no attention at a step",
        lambda: icl.descend(Slope(), 0.1, steps=3).at(2).attention,
    )
    yield "no such thing", lambda: _bowl().accuracy
    yield "too far", lambda: _bowl().at(30_000).loss
    yield "much too far", lambda: _bowl().at(10**9).loss
    yield "beyond the range", lambda: icl.descend(Bowl(), 3.0, steps=50).at(2000)
    yield "phases", _phases
    yield "facts", _facts
    for error in (0.04, 0.1, 0.11, 0.95, 1.0, 123.4):
        yield f"facts with the error {error}", partial(_doubted, error)
    for kind in (Wide, Pair):
        yield (
            f"dataset of {kind.__name__}",
            lambda kind=kind: _dataset(icl.descend(kind(), 0.1, steps=4)),
        )
    for path in ("no/such/folder/run.npz", "", 3):
        yield f"save to {path}", lambda path=path: _bowl().save(path)


def _state(run: Trajectory, t: Any) -> Any:
    state = run.at(t)
    return [state._asdict(), state.attention]


def _firsts(run: Trajectory) -> Any:
    conditions = [
        lambda state: bool(np.mean(state.attention) >= 0.5),
        lambda state: state.loss <= 0.5 * run.loss[0],
        lambda state: state.t >= 7,
        lambda state: False,
        lambda state: True,
    ]
    last = int(run.t[-1])
    return [
        [run.first(each, after) for after in (0, 1, last // 2 + 1, last)]
        for each in conditions
    ]


def _counts(run: Trajectory) -> Any:
    """First steps at a target, up to several steps."""
    assert run.solution is not None
    target, last = 0.5 * (run.loss[0] + run.loss[-1]), int(run.t[-1])
    first = run.solution.first_below(target, last)
    step = first[0] or 0
    return first, [
        run.solution.first_below(target, each)
        for each in (step, max(step - 1, 1), 3 * last + 1)
    ]


def _dict(found: dict[str, Any]) -> Any:
    json.dumps(found, allow_nan=False)
    return {
        name: np.asarray(each) if isinstance(each, list) else each
        for name, each in found.items()
        if name not in ("version", "notes", "command", "stop_reason", "t")
    }


def _dataset(run: Trajectory) -> Any:
    data = run.to_xarray()
    sizes = {
        str(name): [list(data[name].dims), np.shape(data[name])]
        for name in data.variables
    }
    return sizes, {
        name: each
        for name, each in data.attrs.items()
        if name in ("eta", "phases", "stop")
    }


def _again(run: Trajectory) -> Any:
    found = told(run, ("states", "observed", "loss", "labels", "t"))
    found["family"] = None if run.family is None else run.family.plain()
    found["between"] = (
        _state(run, 18) if run.solution is not None else str(_refused(run.at, 10**5))
    )
    return found


def _refused(ask: Callable[..., Any], *given: Any) -> ValueError | None:
    try:
        ask(*given)
    except ValueError as error:
        return error
    return None


def _phases() -> Any:
    phases = Phases(I=(0, 4), II=None, III=(4, 9))
    return (
        phases.I,
        phases.II,
        phases.present(),
        str(_attribute(phases, "IV")),
        dict(phases),
    )


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError as error:
        return error


class Wide(Bowl):
    """With an observation of another width than the attention, and one with two axes."""

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return super().observe(params) | {
            "pair": params[:2],
            "square": np.outer(params, params),
        }


class Pair(Bowl):
    """With two numbers and no attention."""

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return {"pair": params[:2]}


def _doubted(error: float) -> str:
    run = _closed()
    run.error = error
    return run.facts()["method"]


def _facts() -> Any:
    """Facts that few runs have: a step count in doubt, labels, a regime, notes that are long."""
    run = _bowl()
    run.error, run.regime, run.phases = (
        3.7,
        "sharp",
        Phases(I=(0, 1234), II=None, III=(1234, 56789)),
    )
    run.notes["remark"] = (
        "a sentence that is far too long for one line of eighty columns, " * 2
    )
    run.info = {
        "eta": 0.02,
        "N": math.inf,
        "K": 5,
        "probs": (0.5, 0.25),
        "task": icl.tasks.Linear(2.0),
        "none": None,
    }
    run.labels = {
        "eta": Label("η", r"\eta", "", "rate"),
        "other": Label("x", "x", "m", "a length"),
    }
    said = (
        run.facts(),
        run.summary(),
        run.to_dict()["info"],
        run.to_dict()["labels"],
        run.to_dict()["phases"],
    )
    run.error = 0.05
    return said, run.facts()["method"], run.repr if hasattr(run, "repr") else repr(run)


# ---- files


def files() -> Asked:
    yield "no file", lambda: icl.load("missing.npz")
    yield "a folder", lambda: icl.load(".")
    for damage in (
        "text",
        "half",
        "flip",
        "compressed",
        "other",
        "longer",
        "renamed",
        "t",
        "shape",
        "nan",
        "phase",
        "phases backwards",
        "method",
        "stop",
        "steps",
        "eta",
        "holds",
        "notes",
        "labels",
        "error",
        "unknown family",
        "unknown parameter",
        "another rule",
        "infinite error",
        "no version",
        "no family",
    ):
        yield damage, partial(_damaged, damage)
    yield "a family that simulates", _simulated


def _damaged(damage: str) -> Any:
    run, path = _problem(), Path("run.npz")
    run.save(path)
    if damage in ("text", "half", "flip", "longer"):
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[len(data) // 3] ^= 1
        kept = {
            "text": b"words",
            "half": data[: len(data) // 2],
            "flip": data,
            "longer": data + b"more",
        }[damage]
        path.write_bytes(bytes(kept))
        return _kind(path)
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays.pop("meta")[()]))
    _change(damage, arrays, meta)
    if damage != "other":
        arrays["meta"] = np.array(json.dumps(meta))
    (np.savez_compressed if damage == "compressed" else np.savez)(path, **arrays)
    return _kind(path)


def _change(damage: str, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
    """Make a file say something else."""
    if damage in ("t", "shape", "nan", "renamed"):
        if damage == "renamed":
            arrays["loss_"] = arrays.pop("loss")
        if damage == "t":
            arrays["t"] = arrays["t"][::-1]
        if damage == "shape":
            arrays["loss"] = arrays["loss"][:-1]
        if damage == "nan":
            arrays["states"][1] = math.nan
        return
    changes: dict[str, dict[str, Any]] = {
        "phase": {"phases": {"I": [0, 10**9]}},
        "phases backwards": {"phases": {"I": [9, 3]}},
        "method": {"method": "slow"},
        "stop": {"stop": "TIRED"},
        "steps": {"steps": -1},
        "eta": {"eta": 0.0},
        "holds": {"holds": {"least": 0.0}},
        "notes": {"notes": {"one": 1}},
        "labels": {"labels": {"eta": ["η", 1, "", ""]}},
        "error": {"error": -1.0},
        "unknown family": {"family": {"name": "regresion", "parameters": {}}},
        "unknown parameter": {
            "family": meta["family"] | {"parameters": {"slope": 1.0}}
        },
        "another rule": {"rule": "ngd"},
        "infinite error": {"error": math.inf, "phases": None},
        "no version": {"version": None},
        "no family": {"family": None},
    }
    meta.update(changes.get(damage, {}))


def _kind(path: Path) -> Any:
    run = icl.load(path)
    return [
        run.notes,
        run.phases,
        run.error,
        run.version is None,
        run.family is None,
        run.risk is None,
        run.facts(),
    ]


def _simulated() -> Any:
    """A run of a family that only knows itself how its runs go on."""
    run = icl.Recall(
        V=9,
        triggers=2,
        outputs=3,
        alpha=0.2,
        M=12,
        seed=3,
        gamma="trained",
        eta=0.3,
        above=0.05,
    )
    found = _loaded(run.simulate())
    return (
        found.facts(),
        found.at(3).loss,
        found.solution.first_below(found.epsilon, 10**6),
    )  # type: ignore[union-attr]


# ---- curves beside a run


def _compared(
    *given: Any, made: Callable[[], Trajectory] = _bowl, **options: Any
) -> Any:
    run = made()
    asked = [
        each(run) if callable(each) and getattr(each, "of_run", True) else each
        for each in given
    ]
    found = run.compare(*asked, **options)
    return {
        "checks": np.array([check[1:] for check in found.checks]),
        "windows": np.array(found.windows),
        "fails": [check.name for check in found.checks if not check.passed],
        "remarks": found.remarks,
        "t": found.t,
        "population": found.population,
        "losses": found.losses,
        "errors": found.errors,
        "pace": found.pace,
        "leaves": found.leaves,
        "passed": found.passed,
        "table": found.to_markdown().splitlines()[-3:],
    }


def _keep(function: Any) -> Any:
    function.of_run = False
    return function


def _text(text: str, **options: Any) -> Any:
    Path("curve.csv").write_text(text, encoding="utf-8")
    return _compared("curve.csv", **options)


def curves() -> Asked:
    every = np.arange(0, 300)
    exact: Callable[[Trajectory], Any] = lambda run: [  # noqa: E731
        run.at(int(t)).loss for t in every
    ]
    noisy = np.random.default_rng(4).normal(size=300)
    yield (
        "the same",
        partial(_compared, lambda run: run.loss, lambda run: run.t, errors=0.01),
    )
    yield (
        "above",
        partial(_compared, lambda run: 1.1 * run.loss, lambda run: run.t, errors=0.01),
    )
    yield (
        "below later",
        partial(
            _compared,
            lambda run: run.loss - 0.3 * (run.t > 20),
            lambda run: run.t,
            errors=0.01,
        ),
    )
    yield (
        "noisy",
        partial(_compared, lambda run: exact(run) + 0.01 * noisy, errors=0.01),
    )
    yield (
        "noisy, errors of each",
        partial(
            _compared,
            lambda run: exact(run) + 0.01 * noisy,
            errors=np.linspace(0.01, 0.03, 300),
        ),
    )
    yield (
        "faster",
        partial(
            _compared,
            lambda run: [run.at(int(1.5 * t)).loss for t in every],
            errors=1e-3,
        ),
    )
    yield (
        "slower",
        partial(
            _compared, lambda run: [run.at(int(t / 3)).loss for t in every], errors=1e-3
        ),
    )
    yield (
        "twice",
        partial(_compared, lambda run: 2.0 * run.loss, lambda run: run.t, errors=0.01),
    )
    for factor in (1.5, 1.94, 1.97, 2.03, 2.07):
        name = f"{factor} times"
        yield (
            name,
            partial(
                _compared,
                lambda run, f=factor: f * run.loss,
                lambda run: run.t,
                errors=1e-4,
            ),
        )
    yield (
        "twice, faster",
        partial(
            _compared,
            lambda run: [2 * run.at(2 * int(t)).loss for t in every],
            errors=1e-3,
        ),
    )
    for scale in (0.5, 1.0, 2.0, 0.0, -1.0):
        yield (
            f"twice, scale {scale}",
            partial(
                _compared,
                lambda run: 2.0 * run.loss,
                lambda run: run.t,
                errors=0.02,
                scale=scale,
            ),
        )
    yield (
        "large errors",
        partial(_compared, lambda run: run.loss, lambda run: run.t, errors=3.0),
    )
    yield "one step", partial(_compared, [1.2], [30], errors=0.1)
    yield "the first step", partial(_compared, [1.5], errors=0.1)
    yield (
        "long",
        Call(
            partial(
                _compared, lambda run: [run.at(t).loss for t in range(900)], errors=0.1
            )
        ),
    )
    yield (
        "a function",
        partial(_compared, _keep(lambda state: 1.02 * state.loss), errors=0.05),
    )
    yield (
        "a function at steps",
        partial(
            _compared, _keep(lambda state: 1.02 * state.loss), [3, 50], errors=0.05
        ),
    )
    drawn = np.random.default_rng(1).normal(size=32)
    yield (
        "losses of prompts",
        partial(_compared, _keep(lambda state: state.loss * (1.0 + 0.1 * drawn))),
    )
    yield (
        "losses of prompts, errors",
        partial(
            _compared, _keep(lambda state: state.loss * (1.0 + 0.1 * drawn)), errors=0.3
        ),
    )
    for batch, made in (
        (16, _problem),
        (4, partial(_problem, rule="ngd", eta=0.05, above=0.3)),
    ):
        yield (
            f"batch {batch}",
            partial(
                _compared,
                lambda run: 1.05 * run.loss,
                lambda run: run.t,
                made=made,
                batch=batch,
                runs=5,
                seed=3,
            ),
        )
    yield (
        "batch, other seed",
        partial(
            _compared,
            lambda run: run.loss,
            lambda run: run.t,
            made=_problem,
            batch=16,
            runs=4,
            seed=1,
        ),
    )
    for name, options in {
        "neither": {},
        "both": {"batch": 4, "errors": 0.1},
        "runs": {"batch": 4, "runs": 3},
        "seed": {"batch": 4, "seed": -1},
        "no sampler": {"batch": 4},
        "batch 0": {"batch": 0, "made": _problem},
        "half": {"batch": 1.5, "made": _problem},
        "infinite prompts": {"batch": 4, "made": RUNS["infinite prompts"]},
        "diverges": {"batch": 1, "made": _steep, "scale": 1.0, "steps": [0, 50, 2000]},
        "too long": {"batch": 4, "steps": [0, 10**7], "made": _problem},
        "errors 0": {"errors": 0.0},
        "errors of two": {"errors": [0.1, 0.2]},
        "errors nan": {"errors": math.nan},
        "errors words": {"errors": "small"},
    }.items():
        steps = (
            {"steps": options.pop("steps")}
            if "steps" in options
            else {"steps": [0, 1, 5]}
        )
        losses = [1.0, 0.9, 0.8][: len(steps["steps"])]
        yield name, partial(_compared, losses, **steps, **options)
    for name, given in {
        "none": (None,),
        "empty": ([],),
        "words": ("missing.csv",),
        "complex": ([1j],),
        "rows": ([[1.0, 2.0]],),
        "nan": ([1.0, math.nan],),
        "large": ([1.0, 1e41],),
        "other length": ([1.0, 2.0], [0, 1, 2]),
        "steps back": ([1.0, 2.0], [3, 1]),
        "steps twice": ([1.0, 2.0], [3, 3]),
        "steps half": ([1.0, 2.0], [0, 1.5]),
        "steps negative": ([1.0, 2.0], [-1, 1]),
        "no steps": ([], []),
        "words for steps": ([1.0], ["a"]),
        "ragged": ([[1.0], 2.0],),
    }.items():
        yield f"losses: {name}", partial(_compared, *given, errors=0.1)
    yield (
        "of sampled losses",
        lambda: icl.descend(
            icl.SampledRisk(
                FEATURES, icl.tasks.Quadratic(1.3), N=7, noise=0.4, batch=8, seed=3
            ),
            0.1,
            steps=3,
        ).compare([1.0], errors=0.1),
    )


def tables() -> Asked:
    """Curves in files."""
    yield (
        "columns",
        partial(_text, "step,loss,error\n0,1.6,0.1\n5,1.2,0.1\n40,0.8,0.2\n"),
    )
    yield (
        "others",
        partial(_text, "\ufeffName, T ,Value,x\na,0,1.6,1\n\nb,5,1.2,2\n", errors=0.2),
    )
    yield (
        "errors twice",
        partial(_text, "step,loss,standard_error\n0,1.6,0.1\n", errors=0.3),
    )
    yield (
        "errors and batch",
        partial(_text, "step,loss,error\n0,1.6,0.1\n", batch=4, made=_problem),
    )
    for name, text in {
        "no errors": "step,loss\n0,1.6\n",
        "no header": "0,1.6\n1,1.5\n",
        "no step": "loss\n1.6\n",
        "word": "step,loss\n0,1.6\n1,a\n",
        "short": "step,loss\n0,1.6\n1\n",
        "empty": "",
        "header alone": "step,loss\n",
        "back": "step,loss,error\n5,1,1\n3,1,1\n",
        "zero": "step,loss,error\n0,1,0\n",
        "quote": 'step,loss\n"0\n',
        "no number": "step,loss\n0,\n",
    }.items():
        yield f"file: {name}", partial(_text, text)
    yield "file and steps", partial(_text, "step,loss,error\n0,1.6,0.1\n", steps=[0])
    yield "bytes", _bytes


def _bytes() -> Any:
    Path("curve.csv").write_bytes(b"step,loss\n0,\xff\xfe\n")
    return _compared("curve.csv")


# ---- comparisons with samples


def comparisons() -> Asked:
    checks = (
        comparison.Check("one", 1.25, 1.5, 0.1, 2.5, 3.1),
        comparison.Check("two", -0.5, 0.75, 0.125, 10.0, 3.1),
        comparison.Check("three", 0.0, 0.0, 0.0, 0.0, 3.1),
        comparison.Check("four", 1.0, 2.0, 0.5, math.nan, 3.1),
        comparison.Check("five", 1.0, 1.0, 0.25, -3.1, 3.1),
    )
    yield "cells", lambda: [[check.passed, check.cells()] for check in checks]
    yield (
        "table",
        lambda: comparison.Comparison(checks[:2], "a note").to_markdown().splitlines(),
    )
    yield (
        "passed",
        lambda: [comparison.Comparison(checks[:n], "a note").passed for n in (0, 1, 2)],
    )
    power = comparison.Power(0.0123, 0.456)
    yield "power", lambda: [str(power), str(comparison.Power(math.inf, 0.0))]
    cross = comparison.CrossCheck(
        checks[:1], "a note", power, np.arange(3), np.ones(3), np.ones(3), np.ones(3)
    )
    yield (
        "cross",
        lambda: [cross.remarks, cross.to_markdown().splitlines(), cross.passed],
    )
    for share, freedom, alarm in (
        (1.0, 63, 1e-3),
        (1 / 6, 63, 1e-3),
        (1 / 6, 4, 1e-3),
        (0.5, math.inf, 1e-2),
    ):
        yield (
            f"limit {share} {freedom} {alarm}",
            partial(comparison.limit_of, share, freedom, alarm),
        )
    for check in checks:
        yield f"detectable {check.name}", partial(comparison.detectable, check, 17)
    yield (
        "mean",
        lambda: comparison.mean_check("x", 2.0, np.array([1.0, 2.5, 2.0, 4.0]), 3.0),
    )
    yield (
        "mean without scatter",
        lambda: comparison.mean_check("x", 2.0, np.array([2.1, 2.1]), 3.0),
    )
    yield (
        "z",
        lambda: [
            comparison.z_score(d, e, 5.0)
            for d, e in ((0.3, 0.1), (-0.3, 0.1), (1e-15, 0.0), (0.0, 0.0))
        ],
    )
    sampled = icl.SampledRisk(
        FEATURES, icl.tasks.Quadratic(1.3), N=7, noise=0.4, batch=8, seed=3
    )
    points = {"the start": np.zeros((4, 4)), "scores": SCORES}
    yield "risk and trainer", lambda: comparison.compare(POPULATION, sampled, points, 6)
    problem = icl.Regression(L=1.3, delta=0.8, eta=1.7, K=5, N=7, noise=0.4, above=0.02)
    yield (
        "reduction and trainer",
        lambda: comparison.compare(problem.risk(), problem.sampled(8, 3), points, 7),
    )


# ---- sharpness


class Ridge(icl.Risk):
    """x² and nothing of y, from beside."""

    initial = np.array([1.0, 2.0])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return float(params[0] ** 2), np.array([2.0 * params[0], 0.0])


def sharpness() -> Asked:
    for points in (1, 2, 5, 1000):
        yield (
            f"along, {points}",
            Call(lambda points=points: sharpness_along(_bowl(), points), 1e-6),
        )
        yield (
            f"along a problem, {points}",
            Call(lambda points=points: sharpness_along(_problem(), points), 1e-6),
        )
    yield (
        "along one step",
        Call(lambda: sharpness_along(icl.descend(Bowl(), 0.1, epsilon=100.0)), 1e-6),
    )
    for points in (0, 1.5, "all"):
        yield f"along, {points}", lambda points=points: sharpness_along(_bowl(), points)
    yield "along no run", lambda: sharpness_along(3)  # type: ignore[arg-type]
    yield (
        "along a file",
        lambda: sharpness_along(_loaded(icl.descend(Bowl(), 0.1, steps=5))),
    )
    sampled = icl.SampledRisk(
        FEATURES, icl.tasks.Quadratic(1.3), N=7, noise=0.4, batch=8, seed=3
    )
    yield "along samples", lambda: sharpness_along(icl.descend(sampled, 0.1, steps=3))
    for name, risk in (
        ("bowl", Bowl()),
        ("ridge", Ridge()),
        ("saddle", Saddle(0.2)),
        ("population", POPULATION),
    ):
        yield (
            f"stable, {name}",
            Call(lambda risk=risk: largest_stable_eta(risk), 1e-6, 1e-7),
        )
    yield (
        "stable, from elsewhere",
        Call(lambda: largest_stable_eta(Saddle(0.2), [0.3, -0.8]), 1e-6, 1e-7),
    )
    for start in ([1.0], [[1.0, 2.0]], [math.nan, 0.0]):
        yield (
            f"stable, from {start}",
            lambda start=start: largest_stable_eta(Saddle(0.2), start),
        )
    for name, risk in (("slope", _named(Slope)), ("samples", _named_sampled())):
        yield f"not stable, {name}", lambda risk=risk: largest_stable_eta(risk)
    yield "not a risk", lambda: largest_stable_eta(3)  # type: ignore[arg-type]


def _named(kind: Any, *given: Any) -> icl.Risk:
    return type("Named", (kind,), {"__repr__": lambda self: "<a risk>"})(*given)


def _named_sampled() -> icl.Risk:
    return type(
        "Named", (Bowl,), {"__repr__": lambda self: "<a risk>", "stochastic": True}
    )()


# ---- coordinates


class Curved(Map):
    """(x², xy) of two numbers."""

    initial = np.array([0.5, -1.0])

    def inward(self, params: Array) -> Array:
        x, y = params
        return np.array([x * x, x * y, y])

    def push(self, params: Array, direction: Array) -> Array:
        (x, y), (u, v) = params, direction
        return np.array([2.0 * x * u, x * v + y * u, v])

    def outward(self, params: Array, gradient: Array) -> Array:
        (x, y), (a, b, c) = params, gradient
        return np.array([2.0 * x * a + y * b, x * b + c])

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        (u, v), (a, b, _) = direction, gradient
        return np.array([2.0 * u * a + v * b, u * b])

    def stretch(self, params: Array) -> float:
        return 3.0


def coordinates() -> Asked:
    rng = np.random.default_rng(8)
    vectors, queries = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    risks = {
        "class": icl.in_coordinates(POPULATION, "class", vectors),
        "embedding": icl.in_coordinates(POPULATION, "embedding", vectors),
        "queries": icl.in_coordinates(
            POPULATION, "embedding", vectors, queries=queries
        ),
        "factored": icl.in_coordinates(
            POPULATION, "factored", vectors, rank=2, scale=0.7, seed=3
        ),
        "factored, given": icl.in_coordinates(
            POPULATION, "factored", vectors, start=rng.normal(size=(2, 3, 3))
        ),
        "linear": icl.in_coordinates(
            POPULATION, "linear", rng.normal(size=(4, 4, 2)), start=[0.3, -0.4]
        ),
        "linear, zero": icl.in_coordinates(
            POPULATION, "linear", rng.normal(size=(4, 4, 2))
        ),
        "linear, matrix": icl.in_coordinates(
            POPULATION, "linear", rng.normal(size=(4, 4, 2, 3)), start=np.ones((2, 3))
        ),
        "curved": Pullback(Bowl(), Curved()),
        "affine": Pullback(
            Bowl(),
            Affine(
                np.array([0.2, 0.0, 1.0]),
                csc_array([[1.0, 0.0], [0.5, 2.0], [0, 0]]),
                (1, 1),
            ),
        ),
    }
    for name, risk in risks.items():
        at = 0.7 * np.random.default_rng(6).normal(size=np.shape(risk.initial))
        yield name, partial(of_risk, risk, at)
        yield f"{name}, bent", Call(partial(bent, risk, at), 1e-6)
        yield (
            f"{name}, innermost",
            lambda risk=risk, at=at: [
                type(core_risk(risk)).__name__,
                core_params(risk, at),
            ],
        )
    yield (
        "around",
        lambda: of_risk(
            replace_core(
                risks["factored"], POPULATION.__class__(FEATURES, icl.tasks.Linear(1.1))
            ),
            np.ones((2, 2, 3)),
        ),
    )
    yield "around itself", lambda: type(replace_core(Bowl(), Saddle(0.1))).__name__
    yield "no risk inside", lambda: (core_risk(None), np.zeros(0))
    for d, rank, scale, seed in (
        (3, None, 0.01, 0),
        (3, 2, 1.5, 4),
        (3, 4, 1.0, 0),
        (0, 1, 1.0, 0),
        (2, 0, 1.0, 0),
        (2, 1, 0.0, 0),
    ):
        yield f"random {d} {rank} {scale} {seed}", partial(_start, d, rank, scale, seed)
    yield "random, large", partial(_start, 2, 1, 1e149, 0)
    yield "random, seed", partial(_start, 2, 1, 1.0, -1)
    for name, made in _wrong_maps(vectors, queries).items():
        yield f"wrong: {name}", made


def _start(*given: Any) -> Array:
    return Factored.random(*given).start


def _wrong_maps(vectors: Array, queries: Array) -> dict[str, Callable[[], Any]]:
    coordinates = partial(icl.in_coordinates, POPULATION)
    return {
        "coordinates": partial(coordinates, "polar", vectors),
        "risk": partial(icl.in_coordinates, 3, "class", vectors),
        "few vectors": partial(coordinates, "embedding", vectors[:3]),
        "few queries": partial(coordinates, "embedding", vectors, queries=queries[:3]),
        "other queries": partial(
            coordinates, "embedding", vectors, queries=queries[:, :2]
        ),
        "rank": partial(coordinates, "factored", vectors, rank=4),
        "rank 0": partial(coordinates, "factored", vectors, rank=0),
        "start": partial(coordinates, "factored", vectors, start=np.ones((2, 2, 2))),
        "start of one": partial(
            coordinates, "factored", vectors, start=np.ones((1, 2, 3))
        ),
        "start too high": partial(
            coordinates, "factored", vectors, start=np.ones((2, 4, 3))
        ),
        "large start": partial(
            coordinates, "factored", vectors, start=np.full((2, 1, 3), 1e151)
        ),
        "not square": partial(icl.in_coordinates, Bowl(), "embedding", vectors),
        "linear": partial(coordinates, "linear", vectors),
        "linear start": partial(coordinates, "linear", np.ones((4, 4, 2)), start=[1.0]),
        "linear nan": partial(coordinates, "linear", np.full((4, 4, 2), math.nan)),
        "matrix": partial(Linear, np.ones((3, 2)), np.ones(3)),
        "vectors": partial(Embedding, np.ones(3)),
        "vectors nan": partial(Embedding, np.full((2, 2), math.nan)),
        "map": partial(Pullback, Bowl(), 3),
        "inner": partial(Pullback, 3, Curved()),
        "shape": partial(Pullback, Saddle(0.1), Curved()),
        "map raises": partial(Pullback, Bowl(), Embedding(np.ones((3, 2)))),
        "base": partial(Affine, np.ones((2, 2)), csc_array(np.ones((2, 1))), (1,)),
        "columns": partial(Affine, np.ones(2), np.ones((2, 1)), (1,)),
        "sizes": partial(Affine, np.ones(2), csc_array(np.ones((2, 1))), (2,)),
        "size 0": partial(Affine, np.ones(2), csc_array(np.ones((2, 1))), (0,)),
        "no sizes": partial(Affine, np.ones(2), csc_array(np.ones((2, 1))), ()),
        "columns nan": partial(
            Affine, np.ones(2), csc_array(np.full((2, 1), math.nan)), (1,)
        ),
    }


# ---- statements


def statements() -> Asked:
    @stated("a bound", "nowhere, Theorem 1", "upper", Status.MEASURED)
    def bound(measured: float, limit: Any, slack: float | None = None) -> BoundCheck:
        """What is measured

        is at most the limit.
        """
        require(measured >= 0.0, "it is negative")
        return BoundCheck.of(
            measured, limit, bool(measured <= np.max(limit)), slack, "a remark"
        )

    yield (
        "words",
        lambda: [
            bound.name,
            bound.source,
            bound.statement,
            bound.kind,
            bound.status,
            words(lambda: None),
        ],
    )
    for given in (
        (1.0, 2.0),
        (3.0, 2.0, 0.66),
        (1.0, (0.5, 2.0), math.inf),
        (1.0, math.inf),
        (math.nan, 1.0),
        (-1.0, 2.0),
    ):
        yield f"check {given}", partial(bound.check, *given)
    yield (
        "found",
        lambda: Statement("a", "b", "c", "lower").complete(
            BoundCheck.of(1.0, 2.0, False)
        ),
    )
    yield "unstated", lambda: Statement("a", "b", "c", "lower").unstated("no reason")
    yield "no sides", lambda: Statement("a", "b", "c", "lower").check()
    yield "require", lambda: [require(True, "fine"), str(_unstated())]
    yield "status", lambda: [str(each) for each in Status]


def _unstated() -> Exception | None:
    try:
        require(False, "why not")
    except Exception as error:
        return error
    return None


# ---- schemes of strides, progress and interrupts


def schemes() -> Asked:
    for stages in (2, 3, 8, 9):
        yield f"radau {stages}", lambda stages=stages: radau(stages)._asdict()
    x, h = np.array([0.5, 3.0, 12.0]), np.array([0.4, 1.5, 0.9])
    yield "legendre", partial(legendre, np.array([-1.0, -0.3, 0.8]), 5)
    terms = np.random.default_rng(3).normal(size=(3, 4, 2))
    yield "valued", lambda: valued(terms, x[:, None] + np.array([0.0, 0.1, 0.4]), x, h)
    for flow in (True, False):
        yield (
            f"weights, flow {flow}",
            Call(lambda flow=flow: weights_of(3, x, h, flow), 1e-7),
        )
    yield (
        "weights of short strides",
        lambda: weights_of(3, np.zeros(2), np.array([1e-3, 1.0]), False),
    )
    falling = terms * (10.0 ** -np.arange(4.0))[:, None]
    for name, given in (
        ("even", terms),
        ("falling", falling),
        ("alternating", falling * np.array([1, 1e-5, 1, 1e-5])[:, None]),
    ):
        solved = Solved(given, np.array([0.0, 1e-3, math.inf]), np.array([1, 5, 14]))
        yield (
            f"errors, {name}",
            lambda solved=solved: [
                solved.error,
                solved.ratio,
                solved.arrival,
                solved.of(np.array([True, False, True])),
            ],
        )


def _work(
    words: str, unit: str, calls: tuple[tuple[float, tuple[Any, ...]], ...]
) -> Any:
    clock = [100.0]
    with mock.patch.object(progress.time, "monotonic", side_effect=lambda: clock[0]):
        said = []
        with progress.Progress(words, unit, quiet=True) as work:
            said.append(work.line())
            for later, given in calls:
                clock[0] += later
                work.update(*given)
                said.append(work.line())
            clock[0] += 3723.0
            said.append(work.line())
    with progress.Progress(words, unit, quiet=True) as work:
        work.add(3)
        work.add()
        said.append((work.done, work.total))
    return said


def showing() -> Asked:
    for seconds in (0.0, 59.9, 60.0, 3599.0, 3600.0, 100_000.0):
        yield f"duration {seconds}", partial(progress.duration, seconds)
    yield "nothing known", partial(_work, "before the first step", "steps", ())
    yield "no words", partial(_work, "", "points", ())
    yield (
        "steps",
        partial(
            _work,
            "words",
            "steps",
            ((2.0, (10,)), (4.0, (1210, -1, 0.123456)), (1.0, (5000, 12000))),
        ),
    )
    yield (
        "points",
        partial(
            _work,
            "",
            "points",
            ((0.0, (0, 50)), (10.0, (5, 50, 2.5e-7)), (0.0, (50, 50))),
        ),
    )
    yield (
        "counted",
        lambda: [
            [*progress.counted([3, 4], "things")],
            [*progress.counted(iter("ab"), "letters")],
        ],
    )
    yield "interrupts", _interrupts
    yield "display", _display
    for stop in Stop:
        yield f"{stop.name}", lambda stop=stop: stop.value


def _interrupts() -> Any:
    cause = ImportError("half loaded")
    cause.__cause__ = KeyboardInterrupt()
    pressed = [
        is_pressed(each)
        for each in (
            None,
            KeyboardInterrupt(),
            ImportError("no"),
            cause,
            ValueError("no"),
        )
    ]
    space: dict[str, Any] = {"__name__": "icl_theory.mine", "ask": is_for_the_user}
    exec("def measure(): return ask()\ndef give(): return ask()", space)
    return pressed, is_for_the_user(), space["measure"](), returns_runs(space["give"])()


def _display() -> Any:
    display = progress.Display(delay=5.0)
    outer, quiet, inner = (
        progress.Progress("one"),
        progress.Progress("two", quiet=True),
        progress.Progress("three"),
    )
    display.works += [outer, quiet, inner]
    shown = [work.words for work in display.shown()]
    return shown, Displayable._display
