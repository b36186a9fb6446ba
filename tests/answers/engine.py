"""The engine: rules, risks, descent by every method, how runs end, and what they say of themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine import Rule
from icl_theory.engine.descent import _followed_run
from icl_theory.engine.progress import Progress
from icl_theory.engine.risk import largest_eigenvalue
from icl_theory.engine.rules import RULES, check_blocks, rule_of
from icl_theory.engine.skip import Skipper
from icl_theory.engine.steps import Descent, SingleSteps
from icl_theory.engine.stops import Goal, Recorder, Saved, StopRules
from icl_theory.engine.trajectory import Stop, Trajectory, named, saved_steps
from tests.answers import MAGNITUDE, Call
from tests.answers._told import (
    Bowl,
    Columns,
    Saddle,
    Slope,
    Unknown,
    bent,
    counted,
    followed,
    of_risk,
    told,
)

Asked = Iterator[tuple[str, Call | Any]]
FEATURES = icl.Features.random(4, 3, 0.8, seed=3, probs=[0.4, 0.3, 0.2, 0.1])
POPULATION = icl.PopulationRisk(FEATURES, icl.tasks.Quadratic(1.3), N=7, noise=0.4)
SAMPLED = icl.SampledRisk(
    FEATURES, icl.tasks.Quadratic(1.3), N=7, noise=0.4, batch=8, seed=3
)
SCORES = np.random.default_rng(5).normal(size=(4, 4))


# ---- rules and risks


class Wrong(Bowl):
    """With blocks that are no views of all entries."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def blocks(self, array: Array) -> Any:
        parts = {
            "few": (array[:1],),
            "copies": (array[[0, 1]], array[[2]]),
            "twice": (array, array[1:]),
        }
        return parts[self.kind]


class Number(icl.Risk):
    """½x² of one number, whose gradient is a float."""

    initial = np.array(1.5)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Any]:
        return 0.5 * float(params) ** 2, float(params)


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


def _change(rule: Rule, risk: icl.Risk, gradient: Any) -> Any:
    """Return the change of the parameters in a first step."""
    params = np.asarray(gradient)
    return rule.step(risk, params, gradient, 0.7, rule.init(risk, params), 3)[0]


def rules() -> Asked:
    slopes = {
        "slope": [0.4, -1.1, 2.0],
        "tiny": [3e-200, 4e-200, -1e-200],
        "none": [0.0, 0.0, 0.0],
        "one block": [0.0, -0.3, 0.4],
        "infinite": [math.inf, 1.0, 1.0],
    }
    for rule in RULES.values():
        for name, slope in slopes.items():
            yield (
                f"{rule.name}: {name}",
                partial(_change, rule, Bowl(), np.array(slope)),
            )
        yield f"{rule.name}: a number", partial(_change, rule, Number(), -1.5)
    yield (
        "flags",
        lambda: {
            name: [rule.skippable, rule.may_stagnate, rule.reducible]
            for name, rule in RULES.items()
        },
    )
    for kind in ("few", "copies", "twice"):
        yield f"blocks: {kind}", partial(check_blocks, Wrong(kind), (3,))
        yield (
            f"move with blocks: {kind}",
            partial(_change, RULES["ngd-blocks"], Wrong(kind), np.ones(3)),
        )
    for given in ("gd", "ngd", "NGD", 3, None, Waiting):
        yield (
            f"rule of {given if isinstance(given, str) else repr(given)[:20]}",
            partial(_rule, given),
        )
    yield "rule of its own", lambda: rule_of(Waiting()).name


def _rule(given: Any) -> str:
    return rule_of(given).name


class Flat(icl.Risk):
    """0 everywhere, over more numbers than a matrix is made for."""

    initial = np.zeros((4, 5))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return 0.0, np.zeros_like(params)


class Quartic(icl.Risk):
    """Σ x⁴/4, whose gradient overflows long before its parameters do."""

    initial = np.array([1.0, -2.0])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return float(np.sum(params**4) / 4.0), params**3 - params**3 * (
            np.abs(params) > 1e200
        )


