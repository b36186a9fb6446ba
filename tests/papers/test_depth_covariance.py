"""Layers on data of any covariance: words, loss, gradient, limit and trainer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from operator import mul

import numpy as np
import pytest

from icl_theory.papers.depth_covariance.enumeration import enumerated_loss
from icl_theory.papers.depth_covariance.family import DepthCovariance
from icl_theory.papers.depth_covariance.limit import limit_loss
from icl_theory.papers.depth_covariance.risk import DepthRisk, SymmetricRisk
from icl_theory.papers.depth_covariance.words import Monomial, counts, mean_of_word
from icl_theory.papers.descent_layers.risk import LayersRisk
from icl_theory.testing import check_family, check_risk

Array = np.ndarray


def pairings(items: list[int]) -> Iterator[list[tuple[int, int]]]:
    """All ways to put an even number of items into pairs."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for index, partner in enumerate(rest):
        for others in pairings(rest[:index] + rest[index + 1 :]):
            yield [(first, partner), *others]


class Strands:
    """The strands of a word under a pairing of its vectors.

    The letter k of the word has the vectors 2k and 2k + 1. Gap k joins 2k + 1 and
    2k + 2. The open ends of the word are 0 and the last vector.
    """

    def __init__(self, gaps: tuple[int, ...], pairing: list[tuple[int, int]]) -> None:
        self.partner = dict(pairing) | {b: a for a, b in pairing}
        self.joined = {}
        for k, gap in enumerate(gaps):
            self.joined[2 * k + 1] = (2 * k + 2, gap)
            self.joined[2 * k + 2] = (2 * k + 1, gap)
        self.visited: set[int] = set()

    def walk(self, vector: int) -> int:
        """Follow a strand until it ends or closes, and add its exponents."""
        power = 0
        while vector not in self.visited:
            other = self.partner[vector]
            self.visited.update((vector, other))
            if other not in self.joined:
                break
            vector, gap = self.joined[other]
            power += gap
        return power


def word_by_pairings(gaps: tuple[int, ...]) -> Counter[Monomial]:
    """The mean of a word, by walking along the strands of every pairing."""
    letters = len(gaps) + 1
    terms: Counter[Monomial] = Counter()
    for pairing in pairings(list(range(2 * letters))):
        strands = Strands(gaps, pairing)
        power = strands.walk(0)
        traces = []
        for vector in range(2 * letters):
            if vector not in strands.visited:
                traces.append(strands.walk(vector))  # noqa: PERF401
        # Letters whose vectors are paired come from the same row.
        rows = list(range(letters))
        for a, b in pairing:
            old, new = rows[a // 2], rows[b // 2]
            rows = [new if row == old else row for row in rows]
        order = letters - len(set(rows))
        terms[Monomial(power, tuple(sorted(traces)), order)] += 1
    return terms


@pytest.mark.parametrize(
    "gaps", [(), (1,), (2,), (1, 2), (1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2, 1)]
)
def test_a_word_is_a_sum_over_pairings(gaps: tuple[int, ...]) -> None:
    assert mean_of_word(gaps) == word_by_pairings(gaps)


@pytest.mark.slow
def test_a_word_of_three_layers_is_a_sum_over_pairings() -> None:
    gaps = (1, 1, 2, 1, 1)
    terms = mean_of_word(gaps)
    assert sum(terms.values()) == 10395
    assert terms == word_by_pairings(gaps)


def random_matrix(rng: np.random.Generator, d: int) -> Array:
    """A random positive definite matrix."""
    root = rng.normal(size=(d, d))
    return root @ root.T / d + 0.2 * np.eye(d)


# (d, N, depth) with few enough entries of the tokens for a Gauss rule in each.
SMALL = [(1, 2, 4), (2, 1, 4), (1, 3, 3), (3, 1, 3), (2, 2, 2), (4, 1, 2)]
# The words of six layers, the most that there may be, take half of the time of all
# tests of this file.
MOST_LAYERS = 6


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        (SMALL, 30),
        pytest.param([(1, 1, MOST_LAYERS), *SMALL], 200, marks=pytest.mark.slow),
    ],
)
def test_random_problems_have_the_enumerated_loss(
    sizes: list[tuple[int, int, int]], count: int
) -> None:
    """Γ, Σ and Ω are random matrices that do not commute; Γ may be indefinite."""
    rng = np.random.default_rng(0)
    for problem in range(count):
        d, N, depth = sizes[problem % len(sizes)]
        covariance = random_matrix(rng, d)
        prior = random_matrix(rng, d)
        gamma = rng.normal(size=(d, d))
        gamma = depth * (gamma + gamma.T) / 4.0
        sigma = float(rng.uniform())
        risk = SymmetricRisk(covariance, N, depth, prior, sigma)
        expected = enumerated_loss(gamma, covariance, prior, N, depth, sigma)
        assert risk.loss(gamma) == pytest.approx(expected, rel=1e-10)
        assert (
            abs(risk.loss(gamma) - expected)
            <= risk.loss_error(gamma) + 1e-13 * expected
        )


