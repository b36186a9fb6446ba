"""Papers on transformers and Markov chains: one layer on a fixed chain, as rows of the audit and as pages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import entr

from icl_theory._validate import Array
from icl_theory.papers.fixed_chain.family import SADDLE, FixedChain
from icl_theory.papers.induction_heads.statements import CAUSAL_STRUCTURE
from icl_theory.statements.claim import Claim, Errors, identity, row
from icl_theory.statements.numbers import listed, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

LANDSCAPE = "Makkuva et al. 2402.04161, {} (reconstructed)"
DYNAMICS = "Makkuva et al. 2406.03072, {} (reconstructed)"
# p + q < 1 and p + q > 1
LAZY = (0.2, 0.3)
SWITCHING = (0.5, 0.8)


@identity(
    "one layer: losses of the minima", LANDSCAPE.format("Theorems 1 and 2"), 1e-12
)
def minima(quick: bool) -> Errors:
    """where e²(1 + 2w|w|) = ln((1-p)(1-q)/pq) the loss is the entropy rate and the gradient 0; at e = 0 the loss is
    the entropy of the stationary law, and larger by the information of a symbol on the
    next
    """
    for p, q in itertools.product((0.1, 0.45, 0.7), (0.2, 0.5, 0.9)):
        P = np.array([[1.0 - p, p], [q, 1.0 - q]])
        law = np.array([q, p]) / (p + q)
        joint = law[:, None] * P
        s = math.log((1.0 - p) * (1.0 - q) / (p * q))
        risk = FixedChain(p=p, q=q).risk()
        for w in np.sign(s) * np.array([0.8, 1.1, 2.0]):
            loss, gradient = risk.evaluate(
                np.array([math.sqrt(s / (1.0 + 2.0 * w * abs(w))), w])
            )
            yield abs(loss - (entr(joint).sum() - entr(law).sum()))
            yield np.abs(gradient).max()
            yield abs(risk.loss([0.0, w]) - entr(law).sum())
        yield abs(risk.gap - float(np.sum(joint * np.log(joint / np.outer(law, law)))))
    return "p = 0.1, 0.45, 0.7, q = 0.2, 0.5, 0.9, |w| = 0.8, 1.1, 2"


def _curvatures(readout: float | str) -> Iterator[tuple[float, Array]]:
    """Yield (1 + 2w|w|)(p + q - 1) and the eigenvalues at e = 0 (and u = 0), with the bias ln(p/q)."""
    for p, q, w in itertools.product((0.2, 0.6), (0.3, 0.9), (-1.5, -0.3, 0.5)):
        risk = FixedChain(p=p, q=q, readout=readout, bias="trained").risk()
        at = np.zeros(len(risk.initial))
        at[1], at[-1] = w, math.log(p / q)
        hessian = np.array(
            [risk.hessian_product(at, direction) for direction in np.eye(len(at))]
        )
        yield (
            (1.0 + 2.0 * w * abs(w)) * (p + q - 1.0),
            np.linalg.eigvalsh(0.5 * (hessian + hessian.T)),
        )


@row(
    "one layer: the unigram's curvature",
    LANDSCAPE.format("Theorems 2 and 3"),
    bound="sign of (p+q-1)(1+2w|w|)",
)
def curvature(quick: bool) -> Claim:
    """with tied weights e = 0 is a bad local minimum for p + q > 1 and w > -1/√2, or p + q < 1 and w < -1/√2, and a
    saddle else; without weight tying it is always a saddle
    """
    tied = [(sign, values[0] > -1e-8) for sign, values in _curvatures("tied")]
    untied = [values[0] for _, values in _curvatures(0.5)]
    return Claim.of(
        all(minimum == (sign > 0.0) for sign, minimum in tied) and max(untied) < -1e-3,
        "p = 0.2, 0.6, q = 0.3, 0.9, w = -1.5, -0.3, 0.5, with trained bias",
        f"{sum(minimum for _, minimum in tied)} minima in {len(tied)} cases; untied: least curvature"
        f" {span(untied, '.3f')}",
    )


def _problems(quick: bool, **given: Any) -> list[FixedChain]:
    """Return problems from a grid of starts, for p + q < 1 first and then for p + q > 1."""
    starts = (
        np.linspace(0.15, 2.5, 3 if quick else 6),
        np.linspace(-2.1, 1.9, 5 if quick else 9),
    )
    every = itertools.product((LAZY, SWITCHING), *starts)
    return [FixedChain(p=p, q=q, e=e, w=w, **given) for (p, q), e, w in every]


def _ends(problem: FixedChain) -> str:
    run = problem.simulate()
    return (
        "bigram" if run.loss[-1] - run.floor < 0.5 * problem.risk().gap else "unigram"
    )


@identity("one layer: energy", DYNAMICS.format("energy"), 1e-7)
def energy(quick: bool) -> Errors:
    """gradient flow with the best bias keeps e² - w² - sign(w) ln|w|"""
    problems = _problems(True, eta=0.1, method="flow", max_steps=100)
    for problem in problems:
        e, w = problem.simulate().states.T
        yield np.abs(
            e**2 - w**2 - np.sign(w) * np.log(np.abs(w)) - problem.energy
        ).max()
    return f"{len(problems) // 2} starts, p = {LAZY[0]}, q = {LAZY[1]} and p = {SWITCHING[0]}, q = {SWITCHING[1]}"


@row(
    "one layer: basins",
    DYNAMICS.format("basins"),
    bound=f"energy of the saddle, {SADDLE:.4f}",
)
def basins(quick: bool) -> Claim:
    """the flow ends at the unigram if, for p + q < 1, w < -1/√2 and the energy is below the saddle's, and for
    p + q > 1 if w > 0, or w > -1/√2 and the energy is below the saddle's; else at the
    bigram
    """
    problems = _problems(quick, eta=0.1, method="flow", max_steps=10**6)
    ends = [_ends(problem) for problem in problems]
    half = len(problems) // 2
    right = sum(
        end == problem.basin() for end, problem in zip(ends, problems, strict=True)
    )
    return Claim.of(
        right == len(problems),
        f"p, q = {LAZY} and {SWITCHING}, {half} starts each with e to 2.5, w from -2.1 to 1.9",
        f"{right} of {len(problems)} as predicted; at the unigram {ends[:half].count('unigram')} and"
        f" {ends[half:].count('unigram')}",
    )


@row("one layer: small starts", DYNAMICS.format("initialisation"), bound="all or none")
def small_starts(quick: bool) -> Claim:
    """descent from normal numbers around 0 ends at the bigram for p + q < 1, and at the unigram for p + q > 1;
    without weight tying it ends at the bigram for both
    """
    rng = np.random.default_rng(0)
    count = 8 if quick else 40
    share = []
    for (p, q), tied in itertools.product((LAZY, SWITCHING), (True, False)):
        problems = [
            FixedChain(
                p=p, q=q, e=abs(e), w=w, readout="tied" if tied else u, max_steps=10**5
            )
            for e, w, u in 0.1 * rng.normal(size=(count, 3))
        ]
        share.append(sum(_ends(problem) == "bigram" for problem in problems))
    return Claim.of(
        share == [count, count, 0, count],
        f"p, q = {LAZY} and {SWITCHING}, η = 1, {count} starts each of the size 0.1",
        f"at the bigram {share[0]} and {share[2]} tied, {share[1]} and {share[3]} untied",
    )


@row("one layer: basins of descent", bound="those of the flow at η = 0.1")
def steps(quick: bool) -> Claim:
    """the basins of the flow are those of descent for small learning rates only"""
    etas = (0.1, 1.0, 4.0)
    problems = [_problems(quick, eta=eta, max_steps=4000) for eta in etas]
    off = [
        sum(_ends(problem) != problem.basin() for problem in each) for each in problems
    ]
    return Claim.of(
        0 == off[0] < off[1] < off[2],
        f"the starts of the row on basins, {len(problems[0])} in all",
        f"at the other end {listed(off)} with η = {listed(etas)}",
        "holds only for small steps",
    )


ATTENTION_WITH_MARKOV = Paper(
    "attention-with-markov",
    "Attention with Markov: A Framework for Principled Analysis of Transformers via Markov Chains",
    "Ashok Vardhan Makkuva, Marco Bondaschi, Adway Girish, Alliot Nagle, Martin Jaggi, Hyeji Kim, Michael Gastpar",
    2024,
    "arXiv:2402.04161",
    (
        Reading(
            "Landscape",
            "A one-layer transformer can predict the chain, but with tied weights the stationary law is a bad"
            " local minimum for p + q > 1; without weight tying it is a saddle.",
            (minima, curvature),
            reconstructed="Theorems 1 to 3 for the canonical numbers (e, w, b), not for the whole layer.",
        ),
        Reading(
            "Dynamics and initialisation",
            "Flow of the canonical numbers keeps an energy, which says where it ends; small starts are trapped for"
            " p + q > 1 (arXiv:2406.03072).",
            (energy, basins, small_starts, steps),
            reconstructed="The theorems' text; logit, energy and basins are those of the authors' code.",
        ),
    ),
    "Abstracts and the authors' code were read, the theorems' text was not. The code trains e, w and b, and draws"
    " the energy and the regions where the flow ends. A further canonical number, the scale a of linear attention,"
    " is not in it and is left out.",
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
)
CLAIMS = Claims(papers=(ATTENTION_WITH_MARKOV, CAUSAL_STRUCTURE))