def risks() -> Asked:
    for name, risk, at in (
        ("bowl", Bowl(), [0.3, -0.7, 1.1]),
        ("unknown floor", Unknown(), [0.3, -0.7, 1.1]),
        ("slope", Slope(), [[1.0, -2.0], [0.5, 3.0]]),
        ("columns", Columns(), [[1.0, -2.0], [0.5, 3.0]]),
        ("saddle", Saddle(0.01), [0.2, 0.3]),
        ("population", POPULATION, SCORES),
    ):
        yield name, partial(of_risk, risk, at, 2, every=True)
        yield f"{name}, bent", Call(partial(bent, risk, at), 1e-6)
        yield (
            f"{name}, still",
            partial(risk.hessian_product, np.asarray(at), np.zeros(np.shape(at))),
        )
    for size in (1e-9, 1e7):
        direction = size * np.array([1.0, -0.4])
        yield (
            f"direction of length {size}",
            Call(
                partial(Saddle(0.1).hessian_product, np.array([0.3, 40.0]), direction),
                1e-7,
            ),
        )
    bowl = Bowl()
    for given in (
        [1.0, 2.0],
        [[1.0, 2.0, 3.0]],
        [1.0, math.nan, 0.0],
        "words",
        [1e200, 0.0, 0.0],
        3.0,
        [1j, 0, 0],
    ):
        for ask in (bowl.loss, bowl.gradient, bowl.excess, bowl.sharpness):
            yield f"{ask.__name__} at {given}", partial(ask, given)
    for ask in (Quartic().loss, Quartic().gradient, Quartic().sharpness):
        yield f"{ask.__name__} beyond range", partial(ask, [1e250, 1.0])
        yield f"{ask.__name__} within range", Call(partial(ask, [1e20, 1.0]), 1e-6)
    yield "flat", partial(Flat().sharpness, np.ones((4, 5)))
    matrix = np.random.default_rng(2).normal(size=(15, 15))
    matrix = matrix + matrix.T
    for size in (3, 12, 13, 15):
        weights = np.linspace(0.5, 2.0, size)
        some = matrix[:size, :size]
        yield (
            f"largest eigenvalue of {size}",
            Call(partial(_eigenvalue, some, weights), 1e-6),
        )
    yield (
        "concave",
        Call(partial(_eigenvalue, -np.diag(np.arange(1.0, 14.0)), np.ones(13)), 1e-6),
    )


def _eigenvalue(matrix: Array, metric: Array) -> Any:
    value, vector = largest_eigenvalue(lambda v: matrix @ v, (len(matrix),), metric)
    return value, np.abs(vector)


# ---- descent


