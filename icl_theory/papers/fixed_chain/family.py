"""A one-layer transformer on a fixed two-state Markov chain, reduced to its canonical numbers, as a family."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
)
from icl_theory.families.parameters import learning_rate
from icl_theory.tokens.counted import excess_loss

TURN = -1.0 / math.sqrt(2.0)  # of w: the sign of 1 + 2w|w|
SADDLE = -0.5 * (1.0 + math.log(2.0))  # energy of the saddle at e = 0, w = TURN


@dataclass(frozen=True, eq=False)
class ChainLogitsRisk(WithStart, Risk):
    r"""Log loss of the canonical numbers of a one-layer transformer, (e, w[, u][, b]), on a chain of two states.

    .. math:: \mathrm{logit}\,P(x_{n+1} = 1 \mid x_n = x) = s x + b - eu/2, \qquad s = eu(1 + 2w|w|)

    Weight tying makes the readout u equal to the embedding e. A bias that is not
    trained is the best one.

    References
    ----------
    docs/theory/markov-transformers.md, "One layer on a fixed chain".
    """

    p: float
    q: float
    start: Array
    tied: bool = True
    trained: bool = False  # the bias

    @property
    def ones(self) -> Array:
        """Probabilities of a 1 after 0 and after 1, (2,)."""
        return np.array([self.p, 1.0 - self.q])

    @property
    def stationary(self) -> Array:
        """Probabilities of 0 and 1, (2,)."""
        return np.array([self.q, self.p]) / (self.p + self.q)

    def floor(self) -> float:
        """Return the entropy rate of the chain."""
        leave = np.array([self.p, self.q])
        return float(
            self.stationary
            @ (-leave * np.log(leave) - (1.0 - leave) * np.log1p(-leave))
        )

    @property
    def gap(self) -> float:
        """What the best constant prediction has on top: the mutual information of successive symbols."""
        return self._above(np.full(2, math.log(self.p) - math.log(self.q)))

    def best_bias(self, s: float) -> float:
        """Return the logit after 0 that is best if that after 1 is larger by s."""
        return self._best_bias(signed("s", s))

    def _best_bias(self, s: float) -> float:
        log_d = math.log(abs(self.p - self.q)) if self.p != self.q else -math.inf
        square = np.logaddexp(
            2.0 * log_d, math.log(4.0 * self.p) + math.log(self.q) + s
        )
        root = float(np.logaddexp(log_d, 0.5 * square))
        return (
            root - math.log(2.0 * self.q) - s
            if self.p >= self.q
            else math.log(2.0 * self.p) - root
        )

    def strength(self, params: ArrayLike) -> float:
        """Return s, the difference of the logits after 1 and after 0."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._strength(self._checked(params))
        if not math.isfinite(found):
            raise argument_error(
                "params",
                params,
                "less extreme: the strength is beyond the range of float64",
            )
        return found

    def _strength(self, params: Array) -> float:
        e, w = params[:2]
        return float(e * (e if self.tied else params[2]) * (1.0 + 2.0 * w * abs(w)))

    def predicted(self, params: ArrayLike) -> Array:
        """Return the logits after 0 and after 1, (2,)."""
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
        s = self._strength(params)
        product = params[0] * (params[0] if self.tied else params[2])
        return (
            params[-1] - 0.5 * product if self.trained else self._best_bias(s)
        ) + np.array([0.0, s])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        logits, (e, w) = self._predicted(params), params[:2]
        slopes = self.stationary * (expit(logits) - self.ones)
        u = e if self.tied else params[2]
        gate = 1.0 + 2.0 * w * abs(w)
        # at the best bias the slopes sum to zero
        bias = slopes.sum() if self.trained else 0.0
        product = slopes[1] * gate - 0.5 * bias
        weight = slopes[1] * e * u * 4.0 * abs(w)
        gradient = (
            [2.0 * e * product, weight]
            if self.tied
            else [u * product, weight, e * product]
        )
        return self.floor() + self._above(logits), np.array(
            [*gradient, bias] if self.trained else gradient
        )

    def excess(self, params: ArrayLike) -> float:
        """Loss above the entropy rate, without cancellation."""
        return self._above(self.predicted(params))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Embedding, weight and the difference of the logits."""
        return {
            "e": params[0],
            "w": params[1],
            "strength": np.asarray(self._strength(params)),
        }

    def _above(self, logits: Array) -> float:
        # of the probabilities of 0 and 1, (2, 2)
        logs = -np.logaddexp(0.0, [logits, -logits])
        truth = np.stack([1.0 - self.ones, self.ones])
        return float(self.stationary @ excess_loss("log", logs, np.exp(logs), truth))


@dataclass(frozen=True, eq=False)
class FixedChain(Family):
    r"""A one-layer transformer on a fixed Markov chain of two states, in its canonical numbers e and w.

    .. math:: \mathrm{logit}\,P(x_{n+1} = 1 \mid x_n = x) = e^2(1 + 2w|w|)\,x + b - e^2/2

    The global minima predict the chain; where e = 0 the prediction is its stationary
    law.

    Parameters
    ----------
    p, q : float
        Probabilities to go from state 0 to 1, and from 1 to 0.
    e, w : float
        Embedding and weight at step 0.
    readout : float or "tied"
        The readout u at step 0, which takes the place of one factor e; tied, it is the
        embedding.
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
    ...     print(f"{run.family.basin()}: {run.loss[-1] - run.floor:.1e} of {run.risk.gap:.1e} nats are left")
    bigram: 7.8e-07 of 4.5e-02 nats are left
    unigram: 5.1e-02 of 5.1e-02 nats are left
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

    def validate(self) -> None:
        """Refuse probabilities that leave no digits to their complement."""
        for name, value in (("p", self.p), ("q", self.q)):
            if not 1e-12 <= value <= 1.0 - 1e-12:
                raise argument_error(name, value, "at least 1e-12 from 0 and 1")

    def risk(self) -> ChainLogitsRisk:
        """Return the risk over (e, w[, u][, b])."""
        tied = isinstance(self.readout, str)
        trained = self.bias == "trained"
        start = [
            self.e,
            self.w,
            *([] if tied else [self.readout]),
            *([0.0] if trained else []),
        ]
        return ChainLogitsRisk(self.p, self.q, np.array(start), tied, trained)

    @property
    def energy(self) -> float:
        """What the flow with the best bias keeps: e² - w² - sign(w) ln|w|; infinite at w = 0."""
        return (
            self.e**2
            - self.w**2
            - math.copysign(1.0, self.w)
            * (math.log(abs(self.w)) if self.w else -math.inf)
        )

    def basin(self) -> str | None:
        """Return where the flow ends, "bigram" or "unigram"; None unless e and w alone are trained."""
        if self.bias == "trained" or not isinstance(self.readout, str):
            return None
        below = self.energy < SADDLE
        rest = self.p + self.q - 1.0
        trapped = (
            below and self.w < TURN
            if rest < 0.0
            else self.w >= 0.0 or (below and self.w > TURN)
        )
        return "unigram" if trapped and rest != 0.0 else "bigram"

    def describe(self, run: Trajectory) -> None:
        """Say in which basin the start is, if the run follows the flow."""
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
        # momentum or Adam may carry a run out of the basin of the flow
        if basin is not None and self.theory.applies(run):
            values["basin"] = basin
        return values
