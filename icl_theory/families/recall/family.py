"""In-context recall as a family: a transformer that says what followed the last word before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import integer, refuse
from icl_theory.engine.descent import VISIBLE
from icl_theory.engine.rules import RULES
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.kinds import Number, Object, Probabilities, Whole, Word
from icl_theory.families.parameters import Later, parameter
from icl_theory.families.recall.bounds import cycle_excess, decay_rate, stall
from icl_theory.families.recall.counts import Counts
from icl_theory.families.recall.population import ATTENTION, RecallRisk
from icl_theory.families.recall.task import LARGEST_VOCABULARY, RecallTask, Sentences
from icl_theory.grids.grid import Column

LARGEST_RATE = 2.0  # beyond which unequal triggers overshoot


@dataclass(frozen=True)
class CountLaw(Whole):
    """A fixed number of bigrams, or a law of it."""

    def value(self, name: str, value: Any) -> Any:
        """Return the law."""
        if isinstance(value, Counts):
            return value
        if np.ndim(value) == 0:
            return integer(name, value, minimum=1)
        return value  # arrays and sequences of laws, which the task checks


@dataclass(frozen=True, eq=False)
class Recall(Family):
    r"""In-context recall: a sentence ends with a trigger, and the model says what followed it before.

    Parameters
    ----------
    V, triggers, outputs : int
        Numbers of words, of triggers and of outputs.
    alpha : float
        Probability that the next word is noise, in [0, 1).
    H : int
        Words of a sentence.
    attention : {"linear", "relu", "softmax"}
        Attention weights; softmax is taken in the limit of long contexts.
    probs : sequence of float, optional
        Probabilities of the triggers; uniform unless given.
    counts : int, Counts or array_like, optional
        Number of times that the output follows the trigger, or its law; that of random sentences unless given.
    gamma : float or {"trained", "best"}
        Log-odds of noise: trained, held at a value, or held at ``"best"``, :math:`\ln(\alpha/(1-\alpha))`.
    M : int or math.inf
        Train on the empirical risk of M sentences; on the population risk where it is infinite.
    seed : int
        Seed of these sentences.
    task : RecallTask, optional
        The task, instead of ``V, triggers, outputs, alpha, H, probs, counts``.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`. Losses are in nats.

    References
    ----------
    docs/theory.md, "In-context recall".

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.Recall(counts=1).simulate().steps
    44
    """

    name: ClassVar[str] = "recall"
    title: ClassVar[str] = "in-context recall"
    goal: ClassVar[tuple[str, float]] = ("above", 1e-3)
    loss_unit: ClassVar[str] = "nats"
    explorer = Later("icl_theory.families.recall.explorer:PANEL")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("excess", "f8", "nats", "population loss above the Bayes risk at the end"),
        Column("bayes_risk", "f8", "nats", "entropy of the noise"),
    )
    rows = Later("icl_theory.families.recall.evidence:ROWS")
    questions = Later("icl_theory.families.recall.questions:QUESTIONS")

    eta: float | str = parameter(
        0.5, kind=Number(words=("auto",)), symbol="η", tex=r"\eta", meaning="learning rate"
    )
    V: int = parameter(
        50, kind=Whole(minimum=3, maximum=LARGEST_VOCABULARY), symbol="V", tex="V", meaning="number of words"
    )
    triggers: int = parameter(4, kind=Whole(), symbol="|Q|", tex="|Q|", meaning="number of triggers")
    outputs: int = parameter(8, kind=Whole(), meaning="number of outputs")
    alpha: float = parameter(
        0.0,
        kind=Number(zero=True, maximum=math.nextafter(1.0, 0.0)),
        symbol="α",
        tex=r"\alpha",
        meaning="probability that the next word is noise",
    )
    H: int = parameter(33, kind=Whole(minimum=3), symbol="H", tex="H", meaning="words of a sentence")
    attention: str = parameter("linear", kind=Word(words=ATTENTION), meaning="attention weights")
    probs: Any = parameter(
        None,
        kind=Probabilities(optional=True),
        meaning="probabilities of the triggers; uniform unless given",
        axis=False,
    )
    counts: Any = parameter(
        None,
        kind=CountLaw(optional=True),
        meaning="times that the output follows the trigger; random unless given",
    )
    gamma: float | str = parameter(
        "trained",
        kind=Number(signed=True, words=("trained", "best")),
        symbol="γ",
        tex=r"\gamma",
        meaning="log-odds of noise: trained, best, or held at a number",
    )
    M: float = parameter(
        math.inf, kind=Whole(infinite=True), symbol="M", tex="M", meaning="number of sentences trained on, or inf"
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of these sentences", axis=False)
    task: RecallTask | None = parameter(None, kind=Object(optional=True), meaning="the task, instead of its parts")
    rule: str = parameter("ngd", kind=Word(words=tuple(RULES)), meaning="normalised or plain gradient descent")

    def validate(self) -> None:
        """Make the task, which checks its parts against each other."""
        if self.task is None:
            counts = Counts.fixed(self.counts) if isinstance(self.counts, int) else self.counts
            made = RecallTask(
                self.V, self.triggers, self.outputs, alpha=self.alpha, probs=self.probs, counts=counts, H=self.H
            )
            object.__setattr__(self, "_task", made)
            return
        if not isinstance(self.task, RecallTask):
            raise refuse("task", self.task, "a RecallTask")
        for name in ("V", "triggers", "outputs", "alpha", "H", "probs", "counts"):
            value = getattr(self, name)
            if value != self.parameters()[name].default:
                raise refuse(name, value, "left out where a task is given: it carries its own")
        object.__setattr__(self, "_task", self.task)

    @property
    def whole_task(self) -> RecallTask:
        """The task."""
        return self._task  # type: ignore[attr-defined, no-any-return]

    def held(self) -> float | None:
        """Return the value at which the log-odds of noise are held; None where they are trained."""
        if self.gamma == "best":
            return self.whole_task.best_gamma if self.whole_task.alpha > 0 else None
        return None if isinstance(self.gamma, str) else self.gamma

    def data(self) -> Sentences | None:
        """Return the sentences of an empirical risk."""
        if math.isinf(self.M):
            return None
        return self.whole_task.sentences(np.random.default_rng(self.seed), int(self.M))

    def risk(self) -> RecallRisk:
        """Return the risk over λ, and where they are trained v and γ."""
        tied = self.whole_task.alike and math.isinf(self.M)
        return RecallRisk(self.whole_task, self.attention, self.held(), tied=tied, data=self.data())

    def population_excess(self, run: Trajectory) -> float:
        """Return the population loss above the Bayes risk at the end of a run."""
        tied = self.whole_task.alike and math.isinf(self.M)
        return RecallRisk(self.whole_task, self.attention, self.held(), tied=tied).excess(run.params)

    def describe(self, run: Trajectory) -> None:
        """Add the Bayes risk, and what the theory says of the end."""
        task, risk = self.whole_task, run.risk
        run.notes["bayes risk"] = f"{task.bayes_risk:.6g}"
        if math.isfinite(self.M):
            run.notes["population"] = f"{self.population_excess(run):.6g} above the Bayes risk in the end"
        elif self.rule == "ngd" and isinstance(risk, RecallRisk):
            run.notes |= _in_the_end(risk, run.eta)

    def measure(self, run: Trajectory) -> Mapping[str, Any]:  # type: ignore[override]
        """Return the family's columns of a run."""
        return {"excess": self.population_excess(run), "bayes_risk": self.whole_task.bayes_risk}


def _in_the_end(risk: RecallRisk, eta: float) -> dict[str, str]:
    """Say how normalised descent ends, as far as it is known: at a linear rate, or in a cycle."""
    task = risk.task
    if risk.noisy and risk.gamma is None:
        lasting = cycle_excess(task.alpha, eta)
        if abs(stall(task.alpha, eta) - lasting) > 0.1 * lasting:
            return {"cycle": "constant steps in γ: the excess does not tend to 0"}
        return {"cycle": f"constant steps in γ: the excess stays near α(1-α)η²/8 = {stall(task.alpha, eta):.3g}"}
    rate = decay_rate(task, eta, risk.attention)
    if rate >= LARGEST_RATE and not risk.tied:
        return {
            "rate": f"triggers overshoot in turn: the loss falls more slowly than exp(-{rate:.4g} t) in the end"
        }
    above = risk.floor() - task.bayes_risk
    floor = "" if above <= VISIBLE else f" over a floor {above:.3g} above the Bayes risk"
    return {"rate": f"the excess{floor} falls like exp(-{rate:.4g} t) in the end"}
