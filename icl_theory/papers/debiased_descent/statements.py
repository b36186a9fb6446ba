"""The paper on linear regression with several softmax heads: rows of the audit, and what the paper says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.optimize import minimize

from icl_theory._validate import Array
from icl_theory.engine import Risk, descend
from icl_theory.engine.risk import WithStart
from icl_theory.papers.debiased_descent.family import SoftmaxHeads
from icl_theory.papers.linear_attention import PromptLaw, ridge_loss
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import decade, listed, off, power, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting
from icl_theory.tokens.heads import GaussianHeadsRisk

SOURCE = "He, Pan, Chen, Yang 2025, {} (reconstructed)"
PAIR = np.array([1.0, -1.0])


@lru_cache(maxsize=16)
def best(heads: int, N: int) -> tuple[float, float]:
    """The best ω of one head or two, and the least loss."""
    found = SoftmaxHeads(heads=heads, N=N).risk().best
    assert found is not None
    return found


def debiased(d: int, N: int, noise: float) -> float:
    """The least loss of a step of descent on centred tokens, (η/N) Σ y_i (x_i - mean)ᵀx."""
    return 0.5 * d * (1.0 - (N - 1.0) / (N + d + noise**2))


@row(
    "two heads: better than one",
    SOURCE.format("several heads"),
    bound="linear attention",
)
def better_than_one(quick: bool) -> Claim:
    """two heads are better than one, and nearly as good as linear attention"""
    lengths = (40, 160) if quick else (10, 40, 160, 640)
    one, two = np.array([[best(heads, N)[1] for N in lengths] for heads in (1, 2)])
    linear = [PromptLaw(np.ones(5), N=N, noise=0.1).floor for N in lengths]
    closer = two / linear - 1.0
    return Claim.of(
        (two < one).all() and (np.diff(closer) < 0.0).all() and closer.min() > 0.0,
        f"d = 5, σ = 0.1, N = {listed(lengths)}",
        f"least loss {listed(one, '.4f')} (one head), {listed(two, '.4f')} (two), {listed(linear, '.4f')} (linear"
        f" attention); two heads lose to it by {listed(closer, '.2%')}",
        "holds; linear attention, which needs no mean to be taken away, is better still",
    )


@row("two heads: debiased descent", SOURCE.format("debiased descent"), bound="-> 0")
def debiased_step(quick: bool) -> Claim:
    """the best pair does a step of descent on centred tokens, and as well as the best of these for long prompts"""
    lengths = (40, 160) if quick else (10, 40, 160, 640)
    step = np.array([debiased(5, N, 0.1) for N in lengths])
    omegas, losses = np.transpose([best(2, N) for N in lengths])
    gain = 1.0 - losses / step
    near = off(
        [SoftmaxHeads(heads=2, N=N).risk().eliminated(1e-3 * PAIR)[1] for N in lengths],
        step,
    )
    return Claim.of(
        near < 1e-4 and (np.diff(gain) < 0.0).all() and 0.0 < gain[-1] < 1e-4,
        f"d = 5, σ = 0.1, N = {listed(lengths)}",
        f"the pair gains {listed(gain, '.1e')} at ω = ±{listed(omegas, '.4f')}, like"
        f" N^{power(lengths, omegas):.2f}; at ω = ±0.001 losses are those of the step within {near:.0e}",
    )


def unpaired(params: Array) -> Array:
    """|Σμ|/Σ|μ| and |Σω|/Σ|ω|: 0 where two heads are a pair, 1 where their signs are equal."""
    return np.array(
        [abs(each.sum()) / np.abs(each).sum() for each in np.split(params, 2)]
    )


@dataclass(frozen=True, eq=False)
class InterpolatedHeads(WithStart, Risk):
    r"""The loss of H heads whose moments are polynomials in ω.

    .. math:: \mathcal L = \tfrac12 \mu^\top G(\omega) \mu - \mu^\top g(\omega) + \tfrac d2

    with the exact :math:`G_{hk} = E[o_h \cdot o_k]` and :math:`g_h = E[o_h \cdot y]` at
    Chebyshev nodes in both ω. A step costs microseconds instead of a tenth of a second.
    """

    start: Array
    reach: float  # largest |ω|
    gram: Array  # coefficients of G, (n, n)
    means: Array  # coefficients of g, (n,)
    square: float

    @classmethod
    def of(
        cls, risk: GaussianHeadsRisk, nodes: int, reach: float = 0.7
    ) -> InterpolatedHeads:
        """Interpolate the moments of a risk."""
        x = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
        to_coefficients = np.linalg.inv(chebyshev.chebvander(x, nodes - 1))
        gram, means = risk.quadratic(reach * x)
        gram = to_coefficients @ gram @ to_coefficients.T
        return cls(risk.start, reach, gram, to_coefficients @ means, float(risk.d))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (2H,)."""
        output, omega = np.split(params, 2)
        values = chebyshev.chebvander(omega / self.reach, len(self.means) - 1)
        slopes = (
            values[:, :-1] @ chebyshev.chebder(np.eye(len(self.means))) / self.reach
        )
        gram = values @ self.gram @ values.T
        pull = gram @ output - values @ self.means
        by_omega = output * (slopes @ (self.gram @ (values.T @ output) - self.means))
        loss = 0.5 * float(output @ (pull - values @ self.means) + self.square)
        return loss, np.concatenate([pull, by_omega])


