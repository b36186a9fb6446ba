"""Many runs of stochastic gradient descent, advanced as one array.

`train_runs` takes one step of all runs at a time: one generator draws the prompts of
all runs, `Trainer.evaluate_runs` computes their losses and gradients together, and the
rule takes a step of each run. `sgd_losses` makes the runs with which a loss curve is
compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from icl_theory._validate import Array, argument_error, instance, integer
from icl_theory.engine.loss_curve import Run, Steps
from icl_theory.engine.progress import counted
from icl_theory.engine.rules import Rule, rule_of
from icl_theory.engine.sampling import Trainer, joinable, joined, trainer_of
from icl_theory.engine.scaled import scaled_like
from icl_theory.memory import keep_freed

# The largest number of steps of an SGD run, which then takes minutes.
LONGEST_SGD = 10**6
# Runs are advanced together if all their prompts fit into this number of bytes. The
# arrays that are computed from the prompts take a few times as much, and should fit
# into the cache of a processor.
TOGETHER = 2**22


def train_runs(
    trainer: Trainer[Any], runs: int, eta: float, rule: Rule, steps: Steps
) -> Array:
    """Return the batch losses of several independent runs, (R, T).

    Each run is gradient descent by the rule from the initial parameters of the trainer,
    on batches of its own. The rule steps each run by itself, with a memory of its own.

    Parameters
    ----------
    trainer : Trainer
        It draws the batches of all runs by its generator of the step. Runs are
        therefore reproducible, but none of them is the run of the trainer itself.
    runs : int
        Number R of runs.
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
        An argument is out of range, or the trainer returns gradients of a wrong shape.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.engine import GradientDescent
    >>> from icl_theory.engine.sgd_runs import train_runs
    >>> problem = icl.Regression(L=1.0, delta=1.0, eta=2.0, K=4, N=20)
    >>> trainer = problem.sampled(batch=64, seed=0)
    >>> train_runs(trainer, 8, 2.0, GradientDescent(), np.array([0, 50])).shape
    (8, 2)
    """
    instance("trainer", trainer, Trainer, "a Trainer")
    runs = integer("runs", runs, minimum=1)
    states = _Runs(trainer, runs, eta, rule)
    keep_freed()
    position = {step: index for index, step in enumerate(steps.tolist())}
    last = int(steps[-1])
    losses = np.empty((runs, len(steps)))
    with np.errstate(over="ignore", invalid="ignore"):
        for step in counted(range(last + 1), "steps of SGD"):
            step_losses, gradients = states.evaluate(step)
            if step in position:
                losses[:, position[step]] = step_losses
            if step < last:
                states.advance(gradients, step)
    return losses


class _Runs:
    """The states of R runs. The parameters are compensated sums, as in `UpdateMap`."""

    def __init__(
        self, trainer: Trainer[Any], runs: int, eta: float, rule: Rule
    ) -> None:
        self.trainer = trainer
        self.eta = eta
        self.rule = rule
        start = np.asarray(trainer.initial, dtype=float)
        self.params = np.stack([start] * runs)
        self.memories = [rule.init(trainer, start) for _ in range(runs)]
        # Kahan's sum: what rounding has added to the parameters
        self.carry = np.zeros_like(self.params)
        self.groups = _groups(trainer, runs)

    def evaluate(self, step: int) -> tuple[Array, Array]:
        """Return the losses, (R,), and gradients, (R, ...), of a step."""
        losses = np.empty(len(self.params))
        gradients = np.empty_like(self.params)
        rng = self.trainer.generator(step)
        for group in self.groups:
            of_group = self.params[group]
            batches = self.trainer.draw_runs(rng, len(of_group))
            losses[group], computed = self._evaluated(of_group, batches)
            # NumPy would broadcast gradients of another shape.
            if np.shape(computed) != of_group.shape:
                raise argument_error(
                    "gradients", np.shape(computed), f"of shape {of_group.shape}"
                )
            gradients[group] = computed
        return losses, gradients

    def _evaluated(self, params: Array, batches: list[Any]) -> tuple[Array, Array]:
        """Return losses and gradients of some runs on the prompts of each."""
        if joinable(batches):
            return self.trainer.evaluate_runs(params, joined(batches))
        # The prompts of each run have other lengths.
        pairs = [
            self.trainer.evaluate_on(of_run, of_prompts)
            for of_run, of_prompts in zip(params, batches, strict=True)
        ]
        losses = np.array([loss for loss, _ in pairs])
        return losses, np.stack([gradient for _, gradient in pairs])

    def advance(self, gradients: Array, step: int) -> None:
        """Take a step of each run."""
        changes = np.empty_like(self.params)
        for run, memory in enumerate(self.memories):
            changes[run], self.memories[run] = self.rule.step(
                self.trainer,
                self.params[run],
                gradients[run],
                self.eta,
                memory,
                step,
            )
        changes -= self.carry
        moved = self.params + changes
        self.carry = (moved - self.params) - changes
        self.params = moved


def _groups(trainer: Trainer[Any], runs: int) -> list[slice]:
    """Split the runs into groups whose prompts fit into memory together."""
    parts = trainer.prompts(0)
    bytes_of_run = sum(part.nbytes for part in parts if part is not None)
    size = max(1, TOGETHER // max(bytes_of_run, 1))
    return [slice(start, min(start + size, runs)) for start in range(0, runs, size)]


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
    trainer = _trainer(run, batch, seed)
    losses = train_runs(trainer, runs, run.eta, rule_of_run(run), t)
    if not np.isfinite(losses).all():
        raise argument_error(
            "batch",
            batch,
            f"larger: of {runs} runs of SGD with such batches some diverge",
        )
    return losses


def _trainer(run: Run, batch: int, seed: int) -> Trainer[Any]:
    """Return the trainer that draws the batches of all runs."""
    # Another seed, so that the prompts are independent of those of a user's own run.
    own_seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    try:
        # The family draws new prompts. The risk of a fixed set draws from the set.
        if run.family is None or getattr(run, "on_fixed_set", False):
            trainer = trainer_of(run.risk, batch, own_seed)
        else:
            # A family samples half the squared error, also if a run trains on all.
            trainer = scaled_like(run.risk, run.family.sampled(batch, own_seed))
        return trainer.cheaper()
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
