"""One layer on a fixed chain: losses in many digits, gradients, and basins of a flow that is integrated here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import icl_theory as icl
from icl_theory.testing import check_family


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with mpmath.workdps(40):
        yield


GIVEN: list[dict[str, Any]] = [
    {"p": 0.4, "q": 0.9},
    {"p": 0.7, "q": 0.2, "w": -0.6, "bias": "trained"},
    {"p": 0.5, "q": 0.5, "readout": -0.8},
    {"p": 1e-6, "q": 0.999, "w": -1.5, "readout": 0.3, "bias": "trained"},
    {"p": 0.3001, "q": 0.3, "e": 2.0},
    {"p": 0.3, "q": 0.3001, "w": -1.0},
]


def reference(problem: icl.FixedChain, params: Any) -> Any:
    """The loss of a list of numbers, with 40 digits; the best bias is where its derivative is zero."""
    p, q = mpmath.mpf(problem.p), mpmath.mpf(problem.q)
    e, w, *more = (mpmath.mpf(x) for x in params)
    u = e if problem.readout == "tied" else more[0]
    s = e * u * (1 + 2 * w * abs(w))

    def at(b: Any) -> Any:
        zero, one = b - e * u / 2, b - e * u / 2 + s
        terms = ((q * p, -zero), (q * (1 - p), zero), (p * (1 - q), -one), (p * q, one))
        return sum(weight * mpmath.log1p(mpmath.exp(f)) for weight, f in terms) / (
            p + q
        )

    if problem.bias == "trained":
        return at(more[-1])
    return at(
        mpmath.findroot(
            lambda b: mpmath.diff(at, b), mpmath.log(p / q) + (e * u - s) / 2
        )
    )


@pytest.mark.parametrize("given", GIVEN)
def test_loss_and_gradient_of_the_whole_formula(given: dict[str, Any]) -> None:
    problem = icl.FixedChain(**given)
    risk = problem.risk()
    for at in (
        risk.initial,
        risk.initial + 0.27 * np.arange(1.0, len(risk.initial) + 1.0),
    ):
        loss, gradient = risk.evaluate(at)
        assert loss == pytest.approx(float(reference(problem, at)), rel=1e-13)
        h = mpmath.mpf(10) ** -12
        for place, slope in enumerate(gradient):
            ends = [
                [x + sign * h * (i == place) for i, x in enumerate(map(mpmath.mpf, at))]
                for sign in (1, -1)
            ]
            wanted = (reference(problem, ends[0]) - reference(problem, ends[1])) / (
                2 * h
            )
            assert slope == pytest.approx(float(wanted), rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("off", [1e-9, 1e-4, 1e-3, 1e-2])
def test_small_excess_keeps_its_digits(off: float) -> None:
    problem = icl.FixedChain(p=0.3, q=0.1)
    risk, params = problem.risk(), [np.sqrt(np.log(0.7 * 0.9 / 0.03)) + off, 0.0]
    p, q = mpmath.mpf(0.3), mpmath.mpf(0.1)
    floor = sum(
        a * (-b * mpmath.log(b) - (1 - b) * mpmath.log(1 - b))
        for a, b in ((q, p), (p, q))
    ) / (p + q)
    wanted = float(reference(problem, params) - floor)
    assert risk.excess(params) == pytest.approx(
        wanted, rel=max(1e-10, 4e-15 / off), abs=0.0
    )


@pytest.mark.parametrize(("p", "q"), [(0.1, 0.6), (0.9, 0.4)])
def test_basins_are_those_of_a_flow_integrated_here(p: float, q: float) -> None:
    """The flow of e and w with the stationary bias of the moment, from starts on both sides of the border."""
    wanted = np.log((1 - p) * (1 - q) / (p * q))

    def velocity(_: float, y: Any) -> Any:
        e, w = y
        s = e**2 * (1 + 2 * w * abs(w))
        roots = np.roots([q * np.exp(s), q - p - (p - p) * np.exp(s), -p])
        odds = roots[roots > 0].real.max() * np.exp(s)
        slope = p / (p + q) * (odds / (1 + odds) - (1 - q))
        return [-2 * e * (1 + 2 * w * abs(w)) * slope, -4 * abs(w) * e**2 * slope]

    rng = np.random.default_rng(1)
    for e, w in zip(rng.uniform(0.1, 1.5, 20), rng.uniform(-1.6, 1.0, 20), strict=True):
        end = solve_ivp(
            velocity, (0.0, 3000.0), [e, w], method="LSODA", rtol=1e-8, atol=1e-10
        ).y[:, -1]
        learnt = abs(end[0] ** 2 * (1 + 2 * end[1] * abs(end[1])) / wanted - 1.0) < 0.2
        assert icl.FixedChain(p=p, q=q, e=e, w=w).basin() == (
            "bigram" if learnt else "unigram"
        )


@pytest.mark.parametrize("given", GIVEN)
def test_columns_and_observations_are_those_of_the_parameters(
    given: dict[str, Any],
) -> None:
    problem = icl.FixedChain(**given, eta=0.5, max_steps=3, above=1e-12)
    run = problem.simulate()
    e, w, u = (
        run.states[:, 0],
        run.states[:, 1],
        run.states[:, 0 if problem.readout == "tied" else 2],
    )
    assert tuple(run.states[0, :2]) == (problem.e, problem.w)
    assert u[0] == (problem.e if problem.readout == "tied" else problem.readout)
    strength = e * u * (1.0 + 2.0 * w * abs(w))
    for name, values in {"e": e, "w": w, "strength": strength}.items():
        np.testing.assert_allclose(run.observed[name], values, rtol=1e-14)
    law = np.array([problem.q, problem.p]) / (problem.p + problem.q)
    unigram = -float(law @ np.log(law))
    found = problem.measure(run)
    assert found["gap"] == pytest.approx(unigram - run.floor, rel=1e-9, abs=1e-15)
    assert found["strength"] == pytest.approx(strength[-1], rel=1e-14)
    assert found.get("basin") == problem.basin()
    assert run.notes.get("basin", "the None").endswith(f"the {problem.basin()}")


@pytest.mark.parametrize(("e", "w"), [(0.5, 0.2), (0.7, -1.3), (1.2, -0.4), (0.3, 2.0)])
def test_the_energy_is_the_level_of_a_curve_that_the_flow_follows(
    e: float, w: float
) -> None:
    """Its derivatives by e and w are orthogonal to the gradient of the loss."""
    h, risk = 1e-6, icl.FixedChain(e=e, w=w).risk()
    by_e = (
        icl.FixedChain(e=e + h, w=w).energy - icl.FixedChain(e=e - h, w=w).energy
    ) / (2 * h)
    by_w = (
        icl.FixedChain(e=e, w=w + h).energy - icl.FixedChain(e=e, w=w - h).energy
    ) / (2 * h)
    slope = risk.gradient([e, w])
    assert by_e * slope[0] + by_w * slope[1] == pytest.approx(
        0.0, abs=1e-8 * np.abs(slope).max()
    )
    assert icl.FixedChain(e=e, w=1.0).energy == pytest.approx(e**2 - 1.0)
    assert icl.FixedChain(e=e, w=0.0).energy == np.inf


def test_basins_at_the_edges() -> None:
    assert (
        icl.FixedChain(p=0.5, q=0.5, w=1.0).basin() == "bigram"
    )  # nothing to be learnt
    assert icl.FixedChain(p=0.5, q=0.8, w=0.0).basin() == "unigram"
    assert icl.FixedChain(p=0.2, q=0.3, w=0.0).basin() == "bigram"
    # The loss is even in e, so that a start on the line e = 0 never leaves it.
    for p, q, w in ((0.4, 0.3, 0.5), (0.4, 0.9, -1.0)):
        assert icl.FixedChain(p=p, q=q, start=[0.0, w]).basin() == "unigram"
    assert icl.FixedChain(readout=0.2).basin() is None
    assert icl.FixedChain(bias="trained").basin() is None


@pytest.mark.parametrize("given", [{}, {"q": 0.9, "bias": "trained", "readout": 0.4}])
def test_family(given: dict[str, Any]) -> None:
    check_family(icl.FixedChain, rows=False, max_steps=30, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"p": 0.0},
        {"p": 1e-13},
        {"q": 1.0},
        {"p": 1.0 - 1e-13},
        {"e": 0.0},
        {"e": 1e4},
        {"w": -2e3},
        {"readout": "free"},
        {"bias": "none"},
    ],
)
def test_bad_input(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{[*given][-1]} = "):
        icl.FixedChain(**given)


def test_extreme_parameters_have_finite_losses() -> None:
    for p, q in ((1e-12, 1.0 - 1e-12), (0.5, 1e-12), (0.3, 0.3)):
        for bias in ("best", "trained"):
            risk = icl.FixedChain(p=p, q=q, e=1e3, w=-1e3, bias=bias).risk()
            loss, gradient = risk.evaluate(risk.initial)
            assert np.isfinite(loss)
            assert np.isfinite(gradient).all()
