"""In-context recall as a family: a transformer that repeats what followed the last word earlier."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import instance, integer, mapping, set_fields
from icl_theory.engine.descent import VISIBLE
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Normalised, Rule, rule_of
from icl_theory.engine.scope import Scope
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    Object,
    Panel,
    Probabilities,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.parameters import learning_rate
from icl_theory.families.rule_parameters import update_rule
from icl_theory.papers.recall.bounds import cycle_excess, decay_rate, stall
from icl_theory.papers.recall.coordinates import reparameterised
from icl_theory.papers.recall.counts import Counts
from icl_theory.papers.recall.population import ATTENTION, RecallRisk
from icl_theory.papers.recall.sampled import TransformerRisk
from icl_theory.papers.recall.task import (
    LARGEST_VOCABULARY,
    LAWS,
    RecallTask,
    Sentences,
)
from icl_theory.papers.recall.weights import WEIGHTS, estimated_gamma

PARTS = ("V", "triggers", "outputs", "alpha", "H", "law", "probs", "counts")


END_OF_NORMALISED_DESCENT = Scope(rules=(Normalised,), flow=True)


@dataclass(frozen=True)
class CountLaw(Whole):
    """A fixed number of bigrams, or its law."""

    def value(self, name: str, value: Any) -> Any:
        """Return the law."""
        if isinstance(value, Counts):
            return value
        if np.ndim(value) == 0:
            return integer(name, value, minimum=1)
        return value  # arrays and sequences of laws, which the task checks


@dataclass(frozen=True, eq=False)
class Recall(Family):
    r"""In-context recall: a sentence ends with a trigger, and the model predicts the word that followed it earlier.

    See docs/theory.md, "In-context recall".

    Parameters
    ----------
    V, triggers, outputs, alpha, H, law, attention, weights, kappa, probs, counts,
    gamma, v, M, seed, task
        As in `icl_theory.papers.recall.simulate`, which makes a Recall and trains it.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`. Losses are in nats.

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
    explorer = Panel(Path(__file__).parent / "panel", ("closed.js", "panel.js"))
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "excess", "f8", "nats", "population loss above the Bayes risk at the end"
        ),
        Column("bayes_risk", "f8", "nats", "entropy of the noise"),
    )
    claims = LazySlot("icl_theory.papers.recall.statements:CLAIMS")
    commands = LazySlot("icl_theory.papers.recall.training:COMMANDS")

    eta: float | str = learning_rate(0.5)
    V: int = parameter(
        50,
        kind=Whole(minimum=3, maximum=LARGEST_VOCABULARY),
        symbol="V",
        tex="V",
        meaning="number of words",
    )
    triggers: int = parameter(
        4, kind=Whole(), symbol="|Q|", tex="|Q|", meaning="number of triggers"
    )
    outputs: int = parameter(8, kind=Whole(), meaning="number of outputs")
    alpha: float = parameter(
        0.0,
        kind=Number(zero=True, maximum=math.nextafter(1.0, 0.0)),
        symbol="α",
        tex=r"\alpha",
        meaning="probability that the next word is noise",
    )
    H: int = parameter(
        33, kind=Whole(minimum=3), symbol="H", tex="H", meaning="words of a sentence"
    )
    law: str = parameter(
        "markov", kind=Word(words=LAWS), meaning="law of the sentences"
    )
    attention: str = parameter(
        "linear", kind=Word(words=ATTENTION), meaning="attention weights"
    )
    weights: str = parameter(
        "projection", kind=Word(words=WEIGHTS), meaning="what the matrices let through"
    )
    kappa: int = parameter(
        1,
        kind=Whole(minimum=0, maximum=1),
        symbol="κ",
        tex=r"\kappa",
        meaning="whether the feed-forward layer reads what is attended to",
        axis=False,
    )
    probs: Any = parameter(
        None,
        kind=Probabilities(optional=True),
        meaning="probabilities of the triggers; uniform by default",
        axis=False,
    )
    counts: Any = parameter(
        None,
        kind=CountLaw(optional=True),
        meaning="times that the output follows the trigger; by default random",
    )
    gamma: float | str = parameter(
        "best",
        kind=Number(signed=True, words=("trained", "best")),
        symbol="γ",
        tex=r"\gamma",
        meaning="log-odds of noise: trained, best, or held at a number",
    )
    v: float | str = parameter(
        1.0,
        kind=Number(signed=True, words=("trained",)),
        symbol="v",
        tex="v",
        meaning="value scale of softmax attention: trained, or held at a number",
    )
    M: float = parameter(
        math.inf,
        kind=Whole(infinite=True),
        symbol="M",
        tex="M",
        meaning="number of sentences trained on, or inf",
    )
    seed: int = parameter(
        0, kind=Whole(minimum=0), meaning="seed of these sentences", axis=False
    )
    task: RecallTask | None = parameter(
        None,
        kind=Object(optional=True, unfold=lambda given: Recall.unfolded(given)),
        meaning="the task, instead of its parts",
    )
    rule: str | Rule = update_rule("ngd")

    def validate(self) -> None:
        """Take over the parts of a task, and make the risk, which checks the parameters against each other."""
        if self.task is not None:
            declared = self.parameters()
            own = instance("task", self.task, RecallTask, "a RecallTask").numbers
            for name in PARTS:
                value = getattr(self, name)
                default = declared[name].default
                if value is not default and value not in (
                    default,
                    own.get(name, default),
                ):
                    self.unfolded({name: value, "task": self.task})  # refuses it
            if (
                parts := self.task.parts
            ) is not None:  # else the task has words of its own, and is kept
                set_fields(
                    self,
                    **{
                        name: declared[name].check(value)
                        for name, value in parts.items()
                    },
                    task=None,
                )
        self.population()

    @classmethod
    def unfolded(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters of a sweep with those of its task, so that its coordinates are the task's."""
        task = mapping("given", given, "parameters").get("task")
        if not isinstance(task, RecallTask):
            return given
        for name in (part for part in PARTS if part in given):
            raise ValueError(
                f"{name} = {given[name]!r}: a task carries its own {name}; give one of the two"
            )
        if (
            task.parts is None or task.parts["counts"] is not None
        ):  # words of its own, or laws, not numbers
            return {**given, **task.numbers}
        rest = {name: value for name, value in given.items() if name != "task"}
        return {
            **rest,
            **{name: value for name, value in task.parts.items() if value is not None},
        }

    def _named(self, run: Trajectory) -> Trajectory:
        """Return the run with the parameters of its task, also if the task was given as a whole."""
        run = super()._named(run)
        task = self.task
        if task is not None:
            run.info |= task.numbers
            run.info["probs"] = None if task.uniform else tuple(task.probs.tolist())
            run.info["counts"] = task.law_of_counts
        if isinstance(
            run.info["counts"], list | tuple
        ):  # laws, which files store as text
            run.info["counts"] = tuple(map(str, run.info["counts"]))
        return run

    @cached_property
    def whole_task(self) -> RecallTask:
        """The task."""
        counts = (
            Counts.fixed(self.counts) if isinstance(self.counts, int) else self.counts
        )
        return self.task or RecallTask(
            self.V,
            self.triggers,
            self.outputs,
            alpha=self.alpha,
            probs=self.probs,
            counts=counts,
            H=self.H,
            law=self.law,
        )

    @cached_property
    def data(self) -> Sentences | None:
        """The sentences of an empirical risk."""
        if math.isinf(self.M):
            return None
        return self.whole_task.sentences(np.random.default_rng(self.seed), int(self.M))

    @property
    def held(self) -> tuple[float | None, float | None]:
        """The values at which γ and v are held; None if they are trained, or do not exist."""
        gamma, task = self.gamma, self.whole_task
        if gamma == "best":
            gamma = estimated_gamma(task, self.data) if task.alpha else "trained"
        free = self.v == 1.0 and not self.attention.startswith("softmax")
        return None if isinstance(gamma, str) else gamma, None if free or isinstance(
            self.v, str
        ) else self.v

    def population(self) -> RecallRisk:
        """Return the population risk over λ and, if they are trained, v and γ."""
        tied = (
            self.whole_task.alike
            and math.isinf(self.M)
            and rule_of(self.update()).reducible
        )
        gamma, v = self.held
        return RecallRisk(
            self.whole_task,
            self.attention,
            gamma,
            tied,
            None,
            v,
            self.weights,
            self.kappa,
        )

    def risk(self) -> Risk:
        """Return the risk over λ and, if they are trained, v and γ."""
        if self.data is None:
            return self.population()
        if self.attention == "softmax" or self.kappa == 0:
            more: dict[str, Any] = {
                "data": self.data,
                "weights": self.weights,
                "kappa": self.kappa,
            }
            return reparameterised(
                TransformerRisk(self.whole_task, self.attention, **more), *self.held
            )
        return dataclasses.replace(self.population(), data=self.data)

    def population_excess(self, run: Trajectory) -> float:
        """Return the population loss above the Bayes risk at the end of a run."""
        instance("run", run, Trajectory, "a Trajectory")
        return self.population().excess(run.params)

    def describe(self, run: Trajectory) -> None:
        """Add the Bayes risk, and what the theory predicts for the end of the run."""
        task, risk = self.whole_task, run.risk
        run.notes["bayes risk"] = f"{task.bayes_risk:.6g}"
        if math.isfinite(self.M):
            run.notes["population"] = (
                f"{self.population_excess(run):.6g} above the Bayes risk in the end"
            )
        elif END_OF_NORMALISED_DESCENT.applies(run) and isinstance(risk, RecallRisk):
            run.notes |= _in_the_end(risk, run.eta)

    def measure(self, run: Trajectory) -> Mapping[str, Any]:  # type: ignore[override]
        """Return the family's columns of a run."""
        return {
            "excess": self.population_excess(run),
            "bayes_risk": self.whole_task.bayes_risk,
        }


def _in_the_end(risk: RecallRisk, eta: float, largest: float = 2.0) -> dict[str, str]:
    """Describe how normalised descent ends, if known: at a linear rate, or in a cycle.

    At the ``largest`` rate and beyond, unequal triggers overshoot.
    """
    task = risk.task
    if risk.noisy and risk.gamma is None:
        lasting = cycle_excess(task.alpha, eta)
        if abs(stall(task.alpha, eta) - lasting) > 0.1 * lasting:
            return {"cycle": "constant steps in γ: the excess does not tend to 0"}
        return {
            "cycle": f"constant steps in γ: the excess stays near α(1-α)η²/8 = {stall(task.alpha, eta):.3g}"
        }
    above = risk.floor() - task.bayes_risk
    floor = (
        "" if above <= VISIBLE else f" over a floor {above:.3g} above the Bayes risk"
    )
    if risk.noisy and (risk.kappa == 0 or (risk.scaled and risk.v is not None)):
        return {
            "floor": f"the least loss{floor} lies at a finite λ"
            if floor
            else "the least loss is not known"
        }
    rate = decay_rate(task, eta, risk.attention, risk.weights, risk.v)
    if rate >= largest and not risk.tied:
        return {
            "rate": f"triggers overshoot in turn: the loss falls more slowly than exp(-{rate:.4g} t) in the end"
        }
    return {"rate": f"the excess{floor} falls like exp(-{rate:.4g} t) in the end"}
