"""Laws of the number of tokens against sums over all prompts, and over all numbers."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.testing import check_risk
from tests.references import Array

ComplexLoss = Callable[[Array], Any]


class Case(NamedTuple):
    """A risk, the law of its numbers of tokens, and a target; written out for the sum."""

    kinds: list[icl.Kind]
    lengths: Array | None  # as given to TokenRisk
    numbers: dict[tuple[int, ...], float]  # probability of the numbers of all kinds
    target: Array

    def risk(self) -> icl.TokenRisk:
        return icl.TokenRisk(self.kinds, self.target, lengths=self.lengths)


def law(rng: np.random.Generator) -> tuple[Any, dict[int, float]]:
    """Draw a number, or a law of it, and return its probabilities."""
    first = int(rng.integers(0, 3))
    last = first + int(rng.integers(1, 3))
    form = rng.integers(3)
    if form == 0:
        return last, {last: 1.0}
    numbers = range(first, last + 1)
    if form == 1:
        p = 1.0 / len(numbers)
        return icl.Lengths.uniform(first, last), dict.fromkeys(numbers, p)
    probs = rng.dirichlet(np.ones(len(numbers)))
    return icl.Lengths(probs, first), dict(zip(numbers, probs.tolist(), strict=True))


def case(seed: int) -> Case:
    rng = np.random.default_rng([seed, 5])
    count = int(rng.integers(1, 4))
    D = int(rng.integers(1, 4))
    grows = bool(rng.random() < 0.5)
    lengths = None
    numbers: dict[tuple[int, ...], float] = {}
    if grows:
        rows = rng.integers(0, 3, size=(int(rng.integers(2, 5)), count))
        rows[:, 0] += 1
        given: list[Any] = [*rows.T]
        if count > 1 and (rows[:, 1] == rows[0, 1]).all() and rows[0, 1] > 0:
            given[1] = int(rows[0, 1])
        p = rng.dirichlet(np.ones(len(rows)))
        lengths = p if rng.random() < 0.5 else None
        p = np.full(len(rows), 1.0 / len(rows)) if lengths is None else p
        for row, share in zip(rows.tolist(), p.tolist(), strict=True):
            numbers[tuple(row)] = numbers.get(tuple(row), 0.0) + share
    else:
        laws = [law(rng) for _ in range(count)]
        if all(0 in probs for _, probs in laws):
            laws[0] = (2, {2: 1.0})
        given = [number for number, _ in laws]
        for parts in itertools.product(*(probs.items() for _, probs in laws)):
            numbers[tuple(n for n, _ in parts)] = math.prod(p for _, p in parts)
    kinds = []
    for number in given:
        U = int(rng.integers(1, 4))
        spread = rng.random(U) if rng.random() < 0.4 else np.zeros(U)
        kinds.append(
            icl.Kind(number, rng.dirichlet(np.ones(U)), rng.normal(size=(U, D)), spread)
        )
    return Case(kinds, lengths, numbers, rng.normal(size=D))


def written_out(problem: Case) -> tuple[int, ComplexLoss]:
    """Return the number of nodes, and the loss as a sum over all prompts."""
    starts = np.cumsum([0, *(len(kind.probs) for kind in problem.kinds)])
    probs = np.concatenate([kind.probs for kind in problem.kinds])
    errors = np.concatenate([kind.values[:, :, 0] for kind in problem.kinds])
    errors = errors - problem.target
    spread = np.concatenate([kind.spread[:, 0] for kind in problem.kinds])
    groups = []
    for numbers, share in problem.numbers.items():
        nodes: list[range] = []
        for k, n in enumerate(numbers):
            nodes += [range(starts[k], starts[k + 1])] * n
        prompts = np.array([*itertools.product(*nodes)])
        groups.append((prompts, share * probs[prompts].prod(axis=1)))

    def loss(scores: Array) -> Any:
        total = 0.0
        for prompts, chance in groups:
            weight = np.exp(scores[prompts])
            weight = weight / weight.sum(axis=1, keepdims=True)
            mean = np.einsum("bn,bnd->bd", weight, errors[prompts])
            square = (mean**2).sum(axis=1) + (weight**2 * spread[prompts]).sum(axis=1)
            total = total + 0.5 * chance @ square
        return total

    return int(starts[-1]), loss


def compare(seed: int) -> None:
    problem = case(seed)
    nodes, expected = written_out(problem)
    rng = np.random.default_rng([seed, 6])
    scores = rng.normal(size=nodes) * 10.0 ** rng.uniform(-1.0, 1.3)
    scores -= scores.max()
    risk = problem.risk()
    loss, gradient = risk.evaluate(scores)
    exact = expected(scores)
    assert loss == pytest.approx(exact, rel=1e-12)
    assert risk.error(scores) >= abs(loss - exact)
    slopes = np.empty(nodes)
    for u in range(nodes):
        # a complex step, in which nothing is subtracted
        step = np.zeros(nodes, dtype=complex)
        step[u] = 1e-30j
        slopes[u] = expected(scores + step).imag / 1e-30
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-11 * max(exact, 1.0))


@pytest.mark.parametrize("seed", range(50))
def test_loss_and_gradient_are_sums_over_all_prompts(seed: int) -> None:
    compare(seed)


@pytest.mark.slow
def test_two_hundred_and_fifty_problems() -> None:
    for seed in range(50, 300):
        compare(seed)


LAWS = {
    "table": icl.Lengths([0.2, 0.0, 0.5, 0.3], first=2),
    "table from 0": icl.Lengths([0.2, 0.0, 0.5, 0.3], first=0),
    "uniform": icl.Lengths.uniform(1, 41),
    "uniform from 5": icl.Lengths.uniform(5, 23),
    "uniform from 0": icl.Lengths.uniform(0, 12),
    "poisson": icl.Lengths.poisson(3.7),
    "rare poisson": icl.Lengths.poisson(1e-3),
    "poisson from 0": icl.Lengths.poisson(3.7, least=0),
    "geometric": icl.Lengths.geometric(6.5),
    "geometric from 0": icl.Lengths.geometric(0.8, least=0),
}


# A law that allows prompts without tokens needs a kind beside it.
ALONE = [(name, True) for name, lengths in LAWS.items() if lengths.least > 0]


@pytest.mark.parametrize(("name", "alone"), [*ALONE, *((name, False) for name in LAWS)])
def test_the_loss_of_a_law_is_the_mean_over_its_numbers(name: str, alone: bool) -> None:
    lengths = LAWS[name]
    rng = np.random.default_rng(3)
    context = (rng.dirichlet(np.ones(4)), rng.normal(size=4), rng.random(4))
    query = [] if alone else [icl.Kind(1, [0.3, 0.7], [0.5, -1.0])]
    scores = np.append(4.0 * rng.normal(size=4), [0.2, 1.0][: 2 * len(query)])
    probs = lengths.probabilities(400)
    assert probs.sum() == pytest.approx(1.0, rel=1e-13)
    assert probs @ np.arange(401) == pytest.approx(lengths.mean, rel=1e-13)
    loss = 0.0
    gradient = np.zeros(len(scores))
    for n in np.flatnonzero(probs > 1e-18):
        kinds = [icl.Kind(int(n), *context), *query] if n else query
        of_length = icl.TokenRisk(kinds, 0.1).evaluate(scores if n else scores[4:])
        loss += probs[n] * of_length[0]
        gradient[0 if n else 4 :] += probs[n] * of_length[1]
    risk = icl.TokenRisk([icl.Kind(lengths, *context), *query], 0.1)
    assert risk.loss(scores) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(risk.gradient(scores), gradient, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_check_risk_sums_over_all_short_prompts(seed: int) -> None:
    check_risk(case(seed).risk())


def test_check_risk_shortens_laws_without_a_largest_number() -> None:
    context = icl.Kind(icl.Lengths.poisson(9.0, least=0), [0.3, 0.7], [1.0, -1.0])
    check_risk(icl.TokenRisk([context, icl.Kind(1, [1.0], [0.5])], 0.2))


@pytest.mark.parametrize("name", LAWS)
def test_numbers_are_drawn_from_their_law(name: str) -> None:
    lengths = LAWS[name]
    numbers = lengths.draw(np.random.default_rng(0), 100_000)
    most = int(numbers.max())
    assert numbers.min() >= lengths.least
    assert most <= lengths.most
    expected = 1e5 * lengths.probabilities(most)
    counts = np.bincount(numbers, minlength=most + 1)
    assert (counts[expected == 0.0] == 0).all()
    common = expected > 20.0
    z = (counts[common] - expected[common]) / np.sqrt(expected[common])
    assert np.abs(z).max() < 4.5


def test_a_generating_function_that_underflows_leaves_no_infinity() -> None:
    """φ falls to e^(-650) and on to zero long before the query's token has decayed."""
    context = ([0.4, 0.6], [0.0, 1.0])
    query = icl.Kind(1, [1.0], [2.0])
    scores = np.array([0.5, 0.0, -40.0])
    lengths = icl.Lengths.poisson(650.0)
    risk = icl.TokenRisk([icl.Kind(lengths, *context), query], 0.4)
    with np.errstate(over="raise", invalid="raise"):
        loss, gradient = risk.evaluate(scores)
    assert np.isfinite(gradient).all()
    # The query has a share of e^(-40)/650 at most.
    alone = icl.TokenRisk(icl.Kind(lengths, *context), 0.4).loss(scores[:2])
    assert loss == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("mean", [1e4, 1e9])