def equal_signs(start: Array) -> bool:
    """Whether μ + ω, which grows from a small start while μ - ω decays, has one sign."""
    grows = np.add(*np.split(start, 2))
    return bool((grows > 0.0).all() or (grows < 0.0).all())


def ends_of_heads(
    nodes: int, seeds: int
) -> tuple[NDArray[np.bool_], Array, Array, float]:
    """Of starts: whether signs are equal, both shares of `unpaired`, the loss; and its error."""
    problem = SoftmaxHeads(heads=2)
    exact = problem.risk()
    interpolated = InterpolatedHeads.of(exact, nodes)
    starts = [problem.changed(seed=seed).risk().initial for seed in range(seeds)]
    risks = [replace(interpolated, start=start) for start in starts]
    ends = [descend(risk, 0.02, steps=1000, progress=False).params for risk in risks]
    losses = np.array([interpolated.loss(end) for end in ends])
    checked = {int(losses.argmin()), int(losses.argmax())}
    error = max(abs(losses[at] - exact.loss(ends[at])) for at in checked)
    equal = np.array([equal_signs(start) for start in starts])
    return equal, np.array([unpaired(end) for end in ends]), losses, error


def least(losses: Array) -> str:
    """Write the least loss, if there is one."""
    return f"{losses.min():.4f}" if losses.size else "of none"


def of_many(ends: NDArray[np.bool_]) -> str:
    """Write how many there are, and how many of them are pairs."""
    return f"{int(ends.sum())} of {len(ends)}"


@row(
    "two heads: descent from random starts",
    SOURCE.format("training"),
    bound="0, 0; 1, 1",
)
def emerging_pair(quick: bool) -> Claim:
    """descent turns two heads into a pair, output weights that sum to zero and opposite ω, if
    μ + ω has opposite signs in them; from equal signs most end as two equal heads
    """
    equal, shares, losses, error = ends_of_heads(*((7, 8) if quick else (13, 40)))
    one_head = best(1, 40)[1]
    paired = shares.max(axis=1) < 0.05
    merged = (shares.min(axis=1) > 0.95) & (np.abs(losses / one_head - 1.0) < 0.01)
    return Claim.of(
        (paired | merged).all()
        and error < 0.01
        and paired[~equal].all()
        and merged[equal].mean() > 0.5,
        f"d = 5, N = 40, σ = 0.1, {len(equal)} starts of size 0.1, 1,000 steps of η = 0.02; moments"
        " of heads interpolated in ω",
        f"a pair in the end: {of_many(paired[~equal])} with opposite signs, with the loss"
        f" {least(losses[paired])}, {of_many(paired[equal])} with equal ones; all others end"
        f" with two equal heads and the loss {least(losses[merged])}, of one head"
        f" {one_head:.4f}; interpolation adds at most {decade(error)}",
        f"holds only for {paired.sum()} of {len(equal)} starts of two heads; among more heads"
        " signs are seldom all equal",
    )


@row("two heads: minima", SOURCE.format("training"), bound="0; ω, -ω; best pair")
def minima(quick: bool) -> Claim:
    """where training ends from opposite signs: output weights sum to zero, all |ω| are alike,
    and a third head hardly helps
    """
    (omega, lowest), three = best(2, 40), SoftmaxHeads(heads=3).risk()
    risks = [
        SoftmaxHeads(heads=2, seed=seed).risk() for seed in ((0,) if quick else (0, 1))
    ]
    options = {"maxiter": 40}
    found = [
        minimize(
            risk.evaluate, risk.initial, jac=True, method="L-BFGS-B", options=options
        )
        for risk in risks
    ]
    apart = max(unpaired(each.x)[0] for each in found)
    sizes = np.abs([each.x[2:] for each in found]).ravel()
    excess = [each.fun / lowest - 1.0 for each in found]
    third = [
        1.0 - three.eliminated(np.array([omega, -omega, more]))[1] / lowest
        for more in (0.0, 0.2, 0.5)
    ]
    return Claim.of(
        apart < 1e-3 and max(map(abs, [*excess, *third])) < 1e-3 and sizes.max() < 0.2,
        f"d = 5, N = 40, σ = 0.1, L-BFGS from {len(found)} starts with opposite signs;"
        " third heads with ω = 0, 0.2, 0.5",
        f"|Σμ|/Σ|μ| at most {apart:.0e}; |ω| = {span(sizes, '.3f')}; loss over that of the best pair"
        f" {span(excess, '+.0e')}; a third head gains {max(third):.0e} at most",
    )


