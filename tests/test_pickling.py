"""What is public can be pickled and copied at any time, and the copy is the same in every part."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

import icl_theory as icl

SMALL: dict[str, Any] = {"K": 4, "epsilon": 1e-2}
ARRAYS: dict[str, Any] = {"L": [1.0, 2.0], "delta": 1.0, "eta": 1.0, "progress": False}


def exchangeable() -> icl.Trajectory:
    return icl.simulate(2.0, 1.0, 4.0, K=5, N=20, above=1e-3)


def compared() -> Any:
    run = exchangeable()
    return run.compare(run.loss, run.t, errors=0.01)


def crosschecked() -> Any:
    run = icl.simulate(2.0, 1.0, 4.0, **SMALL)
    return icl.crosscheck(
        run, N=20, precision=0.5, batch=32, batches=3, points=1, steps=10, runs=3
    )


def certified() -> Any:
    pytest.importorskip("flint")
    return icl.certify(icl.simulate(2.0, 1.0, 4.0))


def problem(name: str) -> icl.Family:
    family = icl.list_families()[name]
    given = {
        key: 1.0 for key, declared in family.parameters().items() if declared.required
    }
    return family(**given, max_steps=12)


def drawn() -> Any:
    law = icl.tasks.Exchangeable(2.0)
    return icl.SampledRisk(icl.Features.simplex(4, 1.0), law, 12, 64, 0, noise=0.1)


OBJECTS: dict[str, Callable[[], Any]] = {
    "a closed run": lambda: icl.simulate(2.0, 1.0, 4.0),
    "a run of every step": lambda: icl.simulate(2.0, 1.0, 4.0, **SMALL, method="exact"),
    "a run that skips": lambda: icl.simulate(2.0, 1.0, 4.0, **SMALL, method="fast"),
    "a flow": lambda: icl.simulate(2.0, 1.0, 4.0, **SMALL, method="flow"),
    "a run of finite prompts": exchangeable,
    "a run of sampled weights": lambda: icl.recall.Training(max_steps=5).simulate(),
    "a run of a risk": lambda: icl.descend(
        icl.ExchangeableRisk(4, 2.0), 1.0, epsilon=1e-2
    ),
    **{
        f"the family {name}": functools.partial(problem, name)
        for name in icl.list_families()
    },
    **{
        f"the risk of {name}": lambda name=name: problem(name).risk()
        for name in icl.list_families()
        if name != "softmax-heads"  # whose starts take seconds
    },
    **{
        f"a run of {name}": lambda name=name: problem(name).simulate()
        for name in icl.list_families()
        if name != "softmax-heads"
    },
    "a kind": lambda: icl.Kind(5, probs=[0.5, 0.5], values=[1.0, 2.0]),
    "a risk of tokens": lambda: icl.TokenRisk(
        icl.Kind(5, probs=[0.5, 0.5], values=[1.0, 2.0])
    ),
    "a law of lengths": lambda: icl.Lengths([0.5, 0.5]),
    "a risk of heads": lambda: icl.HeadsRisk(
        icl.TokenRisk(icl.Kind(4, probs=[1.0], values=[1.0]), target=1.0)
    ),
    "features": lambda: icl.Features.simplex(5, 1.0),
    "a population risk": lambda: icl.PopulationRisk(
        icl.Features.simplex(5, 1.0), icl.tasks.Linear(2.0), N=20
    ),
    "a symmetric risk": lambda: icl.Regression(
        L=2.0, delta=1.0, eta=1.0, task=icl.tasks.Linear, coordinates="class"
    ).risk(),
    "a Gaussian risk": lambda: problem("gaussian-regression").risk(),
    "a sampled risk": drawn,
    "coordinates": lambda: icl.Regression(
        L=2.0, delta=1.0, eta=1.0, K=4, coordinates="embedding"
    ).risk(),
    "a state": lambda: exchangeable().at(5),
    "phases": lambda: icl.simulate(2.0, 1.0, 4.0).phases,
    "a comparison": compared,
    "a cross-check": crosschecked,
    "a certificate": certified,
    "what is proved": lambda: certified()[1],
    "checks of bounds": lambda: icl.check_bounds(icl.simulate(2.0, 1.0, 4.0)),
    "an audit": lambda: icl.audit(claim=5, quick=True),
    "an answer": lambda: icl.answer("degenerate", quick=True),
    "a stable rate": lambda: icl.largest_stable_eta(
        icl.ExchangeableRisk(20, 2.0, N=100, noise=1.0)
    ),
    "a sweep": lambda: icl.sweep(**ARRAYS),
    "a table": lambda: icl.phase_table(icl.sweep(**ARRAYS)),
    "transitions": lambda: icl.transition_table(icl.sweep(**ARRAYS)),
    **{
        f"the task {name}": functools.partial(getattr(icl.tasks, name), 2.0)
        for name in ("Exchangeable", "Linear", "RandomCosine", "RandomFourier")
        if hasattr(icl.tasks, name)
    },
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda value: pickle.loads(pickle.dumps(value)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
}


def differences(
    one: Any, two: Any, place: str = "", known: frozenset[int] = frozenset()
) -> list[str]:
    """Return the places at which two objects differ, however deep in them."""
    if id(one) in known or (one is two and not isinstance(one, np.ndarray)):
        return []
    known = known | {id(one)}
    if type(one) is not type(two):
        return [f"{place}: {type(one)} and {type(two)}"]
    if isinstance(one, xarray.Dataset | xarray.DataArray):
        return [] if one.identical(two) else [place]
    if isinstance(one, pd.DataFrame):
        return [] if one.equals(two) and one.attrs == two.attrs else [place]
    if hasattr(one, "man_exp"):  # a ball
        same = one.mid() == two.mid() and one.rad() == two.rad()
        return [] if same else [place]
    if isinstance(one, np.ndarray) and one.dtype != object:
        same = one.dtype == two.dtype and np.array_equal(
            one, two, equal_nan=one.dtype.kind == "f"
        )
        return [] if same else [place]
    if isinstance(one, float):
        return [] if one == two or (math.isnan(one) and math.isnan(two)) else [place]
    if isinstance(one, np.random.Generator):
        return [] if one.bit_generator.state == two.bit_generator.state else [place]
    parts = parts_of(one), parts_of(two)
    if parts[0] is None:
        return [] if one == two else [f"{place}: {one!r} and {two!r}"]
    assert parts[1] is not None
    if parts[0].keys() != parts[1].keys():
        return [f"{place}: {[*parts[0]]} and {[*parts[1]]}"]
    found = []
    for name, part in parts[0].items():
        found += differences(part, parts[1][name], f"{place}.{name}", known)
    return found


def parts_of(value: Any) -> dict[Any, Any] | None:
    """Return what an object is made of, by name; None if it has no parts."""
    if (
        isinstance(value, str | bytes | int | range | type)
        or inspect.isroutine(value)
        or value is None
    ):
        return None
    if isinstance(value, functools.partial):
        return {
            "function": value.func,
            "arguments": value.args,
            "named": value.keywords,
        }
    if isinstance(value, np.ndarray | list | tuple):
        entries = value.tolist() if isinstance(value, np.ndarray) else value
        return dict(enumerate(entries)) | getattr(value, "__dict__", {})
    if isinstance(value, Mapping):
        return dict(value) | getattr(value, "__dict__", {})
    if dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        return dict(vars(value))
    return None


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_copy_is_the_same_in_every_part(name: str, how: str) -> None:
    value = OBJECTS[name]()
    again = COPIES[how](value)
    assert not differences(value, again)
    if isinstance(value, icl.Trajectory):
        between = int(value.t[-1]) // 2 + 1
        same_run(value, again, between)
        assert not differences(
            COPIES[how](value), value
        )  # also once its curves are known
    if hasattr(value, "evaluate"):
        loss, gradient = value.evaluate(value.initial)
        assert again.evaluate(again.initial)[0] == loss
        assert np.array_equal(again.evaluate(again.initial)[1], gradient)


def same_run(one: icl.Trajectory, two: icl.Trajectory, step: int) -> None:
    assert two.to_dict() == one.to_dict()
    assert np.array_equal(two.states, one.states)
    if one.solution is not None:
        assert two.at(step).loss == one.at(step).loss


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize(
    "name",
    ["a closed run", "a run that skips", "a run of sampled weights", "a run of recall"],
)
def test_a_run_that_was_loaded_can_be_copied_before_and_after_it_goes_on(
    name: str, how: str, tmp_path: Path
) -> None:
    OBJECTS[name]().save(tmp_path / "run.npz")
    run = icl.load(tmp_path / "run.npz")
    for _ in range(2):
        same_run(run, COPIES[how](run), int(run.t[-1]) // 2 + 1)


def test_every_public_class_has_an_object_that_is_copied() -> None:
    """A new one belongs into the table above."""
    abstract = (icl.Risk, icl.Family)
    public = [
        getattr(icl, name)
        for name in icl.__all__
        if isinstance(getattr(icl, name), type)
    ]
    missing = {kind for kind in public if kind not in abstract}
    for name, make in OBJECTS.items():
        if missing and name not in ("a certificate", "what is proved"):
            value = make()
            missing = {kind for kind in missing if not isinstance(value, kind)}
    assert not missing


def test_a_copied_certificate_proves_the_same_at_any_precision() -> None:
    flint = pytest.importorskip("flint")
    value = certified()
    before = flint.ctx.prec
    try:
        flint.ctx.prec = 32
        again = pickle.loads(pickle.dumps(value))
    finally:
        flint.ctx.prec = before
    assert again.to_dict() == value.to_dict()
    for one, two in zip(value, again, strict=True):
        assert one.error == two.error
