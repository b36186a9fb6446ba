"""`icl-theory simulate`, and `simulate` of every family.

The command makes one run. If the value of a parameter is ``all``, it makes a run for
each word that this parameter may have, and shows the runs side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

import icl_theory
from icl_theory._names import nearest
from icl_theory._validate import argument_error
from icl_theory.cli import completion
from icl_theory.cli.options import (
    Config,
    flag,
    help_text,
    options_of,
    parse_value,
    require,
    with_options,
)
from icl_theory.cli.shared import (
    INTERRUPTED,
    PlotFile,
    check_targets,
    print_facts,
    print_json,
)
from icl_theory.engine.interrupts import returns_runs
from icl_theory.engine.trajectory import Stop, Trajectory
from icl_theory.families import Family, Parameter, Word
from icl_theory.results import plots

# The value of an option that stands for every word of its parameter.
ALL = "all"
# The last sentence in the help of the command.
STATUSES = (
    "The exit status is 1 if a target is set and not reached, or if the run diverges,"
    " and 0 otherwise."
)


class Simulation(NamedTuple):
    """A problem and its run.

    Attributes
    ----------
    label : str
        The word of the compared parameter; empty if there is only one run.
    problem : Family
        The problem.
    run : Trajectory
        The run.
    """

    label: str
    problem: Family
    run: Trajectory


def simulate_command(family: type[Family]) -> Callable[..., int]:
    """Return the command that simulates a family.

    Its docstring, which is the help of the command, is made from the family's title.
    """

    @returns_runs
    def simulate(
        given: dict[str, str],
        context: typer.Context,
        config: Config = None,
        plot: PlotFile = None,
        save: Annotated[
            Path | None,
            typer.Option("--save", help="Write the run, which icl_theory.load reads."),
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
        # Everything that cannot work is refused before anything is computed. Typer has
        # already made the settings in the file ``config`` the defaults of the options.
        check_targets(plot, save=save)
        if certify:
            icl_theory.certified.check_installed()
        problems = _problems(family, given, save)
        # The attribute ``obj`` is the command line.
        simulations = _simulated(problems, context.obj)
        runs = [simulation.run for simulation in simulations]
        certificates = [icl_theory.certify(run) for run in runs] if certify else []
        # The results are printed first: writing a file may still fail.
        _show(simulations, as_json, certificates)
        _warn_of_unreachable_targets(simulations)
        # `_problems` has refused to save several runs.
        if save is not None:
            runs[0].save(save)
        if plot is not None:
            # A problem that is not compared with others has the label "".
            _draw(runs, plot, is_comparison="" not in problems)
        return _status(runs)

    simulate.__doc__ = (
        f"Train on {family.title} until the target is reached, and print a summary."
        f" {STATUSES}"
    )
    return with_options(simulate, given=options_of(family, _help, _completer))


def _problems(
    family: type[Family], options: Mapping[str, str], save: Path | None
) -> dict[str, Family]:
    """Return the problems to simulate, by their labels.

    ``options`` has the texts of the options that are given, by the name of the
    parameter. If one of them is ``all``, the labels are the words of this parameter.
    Otherwise there is one problem, with the label "".
    """
    declared = family.parameters()
    compared = _compared_parameters(declared, options)
    settings: dict[str, Any] = {}
    for name, text in options.items():
        if name not in compared:
            settings[name] = parse_value(declared[name], text)
    # Missing parameters are refused here, because this error names the option. The
    # error of the family would name an argument of its class.
    require(family, settings)
    if not compared:
        return {"": family(**settings)}
    name, *others = compared
    if others:
        raise ValueError(
            f"{others[0]} = 'all': must be one word with {flag(name)} all; one"
            " parameter is compared at a time"
        )
    if save is not None:
        raise ValueError(
            f"save = {str(save)!r}: a file holds one run, and {flag(name)} all makes"
            " several"
        )
    words = declared[name].kind.words
    return {word: family(**{**settings, name: word}) for word in words}


def _compared_parameters(
    declared: Mapping[str, Parameter], options: Mapping[str, str]
) -> list[str]:
    """Return the parameters whose value is ``all``; refuse a word that is not allowed.

    Words are checked here, because the error lists ``all`` among the allowed words. The
    family, which does not know this word, checks them again.
    """
    compared = []
    for name, text in options.items():
        if not _has_words(declared[name]):
            continue
        kind = declared[name].kind
        words = (*kind.words, ALL)
        # A parameter with words may also be an array, which is checked later.
        if kind.is_array(text) or (kind.arrays and "," in text):
            continue
        if text not in words:
            raise argument_error(
                name, text, f"one of {', '.join(words)}{nearest(text, words)}"
            )
        if text == ALL:
            compared.append(name)
    return compared


@returns_runs
def _simulated(problems: Mapping[str, Family], command: str) -> list[Simulation]:
    """Simulate problems one after the other.

    Ctrl-C ends the current run early; the remaining problems are not simulated.
    """
    simulations = []
    for label, problem in problems.items():
        run = problem.simulate()
        # The run keeps the command line, with which it can be made again.
        run.command = command
        simulations.append(Simulation(label, problem, run))
        if run.interrupted:
            break
    return simulations


def _warn_of_unreachable_targets(simulations: list[Simulation]) -> None:
    """Print a warning for each run whose target is not above the lowest loss.

    A run stops at `Stop.FLOOR` if its loss has come to the floor, the lowest loss, and
    the target is not above the floor. The warning is for a target that is given as
    ``epsilon``; only rounding can bring a target that is given as ``above`` to the
    floor.
    """
    for _, problem, run in simulations:
        if run.stop is Stop.FLOOR and problem.epsilon:
            print(
                f"icl-theory: epsilon = {run.epsilon:g} is not above the lowest loss,"
                f" {run.floor:.6g}: --above sets a target above the lowest loss"
                " instead",
                file=sys.stderr,
            )


def _draw(runs: list[Trajectory], path: Path, *, is_comparison: bool) -> None:
    """Draw a run with its attention, or several runs side by side, into a file."""
    axes = plots.compare_runs(runs) if is_comparison else runs[0].plot()
    plots.save(axes, str(path))


def _status(runs: list[Trajectory]) -> int:
    """Return the exit status of the command, as STATUSES describes it."""
    if any(run.interrupted for run in runs):
        return INTERRUPTED
    return 1 if any(_has_failed(run) for run in runs) else 0


def _has_failed(run: Trajectory) -> bool:
    """Whether a run diverged, or has a target and did not reach it."""
    has_target = run.epsilon > 0.0  # epsilon is 0 if no target is set
    # These stops mean that the loss or the parameters are no longer finite.
    has_diverged = run.stop in (Stop.LOSS, Stop.PARAMETERS)
    return has_diverged or (has_target and not run.converged)


def _help(declared: Parameter) -> str:
    """Return the help text of a parameter, which mentions ``all`` if it is allowed."""
    text = help_text(declared)
    if _has_words(declared):
        return f"{text.removesuffix('.')}; all compares them."
    return text


def _completer(declared: Parameter) -> completion.Completer | None:
    """Return a completer for the words of a parameter, and for ``all`` if allowed."""
    if _has_words(declared):
        return completion.of_parameter(declared, ALL)
    return completion.of_parameter(declared)


def _has_words(declared: Parameter) -> bool:
    """Whether a parameter may be ``all``: its values are words, and it may be swept."""
    return isinstance(declared.kind, Word) and declared.axis


def _show(
    simulations: list[Simulation],
    as_json: bool,
    certificates: list[icl_theory.certified.Certificate],
) -> None:
    """Print runs as text or JSON, and the certificate of each run.

    ``certificates`` has a certificate for each run, or is empty without --certify.
    """
    if as_json:
        _print_json(simulations, certificates)
        return
    is_alone = len(simulations) == 1
    if is_alone:
        print_facts(simulations[0].run.facts())
    else:
        _print_side_by_side(simulations)
    # Without --certify there are no certificates, and this loop prints nothing.
    for simulation, certificate in zip(simulations, certificates, strict=False):
        print()
        if not is_alone:
            print(simulation.label)
        print(certificate)


def _print_json(
    simulations: list[Simulation],
    certificates: list[icl_theory.certified.Certificate],
) -> None:
    """Print runs with their certificates as JSON.

    A single run is one document. Several runs are one document with an entry for each
    label.
    """
    documents = {
        simulation.label: simulation.run.to_dict() for simulation in simulations
    }
    # Without --certify there are no certificates, and nothing is added.
    for document, certificate in zip(documents.values(), certificates, strict=False):
        document["proved"] = certificate.to_dict()
    if len(documents) == 1:
        (document,) = documents.values()
        print_json(document)
    else:
        print_json(documents)


def _print_side_by_side(simulations: list[Simulation]) -> None:
    """Print the facts of several runs as a table with a column for each run."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for simulation in simulations:
        table.add_column(simulation.label, ratio=1, overflow="fold")
    columns = [simulation.run.facts() for simulation in simulations]
    # Runs may have different facts. The keys of a dict keep each name once, in order.
    names = dict.fromkeys(name for facts in columns for name in facts)
    # The fact "run" describes a single run; the headings take its place.
    names.pop("run", None)
    for name in names:
        table.add_row(name, *(facts.get(name, "") for facts in columns))
    Console(highlight=False).print(table)
