"""Print the numbers of the documentation that nothing else prints.

python scripts/measurements.py block

The numbers are about the block (attention and a layer behind it, `BlockRisk`), its
optimisers, Gaussian inputs, skipped steps, and points of sweeps that are computed in
batches. The argument chooses one of these parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial

import batches
import numpy as np
import skipping

import icl_theory as icl

# Six features at equal distances.
FEATURES = icl.Features.simplex(6, 2.0)
# The number of floats in the tokens that are drawn at a time: 8 MB.
NUMBERS_AT_A_TIME = 1_000_000
LAWS: dict[str, icl.tasks.Task] = {
    "random frequency, L = 0.5": icl.tasks.RandomFourier(0.5),
    "random frequency, L = 3": icl.tasks.RandomFourier(3.0),
    "one frequency, L = 3": icl.tasks.RandomCosine(3.0),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Continued(icl.regression.BlockRisk):
    """A block that starts from given parameters."""

    start: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    @property
    def initial(self) -> np.ndarray:  # type: ignore[override]
        """The given parameters, flat."""
        return self.start


def with_the_feature(risk: icl.regression.BlockRisk, params: np.ndarray) -> str:
    """Return two losses in words, on new prompts that contain the query's feature.

    They are the losses of the block, and of the prediction by its attention alone.
    """
    prompts = dataclasses.replace(risk.data, seed=77).held_out(2000)
    attention, prediction = risk.predict(params, prompts)
    has_feature = np.any(prompts.token == prompts.query[:, None], axis=1)
    of_attention = np.sum(attention * prompts.label, axis=1)

    def loss(predicted: np.ndarray) -> float:
        return float(0.5 * np.mean((predicted - prompts.answer)[has_feature] ** 2))

    return (
        f"with the feature: block {loss(prediction):.2g},"
        f" attention alone {loss(of_attention):.2g}"
    )


def block(steps: int = 10_000, seeds: int = 6) -> None:
    """Print the measurements of the section on the block.

    Runs take ``steps`` steps, from ``seeds`` seeds at most. They are compared with the
    exact run of attention with a single matrix.
    """
    for name, task in LAWS.items():
        matrix = icl.in_coordinates(
            icl.PopulationRisk(FEATURES, task, 40), "embedding", FEATURES.vectors
        )
        exact = icl.descend(matrix, 0.1, steps=steps, method="auto")
        # The first saved step with attention 1/2; an empty array if there is none.
        half = exact.t[exact.attention.mean(axis=1) >= 0.5][:1]
        print(
            f"{name}: one matrix half {half}, attention"
            f" {exact.attention[-1].mean():.3f}, loss {exact.loss[-1]:.2g}"
        )
        is_random = name.startswith("random")
        for seed in range(min(seeds, 3 if is_random else 6)):
            data = icl.SampledRisk(FEATURES, task, 40, 64, seed)
            risk = icl.regression.BlockRisk(data, seed=seed, held_out=1000)
            run = icl.descend(risk, 0.1, steps=steps)
            print_run(seed, risk, run)
            if is_random and name.endswith("frequency, L = 3"):
                print_continued(data, seed, risk, run, steps // 2)
            if is_random and seed == 0:
                print_other_descents(risk, matrix, steps)


def print_run(seed: int, risk: icl.regression.BlockRisk, run: icl.Trajectory) -> None:
    """Print attention and losses of a run of a block on sampled prompts.

    It also prints why a run at the learning rate 1 ends.
    """
    attention = run.attention.mean(axis=1)
    loss = run.observed["test_loss"]
    attention_loss = run.observed["attention_loss"]
    # The index of the first saved step from step 100 on, or of the last one.
    early = min(int(np.searchsorted(run.t, 100)), len(run.t) - 1)
    early_rise = np.max(attention[: early + 1] - attention[0])
    print(
        f"  seed {seed}: half {run.t[attention >= 0.5][:1]}, attention"
        f" {attention[-1]:.3f}, by query {run.attention[-1].round(2)}, loss"
        f" {loss[-1]:.2g}, of its attention alone {attention_loss[-1]:.2g}, first"
        f" {loss[0]:.2g}, after 100 steps {loss[early]:.3g}, attention by then"
        f" +{early_rise:.4f}"
    )
    at_rate_1 = icl.descend(risk, 1.0, steps=20).stop_reason
    print(f"    {with_the_feature(risk, run.params)}; eta = 1: {at_rate_1}")


def print_continued(
    data: icl.SampledRisk,
    seed: int,
    risk: icl.regression.BlockRisk,
    run: icl.Trajectory,
    steps: int,
) -> None:
    """Continue a run on other prompts at a tenth of the learning rate."""
    other = Continued(
        dataclasses.replace(data, seed=seed + 50), seed=seed, start=run.params
    )
    later = icl.descend(other, 0.01, steps=steps)
    losses = with_the_feature(risk, later.params)
    print(f"    {steps} steps more with eta = 0.01, {losses}")


def print_other_descents(
    risk: icl.regression.BlockRisk, matrix: icl.Risk, steps: int
) -> None:
    """Print the ends of other runs of a block, and of one with a single matrix.

    The block is trained by normalised descent, and by descent with ten times the steps.
    ``matrix`` is the risk of attention with a single matrix.
    """
    normalised = icl.descend(risk, 0.02, steps=steps, rule="ngd")
    print(f"    normalised descent: attention {normalised.attention[-1].mean():.2f}")
    long_run = icl.descend(risk, 0.1, steps=10 * steps)
    of_matrix = icl.descend(matrix, 0.1, steps=10 * steps, method="auto")
    deficit = 1.0 - long_run.attention[-1].mean()
    deficit_of_matrix = 1.0 - of_matrix.attention[-1].mean()
    print(
        f"    {10 * steps:g} steps: 1 - a {deficit:.2g}, one matrix"
        f" {deficit_of_matrix:.2g}; {with_the_feature(risk, long_run.params)}",
        flush=True,
    )


def adam(risk: icl.Risk, rate: float, steps: int) -> np.ndarray:
    """Return the parameters after ``steps`` steps of Adam with its usual constants."""
    params = risk.initial
    first = np.zeros_like(risk.initial)
    second = np.zeros_like(risk.initial)
    for step in range(1, steps + 1):
        _, gradient = risk.evaluate(params, step - 1)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        mean = first / (1.0 - 0.9**step)
        square = second / (1.0 - 0.999**step)
        params = params - rate * mean / (np.sqrt(square) + 1e-8)
    return params


def optimisers(steps: int = 5000) -> None:
    """Print the attention of blocks on the right feature, by optimiser and data.

    The data differ in the features, and in what L fixes of the cosines: their amplitude
    or their frequency.
    """
    amplitude = icl.tasks.RandomCosine(3.0)
    frequency = icl.tasks.RandomCosine(3.0, "frequency")
    orthogonal = icl.Features.orthonormal(6, 2.0)
    settings = {
        "one frequency, simplex": (FEATURES, amplitude),
        "one frequency, orthogonal": (orthogonal, amplitude),
        "one frequency, |omega| = L, simplex": (FEATURES, frequency),
    }
    for (name, (features, law)), seed in itertools.product(settings.items(), (0, 1)):
        risk = icl.regression.BlockRisk(
            icl.SampledRisk(features, law, 40, 64, seed), seed=seed
        )
        ends = {"gradient descent": icl.descend(risk, 0.1, steps=steps).params}
        ends |= {
            f"Adam {rate:g}": adam(risk, rate, steps) for rate in (0.001, 0.003, 0.01)
        }
        attention = [
            f"{how} {np.mean(risk.observe(end)['attention']):.2f}"
            for how, end in ends.items()
        ]
        print(f"{name}, seed {seed}: {', '.join(attention)}", flush=True)


def finite_error(
    d: int, c: float, N: int, alpha: float, beta: float, prompts: int
) -> float:
    """Return the mean loss for N tokens minus that for N = ∞, at the matrix Q = c I.

    Inputs are Gaussian in d dimensions, and functions are quadratic. The standard
    deviations of their quadratic and linear coefficients are ``alpha`` and ``beta``.
    The difference is a mean over ``prompts`` random prompts; the mean over the
    functions is exact.
    """
    rng = np.random.default_rng([d, N])
    # Queries are drawn from a law of this variance and weighted by the ratio of the
    # densities, because rare queries far from 0 contribute most.
    variance = 2.0
    total = 0.0
    remaining = prompts
    while remaining > 0:
        size = min(remaining, max(1, NUMBERS_AT_A_TIME // (N * d)))
        remaining -= size
        query = math.sqrt(variance) * rng.normal(size=(size, d))
        weight = variance ** (d / 2) * np.exp(
            -0.5 * np.sum(query**2, axis=1) * (1.0 - 1.0 / variance)
        )
        token = rng.normal(size=(size, N, d))
        centre = c * query
        attention = np.matmul(token, centre[:, :, None])[:, :, 0]
        attention = np.exp(attention - attention.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        # The mean and the second moments of the tokens under the attention.
        mean = np.einsum("bn,bnd->bd", attention, token)
        second = np.matmul((attention[:, :, None] * token).transpose(0, 2, 1), token)
        # For N = ∞ the attended tokens are normal with this mean and unit variance.
        mean_limit = centre
        second_limit = centre[:, :, None] * centre[:, None] + np.eye(d)
        # The errors of quadratic and of linear functions are those of the moments. Both
        # losses have the same queries, so that most of their scatter cancels.
        for sign, first_moment, second_moment in (
            (1.0, mean, second),
            (-1.0, mean_limit, second_limit),
        ):
            errors = second_moment - query[:, :, None] * query[:, None]
            quadratic = np.sum(errors**2, axis=(1, 2))
            linear = np.sum((first_moment - query) ** 2, axis=1)
            losses = alpha**2 * quadratic + beta**2 * linear
            total += sign * 0.5 * float(weight @ losses)
    return total / prompts


def gaussian(prompts: int = 100_000, steps: int = 250) -> None:
    """Print the measurements of the section on Gaussian inputs.

    At most ``prompts`` prompts are drawn for a number, and runs take ``steps`` steps.
    """
    for d, curved in ((1, 0.0), (4, 0.0), (1, 0.5), (4, 0.5)):
        law = icl.regression.QuadraticLaw.lipschitz(d, 1.0, curved)
        for c in (0.3, 0.6, 0.9, 1.0):
            print_exponents(law, d, curved, c, prompts)
    law = icl.regression.QuadraticLaw.lipschitz(2, 1.0, 0.5)
    risk = icl.GaussianRisk(law)
    print(f"d = 2: floor {risk.floor():.4f}, c* {risk.best:.3f}")
    for N in (30, 300):
        print_gaussian_runs(law, N, steps)


def print_exponents(
    law: icl.regression.QuadraticLaw, d: int, curved: float, c: float, prompts: int
) -> None:
    """Print how fast the error for N tokens falls, as exponents of N.

    The errors are those of `finite_error`, each for four times as many tokens as the
    one before.
    """
    errors = []
    for N in (32, 128, 512, 2048, 8192):
        # Longer prompts are fewer, so that each error takes about as long.
        size = min(prompts, 40_000_000 // (N * d))
        errors.append(finite_error(d, c, N, law.sigma_a, law.sigma_b, size))
    exponents = []
    for error, next_error in itertools.pairwise(errors):
        # Errors of different signs are lost in the scatter, and have no exponent.
        text = "-"
        if error * next_error > 0:
            text = f"{math.log(error / next_error) / math.log(4.0):.2f}"
        exponents.append(text)
    expected = min(1.0, (math.sqrt(1.0 + 4.0 / c**2) - 1.0) / 2.0)
    print(
        f"d = {d}, curved {curved:g}, c = {c:g}: exponents {' '.join(exponents)},"
        f" expected {expected:.2f}"
    )


def print_gaussian_runs(law: icl.regression.QuadraticLaw, N: int, steps: int) -> None:
    """Print the losses and the alignments at which three sampled runs end.

    The losses are on prompts of another seed, the same for all runs.
    """
    other = icl.regression.SampledGaussianRisk(law, N, 4000, 99)
    runs = [
        icl.descend(
            icl.regression.SampledGaussianRisk(law, N, 512, seed), 0.2, steps=steps
        )
        for seed in range(3)
    ]
    # The mean loss of the runs on each of 20 batches.
    losses = [
        np.mean([other.evaluate(run.params, step)[0] for run in runs])
        for step in range(20)
    ]
    standard_error = np.std(losses, ddof=1) / math.sqrt(len(losses))
    ends = [run.observed["alignment"][-1] for run in runs]
    print(
        f"  N = {N}: ends at {np.mean(losses):.4f} ± {standard_error:.4f}, tr(Q)/d"
        f" {np.mean(ends):.3f}"
    )


def main() -> None:
    """Print the part that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "part", choices=("block", "optimisers", "gaussian", "skipping", "batches")
    )
    parser.add_argument(
        "--problems",
        type=int,
        default=1000,
        help="how many random problems (skipping, batches)",
    )
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="number of the first random problem (skipping, batches)",
    )
    parser.add_argument(
        "--columns",
        action="store_true",
        help="only problems whose columns do not mix (skipping)",
    )
    parser.add_argument(
        "--many",
        action="store_true",
        help="problems of 12 to 40 features, whose columns do not mix (skipping)",
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes (skipping, batches)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few steps and prompts (block, gaussian): to see that it runs",
    )
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "block": partial(block, 40, 1) if arguments.quick else block,
        "optimisers": optimisers,
        "gaussian": partial(gaussian, 20, 2) if arguments.quick else gaussian,
        "skipping": lambda: skipping.table(
            arguments.first,
            arguments.problems,
            arguments.workers,
            arguments.columns,
            arguments.many,
        ),
        "batches": lambda: batches.table(
            arguments.first, arguments.problems, arguments.workers
        ),
    }
    parts[arguments.part]()


if __name__ == "__main__":
    main()
