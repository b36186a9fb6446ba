r"""The exchangeable case in closed form: one number u, the gap between target and other scores.

All pairs of feature values have the same variogram γ and the features are equally
likely. Then the columns of S stay alike and zero-sum, and with a = 1/(1 + (K−1)e^{−u}),
s = 1 − a the exact dynamics for N = ∞ are

    ℓ = ½ γ K/(K−1) s²,    u ← u + c g(u),    g = a s²,    c = η γ K/(K−1)².
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

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
from icl_theory.engine.pullback import Embedding, Pullback
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Rule, is_plain_descent
from icl_theory.memory import check_fits
from icl_theory.regression.closed.abel import StepCounter
from icl_theory.regression.closed.flow import attention_pair, loss_curve
from icl_theory.regression.closed.runs import ExchangeableSteps, step_constant
from icl_theory.regression.features import Features
from icl_theory.regression.tasks import Exchangeable, Task

# gap with finite prompts: beyond it products of e^-u with a count overflow or vanish
FARTHEST = 600.0


@dataclass(frozen=True, eq=False)
class ExchangeableRisk(Risk):
    r"""The population risk of exchangeable tasks, a function of the single number u.

    For N = ∞, :math:`\ell = \tfrac12\gamma\tfrac{K}{K-1}s^2`. For finite N, with
    :math:`n \sim \mathrm{Binomial}(N, 1/K)`, :math:`M = N - n`, :math:`w = e^{-u}`,
    :math:`s_n = Mw/(n + Mw)` and :math:`q_n = 1 + \tfrac1{K-1} + (1 - \tfrac1{K-1})/M`,

    .. math:: \ell = \tfrac12 E\Bigl[\gamma s_n^2 q_n + \sigma^2\frac{n + Mw^2}{(n + Mw)^2}\Bigr].

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
        Factor on the learning rate that is due to a change of coordinates: ``Δ⁴/4`` for
        gradient descent on the matrix Q over equicorrelated features.
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
            gamma=number("gamma", self.gamma, zero=True, maximum=1e290),
            N=prompt_length(self.N),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            speed=number("speed", self.speed),
        )
        match self.origin:
            case None | (Features(), Task()):
                return
        raise argument_error("origin", self.origin, "features and a task")

    @property
    def initial(self) -> Array:
        """``u = 0``."""
        return np.zeros(())

    @property
    def metric(self) -> float:
        """``(K - 1)/speed``: a unit change of u is a change of the K x K scores of squared length K - 1."""
        return (self.K - 1.0) / self.speed

    def scores(self, u: float) -> Array:
        """Return the scores for a gap u, (K, K): columns sum to zero, ``S_kk - S_mk = u``."""
        check_fits("K", self.K, 8.0 * 3 * self.K**2)
        return signed("u", u) * (np.eye(self.K) - 1.0 / self.K)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its derivative with respect to u."""
        u = float(params)
        if math.isinf(self.N):
            target, missed = attention_pair(u, self.K)
            scale = self.gamma * missed * (self.K / (self.K - 1.0))
            return 0.5 * scale * missed, -scale * missed * target  # type: ignore[return-value]
        loss, slope = self._finite(math.exp(-min(max(u, -FARTHEST), FARTHEST)))
        return float(loss), float(slope)  # type: ignore[return-value]

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Second derivative of the loss with respect to u, times the direction."""
        u = float(params)
        if math.isinf(self.N):
            target, missed = attention_pair(u, self.K)
            bend = target * missed**2 * (2.0 * target - missed)
            return self.gamma * (self.K / (self.K - 1.0)) * bend * direction
        from icl_theory.tokens.square import (
            change_along,
        )  # a closed form needs none

        return change_along(
            lambda u: self._finite(np.exp(-np.clip(u, -FARTHEST, FARTHEST)))[1],
            params,
            direction,
        )

    def _finite(self, w: Any) -> tuple[Any, Any]:
        """Loss and slope for finite N from e^-u, which may be complex."""
        bias, bias_slope, noisy, noisy_slope, _ = self._averages(w)
        variance = self.noise**2
        return (
            self.gamma * bias + variance * noisy,
            self.gamma * bias_slope + variance * noisy_slope,
        )

    def closed_form(self, eta: float, rule: str | Rule) -> ExchangeableSteps | None:
        """Return the steps of gradient descent for N = ∞ by their Abel function, else None."""
        if not is_plain_descent(rule) or math.isfinite(self.N):
            return None
        c = float(step_constant(eta, self.speed, self.gamma, self.K))
        if not c < 1e300:
            raise argument_error(
                "eta",
                eta,
                f"smaller: a step eta*gamma*K/(K-1)^2 = {c:.3g} is not below 1e300",
            )
        return ExchangeableSteps(self.gamma, StepCounter(self.K, max(c, 1e-300)))

    def series(
        self, states: Array, steps: NDArray[np.int64]
    ) -> tuple[Array, dict[str, Array]]:
        """Losses and observations at many gaps."""
        if math.isfinite(self.N):
            return series_one_by_one(self, states, steps)
        loss, attention = loss_curve(states, self.gamma, self.K)
        return loss, {"attention": attention, "gap": states}

    def attention(self, u: float) -> float:
        """Expected target attention at u."""
        u = signed("u", u)
        if math.isinf(self.N):
            return attention_pair(u, self.K)[0]
        return float(self._averages(math.exp(-min(max(u, -FARTHEST), FARTHEST)))[4])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Target attention and the gap u itself."""
        return {
            "attention": np.asarray(self.attention(float(params))),
            "gap": np.asarray(float(params)),
        }

    def floor(self) -> float:
        r"""Irreducible loss: 0 for N = ∞.

        For finite N without noise it is the loss of the prompts that lack the query's
        feature, :math:`\tfrac12\gamma(1 - 1/K)^N q_0`. With noise it is the loss where
        the slope changes sign.
        """
        if math.isinf(self.N):
            return 0.0
        if self.noise == 0.0:
            inverse = 1.0 / (self.K - 1.0)
            missing = math.exp(self.N * math.log1p(-1.0 / self.K))
            return (
                0.5 * self.gamma * missing * (1.0 + inverse + (1.0 - inverse) / self.N)
            )
        from scipy.optimize import brentq

        def slope(u: float) -> float:
            return float(self.gradient(np.asarray(u)))

        top = 1.0
        while slope(top) < 0 and top < 600.0:
            top *= 2.0
        best = (
            brentq(slope, 0.0, top, xtol=1e-12)
            if slope(top) > 0 and slope(0.0) < 0
            else top
        )
        return self.loss(np.asarray(best))

    @cached_property
    def _averages(self) -> Averages:
        return Averages(self.K, int(self.N))


class Averages:
    """A, A', B, B' of the loss γ A(u) + σ² B(u) of finite prompts, and the attention, as functions of w = e^-u."""

    def __init__(self, K: int, N: int) -> None:
        self.n, self.M, self.weight = binomial_nodes(N, 1.0 / K)
        inverse = 1.0 / (K - 1.0)
        # q_n; s_n = 0 where M = 0
        self.spread = 1.0 + inverse + (1.0 - inverse) / np.maximum(self.M, 1.0)

    def __call__(self, w: Any) -> tuple[Any, ...]:
        """Average over the counts at w, a number or an array (..., 1)."""
        n = self.n
        weight = self.weight
        others = self.M * w
        total = n + others
        a = n / total
        s = others / total
        bias = s * s * self.spread
        shift = np.divide(1.0 - w, total, out=np.zeros_like(total), where=n > 0)
        noise = 0.5 * ((a / total + s * (w / total)) @ weight)
        return (
            0.5 * (bias @ weight),
            -((a * bias) @ weight),
            noise,
            (a * s * shift) @ weight,
            a @ weight,
        )


def binomial_nodes(N: int, p: float) -> tuple[Array, Array, Array]:
    """Values n, N − n and weights that sum a function against Binomial(N, p), p <= ½, to rounding error.

    Up to a mean of 2000 these are all counts whose probability is in the range of
    float64. Beyond that, n near 0 is below it, and a lattice of an eighth of the
    standard deviation is as good as all counts: by Poisson's summation formula its
    error is of order exp(−2π²·64).
    """
    mean = N * p
    deviation = math.sqrt(N * p * (1.0 - p))
    if mean <= 2000.0:
        n = np.arange(0.0, min(float(N), mean + 45.0 * deviation + 60.0) + 1.0)
        ratio = np.log((N - n[:-1]) / (n[1:])) + (math.log(p) - math.log1p(-p))
        log_weight = np.concatenate([[0.0], np.cumsum(ratio)])
    else:
        stride = max(1.0, math.floor(deviation / 8.0))
        side = math.ceil(39 * deviation / stride)
        n = math.floor(mean) + stride * np.arange(-side, side + 1)
        n = n[(n >= 1) & (n <= N - 1)]
        z = n - mean
        deviance = mean * _deviance(z / mean) + (N - mean) * _deviance(-z / (N - mean))
        stirling = 1.0 / (12.0 * n) + 1.0 / (12.0 * (N - n))
        log_weight = -deviance - 0.5 * np.log(n) - 0.5 * np.log(N - n) - stirling
    weight = np.exp(log_weight - log_weight.max())
    keep = weight > 0
    return n[keep], N - n[keep], weight[keep] / math.fsum(weight[keep])


def _deviance(t: Any) -> Any:
    """``(1 + t) ln(1 + t) - t`` without cancellation."""
    series = np.zeros_like(t)
    small = np.where(np.abs(t) < 0.1, t, 0.0)
    for k in range(18, 1, -1):
        series = small * series + (-1) ** k / (k * (k - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.abs(t) < 0.1, small**2 * series, (1.0 + t) * np.log1p(t) - t)


def alike(
    features: Features, law: Task, N: float, noise: float, coordinates: str
) -> ExchangeableRisk | None:
    """Return the reduction to one number if all queries are alike, to a relative 1e-12, else None."""
    K, speed = features.K, 1.0
    if not features.uniform or coordinates == "factored":
        return None
    off = ~np.eye(K, dtype=bool)
    if coordinates == "embedding":
        gram = features.gram
        if not (
            _constant(gram[off], gram[0, 0])
            and _constant(np.diagonal(gram), gram[0, 0])
        ):
            return None
        speed = float(gram[0, 0] - gram[0, 1]) ** 2
    pairs = law.variogram(features)[off]
    if not (np.isfinite(pairs).all() and _constant(pairs, pairs[0])):
        return None
    return ExchangeableRisk(K, float(pairs[0]), N, noise, speed, origin=(features, law))


def embedding_speed(delta: float) -> float:
    """Factor Δ⁴/4 on the learning rate in embedding coordinates over a regular simplex."""
    if not 1e-60 < delta < 1e60:
        raise argument_error(
            "delta", delta, "between 1e-60 and 1e60 in embedding coordinates"
        )
    return delta**4 / 4.0


def expanded(risk: Risk) -> Risk:
    """Return the K x K risk, in its coordinates, that was reduced to one number; other risks unchanged."""
    if not isinstance(risk, ExchangeableRisk):
        return risk
    if risk.origin is None:
        gap = (4.0 * risk.speed) ** 0.25
        features: Features = Features.simplex(risk.K, gap)
        law: Task = Exchangeable(math.sqrt(2.0 * risk.gamma) / gap)
    else:
        features, law = risk.origin
    from icl_theory.regression.risks.population import (
        PopulationRisk,
    )  # a closed form needs none

    full = PopulationRisk(features, law, risk.N, risk.noise)
    return full if risk.speed == 1.0 else Pullback(full, Embedding(features.vectors))


def _constant(values: Array, scale: float) -> bool:
    return bool(np.ptp(values) <= 1e-12 * abs(scale))
