# mypy: ignore-errors
"""The cost of sampling a loss that has an exact formula, in PyTorch.

    python scripts/sampling_cost.py            # on a GPU if there is one
    python scripts/sampling_cost.py --quick    # a second of sampling

A layer of softmax attention sees N tokens of K features, with scores s·I. It samples
prompts for some seconds, once as PyTorch runs them and once compiled, and prints the
time in which the mean loss would have a relative error of 1e-6. The exact loss and
gradient are timed beside it. It needs PyTorch, which the package does not.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

import icl_theory as icl

L = 2.0
SETTINGS = ((20, 100, 6.0), (100, 1000, 5.0))
WANTED = 1e-6  # relative error of the loss
BYTES = 2**31  # of the tokens that are drawn at once on a GPU


def losses(size, K, N, score, device):
    """Return the losses of fresh prompts, (size,)."""
    values = L / 2**0.5 * torch.randn(size, K, device=device)
    tokens = torch.randint(K, (size, N), device=device)
    query = torch.randint(K, (size, 1), device=device)
    labels = values.gather(1, tokens)
    attention = torch.softmax(score * (tokens == query), dim=1)
    answer = values.gather(1, query)[:, 0]
    return 0.5 * ((attention * labels).sum(1) - answer) ** 2


def sample(function, setting, device, seconds):
    """Return prompts a second, the mean loss, its standard error, and the scatter."""
    K, N, score = setting
    size = max(1, BYTES // (8 * N)) if device == "cuda" else 20_000
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    function(size, K, N, score, device)  # compiles, and loads libraries
    wait()
    sums = torch.zeros(2, dtype=torch.double, device=device)
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        single = function(size, K, N, score, device).double()
        sums += torch.stack([single.sum(), (single**2).sum()])
        wait()
        count += size
    elapsed = time.perf_counter() - begin
    mean, square = (sums / count).tolist()
    deviation = (square - mean**2) ** 0.5
    return count / elapsed, mean, deviation / count**0.5, deviation / mean


def exact(setting, repeats=20):
    """Return the exact loss, and the median seconds of loss and gradient."""
    K, N, score = setting
    features = icl.Features.simplex(K, 1.0)
    risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(L), N=N)
    scores = score * np.eye(K)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        loss, _ = risk.evaluate(scores)
        times.append(time.perf_counter() - begin)
    return loss, float(np.median(times))


def main():
    """Print one line for each setting and way of running PyTorch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of sampling [60]")
    parser.add_argument("--quick", action="store_true", help="sample for a second")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seconds = 1.0 if arguments.quick else arguments.seconds
    torch.set_num_threads(1)
    ways = {"eager": losses}
    if device == "cuda":
        ways["compiled"] = torch.compile(losses)
    for setting in SETTINGS[:1] if arguments.quick else SETTINGS:
        loss, exact_seconds = exact(setting)
        for name, function in ways.items():
            rate, mean, error, scatter = sample(function, setting, device, seconds)
            needed = (scatter / WANTED) ** 2 / rate
            print(
                f"K = {setting[0]}, N = {setting[1]}, scores {setting[2]:g} I, {name} on"
                f" {device}: {rate:.3g} prompts a second, a prompt's loss scatters by"
                f" {scatter:.1f} times its mean; z = {(mean - loss) / error:.1f};"
                f" a relative error of {WANTED:g} takes {needed:.2g} s"
                f" ({needed / 86400:.1f} days), the exact loss and gradient"
                f" {1e3 * exact_seconds:.2f} ms"
            )
    print(f"PyTorch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
