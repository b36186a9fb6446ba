"""A one-layer transformer on a fixed two-state Markov chain.

`FixedChain` is the family, and `ChainLogitsRisk` the loss of the canonical numbers to
which the transformer reduces: the embedding e, the weight w, the readout u and the bias
b. The chain goes from state 0 to 1 with the probability p, and from 1 to 0 with the
probability q. The bigram predicts the chain, and the unigram its stationary law. A
logit is ln(P/(1 - P)) with the predicted probability P of a next symbol 1. The strength
s is the logit after state 1 minus the logit after state 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from icl_theory._validate import Array, argument_error, signed
from icl_theory.engine import Risk, Trajectory
from icl_theory.engine.risk import WithStart
from icl_theory.families import (
    Column,
    Family,
    Fraction,
    LazySlot,
    Number,
    Word,
    parameter,
    starting_parameters,
)
from icl_theory.families.parameters import learning_rate
from icl_theory.tokens.counted import excess_loss

# The w at which 1 + 2w|w|, a factor of the strength s, changes its sign.
TURN = -1.0 / math.sqrt(2.0)
# The energy e² - w² - sign(w) ln|w| at the saddle of the loss, e = 0 and w = TURN. Flow
# from a lower energy cannot pass w = TURN.
SADDLE = -0.5 * (1.0 + math.log(2.0))
# Probabilities must be at least this far from 0 and 1. For a p that is nearer, 1 - p
# would lose digits that the losses need.
LEAST_PROBABILITY = 1e-12


@dataclass(frozen=True, eq=False)
class ChainLogitsRisk(WithStart, Risk):
    r"""Log loss of the canonical numbers (e, w[, u][, b]) on a chain of two states.

    The parameters have a readout u unless weights are tied, and a bias b if it is
    trained.

    .. math:: s = eu(1 + 2w|w|), \qquad
        \mathrm{logit}\,P(x_{n+1} = 1 \mid x_n = x) = s x + b - eu/2

    Weight tying makes the readout u equal to the embedding e. If the bias is not
    trained, it is the best one for the other numbers.

    Attributes
    ----------
    p, q : float
        Probabilities to go from state 0 to 1, and from 1 to 0.
    start : ndarray
        Initial parameters.
    tied : bool
        Whether u is e.
    trains_bias : bool
        Whether b is trained.

    References
    ----------
    docs/theory/markov-transformers.md, "One layer on a fixed chain".
    """

    p: float
    q: float
    start: Array
    tied: bool = True
    trains_bias: bool = False

    @cached_property
    def ones(self) -> Array:
        """Probabilities of a 1 after 0 and after 1, (2,)."""
        return np.array([self.p, 1.0 - self.q])

    @cached_property
    def stationary(self) -> Array:
        """Probabilities of 0 and 1, (2,)."""
        return np.array([self.q, self.p]) / (self.p + self.q)

    def floor(self) -> float:
        """Return the entropy rate of the chain."""
        return self._floor

    @cached_property
    def _floor(self) -> float:
        """Mean entropy of the next symbol, nats."""
        leave = np.array([self.p, self.q])
        entropy = -leave * np.log(leave) - (1.0 - leave) * np.log1p(-leave)
        return float(self.stationary @ entropy)

    @property
    def gap(self) -> float:
        """Loss of the best constant prediction above the entropy rate.

        The difference is the mutual information of a symbol and the next one.
        """
        stationary_logit = math.log(self.p) - math.log(self.q)
        return self._excess(np.full(2, stationary_logit))

    def best_bias(self, s: float) -> float:
        """Return the best logit after 0 if the logit after 1 is larger by s.

        The logit after 0 is b - eu/2, so the best logit gives the best bias b.
        """
        return float(self._best_bias(signed("s", s)))

    def _best_bias(self, s: Any) -> Any:
        """Return the best logit after 0 for a checked s, which may be an array."""
        # The derivatives with respect to both logits sum to zero at the best bias. For
        # the odds y of a 1 after 0, this condition is qSy² + (q - p)y - p = 0 with
        # S = e^s. With D = (p - q)² + 4pqS the solution is y = (p - q + √D)/(2qS), or
        # in another form y = 2p/(q - p + √D). It is computed in logarithms, because S
        # may overflow, and in the form in which nothing cancels. The result is ln y.
        log_difference = -math.inf  # ln|p - q|
        if self.p != self.q:
            log_difference = math.log(abs(self.p - self.q))
        log_4pq = math.log(4.0 * self.p) + math.log(self.q)
        log_discriminant = np.logaddexp(2.0 * log_difference, log_4pq + s)
        # ln(|p - q| + √D)
        log_sum = np.logaddexp(log_difference, 0.5 * log_discriminant)
        if self.p >= self.q:
            return log_sum - math.log(2.0 * self.q) - s
        return math.log(2.0 * self.p) - log_sum

    def strength(self, params: ArrayLike) -> float:
        """Return s, the difference of the logits after 1 and after 0."""
        # An overflow raises the error below, and needs no warning.
        with np.errstate(over="ignore", invalid="ignore"):
            strength = float(self._strength(self._checked(params)))
        if not math.isfinite(strength):
            raise argument_error(
                "params",
                params,
                "less extreme: the strength is beyond the range of float64",
            )
        return strength

    # `_strength`, `_readout`, `_predicted` and `_gradient` also take n sets of
    # parameters at once, as an array with a row for each of the numbers e, w[, u][, b],
    # (numbers, n). Then e, w, u and b are arrays, (n,).

    def _strength(self, params: Array) -> Any:
        """The number s = eu(1 + 2w|w|)."""
        e, w = params[:2]
        return e * self._readout(params) * (1.0 + 2.0 * w * abs(w))

    def _readout(self, params: Array) -> Any:
        """The number u."""
        return params[0] if self.tied else params[2]

    def predicted(self, params: ArrayLike) -> Array:
        """Return the logits after 0 and after 1, (2,)."""
        # An overflow raises the error below, and needs no warning.
        with np.errstate(over="ignore", invalid="ignore"):
            logits = self._predicted(self._checked(params))
        if not np.isfinite(logits).all():
            raise argument_error(
                "params",
                params,
                "less extreme: the logits are beyond the range of float64",
            )
        return logits

    def _predicted(self, params: Array) -> Array:
        """Return the logits after 0 and after 1, (2, ...)."""
        s = self._strength(params)
        if self.trains_bias:
            e = params[0]
            b = params[-1]
            after_0 = b - 0.5 * (e * self._readout(params))
        else:
            # The best bias, whatever it is, gives the best logit after 0.
            after_0 = self._best_bias(s)
        return np.array([after_0, after_0 + s])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        logits = self._predicted(params)
        return self.floor() + self._excess(logits), self._gradient(params, logits)

    def gradients(self, states: Array) -> Array:
        """Gradients at n states of a run, (n, numbers), like the states."""
        return self._gradient(states.T, self._predicted(states.T)).T

    def _gradient(self, params: Array, logits: Array) -> Array:
        """Return the derivatives with respect to e, w[, u][, b], (numbers, ...).

        ``logits``, (2, ...), are those after 0 and after 1.
        """
        e, w = params[:2]
        u = self._readout(params)
        gate = 1.0 + 2.0 * w * abs(w)  # s = eu × gate
        # The derivative with respect to the logit after a symbol is the probability of
        # this symbol, times the difference of the predicted and the true probability of
        # a 1. The transposed logits, (..., 2), have the last symbol as their last axis,
        # like the arrays ``stationary`` and ``ones``.
        slope_after_0, slope_after_1 = (
            self.stationary * (expit(logits.T) - self.ones)
        ).T
        # Only the logit after 1 contains s, and both contain b - eu/2.
        s_slope = slope_after_1
        # At the best bias the derivatives with respect to the logits sum to zero, so a
        # change of both logits by the same amount has no effect.
        bias_slope = slope_after_0 + slope_after_1 if self.trains_bias else 0.0
        eu_slope = s_slope * gate - 0.5 * bias_slope
        w_slope = s_slope * e * u * 4.0 * abs(w)  # w|w| has the derivative 2|w|
        if self.tied:
            gradient = [2.0 * e * eu_slope, w_slope]
        else:
            gradient = [u * eu_slope, w_slope, e * eu_slope]
        if self.trains_bias:
            gradient.append(bias_slope)
        return np.array(gradient)

    def excess(self, params: ArrayLike) -> float:
        """Return the loss minus the entropy rate, without cancellation."""
        return self._excess(self.predicted(params))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Embedding, weight and the difference of the logits."""
        return {
            "e": params[0],
            "w": params[1],
            "strength": np.asarray(self._strength(params)),
        }

    @cached_property
    def _truth(self) -> Array:
        """Probabilities of the next symbol (row) after each last symbol, (2, 2)."""
        return np.stack([1.0 - self.ones, self.ones])

    def _excess(self, logits: Array) -> float:
        """Return the loss above the entropy rate at the logits after 0 and after 1."""
        # ln P of the next symbols 0 and 1 (rows) after the last symbols 0 and 1
        # (columns): the logit f of a 1 gives -ln(1 + e^f) for 0, and -ln(1 + e^-f)
        # for 1.
        log_probs = -np.logaddexp(0.0, [logits, -logits])
        # The excess after each last symbol, (2,).
        excesses = excess_loss("log", log_probs, np.exp(log_probs), self._truth)
        return float(self.stationary @ excesses)


