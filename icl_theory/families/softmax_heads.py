"""In-context linear regression with softmax heads of two trained numbers each, as a family."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.pullback import Linear, Pullback
from icl_theory.engine.risk import Risk
from icl_theory.engine.tokens.heads import HeadsRisk
from icl_theory.engine.tokens.risk import Kind, TokenRisk
from icl_theory.engine.tokens.sampled import SampledTokens
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.parameters import Number, Whole, label_noise, learning_rate, parameter
from icl_theory.grids.grid import Column


def gaussian_tokens(d: int, N: int, noise: float, radii: int = 12, step: float = 0.5) -> tuple[Array, TokenRisk]:
    r"""Return the scores of a head with ω = 1, (U, Q), and the risk over the scores of tokens x ~ N(0, I).

    The length r of the query is at Gauss–Laguerre nodes, and a token's component X along it at those of the
    trapezoid rule. The value of a token has the coordinate X along the query and the variance
    :math:`d - 1 + \sigma^2` beside; the target is r.
    """
    from scipy.special import roots_genlaguerre  # slow to load

    squares, weights = roots_genlaguerre(radii, d / 2.0 - 1.0)
    r, last = np.sqrt(2.0 * squares), math.ceil(8.5 / step)
    X = step * np.arange(-last, last + 1.0)
    probs = np.exp(-0.5 * X * X)
    tokens = Kind(N, probs / probs.sum(), X, np.array(d - 1.0 + noise**2))
    return X[:, None] * r, TokenRisk([tokens], r[None], weights / weights.sum())


@dataclass(frozen=True, eq=False)
class PairsRisk(Pullback):
    """The loss of output weights and inverse temperatures, (2H,)."""

    scores: Array  # of a head with ω = 1, (U, Q)

    @cached_property
    def best(self) -> tuple[float, float] | None:
        """The best ω of one head, or of two with opposite ones, and the loss there; None for more heads."""
        from scipy.optimize import minimize_scalar  # slow to load

        inner: Any = self.risk
        if inner.heads > 2:
            return None
        signs = np.array([1.0, -1.0])[: inner.heads]

        def loss(log_omega: float) -> float:
            scores = np.outer(math.exp(log_omega) * signs, self.scores)
            return inner.evaluate(np.column_stack([inner.best_output(scores), scores]))[0]

        found = minimize_scalar(loss, bounds=(-5.0, 0.0), method="bounded", options={"xatol": 1e-4})
        return math.exp(found.x), float(found.fun)

    def floor(self) -> float:
        """Return the least loss of one head or two; 0 for more, whose least loss is not known."""
        return 0.0 if self.best is None else self.best[1]

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Output weights and inverse temperatures, (H,) each."""
        output, omega = np.split(params, 2)
        return {"output": output, "omega": omega}


