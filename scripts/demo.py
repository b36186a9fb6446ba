"""What the package does, in half a minute: a flat and a sharp run, figures, and sampled prompts beside both."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import icl_theory as icl
from icl_theory.claims import Comparison
from icl_theory.results.plots import compare_runs, save

LENGTH, RUNS = 200, 8  # of the prompts, and sampled runs through all phases


def _table(checked: Comparison) -> Table:
    """Return exact value, sampled mean and z of every comparison."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("check", no_wrap=True)
    for heading in ("exact", "sampled", "± s.e.", "z", "limit", ""):
        table.add_column(heading, justify="right")
    for check in checked.checks:
        table.add_row(check.name, *check.cells())
    return table


def main() -> None:
    """Print summaries and a cross-check table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the figures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)

    epsilon = 1e-3
    runs = {
        "flat": icl.simulate(0.2, 1.0, 4.0, epsilon=epsilon),
        "sharp": icl.simulate(2.0, 1.0, 4.0, epsilon=epsilon),
    }
    for name, run in runs.items():
        console.print(f"[bold]{name}[/bold]: an exact run, L = {run.info['L']:g}")
        print(run.summary(), end="\n\n")
        save(run.plot(), str(out / f"{name}.png"))
    save(compare_runs(list(runs.values())), str(out / "dynamics.png"))

    checked = icl.crosscheck(runs["sharp"], N=LENGTH, phases=RUNS)
    console.print(f"Sampled prompts against the sharp run: {checked.note}")
    console.print(_table(checked), f"{checked.power}", "", sep="\n")
    # the flat regime permits a larger learning rate
    phases = icl.regression.sampled_phases(icl.simulate(0.2, 1.0, 100.0, epsilon=epsilon), N=LENGTH, runs=RUNS)
    console.print(f"Phases of the flat run at η = 100: {phases.note}")
    console.print(_table(phases))
    (out / "crosscheck.md").write_text(checked.to_markdown() + "\n", encoding="utf-8")
    print(f"Figures and the table are in {out}/")


if __name__ == "__main__":
    main()
