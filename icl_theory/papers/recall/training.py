"""Training of a transformer on sampled sentences, as in the paper's experiments.

`Training` is the family behind the command `icl-theory recall train`; `observe` trains
many models in parallel, for the figures. W, 𝒱 and F are the attention, value and
feed-forward matrices. Under the reparameterisation they depend on a strength λ for each
trigger, the scale v of 𝒱, and the log-odds γ of noise.
"""

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
from icl_theory.engine.starts import with_start
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import (
    Column,
    Family,
    Number,
    Whole,
    Word,
    parameter,
    starting_parameters,
)
from icl_theory.families.rule_parameters import update_rule
from icl_theory.memory import check_fits
from icl_theory.papers.recall.coordinates import reparameterised
from icl_theory.papers.recall.family import Recall
from icl_theory.papers.recall.population import ATTENTION
from icl_theory.papers.recall.sampled import TransformerRisk
from icl_theory.papers.recall.task import BYTES_PER_WORD, LAWS, RecallTask, Sentences
from icl_theory.papers.recall.weights import WEIGHTS, estimated_gamma

MODELS = ("full", "attention", "reparameterised")
# Observed values whose last value in a run is a column of a sweep.
LAST = ("seen_loss", "unseen_loss", "output", "noise")
# Added to the scores of ReLU attention, as in the paper's experiments.
PUBLISHED_KINK = 1e-8
# The parameters of `Recall`, by name.
_recall_parameters = Recall.parameters()


def _column(name: str) -> Column:
    """Declare the column of an observed value."""
    unit = "nats" if "loss" in name else ""
    meaning = f"{name.replace('_', ' ')} on test sentences at the end"
    return Column(name, "f8", unit, meaning)


def _as_in_recall(name: str, default: Any) -> Any:
    """Declare a parameter as `Recall` does, with a default of its own."""
    declared = _recall_parameters[name]
    return parameter(
        default,
        kind=declared.kind,
        meaning=declared.meaning,
        symbol=declared.symbol,
        tex=declared.tex,
    )


