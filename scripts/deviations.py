"""Train loss curves, each with a deviation that `Trajectory.compare` must name.

    python scripts/deviations.py                     # 66 curves with, 200 without one
    python scripts/deviations.py --float32           # the same, trained in float32
    python scripts/deviations.py --seed 500          # other curves
    python scripts/deviations.py --model regression --only rate --unperturbed 0

Each curve is trained by the NumPy layers of this file, on prompts that the samplers of
the package draw. Its standard errors are those of the batches. A table lists the
explanations that `compare` names, the best first. A curve counts as explained if the
planted deviation is among the first two.
"""

from __future__ import annotations

import argparse
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import icl_theory as icl
from icl_theory.linear_attention import PromptLaw
from icl_theory.linear_attention import SampledRisk as SampledLinearAttention

Array = NDArray[Any]
# The planted deviation must be among this many explanations: two deviations may change
# a curve in nearly the same way.
NAMED = 2


@dataclass(frozen=True)
class Training:
    """How a curve is trained; by default as the exact run.

    Attributes
    ----------
    eta, steps, batch, N : float, int, int, int
        Learning rate, number of steps, prompts in a batch, and tokens in a prompt.
    start : float
        The size of the initial parameters.
    optimiser : {"sgd", "momentum", "adam"}
        The optimiser.
    momentum : float
        The factor of the optimiser "momentum".
    factor : float
        The factor of the recorded losses.
    trains_on_factor : bool
        Whether gradients have this factor, too.
    answer_noise : float
        The standard deviation of noise in the answers.
    prompts : int, optional
        The size of a fixed set of prompts, on which all steps are taken; by default
        each step has new prompts.
    after_update : bool
        Whether the loss of a step is recorded after its update.
    positions : bool
        Whether the loss is a mean over predictions from the first 1, ..., N tokens.
    schedule : str
        The schedule of the learning rate, one of `SCHEDULES`.
    precision : type
        The type of the parameters.
    """

    eta: float
    steps: int
    batch: int
    N: int
    start: float
    optimiser: str = "sgd"
    momentum: float = 0.9
    factor: float = 1.0
    trains_on_factor: bool = False
    answer_noise: float = 0.0
    prompts: int | None = None
    after_update: bool = False
    positions: bool = False
    schedule: str = "constant"
    precision: type = np.float64