def test_long_prompts_of_poisson_and_geometric_laws_have_the_limits(
    mean: float,
) -> None:
    """E 1/n with equal scores: 1/λ + 1/λ² + ..., and -ln(1-r) (1-r)/r."""
    kind = ([0.5, 0.5], [-1.0, 1.0])
    poisson = icl.TokenRisk(icl.Kind(icl.Lengths.poisson(mean), *kind))
    expected = 0.5 * (1.0 / mean + 1.0 / mean**2 + 2.0 / mean**3)
    assert poisson.loss([0.0, 0.0]) == pytest.approx(expected, rel=1e-11)
    geometric = icl.TokenRisk(icl.Kind(icl.Lengths.geometric(mean), *kind))
    expected = 0.5 * math.log(mean) / (mean - 1.0)
    assert geometric.loss([0.0, 0.0]) == pytest.approx(expected, rel=1e-12)


def test_a_sequence_is_trained_on_all_of_its_positions() -> None:
    """One kind for each distance from the query; the loss is the mean over positions."""
    T = 30
    rng = np.random.default_rng(1)
    probs, values = rng.dirichlet(np.ones(3)), rng.normal(size=3)
    present = np.arange(1, T + 1)[:, None] >= np.arange(
        1, T + 1
    )  # (position, distance)
    scores = rng.normal(size=(T, 3))
    whole = icl.TokenRisk([icl.Kind(n, probs, values) for n in present.T * 1], 0.2)
    loss, gradient = whole.evaluate(scores.ravel())
    expected = 0.0
    slopes = np.zeros((T, 3))
    for t in range(1, T + 1):
        of_position = icl.TokenRisk([icl.Kind(1, probs, values)] * t, 0.2)
        part, slope = of_position.evaluate(scores[:t].ravel())
        expected += part / T
        slopes[:t] += slope.reshape(t, 3) / T
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient.reshape(T, 3), slopes, rtol=0, atol=1e-14)
    attention = whole.attention(scores.ravel()).reshape(T, 3).sum(axis=1)
    assert attention.sum() == pytest.approx(1.0, rel=1e-13)