@dataclass(frozen=True, eq=False)
class Training(Family):
    r"""Training of a one-layer transformer on sampled sentences of in-context recall.

    The defaults are the paper's parameters. See docs/recall.md, "Training"; *How
    Transformers Learn In-Context Recall Tasks?*, experiments.

    Parameters
    ----------
    model : {"full", "attention", "reparameterised"}
        "full" trains W, 𝒱 and (with noise) F. "attention" trains W alone.
        "reparameterised" trains λ, and also γ and v if these are "trained".
    attention : {"linear", "relu", "softmax"}
        Attention weights. With ReLU, as in the paper, 1e-8 is added to the scores, so
        that training starts to the right of the kink.
    triggers : int, optional
        By default 5, or 1 with noise.
    batch, M : int
        Number of sentences in a step. The sentences are fresh, unless there are M fixed
        sentences, which are taken one batch after the other.
    scale : float, optional
        Standard deviation of the initial entries times √(2V), or 0 to start from zero;
        by default 0 for W alone, else ½. The reparameterised model starts from zero.
    start : array_like, optional
        All parameters at step 0 in one vector, instead of the random ones: the
        matrices row after row, or λ and, if they are trained, v and γ.
    rule : {"ngd", "ngd-blocks", "gd"}
        Gradient descent that divides by the norm of the whole gradient ("ngd") or of
        each matrix's own gradient ("ngd-blocks"), or plain gradient descent ("gd").
    V, outputs, alpha, H, law, weights, kappa, gamma, v, seed
        As in `Recall`.
    eta, epsilon, above, method, max_steps
        As for every `Family`; a target is for the loss of a batch, and by default there
        is no target.

    Examples
    --------
    >>> import icl_theory as icl
    >>> small = {"V": 12, "triggers": 2, "outputs": 3, "H": 12}
    >>> problem = icl.recall.Training(model="attention", **small, max_steps=60, eta=0.1)
    >>> run = problem.simulate()
    >>> bool(run.observed["unseen_loss"][-1] < 0.5 * run.observed["unseen_loss"][0])
    True
    """

    name: ClassVar[str] = "recall-train"
    title: ClassVar[str] = "sampled sentences of in-context recall"
    goal: ClassVar[tuple[str, float] | None] = None
    loss_unit: ClassVar[str] = "nats"
    columns: ClassVar[tuple[Column, ...]] = tuple(map(_column, LAST))

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
        "identity",
        kind=Word(words=WEIGHTS),
        meaning="which words the value matrix passes on",
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
        128,
        kind=Whole(),
        meaning="number of test sentences on which the run is observed",
        axis=False,
    )
    seed: int = parameter(
        0, kind=Whole(minimum=0), meaning="seed of sentences and start", axis=False
    )
    start: Any = starting_parameters((1,))
    rule: str | Rule = update_rule("ngd")
    max_steps: int = parameter(
        2000, kind=Whole(), meaning="number of steps", axis=False
    )

    def validate(self) -> None:
        """Refuse contradictory parameters, and a start at a critical point."""
        # Making the risk checks its parameters.
        if math.isinf(self.M):
            self.risk()
        else:
            # Drawing M sentences may take a while. So first check the other parameters
            # on the same problem with fresh sentences, which `replace` validates.
            check_fits("M", self.M, BYTES_PER_WORD * self.M * self.H)
            replace(self, M=math.inf)
        if self.start is not None and self.scale is not None:
            raise argument_error("scale", self.scale, "left out: a start is given")
        if self.model == "full" and self.scale == 0 and self.attention == "linear":
            raise argument_error(
                "scale",
                0,
                "positive for full matrices with linear attention: zero is a critical"
                " point",
            )
        # Only the reparameterised model has γ and v as parameters of their own.
        if self.model == "reparameterised":
            return
        for name in ("gamma", "v"):
            if getattr(self, name) == "trained":
                raise argument_error(
                    name,
                    "trained",
                    "a number unless model = 'reparameterised': full matrices contain"
                    " it",
                )

    @cached_property
    def task(self) -> RecallTask:
        """The task of the parameters, with 5 triggers by default, or 1 with noise."""
        Q = self.triggers or (1 if self.alpha else 5)
        return RecallTask(
            self.V, Q, self.outputs, alpha=self.alpha, H=self.H, law=self.law
        )

    @cached_property
    def data(self) -> Sentences | None:
        """The M sentences; None if every step draws fresh ones."""
        if math.isinf(self.M):
            return None
        return self.task.sentences(np.random.default_rng(self.seed), int(self.M))

    @cached_property
    def transformer(self) -> TransformerRisk:
        """The transformer with full matrices, before any reparameterisation."""
        attention_alone = self.model == "attention"
        gamma = self.gamma
        if isinstance(gamma, str):
            # The value for "best". For "trained" it has no effect.
            gamma = estimated_gamma(self.task, self.data)
        scale = self.scale
        if scale is None:
            scale = 0.0 if attention_alone else 0.5
        return TransformerRisk(
            self.task,
            self.attention,
            batch=int(min(self.M, self.batch)),
            seed=self.seed,
            data=self.data,
            trained=("attention",) if attention_alone else None,
            scale=scale,
            weights=self.weights,
            kappa=self.kappa,
            kink=PUBLISHED_KINK if self.attention == "relu" else 0.0,
            gamma=gamma,
            tests=self.tests,
        )

    def risk(self) -> Risk:
        """Return the risk over the trained parameters."""
        risk = self._with_default_start()
        return risk if self.start is None else with_start(risk, self.start)

    def _with_default_start(self) -> Risk:
        """Return the risk with the random start whose size is ``scale``.

        The reparameterised model starts from zero.
        """
        if self.model != "reparameterised":
            return self.transformer
        # None stands for a number that is trained, or that the model does not have.
        gamma = None
        if self.task.alpha and self.gamma != "trained":
            gamma = self.transformer.gamma
        v = None
        if self.attention == "softmax" and self.v != "trained":
            v = float(self.v)
        return reparameterised(self.transformer, gamma, v)

    def describe(self, run: Trajectory) -> None:
        """Add notes on how the model does on test sentences at the end of a run."""
        # The last of the values that `TransformerRisk.observe` measures, by name.
        last = {name: float(values[-1]) for name, values in run.observed.items()}
        losses = f"{last['seen_loss']:.3g} (seen outputs)"
        # A small vocabulary may have no unseen words.
        if "unseen_loss" in last:
            losses += f", {last['unseen_loss']:.3g} (unseen outputs)"
        run.notes["test loss"] = f"{losses}; Bayes risk {self.task.bayes_risk:.3g}"
        run.notes["predicts"] = (
            f"the output with probability {last['output']:.3g}, noise with"
            f" {last['noise']:.3g}"
        )
        run.notes["attention"] = (
            f"logit {last['attention_output']:.3g} of the output,"
            f" {last['attention_other']:.3g} at most of others"
        )
        if self.alpha:
            run.notes["feed-forward"] = (
                f"logit {last['feed_forward_noise']:.3g} of noise,"
                f" {last['feed_forward_other']:.3g} at most of others"
            )

    def measure(self, run: Trajectory) -> Mapping[str, Any]:  # type: ignore[override]
        """Return the family's columns of a run."""
        last = {}
        for name in LAST:
            # A small vocabulary may have no unseen words.
            if name in run.observed:
                last[name] = float(run.observed[name][-1])
        return last


class Observed(NamedTuple):
    """T saved steps of a run, (T,), and values observed at them, by name, (T,) each."""

    t: NDArray[np.int64]
    values: Mapping[str, Array]


def observe(problems: Sequence[Training], few: int = 2_000_000) -> list[Observed]:
    """Train models, in parallel processes if a run reads more than ``few`` words.

    The number of words of a run is taken as the mean over the runs. Shorter runs take
    less time than the start of processes. The results come in the order of the
    problems, and are the same for any number of processes.
    """
    total_words = sum(
        problem.max_steps * problem.batch * problem.H for problem in problems
    )
    if total_words <= few * len(problems):
        return [*map(_observed, problems)]
    # This import is slow, and only long runs need it.
    from icl_theory.sweeps.workers import processes

    processors = len(os.sched_getaffinity(0))
    with processes(min(processors, len(problems))) as pool:
        return [*pool.map(_observed, problems)]


def _observed(problem: Training) -> Observed:
    """Train a model, and return the values observed along the run."""
    # The matrices are too small for several threads.
    with threadpool_limits(limits=1):
        run = problem.simulate()
    return Observed(run.t, dict(run.observed))


COMMANDS: dict[str, type[Family]] = {"train": Training}