class SampledHeads(Risk):
    """Mean of ½(Σ μ_h o_h - y)² over sampled prompts, with softmax applied to the tokens as they come."""

    def __init__(self, tokens: SampledTokens, scores: Array, length: Array, initial: Array) -> None:
        self._tokens, self._scores, self._length, self._initial = tokens, scores, length, initial

    @property
    def initial(self) -> Array:
        """Where training starts, (2H,)."""
        return self._initial

    @property
    def stochastic(self) -> bool:
        """Steps draw different prompts."""
        return True

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient."""
        drawn, (output, omega) = self._tokens.prompts(step), np.split(params, 2)
        query, length = drawn.query[:, None], self._length[drawn.query]
        scores = self._scores[drawn.node, query]
        along, beside = scores / length[:, None], drawn.noise  # of the values: beside the query it is one axis
        heat = omega[:, None, None] * scores
        attention = np.exp(heat - heat.max(axis=2, keepdims=True))
        attention /= attention.sum(axis=2, keepdims=True)
        means = np.stack([np.einsum("hbn,bn->hb", attention, each) for each in (along, beside)])
        error = np.einsum("h,ahb->ab", output, means)
        error[0] -= length
        drift = scores - np.einsum("hbn,bn->hb", attention, scores)[:, :, None]
        turn = np.stack([np.einsum("hbn,hbn,bn->hb", attention, drift, each) for each in (along, beside)])
        slopes = [np.einsum("ab,ahb->h", error, each) / len(length) for each in (means, turn)]
        return 0.5 * float(np.mean(np.sum(error**2, axis=0))), np.concatenate([slopes[0], output * slopes[1]])


@dataclass(frozen=True, eq=False)
class SoftmaxHeads(Family):
    r"""In-context linear regression with H softmax heads.

    .. math:: \hat y = \sum_h \mu_h \sum_i y_i\,\mathrm{softmax}_i(\omega_h x_i^\top x)

    Inputs are x ~ N(0, I), labels y = βᵀx + σξ with β ~ N(0, I); (μ, ω) are trained from small normal numbers.

    Parameters
    ----------
    d : int
        Dimension of the inputs.
    N : int
        Pairs in a prompt.
    noise : float
        Standard deviation of the label noise, label units.
    heads : int
        Number of heads H.
    start, seed : float, int
        Standard deviation of all parameters at step 0, and the seed that they are drawn with.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`.

    References
    ----------
    docs/theory/softmax-heads.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> omega, least = icl.SoftmaxHeads(heads=2).risk().best
    >>> round(least, 4)
    0.3337
    """

    name: ClassVar[str] = "softmax-heads"
    title: ClassVar[str] = "in-context linear regression with softmax heads"
    goal: ClassVar[tuple[str, float]] = ("above", 0.05)
    columns: ClassVar[tuple[Column, ...]] = (
        Column("best", "f8", "", "best size of ω of one head or two", "ω*", r"\omega^*"),
        Column("zero_sum", "f8", "", "|Σμ|/Σ|μ| at the end: 0 where output weights cancel"),
        Column("omega", "f8", "", "largest |ω| at the end", "ω", r"\omega"),
    )

    eta: float | str = learning_rate(0.02)
    d: int = parameter(5, kind=Whole(maximum=1000), symbol="d", tex="d", meaning="dimension of the inputs")
    N: int = parameter(40, kind=Whole(maximum=10**9), symbol="N", tex="N", meaning="pairs in a prompt")
    noise: float = label_noise(0.1, 1e15)
    heads: int = parameter(1, kind=Whole(maximum=8), symbol="H", tex="H", meaning="number of heads")
    start: float = parameter(0.1, kind=Number(maximum=10.0), meaning="size of the parameters at step 0")
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of the start")

    def validate(self) -> None:
        """Make the risk."""
        scores, tokens = gaussian_tokens(self.d, self.N, self.noise)
        H = self.heads
        matrix = np.zeros((H, 1 + scores.size, 2 * H))
        for h in range(H):
            matrix[h, 0, h], matrix[h, 1:, H + h] = 1.0, scores.ravel()
        start = np.random.default_rng(self.seed).normal(0.0, self.start, 2 * H)
        object.__setattr__(self, "_risk", PairsRisk(HeadsRisk(tokens, H), Linear(matrix, start), scores))

    def risk(self) -> PairsRisk:
        """Return the risk over output weights and inverse temperatures."""
        return self._risk  # type: ignore[attr-defined, no-any-return]

    def sampled(self, batch: int, seed: int = 0) -> SampledHeads:
        """Return the trainer on sampled prompts."""
        risk: Any = self.risk()
        tokens: TokenRisk = risk.risk.tokens
        return SampledHeads(tokens.sampled(batch, seed), risk.scores, tokens.target[0], risk.initial)

    def describe(self, run: Trajectory) -> None:
        """Say which ω is best."""
        best = self.risk().best
        if best is not None:
            omega, least = best
            run.notes["best"] = f"|ω| = {omega:.4g} with the loss {least:.6g}"

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        output, omega = np.split(run.params, 2)
        found = {"zero_sum": float(abs(output.sum()) / np.abs(output).sum()), "omega": float(np.abs(omega).max())}
        best = self.risk().best
        return found if best is None else found | {"best": best[0]}
