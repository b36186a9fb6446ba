"""Sweeps and runs for tables, figures and reports: small, and of many kinds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import icl_theory as icl
from tests.answers._families import Bowl, Dish, Plain

QUIET: dict[str, Any] = {"progress": False}


@cache
def regression() -> Any:
    """Lipschitz constants by numbers of features, with both limits, in no order."""
    L = np.geomspace(0.03, 30.0, 17)[[*range(0, 17, 2), *range(1, 17, 2)]]
    return icl.sweep(L=L, delta=1.5, eta=0.02, K=[20, 5], epsilon=1e-4, **QUIET)


@cache
def line() -> Any:
    return icl.sweep(
        L=np.geomspace(0.05, 20.0, 13), delta=1.5, eta=0.02, K=9, epsilon=1e-3, **QUIET
    )


@cache
def rates() -> Any:
    """An axis of rates with points that have nothing to learn, or do not get there."""
    return icl.sweep(
        L=[0.01, 2.0],
        delta=1.0,
        eta=np.linspace(0.001, 0.5, 7),
        K=4,
        epsilon=1e-4,
        max_steps=9000,
        **QUIET,
    )


@cache
def diagram() -> Any:
    L, eta = np.geomspace(0.01, 20.0, 9), np.geomspace(0.01, 2.0, 7)
    return icl.sweep(
        L=L, delta=1.0, eta=eta, K=6, epsilon=1e-3, max_steps=10**6, **QUIET
    )


@cache
def bowl() -> Any:
    """Points that fail or miss their targets, and words."""
    return icl.sweep(
        Bowl, eta=[0.5, 0.01], width=[1.0, 3.0, 1.5, 9.5, 0.25], max_steps=300, **QUIET
    )


@cache
def words() -> Any:
    return icl.sweep(
        Bowl,
        eta=0.3,
        shape=["round", "flat"],
        width=[4.0, 1.0, 2.0],
        max_steps=100,
        **QUIET,
    )


@cache
def many() -> Any:
    """A diagram over widths and rates, with marks of all kinds."""
    return icl.sweep(
        Dish,
        eta=np.linspace(0.01, 0.3, 8),
        width=[0.5, 1.0, 2.0, 3.0, 4.0, 5.5, 8.0],
        max_steps=120,
        **QUIET,
    )


@cache
def three() -> Any:
    return icl.sweep(
        Bowl,
        eta=[0.5, 0.1],
        width=[1.0, 2.0, 0.5],
        count=[3, 8],
        tilt=[0.0, -1.5],
        **QUIET,
    )


@cache
def pending() -> Any:
    """A sweep that has lost some of its points."""
    found = bowl().copy(deep=True)
    for name, blank in (
        ("status", "pending"),
        ("message", ""),
        ("kind", ""),
        ("note", ""),
        ("method", ""),
    ):
        found[name].values[0, :2] = blank
    for name in ("steps", "T_fast", "T_slow", "last", "holds"):
        found[name].values[0, :2] = -1
    for name in ("eta_used", "loss", "floor", "rest", "edge", "error"):
        found[name].values[0, :2] = np.nan
    return found.assign_attrs(interrupted=1)


@cache
def none() -> Any:
    """A sweep none of whose points is computed."""
    found = bowl().copy(deep=True)
    found["status"].values[:] = "pending"
    found["steps"].values[:] = -1
    return found


@cache
def point() -> Any:
    return icl.sweep(Bowl, eta=0.3, width=2.5, epsilon=0.2, **QUIET)


@cache
def infinite() -> Any:
    return icl.sweep(
        L=2.0,
        delta=1.0,
        eta=0.5,
        K=4,
        N=[3.0, 9.0, np.inf],
        noise=0.1,
        above=0.05,
        **QUIET,
    )


@cache
def counts() -> Any:
    return icl.sweep(
        "recall", triggers=[4, 9, 16], V=40, eta=[0.1, 0.3], above=0.05, **QUIET
    )


@cache
def plain() -> Any:
    return icl.sweep(Plain, width=[1.0, 2.0], eta=[0.1, 0.3], max_steps=20, **QUIET)


SWEEPS = {
    each.__name__: each
    for each in (
        regression,
        line,
        rates,
        diagram,
        bowl,
        words,
        many,
        three,
        pending,
        point,
        infinite,
        counts,
        plain,
    )
}


@cache
def closed() -> Any:
    return icl.simulate(3.0, 1.0, 0.8, K=7, epsilon=1e-4)


@cache
def flat() -> Any:
    return icl.simulate(0.05, 1.0, 0.8, K=7, epsilon=5e-4)


@cache
def noisy() -> Any:
    """A floor, several attentions, and an unreached target."""
    return icl.simulate(
        2.0,
        1.0,
        1.0,
        K=3,
        N=6,
        noise=0.3,
        probs=[0.5, 0.3, 0.2],
        epsilon=1e-3,
        max_steps=200,
    )


@cache
def normalised() -> Any:
    return icl.Recall(
        triggers=4, V=20, alpha=0.1, eta=0.2, counts=2, above=0.02
    ).simulate()


@cache
def linear() -> Any:
    return icl.LinearAttention(
        d=3, N=8, noise=0.4, eta=0.1, above=0.05, max_steps=300
    ).simulate()


@cache
def phased() -> Any:
    return Bowl(eta=0.2, width=2.5, shape="flat", epsilon=0.05).simulate()


@cache
def lost() -> Any:
    return Plain(eta=1e3, width=1.0, max_steps=400).simulate()


@cache
def heads() -> Any:
    return icl.InductionHeads(T=8, eta=0.5, max_steps=60).simulate()


@cache
def bare() -> Any:
    """A run of a risk of no family."""
    from tests.answers._families import Parabola

    return icl.descend(Parabola(1.3, 0.1), 0.3, steps=40)


RUNS = {
    each.__name__: each
    for each in (closed, flat, noisy, normalised, linear, phased, lost, heads, bare)
}
