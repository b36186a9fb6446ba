"""Training of a transformer on sampled sentences, as in the paper's experiments: `icl-theory recall train`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from icl_theory._validate import Array, argument_error
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Rule
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import Column, Family, Number, Whole, Word, parameter
from icl_theory.families.rule_parameters import update_rule
from icl_theory.memory import check_fits
from icl_theory.papers.recall.coordinates import reparameterised
from icl_theory.papers.recall.family import Recall
from icl_theory.papers.recall.population import ATTENTION
from icl_theory.papers.recall.sampled import TransformerRisk
from icl_theory.papers.recall.task import BYTES, LAWS, RecallTask, Sentences
from icl_theory.papers.recall.weights import WEIGHTS, estimated_gamma

MODELS = ("full", "attention", "reparameterised")
LAST = ("seen_loss", "unseen_loss", "output", "noise")
_declared = Recall.parameters()


def _as_in_recall(name: str, default: Any) -> Any:
    """Declare a parameter as `Recall` does, with a default of its own."""
    known = _declared[name]
    return parameter(
        default,
        kind=known.kind,
        meaning=known.meaning,
        symbol=known.symbol,
        tex=known.tex,
    )


@dataclass(frozen=True, eq=False)
class Training(Family):
    r"""Training of a one-layer transformer on sampled sentences of in-context recall, with the paper's parameters.

    See docs/recall.md, "Training"; *How Transformers Learn In-Context Recall Tasks?*,
    experiments.

    Parameters
    ----------
    model : {"full", "attention", "reparameterised"}
        What is trained: W, 𝒱 and (with noise) F; W alone; or λ, and γ and v if these
        are "trained".
    attention : {"linear", "relu", "softmax"}
        Attention weights. With ReLU, as in the paper, 1e-8 is added to the scores: it
        starts right of its kink.
    triggers : int, optional
        By default 5, or 1 with noise.
    batch, M : int
        Sentences in a step, fresh ones unless there are M fixed sentences, taken one
        batch after the other.
    scale : float, optional
        Standard deviation of the initial entries times √(2V), or 0 to start from zero;
        by default 0 for W alone, else ½.
    rule : {"ngd", "ngd-blocks", "gd"}
        Normalised jointly, each matrix by its own gradient, or plain.
    V, outputs, alpha, H, law, weights, kappa, gamma, v, seed
        As in `Recall`.
    eta, epsilon, above, method, max_steps
        As for every `Family`; targets are for the loss of a batch, and by default there
        is none.

    Examples
    --------
    >>> import icl_theory as icl
    >>> small = {"V": 12, "triggers": 2, "outputs": 3, "H": 12, "max_steps": 60, "eta": 0.1}
    >>> run = icl.recall.Training(model="attention", **small).simulate()
    >>> bool(run.observed["unseen_loss"][-1] < 0.5 * run.observed["unseen_loss"][0])
    True
    """

    name: ClassVar[str] = "recall-train"
    title: ClassVar[str] = "sampled sentences of in-context recall"
    goal: ClassVar[tuple[str, float] | None] = None
    loss_unit: ClassVar[str] = "nats"
    columns: ClassVar[tuple[Column, ...]] = tuple(
        Column(
            name,
            "f8",
            "nats" * ("loss" in name),
            f"{name.replace('_', ' ')} on test sentences at the end",
        )
        for name in LAST
    )

    eta: float | str = _as_in_recall("eta", 0.05)
    model: str = parameter("full", kind=Word(words=MODELS), meaning="what is trained")
    attention: str = parameter(
        "linear", kind=Word(words=ATTENTION[:3]), meaning="attention weights"
    )
    V: int = _as_in_recall("V", 60)
    triggers: int | None = parameter(
        None,
        kind=Whole(optional=True),
        symbol="|Q|",
        tex="|Q|",
        meaning="number of triggers: 5, or 1 with noise",
    )
    outputs: int = _as_in_recall("outputs", 4)
    alpha: float = _as_in_recall("alpha", 0.0)
    H: int = _as_in_recall("H", 256)
    law: str = parameter(
        "planted", kind=Word(words=LAWS), meaning="law of the sentences"
    )
    weights: str = parameter(
        "identity", kind=Word(words=WEIGHTS), meaning="what the matrices let through"
    )
    kappa: int = _as_in_recall("kappa", 1)
    gamma: float | str = _as_in_recall("gamma", "best")
    v: float | str = _as_in_recall("v", 1.0)
    batch: int = parameter(512, kind=Whole(), meaning="sentences a step")
    M: float = _as_in_recall("M", math.inf)
    scale: float | None = parameter(
        None,
        kind=Number(zero=True, optional=True),
        meaning="size of the random start: 0, or 0.5 with V trained",
    )
    tests: int = parameter(
        128, kind=Whole(), meaning="sentences on which it is observed", axis=False
    )
    seed: int = parameter(
        0, kind=Whole(minimum=0), meaning="seed of sentences and start", axis=False
    )
    rule: str | Rule = update_rule("ngd")
    max_steps: int = parameter(
        2000, kind=Whole(), meaning="number of steps", axis=False
    )

    def validate(self) -> None:
        """Refuse parameters that contradict each other, and a start at a critical point."""
        if math.isinf(self.M):
            self.risk()
        else:  # without the sentences, which may take a while to draw
            check_fits("M", self.M, BYTES * self.M * self.H)
            replace(self, M=math.inf)
        if self.model == "full" and self.scale == 0 and self.attention == "linear":
            raise argument_error(
                "scale",
                0,
                "positive for full matrices with linear attention: zero is a critical point",
            )
        for name in ("gamma", "v"):
            if self.model != "reparameterised" and getattr(self, name) == "trained":
                raise argument_error(
                    name,
                    "trained",
                    "a number unless model = 'reparameterised': full matrices contain it",
                )

    @cached_property
    def task(self) -> RecallTask:
        """The task."""
        Q = self.triggers or (1 if self.alpha else 5)
        return RecallTask(
            self.V, Q, self.outputs, alpha=self.alpha, H=self.H, law=self.law
        )

    @cached_property
    def data(self) -> Sentences | None:
        """The M sentences."""
        return (
            None
            if math.isinf(self.M)
            else self.task.sentences(np.random.default_rng(self.seed), int(self.M))
        )

    @cached_property
    def transformer(self) -> TransformerRisk:
        """The transformer whose matrices are trained, or set by the reparameterisation."""
        gamma = (
            estimated_gamma(self.task, self.data)
            if isinstance(self.gamma, str)
            else self.gamma
        )
        scale = (
            self.scale
            if self.scale is not None
            else 0.0
            if self.model == "attention"
            else 0.5
        )
        return TransformerRisk(
            self.task,
            self.attention,
            min(self.batch, int(min(self.M, self.batch))),
            self.seed,
            self.data,
            ("attention",) if self.model == "attention" else None,
            scale,
            self.weights,
            self.kappa,
            1e-8 if self.attention == "relu" else 0.0,
            gamma,
            self.tests,
        )

    def risk(self) -> Risk:
        """Return the risk over the trained parameters."""
        if self.model != "reparameterised":
            return self.transformer
        gamma = (
            self.transformer.gamma
            if self.task.alpha and self.gamma != "trained"
            else None
        )
        v = (
            float(self.v)
            if self.attention == "softmax" and self.v != "trained"
            else None
        )
        return reparameterised(self.transformer, gamma, v)

    def describe(self, run: Trajectory) -> None:
        """Describe how the model does on test sentences at the end."""
        last = {name: float(values[-1]) for name, values in run.observed.items()}
        losses = ", ".join(
            f"{last[f'{kind}_loss']:.3g} ({kind} outputs)"
            for kind in ("seen", "unseen")
            if f"{kind}_loss" in last
        )
        run.notes["test loss"] = f"{losses}; Bayes risk {self.task.bayes_risk:.3g}"
        run.notes["predicts"] = (
            f"the output with probability {last['output']:.3g}, noise with {last['noise']:.3g}"
        )
        run.notes["attention"] = (
            f"logit {last['attention_output']:.3g} of the output, {last['attention_other']:.3g} at most of others"
        )
        if self.alpha:
            noise = last["feed_forward_noise"]
            other = last["feed_forward_other"]
            run.notes["feed-forward"] = (
                f"logit {noise:.3g} of noise, {other:.3g} at most of others"
            )

    def measure(self, run: Trajectory) -> Mapping[str, Any]:  # type: ignore[override]
        """Return the family's columns of a run."""
        return {
            name: float(run.observed[name][-1]) for name in LAST if name in run.observed
        }


class Observed(NamedTuple):
    """Saved steps of a run, (T,), and what was observed there, (T,) each by name."""

    t: NDArray[np.int64]
    values: Mapping[str, Array]


def observe(problems: Sequence[Training], few: int = 2_000_000) -> list[Observed]:
    """Train models, in as many processes as there are processors where a run reads more than ``few`` words.

    What is observed comes in the same order, and is the same for any number of
    processes.
    """
    words = sum(problem.max_steps * problem.batch * problem.H for problem in problems)
    if words <= few * len(problems):
        return [*map(_observed, problems)]
    from icl_theory.sweeps.workers import processes  # few runs are so long

    with processes(min(len(os.sched_getaffinity(0)), len(problems))) as pool:
        return [*pool.map(_observed, problems)]


def _observed(problem: Training) -> Observed:
    with threadpool_limits(limits=1):  # the matrices are small
        run = problem.simulate()
    return Observed(run.t, dict(run.observed))


COMMANDS: dict[str, type[Family]] = {"train": Training}
