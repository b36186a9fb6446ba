"""`icl-theory simulate`, and `simulate` of every family."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import icl_theory
from icl_theory._validate import argument_error
from icl_theory.cli.options import (
    Config,
    flag,
    help_text,
    options_of,
    parse_value,
    require,
    with_options,
)
from icl_theory.cli.shared import PlotFile, check_targets, print_facts, print_json
from icl_theory.engine.interrupts import returns_runs
from icl_theory.engine.trajectory import Stop, Trajectory
from icl_theory.families import Family, Parameter, Word
from icl_theory.families.parameters import nearest
from icl_theory.results import plots

ALL = "all"  # stands for every word of a parameter
STATUSES = "The exit status is 1 if a target is set and not reached, or if the run diverges, and 0 otherwise."


def simulate_command(family: type[Family]) -> Callable[..., int]:
    """Return the command that simulates a family."""
    known = family.parameters()

    @returns_runs
    def simulate(
        given: dict[str, str],
        context: typer.Context,
        config: Config = None,
        plot: PlotFile = None,
        save: Annotated[
            Path | None,
            typer.Option("--save", help="Write the run, for icl_theory.load."),
        ] = None,
        as_json: Annotated[
            bool,
            typer.Option("--json", help="Print the run as JSON instead of a summary."),
        ] = False,
        certify: Annotated[
            bool,
            typer.Option(
                "--certify",
                help="Enclose loss, gradient and steps in balls, with proof.",
            ),
        ] = False,
    ) -> int:
        check_targets(plot, save=save)
        if certify:  # before anything is computed
            icl_theory.certified.check_installed()
        for name, text in given.items():
            if _several(known[name]) and text not in (
                words := (*known[name].kind.words, ALL)
            ):
                raise argument_error(
                    name, text, f"one of {', '.join(words)}{nearest(text, words)}"
                )
        many = [
            name
            for name, text in given.items()
            if text == ALL and _several(known[name])
        ]
        settings = {
            name: parse_value(known[name], text)
            for name, text in given.items()
            if name not in many
        }
        require(family, settings)
        if many and save is not None:
            raise ValueError(
                f"save = {str(save)!r}: a file holds one run, and {flag(many[0])} all makes several"
            )
        choices = (
            [{}]
            if not many
            else [{many[0]: word} for word in known[many[0]].kind.words]
        )
        problems = [family(**{**settings, **word}) for word in choices]
        runs = []
        for problem in problems:
            runs.append(problem.simulate())
            runs[-1].command = context.obj
            if runs[-1].interrupted:
                break
        proved = [icl_theory.certify(run) for run in runs] if certify else []
        _show(
            {
                ", ".join(word.values()): run
                for word, run in zip(choices, runs, strict=False)
            },
            as_json,
            proved,
        )
        for problem, run in zip(problems, runs, strict=False):
            if run.stop is Stop.FLOOR and problem.epsilon:
                said = f"epsilon = {run.epsilon:g} is not above the lowest loss, {run.floor:.6g}"
                print(
                    f"icl-theory: {said}: --above sets a target above the lowest loss instead",
                    file=sys.stderr,
                )
        if save is not None:
            runs[0].save(save)
        if plot is not None:
            plots.save(plots.compare_runs(runs) if many else runs[0].plot(), str(plot))
        return _status(runs)

    simulate.__doc__ = f"Train on {family.title} until the target is reached, and say what happened. {STATUSES}"
    return with_options(simulate, given=options_of(family, _help))


def _status(runs: list[Trajectory]) -> int:
    if any(run.interrupted for run in runs):
        return 130
    return 1 if any(map(_missed, runs)) else 0


def _missed(run: Trajectory) -> bool:
    """Whether a run diverged, or has a target and did not reach it: `epsilon` is 0 without a target."""
    has_target = run.epsilon > 0.0
    diverged = run.stop in (Stop.LOSS, Stop.PARAMETERS)
    return diverged or (has_target and not run.converged)


def _help(declared: Parameter) -> str:
    text = help_text(declared)
    return f"{text[:-1]}; all compares them." if _several(declared) else text


def _several(declared: Parameter) -> bool:
    return isinstance(declared.kind, Word) and declared.axis


def _show(
    runs: dict[str, Trajectory],
    as_json: bool,
    proved: list[icl_theory.certified.Certificate],
) -> None:
    if as_json:
        found = {name: run.to_dict() for name, run in runs.items()}
        for each, certificate in zip(found.values(), proved, strict=False):
            each["proved"] = certificate.to_dict()
        print_json(found if len(runs) > 1 else found.popitem()[1])
        return
    if len(runs) > 1:
        _print_side_by_side(runs)
    else:
        print_facts(*(run.facts() for run in runs.values()))
    for name, certificate in zip(runs, proved, strict=False):
        print(*([""] if len(runs) == 1 else ["", name]), certificate, sep="\n")


def _print_side_by_side(runs: dict[str, Trajectory]) -> None:
    table = Table(box=None, pad_edge=False)
    facts = {name: run.facts() for name, run in runs.items()}
    table.add_column("")
    for name in runs:
        table.add_column(name, ratio=1, overflow="fold")
    for row in dict.fromkeys(
        row for each in facts.values() for row in each if row != "run"
    ):
        table.add_row(row, *(each.get(row, "") for each in facts.values()))
    Console(highlight=False).print(table)
