"""`icl-theory recall`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from icl_theory._validate import refuse
from icl_theory.cli.shared import LossProgress, check_targets, print_facts
from icl_theory.descent import MAX_STEPS
from icl_theory.recall.counts import Counts
from icl_theory.recall.simulate import simulate
from icl_theory.recall.task import RecallTask


def recall(
    context: typer.Context,
    eta: Annotated[float, typer.Option("--eta", help="Learning rate.")] = 0.5,
    V: Annotated[int, typer.Option("--V", help="Number of words.")] = 50,
    Q: Annotated[int, typer.Option("--Q", help="Number of triggers.")] = 4,
    outputs: Annotated[int, typer.Option("--outputs", help="Number of outputs.")] = 8,
    attention: Annotated[str, typer.Option("--attention", help="linear, relu or softmax.")] = "linear",
    alpha: Annotated[float, typer.Option("--alpha", help="Probability that the next word is noise.")] = 0.0,
    probs: Annotated[str | None, typer.Option("--probs", help="Trigger probabilities, 0.5,0.3,0.2 say.")] = None,
    H: Annotated[int, typer.Option("--H", help="Words of a sentence.")] = 33,
    count: Annotated[
        int | None, typer.Option("--count", help="Times that the output follows the trigger; random unless given.")
    ] = None,
    gamma: Annotated[
        str | None, typer.Option("--gamma", help="Hold the log-odds of noise there; 'best' is ln(alpha/(1-alpha)).")
    ] = None,
    M: Annotated[int | None, typer.Option("--M", help="Train on M sentences, not on the population.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of these sentences.")] = 0,
    rule: Annotated[str, typer.Option("--rule", help="ngd (normalised) or gd.")] = "ngd",
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Target loss.")] = None,
    above: Annotated[float, typer.Option("--above", help="Target loss above the floor, without --epsilon.")] = 1e-3,
    method: Annotated[str, typer.Option("--method", help="auto, closed, exact, fast or flow.")] = "auto",
    max_steps: Annotated[int, typer.Option("--max-steps", help="Largest number of steps.")] = MAX_STEPS,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the figure (png, pdf or svg).")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the run, for icl_theory.load.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run as JSON instead of a summary.")] = False,
) -> int:
    """Train on in-context recall until the loss is above the Bayes risk by 0.001, or as told."""
    check_targets(plot, save=save)
    task = RecallTask(
        V, Q, outputs, alpha=alpha, H=H,
        probs=None if probs is None else _numbers("probs", probs),
        counts=None if count is None else Counts.fixed(count),
    )  # fmt: skip
    with LossProgress(task.bayes_risk + above if epsilon is None else epsilon) as progress:
        run = simulate(
            eta=eta, task=task, attention=attention, gamma=_log_odds(gamma, task), M=M, seed=seed, rule=rule,
            epsilon=epsilon, above=above, method=method, max_steps=max_steps, callback=progress.update,
        )  # fmt: skip
    run.command = context.obj
    if as_json:
        print(json.dumps(run.to_dict(), allow_nan=False))
    else:
        print_facts(run)
    if save is not None:
        run.save(save)
    if plot is not None:
        from icl_theory.results.plots import save as save_figure

        save_figure(run.plot(), str(plot))
    return 130 if run.stop_reason.startswith("interrupted") else 0


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise refuse(name, text, "numbers separated by commas") from None


def _log_odds(text: str | None, task: RecallTask) -> float | None:
    if text is None:
        return None
    if text == "best" and math.isfinite(task.best_gamma):
        return task.best_gamma
    try:
        return float(text)
    except ValueError:
        raise refuse("gamma", text, "a number, or 'best' where there is noise") from None
