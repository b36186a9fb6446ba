"""What the families say beside their risk: rates, expected steps, columns, phases, for each the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import optimize

import icl_theory as icl
from icl_theory import regression
from icl_theory.families import Family
from icl_theory.families.registry import find
from tests.references import slopes

KAPPA = 0.30811714  # the largest value of 4t²(1 - t)(2 - 3t) between 0 and 1
Regression, Grouped, Gaussian = (
    icl.Regression,
    regression.GroupedRegression,
    regression.GaussianRegression,
)
LINE = icl.Features([[0.0], [1.0], [2.5]], [0.5, 0.3, 0.2])
VALUES = np.array([[1.0, 0.3, -0.4], [-1.0, 0.2, 0.9]])  # two functions, equally likely
FINITE = icl.tasks.FiniteTask(VALUES)
STEEPEST = max(
    np.mean((VALUES[:, i] - VALUES[:, j]) ** 2) / 2 for i in range(3) for j in range(3)
)


@pytest.mark.parametrize(
    ("problem", "features", "largest", "factor"),
    [
        (Regression(L=2.0, delta=0.7, eta="auto", K=5, noise=3.0), 5, 0.98, 1.0),
        (Regression(L=2.0, delta=0.7, eta="auto", K=5, noise=3.0, N=9), 5, 9.98, 1.0),
        (
            Regression(L=2.0, delta=0.7, eta="auto", K=5, coordinates="embedding"),
            5,
            0.98,
            4 / 0.7**4,
        ),
        (
            Regression(L=2.0, delta=0.7, eta="auto", K=3, probs=(0.5, 0.3, 0.2)),
            2,
            0.98,
            1.0,
        ),
        (
            Regression(L=2.0, delta=1.0, eta="auto", features=LINE, task=FINITE),
            2,
            STEEPEST,
            1.0,
        ),
        (Grouped(L=2.0, delta=0.7, sizes=(2, 6), shares=(0.5, 0.5)), 4, 0.98, 1.0),
        (
            Grouped(L=2.0, delta=0.7, sizes=(2, 6), shares=(0.1, 0.9), N=7, noise=0.5),
            6 / 0.9,
            1.23,
            1.0,
        ),
    ],
    ids=[
        "infinite",
        "finite",
        "embedding",
        "unequal",
        "given features",
        "groups",
        "noisy groups",
    ],
)
def test_automatic_rates_are_one_over_the_bound_on_the_curvature(
    problem: Family, features: float, largest: float, factor: float
) -> None:
    """κ times the largest variogram and the noise, times the largest probability."""
    assert problem.rate() == pytest.approx(
        factor * features / (KAPPA * largest), rel=1e-6
    )
    run = problem.changed(max_steps=60).simulate()
    assert (np.diff(run.loss) <= 1e-14).all()
    sharpest = max(icl.engine.sharpness_along(run, points=12)[1])
    assert problem.rate() * sharpest <= 1.0


def test_two_features_are_as_sharp_as_the_bound_says() -> None:
    problem = Regression(L=2.0, delta=0.7, eta="auto", K=2)
    risk: Any = problem.risk()
    u = np.linspace(-1.0, 4.0, 2001)
    # moves of u by 1 move the two scores of a column by ½ each way, in both columns
    bends = [
        float(risk.hessian_product(np.array(x), np.array(1.0))) / risk.metric for x in u
    ]
    assert 1.0 / problem.rate() == pytest.approx(max(bends), rel=1e-5)


@pytest.mark.parametrize("curved", [0.0, 0.5, 1.0])
def test_the_rate_of_gaussian_inputs_is_one_over_the_curvature_of_the_minimum(
    curved: float,
) -> None:
    problem = Gaussian(L=1.7, d=3, curved=curved)
    risk = problem.risk()
    bend = float(
        slopes(
            lambda c: float(np.trace(risk.gradient(c[0] * np.eye(3)))) / 3,
            np.array([risk.best]),
        )[0]
    )
    assert problem.rate() == pytest.approx(1.0 / bend, rel=1e-7)


def test_columns_of_gaussian_inputs_are_those_of_the_polynomial() -> None:
    """½ a [(tr P)² + 2 tr P² - 2 (tr Q)² - 2 tr Q² + d(d+1)] + ½ b |Q - I|², with 2d(d+1) a + d b = L²."""
    d, L, curved = 3, 1.7, 0.3
    a, b = L**2 * curved / (2 * d * (d + 1)), L**2 * (1 - curved) / d

    def loss(Q: Any) -> float:
        P = Q.T @ Q
        form = (
            np.trace(P) ** 2
            + 2 * np.trace(P @ P)
            - 2 * np.trace(Q) ** 2
            - 2 * np.trace(Q @ Q)
            + d * (d + 1)
        )
        return 0.5 * float(a * form + b * np.sum((Q - np.eye(d)) ** 2))

    problem = Gaussian(L=L, d=d, curved=curved, above=0.02)
    run = problem.simulate()
    least = float(
        optimize.minimize_scalar(lambda c: loss(c * np.eye(d)), bounds=(0.5, 1.0)).fun
    )
    found = problem.measure(run)
    assert run.loss[-1] == pytest.approx(loss(run.params), rel=1e-12)
    assert found["excess"] == pytest.approx(loss(run.params) - least, rel=1e-6)
    assert found["alignment"] == pytest.approx(np.trace(run.params) / d, rel=1e-14)


@pytest.mark.parametrize(
    ("problem", "within"),
    [
        (Regression(L=2.0, delta=1.0, eta=1.0, K=20, epsilon=1e-6), 0.03),
        (
            Regression(
                L=0.5, delta=2.0, eta=4.0, K=20, epsilon=1e-6, coordinates="embedding"
            ),
            0.03,
        ),
        (Regression(L=2.0, delta=1.0, eta=1.0, K=20, above=1e-6), 0.03),
        (Regression(L=2.0, delta=1.0, eta=0.01, K=400, epsilon=0.2), 0.3),
        (Regression(L=3.0, delta=0.5, eta="auto", K=50, epsilon=1e-7), 0.03),
        (Gaussian(L=2.0, d=3, curved=0.5, eta=0.02, above=1e-9), 0.15),
        (Gaussian(L=2.0, d=3, curved=0.0, eta=0.02, epsilon=1e-9), 0.05),
    ],
    ids=str,
)
def test_expected_steps_are_about_those_of_the_run(
    problem: Family, within: float
) -> None:
    expected = problem.expected_steps()
    steps = problem.simulate().steps
    assert expected is not None
    assert steps is not None
    assert expected == pytest.approx(steps, rel=within)


def test_no_steps_are_expected_to_a_target_that_cannot_be_reached_or_is_there() -> None:
    below = Gaussian(L=2.0, d=3, epsilon=1e-9)
    assert below.risk().floor() > 1e-9
    assert below.expected_steps() is None
    problem = Gaussian(L=2.0, d=3, above=100.0)
    assert problem.expected_steps() == 0.0
    best = problem.risk().best  # the multiple c in Q = c I
    at_minimum = problem.changed(start=(best * np.eye(3)).tolist(), above=1e-9)
    assert at_minimum.expected_steps() == 0.0


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [((1, 4), (0.4, 0.6)), ((2, 3), (0.8, 0.2)), ((1, 2, 2), (0.2, 0.4, 0.4))],
)
def test_groups_attend_when_their_features_do_in_the_whole_matrix(
    sizes: Any, shares: Any
) -> None:
    """All K x K scores, stepped one by one."""
    problem = Grouped(L=2.0, delta=1.0, sizes=sizes, shares=shares, eta=0.9, above=5e-3)
    run = problem.simulate()
    p = np.repeat(np.array(shares) / np.array(sizes), sizes)
    K, scores = len(p), np.zeros((len(p), len(p)))
    attends = np.full(K, -1)
    for t in range(int(run.t[-1]) + 1):
        weight = p[:, None] * np.exp(scores)
        a = weight / weight.sum(axis=0)
        own = np.diagonal(a)
        attends[(attends < 0) & (own >= 0.5)] = t
        if t == int(run.t[-1]):
            break
        # ½ Σ_k p_k E(Σ_m a_m f_m - f_k)² with 2γ on the diagonal of the errors of the
        # others and γ beside it
        wrong = a * (1.0 - np.eye(K))
        errors = (
            2.0 * (wrong + (1.0 - own)) * (1.0 - np.eye(K))
        )  # γ = 2: slope by the wrong attention
        slope = a * (errors - np.sum(a * errors, axis=0))
        scores -= 0.9 * p * slope
    found = problem.measure(run)
    assert found == {"attends_first": attends.min(), "attends_last": attends.max()}
    if attends.min() < attends.max() - 1:
        short = problem.changed(max_steps=int(attends.max()) - 1).simulate()
        assert problem.measure(short) == {
            "attends_first": attends.min(),
            "attends_last": -1,
        }
    nothing = problem.changed(max_steps=max(1, int(attends.min()) - 1)).simulate()
    if attends.min() > 1:
        assert problem.measure(nothing) == {"attends_first": -1, "attends_last": -1}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "softmax-heads" else name
        for name in icl.list_families()
    ],
)
def test_a_run_holds_what_its_family_measures(name: str) -> None:
    """Columns as declared, and the general ones of a sweep, from the run of a single point."""
    family = find(name)
    required = {"L": 2.0, "delta": 1.0, "eta": 0.4}
    given = {
        key: value for key, value in required.items() if key in family.parameters()
    }
    most = (
        30 if name in ("softmax-heads", "single-location") else 300
    )  # of its integrals each takes milliseconds
    problem = family(**given, max_steps=most)  # type: ignore[arg-type]
    run = problem.simulate()
    found = problem.measure(run)
    assert set(found) <= {column.name for column in family.every_column()}
    swept = icl.sweep(family, **{**given, "eta": [0.4]}, max_steps=most, progress=False)
    for column, value in found.items():
        there = swept[column].values.ravel()[0]
        assert there == (
            pytest.approx(value, rel=1e-9, nan_ok=True)
            if isinstance(value, float)
            else value
        ), column
    general = {
        "eta_used": run.eta,
        "steps": -1 if run.steps is None else run.steps,
        "last": int(run.t[-1]),
        "loss": run.loss[-1],
        "floor": run.floor,
    }
    for column, value in general.items():
        assert swept[column].values.ravel()[0] == pytest.approx(value, rel=1e-9), column
    present = {} if run.phases is None else run.phases.present()
    for phase in family.phase_names:
        begin, end = present.get(phase, (0, 0))
        assert swept[f"T_{phase}"].values.ravel()[0] == end - begin, phase
    assert run.info["eta"] == run.eta == problem.rate()
    assert run.family is problem


def of_heads(size: float, seed: int) -> Family:
    return icl.SoftmaxHeads(heads=8, start=size, seed=seed)


def of_dictionary(size: float, seed: int) -> Family:
    return icl.Representation(K=6, m=3, N=3, heads=3, start=size, seed=seed)


def of_tokens(size: float, seed: int) -> Family:
    return icl.TokenSelection(d=16, start=size, seed=seed)


def of_factors(size: float, seed: int) -> Family:
    return icl.TokenSelection(
        trained="KQ", n=2, T=2, d=9, eta=1.0, start=size, seed=seed
    )


@pytest.mark.parametrize(
    ("made", "share"),
    [(of_heads, 1.0), (of_dictionary, 1.0), (of_tokens, 1.0), (of_factors, 1.0 / 3.0)],
)
def test_starts_are_normal_numbers_of_the_given_size(made: Any, share: float) -> None:
    """Within five standard errors of the size, in proportion to it, and others for each seed."""
    starts = np.array([made(0.7, seed).risk().initial.ravel() for seed in range(40)])
    assert np.abs(starts.mean()) < 5.0 * 0.7 * share / starts.size**0.5
    assert starts.std() == pytest.approx(
        0.7 * share, rel=5.0 / (2.0 * starts.size) ** 0.5
    )
    assert len(np.unique(starts)) == starts.size
    np.testing.assert_allclose(
        made(1.4, 3).risk().initial.ravel(), 2.0 * starts[3], rtol=1e-13
    )
