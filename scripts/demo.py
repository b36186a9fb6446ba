"""What the package does, in a few seconds: flat and sharp runs, the transition between them, and a cross-check."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import icl_theory as icl
from icl_theory.results.plots import save

K = 1000
DELTA = 1.0
ETA = 4.0
EPSILON = 1e-6
OPENING = """[bold]icl-theory: one attention layer learns in context, exactly[/bold]
This demo shows three things, and writes their figures into {out}/:
  1. a flat run and a sharp run with 1,000 features;
  2. the transition between them: how the training time depends on L;
  3. a cross-check: a trainer that samples its prompts against the exact loss."""
CLOSING = """
[bold]Next[/bold]
  .venv/bin/icl-theory explore                 sliders for all of training
  .venv/bin/icl-theory figures figure1         Figure 1 of the regression paper
  .venv/bin/icl-theory simulate --help         a run of your own"""


def main() -> None:
    """Print what was found, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for the figures"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    console.print(OPENING.format(out=out))
    runs(console, out)
    transition(console, out)
    crosscheck(console, out)
    console.print(CLOSING)


def table(*headings: str) -> Table:
    """Return an empty table, its first column on the left and the others on the right."""
    made = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for heading in headings:
        made.add_column(
            heading,
            justify="right" if made.columns else "left",
            no_wrap=bool(made.columns),
        )
    return made


def runs(console: Console, out: Path) -> None:
    """Train with a small and a large L."""
    console.print(
        "\n[bold]1. Two runs[/bold]: L says how fast the functions change that are to be learnt"
    )
    shown = table(
        "regime",
        "L",
        "attends at step",
        "tail from step",
        f"loss is {EPSILON:g} at step",
    )
    for L in (0.02, 2.0):
        run = icl.simulate(L, DELTA, ETA, K=K, epsilon=EPSILON)
        assert run.phases is not None
        tail = run.phases.present().get("III", (None,))[0]
        begins = "never" if tail is None else f"{tail:,}"
        shown.add_row(
            run.regime,
            f"{L:g}",
            f"{run.phases.present()['I'][1]:,}",
            begins,
            f"{run.steps:,}",
        )
        save(run.plot(), out / f"{run.regime}.png")
    console.print(shown)


def transition(console: Console, out: Path) -> None:
    """Measure the exponent of the training time in L, and compare its half-way point with the theory."""
    found = icl.sweep(
        L=np.geomspace(0.005, 20.0, 60),
        delta=DELTA,
        eta=ETA,
        K=K,
        epsilon=EPSILON,
        progress=False,
    )
    save(icl.plot_sweep(found), out / "transition.png")
    console.print(
        "[bold]2. The transition[/bold]: steps go like L to a power, which changes from -2 to 0"
    )
    shown = table("L", "steps", "power")
    for place in range(2, 60, 11):
        steps = int(found.steps[place])
        power = float(found.exponent_L[place])
        shown.add_row(f"{float(found.L[place]):.3g}", f"{steps:,}", f"{power:+.2f}")
    console.print(shown)
    measured = float(icl.transition_table(found, "L")["measured"].iloc[0])
    predicted = icl.regression.half_way(EPSILON, DELTA, K)
    console.print(
        f"The power is -1 at L = {measured:.4g} as measured, at {predicted:.4g} in theory (half_way).\n"
    )


def crosscheck(console: Console, out: Path) -> None:
    """Hold a sampled trainer against the exact loss and gradient."""
    run = icl.simulate(2.0, DELTA, ETA, K=10, epsilon=1e-2)
    checked = icl.crosscheck(run, N=100, points=2, steps=40, runs=6, phases=4)
    console.print(f"[bold]3. The cross-check[/bold] with K = 10: {checked.note}")
    shown = table("check", "population", "sampled", "± s.e.", "z", "limit", "")
    for check in checked.checks:
        shown.add_row(check.name, *check.cells())
    console.print(shown)
    console.print(f"z is the difference in standard errors; {checked.power}.")
    (out / "crosscheck.md").write_text(checked.to_markdown() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
