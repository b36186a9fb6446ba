"""Checks of a trainer: its prompts, the losses on them, and many runs at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.sampling import Trainer, joinable, joined, prompt_count, selected
from icl_theory.testing.common import attempt, expect, expect_near, expect_same

# Losses and gradients that are sums over the same prompts may differ by this share of
# their largest entry, because of rounding. The value is not derived: rounding is far
# smaller, and a mean over other prompts is off by far more.
SUMS = 1e-9


def check_trainer(trainer: Trainer[Any], places: dict[str, Array], step: int) -> None:
    """Check that a step is a mean over its prompts, and that runs may be joined.

    Each of several runs that are evaluated together must have the loss and the gradient
    that it has by itself. ``places`` are parameters, by their names in messages.
    """
    prompts = attempt("prompts", trainer.prompts, step)
    count = attempt("prompts", prompt_count, prompts)
    expect(count > 0, "number of prompts", "one at least", count)
    again = trainer.prompts(step)
    for part, part_again in zip(prompts, again, strict=True):
        if part is not None:
            expect_same(part, part_again, "prompts of a step, drawn twice")
    for where, params in places.items():
        _on_prompts(trainer, params, step, where)
        _split(trainer, params, step, where)
    _runs(trainer, np.stack([*places.values()]), step)


def _on_prompts(trainer: Trainer[Any], params: Array, step: int, where: str) -> None:
    """Check that a step has the mean loss and gradient over its own prompts.

    The prompts are drawn with ``trainer.prompts(step)``. ``where`` names the parameters
    ``params`` in error messages.
    """
    prompts = trainer.prompts(step)
    loss, gradient = trainer.evaluate(params, step)
    subject = f"losses_on at {where}"
    losses: Any = attempt(subject, trainer.losses_on, params, prompts)
    expect(
        np.shape(losses) == (prompt_count(prompts),),
        subject,
        f"one loss for each of {prompt_count(prompts)} prompts",
        np.shape(losses),
    )
    _near(loss, float(np.mean(losses)), subject, "the mean loss of the step")
    subject = f"evaluate_on at {where}"
    on_prompts: Any = attempt(subject, trainer.evaluate_on, params, prompts)
    _loss_and_gradient_near((loss, gradient), on_prompts, subject, "of the step")


def _split(trainer: Trainer[Any], params: Array, step: int, where: str) -> None:
    """Check that the mean over prompts is the mean over two parts of them."""
    prompts = trainer.prompts(step)
    count = prompt_count(prompts)
    if count < 2:
        return
    half = count // 2
    loss = 0.0
    gradient = np.zeros_like(params)
    for rows in (slice(half), slice(half, count)):
        part = selected(prompts, rows)
        share = prompt_count(part) / count
        part_loss, part_gradient = trainer.evaluate_on(params, part)
        loss += share * part_loss
        gradient = gradient + share * part_gradient
    subject = f"mean of evaluate_on over two parts of the prompts at {where}"
    _loss_and_gradient_near(
        trainer.evaluate_on(params, prompts),
        (loss, gradient),
        subject,
        "of all prompts",
    )


def _runs(trainer: Trainer[Any], params: Array, step: int) -> None:
    """Check that each of several runs at once has its own loss and gradient.

    ``params`` has a row for each run.
    """
    # Each run has the prompts of another step.
    batches = [trainer.prompts(step + run) for run in range(len(params))]
    # Prompts of different shapes cannot be evaluated together.
    if not joinable(batches):
        return
    losses, gradients = attempt(
        "evaluate_runs", trainer.evaluate_runs, params, joined(batches)
    )
    for run, prompts in enumerate(batches):
        by_itself = trainer.evaluate_on(params[run], prompts)
        together = (losses[run], gradients[run])
        _loss_and_gradient_near(
            by_itself, together, f"evaluate_runs, run {run}", "of this run alone"
        )


def _loss_and_gradient_near(
    expected: tuple[float, Array], actual: Any, subject: str, sentence: str
) -> None:
    """Compare a loss and a gradient with another pair of them."""
    expected_loss, expected_gradient = expected
    loss, gradient = actual
    _near(expected_loss, loss, subject, f"the loss {sentence}")
    # Near a minimum, the gradient is a small difference of terms as large as the loss.
    _near(
        expected_gradient,
        gradient,
        subject,
        f"the gradient {sentence}",
        scale=abs(expected_loss),
    )


def _near(
    expected: Any, actual: Any, subject: str, sentence: str, scale: float = 0.0
) -> None:
    """Compare two sums over the same prompts, which may differ by rounding.

    The terms may be larger than the sums by up to ``scale``.
    """
    largest = float(np.abs(expected).max(initial=0.0))
    allowed = np.asarray(SUMS * (largest + scale))
    expect_near(expected, actual, allowed, subject, sentence)
