r"""The population loss of layers that descend, at any depth, and their trainer.

A prompt has N tokens in d dimensions, the rows of X, with labels y and a query, and
there are L layers. A layer ℓ takes a step :math:`\eta_\ell` of descent on the prompt's
least squares, and may change the tokens by a step :math:`\gamma_\ell`. All matrices are
then functions of :math:`\hat\Sigma = X^\top X/N`. In an eigendirection with the
eigenvalue λ, the residual, the part of the task that the layers leave unexplained, is

.. math:: r(\lambda) = \prod_\ell (1 - \eta_\ell\lambda_\ell), \qquad
    \lambda_1 = \lambda, \quad \lambda_{\ell+1} = \lambda_\ell(1 -
    \gamma_\ell\lambda_\ell)^2 .

See docs/theory/layers.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    flag,
    integer,
    number,
    prompt_length,
    real_array,
    set_fields,
)
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.engine.sampling import Trainer, prompts_to_draw
from icl_theory.memory import check_fits
from icl_theory.papers.descent_layers.spectrum import Spectrum, mean_spectrum
from icl_theory.papers.linear_attention.layer import Prompts

# Largest number of layers. The residual of six layers has the degree 364. Its square
# has twice this degree, and `mean_spectrum` takes degrees up to 1000.
DEEPEST = 6
# Relative precision of float64.
ROUNDING = 2.0**-52


def degree_of_residual(depth: int, token_steps: bool) -> int:
    """Return the degree of the residual r as a polynomial in λ."""
    if not token_steps:
        return depth
    # λ_ℓ has the degree 3^(ℓ - 1), and these degrees add up.
    return (3**depth - 1) // 2


@dataclass(frozen=True, eq=False)
class LayersRisk(WithStart, Risk):
    r"""The loss of L layers over their steps, for tokens and tasks that are isotropic.

    .. math:: \mathcal L = \tfrac12 \int r(\lambda)^2\,\rho(d\lambda)
        + \frac{\sigma^2}{2N} \int \frac{(1 - r(\lambda))^2}{\lambda}\,\rho(d\lambda)

    with the mean spectrum ρ of :math:`\hat\Sigma`, whose mass is d. The parameters are
    the steps :math:`\eta_1 \ldots \eta_L`. With token steps they are followed by
    :math:`\gamma_1 \ldots \gamma_{L-1}`. The last layer has no token step, because no
    layer would use its tokens.

    Parameters
    ----------
    d, N : int
        Dimension, and pairs in a prompt (or math.inf).
    depth : int
        Number of layers L, at most 6.
    token_steps : bool
        Whether the layers change the tokens (GD++).
    noise : float
        Standard deviation σ of the label noise, label units.
    start : array_like, (L,) or (2L - 1,), optional
        The parameters at step 0, which are zero by default.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory/layers.md. von Oswald et al. 2023 name GD++; Ahn et al. 2023 train it.

    Examples
    --------
    Three layers at the steps to which training leads, with token steps and without:

    >>> from icl_theory.papers.descent_layers.risk import LayersRisk
    >>> risk = LayersRisk(5, 20, depth=3)
    >>> round(2 * risk.loss([0.338, 2.091, 8.568, 0.297, 1.209]), 4)
    0.001
    >>> plain = LayersRisk(5, 20, depth=3, token_steps=False)
    >>> round(2 * plain.loss([0.422, 0.689, 1.714]), 3)
    0.134
    """

    d: int
    N: float
    depth: int = 1
    token_steps: bool = True
    noise: float = 0.0
    start: Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        set_fields(
            self,
            d=integer("d", self.d, minimum=1),
            N=prompt_length(self.N),
            depth=integer("depth", self.depth, minimum=1, maximum=DEEPEST),
            token_steps=flag("token_steps", self.token_steps),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
        )
        # `size` uses the checked fields, which are therefore set before.
        start = np.zeros(self.size) if self.start is None else self.start
        set_fields(self, start=real_array("start", start, 1, LARGEST))
        if self.start.shape != (self.size,):
            raise argument_error(
                "start",
                self.start.shape,
                f"of shape ({self.size},), one number for each trained step",
            )
        # The spectrum raises an error if d and N are both too large.
        self.spectrum()

    @property
    def size(self) -> int:
        """Number of parameters."""
        return 2 * self.depth - 1 if self.token_steps else self.depth

    def spectrum(self, refine: int = 1) -> Spectrum:
        """Return a quadrature of the mean spectrum that is fine enough for the loss.

        ``refine`` multiplies the number of its panels, as in `mean_spectrum`.
        """
        return self._spectrum if refine == 1 else self._refined_spectrum(refine)

    @cached_property
    def _spectrum(self) -> Spectrum:
        """The quadrature that is not refined."""
        # The quadrature is kept, because `evaluate` needs it in every step, and
        # `mean_spectrum` would check its arguments in each call.
        return self._refined_spectrum(refine=1)

    def _refined_spectrum(self, refine: int) -> Spectrum:
        """Return a quadrature with ``refine`` times as many panels."""
        # The loss integrates the square of the residual.
        degree = 2 * degree_of_residual(self.depth, self.token_steps)
        return mean_spectrum(self.d, self.N, degree, refine)

    def steps(self, params: ArrayLike) -> tuple[Array, Array]:
        """Return the steps η and γ of the layers, (L,) each. The last γ is zero."""
        return self._steps(self._checked(params))

    def _steps(self, params: Array) -> tuple[Array, Array]:
        """Return the steps η and γ, (L,) each, for parameters that were checked."""
        eta = params[: self.depth]
        gamma = np.zeros(self.depth)
        if self.token_steps:
            gamma[:-1] = params[self.depth :]
        return eta, gamma

    def residual(self, params: ArrayLike, eigenvalues: ArrayLike) -> Array:
        """Return r at J eigenvalues of the prompt's covariance, (J,)."""
        x = real_array("eigenvalues", eigenvalues, 1)
        return _Residual(x, *self.steps(params)).values[-1]

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, by a backward pass through the layers."""
        # Eigenvalues λ with the weights of ρ, and the number of eigenvalues that are
        # zero.
        x, weights, zeros = self.spectrum()
        residual = _Residual(x, *self._steps(params))
        r = residual.values[-1]  # after the last layer
        mean_square = self._mean_square(x, weights, r)
        r_gradient = weights * r  # of the loss, half of the mean square
        if self._noise_variance > 0.0:
            r_gradient -= self._noise_variance * weights / x * (1.0 - r)
        # In the directions of the eigenvalue 0 nothing is explained: r = 1.
        loss = 0.5 * (mean_square + zeros)
        # Powers of large steps overflow, and may give NaN, which the engine refuses.
        # Such steps are given an infinite loss.
        if not np.isfinite(loss):
            return math.inf, np.zeros_like(params)
        # The gradient has an entry for each value step, and then one for each token
        # step. Entries that belong to no parameter are cut off at the end of the
        # gradient: the entry of the last token step, or the entries of all token steps.
        return float(loss), residual.back(r_gradient)[: self.size]

    @property
    def _noise_variance(self) -> float:
        """The variance σ²/N of the mean of a prompt's label noise."""
        return self.noise**2 / self.N  # 0 for infinite prompts

    def _mean_square(self, x: Array, weights: Array, r: Array) -> float:
        """Return ∫ r² dρ + (σ²/N) ∫ (1 - r)²/λ dρ over the positive eigenvalues."""
        mean_square = weights @ r**2
        if self._noise_variance > 0.0:
            mean_square += self._noise_variance * (weights / x) @ (1.0 - r) ** 2
        return float(mean_square)

    def loss_error(self, params: ArrayLike) -> float:
        """Estimate the error of the loss, cautiously.

        The estimate is the sum of three errors: the difference from the loss on a finer
        grid, the rounding of the density, and the rounding of the residual.
        """
        checked = self._checked(params)
        loss, _ = self.evaluate(checked)
        if math.isinf(loss):
            return math.inf
        x, weights, _ = self.spectrum()
        finer_x, finer_weights, _ = self.spectrum(refine=2)
        residual = _Residual(x, *self._steps(checked))
        finer_residual = _Residual(finer_x, *self._steps(checked))
        r = residual.values[-1]
        # The density of the eigenvalues is smooth but no polynomial, so a grid has an
        # error. The factor ½ of the loss is left out, to be cautious.
        finer_r = finer_residual.values[-1]
        grid_error = self._mean_square(x, weights, r)
        grid_error -= self._mean_square(finer_x, finer_weights, finer_r)
        # The relative error of the density in units of ROUNDING, cautiously. Neither
        # the three constants of this formula nor its growth with the number of nodes,
        # the number of layers and √N are derived. The tests compare the estimate with
        # exact losses.
        density_roundings = (
            1000.0 + 8.0 * len(x) ** 0.5 * self.depth + 8.0 * self._root_length
        )
        density_error = ROUNDING * density_roundings * loss
        r_error = residual.rounding()
        # ½(r + error)² - ½r² = r error + ½error²; the last factor ½ is left out. The
        # noise term has 1 - r in place of r.
        residual_error = weights @ (np.abs(r) * r_error + r_error**2)
        noise_weights = self._noise_variance * weights / x
        residual_error += noise_weights @ (np.abs(1.0 - r) * r_error + r_error**2)
        return float(abs(grid_error) + density_error + residual_error)

    @property
    def _root_length(self) -> float:
        """√N, or 0 for infinite prompts."""
        return math.sqrt(self.N) if math.isfinite(self.N) else 0.0

    def floor(self) -> float:
        r"""Return a lower bound: the least loss of any polynomial r with r(0) = 1.

        The polynomials have the degree of the residual. Layers without token steps
        reach the bound if there is no noise.
        """
        return self._floor

    @cached_property
    def _floor(self) -> float:
        """The floor, which is kept because each call of `excess` needs it."""
        return least_of_polynomials(self)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The steps η and γ of the layers, (L,) each."""
        eta, gamma = self._steps(params)
        return {"value_steps": eta.copy(), "token_steps": gamma}

    def sampled(self, batch: int, seed: int = 0) -> SampledLayers:
        """Return the trainer on sampled prompts, with explicit tokens and labels."""
        return SampledLayers(self, batch, seed)


class _Residual:
    """The residual of layers at some eigenvalues x, (J,), with its backward pass."""

    def __init__(self, x: Array, eta: Array, gamma: Array) -> None:
        self.eta = eta
        self.gamma = gamma
        # The eigenvalues λ_ℓ of the tokens, and the residual of the layers before layer
        # ℓ. Each list has an entry before each layer, and one after the last layer.
        self.eigenvalues = [x]
        self.values = [np.ones_like(x)]
        for eta_l, gamma_l in zip(eta, gamma, strict=True):
            lambda_l = self.eigenvalues[-1]
            self.values.append(self.values[-1] * (1.0 - eta_l * lambda_l))
            self.eigenvalues.append(lambda_l * (1.0 - gamma_l * lambda_l) ** 2)

    def back(self, r_gradient: Array) -> Array:
        """Return the gradient of a function of r with respect to η and γ, (2L,).

        ``r_gradient`` has the derivatives of the function with respect to r, (J,).
        """
        depth = len(self.eta)
        gradient = np.empty(2 * depth)
        # The gradients with respect to the residual and the eigenvalues after a layer.
        # The eigenvalues after the last layer have no effect.
        value_gradient = r_gradient
        eigenvalue_gradient = np.zeros_like(r_gradient)
        # A layer multiplies the residual by 1 - ηx, and the eigenvalues x by (1 - γx)².
        for layer in reversed(range(depth)):
            x = self.eigenvalues[layer]
            eta = self.eta[layer]
            gamma = self.gamma[layer]
            token_factor = 1.0 - gamma * x
            gradient[depth + layer] = -2.0 * eigenvalue_gradient @ (x**2 * token_factor)
            gradient[layer] = -value_gradient @ (self.values[layer] * x)
            # The derivative of x (1 - γx)² with respect to x is (1 - γx)(1 - 3γx).
            eigenvalue_gradient = (
                eigenvalue_gradient * token_factor * (token_factor - 2.0 * gamma * x)
            )
            eigenvalue_gradient = (
                eigenvalue_gradient - value_gradient * self.values[layer] * eta
            )
            value_gradient = value_gradient * (1.0 - eta * x)
        return gradient

    def rounding(self) -> Array:
        """Bound the rounding error of the residual to first order, (J,)."""
        factors = []  # the absolute values of the factors 1 - ηλ of the residual
        factor_errors = []  # in units of ROUNDING, like all errors in this method
        eigenvalue_error = np.zeros_like(self.eigenvalues[0])
        for layer, (eta, gamma) in enumerate(zip(self.eta, self.gamma, strict=True)):
            x = self.eigenvalues[layer]
            factors.append(np.abs(1.0 - eta * x))
            # The error of λ, times η, and a generous number of roundings of the product
            # and the difference.
            factor_errors.append(
                abs(eta) * eigenvalue_error + 2.0 + 2.0 * np.abs(eta * x)
            )
            # The next λ is λ(1 - γλ)². The error of the next λ is the error of λ times
            # the derivative of this formula, plus a generous number of roundings.
            token_factor = np.abs(1.0 - gamma * x)
            derivative = token_factor * np.abs(1.0 - 3.0 * gamma * x)
            own_error = 4.0 * np.abs(x) * token_factor * (1.0 + np.abs(gamma * x))
            eigenvalue_error = derivative * eigenvalue_error + own_error
        # By the product rule, the error of each factor is multiplied by all other
        # factors.
        total = np.zeros_like(self.eigenvalues[0])
        for layer, error in enumerate(factor_errors):
            other_factors = factors[:layer] + factors[layer + 1 :]
            total = total + error * np.prod(other_factors, axis=0)
        return np.asarray(ROUNDING * total)


def least_of_polynomials(risk: LayersRisk) -> float:
    r"""Return a lower bound on the loss of the layers.

    It is the least loss of a polynomial r with r(0) = 1, of the residual's degree,
    lowered by a relative 1e-9 for rounding. The loss is quadratic in r. With the
    measure :math:`\mu = \rho + (\sigma^2/N) \rho/\lambda` on the positive eigenvalues
    it is, up to a constant, half of

    .. math:: \int r^2 d\mu - 2\frac{\sigma^2}{N} \int \frac{r}{\lambda}\,d\rho ,

    which is minimised over the coefficients of r in the orthonormal polynomials of μ,
    subject to r(0) = 1.
    """
    if math.isinf(risk.N):
        # The only eigenvalue is 1, and noise has no effect. The polynomial 1 - λ has
        # the loss 0.
        return 0.0
    # Eigenvalues λ with the weights of ρ, and the number of eigenvalues that are zero.
    x, weights, zeros = risk.spectrum()
    degree = degree_of_residual(risk.depth, risk.token_steps)
    ratio = risk.noise**2 / risk.N  # σ²/N
    measure = weights * (1.0 + ratio / x)  # μ
    # The orthonormal polynomials of μ at the eigenvalues, and at zero.
    values, at_zero = _orthonormal(x, measure, degree)
    # (σ²/N) ∫ p/λ dρ for each orthonormal polynomial p.
    linear = values @ (ratio * weights / x)
    # With the coefficients c of r, the loss is half of |c|² - 2 c·linear up to a
    # constant. It is minimised subject to r(0) = c·at_zero = 1, by a Lagrange
    # multiplier.
    multiplier = (1.0 - at_zero @ linear) / (at_zero @ at_zero)
    coefficients = linear + multiplier * at_zero
    r = coefficients @ values
    sum_of_squares = weights @ r**2 + ratio * (weights / x) @ (1.0 - r) ** 2
    # The measure ρ has the mass d, so that each eigenvalue 0, at which r is 1, adds 1.
    sum_of_squares += zeros
    # The last factor keeps the bound below the minimum in spite of rounding; 1e-9 is
    # generous.
    return 0.5 * float(sum_of_squares) * (1.0 - 1e-9)


def _orthonormal(x: Array, measure: Array, degree: int) -> tuple[Array, Array]:
    """Return the orthonormal polynomials of degree 0 ... ``degree`` of a measure.

    The measure has the masses ``measure`` at the points x, (J,) each. The values of the
    polynomials at these points, (degree + 1, J), and at zero, (degree + 1,), are
    computed by Lanczos' method with full orthogonalisation.
    """
    root = np.sqrt(measure)
    # The values of the polynomials times ``root``, which are orthonormal vectors.
    vectors = [root / np.linalg.norm(root)]
    at_zero = [1.0 / float(np.linalg.norm(root))]
    for _degree in range(degree):
        # The next polynomial is x times the last one, made orthogonal to all earlier
        # ones.
        vector = x * vectors[-1]
        value_at_zero = 0.0  # x times any polynomial vanishes at zero
        basis = np.array(vectors)
        # One pass is not enough, because rounding leaves the vector not quite
        # orthogonal.
        for _pass in range(2):
            projections = basis @ vector
            vector = vector - projections @ basis
            value_at_zero -= float(projections @ np.array(at_zero))
        norm = float(np.linalg.norm(vector))
        vectors.append(vector / norm)
        at_zero.append(value_at_zero / norm)
    return np.array(vectors) / root, np.array(at_zero)


@dataclass(frozen=True, eq=False)
class SampledLayers(Trainer[Prompts]):
    r"""Squared error of the layers on sampled prompts, token by token.

    The rows of X are the N tokens of a prompt, with the labels y. A layer computes
    :math:`h = X^\top y/N`, adds :math:`\eta\,h^\top x_q` to the prediction for the
    query :math:`x_q`, and subtracts :math:`\eta Xh` from y. With :math:`S = X^\top X/N`
    a token step then replaces each token x by :math:`x - \gamma Sx`, and changes the
    query in the same way. This trainer shares no formula with the population risk.

    Parameters
    ----------
    risk : LayersRisk
        The problem, with finite prompts.
    batch, seed : int
        Prompts in a step, and the seed.

    Raises
    ------
    ValueError
        An argument is out of range, or the prompts are infinite.
    """

    risk: LayersRisk
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if math.isinf(self.risk.N):
            raise argument_error(
                "N", self.risk.N, "finite: infinite prompts cannot be sampled"
            )
        set_fields(self, batch=integer("batch", self.batch, minimum=1))
        set_fields(self, seed=integer("seed", self.seed, minimum=0))
        check_fits("batch", self.batch, 8.0 * self.batch * self._numbers)

    @property
    def _numbers(self) -> float:
        """Generous bound on the numbers that a prompt takes in memory.

        The numbers are three copies of the N + 1 tokens with their labels, and of the
        derivatives of tokens and labels with respect to each parameter.
        """
        return 3.0 * (1.0 + self.risk.size) * (self.risk.N + 1.0) * (self.risk.d + 1.0)

    @property
    def initial(self) -> Array:
        """Parameters at step 0, as in the risk."""
        return self.risk.initial

    def draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw ``size`` prompts."""
        # `prompts_to_draw` checks the size, and that the prompts fit in memory.
        B = prompts_to_draw(rng, size, self._numbers)
        N = int(self.risk.N)
        tokens = rng.normal(size=(B, N, self.risk.d))
        task = rng.normal(size=(B, self.risk.d))
        query = rng.normal(size=(B, self.risk.d))
        noise = self.risk.noise * rng.normal(size=(B, N))
        labels = np.einsum("bnd,bd->bn", tokens, task) + noise
        return Prompts(tokens, labels, query, np.sum(query * task, axis=1))

    def losses_on(self, params: Array, prompts: Prompts) -> Array:
        """Loss of each of B prompts, (B,)."""
        X, y, query, answer = prompts
        N = X.shape[1]
        error = -answer  # the prediction of no layers is zero
        for eta, gamma in zip(*self.risk._steps(params), strict=True):
            h = np.einsum("bnd,bn->bd", X, y) / N
            error = error + eta * np.einsum("bd,bd->b", h, query)
            y = y - eta * np.einsum("bnd,bd->bn", X, h)
            # The last layer, and every layer that leaves tokens fixed, has γ = 0.
            if gamma != 0.0:
                S = np.einsum("bnd,bne->bde", X, X) / N
                X = X - gamma * (X @ S)
                query = query - gamma * np.einsum("bde,be->bd", S, query)
        return 0.5 * error**2

    def evaluate_on(self, params: Array, prompts: Prompts) -> tuple[float, Array]:
        """Mean loss of B prompts, and its gradient."""
        errors, error_slopes = self._forward(params, prompts)
        return 0.5 * float(np.mean(errors**2)), error_slopes @ errors / len(errors)

    def _forward(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return the errors of the predictions, (B,), and their derivatives, (P, B).

        The derivatives with respect to all P parameters are carried forward through the
        layers.
        """
        eta, gamma = self.risk._steps(params)
        state = _LayerState(prompts, len(params))
        for layer, (eta_l, gamma_l) in enumerate(zip(eta, gamma, strict=True)):
            state.take_value_step(eta_l, index=layer)
            if self.risk.token_steps and layer < len(eta) - 1:
                # Among the parameters, the steps γ follow the steps η.
                state.take_token_step(gamma_l, index=len(eta) + layer)
        return state.prediction - prompts.answer, state.dprediction


class _LayerState:
    """The tokens, labels, queries and predictions that a layer passes to the next one.

    There are B prompts. An array whose name begins with d, such as ``dX``, holds the
    derivatives of the array without this d, such as ``X``. Its first axis runs over the
    P parameters. The product rule turns the lines that compute ``X`` into the lines
    that compute ``dX``.
    """

    def __init__(self, prompts: Prompts, P: int) -> None:
        self.X, self.y, self.query, answer = prompts
        self.prediction = np.zeros(len(answer))
        self.dX = np.zeros((P, *self.X.shape))  # (P, B, N, d)
        self.dy = np.zeros((P, *self.y.shape))  # (P, B, N)
        self.dquery = np.zeros((P, *self.query.shape))  # (P, B, d)
        self.dprediction = np.zeros((P, len(answer)))

    def take_value_step(self, eta: float, index: int) -> None:
        """Change prediction and labels by the step η, the parameter at ``index``.

        The derivative with respect to this parameter has a further part, because the
        step itself changes.
        """
        N = self.X.shape[1]
        h = np.einsum("bnd,bn->bd", self.X, self.y) / N
        dh = np.einsum("pbnd,bn->pbd", self.dX, self.y)
        dh = dh + np.einsum("bnd,pbn->pbd", self.X, self.dy)
        dh = dh / N
        explained = np.einsum("bd,bd->b", h, self.query)
        change = np.einsum("bnd,bd->bn", self.X, h)
        dexplained = np.einsum("pbd,bd->pb", dh, self.query)
        dexplained += np.einsum("bd,pbd->pb", h, self.dquery)
        dchange = np.einsum("pbnd,bd->pbn", self.dX, h)
        dchange += np.einsum("bnd,pbd->pbn", self.X, dh)
        self.prediction = self.prediction + eta * explained
        self.dprediction += eta * dexplained
        self.dprediction[index] += explained
        self.y = self.y - eta * change
        self.dy = self.dy - eta * dchange
        self.dy[index] -= change

    def take_token_step(self, gamma: float, index: int) -> None:
        """Change tokens and queries by the step γ, the parameter at ``index``.

        The derivative with respect to this parameter has a further part, because the
        step itself changes.
        """
        N = self.X.shape[1]
        S = np.einsum("bnd,bne->bde", self.X, self.X) / N
        # The derivative of S is dXᵀX/N plus its transpose.
        dX_X = np.einsum("pbnd,bne->pbde", self.dX, self.X) / N
        dS = dX_X + dX_X.swapaxes(2, 3)
        XS = self.X @ S
        Sq = np.einsum("bde,be->bd", S, self.query)
        dXS = self.dX @ S + np.einsum("bnd,pbde->pbne", self.X, dS)
        dSq = np.einsum("pbde,be->pbd", dS, self.query)
        dSq += np.einsum("bde,pbe->pbd", S, self.dquery)
        self.X = self.X - gamma * XS
        self.dX = self.dX - gamma * dXS
        self.dX[index] -= XS
        self.query = self.query - gamma * Sq
        self.dquery = self.dquery - gamma * dSq
        self.dquery[index] -= Sq
