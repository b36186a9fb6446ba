"""Single-location regression: attention must find the informative token among N.

`SingleLocation` is the family. Its risk is a `SoftmaxRisk` for softmax attention, and a
`SeparateRisk` for the activations "erf" and "linear", which act on each score alone.

The unit vector k* is the direction of the mean of the informative token, and v* is the
direction in which its label is read. In D dimensions they are the axes 0 and 1.
Attention has the scores k·X of the tokens X. It adds up their values v·X, weighted by a
function of the scores. The overlaps are κ = k·k*, η = k·v*, θ = v·k*, ν = v·v* and
ρ = k·v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from icl_theory._validate import Array, argument_error, integer
from icl_theory.engine import Projected, Pullback, Risk, Rule, Trajectory
from icl_theory.engine.pullback import Linear, SampledPullback
from icl_theory.engine.risk import WithStart
from icl_theory.engine.rules import rule_of
from icl_theory.engine.sampling import Trainer, trainer_of
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    Whole,
    Word,
    WordOrArray,
    parameter,
)
from icl_theory.families.parameters import (
    Fraction,
    label_noise,
    learning_rate,
    loss_form,
)
from icl_theory.memory import check_fits
from icl_theory.papers.single_location.sampled import LocationTrainer
from icl_theory.tokens.gaussian import next_power_of_two, normal
from icl_theory.tokens.risk import Kind, TokenRisk

ATTENTION = ("softmax", "erf", "linear")
# Largest spacing of the nodes of a normal variable, in standard deviations. This
# cautious spacing is used if scores are small; larger scores need closer nodes.
LARGEST_STEP = 0.25
# A generous bound on the numbers that a `TokenRisk` holds in memory for each node.
NUMBERS_OF_NODE = 2000
# The parameters (k, v, b) have nine coordinates: four of k, four of v and the bias b.
# On the manifold of `SoftmaxRisk` five of them are free. These are κ and κ', the
# coordinates of k along the axes 0 and 2; ν and ν', the coordinates of v along the axes
# 1 and 3; and b. All other coordinates are zero. The matrix, (5, 9), selects the free
# coordinates.
ON_MANIFOLD = np.eye(9)[[0, 2, 5, 7, 8]]


class Activations(NamedTuple):
    """Attention weights at J nodes of a normal score."""

    x: Array  # nodes of a standard normal variable, (J,)
    probs: Array  # of the nodes, (J,)
    f: Array  # activation of the score at a node, (..., J)
    slope: Array  # derivative of the activation with respect to the score, (..., J)


class _Informative(NamedTuple):
    """The informative token at J nodes of x, the normal variable of its score.

    The score is a linear function of x. Given x, the value and the label of the token
    are normal. All fields but the first two may be for several k and v at once, whose
    axes come first.
    """

    x: Array  # (J,)
    probs: Array  # of the nodes, (J,)
    f: Array  # activation of the score, (..., J)
    slope: Array  # derivative of the activation with respect to the score, (..., J)
    u: Array  # mean of the value, (..., J)
    y: Array  # mean of the label, (..., J)
    value_variance: Array  # (..., 1)
    covariance: Array  # of value and label, (..., 1)


class _Uninformative(NamedTuple):
    """Means over the normal score z of an uninformative token, with h = f(z).

    The score has the mean zero and the variance 1.
    """

    hz: float  # E[hz]
    h2: float  # E[h²]
    h2z2: float  # E[h²z²]


@dataclass(frozen=True, eq=False)
class SeparateRisk(WithStart, Risk):
    """The loss with "erf" or "linear" attention as a function of k and v, (2, D).

    The rows of the parameters are k and v, whose lengths have no effect. The axes 0 and
    1 of the D dimensions are k* and v*. Any k and v lie in the span of k*, v* and two
    more axes, so that D = 4 is enough for the exact risk.
    """

    problem: SingleLocation
    start: Array

    def sampled(self, batch: int, seed: int = 0) -> LocationTrainer:
        """Return the trainer on sampled prompts in the same D dimensions."""
        return LocationTrainer(self.problem, self.start, batch, seed)

    @property
    def scheduled(self) -> bool:
        """Whether the factor of the scores falls from step to step."""
        return self.problem.scale_decay > 0.0

    def blocks(self, array: Array) -> Sequence[Array]:
        """k and v."""
        return array[0], array[1]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient: a row orthogonal to k, and a row orthogonal to v.

        The output is f V + O. The first part comes from the informative token X_J, with
        the activation f of its score and its value V = v·X_J. The second part O comes
        from the n = N - 1 other tokens. The loss is E[f²V²]/2 - E[f V y] + E[f V O] +
        E[y²]/2 + E[O²]/2, where

            E[O²] = n (ρ² E[h²z²] + (1 - ρ²) E[h²]) + n (n - 1) (ρ E[hz])²

        for the activation h = f(z) of a normal score z and ρ = k·v. O is independent of
        the label y, whose mean is zero, so that E[y O] = 0. The value of an
        uninformative token is normal, and its covariance with the score is ρ.
        """
        unit, lengths = _normalised(params)
        scale = self.problem.scale_at(step)
        informative = self._informative(unit, scale)
        uninformative = self._uninformative(scale)
        loss = self._loss(unit, informative, uninformative)
        by_vectors = self._derivatives(unit, informative, uninformative)
        return loss, _by_directions(by_vectors, unit, lengths)

    def gradients(self, states: Array) -> Array:
        """Gradients at n states, (n, 2, D)."""
        unit, lengths = _normalised(states)
        # The engine asks for several states at once only if the loss is the same at all
        # steps. The factor of step 0 is then the factor of all steps.
        scale = self.problem.scale_at(0)
        informative = self._informative(unit, scale)
        by_vectors = self._derivatives(unit, informative, self._uninformative(scale))
        return _by_directions(by_vectors, unit, lengths)

    def _informative(self, unit: Array, scale: float) -> _Informative:
        """Return the informative token for unit vectors k and v, (..., 2, D).

        The coordinate of the token along k* is a plus g times a standard normal number,
        with a = √snr and g = γ. All other coordinates are g times a standard normal
        number. The label is the coordinate along v*, plus noise.
        """
        a = math.sqrt(self.problem.snr)
        g = self.problem.spread  # γ
        # The axis of the nodes x comes last, after the axes of several k and v.
        kappa, eta, theta, nu, rho = _overlaps(unit)[..., None]
        # The score is k·X_J = aκ + g x with a standard normal x.
        x, probs, f, slope = self._activations(mean=a * kappa, spread=g, scale=scale)
        return _Informative(
            x=x,
            probs=probs,
            f=f,
            slope=slope,
            u=a * theta + g * rho * x,
            y=g * eta * x,
            value_variance=g * g * (1.0 - rho**2),
            covariance=g * g * (nu - rho * eta),
        )

    def _loss(
        self, unit: Array, informative: _Informative, uninformative: _Uninformative
    ) -> float:
        """Return the loss at unit vectors k and v, by the sum in `evaluate`."""
        p = self.problem
        g = p.spread
        n = p.N - 1.0
        *_, rho = _overlaps(unit)
        _, probs, f, _, u, y, value_variance, covariance = informative
        # E[h²V²] of an uninformative token with the value V
        mean_square = (
            rho * rho * uninformative.h2z2 + (1.0 - rho * rho) * uninformative.h2
        )
        mean_other = n * rho * uninformative.hz  # E[O]
        # E[f²V²]/2 - E[f V y] + E[f V O], first at each node x. At a node the value and
        # the label have the means u and y. So E[V²] is u² + value_variance there, and
        # the mean product of value and label is u y + covariance.
        at_nodes = f * f * (0.5 * (u * u + value_variance)) - f * (
            u * y + covariance - mean_other * u
        )
        loss = float(probs @ at_nodes)
        # E[y²]/2, and E[O²]/2 in two parts: squares of single tokens, and products of
        # two different tokens
        loss += 0.5 * (g * g + p.noise**2 + n * mean_square)
        loss += 0.5 * n * (n - 1.0) * (rho * uninformative.hz) ** 2
        return float(loss)

    def _derivatives(
        self, unit: Array, informative: _Informative, uninformative: _Uninformative
    ) -> Array:
        """Return the derivatives of the loss with respect to k and v, (..., 2, D).

        A name ``by_z`` is the derivative with respect to z. First, z is f or u at each
        node, and then one of the overlaps κ = k·k*, η = k·v*, θ = v·k*, ν = v·v* and
        ρ = k·v. The overlap ρ enters u, the variance of the value, its covariance with
        the label, E[O] and E[O²]; η enters y and the covariance; κ enters f; θ enters
        u; ν enters the covariance.
        """
        a = math.sqrt(self.problem.snr)
        g = self.problem.spread
        n = self.problem.N - 1.0
        _, eta, _, _, rho = _overlaps(unit)[..., None]
        x, probs, f, slope, u, y, value_variance, covariance = informative
        mean_hz = uninformative.hz
        mean_other = n * rho * mean_hz  # E[O]

        by_f = f * (u * u + value_variance) - u * y - covariance + mean_other * u
        by_u = f * (f * u - y + mean_other)
        # The derivative with respect to ρ through u, the variance of the value, its
        # covariance with the label, and E[O].
        by_rho_at_nodes = (
            g * x * by_u - g * g * f * (rho * f - eta) + n * mean_hz * f * u
        )
        # The derivative with respect to ρ through E[O²]/2. It contains the derivative
        # of E[h²V²] = ρ² E[h²z²] + (1 - ρ²) E[h²] with respect to ρ².
        square_slope = uninformative.h2z2 - uninformative.h2
        by_rho_of_square = n * rho * square_slope + n * (n - 1.0) * rho * mean_hz**2
        # Means over the nodes, (...). Only ``by_rho`` has one more axis, (..., 1), like
        # ``rho``.
        by_rho = (by_rho_at_nodes @ probs)[..., None] + by_rho_of_square
        by_kappa = a * ((by_f * slope) @ probs)
        by_eta = -((f * g * (u * x - g * rho)) @ probs)
        by_theta = a * (by_u @ probs)
        by_nu = -g * g * (f @ probs)
        # The derivatives of ρ = k·v with respect to k and v are v and k: the rows in
        # reverse order. The other overlaps are the coordinates of k and v along the
        # axes 0 and 1, which are k* and v*.
        by_vectors = by_rho[..., None] * unit[..., ::-1, :]
        by_vectors[..., 0, 0] += by_kappa
        by_vectors[..., 0, 1] += by_eta
        by_vectors[..., 1, 0] += by_theta
        by_vectors[..., 1, 1] += by_nu
        return np.asarray(by_vectors)

    # The cache helps because all steps of descent ask for the same factor, unless the
    # factor falls. All risks share the cache, which keeps at most eight risks alive.
    @lru_cache(maxsize=8)  # noqa: B019
    def _uninformative(self, scale: float) -> _Uninformative:
        """Return the moments of an uninformative token.

        ``scale`` is the factor λ of the scores.
        """
        z, probs, h, _ = self._activations(mean=0.0, spread=1.0, scale=scale)
        hz = h * z
        return _Uninformative(
            hz=float(probs @ hz), h2=float(probs @ h**2), h2z2=float(probs @ hz**2)
        )

    def _activations(
        self, mean: float | Array, spread: float, scale: float
    ) -> Activations:
        """Return the attention at nodes of a score with this mean, (..., 1).

        The standard deviation of the score is ``spread``. The activation takes the
        score times ``scale``, the factor λ.
        """
        from scipy.special import erf  # slow to load

        # On the line Im x = y, erf² times the normal density is of the order
        # e^((1 + 4(λγ)²) y²/2), with γ = ``spread``. So the trapezoid rule with this
        # step has an error of e^(-2π²/0.7²) = e^-40.
        x, probs = normal(0.7 / math.sqrt(1.0 + 4.0 * (scale * spread) ** 2))
        scaled = scale * (mean + spread * x)
        if self.problem.attention == "linear":
            return Activations(x, probs, scaled, np.full_like(scaled, scale))
        # The derivative of erf(λs) with respect to the score s
        slope = scale * 2.0 / math.sqrt(math.pi) * np.exp(-scaled * scaled)
        return Activations(x, probs, erf(scaled), slope)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The overlaps κ = kᵀk*, ν = vᵀv*, θ = vᵀk*, η = kᵀv* and ρ = kᵀv."""
        unit, _ = _normalised(params)
        kappa, eta, theta, nu, rho = _overlaps(unit)
        return {"overlaps": np.array([kappa, nu, theta, eta, rho])}


def _normalised(params: Array) -> tuple[Array, Array]:
    """Return the unit vectors along k and v, (..., 2, D), and the lengths of both."""
    lengths = np.linalg.norm(params, axis=-1, keepdims=True)
    return params / lengths, lengths


def _overlaps(unit: Array) -> Array:
    """Return the overlaps κ, η, θ, ν and ρ of unit vectors k and v, (5, ...)."""
    k = unit[..., 0, :]
    v = unit[..., 1, :]
    rho = np.einsum("...i,...i->...", k, v)
    # The coordinates 0 and 1 are along k* and v*.
    return np.array([k[..., 0], k[..., 1], v[..., 0], v[..., 1], rho])


def _by_directions(by_vectors: Array, unit: Array, lengths: Array) -> Array:
    """Return derivatives with respect to the directions of vectors, (..., 2, D).

    A change along a vector does not turn it, so this part of the derivatives with
    respect to the unit vectors is removed. The same change turns a longer vector less,
    so the rest is divided by the length.
    """
    along = np.sum(by_vectors * unit, axis=-1, keepdims=True)
    return np.asarray((by_vectors - along * unit) / lengths)


@dataclass(frozen=True, eq=False)
class ManifoldCoordinates(Linear):
    """The map from (κ, κ', ν, ν') to k and v, with a block of two numbers for each."""

    def blocks(self, array: Array) -> Sequence[Array]:
        """The coordinates of k, (κ, κ'), and those of v, (ν, ν')."""
        return array[:2], array[2:]


@dataclass(frozen=True, eq=False)
class SoftmaxRisk(WithStart, Risk):
    """The loss with "softmax" attention as a function of (κ, κ', ν, ν', b).

    These are the parameters on the manifold, where k = κk* + κ'e and v = νv* + ν'e',
    with unit vectors e and e' that are orthogonal to k*, v* and each other. Values are
    then independent of scores. Training stays on the manifold. The number b is the bias
    of the first position.
    """

    problem: SingleLocation
    start: Array

    def sampled(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return the trainer on sampled prompts that stays on the manifold."""
        # The trainer has the parameters (k, v, b), with four coordinates each for k and
        # v. They are linear functions of the five free parameters.
        full_start = self.start @ ON_MANIFOLD
        full_trainer = LocationTrainer(self.problem, full_start, batch, seed)
        on_manifold = Pullback(full_trainer, Linear(ON_MANIFOLD.T, self.start))
        return SampledPullback(on_manifold)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient, (5,).

        Values are independent of scores. So the loss depends on the attention a only
        through two moments, γ²E[a_J] and E[γ²a_J² + Σ a_l²]. Here J is the informative
        token, and the sum is over all other tokens l. Let o be the average of the
        values, weighted by a, if J has the value γ and all other values have the mean 0
        and the variance 1. Both moments follow from the losses of o with the targets γ
        and 0.
        """
        # κ' is the coordinate of k orthogonal to k*, and ν' is the coordinate of v
        # orthogonal to v*.
        kappa, kappa_across, nu, nu_across, bias = params
        p = self.problem
        g2 = p.spread**2  # γ²
        r = math.hypot(kappa, kappa_across)  # |k|
        v_square = nu * nu + nu_across * nu_across
        # The probabilities that the informative token is the first one, or a later one
        first_or_later = np.array([p.chance, 1.0 - p.chance])
        # The size of the scores is rounded up, so that many steps use the same nodes.
        tokens, slopes = self._tokens(next_power_of_two(r * max(1.0, p.spread)))
        # The scores are linear in (r, κ, b), so they are the product with their slopes.
        moments = tokens.moments(slopes @ [r, kappa, bias])

        # The losses with the targets γ and 0 are E[(o - γ)²]/2 and E[o²]/2. The four
        # queries are the two targets, each with the informative token first or later.
        gamma_loss, zero_loss = moments.loss.reshape(2, 2) @ first_or_later
        # The cross term of E[(o - γ)²]/2, which is -γE[o], or -γ² times the mean
        # attention on the informative token.
        cross_term = gamma_loss - zero_loss - 0.5 * g2
        # |v|² E[o²]/2 - νγE[o] + E[y²]/2
        loss = v_square * zero_loss + nu * cross_term + 0.5 * (g2 + p.noise**2)

        # A name by_z is the derivative of the loss with respect to z. The loss depends
        # on ``gamma_loss`` and ``zero_loss`` through ``cross_term``, and on
        # ``zero_loss`` also directly.
        by_losses = [nu, v_square - nu]
        by_moment = np.outer(by_losses, first_or_later).ravel()  # (4,)
        # The index u is for nodes, q for queries, and i for the parameters (r, κ, b) of
        # the scores.
        by_r, by_kappa, by_bias = np.einsum(
            "uq,uqi,q->i", moments.gradient, slopes, by_moment
        )
        # The derivative with respect to (κ, κ') through r alone. At r = 0 the direction
        # of k is undefined, but the derivative with respect to r is 0.
        by_k = np.zeros(2)
        if r:
            by_k = by_r * np.array([kappa, kappa_across]) / r
        # Two terms of the loss depend on v: |v|² E[o²]/2, and ν times the cross term.
        by_v = 2.0 * zero_loss * np.array([nu, nu_across]) + [cross_term, 0.0]
        return float(loss), np.array([by_kappa + by_k[0], by_k[1], *by_v, by_bias])

    # The cache helps because many steps of descent use the same nodes. All risks share
    # the cache, which keeps at most eight risks alive.
    @lru_cache(maxsize=8)  # noqa: B019
    def _tokens(self, largest: float) -> tuple[TokenRisk, Array]:
        """Return the tokens, and the derivatives of their scores.

        The nodes are fine enough for scores of a standard deviation up to ``largest``.
        The derivatives, (U, 4, 3), are with respect to (r, κ, b) at U nodes for four
        queries. The first two queries have the target γ, and the last two the target 0.
        In each of these pairs, the first query has the informative token in the first
        position, and the second query has it in a later position.
        """
        p = self.problem
        # A weight is w = e^(c x), with c = r or rγ, at most ``largest``. The moments
        # contain means of e^(-s w) over x for numbers s. For such a mean the trapezoid
        # rule with the step h has an error of e^(-π²/(c h)), at most e^-30 here.
        x, probs = normal(min(LARGEST_STEP, math.pi**2 / (30.0 * largest)))
        check_fits("N", f"{x.size} nodes", 8.0 * NUMBERS_OF_NODE * x.size)
        zeros = np.zeros(x.size)
        ones = zeros + 1.0
        # The informative token with the value γ; another token, which has the first
        # position unless the informative token has it; and the rest. The ``spread`` of
        # a `Kind` is the variance of its values, while ``p.spread`` is γ.
        kinds = [
            Kind(1, probs, values=zeros + p.spread),
            Kind(1, probs, values=zeros, spread=ones),
        ]
        if p.N > 2:
            kinds.append(Kind(p.N - 2, probs, values=zeros, spread=ones))
        # The axes are kinds, nodes, queries, and (r, κ, b).
        slopes = np.zeros((len(kinds), x.size, 4, 3))
        # Without the bias, the score of the informative token is √snr κ + γ r x, and
        # the score of any other token r x.
        slopes[..., 0] = x[:, None]
        slopes[0, ..., 0] = (p.spread * x)[:, None]
        slopes[0, ..., 1] = math.sqrt(p.snr)
        # The bias belongs to the token in the first position. In queries 0 and 2 this
        # is the informative token, and in queries 1 and 3 the token of the next kind.
        slopes[0, :, [0, 2], 2] = 1.0
        slopes[1, :, [1, 3], 2] = 1.0
        target = p.spread * np.array([[1.0, 1.0, 0.0, 0.0]])
        # The weights of the queries have no effect, because `evaluate` weighs their
        # moments itself.
        weights = np.full(4, 0.25)
        return TokenRisk(kinds, target, weights), slopes.reshape(-1, 4, 3)

    def floor(self) -> float:
        """Return the Bayes risk if it is known, and otherwise half the noise variance.

        The Bayes risk is known if the informative token has the spread 1, as all other
        tokens have.
        """
        p = self.problem
        return self.evaluate(p.bayes())[0] if p.spread == 1.0 else 0.5 * p.noise**2


@dataclass(frozen=True, eq=False)
class SingleLocation(Family):
    r"""Single-location regression: attention must find the token with the label.

    The informative token :math:`X_J` is :math:`N(\sqrt{\mathrm{snr}}\,k_*, \gamma^2I)`,
    and all other tokens are N(0, I). The label is :math:`y = v_*^\top X_J + \sigma\xi`
    with orthogonal unit vectors k*, v* and a standard normal ξ. The prediction is
    :math:`\sum_i a_iv^\top X_i` with attention :math:`a_i` that is a function of the
    scores :math:`k^\top X_i`. "softmax" trains k, v and a bias of the score in the
    first position, see ``SoftmaxRisk``; "erf" and "linear" train the directions of k
    and v, see ``SeparateRisk``.

    Parameters
    ----------
    attention : {"softmax", "erf", "linear"}
        The activation of the scores.
    N : int
        Number of tokens in a prompt.
    snr : float
        Squared mean of the informative token along k*.
    spread : float
        Standard deviation γ of the informative token.
    noise : float
        Standard deviation of the label noise, label units.
    scale, scale_decay : float
        Factor λ of the scores of "erf" and "linear", and its decay c: at step t it is
        λ/(1 + ct). Softmax trains the size of k instead.
    projection : {"none", "spheres"}
        "spheres" rescales k and v to the length 1 after each step, for "erf" and
        "linear" only. With plain descent this is projected gradient descent.
    first : float, optional
        Probability that the first token is the informative one; the other tokens share
        the rest equally. By default 1/N; "softmax" only.
    start : {"manifold", "sphere"} or array_like
        Random unit vectors k, v in d dimensions. On the manifold k is orthogonal to v*,
        v to k*, and k to v. Training preserves this. On the sphere they are any unit
        vectors, for "erf" and "linear" only. An array gives the parameters at step 0.
        For softmax these are (κ, κ', ν, ν', b): the coordinates of k along k* and
        orthogonal to it, those of v along v* and orthogonal to it, and the bias. For
        "erf" and "linear" they are (κ, κ', ν, ν') on the manifold, or the coordinates
        of k and v along k*, v* and two more axes, (2, 4).
    d, seed : int
        Number of dimensions, and the seed with which k and v are drawn.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`. There is no target unless one is given.

    References
    ----------
    docs/theory/single-location.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.SingleLocation(
    ...     attention="erf", snr=200, spread=0.5**0.5, scale=0.1, eta=0.5, above=0.01
    ... )
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
    scale_decay: float = parameter(
        0.0,
        kind=Number(zero=True, maximum=1.0),
        meaning="decay of the factor of scores in a step",
    )
    projection: str = parameter(
        "none",
        kind=Word(words=("none", "spheres")),
        meaning="projection of k and v after each step",
    )
    first: float | None = parameter(
        None, kind=Fraction(optional=True), meaning="probability of the first position"
    )
    start: Any = parameter(
        "manifold",
        kind=WordOrArray(words=("manifold", "sphere"), ndim=(1, 2)),
        meaning="law of the start",
    )
    d: int = parameter(
        400,
        kind=Whole(minimum=4, maximum=10**6),
        symbol="d",
        tex="d",
        meaning="dimension",
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of the start")
    loss: str = loss_form()

    def validate(self) -> None:
        """Refuse parameters or a start that do not fit the attention."""
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
        if self.attention == "softmax":
            self._refuse_for_softmax()
        if not isinstance(self.start, str):
            self._validate_start(np.shape(self.start))

    def _refuse_for_softmax(self) -> None:
        """Refuse ``scale_decay`` and ``projection`` unless they have their defaults.

        They are for vectors k and v of the length 1, and softmax trains the lengths.
        """
        for name in ("scale_decay", "projection"):
            default = self.parameters()[name].default
            value = getattr(self, name)
            if value != default:
                raise argument_error(
                    name, value, f"{default!r} for softmax, which trains the size of k"
                )

    def update(self) -> str | Rule:
        """Return the rule, whose steps end with the projection if there is one."""
        rule = super().update()
        if self.projection == "none":
            return rule
        # The blocks of the parameters are k and v.
        return Projected(rule_of(rule), radius=1.0, onto="sphere", blocks=True)

    def scale_at(self, step: int) -> float:
        """Return the factor λ of the scores at a step."""
        step = integer("step", step, minimum=0)
        return self.scale / (1.0 + self.scale_decay * step)

    def _validate_start(self, shape: tuple[int, ...]) -> None:
        """Refuse a start of a wrong shape, or without softmax one with k or v zero."""
        if self.attention == "softmax":
            if shape != (5,):
                raise argument_error("start", shape, "a word, or of shape (5,)")
            return
        if shape not in ((4,), (2, 4)):
            raise argument_error("start", shape, "a word, or of shape (4,) or (2, 4)")
        # In either shape the first half of the numbers is k, and the second half v.
        if not np.reshape(self.start, (2, -1)).any(axis=1).all():
            raise argument_error(
                "start", self.start, "one without zero vectors, which have no direction"
            )

    @property
    def _on_sphere(self) -> bool:
        """Whether k and v may be off the manifold.

        An array with two axes has all coordinates of k and v. Softmax attention refuses
        such arrays and the start "sphere".
        """
        return self.start == "sphere" or np.ndim(self.start) == 2

    def risk(self) -> Risk:
        """Return the risk over the trained parameters, with its start."""
        if not isinstance(self.start, str):
            return self._risk_from(np.array(self.start))
        return self._risk_from(self._drawn_start())

    def _risk_from(self, start: Array) -> Risk:
        """Return the risk with the parameters ``start`` at step 0."""
        if self.attention == "softmax":
            return SoftmaxRisk(self, start)
        if self._on_sphere:
            return SeparateRisk(self, start)
        # The derivatives of k and v, four coordinates each, with respect to the free
        # coordinates (κ, κ', ν, ν').
        basis = ON_MANIFOLD[:4, :8].T.reshape(2, 4, 4)
        risk = SeparateRisk(self, np.tensordot(basis, start, axes=1))
        return Pullback(risk, ManifoldCoordinates(basis, start))

    def _drawn_start(self) -> Array:
        """Return the trained parameters for random unit vectors k and v."""
        drawn_vectors = np.random.default_rng(self.seed).normal(size=(2, self.d))
        # Outside the span of k* and v*, the first two axes, k and v span two more
        # dimensions. The first new axis is along the part of k outside this span, so
        # that v alone has a coordinate along the second one. In R of the QR
        # factorisation, (2, 2), the columns are these coordinates of k and v.
        _, triangle = np.linalg.qr(drawn_vectors[:, 2:].T)
        start = np.concatenate([drawn_vectors[:, :2], triangle.T], axis=1)
        if self.start == "manifold":
            # k and v are rows of ``start``, which is changed in place. k is made
            # orthogonal to v*, and v to k* and to k.
            k, v = start
            k[1] = 0.0
            v[0] = 0.0
            v[2] = 0.0
        start /= np.linalg.norm(start, axis=1)[:, None]
        if self._on_sphere:
            return start
        zero_bias = 0.0
        free_coordinates = ON_MANIFOLD @ np.append(start, zero_bias)
        if self.attention == "softmax":
            return free_coordinates
        return free_coordinates[:4]  # without the bias

    def sampled(self, batch: int, seed: int = 0) -> LocationTrainer:
        """Return the trainer on sampled prompts, in all d dimensions.

        Without softmax the parameters are k and v, (2, d); with softmax they are k, v
        and the bias, (2d + 1,). A batch moves k and v off the manifold.
        """
        return LocationTrainer(self, self._whole_start(), batch, seed)

    def _whole_start(self) -> Array:
        """Return the parameters at step 0 in all d dimensions.

        The risk has k and v in four coordinates. Its two axes besides k* and v* become
        the axes 2 and 3, which is no restriction: the law of the tokens is the same
        along all d - 2 axes other than k* and v*.
        """
        reduced = np.array(self.risk().initial)
        if self.attention == "softmax":
            *k_and_v, bias = reduced @ ON_MANIFOLD
            reduced = np.reshape(k_and_v, (2, 4))
        elif not self._on_sphere:
            reduced = (reduced @ ON_MANIFOLD[:4, :8]).reshape(2, 4)
        whole = np.pad(reduced, ((0, 0), (0, self.d - 4)))
        return np.append(whole, bias) if self.attention == "softmax" else whole

    def unreduced(self) -> Risk:
        """Return the risk for training on a fixed set of prompts, in all d dimensions.

        The prompts of a set are not isotropic, and move k and v in all dimensions.
        Softmax stays on the manifold, because its risk is known there only.
        """
        if self.attention == "softmax":
            return self.risk()
        return SeparateRisk(self, self._whole_start())

    def set_trainer(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return the trainer on sampled prompts over the parameters of `unreduced`.

        Prompts of a fixed set belong to no step, so the factor of the scores must not
        change from step to step.
        """
        if self.scale_decay:
            raise argument_error("scale_decay", self.scale_decay, "0 on a fixed set")
        return trainer_of(self.unreduced(), batch, seed)

    @property
    def chance(self) -> float:
        """Probability that the first token is the informative one."""
        return 1.0 / self.N if self.first is None else self.first

    def bayes(self) -> Array:
        r"""Return the softmax parameters that give the posterior mean if γ = 1.

        The parameters are :math:`k = \sqrt{\mathrm{snr}}\,k_*`, v = v*, and as the bias
        the log odds of the first position against one other position.
        """
        # The probability of the first position, divided by the probability of one other
        # position.
        odds = self.chance * (self.N - 1.0) / (1.0 - self.chance)
        return np.array([math.sqrt(self.snr), 0.0, 1.0, 0.0, math.log(odds)])

    def describe(self, run: Trajectory) -> None:
        """Note what is outside the theorems, and a floor that is only a bound."""
        if self._on_sphere:
            run.notes["start"] = (
                "outside the theorems: off the manifold k and v may end with swapped"
                " roles"
            )
        if self.attention == "softmax" and self.spread != 1.0:
            run.notes["floor"] = (
                "half the noise: the Bayes risk is known for spread = 1 alone"
            )

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        if self.attention == "softmax":
            kappa, _, nu, _, _ = run.params  # (κ, κ', ν, ν', b)
        else:
            kappa, nu, *_ = run.observed["overlaps"][-1]  # (κ, ν, θ, η, ρ)
        return {"semantic": float(kappa), "value": float(nu)}