@pytest.mark.slow
@pytest.mark.parametrize(("d", "N", "depth"), [(2, 2, 3), (3, 2, 2), (2, 3, 2)])
def test_larger_prompts_have_the_enumerated_loss(d: int, N: int, depth: int) -> None:
    rng = np.random.default_rng(1)
    covariance = np.diag(rng.uniform(0.2, 2.0, d))
    prior = np.diag(rng.uniform(0.0, 2.0, d))
    gamma = rng.uniform(0.0, 2.0, d)
    expected = enumerated_loss(np.diag(gamma), covariance, prior, N, depth, 0.4)
    risk = DepthRisk(np.diag(covariance), N, depth, np.diag(prior), 0.4)
    assert risk.loss(gamma) == pytest.approx(expected, rel=1e-12)


def test_isotropic_data_have_the_integral_over_the_mean_spectrum() -> None:
    rng = np.random.default_rng(2)
    for _ in range(40):
        d, N = int(rng.integers(1, 12)), int(rng.integers(1, 30))
        depth = int(rng.integers(1, 6))
        step = rng.uniform(0.0, 1.5)
        noise = rng.uniform()
        risk = DepthRisk(np.ones(d), N, depth, noise=noise)
        layers = LayersRisk(d, N, depth, token_steps=False, noise=noise)
        at = np.full(d, depth * step)
        expected = layers.loss(np.full(depth, step))
        assert risk.loss(at) == pytest.approx(expected, rel=1e-10)
        error = risk.loss_error(at) + layers.loss_error(np.full(depth, step))
        assert abs(risk.loss(at) - expected) <= error
        # The derivative by a common γ is the sum over the layers' steps, over L.
        slope = layers.gradient(np.full(depth, step)).sum() / depth
        assert risk.gradient(at).sum() == pytest.approx(slope, rel=1e-9)


def test_one_layer_is_linear_attention() -> None:
    import icl_theory as icl

    covariance, prior = [1.0, 0.4, 0.1], [0.5, 1.0, 2.0]
    law = icl.linear_attention.PromptLaw(covariance, prior, N=7, noise=0.3)
    risk = DepthRisk(covariance, 7, 1, prior, 0.3)
    assert risk.loss(law.best) == pytest.approx(law.floor, rel=1e-12)
    assert np.abs(risk.gradient(law.best)).max() < 1e-14


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_the_two_risks_agree_on_matrices_that_commute(depth: int) -> None:
    rng = np.random.default_rng(depth)
    d = 4
    rotation, _ = np.linalg.qr(rng.normal(size=(d, d)))
    spectrum, tasks, gamma = rng.uniform(0.2, 2.0, (3, d))
    for N in (6, math.inf):
        diagonal = DepthRisk(spectrum, N, depth, tasks, 0.3)
        whole = SymmetricRisk(
            (rotation * spectrum) @ rotation.T,
            N,
            depth,
            (rotation * tasks) @ rotation.T,
            0.3,
        )
        matrix = (rotation * gamma) @ rotation.T
        assert whole.loss(matrix) == pytest.approx(diagonal.loss(gamma), rel=1e-11)
        # The gradient commutes with Σ: training stays in its eigenbasis.
        in_basis = rotation.T @ whole.gradient(matrix) @ rotation
        expected = np.diag(diagonal.gradient(gamma))
        assert in_basis == pytest.approx(expected, abs=1e-10)


