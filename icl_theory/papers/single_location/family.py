"""Single-location regression: one token of N is informative, and attention has to find it. As a family."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error
from icl_theory.engine import Risk, Trajectory, in_coordinates
from icl_theory.engine.risk import WithStart
from icl_theory.families import Column, Family, LazySlot, Number, Whole, Word, parameter
from icl_theory.families.parameters import Fraction, label_noise, learning_rate
from icl_theory.memory import check_fits
from icl_theory.tokens.gaussian import normal, reach_of
from icl_theory.tokens.risk import Kind, TokenRisk
from icl_theory.tokens.sampled import Pass, Sampled, softmax

ATTENTION = ("softmax", "erf", "linear")
# of k, v and the bias, what the manifold leaves: κ, κ', ν, ν', b
HELD = np.eye(9)[[0, 2, 5, 7, 8]]


@dataclass(frozen=True, eq=False)
class LocationRisk(WithStart, Risk):
    """Loss of what a single location is attended with, in coordinates along k*, v* and two more directions."""

    problem: SingleLocation
    start: Array

    def vectors(self, params: ArrayLike) -> tuple[Array, Array]:
        """Return k, v and the bias, (9,), and their derivatives by the parameters, (9, P)."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            vectors, slopes = self._vectors(self._checked(params))
        if not (np.isfinite(vectors).all() and np.isfinite(slopes).all()):
            raise argument_error(
                "params",
                params,
                "directions, not zero, of a length within the range of float64",
            )
        return vectors, slopes

    def _vectors(self, params: Array) -> tuple[Array, Array]:
        return params @ HELD, HELD.T

    def sampled(self, batch: int, seed: int = 0) -> Sampled:
        """Return the trainer on sampled prompts."""
        return Sampled(self.start, self._drawn, batch, seed, 12.0 * self.problem.N)

    def _drawn(self, params: Array, rng: np.random.Generator, B: int) -> Pass:
        """Losses of prompts whose tokens are drawn in the four directions."""
        from scipy.special import erf  # slow to load

        p = self.problem
        rows = np.arange(B)
        tokens = rng.normal(size=(B, p.N, 4))
        place = np.where(rng.random(B) < p.chance, 0, rng.integers(1, p.N, B))
        tokens[rows, place] = (
            p.spread * tokens[rows, place] + math.sqrt(p.snr) * np.eye(4)[0]
        )
        label = tokens[rows, place, 1] + p.noise * rng.normal(size=B)
        vectors, slopes = self._vectors(params)
        scores = p.scale * tokens @ vectors[:4]
        values = tokens @ vectors[4:8]
        if p.attention == "softmax":
            weight, _ = softmax(scores / p.scale + vectors[8] * (np.arange(p.N) == 0))
            pull = weight * (values - np.sum(weight * values, axis=1)[:, None])
        elif p.attention == "erf":
            weight = erf(scores)
            pull = p.scale * 2.0 / math.sqrt(math.pi) * np.exp(-(scores**2)) * values
        else:
            weight = scores
            pull = p.scale * values
        error = np.sum(weight * values, axis=1) - label
        by = [
            *(np.einsum("bn,bnd->bd", each, tokens) for each in (pull, weight)),
            pull[:, :1],
        ]
        back = error[:, None] * np.concatenate(by, axis=1) @ slopes
        return 0.5 * error**2, np.arange(params.size), back