def methods() -> Asked:
    bowl = Bowl()
    for rule in ("gd", "ngd", "ngd-blocks"):
        yield f"exact, {rule}", partial(_told, bowl, 0.3, above=0.04, rule=rule)
        yield (
            f"exact, {rule}, steps alone",
            partial(_told, bowl, 0.03, steps=7, rule=rule),
        )
    yield "exact, start below the target", partial(_told, bowl, 0.3, epsilon=100.0)
    yield "exact, one step", partial(_told, bowl, 0.3, steps=1)
    yield "exact, epsilon and steps", partial(_told, bowl, 0.3, epsilon=0.35, steps=100)
    yield "exact, too few steps", partial(_told, bowl, 0.03, epsilon=0.35, steps=3)
    yield "rule of its own", partial(_told, bowl, 0.3, above=0.04, rule=Waiting())
    yield (
        "rule of its own, auto",
        partial(_told, bowl, 0.3, above=0.04, rule=Waiting(), method="auto"),
    )
    yield (
        "a number",
        partial(_told, Number(), 0.3, above=1e-3, rule="ngd-blocks", steps=9),
    )
    slow = {"fast": 1e-5, "auto": 1e-5, "flow": 1e-5}
    for method, eta in slow.items():
        for name, risk, goal in (
            ("bowl", bowl, {"above": 1e-6}),
            ("slope", Slope(), {"epsilon": 0.02}),
        ):
            run = partial(
                icl.descend,
                risk,
                eta if name == "bowl" else 0.05,
                method=method,
                **goal,
            )
            yield f"{method}, {name}", Call(lambda run=run: followed(run()), 1e-6)
            yield (
                f"{method}, {name}, errors",
                Call(lambda run=run: counted(run()), MAGNITUDE),
            )
            yield (
                f"{method}, {name}, beyond",
                Call(partial(_beyond, run, 3 * 10**6 + 1), 1e-6),
            )
    yield (
        "columns",
        Call(
            lambda: followed(icl.descend(Columns(), 0.05, epsilon=0.02, method="fast")),
            1e-6,
        ),
    )
    yield (
        "columns, errors",
        Call(
            lambda: counted(icl.descend(Columns(), 0.05, epsilon=0.02, method="fast")),
            MAGNITUDE,
        ),
    )
    for tolerance in (1e-2, 0.1):
        loose = partial(
            icl.descend, Slope(), 0.05, epsilon=1e-3, method="fast", tolerance=tolerance
        )
        yield (
            f"tolerance {tolerance}, errors",
            Call(lambda run=loose: counted(run()), MAGNITUDE),
        )
    for tolerance in (1e-4, 1e-9):
        run = partial(
            icl.descend, Slope(), 0.05, epsilon=1e-3, method="fast", tolerance=tolerance
        )
        yield (
            f"tolerance {tolerance}",
            Call(lambda run=run: followed(run()), 1e-3 if tolerance > 1e-5 else 1e-6),
        )
        yield (
            f"tolerance {tolerance}, errors",
            Call(lambda run=run: counted(run()), MAGNITUDE),
        )
    run = partial(icl.descend, bowl, 1e-5, above=1e-6, method="fast", tolerance=1e-17)
    yield (
        "tolerance out of reach",
        Call(
            lambda: [counted(run()), run().notes["accuracy"].split(",")[::2]], MAGNITUDE
        ),
    )
    fast = {"method": "fast", "above": 1e-9}
    yield (
        "fast, normalised",
        Call(lambda: followed(icl.descend(Slope(), 1e-3, rule="ngd", **fast)), 1e-6),
    )
    yield "auto, few steps", partial(_told, bowl, 0.3, above=1e-6, method="auto")
    closed = icl.Regression(L=1.3, delta=0.8, eta=1.7, K=5).risk()
    yield "closed", partial(_told, closed, 1.7, epsilon=0.02, method="closed")
    yield "closed, auto", partial(_told, closed, 1.7, epsilon=0.02, method="auto")
    yield "closed, steps alone", partial(_told, closed, 1.7, steps=50, method="closed")
    yield "closed, at once", partial(_told, closed, 1.7, epsilon=50.0, method="closed")
    yield (
        "closed, too few steps",
        partial(_told, closed, 1.7, epsilon=1e-6, steps=50, method="closed"),
    )
    yield (
        "closed, not closed",
        partial(_told, closed, 1.7, epsilon=0.02, method="exact"),
    )


def _told(risk: icl.Risk, eta: float, **options: Any) -> Any:
    return told(icl.descend(risk, eta, **options))


def _beyond(run: Callable[[], Trajectory], t: int) -> Any:
    found = run()
    return [
        found.at(t)._asdict(),
        found.at(7)._asdict(),
        found.at(int(found.t[-1]) - 1)._asdict(),
    ]


def refusals() -> Asked:
    bowl = Bowl()
    for name, options in {
        "no end": {},
        "two ends": {"epsilon": 0.1, "above": 0.1},
        "steps": {"steps": 0},
        "half": {"steps": 1.5},
        "negative": {"epsilon": -1.0},
        "above 0": {"above": 0.0},
        "above": {"above": 1e-15},
        "nan": {"epsilon": math.nan},
        "method": {"epsilon": 0.1, "method": "slow"},
        "rule": {"epsilon": 0.1, "rule": "adam"},
        "tolerance": {"epsilon": 0.1, "tolerance": 0.0},
        "callback": {"epsilon": 0.1, "callback": 3},
        "give_up": {"epsilon": 0.1, "give_up": 1},
        "progress": {"epsilon": 0.1, "progress": "no"},
        "closed": {"epsilon": 0.1, "method": "closed"},
        "fast, waiting": {"epsilon": 0.1, "method": "fast", "rule": Waiting()},
        "blocks": {"epsilon": 0.1, "rule": "ngd-blocks"},
    }.items():
        risk = Wrong("few") if name == "blocks" else bowl
        yield name, partial(_told, risk, 0.3, **options)
    for eta in (0.0, -1.0, math.inf, "auto", True):
        yield f"eta {eta}", partial(_told, bowl, eta, epsilon=0.1)

    for method in ("auto", "fast", "flow", "closed"):
        yield f"sampled, {method}", partial(_told, SAMPLED, 0.3, steps=5, method=method)
    for name, risk in {
        "no risk": 3,
        "list": _started([1.0, 2.0]),
        "word": _started(np.array(["a"])),
        "nan": _started(np.array([math.nan])),
        "shape": _started(np.zeros(2)),
        "infinite": _started(np.full(1, math.inf)),
        "float": _started(1.0),
    }.items():
        yield f"risk: {name}", partial(_told, risk, 0.3, steps=3)


