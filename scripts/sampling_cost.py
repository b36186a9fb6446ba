# mypy: ignore-errors
"""Measure what it costs to sample a loss that has an exact formula, in PyTorch.

    python scripts/sampling_cost.py            # on a GPU if there is one
    python scripts/sampling_cost.py --quick    # a second of sampling

The loss is that of softmax attention over prompts of N tokens with K features, at the
scores s·I: s for tokens with the feature of the query, and 0 for others. The script
samples prompts for some seconds, and prints the time after which the mean loss would
have a relative error of 1e-6. On a GPU it does so twice, with PyTorch as usual and
compiled. The exact loss and gradient are timed, too. The script needs PyTorch, which
the package does not.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

import icl_theory as icl

# The root mean square difference between the values of two features.
L = 2.0
# The number K of features, the number N of tokens, and the score s.
SETTINGS = ((20, 100, 6.0), (100, 1000, 5.0))
# The wanted relative error of the mean loss.
WANTED = 1e-6
# The bytes of the tokens that are drawn at once on a GPU.
BYTES = 2**31


def losses(size, K, N, score, device):
    """Return the losses of ``size`` newly drawn prompts, (size,).

    The values of a prompt's K features are independent, and labels have no noise.
    """
    values = L / 2**0.5 * torch.randn(size, K, device=device)
    tokens = torch.randint(K, (size, N), device=device)
    query = torch.randint(K, (size, 1), device=device)
    labels = values.gather(1, tokens)
    attention = torch.softmax(score * (tokens == query), dim=1)
    answer = values.gather(1, query)[:, 0]
    return 0.5 * ((attention * labels).sum(1) - answer) ** 2


def sample(function, setting, device, seconds):
    """Sample losses by ``function`` for some seconds.

    Return the number of prompts per second, the mean loss, its standard error, and the
    standard deviation of a prompt's loss divided by the mean.
    """
    K, N, score = setting
    # An index of a token has 8 bytes.
    size = max(1, BYTES // (8 * N)) if device == "cuda" else 20_000
    # A GPU computes while Python goes on, so the clock has to wait for it.
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    # The first call compiles, and loads libraries, so it is not timed.
    function(size, K, N, score, device)
    wait()
    # The sums of the losses and of their squares.
    sums = torch.zeros(2, dtype=torch.double, device=device)
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        # Sums of many numbers would be rounded too much in single precision.
        batch_losses = function(size, K, N, score, device).double()
        sums += torch.stack([batch_losses.sum(), (batch_losses**2).sum()])
        wait()
        count += size
    elapsed = time.perf_counter() - begin
    mean, mean_square = (sums / count).tolist()
    deviation = (mean_square - mean**2) ** 0.5
    return count / elapsed, mean, deviation / count**0.5, deviation / mean


def exact(setting, repeats=20):
    """Return the exact loss, and the median seconds of ``repeats`` exact gradients."""
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
    """Print a line for each setting, with PyTorch as usual and on a GPU compiled."""
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
        K, N, score = setting
        loss, exact_seconds = exact(setting)
        for name, function in ways.items():
            rate, mean, error, scatter = sample(function, setting, device, seconds)
            # The error of a mean falls like one over the root of the number of prompts.
            needed = (scatter / WANTED) ** 2 / rate
            print(
                f"K = {K}, N = {N}, scores {score:g} I, {name} on"
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
