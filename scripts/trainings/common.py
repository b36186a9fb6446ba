# mypy: ignore-errors
"""Parts that the training scripts of this folder share: options, files, verdicts.

Each script trains the layer of a public repository in PyTorch with the repository's
default settings, follows the same training exactly, and compares the two.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

LIMIT = 4.0  # the largest difference that counts as agreement, in standard errors


def options(doc, steps, **integers):
    """Return the options of a script, with the defaults of steps and other integers."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=steps, help=f"steps [{steps}]")
    for name, default in integers.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{name} [{default}]"
        )
    parser.add_argument(
        "--into", type=Path, default=Path("trainings"), help="folder of the files"
    )
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    return arguments


def save(path, losses, errors=None, steps=None):
    """Write a curve as `icl-theory compare` reads it."""
    losses = np.asarray(losses, dtype=float)
    columns = {"step": np.arange(len(losses)) if steps is None else steps}
    columns["loss"] = losses
    if errors is not None:
        columns["error"] = np.broadcast_to(errors, losses.shape)
    np.savetxt(
        path,
        np.column_stack([*columns.values()]),
        fmt=["%d"] + ["%.9g"] * (len(columns) - 1),
        delimiter=",",
        header=",".join(columns),
        comments="",
    )
    return path


def save_array(path, array):
    """Write a matrix as `--start` and `--covariance` read it."""
    np.savetxt(path, array, fmt="%.17g", delimiter=",")


def verdict(title, comparison):
    """Print a comparison, and return whether all windows agree."""
    worst = max(abs(check.z) for check in comparison.checks)
    print(f"\n## {title}\n\n{comparison.to_markdown()}\n")
    print(f"{title}: {len(comparison.checks)} windows, |z| <= {worst:.2f}", flush=True)
    return worst <= LIMIT


def rounding(losses, relative):
    """Return standard errors for the losses of a training without randomness.

    Two such trainings differ by rounding alone.
    """
    return relative * np.abs(losses) + np.finfo(float).tiny
