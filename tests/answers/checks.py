"""The checks of risks and families, by sound ones and by wrong ones; and the checks of arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory import _calls, _validate
from icl_theory.engine.capabilities import gradients_one_by_one, series_one_by_one
from icl_theory.engine.trajectory import Phases
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    Object,
    Panel,
    parameter,
)
from icl_theory.statements.claim import Answer, Question, Series
from icl_theory.statements.paper import Claims, Paper, Reading
from icl_theory.testing import check_family, check_risk
from icl_theory.testing.common import expect, expect_near, expect_same, same
from icl_theory.testing.risks import CENTRAL, FORWARD, difference
from tests import test_testing
from tests import test_testing_families as sound_families
from tests.answers import Call
from tests.answers._told import Bowl, Columns, Saddle, every
from tests.answers.tokens import _kinds
from tests.test_testing import Array, Bent, Toy
from tests.test_testing_families import CLAIMS, Biased, Sound, TwoPhases

Asked = Iterator[tuple[str, Call | Any]]


# ---- risks


class Shifted(Toy):
    """Observations that differ from those of a series, words among them."""

    def observe(self, params: Array, step: int = 0) -> dict[str, Any]:
        return {"norm": np.linalg.norm(params), "word": "a"}


class SeriesOff(Toy):
    def series(self, states: Array, steps: Any) -> tuple[Array, dict[str, Array]]:
        losses, seen = series_one_by_one(self, states, steps)
        return losses, {"norm": seen["norm"] * 1.01}


class SeriesLess(Toy):
    def series(self, states: Array, steps: Any) -> tuple[Array, dict[str, Array]]:
        return series_one_by_one(self, states, steps)[0], {}


class NoTuple(Toy):
    def evaluate(self, params: Array, step: int = 0) -> Any:
        return 1.0


class Listed(Toy):
    def evaluate(self, params: Array, step: int = 0) -> Any:
        loss, gradient = super().evaluate(params, step)
        return loss, gradient.tolist()


class Seen(Toy):
    def observe(self, params: Array, step: int = 0) -> Any:
        return [params]


class Moved(Toy):
    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        params += 1.0
        return {}


class Gain(Toy):
    def gain(self, params: Array) -> float:
        return -1.0


class Floor(Toy):
    def floor(self) -> Any:
        return "low"


class Empty(Toy):
    initial = np.zeros(0)


class WordMetric(Toy):
    metric = np.array(["a", "b"])


class Pushed(Toy):
    def hessian_product(self, params: Array, direction: Array) -> Array:
        direction *= 1.0 + np.cos(params)
        return direction


class Shrunk(Toy):
    def gradients(self, states: Array) -> Array:
        return gradients_one_by_one(self, states)[:1]


class Beyond(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        with np.errstate(all="ignore"):
            return float(np.log(np.abs(1.0 - params.sum()) - 0.49999)), params


class WrongColumns(Columns):
    @property
    def column_gradients(self) -> Any:
        return lambda columns, which: -self.weights[:, which] / (1.01 + np.exp(columns))


class ShortColumns(Columns):
    @property
    def column_gradients(self) -> Any:
        return lambda columns, which: columns[:, :1]


MINE = (
    Shifted,
    SeriesOff,
    SeriesLess,
    NoTuple,
    Listed,
    Seen,
    Moved,
    Gain,
    Floor,
    Empty,
    WordMetric,
    Pushed,
    Shrunk,
    Beyond,
    WrongColumns,
    ShortColumns,
)


def risks() -> Asked:
    for name, risk in (
        ("toy", Toy()),
        ("bowl", Bowl()),
        ("columns", Columns()),
        ("saddle", Saddle(0.1)),
        ("bent", Bent(0.7)),
        ("sampled", _kinds()["one kind"].sampled(4, 3)),
        ("not a risk", 3),
        ("a class", Toy),
    ):
        yield name, partial(check_risk, risk)
    for name, tokens in _kinds().items():
        yield f"tokens: {name}", partial(check_risk, tokens, seed=3)
    for name, options in {
        "points": {"points": [[0.0, 0.0], [3.0, 4.0]]},
        "spread": {"spread": 2.0, "seed": 5, "step": 3},
        "spread 0": {"spread": 0.0},
        "seed": {"seed": -1},
        "step": {"step": 0.5},
        "shape": {"points": [[1.0]]},
        "axes": {"points": [[[1.0]]]},
        "number": {"points": 3.0},
        "nan": {"points": [[math.nan, 1.0]]},
        "words": {"points": "ab"},
        "none": {"points": []},
    }.items():
        yield f"options: {name}", partial(check_risk, Toy(), **options)
    for fault in test_testing.FAULTS:
        if fault.__name__ not in (
            "LastBit",
            "Forgetful",
            "Held",
        ):  # which count their calls, or quote Python
            yield fault.__name__, partial(_checked, fault, [[0.1, 0.0]])
    for mine in MINE:
        start: Any = (
            [[0.1, 0.0]] if issubclass(mine, Toy) and mine is not Empty else None
        )
        yield mine.__name__, partial(_checked, mine, start)
    for said in (-0.6, 1.6, 9.0):
        yield f"bent, {said}", partial(check_risk, Bent(said), points=[[1.0], [-1.0]])


def _checked(risk: Callable[[], icl.Risk], points: Any) -> Any:
    return check_risk(risk(), points=points)


def comparisons() -> Asked:
    yield "expect", partial(expect, False, "what", "this", "x" * 400)
    yield "expect nothing", partial(expect, np.bool_(True), "what", "this", 3)
    for one, two in (
        (1.0, 1.0),
        (1, 1.0),
        (0.0, -0.0),
        (math.nan, math.nan),
        (np.ones(2), np.ones((2, 1))),
        ({"a": 1.0}, {"b": 1.0}),
        ({"a": np.ones(2)}, {"a": np.array([1.0, 2.0])}),
        ("a", "b"),
        ([1.0, 2.0], [1.0, math.nan]),
        (None, None),
    ):
        yield (
            f"same {one!s} {two!s}",
            lambda one=one, two=two: [same(one, two), same(two, one)],
        )
        yield f"expect same {one!s} {two!s}", partial(expect_same, one, two, "what")
    for two in ([1.0, 2.0], [1.0, 2.1], [1.3, 2.1], [1.0], [1.0, math.nan], ["a", "b"]):
        yield (
            f"near {two}",
            partial(
                expect_near,
                [1.0, 2.0],
                two,
                np.asarray(0.15),
                "what",
                "that of something",
            ),
        )
    for name, function in (
        ("sin", np.sin),
        ("steps", np.floor),
        ("root", lambda x: np.sqrt(x)),
        ("flat", lambda x: 2.0 + 0.0 * x),
    ):
        for stencil in (CENTRAL, FORWARD):
            yield (
                f"difference of {name}, {len(stencil)}",
                Call(partial(_difference, function, stencil), 1e-6, 1e-9),
            )


def _difference(function: Callable[[float], Any], stencil: Any) -> Any:
    slope, error = difference(function, 2.0, stencil)
    return slope, bool(error < 1e-7), bool(np.isfinite(error))


# ---- families


def _with(**slots: Any) -> type[Family]:
    """A family with a slot of one's own, of which copies by pickle can be made."""
    name = f"Slot{len(MADE)}"
    MADE.append(name)
    made: type[Family] = type(
        name, (TwoPhases,), {"__module__": __name__, "__doc__": "A family.", **slots}
    )
    globals()[name] = made
    return made


