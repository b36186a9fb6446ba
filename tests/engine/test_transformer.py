"""The two-layer transformer: position by position in loops, finite differences, and against the exact reduction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from icl_theory.engine import Risk, descend
from icl_theory.tokens import (
    ChainRisk,
    Chains,
    CountRisk,
    TwoLayerTransformer,
    TwoStateCounts,
)

SETTINGS: dict[str, tuple[Any, ...]] = {  # k, m, T, objective, sink
    "three-states": (3, 2, 12, "square", None),
    "three-lags": (2, 3, 20, "square", None),
    "log-loss": (2, 2, 16, "log", 0.0),
}


def chains_of(k: int, m: int, count: int = 5, seed: int = 1) -> Chains:
    return Chains(
        np.random.default_rng(seed).dirichlet(np.ones(k), (count, k)), window=m
    )


def softmax(x: Any) -> Any:
    return np.exp(x) / np.exp(x).sum()


def in_loops(risk: TwoLayerTransformer, params: Any, step: int) -> float:
    """The mean loss, one sequence and one position at a time."""
    k, m, whole, losses = (
        risk.chains.symbols,
        risk.chains.window,
        risk.matrices(params),
        [],
    )
    rng = np.random.default_rng([risk.seed, step])
    for chain, windows in zip(
        *risk.chains.draw(rng, risk.length, risk.batch), strict=True
    ):
        stream = []
        for window in windows:
            symbols = [int(window) // k**j % k for j in range(m)]
            scores = [
                whole.lags[j] + whole.content[symbols[0], x]
                for j, x in enumerate(symbols)
            ]
            heads = [
                a * whole.carried[:, x]
                for a, x in zip(softmax(np.array(scores)), symbols, strict=True)
            ]
            stream.append(np.concatenate([np.eye(k)[symbols[0]], sum(heads)]))
        scores = [stream[-1] @ whole.matching @ each for each in stream]
        attention = softmax(
            np.array(scores + ([] if risk.sink is None else [risk.sink]))
        )
        values = [whole.values @ each for each in stream] + [np.full(k, 1.0 / k)]
        output = sum(a * v for a, v in zip(attention, values, strict=False))
        law = risk.chains.transitions[chain, windows[-1] % k]
        losses.append(
            0.5 * np.sum((output - law) ** 2)
            if risk.objective == "square"
            else -law @ np.log(output)
        )
    return float(np.mean(losses))


@pytest.mark.parametrize("trained", ["reduction", "all"])
@pytest.mark.parametrize("name", SETTINGS)
def test_loss_in_loops_and_gradient_by_differences(name: str, trained: str) -> None:
    k, m, T, objective, sink = SETTINGS[name]
    rng = np.random.default_rng(2)
    risk = TwoLayerTransformer(
        chains_of(k, m), T, 6, 4, [*rng.normal(size=m), 0.8], trained, objective, sink
    )
    at = risk.initial + 0.2 * rng.normal(size=risk.initial.shape)
    free = len(at)
    if objective == "log" and trained == "all":  # values are kept
        free -= 2 * k * k
        at[free:] = risk.initial[free:]
    loss, gradient = risk.evaluate(at, 3)
    assert loss == pytest.approx(in_loops(risk, at, 3), rel=1e-12)
    h = 1e-5
    ends = [
        [risk.evaluate(at + sign * h * unit, 3)[0] for sign in (1, -1)]
        for unit in np.eye(len(at))[:free]
    ]
    np.testing.assert_allclose(
        gradient[:free], [(a - b) / (2 * h) for a, b in ends], atol=1e-9
    )
    assert not gradient[free:].any()


class Exact(Risk):
    """The exact loss of (r, b): scores are b times the first layer's attention on the query's symbol."""

    def __init__(self, name: str, start: Any) -> None:
        k, m, T, objective, self.sink = SETTINGS[name]
        chains = chains_of(k, m)
        self.start, self.seen = (
            np.array(start),
            np.arange(k**m)[:, None] // k ** np.arange(m) % k,
        )
        counts = (
            None
            if objective == "square"
            else TwoStateCounts(
                T + 1, transitions=chains.transitions, start="stationary"
            )
        )
        self.risk: Risk = (
            ChainRisk(chains, T)
            if counts is None
            else CountRisk(counts, sink=[0.5, 0.5])
        )
        self.k = k

    @property
    def initial(self) -> Any:
        return self.start

    def scores(self, params: Any) -> Any:
        found = params[-1] * np.einsum(
            "j,wjq->wq", softmax(params[:-1]), np.eye(self.k)[self.seen]
        )
        return (
            found
            if self.sink is None
            else np.vstack([found, np.full(self.k, self.sink)])
        )

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        """The chain rule by differences of the scores, which are linear in few numbers."""
        loss, slopes = self.risk.evaluate(self.scores(params))
        units = 1e-6 * np.eye(len(params))
        return loss, np.array(
            [
                np.sum(slopes * (self.scores(params + h) - self.scores(params - h)))
                / 2e-6
                for h in units
            ]
        )


@pytest.mark.parametrize("name", SETTINGS)
def test_samples_have_the_exact_loss_and_gradient_of_the_reduction(name: str) -> None:
    """Means over batches at two points, in standard errors; at the second the match is strong."""
    k, m, T, objective, sink = SETTINGS[name]
    for at in (np.append(np.zeros(m), 0.5), np.append(np.linspace(-0.5, 1.0, m), 3.0)):
        loss, gradient = Exact(name, at).evaluate(at)
        risk = TwoLayerTransformer(
            chains_of(k, m), T, 200, 7, at, "reduction", objective, sink
        )
        found = np.array([np.append(*risk.evaluate(at, step)) for step in range(60)])
        z = (found.mean(axis=0) - np.append(loss, gradient)) / (
            found.std(axis=0, ddof=1) / np.sqrt(60.0)
        )
        assert np.abs(z).max() < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_runs_of_the_reduction_end_where_exact_descent_does(name: str) -> None:
    """Eight runs with seeds of their own: their mean parameters at the saved steps are those of exact descent."""
    k, m, T, objective, sink = SETTINGS[name]
    start, eta = np.append(np.zeros(m), 1.0), 5.0 if objective == "square" else 2.0
    exact = descend(Exact(name, start), eta, steps=100)
    runs = [
        descend(
            TwoLayerTransformer(
                chains_of(k, m), T, 400, seed, start, "reduction", objective, sink
            ),
            eta,
            steps=200,
        )
        for seed in range(8)
    ]
    for place in range(0, len(exact.t), 4):
        found = np.array(
            [run.states[list(run.t).index(exact.t[place])] for run in runs]
        )
        spread = (
            found.std(axis=0, ddof=1) / np.sqrt(8.0) + 1e-3
        )  # steps of a noisy gradient are biased by its square
        assert np.all(np.abs(found.mean(axis=0) - exact.states[place]) < 6.0 * spread)


def test_what_lies_outside_of_the_reduction() -> None:
    risk = TwoLayerTransformer(chains_of(3, 2), 8, 4, 0, [0.3, -0.2, 1.5], "all")
    assert not any(risk.outside(risk.initial).values())
    matrices = risk.matrices(risk.initial + np.arange(len(risk.initial)) * 0.01)
    eye = np.eye(3)
    rest = matrices.matching - np.kron(
        [[0, np.trace(matrices.matching[:3, 3:]) / 3], [0, 0]], eye
    )
    wanted = [
        matrices.content,
        matrices.carried - eye,
        rest,
        matrices.values - np.hstack([eye, 0 * eye]),
    ]
    found = risk.outside(risk.initial + np.arange(len(risk.initial)) * 0.01)
    np.testing.assert_allclose(
        [*found.values()], [np.linalg.norm(each) for each in wanted], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("start", {"start": [0.0]}),
        ("trained", {"trained": "some"}),
        ("sink", {"objective": "log"}),
        ("objective", {"objective": "mean"}),
        ("batch", {"batch": 0}),
        ("length", {"length": 0}),
        ("seed", {"seed": -1}),
        ("chains", {"chains": 3}),
    ],
)
def test_bad_input(name: str, given: dict[str, Any]) -> None:
    fine = {
        "chains": chains_of(2, 2),
        "length": 5,
        "batch": 3,
        "seed": 0,
        "start": [0.0, 0.0, 1.0],
    }
    with pytest.raises(ValueError, match=f"{name} = "):
        TwoLayerTransformer(**{**fine, **given})
