"""Loss curves with a planted deviation each, which `Trajectory.compare` has to name.

    python scripts/deviations.py                     # 60 curves with, 200 without
    python scripts/deviations.py --float32           # the same, trained in float32
    python scripts/deviations.py --seed 500          # other curves
    python scripts/deviations.py --model regression --only rate --unperturbed 0

Each curve is trained by the NumPy layers of this file on prompts that the samplers of
the package draw. Its standard errors are those of the batches. The table says which
explanations `compare` names first; a curve counts if the planted one is among the first
two.
"""

from __future__ import annotations

import argparse
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
# The largest number of the table's explanations that count.
NAMED = 2


@dataclass(frozen=True)
class Training:
    """How a curve is trained; the defaults are the training of the exact run."""

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
    precision: type = np.float64


class Batch(NamedTuple):
    """Losses of B prompts, and the gradient of their mean."""

    losses: Array
    gradient: Array


class Model(ABC):
    """A layer and its law of prompts."""

    name: str

    @abstractmethod
    def family(self, training: Training) -> icl.Family:
        """Return the problem of the exact run."""

    @abstractmethod
    def planned(self) -> Training:
        """Return the training of the exact run."""

    @abstractmethod
    def start(self, training: Training, rng: np.random.Generator) -> Array:
        """Return the parameters at step 0."""

    @abstractmethod
    def draw(self, training: Training, size: int, seed: int, step: int) -> Any:
        """Draw prompts."""

    @abstractmethod
    def evaluate(self, params: Array, prompts: Any, length: int) -> Batch:
        """Return losses and gradient of predictions from the first tokens."""

    @abstractmethod
    def with_answers(self, prompts: Any, answers: Array) -> Any:
        """Return prompts with other answers."""

    def deviations(self) -> Iterator[tuple[str, str, Training, Training]]:
        """Yield the explanation, the size, the run's training and the curve's."""
        plan = self.planned()
        for factor in (0.6, 1.4, 2.0):
            yield "rate", f"{factor:g}", plan, replace(plan, eta=factor * plan.eta)
        for factor, trains in ((2.0, False), (0.5, False), (2.0, True)):
            size = f"{factor:g}, trained on" if trains else f"{factor:g}"
            changed = replace(plan, factor=factor, trains_on_factor=trains)
            yield "factor", size, plan, changed
        for N in (4, 8, 16):
            run = replace(plan, N=N)
            yield "prompt length", f"{N + 1} for {N}", run, replace(run, N=N + 1)
        for share in (0.1, 0.3, 1.0):
            run = replace(plan, eta=share * plan.eta)
            momentum = replace(run, optimiser="momentum")
            yield "momentum", f"eta {run.eta:.3g}", run, momentum
        for eta in self.adam_rates():
            run = replace(plan, eta=eta)
            yield "adam", f"eta {eta:g}", run, replace(run, optimiser="adam")
        for start in self.starts():
            yield "start", f"{start:g}", plan, replace(plan, start=start)
        for noise in self.noises():
            changed = replace(plan, answer_noise=noise)
            yield "label noise", f"{noise:g}", plan, changed
        for prompts in (100, 200, 400):
            changed = replace(plan, prompts=prompts, batch=prompts)
            yield "fixed set", f"{prompts}", plan, changed
        for share in (1.0, 2.0, 3.0):
            run = replace(plan, eta=share * plan.eta)
            later = replace(run, after_update=True)
            yield "after the update", f"eta {run.eta:.3g}", run, later
        for N in (6, 12, 24):
            run = replace(plan, N=N)
            yield "positions", f"N {N}", run, replace(run, positions=True)

    @abstractmethod
    def adam_rates(self) -> tuple[float, ...]:
        """Return three learning rates for Adam."""

    @abstractmethod
    def starts(self) -> tuple[float, ...]:
        """Return three other starts."""

    @abstractmethod
    def noises(self) -> tuple[float, ...]:
        """Return three standard deviations of noise in the answers."""


