"""Single-location regression: one token of N is informative, and attention has to find it. As a family."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import Array, refuse, store
from icl_theory.engine import Risk, Trajectory, in_coordinates
from icl_theory.engine.tokens.risk import Kind, TokenRisk
from icl_theory.families import Column, Family, Later, Number, Whole, Word, parameter
from icl_theory.families.parameters import Fraction, label_noise, learning_rate
from icl_theory.memory import check_fits

ATTENTION = ("softmax", "erf", "linear")


def normal(step: float, reach: float = 9.0) -> tuple[Array, Array]:
    """Return nodes and weights of the trapezoid rule for the normal law."""
    x = np.asarray(step * np.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1), dtype=np.float64)
    weight: Array = np.exp(-0.5 * x * x)
    weight /= weight.sum()
    return x, weight


@dataclass(frozen=True, eq=False)
class SeparateRisk(Risk):
    r"""Loss of :math:`\hat y = \sum_l f(k^\top X_l)\,v^\top X_l` with unit k and v, a function of 2 by 4 numbers.

    The coordinates are those along k*, v* and two more directions, which hold any k and v; only directions count.
    With ``linear`` :math:`f(s) = \lambda s`, else :math:`f(s) = \mathrm{erf}(\lambda s)`.
    """

    problem: SingleLocation
    start: Array

    @property
    def initial(self) -> Array:
        """Where k and v start, (2, 4)."""
        return self.start

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient, which is tangential to both spheres."""
        sizes = np.linalg.norm(params, axis=1)[:, None]
        (k, v), p = params / sizes, self.problem
        a, g, n = math.sqrt(p.snr), p.spread, p.N - 1.0
        (F, dF), (G, dG) = self._moments(a * k[0], g)  # E f x^j and E f² x^j of the informative token, and slopes
        ((_, f, _), _), ((g0, _, g2), _) = self._moments(0.0, 1.0)  # of the others
        t, rho, nu, eta = a * v[0], float(k @ v), v[1], k[1]

        def own(F: Array, G: Array) -> float:  # terms with moments of the informative token
            return float(
                0.5 * (t * t * G[0] + 2.0 * t * g * rho * G[1] + g * g * (rho * rho * G[2] + (1.0 - rho**2) * G[0]))
                - g * (t * eta * F[1] + g * rho * eta * F[2] + g * (nu - rho * eta) * F[0])
                + n * rho * f * (t * F[0] + g * rho * F[1])
            )

        loss = own(F, G) + 0.5 * (g * g + p.noise**2 + n * (rho * rho * g2 + (1.0 - rho * rho) * g0))
        loss += 0.5 * n * (n - 1.0) * (rho * f) ** 2
        by_t = t * G[0] + g * rho * G[1] - g * eta * F[1] + n * rho * f * F[0]
        by_rho = g * t * G[1] + g * g * rho * (G[2] - G[0]) - g * g * eta * (F[2] - F[0])
        by_rho += n * f * (t * F[0] + 2.0 * g * rho * F[1]) + n * rho * (g2 - g0) + n * (n - 1.0) * rho * f**2
        by_eta = -g * (t * F[1] + g * rho * (F[2] - F[0]))
        slopes = by_rho * np.stack([v, k])
        slopes[0, 0] += a * own(dF, dG)
        slopes[0, 1] += by_eta
        slopes[1, 0] += a * by_t
        slopes[1, 1] -= g * g * F[0]
        unit = params / sizes
        return float(loss), (slopes - np.sum(slopes * unit, axis=1)[:, None] * unit) / sizes

    def _moments(self, mean: float, spread: float) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """E f x^j and E f² x^j, j = 0, 1, 2, for scores ``mean + spread x``, and their slopes in the mean."""
        from scipy.special import erf  # slow to load

        scale, linear = self.problem.scale, self.problem.attention == "linear"
        x, weight = normal(0.7 / math.sqrt(1.0 + 4.0 * (scale * spread) ** 2))  # where erf² leaves e^-40
        s = scale * (mean + spread * x)
        f = s if linear else erf(s)
        slope = np.full_like(s, scale) if linear else scale * 2.0 / math.sqrt(math.pi) * np.exp(-s * s)
        powers = np.stack([weight, weight * x, weight * x * x])
        return (powers @ f, powers @ slope), (powers @ f**2, powers @ (2.0 * f * slope))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The overlaps κ = kᵀk*, ν = vᵀv*, θ = vᵀk*, η = kᵀv* and ρ = kᵀv."""
        k, v = params / np.linalg.norm(params, axis=1)[:, None]
        return {"overlaps": np.array([k[0], v[1], v[0], k[1], k @ v])}


@dataclass(frozen=True, eq=False)
class SoftmaxRisk(Risk):
    r"""Loss of :math:`\hat y = \sum_l a_l v^\top X_l`, :math:`a = \mathrm{softmax}(k^\top X_l + b[l = 1])`.

    It is a function of (κ, κ', ν, ν', b): k = κk* + κ'e and v = νv* + ν'e' with directions beside k*, v* and each
    other: the manifold that training does not leave. Values are then independent of scores.
    """

    problem: SingleLocation
    start: Array

    @property
    def initial(self) -> Array:
        """Where training starts, (5,)."""
        return self.start

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (5,)."""
        (kappa, beside, nu, rest, bias), p = params, self.problem
        r, a, g = math.hypot(kappa, beside), math.sqrt(p.snr), p.spread
        turn = np.array([kappa, beside]) / r if r else np.zeros(2)
        size, sums, slopes = nu * nu + rest * rest, np.zeros(2), np.zeros((2, 3))
        # Nodes a power of 2 apart leave an error of e^-30 where weights grow like e^(r x) or e^(r g x).
        apart = 2.0 ** math.floor(math.log2(min(0.25, math.pi**2 / (30.0 * max(r * max(1.0, g), 1e-3)))))
        for share, bare, against, x, own, first in self._cases(apart):
            scores = r * x * np.where(own, g, 1.0) + a * kappa * own + bias * first
            found = [risk.evaluate(scores) for risk in (bare, against)]
            sums += share * np.array([loss for loss, _ in found])
            for at, (_, gradient) in enumerate(found):
                by_r = float(gradient @ (x * np.where(own, g, 1.0)))
                slopes[at] += share * np.array([a * float(gradient @ own) + by_r * turn[0], by_r * turn[1],
                                                float(gradient @ first)])  # fmt: skip
        seen = sums[1] - sums[0] - 0.5 * g * g  # less γ² times the attention on the informative token
        loss = size * sums[0] + nu * seen + 0.5 * (g * g + p.noise**2)
        by = size * slopes[0] + nu * (slopes[1] - slopes[0])
        return float(loss), np.array([by[0], by[1], 2.0 * nu * sums[0] + seen, 2.0 * rest * sums[0], by[2]])

    @lru_cache(maxsize=8)  # noqa: B019
    def _cases(self, step: float) -> list[tuple[float, TokenRisk, TokenRisk, Array, Array, Array]]:
        """Where the informative token is: probability, risks against 0 and γ, and of each node x and its roles."""
        (x, probs), p = normal(step), self.problem
        check_fits("N", f"{x.size} nodes", 8.0 * 2000 * x.size)
        special = Kind(1, probs, np.full(x.size, p.spread))
        found, q = [], 1.0 / p.N if p.first is None else p.first
        for share, first, others in ((q, (1.0, 0.0), [p.N - 1]), (1.0 - q, (0.0, 1.0, 0.0), [1, p.N - 2])):
            kinds = [special, *(Kind(many, probs, np.zeros(x.size), np.ones(x.size)) for many in others if many)]
            risks = (TokenRisk(kinds, np.array(target)) for target in (0.0, p.spread))
            roles = np.repeat([(at == 0, first[at]) for at in range(len(kinds))], x.size, axis=0).T
            found.append((share, *risks, np.tile(x, len(kinds)), *roles))
        return found

    def floor(self) -> float:
        """Return the Bayes risk, where it is known: with a spread of 1, as of all other tokens."""
        p = self.problem
        return self.evaluate(p.bayes())[0] if p.spread == 1.0 else 0.5 * p.noise**2


