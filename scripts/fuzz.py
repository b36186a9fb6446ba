"""Calls of everything public with valid extremes and wrong types, held against the contract of errors.

python scripts/fuzz.py --calls 100000 --seed 1

A call may return, or raise a ValueError (an OSError where it has a path). It may not return NaN where it returns
numbers, warn, or go on for 20 seconds. Every call follows from the seed and its number, so that
``--only NUMBER`` makes it again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import math
import signal
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import icl_theory as icl

LIMIT = 20  # seconds
WRONG = 0.12  # of the arguments
# results of functions and what a family of one's own is made of: nobody but the package makes them
MADE = {
    "Answer", "Audit", "BoundCheck", "Check", "Claim", "CrossCheck", "Family", "Measure", "Phases", "Risk",
    "Sentences",
    "Stability", "State", "Stop", "Task", "Trajectory", "parameter", "ClosedForm", "Label", "Map", "Rule",
    "SampledPhases",
}  # fmt: skip
# what only the engine calls, in the innermost loop or with what it has made itself
ENGINE = {
    "check", "closed_form", "closed_mask", "closed_values", "count", "cycle", "describe", "described", "evaluate",
    "every_column", "gain", "hessian_product", "index", "inward", "limits", "matrices", "measure", "measured",
    "observe",
    "population_excess", "refuse_unknown", "sampled", "series", "unpack", "validate", "functions", "sample",
    "predict",
    "to_dict", "excess", "joint_mask", "joint_values", "later", "blocks", "push", "outward", "bend", "stretch",
}  # fmt: skip

Pool = tuple[Any, ...]


class Breach(NamedTuple):
    """A call that broke the contract: its number, what was called and how it ended."""

    number: int
    call: str
    end: str


class _Silent(BaseException):
    """A call that takes too long."""


def wrong() -> Pool:
    """Values that are right almost nowhere."""
    return (
        None, True, "x", "", b"x", -1, 0, -0.5, math.nan, math.inf, -math.inf, 10**400, 1j, [], [1, [2]],
        [math.nan], {},
        object(), 2**63, 9.2e18, lambda: 1, int, np.array(3.0), np.zeros((2, 3)), np.array(["a"]), [10**400, 1],
        [None], np.datetime64("2020-01-01"), slice(1), "1", "\ud800", range(3), np.float32(2.0), np.int8(3), 1e-320,
    )  # fmt: skip


@functools.cache
def pools() -> Mapping[str, Pool]:
    """Valid values of every parameter by its name, ordinary ones and extremes, made anew for each process."""
    positive = (0.5, 1.0, 2.0, 4.0, 1e-3, 30.0, 1e-12, 1e12, 1e-40, 1e40, 5e-324, 1e300, 1, np.float64(2.0))
    shares = (0.5, 0.1, 0.9, 1e-3, 1e-12, 1.0 - 1e-12, 1e-300)
    sizes = (2, 3, 4, 5, 20, 1000, 10**6, 10**9)
    features = tuple(made() for made in FEATURES)
    tasks = tuple(made() for made in TASKS)
    risks = tuple(made() for made in RISKS)
    runs = tuple(made() for made in RUNS)
    folder = tempfile.mkdtemp()
    runs[0].save(Path(folder) / "run.npz")
    (Path(folder) / "text.npz").write_text("x")
    paths = tuple(str(Path(folder) / name) for name in ("run.npz", "text.npz", "none", "", "run.npz/x"))
    sweeps = tuple(made() for made in SWEEPS)
    task = icl.recall.RecallTask(8, 2, 3, counts=icl.recall.Counts.fixed(1))
    noisy = icl.recall.RecallTask(8, 2, 3, alpha=0.1, H=9)
    vectors = (
        np.eye(3),
        [[0.0, 1.0], [1.0, 0.0], [3.0, 3.0]],
        np.eye(2) * 1e40,
        np.eye(2) * 1e-40,
        np.zeros((3, 2)),
    )
    scores = (0.0, np.zeros((3, 3)), np.eye(3) * 700.0, -np.eye(3) * 1e300, np.zeros(2), [1.0, 2.0], 700.0, -1e300,
              np.zeros((2, 3)), np.eye(2), np.zeros(3), np.full(3, 800.0), [5.0, 5.0, -2.0])  # fmt: skip
    small = (1, 2, 3, 10, 100)
    laws = (icl.regression.QuadraticLaw(2, 1.0, 1.0), icl.regression.QuadraticLaw.lipschitz(3, 2.0))
    return {
        "L": positive, "delta": positive, "eta": (*positive, 0.1, 0.1, "auto"), "epsilon": positive,
        "above": positive,
        "gamma": (None, *positive, 0.0, -1e300, "trained"), "noise": (0.0, *positive), "speed": positive,
        "c": positive,
        "u": (*positive, 0.0, -5.0, [0.0, 1.0, 700.0]), "scale": (*positive, "amplitude", "smooth"),
        "length_scale": positive, "variogram": (*positive, np.ones((2, 2)) - np.eye(2)), "tolerance": positive,
        "sigma_a": positive, "sigma_b": positive, "curved": (*shares, 0.0, 1.0), "token_noise": (0.0, *positive),
        "imbalance": shares, "confidence": shares, "alpha": (0.0, *shares), "a": shares, "density": shares,
        "precision": (0.01, *shares), "K": sizes, "N": (math.inf, 1, 2, 50, 1000, 10**6, 10**15, 2**63 - 1),
        "d": (1, 2, 3, 20), "seed": (0, 1, 2**63 - 1), "batch": (1, 8, 64), "dataset": (None, 1, 8, 50),
        "steps": (None, 1, 7, 300), "max_steps": (1, 7, 300, 5000, 2**63 - 1), "hidden": (1, 4), "held_out": (1,
        16),
        "rank": (None, 1, 2, 3), "points": small, "after": (0, 1, 5), "t": (0, 1, 5, 10**6, 10**15, 2**63 - 1),
        "n": (0, 1, 5, 10**6, np.array([0, 10, 10**15]), 2**63 - 1), "batches": (2, 8), "runs": (2, 3),
        "size": (1, 2, 10), "step": (0, 1, 10**9), "M": (math.inf, 1, 2, 30, 10**6, 10**12), "H": (3, 9, 33),
        "V": (3, 8, 50, 10**6, 10**9), "triggers": (1, 2, 4, [0, 1]), "outputs": (1, 2, 3, [4, 5]), "mean": (1.0,
        2.5, 50.0),
        "most": (None, 1, 5, 40), "c_tau": (0, 1, 3), "noise_word": (None, 0, 7), "probs": (None, None, [0.5, 0.3,
        0.2],
        [0.5, 0.5], [1 - 1e-12, 1e-12], 3, 10), "sizes": ([1, 2], [1, 10**6], [2, 2], [1.0, 1.0]),
        "counts": (None, 1, 2, icl.recall.Counts.fixed(1)), "pmf": (np.array([[0.0], [1.0]]), np.eye(3) / 3,
        np.ones((2, 2)) / 4),
        "rule": ("gd", "ngd"), "method": ("auto", "closed", "exact", "fast", "flow"),
        "coordinates": ("class", "embedding", "factored"), "attention": ("linear", "relu", "softmax", np.full((3,
        3), 1 / 3)),
        "task": (*tasks, "linear", "cosine", "exchangeable", icl.tasks.Linear, task, noisy), "features": (None,
        *features),
        "risk": risks, "run_or_risk": (*risks, *runs), "run": runs, "found": (*runs, *sweeps),
        "dataset_of_sweep": sweeps,
        "vectors": vectors, "direction": (None, [1.0, 0.0, 0.0], [1.0, 1.0]), "start": (None, np.zeros((2, 1, 3)),
        *scores),
        "params": scores, "S": scores, "Q": scores, "groups": (None, [0, 1, 1], [0, 0, 0]), "law": laws,
        "distances": (np.ones((3, 3)) - np.eye(3),),
        "matrix": (np.eye(3), np.ones((2, 2)), np.eye(2) * 1e200), "values": (np.eye(3), [[1.0, 2.0], [3.0, 4.0]]),
        "weights": (None, [0.5, 0.5], [1.0, 3.0, 5.0]), "data": (None, SAMPLED[0](), icl.Recall(M=5).data),
        "trained": (None, ["V"], "all"), "tied": (True, False), "full": (icl.recall.TransformerRisk(task,
        batch=4),),
        "origin": (None,), "form": ("n", "x", "gd"), "leading_order": (True, False), "tail": (None, *positive),
        "tail_deficit": (None, *shares), "give_up": (None, True, False), "callback": (None, lambda *_: None),
        "condition": (lambda state: state.loss < 0.1, lambda state: True, lambda state: False), "path": paths,
        "over": (None, "L", "K"), "every": (True, False), "source": (None, "a"), "date": (None,), "ax": (None,),
        "executor": (None,), "workers": (None,), "store": (None,), "progress": (False,), "name": ("transition",
        "none"),
        "quick": (True,), "other": (icl.recall.Counts.fixed(1),), "rng": (np.random.default_rng(0),),
        "kind": ("exact",),
        "names": (["L"],), "arguments": ({},), "parameters": ({},), "value": (1.0,),
    }  # fmt: skip


FEATURES: tuple[Callable[[], Any], ...] = (
    lambda: icl.Features.simplex(3, 1.0),
    lambda: icl.Features.simplex(2, 1e-40),
    lambda: icl.Features.orthonormal(3, 1e40, [0.5, 0.3, 0.2]),
    lambda: icl.Features.random(5, 2, 1.0, 0),
    lambda: icl.Features.simplex(3, 1.0, [1.0 - 2e-12, 1e-12, 1e-12]),
)
TASKS: tuple[Callable[[], Any], ...] = (
    lambda: icl.tasks.Linear(2.0),
    lambda: icl.tasks.RandomCosine(1e40),
    lambda: icl.tasks.Exchangeable(1e-40),
    lambda: icl.tasks.Quadratic(1.0),
    lambda: icl.tasks.Halfspace(3.0),
    lambda: icl.tasks.RandomFourier(2.0),
    lambda: icl.tasks.KernelTask(np.eye(3)),
    lambda: icl.tasks.FiniteTask([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]),
)
SAMPLED: tuple[Callable[[], Any], ...] = (
    lambda: icl.SampledRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0), N=5, batch=4, seed=0),
)
RISKS: tuple[Callable[[], Any], ...] = (
    lambda: icl.ExchangeableRisk(20, 2.0),
    lambda: icl.ExchangeableRisk(3, 1e-80, N=10, noise=1e40),
    lambda: icl.ExchangeableRisk(5, 2.0, N=50, noise=0.5),
    lambda: icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0)),
    lambda: icl.PopulationRisk(icl.Features.simplex(3, 1.0, [0.6, 0.3, 0.1]), icl.tasks.RandomCosine(2.0), 20, 0.1),
    lambda: icl.SymmetricRisk(np.array([1.0, 1e6]), np.array([0.5, 0.5e-6]), np.full((2, 2), 2.0)),
    lambda: icl.SymmetricRisk(np.array([1.0, 2.0]), np.array([0.5, 0.25]), np.full((2, 2), 2.0), 30, 1.0),
    lambda: icl.GaussianRisk(icl.regression.QuadraticLaw(2, 1.0, 1.0)),
    lambda: icl.regression.SampledGaussianRisk(icl.regression.QuadraticLaw(2, 1.0, 1.0), N=4, batch=3, seed=0),
    lambda: icl.engine.Pullback(RISKS[3](), icl.engine.Embedding(np.eye(3))),
    lambda: icl.engine.Pullback(RISKS[9](), icl.engine.Factored.random(3, rank=2)),
    lambda: icl.regression.BlockRisk(SAMPLED[0](), hidden=3, held_out=4),
    lambda: icl.recall.RecallRisk(icl.recall.RecallTask(8, 2, 3, counts=icl.recall.Counts.fixed(1))),
    lambda: icl.recall.RecallRisk(icl.recall.RecallTask(8, 2, 3, alpha=0.1, H=9), "softmax"),
    lambda: icl.recall.TransformerRisk(icl.recall.RecallTask(8, 2, 3, alpha=0.1, H=9), batch=4),
    *SAMPLED,
)
RUNS: tuple[Callable[[], Any], ...] = (
    lambda: icl.simulate(2.0, 1.0, 4.0),
    lambda: icl.simulate(2.0, 1.0, 4.0, K=3, task="linear", N=20, above=1e-2),
    lambda: icl.recall.simulate(8, 2, 3, epsilon=1e-3),
    lambda: icl.descend(SAMPLED[0](), 0.1, steps=3),
    lambda: icl.descend(RISKS[7](), 0.1, steps=3),
)
SWEEPS: tuple[Callable[[], Any], ...] = (
    lambda: icl.sweep(L=[0.1, 1.0, 10.0], delta=1, eta=0.1, K=[5, 20], progress=False),
    lambda: icl.sweep(icl.Recall, triggers=[2, 4], counts=1, progress=False),
    lambda: icl.sweep(L=1.0, delta=1, eta=0.1, progress=False),
)


class Target(NamedTuple):
    """Something public: what it is called, how it is got hold of, and its parameters."""

    name: str
    get: Callable[[], Callable[..., Any]]
    parameters: Mapping[str, inspect.Parameter]


def _itself(thing: Any) -> Any:
    return thing


@functools.cache
def targets() -> tuple[Target, ...]:
    """Every public function, class and method, each under one name."""
    found: dict[str, Target] = {}
    for prefix, module in (("icl", icl), ("icl.regression", icl.regression), ("icl.recall", icl.recall),
                           ("icl.tasks", icl.tasks), ("icl.engine", icl.engine)):  # fmt: skip
        for name in getattr(module, "__all__", [name for name in vars(module) if name[0].isupper()]):
            thing = getattr(module, name)
            known = any(target.get() is thing for target in found.values())
            if isinstance(thing, types.ModuleType) or not callable(thing) or known:
                continue
            if name not in MADE and getattr(thing, "__module__", "").startswith("icl_theory"):
                signature = inspect.signature(thing)
                found[f"{prefix}.{name}"] = Target(
                    f"{prefix}.{name}", functools.partial(_itself, thing), signature.parameters
                )
    makers = (*FEATURES[:1], *TASKS, *RISKS, *RUNS, lambda: icl.Regression(L=2.0, delta=1.0, eta=4.0), icl.Recall,
              lambda: icl.regression.StepCounter(20, 1e-3), lambda: icl.recall.Counts.fixed(1),
              lambda: icl.recall.RecallTask(8, 2, 3), lambda: icl.regression.QuadraticLaw(2, 1.0, 1.0))  # fmt: skip
    for number, make in enumerate(makers):
        made = functools.cache(make)
        for name in dir(type(made())):
            known = name.startswith("_") or name in ENGINE
            if not known and callable(method := getattr(type(made()), name)) and not isinstance(method, type):
                title = f"{type(made()).__name__}[{number}].{name}"
                signature = inspect.signature(getattr(made(), name))
                get = functools.partial(getattr, made(), name)
                found[title] = Target(title, get, signature.parameters)
    return tuple(found.values())


def pool_of(target: Target, name: str) -> Pool:
    """Values to give to a parameter."""
    if name == "dataset" and not target.name.startswith("icl.Sampled"):
        name = "dataset_of_sweep"
    numbers = (0, 1, 2, 0.5, 3.0, 1e-3, 1e12, 1e40, None)
    return pools().get(name, numbers)


def arguments(target: Target, rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    """Draw arguments: in order where they are required, by name where they are not."""
    placed: list[Any] = []
    named: dict[str, Any] = {}
    parameters: dict[str, Any] = dict(target.parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        parameters |= icl.Regression.parameters() if "sweep" in target.name or "compare" in target.name else {}
    # one argument in most calls that are wrong, so that what is behind the first check is reached
    for name, each in parameters.items():
        kind = getattr(each, "kind", None)
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        required = each.default is inspect.Parameter.empty or getattr(each, "required", False)
        if not required and rng.random() < 0.5 and name not in ("max_steps", "progress", "quick", "steps"):
            continue
        values = wrong() if rng.random() < WRONG else pool_of(target, name)
        value = values[rng.integers(len(values))]
        if kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY) and required:
            placed.append(value)
        else:
            named[name] = value
    if target.name in ("icl.audit", "icl.regression.compare_coordinates"):
        named = (
            {"quick": 3}
            if "audit" in target.name
            else {**named, "max_steps": 7}
            if "compare" in target.name
            else named
        )
    return placed, named


def has_nan(found: Any, depth: int = 0) -> bool:
    """Whether some number in a result is NaN; datasets and tables say where they have no value."""
    if isinstance(found, float | np.floating | complex):
        return bool(np.isnan(found))
    if isinstance(found, np.ndarray):
        return found.dtype.kind in "fc" and bool(np.isnan(found).any())
    if depth > 4:
        return False
    if isinstance(found, Mapping):
        return any(has_nan(value, depth + 1) for value in found.values())
    if isinstance(found, tuple | list):
        return any(has_nan(value, depth + 1) for value in found)
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        return any(has_nan(getattr(found, each.name, None), depth + 1) for each in dataclasses.fields(found))
    return False


def outcome(target: Target, placed: list[Any], named: dict[str, Any]) -> str | None:
    """Make a call; return what was wrong with how it ended, None if nothing was."""
    paths = "path" in target.parameters or "store" in target.parameters
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return "returns NaN" if has_nan(target.get()(*placed, **named)) else None
    except ValueError as error:
        text = str(error)
        return None if text and "\n" not in text and type(error) is ValueError else _said(error)
    except OSError as error:
        return None if paths else _said(error)
    except TypeError as error:  # Python's own: an argument too many, too few or unknown
        frames = traceback.extract_tb(error.__traceback__)
        own = len(frames) == 1 or "unexpected keyword" in str(error)
        return None if own else _said(error)
    except _Silent:
        return f"more than {LIMIT} s"
    except Exception as error:
        return _said(error)


def _said(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "icl_theory" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {where}: {str(error)[:120]!r}"


def fuzz(calls: int, seed: int, first: int = 0) -> Iterator[Breach]:
    """Make calls, and yield those that break the contract."""
    every = targets()

    def late(*_: Any) -> None:
        raise _Silent

    before = signal.signal(signal.SIGALRM, late)
    try:
        for number in range(first, first + calls):
            rng = np.random.default_rng([seed, number])
            target = every[rng.integers(len(every))]
            placed, named = arguments(target, rng)
            signal.alarm(LIMIT)
            end = outcome(target, placed, named)
            signal.alarm(0)
            if end is not None:
                shown = ", ".join(
                    [*map(_short, placed), *(f"{name}={_short(value)}" for name, value in named.items())]
                )
                yield Breach(number, f"{target.name}({shown})", end)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def main() -> None:
    """Print the breaches and count them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="make the call of this number")
    options = parser.parse_args()
    first, calls = (0, options.calls) if options.only is None else (options.only, 1)
    count = 0
    for breach in fuzz(calls, options.seed, first):
        count += 1
        sys.stdout.write(f"{breach.number}: {breach.call}\n    {breach.end}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{calls} calls of {len(targets())} targets, {count} outside the contract\n")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