def test_more_lengths_than_fit_into_memory_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("icl_theory.memory.free", lambda: 2.0**26)
    numbers = np.resize([1, 2], 500_000)
    risk = icl.TokenRisk([icl.Kind(numbers, [1.0], [k]) for k in (0.0, 1.0)], 1.0)
    with pytest.raises(ValueError, match=r"^kinds = .*smaller: this takes .* GB of"):
        risk.loss(np.zeros(2))


@pytest.mark.parametrize("least", [0, 1])
def test_heads_share_prompts_of_random_length(least: int) -> None:
    rng = np.random.default_rng(2)
    probs = rng.dirichlet(np.ones(3))
    values = rng.normal(size=3)
    lengths = icl.Lengths.uniform(least, 4)
    query = icl.Kind(1, [1.0], [0.5])
    params = rng.normal(size=(2, 5))
    whole = icl.HeadsRisk(
        icl.TokenRisk([icl.Kind(lengths, probs, values), query], 1.0), 2
    )
    loss = 0.0
    gradient = np.zeros((2, 5))
    for n in range(least, 5):
        kinds = [icl.Kind(n, probs, values), query] if n else [query]
        columns = [0, 1, 2, 3, 4] if n else [0, 4]
        heads = icl.HeadsRisk(icl.TokenRisk(kinds, 1.0), 2)
        part, slope = heads.evaluate(params[:, columns])
        loss += part / (5 - least)
        gradient[:, columns] += slope / (5 - least)
    mean, slopes = whole.evaluate(params)
    assert mean == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(slopes, gradient, rtol=0, atol=1e-13)


