"""Token selection: enumeration with mpmath, hard margins by other solvers, long runs by single steps, families."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.optimize import linprog, minimize, nnls

import icl_theory as icl
from icl_theory.papers.token_selection import statements as papers
from icl_theory.papers.token_selection.family import (
    SelectionRisk,
    hard_margin,
    lead,
)
from icl_theory.testing import check_family, check_risk


def given(problem: icl.TokenSelection) -> Any:
    """Tokens, queries and values of a problem, drawn once more: directions, and labels in turns."""
    rng = np.random.default_rng(problem.seed)
    tokens = rng.normal(size=(problem.n, problem.T, problem.d))
    queries, v = rng.normal(size=(problem.n, problem.d)), rng.normal(size=problem.d)
    tokens /= np.sqrt(np.sum(tokens**2, axis=2))[:, :, None]
    queries /= np.sqrt(np.sum(queries**2, axis=1))[:, None]
    values = np.array(
        [
            [(-1) ** i * (x @ v) / np.sqrt(v @ v) for x in each]
            for i, each in enumerate(tokens)
        ]
    )
    return (
        tokens,
        queries,
        values if problem.values == "linear" else np.eye(problem.T)[[-1] * problem.n],
    )


def plain(tokens: Any, values: Any, matrix: Any, queries: Any) -> Any:
    """The mean loss over inputs, one token after the other, in 40 digits."""
    mpmath.mp.dps = 40
    total = mpmath.mpf(0)
    for x, gamma, z in zip(tokens, values, queries, strict=True):
        weight = [
            mpmath.exp(
                sum(
                    mpmath.mpf(float(a)) * mpmath.mpf(float(W)) * mpmath.mpf(float(b))
                    for a, line in zip(token, matrix, strict=True)
                    for W, b in zip(line, z, strict=True)
                )
            )
            for token in x
        ]
        output = sum(
            w * mpmath.mpf(float(g)) for w, g in zip(weight, gamma, strict=True)
        ) / sum(weight)
        total += mpmath.log1p(mpmath.exp(-output))
    return total / len(tokens)


def test_losses_and_gradients_of_200_problems() -> None:
    """p, W and the factors, against sums over the tokens in 40 digits and differences of these."""
    rng = np.random.default_rng(0)
    for at in range(200):
        n, T, d = (
            int(rng.integers(low, high)) for low, high in ((1, 4), (2, 4), (1, 3))
        )
        trained = ("p", "W", "KQ")[at % 3]
        more = {"start": 1.0, "eta": 1.0} if trained == "KQ" else {}
        problem = icl.TokenSelection(
            trained=trained,
            n=n,
            T=T,
            d=d,
            seed=at,
            values=("linear", "one")[at % 2],
            **more,
        )
        risk = problem.risk()
        at_params = rng.normal(size=risk.initial.shape) * 10.0 ** rng.uniform(-1, 1)

        def exact(params: Any, problem: Any = problem, trained: str = trained) -> Any:
            tokens, queries, values = given(problem)
            if trained == "p":
                return plain(tokens, values, params[:, None], np.ones((problem.n, 1)))
            return plain(
                tokens,
                values,
                params if trained == "W" else params[0].T @ params[1],
                queries,
            )

        assert risk.loss(at_params) == pytest.approx(float(exact(at_params)), rel=1e-12)
        index = tuple(rng.integers(0, size) for size in at_params.shape)
        moved, h = np.zeros_like(at_params), 2.0**-20
        moved[index] = h
        slope = float((exact(at_params + moved) - exact(at_params - moved)) / (2.0 * h))
        size = float(np.abs(risk.gradient(at_params)).max())
        assert risk.gradient(at_params)[index] == pytest.approx(
            slope, rel=1e-7, abs=1e-9 * size + 1e-11
        )


def test_far_out_excess_and_gradient_keep_their_digits() -> None:
    """Margins of 80: the loss is its floor, but its excess and slope are known to all digits."""
    values = np.array([[1.0, 0.25, -0.5], [0.5, 0.75, -1.0]])
    scores = np.array([[80.0, 0.0, 1.0], [2.0, 85.0, 0.0]])
    risk = SelectionRisk(values)
    mpmath.mp.dps = 60

    def loss(column: Any) -> Any:
        total = mpmath.mpf(0)
        for i in range(2):
            weight = [mpmath.exp(mpmath.mpf(s)) for s in column[3 * i : 3 * i + 3]]
            output = sum(
                w * mpmath.mpf(g)
                for w, g in zip(weight, values[i].tolist(), strict=True)
            ) / sum(weight)
            total += mpmath.log1p(mpmath.exp(-output)) / 2
        return total

    floor = sum(mpmath.log1p(mpmath.exp(-mpmath.mpf(best))) for best in (1.0, 0.75)) / 2
    assert risk.excess(scores) == pytest.approx(
        float(loss(scores.ravel().tolist()) - floor), rel=1e-12, abs=0.0
    )
    for at in range(6):
        column = scores.ravel().tolist()
        exact = mpmath.diff(
            lambda s, at=at, column=column: loss([*column[:at], s, *column[at + 1 :]]),
            column[at],
        )
        assert risk.gradient(scores).ravel()[at] == pytest.approx(
            float(exact), rel=1e-10, abs=0.0
        )


@pytest.mark.parametrize("seed", range(12))
def test_hard_margins_are_those_of_a_quadratic_programme(seed: int) -> None:
    """By sequential quadratic programming, and whether there is one by a linear programme."""
    rng = np.random.default_rng(seed)
    n, T, d = 3, 3, (4, 6)[seed % 2]
    tokens, chosen = rng.normal(size=(n, T, d)), rng.integers(0, T, n)
    rows = np.array(
        [
            tokens[i, chosen[i]] - tokens[i, t]
            for i in range(n)
            for t in range(T)
            if t != chosen[i]
        ]
    )
    np.testing.assert_array_equal(lead(tokens, chosen), rows)
    possible = (
        linprog(
            np.zeros(d), A_ub=-rows, b_ub=-np.ones(len(rows)), bounds=(None, None)
        ).status
        == 0
    )
    found = hard_margin(rows)
    assert (found is not None) == possible
    if found is not None:
        other = minimize(
            lambda p: 0.5 * p @ p,
            2.0 * found + rng.normal(size=d),
            jac=lambda p: p,
            method="SLSQP",
            constraints={
                "type": "ineq",
                "fun": lambda p: rows @ p - 1.0,
                "jac": lambda p: rows,
            },
            options={"ftol": 1e-15, "maxiter": 500},
        )
        np.testing.assert_allclose(found, other.x, atol=1e-6)
        assert (rows @ found).min() > 1.0 - 1e-10


def test_hard_margins_of_a_matrix_are_those_of_products_with_queries() -> None:
    """Of x_iα zᵀ - x_it zᵀ: the least margin of the solution is 1, and that of its direction no W exceeds."""
    problem, chosen = (
        icl.TokenSelection(trained="W", n=3, T=3, d=4, seed=3),
        np.array([2, 0, 1]),
    )
    tokens, queries, _ = given(problem)
    outer = np.array(
        [
            np.outer(tokens[i, chosen[i]] - tokens[i, t], queries[i])
            for i in range(3)
            for t in range(3)
            if t != chosen[i]
        ]
    )
    found = problem.margin(chosen)
    assert found is not None
    assert np.tensordot(outer, found).min() == pytest.approx(1.0, abs=1e-10)
    other = minimize(
        lambda w: 0.5 * w @ w,
        np.zeros(16),
        jac=lambda w: w,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda w: outer.reshape(6, 16) @ w - 1.0},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(found.ravel(), other.x, atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_nuclear_margins_have_a_certificate(seed: int) -> None:
    """Multipliers with |Σ λ A| <= 1 in the operator norm bound the nuclear norm by Σ λ: no gap is left."""
    problem = icl.TokenSelection(
        trained="KQ", start=1.0, eta=1.0, n=3, T=4, d=4, seed=seed
    )
    rows = lead(problem.drawn.features, given(problem)[2].argmax(axis=1))
    keys, asks = papers.least_nuclear(rows, problem.risk().initial)
    found = keys.T @ asks
    size, margins = float(np.linalg.norm(found, "nuc")), np.tensordot(rows, found)
    assert margins.min() > 1.0 - 1e-8
    # A solution U S V^T has Σ λ A = U V^T, but for a part between the kernels.
    left, singular, right = np.linalg.svd(found)
    rank = int(np.sum(singular > 1e-4 * singular[0]))
    left, right = left[:, :rank], right[:rank]
    outside_left = np.eye(4) - left @ left.T
    outside_right = np.eye(4) - right.T @ right
    active = rows[margins < 1.0 + 1e-5]
    seen = active - outside_left @ active @ outside_right
    multipliers, _ = nnls(seen.reshape(len(seen), -1).T, (left @ right).ravel())
    norm = np.linalg.norm(np.tensordot(multipliers, active, axes=1), 2)
    bound = multipliers.sum() / max(1.0, norm)
    assert size * (1.0 - 1e-6) < bound <= size * (1.0 + 1e-9)
    least = hard_margin(rows)
    assert least is not None
    assert size < np.linalg.norm(least, "nuc")
    assert np.linalg.norm(least) < np.linalg.norm(found)


def test_factors_with_decay_are_where_its_pull_is_the_slope() -> None:
    problem = icl.TokenSelection(
        trained="KQ", start=1.0, eta=1.0, n=2, T=3, d=3, seed=2
    )
    risk = problem.risk()
    found = papers.decayed(risk, 1e-3, risk.initial)
    np.testing.assert_allclose(risk.gradient(found), -1e-3 * found, atol=1e-8)
    assert np.abs(found).max() > 0.1


@pytest.mark.parametrize("trained", ["p", "W", "KQ"])
def test_skipped_runs_are_those_of_single_steps(trained: str) -> None:
    """A loop of NumPy alone: 5,000 plain steps."""
    more = {"start": 0.5, "eta": 0.7} if trained == "KQ" else {"eta": 0.7}
    problem = icl.TokenSelection(trained=trained, n=2, T=3, d=3, seed=4, **more)
    tokens, queries, values = given(problem)
    params = problem.risk().initial.copy()
    for _ in range(5_000):
        matrix = params[0].T @ params[1] if trained == "KQ" else params
        slope = np.zeros_like(matrix)
        for x, gamma, z in zip(tokens, values, queries, strict=True):
            s = x @ (matrix if trained == "p" else matrix @ z)
            a = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
            toward = -a * (gamma - a @ gamma) / (1.0 + np.exp(a @ gamma)) / len(values)
            slope += x.T @ toward if trained == "p" else np.outer(x.T @ toward, z)
        move = (
            np.stack([params[1] @ slope.T, params[0] @ slope])
            if trained == "KQ"
            else slope
        )
        params = params - 0.7 * move
    run = icl.descend(problem.risk(), 0.7, steps=5_000, method="fast")
    np.testing.assert_allclose(run.params, params, rtol=1e-6, atol=1e-7)


def test_columns_and_local_optimality_by_hand() -> None:
    """Two tokens beside the selected one: only that on the margin counts."""
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0], [-3.0, 0.0]]])
    for values, local in (
        ([0.5, 0.4, 0.9], True),
        ([0.5, 0.6, 0.1], False),
        ([0.5, 0.5, 0.1], False),
    ):
        problem = icl.TokenSelection(n=1, T=3, d=2)
        vars(problem)["drawn"] = problem.drawn._replace(
            features=tokens, values=np.array([values]), start=np.array([3.0, 4.0])
        )
        found = problem.measure(icl.descend(problem.risk(), 1e-300, steps=1))
        assert found == {
            "best": float(np.argmax(values) == 0),
            "cosine": pytest.approx(0.6),
            "local": float(local),
        }


@pytest.mark.parametrize(
    "given", [{"trained": "KQ", "start": 1.0, "eta": 1.0}, {"trained": "W"}, {}]
)
def test_there_is_no_cosine_where_nothing_has_a_direction(
    given: dict[str, Any],
) -> None:
    """Of two factors, and of parameters that are still zero."""
    problem = icl.TokenSelection(n=2, T=3, d=4, seed=1, **given)
    run = icl.descend(problem.risk(), 1.0, steps=1)
    found = problem.measure(run)
    assert found.keys() - {"cosine"} == {"best", "local"}
    separable = problem.margin(problem.selected(run.params)) is not None
    assert ("cosine" in found) == (problem.trained != "KQ" and separable)
    run.states = 0.0 * run.states
    assert problem.measure(run).keys() == {"best", "local"}


def test_where_all_values_are_equal_the_rate_is_one() -> None:
    problem = icl.TokenSelection(n=2, T=3, d=4)
    vars(problem)["drawn"] = problem.drawn._replace(values=np.full((2, 3), 0.3))
    assert problem.stable_rate() == 1.0


def test_the_stable_rate_is_within_the_curvature() -> None:
    for seed, trained in itertools.product(range(3), ("p", "W")):
        problem, rng = (
            icl.TokenSelection(trained=trained, n=3, T=3, d=4, seed=seed),
            np.random.default_rng(seed),
        )
        risk = problem.risk()
        sharp = max(
            risk.sharpness(size * rng.normal(size=risk.initial.shape))
            for size in (0.0, 0.5, 2.0, 5.0)
        )
        assert 0.0 < sharp <= 1.0 / problem.rate()
        if trained == "p":
            tokens, _, values = given(problem)
            gap = np.ptp(values, axis=1).max()
            stretch = np.linalg.eigvalsh(np.einsum("itd,ite->de", tokens, tokens)).max()
            assert problem.rate() == pytest.approx(
                3.0 / ((gap**2 / 32.0 + gap / 2.0) * stretch)
            )


@pytest.mark.parametrize("trained", ["p", "W"])
def test_a_risk_starts_where_it_is_told_to(trained: str) -> None:
    problem = icl.TokenSelection(
        trained=trained, n=2, T=3, d=4, seed=1, start=2.0 * (trained == "p")
    )
    start = np.full(problem.risk().initial.shape, 0.3)
    np.testing.assert_array_equal(problem.risk(start).initial, start)
    assert problem.risk(start).loss(start) == problem.risk().loss(start)
    assert problem.risk().initial.any() == (trained == "p")


@pytest.mark.parametrize("rank", [1, 4])
def test_two_factors_start_where_they_are_told_to(rank: int) -> None:
    problem = icl.TokenSelection(trained="KQ", n=2, T=3, d=4, start=1.0, eta=1.0)
    factors = np.random.default_rng(0).normal(size=(2, rank, 4))
    risk = problem.risk(factors)
    np.testing.assert_array_equal(risk.initial, factors)
    of_matrix = icl.TokenSelection(trained="W", n=2, T=3, d=4).risk()
    keys, queries = factors
    assert risk.loss(factors) == pytest.approx(of_matrix.loss(keys.T @ queries))


def test_far_margins_are_found_and_those_that_are_not_there_are_none() -> None:
    """Rows of size a need a p of size 1/a, which has |p|² times the rounding of float64."""
    for a in (1e-6, 1e-3, 1.0, 1e6):
        p, wanted = (
            hard_margin(a * np.array([[1.0, 0.0], [0.6, 0.8], [2.0, 1.0]])),
            np.array([1.0, 0.5]) / a,
        )
        np.testing.assert_allclose(p, wanted, rtol=1e-13 + 2e-16 * wanted @ wanted)
    assert hard_margin(np.array([[1.0, 0.0], [-1.0, 1e-3], [0.0, -1.0]])) is None


def test_tokens_of_equal_value_are_both_the_best() -> None:
    """And the note on the theorems is about the best tokens, not about those that are selected."""
    problem = icl.TokenSelection(n=1, T=3, d=2)
    tokens = np.array([[[1.0, 0.0], [0.5, 0.0], [0.0, 0.0]]])
    for values, best, outside in (
        ([0.4, 0.1, 0.4], 1.0, False),
        ([0.1, 0.4, 0.2], 0.0, True),
    ):
        vars(problem)["drawn"] = problem.drawn._replace(
            features=tokens, values=np.array([values]), start=np.array([3.0, 0.0])
        )
        run = icl.descend(problem.risk(), 1e-300, steps=1)
        problem.describe(run)
        assert problem.measure(run)["best"] == best
        assert ("margin" in run.notes) == outside
        assert run.notes["tokens"] == "most attended: 0"


@pytest.mark.parametrize(
    "trained",
    ["p", *(pytest.param(name, marks=pytest.mark.slow) for name in ("W", "KQ"))],
)
def test_family(trained: str) -> None:
    more: dict[str, Any] = {"start": 0.5, "eta": 0.5} if trained == "KQ" else {}
    problem = icl.TokenSelection(trained=trained, n=2, T=3, d=4, **more)
    check_risk(problem.risk())
    check_family(
        icl.TokenSelection,
        trained=trained,
        n=2,
        T=3,
        d=4,
        max_steps=200,
        **more,
        rows=False,
    )


def test_outside_the_theorems_it_says_so() -> None:
    assert (
        "margin" not in icl.TokenSelection(values="one", max_steps=5).simulate().notes
    )
    outside = icl.TokenSelection(values="one", d=2, max_steps=5).simulate()
    assert outside.notes["margin"].startswith("outside the theorems")
    assert outside.notes["tokens"].startswith("most attended: ")


@pytest.mark.parametrize(
    "wrong",
    [
        {"trained": "KQ", "eta": 1.0, "start": 0.0},
        {"trained": "W", "start": 1.0},
        {"T": 1},
        {"d": 0},
        {"n": 101},
        {"trained": "KQ", "start": 1.0, "eta": "auto"},
        {"values": "two"},
        {"trained": "q"},
        {"trained": "W", "n": 50, "T": 50, "d": 50},
    ],
)
def test_bad_input(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{[*wrong][-1]} = "):
        icl.TokenSelection(**wrong)


@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 3), (2, 5, 4), (1, 4, 4), (2, 0, 4)])
def test_two_factors_do_not_start_at_other_arrays(shape: tuple[int, ...]) -> None:
    problem = icl.TokenSelection(trained="KQ", n=2, T=3, d=4, start=1.0, eta=1.0)
    with pytest.raises(ValueError, match="start = "):
        problem.risk(np.full(shape, 0.3))


def test_bad_input_of_the_risk() -> None:
    for values in ([[]], [1.0], [[1.0, np.nan]]):
        with pytest.raises(ValueError, match="values = "):
            SelectionRisk(np.array(values))


@pytest.mark.slow
@pytest.mark.parametrize("row", papers.CLAIMS.rows, ids=lambda row: row.__name__)
def test_rows_hold_on_their_small_grids(row: Any) -> None:
    assert row(True).verdict.startswith("holds")
