"""The paper on linear regression with several softmax heads: rows of the audit, and what the paper says."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.optimize import minimize

from icl_theory._validate import Array
from icl_theory.families.linear_attention import PromptLaw, ridge_loss
from icl_theory.families.softmax_heads import SoftmaxHeads
from icl_theory.papers.claim import Found, row
from icl_theory.papers.numbers import listed, off, power, span
from icl_theory.papers.paper import Claims, Paper, Reading

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


@row("two heads: better than one", SOURCE.format("several heads"), bound="linear attention")
def better_than_one(quick: bool) -> Found:
    """two heads are better than one, and nearly as good as linear attention"""
    lengths = (40, 160) if quick else (10, 40, 160, 640)
    one, two = np.array([[best(heads, N)[1] for N in lengths] for heads in (1, 2)])
    linear = [PromptLaw(np.ones(5), N=N, noise=0.1).floor for N in lengths]
    closer = two / linear - 1.0
    return Found(
        (two < one).all() and (np.diff(closer) < 0.0).all() and closer.min() > 0.0,
        f"d = 5, σ = 0.1, N = {listed(lengths)}",
        f"least loss {listed(one, '.4f')} (one head), {listed(two, '.4f')} (two), {listed(linear, '.4f')} (linear"
        f" attention); two heads lose to it by {listed(closer, '.2%')}",
        "holds; linear attention, which needs no mean to be taken away, is better still",
    )


@row("two heads: debiased descent", SOURCE.format("debiased descent"), bound="-> 0")
def debiased_step(quick: bool) -> Found:
    """the best pair does a step of descent on centred tokens, and as well as the best of these for long prompts"""
    lengths = (40, 160) if quick else (10, 40, 160, 640)
    step = np.array([debiased(5, N, 0.1) for N in lengths])
    omegas, losses = np.transpose([best(2, N) for N in lengths])
    gain = 1.0 - losses / step
    near = off([SoftmaxHeads(heads=2, N=N).risk().eliminated(1e-3 * PAIR)[1] for N in lengths], step)
    return Found(
        near < 1e-4 and (np.diff(gain) < 0.0).all() and 0.0 < gain[-1] < 1e-4,
        f"d = 5, σ = 0.1, N = {listed(lengths)}",
        f"the pair gains {listed(gain, '.1e')} at ω = ±{listed(omegas, '.4f')}, like"
        f" N^{power(lengths, omegas):.2f}; at ω = ±0.001 losses are those of the step within {near:.0e}",
    )


def unpaired(params: Array) -> Array:
    """|Σμ|/Σ|μ| and |Σω|/Σ|ω|: both are 0 where two heads are a pair."""
    return np.array([abs(each.sum()) / np.abs(each).sum() for each in np.split(params, 2)])


@row("two heads: descent from random starts", SOURCE.format("training"), bound="0; ω, -ω")
def emerging_pair(quick: bool) -> Found:
    """descent turns heads into a pair: output weights that sum to zero, and opposite ω"""
    seeds, steps = ((0,), 30) if quick else ((0, 1), 60)
    problem = SoftmaxHeads(heads=2, eta=0.2, method="exact", max_steps=steps, above=1e-9)
    sums, tilts = np.transpose([unpaired(problem.changed(seed=seed).simulate().params) for seed in seeds])
    return Found(
        max(*sums, *tilts) < 0.2,
        f"d = 5, N = 40, σ = 0.1, two heads, {len(seeds)} starts of size 0.1, {steps} steps of η = 0.2",
        f"|Σμ|/Σ|μ| = {listed(sums, '.3f')}, |Σω|/Σ|ω| = {listed(tilts, '.3f')}",
    )


@row("two heads: minima", SOURCE.format("training"), bound="0; ω, -ω; best pair")
def minima(quick: bool) -> Found:
    """where training ends: output weights sum to zero, all |ω| are alike, and a third head hardly helps"""
    (omega, lowest), three = best(2, 40), SoftmaxHeads(heads=3).risk()
    risks = [SoftmaxHeads(heads=2, seed=seed).risk() for seed in ((0,) if quick else (0, 1))]
    options = {"maxiter": 40}
    found = [minimize(risk.evaluate, risk.initial, jac=True, method="L-BFGS-B", options=options) for risk in risks]
    apart = max(unpaired(each.x)[0] for each in found)
    sizes, excess = np.abs([each.x[2:] for each in found]).ravel(), [each.fun / lowest - 1.0 for each in found]
    third = [1.0 - three.eliminated(np.array([omega, -omega, more]))[1] / lowest for more in (0.0, 0.2, 0.5)]
    return Found(
        apart < 1e-3 and max(map(abs, [*excess, *third])) < 1e-3 and sizes.max() < 0.2,
        f"d = 5, N = 40, σ = 0.1, L-BFGS from {len(found)} random starts; third heads with ω = 0, 0.2, 0.5",
        f"|Σμ|/Σ|μ| at most {apart:.0e}; |ω| = {span(sizes, '.3f')}; loss over that of the best pair"
        f" {span(excess, '+.0e')}; a third head gains {max(third):.0e} at most",
    )


@row("two heads: near Bayes", SOURCE.format("optimality"), bound="a constant")
def near_bayes(quick: bool) -> Found:
    """the loss is that of Bayes up to a factor, which tends to a constant if d, N and σ² grow in proportion"""
    draws, sizes, factors = 400 if quick else 4000, (5, 10, 20), {}
    for share in (0.002, 0.2, 1.0):
        laws = [PromptLaw(np.ones(d), N=8 * d, noise=(share * d) ** 0.5) for d in sizes]
        factors[share] = [debiased(law.d, 8 * law.d, law.noise) / ridge_loss(law, draws).value for law in laws]
    settled = max(abs(each[2] / each[1] - 1.0) for each in factors.values()) < 0.06
    return Found(
        settled and factors[1.0][-1] < 2.0 < factors[0.002][-1],
        f"N = 8d, d = {listed(sizes)}, σ²/d = {listed(factors)}; ridge regression on {draws} drawn prompts",
        "factor " + "; ".join(f"{listed(each, '.3g')} (σ² = {share}d)" for share, each in factors.items()),
        f"holds, loose: a constant, but {factors[0.002][-1]:.0f} where labels have little noise",
    )


@row("two heads: longer prompts", SOURCE.format("length generalisation"), bound="best at each length")
def longer_prompts(quick: bool) -> Found:
    """heads that were trained on prompts of 40 tokens serve longer ones, linear attention does not"""
    lengths = (40, 160, 640) if quick else (20, 40, 80, 160, 640, 2560)
    pair, summed, averaged = (lost(name, lengths) for name in ("pair", "sum", "mean"))
    return Found(
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
        params = np.concatenate([SoftmaxHeads(heads=2).risk().eliminated(omega)[0], omega])
        return np.array([SoftmaxHeads(heads=2, N=N).risk().loss(params) for N in lengths])
    gamma = PromptLaw(np.ones(5), N=40, noise=0.1).best
    laws = [(PromptLaw(np.ones(5), N=N, noise=0.1), N / 40.0 if name == "sum" else 1.0) for N in lengths]
    return np.array([law.loss(scale * gamma) for law, scale in laws])


DEBIASED = Paper(
    "debiased-descent",
    "In-Context Linear Regression Demystified: Training Dynamics and Mechanistic Interpretability of Multi-Head"
    " Softmax Attention",
    "Jianliang He, Xintian Pan, Siyu Chen, Zhuoran Yang", 2025, "arXiv:2503.12734",
    (
        Reading("Several heads", "Several heads are better than one.", (better_than_one,), figure="two_heads",
                reconstructed="the reduced model, a number for each matrix"),
        Reading("Patterns", "Training leads to key-query matrices of one size and to output weights that sum to"
                " zero.", (emerging_pair, minima), reconstructed="the reduced model, a number for each matrix"),
        Reading("Debiased descent", "Heads with these patterns do a step of descent on centred tokens.",
                (debiased_step,), reconstructed="the loss of this step"),
        Reading("Optimality", "The loss is nearly that of Bayes, up to a proportional factor.", (near_bayes,),
                reconstructed="what is proportional: d, N and σ² to each other"),
        Reading("Length generalisation", "Softmax attention serves prompts that are longer than those of training,"
                " linear attention does not.", (longer_prompts,), reconstructed="how linear attention is scaled"),
    ),
    "Read in its abstract and in the summary of its authors. Left out are inputs with unequal covariance, and"
    " several tasks at once.",
)  # fmt: skip
CLAIMS = Claims(papers=(DEBIASED,))