def _started(start: Any) -> icl.Risk:
    class Started(icl.Risk):
        initial = start

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            return math.nan if np.any(np.isnan(params)) else 1.0, np.ones(1)

        def __repr__(self) -> str:
            return "<a risk>"

    return Started()


# ---- how runs end


class Runaway(icl.Risk):
    """A bounded loss whose gradient sends the parameters to infinity."""

    initial = np.array([1.0, -0.5])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return 1.0 + 1.0 / (1.0 + float(np.abs(params).max())), -params * np.abs(
            params
        ) ** 0.5


class BlowUp(icl.Risk):
    """-x³/3, along whose flow x is infinite at a finite time."""

    initial = np.array([0.01])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return 10.0 - float(params[0] ** 3) / 3.0, -(params**2)


class Corner(icl.Risk):
    """|x| + 1 with steps of constant length: they go round in a cycle."""

    initial = np.array([0.3, -0.2])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return 1.0 + float(np.abs(params).sum()), np.sign(params)


class Tail(icl.Risk):
    """½ + ε/x², which falls ever more slowly."""

    initial = np.array([0.5])

    def __init__(self, height: float) -> None:
        self.height = height

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        x = float(params[0])
        return 0.5 + self.height / x**2, np.array([-2.0 * self.height / x**3])


class Drop(icl.Risk):
    """A plateau, and then a fall to a least loss that is not known as the floor."""

    initial = np.array([1e-3])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        x = params[0]
        return 0.4 + 0.25 * float((1.0 - x * x) ** 2), np.array([-x * (1.0 - x * x)])


