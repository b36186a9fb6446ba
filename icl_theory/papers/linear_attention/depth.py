r"""Several layers of linear attention, on isotropic tokens and tasks.

Each layer is a step of gradient descent on the least squares of the prompt. In the
variant GD++ each layer changes the tokens, too. The population loss is a polynomial in
the trained lengths of the steps. The coefficients of the polynomial are moments of a
real Wishart matrix: integers divided by powers of N. The moments give a quadrature with
positive weights that is exact for such polynomials. With it the loss is a sum of
squares, without cancellation.

Letters: a prompt has N pairs of a token x_i in d dimensions and a label, and Σ̂ is the
mean of x_i x_iᵀ. The mean spectrum of Σ̂ is the measure μ with ∫ f dμ = E tr f(Σ̂). The
nodes of the quadrature are values x of an eigenvalue of Σ̂, and its weights are w.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    integer,
    number,
    prompt_length,
    real_array,
    set_fields,
)
from icl_theory.papers.linear_attention.law import PromptLaw, shaped
from icl_theory.papers.linear_attention.layer import SampledLoop
from icl_theory.papers.linear_attention.risks import (
    IMAGINARY_STEP,
    INVERSE_STEP,
    BestKnown,
)

# Largest number of layers, the depth. The nodes of the quadrature come from orthogonal
# polynomials of degrees up to the depth. The coefficients of these polynomials are
# exact fractions, whose digits grow like the squared depth.
DEEPEST = 16
# The largest order of a moment. Computing all moments up to it takes some seconds.
MOST_MOMENTS = 200
# With noise the loss of a loop may have several minima in its one parameter γ, the sum
# of the lengths of all steps. `LoopedRisk.best` looks for the least minimum on a grid
# of this many points. The loss has the degree 32 or less in γ, so that its minima are
# far wider than the spacing.
SEARCH_POINTS = 2000
# A cautious number of halvings: after about 60 the ends of an interval are neighbours
# in float64, and further halvings change nothing.
BISECTIONS = 100
# `LoopedRisk.stable_rate` takes the largest curvature on a grid of this many values of
# γ. The maximum need not be exact, because descent diverges only at twice the stable
# rate.
CURVATURE_POINTS = 101
# The squared error of two layers with GD++ has the degree 8 in Σ̂. A quadrature of this
# depth is exact up to the degree 8.
PLUS_PLUS_DEPTH = 4


def wishart_moments(d: int, N: int, most: int) -> tuple[Fraction, ...]:
    r"""Return the moments :math:`E\,\mathrm{tr}\,\hat\Sigma^k` exactly.

    The matrix is :math:`\hat\Sigma = \frac1N\sum x_ix_i^\top`. See
    docs/linear-attention-theory.md, "Wishart moments".

    Parameters
    ----------
    d, N : int
        Dimension, and number of standard normal vectors.
    most : int
        Largest k, at most 200.

    Returns
    -------
    tuple of Fraction, for k = 0 to ``most``

    Examples
    --------
    >>> from icl_theory.papers.linear_attention.depth import wishart_moments
    >>> wishart_moments(2, 4, 2)  # d, d, d(N + d + 1)/N
    (Fraction(2, 1), Fraction(2, 1), Fraction(7, 2))
    """
    most = integer("most", most, minimum=0, maximum=MOST_MOMENTS)
    d = integer("d", d, minimum=1)
    N = integer("N", N, minimum=1, maximum=EXACT)
    return _moments(d, N, most)


@cache
def _moments(d: int, N: int, most: int) -> tuple[Fraction, ...]:
    """Compute `wishart_moments` for checked arguments, and keep the result."""
    orders = range(1, most + 1)
    # Σ̂ is S/N, with the sum S of xxᵀ.
    return (Fraction(d), *(_trace_moment(d, N, k) / N**k for k in orders))


def _trace_moment(d: int, N: int, k: int) -> Fraction:
    r"""Return :math:`E\,\mathrm{tr}\,S^k` for :math:`S = \sum xx^\top` over N vectors.

    The trace of a power is a sum of zonal polynomials, one for each partition of k. A
    partition is drawn as rows of boxes. Box (i, j) is in row i and column j, both
    counted from 0. It has α boxes to its right and λ boxes below it. The moment is the
    sum over the partitions

    .. math:: 2k \sum \frac{\prod_{(i,j) \ne (0,0)} (2j - i)\;
        \prod_{(i,j)} (d + 2j - i)(N + 2j - i)}
        {\prod_{(i,j)} (2\alpha + \lambda + 1)(2\alpha + \lambda + 2)} .

    Only the partitions (a, b, 1, ..., 1) matter. Any other partition has the box (2, 1)
    with the factor 2j - i = 0.
    """
    total = Fraction(0)
    # A partition with more than d rows has a box with i = d and j = 0, whose factor
    # d + 2j - i is 0. For more than N rows the factor N + 2j - i of a box is 0.
    most_rows = min(d, N)
    for first in range(1, k + 1):  # a
        for second in range(min(first, k - first) + 1):  # b, or 0 without a second row
            ones = k - first - second
            number_of_rows = 1 + min(second, 1) + ones
            # A column of ones needs a second row above it.
            is_partition = second > 0 or ones == 0
            if is_partition and number_of_rows <= most_rows:
                total += _partition_term(d, N, (first, second, ones))
    return 2 * k * total


def _partition_term(d: int, N: int, partition: tuple[int, int, int]) -> Fraction:
    """Return the term of a partition (a, b, 1, ..., 1) in `_trace_moment`.

    ``partition`` is a, b and the number of ones; b is 0 if there is no second row.
    """
    first, second, ones = partition
    # A second row of length 0 has no boxes.
    row_lengths = [first, second, *[1] * ones]
    numerator = 1
    denominator = 1
    for i, length in enumerate(row_lengths):
        for j in range(length):
            if (i, j) != (0, 0):
                numerator *= 2 * j - i
            numerator *= (d + 2 * j - i) * (N + 2 * j - i)
            # The numbers α and λ of boxes to the right of box (i, j), and below it.
            arm = length - j - 1
            leg = sum(j < lower for lower in row_lengths[i + 1 :])
            denominator *= (2 * arm + leg + 1) * (2 * arm + leg + 2)
    return Fraction(numerator, denominator)


class Quadrature(NamedTuple):
    """A rule for integrals over the mean spectrum of Σ̂; its first node is 0."""

    nodes: Array  # x, in increasing order, (J,)
    weights: Array  # w, (J,)


def quadrature(d: int, N: float, depth: int) -> Quadrature:
    r"""Return a quadrature for the mean spectrum of :math:`\hat\Sigma`.

    The nodes :math:`x_i` and the weights :math:`w_i` satisfy :math:`\sum_i w_i p(x_i) =
    E\,\mathrm{tr}\,p(\hat\Sigma)` for polynomials p up to the degree 2·depth.

    It is the Gauss–Radau rule with a node at 0. Chebyshev's algorithm computes it from
    the exact moments, in fractions. See docs/linear-attention-theory.md, "Loops".

    Parameters
    ----------
    d, N : int
        Dimension, and pairs in a prompt (or math.inf).
    depth : int
        Half the degree, at most 16. The rule has depth + 1 nodes, or two for infinite
        prompts.

    Returns
    -------
    Quadrature
        The sum of the weights is d. All weights are positive, except that the node 0
        has the weight 0 for infinite prompts.

    Examples
    --------
    >>> from icl_theory.papers.linear_attention.depth import quadrature
    >>> rule = quadrature(2, 4, 1)
    >>> second_moment = rule.weights @ rule.nodes**2
    >>> rule.nodes.round(6).tolist(), float(second_moment.round(6))
    ([0.0, 1.75], 3.5)
    """
    depth = integer("depth", depth, minimum=1, maximum=DEEPEST)
    return _quadrature(integer("d", d, minimum=1), prompt_length(N), depth)


@cache
def _quadrature(d: int, N: float, depth: int) -> Quadrature:
    """Compute the rule of `quadrature` for checked arguments, and keep it."""
    if math.isinf(N):
        # For infinite prompts Σ̂ is the unit matrix, with d eigenvalues 1. The node 0
        # has no weight.
        return Quadrature(np.array([0.0, 1.0]), np.array([0.0, float(d)]))
    alpha, beta, norms = _recurrence(_moments(d, int(N), 2 * depth), depth)
    at_zero = _values_at_zero(alpha, beta)
    # With this last coefficient α the next polynomial of the recurrence vanishes at 0,
    # so that 0 is a node: (0 - α) p_depth(0) - β p_{depth-1}(0) = 0.
    alpha.append(-beta[-1] * at_zero[-2] / at_zero[-1])
    # The weight of a node is one over the sum of p_k²/‖p_k‖² at this node.
    inverse_weight_at_zero = Fraction(0)
    for value, norm in zip(at_zero, norms, strict=True):
        inverse_weight_at_zero += value * value / norm
    # Nodes are the eigenvalues of the Jacobi matrix of the recurrence, and weights the
    # squared first entries of its unit eigenvectors, times the mass d.
    off_diagonal = np.sqrt([float(coefficient) for coefficient in beta])
    jacobi = (
        np.diag([float(coefficient) for coefficient in alpha])
        + np.diag(off_diagonal, 1)
        + np.diag(off_diagonal, -1)
    )
    nodes, vectors = np.linalg.eigh(jacobi)
    weights = d * vectors[0] ** 2
    # The node at 0 and its weight are known exactly. The weight is twice the least loss
    # of `best_layers`. It may be tiny, and an eigenvector would not keep its digits.
    nodes[0] = 0.0
    weights[0] = float(1 / inverse_weight_at_zero)
    return Quadrature(nodes, weights)


class _Recurrence(NamedTuple):
    """The recurrence p_{k+1} = (x - α_k) p_k - β_k p_{k-1}, with squared norms."""

    alpha: list[Fraction]  # α_0 ... α_{depth-1}
    beta: list[Fraction]  # β_1 ... β_depth
    norms: list[Fraction]  # squared, of p_0 ... p_depth


def _recurrence(moments: Sequence[Fraction], depth: int) -> _Recurrence:
    """Return the recurrence of the monic orthogonal polynomials of a measure.

    This is Chebyshev's algorithm, which takes the moments of the measure. In floating
    point it would lose digits at every step; fractions lose none.
    """
    # Before p_k is added, ``row`` holds the integrals of p_{k-1} x^(k - 1 + i) for
    # i = 0, 1, ... The first of these integrals is the squared norm of p_{k-1}.
    # ``earlier_row`` holds the integrals of p_{k-2} x^(k - 2 + i).
    row = list(moments)
    earlier_row = [Fraction(0)] * len(row)
    alpha = [row[1] / row[0]]
    beta = list[Fraction]()
    norms = [row[0]]
    for k in range(1, depth + 1):
        # For k = 1 the recurrence has no p_{k-2}, whose coefficient is then taken as 0.
        beta_before = beta[-1] if beta else Fraction(0)
        # p_k = (x - α) p_{k-1} - β p_{k-2} gives the integrals of p_k x^(k - 1 + i).
        # The integral for i = 0 is zero, because p_k is orthogonal to x^(k - 1).
        next_row = list[Fraction]()
        for i in range(1, len(row) - 1):
            integral = row[i + 1] - alpha[-1] * row[i]
            integral -= beta_before * earlier_row[i + 1]
            next_row.append(integral)
        # β_k is the quotient of the squared norms of p_k and p_{k-1}. α_k follows from
        # the first two integrals of p_k and of p_{k-1}.
        beta.append(next_row[0] / row[0])
        norms.append(next_row[0])
        # The recurrence ends with p_depth, and needs no α_depth.
        if k < depth:
            alpha.append(next_row[1] / next_row[0] - row[1] / row[0])
        earlier_row = row
        row = next_row
    return _Recurrence(alpha, beta, norms)


def _values_at_zero(alpha: list[Fraction], beta: list[Fraction]) -> list[Fraction]:
    """Return the values p_0(0) ... p_depth(0) of the orthogonal polynomials.

    Their recurrence is p_{k+1} = (x - α_k) p_k - β_k p_{k-1}. The list ``beta`` begins
    with β_1.
    """
    values = [Fraction(1), -alpha[0]]
    for k in range(1, len(alpha)):
        values.append(-alpha[k] * values[k] - beta[k - 1] * values[k - 1])
    return values


@dataclass(frozen=True, eq=False)
class LoopedRisk(BestKnown):
    r"""The risk of D layers of linear attention in a loop, over one number γ.

    Tokens and tasks are isotropic. Each layer is a step of length γ/D on the prompt's
    least squares. Without noise the risk is :math:`\mathcal L = \tfrac12
    E\,\mathrm{tr}(I - \tfrac\gamma D\hat\Sigma)^{2D}`. Noise adds
    :math:`\tfrac{\sigma^2}{2N}E\,\mathrm{tr}\,\hat\Sigma^{-1}[I - (I - \tfrac\gamma
    D\hat\Sigma)^D]^2`.

    See docs/linear-attention-theory.md, "Loops".

    Parameters
    ----------
    d, N : int
        Dimension, and pairs in a prompt (or math.inf).
    depth : int
        Number D of layers, at most 16.
    noise, start : float
        Standard deviation of the label noise, and γ at step 0.

    Examples
    --------
    >>> import icl_theory as icl
    >>> for depth in (1, 2, 4, 8):
    ...     round(icl.linear_attention.LoopedRisk(8, 20, depth).floor(), 4)
    1.2414
    0.668
    0.3005
    0.1164
    """

    d: int
    N: float
    depth: int
    noise: float = 0.0
    start: float = 0.0

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1), N=prompt_length(self.N))
        set_fields(self, depth=integer("depth", self.depth, minimum=1, maximum=DEEPEST))
        set_fields(self, noise=number("noise", self.noise, zero=True, maximum=LARGEST))
        set_fields(self, start=float(real_array("start", self.start, 0, LARGEST)))

    def sampled(self, batch: int, seed: int = 0) -> SampledLoop:
        """Return the trainer on sampled prompts.

        Raises
        ------
        ValueError
            N is infinite, or an argument is out of range.
        """
        law = PromptLaw(np.ones(self.d), N=self.N, noise=self.noise).dense
        return SampledLoop(law, self.initial, batch, seed, self.depth)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its derivative with respect to γ, (1,)."""
        loss, slope = self._loss_and_slope(params[0])
        # `hessian_product` calls this with a complex γ, and uses the slope alone.
        return float(loss.real), np.array([slope])

    def _loss_and_slope(self, gamma: Any) -> tuple[Any, Any]:
        """Return the loss and its derivative with respect to γ.

        Loss and derivative are numbers for a number γ, and (n,) each for values of γ of
        shape (n, 1). Both are polynomials in γ, which may be complex.
        """
        x, w = _quadrature(self.d, self.N, self.depth)
        D = self.depth
        remaining = 1.0 - gamma / D * x
        # `remaining` is the factor by which a layer multiplies the error. Its slope is
        # -x/D.
        loss = 0.5 * np.sum(w * remaining ** (2 * D), axis=-1)
        slope = -np.sum(w * x * remaining ** (2 * D - 1), axis=-1)
        noise_factor = self.noise**2 / self.N  # σ²/N, which is 0 for infinite prompts
        if noise_factor > 0.0:
            # ``fitted`` is the share of the noise that the layers have fitted along an
            # eigendirection of Σ̂. Its slope is x remaining^(D-1), so that x cancels in
            # the slope of fitted²/x.
            fitted = 1.0 - remaining**D
            # At the node x = 0 nothing is fitted, and the polynomial fitted²/x is zero.
            is_positive = x > 0.0
            noise_terms = np.divide(
                w * fitted**2, x, out=np.zeros_like(fitted), where=is_positive
            )
            loss += 0.5 * noise_factor * np.sum(noise_terms, axis=-1)
            slope += noise_factor * np.sum(
                w * is_positive * fitted * remaining ** (D - 1), axis=-1
            )
        return loss, slope

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Return the second derivative of the loss times ``direction``, (1,)."""
        # The slope is a polynomial in γ. The derivative of the slope is the imaginary
        # part of the slope after a tiny imaginary step, divided by the length of the
        # step.
        stepped: Any = params + IMAGINARY_STEP
        _, slope = self.evaluate(stepped)
        return np.asarray(slope.imag * INVERSE_STEP * direction)

    def _loss_at(self, gamma: float) -> float:
        """Return the loss at a number γ."""
        loss, _ = self.evaluate(np.array([gamma]))
        return loss

    def _slope_at(self, gamma: float) -> float:
        """Return the derivative of the loss at a number γ."""
        _, slope = self.evaluate(np.array([gamma]))
        return float(slope[0])

    @cached_property
    def best(self) -> Array:
        """The best γ, (1,), which is computed once.

        The result has the least loss on the interval from 0 to a γ at which the loss is
        larger than at γ = 0.
        """
        # For large γ the loss grows like a power of γ, so that this loop ends.
        end = 1.0
        while self._loss_at(end) <= self._loss_at(0.0):
            end *= 2.0
        grid = np.linspace(0.0, end, SEARCH_POINTS)
        losses, _ = self._loss_and_slope(grid[:, None])
        lowest = int(np.argmin(losses))
        # The loss falls at 0, and is larger at the end than at 0: the least minimum is
        # between the neighbours of the lowest inner point. Bisect the slope between
        # these neighbours. If the minimum is near 0, point 0 may be lower than point 1,
        # but the minimum is still between the neighbours of point 1.
        lowest = max(lowest, 1)
        low = float(grid[lowest - 1])
        high = float(grid[lowest + 1])
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            if self._slope_at(middle) < 0.0:
                low = middle
            else:
                high = middle
        return np.array([0.5 * (low + high)])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss above the floor as "excess", and γ as "gamma", (1,)."""
        return super().observe(params) | {"gamma": params}

    def stable_rate(self) -> float:
        """Return one over the largest curvature between the start and the best γ.

        Descent moves between these two. The curvature is computed on a grid of 101
        values of γ.
        """
        (best,) = self.best
        gammas = np.linspace(self.start, float(best), CURVATURE_POINTS)
        # The curvature is the derivative of the slope. As in `hessian_product`, a tiny
        # imaginary step gives this derivative, here for all γ at once.
        _, slopes = self._loss_and_slope(gammas[:, None] + IMAGINARY_STEP)
        return 1.0 / float(np.max(slopes.imag * INVERSE_STEP))