@dataclass(frozen=True, eq=False)
class FixedChain(Family):
    r"""A one-layer transformer on a fixed Markov chain of two states.

    .. math:: \mathrm{logit}\,P(x_{n+1} = 1 \mid x_n = x)
        = e^2(1 + 2w|w|)\,x + b - e^2/2

    Here x is the last symbol. The canonical numbers e and w are trained, and optionally
    the bias b, and a readout u in place of one factor e. The global minima predict the
    chain, and are called the bigram. At e = 0 the prediction is the stationary law of
    the chain, called the unigram.

    Parameters
    ----------
    p, q : float
        Probabilities to go from state 0 to 1, and from 1 to 0.
    e, w : float
        Embedding and weight at step 0.
    readout : float or "tied"
        The readout u at step 0, which replaces one factor e of e². "tied": the readout
        is the embedding.
    start : array_like, optional
        The parameters (e, w[, u][, b]) at step 0, instead of ``e``, ``w`` and
        ``readout``; u is included if the array has three numbers and b is not trained,
        or four numbers and b is trained.
    bias : {"best", "trained"}
        Whether b is the best one at each step, or is trained from 0.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`.

    References
    ----------
    docs/theory/markov-transformers.md, "One layer on a fixed chain".

    Examples
    --------
    >>> import icl_theory as icl
    >>> for q in (0.3, 0.9):
    ...     run = icl.FixedChain(p=0.4, q=q).simulate()
    ...     excess = run.loss[-1] - run.floor
    ...     print(f"{run.family.basin()}: {excess:.1e} of {run.risk.gap:.1e} nats")
    bigram: 7.8e-07 of 4.5e-02 nats
    unigram: 5.1e-02 of 5.1e-02 nats
    """

    name: ClassVar[str] = "fixed-chain"
    title: ClassVar[str] = "one layer on a fixed Markov chain"
    goal: ClassVar[tuple[str, float]] = ("above", 1e-6)
    loss_unit: ClassVar[str] = "nats"
    claims = LazySlot("icl_theory.papers.fixed_chain.statements:CLAIMS")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "gap", "f8", "nats", "loss of the stationary law above the floor", "I", "I"
        ),
        Column(
            "strength",
            "f8",
            "",
            "difference of the logits after 1 and after 0, at the end",
            "s",
            "s",
        ),
        Column(
            "basin", "U8", "", "where the flow from the start ends", role="predicted"
        ),
    )

    eta: float | str = learning_rate(1.0)
    p: float = parameter(0.4, kind=Fraction(), meaning="probability to go from 0 to 1")
    q: float = parameter(0.3, kind=Fraction(), meaning="probability to go from 1 to 0")
    e: float = parameter(0.5, kind=Number(maximum=1e3), meaning="embedding at step 0")
    w: float = parameter(
        0.1, kind=Number(signed=True, maximum=1e3), meaning="weight at step 0"
    )
    readout: float | str = parameter(
        "tied",
        kind=Number(words=("tied",), signed=True, maximum=1e3),
        symbol="u",
        meaning="readout at step 0",
        axis=False,
    )
    bias: str = parameter(
        "best",
        kind=Word(words=("best", "trained")),
        meaning="whether the bias is trained",
    )
    start: Any = starting_parameters((1,))

    def validate(self) -> None:
        """Refuse probabilities too near 0 or 1, and a start that does not fit."""
        for name, value in (("p", self.p), ("q", self.q)):
            if not LEAST_PROBABILITY <= value <= 1.0 - LEAST_PROBABILITY:
                raise argument_error(
                    name, value, f"at least {LEAST_PROBABILITY:g} from 0 and 1"
                )
        if self.start is not None:
            self._validate_start(len(self.start))

    def _validate_start(self, size: int) -> None:
        """Refuse a start of a wrong size, or given along with numbers it replaces."""
        # A start has e and w, and b if it is trained. A separate readout u adds one
        # number.
        tied_size = 3 if self.bias == "trained" else 2
        if size not in (tied_size, tied_size + 1):
            raise argument_error(
                "start",
                (size,),
                f"of shape ({tied_size},), or ({tied_size + 1},) with u",
            )
        for name in ("e", "w", "readout"):
            value = getattr(self, name)
            # A value other than the default was given along with the start.
            if value != self.parameters()[name].default:
                raise argument_error(name, value, "left out: it is a part of start")

    @property
    def initial(self) -> Array:
        """The parameters (e, w[, u][, b]) at step 0."""
        if self.start is not None:
            return np.array(self.start)
        start = [self.e, self.w]
        if not isinstance(self.readout, str):
            start.append(self.readout)
        if self.bias == "trained":
            start.append(0.0)
        return np.array(start)

    @property
    def tied(self) -> bool:
        """Whether the readout is the embedding."""
        # Tied parameters are e and w, and b if it is trained.
        tied_size = 3 if self.bias == "trained" else 2
        return len(self.initial) == tied_size

    def risk(self) -> ChainLogitsRisk:
        """Return the risk over (e, w[, u][, b])."""
        trains_bias = self.bias == "trained"
        return ChainLogitsRisk(
            self.p, self.q, self.initial, self.tied, trains_bias=trains_bias
        )

    @property
    def energy(self) -> float:
        """The number e² - w² - sign(w) ln|w| at the start, which is infinite at w = 0.

        Gradient flow with tied weights and the best bias keeps this number constant.
        """
        e, w = self.initial[:2].tolist()
        log_abs_w = math.log(abs(w)) if w else -math.inf
        return e**2 - w**2 - math.copysign(1.0, w) * log_abs_w

    def basin(self) -> str | None:
        """Return the end of the flow, "bigram" or "unigram".

        The result is None unless e and w alone are trained, because the energy is
        constant only with these two parameters. See docs/theory/markov-transformers.md,
        "The flow".
        """
        if self.bias == "trained" or not self.tied:
            return None
        e, w = self.initial[:2]
        is_below_saddle = self.energy < SADDLE
        # The bigram has w > TURN if p + q < 1, and w < TURN if p + q > 1. A start on
        # the other side is trapped if it cannot pass TURN.
        switching = self.p + self.q - 1.0  # above 0 if symbols tend to alternate
        if switching < 0.0:
            is_trapped = is_below_saddle and w < TURN
        elif switching > 0.0:
            # The derivative with respect to w has the factor |w|, so that w cannot fall
            # below 0.
            is_trapped = w >= 0.0 or (is_below_saddle and w > TURN)
        else:
            # Symbols are independent, so that bigram and unigram are the same.
            return "bigram"
        # The loss is even in e, so that e = 0 stays.
        is_trapped = is_trapped or e == 0.0
        return "unigram" if is_trapped else "bigram"

    def describe(self, run: Trajectory) -> None:
        """Note in which basin the start is, if the run follows the flow."""
        basin = self.basin()
        if basin is not None and self.theory.applies(run):
            run.notes["basin"] = f"the flow from this start ends at the {basin}"

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        risk = self.risk()
        basin = self.basin()
        values: dict[str, Any] = {
            "gap": risk.gap,
            "strength": risk._strength(run.params),
        }
        # The theory of the flow does not apply to momentum or Adam, which may carry a
        # run out of its basin.
        if basin is not None and self.theory.applies(run):
            values["basin"] = basin
        return values
