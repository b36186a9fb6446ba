"""In-context recall as a family: its parameters, its risks, and its predictions.

A risk is trained in the strengths λ of the triggers, the scale v of the values (with
softmax attention) and the log-odds γ of noise (with noise). v and γ may be held at a
value instead. If all triggers have the same probability and the same law of counts,
they may share one λ, which is then *tied*.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import (
    argument_error,
    instance,
    integer,
    mapping,
    set_fields,
)
from icl_theory.engine.descent import VISIBLE
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Normalised, Rule, rule_of
from icl_theory.engine.scope import Scope
from icl_theory.engine.starts import checked_start, with_start
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
    starting_parameters,
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

# The parameters that make up a `RecallTask`. They are left out if a task is given.
PARTS = ("V", "triggers", "outputs", "alpha", "H", "law", "probs", "counts")

# The runs that `_predicted_end` describes: normalised descent, and its flow.
END_OF_NORMALISED_DESCENT = Scope(rules=(Normalised,), flow=True)

# At rates of convergence from this one on, unequal triggers overshoot in turn, see
# "Unequal triggers" in docs/theory/recall.md.
LARGEST_STABLE_RATE = 2.0


@dataclass(frozen=True)
class CountLaw(Whole):
    """Kind of the parameter ``counts``: a number of bigrams, or its law."""

    def value(self, name: str, value: Any) -> Any:
        """Return a number as an integer, and a law as it is given.

        A number must be a positive integer. Arrays and sequences of laws are not
        checked here, because the task checks them.
        """
        if isinstance(value, Counts):
            return value
        if np.ndim(value) == 0:
            return integer(name, value, minimum=1)
        return value


@dataclass(frozen=True, eq=False)
class Recall(Family):
    r"""In-context recall: a model repeats the word that once followed the last word.

    A sentence ends with a trigger. The model predicts the next word, which is the one
    that followed the trigger earlier in the sentence, or noise. See docs/theory.md,
    "In-context recall".

    Parameters
    ----------
    V, triggers, outputs, alpha, H, law, attention, weights, kappa, probs, counts,
    gamma, v, M, seed, start, task
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
        "projection",
        kind=Word(words=WEIGHTS),
        meaning="which words the value matrix passes on",
    )
    kappa: int = parameter(
        1,
        kind=Whole(minimum=0, maximum=1),
        symbol="κ",
        tex=r"\kappa",
        meaning="whether the feed-forward layer reads the output of the attention",
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
        meaning="how often the output follows the trigger; random by default",
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
    start: Any = starting_parameters((1,))
    task: RecallTask | None = parameter(
        None,
        # a lambda, because the class `Recall` does not exist yet
        kind=Object(optional=True, unfold=lambda values: Recall.unfolded(values)),
        meaning="the task, instead of its parts",
    )
    rule: str | Rule = update_rule("ngd")

    def validate(self) -> None:
        """Replace a task by its parts, and check the parameters against each other."""
        # All families have a parameter ``dataset``. In this family M plays that role.
        if self.dataset is not None and self.on_fixed_set:
            raise argument_error(
                "dataset",
                int(self.dataset),
                "left out: M is the number of sentences in a fixed training set",
            )
        if self.task is not None:
            instance("task", self.task, RecallTask, "a RecallTask")
            self._refuse_other_parts(self.task)
            if self.task.parts is not None:
                self._take_parts(self.task.parts)
        # The risk checks the other parameters against each other.
        population = self.population()
        # For M sentences the start is checked when the risk on them is made.
        if self.start is not None and math.isinf(self.M):
            checked_start(self.start, np.shape(population.initial))

    def _refuse_other_parts(self, task: RecallTask) -> None:
        """Refuse a part that is neither the default nor the task's own."""
        declared = self.parameters()
        for name in PARTS:
            value = getattr(self, name)
            default = declared[name].default
            # ``task.numbers`` lacks ``probs`` and ``counts``: only their defaults are
            # allowed.
            value_of_task = task.numbers.get(name, default)
            if value not in (default, value_of_task):
                raise _two_values(name, value)

    def _take_parts(self, parts: Mapping[str, Any]) -> None:
        """Replace the task by its parts."""
        declared = self.parameters()
        checked = {name: declared[name].check(value) for name, value in parts.items()}
        set_fields(self, **checked, task=None)

    @classmethod
    def unfolded(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return given parameters with a task replaced by its parts.

        The numbers of the task are then coordinates of a sweep.
        """
        task = mapping("given", given, "parameters").get("task")
        if not isinstance(task, RecallTask):
            return given
        for name in PARTS:
            if name in given:
                raise _two_values(name, given[name])
        # ``parts`` are the arguments from which the task can be made again, or None if
        # it has words of its own. A task with words of its own, or with laws of counts,
        # is kept beside its numbers, because the numbers alone do not describe it.
        if task.parts is None or task.parts["counts"] is not None:
            return {**given, **task.numbers}
        # None stands for a default.
        parts = {name: part for name, part in task.parts.items() if part is not None}
        unfolded = {**given, **parts}
        del unfolded["task"]
        return unfolded

    def _named(self, run: Trajectory) -> Trajectory:
        """Return the run, with the parameters of a given task in its ``info``."""
        run = super()._named(run)
        task = self.task
        if task is not None:
            run.info |= task.numbers
            run.info["probs"] = None if task.uniform else tuple(task.probs.tolist())
            run.info["counts"] = task.law_of_counts
        # Files store a tuple of laws as texts.
        if isinstance(run.info["counts"], list | tuple):
            run.info["counts"] = tuple(map(str, run.info["counts"]))
        return run

    @cached_property
    def whole_task(self) -> RecallTask:
        """The given task, or the task of the parameters."""
        if self.task is not None:
            return self.task
        counts = self.counts
        if isinstance(counts, int):
            counts = Counts.fixed(counts)
        return RecallTask(
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
        """The M sentences of an empirical risk, or None for the population risk."""
        if math.isinf(self.M):
            return None
        return self.whole_task.sentences(np.random.default_rng(self.seed), int(self.M))

    @property
    def held(self) -> tuple[float | None, float | None]:
        """Values at which γ and v are held.

        A value is None if the parameter is trained, or if it has no effect.
        """
        return self._held_gamma(), self._held_v()

    def _held_gamma(self) -> float | None:
        """Value at which γ is held; None if γ is trained, or "best" without noise."""
        task = self.whole_task
        if self.gamma == "best" and task.alpha:
            return estimated_gamma(task, self.data)
        # "trained", or "best" without noise.
        if isinstance(self.gamma, str):
            return None
        return self.gamma

    def _held_v(self) -> float | None:
        """Value at which v is held; None if it is trained, or has no effect."""
        # Only softmax attention has a v. For other kinds the default 1 becomes None;
        # `RecallRisk` refuses any other value.
        is_unused = self.v == 1.0 and not self.attention.startswith("softmax")
        if is_unused or isinstance(self.v, str):
            return None
        return self.v

    def population(self) -> RecallRisk:
        """Return the population risk over λ and, if they are trained, v and γ."""
        # If all triggers have the same probability and law of counts, one λ can stand
        # for all of them: their λ stay equal if the update rule is reducible, that is,
        # if it commutes with this reduction of the parameters. On M drawn sentences the
        # λ differ, because the sentences of different triggers have different counts.
        tied = (
            self.whole_task.alike
            and math.isinf(self.M)
            and rule_of(self.update()).reducible
        )
        if tied and self.start is not None:
            # A given start may have a λ for each trigger. Such a start is longer than a
            # single λ together with v and γ, if they are trained.
            tied = len(self.start) <= 1 + self._number_of_trained_scalars
        gamma, v = self.held
        return RecallRisk(
            self.whole_task,
            self.attention,
            gamma=gamma,
            tied=tied,
            v=v,
            weights=self.weights,
            kappa=self.kappa,
        )

    @property
    def own_start(self) -> bool:
        """Whether training starts elsewhere than at zero."""
        return self.start is not None

    @property
    def _number_of_trained_scalars(self) -> int:
        """How many of v and γ are trained."""
        gamma, v = self.held
        trains_gamma = bool(self.whole_task.alpha) and gamma is None
        trains_v = self.attention.startswith("softmax") and v is None
        return int(trains_gamma) + int(trains_v)

    def risk(self) -> Risk:
        """Return the risk over λ and, if they are trained, v and γ."""
        risk = self._from_zero()
        return risk if self.start is None else with_start(risk, self.start)

    def _from_zero(self) -> Risk:
        """Return the risk that starts from zero."""
        if self.data is None:
            return self.population()
        # With softmax attention or κ = 0 the loss depends on more of a sentence than
        # its counts of bigrams. So run the transformer on the sentences, with only λ, v
        # and γ as parameters.
        if self.attention == "softmax" or self.kappa == 0:
            full = TransformerRisk(
                self.whole_task,
                self.attention,
                data=self.data,
                weights=self.weights,
                kappa=self.kappa,
            )
            gamma, v = self.held
            return reparameterised(full, gamma, v)
        return dataclasses.replace(self.population(), data=self.data)

    def population_excess(self, run: Trajectory) -> float:
        """Return the population loss above the Bayes risk at the end of a run."""
        instance("run", run, Trajectory, "a Trajectory")
        return self.population().excess(run.params)

    def describe(self, run: Trajectory) -> None:
        """Add the Bayes risk, and the predicted end of the run."""
        task = self.whole_task
        risk = run.risk
        run.notes["bayes risk"] = f"{task.bayes_risk:.6g}"
        if math.isfinite(self.M):
            run.notes["population"] = (
                f"{self.population_excess(run):.6g} above the Bayes risk in the end"
            )
        elif END_OF_NORMALISED_DESCENT.applies(run) and isinstance(risk, RecallRisk):
            # If training has a start of its own, the risk is no `RecallRisk`.
            run.notes |= _predicted_end(risk, run.eta)

    def measure(self, run: Trajectory) -> Mapping[str, Any]:  # type: ignore[override]
        """Return the family's columns of a run."""
        return {
            "excess": self.population_excess(run),
            "bayes_risk": self.whole_task.bayes_risk,
        }


def _two_values(name: str, value: Any) -> ValueError:
    """Return the error for a parameter that is given beside a task."""
    return ValueError(
        f"{name} = {value!r}: the task already sets {name}; give one of the two"
    )


def _predicted_end(risk: RecallRisk, eta: float) -> dict[str, str]:
    """Describe how normalised descent ends: at a linear rate, or in a cycle.

    The key of the text is the name of a note: "rate", "cycle", or "floor" if the best λ
    is finite, so that there is no linear rate.
    """
    task = risk.task
    # Steps of constant length in a trained γ do not converge.
    if risk.noisy and risk.gamma is None:
        return {"cycle": _predicted_cycle(task.alpha, eta)}
    floor_excess = risk.floor() - task.bayes_risk
    floor_phrase = ""
    # A smaller difference may be rounding.
    if floor_excess > VISIBLE:
        floor_phrase = f" over a floor {floor_excess:.3g} above the Bayes risk"
    # With noise, and with v held or κ = 0, the best strength may be finite.
    optimum_may_be_finite = risk.kappa == 0 or (risk.scaled and risk.v is not None)
    if risk.noisy and optimum_may_be_finite:
        # The floor may then be only a lower bound, see `RecallRisk.floor`.
        if not floor_phrase:
            return {"floor": "the least loss is not known"}
        return {"floor": f"the least loss{floor_phrase} lies at a finite λ"}
    rate = decay_rate(task, eta, risk.attention, risk.weights, risk.v)
    # Only triggers with a λ of their own can overshoot in turn.
    if rate >= LARGEST_STABLE_RATE and not risk.tied:
        return {
            "rate": "triggers overshoot in turn: the loss falls more slowly than"
            f" exp(-{rate:.4g} t) in the end"
        }
    return {
        "rate": f"the excess{floor_phrase} falls like exp(-{rate:.4g} t) in the end"
    }


def _predicted_cycle(alpha: float, eta: float) -> str:
    """Describe the cycle of a trained γ, which jumps around its best value.

    The text gives the leading order in η of the excess if it is within a tenth of the
    exact excess.
    """
    leading = stall(alpha, eta)
    exact = cycle_excess(alpha, eta)
    if abs(leading - exact) > 0.1 * exact:
        return "constant steps in γ: the excess does not tend to 0"
    return f"constant steps in γ: the excess stays near α(1-α)η²/8 = {leading:.3g}"