def test_the_gradients_are_derivatives() -> None:
    rng = np.random.default_rng(3)
    spectrum = [1.0, 0.5, 0.2]
    start = rng.uniform(0.5, 2.0, 3)
    for N in (5, math.inf):
        check_risk(DepthRisk(spectrum, N, 3, noise=0.3, start=start))
    check_risk(DepthRisk(spectrum, 5, 2, rotated=True, start=[0.7]))
    check_risk(DepthRisk(spectrum, 5, 2, leading=True, start=start))
    matrix = rng.normal(size=(3, 3))
    covariance = random_matrix(rng, 3)
    for N in (5, math.inf):
        check_risk(SymmetricRisk(covariance, N, 2, noise=0.3, start=matrix + matrix.T))


@pytest.mark.parametrize(
    "depth", [1, 2, 3, 4, 5, pytest.param(MOST_LAYERS, marks=pytest.mark.slow)]
)
def test_the_leading_terms_are_the_contour_integrals(depth: int) -> None:
    rng = np.random.default_rng(depth)
    d, N = int(rng.integers(2, 40)), int(rng.integers(2, 40))
    spectrum, tasks = rng.uniform(0.2, 2.0, (2, d))
    # Short prompts, and eigenvalues of both signs, of one sign or zero.
    gamma = rng.uniform(-0.5, 1.0, d) * depth
    gamma[0] = 0.0
    if depth % 3 == 0:
        gamma = -np.abs(gamma)
    risk = DepthRisk(spectrum, N, depth, tasks, 0.5, leading=True)
    expected = limit_loss(gamma, spectrum, N, depth, tasks, 0.5)
    assert risk.loss(gamma) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("depth", "gamma"), [(8, 6.0), (100, 75.0), (100, 90.0)])
def test_the_limit_of_isotropic_data_is_the_marchenko_pastur_integral(
    depth: int, gamma: float
) -> None:
    """(1 - γλ/L)^2L over the density, with ratio c = d/N < 1, in an angle."""
    d, N = 10, 25
    root = math.sqrt(d / N)
    angle = np.pi * (np.arange(400) + 0.5) / 400
    eigenvalue = 1.0 + d / N + 2.0 * root * np.cos(angle)
    # The density times dλ, for λ = 1 + c + 2 √c cos(angle).
    weights = 2.0 * np.sin(angle) ** 2 / (eigenvalue * 400)
    mean = weights @ (1.0 - gamma * eigenvalue / depth) ** (2 * depth)
    loss = limit_loss(np.full(d, gamma), np.ones(d), N, depth)
    assert loss == pytest.approx(0.5 * d * mean, rel=1e-10)


def test_the_exact_loss_tends_to_the_limit_like_one_over_the_size() -> None:
    departures = []
    for d in (50, 100, 200):
        spectrum = np.arange(1.0, d + 1.0) ** -1.0
        gamma = np.full(d, 2.0)
        exact = DepthRisk(spectrum, d, 3).loss(gamma)
        departures.append(exact / limit_loss(gamma, spectrum, d, 3) - 1.0)
    assert departures[0] > departures[1] > departures[2] > 0.0


@pytest.mark.parametrize("rotated", [False, True])
def test_explicit_layers_have_this_mean_loss_and_gradient(rotated: bool) -> None:
    rng = np.random.default_rng(5)
    spectrum, tasks = np.array([1.0, 0.5, 0.2]), np.array([0.5, 1.0, 3.0])
    risk = DepthRisk(spectrum, 8, 3, tasks, 0.4, rotated)
    params = rng.uniform(0.5, 2.0, risk.size)
    trainer = risk.sampled(20_000, seed=1)
    losses = trainer.losses(params)
    error = losses.std() / math.sqrt(len(losses))
    assert abs(losses.mean() - risk.loss(params)) < 4.0 * error
    prompts = trainer.prompts(0)
    _, gradient = trainer.evaluate_on(params, prompts)
    for i, unit in enumerate(np.eye(risk.size)):
        ahead = trainer.losses_on(params + 1e-5 * unit, prompts).mean()
        behind = trainer.losses_on(params - 1e-5 * unit, prompts).mean()
        assert gradient[i] == pytest.approx((ahead - behind) / 2e-5, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "rotated"), [(2, False), (3, False), (3, True)])
