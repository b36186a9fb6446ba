"""Papers on one layer of attention on a fixed Markov chain: rows and pages.

The functions that are decorated with `row` or `identity` are rows of the audit: their
docstrings are the statements, and ``quick`` asks for a smaller measurement. `row` takes
functions that return ``Claim.of``: whether the measurements are as expected, the cases,
and the measured numbers in words. `identity` takes functions that yield errors, and
return the cases. `ATTENTION_WITH_MARKOV` says which statement of the papers each row
tests.

A chain goes from state 0 to 1 with the probability p, and back with q. The layer has
the embedding e, the weight w, a readout u, which is e if weights are tied, and a bias
b. The bigram predicts the chain, and the unigram its stationary law.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import entr

from icl_theory.papers.fixed_chain.family import SADDLE, FixedChain
from icl_theory.papers.induction_heads.statements import CAUSAL_STRUCTURE
from icl_theory.statements.claim import Claim, Errors, identity, row
from icl_theory.statements.numbers import listed, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

LANDSCAPE = "Makkuva et al. 2402.04161, {} (reconstructed)"
DYNAMICS = "Makkuva et al. 2406.03072, {} (reconstructed)"
# (p, q) of a chain with p + q < 1, and of one with p + q > 1.
LAZY = (0.2, 0.3)
SWITCHING = (0.5, 0.8)
# Numbers of different e and of different w at which runs start.
GRID = (6, 9)
QUICK_GRID = (2, 3)


@identity(
    "one layer: losses of the minima", LANDSCAPE.format("Theorems 1 and 2"), 1e-12
)
def minima(quick: bool) -> Errors:
    """where e²(1 + 2w|w|) = ln((1-p)(1-q)/pq) the loss is the entropy rate and the
    gradient 0; at e = 0 the loss is the entropy of the stationary law, and larger by
    the information of a symbol on the next
    """
    for p, q in itertools.product((0.1, 0.45, 0.7), (0.2, 0.5, 0.9)):
        P = np.array([[1.0 - p, p], [q, 1.0 - q]])
        law = np.array([q, p]) / (p + q)  # the stationary law
        joint_law = law[:, None] * P  # of a symbol and the next one
        # entr(x) is -x ln x.
        entropy_rate = entr(joint_law).sum() - entr(law).sum()
        information = float(np.sum(joint_law * np.log(joint_law / np.outer(law, law))))
        # The logit after 1 minus the logit after 0, of the chain itself.
        s = math.log((1.0 - p) * (1.0 - q) / (p * q))
        risk = FixedChain(p=p, q=q).risk()
        # If w has the sign of s and is far enough from 0, 1 + 2w|w| has the sign of s,
        # too. For p + q = 1 the numbers s and e are 0 up to rounding.
        for w in np.sign(s) * np.array([0.8, 1.1, 2.0]):
            e = math.sqrt(s / (1.0 + 2.0 * w * abs(w)))
            loss, gradient = risk.evaluate(np.array([e, w]))
            yield abs(loss - entropy_rate)
            yield np.abs(gradient).max()
            yield abs(risk.loss([0.0, w]) - entr(law).sum())
        yield abs(risk.gap - information)
    return "p = 0.1, 0.45, 0.7, q = 0.2, 0.5, 0.9, |w| = 0.8, 1.1, 2"


class Curvature(NamedTuple):
    """Curvature of the loss at the unigram."""

    # (1 + 2w|w|)(p + q - 1). With tied weights, the unigram should be a minimum if and
    # only if this product is positive.
    product: float
    least: float  # least eigenvalue of the Hessian


def _curvatures(readout: float | str) -> Iterator[Curvature]:
    """Yield curvatures of the loss at the unigram, e = 0, with the bias ln(p/q).

    The cases are a grid of p, q and w. ``readout`` is "tied", or a number. If it is a
    number, u is a separate parameter, which is 0 at the unigram. The value of the
    number does not matter.
    """
    for p, q, w in itertools.product((0.2, 0.6), (0.3, 0.9), (-1.5, -0.3, 0.5)):
        risk = FixedChain(p=p, q=q, readout=readout, bias="trained").risk()
        unigram = np.zeros(len(risk.initial))  # (e, w[, u], b)
        unigram[1] = w
        unigram[-1] = math.log(p / q)
        units = np.eye(len(unigram))
        hessian = np.array([risk.hessian_product(unigram, unit) for unit in units])
        # eigvalsh takes a symmetric matrix. Rounding leaves the Hessian not quite
        # symmetric.
        eigenvalues = np.linalg.eigvalsh(0.5 * (hessian + hessian.T))
        product = (1.0 + 2.0 * w * abs(w)) * (p + q - 1.0)
        yield Curvature(product, least=eigenvalues[0])


@row(
    "one layer: the unigram's curvature",
    LANDSCAPE.format("Theorems 2 and 3"),
    bound="sign of (p+q-1)(1+2w|w|)",
)
def curvature(quick: bool) -> Claim:
    """with tied weights e = 0 is a bad local minimum for p + q > 1 and w > -1/√2, or p
    + q < 1 and w < -1/√2, and otherwise a saddle; without weight tying it is always a
    saddle
    """
    tied = list(_curvatures("tied"))
    # At e = 0 the loss does not depend on w. So the least eigenvalue of a minimum is 0
    # up to rounding.
    is_minimum = [at_unigram.least > -1e-8 for at_unigram in tied]
    is_predicted_minimum = [at_unigram.product > 0.0 for at_unigram in tied]
    # Any number makes the readout a parameter of its own.
    untied = [at_unigram.least for at_unigram in _curvatures(readout=0.5)]
    # The least eigenvalues are -0.012 or less. The limit is far from them and far from
    # rounding errors.
    are_saddles = max(untied) < -1e-3
    return Claim.of(
        is_minimum == is_predicted_minimum and are_saddles,
        "p = 0.2, 0.6, q = 0.3, 0.9, w = -1.5, -0.3, 0.5, with trained bias",
        f"{sum(is_minimum)} minima in {len(tied)} cases; untied: least curvature"
        f" {span(untied, '.3f')}",
    )


def _problems(shape: tuple[int, int], **parameters: Any) -> list[FixedChain]:
    """Return problems on a grid of starts, for p + q < 1 and then for p + q > 1.

    ``shape`` has the number of e and the number of w in the grid, and ``parameters``
    are further parameters of all problems.
    """
    embeddings = np.linspace(0.15, 2.5, shape[0])
    # The weights w are on both sides of -1/√2 and of 0, because these two limits decide
    # at which predictor the flow ends. No weight is 0, where the energy is infinite.
    weights = np.linspace(-2.1, 1.9, shape[1])
    return [
        FixedChain(p=p, q=q, e=e, w=w, **parameters)
        for (p, q), e, w in itertools.product((LAZY, SWITCHING), embeddings, weights)
    ]


def _end(problem: FixedChain) -> str:
    """Return at which predictor a run ends, "bigram" or "unigram"."""
    run = problem.simulate()
    # The bigram has the excess 0, and the unigram the excess ``gap``.
    excess = run.loss[-1] - run.floor
    return "bigram" if excess < 0.5 * problem.risk().gap else "unigram"


@identity("one layer: energy", DYNAMICS.format("energy"), 1e-7)
def energy(quick: bool) -> Errors:
    """gradient flow with the best bias keeps e² - w² - sign(w) ln|w|"""
    shape = (2, 3) if quick else (3, 5)
    problems = _problems(shape, eta=0.1, method="flow", max_steps=100)
    for problem in problems:
        e, w = problem.simulate().states.T  # at all saved states
        energies = e**2 - w**2 - np.sign(w) * np.log(np.abs(w))
        yield np.abs(energies - problem.energy).max()
    return (
        f"{len(problems) // 2} starts, p = {LAZY[0]}, q = {LAZY[1]}"
        f" and p = {SWITCHING[0]}, q = {SWITCHING[1]}"
    )


@row(
    "one layer: basins",
    DYNAMICS.format("basins"),
    bound=f"energy of the saddle, {SADDLE:.4f}",
)
def basins(quick: bool) -> Claim:
    """the flow ends at the unigram if, for p + q < 1, w < -1/√2 and the energy is below
    the saddle's, and for p + q > 1 if w > 0, or w > -1/√2 and the energy is below the
    saddle's; otherwise it ends at the bigram
    """
    shape = QUICK_GRID if quick else GRID
    problems = _problems(shape, eta=0.1, method="flow", max_steps=10**6)
    ends = [_end(problem) for problem in problems]
    predicted = [problem.basin() for problem in problems]
    agreement_count = sum(
        end == prediction for end, prediction in zip(ends, predicted, strict=True)
    )
    # The first half of the problems has p + q < 1, and the second half p + q > 1.
    starts_per_chain = len(problems) // 2
    lazy = ends[:starts_per_chain]
    switching = ends[starts_per_chain:]
    return Claim.of(
        agreement_count == len(problems),
        f"p, q = {LAZY} and {SWITCHING}, {starts_per_chain} starts each with e to 2.5,"
        " w from -2.1 to 1.9",
        f"{agreement_count} of {len(problems)} as predicted; at the unigram"
        f" {lazy.count('unigram')} and {switching.count('unigram')}",
    )


@row("one layer: small starts", DYNAMICS.format("initialisation"), bound="all or none")
def small_starts(quick: bool) -> Claim:
    """descent from normal numbers around 0 ends at the bigram for p + q < 1, and at the
    unigram for p + q > 1; without weight tying it ends at the bigram for both
    """
    rng = np.random.default_rng(0)
    count = 8 if quick else 40

    def at_bigram(chain: tuple[float, float], is_tied: bool) -> int:
        """Count the small starts from which descent ends at the bigram."""
        p, q = chain
        bigrams = 0
        # The family takes only e > 0. This loses no start: -e and -u predict the same
        # as e and u, and the law of u is symmetric.
        for e, w, u in 0.1 * rng.normal(size=(count, 3)):
            readout = "tied" if is_tied else u
            problem = FixedChain(
                p=p, q=q, e=abs(e), w=w, readout=readout, max_steps=10**5
            )
            bigrams += _end(problem) == "bigram"
        return bigrams

    lazy_tied = at_bigram(LAZY, is_tied=True)
    lazy_untied = at_bigram(LAZY, is_tied=False)
    switching_tied = at_bigram(SWITCHING, is_tied=True)
    switching_untied = at_bigram(SWITCHING, is_tied=False)
    # In three of the four cases all starts end at the bigram, and in one case none.
    three_reach_bigram = lazy_tied == lazy_untied == switching_untied == count
    return Claim.of(
        three_reach_bigram and switching_tied == 0,
        f"p, q = {LAZY} and {SWITCHING}, η = 1, {count} starts each of the size 0.1",
        f"at the bigram {lazy_tied} and {switching_tied} tied, {lazy_untied} and"
        f" {switching_untied} untied",
    )


@row("one layer: basins of descent", bound="those of the flow at η = 0.1")
def steps(quick: bool) -> Claim:
    """the basins of the flow are those of descent for small learning rates only"""
    etas = (0.1, 1.0, 4.0)
    wrong_ends = []
    for eta in etas:
        shape = QUICK_GRID if quick else GRID
        # 4000 steps are enough to tell at which loss a run ends.
        problems = _problems(shape, eta=eta, max_steps=4000)
        is_wrong = [_end(problem) != problem.basin() for problem in problems]
        wrong_ends.append(sum(is_wrong))
    wrong_at_small, wrong_at_middle, wrong_at_large = wrong_ends
    return Claim.of(
        0 == wrong_at_small < wrong_at_middle < wrong_at_large,
        f"the starts of the row on basins, {len(problems)} in all",
        f"at the other end {listed(wrong_ends)} with η = {listed(etas)}",
        "holds only for small steps",
    )


ATTENTION_WITH_MARKOV = Paper(
    "attention-with-markov",
    "Attention with Markov: A Framework for Principled Analysis of Transformers via"
    " Markov Chains",
    "Ashok Vardhan Makkuva, Marco Bondaschi, Adway Girish, Alliot Nagle, Martin Jaggi,"
    " Hyeji Kim, Michael Gastpar",
    2024,
    "arXiv:2402.04161",
    (
        Reading(
            "Landscape",
            "A one-layer transformer can predict the chain, but with tied weights the"
            " stationary law is a bad"
            " local minimum for p + q > 1; without weight tying it is a saddle.",
            (minima, curvature),
            reconstructed="Theorems 1 to 3 for the canonical numbers (e, w, b), not for"
            " the whole layer.",
        ),
        Reading(
            "Dynamics and initialisation",
            "Flow of the canonical numbers keeps an energy, which says where it ends;"
            " small starts are trapped for"
            " p + q > 1 (arXiv:2406.03072).",
            (energy, basins, small_starts, steps),
            figure="markov_basins",
            reconstructed="The theorems' text; logit, energy and basins are those of"
            " the authors' code.",
        ),
    ),
    setting=Setting(
        "attention-with-markov?q=0.8&t=100~q=0.2",
        (
            "For p + q > 1, here 1.3, a small start ends at the stationary law, far "
            "above the floor; in grey dashes, for p + q = 0.7, at the prediction of "
            "the chain."
        ),
    ),
    credit="One layer on a fixed Markov chain (`icl.FixedChain`)",
    related=(
        "Its dynamics: *Local to Global: Learning Dynamics and Effect of "
        "Initialization for Transformers*. 2024. "
        "[arXiv:2406.03072](https://arxiv.org/abs/2406.03072)."
    ),
    entry=ModelEntry(
        data="a fixed Markov chain of two states",
        attention="one layer",
        trained="embedding, weight and bias",
        command="icl-theory fixed-chain simulate",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(ATTENTION_WITH_MARKOV, CAUSAL_STRUCTURE))
