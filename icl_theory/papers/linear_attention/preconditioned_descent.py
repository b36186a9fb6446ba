"""A paper on layers of linear attention as preconditioned descent: rows on all of their matrices.

Means over prompts are sums over Gauss–Hermite grids, which are exact for these
polynomials.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from icl_theory._validate import Array
from icl_theory.papers.linear_attention import PlusPlusRisk, PromptLaw, best_layers
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import apart, decade, listed, off
from icl_theory.statements.statement import Status

AHN = "Ahn, Cheng, Daneshmand, Sra 2023, {}"
SKEWED = np.array(((1.0, 0.3), (0.3, 0.5)))


def product_grid(
    rule: Callable[[int], tuple[Array, Array]], counts: list[int]
) -> tuple[Array, Array]:
    """Nodes (n, k) and weights (n,) of a product of k Gauss rules with these numbers of nodes."""
    rules = [rule(count) for count in counts]
    grid = np.stack(
        [each.ravel() for each in np.meshgrid(*(x for x, _ in rules), indexing="ij")],
        axis=1,
    )
    return grid, functools.reduce(
        np.multiply.outer, (w / w.sum() for _, w in rules)
    ).ravel()


hermite_grid = functools.partial(product_grid, np.polynomial.hermite_e.hermegauss)


class WholeLayer:
    """The loss of (p, v)ᵀ(EEᵀ/N)K(x, 0) over all that matters of P and K, exactly; and where descent on it ends."""

    def __init__(self, law: PromptLaw) -> None:
        self.law = law
        d = law.d
        N = int(law.N)
        grid, weight = hermite_grid([3] * (N * d + d) + [4] * d)
        covariance, prior, query = map(np.linalg.cholesky, law.dense.moments)
        tokens, task, asked = np.split(grid, [N * d, N * d + d], axis=1)
        tokens = tokens.reshape(-1, N, d) @ covariance.T
        task = task @ prior.T
        asked = asked @ query.T
        columns = np.concatenate(
            [tokens, np.einsum("nid,nd->ni", tokens, task)[:, :, None]], axis=2
        )
        columns = np.concatenate(
            [columns, np.pad(asked, ((0, 0), (0, 1)))[:, None]], axis=1
        )
        gram = np.einsum("nik,nil->nkl", columns, columns) / N
        parts = np.einsum("nkl,nm->nklm", gram, asked).reshape(len(grid), -1)
        answer = np.sum(asked * task, axis=1)
        self.second = (weight[:, None] * parts).T @ parts
        self.cross = (weight * answer) @ parts
        self.square = float(weight @ answer**2)

    def evaluate(self, params: Array) -> tuple[float, Array]:
        """Loss and gradient by the last row (p, v) of P and the first columns of K, flat."""
        d = self.law.d
        last = params[: d + 1]
        keys = params[d + 1 :].reshape(d + 1, d)
        product = np.multiply.outer(last, keys)
        slope = (self.second @ product.ravel() - self.cross).reshape(product.shape)
        loss = 0.5 * (
            float(product.ravel() @ (slope.ravel() - self.cross)) + self.square
        )
        return loss, np.append(
            np.einsum("klm,lm->k", slope, keys), np.einsum("klm,k->lm", slope, last)
        )

    def ends(self, starts: int) -> Array:
        """Losses above the floor at the ends of descents from random starts, in increasing order."""

        def balanced(params: Array) -> tuple[float, Array]:
            # the loss has one value along (p, v) -> t (p, v), K -> K/t: stay where both
            # are of one size
            loss, gradient = self.evaluate(params)
            sign = np.where(np.arange(size) < self.law.d + 1, 1.0, -1.0)
            gap = float(sign @ params**2)
            return loss + gap**2, gradient + 4.0 * gap * sign * params

        rng = np.random.default_rng(0)
        size = (self.law.d + 1) ** 2
        found = [
            minimize(
                balanced,
                rng.normal(size=size),
                jac=True,
                method="BFGS",
                options={"gtol": 1e-9},
            ).fun
            for _ in range(starts)
        ]
        return np.sort(found) - self.law.floor


@row("linear attention: all of P and K", AHN.format("Thm 1"), bound="0; 0")
def whole_layer(quick: bool) -> Claim:
    """no entries of P and K give a lower loss than Γ*"""
    laws = [PromptLaw(SKEWED, N=2), PromptLaw(np.array([1.0, 0.3]), N=2)]
    found = [WholeLayer(law).ends(10 if quick else 40) for law in laws]
    below = max(0.0, -min(float(ends[0]) for ends in found))
    second = [law.rank_excess(1) for law in laws]
    away = max(
        float(np.minimum(np.abs(x), np.abs(x - y)).max())
        for x, y in zip(found, second, strict=True)
    )
    trapped = float(np.mean([np.mean(ends > 1e-6) for ends in found]))
    return Claim.of(
        below < 1e-12 and away < 1e-6 and 0.1 < trapped < 0.9,
        f"d = N = 2, two covariances, {len(found[0])} random starts each, quasi-Newton descent on the exact loss",
        f"below the floor by less than {decade(below)}; {trapped:.0%} of the starts end at another minimum,"
        f" {listed(second, '.4f')} above it, which is what the best layer of rank one has, to {decade(away)}",
        "holds; but there is a second minimum, with v = 0 and A = 0, where the other blocks make Γ = apᵀ",
    )


def deep_loss(
    descend: Array, change: Array, covariance: Array, grid: tuple[Array, Array]
) -> float:
    """Loss of layers with A and B, (D, d, d) each, for W = Λ⁻¹: labels are wᵀV, and -wᵀUx is predicted."""
    points, weight = grid
    X = np.linalg.cholesky(covariance) @ points.reshape(
        len(weight), len(covariance), -1
    )
    N = X.shape[2]
    unit = np.eye(len(covariance))
    V = X
    U = np.zeros_like(unit)
    asked = unit
    for A, B in zip(descend, change, strict=True):
        read = np.swapaxes(X, 1, 2) @ A / N
        V, U = V - V @ (read @ X), U - V @ (read @ asked)
        X, asked = X - B @ (X @ (read @ X)), asked - B @ (X @ (read @ asked))
    off = unit + U
    return 0.5 * float(
        np.einsum(
            "n,nij,jk,nlk,il->", weight, off, covariance, off, np.linalg.inv(covariance)
        )
    )


FIGURE_2 = (0.43, 0.69, 1.71)  # the diagonals of Figure 2, without their sign, in order


@row("linear attention: Σ⁻¹ layers", AHN.format("Thm 3"), bound="0; 0; 0; Figure 2")
def inverse_layers(quick: bool) -> Claim:
    """for w ~ N(0, Σ⁻¹) the loss has a critical point with A_l = s_l Σ⁻¹, steps preconditioned
    by Σ⁻¹, and training finds it
    """
    cases = [(2, 2, 3)] if quick else [(2, 2, 5), (3, 2, 2)]
    losses, shapes = zip(*(_best_matrices(*case) for case in cases), strict=True)
    slope = max(_slope_of_steps(*case[:2]) for case in cases)
    steps = np.sort(best_layers(5, 20, 3).lengths)
    return Claim.of(
        max(np.max(np.abs(losses)), 1e-3 * slope) < 1e-9
        and np.max(shapes) < 1e-3
        and apart(steps, FIGURE_2) < 0.02,
        f"d = 2, a covariance with correlation, (D, N) = {listed([case[:2] for case in cases])}, all entries of all"
        " A_l trained from random starts; best steps also for d = 5, N = 20, D = 3",
        f"slopes below {decade(slope)} at the best step lengths; trained, the loss is off theirs by"
        f" {decade(np.max(np.abs(losses)))}, A_lΣ off multiples of I by {decade(np.max(shapes))};"
        f" steps {listed(steps, '.3f')}, in the paper's Figure 2 {listed(FIGURE_2)}",
    )


def _slope_of_steps(D: int, N: int) -> float:
    """Return the largest slope by any entry of A_l where A_l = s_l Σ⁻¹ with the best s_l."""
    grid = hermite_grid([2 * D + 1] * (2 * N))
    best = best_layers(2, N, D).lengths[:, None, None] * np.linalg.inv(SKEWED)
    none = np.zeros_like(best)
    slopes = [
        (
            deep_loss(best + step, none, SKEWED, grid)
            - deep_loss(best - step, none, SKEWED, grid)
        )
        / 2e-4
        for step in 1e-4 * np.eye(best.size).reshape(-1, *best.shape)
    ]
    return float(np.max(np.abs(slopes)))


def _best_matrices(D: int, N: int, starts: int) -> tuple[float, float]:
    """How far the least loss over all A is off that of the best lengths, and AΣ off multiples of I."""
    grid = hermite_grid([2 * D + 1] * (2 * N))

    def loss(x: Array) -> float:
        return deep_loss(x.reshape(D, 2, 2), np.zeros((D, 2, 2)), SKEWED, grid)

    begin = np.random.default_rng(0).normal(0.0, 0.5, (starts, 4 * D))
    found = min(
        (minimize(loss, each) for each in begin), key=lambda each: float(each.fun)
    )
    steps = found.x.reshape(D, 2, 2) @ SKEWED
    multiples = np.trace(steps, axis1=1, axis2=2)[:, None, None] / 2.0 * np.eye(2)
    return float(found.fun) - best_layers(2, N, D).loss, apart(steps, multiples)


@row("linear attention: GD++", AHN.format("Thm 4"), Status.MEASURED, "0; 0; 1")
def plus_plus(quick: bool) -> Claim:
    """layers that change the tokens, too, have a critical point at A_l = a_lΣ⁻¹, B = bI, with a lower loss"""
    (error, slope), lengths, d = _critical_point(), (20, 80), 8
    losses = [
        (
            PlusPlusRisk(d, N).floor(),
            best_layers(d, N, 2).loss,
            best_layers(d, N, 4).loss,
        )
        for N in lengths
    ]
    return Claim.of(
        error < 1e-10 and slope < 1e-6 and all(x < 0.5 * y for x, y, _ in losses),
        "two layers; criticality in all entries of A₁, A₂, B, d = N = 2, Σ with correlation; losses d = 8, N ="
        f" {listed(lengths)}",
        f"loss off by {decade(error)}, slopes below {decade(slope)}; loss/d of GD++, two and four plain layers"
        f" {'; '.join(listed(np.array(each) / d, '.3g') for each in losses)}",
        "holds: two such layers come close to four plain ones in short prompts",
    )


def _critical_point() -> tuple[float, float]:
    """How far the loss of the best layers of their kind is off its closed form, and their largest slope."""
    risk = PlusPlusRisk(2, 2)
    grid = hermite_grid([9] * 4)
    a, c, b = risk.best

    def loss(flat: Array) -> float:
        matrices = np.append(flat, np.zeros(4)).reshape(2, 2, 2, 2)  # A₁, A₂, B₁ and 0
        return deep_loss(matrices[0], matrices[1], SKEWED, grid)

    inverse = np.linalg.inv(SKEWED)
    point = np.concatenate([a * inverse, c * inverse, b / a * np.eye(2)], axis=None)
    slope = max(
        abs(loss(point + step) - loss(point - step)) / 2e-4
        for step in 1e-4 * np.eye(12)
    )
    return off(loss(point), risk.floor()), slope
