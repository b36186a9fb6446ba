"""The checks of risks and families: those of the package pass them, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine.capabilities import gradients_one_by_one, series_one_by_one
from icl_theory.families import Family
from icl_theory.papers.recall import RecallTask, TransformerRisk
from icl_theory.testing import check_family, check_risk
from icl_theory.testing.common import same
from icl_theory.testing.risks import CENTRAL, FORWARD, difference

Array = np.ndarray[Any, np.dtype[np.float64]]
FEATURES = icl.Features.random(4, d=3, delta=1.0, seed=5, probs=[0.4, 0.3, 0.2, 0.1])
QUADRATIC = icl.PopulationRisk(FEATURES, icl.tasks.Quadratic(2.0))
PLAIN = {"L": 2.0, "delta": 1.0, "eta": 4.0}

RISKS: dict[str, Callable[[], icl.Risk]] = {
    "population": lambda: QUADRATIC,
    "finite prompts": lambda: icl.PopulationRisk(
        FEATURES, icl.tasks.Linear(2.0), N=4, noise=0.3
    ),
    "embedding": lambda: icl.in_coordinates(QUADRATIC, "embedding", FEATURES.vectors),
    "factored": lambda: icl.in_coordinates(
        QUADRATIC, "factored", FEATURES.vectors, rank=2
    ),
    "exchangeable": lambda: icl.Regression(**PLAIN).risk(),
    "exchangeable with noise": lambda: icl.Regression(**PLAIN, N=40, noise=0.5).risk(),
    "symmetric": lambda: icl.SymmetricRisk([2, 3], [0.2, 0.2], 2.0),
    "gaussian": lambda: icl.GaussianRisk(
        icl.regression.QuadraticLaw(d=2, sigma_a=1.0, sigma_b=0.5)
    ),
    "sampled": lambda: icl.SampledRisk(
        FEATURES, icl.tasks.Quadratic(2.0), N=20, batch=16, seed=0
    ),
    "sampled gaussian": lambda: icl.regression.SampledGaussianRisk(
        icl.regression.QuadraticLaw.lipschitz(d=2, L=1.0), N=20, batch=16, seed=0
    ),
    "block": lambda: icl.regression.BlockRisk(
        icl.SampledRisk(
            icl.Features.simplex(4, 2.0),
            icl.tasks.Exchangeable(1.0),
            N=20,
            batch=8,
            seed=0,
        )
    ),
    "recall, linear": lambda: icl.Recall(alpha=0.3).risk(),
    "recall, relu": lambda: icl.Recall(
        alpha=0.3, attention="relu", gamma="best"
    ).risk(),
    "recall, softmax": lambda: icl.Recall(
        V=7, triggers=2, outputs=2, H=3, attention="softmax", probs=(0.6, 0.4)
    ).risk(),
    "recall, empirical": lambda: icl.Recall(M=20, alpha=0.2).risk(),
    "recall, matrices": lambda: TransformerRisk(
        RecallTask(V=8, triggers=2, outputs=3, H=9), batch=8
    ),
}

PROBLEMS: dict[str, tuple[type[Family], dict[str, Any]]] = {
    "recall": (icl.Recall, {"V": 9, "triggers": 2, "outputs": 3, "counts": 1}),
    "recall, empirical": (icl.Recall, {"M": 20, "rule": "gd", "above": 0.1}),
    "regression": (icl.Regression, {**PLAIN, "K": 5, "epsilon": 1e-2}),
    "regression, many steps": (icl.Regression, {**PLAIN, "K": 5, "epsilon": 1e-6}),
    "regression, stable rate": (
        icl.Regression,
        {**PLAIN, "eta": "auto", "K": 5, "epsilon": 1e-2},
    ),
    "regression, finite prompts": (
        icl.Regression,
        {**PLAIN, "K": 4, "N": 20, "task": "quadratic", "above": 1e-2},
    ),
    "regression, features": (
        icl.Regression,
        {
            **PLAIN,
            "eta": 1.0,
            "features": FEATURES,
            "task": icl.tasks.Quadratic(2.0),
            "N": 4,
            "above": 0.2,
        },
    ),
    "regression, reduced": (
        icl.Regression,
        {**PLAIN, "K": 5, "N": 30, "coordinates": "embedding", "above": 1e-2},
    ),
}


@pytest.mark.parametrize("name", RISKS)
def test_risk_of_the_package_passes(name: str) -> None:
    check_risk(RISKS[name]())


@pytest.mark.parametrize("name", PROBLEMS)
def test_family_of_the_package_passes(name: str) -> None:
    family, parameters = PROBLEMS[name]
    check_family(family, rows=False, **parameters)


# ---- a risk with one fault


class Toy(icl.Risk):
    """½|x|² + Σ(1 - cos x_i) above a floor of 0.25, on two numbers."""

    initial = np.array([1.0, -0.5])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return 0.25 + 0.5 * float(params @ params) + float(
            np.sum(1 - np.cos(params))
        ), params + np.sin(params)

    def floor(self) -> float:
        return 0.25

    def hessian_product(self, params: Array, direction: Array) -> Array:
        return (1.0 + np.cos(params)) * direction

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return {"norm": np.linalg.norm(params)}  # type: ignore[dict-item]


class Steep(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        loss, gradient = super().evaluate(params, step)
        return loss, 1.01 * gradient


class OneEntry(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        loss, gradient = super().evaluate(params, step)
        return loss, gradient * np.array([1.0, 1.0 + 1e-5])


class HighFloor(Toy):
    def floor(self) -> float:
        return 0.6


class Forgetful(Toy):
    def __init__(self) -> None:
        self.calls = 0

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        self.calls += 1
        loss, gradient = super().evaluate(params, step)
        return loss * (1.0 + 1e-15 * self.calls), gradient


class Drawing(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        shift = np.random.default_rng(step).normal()
        loss, gradient = super().evaluate(params, step)
        return loss + 0.01 * float(shift) ** 2, gradient


class DrawingInClosedForm(Drawing):
    stochastic = True

    def closed_form(self, eta: float, rule: Any) -> Any:
        return "a line"


class Held(Toy):
    def __init__(self) -> None:
        self.function = lambda x: x


class OtherCopy(Toy):
    scale = 1.0

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        loss, gradient = super().evaluate(params, step)
        return self.scale * loss, self.scale * gradient

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.scale = 2.0

    def __getstate__(self) -> dict[str, Any]:
        return {"scale": 1.0}


class WrongHessian(Toy):
    def hessian_product(self, params: Array, direction: Array) -> Array:
        return (1.0 + 1.01 * np.cos(params)) * direction


class FlatHessian(Toy):
    def hessian_product(self, params: Array, direction: Array) -> Array:
        return np.zeros(3)


class WrongShape(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        loss, gradient = super().evaluate(params, step)
        return loss, gradient[:, None]


class SinglePrecision(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        loss, gradient = super().evaluate(params, step)
        return loss, gradient.astype(np.float32)  # type: ignore[return-value]


class ArrayLoss(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        loss, gradient = super().evaluate(params, step)
        return np.array([loss]), gradient  # type: ignore[return-value]


class Whole(Toy):
    initial = np.array([1, 2])  # type: ignore[assignment]


class NotFinite(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return np.inf, params


class Raising(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        raise RuntimeError("no data")


class Changing(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        found = super().evaluate(params, step)
        params *= 0.5
        return found


class WrongMetric(Toy):
    metric = np.array([1.0, 0.0])


class LongMetric(Toy):
    metric = np.ones(3)


class Growing(Toy):
    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return {"norm": np.zeros(step + 1)}


class WrongSeries(Toy):
    def series(self, states: Array, steps: Any) -> tuple[Array, dict[str, Array]]:
        losses, seen = series_one_by_one(self, states, steps)
        return losses * 1.001, seen


class WrongGradients(Toy):
    def gradients(self, states: Array) -> Array:
        return gradients_one_by_one(self, states)[::-1]


class Noise(Toy):
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        loss, gradient = super().evaluate(params, step)
        return loss + 0.1 * float(np.sin(1e9 * params.sum()) ** 2), gradient


class HighExcess(Toy):
    def excess(self, params: Any) -> float:
        return 1.3 * super().excess(params)


class NoExcess(Toy):
    def excess(self, params: Any) -> float:
        return float("nan")


class RaisingExcess(Toy):
    def excess(self, params: Any) -> float:
        raise RuntimeError("no excess")


class ExcessBelow(Toy):
    def excess(self, params: Any) -> float:
        return self.loss(params) - 0.3


class WrongObservedExcess(Toy):
    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return {"excess": np.asarray(1.3 * self.excess(params))}


class Reserved(Toy):
    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return {"loss": params}


class FewBlocks(Toy):
    def blocks(self, array: Array) -> Any:
        return (array[:1],)


class CopiedBlocks(Toy):
    def blocks(self, array: Array) -> Any:
        return (array[[0]], array[[1]])


class OverlappingBlocks(Toy):
    def blocks(self, array: Array) -> Any:
        return (array, array[1:])


class LastBit(Toy):
    """The gradient has another last bit where the parameters lie otherwise in memory."""

    count = 0

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        type(self).count += 1
        loss, gradient = super().evaluate(params, step)
        return loss, gradient * np.array([1.0, 1.0 + 2.0**-51 * (self.count % 2)])


FAULTS: dict[type[Toy], str] = {
    HighExcess: r"excess at points\[0\]: expected the loss less .*, 0\.\d+, found 0\.\d+",
    NoExcess: r"excess at the initial point: expected a finite number, found nan",
    RaisingExcess: r"excess at the initial point: expected no exception, found RuntimeError: no excess",
    ExcessBelow: r"excess: expected the loss less the floor, 0.25, or less a number below it, found .* 0.3",
    WrongObservedExcess: r"observation 'excess' at points\[0\]: expected the loss less",
    Reserved: r"observe at the initial point: expected no exception, found ValueError: observation = 'loss'",
    FewBlocks: r"blocks: expected no exception, found ValueError: blocks = \[\(1,\)\]: must be views",
    CopiedBlocks: r"blocks: expected no exception, found ValueError: blocks = \[\(1,\), \(1,\)\]: must be views",
    OverlappingBlocks: r"blocks: .* blocks = \[\(2,\), \(1,\)\]: must be views",
    LastBit: r"gradient at .*, evaluated twice, entry \(1,\): expected the same bits, -0\.979425538604\d+, f",
    Steep: r"gradient of the loss at the initial point, entry \(\d,\): expected -?\d.*, found",
    OneEntry: r"gradient of the loss at the initial point, entry \(1,\): expected -0.979425539, found -0.979435333",
    HighFloor: r"loss at points\[0\]: expected at least the floor, 0.6, found 0\.2\d+",
    Forgetful: r"loss at the initial point, evaluated twice: expected the same bits",
    Drawing: r"at another step, of a risk that is not stochastic: expected the same bits",
    DrawingInClosedForm: r"closed form of a risk that draws data or is scheduled: expected None, found a line",
    Held: r"pickle, .*: expected no exception, found .*lambda",
    OtherCopy: r"loss of a copy by pickle at the initial point: expected the same bits",
    WrongHessian: r"Hessian product at the initial point, entry .*: expected the product estimated by differences of gradients, ",
    FlatHessian: r"shape of the Hessian product at the initial point: expected \(2,\), found \(3,\)",
    WrongShape: r"shape of the gradient at the initial point: expected \(2,\), found \(2, 1\)",
    SinglePrecision: r"dtype of the gradient at the initial point: expected float64, found float32",
    ArrayLoss: r"type of the loss at the initial point: expected a float, found ndarray",
    Whole: r"dtype of the initial parameters: expected float64, found int64",
    NotFinite: r"loss at the initial point: expected a finite number, found inf",
    Raising: r"evaluate at the initial point: expected no exception, found RuntimeError: no data",
    Changing: r"parameters after evaluate at the initial point, entry \(0,\): expected the same bits, 1.0, f",
    WrongMetric: r"metric: expected positive numbers",
    LongMetric: r"shape of the metric: expected one that divides gradients of shape \(2,\), found \(3,\)",
    Growing: r"names and shapes of the observations at points\[0\]: expected always .*\(1,\).*, found .*\(2,\)",
    WrongSeries: r"loss of series at the initial point: expected that of evaluate",
    WrongGradients: r"gradient at the initial point, by gradients, entry .*: expected that of evaluate, \d",
    Noise: r"gradient of the loss at the initial point: expected differences that converge as their width falls, found noise",
}


def test_toy_without_a_fault_passes() -> None:
    check_risk(Toy())
    check_risk(Toy(), points=[[0.0, 0.0], [3.0, 4.0]], seed=3)


@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [
        (1.0, 1.0, True),
        (1, 1.0, False),
        (0, 0.0, False),
        (np.zeros(2, np.int64), np.zeros(2), False),
        (True, np.int8(1), False),
        (0.0, -0.0, False),
        (np.nan, np.nan, True),
        (np.zeros(2), np.zeros((2, 1)), False),
        (np.zeros(2), np.zeros(3), False),
        (
            np.array(["a", None], dtype=object),
            np.array(["a", None], dtype=object),
            True,
        ),
        ({"a": np.ones(2)}, {"a": np.ones(2)}, True),
        ({"a": 1.0}, {"b": 1.0}, False),
        ({"a": 1.0}, {}, False),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, False),
    ],
)
def test_the_same_bits_are_those_of_one_type_and_one_shape(
    one: Any, two: Any, alike: bool
) -> None:
    assert same(one, two) is same(two, one) is alike


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_of_a_risk_is_found(fault: type[Toy]) -> None:
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        check_risk(fault(), points=[[0.1, 0.0]])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"spread": 0.0}, "spread = 0.0"),
        ({"seed": -1}, "seed = -1"),
        ({"points": [[1.0]]}, r"points\[0\] = \(1,\)"),
        ({"points": [[[1.0]]]}, r"points\[0\] ="),
    ],
)
def test_check_of_a_risk_refuses_wrong_arguments(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_risk(Toy(), **arguments)


class Bent(icl.Risk):
    """Slopes -½ to the left of 0 and 3/2 to the right of it, and any number said for that at 0 itself."""

    initial = np.zeros(1)

    def __init__(self, said: float) -> None:
        self.said = said

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        x = float(params[0])
        slope = self.said if x == 0.0 else 1.5 if x > 0.0 else -0.5
        return 2.0 + max(1.5 * x, -0.5 * x), np.array([slope])


@pytest.mark.parametrize("said", [-0.5, 0.0, 0.7, 1.5])
def test_at_a_kink_any_slope_between_both_sides_will_do(said: float) -> None:
    check_risk(Bent(said), points=[[1.0], [-1.0]])


@pytest.mark.parametrize("said", [-40.0, -0.6, 1.6, 9.0])
def test_at_a_kink_a_slope_beyond_both_sides_will_not(said: float) -> None:
    with pytest.raises(
        AssertionError, match="gradient of the loss at the initial point"
    ):
        check_risk(Bent(said), points=[[1.0], [-1.0]])


def test_check_of_a_risk_refuses_what_is_none() -> None:
    with pytest.raises(ValueError, match="risk = 3: must be a Risk"):
        check_risk(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("stencil", [CENTRAL, FORWARD])
def test_differences_are_of_sixth_order_and_their_error_is_bounded(
    stencil: Any,
) -> None:
    """Polynomials of degree 6 have exact differences; exp has 1, within the estimate."""
    for power in range(7):
        slope = sum(weight * float(j) ** power for j, weight in stencil) / 60.0
        assert slope == pytest.approx(1.0 if power == 1 else 0.0, abs=1e-12)
    slope, error = difference(lambda x: float(np.exp(x)), 1.0, stencil)
    assert abs(slope - 1.0) <= error < 1e-7


def test_rounding_alone_is_no_fault_of_a_hessian() -> None:
    """One token has all attention: gradient and Hessian are zero, and what is computed of them is rounding."""
    check_risk(icl.TokenRisk(icl.Kind(1, [0.2, 0.8], [1.0, -1.0]), 0.1))


def test_words_in_place_of_numbers_are_a_fault_like_others() -> None:
    class Worded(Toy):
        def series(self, states: Array, steps: Any) -> tuple[Array, dict[str, Any]]:
            return series_one_by_one(self, states, steps)[0], {
                "norm": np.array(["a"] * len(states))
            }

    with pytest.raises(
        AssertionError,
        match=r"observation 'norm' of series at the initial point: expected",
    ):
        check_risk(Worded())
