"""Many runs of stochastic gradient descent, advanced as one array.

`train_runs` takes a step in all runs before it takes the next one: one generator draws
the prompts of all runs, `Trainer.evaluate_runs` computes losses and gradients of many
runs together, and the rule changes the parameters of each run. `sgd_losses` makes the
runs with which a user's loss curve is compared. In shapes, R is the number of runs and
T the number of steps whose losses are kept.
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

# The largest number of steps of a run of SGD. This many steps take minutes.
LONGEST_SGD = 10**6
# The losses and gradients of a group of runs are computed together. The prompts of all
# its runs in one step take up to this number of bytes, 4 MiB. The arrays that are
# computed from the prompts take a few times as much, and should fit into the cache of a
# processor.
LARGEST_GROUP_BYTES = 2**22


def train_runs(
    trainer: Trainer[Any], runs: int, eta: float, rule: Rule, steps: Steps
) -> Array:
    """Return the batch losses of several independent runs, (R, T).

    Each run starts from the initial parameters of the trainer. It has its own batches,
    and its own memory of the rule.

    Parameters
    ----------
    trainer : Trainer
        The sampler. The trainer's random generator of a step draws the batches of all
        runs in this step. The runs are therefore reproducible, but none of them is the
        run of the trainer itself.
    runs : int
        Number R of runs.
    eta : float
        Learning rate.
    rule : Rule
        The update rule.
    steps : ndarray of int, (T,)
        Increasing steps. The loss at a step is the loss before the update of this step.
        After a run has diverged, its losses are not finite.

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
    # Each step allocates arrays of the same sizes again, so the process keeps the
    # memory of freed arrays from now on.
    keep_freed()
    column_of_step = {step: column for column, step in enumerate(steps.tolist())}
    last = int(steps[-1])
    losses = np.empty((runs, len(steps)))
    # The losses show that a run has diverged, so no warning is needed.
    with np.errstate(over="ignore", invalid="ignore"):
        # `counted` shows the user how many steps are done.
        for step in counted(range(last + 1), "steps of SGD"):
            step_losses, gradients = states.evaluate(step)
            if step in column_of_step:
                losses[:, column_of_step[step]] = step_losses
            if step < last:
                states.advance(gradients, step)
    return losses


class _Runs:
    """The states of R runs, which `advance` changes.

    The parameters are compensated sums of their changes, by Kahan's method. The memory
    of the rule is kept for each run.
    """

    def __init__(
        self, trainer: Trainer[Any], runs: int, eta: float, rule: Rule
    ) -> None:
        self.trainer = trainer
        self.eta = eta
        self.rule = rule
        start = np.asarray(trainer.initial, dtype=float)
        # All runs have the same parameters at step 0, (R, ...).
        self.params = np.stack([start] * runs)
        self.memories = [rule.init(trainer, start) for _ in range(runs)]
        # For Kahan's sum of the changes: the amount by which rounding has made the
        # parameters too large.
        self.carry = np.zeros_like(self.params)
        # The runs of each group, whose losses and gradients are computed together.
        self.groups = _groups(trainer, runs)

    def evaluate(self, step: int) -> tuple[Array, Array]:
        """Return the losses, (R,), and gradients, (R, ...), of a step."""
        losses = np.empty(len(self.params))
        gradients = np.empty_like(self.params)
        # The groups draw their prompts one after the other from the same generator.
        rng = self.trainer.generator(step)
        for group in self.groups:
            params = self.params[group]
            # A list with a batch of prompts for each run of the group, or with one
            # tuple that holds the prompts of all of them.
            batches = self.trainer.draw_runs(rng, len(params))
            losses[group], group_gradients = self._evaluated(params, batches)
            # NumPy would broadcast gradients of another shape without an error.
            if np.shape(group_gradients) != params.shape:
                raise argument_error(
                    "gradients", np.shape(group_gradients), f"of shape {params.shape}"
                )
            gradients[group] = group_gradients
        return losses, gradients

    def _evaluated(self, params: Array, batches: list[Any]) -> tuple[Array, Array]:
        """Return losses, (r,), and gradients, (r, ...), of r runs on their own prompts.

        ``params``, (r, ...), are the parameters of these runs, and ``batches`` their
        prompts, as `Trainer.draw_runs` returns them.
        """
        if joinable(batches):
            return self.trainer.evaluate_runs(params, joined(batches))
        # Prompts of random lengths may make arrays of different shapes, which cannot be
        # joined. Then there is a batch for each run.
        losses = []
        gradients = []
        for run_params, batch in zip(params, batches, strict=True):
            loss, gradient = self.trainer.evaluate_on(run_params, batch)
            losses.append(loss)
            gradients.append(gradient)
        return np.array(losses), np.stack(gradients)

    def advance(self, gradients: Array, step: int) -> None:
        """Change the parameters of each run by a step of the rule, by Kahan's sum."""
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
        # The parameters are too large by the carry, so their change is reduced by it.
        changes -= self.carry
        new_params = self.params + changes
        # The rounded change that was made, minus the intended change.
        self.carry = (new_params - self.params) - changes
        self.params = new_params