def test_a_million_prompts_have_this_mean_loss(depth: int, rotated: bool) -> None:
    spectrum = np.arange(1.0, 6.0) ** -1.0
    risk = DepthRisk(spectrum, 15, depth, noise=0.3, rotated=rotated)
    params = np.full(risk.size, 0.6 * depth)
    trainer = risk.sampled(100_000, seed=2)
    batches = [trainer.losses(params, step) for step in range(10)]
    losses = np.concatenate(batches)
    error = losses.std() / math.sqrt(len(losses))
    assert abs(losses.mean() - risk.loss(params)) < 4.0 * error


@pytest.mark.parametrize("coordinates", ["eigenvalues", "multiple", "matrix"])
def test_the_family_keeps_its_contract(coordinates: str) -> None:
    problem = {"d": 2, "N": 5, "depth": 2, "eta": 0.2, "max_steps": 20}
    check_family(DepthCovariance, rows=False, coordinates=coordinates, **problem)


def test_matrices_that_commute_are_trained_by_their_eigenvalues() -> None:
    rng = np.random.default_rng(6)
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    # Equal eigenvalues of Σ leave its eigenbasis open; Ω selects it.
    spectrum, tasks = np.array([1.0, 1.0, 0.3]), np.array([0.5, 2.0, 1.0])
    covariance = (rotation * spectrum) @ rotation.T
    prior = (rotation * tasks) @ rotation.T
    given = {"N": 6, "depth": 2, "eta": 0.2, "max_steps": 60, "epsilon": 0.01}
    matrices = {"covariance": covariance, "prior": prior}
    by_matrix = DepthCovariance(coordinates="matrix", **matrices, **given).simulate()
    by_eigenvalue = DepthCovariance(**matrices, **given).simulate()
    assert by_eigenvalue.loss == pytest.approx(by_matrix.loss, rel=1e-10)
    of_diagonal = DepthCovariance(covariance=spectrum, prior=tasks, **given).simulate()
    assert by_eigenvalue.loss == pytest.approx(of_diagonal.loss, rel=1e-10)


def test_training_on_rotated_covariances_is_the_mean_gradient_of_matrices() -> None:
    """An entry on the diagonal of Γ gets a share 1/d of the derivative by γ."""
    problem = DepthCovariance(d=3, N=6, coordinates="multiple", eta=0.2, max_steps=2)
    risk = problem.risk()
    step = -0.2 * risk.gradient([0.0]) / 3.0
    assert problem.simulate().states[1] == pytest.approx(step)
    whole = DepthCovariance(d=3, N=6, coordinates="matrix").risk()
    trace = np.trace(whole.gradient(np.zeros((3, 3))))
    assert risk.gradient([0.0])[0] == pytest.approx(trace)


def test_the_best_parameters_have_no_gradient() -> None:
    for coordinates in ("eigenvalues", "multiple", "matrix"):
        problem = DepthCovariance(d=4, depth=3, coordinates=coordinates, noise=0.2)
        best = problem.best()
        assert np.abs(problem.risk().gradient(best)).max() < 1e-7
    assert DepthCovariance(N=math.inf).risk().loss(
        DepthCovariance(N=math.inf).best()
    ) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "covariance = .*positive definite"),
        ({"covariance": [1.0, 0.5], "decay": 2.0}, "decay = 2.0: must be left out"),
        ({"source": 1.0, "prior": [1.0] * 5}, "source = 1.0: must be left out"),
        ({"prior": [1.0]}, r"prior = \(1,\): must be of dimension d = 5"),
        (
            {"covariance": [1.0, 0.5], "prior": [[1.0, 0.5], [0.5, 1.0]]},
            "prior = .*commutes with the covariance",
        ),
        (
            {"terms": "leading", "coordinates": "matrix"},
            "terms = 'leading': must be 'all'",
        ),
        ({"depth": 7}, "depth = 7: must be"),
        ({"source": -1.0}, "source = -1.0: must be"),
    ],
)
def test_wrong_families_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DepthCovariance(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 0}, "depth = 0: must be"),
        ({"depth": 9}, "depth = 9: must be .* from 1 to 6: .* 9 layers would take"),
        ({"N": 0}, "N = 0: must be"),
        ({"N": -3}, "N = -3: must be"),
        ({"noise": -1.0}, "noise = -1.0: must be"),
        ({"covariance": [1.0, 0.0]}, "covariance = .*positive definite"),
        ({"covariance": [1.0, -0.5]}, r"covariance = .*least is -0\.5"),
        ({"covariance": [[1.0, 0.0], [0.0, 1.0]]}, r"covariance = \(2, 2\)"),
        ({"covariance": [math.nan]}, "covariance"),
        ({"prior": [1.0, -1.0]}, "prior = .*2 numbers >= 0"),
        ({"prior": [1.0]}, "prior = .*2 numbers >= 0"),
        ({"start": [0.1]}, r"start = \(1,\): must be of shape \(2,\)"),
        ({"rotated": "x"}, "rotated"),
    ],
)
def test_wrong_problems_are_refused(changes: dict[str, object], words: str) -> None:
    arguments = {"covariance": [1.0, 0.5], "N": 20, "depth": 3} | changes
    with pytest.raises(ValueError, match=words):
        DepthRisk(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "covariance = .*positive definite"),
        ({"covariance": [[1.0, 0.2], [0.1, 1.0]]}, "covariance = .*transpose"),
        ({"prior": [[1.0, 2.0], [2.0, 1.0]]}, "prior = .*semidefinite"),
        ({"start": np.zeros(2)}, "start"),
        ({"start": np.zeros((3, 3))}, r"start = \(3, 3\): must be of shape \(2, 2\)"),
    ],
)
def test_wrong_matrices_are_refused(changes: dict[str, object], words: str) -> None:
    arguments = {"covariance": [1.0, 0.5], "N": 20, "depth": 2} | changes
    with pytest.raises(ValueError, match=words):
        SymmetricRisk(**arguments)  # type: ignore[arg-type]