def stops() -> Asked:
    bowl, unknown = Bowl(), Unknown()
    yield "reached", partial(_end, bowl, 0.3, epsilon=0.31)
    yield (
        "reached to the last bit",
        partial(_end, bowl, 0.3, epsilon=bowl.loss(bowl.initial)),
    )
    for give_up in (None, True, False):
        yield (
            f"floor, {give_up}",
            partial(_end, bowl, 0.3, epsilon=0.2, give_up=give_up),
        )
        yield (
            f"floor and steps, {give_up}",
            partial(_end, bowl, 0.3, epsilon=0.2, steps=300, give_up=give_up),
        )
    yield "the floor itself", partial(_end, bowl, 0.3, epsilon=0.3)
    yield "unmoved", partial(_end, unknown, 0.3, epsilon=0.0)
    yield "settles above", partial(_end, unknown, 1e-3, epsilon=0.2)
    yield (
        "settles above, slowly",
        partial(_end, unknown, 3e-4, epsilon=0.2, steps=30000),
    )
    yield (
        "settles above, does not give up",
        partial(_end, unknown, 1e-3, epsilon=0.2, steps=12000),
    )
    for height in (1e-2, 1e-3, 1e-4):
        for eta in (1.0, 0.1):
            tail = partial(
                _end, Tail(height), eta, epsilon=0.499, steps=15000, give_up=True
            )
            yield f"a tail of {height} at the rate {eta}", tail
            yield (
                f"a tail of {height} at the rate {eta}, fast",
                Call(partial(tail, method="fast"), 1e-5),
            )
    yield (
        "settled to a loose tolerance",
        Call(
            partial(_end, unknown, 1e-4, epsilon=0.2, method="fast", tolerance=0.03),
            1e-3,
        ),
    )
    yield "a cycle", partial(_end, Corner(), 0.07, epsilon=0.5)
    yield "a plateau", partial(_end, Drop(), 3e-3, epsilon=0.5)
    plateau = partial(_end, Drop(), 3e-4, epsilon=0.5, method="fast")
    # its error is close to the tolerance, and rounding decides whether a note says so
    yield "a plateau, fast", Call(lambda: plateau() | {"notes": None}, 1e-6)
    for method in ("fast", "auto", "flow"):
        yield (
            f"settled, {method}",
            Call(partial(_end, unknown, 1e-4, epsilon=0.2, method=method), 1e-6),
        )
        yield (
            f"floor, {method}",
            Call(partial(_end, bowl, 1e-4, epsilon=0.2, method=method), 1e-6),
        )
        yield (
            f"steps, {method}",
            Call(
                partial(_end, bowl, 1e-4, epsilon=0.31, steps=9000, method=method), 1e-6
            ),
        )
    yield "loss diverges", partial(_end, bowl, 3.0, epsilon=0.31)
    yield "parameters diverge", partial(_end, Runaway(), 1.0, epsilon=0.5)
    yield (
        "flow diverges",
        Call(partial(_end, BlowUp(), 0.1, epsilon=0.01, method="flow"), 1e-3),
    )
    yield "work", partial(_worked, 300)
    yield "interrupted", partial(_interrupted, 0)
    yield "interrupted in a measurement", partial(_interrupted, 1)
    for beside in (0.0, 1e-9, 1e-3):
        for method in ("exact", "fast"):
            run = partial(
                _end,
                Saddle(beside),
                0.01,
                epsilon=1e-3,
                steps=5000,
                give_up=True,
                method=method,
            )
            yield f"saddle, {beside}, {method}", Call(run, 1e-5)
    yield "sampled", lambda: told(icl.descend(SAMPLED, 0.3, steps=12))
    yield (
        "sampled, epsilon",
        lambda: told(icl.descend(SAMPLED, 0.3, epsilon=0.4, steps=40)),
    )
    yield "calls", partial(_called, 0.02, above=1e-3)
    yield (
        "calls, long",
        lambda: [step for step in _called(1e-4, steps=9000)[0] if step > 4000],
    )
    yield "calls, fast", partial(_called, 1e-5, above=1e-3, method="fast")
    for stop in Stop:
        facts = {"step": 12345, "epsilon": 0.0125, "floor": 0.375, "work": 200000}
        yield f"say {stop.name}", partial(stop.say, **facts)
    yield "goals", _goals


def _end(risk: icl.Risk, eta: float, **options: Any) -> Any:
    run = icl.descend(risk, eta, **options)
    if run.stop in (
        Stop.LOSS,
        Stop.PARAMETERS,
        Stop.FLOW,
    ):  # it diverges, and rounding decides where it stops
        return {"stop": run.stop.name, "method": run.method, "reached": run.steps}
    return {
        "stop": run.stop.name,
        "why": run.stop_reason,
        "steps": run.steps,
        "last": int(run.t[-1]),
        "saved": len(run.t),
        "loss": run.loss[-1],
        "params": run.params,
        "method": run.method,
        "notes": [*run.notes],
    }


def _worked(budget: int) -> Any:
    risk = Slope()
    solution = Skipper(Descent(risk, 0.05, rule_of("gd")), 1e-7, budget=budget)
    run = _followed_run(
        solution,
        Goal(1e-9, 0.0, 10**12, True),
        "fast",
        1e-7,
        Progress(quiet=True),
        None,
    )
    return run.stop.name, run.stop_reason, int(run.t[-1])


def _interrupted(depth: int) -> Any:
    def press(step: int, loss: float) -> None:
        if step >= 20:
            raise KeyboardInterrupt

    try:
        run = icl.descend(Bowl(), 0.02, epsilon=0.31, callback=press)
        if depth:
            mine = {
                "__name__": "icl_theory.mine",
                "icl": icl,
                "Bowl": Bowl,
                "press": press,
            }
            exec(
                "def measured():\n    return icl.descend(Bowl(), 0.02, epsilon=0.31, callback=press)",
                mine,
            )
            run = mine["measured"]()  # type: ignore[operator]
    except KeyboardInterrupt:
        return "interrupted"
    return told(run)