# Functions of a step and the number of steps, which return the factor of the learning
# rate in this step. A fifth of all steps is the warm-up, or the time between decays.
SCHEDULES: dict[str, Callable[[int, int], float]] = {
    "constant": lambda step, steps: 1.0,
    "cosine": lambda step, steps: 0.5 + 0.5 * math.cos(math.pi * step / steps),
    "step decay": lambda step, steps: 0.5 ** (step // (steps // 5)),
    "warm-up": lambda step, steps: min(1.0, (step + 1) / (steps // 5)),
}


class Batch(NamedTuple):
    """Losses of B prompts, and the gradient of their mean."""

    losses: Array
    gradient: Array


class Deviation(NamedTuple):
    """A training that differs from that of an exact run in one respect."""

    cause: str  # the deviation, as `compare` names it
    size: str
    run: Training  # of the exact run
    curve: Training  # of the curve


class Model(ABC):
    """A layer, its law of prompts, and the sizes of its deviations.

    ``plan`` is the training of the exact run. There are three sizes of each deviation.
    Three attributes have the sizes that depend on the model: ``adam_rates``, the sizes
    of other starts, ``starts``, and the standard deviations of noise in the answers,
    ``noises``.
    """

    name: str
    plan: Training
    adam_rates: tuple[float, ...]
    starts: tuple[float, ...]
    noises: tuple[float, ...]

    @abstractmethod
    def problem(self, training: Training) -> icl.Family:
        """Return the problem of the exact run."""

    @abstractmethod
    def start(self, size: float, rng: np.random.Generator) -> Array:
        """Return the parameters at step 0."""

    @abstractmethod
    def draw(self, N: int, count: int, seed: int, step: int) -> Any:
        """Draw ``count`` prompts of N tokens for a step, with a field ``answer``."""

    @abstractmethod
    def evaluate(self, params: Array, prompts: Any, length: int) -> Batch:
        """Return losses and gradient if only the first ``length`` tokens are seen."""


class SoftmaxRegression(Model):
    """Softmax attention over K one-hot features, class scores S, (K, K)."""

    name = "regression"
    plan = Training(eta=2.0, steps=150, batch=1000, N=16, start=0.0)
    adam_rates = (0.03, 0.1, 0.3)
    starts = (0.7, 1.0, 1.5)
    noises = (0.2, 0.3, 0.5)

    K = 6
    L = 2.0
    noise = 0.1

    def problem(self, training: Training) -> icl.Family:
        """Return the problem of the exact run."""
        return icl.Regression(
            L=self.L,
            delta=1.0,
            eta=training.eta,
            K=self.K,
            N=training.N,
            noise=self.noise,
            max_steps=training.steps,
        )

    def start(self, size: float, rng: np.random.Generator) -> Array:
        """Return random scores."""
        return size * rng.normal(size=(self.K, self.K))

    def draw(self, N: int, count: int, seed: int, step: int) -> Any:
        """Draw prompts of N tokens."""
        features = icl.Features.simplex(self.K, 1.0)
        law = icl.tasks.Exchangeable(self.L)
        sampler = icl.SampledRisk(features, law, N, count, seed, noise=self.noise)
        return sampler.prompts(step)

    def evaluate(self, params: Array, prompts: Any, length: int) -> Batch:
        """Return losses and gradient of predictions from the first tokens."""
        token = prompts.token[:, :length]
        label = prompts.label[:, :length].astype(params.dtype)
        scores = params[token, prompts.query[:, None]]
        attention = np.exp(scores - scores.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        prediction = np.sum(attention * label, axis=1)
        error = prediction - prompts.answer.astype(params.dtype)
        # The derivative of each loss with respect to the score of each token, (B, N).
        slopes = attention * (label - prediction[:, None]) * error[:, None]
        # Tokens with the same feature and query share an entry of the score matrix, so
        # their derivatives are added in this entry, whose flat index is in ``cells``.
        cells = token * self.K + prompts.query[:, None]
        sums = np.bincount(cells.ravel(), slopes.ravel(), self.K**2)
        gradient = sums.reshape(self.K, self.K).astype(params.dtype) / len(error)
        return Batch(0.5 * error**2, gradient)


class LinearAttention(Model):
    """Linear attention with one matrix, (d, d)."""

    name = "linear-attention"
    plan = Training(eta=0.1, steps=150, batch=1000, N=16, start=0.01)
    adam_rates = (0.003, 0.01, 0.03)
    starts = (0.1, 0.3, 0.6)
    noises = (0.3, 0.45, 0.6)

    d = 4
    noise = 0.3

    def problem(self, training: Training) -> icl.Family:
        """Return the problem of the exact run."""
        return icl.LinearAttention(
            d=self.d,
            N=training.N,
            noise=self.noise,
            eta=training.eta,
            start=training.start,
            max_steps=training.steps,
        )

    def start(self, size: float, rng: np.random.Generator) -> Array:
        """Return a multiple of the unit matrix."""
        return size * np.eye(self.d)

    def draw(self, N: int, count: int, seed: int, step: int) -> Any:
        """Draw prompts of N tokens."""
        law = PromptLaw(np.ones(self.d), N=N, noise=self.noise)
        start = np.zeros((self.d, self.d))
        return SampledLinearAttention(law, start, count, seed).prompts(step)

    def evaluate(self, params: Array, prompts: Any, length: int) -> Batch:
        """Return losses and gradient of predictions from the first tokens."""
        tokens = prompts.tokens[:, :length].astype(params.dtype)
        labels = prompts.labels[:, :length].astype(params.dtype)
        query = prompts.query.astype(params.dtype)
        # The prediction is q Γ h, with the query q, the parameters Γ and the mean h of
        # labels times tokens.
        h = np.einsum("bn,bnd->bd", labels, tokens) / params.dtype.type(length)
        error = np.sum((query @ params) * h, axis=1)
        error = error - prompts.answer.astype(params.dtype)
        gradient = (query * error[:, None]).T @ h / len(error)
        return Batch(0.5 * error**2, gradient.astype(params.dtype))


MODELS: dict[str, Model] = {
    model.name: model for model in (SoftmaxRegression(), LinearAttention())
}


def deviations(model: Model) -> Iterator[Deviation]:
    """Yield three sizes of each deviation."""
    plan = model.plan

    def curve_with(cause: str, size: str, **changes: Any) -> Deviation:
        """Change the training of the curve alone."""
        return Deviation(cause, size, plan, replace(plan, **changes))

    def both_with(cause: str, size: str, run: Training, **changes: Any) -> Deviation:
        """Change the training of the curve from that of the exact run ``run``."""
        return Deviation(cause, size, run, replace(run, **changes))

    for factor in (0.6, 1.4, 2.0):
        yield curve_with("rate", f"{factor:g}", eta=factor * plan.eta)
    yield curve_with("factor", "2", factor=2.0)
    yield curve_with("factor", "0.5", factor=0.5)
    yield curve_with("factor", "2, trained on", factor=2.0, trains_on_factor=True)
    for N in (4, 8, 16):
        run = replace(plan, N=N)
        yield both_with("prompt length", f"{N + 1} for {N}", run, N=N + 1)
    for share in (0.1, 0.3, 1.0):
        run = replace(plan, eta=share * plan.eta)
        size = f"eta {run.eta:.3g}"
        yield both_with("momentum", size, run, optimiser="momentum")
    for eta in model.adam_rates:
        run = replace(plan, eta=eta)
        yield both_with("adam", f"eta {eta:g}", run, optimiser="adam")
    for start in model.starts:
        yield curve_with("start", f"{start:g}", start=start)
    for noise in model.noises:
        yield curve_with("label noise", f"{noise:g}", answer_noise=noise)
    for count in (100, 200, 400):
        yield curve_with("fixed set", f"{count}", prompts=count, batch=count)
    for share in (1.0, 2.0, 3.0):
        run = replace(plan, eta=share * plan.eta)
        size = f"eta {run.eta:.3g}"
        yield both_with("after the update", size, run, after_update=True)
    for N in (6, 12, 24):
        run = replace(plan, N=N)
        yield both_with("positions", f"N {N}", run, positions=True)


def schedules(model: Model) -> Iterator[Deviation]:
    """Yield three schedules of the learning rate."""
    for name in ("cosine", "step decay", "warm-up"):
        curve = replace(model.plan, schedule=name)
        yield Deviation("schedule", name, model.plan, curve)


class Curve(NamedTuple):
    """Losses of the steps 0, 1, ..., and their standard errors."""

    losses: Array
    errors: Array


def train(model: Model, training: Training, seed: int) -> Curve:
    """Train a model on sampled prompts, and return its losses.

    Parameters are rounded to the precision of the training after each step.
    """
    rng = np.random.default_rng([seed, 1])
    params: Array = model.start(training.start, rng).astype(training.precision)
    update = _optimiser(training)
    # The prompts of all steps, if they do not change.
    fixed = None
    if training.prompts is not None:
        fixed = _prompts(model, training, training.prompts, seed, 0, rng)
    losses = []
    errors = []
    for step in range(training.steps):
        prompts = fixed
        if prompts is None:
            prompts = _prompts(model, training, training.batch, seed, step, rng)
        batch = _evaluate(model, training, params, prompts)
        factor = training.factor if training.trains_on_factor else 1.0
        rate = SCHEDULES[training.schedule](step, training.steps)
        params = params + rate * update(factor * batch.gradient, step)
        params = params.astype(training.precision)
        if training.after_update:
            batch = _evaluate(model, training, params, prompts)
        recorded = training.factor * batch.losses
        losses.append(float(recorded.mean()))
        errors.append(float(recorded.std(ddof=1)) / len(recorded) ** 0.5)
    return Curve(np.array(losses), np.array(errors))


def _prompts(
    model: Model,
    training: Training,
    size: int,
    seed: int,
    step: int,
    rng: np.random.Generator,
) -> Any:
    """Draw prompts, with noise in their answers if the training has any."""
    prompts = model.draw(training.N, size, seed, step)
    if training.answer_noise:
        noise = training.answer_noise * rng.normal(size=size)
        prompts = prompts._replace(answer=prompts.answer + noise)
    return prompts


def _evaluate(model: Model, training: Training, params: Array, prompts: Any) -> Batch:
    """Return losses and gradient of a batch.

    If the training has ``positions``, they are means over predictions from the first 1,
    2, ..., N tokens.
    """
    if not training.positions:
        return model.evaluate(params, prompts, training.N)
    lengths = range(1, training.N + 1)
    parts = [model.evaluate(params, prompts, length) for length in lengths]
    losses = np.mean([part.losses for part in parts], axis=0)
    gradient = np.mean([part.gradient for part in parts], axis=0)
    return Batch(losses, gradient)


def _optimiser(training: Training) -> Callable[[Array, int], Array]:
    """Return a function of the gradient and the step that returns the change.

    It keeps its memory between calls, so each training needs a new one.
    """
    eta = training.eta
    zero = np.zeros(())
    memory: dict[str, Array] = {"mean": zero, "square": zero, "velocity": zero}

    def sgd(gradient: Array, step: int) -> Array:
        return -eta * gradient

    def momentum(gradient: Array, step: int) -> Array:
        memory["velocity"] = training.momentum * memory["velocity"] + gradient
        return np.asarray(-eta * memory["velocity"])

    def adam(gradient: Array, step: int) -> Array:
        memory["mean"] = 0.9 * memory["mean"] + 0.1 * gradient
        memory["square"] = 0.999 * memory["square"] + 0.001 * gradient**2
        mean = memory["mean"] / (1.0 - 0.9 ** (step + 1))
        square = memory["square"] / (1.0 - 0.999 ** (step + 1))
        return np.asarray(-eta * mean / (np.sqrt(square) + 1e-8))

    return {"sgd": sgd, "momentum": momentum, "adam": adam}[training.optimiser]


def planted(models: list[Model], only: str, precision: type, first_seed: int) -> None:
    """Print a row for each planted deviation, and how many are named.

    Only the cause ``only`` is tried, or every cause if it is empty. Schedules are
    counted by themselves.
    """
    named: dict[str, list[bool]] = {"deviations": [], "schedules": []}
    print("| model | planted | size | leaves | explanations, best first | named |")
    print("|" + "---|" * 6)
    for model in models:
        kinds = [("deviations", deviation) for deviation in deviations(model)]
        kinds += [("schedules", deviation) for deviation in schedules(model)]
        for seed, (kind, deviation) in enumerate(kinds, first_seed):
            if only in ("", deviation.cause):
                is_named = named_in_row(model, deviation, precision, seed)
                named[kind].append(is_named)
    for kind, outcomes in named.items():
        if outcomes:
            print(f"\nnamed among the first {NAMED}: {sum(outcomes)} of", end=" ")
            print(f"{len(outcomes)} curves ({kind})")


def named_in_row(
    model: Model, deviation: Deviation, precision: type, seed: int
) -> bool:
    """Train the curve of a deviation, compare it with the exact run, and print a row.

    Return whether the deviation is among the first explanations.
    """
    trained = train(model, replace(deviation.curve, precision=precision), seed)
    exact = model.problem(deviation.run).simulate()
    compared = exact.compare(trained.losses, errors=trained.errors)
    names = [item.name for item in compared.explanations]
    # An explanation may name two causes.
    is_named = any(deviation.cause in name.split(" and ") for name in names[:NAMED])
    leaves = "stays" if compared.leaves is None else f"{compared.leaves[0]}"
    cells = [
        model.name,
        deviation.cause,
        deviation.size,
        leaves,
        ", ".join(names),
        "yes" if is_named else "NO",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
    return is_named


def unperturbed(models: list[Model], count: int, precision: type) -> None:
    """Print how many curves leave the exact run although they have no deviation.

    ``count`` curves are trained as the exact runs, the models in turn.
    """
    leaving = 0
    largest = []
    for seed in range(count):
        model = models[seed % len(models)]
        training = replace(model.plan, precision=precision)
        trained = train(model, training, 1000 + seed)
        run = model.problem(training).simulate()
        compared = run.compare(trained.losses, errors=trained.errors)
        leaving += not compared.passed
        largest.append(max(abs(check.z) for check in compared.checks))
        if not compared.passed:
            print(f"seed {1000 + seed}: {model.name} {compared.remarks}", flush=True)
    print(
        f"unperturbed: {leaving} of {count} curves leave; largest differences: median "
        f"{np.median(largest):.2f}, 90 % {np.quantile(largest, 0.9):.2f}, most "
        f"{max(largest):.2f} standard errors"
    )


def main() -> None:
    """Read the options; print the planted deviations, then the curves without one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=[*MODELS], help="one model, not both")
    parser.add_argument("--only", default="", help="one deviation, not all ten")
    parser.add_argument("--unperturbed", type=int, default=200, help="curves without")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first curve")
    parser.add_argument("--float32", action="store_true", help="train in float32")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    models = [MODELS[arguments.model]] if arguments.model else [*MODELS.values()]
    precision = np.float32 if arguments.float32 else np.float64
    if arguments.only != "none":
        planted(models, arguments.only, precision, arguments.seed)
    if arguments.unperturbed:
        unperturbed(models, arguments.unperturbed, precision)
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
