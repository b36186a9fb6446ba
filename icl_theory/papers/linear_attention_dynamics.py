"""A paper on the training of linear attention: rows on the fixed points, levels and ranks of heads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.pullback import Pullback
from icl_theory.families.linear_attention import Heads, LinearAttention, MergedRisk, PromptLaw
from icl_theory.papers.claim import Errors, Found, identity, row
from icl_theory.papers.numbers import apart, decade, listed

STAIRS = "Zhang, Singh, Latham, Saxe 2025, {}"
MIXED = np.array(((1.0, 0.3, 0.1), (0.3, 0.5, -0.1), (0.1, -0.1, 0.4)))


def split(law: PromptLaw) -> tuple[Array, Array, Array]:
    """Singular values of Λq^½Γ*M^½, and factors q, k (d, d) with Γ* = Σ qᵀk: the heads of the fixed points."""
    roots = []
    for matrix in (law.dense.moments[2], law.dense.second):
        values, vectors = np.linalg.eigh(matrix)
        roots.append((vectors * np.sqrt(values)) @ vectors.T)
    best = law.dense.moments[1] @ law.dense.covariance @ np.linalg.inv(law.dense.second)
    U, sizes, V = np.linalg.svd(roots[0] @ best @ roots[1])
    return sizes, np.linalg.solve(roots[0], U * np.sqrt(sizes)).T, np.linalg.solve(roots[1], V.T * np.sqrt(sizes)).T


@identity("linear attention: fixed points", STAIRS.format("fixed points (exact form)"), 1e-10)
def fixed_points(quick: bool) -> Errors:
    """heads of rank one rest at 2^d matrices Γ, one a set S of directions, and at no others; the excess is
    ½Σ_{j∉S} σ_j²; for W = I, Λq = Λ the loss is ½[tr Λ - Σ_{j∈S} λ_j/(1 + (1 + (tr Λ + σ²)/λ_j)/N)]
    """
    spectrum = np.array([1.0, 0.5, 0.3])
    for law in (PromptLaw(spectrum, N=10, noise=0.5), PromptLaw(MIXED, MIXED @ MIXED, np.diag([0.4, 1.2, 1.0]), 5)):
        (sizes, queries, keys), merged = split(law), MergedRisk(law.dense, np.zeros((3, 3)))
        for chosen in itertools.product((0.0, 1.0), repeat=3):
            on = np.array(chosen)
            risk = Pullback(merged, Heads(np.column_stack([on, on[:, None] * keys, on[:, None] * queries]), 3))
            loss, gradient = risk.evaluate(risk.initial)
            yield np.abs(gradient).max()
            yield apart(loss - law.floor, 0.5 * float((1.0 - on) @ sizes**2))
            if law.diagonal:
                seen = spectrum / (1.0 + (1.0 + (spectrum.sum() + law.noise**2) / spectrum) / law.N)
                yield apart(loss, 0.5 * float(spectrum.sum() - on @ seen))
        yield from _rests(merged, sizes, 6 if quick else 20)
    return "d = 3, diagonal and not commuting, all subsets; and roots of the gradient found from random heads"


def _rests(merged: MergedRisk, sizes: Array, starts: int) -> Errors:
    """How far the excess is off the nearest level where the gradient of random heads has been made zero."""
    from scipy.optimize import least_squares

    d, rng = len(sizes), np.random.default_rng(0)
    levels = np.array([0.5 * float(np.array(off) @ sizes**2) for off in itertools.product((0.0, 1.0), repeat=d)])
    roots = 0
    for _ in range(starts):
        risk = Pullback(merged, Heads(rng.normal(0.0, 0.6, (d, 1 + 2 * d)), d))
        root = least_squares(lambda x, risk=risk: risk.evaluate(x.reshape(d, -1))[1].ravel(), risk.initial.ravel(),
                             xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=300)  # fmt: skip
        if root.cost < 1e-24:  # other ends are minima of the gradient's norm, at which nothing rests
            roots += 1
            yield np.abs(levels - merged.excess(risk.map.inward(root.x.reshape(d, -1)))).min()
    yield float(roots == 0)
    return ""


@row("linear attention: levels", STAIRS.format("separate keys and queries"), bound="0")
def levels(quick: bool) -> Found:
    """from small starts the loss rests at one level after the other, ½Σ_{j>k} σ_j² above its floor"""
    found, starts = [], (0.03, 0.01) if quick else (0.03, 0.01, 0.003)
    base = LinearAttention(d=3, decay=1.0, N=20, coordinates="heads", heads=3, eta=0.1, above=1e-4, method="fast")
    for start in starts:
        run = base.changed(start=start).simulate()
        found.append(max(_off_level(run.t, run.observed["excess"], base.law().rank_excess(k), k) for k in range(3)))
    return Found(
        max(found) < 1e-3 and found[-1] < 0.1 * found[0],
        f"d = H = 3, λ_j = 1/j, N = 20, random heads of size {listed(starts)}",
        f"where it falls slowest near the levels the excess is off by at most {listed(found, '.0e')} of them",
    )


def _off_level(t: Any, excess: Array, level: float, k: int) -> float:
    near = np.flatnonzero(np.abs(np.log(excess[1:] / level)) < 0.2)
    slope = (excess[near] - excess[near + 1]) / (t[near + 1] - t[near])
    return abs(float(excess[near[np.argmin(slope)] + 1]) / level - 1.0)


@row("linear attention: few heads", STAIRS.format("low rank (exact form)"), bound="0")
def few_heads(quick: bool) -> Found:
    """H heads of rank R with HR < d learn HR directions: the excess ends at ½Σ_{j>HR} σ_j²"""
    shapes = ((1, 1), (2, 1)) if quick else ((1, 1), (2, 1), (1, 2), (3, 1))
    base = LinearAttention(d=4, decay=1.0, N=20, coordinates="heads", start=0.1, above=1e-9, method="fast")
    law, left = base.law(), split(base.law())[0] ** 2
    ends = [float(base.changed(heads=H, rank=R).simulate().loss[-1]) for H, R in shapes]
    error = apart(ends, [law.loss(law.best) + 0.5 * float(np.sum(left[H * R :])) for H, R in shapes])
    return Found(
        error < 2e-9,
        f"d = 4, λ_j = 1/j, N = 20, (H, R) = {listed(shapes)}, from 0.1",
        f"losses {listed(ends, '.5f')}, off by {decade(error)}; all matrices: {law.floor:.5f}",
    )