class SeparateRisk(LocationRisk):
    """Loss of "erf" and "linear" with the directions of k and v, 2 by 4 numbers: four directions hold any two."""

    def _vectors(self, params: Array) -> tuple[Array, Array]:
        """Return the directions of k and v, and their derivatives, (9, 8)."""
        sizes = np.linalg.norm(params, axis=1)[:, None]
        slopes = np.zeros((2, 4, 2, 4))
        unit = params / sizes
        slopes[[0, 1], :, [0, 1]] = (
            np.eye(4) - unit[:, :, None] * unit[:, None]
        ) / sizes[:, None]
        return np.append(unit, 0.0), np.vstack([slopes.reshape(8, 8), np.zeros(8)])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient, which is tangential to both spheres."""
        both, slopes = self._vectors(params)
        k = both[:4]
        v = both[4:8]
        p = self.problem
        a = math.sqrt(p.snr)
        g = p.spread
        n = p.N - 1.0
        rho = float(k @ v)
        nu = v[1]
        eta = k[1]
        x, weight, f, rise = self._activations(a * k[0], g)  # of the informative token
        z, chance, h, _ = self._activations(0.0, 1.0)  # of the others
        one = float(chance @ (h * z))
        even = float(chance @ h**2)
        odd = float(chance @ (h * z) ** 2)
        # Given x, value and label are normal with means u and y; the variance of the
        # value, and the covariance
        u = a * v[0] + g * rho * x
        y = g * eta * x
        rest = g * g * (1.0 - rho**2)
        along = g * g * (nu - rho * eta)
        seen = n * rho * one  # mean of what the others add
        loss = float(
            weight @ (f * f * (0.5 * (u * u + rest)) - f * (u * y + along - seen * u))
        )
        loss += 0.5 * (
            g * g + p.noise**2 + n * (rho * rho * odd + (1.0 - rho * rho) * even)
        )
        loss += 0.5 * n * (n - 1.0) * (rho * one) ** 2
        by_f = f * (u * u + rest) - u * y - along + seen * u
        by_u = f * (f * u - y + seen)
        by_rho = weight @ (g * x * by_u - g * g * f * (rho * f - eta) + n * one * f * u)
        by_rho += n * rho * (odd - even) + n * (n - 1.0) * rho * one**2
        by_kappa = a * (weight @ (by_f * rise))
        by_eta = -(weight @ (f * g * (u * x - g * rho)))
        by_theta = a * (weight @ by_u)
        by_nu = -g * g * (weight @ f)
        found = by_rho * np.append(v, k) + [
            by_kappa,
            by_eta,
            0.0,
            0.0,
            by_theta,
            by_nu,
            0.0,
            0.0,
        ]
        return float(loss), (found @ slopes[:8]).reshape(2, 4)

    def _activations(
        self, mean: float, spread: float
    ) -> tuple[Array, Array, Array, Array]:
        """Nodes x and their weights, f at ``mean + spread x``, and its slopes."""
        from scipy.special import erf  # slow to load

        scale = self.problem.scale
        # where erf² leaves e^-40
        x, weight = normal(0.7 / math.sqrt(1.0 + 4.0 * (scale * spread) ** 2))
        s = scale * (mean + spread * x)
        if self.problem.attention == "linear":
            return x, weight, s, np.full_like(s, scale)
        return x, weight, erf(s), scale * 2.0 / math.sqrt(math.pi) * np.exp(-s * s)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The overlaps κ = kᵀk*, ν = vᵀv*, θ = vᵀk*, η = kᵀv* and ρ = kᵀv."""
        k, v = self._vectors(params)[0][:8].reshape(2, 4)
        return {"overlaps": np.array([k[0], v[1], v[0], k[1], k @ v])}