@dataclass(frozen=True, eq=False)
class SingleLocation(Family):
    r"""Single-location regression: the label is a function of one of N tokens, which attention has to find.

    Tokens are N(0, I), but the informative one, :math:`N(\sqrt{\mathrm{snr}}\,k_*, \gamma^2I)`; the label is
    :math:`y = v_*^\top X_J + \sigma\xi` with orthogonal unit vectors k*, v*. "softmax" trains k, v and a bias
    of the first position, see ``SoftmaxRisk``; "erf" and "linear" directions of k and v, see ``SeparateRisk``.

    Parameters
    ----------
    attention : {"softmax", "erf", "linear"}
        The activation of the scores.
    N : int
        Tokens of a prompt.
    snr : float
        Squared mean of the informative token along k*.
    spread : float
        Its standard deviation γ.
    noise : float
        Standard deviation of the label noise, label units.
    scale : float
        Factor λ of the scores of "erf" and "linear"; softmax trains the size of k instead.
    first : float, optional
        Probability that the first token is the informative one; the others share the rest alike. 1/N unless given;
        "softmax" only.
    start : {"manifold", "sphere"}
        Random unit vectors k, v in d dimensions: with k orthogonal to v*, v to k* and k to v, where training stays;
        or any, for "erf" and "linear".
    d, seed : int
        Dimension, and the seed that k and v are drawn with.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`. There is no target unless one is given.

    References
    ----------
    docs/theory/single-location.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.SingleLocation(attention="erf", snr=200, spread=0.5**0.5, scale=0.1, eta=0.5, above=0.01)
    >>> run = problem.simulate()
    >>> abs(run.observed["overlaps"][-1][:2]).round(2)
    array([1., 1.])
    """

    name: ClassVar[str] = "single-location"
    title: ClassVar[str] = "single-location regression"
    goal: ClassVar[tuple[str, float] | None] = None
    claims = Later("icl_theory.papers.single_location:CLAIMS")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("semantic", "f8", "", "overlap κ of k with k* at the end", "κ", r"\kappa"),
        Column("value", "f8", "", "overlap ν of v with v* at the end", "ν", r"\nu"),
    )  # fmt: skip

    eta: float | str = learning_rate(0.5)
    attention: str = parameter("softmax", kind=Word(words=ATTENTION), meaning="activation of the scores")
    N: int = parameter(10, kind=Whole(minimum=2, maximum=10**9), symbol="N", tex="N", meaning="tokens of a prompt")
    snr: float = parameter(
        4.0, kind=Number(zero=True, maximum=1e4), meaning="squared mean of the informative token"
    )
    spread: float = parameter(1.0, kind=Number(maximum=100.0), symbol="γ", tex=r"\gamma", meaning="its deviation")
    noise: float = label_noise(0.0, 1e15)
    scale: float = parameter(1.0, kind=Number(maximum=10.0), symbol="λ", tex=r"\lambda", meaning="factor of scores")
    first: float | None = parameter(None, kind=Fraction(optional=True), meaning="probability of the first position")
    start: str = parameter("manifold", kind=Word(words=("manifold", "sphere")), meaning="law of the start")
    d: int = parameter(400, kind=Whole(minimum=4, maximum=10**6), symbol="d", tex="d", meaning="dimension")
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of the start")

    def validate(self) -> None:
        """Draw the start."""
        if self.attention == "softmax" and self.start == "sphere":
            raise refuse("start", self.start, "manifold for softmax, whose risk is known there")
        if self.attention != "softmax" and self.first is not None:
            raise refuse("first", self.first, "left out unless attention is softmax: the others have no positions")
        k, v = np.random.default_rng(self.seed).normal(size=(2, self.d))
        if self.start == "manifold":
            k[1] = v[0] = 0.0
            v[2:] -= k[2:] * (k[2:] @ v[2:]) / (k[2:] @ k[2:])
        beside = np.linalg.qr(np.stack([k[2:], v[2:]], axis=1))[1].T  # both in two dimensions
        start = np.concatenate([np.stack([k, v])[:, :2], beside], axis=1)
        start /= np.linalg.norm(start, axis=1)[:, None]
        free = np.array([start[0, 0], start[0, 2], start[1, 1], start[1, 3], 0.0])
        risk: Risk = SoftmaxRisk(self, free) if self.attention == "softmax" else SeparateRisk(self, start)
        if self.attention != "softmax" and self.start == "manifold":
            held = np.zeros((2, 4, 4))
            held[(0, 0, 1, 1), (0, 2, 1, 3), range(4)] = 1.0
            risk = in_coordinates(risk, "linear", held, start=free[:4])
        store(self, _risk=risk)

    def risk(self) -> Risk:
        """Return the risk over what is trained."""
        return self._risk  # type: ignore[attr-defined, no-any-return]

    def bayes(self) -> Array:
        r"""Return the parameters of softmax attention that make it the posterior mean if γ = 1.

        They are :math:`k = \sqrt{\mathrm{snr}}\,k_*`, v = v* and the log odds of the first position.
        """
        q = 1.0 / self.N if self.first is None else self.first
        return np.array([math.sqrt(self.snr), 0.0, 1.0, 0.0, math.log(q * (self.N - 1.0) / (1.0 - q))])

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        found = run.params[[0, 2]] if self.attention == "softmax" else run.observed["overlaps"][-1]
        return {"semantic": float(found[0]), "value": float(found[1])}