def test_the_best_slope_of_a_random_walk_is_that_of_exponential_smoothing() -> None:
    """The Kalman gain K of steps with the variance q: weights fall by 1 - K a token."""
    q, T = 0.1, 80
    distance = np.arange(1, T + 1)
    walk = q * np.minimum.outer(distance, distance)
    kinds = [icl.Kind(1, [1.0], [0.0], [1.0])] * T
    tokens = icl.TokenRisk(kinds, second=walk)
    risk = icl.in_coordinates(tokens, "linear", -1.0 * distance[:, None])
    gain = 0.5 * (math.sqrt(q**2 + 4.0 * q) - q)
    best = -math.log1p(-gain)
    assert risk.gradient([best - 1e-7])[0] < 0.0 < risk.gradient([best + 1e-7])[0]
    # the stationary variance P of the prediction has the gain K = P/(P + 1)
    assert risk.loss([best]) == pytest.approx(0.5 * gain / (1.0 - gain), rel=1e-9)


def test_lengths_may_be_far_apart() -> None:
    """E 1/n of two equally weighted lengths, beside no other kind."""
    risk = icl.TokenRisk(icl.Kind([2, 10**12], [0.5, 0.5], [-1.0, 1.0]))
    expected = 0.5 * (0.5 * 0.5 + 0.5 * 1e-12)
    assert risk.loss([0.0, 0.0]) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("drawn", [1, 3])
def test_nodes_may_be_drawn_without_replacement(drawn: int) -> None:
    """Each node is a kind whose number is 0 or 1; if one is drawn, they exclude each other."""
    rng = np.random.default_rng(6)
    errors = rng.normal(size=5)
    scores = rng.normal(size=5)
    subsets = [list(subset) for subset in itertools.combinations(range(5), drawn)]
    numbers = np.array([[node in subset for subset in subsets] for node in range(5)])
    kinds = [
        icl.Kind(number, [1.0], [error])
        for number, error in zip(numbers.astype(int), errors, strict=True)
    ]
    means = [
        np.average(errors[subset], weights=np.exp(scores[subset])) for subset in subsets
    ]
    expected = 0.5 * np.mean(np.square(means))
    assert icl.TokenRisk(kinds).loss(scores) == pytest.approx(expected, rel=1e-12)


def test_gradients_between_separated_scores_keep_their_digits() -> None:
    """As a mean over the lengths, each of which has its own integral."""
    probs, values = [0.6, 0.3, 0.1], [1.0, 0.0, 2.0]
    numbers = np.array([[2, 1], [3, 1], [5, 1]])
    kinds = [icl.Kind(numbers[:, 0], probs, values), icl.Kind(1, [1.0], [0.0])]
    for gap in (20.0, 40.0, 80.0):
        scores = np.array([3.0 * gap, 2.0 * gap, gap, 0.0])
        gradient = icl.TokenRisk(kinds, 1.0).gradient(scores)
        parts = []
        for n, _ in numbers:
            alone = [icl.Kind(int(n), probs, values), kinds[1]]
            parts.append(icl.TokenRisk(alone, 1.0).gradient(scores))
        np.testing.assert_allclose(gradient, np.mean(parts, axis=0), rtol=1e-10)


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_hessian_products_are_differences_of_gradients(seed: int) -> None:
    risk = case(seed).risk()
    rng = np.random.default_rng(seed)
    scores, direction = rng.normal(size=(2, *risk.initial.shape))
    ahead, behind = (risk.gradient(scores + h * direction) for h in (1e-4, -1e-4))
    np.testing.assert_allclose(
        risk.hessian_product(scores, direction),
        (ahead - behind) / 2e-4,
        rtol=0,
        atol=1e-7 * (1.0 + risk.loss(scores)),
    )