@row("two heads: near Bayes", SOURCE.format("optimality"), bound="a constant")
def near_bayes(quick: bool) -> Claim:
    """the loss is that of Bayes up to a factor, which tends to a constant if d, N and σ² grow in proportion"""
    draws = 400 if quick else 4000
    sizes = (5, 10, 20)
    factors = {}
    for share in (0.002, 0.2, 1.0):
        laws = [PromptLaw(np.ones(d), N=8 * d, noise=(share * d) ** 0.5) for d in sizes]
        factors[share] = [
            debiased(law.d, 8 * law.d, law.noise) / ridge_loss(law, draws).value
            for law in laws
        ]
    settled = max(abs(each[2] / each[1] - 1.0) for each in factors.values()) < 0.06
    return Claim.of(
        settled and factors[1.0][-1] < 2.0 < factors[0.002][-1],
        f"N = 8d, d = {listed(sizes)}, σ²/d = {listed(factors)}; ridge regression on {draws} drawn prompts",
        "factor "
        + "; ".join(
            f"{listed(each, '.3g')} (σ² = {share}d)" for share, each in factors.items()
        ),
        f"holds, loose: a constant, but {factors[0.002][-1]:.0f} where labels have little noise",
    )


@row(
    "two heads: longer prompts",
    SOURCE.format("length generalisation"),
    bound="best at each length",
)
def longer_prompts(quick: bool) -> Claim:
    """heads that were trained on prompts of 40 tokens serve longer ones, linear attention does not"""
    lengths = (40, 160, 640) if quick else (20, 40, 80, 160, 640, 2560)
    pair, summed, averaged = (lost(name, lengths) for name in ("pair", "sum", "mean"))
    return Claim.of(
        pair[-1] < pair[0] < summed[-1] and averaged[-1] < summed[-1],
        f"d = 5, σ = 0.1, N = {listed(lengths)}",
        f"loss {listed(pair, '.3g')} (pair), {listed(summed, '.3g')} (linear attention, summed),"
        f" {listed(averaged, '.3g')} (linear attention, averaged)",
        f"holds only if linear attention sums over tokens: where it averages its last loss is"
        f" {averaged[-1] / pair[-1]:.2f} times the pair's",
    )


def lost(name: str, lengths: tuple[int, ...]) -> Array:
    """Losses at other lengths of what is best for prompts of 40 tokens."""
    if name == "pair":
        omega = best(2, 40)[0] * PAIR
        params = np.concatenate(
            [SoftmaxHeads(heads=2).risk().eliminated(omega)[0], omega]
        )
        return np.array(
            [SoftmaxHeads(heads=2, N=N).risk().loss(params) for N in lengths]
        )
    gamma = PromptLaw(np.ones(5), N=40, noise=0.1).best
    laws = [
        (PromptLaw(np.ones(5), N=N, noise=0.1), N / 40.0 if name == "sum" else 1.0)
        for N in lengths
    ]
    return np.array([law.loss(scale * gamma) for law, scale in laws])


DEBIASED = Paper(
    "debiased-descent",
    "In-Context Linear Regression Demystified: Training Dynamics and Mechanistic Interpretability of Multi-Head"
    " Softmax Attention",
    "Jianliang He, Xintian Pan, Siyu Chen, Zhuoran Yang",
    2025,
    "arXiv:2503.12734",
    (
        Reading(
            "Several heads",
            "Several heads are better than one.",
            (better_than_one,),
            figure="two_heads",
            reconstructed="the reduced model, a number for each matrix",
        ),
        Reading(
            "Patterns",
            "Training leads to key-query matrices of one size and to output weights that sum to"
            " zero.",
            (emerging_pair, minima),
            reconstructed="the reduced model, a number for each matrix",
        ),
        Reading(
            "Debiased descent",
            "Heads with these patterns do a step of descent on centred tokens.",
            (debiased_step,),
            reconstructed="the loss of this step",
        ),
        Reading(
            "Optimality",
            "The loss is nearly that of Bayes, up to a proportional factor.",
            (near_bayes,),
            reconstructed="what is proportional: d, N and σ² to each other",
        ),
        Reading(
            "Length generalisation",
            "Softmax attention serves prompts that are longer than those of training,"
            " linear attention does not.",
            (longer_prompts,),
            reconstructed="how linear attention is scaled",
        ),
    ),
    "Read in its abstract and in the summary of its authors. Left out are inputs with unequal covariance, and"
    " several tasks at once.",
    setting=Setting(
        "debiased-descent?N=40&t=100",
        (
            "From this random start the two heads become a pair: output weights and "
            "temperatures of opposite signs. From others they become equal."
        ),
    ),
    credit="Several softmax heads (`icl.SoftmaxHeads`)",
    entry=ModelEntry(
        data="normal inputs, linear functions",
        attention="several softmax heads",
        trained="a temperature and an output weight for each head",
        command="icl-theory softmax-heads simulate",
    ),
)
CLAIMS = Claims(papers=(DEBIASED,))