class Layers(NamedTuple):
    """The best layers if each has a step length of its own."""

    lengths: Array  # of the steps, (D,), largest first
    loss: float  # of the best layers, squared label units


def best_layers(d: int, N: float, depth: int) -> Layers:
    r"""Return the best layers if each has its own step length, without label noise.

    With the step length :math:`s_l` of layer l the loss is
    :math:`\tfrac12 E\,\mathrm{tr}\,p(\hat\Sigma)^2` for
    :math:`p(x) = \prod_l(1 - s_lx)`. The least loss of all polynomials p of degree D
    with p(0) = 1 is half the Christoffel number of the mean spectrum at 0. This number
    is the weight of the Gauss–Radau rule at 0. The best p vanishes at the D other
    nodes: :math:`s_l = 1/x_l`. See docs/linear-attention-theory.md, "Layers of their
    own".

    Parameters
    ----------
    d, N, depth
        As for `LoopedRisk`.

    Returns
    -------
    Layers

    Examples
    --------
    >>> import icl_theory as icl
    >>> layers = icl.linear_attention.best_layers(8, 20, 2)
    >>> layers.lengths.round(3).tolist(), round(layers.loss, 4)
    ([1.218, 0.453], 0.5152)
    """
    nodes, weights = quadrature(d, N, depth)
    weight_at_zero = float(weights[0])
    positive_nodes = nodes[1:]  # in increasing order
    lengths = np.zeros(int(depth))
    # Infinite prompts have one positive node: one layer is enough, and all other layers
    # have the step length zero.
    lengths[: len(positive_nodes)] = 1.0 / positive_nodes
    return Layers(lengths, 0.5 * weight_at_zero)


