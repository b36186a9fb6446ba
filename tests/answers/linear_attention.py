"""Linear attention: laws of prompts, risks, loops, diversity, shifts, runs, and what they refuse."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from icl_theory.papers.linear_attention import (
    depth,
    diversity,
    law,
    layer,
    mixture,
    risks,
    shifts,
)
from icl_theory.papers.linear_attention.depth import LoopedRisk, PlusPlusRisk
from icl_theory.papers.linear_attention.family import LinearAttention, draw_tasks
from icl_theory.papers.linear_attention.law import PromptLaw
from icl_theory.papers.linear_attention.risks import Heads, MergedRisk, Pair
from icl_theory.sweeps.grid import Column
from tests.answers import Call
from tests.answers._runs import Asked, measured, refused, run_calls, seen

FULL = np.array([[1.0, 0.3, -0.1], [0.3, 0.8, 0.2], [-0.1, 0.2, 0.5]])
PRIOR = np.array([[0.7, -0.2, 0.0], [-0.2, 1.1, 0.4], [0.0, 0.4, 0.9]])
QUERY = np.array([[0.5, 0.1, 0.2], [0.1, 0.6, 0.0], [0.2, 0.0, 1.4]])
SINGULAR = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
TINY = 1e-14  # what is 0 of a law without noise is rounding
GAMMA = np.array([[0.6, 0.1, -0.2], [0.0, 0.9, 0.3], [0.2, -0.1, 0.5]])
TOWARD = np.cos(np.arange(9.0)).reshape(3, 3)
SPREAD = [1.0, 0.5, 0.2]
LAWS: dict[str, PromptLaw] = {
    "diagonal": PromptLaw(SPREAD, N=7, noise=0.4),
    "diagonal, three": PromptLaw(
        SPREAD, [0.3, 1.0, 2.0], [0.2, 0.1, 0.9], N=7, noise=0.4
    ),
    "diagonal, infinite": PromptLaw(SPREAD, [0.3, 1.0, 2.0], noise=0.4),
    "diagonal, zeros": PromptLaw([1.0, 0.0, 0.2], [0.0, 1.0, 2.0], N=math.inf),
    "matrix": PromptLaw(FULL, PRIOR, QUERY, N=7, noise=0.4),
    "matrix, infinite": PromptLaw(FULL, PRIOR, QUERY),
    "matrix and diagonals": PromptLaw(FULL, [0.3, 1.0, 2.0], N=4),
    "singular": PromptLaw(SINGULAR, PRIOR, N=5),
    "singular, infinite": PromptLaw(SINGULAR, PRIOR),
    "one dimension": PromptLaw([0.7], N=3, noise=0.1),
}


def of_law(one: PromptLaw) -> dict[str, Any]:
    d = one.d
    gamma = GAMMA[:d, :d]
    q, s, reach, bases = one.modes
    return {
        "repr": [one.N, one.noise, one.d, one.diagonal],
        "moments": one.moments,
        "dense": one.dense.moments,
        "scatter": one.scatter,
        "second": one.second,
        "best": one.best,
        "floor": one.floor,
        "rank excess": [one.rank_excess(rank) for rank in range(d + 2)],
        "loss": [one.loss(gamma), one.loss(np.diag(gamma)), one.loss(one.best)],
        "excess": [one.excess(gamma), one.excess(np.diag(gamma))],
        "off": one.excess_of(one.off(gamma)),
        "curvature": one.largest_curvature(),
        "modes": [
            q,
            s,
            None if bases is None else bases[0].shape,
            float(np.sum(reach**2)),
        ],
    }


def laws() -> Asked:
    for name, one in LAWS.items():
        yield name, Call(partial(of_law, one), atol=TINY)
    yield "root", lambda: (F := law.root(FULL)).T @ F
    slightly = FULL.copy()
    slightly[0, 1] += 0.9e-12
    yield "slightly not symmetric", lambda: PromptLaw(slightly).moments
    yield (
        "moment",
        lambda: [law.moment("covariance", SPREAD), law.moment("covariance", FULL, 3)],
    )
    uneven = FULL.copy()
    uneven[0, 1] += 2e-12
    yield from refused(
        {
            name: partial(PromptLaw, *given)
            for name, given in {
                "no number": ("one",),
                "empty": ([],),
                "three dimensions": (np.ones((2, 2, 2)),),
                "not square": (np.ones((2, 3)),),
                "not finite": ([1.0, np.inf],),
                "negative": ([1.0, -0.5],),
                "zero": ([0.0, 0.0],),
                "small": ([0.9e-40],),
                "large": ([1.1e40],),
                "not symmetric": ([[1.0, 0.5], [0.4, 1.0]],),
                "just not symmetric": (uneven,),
                "indefinite": ([[1.0, 2.0], [2.0, 1.0]],),
                "prior": ([1.0, 0.5], [1.0, 1.0, 1.0]),
                "prior negative": ([1.0, 0.5], [1.0, -1.0]),
                "query": ([1.0, 0.5], None, [[1.0]]),
                "N": ([1.0, 0.5], None, None, 0),
                "N, fraction": ([1.0, 0.5], None, None, 1.5),
                "noise": ([1.0, 0.5], None, None, 3, -0.1),
                "noise large": ([1.0, 0.5], None, None, 3, 1e41),
            }.items()
        }
    )
    one = LAWS["diagonal"]
    yield from refused(
        {
            "rank": lambda: one.rank_excess(-1),
            "gamma": lambda: one.loss(np.eye(2)),
            "gamma large": lambda: one.loss([1e41, 0.0, 0.0]),
            "gamma of excess": lambda: one.excess("x"),
            "no law": partial(law.prompt_law, SPREAD),
        }
    )


def merged() -> Asked:
    for name, one in LAWS.items():
        d = one.d
        risk = MergedRisk(one, 0.1 * np.eye(d))
        yield name, Call(partial(seen, risk, GAMMA[:d, :d], TOWARD[:d, :d]), atol=TINY)
        yield (
            f"{name}: others",
            Call(
                lambda risk=risk, d=d: [
                    np.sort(risk.curvature, axis=None),
                    np.abs(risk.components(GAMMA[:d, :d])),
                    risk.excess(GAMMA[:d, :d]),
                ],
                atol=TINY,
            ),
        )
        eta = 0.7 / risk.curvature.max()
        yield f"{name}: steps", lambda risk=risk, eta=eta: closed(risk, eta)
    flat = MergedRisk(LAWS["diagonal, three"], [0.1, 0.2, 0.0])
    yield (
        "vector",
        partial(seen, flat, np.array([0.3, -0.2, 0.7]), np.array([1.0, 2.0, -1.0])),
    )
    yield "vector: components", partial(flat.components, np.array([0.3, -0.2, 0.7]))
    for share in (0.4, 1.0, 1.6, 2.0):
        yield (
            f"vector: steps at {share}",
            lambda share=share: closed(flat, share / flat.curvature.max()),
        )
    small = MergedRisk(LAWS["matrix"], np.zeros((3, 3)), rank=2)
    yield "rank", partial(seen, small, GAMMA, TOWARD)
    yield (
        "closed forms",
        lambda: [
            flat.closed_form(0.1, "ngd"),
            flat.closed_form(2.001 / flat.curvature.max(), "gd"),
            flat.closed_form(2.0 / flat.curvature.max(), "gd") is None,
        ],
    )
    yield (
        "after",
        lambda: risks.modes_after(
            np.array([0.1, 2.0, 0.0]),
            np.array([1.0, 1.0, 3.0]),
            np.array([1e-9, 0.4, 1.7]),
            np.array([[0], [1], [2], [10**6]]),
        ),
    )
    yield (
        "closed runs",
        lambda: risks.closed_runs(
            [flat, MergedRisk(LAWS["diagonal"], np.zeros(3))],
            np.array([0.8, 1.3]),
            np.array([1e-4, 1e-14]),
            10**6,
        ),
    )
    yield (
        "closed runs, few steps",
        lambda: risks.closed_runs(
            [flat, MergedRisk(LAWS["diagonal"], np.zeros(3))],
            np.array([0.8, 1.3]),
            np.array([1e-4, 1e-2]),
            5,
        ),
    )
    yield from refused(
        {
            "law": partial(MergedRisk, SPREAD, np.zeros(3)),
            "start": partial(MergedRisk, LAWS["matrix"], np.zeros(3)),
            "start, size": partial(MergedRisk, LAWS["diagonal"], np.zeros(2)),
            "start large": partial(MergedRisk, LAWS["diagonal"], [1e41, 0.0, 0.0]),
            "rank": partial(MergedRisk, LAWS["diagonal"], np.zeros(3), 0),
        }
    )


def closed(risk: MergedRisk, eta: float) -> Any:
    steps: Any = risk.closed_form(eta, "gd")
    some = np.array([0, 1, 3, 1000])
    return {
        "states": steps.states(some),
        "blur": steps.blur(some) > 0,
        "first": [
            steps.first_below(risk.floor() + goal, 10**9) for goal in (1e-2, 1e-6)
        ],
    }


def factors() -> Asked:
    pair = Pair(np.array([0.5, 0.2, 0.1, -0.3]), (3,))
    wide = Pair(np.append(0.5, GAMMA.ravel()), (3, 3))
    heads = Heads(np.sin(np.arange(26.0)).reshape(2, 13), 3)
    for name, one, shape in (
        ("pair", pair, (3,)),
        ("pair of matrices", wide, (3, 3)),
        ("heads", heads, (3, 3)),
    ):
        params = np.asarray(one.start)
        other, gradient = (
            np.cos(np.arange(float(params.size))).reshape(params.shape),
            TOWARD[: shape[0]],
        )
        gradient = gradient if shape == (3, 3) else gradient[0]
        yield (
            name,
            lambda one=one, params=params, other=other, gradient=gradient: {
                "inward": one.inward(params),
                "outward": one.outward(params, gradient),
                "push": one.push(params, other),
                "bend": one.bend(params, other, gradient),
                "stretch": one.stretch(params),
                "blocks": list(one.blocks(params)),
            },
        )
    yield (
        "balanced flow",
        lambda: risks.balanced_flow(
            PromptLaw([0.7, 0.7], N=9, noise=0.2), 0.01, [0.0, 2.0, 1e3]
        ),
    )
    yield from refused(
        {
            "pair, start": partial(Pair, np.zeros(3), (3,)),
            "pair, shape": partial(Pair, np.zeros(4), 3),
            "heads, d": partial(Heads, np.zeros((1, 7)), 0),
            "heads, start": partial(Heads, np.zeros((1, 8)), 3),
            "heads, no rows": partial(Heads, np.zeros((2, 1)), 3),
            "heads, none": partial(Heads, np.zeros((0, 7)), 3),
            "balanced, law": partial(risks.balanced_flow, PromptLaw(SPREAD), 0.1, 1.0),
            "balanced, prior": partial(
                risks.balanced_flow, PromptLaw([1.0, 1.0], [2.0, 2.0]), 0.1, 1.0
            ),
            "balanced, start": partial(
                risks.balanced_flow, PromptLaw([1.0, 1.0]), 0.0, 1.0
            ),
            "balanced, time": partial(
                risks.balanced_flow, PromptLaw([1.0, 1.0]), 0.1, -1.0
            ),
            "balanced, no law": partial(risks.balanced_flow, None, 0.1, 1.0),
        }
    )


def loops() -> Asked:
    yield (
        "moments",
        lambda: [
            [str(x) for x in depth.wishart_moments(d, N, most)]
            for d, N, most in ((3, 5, 4), (1, 1, 6), (2, 7, 0), (4, 2, 1))
        ],
    )
    for d, N, D in ((3, 5, 1), (2, 7, 4), (3, math.inf, 2), (5, 2, 2), (1, 1, 3)):
        yield (
            f"quadrature {d} {N} {D}",
            Call(partial(depth.quadrature, d, N, D), atol=1e-12),
        )
        yield (
            f"best layers {d} {N} {D}",
            Call(partial(depth.best_layers, d, N, D), atol=1e-12),
        )
    for name, given in {
        "plain": (3, 5, 4),
        "one layer": (3, 5, 1),
        "noise": (3, 5, 3, 0.7),
        "infinite, noise": (3, math.inf, 3, 0.7),
        "two layers, start": (4, 9, 2, 0.2, 0.3),
        "infinite": (2, math.inf, 4),
    }.items():
        risk = LoopedRisk(*given)
        for gamma in (-0.3, 0.9, 3.0):
            yield (
                f"{name}, {gamma}",
                lambda risk=risk, gamma=gamma: seen(
                    risk, np.array([gamma]), np.array([1.5])
                ),
            )
        yield f"{name}: rate", risk.stable_rate
    for name, given in {
        "plus plus": (3, 5),
        "plus plus, infinite": (3, math.inf),
        "start": (3, 5, (0.1, 0.2, 0.3)),
    }.items():
        two = PlusPlusRisk(*given)
        yield (
            name,
            Call(
                lambda two=two: {
                    **seen(two, np.array([0.5, 0.7, 0.2]), np.array([1.0, -1.0, 0.5])),
                    "best": None,
                },
                rtol=1e-6,
            ),
        )
    yield from refused(
        {
            "moments, most": partial(depth.wishart_moments, 2, 3, 33),
            "moments, d": partial(depth.wishart_moments, 0, 3, 2),
            "moments, N": partial(depth.wishart_moments, 2, 0, 2),
            "quadrature, depth": partial(depth.quadrature, 2, 3, 17),
            "quadrature, N": partial(depth.quadrature, 2, 0.5, 1),
            "best layers, d": partial(depth.best_layers, 0, 5, 1),
            "depth": partial(LoopedRisk, 3, 5, 0),
            "depth large": partial(LoopedRisk, 3, 5, 17),
            "noise": partial(LoopedRisk, 3, 5, 2, -0.1),
            "start": partial(LoopedRisk, 3, 5, 2, 0.1, 1e41),
            "d": partial(LoopedRisk, 0.5, 5, 2),
            "plus plus, start": partial(PlusPlusRisk, 3, 5, (0.0, 0.0)),
            "plus plus, N": partial(PlusPlusRisk, 3, -1),
        }
    )


def mixtures() -> Asked:
    flat = mixture.MixtureRisk([LAWS["diagonal"], LAWS["diagonal, three"]], [0.3, 0.7])
    dense = mixture.MixtureRisk(
        [LAWS["diagonal"], LAWS["matrix"], LAWS["singular"]], start=GAMMA
    )
    wide = mixture.MixtureRisk([LAWS["diagonal"]], start=GAMMA)
    # Hessians are differences
    yield (
        "diagonal",
        Call(
            partial(seen, flat, np.diag(GAMMA), np.array([1.0, 2.0, -1.0])), rtol=1e-6
        ),
    )
    yield "matrices", Call(partial(seen, dense, GAMMA.T, TOWARD), rtol=1e-6)
    yield "one, matrix", Call(partial(seen, wide, GAMMA.T, TOWARD), rtol=1e-6)
    yield (
        "excess",
        lambda: [flat.excess(np.diag(GAMMA)), dense.excess(GAMMA), dense.probs],
    )
    yield from refused(
        {
            "none": partial(mixture.MixtureRisk, []),
            "no laws": partial(mixture.MixtureRisk, [SPREAD]),
            "dimensions": partial(
                mixture.MixtureRisk, [LAWS["diagonal"], LAWS["one dimension"]]
            ),
            "probs": partial(mixture.MixtureRisk, [LAWS["diagonal"]] * 2, [0.3, 0.3]),
            "start": partial(mixture.MixtureRisk, [LAWS["matrix"]], start=np.zeros(3)),
            "params": lambda: flat.excess(GAMMA),
        }
    )


def trainers() -> Asked:
    for name in ("diagonal, three", "matrix"):
        risk = layer.SampledRisk(LAWS[name], GAMMA, 4, 3)
        yield (
            name,
            lambda risk=risk: [
                risk.prompts(2),
                risk.evaluate(GAMMA.T, 2),
                risk.initial,
                risk.stochastic,
            ],
        )
        whole = layer.LayerRisk.of(LAWS[name], np.append(0.5, GAMMA.ravel()), 4, 3)
        yield (
            f"{name}: layer",
            lambda whole=whole: [
                whole.initial,
                whole.evaluate(np.sin(np.arange(32.0)).reshape(2, 4, 4), 1),
            ],
        )
        loop = layer.SampledLoop(LAWS[name], np.array([0.2]), 4, 3, 3)
        yield (
            f"{name}: loop",
            lambda loop=loop: [
                loop.evaluate(np.array([0.7]), 1),
                loop.initial,
                loop.depth,
            ],
        )
    yield (
        "layer, diagonal",
        lambda: layer.LayerRisk.of(LAWS["diagonal"], [0.5, 0.1, 0.2, 0.3], 4).initial,
    )
    yield (
        "layer, one dimension",
        lambda: layer.LayerRisk.of(LAWS["one dimension"], [0.5, 0.1], 4).initial,
    )
    yield from refused(
        {
            "N": partial(layer.SampledRisk, LAWS["matrix, infinite"], GAMMA, 4),
            "law": partial(layer.SampledRisk, SPREAD, GAMMA, 4),
            "batch": partial(layer.SampledRisk, LAWS["matrix"], GAMMA, 0),
            "batch large": partial(layer.SampledRisk, LAWS["matrix"], GAMMA, 10**13),
            "seed": partial(layer.SampledRisk, LAWS["matrix"], GAMMA, 4, -1),
            "start": partial(layer.SampledRisk, LAWS["matrix"], np.zeros(3), 4),
            "step": lambda: layer.SampledRisk(LAWS["matrix"], GAMMA, 4).prompts(-1),
            "depth": partial(
                layer.SampledLoop, LAWS["matrix"], np.zeros(1), 4, 0, 10_001
            ),
            "loop, start": partial(layer.SampledLoop, LAWS["matrix"], np.zeros(2), 4),
            "pair": partial(layer.LayerRisk.of, LAWS["matrix"], np.zeros(5), 4),
        }
    )


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {"d": 3, "decay": 1.0, "noise": 0.3},
    "isotropic": {"d": 3},
    "epsilon": {"d": 3, "decay": 1.0, "epsilon": 0.5},
    "rate": {"d": 3, "decay": 1.0, "eta": 0.2, "N": 9, "start": 0.3},
    "pair": {"d": 3, "decay": 1.0, "coordinates": "pair", "N": 9},
    "pair, whole start": {
        "d": 3,
        "decay": 1.0,
        "coordinates": "pair",
        "N": 9,
        "start": np.append(0.3, GAMMA),
        "max_steps": 40,
    },
    "heads": {
        "d": 3,
        "decay": 1.0,
        "coordinates": "heads",
        "heads": 2,
        "rank": 2,
        "start": 0.1,
        "seed": 4,
        "N": 9,
    },
    "low rank": {
        "d": 3,
        "decay": 1.0,
        "coordinates": "heads",
        "start": 0.2,
        "seed": 4,
        "N": 9,
    },
    "tasks": {"d": 3, "tasks": 2, "seed": 5, "N": 9},
    "given tasks": {
        "d": 2,
        "tasks": [[1.0, 0.5], [0.0, 2.0], [1.0, -1.0]],
        "N": 9,
        "noise": 0.2,
    },
    "covariance": {
        "covariance": FULL,
        "prior": PRIOR,
        "query": QUERY,
        "N": 7,
        "noise": 0.4,
    },
    "diagonal covariance": {"covariance": np.diag(SPREAD), "N": 7, "above": 1e-8},
    "pair, matrix": {"covariance": FULL, "coordinates": "pair", "N": 7, "above": 1e-2},
    "loop": {"d": 3, "depth": 3, "N": 9, "noise": 0.2},
    "normalised": {"d": 3, "decay": 1.0, "rule": "ngd", "eta": 0.05, "above": 0.01},
    "flow": {"d": 3, "decay": 1.0, "method": "flow", "N": 9},
    "exact": {
        "d": 3,
        "decay": 1.0,
        "method": "exact",
        "N": 9,
        "start": [0.1, 0.2, 0.3],
    },
    "few steps": {"d": 3, "decay": 1.0, "max_steps": 4, "eta": 0.1},
    "fast rate": {
        "d": 3,
        "decay": 1.0,
        "coordinates": "pair",
        "eta": 0.9,
        "N": 9,
        "max_steps": 40,
    },
    "infinite": {"d": 3, "decay": 1.0, "N": math.inf, "above": 1e-12},
}


def families() -> Asked:
    yield (
        "columns",
        lambda: [c for c in LinearAttention.columns if isinstance(c, Column)],
    )
    for name, given in PROBLEMS.items():
        slack = (
            1e-6 if given.get("method") == "flow" or given.get("coordinates") else 1e-8
        )
        yield (
            f"{name}: problem",
            Call(
                lambda given=given: {
                    "rate": (p := LinearAttention(**given)).rate(),
                    "stable": p.stable_rate(),
                    "expected": p.expected_steps(),
                    "d": p.d,
                    "floor": p.law().floor,
                    "new": p.new_tasks().floor,
                    "initial": p.risk().initial,
                    "risk": type(p.risk()).__name__,
                    "stored": [p.tasks, p.covariance, p.prior, p.query],
                },
                rtol=slack,
            ),
        )
        yield from run_calls(
            f"{name}: run",
            lambda given=given: LinearAttention(**given).simulate(),
            rtol=slack,
            atol=1e-12,
        )
        yield (
            f"{name}: measured",
            Call(
                lambda given=given: measured(LinearAttention(**given).simulate()),
                rtol=slack,
                atol=1e-12,
            ),
        )
        if given.get("N") != math.inf:
            yield (
                f"{name}: sampled",
                Call(
                    lambda given=given: (
                        r := LinearAttention(**given).sampled(3, 2)
                    ).evaluate(r.initial, 1),
                    rtol=slack,
                ),
            )
    yield (
        "gamma",
        lambda: LinearAttention(**PROBLEMS["pair"]).gamma(
            np.array([0.5, 0.1, 0.2, 0.3])
        ),
    )
    yield "tasks drawn", lambda: draw_tasks(LAWS["matrix"], 2, 7)
    base = {"d": 3, "N": 9}
    yield from refused(
        {
            name: partial(LinearAttention, **{**base, **given})
            for name, given in {
                "d": {"d": 0},
                "d large": {"d": 10**5 + 1},
                "d, tasks": {"d": 4001, "tasks": 3},
                "d, heads": {"d": 4001, "coordinates": "heads"},
                "decay": {"decay": -1.0},
                "decay large": {"decay": 41.0},
                "decay and covariance": {"decay": 1.0, "covariance": FULL},
                "N": {"N": 0},
                "coordinates": {"coordinates": "three"},
                "heads": {"heads": 2},
                "rank": {"rank": 2},
                "rank large": {"coordinates": "heads", "rank": 4},
                "start zero": {"coordinates": "pair", "start": 0.0},
                "start negative": {"start": -0.1},
                "start, shape": {"start": [0.1, 0.2]},
                "start of a pair": {"coordinates": "pair", "start": [0.1, 0.2]},
                "start of heads": {"coordinates": "heads", "start": [[0.1, 0.2]]},
                "tasks": {"tasks": 0},
                "tasks, shape": {"tasks": [[1.0, 2.0]]},
                "tasks zero": {"tasks": [[0.0, 0.0, 0.0]]},
                "tasks empty": {"tasks": np.zeros((0, 3))},
                "seed": {"seed": -1},
                "depth": {"depth": 17},
                "depth and decay": {"depth": 2, "decay": 1.0},
                "depth and pair": {"depth": 2, "coordinates": "pair"},
                "depth and tasks": {"depth": 2, "tasks": 3},
                "depth and start": {"depth": 2, "start": [0.1, 0.2, 0.3]},
                "eta": {"eta": 100.0},
                "covariance": {"covariance": [[1.0, 2.0], [2.0, 1.0]]},
                "prior": {"prior": [1.0]},
                "query": {"query": "x"},
                "name": {"width": 3},
            }.items()
        }
    )
    yield from refused(
        {
            "sampled": lambda: LinearAttention(d=3, N=math.inf).sampled(3),
            "gamma": lambda: LinearAttention(**base).gamma([1.0]),
            "drawn, seed": partial(draw_tasks, LAWS["matrix"], 2, -1),
            "drawn, k": partial(draw_tasks, LAWS["matrix"], 0, 1),
        }
    )


def batches() -> Asked:
    def columns(given: dict[str, Any], **axes: Any) -> Any:
        points = {
            "d": np.array([2, 3, 3, 4]),
            "above": np.array([1e-3, 1e-6, 1e-2, 1e-3]),
            **axes,
        }
        common = {
            name: p.default
            for name, p in LinearAttention.parameters().items()
            if name not in points
        }
        with np.errstate(all="ignore"):
            found = LinearAttention.batched(
                points, {**common, "epsilon": None, **given}
            )
        return found and {name: np.asarray(value) for name, value in found.items()}

    yield "plain", partial(columns, {})
    yield (
        "decay",
        partial(
            columns,
            {"decay": 1.5, "noise": 0.2},
            N=np.array([5.0, 9.0, math.inf, 30.0]),
        ),
    )
    yield "rates", partial(columns, {"decay": 1.0}, eta=np.array([0.1, 0.9, 5.0, 1.0]))
    yield "few steps", partial(columns, {"decay": 1.0, "max_steps": 5})
    yield "none", partial(columns, {"decay": 1.0, "max_steps": 0})
    yield "some deep", partial(columns, {}, depth=np.array([1, 2, 1, 1]))
    yield from refused(
        {
            "pair": partial(columns, {"coordinates": "pair"}),
            "exact": partial(columns, {"method": "exact"}),
            "tasks": partial(columns, {"tasks": 3}),
            "covariance": partial(columns, {"covariance": ((1.0, 0.0), (0.0, 1.0))}),
            "a start": partial(columns, {"start": (0.1, 0.2)}),
        }
    )


def diverse() -> Asked:
    problem = LinearAttention(d=3, decay=1.0, N=7, noise=0.4)
    found = partial(diversity.task_diversity, problem, [1, 4], draws=3, seed=2)
    yield "diversity", found
    yield (
        "summary",
        lambda: [
            found().mean(),
            found().band(),
            found().band(0.5),
            found().band(0.0),
            found().band(1.0),
        ],
    )
    yield "limit", lambda: diversity.diversity_limit(5, 9, 0.5, [0.2, 1.0, 3.0, 1e6])
    yield (
        "limit, infinite prompts",
        lambda: diversity.diversity_limit(5, math.inf, 0.5, [[0.2, 1.0, 3.0]]),
    )
    yield "limit of one", lambda: diversity.diversity_limit(5, 9, 0.0, 0.7)
    for name, given in {
        "few": {},
        "many": {"prompts": 40},
        "tasks": {"tasks": 2},
        "given tasks": {"tasks": [[1.0, 0.0, 2.0]]},
    }.items():
        prompts = given.pop("prompts", 5)
        yield (
            f"pretrained, {name}",
            Call(
                partial(
                    diversity.pretrained, problem.changed(**given), prompts, seed=3
                ),
                rtol=1e-7,
                atol=1e-10,
            ),
        )
    yield (
        "pretraining limit",
        lambda: diversity.pretraining_limit(problem, [[2, 9], [10, 500]]),
    )
    yield (
        "pretraining limit, tasks",
        lambda: diversity.pretraining_limit(problem.changed(tasks=5), [2, 30]),
    )
    one = LAWS["matrix"]
    yield (
        "ridge",
        lambda: [
            diversity.ridge_loss(one, 20, 4),
            diversity.ridge_loss(PromptLaw(FULL, N=2), 20),
        ],
    )
    tasks = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 1.0]])
    yield (
        "posterior",
        lambda: [
            diversity.posterior_loss(one, tasks, 20, 4),
            diversity.posterior_loss(one, tasks, 20, 4, new=True),
        ],
    )
    quiet, endless = PromptLaw(FULL, N=4), PromptLaw(FULL, noise=0.1)
    yield from refused(
        {
            "problem": partial(diversity.task_diversity, one, [1]),
            "tasks": partial(diversity.task_diversity, problem, [0]),
            "tasks, fraction": partial(diversity.task_diversity, problem, [1.5]),
            "draws": partial(diversity.task_diversity, problem, [1], draws=0),
            "seed": partial(diversity.task_diversity, problem, [1], seed=2**62 + 1),
            "share": lambda: found().band(1.1),
            "ratio": partial(diversity.diversity_limit, 5, 9, 0.5, 0.0),
            "limit, d": partial(diversity.diversity_limit, 0, 9, 0.5, 1.0),
            "limit, noise": partial(diversity.diversity_limit, 5, 9, -0.5, 1.0),
            "pretrained, prompts": partial(diversity.pretrained, problem, 0),
            "pretrained, infinite": partial(
                diversity.pretrained, problem.changed(N=math.inf), 3
            ),
            "pretrained, deep": partial(
                diversity.pretrained, LinearAttention(d=3, depth=2), 3
            ),
            "pretraining limit, prompts": partial(
                diversity.pretraining_limit, problem, 0
            ),
            "pretraining limit, flat": partial(
                diversity.pretraining_limit, LinearAttention(covariance=[1.0, 0.0]), 3
            ),
            "ridge, law": partial(diversity.ridge_loss, problem),
            "ridge, prompts": partial(diversity.ridge_loss, one, 1),
            "ridge, infinite": partial(diversity.ridge_loss, endless, 4),
            "posterior, noise": partial(diversity.posterior_loss, quiet, tasks),
            "posterior, tasks": partial(diversity.posterior_loss, one, [[1.0, 2.0]]),
            "posterior, new": partial(diversity.posterior_loss, one, tasks, new=1),
            "posterior, infinite": partial(diversity.posterior_loss, endless, tasks, 4),
        }
    )


def shifted() -> Asked:
    base = LinearAttention(d=3, decay=1.0, N=9)
    problems = {
        "base": base,
        "noisy": base.changed(noise=0.5),
        "short": base.changed(N=3, eta=0.1),
    }
    for trained in ("minimiser", "descent"):
        yield (
            trained,
            lambda trained=trained: [
                (t := shifts.shift_table(problems, trained)),
                t.loss,
                t.columns(),
                t.to_markdown(),
                t._repr_html_(),
            ],
        )
    yield from refused(
        {
            "trained": partial(shifts.shift_table, problems, "flow"),
            "problems": partial(shifts.shift_table, [base]),
            "no problems": partial(shifts.shift_table, {"a": 3}),
            "none": partial(shifts.shift_table, {}),
            "dimensions": partial(
                shifts.shift_table, {"a": base, "b": LinearAttention(d=2)}
            ),
            "deep": partial(shifts.shift_table, {"a": LinearAttention(d=3, depth=2)}),
        }
    )
