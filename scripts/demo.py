"""Show in a few seconds what the package does.

python scripts/demo.py --out demo

The demo makes flat and sharp runs, finds the transition between them, and compares a
trainer on samples with the exact loss. L is the slope of the functions to be learnt, Δ
the distance of the features, η the learning rate, K the number of features, and ε the
target of the loss.
"""

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
    """Print the results of the three parts, and write their figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
    """Return an empty table with these headings.

    The first column has words, on the left. All others have numbers, on the right.
    """
    empty_table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    first, *others = headings
    empty_table.add_column(first, justify="left")
    for heading in others:
        empty_table.add_column(heading, justify="right", no_wrap=True)
    return empty_table


def runs(console: Console, out: Path) -> None:
    """Train with a small and a large L; print their phases and write their figures."""
    console.print(
        "\n[bold]1. Two runs[/bold]: L says how fast the functions change that are to"
        " be learnt"
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
        # The first and the last step of each phase that has begun.
        phases = run.phases.present()
        # At the end of Phase I, attention is on the right feature. Phase III is the
        # tail.
        _, end_of_first = phases["I"]
        tail_begins = "never"
        if "III" in phases:
            beginning, _ = phases["III"]
            tail_begins = f"{beginning:,}"
        shown.add_row(
            run.regime,
            f"{L:g}",
            f"{end_of_first:,}",
            tail_begins,
            f"{run.steps:,}",
        )
        save(run.plot(), out / f"{run.regime}.png")
    console.print(shown)


def transition(console: Console, out: Path) -> None:
    """Measure the exponent of the training time in L.

    Compare the L at which it is half-way between its limits with the theory.
    """
    dataset = icl.sweep(
        L=np.geomspace(0.005, 20.0, 60),
        delta=DELTA,
        eta=ETA,
        K=K,
        epsilon=EPSILON,
        progress=False,
    )
    save(icl.plot_sweep(dataset), out / "transition.png")
    console.print(
        "[bold]2. The transition[/bold]: steps go like L to a power, which changes from"
        " -2 to 0"
    )
    shown = table("L", "steps", "power")
    # Six of the 60 points, evenly spaced.
    for i in range(2, 60, 11):
        steps = int(dataset.steps[i])
        power = float(dataset.exponent_L[i])
        shown.add_row(f"{float(dataset.L[i]):.3g}", f"{steps:,}", f"{power:+.2f}")
    console.print(shown)
    measured = float(icl.transition_table(dataset, "L")["measured"].iloc[0])
    predicted = icl.regression.half_way(EPSILON, DELTA, K)
    console.print(
        f"The power is -1 at L = {measured:.4g} as measured, at {predicted:.4g} in"
        " theory (half_way).\n"
    )


def crosscheck(console: Console, out: Path) -> None:
    """Compare a trainer that samples its prompts with the exact loss and gradient."""
    run = icl.simulate(2.0, DELTA, ETA, K=10, epsilon=1e-2)
    comparison = icl.crosscheck(run, N=100, points=2, steps=40, runs=6, phases=4)
    console.print(f"[bold]3. The cross-check[/bold] with K = 10: {comparison.note}")
    shown = table("check", "population", "sampled", "± s.e.", "z", "limit", "")
    for check in comparison.checks:
        shown.add_row(check.name, *check.cells())
    console.print(shown)
    console.print(f"z is the difference in standard errors; {comparison.power}.")
    page = comparison.to_markdown() + "\n"
    (out / "crosscheck.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