def test_wrong_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="depth = 101: must be"):
        limit_loss([1.0], [1.0], 5, 101)
    with pytest.raises(ValueError, match=r"eigenvalues = \(2,\): must be of shape"):
        limit_loss([1.0, 1.0], [1.0], 5, 2)


def test_some_risks_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="N = inf: must be finite"):
        DepthRisk([1.0], math.inf).sampled(4)
    with pytest.raises(ValueError, match="leading = True: must be False"):
        DepthRisk([1.0], 4, leading=True).sampled(4)


def by_fractions(risk: DepthRisk, gamma: Array) -> float:
    """The loss without noise from the same terms, in fractions."""
    terms = counts(risk.depth)
    N = Fraction(int(risk.N))
    share = [Fraction(x) / risk.depth for x in risk.covariance.tolist()]
    a = [Fraction(g) * s for g, s in zip(gamma.tolist(), share, strict=True)]
    task = [Fraction(x) for x in (risk.covariance * risk.prior).tolist()]
    degree = 2 * risk.depth
    powers = [[x**n for x in a] for n in range(degree + 1)]
    p = [sum(row) for row in powers]
    q = [sum(map(mul, task, row)) for row in powers]
    loss = Fraction(0)
    for u, r, m in np.argwhere(terms.bias):
        product = Fraction(int(terms.bias[u, r, m])) * q[m] / N ** int(r)
        for n, exponent in enumerate(terms.exponents[u].tolist(), start=1):
            product *= p[n] ** exponent
        loss += product
    return float(loss / 2)


@pytest.mark.parametrize(("depth", "N"), [(3, 5), (3, 2000), (5, 20)])
def test_rounding_stays_within_its_bound(depth: int, N: int) -> None:
    """At the best eigenvalues, where terms cancel most."""
    problem = DepthCovariance(d=4, N=N, depth=depth)
    risk = problem.risk()
    assert isinstance(risk, DepthRisk)
    best = problem.best()
    exact = by_fractions(risk, best)
    assert abs(risk.loss(best) - exact) <= risk.loss_error(best)
    assert risk.loss_error(best) < 1e-7 * risk.loss(np.zeros(4))


def test_a_loss_beyond_float64_is_infinite() -> None:
    assert limit_loss([1e40, 1e40], [1.0, 0.5], 3, 100) == math.inf
    assert limit_loss([1e40, 1e40], [1.0, 0.5], math.inf, 100) == math.inf
    tiny = limit_loss([1e-30, 1e-30], [1.0, 0.5], 3, 100)
    assert tiny == pytest.approx(0.75)
    risk = DepthRisk([1.0, 0.5], 3, 3)
    assert risk.loss([1e60, 1e60]) == math.inf
    assert risk.loss_error([1e60, 1e60]) == math.inf
