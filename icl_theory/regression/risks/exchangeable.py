r"""The exchangeable case in closed form: one number u replaces the K x K scores.

In this case all K features are equally likely, and the values of the task at any two
features have the same variogram γ, half their mean squared difference. Gradient descent
from zero then gives one score to the *target*, which is the query's own feature, and
another score to all other features. Let u be the gap between these two scores. Let N be
the number of tokens of a prompt, a = 1/(1 + (K−1)e^{−u}) the attention on the target,
and s = 1 − a. For N = ∞ the loss ℓ and a step of descent with the learning rate η are

    ℓ = ½ γ K/(K−1) s²,    u ← u + c g(u),    g = a s²,    c = η γ K/(K−1)².

`ExchangeableRisk` is the loss for infinite and for finite prompts.
`reduce_to_one_number` returns this risk for a problem that has this form, and
``expanded`` returns the risk over all trained parameters again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    LARGEST,
    MOST_FEATURES,
    Array,
    argument_error,
    integer,
    number,
    prompt_length,
    set_fields,
    signed,
)
from icl_theory.engine.capabilities import series_one_by_one
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Rule, is_plain_descent
from icl_theory.memory import check_fits
from icl_theory.regression.closed.flow import attention_pair, loss_curve
from icl_theory.regression.features import Features
from icl_theory.regression.tasks import Exchangeable, Task
from icl_theory.regression.tasks.law import LARGEST_GAMMA

if TYPE_CHECKING:
    from icl_theory.engine.sampling import Trainer
    from icl_theory.regression.closed.runs import ExchangeableSteps

# For finite prompts gaps u are cut to ±600. Beyond ±600, products of e^-u and a count
# might overflow or vanish.
FARTHEST = 600.0
# The step constant c of closed forms is below this number: it leaves a factor of 1e8 in
# the range of float64 for products with c.
LARGEST_STEP_CONSTANT = 1e300
# A c below this number is replaced by it. With any c up to this number, INT64_MAX steps
# move u by less than 1e-280.
SMALLEST_STEP_CONSTANT = 1e-300
# Up to this mean, averages over a binomial count take all counts, a few thousand.
# For a larger mean they take equidistant counts, which are fewer and as accurate. Their
# weights come from Stirling's formula. The term 1/(360 n³) that it leaves out is 3e-13
# at this mean.
LARGEST_MEAN_OF_ALL_COUNTS = 2000.0
# Variograms, and inner products of features, count as equal if they differ by less than
# this, relative to their size. It is far above their rounding errors.
EQUALITY_TOLERANCE = 1e-12
# In embedding coordinates the gap Δ lies between these numbers, so that Δ⁴ and its
# products with the learning rate stay within float64.
SMALLEST_GAP = 1e-60
LARGEST_GAP = 1e60


@dataclass(frozen=True, eq=False)
class ExchangeableRisk(Risk):
    r"""The population risk of exchangeable tasks, a function of the single number u.

    The letters u, γ, K, s and N are defined at the head of the module, and σ is the
    standard deviation of the label noise. For N = ∞, :math:`\ell =
    \tfrac12\gamma\tfrac{K}{K-1}s^2`. For finite N, :math:`n \sim \mathrm{Binomial}(N,
    1/K)` tokens of a prompt have the query's feature, and :math:`M = N - n` have other
    features. With :math:`w = e^{-u}`, :math:`s_n = Mw/(n + Mw)` and :math:`q_n = 1 +
    \tfrac1{K-1} + (1 - \tfrac1{K-1})/M`,

    .. math:: \ell = \tfrac12 E\Bigl[\gamma s_n^2 q_n
        + \sigma^2\frac{n + Mw^2}{(n + Mw)^2}\Bigr].

    See docs/theory.md, "The exchangeable case", "Coordinates".

    Parameters
    ----------
    K : int
        Number of features.
    gamma : float
        Variogram of every pair of values, squared label units.
    N, noise
        As for `PopulationRisk`.
    speed : float
        Factor on the learning rate if other coordinates than the scores are trained. It
        is ``Δ⁴/4`` if descent acts on the matrix Q over equicorrelated features at
        distance Δ.
    origin : (Features, Task), optional
        The problem that was reduced; by default the exchangeable law on a regular
        simplex.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.ExchangeableRisk(20, gamma=2.0).loss(0.0), 12)
    0.95
    """

    K: int
    gamma: float
    N: float = math.inf
    noise: float = 0.0
    speed: float = 1.0
    origin: tuple[Features, Task] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        set_fields(
            self,
            K=integer("K", self.K, minimum=2, maximum=MOST_FEATURES),
            gamma=number("gamma", self.gamma, zero=True, maximum=LARGEST_GAMMA),
            N=prompt_length(self.N),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            speed=number("speed", self.speed),
        )
        # The only valid origins are None and a pair of features and a task.
        match self.origin:
            case None | (Features(), Task()):
                return
        raise argument_error("origin", self.origin, "features and a task")

    @property
    def initial(self) -> Array:
        """``u = 0``, an array without axes."""
        return np.zeros(())

    @property
    def metric(self) -> float:
        """``(K - 1)/speed``, by which descent divides the slope.

        If u changes by 1, the K x K scores change by a matrix of squared length K - 1.
        """
        return (self.K - 1.0) / self.speed

    def scores(self, u: float) -> Array:
        """Return the scores for a gap u, (K, K).

        Columns sum to zero, and ``S_kk - S_mk = u``.
        """
        # Three arrays of 8-byte numbers: identity, difference, and scores
        check_fits("K", self.K, 8.0 * 3 * self.K**2)
        return signed("u", u) * (np.eye(self.K) - 1.0 / self.K)

    def sampled(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return the trainer of all parameters on sampled prompts.

        They are the parameters of the original problem, see ``expanded``.

        Raises
        ------
        ValueError
            N is infinite, or an argument is out of range.
        """
        # Loaded here, because most runs are not sampled.
        from icl_theory.engine.sampling import trainer_of

        return trainer_of(expanded(self), batch, seed)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its derivative with respect to u."""
        u = float(params)
        if math.isinf(self.N):
            a, s = attention_pair(u, self.K)
            # ½ γ K/(K-1) s², with ds/du = -a s
            scale = self.gamma * s * (self.K / (self.K - 1.0))
            # u has no axes, so the gradient is a number.
            return 0.5 * scale * s, -scale * s * a  # type: ignore[return-value]
        loss, slope = self._finite(math.exp(-_limited(u)))
        return float(loss), float(slope)  # type: ignore[return-value]

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Second derivative of the loss with respect to u, times the direction."""
        u = float(params)
        if math.isinf(self.N):
            a, s = attention_pair(u, self.K)
            # the derivative of -a s², with da/du = a s and ds/du = -a s
            curvature = a * s**2 * (2.0 * a - s)
            return self.gamma * (self.K / (self.K - 1.0)) * curvature * direction
        # Loaded here, because closed forms do not need it.
        from icl_theory.tokens.square import change_along

        # `change_along` differentiates the slope by a complex step: it gives the gap a
        # tiny imaginary part. NumPy compares complex numbers by their real parts, so
        # that clipping limits the gap itself.
        def slope(gap: Array) -> Any:
            limited_gap = np.clip(gap, -FARTHEST, FARTHEST)
            _loss, slope_at_gap = self._finite(np.exp(-limited_gap))
            return slope_at_gap

        return change_along(slope, params, direction)

    def _finite(self, w: Any) -> tuple[Any, Any]:
        """Loss and slope for finite N from w = e^-u, which may be complex."""
        averages = self._averages(w)
        variance = self.noise**2
        loss = self.gamma * averages.bias + variance * averages.noise
        slope = self.gamma * averages.bias_slope + variance * averages.noise_slope
        return loss, slope

    def closed_form(self, eta: float, rule: str | Rule) -> ExchangeableSteps | None:
        """Return the closed form of gradient descent, by an Abel function of its steps.

        It is None for finite N, and for update rules other than plain gradient descent.
        """
        if not is_plain_descent(rule) or math.isfinite(self.N):
            return None
        # Loaded here, because a loss and its gradient do not need them.
        from icl_theory.regression.closed.abel import StepCounter
        from icl_theory.regression.closed.runs import ExchangeableSteps, step_constant

        c = float(step_constant(eta, self.speed, self.gamma, self.K))
        # The comparison is negated, so that NaN, the product of infinity and zero, is
        # refused, too.
        if not c < LARGEST_STEP_CONSTANT:
            raise argument_error(
                "eta",
                eta,
                f"smaller: a step eta*gamma*K/(K-1)^2 = {c:.3g} is not below 1e300",
            )
        # For γ = 0, c is 0 and no step moves u. `StepCounter` needs a positive c.
        c = max(c, SMALLEST_STEP_CONSTANT)
        return ExchangeableSteps(self.gamma, StepCounter(self.K, c))

    def series(
        self, states: Array, steps: NDArray[np.int64]
    ) -> tuple[Array, dict[str, Array]]:
        """Losses and observations at many gaps ``states``, after the ``steps``."""
        if math.isfinite(self.N):
            return series_one_by_one(self, states, steps)
        # For N = ∞ they depend on the gap alone.
        loss, attention = loss_curve(states, self.gamma, self.K)
        return loss, {"attention": attention, "gap": states}

    def attention(self, u: float) -> float:
        """Expected target attention at u."""
        u = signed("u", u)
        if math.isinf(self.N):
            a, _s = attention_pair(u, self.K)
            return a
        return float(self._averages(math.exp(-_limited(u))).attention)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Target attention and the gap u itself."""
        return {
            "attention": np.asarray(self.attention(float(params))),
            "gap": np.asarray(float(params)),
        }

    def floor(self) -> float:
        r"""Irreducible loss: 0 for N = ∞.

        For finite N without noise it is the loss of the prompts that lack the query's
        feature, :math:`\tfrac12\gamma(1 - 1/K)^N q_0`. With noise it is the loss at the
        gap at which the slope changes sign.
        """
        if math.isinf(self.N):
            return 0.0
        if self.noise == 0.0:
            inverse = 1.0 / (self.K - 1.0)
            lacks_own_feature = math.exp(self.N * math.log1p(-1.0 / self.K))
            q_0 = 1.0 + inverse + (1.0 - inverse) / self.N
            return 0.5 * self.gamma * lacks_own_feature * q_0
        return self.loss(np.asarray(self._minimum()))

    def _minimum(self) -> float:
        """The gap of the least loss, for finite N with noise.

        The slope of the loss is negative for small gaps and changes sign once, unless
        γ = 0.
        """
        # SciPy's optimisers are loaded here, because closed forms do not need them.
        from scipy.optimize import brentq

        def slope(u: float) -> float:
            return float(self.gradient(np.asarray(u)))

        # Look for a gap at which the loss rises again. Any first guess will do.
        upper = 1.0
        while slope(upper) < 0 and upper < FARTHEST:
            upper *= 2.0
        if not slope(upper) > 0:
            # The loss falls at all gaps at which it was evaluated.
            return upper
        if not slope(0.0) < 0:
            # For γ = 0 the loss is only noise, and equal attention to all tokens
            # averages it best.
            return 0.0
        # The loss is flat at its minimum: an error of 1e-12 in u does not change it.
        return float(brentq(slope, 0.0, upper, xtol=1e-12))

    @cached_property
    def _averages(self) -> Averages:
        """The averages over finite prompts, as a function of w."""
        return Averages(self.K, int(self.N))


class Average(NamedTuple):
    """Parts of the loss γ A(u) + σ² B(u) of finite prompts, and the attention.

    A is the ``bias`` and B the ``noise``; slopes are derivatives with respect to u.
    """

    bias: Any
    bias_slope: Any
    noise: Any
    noise_slope: Any
    attention: Any


class Averages:
    """Averages over prompts of N tokens, as functions of w = e^-u.

    In a prompt, n tokens have the query's feature and M = N - n have other features.
    The averages are sums over J values of n.
    """

    def __init__(self, K: int, N: int) -> None:
        nodes = binomial_nodes(N, 1.0 / K)
        self.n = nodes.n
        self.M = nodes.rest
        self.probability = nodes.weight
        inverse = 1.0 / (K - 1.0)
        # q_n of `ExchangeableRisk`. For M = 0 any value will do, because s_n is zero.
        self.q = 1.0 + inverse + (1.0 - inverse) / np.maximum(self.M, 1.0)

    def __call__(self, w: Any) -> Average:
        """Average over the counts at w, a number or an array (..., 1).

        The last axis of an array becomes the axis of the J counts, over which
        ``@ probability`` sums. So the results have the other axes of the array.
        """
        n = self.n
        probability = self.probability
        weight_of_others = self.M * w
        total = n + weight_of_others
        a = n / total
        s = weight_of_others / total
        # s² q, with the derivative -2 a s² q with respect to u
        bias = s * s * self.q
        # (n + M w²)/(n + M w)², with the derivative 2 a s (1 - w)/(n + M w)
        noise = a / total + s * (w / total)
        ratio = (1.0 - w) / total
        return Average(
            bias=0.5 * (bias @ probability),
            bias_slope=-((a * bias) @ probability),
            noise=0.5 * (noise @ probability),
            noise_slope=(a * s * ratio) @ probability,
            attention=a @ probability,
        )


class BinomialNodes(NamedTuple):
    """J nodes and weights of an average over a binomial count, (J,) each."""

    n: Array  # values of the count
    rest: Array  # N - n
    weight: Array  # weights, which sum to 1


def binomial_nodes(N: int, p: float) -> BinomialNodes:
    """Nodes for averages over Binomial(N, p), p <= ½, exact to rounding.

    Up to the mean LARGEST_MEAN_OF_ALL_COUNTS, the nodes are all counts whose
    probability matters. For a larger mean the probabilities underflow at both ends.
    Then every h-th count is enough, with h an eighth of the standard deviation: by
    Poisson's summation formula the error is of order exp(−2π²·64).
    """
    if N * p <= LARGEST_MEAN_OF_ALL_COUNTS:
        n, log_weight = _all_counts(N, p)
    else:
        n, log_weight = _spaced_counts(N, p)
    weight = np.exp(log_weight - log_weight.max())
    # Weights far from the mean underflow to zero.
    is_positive = weight > 0
    n = n[is_positive]
    weight = weight[is_positive]
    return BinomialNodes(n, N - n, weight / math.fsum(weight))


def _all_counts(N: int, p: float) -> tuple[Array, Array]:
    """Return the counts from 0 on, and the logarithms of P(n)/P(0)."""
    mean = N * p
    deviation = math.sqrt(N * p * (1.0 - p))
    # The end is generous: larger counts have probabilities below e^-380. The 60 is for
    # means of about 1, at which the law has a longer tail than a normal law.
    n = np.arange(0.0, min(float(N), mean + 45.0 * deviation + 60.0) + 1.0)
    # P(n + 1)/P(n) = (N - n)/(n + 1) · p/(1 - p)
    log_ratio = np.log((N - n[:-1]) / (n[1:])) + (math.log(p) - math.log1p(-p))
    return n, np.concatenate([[0.0], np.cumsum(log_ratio)])


def _spaced_counts(N: int, p: float) -> tuple[Array, Array]:
    """Return equidistant counts around a large mean, and logarithms of their weights.

    A constant is left out of the logarithms.
    """
    mean = N * p
    deviation = math.sqrt(N * p * (1.0 - p))
    stride = max(1.0, math.floor(deviation / 8.0))
    # Beyond 39 standard deviations a normal law, e^(-39²/2), underflows.
    strides_per_side = math.ceil(39 * deviation / stride)
    n = math.floor(mean) + stride * np.arange(-strides_per_side, strides_per_side + 1)
    # The formula below divides by n and by N - n.
    n = n[(n >= 1) & (n <= N - 1)]
    z = n - mean
    # By Stirling's formula P(n) is, up to a constant factor, e^(-deviance - stirling)
    # divided by √(n (N - n)). So no large logarithms of factorials are subtracted from
    # each other.
    deviance = mean * _deviance(z / mean) + (N - mean) * _deviance(-z / (N - mean))
    stirling = 1.0 / (12.0 * n) + 1.0 / (12.0 * (N - n))
    log_weight = -deviance - 0.5 * np.log(n) - 0.5 * np.log(N - n) - stirling
    return np.asarray(n, dtype=np.float64), np.asarray(log_weight)


def _deviance(t: Any) -> Any:
    """``(1 + t) ln(1 + t) - t`` without cancellation."""
    is_small = np.abs(t) < 0.1
    small = np.where(is_small, t, 0.0)
    # Σ_{k >= 2} (-t)^k / (k (k - 1)) by Horner's rule. For |t| < 0.1 the first term
    # that is left out is below rounding. A larger |t| would need more terms; from 0.1
    # on the formula itself loses at most two digits.
    series = np.zeros_like(t)
    for k in range(18, 1, -1):
        series = small * series + (-1) ** k / (k * (k - 1))
    # At t = -1, where no count lies, the formula would be 0 · ln 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        direct = (1.0 + t) * np.log1p(t) - t
    return np.where(is_small, small**2 * series, direct)


def reduce_to_one_number(
    features: Features, law: Task, N: float, noise: float, coordinates: str
) -> ExchangeableRisk | None:
    """Return the risk as a function of one number, if the queries are exchangeable.

    Otherwise return None. The variograms of all pairs of features must agree to a
    relative 1e-12. In embedding coordinates the same holds for the inner products of
    all pairs and for the squared lengths of all features. In factored coordinates the
    result is None, because the factors start from random numbers.
    """
    K = features.K
    if not features.uniform or coordinates == "factored":
        return None
    is_off_diagonal = ~np.eye(K, dtype=bool)
    speed = 1.0
    if coordinates == "embedding":
        gram = features.gram
        squared_length = gram[0, 0]
        if not _is_constant(gram[is_off_diagonal], squared_length):
            return None
        if not _is_constant(np.diagonal(gram), squared_length):
            return None
        # Δ⁴/4, because Δ² = 2 (squared length - inner product)
        speed = float(squared_length - gram[0, 1]) ** 2
    variogram = law.variogram(features)[is_off_diagonal]
    # A variogram that is not finite is left to `PopulationRisk`, which refuses it.
    if not np.isfinite(variogram).all() or not _is_constant(variogram, variogram[0]):
        return None
    gamma = float(variogram[0])
    return ExchangeableRisk(
        K, gamma, N, noise=noise, speed=speed, origin=(features, law)
    )


def embedding_speed(delta: float) -> float:
    """Return Δ⁴/4, the factor on the learning rate in embedding coordinates.

    The features form a regular simplex with the distance Δ = ``delta``.
    """
    if not SMALLEST_GAP < delta < LARGEST_GAP:
        raise argument_error(
            "delta", delta, "between 1e-60 and 1e60 in embedding coordinates"
        )
    return delta**4 / 4.0


def expanded(risk: Risk) -> Risk:
    """Return the risk, over all trained parameters, that was reduced to one number.

    These parameters are K x K scores or, in embedding coordinates, the matrix Q. A risk
    that is not an `ExchangeableRisk` is returned unchanged.
    """
    if not isinstance(risk, ExchangeableRisk):
        return risk
    # Loaded here, because closed forms do not need them.
    from icl_theory.engine.pullback import Embedding, Pullback
    from icl_theory.regression.risks.population import PopulationRisk

    if risk.origin is None:
        # The distance Δ with speed = Δ⁴/4. A speed of 1 belongs to class coordinates,
        # the scores themselves, for which any distance will do.
        delta = (4.0 * risk.speed) ** 0.25
        features: Features = Features.simplex(risk.K, delta)
        # L, because γ = L²Δ²/2
        law: Task = Exchangeable(math.sqrt(2.0 * risk.gamma) / delta)
    else:
        features, law = risk.origin
    over_scores = PopulationRisk(features, law, risk.N, risk.noise)
    if risk.speed == 1.0:
        return over_scores
    return Pullback(over_scores, Embedding(features.vectors))


def _limited(u: float) -> float:
    """Limit u to ±FARTHEST, a range in which e^u and e^(-u) do not overflow."""
    return min(max(u, -FARTHEST), FARTHEST)


def _is_constant(values: Array, scale: float) -> bool:
    """Whether all values are equal up to rounding, relative to ``scale``."""
    return bool(np.ptp(values) <= EQUALITY_TOLERANCE * abs(scale))