@dataclass(frozen=True, eq=False)
class PlusPlusRisk(BestKnown):
    r"""The risk of two layers with GD++, over :math:`(a_1, a_2, b)`.

    The layers are steps of the lengths :math:`a_1` and :math:`a_2` on the prompt's
    least squares. The first one changes the tokens, too: each token x becomes
    :math:`x - b\hat\Sigma x`. For isotropic tokens and tasks without noise

    .. math:: \mathcal L = \tfrac12E\,\mathrm{tr}\bigl[
        (I - a_1\hat\Sigma)(I - a_2\hat\Sigma')\bigr]^2, \qquad
        \hat\Sigma' = (I - b\hat\Sigma)^2\hat\Sigma.

    This is the mean of a polynomial of degree 8, for which `quadrature` is exact. See
    docs/linear-attention-theory.md, "GD++".

    Parameters
    ----------
    d, N : int
        Dimension, and pairs in a prompt (or math.inf).
    start : sequence of float
        The parameters at step 0, up to 1e40.

    References
    ----------
    Ahn, Cheng, Daneshmand, Sra 2023; von Oswald et al. 2023, who name the algorithm.

    Examples
    --------
    Two layers are nearly as good as four that leave the tokens alone:

    >>> import icl_theory as icl
    >>> round(icl.linear_attention.PlusPlusRisk(8, 20).floor(), 4)
    0.1269
    >>> round(icl.linear_attention.best_layers(8, 20, 4).loss, 4)
    0.1269
    >>> round(icl.linear_attention.best_layers(8, 20, 2).loss, 4)
    0.5152
    """

    d: int
    N: float
    start: Sequence[float] | Array = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1), N=prompt_length(self.N))
        set_fields(self, start=shaped("start", self.start, (3,)))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (3,)."""
        x, w = _quadrature(self.d, self.N, PLUS_PLUS_DEPTH)
        a1, a2, b = params
        # In an eigendirection of Σ̂ with the eigenvalue x, the first layer multiplies
        # tokens by ``token``, and the two layers multiply the error of the prediction
        # by ``first`` and ``second``.
        token = 1.0 - b * x
        first = 1.0 - a1 * x
        second = 1.0 - a2 * x * token**2
        error = first * second
        # Derivatives of the error at each node, (3, nodes).
        a1_gradient = -x * second
        a2_gradient = -x * token**2 * first
        b_gradient = 2.0 * a2 * x**2 * token * first
        error_gradients = np.stack([a1_gradient, a2_gradient, b_gradient])
        gradient = error_gradients @ (w * first * second)
        return 0.5 * float(w @ error**2), np.asarray(gradient)

    @cached_property
    def best(self) -> Array:
        """The best parameters that several descents find, (3,).

        The descents start with 1/a_1 at a node of the spectrum, 1/b near a node, and
        the best a_2 for these.
        """
        nodes, weights = quadrature(self.d, self.N, PLUS_PLUS_DEPTH)
        # The loss is about the least loss of four plain layers, which is half of the
        # weight at 0 and tiny in long prompts. Descent ends when the gradient is small,
        # and so the loss is scaled to the order 1. For infinite prompts the weight and
        # the least loss are zero, and the loss is not scaled.
        weight_at_zero = float(weights[0])
        scale = 1.0
        if weight_at_zero > 0.0:
            scale = 1.0 / weight_at_zero
        best_loss = math.inf
        best_params = np.zeros(3)
        # The first node is 0, and all others are positive.
        for a1, inverse_node in itertools.product(1.0 / nodes[1:], repeat=2):
            # At b = 1/x the token of the node x vanishes. The derivatives of the error
            # at this node with respect to a_2 and b vanish, too. So descents start
            # beside b = 1/x; any factor near 1 would do.
            b = 0.9 * inverse_node
            start = np.array([a1, self._best_second_length(a1, b), b])
            loss, params = self._descend(start, scale)
            if loss < best_loss:
                best_loss = loss
                best_params = params
        return best_params

    def _best_second_length(self, a1: float, b: float) -> float:
        """Return the a_2 of least loss for given a_1 and b.

        The loss is a quadratic function of a_2: it is half the mean of
        (1 - a_1 x)² (1 - a_2 z)² with z = x (1 - bx)².
        """
        x, w = _quadrature(self.d, self.N, PLUS_PLUS_DEPTH)
        weighted_square = w * (1.0 - a1 * x) ** 2
        z = x * (1.0 - b * x) ** 2
        curvature = float(weighted_square @ z**2)
        # Without curvature all z that matter are zero, and any a_2 is best. The bound
        # on the denominator then makes the result 0 instead of NaN.
        return float(weighted_square @ z) / max(curvature, 1e-300)

    def _descend(self, start: Array, scale: float) -> tuple[float, Array]:
        """Return the scaled loss and the parameters at the end of a descent."""
        from scipy.optimize import minimize  # slow to load

        def scaled(params: Array) -> tuple[float, Array]:
            """Return loss and gradient, times the scale."""
            loss, gradient = self.evaluate(params)
            return scale * loss, scale * gradient

        # The line search tries steps at which the loss overflows, and rejects them.
        with np.errstate(over="ignore", invalid="ignore"):
            result = minimize(
                scaled, start, jac=True, method="BFGS", options={"gtol": 1e-9}
            )
        return float(result.fun), np.asarray(result.x)