def _groups(trainer: Trainer[Any], runs: int) -> list[slice]:
    """Split the runs into groups that are evaluated together, see LARGEST_GROUP_BYTES.

    The prompts of every step are assumed to be as large as the prompts of step 0.
    """
    prompts = trainer.prompts(0)
    # An array that the prompts lack is None.
    bytes_of_run = sum(array.nbytes for array in prompts if array is not None)
    # Prompts may have no bytes, and the divisor 1 then avoids a division by zero. A
    # group has at least one run, even if the prompts of one run exceed the limit.
    size = max(1, LARGEST_GROUP_BYTES // max(bytes_of_run, 1))
    return [slice(start, min(start + size, runs)) for start in range(0, runs, size)]


def sgd_losses(run: Run, t: Steps, batch: int, runs: int, seed: int) -> Array:
    """Return the batch losses of R runs of SGD with the settings of a run, (R, T).

    ``t``, (T,), are increasing steps. The loss at a step is the loss before the update
    of this step. ``runs`` is R, and each run has ``batch`` prompts in a step.

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
    """Return the trainer that draws the batches of all runs of SGD.

    Raises
    ------
    ValueError
        The run cannot be sampled. The message begins with ``batch``.
    """
    # A user may train with the same seed. Derive another seed from it, so that the
    # prompts are independent of the prompts of the user's run.
    (derived_seed,) = np.random.SeedSequence(seed).generate_state(1).tolist()
    try:
        # Without a family, the risk of the run draws the prompts. It also does so for a
        # run on a fixed set: it draws them from the set, but a family would draw new
        # ones.
        if run.family is None or getattr(run, "on_fixed_set", False):
            trainer = trainer_of(run.risk, batch, derived_seed)
        else:
            # A family samples half the squared error, but a run may train on the whole
            # squared error, as a `ScaledRisk`.
            trainer = scaled_like(run.risk, run.family.sampled(batch, derived_seed))
        # A trainer of the same law whose prompts cost less to draw.
        return trainer.cheaper()
    except ValueError as error:
        # The run is sampled because the user gave a batch, so the message names the
        # batch.
        reason = str(error)
        if not reason.startswith("batch = "):
            reason = f"batch = {batch}: {reason}"
        raise ValueError(
            f"{reason}; give errors, standard errors of the losses, instead"
        ) from None


def rule_of_run(run: Run) -> Rule:
    """Return the update rule of a run, with its settings if they are known."""
    if run.trained_by is not None:
        return run.trained_by
    if run.family is not None:
        return rule_of(run.family.update())
    # Only the name of the rule is known. It stands for a rule with default settings.
    return rule_of(run.rule)
