"""Measure what skipping costs, compared with taking every step.

The cost is also measured against K and T, in memory, and beside a sampled trainer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from rich.console import Console
from threadpoolctl import threadpool_limits

import icl_theory as icl
from icl_theory import tasks
from icl_theory.results.plots import plot_answer, save
from icl_theory.statements.claim import Answer, Series

# Probabilities p of the features k = 1, ..., K, before they are normalised.
LAWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "p ~ k^-1/2": lambda k: k**-0.5,
    "p ~ 1/k": lambda k: 1.0 / k,
    "p ~ 0.05 to 0.5": lambda k: 1.0 + 9.0 * k / len(k),
}


def risk_of(K: int, law: str = "p ~ k^-1/2", N: float = math.inf) -> icl.PopulationRisk:
    """Return the risk of exchangeable tasks with L = 2, over a simplex with gap 1.

    The K features have unequal probabilities, one of `LAWS`, and prompts have N tokens.
    """
    weights = LAWS[law](np.arange(1.0, K + 1.0))
    features = icl.Features.simplex(K, 1.0, weights / weights.sum())
    return icl.PopulationRisk(features, tasks.Exchangeable(2.0), N)


def seconds(call: Callable[[], object], repeat: int = 3) -> float:
    """Return the seconds of a call: the shortest of ``repeat`` calls.

    Other programs on the machine can only make a call longer.
    """
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


@contextlib.contextmanager
def gradients_of(risk: icl.Risk) -> Iterator[list[float]]:
    """Count the gradients and Hessian products of all risks of the class of ``risk``.

    The context has a list of one number, the count so far. The gradient with respect to
    one of the K columns of the parameters counts as 1/K.
    """
    cls = type(risk)
    count = [0.0]
    columns = getattr(cls, "column_gradients", None)

    def counted(
        method: Callable[..., object], price: Callable[..., float]
    ) -> Callable[..., object]:
        """Return a method that adds its price to the count."""

        def call(*arguments: object) -> object:
            """Call the method, and count it."""
            before = count[0]
            result = method(*arguments)
            # The price of a method includes that of the methods that it calls.
            count[0] = before + price(*arguments)
            return result

        return call

    def counted_columns(self: icl.Risk) -> Callable[..., object] | None:
        """Take the place of the property ``column_gradients``, which has a function."""
        assert isinstance(columns, property)
        method: Callable[..., object] | None = columns.__get__(self)
        if method is None:
            return None
        K = self.initial.shape[1]
        return counted(method, lambda params, places: len(places) / K)

    # Within the context, the methods and the property of the class are replaced.
    with contextlib.ExitStack() as stack:
        prices = {
            "evaluate": lambda *_: 1,
            "hessian_product": lambda *_: 1,
            "gradients": lambda _, states: len(states),
        }
        for name, price in prices.items():
            # Without ``gradients``, the engine asks for one gradient at a time.
            if hasattr(cls, name):
                method = counted(getattr(cls, name), price)
                stack.enter_context(patch.object(cls, name, method))
        if columns is not None:
            counted_property = property(counted_columns)
            stack.enter_context(patch.object(cls, "column_gradients", counted_property))
        yield count


def in_turn(
    risk: icl.Risk, steps: int, turns: int, counts: tuple[int, ...]
) -> tuple[icl.Trajectory, float, list[float]]:
    """Time a run of single steps, and fast runs of several lengths.

    The fast runs are made in ``turns`` pauses of the run of single steps, so that all
    of them meet the same changes in the speed of the machine.

    Returns
    -------
    Trajectory
        The run of single steps.
    float
        Its seconds, without the pauses.
    list of float
        The mean seconds of the fast runs, for each of ``counts`` steps.
    """
    fast_seconds: list[list[float]] = []  # a row for each turn
    fast = partial(icl.descend, risk, 4.0, method="fast")

    def pause(step: int, loss: float) -> None:
        """Time the fast runs if it is their turn; the run calls this at each step."""
        if step >= (len(fast_seconds) + 1) * steps // (turns + 1):
            row = [seconds(partial(fast, steps=count), 1) for count in counts]
            fast_seconds.append(row)

    start = time.perf_counter()
    exact = icl.descend(risk, 4.0, steps=steps, callback=pause)
    exact_seconds = time.perf_counter() - start - float(np.sum(fast_seconds))
    return exact, exact_seconds, np.mean(fast_seconds, axis=0).tolist()


def skipping(steps: int, turns: int, laws: Sequence[str]) -> list[str]:
    """Compare fast runs of K = 50 with runs of single steps, with a line for each law.

    A fast run of 10⁹ steps is compared with 10⁹ times the seconds of a single step. The
    last line times two other fast runs.
    """
    lines = []
    for law in laws:
        risk = risk_of(50, law)
        with gradients_of(risk) as count:
            fast = icl.descend(risk, 4.0, steps=steps, method="fast")
        (gradients,) = count
        exact, exact_seconds, (fast_seconds, billion_seconds) = in_turn(
            risk, steps, turns, (steps, 10**9)
        )
        extrapolated = exact_seconds / steps * 1e9
        difference = abs(fast.loss[-1] / exact.loss[-1] - 1.0)
        apart = np.abs(fast.params - exact.params).max()
        lines.append(
            f"K = 50, {law}, eta = 4: {steps:.0e} steps exact {exact_seconds:.1f} s,"
            f" fast {fast_seconds:.3f} s: {exact_seconds / fast_seconds:.0f} x,"
            f" {gradients:.0f} gradients, {steps / gradients:.0f} x, loss differs by"
            f" {difference:.1e}, scores by {apart:.1e} of {fast.states_error:.1e}"
            f" estimated; 1e9 steps fast {billion_seconds:.3f} s: 1 /"
            f" {extrapolated / billion_seconds:.1e} of the extrapolated exact time"
        )
    finite = risk_of(20, N=100)
    prompts = seconds(lambda: icl.descend(finite, 4.0, steps=10**6, method="fast"), 1)
    lines.append(
        f"K = 100, 1e9 steps: {fast_run(100, 10**9):.2f} s; K = 20, N = 100, 1e6 steps:"
        f" {prompts:.2f} s"
    )
    return lines


class RandomKernel(NamedTuple):
    """A problem over K features with a random kernel, in prompts of N tokens."""

    K: int
    N: int
    noise: float
    d: int | None  # the dimension of an embedding; None trains the class scores


KERNELS = (
    RandomKernel(3, 5, 0.0, None),
    RandomKernel(6, 10, 0.0, None),
    RandomKernel(6, 50, 0.3, 4),
    RandomKernel(12, 50, 0.1, None),
)


def unequal(steps: int, problems: Sequence[RandomKernel]) -> list[str]:
    """Make fast runs of random kernels with finite prompts; return a line for each.

    The features have unequal probabilities. The learning rate is 0.3 of the largest
    stable one, 2/sharpness.
    """
    lines = []
    for K, N, noise, d in problems:
        rng = np.random.default_rng(K + N)
        features = icl.Features.random(
            K, d or K, 0.3, seed=K, probs=rng.dirichlet(np.full(K, 3.0))
        )
        root = rng.normal(size=(K, K))
        risk: icl.Risk = icl.PopulationRisk(
            features, tasks.KernelTask(root @ root.T), N, noise
        )
        if d is not None:
            risk = icl.in_coordinates(risk, "embedding", features.vectors)
        eta = 0.3 * 2.0 / risk.sharpness(risk.initial)
        start = time.process_time()
        # The risk keeps its floor, so that the run does not compute it again.
        risk.floor()
        floor_seconds = time.process_time() - start
        with gradients_of(risk) as count:
            run = icl.descend(risk, eta, steps=steps, method="fast")
        (gradients,) = count
        all_seconds = time.process_time() - start
        coordinates = "class" if d is None else f"embedding in {d} dimensions"
        lines.append(
            f"K = {K}, N = {N}, noise = {noise:g}, {coordinates}: {run.t[-1]:.0e} steps,"
            f" {gradients:.0f} gradients, {all_seconds:.1f} s, the floor"
            f" {floor_seconds:.2f} s of them"
        )
    return lines


def staircases(few: int, decays: Sequence[float]) -> list[str]:
    """Make fast runs of linear attention with eight heads; return a line for each.

    The loss falls in steps, one for each of the eight dimensions, to an excess of 1e-6.
    Eigenvalues of the inputs fall with ``decay``. The time of all single steps is
    extrapolated from ``few`` of them.
    """
    lines = []
    for decay in decays:
        problem = icl.LinearAttention(
            d=8,
            decay=decay,
            coordinates="heads",
            heads=8,
            start=1e-4,
            above=1e-6,
            method="fast",
        )
        risk = problem.risk()
        with gradients_of(risk) as count:
            start = time.process_time()
            run = problem.simulate()
            fast = time.process_time() - start
        (gradients,) = count
        start = time.process_time()
        icl.descend(risk, run.eta, steps=few)
        exact = (time.process_time() - start) / few * run.t[-1]
        lines.append(
            f"staircase, decay = {decay:g}: {run.t[-1]} steps, {gradients:.0f}"
            f" gradients, {run.t[-1] / gradients:.1f} x;"
            f" {fast:.2f} s, exact {exact:.1f} s extrapolated, {exact / fast:.1f} x"
        )
    return lines


def gradient_of(K: int) -> float:
    """Return the seconds of one gradient with K features."""
    risk = risk_of(K)
    return seconds(lambda: risk.evaluate(risk.initial), 5)


def fast_run(K: int, steps: int, repeat: int = 1) -> float:
    """Return the seconds of a fast run with K features, the shortest of ``repeat``."""
    risk = risk_of(K)
    return seconds(lambda: icl.descend(risk, 4.0, steps=steps, method="fast"), repeat)


def slope(x: np.ndarray, y: np.ndarray) -> float:
    """Return the exponent b of the law y ~ x^b, fitted in logarithms."""
    fitted_slope, _ = np.polyfit(np.log(x), np.log(y), 1)
    return float(fitted_slope)


def exponents(largest: int) -> tuple[list[str], Answer]:
    """Measure how times grow with the number K of features and the number T of steps.

    The times are those of one gradient against K up to ``largest``, of a fast run of
    10⁶ steps against K, and of a fast run with K = 20 against T. Return lines for the
    exponents, and an answer with the curves.
    """
    sizes = np.array(
        [K for K in (10, 20, 50, 100, 200, 500, 1000, 2000) if largest >= K]
    )
    gradient = np.array([gradient_of(K) for K in sizes.tolist()])
    # With more features single steps take most of a fast run.
    few = sizes[sizes <= 200]
    runs = np.array([fast_run(K, 10**6) for K in few.tolist()])
    lengths = 10 ** np.arange(2, 13)
    runs_of_length = np.array([fast_run(20, T, 3) for T in lengths.tolist()])
    small = risk_of(20)
    step = seconds(lambda: icl.descend(small, 4.0, steps=2000), 3) / 2000.0
    # One exponent is fitted to the smaller half of the sizes, and one to the larger.
    half = len(sizes) // 2
    # Short runs skip few steps, so the exponent is fitted to the longer runs.
    is_long = lengths >= 10**4
    exponent_of_small = slope(sizes[:half], gradient[:half])
    exponent_of_large = slope(sizes[half:], gradient[half:])
    exponent_of_length = slope(lengths[is_long], runs_of_length[is_long])
    lines = [
        f"gradient ~ K^{exponent_of_small:.2f} for K up to {sizes[half - 1]},"
        f" K^{exponent_of_large:.2f} from K = {sizes[half]} on",
        f"fast run of 1e6 steps ~ K^{slope(few, runs):.2f}, K = 10 to {few[-1]}:"
        f" {runs[0]:.3f} s to {runs[-1]:.2f} s",
        f"fast run, K = 20 ~ T^{exponent_of_length:.3f}, T = 1e4 to 1e12:"
        f" {runs_of_length[is_long][0]:.3f} s to {runs_of_length[-1]:.3f} s;"
        f" exact ~ T, {step:.1e} s a step",
    ]
    T = lengths.astype(float)
    series = (
        Series("one gradient, against K", sizes.astype(float), gradient, points=True),
        Series(
            "fast run of 10⁶ steps, against K", few.astype(float), runs, points=True
        ),
        Series("fast run, K = 20, against T", T, runs_of_length, points=True),
        Series("all steps, K = 20, against T", T, step * lengths),
    )
    figure = Answer(
        name="cost",
        question="What does a run cost?",
        answer="; ".join(lines),
        series=series,
        x="K or T",
        y="seconds",
    )
    return lines, figure


def memory(K: int) -> list[str]:
    """Measure the peak memory of one gradient and of three steps, in K x K arrays.

    The parameters and the task are included, and the features are not.
    """
    lines = []
    features = icl.Features.orthonormal(K, 2**-0.5)
    for name, use in (
        ("one gradient", lambda risk: risk.evaluate(risk.initial)),
        ("3 steps", lambda risk: icl.descend(risk, 4.0, steps=3)),
    ):
        tracemalloc.start()
        risk = icl.PopulationRisk(features, tasks.Exchangeable(2.0))
        # Peaks while the risk is made do not count; the memory that it holds does.
        tracemalloc.reset_peak()
        use(risk)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        lines.append(
            f"K = {K}, {name}: {peak / (8.0 * K * K):.1f} K x K arrays at most, and one"
            " for the features"
        )
    return lines


def sampled(batches: int) -> list[str]:
    """Compare the seconds of an exact loss with those of a loss from samples.

    The scatter of the losses of ``batches`` batches gives the number of batches that a
    relative error of the mean loss needs: the error falls as one over its square root.
    """
    risk = risk_of(20, N=100)
    trainer = icl.SampledRisk(risk.features, risk.task, N=100, batch=512, seed=0)
    scores = icl.descend(risk, 4.0, steps=200).params
    exact_seconds = seconds(lambda: risk.loss(scores), 5)
    start = time.perf_counter()
    losses = np.array([trainer.evaluate(scores, step)[0] for step in range(batches)])
    batch_seconds = (time.perf_counter() - start) / len(losses)
    spread = losses.std(ddof=1) / risk.loss(scores)
    texts = []
    for error in (1e-2, 1e-3, 1e-8):
        needed_batches = max(1.0, (spread / error) ** 2)
        texts.append(f"{error:g}: {batch_seconds * needed_batches:.2g} s")
    return [
        f"loss at one state, K = 20, N = 100: exact to rounding in"
        f" {1e3 * exact_seconds:.1f} ms; sampled in batches of 512"
        f" ({1e3 * batch_seconds:.1f} ms, spread {spread:.1e}), extrapolated by the"
        f" square root law, to a relative {', '.join(texts)}"
    ]


def main() -> None:
    """Measure and print; write a figure and JSON if files for them are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--plot", type=Path, help="figure of the cost against K and T")
    parser.add_argument(
        "--quick", action="store_true", help="few steps, small K: to see that it runs"
    )
    arguments = parser.parse_args()
    with threadpool_limits(limits=1):
        if arguments.quick:
            lines_of_exponents, figure = exponents(20)
            lines = [
                *skipping(2000, 1, list(LAWS)[:1]),
                *unequal(1000, KERNELS[:1]),
                *staircases(200, (0.0,)),
                *lines_of_exponents,
                *memory(50),
                *sampled(20),
            ]
        else:
            lines_of_exponents, figure = exponents(2000)
            lines = [
                *skipping(10**6, 12, list(LAWS)),
                *unequal(10**12, KERNELS),
                *staircases(20_000, (1.0, 0.5, 0.0)),
                *lines_of_exponents,
                *memory(2000),
                *sampled(400),
            ]
    console = Console(highlight=False)
    for line in lines:
        console.print(line)
    if arguments.plot:
        save(plot_answer(figure), str(arguments.plot))
    if arguments.json:
        arguments.json.write_text(
            json.dumps(lines, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
