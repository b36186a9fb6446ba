"""The checks of families: sound ones pass them, and planted faults are found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.stats import t as student_t

import icl_theory as icl
from icl_theory.engine import Rule
from icl_theory.engine.comparison import compare
from icl_theory.engine.risk import Solution
from icl_theory.engine.trajectory import Phases, Trajectory
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    Object,
    Panel,
    ParameterKind,
    parameter,
    saved,
)
from icl_theory.statements.claim import (
    Answer,
    BoundChecks,
    Claim,
    Question,
    Series,
    row,
)
from icl_theory.statements.paper import Claims, Paper, Reading
from icl_theory.sweeps.grid import Values, blank
from icl_theory.testing import check_family
from tests.test_testing import Array, Steep, Toy

HERE = Path(icl.__file__).parent / "papers" / "recall" / "panel"


@dataclass(frozen=True, eq=False)
class Sound(Family):
    """A toy family: scale² times the toy risk."""

    name, title = "toy", "a toy"
    phase_names = ("all",)
    columns = (
        Column("size", "f8", "", "norm at the end"),
        Column("kind", "U4", "", "a word", role="word"),
    )

    scale: float = parameter(1.0, kind=Number(), meaning="scale of the loss")

    def risk(self) -> icl.Risk:
        return Toy()

    def describe(self, run: Trajectory) -> None:
        run.phases = Phases(all=(0, int(run.t[-1])))

    def measure(self, run: Trajectory) -> dict[str, Any]:
        return {"size": float(np.linalg.norm(run.params)), "kind": "good"}


class NoTitle(Sound):
    title = ""


class WrongRisk(Sound):
    def risk(self) -> icl.Risk:
        return Steep()


class NoRisk(Sound):
    def risk(self) -> icl.Risk:
        return 3  # type: ignore[return-value]


class UnknownColumn(Sound):
    def measure(self, run: Trajectory) -> dict[str, Any]:
        return {"weight": 1.0}


class LongWord(Sound):
    def measure(self, run: Trajectory) -> dict[str, Any]:
        return {"kind": "excellent"}


class TextForNumber(Sound):
    def measure(self, run: Trajectory) -> dict[str, Any]:
        return {"size": "3"}


class WrongRole(Sound):
    columns = (
        Column("size", "f8", "", "norm at the end", role="number"),
        *Sound.columns[1:],
    )


class UnknownPhase(Sound):
    def describe(self, run: Trajectory) -> None:
        run.phases = Phases(other=(0, 1))


class PhaseBeyond(Sound):
    def describe(self, run: Trajectory) -> None:
        run.phases = Phases(all=(0, int(run.t[-1]) + 1))


class NotForJson(Sound):
    def describe(self, run: Trajectory) -> None:
        run.notes["size"] = run.params  # type: ignore[assignment]


class WrongRate(Sound):
    def stable_rate(self) -> float:
        return -1.0


class WrongLimits(Sound):
    @classmethod
    def limits(cls, arguments: Any) -> Any:
        return {"width": (0.0, 1.0)}


class Restless(Sound):
    count = 0

    def measure(self, run: Trajectory) -> dict[str, Any]:
        type(self).count += 1
        return {"size": float(self.count)}


@dataclass(frozen=True, eq=False)
class Unchecked(Sound):
    bowl: Any = parameter(None, kind=Object(optional=True), meaning="anything")


class Lenient(ParameterKind):
    def value(self, name: str, value: Any) -> Any:
        return len(value)


@dataclass(frozen=True, eq=False)
class WrongError(Sound):
    bowl: Any = parameter(None, kind=Lenient(optional=True), meaning="a sequence")


@dataclass(frozen=True, eq=False)
class WrongDefault(Sound):
    bowl: float = parameter(-1.0, kind=Number(), meaning="a number")


class ClosedToy(Toy):
    """Descent on the toy in closed form, wrong by a millionth."""

    initial = np.array([30.0, -15.0])

    def closed_form(self, eta: float, rule: str) -> Solution | None:
        return _Form(self, eta)


class _Form:
    def __init__(self, risk: icl.Risk, eta: float) -> None:
        self.run = icl.descend(risk, eta, steps=200)

    def states(self, steps: Any) -> Array:
        return np.array([self.run.at(int(t)).params for t in steps]) * (1.0 + 1e-6)

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        return self.run.first(lambda state: state.loss <= epsilon), 0.0


class WrongForm(Sound):
    def risk(self) -> icl.Risk:
        return ClosedToy()


class Counted(_Form):
    """States as they are, and a count that is one too many, with an error that its family states."""

    def __init__(self, risk: icl.Risk, eta: float, error: float) -> None:
        super().__init__(risk, eta)
        self.error = error

    def states(self, steps: Any) -> Array:
        return super().states(steps) / (1.0 + 1e-6)

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        found, _ = super().first_below(epsilon, last)
        return None if found is None else found + 1, self.error


class CountedToy(Toy):
    def __init__(self, error: float) -> None:
        self.error = error

    def closed_form(self, eta: float, rule: str) -> Solution | None:
        return Counted(self, eta, self.error)


class WrongCount(Sound):
    def risk(self) -> icl.Risk:
        return CountedToy(0.0)


class CountInDoubt(Sound):
    """One step off, which its error allows."""

    def risk(self) -> icl.Risk:
        return CountedToy(1.0)


class BatchOff(Sound):
    """Points in whole arrays, off by a hundred millionth."""

    @classmethod
    def batched(cls, points: Any, common: Any) -> Values:
        values = blank(cls.every_column(), len(points["eta"]))
        for i, eta in enumerate(points["eta"].tolist()):
            problem = cls(eta=eta)
            found = problem.measured(problem.simulate())
            for column in cls.every_column():
                values[column.name][i] = found[column.name]
        values["size"] *= 1.0 + 1e-8
        return {
            name: value
            for name, value in values.items()
            if name not in ("status", "message")
        }


class Biased(Toy):
    """The toy with a random tilt; its loss is shifted by ``bias``, and all of it multiplied by ``slope``."""

    stochastic = True

    def __init__(
        self, batch: int, seed: int, bias: float = 0.0, slope: float = 1.0
    ) -> None:
        self.batch, self.seed, self.bias, self.slope = batch, seed, bias, slope

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        tilt = np.random.default_rng([self.seed, step]).normal(size=2) / np.sqrt(
            self.batch
        )
        loss, gradient = super().evaluate(params, step)
        tilted = loss + self.bias + float(tilt @ params)
        return self.slope * tilted, self.slope * (gradient + tilt)


class Sampled(Sound):
    bias, slope = 0.0, 1.0

    def sampled(self, batch: int, seed: int = 0) -> icl.Risk:
        return Biased(batch, seed, self.bias, self.slope)


class SampledOff(Sampled):
    bias = 1.0


class SampledSteep(Sampled):
    slope = 1.9
    bias = Toy().loss(Toy.initial) * (
        1.0 / slope - 1.0
    )  # so that the first loss is right


class SampledOnce(Sampled):
    def sampled(self, batch: int, seed: int = 0) -> icl.Risk:
        return Biased(batch, 0)


class Line(icl.Risk):
    """½|x|² where both numbers are equal, x = (p, p): a reduction with metric 2."""

    initial = np.array([1.0])

    def __init__(self, metric: float) -> None:
        self.weight = metric

    @property
    def metric(self) -> float:
        return self.weight

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return float(params @ params), 2.0 * params


class Plane(icl.Risk):
    """½|x|² with a random tilt."""

    initial = np.ones(2)
    stochastic = True

    def __init__(self, batch: int, seed: int) -> None:
        self.batch, self.seed = batch, seed

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        tilt = np.random.default_rng([self.seed, step]).normal(size=2) / np.sqrt(
            self.batch
        )
        return 0.5 * float(params @ params) + float(tilt @ params), params + tilt


class Reduced(Sound):
    weight = 2.0

    def risk(self) -> icl.Risk:
        return Line(self.weight)

    def sampled(self, batch: int, seed: int = 0) -> icl.Risk:
        return Plane(batch, seed)


class ReducedWrong(Reduced):
    weight = 1.0


def test_a_mean_of_pairs_has_as_many_degrees_of_freedom_as_pairs_less_one() -> None:
    loss, squared_norm = compare(Line(2.0), Plane(1024, 0), {}, batches=64)
    # Each of two checks has half of the false alarms, 0.001 on both sides together.
    assert loss.limit == pytest.approx(student_t.isf(0.00025, 63), rel=1e-9)
    assert squared_norm.limit == pytest.approx(student_t.isf(0.00025, 31), rel=1e-9)


class Bowl(icl.Risk):
    """½ + ½|x - m|² - ½|m|² for m = (1, 0), from zero: there the loss is ½ for samples of any mean m."""

    initial = np.zeros(2)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        mean = self.mean(step)
        return 0.5 + 0.5 * float(params @ params) - float(mean @ params), params - mean

    def mean(self, step: int) -> Array:
        return np.array([1.0, 0.0])


class SampledBowl(Bowl):
    """The same for the mean of some samples."""

    stochastic = True

    def __init__(self, batch: int, seed: int) -> None:
        self.batch, self.seed = batch, seed

    def mean(self, step: int) -> Array:
        rng = np.random.default_rng([self.seed, step])
        return super().mean(step) + rng.normal(size=2) / np.sqrt(self.batch)


class FromZero(Sound):
    """A loss whose value at the start does not depend on the data."""

    goal = ("above", 1e-3)

    def risk(self) -> icl.Risk:
        return Bowl()

    def sampled(self, batch: int, seed: int = 0) -> icl.Risk:
        return SampledBowl(batch, seed)

    def stable_rate(self) -> float:
        return 1.0


@row("a row", "nowhere", bound="0")
def fine(quick: bool) -> Claim:
    """0 = 0"""
    return Claim.of(True, "a point", "0")


def why(quick: bool) -> Answer:
    return Answer(
        "why", "Why?", "Because.", (Series("y", np.ones(2), np.ones(2)),), "x", "y"
    )


def unequal(quick: bool) -> Answer:
    return Answer(
        "why", "Why?", "Because.", (Series("y", np.ones(2), np.ones(3)),), "x", "y"
    )


def drawn(*, width: float = 1.0) -> None:
    """A figure."""


CLAIMS = Claims(
    (fine,),
    (Question("why", why),),
    (
        Paper(
            "a-paper",
            "A Paper",
            "A. Author",
            2026,
            "none",
            (Reading("Theorem 1", "all is well"),),
        ),
    ),
    lambda run: BoundChecks([]),
)


@dataclass(frozen=True, eq=False)
class TwoPhases(Sound):
    """Two phases, and more than one slot."""

    phase_names = ("one", "two")
    claims = CLAIMS
    figures: ClassVar[Any] = {"drawn": drawn}

    def describe(self, run: Trajectory) -> None:
        run.phases = Phases(one=(0, 2), two=(2, int(run.t[-1])))

    def stable_rate(self) -> float:
        return 0.5


class Waiting(Rule):
    """Descent that begins at step 5."""

    name = "waiting"

    def step(
        self,
        risk: icl.Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        return -eta * gradient * (t >= 5), memory


class Staged(Sound):
    """A family with a rule of its own."""

    def update(self) -> Rule:
        return Waiting()


class Simulated(Sound):
    """A family with a simulation of its own."""

    def simulate(self, *, callback: Any = None) -> Trajectory:
        goal: dict[str, Any] = {"epsilon": self.epsilon, "above": self.above}
        return self.described(
            icl.descend(
                self.risk(), self.rate(), **goal, rule=Waiting(), callback=callback
            )
        )


FAMILIES: dict[type[Family], str] = {
    ReducedWrong: r"sampled squared norm of the gradient at the beginning: expected 4 within",
    NoTitle: r"the family: expected no exception, found ValueError: NoTitle.title = ''",
    WrongRisk: r"gradient of the loss at .*, entry",
    NoRisk: r"risk: expected a Risk, found 3",
    UnknownColumn: r"columns that are measured: expected those declared, found also weight",
    LongWord: r"column kind, of dtype U4: expected a text that it can hold, found excellent",
    TextForNumber: r"column size, of dtype f8: expected a number, found 3",
    WrongRole: r"role of column size: expected one of .*, found number",
    UnknownPhase: r"phases: expected among \('all',\), found \['other'\]",
    PhaseBeyond: r"phase all: expected an interval within 0 to \d+",
    NotForJson: r"the run as JSON: expected no exception, found TypeError",
    WrongRate: r"stable_rate: expected a number > 0, found -1.0",
    WrongLimits: r"names of limits: expected parameters, found width",
    Restless: r"column size of a sweep at eta = 0.1: expected that of a simulation",
    Unchecked: r"Unchecked\(..., bowl=<object .*\): expected a ValueError that names bowl, found none",
    WrongError: r"WrongError\(..., bowl=<object .*\): expected a ValueError, found TypeError",
    WrongDefault: r"the problem: expected no exception, found ValueError: bowl = -1.0",
    BatchOff: r"column size of a sweep at eta = 0.1: expected that of a simulation",
    WrongForm: r"states in closed form: expected those of single steps to 3e-08, found \de-05 off",
    WrongCount: r"steps in closed form: expected \d+ \(error 0.0\), found \d+",
    SampledOff: r"sampled loss at the beginning: expected .* within .* standard errors of .*, found",
    SampledSteep: r"sampled gradient along the exact gradient at the beginning: expected .* within .* standard errors",
    SampledOnce: r"losses and gradients of trainers of two seeds: expected different ones",
}


def wrong(words: str, base: type[Family] = TwoPhases, **slots: Any) -> None:
    """Add a family with one wrong slot, which worker processes can import."""
    name = f"Wrong{len(FAMILIES)}"
    globals()[name] = type(
        name, (base,), {"__module__": __name__, "__doc__": "A wrong family.", **slots}
    )
    FAMILIES[globals()[name]] = words


def raising(*given: Any, **named: Any) -> Any:
    raise KeyError("lost")


class_raising = classmethod(raising)


def claimed(words: str, **parts: Any) -> None:
    """Add a family of whose claims one part is wrong."""
    wrong(words, claims=replace(CLAIMS, **parts))


claimed(
    r"check of the slot claims: expected no exception, found KeyError: 'lost'",
    check=raising,
)
claimed(r"check of the slot claims: expected BoundChecks, found 3", check=lambda run: 3)
claimed(r"row raising: expected no exception, found KeyError", rows=(raising,))
claimed(r"row .*: expected a Claim, found None", rows=(lambda quick: None,))
claimed(
    r"question why: expected no exception, found KeyError",
    questions=(Question("why", raising),),
)
claimed(
    r"names of questions: expected letters, digits and dashes, found why\?",
    questions=(Question("why?", raising),),
)
claimed(
    r"names of papers: .* found A Paper", papers=(Paper("A Paper", "", "", 1, "", ()),)
)
claimed(
    r"question of 1 in paper p: expected one of the questions of the Claims, found Question",
    papers=(
        Paper("p", "", "", 1, "", (Reading("1", "", question=Question("how", why)),)),
    ),
)
claimed(
    r"prose of paper p: expected no exception, found ValueError: .*p.md cannot be read",
    papers=(Paper("p", "", "", 1, "", (), folder=Path("/nowhere")),),
)
claimed(
    r"compare of the slot claims: expected no exception, found KeyError",
    compare=raising,
)
wrong(r"slot claims: expected a Claims or None, found \(\)", claims=())
wrong(r"slot figures: expected a dict of scripts or functions, found 3", figures=3)
wrong(
    r"figure a of the slot figures: expected no exception", figures={"a": "/nowhere.py"}
)
wrong(
    r"figure a of the slot figures: expected a default for each .*, found none for x",
    figures={"a": lambda x: x},
)
wrong(
    r"the problem: expected no exception, found ValueError: rule = 'up'",
    update=lambda self: "up",
)
wrong(r"the problem: expected no exception, found KeyError", update=raising)
wrong(r"slot explorer: expected a Panel or None, found panel.js", explorer="panel.js")
wrong(
    r"script panel.js of the explorer: expected no exception",
    explorer=Panel(Path("/nowhere")),
)
wrong(
    r"slot claims, loaded from no_such_module:C: expected no exception",
    claims=LazySlot("no_such_module:C"),
)
wrong(
    r"slot figures, loaded from math:lost: expected no exception",
    figures=LazySlot("math:lost"),
)
wrong(
    r"command more: expected no exception, found ValueError: family = 3",
    commands={"more": 3},
)
wrong(r"names of commands: .* found More", commands={"More": Sound})
wrong(r"\.goal = \('banana', 3\): must be \(\"epsilon\", value\)", goal=("banana", 3))
wrong(r"the problem: .* above = -1: must be", goal=("above", -1))
wrong(
    r"slot batched: expected a dict of arrays, or None",
    batched=classmethod(lambda *_: [1.0, 2.0]),
)
wrong(r"slot batched: expected no exception, found KeyError", batched=class_raising)
wrong(
    r"names that slot batched gives: .* found lost",
    batched=classmethod(lambda *_: {"lost": 1.0}),
)
wrong(
    r"columns of slot batched: expected steps among them",
    batched=classmethod(lambda *_: {"loss": np.ones(2)}),
)
wrong(
    r"loss of slot batched: expected a value for each of two points, or one, found \(3,\)",
    batched=classmethod(
        lambda *_: {"steps": 1, "last": 1, "floor": 0.0, "loss": np.ones(3)}
    ),
)
wrong(
    r"stop of slot batched: expected one of REACHED, .* found WEARY",
    batched=classmethod(
        lambda *_: {
            "steps": -1,
            "last": 1,
            "floor": 0.0,
            "loss": np.ones(2),
            "stop": "WEARY",
        }
    ),
)
wrong(r"slot limits: expected no exception, found KeyError", limits=class_raising)
wrong(
    r"slot expected_steps: expected no exception, found KeyError",
    expected_steps=raising,
)
wrong(
    r"loss of descent at the stable rate 50: expected finite, found diverged",
    stable_rate=lambda self: 50.0,
)
wrong(
    r"loss of descent at the stable rate 2.1 at step 1: expected at most",
    stable_rate=lambda self: 2.1,
)
wrong(
    r"stable_rate: expected at most 1.000\d+, 2/sharpness at the end",
    stable_rate=lambda self: 1.01,
)
wrong(r"slots: expected no exception, found KeyError", stable_rate=raising)
wrong(r"simulate: expected no exception, found KeyError", describe=raising)
wrong(
    r"phase two: expected one that begins where those before it end, 4, found \(2, 6\)",
    describe=lambda self, run: setattr(run, "phases", Phases(one=(0, 4), two=(2, 6))),
)
wrong(
    r"phase two: expected an interval within 0 to",
    describe=lambda self, run: setattr(run, "phases", Phases(two=(6, 5))),
)
wrong(r"slot sampled: expected no exception, found KeyError", sampled=raising)
wrong(r"sampled: expected a Risk, found None", sampled=lambda self, batch, seed=0: None)
wrong(
    r"sampled loss at the beginning: expected .* within",
    sampled=lambda self, batch, seed=0: Biased(batch, seed, 0.0, 1.05),
)
wrong(
    r"sampled loss at the beginning: expected .* within",
    sampled=lambda self, batch, seed=0: Biased(batch, seed, 0.0, 0.95),
)
wrong(
    r"scatter of the loss of large batches: expected about",
    sampled=lambda self, batch, seed=0: Biased(64, seed),
)

# what a slot gives is of the right kind, but no answer
wrong(
    r"expected_steps: expected None or a number >= 0, found -1.0",
    expected_steps=lambda self: -1.0,
)
wrong(
    r"expected_steps: expected None or a number >= 0, found nan",
    expected_steps=lambda self: np.nan,
)
wrong(
    r"level top: expected a finite loss, found nan", levels=lambda self: {"top": np.nan}
)
wrong(
    r"limits of eta: expected two numbers, found",
    limits=classmethod(lambda *_: {"eta": (0.0, np.nan)}),
)
wrong(
    r"limits of eta: expected two numbers, found",
    limits=classmethod(lambda *_: {"eta": (0.0, 1.0, 2.0)}),
)
wrong(
    r"why there is no stable .*: expected a sentence that names eta, found no",
    stable_rate=Mock(side_effect=ValueError("no")),
)
wrong(r"stable_rate: expected a number > 0, found inf", stable_rate=lambda self: np.inf)
wrong(r"slot commands: expected a dict of families", commands=(Sound,))
wrong(
    r"scripts of the explorer: expected panel.js among them",
    explorer=Panel(Path(), ("other.js",)),
)
wrong(
    r"constants of the explorer, as JSON: expected no",
    explorer=Panel(HERE, ("panel.js",), lambda: {"a": np.nan}),
)
wrong(
    r"regime: expected a word or None, found 3",
    describe=lambda self, run: setattr(run, "regime", 3),
)
wrong(
    r"names in run.info: expected parameters of the family, found {'odd'}",
    describe=lambda self, run: run.info.update(odd=1),
)
wrong(
    r"losses of the run: expected finite numbers",
    describe=lambda self, run: run.loss.fill(np.nan),
)
wrong(
    r"loss at the target: expected at most",
    describe=lambda self, run: run.loss.__setitem__(-1, 1.1 * run.epsilon),
)
wrong(
    r"why the run stopped: expected a sentence",
    describe=lambda self, run: setattr(run, "stop_reason", " "),
)
wrong(
    r"names of columns: expected each once", columns=(Sound.columns[0], *Sound.columns)
)
wrong(
    r"description of column size: expected a few words",
    columns=(Column("size", "f8", "", ""), Sound.columns[1]),
)
for kind, value in (("i8", 1.5), ("i8", True), ("f8", "3"), ("U4", 3)):
    wrong(
        rf"column size, of dtype {kind}: expected",
        columns=(Column("size", kind, "", "a"),),
        measure=lambda self, run, value=value: {"size": value},
    )
wrong(
    r"status: expected 'reached' or 'not reached', found fine",
    measure=lambda self, run: {"status": "fine"},
)
claimed(
    r"compare of the slot claims: expected a CrossCheck, found 3", compare=lambda run: 3
)
claimed(
    r"question why: expected an Answer, found 3",
    questions=(Question("why", lambda quick: 3),),
)
claimed(
    r"curve 'y' of why: expected as many y as x, \(2,\), found \(3,\)",
    questions=(Question("why", unequal),),
)
claimed(
    r"rows of 1 in paper p: expected functions that return a Claim",
    papers=(Paper("p", "", "", 1, "", (Reading("1", "", rows=(fine, 3)),)),),
)


@pytest.mark.parametrize(
    "family",
    [Sound, Sampled, Reduced, Staged, Simulated, FromZero, TwoPhases, CountInDoubt],
)
def test_toy_family_without_a_fault_passes(family: type[Family]) -> None:
    check_family(family, eta=0.1)


def test_power_is_the_bias_that_is_found_nine_times_in_ten() -> None:
    """The standard error of the loss at x is known here, |x|/256 for 64 batches of 1024 samples."""
    power, run = check_family(Sampled, eta=0.1), Sampled(eta=0.1).simulate()
    assert power is not None
    known = [
        5.349 * float(np.linalg.norm(x)) / 256.0 / Toy().loss(x)
        for x in (Toy.initial, run.params)
    ]
    assert power.loss == pytest.approx(min(known), rel=0.3)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_fault_of_a_family_is_found(family: type[Family]) -> None:
    with pytest.raises(AssertionError, match=FAMILIES[family]):
        check_family(family, eta=0.1)


def test_family_defined_in_a_function_cannot_be_sent_to_workers() -> None:
    class Local(Sound):
        pass

    with pytest.raises(
        AssertionError, match="pickle, by which a problem is sent to workers"
    ):
        check_family(Local, eta=0.1)


@pytest.mark.parametrize("family", [Staged, Simulated])
def test_a_run_by_a_rule_of_the_familys_own_goes_on_after_loading(
    family: type[Family], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "find", {"toy": family}.__getitem__)
    run = family(eta=0.1, scale=3.0).simulate()
    assert run.rule == "waiting"
    run.save(tmp_path / "run.npz")
    again = icl.load(tmp_path / "run.npz")
    assert isinstance(again.family, family)
    assert isinstance(again.risk, Toy)
    assert again.family.arguments() == run.family.arguments()
    for t in (4, 6, 500):
        np.testing.assert_array_equal(again.at(t).params, run.at(t).params)
    assert again.at(5).params[0] == Toy.initial[0] > again.at(6).params[0]


class Late(Rule):
    """Descent of which the first 20,000 steps move nothing."""

    name = "late"

    def step(
        self,
        risk: icl.Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        return -eta * gradient * (t >= 20_000), memory


def test_stagnation_is_not_judged_across_the_stages_of_a_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Staged, "update", lambda self: Late())
    at_once, late = Sound(eta=0.1).simulate(), Staged(eta=0.1).simulate()
    assert at_once.steps is not None
    assert late.steps == at_once.steps + 20_000


def test_a_run_of_another_rule_does_not_go_on_by_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "find", {"toy": Staged}.__getitem__)
    Sound(eta=0.1).simulate().save(tmp_path / "run.npz")
    assert icl.load(tmp_path / "run.npz").family is None
