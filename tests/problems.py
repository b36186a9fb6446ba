"""Small problems of all families with options off their defaults, and the iteration written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory._validate import Array

MOMENT = np.array([[1.5, 0.3], [0.3, 0.7]])
UNEQUAL = icl.Features.random(4, 3, 0.8, seed=3, probs=[0.4, 0.3, 0.2, 0.1])


class Bowl(icl.Risk):
    """½|θ|², a risk that belongs to no family."""

    initial = np.ones(2)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return 0.5 * float(params @ params), params


def by_default(family: type[icl.Family]) -> icl.Family:
    """A problem of a family about which these tests know nothing but its parameters."""
    required = [name for name, each in family.parameters().items() if each.required]
    return family(**dict.fromkeys(required, 0.1), max_steps=20)


PROBLEMS: dict[str, icl.Family] = {
    "regression": icl.Regression(
        L=1.3, delta=0.8, eta=1.7, K=5, N=7, noise=0.4, above=0.02
    ),
    "regression, closed": icl.Regression(L=1.3, delta=0.8, eta=1.7, K=5, epsilon=0.02),
    "regression, embedding": icl.Regression(
        L=1.3,
        delta=1.6,
        eta=0.6,
        K=4,
        N=9,
        noise=0.3,
        coordinates="embedding",
        above=0.05,
    ),
    "regression, factored": icl.Regression(
        L=1.3,
        delta=1.6,
        eta=0.6,
        K=4,
        task="cosine",
        coordinates="factored",
        above=0.05,
    ),
    "regression, probabilities": icl.Regression(
        L=1.3,
        delta=0.8,
        eta=1.7,
        K=3,
        N=6,
        noise=0.2,
        task="quadratic",
        probs=(0.5, 0.3, 0.2),
        above=0.02,
    ),
    "regression, features": icl.Regression(
        delta=UNEQUAL.gap,
        L=1.3,
        eta=1.7,
        features=UNEQUAL,
        task="fourier",
        imbalance=0.3,
        N=40,
        noise=0.2,
        above=0.02,
    ),
    "groups": icl.regression.GroupedRegression(
        L=1.3,
        delta=0.8,
        eta=0.9,
        sizes=(1, 3),
        shares=(0.4, 0.6),
        N=8,
        noise=0.3,
        above=0.02,
    ),
    "gaussian": icl.regression.GaussianRegression(
        L=1.4, d=2, curved=0.3, N=9, noise=0.2, eta=0.05, above=0.05
    ),
    "recall": icl.Recall(
        V=9,
        triggers=2,
        outputs=3,
        alpha=0.2,
        H=9,
        probs=(0.6, 0.4),
        counts=2,
        gamma="trained",
        eta=0.3,
        above=0.05,
    ),
    "recall, relu": icl.Recall(
        V=9, triggers=2, outputs=3, alpha=0.2, attention="relu", eta=0.3, above=0.1
    ),
    "recall, softmax": icl.Recall(
        V=9,
        triggers=2,
        outputs=3,
        H=6,
        attention="softmax",
        v=0.7,
        eta=0.3,
        above=0.1,
        rule="ngd-blocks",
    ),
    "recall, sentences": icl.Recall(
        V=9,
        triggers=2,
        outputs=3,
        alpha=0.2,
        M=12,
        seed=3,
        gamma="trained",
        eta=0.3,
        above=0.05,
        rule="gd",
    ),
    "linear attention": icl.LinearAttention(
        d=3, decay=0.7, N=9, noise=0.4, start=0.05, eta=0.1, above=0.05
    ),
    "linear attention, moments": icl.LinearAttention(
        d=2,
        covariance=MOMENT,
        prior=np.diag([0.5, 2.0]),
        query=np.diag([2.0, 0.7]),
        N=7,
        noise=0.3,
        eta=0.1,
        above=0.05,
    ),
    "linear attention, pair": icl.LinearAttention(
        d=3,
        decay=0.7,
        N=9,
        noise=0.4,
        coordinates="pair",
        start=0.3,
        eta=0.1,
        above=0.05,
    ),
    "linear attention, heads": icl.LinearAttention(
        d=3,
        decay=0.7,
        N=9,
        noise=0.4,
        coordinates="heads",
        heads=2,
        rank=2,
        start=0.3,
        seed=5,
        eta=0.1,
        above=0.05,
    ),
    "linear attention, tasks": icl.LinearAttention(
        d=3, N=9, noise=0.4, tasks=2, seed=5, eta=0.1, above=0.05
    ),
    "linear attention, loop": icl.LinearAttention(
        d=3, N=9, noise=0.4, depth=2, start=0.05, eta=0.01, above=0.05
    ),
    "sphere": icl.Sphere(
        task="relu", d=3, N=12, L=1.4, noise=0.6, start=0.7, eta=0.9, above=1e-4
    ),
    "sphere, cosine": icl.Sphere(
        task="cosine", d=4, N=12, L=1.4, noise=0.6, above=1e-4
    ),
    "fixed chain": icl.FixedChain(
        p=0.7, q=0.8, e=0.8, w=0.4, readout=-0.6, bias="trained", eta=0.7, above=1e-3
    ),
    "fixed chain, best": icl.FixedChain(
        p=0.2, q=0.3, e=0.8, w=0.4, readout=0.6, eta=0.7, above=1e-3
    ),
    "representation": icl.Representation(
        K=4, m=3, N=2, heads=2, noise=0.5, start=0.7, seed=5, eta=0.5
    ),
    "representation, others": icl.Representation(
        K=4, m=3, N=2, heads=2, sees="labelled", eta=0.5
    ),
    "softmax heads": icl.SoftmaxHeads(
        d=2, N=6, noise=0.3, heads=1, start=0.4, seed=5, eta=0.05, above=0.05
    ),
    "single location": icl.SingleLocation(
        N=5, snr=3.0, spread=0.7, noise=0.2, scale=1.3, first=0.3, d=30, seed=5, eta=0.2
    ),
    "single location, erf": icl.SingleLocation(
        attention="erf",
        N=5,
        snr=3.0,
        spread=0.7,
        noise=0.2,
        scale=1.3,
        start="sphere",
        d=30,
        seed=5,
        eta=0.2,
    ),
    "token selection": icl.TokenSelection(
        trained="KQ", n=3, T=4, d=3, values="one", start=0.5, seed=5, eta=0.3, above=0.3
    ),
    "token selection, W": icl.TokenSelection(
        trained="W", n=3, T=4, d=3, seed=5, above=0.3
    ),
    "induction heads": icl.InductionHeads(
        k=3,
        T=7,
        lags=3,
        edge="complete",
        concentration=0.8,
        points=8,
        seed=5,
        start="stationary",
        match=0.2,
        scores=(0.1, 0.4, -0.2),
        sink=0.3,
        ratio=2.0,
        eta=0.8,
    ),
    "induction heads, log": icl.InductionHeads(
        k=2,
        T=6,
        points=8,
        objective="log",
        sink=0.3,
        second="matrix",
        match=0.2,
        stage=2,
        eta=0.8,
    ),
    "matrices": icl.recall.Training(
        V=8, triggers=2, outputs=3, H=9, batch=8, scale=0.4, seed=5, eta=0.3
    ),
}


def length(risk: Any, gradient: Array, blocks: bool) -> Array:
    """The length of a gradient, or of the block that each entry belongs to, in the metric of the risk."""
    weighed = np.broadcast_to(
        np.asarray(gradient**2 / risk.metric, dtype=float), gradient.shape
    )
    found = np.empty_like(gradient)
    parts = (
        zip(risk.blocks(found), risk.blocks(np.array(weighed)), strict=True)
        if blocks
        else [(found, weighed)]
    )
    for to, part in parts:
        to[...] = math.sqrt(float(np.sum(part)))
    return found


def iterates(risk: Any, rule: str, eta: float, steps: int) -> list[Array]:
    """The first states of a run: plain steps, steps of one length, or of one length in each block."""
    state, found = np.array(risk.initial, dtype=float), []
    for t in range(steps + 1):
        found.append(state)
        gradient = np.asarray(risk.evaluate(state, t)[1], dtype=float).reshape(
            state.shape
        )
        size = (
            np.ones_like(gradient)
            if rule == "gd"
            else length(risk, gradient, rule == "ngd-blocks")
        )
        state = state - np.where(
            size > 0, eta * gradient / risk.metric / np.where(size > 0, size, 1.0), 0.0
        )
    return found
