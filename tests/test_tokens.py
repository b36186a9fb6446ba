"""Attention over tokens of a known law against the sum over all prompts, samples and 50 digits."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from scipy.special import roots_jacobi

import icl_theory as icl
from icl_theory.testing import check_risk
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.square import moments
from tests.references import Array


class Law(NamedTuple):
    """Number of tokens, probabilities, values (U, D), spread (U,), and whether 1 ... number are averaged."""

    number: int
    probs: Array
    values: Array
    spread: Array
    each: bool


class Problem(NamedTuple):
    """Kinds of tokens and a target."""

    kinds: list[Law]
    target: Array

    def risk(self) -> icl.TokenRisk:
        kinds = []
        for number, *law, each in self.kinds:
            if each:
                number = icl.Lengths.uniform(1, number)
            kinds.append(icl.Kind(number, *law))
        return icl.TokenRisk(kinds, self.target)

    @property
    def nodes(self) -> int:
        return sum(len(kind.probs) for kind in self.kinds)


def drawn(
    seed: int, kinds: int | None = None, each: bool = False, spread: bool = True
) -> Problem:
    rng = np.random.default_rng(seed)
    count, D, laws = (
        int(rng.integers(1, 4)) if kinds is None else kinds,
        int(rng.integers(1, 3)),
        [],
    )
    for j in range(count):
        U, most = int(rng.integers(1, 4)), 5 if count == 1 else 3
        noise = rng.random(U) if spread and rng.random() < 0.5 else np.zeros(U)
        number = int(rng.integers(1, most + 1))
        laws.append(
            Law(
                number,
                rng.dirichlet(np.ones(U)),
                rng.normal(size=(U, D)),
                noise,
                each and j == 0,
            )
        )
    return Problem(laws, rng.normal(size=D))


def prompts(problem: Problem) -> list[tuple[float, list[int]]]:
    """All prompts: probability and the nodes of their tokens, numbered through."""
    first, parts = 0, []
    for kind in problem.kinds:
        lengths = range(1, kind.number + 1) if kind.each else [kind.number]
        parts.append(
            [
                (
                    math.prod(kind.probs[list(nodes)]) / len(lengths),
                    [first + u for u in nodes],
                )
                for n in lengths
                for nodes in itertools.product(range(len(kind.probs)), repeat=n)
            ]
        )
        first += len(kind.probs)
    return [
        (math.prod(p for p, _ in each), [node for _, at in each for node in at])
        for each in itertools.product(*parts)
    ]


def summed(
    problem: Problem, heads: Any, output: Any = (1.0,), exp: Any = np.exp
) -> Any:
    """Loss of heads with scores (H, U) and output weights, over all prompts; numbers of any kind."""
    values = np.concatenate([kind.values for kind in problem.kinds])
    spread, total = np.concatenate([kind.spread for kind in problem.kinds]), 0.0
    for chance, at in prompts(problem):
        weight = 0.0
        for scores, mu in zip(heads, output, strict=True):
            w = np.array([exp(scores[u]) for u in at])
            weight = weight + mu * w / w.sum()
        error = weight @ values[at] - problem.target
        total = total + 0.5 * chance * (error @ error + weight**2 @ spread[at])
    return total


def slopes(function: Any, at: Array, h: float = 1e-30) -> Array:
    """Derivatives by a complex step, in which nothing is subtracted."""
    found = np.zeros(at.shape)
    for place in np.ndindex(at.shape):
        step = np.zeros(at.shape, dtype=complex)
        step[place] = 1j * h
        found[place] = function(at + step).imag / h
    return found


def compare(seed: int, *, each: bool = False, wide: float = 1.3) -> None:
    problem = drawn(seed, each=each)
    scores = np.random.default_rng([seed, 1]).normal(
        size=problem.nodes
    ) * 10 ** np.random.default_rng([seed, 2]).uniform(-1.0, wide)
    risk, expected = problem.risk(), summed(problem, [scores - scores.max()])
    loss, gradient = risk.evaluate(scores)
    assert loss == pytest.approx(expected, rel=1e-12)
    assert risk.error(scores) >= abs(loss - expected)
    differences = slopes(lambda at: summed(problem, [at - scores.max()]), scores)
    np.testing.assert_allclose(
        gradient, differences, rtol=0, atol=1e-10 * max(expected, 1.0)
    )


# One kind of tokens, two and three, with and without spread, of one and two numbers.
@pytest.mark.parametrize("seed", [0, 1, 3, 5, 9, 11])
@pytest.mark.parametrize("each", [False, True], ids=["one length", "all lengths"])
def test_loss_and_gradient_are_sums_over_all_prompts(seed: int, each: bool) -> None:
    compare(seed, each=each)


@pytest.mark.parametrize("wide", [20.0, 20.5, 21.0])
def test_long_prompts_of_all_lengths_are_the_mean_over_the_lengths(wide: float) -> None:
    rng, N = np.random.default_rng(3), 66
    law = {
        "probs": rng.dirichlet(np.ones(5)),
        "values": rng.normal(size=(5, 2)),
        "spread": rng.random(5),
    }
    scores, target = wide * np.linspace(-1.0, 1.0, 5), [0.1, -0.3]
    whole = icl.TokenRisk(icl.Kind(icl.Lengths.uniform(1, N), **law), target)
    parts = [
        icl.TokenRisk(icl.Kind(n, **law), target).loss(scores) for n in range(1, N + 1)
    ]
    assert whole.loss(scores) == pytest.approx(np.mean(parts), rel=1e-12)


@pytest.mark.parametrize("N", [1, 3, 10**4])
def test_nodes_that_never_occur_leave_the_prompts_without_them(N: int) -> None:
    """These have a share (1 - p)^N, and tokens of the other nodes alone."""
    rng, p = np.random.default_rng(4), 0.4 / N
    probs = np.append(p, (1.0 - p) * rng.dirichlet(np.ones(4)))
    scores, errors = rng.normal(size=5), rng.normal(size=(5, 2))
    scores[0] = -np.inf

    def half_square(rows: slice, total: float) -> Any:
        e = errors[rows]

        def form(queries: Any, some: slice, z: Array, out: Array) -> None:
            out[...] = e @ (e.T @ z)

        own = (e**2).sum(axis=1)[:, None]
        return moments(
            scores[rows, None], probs[rows, None] / total, own, TokenCount(N), form
        )

    found, wanted = half_square(slice(0, 5), 1.0), half_square(slice(1, 5), 1.0 - p)
    assert found.loss == pytest.approx((1.0 - p) ** N * wanted.loss, rel=1e-12)
    np.testing.assert_allclose(
        found.gradient[1:], (1.0 - p) ** N * wanted.gradient, rtol=1e-9, atol=1e-16
    )
    np.testing.assert_allclose(
        found.attention[1:], (1.0 - p) ** N * wanted.attention, rtol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True], ids=["one length", "all lengths"])
def test_loss_and_gradient_of_two_hundred_problems(each: bool) -> None:
    for seed in range(100, 300):
        compare(seed, each=each)


def compare_heads(seed: int) -> None:
    problem, rng = drawn(seed, kinds=1 + seed % 2), np.random.default_rng([seed, 3])
    H = 2 + seed % 2
    params = rng.normal(size=(H, 1 + problem.nodes))
    params[:, 1:] *= 10 ** rng.uniform(-1.0, 1.0)
    risk = icl.HeadsRisk(problem.risk(), H)
    loss, gradient = risk.evaluate(params)

    def whole(at: Array) -> Any:
        return summed(problem, at[:, 1:], at[:, 0])

    expected = whole(params)
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(
        gradient, slopes(whole, params), rtol=0, atol=1e-10 * max(expected, 1.0)
    )
    best = risk.best_output(params[:, 1:])
    ahead = np.column_stack([best, params[:, 1:]])
    scale = (
        np.abs(best).max() ** 2 + 1.0
    )  # nearly equal heads have large output weights
    assert np.abs(risk.evaluate(ahead)[1][:, 0]).max() < 1e-9 * scale
    assert risk.evaluate(ahead)[0] <= loss * (1.0 + 1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_heads_are_sums_over_all_prompts(seed: int) -> None:
    compare_heads(seed)


def test_heads_of_several_queries_are_those_of_each_by_its_probability() -> None:
    rng, H = np.random.default_rng(6), 2
    values, target, weights = (
        rng.normal(size=(3, 2, 3)),
        rng.normal(size=(2, 3)),
        np.array([0.6, 0.3, 0.1]),
    )
    spread, probs, scores = (
        rng.random((3, 3)),
        rng.dirichlet(np.ones(3)),
        rng.normal(size=(H, 3, 3)),
    )
    output = np.array([0.9, -0.4])
    together = icl.HeadsRisk(
        icl.TokenRisk(icl.Kind(5, probs, values, spread), target, queries=weights), H
    )
    tokens = [
        icl.TokenRisk(icl.Kind(5, probs, values[:, :, q], spread[:, q]), target[:, q])
        for q in range(3)
    ]
    alone = [icl.HeadsRisk(each, H) for each in tokens]
    given = [np.column_stack([output, scores[:, :, q]]) for q in range(3)]
    losses, gradients = zip(
        *(risk.evaluate(at) for risk, at in zip(alone, given, strict=True)), strict=True
    )
    loss, gradient = together.evaluate(np.column_stack([output, scores.reshape(H, -1)]))
    assert loss == pytest.approx(weights @ losses, rel=1e-13)
    np.testing.assert_allclose(
        gradient[:, 0], weights @ [each[:, 0] for each in gradients], rtol=1e-12
    )
    slopes_of_each = np.stack(
        [p * each[:, 1:] for p, each in zip(weights, gradients, strict=True)], axis=2
    )
    np.testing.assert_allclose(
        gradient[:, 1:].reshape(H, 3, 3), slopes_of_each, rtol=1e-10, atol=1e-14
    )
    for part in (0, 1):  # products of averages, and of averages and the target
        wanted = sum(
            p * r.quadratic(scores[:, :, q])[part]
            for q, (p, r) in enumerate(zip(weights, alone, strict=True))
        )
        np.testing.assert_allclose(
            together.quadratic(scores.reshape(H, -1))[part], wanted, rtol=1e-12
        )
    seen = together.observe(np.column_stack([output, scores.reshape(H, -1)]))
    wanted = [
        weights @ [each.loss(scores[h, :, q]) for q, each in enumerate(tokens)]
        for h in range(H)
    ]
    np.testing.assert_allclose(seen["loss_per_head"], wanted, rtol=1e-12)
    np.testing.assert_array_equal(seen["output"], output)


@pytest.mark.slow
def test_two_hundred_problems_of_heads() -> None:
    for seed in range(100, 300):
        compare_heads(seed)


@pytest.mark.parametrize("seed", range(6))
def test_hessian_products_are_differences_of_gradients(seed: int) -> None:
    problem, rng = (
        drawn(seed, kinds=1 + seed % 3, each=seed % 2 == 0),
        np.random.default_rng(seed),
    )
    risk, scores, direction = (
        problem.risk(),
        rng.normal(size=problem.nodes),
        rng.normal(size=problem.nodes),
    )
    ahead, behind = (risk.evaluate(scores + h * direction)[1] for h in (1e-4, -1e-4))
    np.testing.assert_allclose(
        risk.hessian_product(scores, direction),
        (ahead - behind) / 2e-4,
        rtol=0,
        atol=1e-7 * (1 + risk.loss(scores)),
    )


@pytest.mark.parametrize("far", [30.0, 100.0, 300.0])
def test_weights_hundreds_of_orders_apart_keep_their_digits(far: float) -> None:
    """The right answer is far above the others, and a kind of one token far below: 60 digits of the sum."""
    problem = Problem(
        [
            Law(
                4,
                np.array([0.6, 0.3, 0.1]),
                np.array([[1.0], [-0.5], [2.0]]),
                np.zeros(3),
                False,
            ),
            Law(1, np.ones(1), np.array([[3.0]]), np.zeros(1), False),
        ],
        np.array([1.0]),
    )
    scores = np.array([far, 0.0, -0.7 * far, -far])
    with mpmath.workdps(300):
        expected = summed(
            problem, [[mpmath.mpf(float(s)) for s in scores]], exp=mpmath.exp
        )
    assert problem.risk().loss(scores) == pytest.approx(float(expected), rel=1e-12)


def test_small_losses_keep_their_digits() -> None:
    """Both nodes are answered rightly but for attention e^-t on a token of the other kind."""
    for t in (20.0, 35.0, 60.0):
        problem = Problem(
            [
                Law(
                    3,
                    np.array([0.5, 0.5]),
                    np.array([[1.0], [1.0]]),
                    np.zeros(2),
                    False,
                ),
                Law(1, np.ones(1), np.array([[0.0]]), np.zeros(1), False),
            ],
            np.array([1.0]),
        )
        scores = np.array([t, t + 1.0, 0.0])
        with mpmath.workdps(120):
            expected = summed(
                problem, [[mpmath.mpf(float(s)) for s in scores]], exp=mpmath.exp
            )
        assert problem.risk().loss(scores) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("step", [0.35, 0.6])
def test_the_estimated_error_of_a_coarse_rule_is_above_the_true_one(
    step: float,
) -> None:
    ratios = []
    for seed in range(40):
        rng = np.random.default_rng([seed, 9])
        U, N = int(rng.integers(2, 7)), int(10 ** rng.uniform(0.3, 5))
        kind = icl.Kind(N, rng.dirichlet(np.ones(U)), rng.normal(size=U), rng.random(U))
        risk, scores = (
            icl.TokenRisk(kind, target=0.5),
            rng.normal(size=U) * 10 ** rng.uniform(-1, 1.3),
        )
        true = abs(float(risk.moments(scores, step=step).loss[0]) - risk.loss(scores))
        estimate = risk.error(scores, step=step)
        assert estimate >= true
        if true > 20.0 * risk.error(scores):  # and not of rounding
            ratios.append(estimate / true)
    assert len(ratios) > 10
    assert np.median(ratios) < 100.0


@pytest.mark.parametrize("seed", range(3))
def test_second_moments_give_the_loss_of_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, probs, noise = (
        rng.normal(size=(5, 3)),
        rng.dirichlet(np.ones(5)),
        rng.random(5),
    )
    given = icl.TokenRisk(icl.Kind(7, probs, values, noise), target=np.full(3, 0.2))
    errors = values - 0.2
    moments = icl.TokenRisk(
        icl.Kind(7, probs, np.zeros(5), noise), second=errors @ errors.T
    )
    scores = rng.normal(size=5)
    assert moments.loss(scores) == pytest.approx(given.loss(scores), rel=1e-12)
    np.testing.assert_allclose(
        moments.gradient(scores), given.gradient(scores), rtol=1e-9, atol=1e-13
    )


def test_queries_are_problems_of_their_own() -> None:
    rng = np.random.default_rng(4)
    values, target, weights = (
        rng.normal(size=(4, 2, 3)),
        rng.normal(size=(2, 3)),
        np.array([0.5, 0.3, 0.2]),
    )
    spread, probs, scores = (
        rng.random((4, 3)),
        rng.dirichlet(np.ones(4)),
        rng.normal(size=(4, 3)),
    )
    together = icl.TokenRisk(
        icl.Kind(4, probs, values, spread), target, queries=weights
    )
    alone = [
        icl.TokenRisk(icl.Kind(4, probs, values[:, :, q], spread[:, q]), target[:, q])
        for q in range(3)
    ]
    losses = np.array([risk.loss(scores[:, q]) for q, risk in enumerate(alone)])
    assert together.loss(scores) == pytest.approx(weights @ losses, rel=1e-14)
    slope = np.stack(
        [weights[q] * risk.gradient(scores[:, q]) for q, risk in enumerate(alone)],
        axis=1,
    )
    np.testing.assert_allclose(together.gradient(scores), slope, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        together.observe(scores)["loss_per_query"], losses, rtol=1e-13
    )
    np.testing.assert_allclose(together.attention(scores).sum(axis=0), 1.0, rtol=1e-13)
    check_risk(together)


def test_attention_is_the_mean_over_all_prompts() -> None:
    problem = drawn(3, kinds=2)
    scores, found = (
        np.random.default_rng(3).normal(size=problem.nodes),
        np.zeros(problem.nodes),
    )
    for chance, at in prompts(problem):
        weight = np.exp(scores[at])
        np.add.at(found, at, chance * weight / weight.sum())
    np.testing.assert_allclose(problem.risk().attention(scores), found, rtol=1e-12)
    first = len(problem.kinds[0].probs)
    share = problem.risk().observe(scores)["share"]
    np.testing.assert_allclose(
        share[:, 0], [found[:first].sum(), found[first:].sum()], rtol=1e-12
    )


@pytest.mark.parametrize("each", [False, True])
def test_sampled_prompts_have_the_loss_and_gradient_on_average(each: bool) -> None:
    problem = drawn(11, kinds=2, each=each)
    scores, risk = np.random.default_rng(0).normal(size=problem.nodes), problem.risk()
    loss, gradient = risk.evaluate(scores)
    trainer = risk.sampled(5000, seed=2)
    found = [trainer.evaluate(scores, step) for step in range(20)]
    values = np.array([[value, *slope] for value, slope in found])
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    z = (values.mean(axis=0) - [loss, *gradient]) / np.maximum(error, 1e-12)
    assert np.abs(z).max() < 4.0
    again = risk.sampled(5000, seed=2).evaluate(scores, 7)
    assert again[0] == found[7][0]
    assert (again[1] == found[7][1]).all()
    other = risk.sampled(5000, seed=3).evaluate(scores, 7)
    assert other[0] != again[0]
    check_risk(risk.sampled(50))


@pytest.mark.parametrize("spread", ["none", "shared", "of each query"])
@pytest.mark.parametrize(
    "values",
    ["shared", "of each query", "second moments", "second moments of each query"],
)
def test_sampled_prompts_of_several_queries_have_what_each_of_them_has(
    values: str, spread: str
) -> None:
    rng = np.random.default_rng(1)
    errors = rng.normal(size=(4, 2, 3 if values.endswith("each query") else 1))
    around = {
        "none": 0.0,
        "shared": np.array([0.1, 3.0, 0.5, 1.0]),
        "of each query": np.arange(12.0).reshape(4, 3),
    }
    probs, weights, scores = (
        rng.dirichlet(np.ones(4)),
        np.array([0.5, 0.3, 0.2]),
        rng.normal(size=(4, 3)),
    )
    given: dict[str, Any] = {"target": 0.3 + 0.0 * errors[0]}
    if values.startswith("second"):
        given = {"second": np.einsum("udq,vdq->uvq", errors, errors)}
    shown = np.zeros(4) if "second" in given else errors + 0.3
    risk = icl.TokenRisk(
        icl.Kind(6, probs, shown, around[spread]), queries=weights, **given
    )
    squares = np.broadcast_to(
        np.asarray(around[spread]).reshape(-1, 3 if spread == "of each query" else 1),
        (4, 3),
    )
    alone = []
    for q in range(3):
        kind = icl.Kind(6, probs, errors[:, :, q % errors.shape[2]], squares[:, q])
        alone.append(icl.TokenRisk(kind, np.zeros(2)).loss(scores[:, q]))
    assert risk.loss(scores) == pytest.approx(weights @ alone, rel=1e-12)
    exact = np.array([risk.loss(scores), *risk.gradient(scores).ravel()])
    found = [risk.sampled(1000, seed=5).evaluate(scores, step) for step in range(12)]
    numbers = np.array([[loss, *slope.ravel()] for loss, slope in found])
    error = numbers.std(axis=0, ddof=1) / math.sqrt(len(numbers))
    assert np.abs((numbers.mean(axis=0) - exact) / error).max() < 5.0


def test_the_sphere_has_its_best_temperatures() -> None:
    """d = 5, linear tasks, σ = 1; the derivative changes its sign between these neighbours."""
    c, p = roots_jacobi(60, 1.0, 1.0)
    for N, best in (
        (10, 2.8238),
        (100, 6.1507),
        (1000, 11.6398),
        (10**4, 21.3322),
        (10**5, 38.5562),
    ):
        kind = icl.Kind(N, p / p.sum(), c, 2.0 - c**2)
        risk = icl.in_coordinates(icl.TokenRisk(kind, target=1.0), "linear", c[:, None])
        assert risk.gradient([best - 1e-4])[0] < 0.0 < risk.gradient([best + 1e-4])[0]


def test_linear_coordinates_pull_back_gradient_and_hessian() -> None:
    rng = np.random.default_rng(2)
    matrix, start = rng.normal(size=(4, 2)), np.array([0.3, -0.2])
    inner = icl.TokenRisk(
        icl.Kind(3, rng.dirichlet(np.ones(4)), rng.normal(size=4)), target=0.1
    )
    risk = icl.in_coordinates(inner, "linear", matrix, start=start)
    assert (risk.initial == start).all()
    assert risk.loss(start) == inner.loss(matrix @ start)
    check_risk(risk)
    with pytest.raises(ValueError, match=r"^vectors = \(3, 2\)"):
        icl.in_coordinates(inner, "linear", matrix[:3])


def test_queries_with_vectors_of_their_own_have_bilinear_scores() -> None:
    rng = np.random.default_rng(5)
    keys, asked = rng.normal(size=(4, 3)), rng.normal(size=(2, 3))
    inner = icl.TokenRisk(
        icl.Kind(3, np.full(4, 0.25), rng.normal(size=(4, 1, 2))),
        np.zeros((1, 2)),
        [0.4, 0.6],
    )
    for coordinates in ("embedding", "factored"):
        check_risk(icl.in_coordinates(inner, coordinates, keys, queries=asked))
    risk, Q = (
        icl.in_coordinates(inner, "embedding", keys, queries=asked),
        rng.normal(size=(3, 3)),
    )
    assert risk.loss(Q) == pytest.approx(inner.loss(keys @ Q @ asked.T), rel=1e-14)
    with pytest.raises(ValueError, match=r"^risk = \(4, 2\)"):
        icl.in_coordinates(inner, "embedding", keys)
    with pytest.raises(ValueError, match=r"^queries = "):
        icl.in_coordinates(inner, "embedding", keys, queries=asked[:, :2])


def test_check_risk_compares_tokens_with_all_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    risk = drawn(5, kinds=2, each=True).risk()
    check_risk(risk)
    check_risk(icl.in_coordinates(risk, "linear", np.eye(len(risk.initial))))

    class Wrong(icl.TokenRisk):
        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            loss, gradient = super().evaluate(params)
            return 1.01 * loss, 1.01 * gradient

    monkeypatch.setattr("icl_theory.testing.tokens.TokenRisk", Wrong)
    with pytest.raises(AssertionError, match="the sum over all prompts"):
        check_risk(risk)


def test_risks_are_pickled_and_trained() -> None:
    risk = drawn(1, kinds=2).risk()
    again = pickle.loads(pickle.dumps(risk))
    scores = np.random.default_rng(0).normal(size=risk.initial.shape)
    assert again.evaluate(scores)[0] == risk.evaluate(scores)[0]
    run = icl.descend(risk, eta=0.5, steps=400)
    fast = icl.descend(risk, eta=0.5, steps=400, method="fast")
    assert run.loss[-1] < run.loss[0]
    np.testing.assert_allclose(fast.states[-1], run.states[-1], rtol=0, atol=1e-6)
    heads = icl.HeadsRisk(risk, 2)
    check_risk(
        heads, points=[0.3 * np.random.default_rng(1).normal(size=heads.initial.shape)]
    )


ONE = {"number": 3, "probs": [0.5, 0.5], "values": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"number": 0}, "number"),
        ({"number": -1}, "number"),
        ({"number": 2.5}, "number"),
        ({"number": math.inf}, "number"),
        ({"number": 10**16}, "number"),
        ({"probs": [0.5, 0.6]}, "probs"),
        ({"probs": [1.5, -0.5]}, "probs"),
        ({"probs": []}, "probs"),
        ({"values": [0.0]}, "values"),
        ({"values": [0.0, math.nan]}, "values"),
        ({"values": np.zeros((2, 1, 1, 1))}, "values"),
        ({"spread": -1.0}, "spread"),
        ({"spread": [0.0, math.inf]}, "spread"),
        ({"spread": [0.0, 0.0, 0.0]}, "spread"),
    ],
)
def test_wrong_kinds_are_named(change: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}( =|:)"):
        icl.Kind(**{**ONE, **change})


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"kinds": []}, "kinds"),
        ({"kinds": [1]}, "kinds"),
        (
            {"kinds": [icl.Kind(2, [1.0], [0.0]), icl.Kind(2, [1.0], [[0.0, 1.0]])]},
            "values",
        ),
        ({"target": [0.0, 1.0]}, "target"),
        ({"target": math.nan}, "target"),
        ({"target": np.zeros((1, 2))}, "target"),
        ({"queries": [0.5, 0.6]}, "queries"),
        (
            {"kinds": icl.Kind(2, [1.0], np.zeros((1, 1, 3))), "queries": [0.5, 0.5]},
            "values",
        ),
        (
            {
                "kinds": icl.Kind(2, [1.0], [0.0], np.zeros((1, 3))),
                "queries": [0.5, 0.5],
            },
            "spread",
        ),
        ({"second": np.eye(3)}, "second"),
        ({"second": [[1.0, 2.0], [2.0, 1.0]]}, "second"),
        ({"second": [[1.0, 0.5], [0.2, 1.0]]}, "second"),
        ({"second": [[1.0, 0.5], [0.5, math.nan]]}, "second"),
        ({"second": np.eye(2), "target": 1.0}, "second"),
    ],
)
def test_wrong_risks_are_named(arguments: dict[str, Any], name: str) -> None:
    given = {"kinds": icl.Kind(**ONE)} | arguments
    with pytest.raises(ValueError, match=f"^{name}( =|:)"):
        icl.TokenRisk(**given)


def test_scores_that_are_not_finite_are_refused() -> None:
    risk = icl.TokenRisk(icl.Kind(**ONE))
    for wrong in ([0.0, math.inf], [math.nan, 0.0], [0.0]):
        with pytest.raises(ValueError, match=r"^params"):
            risk.loss(wrong)
    with pytest.raises(ValueError, match=r"^tokens"):
        icl.HeadsRisk(
            icl.TokenRisk(icl.Kind(3, [0.5, 0.5], [0.0, 0.0]), second=np.eye(2))
        )
    with pytest.raises(ValueError, match=r"^heads"):
        icl.HeadsRisk(risk, 0)
    with pytest.raises(ValueError, match=r"^batch"):
        risk.sampled(0)


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-8])
def test_the_bound_holds_where_errors_cancel(gap: float) -> None:
    """Two tokens with nearly opposite errors and equal weights: what is left is far below their rounding."""
    problem = Problem(
        [
            Law(1, np.ones(1), np.array([[1.0 + gap]]), np.zeros(1), False),
            Law(1, np.ones(1), np.array([[-1.0]]), np.zeros(1), False),
        ],
        np.zeros(1),
    )
    scores = np.array([0.3, 0.3])
    found, bound = problem.risk().loss(scores), problem.risk().error(scores)
    assert abs(found - gap**2 / 8.0) <= bound <= 1e-13


def test_refusals_of_targets_and_moments_name_what_was_given() -> None:
    kind = icl.Kind(3, [0.5, 0.5], [0.0, 1.0])
    with pytest.raises(
        ValueError,
        match=r"^target = \(2,\): must be an array with 1 row, one for each coordinate",
    ):
        icl.TokenRisk(kind, [1.0, 2.0])
    with pytest.raises(
        ValueError, match=r"^second = \(3, 3\): must be finite and of shape \(2, 2\)"
    ):
        icl.TokenRisk(kind, second=np.eye(3))
