"""Softmax heads on a fixed set of prompts, and how drops of a loss are counted."""

from __future__ import annotations

import numpy as np
import pytest

from icl_theory.papers.linear_attention import softmax_drops as evidence
from icl_theory.papers.linear_attention.softmax_drops import (
    MergedSoftmax,
    PromptSet,
    SeparateSoftmax,
    count_of_drops,
)
from icl_theory.papers.softmax_linear.regression import HeadRisk
from icl_theory.testing import check_risk

EIGENVALUES = np.array([0.5, 0.3, 0.2])


def random_heads(numbers: int) -> np.ndarray:
    """Return two heads with this many numbers each."""
    return np.random.default_rng(1).standard_normal((2, numbers))


def test_both_risks_pass_the_checks_of_any_risk() -> None:
    prompts = PromptSet.draw(EIGENVALUES, N=6, M=20, seed=0)
    check_risk(MergedSoftmax(random_heads(10), prompts))
    check_risk(SeparateSoftmax(random_heads(7), prompts))


def test_the_loss_is_that_of_plain_loops_over_labelled_prompts() -> None:
    """With one task for each axis: half the sum of squares, as their mean is exact."""
    prompts = PromptSet.draw(EIGENVALUES, N=5, M=4, seed=3)
    heads = random_heads(7)
    total = 0.0
    for tokens, query in zip(*prompts, strict=True):
        for task in np.eye(3):
            prediction = 0.0
            for value, *rest in heads:
                key, query_weights = np.split(np.array(rest), 2)
                scores = (tokens @ key) * (query_weights @ query)
                weights = np.exp(scores) / np.exp(scores).sum()
                prediction += value * weights @ (tokens @ task)
            total += 0.5 * (task @ query - prediction) ** 2
    assert SeparateSoftmax(heads, prompts).loss(heads) == pytest.approx(total / 4)


def test_the_mean_over_many_prompts_is_the_exact_risk_of_one_head() -> None:
    """`HeadRisk` integrates over all prompts, for scores a x·x_n and the value b."""
    d, N, a, b = 3, 12, 0.4, 1.5
    losses = []
    for seed in range(40):
        prompts = PromptSet.draw(np.ones(d), N, M=500, seed=seed)
        head = np.concatenate([[b], a * np.eye(d).ravel()])[None]
        losses.append(MergedSoftmax(head, prompts).loss(head))
    standard_error = np.std(losses, ddof=1) / np.sqrt(len(losses))
    deviation = np.mean(losses) - HeadRisk(d=d, N=N).risk(a, b)
    assert abs(deviation) < 4.0 * standard_error


def falls(*speeds: float) -> np.ndarray:
    """Return a loss that starts at 1 and falls by each speed for ten steps."""
    return 1.0 - np.concatenate([[0.0], np.cumsum(np.repeat(speeds, 10))])


@pytest.mark.parametrize(
    ("losses", "drops"),
    [
        (falls(1e-4, 1e-2, 1e-4), 1),
        (falls(1e-4, 1e-2, 1e-4, 2e-2, 1e-5), 2),
        (falls(1e-4, 1e-2), 1),  # the run ends within the drop
        (falls(1e-4, 1e-2, 5e-3, 1e-2, 1e-4), 1),  # slower, but not ten times
        (falls(1e-5, 1e-3, 1e-5), 0),  # only 1 % of the loss
        (falls(1e-2, 1e-2, 1e-2), 0),  # no plateau
    ],
)
def test_drops_are_counted_between_plateaus(losses: np.ndarray, drops: int) -> None:
    assert count_of_drops(losses) == drops


def test_the_row_tells_merged_from_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate heads learn at once if all directions have the same eigenvalue."""
    assert not evidence.softmax_drops(True).violated
    draw = PromptSet.draw

    def draw_equal(eigenvalues: np.ndarray, N: int, M: int, seed: int) -> PromptSet:
        return draw(np.full(len(eigenvalues), 0.5), N, M, seed)

    monkeypatch.setattr(evidence.PromptSet, "draw", draw_equal)
    assert evidence.softmax_drops(True).violated
