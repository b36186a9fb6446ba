"""Several softmax heads over the same tokens, added up with output weights: any tokens, or Gaussian inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    instance,
    integer,
    real_array,
    set_fields,
)
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.tokens.cross import product
from icl_theory.tokens.gaussian import gaussian_queries, reach_of
from icl_theory.tokens.risk import Kind, TokenRisk
from icl_theory.tokens.sampled import Pass, Sampled, softmax

LOWEST_LOG_OMEGA = -5.0  # where the search for the best inverse temperature begins


@dataclass(frozen=True, eq=False)
class HeadsRisk(Risk):
    r"""The exact loss of H softmax heads with output weights :math:`\mu_h`.

    .. math:: \mathcal L = \tfrac12 E\Bigl|\sum_h \mu_h o_h - y\Bigr|^2

    with the averages :math:`o_h` of `TokenRisk`. A parameter array, (H, 1 + UQ), holds
    in each row the output weight of a head and its scores, those of the U nodes for the
    Q queries. For given scores the loss is a quadratic form in the weights of
    :math:`\sum_h \mu_h (o_h - y) + (\sum_h \mu_h - 1)\,y`, of the products
    :math:`E[(o_h - y) \cdot (o_{h'} - y)]` and the means :math:`E[(o_h - y) \cdot y]`.

    Parameters
    ----------
    tokens : TokenRisk
        The tokens of a prompt and the target.
    heads : int
        Number of heads H.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory.md, "Tokens".

    Examples
    --------
    Two heads with opposite output weights subtract what both see:

    >>> import icl_theory as icl, numpy as np
    >>> kind = icl.Kind(40, probs=[0.5, 0.5], values=[-1.0, 1.0])
    >>> risk = icl.HeadsRisk(icl.TokenRisk(kind, target=1.0), heads=2)
    >>> weights = risk.best_output([[0.0, 0.1], [0.0, -0.1]])
    >>> weights.round(2)
    array([ 10.25, -10.25])
    """

    tokens: TokenRisk
    heads: int = 2
    _target: Array = field(init=False, repr=False)  # (Q, D)
    _without: TokenRisk = field(init=False, repr=False)  # the tokens with the target 0

    def __post_init__(self) -> None:
        instance("tokens", self.tokens, TokenRisk, "a TokenRisk")
        if self.tokens.second is not None:
            raise argument_error("tokens", self.tokens, "given by values and a target")
        set_fields(self, heads=integer("heads", self.heads, minimum=1, maximum=64))
        Q, _, D = self.tokens.errors.shape
        set_fields(self, _target=np.broadcast_to(self.tokens.target.T, (Q, D)))
        set_fields(
            self,
            _without=replace(self.tokens, target=np.zeros_like(self.tokens.target)),
        )

    @property
    def initial(self) -> Array:
        """Zero scores, and output weights 1/H, (H, 1 + UQ)."""
        start = np.zeros((self.heads, 1 + self.tokens.initial.size))
        start[:, 0] = 1.0 / self.heads
        return start

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (H, 1 + UQ)."""
        mu = params[:, 0]
        weights = np.append(mu, mu.sum() - 1.0)
        loss = 0.0
        gradient = np.zeros_like(params)
        slopes = gradient[:, 1:].reshape(len(mu), *self.tokens.own.shape)
        for q, (p, gram, along) in enumerate(self._products(params[:, 1:])):
            pull = gram @ weights
            loss += 0.5 * p * float(weights @ pull)
            gradient[:, 0] += p * (pull[:-1] + pull[-1])
            slopes[:, :, q] = p * mu[:, None] * np.einsum("k,hku->hu", weights, along)
        return loss, gradient

    def quadratic(self, scores: ArrayLike) -> tuple[Array, Array]:
        """Return E[o_h · o_h'], (H, H), and E[o_h · y], (H,), for scores of the heads, (H, UQ)."""
        given = real_array("scores", scores, 2)
        columns = self.tokens.own.size
        if not len(given) or given.shape[1] != columns:
            raise argument_error(
                "scores", given.shape, f"of shape (H, {columns}), a row for each head"
            )
        gram = np.sum([p * each for p, each, _ in self._products(given)], axis=0)
        return moments_of_averages(gram)

    def best_output(self, scores: ArrayLike) -> Array:
        """Return the output weights that minimise the loss for given scores, (H, UQ); the least ones if many do."""
        return least_output(*self.quadratic(scores))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Output weights, (H,), and the loss of each head alone with the output weight 1, (H,)."""
        alone = [
            self.tokens.evaluate(row.reshape(self.tokens.initial.shape))[0]
            for row in params[:, 1:]
        ]
        return {"output": params[:, 0].copy(), "loss_per_head": np.array(alone)}

    def _products(self, scores: Array) -> Iterator[tuple[float, Array, Array]]:
        """The probability of each query, and mean products of the errors of the heads and, last, the target.

        With these, (H + 1, H + 1), come their derivatives by the scores of the first
        head, (H, H + 1, U), or half of them where both are the same. Scores are (H,
        UQ).
        """
        tokens = self.tokens
        H = len(scores)
        given = scores.reshape(H, *tokens.own.shape)
        alone, whole = (
            [risk.moments(each) for each in given] for risk in (tokens, self._without)
        )
        for q, (errors, y) in enumerate(zip(tokens.errors, self._target, strict=True)):
            gram = np.empty((H + 1, H + 1))
            slopes = np.empty((H, H + 1, given.shape[1]))
            gram[H, H] = y @ y
            for h in range(H):
                gram[h, h], slopes[h, h] = (
                    2.0 * alone[h].loss[q],
                    alone[h].gradient[:, q],
                )
                # (errors + y)·y and not errors·y: what attention lacks to 1 by rounding
                # is not multiplied by |y|²
                gram[h, H] = gram[H, h] = (
                    alone[h].attention[:, q] @ ((errors + y) @ y) - gram[H, H]
                )
                # (o - y)·y is half of |o|² - |o - y|² - |y|²
                slopes[h, H] = whole[h].gradient[:, q] - alone[h].gradient[:, q]
                for k in range(h):
                    pair = given[h, :, q], given[k, :, q]
                    both = product(
                        *pair, tokens.probs, errors, tokens.own[:, q], tokens.counts
                    )
                    gram[h, k], slopes[h, k], slopes[k, h] = both
                    gram[k, h] = gram[h, k]
            yield tokens.asked[q], gram, slopes


def moments_of_averages(gram: Array) -> tuple[Array, Array]:
    """Return E[o_h · o_h'] and E[o_h · y] from products of the errors of the heads and, last, the target."""
    products = gram[:-1] + gram[-1]  # of averages with errors and, last, the target
    return products[:, :-1] + products[:, -1:], products[:, -1]


def least_output(gram: Array, means: Array) -> Array:
    """Return the least output weights, (H,), that minimise the loss, from the moments of the averages."""
    return np.asarray(np.linalg.lstsq(gram, means, rcond=1e-14)[0])


@dataclass(frozen=True, eq=False)
class GaussianHeadsRisk(WithStart, Risk):
    r"""Heads over Gaussian inputs: the loss of output weights μ and inverse temperatures ω, (2H,).

    It is an average over the length r of the query. Scores are :math:`\omega_h r X`
    with the component X of a token along the query.

    References
    ----------
    docs/theory/softmax-heads.md.
    """

    d: int
    N: int
    noise: float
    start: Array

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (2H,)."""
        output, omega = np.split(params, 2)
        loss = 0.0
        gradient = np.zeros((2, len(output)))
        for weight, scores, heads in self._queries(omega):
            found, slopes = heads.evaluate(
                np.column_stack([output, np.outer(omega, scores)])
            )
            loss += weight * found
            gradient += weight * np.stack([slopes[:, 0], slopes[:, 1:] @ scores])
        return loss, gradient.ravel()

    def eliminated(self, omega: Array) -> tuple[Array, float]:
        """Return the best output weights for given ω, (H,), and the loss with them."""
        output, loss, _ = self._eliminated(omega)
        return output, loss

    def _eliminated(self, omega: Array) -> tuple[Array, float, Array]:
        """Return the best output weights, (H,), the loss with them, and its slopes in ω, (H,).

        The slopes are those at fixed output weights, because the loss is stationary in
        these.
        """
        H = len(omega)
        gram = np.zeros((H + 1, H + 1))
        along = np.zeros((H, H + 1))
        for weight, scores, heads in self._queries(omega):
            for p, products, slopes in heads._products(np.outer(omega, scores)):
                gram += weight * p * products
                along += weight * p * (slopes @ scores)
        output = least_output(*moments_of_averages(gram))
        weights = np.append(output, output.sum() - 1.0)
        return output, 0.5 * float(weights @ gram @ weights), output * (along @ weights)

    def quadratic(self, omega: Array) -> tuple[Array, Array]:
        """Return E[o_h · o_h'], (H, H), and E[o_h · y], (H,), of heads with given ω, (H,)."""
        gram = np.zeros((len(omega), len(omega)))
        means = np.zeros(len(omega))
        for weight, scores, heads in self._queries(omega):
            products, along = heads.quadratic(np.outer(omega, scores))
            gram = gram + weight * products
            means = means + weight * along
        return gram, means

    @cached_property
    def best(self) -> tuple[float, float] | None:
        """The best ω up to 2 of one head, or of two with opposite ones, and the loss; None for more heads."""
        heads = len(self.start) // 2
        return least_of_heads(self.d, self.N, self.noise, heads) if heads <= 2 else None

    def floor(self) -> float:
        """Return the least loss of one head or two with ω up to 2; 0 for more, whose least loss is not known."""
        return 0.0 if self.best is None else self.best[1]

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Output weights and inverse temperatures, (H,) each."""
        output, omega = np.split(params, 2)
        return {"output": output, "omega": omega}

    def _queries(self, omega: Array) -> tuple[tuple[float, Array, HeadsRisk], ...]:
        return self._nodes(reach_of(float(np.abs(omega).max())))

    @lru_cache(maxsize=4)  # noqa: B019
    def _nodes(self, largest: float) -> tuple[tuple[float, Array, HeadsRisk], ...]:
        """Weights of the lengths, scores of a head with ω = 1, and risks."""
        found = []
        spread = np.array(self.d - 1.0 + self.noise**2)
        for weight, r, X, probs in gaussian_queries(self.d, self.N, largest):
            tokens = TokenRisk([Kind(self.N, probs, X, spread)], np.array(r))
            found.append((weight, r * X, HeadsRisk(tokens, len(self.start) // 2)))
        return tuple(found)

    def sampled(self, batch: int, seed: int = 0) -> Sampled:
        """Return the trainer on sampled prompts."""
        return Sampled(
            self.start,
            self._drawn,
            batch,
            seed,
            self.N * (self.d + 4.0 * len(self.start)),
        )

    def _drawn(self, params: Array, rng: np.random.Generator, B: int) -> Pass:
        (output, omega), d, N = np.split(params, 2), self.d, self.N
        x = rng.normal(size=(B, N + 1, d))
        beta = rng.normal(size=(B, d))
        y = np.einsum("bnd,bd->bn", x, beta)
        labels = y[:, :-1] + self.noise * rng.normal(size=(B, N))
        scores = np.einsum("bnd,bd->bn", x[:, :-1], x[:, -1])
        attention, _ = softmax(omega[:, None, None] * scores)
        means = np.einsum("hbn,bn->hb", attention, labels)
        error = output @ means - y[:, -1]
        drift = scores - np.einsum("hbn,bn->hb", attention, scores)[:, :, None]
        turn = np.einsum("hbn,hbn,bn->hb", attention, drift, labels)
        slopes = error * np.concatenate([means, output[:, None] * turn])
        return 0.5 * error**2, np.arange(len(params))[:, None], slopes


@lru_cache(maxsize=64)
def least_of_heads(d: int, N: int, noise: float, heads: int) -> tuple[float, float]:
    """Return the ω up to 2 with the least loss of one head, or of two with ω and -ω, and that loss.

    Runs of the same law from all starts and at all rates share it. Nodes are finer for
    larger ω, so that the change of sign of the slope is looked for from small ω on.
    """
    from scipy.optimize import brentq  # slow to load

    signs = np.array([1.0, -1.0])[:heads]
    risk = GaussianHeadsRisk(d, N, noise, np.zeros(2 * heads))

    @cache  # brentq begins with both ends again, and a slope takes up to a second
    def slope(log_omega: float) -> float:
        _, _, slopes = risk._eliminated(math.exp(log_omega) * signs)
        return float(slopes @ signs)

    low = LOWEST_LOG_OMEGA
    high = math.log(0.125)
    while slope(high) < 0.0 and high < math.log(2.0):
        low = high
        high = min(high + math.log(2.0), math.log(2.0))
    best = high
    if slope(high) > 0.0 > slope(low):
        best = brentq(slope, low, high, xtol=1e-5)
    omega = math.exp(best)
    return omega, risk.eliminated(omega * signs)[1]
