"""Checks of a trainer: its prompts, the losses on them, and many runs at once.

A `Trainer` is a risk whose loss at step t is the mean loss of the prompts
``prompts(t)``. For given prompts, ``losses_on`` returns the loss of each, and
``evaluate_on`` returns their mean loss and its gradient. Prompts are a tuple of arrays
whose first axis is the prompt.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.sampling import Trainer, joinable, joined, prompt_count, selected
from icl_theory.testing.common import attempt, expect, expect_near, expect_same

# Two means over the same prompts, computed in different ways, may differ by this share
# of their size, see `_near`. The value is not derived: rounding is far smaller, and a
# mean over other prompts differs by far more.
SUMS = 1e-9


def check_trainer(trainer: Trainer[Any], places: dict[str, Array], step: int) -> None:
    """Check the prompts of a step, their mean loss, and several runs at once.

    A step must draw the same prompts each time, and its loss must be their mean loss. A
    run must have the same loss and gradient whether it is evaluated by itself or
    together with other runs. ``places`` has the parameter arrays at which the trainer
    is checked, by the names that messages give them. ``step`` is the step whose prompts
    are used.
    """
    prompts = attempt("prompts", trainer.prompts, step)
    count = attempt("prompts", prompt_count, prompts)
    expect(count > 0, "number of prompts", "one at least", count)
    again = trainer.prompts(step)
    for array, array_again in zip(prompts, again, strict=True):
        # A trainer may leave an optional array of its prompts None.
        if array is not None:
            expect_same(array, array_again, "prompts of a step, drawn twice")
    for where, params in places.items():
        _on_prompts(trainer, params, step, where)
        _split(trainer, params, step, where)
    _runs(trainer, np.stack([*places.values()]), step)


def _on_prompts(trainer: Trainer[Any], params: Array, step: int, where: str) -> None:
    """Check that a step has the mean loss and the mean gradient of its own prompts.

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
    """Check that the mean over prompts is the weighted mean over two parts of them.

    Both the mean loss and its gradient are checked. ``where`` names the parameters
    ``params`` in error messages.
    """
    prompts = trainer.prompts(step)
    count = prompt_count(prompts)
    if count < 2:
        return
    half = count // 2
    loss = 0.0
    gradient = np.zeros_like(params)
    for part_slice in (slice(half), slice(half, count)):
        part = selected(prompts, part_slice)
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
    # Each run gets the prompts of a different step.
    batches = [trainer.prompts(step + run) for run in range(len(params))]
    # Prompts of different shapes cannot be evaluated together.
    if not joinable(batches):
        return
    # `joined` puts the prompts of all runs one after the other, equally many for each.
    losses, gradients = attempt(
        "evaluate_runs", trainer.evaluate_runs, params, joined(batches)
    )
    for run, prompts in enumerate(batches):
        expected = trainer.evaluate_on(params[run], prompts)
        actual = (losses[run], gradients[run])
        _loss_and_gradient_near(
            expected, actual, f"evaluate_runs, run {run}", "of this run alone"
        )


def _loss_and_gradient_near(
    expected: tuple[float, Array], actual: Any, subject: str, sentence: str
) -> None:
    """Compare an expected pair of a loss and a gradient with an actual pair.

    An error names the ``subject``, and says what was expected of it: "the loss" or "the
    gradient", followed by ``sentence``.
    """
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
    """Compare two means over the same prompts, which may differ by rounding.

    The terms of a mean may cancel. ``scale`` is the size of the terms, if they may be
    larger than the mean. An error names the ``subject``, and says that ``sentence`` was
    expected.
    """
    largest = float(np.abs(expected).max(initial=0.0))
    allowed = np.asarray(SUMS * (largest + scale))
    expect_near(expected, actual, allowed, subject, sentence)