@pytest.mark.parametrize(
    "kinds",
    [
        [icl.Kind([0, 1, 4], [0.4, 0.6], [1.0, -1.0]), icl.Kind(1, [1.0], [0.3])],
        [icl.Kind(icl.Lengths.geometric(1.5), [0.4, 0.6], [1.0, -1.0])],
    ],
    ids=["growing together", "geometric"],
)
def test_sampled_prompts_have_the_loss_and_gradient_on_average(kinds: Any) -> None:
    risk = icl.TokenRisk(kinds, 0.4)
    scores = np.random.default_rng(0).normal(size=risk.initial.shape)
    loss, gradient = risk.evaluate(scores)
    trainer = risk.sampled(2000, seed=2)
    draws = [trainer.evaluate(scores, step) for step in range(20)]
    values = np.array([[value, *slope] for value, slope in draws])
    error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    z = (values.mean(axis=0) - [loss, *gradient]) / np.maximum(error, 1e-12)
    assert np.abs(z).max() < 4.5


def test_laws_are_pickled_and_shown() -> None:
    for lengths in LAWS.values():
        again = pickle.loads(pickle.dumps(lengths))
        assert repr(again) == repr(lengths)
        assert (again.probabilities(9) == lengths.probabilities(9)).all()
    assert repr(LAWS["uniform"]) == "Lengths.uniform(1, 41)"


KIND = ([0.5, 0.5], [0.0, 1.0])


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: icl.Lengths([0.5, 0.6]), "probs"),
        (lambda: icl.Lengths([1.5, -0.5]), "probs"),
        (lambda: icl.Lengths([1.0], first=0), "probs"),
        (lambda: icl.Lengths([0.5, math.nan]), "probs"),
        (lambda: icl.Lengths([1.0], first=-1), "first"),
        (lambda: icl.Lengths.uniform(3, 2), "first"),
        (lambda: icl.Lengths.uniform(0, 0), "last"),
        (lambda: icl.Lengths.poisson(0.0), "rate"),
        (lambda: icl.Lengths.poisson(3.0, least=2), "least"),
        (lambda: icl.Lengths.geometric(1.0), "mean"),
        (lambda: icl.Lengths.geometric(math.inf), "mean"),
        (lambda: LAWS["poisson"].at_most(0), "most"),
        (lambda: icl.TokenRisk(icl.Kind(icl.Lengths.poisson(3.0, 0), *KIND)), "number"),
        (lambda: icl.Kind([1, -1], *KIND), "number"),
        (lambda: icl.Kind([1.5], *KIND), "number"),
        (lambda: icl.Kind([], *KIND), "number"),
        (lambda: icl.TokenRisk(icl.Kind([0, 1], *KIND)), "number"),
        (lambda: icl.TokenRisk([icl.Kind([10**15], *KIND)] * 2), "number"),
        (
            lambda: icl.TokenRisk([icl.Kind([1, 2], *KIND), icl.Kind([1], *KIND)]),
            "number",
        ),
        (
            lambda: icl.TokenRisk(
                [icl.Kind([1, 2], *KIND), icl.Kind(LAWS["poisson"], *KIND)]
            ),
            "number",
        ),
        (lambda: icl.Lengths.poisson(2.0, least=-1), "least"),
        (lambda: icl.Lengths.poisson(2.0, least=2), "least"),
        (lambda: icl.TokenRisk(icl.Kind(3, *KIND), lengths=[1.0]), "lengths"),
        (
            lambda: icl.TokenRisk(icl.Kind([1, 2], *KIND), lengths=[0.5, 0.6]),
            "lengths",
        ),
        (lambda: icl.TokenRisk(icl.Kind([1, 2], *KIND), lengths=[1.0]), "lengths"),
        (
            lambda: icl.HeadsRisk(icl.TokenRisk(icl.Kind([1, 2], *KIND)), 2),
            "tokens",
        ),
    ],
)
def test_contradictions_are_named(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} = "):
        call()