class SoftmaxRegression(Model):
    """Softmax attention over K one-hot features, class scores S, (K, K)."""

    name = "regression"
    K = 6
    L = 2.0
    noise = 0.1

    def planned(self) -> Training:
        """Return the training of the exact run."""
        return Training(eta=2.0, steps=150, batch=1000, N=16, start=0.0)

    def family(self, training: Training) -> icl.Family:
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

    def start(self, training: Training, rng: np.random.Generator) -> Array:
        """Return random scores."""
        return training.start * rng.normal(size=(self.K, self.K))

    def draw(self, training: Training, size: int, seed: int, step: int) -> Any:
        """Draw prompts."""
        features = icl.Features.simplex(self.K, 1.0)
        law = icl.tasks.Exchangeable(self.L)
        sampler = icl.SampledRisk(
            features, law, training.N, size, seed, noise=self.noise
        )
        return sampler.prompts(step)

    def with_answers(self, prompts: Any, answers: Array) -> Any:
        """Return prompts with other answers."""
        return prompts._replace(answer=answers)

    def evaluate(self, params: Array, prompts: Any, length: int) -> Batch:
        """Return losses and gradient of predictions from the first tokens."""
        token = prompts.token[:, :length]
        label = prompts.label[:, :length].astype(params.dtype)
        scores = params[token, prompts.query[:, None]]
        attention = np.exp(scores - scores.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        prediction = np.sum(attention * label, axis=1)
        error = prediction - prompts.answer.astype(params.dtype)
        slopes = attention * (label - prediction[:, None]) * error[:, None]
        cells = token * self.K + prompts.query[:, None]
        sums = np.bincount(cells.ravel(), slopes.ravel(), self.K**2)
        gradient = sums.reshape(self.K, self.K).astype(params.dtype) / len(error)
        return Batch(0.5 * error**2, gradient)

    def adam_rates(self) -> tuple[float, ...]:
        """Return three learning rates for Adam."""
        return (0.03, 0.1, 0.3)

    def starts(self) -> tuple[float, ...]:
        """Return three other starts."""
        return (0.7, 1.0, 1.5)

    def noises(self) -> tuple[float, ...]:
        """Return three standard deviations of noise in the answers."""
        return (0.2, 0.3, 0.5)


class LinearAttention(Model):
    """Linear attention with one matrix, (d, d)."""

    name = "linear-attention"
    d = 4
    noise = 0.3

    def planned(self) -> Training:
        """Return the training of the exact run."""
        return Training(eta=0.1, steps=150, batch=1000, N=16, start=0.01)

    def family(self, training: Training) -> icl.Family:
        """Return the problem of the exact run."""
        return icl.LinearAttention(
            d=self.d,
            N=training.N,
            noise=self.noise,
            eta=training.eta,
            start=training.start,
            max_steps=training.steps,
        )

    def start(self, training: Training, rng: np.random.Generator) -> Array:
        """Return a multiple of the unit matrix."""
        return training.start * np.eye(self.d)

    def draw(self, training: Training, size: int, seed: int, step: int) -> Any:
        """Draw prompts."""
        law = PromptLaw(np.ones(self.d), N=training.N, noise=self.noise)
        start = np.zeros((self.d, self.d))
        return SampledLinearAttention(law, start, size, seed).prompts(step)

    def with_answers(self, prompts: Any, answers: Array) -> Any:
        """Return prompts with other answers."""
        return prompts._replace(answer=answers)

    def evaluate(self, params: Array, prompts: Any, length: int) -> Batch:
        """Return losses and gradient of predictions from the first tokens."""
        tokens = prompts.tokens[:, :length].astype(params.dtype)
        labels = prompts.labels[:, :length].astype(params.dtype)
        query = prompts.query.astype(params.dtype)
        h = np.einsum("bn,bnd->bd", labels, tokens) / params.dtype.type(length)
        error = np.sum((query @ params) * h, axis=1)
        error = error - prompts.answer.astype(params.dtype)
        gradient = (query * error[:, None]).T @ h / len(error)
        return Batch(0.5 * error**2, gradient.astype(params.dtype))

    def adam_rates(self) -> tuple[float, ...]:
        """Return three learning rates for Adam."""
        return (0.003, 0.01, 0.03)

    def starts(self) -> tuple[float, ...]:
        """Return three other starts."""
        return (0.1, 0.3, 0.6)

    def noises(self) -> tuple[float, ...]:
        """Return three standard deviations of noise in the answers."""
        return (0.3, 0.45, 0.6)


MODELS: dict[str, Model] = {
    model.name: model for model in (SoftmaxRegression(), LinearAttention())
}


class Curve(NamedTuple):
    """Losses of the steps 0, 1, ..., and their standard errors."""

    losses: Array
    errors: Array


def train(model: Model, training: Training, seed: int) -> Curve:
    """Train a model on sampled prompts."""
    rng = np.random.default_rng([seed, 1])
    params: Array = model.start(training, rng).astype(training.precision)
    update = _optimiser(training)
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
        params = params + update(factor * batch.gradient, step)
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
    prompts = model.draw(training, size, seed, step)
    if training.answer_noise:
        noise = training.answer_noise * rng.normal(size=size)
        prompts = model.with_answers(prompts, prompts.answer + noise)
    return prompts


def _evaluate(model: Model, training: Training, params: Array, prompts: Any) -> Batch:
    """Return losses and gradient, means over all positions if the training has them."""
    if not training.positions:
        return model.evaluate(params, prompts, training.N)
    lengths = range(1, training.N + 1)
    parts = [model.evaluate(params, prompts, length) for length in lengths]
    losses = np.mean([part.losses for part in parts], axis=0)
    gradient = np.mean([part.gradient for part in parts], axis=0)
    return Batch(losses, gradient)


def _optimiser(training: Training) -> Callable[[Array, int], Array]:
    """Return a function of gradient and step that returns the change."""
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
    """Print a row for each planted deviation, and how many are named."""
    named = []
    print("| model | planted | size | leaves | explanations, best first | named |")
    print("|" + "---|" * 6)
    for model in models:
        deviations = enumerate(model.deviations(), first_seed)
        for seed, (cause, size, run, curve) in deviations:
            if only not in ("", cause):
                continue
            trained = train(model, replace(curve, precision=precision), seed)
            exact = model.family(run).simulate()
            compared = exact.compare(trained.losses, errors=trained.errors)
            names = [item.name for item in compared.explanations]
            is_named = any(cause in name.split(" and ") for name in names[:NAMED])
            named.append(is_named)
            leaves = "stays" if compared.leaves is None else f"{compared.leaves[0]}"
            print(
                f"| {model.name} | {cause} | {size} | {leaves} | {', '.join(names)} | "
                f"{'yes' if is_named else 'NO'} |",
                flush=True,
            )
    print(f"\nnamed among the first {NAMED}: {sum(named)} of {len(named)} curves")


def unperturbed(models: list[Model], count: int, precision: type) -> None:
    """Print how many curves of the run's own training leave."""
    leaving = 0
    largest = []
    for seed in range(count):
        model = models[seed % len(models)]
        training = replace(model.planned(), precision=precision)
        trained = train(model, training, 1000 + seed)
        run = model.family(training).simulate()
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
    """Read the options, and print both parts."""
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