def _called(eta: float, **options: Any) -> Any:
    seen: list[tuple[int, float]] = []
    icl.descend(Bowl(), eta, callback=lambda *each: seen.append(each), **options)
    return [step for step, _ in seen], [round(loss, 6) for _, loss in seen]


def _goals() -> Any:
    given = [(0.5, 0.3), (0.3, 0.3), (0.2, 0.3), (0.0, 0.0), (0.2, -1.0)]
    goals = [
        Goal(epsilon, floor, 100, up)
        for epsilon, floor in given
        for up in (True, False)
    ]
    return [
        (goal.aim[0], goal.aim[1].name, goal.say(goal.aim[1], 1234567))
        for goal in goals
    ]


def saving() -> Asked:
    """What is saved, and what of it shows that nothing moves."""
    for last, size in (
        (1, 1),
        (10, 1),
        (99, 3),
        (12345, 1),
        (10**6, 10**6),
        (10**15, 1),
        (1000, 10**5),
    ):
        yield f"saved steps to {last} of {size}", partial(saved_steps, last, size)
    yield "saved steps do not fit", partial(saved_steps, 10**9, 10**12)
    for name in ("loss", "t", "query", "family", "attention", "mine"):
        yield f"observation {name}", partial(named, {name: [1.0, 2.0]})
    yield "settled and stalled", _recorded
    for last in (9_999, 10_000, 30_000):
        for slope in (0.45, 0.55, 1.0, 1.2):
            yield (
                f"stalled at {last} with the slope {slope}",
                partial(_stalled, last, slope),
            )
    for last in (255, 256, 400):
        yield f"settled at {last}", partial(_settled, last)


def _stalled(last: int, slope: float) -> str:
    """Whether a loss that falls by some share of what its slope promises is judged to stall, for two targets."""
    recorder, found = Recorder(Unknown(), 10**6), ""
    for share in (0.0, 1e-9, 0.004, 0.02, 0.3, 0.7, 1.0):
        for level in (0.5, 0.02):
            steep, start = 1e-7, last // 10
            now = level - share * min(slope, 1.0) * steep * (last - start)
            states = ((start, level, steep), (last, now, slope * steep))
            recorder.saved = [
                Saved(t, loss, each, np.zeros(3), {}) for t, loss, each in states
            ]
            found += (
                "".join(
                    str(int(recorder.has_stalled(epsilon)))
                    for epsilon in (0.0, now - 1e-7, now - 3e-5)
                )
                + " "
            )
    return found


def _settled(last: int) -> str:
    """Whether scores that moved so far while the step number doubled, and before, are judged to have settled."""
    recorder, found = Recorder(Unknown(), 10**6), ""
    for before in (1e-4, 6e-4, 2e-3):
        for now in (1e-5, 1.4e-4, 1.6e-4, 8e-4, 1.1e-3):
            places = ((last // 4, 0.0), (last // 2, before), (last, before + now))
            recorder.saved = [
                Saved(t, 0.5, 0.0, np.array([x, 0.0, 0.0]), {}) for t, x in places
            ]
            found += (
                "".join(
                    str(int(recorder.has_settled(1e-3, move))) for move in (5e-4, 2e-3)
                )
                + " "
            )
    return found


def _recorded() -> Any:
    descent = Descent(Unknown(), 1e-3, rule_of("gd"))
    rules = StopRules(Goal(0.2, 0.0, 10**6, True), SingleSteps(descent), 1e-7)
    recorder, found = rules.recorder, []
    for point in descent.iterates(descent.risk.initial):
        if point.step >= recorder.due:
            recorder.save(point, descent.slope(point.gradient))
            if point.step % 7 == 0 or point.step > 3000:
                move = descent.pace(point) / (point.step + 1)
                settled = [
                    recorder.has_settled(least, move) for least in (1e-3, 1e-5, 1e-7)
                ]
                stalled = [recorder.has_stalled(epsilon) for epsilon in (0.2, 0.29)]
                found.append(
                    (
                        point.step,
                        descent.slope(point.gradient),
                        move,
                        *settled,
                        *stalled,
                    )
                )
        if point.step > 21000:
            break
    return found, recorder.due, [each.step for each in recorder.saved][::9]