class SoftmaxRisk(LocationRisk):
    """Loss of "softmax" by (κ, κ', ν, ν', b), on the manifold that training does not leave.

    There k = κk* + κ'e and v = νv* + ν'e' with directions beside k*, v* and each other,
    and values are independent of scores.
    """

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (5,)."""
        (kappa, beside, nu, rest, bias), p = params, self.problem
        r = math.hypot(kappa, beside)
        size = nu * nu + rest * rest
        chance = np.array([p.chance, 1.0 - p.chance])
        tokens, slopes = self._tokens(reach_of(r * max(1.0, p.spread)))
        found = tokens.moments(slopes @ [r, kappa, bias])
        # half mean squares of o - γ and of o, for |v| = 1
        gap, square = found.loss.reshape(2, 2) @ chance
        # less γ² times the attention on the informative token
        seen = gap - square - 0.5 * p.spread**2
        loss = size * square + nu * seen + 0.5 * (p.spread**2 + p.noise**2)
        asked = np.outer([nu, size - nu], chance).ravel()
        by_r, by_kappa, by_bias = np.einsum(
            "uq,uqp,q->p", found.gradient, slopes, asked
        )
        turn = by_r * np.array([kappa, beside]) / r if r else np.zeros(2)
        by_v = 2.0 * square * np.array([nu, rest]) + [seen, 0.0]
        return float(loss), np.array([by_kappa + turn[0], turn[1], *by_v, by_bias])

    @lru_cache(maxsize=8)  # noqa: B019
    def _tokens(self, largest: float) -> tuple[TokenRisk, Array]:
        """Tokens, and slopes of scores by (r, κ, b); targets γ and 0, with the informative token first or not."""
        # nodes as close as this leave an error of e^-30 where weights grow like e^(r x)
        # or e^(r γ x)
        (x, probs), p = normal(min(0.25, math.pi**2 / (30.0 * largest))), self.problem
        check_fits("N", f"{x.size} nodes", 8.0 * 2000 * x.size)
        still = np.zeros(x.size)
        others = [
            Kind(many, probs, still, still + 1.0) for many in (1, p.N - 2) if many
        ]
        kinds = [Kind(1, probs, still + p.spread), *others]
        slopes = np.zeros((len(kinds), x.size, 4, 3))
        slopes[..., 0] = x[:, None]
        slopes[0, ..., :2] = np.stack([p.spread * x, still + math.sqrt(p.snr)], axis=1)[
            :, None
        ]
        slopes[[0, 1, 0, 1], :, range(4), 2] = 1.0  # the first place
        target = p.spread * np.array([[1.0, 1.0, 0.0, 0.0]])
        return TokenRisk(kinds, target, np.full(4, 0.25)), slopes.reshape(-1, 4, 3)

    def floor(self) -> float:
        """Return the Bayes risk, where it is known: with a spread of 1, as of all other tokens."""
        p = self.problem
        return self.evaluate(p.bayes())[0] if p.spread == 1.0 else 0.5 * p.noise**2


@dataclass(frozen=True, eq=False)
class SingleLocation(Family):
    r"""Single-location regression: the label is a function of one of N tokens, which attention has to find.

    Tokens are N(0, I), but the informative one, :math:`N(\sqrt{\mathrm{snr}}\,k_*,
    \gamma^2I)`; the label is :math:`y = v_*^\top X_J + \sigma\xi` with orthogonal unit
    vectors k*, v*. "softmax" trains k, v and a bias of the first position, see
    ``SoftmaxRisk``; "erf" and "linear" directions of k and v, see ``SeparateRisk``.

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
        Factor λ of the scores of "erf" and "linear"; softmax trains the size of k
        instead.
    first : float, optional
        Probability that the first token is the informative one; the others share the
        rest alike. 1/N unless given; "softmax" only.
    start : {"manifold", "sphere"}
        Random unit vectors k, v in d dimensions: with k orthogonal to v*, v to k* and k
        to v, where training stays; or any, for "erf" and "linear".
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
    claims = LazySlot("icl_theory.papers.single_location.statements:CLAIMS")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "semantic", "f8", "", "overlap κ of k with k* at the end", "κ", r"\kappa"
        ),
        Column("value", "f8", "", "overlap ν of v with v* at the end", "ν", r"\nu"),
    )

    eta: float | str = learning_rate(0.5)
    attention: str = parameter(
        "softmax", kind=Word(words=ATTENTION), meaning="activation of the scores"
    )
    N: int = parameter(
        10,
        kind=Whole(minimum=2, maximum=10**9),
        symbol="N",
        tex="N",
        meaning="tokens of a prompt",
    )
    snr: float = parameter(
        4.0,
        kind=Number(zero=True, maximum=1e4),
        meaning="squared mean of the informative token",
    )
    spread: float = parameter(
        1.0,
        kind=Number(maximum=100.0),
        symbol="γ",
        tex=r"\gamma",
        meaning="its deviation",
    )
    noise: float = label_noise(0.0, 1e15)
    scale: float = parameter(
        1.0,
        kind=Number(maximum=10.0),
        symbol="λ",
        tex=r"\lambda",
        meaning="factor of scores",
    )
    first: float | None = parameter(
        None, kind=Fraction(optional=True), meaning="probability of the first position"
    )
    start: str = parameter(
        "manifold", kind=Word(words=("manifold", "sphere")), meaning="law of the start"
    )
    d: int = parameter(
        400,
        kind=Whole(minimum=4, maximum=10**6),
        symbol="d",
        tex="d",
        meaning="dimension",
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of the start")

    def validate(self) -> None:
        """Refuse a start and positions that this attention has not."""
        if self.attention == "softmax" and self.start == "sphere":
            raise argument_error(
                "start", self.start, "manifold for softmax, whose risk is known there"
            )
        if self.attention != "softmax" and self.first is not None:
            raise argument_error(
                "first",
                self.first,
                "left out unless attention is softmax: the others have no positions",
            )

    def risk(self) -> Risk:
        """Return the risk over what is trained, from the start that is drawn."""
        drawn = np.random.default_rng(self.seed).normal(size=(2, self.d))
        beside = np.linalg.qr(drawn[:, 2:].T)[
            1
        ].T  # both in two dimensions, of which k has the first
        start = np.concatenate([drawn[:, :2], beside], axis=1)
        if self.start == "manifold":
            start[[0, 1, 1], [1, 0, 2]] = 0.0
        start /= np.linalg.norm(start, axis=1)[:, None]
        free = HELD @ np.append(start, 0.0)
        if self.attention == "softmax":
            return SoftmaxRisk(self, free)
        risk = SeparateRisk(self, start)
        if self.start == "sphere":
            return risk
        return in_coordinates(
            risk, "linear", HELD[:4, :8].T.reshape(2, 4, 4), start=free[:4]
        )

    @property
    def chance(self) -> float:
        """Probability that the first token is the informative one."""
        return 1.0 / self.N if self.first is None else self.first

    def bayes(self) -> Array:
        r"""Return the parameters of softmax attention that make it the posterior mean if γ = 1.

        They are :math:`k = \sqrt{\mathrm{snr}}\,k_*`, v = v* and the log odds of the
        first position.
        """
        odds = self.chance * (self.N - 1.0) / (1.0 - self.chance)
        return np.array([math.sqrt(self.snr), 0.0, 1.0, 0.0, math.log(odds)])

    def describe(self, run: Trajectory) -> None:
        """Say what is outside the theorems."""
        if self.start == "sphere":
            run.notes["start"] = (
                "outside the theorems: off the manifold k and v may end with swapped roles"
            )
        if self.attention == "softmax" and self.spread != 1.0:
            run.notes["floor"] = (
                "half the noise: the Bayes risk is known for spread = 1 alone"
            )

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        found = (
            run.params[[0, 2]]
            if self.attention == "softmax"
            else run.observed["overlaps"][-1]
        )
        return {"semantic": float(found[0]), "value": float(found[1])}