def _paper(**changes: Any) -> Claims:
    paper = {
        "name": "a-paper",
        "title": "A Paper",
        "authors": "A. Author",
        "year": 2026,
        "identifier": "none",
    }
    readings = changes.pop("readings", (Reading("Theorem 1", "all is well"),))
    return replace(CLAIMS, papers=(Paper(*(paper | changes).values(), readings),))


def _drawn(width: float) -> None:
    """A figure."""


@dataclass(frozen=True, eq=False)
class Meaningless(Sound):
    more: float = parameter(1.0, kind=Number(), meaning=" ")


@dataclass(frozen=True, eq=False)
class Anything(Sound):
    more: Any = parameter(None, kind=Object(optional=True), meaning="anything")


def _refuses(self: Any) -> float:
    raise ValueError("no")


def _raises(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no such thing")


MADE: list[str] = []
SLOTS: dict[str, dict[str, Any]] = {
    "later": {"claims": LazySlot("no_such_module:CLAIMS")},
    "expected": {"expected_steps": lambda self: -1.0},
    "expected raises": {"expected_steps": _raises},
    "levels": {"levels": lambda self: {"high": math.inf}},
    "limits": {"limits": classmethod(lambda cls, given: {"eta": (0.0,)})},
    "limits nan": {"limits": classmethod(lambda cls, given: {"eta": (0.0, math.nan)})},
    "rate": {"stable_rate": lambda self: 100.0},
    "rate word": {"stable_rate": lambda self: "fast"},
    "rate too large": {"stable_rate": lambda self: 1.3},
    "update": {"update": lambda self: "ngd"},
    "update unknown": {"update": lambda self: "sgd"},
    "claims": {"claims": 3},
    "figures": {"figures": 3},
    "figure": {"figures": {"one": _drawn}},
    "figure missing": {"figures": {"one": "no_such_script.py"}},
    "explorer": {"explorer": 3},
    "panel": {"explorer": Panel(Path("."), ("other.js",))},
    "scripts": {"explorer": Panel(Path("no-such-folder"))},
    "commands": {"commands": 3},
    "command name": {"commands": {"Two words": Sound}},
    "command": {"commands": {"word": int}},
    "phases": {
        "describe": lambda self, run: setattr(
            run, "phases", Phases(one=(0, 5), two=(2, 7))
        )
    },
    "regime": {"describe": lambda self, run: setattr(run, "regime", 3)},
    "info": {"describe": lambda self, run: run.info.update(other=1)},
    "columns twice": {
        "columns": (
            Column("size", "f8", "", "a size"),
            Column("size", "f8", "", "a size"),
        )
    },
    "column of a parameter": {"columns": (Column("rule", "f8", "", "a rule"),)},
    "column without words": {
        "columns": (Column("size", "f8", "", ""), Sound.columns[1])
    },
    "role": {
        "columns": (Column("size", "f8", "", "a size", role="none"), Sound.columns[1])
    },
    "integer": {"columns": (Column("size", "i8", "", "a size"), Sound.columns[1])},
    "measure": {"measure": _raises},
    "batched": {"batched": classmethod(lambda cls, points, common: [1])},
    "batched names": {
        "batched": classmethod(lambda cls, points, common: {"speed": 1.0})
    },
    "batched less": {"batched": classmethod(lambda cls, points, common: {"steps": 1})},
    "batched shape": {
        "batched": classmethod(
            lambda cls, points, common: {
                "steps": [1],
                "last": 1,
                "loss": 1.0,
                "floor": 0.0,
            }
        )
    },
    "batched stop": {
        "batched": classmethod(
            lambda cls, points, common: {
                "steps": 1,
                "last": 1,
                "loss": 1.0,
                "floor": 0.0,
                "stop": "TIRED",
            }
        )
    },
    "papers": {"claims": _paper(name="A Paper")},
    "question": {
        "claims": _paper(
            readings=(Reading("Theorem 1", "all is well", question="what"),)
        )
    },
    "check": {"claims": replace(CLAIMS, check=lambda run: 3)},
    "check raises": {"claims": replace(CLAIMS, check=_raises)},
    "question name": {
        "claims": replace(CLAIMS, questions=(Question("Why so?", _raises),))
    },
    "risk raises": {"risk": _raises},
    "simulate": {"simulate": _raises},
    "sampled": {"sampled": lambda self, batch, seed=0: 3},
    "scatter": {"sampled": lambda self, batch, seed=0: Biased(64, seed)},
    "sampled too low": {
        "sampled": lambda self, batch, seed=0: Biased(batch, seed, 0.0, 0.95)
    },
    "sampled too steep": {
        "sampled": lambda self, batch, seed=0: Biased(batch, seed, -0.05, 1.05)
    },
    "words of the rate": {"stable_rate": _refuses},
    "endless rate": {"stable_rate": lambda self: math.inf},
    "rate just too large": {"stable_rate": lambda self: 1.01},
    "constants": {
        "explorer": Panel(sound_families.HERE, ("panel.js",), lambda: {"a": object()})
    },
    "losses": {"describe": lambda self, run: run.loss.fill(math.nan)},
    "target": {"describe": lambda self, run: setattr(run, "epsilon", 0.01)},
    "reason": {"describe": lambda self, run: setattr(run, "stop_reason", " ")},
    "phases in order": {
        "describe": lambda self, run: setattr(
            run, "phases", Phases(one=(0, 4), two=(2, 6))
        )
    },
    "phase backwards": {
        "describe": lambda self, run: setattr(run, "phases", Phases(two=(6, 5)))
    },
    "true": {
        "columns": (Column("size", "i8", "", "a size"),),
        "measure": lambda self, run: {"size": True},
    },
    "number for a word": {"measure": lambda self, run: {"kind": 3}},
    "status": {"measure": lambda self, run: {"status": "fine"}},
    "figure alone": {"figures": {"one": lambda: None}},
}
ROWS: dict[str, Claims] = {
    "row": replace(CLAIMS, rows=(lambda quick: 3,)),
    "row raises": replace(CLAIMS, rows=(_raises,)),
    "answer": replace(CLAIMS, questions=(Question("why", lambda quick: 3),)),
    "question raises": replace(CLAIMS, questions=(Question("why", _raises),)),
    "curve": replace(
        CLAIMS,
        questions=(
            Question(
                "why",
                lambda quick: Answer(
                    "why",
                    "Why?",
                    "So.",
                    (Series("y", np.ones(2), np.ones(3)),),
                    "x",
                    "y",
                ),
            ),
        ),
    ),
    "compare": replace(CLAIMS, compare=lambda run: 3),
    "compare raises": replace(CLAIMS, compare=_raises),
}


def families() -> Asked:
    small: dict[str, Any] = {"eta": 0.1, "above": 0.3}
    for name, base in (
        ("sound", Sound),
        ("two phases", TwoPhases),
        ("simulated", sound_families.Simulated),
        ("staged", sound_families.Staged),
    ):
        yield name, partial(check_family, base, **small)
    for name, base in (
        ("sampled", sound_families.Sampled),
        ("reduced", sound_families.Reduced),
        ("from zero", sound_families.FromZero),
    ):
        yield (
            name,
            Call(lambda base=base: check_family(base, rows=False, **small), 1e-6),
        )
    for fault in sound_families.FAMILIES:
        if (
            not fault.__name__.startswith("Wrong") or not fault.__name__[5:].isdigit()
        ):  # which have no names
            yield fault.__name__, partial(_family, fault, eta=0.1)
    for name, slots in SLOTS.items():
        yield f"slot: {name}", partial(_family, _with(**slots), eta=0.1)
    for name, claims in ROWS.items():
        yield (
            f"rows: {name}",
            partial(_family, _with(claims=claims), rows=True, **small),
        )
    for family in (Meaningless, Anything, int, Family):
        yield f"family: {family.__name__}", partial(_family, family, **small)
    yield "parameters", lambda: check_family(Sound, eta=-1.0)
    yield "no such parameter", lambda: check_family(Sound, eta=0.1, rate=1.0)
    yield (
        "chain",
        lambda: check_family(
            icl.FixedChain, rows=False, p=0.7, q=0.8, e=0.8, w=0.4, eta=0.7, above=1e-2
        ),
    )
    yield (
        "regression",
        Call(
            lambda: check_family(
                icl.Regression, L=2.0, delta=1.0, eta=4.0, K=4, above=1e-1, rows=False
            ),
            1e-6,
        ),
    )


def _family(family: type[Family], **given: Any) -> Any:
    """What a check says; addresses of objects and functions are left out."""
    try:
        return check_family(family, **{"rows": False} | given)
    except AssertionError as error:
        return re.sub(r"0x[0-9a-f]+", "0x...", str(error))


# ---- arguments


VALUES: dict[str, Any] = {
    "1": 1,
    "1.0": 1.0,
    "0": 0,
    "-0.0": -0.0,
    "-1": -1,
    "half": 0.5,
    "large": 1e300,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "true": True,
    "np true": np.True_,
    "none": None,
    "word": "a",
    "digits": "3",
    "list": [1, 2],
    "empty": [],
    "2^53": 2**53,
    "2^53+1": 2**53 + 1,
    "2^63-1": 2**63 - 1,
    "2^63": 2**63,
    "10^5000": 10**5000,
    "np": np.float64(0.25),
    "np int": np.int8(7),
    "array": np.array(3.0),
    "array of one": np.array([3.0]),
    "masked": np.ma.masked,
    "masked array": np.ma.masked_array([1.0, 2.0], [True, False]),
    "complex": 1j,
    "np complex": np.complex128(1.0),
    "bytes": b"a",
    "dict": {"a": 1},
    "matrix": [[1.0, 2.0], [3.0, 4.0]],
    "ragged": [[1.0], 2.0],
    "shares": [0.25, 0.75],
    "zero share": [0.0, 1.0],
    "more": [0.5, 0.6],
    "near": [0.5, 0.5 + 9e-7],
    "nearly": [0.5, 0.5 + 2e-6],
    "negative": [-0.5, 1.5],
    "with nan": [math.nan, 1.0],
    "with inf": [math.inf, 1.0],
    "integers": np.array([1, 2**53, 2**53 + 1]),
    "halves": [0.5, 1.5],
    "long": "a long word " * 12,
    "generator": range(3),
    "strings": ["a", "b"],
}
CHECKS: dict[str, Callable[[Any], Any]] = {
    "refuse": lambda value: str(_validate.argument_error("x", value, "something")),
    "flag": partial(_validate.flag, "x"),
    "instance": lambda value: _validate.instance(
        "x", value, (int, str), "a word or an integer"
    ),
    "sequence": lambda value: _validate.sequence("x", value, str, "words"),
    "number": partial(_validate.number, "x"),
    "number from 0": partial(_validate.number, "x", zero=True),
    "number between": partial(_validate.number, "x", minimum=0.5, maximum=1.0),
    "signed": partial(_validate.signed, "x"),
    "signed to 1": partial(_validate.signed, "x", maximum=1.0),
    "lipschitz": _validate.lipschitz,
    "integer": partial(_validate.integer, "x", minimum=1),
    "integer to 7": partial(_validate.integer, "x", minimum=0, maximum=7),
    "dimensions": _validate.dimensions,
    "prompt length": _validate.prompt_length,
    "whole": partial(_validate.whole_or_infinite, "x", minimum=2, maximum=9),
    "prompt lengths": _validate.prompt_lengths,
    "choice": lambda value: _validate.choice("x", value, ("a", "b")),
    "no choice": lambda value: _validate.choice("x", value, ()),
    "fraction": partial(_validate.fraction, "x"),
    "array": lambda value: _validate.real_array("x", value, 1),
    "array to 2": lambda value: _validate.real_array("x", value, 1, 2.0),
    "matrix": lambda value: _validate.real_array("x", value, 2),
    "scalar": lambda value: _validate.real_array("x", value, 0),
    "plain": partial(_validate.plain_numbers, "x"),
    "plain between": lambda value: _validate.plain_numbers("x", value, 0.5, 2.0),
    "plain any": lambda value: _validate.plain_numbers("x", value, -math.inf),
    "probabilities": lambda value: _validate.probabilities("x", value, 2),
    "distributions": partial(_validate.distributions, "x"),
    "distributions exactly": lambda value: _validate.distributions("x", value, 1e-12),
    "masked": _validate.is_masked,
}


def arguments() -> Asked:
    for name, check in CHECKS.items():
        yield name, partial(every, VALUES, check)
    for few in (1, 32):
        yield (
            f"indexed, {few}",
            lambda few=few: _validate.indexed(np.array([3.0, 1.0, 3.0, 2.0]), few),
        )
    yield "indexed, one", lambda: _validate.indexed(np.full(3, 2.0))


class Unwritten:
    """Nothing that can be written down."""


def calls() -> Asked:
    """Calls written down."""
    for name, problem in {
        "chain": icl.FixedChain(p=0.2),
        "target": icl.FixedChain(epsilon=0.3),
        "goal": icl.FixedChain(),
        "matrix": icl.InductionHeads(concentration=[[0.5, 2.0], [3.0, 0.7]], T=6),
        "infinite": icl.Regression(L=2.0, delta=1.0, eta=4.0, K=5, epsilon=0.01),
        "task": icl.Regression(
            delta=1.0, eta=4.0, K=3, L=1.3, task="linear", N=7, noise=0.3, above=0.1
        ),
        "heads": icl.SoftmaxHeads(d=2, N=4),
        "words": icl.TokenSelection(trained="KQ", start=0.5, eta=0.1),
    }.items():
        yield name, partial(_calls.written_problem, problem)
    sweeps: dict[str, dict[str, Any]] = {
        "one": {"p": 0.3},
        "list": {"p": [0.1, 0.2]},
        "spaced": {"p": np.geomspace(0.1, 0.8, 9)},
        "even": {"p": np.linspace(0.1, 0.9, 9)},
        "default": {"eta": 1.0, "q": 0.3},
        "many": {"p": np.random.default_rng(1).random(61)},
        "sixty": {"w": np.random.default_rng(1).random(9)},
        "infinite": {"w": [1.0, math.inf]},
        "object": {"w": Unwritten()},
        "ragged": {"w": [[1.0], 2.0]},
        "numpy": {"p": np.float64(0.25)},
        "nan": {"w": math.nan},
        "-inf": {"w": -math.inf},
        "none": {"w": None},
        "class": {"w": icl.tasks.Linear},
        "instance": {"w": icl.tasks.Linear(2.0)},
        "words": {"bias": ["best", "trained"]},
        "true": {"w": True},
    }
    for name, given in sweeps.items():
        for named in (True, False):
            yield (
                f"sweep: {name}, {named}",
                lambda given=given, named=named: _calls.written_sweep(
                    icl.FixedChain, given, named
                ),
            )
