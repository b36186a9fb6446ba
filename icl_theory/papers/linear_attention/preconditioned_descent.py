"""Rows on a paper that reads layers of linear attention as preconditioned descent.

They train all matrices of the layers, not only the reduced parameters. Means over
prompts are sums over Gauss–Hermite grids, which are exact for these polynomials.
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


# Central differences of the loss have this half-width.
DIFFERENCE = 1e-4


def product_grid(
    rule: Callable[[int], tuple[Array, Array]], counts: list[int]
) -> tuple[Array, Array]:
    """Return nodes (n, k) and weights (n,) of a product of k Gauss rules.

    The weights of each rule are normalised to probabilities.

    Parameters
    ----------
    rule : callable
        Nodes and weights of the rule with a number of nodes.
    counts : list of int
        Numbers of nodes along the k axes.
    """
    axes = list[Array]()
    grid_weights = np.ones(())
    for count in counts:
        nodes, weights = rule(count)
        axes.append(nodes)
        grid_weights = np.multiply.outer(grid_weights, weights / weights.sum())
    coordinates = np.meshgrid(*axes, indexing="ij")
    grid = np.stack([coordinate.ravel() for coordinate in coordinates], axis=1)
    return grid, grid_weights.ravel()


hermite_grid = functools.partial(product_grid, np.polynomial.hermite_e.hermegauss)


class WholeLayer:
    """The exact loss of (p, v)ᵀ(EEᵀ/N)K(x, 0) over all entries of P and K that matter.

    The entries that matter are the last row (p, v) of P and the first d columns of K.
    The loss is quadratic in their products, so that the moments of the prompts are
    enough.
    """

    def __init__(self, law: PromptLaw) -> None:
        self.law = law
        d = law.d
        N = int(law.N)
        # The squared error has the degree 4 in each entry of tokens and task, and 6 in
        # the entries of the query.
        grid, weight = hermite_grid([3] * (N * d + d) + [4] * d)
        covariance, prior, query_moment = map(np.linalg.cholesky, law.dense.moments)
        tokens, task, query = np.split(grid, [N * d, N * d + d], axis=1)
        tokens = tokens.reshape(-1, N, d) @ covariance.T
        task = task @ prior.T
        query = query @ query_moment.T
        labels = np.einsum("nid,nd->ni", tokens, task)
        # The columns of E: (x_i, y_i), and last (x, 0).
        pairs = np.concatenate([tokens, labels[:, :, None]], axis=2)
        last = np.pad(query, ((0, 0), (0, 1)))
        columns = np.concatenate([pairs, last[:, None]], axis=1)
        gram = np.einsum("nik,nil->nkl", columns, columns) / N
        features = np.einsum("nkl,nm->nklm", gram, query).reshape(len(grid), -1)
        answer = np.sum(query * task, axis=1)
        self.second = (weight[:, None] * features).T @ features
        self.cross = (weight * answer) @ features
        self.square = float(weight @ answer**2)

    def evaluate(self, params: Array) -> tuple[float, Array]:
        """Loss and gradient by the last row of P and the first columns of K, flat."""
        d = self.law.d
        last_row = params[: d + 1]
        keys = params[d + 1 :].reshape(d + 1, d)
        product = np.multiply.outer(last_row, keys)
        slope = (self.second @ product.ravel() - self.cross).reshape(product.shape)
        quadratic = float(product.ravel() @ (slope.ravel() - self.cross))
        by_last_row = np.einsum("klm,lm->k", slope, keys)
        by_keys = np.einsum("klm,k->lm", slope, last_row)
        return 0.5 * (quadratic + self.square), np.append(by_last_row, by_keys)

    def ends(self, starts: int) -> Array:
        """Return the losses above the floor at which descents end, in increasing order.

        The descents begin at random.
        """
        size = (self.law.d + 1) ** 2
        sign = np.where(np.arange(size) < self.law.d + 1, 1.0, -1.0)

        def balanced(params: Array) -> tuple[float, Array]:
            # The loss has one value along (p, v) -> t (p, v), K -> K/t: stay where both
            # are of one size.
            loss, gradient = self.evaluate(params)
            gap = float(sign @ params**2)
            return loss + gap**2, gradient + 4.0 * gap * sign * params

        rng = np.random.default_rng(0)
        losses = list[float]()
        for _ in range(starts):
            end = minimize(
                balanced,
                rng.normal(size=size),
                jac=True,
                method="BFGS",
                options={"gtol": 1e-9},
            )
            losses.append(end.fun)
        return np.sort(losses) - self.law.floor


@row("linear attention: all of P and K", AHN.format("Thm 1"), bound="0; 0")
def whole_layer(quick: bool) -> Claim:
    """no entries of P and K give a lower loss than Γ*"""
    laws = [PromptLaw(SKEWED, N=2), PromptLaw(np.array([1.0, 0.3]), N=2)]
    starts = 10 if quick else 40
    ends = [WholeLayer(law).ends(starts) for law in laws]
    second_minima = [law.rank_excess(1) for law in laws]
    below_floor = max(0.0, *(-float(losses[0]) for losses in ends))
    # The distance of each end to the nearer of the two minima.
    distances = list[Array]()
    for losses, second in zip(ends, second_minima, strict=True):
        distances.append(np.minimum(np.abs(losses), np.abs(losses - second)))
    away = float(np.max(distances))
    trapped = float(np.mean([np.mean(losses > 1e-6) for losses in ends]))
    return Claim.of(
        below_floor < 1e-12 and away < 1e-6 and 0.1 < trapped < 0.9,
        f"d = N = 2, two covariances, {starts} random starts each, quasi-Newton"
        " descent on the exact loss",
        f"below the floor by less than {decade(below_floor)}; {trapped:.0%} of the"
        f" starts end at another minimum, {listed(second_minima, '.4f')} above it,"
        f" which is what the best layer of rank one has, to {decade(away)}",
        "holds; but there is a second minimum, with v = 0 and A = 0, where the other"
        " blocks make Γ = apᵀ",
    )


def deep_loss(
    descend: Array, change: Array, covariance: Array, grid: tuple[Array, Array]
) -> float:
    """Return the loss of layers with A and B for W = Λ⁻¹.

    The labels are wᵀV with V = X at first, and the prediction is -wᵀUx.

    Parameters
    ----------
    descend, change : ndarray, (D, d, d)
        The matrices A and B of the layers.
    covariance : ndarray, (d, d)
        Covariance Λ of the tokens and the query.
    grid : tuple of ndarray
        Nodes and weights for the normal entries of X, as from `hermite_grid`.
    """
    points, weight = grid
    d = len(covariance)
    normal = points.reshape(len(weight), d, -1)
    X = np.linalg.cholesky(covariance) @ normal
    N = X.shape[2]
    unit = np.eye(d)
    V = X
    U = np.zeros_like(unit)
    # The query is this matrix times x: all of its values at once.
    query = unit
    for A, B in zip(descend, change, strict=True):
        # All updates use the values before this layer.
        keys = np.swapaxes(X, 1, 2) @ A / N
        token_scores = keys @ X
        query_scores = keys @ query
        V, U = V - V @ token_scores, U - V @ query_scores
        if not B.any():
            continue  # the layer leaves the tokens as they are
        X, query = X - B @ (X @ token_scores), query - B @ (X @ query_scores)
    error = unit + U
    prior = np.linalg.inv(covariance)
    # tr Λ⁻¹EΛEᵀ for the error E of each prompt
    squares = np.einsum("n,nij,nij->", weight, error @ covariance, prior @ error)
    return 0.5 * float(squares)


# The diagonals in Figure 2 of the paper, without their sign, in increasing order.
FIGURE_2 = (0.43, 0.69, 1.71)


@row("linear attention: two layers", AHN.format("Thm 2"), bound="0; 0; 0")
def two_layers(quick: bool) -> Claim:
    """for Σ = I no symmetric A₁, A₂ have a lower loss than the best diagonal ones"""
    settings = [(2, 2)] if quick else [(2, 2), (3, 2)]
    starts = [2] if quick else [10, 3]
    gaps = list[float]()
    beyond_multiples = list[float]()
    for (d, N), count in zip(settings, starts, strict=True):
        loss = _TwoLayers(d, N)
        symmetric = loss.least(loss.symmetric, d * (d + 1) // 2, count)
        diagonal = loss.least(loss.diagonal, d, count)
        gaps.append(symmetric / diagonal - 1.0)
        beyond_multiples.append(best_layers(d, N, 2).loss / diagonal - 1.0)
    gap = max(abs(gap) for gap in gaps)
    gain = max(abs(gain) for gain in beyond_multiples)
    return Claim.of(
        gap < 1e-6 and gain < 1e-6,
        f"(d, N) = {listed(settings)}; the least of {listed(starts)} quasi-Newton"
        " descents each from random symmetric and random diagonal matrices",
        f"least losses equal to {decade(gap)}; multiples of I have the same, to"
        f" {decade(gain)}",
        "holds; multiples of I are as good as other diagonal matrices",
    )


class _TwoLayers:
    """The loss of two layers with Σ = I, for a class of matrices A₁ and A₂."""

    def __init__(self, d: int, N: int) -> None:
        self._d = d
        # The squared error has the degree 8 in each entry of the tokens.
        self._grid = hermite_grid([5] * (d * N))

    def symmetric(self, entries: Array) -> Array:
        """Return symmetric matrices, (2, d, d), from their entries, (2, d(d + 1)/2)."""
        matrices = np.zeros((2, self._d, self._d))
        rows, columns = np.triu_indices(self._d)
        matrices[:, rows, columns] = entries
        matrices[:, columns, rows] = entries
        return matrices

    def diagonal(self, entries: Array) -> Array:
        """Return diagonal matrices, (2, d, d), from their entries, (2, d)."""
        return entries[:, :, None] * np.eye(self._d)

    def least(
        self, matrices: Callable[[Array], Array], entries: int, starts: int
    ) -> float:
        """Return the least loss that descents from random starts reach."""
        unchanged = np.zeros((2, self._d, self._d))
        covariance = np.eye(self._d)

        def loss(flat: Array) -> float:
            A = matrices(flat.reshape(2, entries))
            return deep_loss(A, unchanged, covariance, self._grid)

        points = np.random.default_rng(0).normal(0.0, 0.5, (starts, 2 * entries))
        return min(float(minimize(loss, point).fun) for point in points)


@row("linear attention: Σ⁻¹ layers", AHN.format("Thm 3"), bound="0; 0; 0; Figure 2")
def inverse_layers(quick: bool) -> Claim:
    """for w ~ N(0, Σ⁻¹) the loss has a critical point with A_l = s_l Σ⁻¹, steps
    preconditioned by Σ⁻¹, and training finds it
    """
    settings = [(2, 2)] if quick else [(2, 2), (3, 2)]
    starts = [3] if quick else [5, 2]
    loss_gaps = list[float]()
    shape_gaps = list[float]()
    slopes = list[float]()
    for (D, N), count in zip(settings, starts, strict=True):
        loss_gap, shape_gap = _best_matrices(D, N, count)
        loss_gaps.append(abs(loss_gap))
        shape_gaps.append(shape_gap)
        slopes.append(_slope_of_steps(D, N))
    loss_gap = max(loss_gaps)
    shape_gap = max(shape_gaps)
    slope = max(slopes)
    steps = np.sort(best_layers(5, 20, 3).lengths)
    return Claim.of(
        max(loss_gap, 1e-3 * slope) < 1e-9
        and shape_gap < 1e-3
        and apart(steps, FIGURE_2) < 0.02,
        f"d = 2, a covariance with correlation, (D, N) = {listed(settings)}, all"
        " entries of all A_l trained from random starts; best steps also for d = 5,"
        " N = 20, D = 3",
        f"slopes below {decade(slope)} at the best step lengths; trained, the loss is"
        f" off theirs by {decade(loss_gap)}, A_lΣ off multiples of I by"
        f" {decade(shape_gap)}; steps {listed(steps, '.3f')}, in the paper's Figure 2"
        f" {listed(FIGURE_2)}",
    )


def _largest_slope(loss: Callable[[Array], float], point: Array) -> float:
    """Return the largest slope of a loss by any entry, from central differences."""
    slopes = list[float]()
    for direction in np.eye(point.size).reshape(-1, *point.shape):
        step = DIFFERENCE * direction
        difference = loss(point + step) - loss(point - step)
        slopes.append(abs(difference) / (2.0 * DIFFERENCE))
    return max(slopes)


def _slope_of_steps(D: int, N: int) -> float:
    """Return the largest slope by any entry at A_l = s_l Σ⁻¹ with the best s_l."""
    grid = hermite_grid([2 * D + 1] * (2 * N))
    lengths = best_layers(2, N, D).lengths
    best = lengths[:, None, None] * np.linalg.inv(SKEWED)
    unchanged = np.zeros_like(best)
    return _largest_slope(lambda A: deep_loss(A, unchanged, SKEWED, grid), best)


def _best_matrices(D: int, N: int, starts: int) -> tuple[float, float]:
    """Train all entries of all A_l from random starts.

    Return by how much the least loss exceeds the loss of the best lengths, and how far
    A_l Σ is from multiples of I.
    """
    grid = hermite_grid([2 * D + 1] * (2 * N))
    unchanged = np.zeros((D, 2, 2))

    def loss(flat: Array) -> float:
        return deep_loss(flat.reshape(D, 2, 2), unchanged, SKEWED, grid)

    start_points = np.random.default_rng(0).normal(0.0, 0.5, (starts, 4 * D))
    ends = [minimize(loss, point) for point in start_points]
    best = min(ends, key=lambda end: float(end.fun))
    steps = best.x.reshape(D, 2, 2) @ SKEWED
    lengths = np.trace(steps, axis1=1, axis2=2) / 2.0
    multiples = lengths[:, None, None] * np.eye(2)
    loss_gap = float(best.fun) - best_layers(2, N, D).loss
    return loss_gap, apart(steps, multiples)


@row("linear attention: GD++", AHN.format("Thm 4"), Status.MEASURED, "0; 0; 1")
def plus_plus(quick: bool) -> Claim:
    """layers that change the tokens, too, have a critical point at A_l = a_lΣ⁻¹,
    B = bI, with a lower loss
    """
    error, slope = _critical_point()
    d = 8
    lengths = (20,) if quick else (20, 80)
    losses = list[tuple[float, float, float]]()
    halved = True
    for N in lengths:
        plus_plus_loss = PlusPlusRisk(d, N).floor()
        two_layers = best_layers(d, N, 2).loss
        four_layers = best_layers(d, N, 4).loss
        losses.append((plus_plus_loss, two_layers, four_layers))
        halved = halved and plus_plus_loss < 0.5 * two_layers
    per_dimension = "; ".join(listed(row / d, ".3g") for row in np.array(losses))
    return Claim.of(
        error < 1e-10 and slope < 1e-6 and halved,
        "two layers; criticality in all entries of A₁, A₂, B, d = N = 2, Σ with"
        f" correlation; losses d = 8, N = {listed(lengths)}",
        f"loss off by {decade(error)}, slopes below {decade(slope)}; loss/d of GD++,"
        f" two and four plain layers {per_dimension}",
        "holds: two such layers come close to four plain ones in short prompts",
    )


def _critical_point() -> tuple[float, float]:
    """Check the closed-form loss at the best layers of GD++.

    Return its relative error, and the largest slope of the loss there. The layers have
    A_l = a_l Σ⁻¹ and B = (b/a₁)I with the (a₁, a₂, b) of `PlusPlusRisk`.
    """
    risk = PlusPlusRisk(2, 2)
    grid = hermite_grid([9] * 4)
    a1, a2, b = risk.best

    def loss(flat: Array) -> float:
        A1, A2, B1 = flat.reshape(3, 2, 2)
        A = np.stack([A1, A2])
        # No layer reads the tokens that the second one would change.
        B = np.stack([B1, np.zeros((2, 2))])
        return deep_loss(A, B, SKEWED, grid)

    inverse = np.linalg.inv(SKEWED)
    # The first layer moves the tokens by B X(XᵀA₁X)/N = a₁B XXᵀΣ⁻¹X/N. `PlusPlusRisk`
    # has b in the place of a₁B.
    point = np.concatenate([a1 * inverse, a2 * inverse, b / a1 * np.eye(2)], axis=None)
    return off(loss(point), risk.floor()), _largest_slope(loss, point)


class ReluLayer:
    r"""The exact loss of one layer of ReLU attention, for isotropic tokens and tasks.

    The prediction is :math:`\frac1n\sum_i (b\cdot x_i + cy_i)\,(x_i^\top Ax)_+`. Its
    loss is

    .. math:: \tfrac12\bigl[d - c\,\mathrm{tr}\,A + \kappa c^2\|A\|_F^2
        + \tfrac{1}{2n}\|b\|^2\|A\|_F^2
        + (\tfrac1n + \tfrac{n-1}{4n})\|A^\top b\|^2\bigr],
        \qquad \kappa = \frac{n + 2d + 3}{4n}.

    See docs/linear-attention-theory.md, "ReLU attention".
    """

    def __init__(self, d: int, n: int) -> None:
        self.d = d
        self.n = n
        self.kappa = (n + 2 * d + 3) / (4 * n)

    def loss(self, b: Array, c: float, A: Array) -> float:
        """Return the loss by its formula, squared label units."""
        n = self.n
        squared_norm = float(np.sum(A**2))
        by_labels = self.kappa * c**2 * squared_norm - c * float(np.trace(A))
        by_tokens = float(b @ b) * squared_norm / (2 * n)
        by_tokens += (1 / n + (n - 1) / (4 * n)) * float(np.sum((A.T @ b) ** 2))
        return 0.5 * (self.d + by_labels + by_tokens)

    @property
    def floor(self) -> float:
        """The least loss: b = 0 and cA = I/(2κ)."""
        return 0.5 * self.d * (1.0 - 1.0 / (4.0 * self.kappa))

    def loss_by_grid(self, b: Array, c: float, A: Array) -> float:
        """Return the loss of two tokens in the plane, as a sum over prompts.

        Tokens are written in polar coordinates around Ax. The scores have a kink where
        a token is orthogonal to Ax, and each half of the plane has its own nodes.
        """
        queries, query_weights = hermite_grid([3, 3])
        tasks, task_weights = hermite_grid([2, 2])
        tokens, token_weights = _half_planes()
        total = 0.0
        for x, query_weight in zip(queries, query_weights, strict=True):
            u = A @ x
            length = float(np.linalg.norm(u))
            axis = u / length if length > 0.0 else np.array([1.0, 0.0])
            turned = tokens @ np.array([axis, [-axis[1], axis[0]]])
            scores = np.maximum(turned @ u, 0.0)
            for w, task_weight in zip(tasks, task_weights, strict=True):
                values = (turned @ (b + c * w)) * scores / 2.0
                prediction = values[:, None] + values[None, :]
                squares = (prediction - w @ x) ** 2
                mean = token_weights @ squares @ token_weights
                total += float(query_weight * task_weight * mean)
        return 0.5 * total


def _half_planes(radii: int = 5, angles: int = 16) -> tuple[Array, Array]:
    """Return nodes (m, 2) and weights for a normal token, exact in both half planes.

    Integrands are polynomials in the squared radius, and trigonometric polynomials of
    the angle in each half of the plane.
    """
    squares, radial_weights = np.polynomial.laguerre.laggauss(radii)
    angle_nodes, angle_weights = np.polynomial.legendre.leggauss(angles)
    angle_nodes = np.pi / 2 * angle_nodes
    angles_of_both = np.concatenate([angle_nodes, angle_nodes + np.pi])
    weights_of_both = np.concatenate([angle_weights, angle_weights]) / 4.0
    radius = np.sqrt(2.0 * squares)
    directions = np.stack([np.cos(angles_of_both), np.sin(angles_of_both)], axis=1)
    nodes = radius[:, None, None] * directions
    weights = np.multiply.outer(radial_weights, weights_of_both)
    return nodes.reshape(-1, 2), weights.ravel()


@row("linear attention: ReLU attention", AHN.format("Thm 5"), bound="0; 0")
def relu_attention(quick: bool) -> Claim:
    """with ReLU scores, isotropic data and Q without its last row, the best layer reads
    labels alone and has A ~ I
    """
    layer = ReluLayer(2, 2)
    rng = np.random.default_rng(0)
    error = 0.0
    for _ in range(2 if quick else 5):
        b, c, A = rng.normal(size=2), float(rng.normal()), rng.normal(size=(2, 2))
        error = max(error, off(layer.loss(b, c, A), layer.loss_by_grid(b, c, A)))

    sizes = [(3, 5)] if quick else [(3, 5), (5, 20)]
    starts = 5 if quick else 20
    gaps = list[float]()
    for d, n in sizes:
        for _ in range(starts):
            gaps.append(_gap_of_descent(ReluLayer(d, n), rng))
    floor = ReluLayer(5, 20).floor
    pairs = 1
    while best_layers(5, pairs, 1).loss > floor:
        pairs += 1
    return Claim.of(
        error < 1e-12 and min(gaps) > -1e-12 and max(gaps) < 1e-8,
        "formula against sums over prompts, d = n = 2;"
        f" {len(gaps)} quasi-Newton descents from random starts,"
        f" (d, n) = {listed(sizes)}",
        f"formula off by {decade(error)}; descents end off the stated minimum by"
        f" {decade(max(map(abs, gaps)))}; least loss/d for d = 5, n = 20"
        f" {floor / 5:.4f}, reached by linear attention with {pairs} pairs",
        f"holds; linear attention needs {pairs} pairs for the loss of ReLU attention"
        " with 20",
    )


def _gap_of_descent(layer: ReluLayer, rng: np.random.Generator) -> float:
    """Return the excess over the stated minimum at the end of one descent."""
    d = layer.d

    def balanced(flat: Array) -> float:
        last_row, A = flat[: d + 1], flat[d + 1 :].reshape(d, d)
        # The loss has one value along (b, c) -> t (b, c), A -> A/t: stay where both are
        # of one size.
        gap = float(last_row @ last_row - np.sum(A**2))
        return layer.loss(last_row[:d], float(last_row[d]), A) + gap**2

    start = rng.normal(size=d + 1 + d * d)
    # With one-sided differences some descents end early.
    end = minimize(balanced, start, jac="3-point", options={"gtol": 1e-8})
    return float(end.fun) - layer.floor
