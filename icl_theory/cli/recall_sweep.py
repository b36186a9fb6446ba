"""`icl-theory recall-sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from icl_theory.cli.axes import parse_axis
from icl_theory.cli.outputs import report_failures
from icl_theory.cli.shared import check_targets
from icl_theory.files import replacing


def recall_sweep(
    context: typer.Context,
    eta: Annotated[str, typer.Option("--eta", help="Learning rates: 0.5, or 0.1,0.2, or 0.1:1:log:5.")] = "0.5",
    Q: Annotated[str, typer.Option("--Q", help="Numbers of triggers.")] = "4",
    V: Annotated[str, typer.Option("--V", help="Numbers of words.")] = "50",
    alpha: Annotated[str, typer.Option("--alpha", help="Probabilities that the next word is noise.")] = "0",
    M: Annotated[str, typer.Option("--M", help="Numbers of sentences trained on, or inf.")] = "inf",
    attention: Annotated[str, typer.Option("--attention", help="linear, relu or softmax.")] = "linear",
    outputs: Annotated[int, typer.Option("--outputs", help="Number of outputs.")] = 8,
    H: Annotated[int, typer.Option("--H", help="Words of a sentence.")] = 33,
    count: Annotated[
        int | None, typer.Option("--count", help="Times that the output follows the trigger; random unless given.")
    ] = None,
    above: Annotated[float, typer.Option("--above", help="Target loss above the floor.")] = 1e-3,
    rule: Annotated[str, typer.Option("--rule", help="ngd (normalised) or gd.")] = "ngd",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the sentences.")] = 0,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the table there, not to standard output.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="Keep finished chunks in this folder (.zarr), to go on from.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Start this many processes.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> int:
    """Train on in-context recall over a grid of parameters; a CSV table; status 3 if points failed."""
    from icl_theory.recall_sweep import plan_recall
    from icl_theory.sweep import run_with

    check_targets(None, csv=csv)
    axes = {"eta": eta, "Q": Q, "V": V, "alpha": alpha, "M": M}
    made = plan_recall(
        {name: parse_axis(name, text) for name, text in axes.items()}, attention,
        outputs=outputs, H=H, count=count, epsilon=above, rule=rule, seed=seed,
    )  # fmt: skip
    dataset = run_with(*made, executor=None, workers=workers, store=store, progress=not quiet, command=context.obj)
    frame = dataset.expand_dims([name for name in axes if name not in dataset.dims]).to_dataframe()
    if csv is None:
        print(frame.reset_index().to_csv(index=False), end="")
    else:
        with replacing(csv) as temporary:
            frame.reset_index().to_csv(temporary, index=False)
    if dataset.attrs["interrupted"]:
        how = "the same command goes on from there" if store else "with --store it could be gone on with"
        print(f"icl-theory: interrupted; {how}", file=sys.stderr)
        return 130
    return report_failures(dataset)
