"""Many runs of stochastic gradient descent, advanced as one array.

`train_runs` takes one step of all runs at a time: each trainer draws its prompts, the
losses and gradients of all runs are computed together by `Trainer.evaluate_runs`, and
the rule takes a step of each run. `sgd_losses` makes the runs with which a loss curve
is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from icl_theory._validate import Array, argument_error, sequence
from icl_theory.engine.loss_curve import Run, Steps
from icl_theory.engine.progress import counted
from icl_theory.engine.rules import Rule, rule_of
from icl_theory.engine.sampling import Trainer, joinable, joined, trainer_of
from icl_theory.engine.scaled import scaled_like
from icl_theory.memory import keep_freed

# The largest number of steps of an SGD run. A run of so many steps takes minutes.
LONGEST_SGD = 10**6
# Runs are advanced together if all their prompts fit into so many bytes. The arrays
# that are computed from the prompts take a few times as much.
TOGETHER = 2**22


def train_runs(
    trainers: Sequence[Trainer[Any]], eta: float, rule: Rule, steps: Steps
) -> Array:
    """Return the batch losses of several runs, (R, T).

    Each run is gradient descent by the rule from the initial parameters of its trainer.
    The rule steps each run by itself, with a memory of its own.

    Parameters
    ----------
    trainers : sequence of Trainer
        One for each of R runs. They differ in their seeds alone: the first one computes
        the losses of all.
    eta : float
        Learning rate.
    rule : Rule
        The update rule.
    steps : ndarray of int, (T,)
        Increasing steps. The loss at a step is the loss before its update. Losses are
        not finite in a run that has diverged.

    Raises
    ------
    ValueError
        There are no trainers, or they have different shapes.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.engine import GradientDescent
    >>> from icl_theory.engine.sgd_runs import train_runs
    >>> problem = icl.Regression(L=1.0, delta=1.0, eta=2.0, K=4, N=20)
    >>> trainers = [problem.sampled(batch=64, seed=seed) for seed in range(8)]
    >>> train_runs(trainers, 2.0, GradientDescent(), np.array([0, 50])).shape
    (8, 2)
    """
    trainers = sequence(
        "trainers",
        trainers,
        Trainer,  # type: ignore[type-abstract]
        "one Trainer or more",
    )
    runs = _Runs(trainers, eta, rule)
    keep_freed()
    position = {step: index for index, step in enumerate(steps.tolist())}
    last = int(steps[-1])
    losses = np.empty((len(trainers), len(steps)))
    with np.errstate(over="ignore", invalid="ignore"):
        for step in counted(range(last + 1), "steps of SGD"):
            step_losses, gradients = runs.evaluate(step)
            if step in position:
                losses[:, position[step]] = step_losses
            if step < last:
                runs.advance(gradients, step)
    return losses


class _Runs:
    """The states of R runs. The parameters are compensated sums, as in `UpdateMap`."""

    def __init__(
        self, trainers: Sequence[Trainer[Any]], eta: float, rule: Rule
    ) -> None:
        self.trainers = trainers
        self.eta = eta
        self.rule = rule
        starts = [np.asarray(trainer.initial, dtype=float) for trainer in trainers]
        shapes = {start.shape for start in starts}
        if len(shapes) > 1:
            raise argument_error(
                "trainers", sorted(shapes), "with parameters of one shape"
            )
        self.params = np.stack(starts)
        self.memories = [
            rule.init(trainer, start)
            for trainer, start in zip(trainers, starts, strict=True)
        ]
        # Kahan's sum: what rounding has added to the parameters
        self.carry = np.zeros_like(self.params)
        self.groups = _groups(trainers)

    def evaluate(self, step: int) -> tuple[Array, Array]:
        """Return the losses, (R,), and gradients, (R, ...), of a step."""
        losses = np.empty(len(self.params))
        gradients = np.empty_like(self.params)
        for group in self.groups:
            of_group = self.params[group]
            prompts = [trainer.prompts(step) for trainer in self.trainers[group]]
            losses[group], computed = self._evaluated(of_group, prompts)
            # NumPy would broadcast gradients of another shape.
            if np.shape(computed) != of_group.shape:
                raise argument_error(
                    "gradients", np.shape(computed), f"of shape {of_group.shape}"
                )
            gradients[group] = computed
        return losses, gradients

    def _evaluated(self, params: Array, prompts: Sequence[Any]) -> tuple[Array, Array]:
        """Return losses and gradients of some runs on the prompts of each."""
        trainer = self.trainers[0]
        if joinable(prompts):
            return trainer.evaluate_runs(params, joined(prompts))
        # The prompts of each run have other lengths.
        pairs = [
            trainer.evaluate_on(of_run, of_prompts)
            for of_run, of_prompts in zip(params, prompts, strict=True)
        ]
        losses = np.array([loss for loss, _ in pairs])
        return losses, np.stack([gradient for _, gradient in pairs])

    def advance(self, gradients: Array, step: int) -> None:
        """Take a step of each run."""
        changes = np.empty_like(self.params)
        for run, trainer in enumerate(self.trainers):
            changes[run], self.memories[run] = self.rule.step(
                trainer,
                self.params[run],
                gradients[run],
                self.eta,
                self.memories[run],
                step,
            )
        changes -= self.carry
        moved = self.params + changes
        self.carry = (moved - self.params) - changes
        self.params = moved


def _groups(trainers: Sequence[Trainer[Any]]) -> list[slice]:
    """Split the runs into groups whose prompts fit into memory together."""
    parts = trainers[0].prompts(0)
    bytes_of_run = sum(part.nbytes for part in parts if part is not None)
    size = max(1, TOGETHER // max(bytes_of_run, 1))
    starts = range(0, len(trainers), size)
    return [slice(start, start + size) for start in starts]


def sgd_losses(run: Run, t: Steps, batch: int, runs: int, seed: int) -> Array:
    """Return the batch losses along runs of SGD with the setting of a run, (R, T).

    Raises
    ------
    ValueError
        There are too many steps, the run cannot be sampled, an argument is out of
        range, or a run of SGD diverges.
    """
    if t[-1] > LONGEST_SGD:
        raise argument_error(
            "steps",
            int(t[-1]),
            f"at most {LONGEST_SGD:,} with batch; give errors instead",
        )
    trainers = _trainers(run, batch, runs, seed)
    losses = train_runs(trainers, run.eta, rule_of_run(run), t)
    if not np.isfinite(losses).all():
        raise argument_error(
            "batch",
            batch,
            f"larger: of {runs} runs of SGD with such batches some diverge",
        )
    return losses


def _trainers(run: Run, batch: int, runs: int, seed: int) -> list[Trainer[Any]]:
    """Return trainers that draw their batches, each with a seed of its own."""
    seeds = np.random.SeedSequence(seed).generate_state(runs).tolist()
    try:
        # The family draws new prompts. The risk of a fixed set draws from the set.
        if run.family is None or getattr(run, "on_fixed_set", False):
            trainers = [trainer_of(run.risk, batch, of_run) for of_run in seeds]
        else:
            # A family samples half the squared error, also if a run trains on all.
            trainers = [
                scaled_like(run.risk, run.family.sampled(batch, of_run))
                for of_run in seeds
            ]
        return [trainer.cheaper() for trainer in trainers]
    except ValueError as error:
        reason = str(error)
        if not reason.startswith("batch = "):
            reason = f"batch = {batch}: {reason}"
        raise ValueError(
            f"{reason}; give errors, standard errors of the losses, instead"
        ) from None


def rule_of_run(run: Run) -> Rule:
    """Return the update rule of a run, with its settings."""
    if run.trained_by is not None:
        return run.trained_by
    # the name alone would give the rule its default settings
    return rule_of(run.rule if run.family is None else run.family.update())
