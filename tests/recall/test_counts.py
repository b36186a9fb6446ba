from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icl_theory as icl
from tests.recall.references import bigrams, enumerate_sentences

Counts = icl.recall.Counts


@pytest.mark.parametrize(
    ("H", "density", "noise"),
    [(5, 0.25, 0.0), (6, 0.4, 0.3), (7, 0.1, 0.6), (3, 0.5, 0.2)],
)
def test_sentence_law_is_that_of_all_sentences(
    H: int, density: float, noise: float
) -> None:
    task = icl.recall.RecallTask(4, 1, 2, H=H)
    law = Counts.sentence(H, density, noise)
    counted = np.zeros((H, H))
    for s in enumerate_sentences(task, density, noise):
        counted[
            bigrams(s.tokens, s.q, s.y), bigrams(s.tokens, s.q, task.noise_word)
        ] += s.weight
    rows, columns = law.pmf.shape
    np.testing.assert_allclose(
        counted[:rows, :columns], law.pmf, rtol=1e-12, atol=1e-15
    )
    assert counted.sum() == pytest.approx(counted[:rows, :columns].sum())


def test_uniform_law_over_legal_sentences_is_a_case() -> None:
    """All legal sentences alike: density/(1-density)² = 2/(V-1)², half of what follows the trigger is noise."""
    V, H = 4, 7
    r = 2.0 / (V - 1) ** 2
    density = (1 + 2 * r - np.sqrt(1 + 4 * r)) / (2 * r)
    weights = {
        s.weight
        for s in enumerate_sentences(icl.recall.RecallTask(V, 1, 2, H=H), density, 0.5)
    }
    assert max(weights) / min(weights) == pytest.approx(1.0)


def test_fixed_and_geometric_laws() -> None:
    fixed = Counts.fixed(3, 2)
    assert (fixed.minimum, fixed.mean, fixed.noise_mean, fixed.longest) == (
        3,
        3.0,
        2.0,
        5,
    )
    law = Counts.geometric(2.0)
    assert law.mean == pytest.approx(2.0, rel=1e-12)
    np.testing.assert_allclose(law.marginal[2:] / law.marginal[1:-1], 0.5)
    assert Counts.geometric(1.0).same(Counts.fixed(1))
    assert Counts.geometric(3.0, most=4).longest == 4


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).filter(
        lambda x: sum(x) > 1e-3
    )
)
def test_any_law_without_mass_at_zero_is_kept(weights: list[float]) -> None:
    pmf = np.append(0.0, np.array(weights) / sum(weights))
    law = Counts(pmf)
    np.testing.assert_allclose(law.marginal, np.trim_zeros(pmf, "b"), rtol=1e-12)
    assert law.mean == pytest.approx(pmf @ np.arange(len(pmf)))


@pytest.mark.parametrize("off", [9e-7, -9e-7])
def test_a_law_that_is_rounded_is_made_one(off: float) -> None:
    law = Counts([[0.0, 0.0], [0.25, 0.25], [0.5 + off, 0.0]])  # type: ignore[arg-type]
    assert law.pmf.sum() == pytest.approx(1.0, abs=1e-15)
    assert law.pmf[1, 1] == pytest.approx(0.25 / (1.0 + off), rel=1e-14)


def test_rare_counts_of_long_sentences_keep_their_probabilities() -> None:
    """Down to 1e-300 of the largest: one bigram decides at which rate the loss falls in the end."""
    H, d, found = 1801, 0.25, Counts.sentence(1801).marginal

    def log(k: int) -> float:
        ways = math.lgamma(H - k) - math.lgamma(k + 1) - math.lgamma(H - 2 * k)
        return ways + k * math.log(d) + (H - 1 - 2 * k) * math.log1p(-d)

    most = int(np.argmax(found))
    shares = [(k, math.exp(log(k) - log(most))) for k in (1, 2, 10, 100, 300, 600, 800)]
    assert min(share for _, share in shares) < 1e-200
    for k, share in shares:
        assert found[k] / found[most] == pytest.approx(share, rel=1e-9, abs=0.0)
    long = Counts.sentence(4001).marginal
    assert min(long[1:]) == pytest.approx(1e-300 * max(long), rel=1e-9, abs=0.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Counts([0.1, 0.9]), "without mass at c = 0 (this has 0.1)"),  # type: ignore[arg-type]
        (lambda: Counts([1.0]), "without mass at c = 0"),  # type: ignore[arg-type]
        (lambda: Counts([0.0, 0.7]), "sum to 1 (these sum to 0.7)"),  # type: ignore[arg-type]
        (lambda: Counts([0.0, 0.5, 0.5 + 2e-6]), "sum to 1 (these sum to 1.000002)"),  # type: ignore[arg-type]
        (lambda: Counts([0.0, -1.0, 2.0]), "pmf"),  # type: ignore[arg-type]
        (lambda: Counts([0.0, float("nan")]), "pmf"),  # type: ignore[arg-type]
        (lambda: Counts("abc"), "pmf = 'abc'"),  # type: ignore[arg-type]
        (lambda: Counts(np.zeros((2, 2, 2))), "pmf"),
        (lambda: Counts([]), "pmf"),  # type: ignore[arg-type]
        (lambda: Counts.fixed(0), "c = 0"),
        (lambda: Counts.fixed(2, -1), "c_tau = -1"),
        (lambda: Counts.geometric(0.5), "mean = 0.5"),
        (lambda: Counts.sentence(2), "H = 2: must be at least 3"),
        (lambda: Counts.sentence(9, density=1.0), "density = 1.0"),
        (
            lambda: Counts.sentence(9, noise=1.0),
            "noise = 1.0: must be a number in [0, 1)",
        ),
        (lambda: Counts.sentence(10**6), "H = 1000000"),
    ],
)
def test_wrong_input_is_named(make: object, words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make()  # type: ignore[operator]
    assert words in str(error.value)
