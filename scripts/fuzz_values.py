"""The values with which `fuzz.py` calls everything public.

There are valid values of each parameter, ordinary ones and extremes, and values of
wrong types. A pool has the values of one parameter. A value is drawn by its index, so
another order of the values changes all calls. Objects of the package, such as runs, are
made by functions without arguments, which the constants of this file list.
"""

from __future__ import annotations

import functools
import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory import statements
from icl_theory.results import plots, tables

Pool = tuple[Any, ...]


def wrong() -> Pool:
    """Return values that hardly any parameter may have."""
    return (
        None,
        True,
        "x",
        "",
        b"x",
        -1,
        0,
        -0.5,
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        1j,
        [],
        [1, [2]],
        [math.nan],
        {},
        object(),
        2**63,
        9.2e18,
        lambda: 1,
        int,
        np.float64,
        np.array(3.0),
        np.zeros((2, 3)),
        np.array(["a"]),
        [10**400, 1],
        [None],
        np.datetime64("2020-01-01"),
        np.timedelta64(3, "D"),
        *masked(),
        [[1.0], [1.0, 2.0]],
        np.zeros((0, 2)),
        slice(1),
        "1",
        "\ud800",
        range(3),
        np.float32(2.0),
        np.int8(3),
        1e-320,
    )


def masked() -> Pool:
    """Return masked arrays with the shapes of vectors, matrices and states.

    The first entry of each is masked.
    """
    shapes = ((2,), (3,), (2, 2), (3, 3), (20, 20), (4, 2), (2, 1, 3))
    arrays = tuple(np.ma.array(np.full(shape, 0.5), mask=False) for shape in shapes)
    for array in arrays:
        array[(0,) * array.ndim] = np.ma.masked
    return *arrays, np.ma.masked, np.ma.array([1, 2], mask=[False, True])


@functools.cache
def pools() -> Mapping[str, Pool]:
    """Return the valid values of every parameter, by the name of the parameter.

    They are made at the first call.
    """
    positive = (
        0.5,
        1.0,
        2.0,
        4.0,
        1e-3,
        30.0,
        1e-12,
        1e12,
        1e-40,
        1e40,
        5e-324,
        1e300,
        1,
        np.float64(2.0),
    )
    shares = (0.5, 0.1, 0.9, 1e-3, 1e-12, 1.0 - 1e-12, 1e-300)
    sizes = (2, 3, 4, 5, 20, 1000, 10**6, 10**9)
    features = _made(FEATURES)
    tasks = _made(TASKS)
    risks = _made(RISKS)
    runs = _made(RUNS)
    folder = tempfile.mkdtemp()
    runs[0].save(Path(folder) / "run.npz")
    (Path(folder) / "text.npz").write_text("x")
    paths = tuple(
        str(Path(folder) / name)
        for name in ("run.npz", "text.npz", "none", "", "run.npz/x")
    )
    sweeps = _made(SWEEPS)
    task = icl.recall.RecallTask(8, 2, 3, counts=icl.recall.Counts.fixed(1))
    noisy = icl.recall.RecallTask(8, 2, 3, alpha=0.1, H=9)
    vectors = (
        np.eye(3),
        [[0.0, 1.0], [1.0, 0.0], [3.0, 3.0]],
        np.eye(2) * 1e40,
        np.eye(2) * 1e-40,
        np.zeros((3, 2)),
    )
    scores = (
        0.0,
        np.zeros((3, 3)),
        np.eye(3) * 700.0,
        -np.eye(3) * 1e300,
        np.zeros(2),
        [1.0, 2.0],
        700.0,
        -1e300,
        np.zeros((2, 3)),
        np.eye(2),
        np.zeros(3),
        np.full(3, 800.0),
        [5.0, 5.0, -2.0],
    )
    small = (1, 2, 3, 10, 100)
    laws = (
        icl.regression.QuadraticLaw(2, 1.0, 1.0),
        icl.regression.QuadraticLaw.lipschitz(3, 2.0),
    )
    return {
        "L": positive,
        "delta": positive,
        "eta": (*positive, 0.1, 0.1, "auto"),
        "epsilon": positive,
        "above": positive,
        "gamma": (None, *positive, 0.0, -1e300, "trained"),
        "noise": (0.0, *positive),
        "speed": positive,
        "c": positive,
        "u": (*positive, 0.0, -5.0, [0.0, 1.0, 700.0]),
        "scale": (*positive, "amplitude", "smooth"),
        "length_scale": positive,
        "variogram": (*positive, np.ones((2, 2)) - np.eye(2)),
        "tolerance": positive,
        "sigma_a": positive,
        "sigma_b": positive,
        "curved": (*shares, 0.0, 1.0),
        "token_noise": (0.0, *positive),
        "imbalance": shares,
        "confidence": shares,
        "alpha": (0.0, *shares),
        "a": shares,
        "density": shares,
        "precision": (0.01, *shares),
        "K": sizes,
        "N": (math.inf, 1, 2, 50, 1000, 10**6, 10**15, 2**63 - 1),
        "d": (1, 2, 3, 20),
        "seed": (0, 1, 2**63 - 1),
        "batch": (1, 8, 64),
        "dataset": (None, 1, 8, 50),
        "steps": (None, 1, 7, 300),
        "max_steps": (1, 7, 300, 5000, 2**63 - 1),
        "hidden": (1, 4),
        "held_out": (1, 16),
        "rank": (None, 1, 2, 3),
        "points": small,
        "few": (1, 2, 3),
        "after": (0, 1, 5),
        "t": (0, 1, 5, 10**6, 10**15, 2**63 - 1),
        "losses": (
            [0.9, 0.5, 0.4],
            np.ones(3),
            [1e-300, 1e300, 0.0],
            lambda state: state.loss,
            [math.nan],
            0.9,
        ),
        "errors": (None, None, 0.1, [0.1, 0.2, 0.3], 0.0),
        "curve_steps": (None, [0, 1, 7], [3, 2, 1], [0, 1, 10**9]),
        "n": (0, 1, 5, 10**6, np.array([0, 10, 10**15]), 2**63 - 1),
        "batches": (2, 8),
        "runs": (2, 3),
        "size": (1, 2, 10),
        "step": (0, 1, 10**9),
        "M": (math.inf, 1, 2, 30, 10**6, 10**12),
        "H": (3, 9, 33),
        "V": (3, 8, 50, 10**6, 10**9),
        "triggers": (1, 2, 4, [0, 1]),
        "outputs": (1, 2, 3, [4, 5]),
        "mean": (1.0, 2.5, 50.0),
        "most": (None, 1, 5, 40),
        "c_tau": (0, 1, 3),
        "noise_word": (None, 0, 7),
        "probs": (None, None, [0.5, 0.3, 0.2], [0.5, 0.5], [1 - 1e-12, 1e-12], 3, 10),
        "sizes": ([1, 2], [1, 10**6], [2, 2], [1.0, 1.0]),
        "counts": (None, 1, 2, icl.recall.Counts.fixed(1)),
        "pmf": (np.array([[0.0], [1.0]]), np.eye(3) / 3, np.ones((2, 2)) / 4),
        "rule": ("gd", "ngd"),
        "method": ("auto", "closed", "exact", "fast", "flow"),
        "coordinates": ("class", "embedding", "factored"),
        "attention": ("linear", "relu", "softmax", np.full((3, 3), 1 / 3)),
        "task": (
            *tasks,
            "linear",
            "cosine",
            "exchangeable",
            icl.tasks.Linear,
            task,
            noisy,
        ),
        "features": (None, *features),
        "risk": risks,
        "run_or_risk": (*risks, *runs),
        "run": runs,
        "found": (*runs, *sweeps),
        "dataset_of_sweep": sweeps,
        "vectors": vectors,
        "direction": (None, [1.0, 0.0, 0.0], [1.0, 1.0]),
        "start": (None, np.zeros((2, 1, 3)), *scores),
        "params": scores,
        "S": scores,
        "Q": scores,
        "groups": (None, [0, 1, 1], [0, 0, 0]),
        "law": laws,
        "recall_law": ("planted", "markov"),
        "distances": (np.ones((3, 3)) - np.eye(3),),
        "matrix": (np.eye(3), np.ones((2, 2)), np.eye(2) * 1e200),
        "values": (np.eye(3), [[1.0, 2.0], [3.0, 4.0]]),
        "weights": (None, [0.5, 0.5], [1.0, 3.0, 5.0]),
        "data": (None, SAMPLED[0](), icl.Recall(M=5).data),
        "trained": (None, ["V"], "all"),
        "tied": (True, False),
        "full": (icl.recall.TransformerRisk(task, batch=4),),
        "origin": (None,),
        "form": ("n", "x", "gd"),
        "leading_order": (True, False),
        "tail": (None, *positive),
        "tail_deficit": (None, *shares),
        "give_up": (None, True, False),
        "callback": (None, _told),
        "condition": (
            lambda state: state.loss < 0.1,
            lambda state: True,
            lambda state: False,
        ),
        "path": paths,
        "over": (None, "L", "K"),
        "every": (True, False),
        "source": (None, "a"),
        "date": (None,),
        "ax": (None,),
        "executor": (None,),
        "workers": (None,),
        "store": (None,),
        "progress": (False,),
        "name": ("transition", "none"),
        "quick": (True,),
        "other": (icl.recall.Counts.fixed(1),),
        "rng": (np.random.default_rng(0),),
        "kind": ("exact",),
        "names": (["L"], ("a", "b")),
        "arguments": ({},),
        "parameters": ({},),
        "value": (1.0,),
        **_of_linear_attention(),
        **_of_what_is_shown(folder),
        **_of_tokens(),
        **_of_rules(),
    }


def _made(makers: tuple[Callable[[], Any], ...]) -> Pool:
    """Return the object that each function makes."""
    return tuple(make() for make in makers)


def _told(*_: Any) -> None:
    """Write a dot, which counts as progress; runs call this at each step."""
    sys.stderr.write(".")


def _of_linear_attention() -> dict[str, Pool]:
    """Return the values of parameters that only linear attention has."""
    laws = _made(PROMPTS)
    moments = (
        [1.0, 0.5],
        np.eye(2),
        [[2.0, 1.0], [1.0, 2.0]],
        [1e40, 1.0],
        [1e-40, 0.0],
        [1.0],
        np.eye(3),
        None,
    )
    positive = (0.5, 1.0, 2.0, 30.0, 1e-12, 1e12, 1e-40, 1e40)
    problems = tuple(
        problem
        for problem in _made(PROBLEMS)
        if isinstance(problem, icl.LinearAttention)
    )
    return {
        "prompts_law": laws,
        "covariance": moments,
        "prior": moments,
        "query": moments,
        "depth": (1, 1, 2, 3, 16),
        "heads": (1, 2, 3),
        "decay": (0.0, 1.0, 40.0),
        "prompts": (2, 10, 100),
        "draws": (1, 2),
        "ratio": (0.5, [0.1, 1.0, 10.0], 1e-12, 1e12),
        "time": (0.0, [0.0, 1.0, 1e3], 1e300),
        "problems": ({"a": problems[0], "b": problems[1]}, {"a": problems[0]}),
        "problem": problems,
        "trained_by": ("minimiser", "descent"),
        "most": (None, 0, 1, 5, 8),
        "array": (*moments, np.zeros((2, 2)), np.zeros((2, 3, 3)), [0.01], 0.01),
        "share": (0.5, 0.8, 1.0, 0.0),
        "count_of_tasks": (None, 1, 5, [[1.0, 0.0]], np.eye(2)),
        "list_of_tasks": ([1, 4], [1], np.eye(2)),
        "new": (True, False),
        "kappa": positive,
        "v": (None, 1.0, 0.5, 1e12, 1e-12),
        "pair": ([1.0, 1.0, 1.0], np.ones(5), [1e-2, 0.0, 0.0]),
        "shares": ([0.5, 0.5], [1.0, 1e-12], [1.0]),
        "phases": (0, 1, 2),
        "proved": (True, False),
        "end": (1.0, 5.0, 700.0),
        "rate": (1.0, 0.5, 1e-12),
        "model": ("full", "reparameterised"),
        "tests": (0, 1, 100),
        "mass": (0.5, 0.0, 1.0, 1e-12),
        "kink": (0.0, 0.1),
        "map": (
            icl.engine.Embedding(np.eye(3)),
            icl.engine.Factored(np.ones((2, 1, 3))),
        ),
        "returned": (True, False),
    }


def _of_what_is_shown(folder: str) -> dict[str, Pool]:
    """Return the values of parameters of figures and tables.

    Files are written into ``folder``.
    """
    drawn = icl.Recall().simulate().plot()
    panel = plots.Panel((plots.Curve("a", [1.0, 2.0], [0.5, 0.25]),), "t", "loss")
    table = tables.phase_table(SWEEPS[0](), every=True)
    return {
        "figure": ("front", "shifts", "model", "none"),
        "drawn": (drawn, drawn.figure),
        "size": (1, 2, 10, 1.3, (3.4, 2.4)),
        "axes": (icl.Recall().simulate().plot(), None),
        "drawn_figure": (drawn.figure,),
        "folder": (folder, f"{folder}/run.npz/x"),
        "table_path": tuple(
            f"{folder}/{name}"
            for name in ("t.csv", "t.md", "t.tex", "t.parquet", "t.x", "none/t.csv")
        ),
        "picture_path": tuple(
            f"{folder}/{name}" for name in ("p.png", "p.pdf", "p.x", "none/p.png")
        ),
        "frames": (1, 2),
        "width": (1.0, 3.0),
        "height": (1.0, 3.0),
        "panels": ([panel], [panel, panel], []),
        "columns": (1, 2, 3),
        "rows": ({"a": [np.eye(3)]}, {}),
        "titles": (["t"], []),
        "several": ([RUNS[0](), RUNS[1]()], [RUNS[0]()], []),
        "answer": (ANSWER,),
        "table": (table,),
        "notes": ((), ("one",)),
        "family": (icl.Regression, icl.Recall, icl.LinearAttention),
        "spread": (0.5, 1e-3),
    }


ANSWER = statements.Answer(
    "a",
    "b?",
    "c",
    (statements.claim.Series("d", np.arange(1.0, 3.0), np.ones(2)),),
    "t",
    "loss",
)
LAW: Callable[..., Any] = icl.linear_attention.PromptLaw
MERGED: Callable[..., Any] = icl.linear_attention.MergedRisk
PROMPTS: tuple[Callable[[], Any], ...] = (
    lambda: LAW([1.0, 0.5], N=10, noise=0.5),
    lambda: LAW([1.0, 1.0], N=10),
    lambda: LAW([[2.0, 1.0], [1.0, 2.0]], prior=[[1.0, 0.0], [0.0, 0.0]], N=5),
    lambda: LAW([1e40, 1e-40], noise=1e40),
    lambda: LAW(np.ones(3), query=[0.0, 0.0, 1.0], N=4),
)
FEATURES: tuple[Callable[[], Any], ...] = (
    lambda: icl.Features.simplex(3, 1.0),
    lambda: icl.Features.simplex(2, 1e-40),
    lambda: icl.Features.orthonormal(3, 1e40, [0.5, 0.3, 0.2]),
    lambda: icl.Features.random(5, 2, 1.0, 0),
    lambda: icl.Features.simplex(3, 1.0, [1.0 - 2e-12, 1e-12, 1e-12]),
)
TASKS: tuple[Callable[[], Any], ...] = (
    lambda: icl.tasks.Linear(2.0),
    lambda: icl.tasks.RandomCosine(1e40),
    lambda: icl.tasks.Exchangeable(1e-40),
    lambda: icl.tasks.Quadratic(1.0),
    lambda: icl.tasks.Halfspace(3.0),
    lambda: icl.tasks.RandomFourier(2.0),
    lambda: icl.tasks.KernelTask(np.eye(3)),
    lambda: icl.tasks.FiniteTask([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]]),
)
SAMPLED: tuple[Callable[[], Any], ...] = (
    lambda: icl.SampledRisk(
        icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0), N=5, batch=4, seed=0
    ),
)
RISKS: tuple[Callable[[], Any], ...] = (
    lambda: icl.ExchangeableRisk(20, 2.0),
    lambda: icl.ExchangeableRisk(3, 1e-80, N=10, noise=1e40),
    lambda: icl.ExchangeableRisk(5, 2.0, N=50, noise=0.5),
    lambda: icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0)),
    lambda: icl.PopulationRisk(
        icl.Features.simplex(3, 1.0, [0.6, 0.3, 0.1]),
        icl.tasks.RandomCosine(2.0),
        20,
        0.1,
    ),
    lambda: icl.SymmetricRisk(
        np.array([1.0, 1e6]), np.array([0.5, 0.5e-6]), np.full((2, 2), 2.0)
    ),
    lambda: icl.SymmetricRisk(
        np.array([1.0, 2.0]), np.array([0.5, 0.25]), np.full((2, 2), 2.0), 30, 1.0
    ),
    lambda: icl.GaussianRisk(icl.regression.QuadraticLaw(2, 1.0, 1.0)),
    lambda: icl.regression.SampledGaussianRisk(
        icl.regression.QuadraticLaw(2, 1.0, 1.0), N=4, batch=3, seed=0
    ),
    lambda: icl.engine.Pullback(RISKS[3](), icl.engine.Embedding(np.eye(3))),
    lambda: icl.engine.Pullback(RISKS[9](), icl.engine.Factored.random(3, rank=2)),
    lambda: icl.regression.BlockRisk(SAMPLED[0](), hidden=3, held_out=4),
    lambda: icl.recall.RecallRisk(
        icl.recall.RecallTask(8, 2, 3, counts=icl.recall.Counts.fixed(1))
    ),
    lambda: icl.recall.RecallRisk(
        icl.recall.RecallTask(8, 2, 3, alpha=0.1, H=9), "softmax"
    ),
    lambda: icl.recall.TransformerRisk(
        icl.recall.RecallTask(8, 2, 3, alpha=0.1, H=9), batch=4
    ),
    *SAMPLED,
)
RISKS += (
    lambda: MERGED(PROMPTS[0](), [0.0, 0.0]),
    lambda: MERGED(PROMPTS[2](), np.zeros((2, 2))),
    lambda: MERGED(PROMPTS[3](), [0.0, 0.0]),
    lambda: icl.linear_attention.LoopedRisk(3, 10, 3, noise=0.5),
    lambda: icl.linear_attention.PlusPlusRisk(3, 10),
    lambda: icl.linear_attention.MixtureRisk([PROMPTS[0](), PROMPTS[0]()]),
    lambda: icl.LinearAttention(d=2, coordinates="heads", heads=2).risk(),
    lambda: icl.LinearAttention(d=2, coordinates="merged-heads", heads=2).risk(),
    lambda: icl.LinearAttention(d=2, coordinates="layer", heads=2).risk(),
    lambda: icl.LinearAttention(d=2, coordinates="separate-layer", heads=2).risk(),
    lambda: icl.LinearAttention(d=2, coordinates="layer", heads=2).sampled(4),
    lambda: icl.LinearAttention(d=2, coordinates="pair").risk(),
    lambda: icl.LinearAttention(d=2, coordinates="pair").sampled(4),
    lambda: icl.LinearAttention(d=2, depth=2).sampled(4),
    lambda: icl.LinearAttention(d=2).sampled(4),
    lambda: icl.recall.reparameterised(
        icl.recall.TransformerRisk(
            icl.recall.RecallTask(8, 2, 3, alpha=0.1, H=9), batch=4
        )
    ),
)
RUNS: tuple[Callable[[], Any], ...] = (
    lambda: icl.simulate(2.0, 1.0, 4.0),
    lambda: icl.simulate(2.0, 1.0, 4.0, K=3, task="linear", N=20, above=1e-2),
    lambda: icl.recall.simulate(8, 2, 3, epsilon=1e-3),
    lambda: icl.descend(SAMPLED[0](), 0.1, steps=3),
    lambda: icl.descend(RISKS[7](), 0.1, steps=3),
)
SWEEPS: tuple[Callable[[], Any], ...] = (
    lambda: icl.sweep(L=[0.1, 1.0, 10.0], delta=1, eta=0.1, K=[5, 20], progress=False),
    lambda: icl.sweep(icl.Recall, triggers=[2, 4], counts=1, progress=False),
    lambda: icl.sweep(L=1.0, delta=1, eta=0.1, progress=False),
)
PROBLEMS: tuple[Callable[[], Any], ...] = (
    lambda: icl.Regression(L=2.0, delta=1.0, eta=4.0),
    lambda: icl.Regression(
        L=2.0, delta=1.0, eta="auto", K=3, N=20, task="linear", noise=0.5, above=1e-2
    ),
    lambda: icl.regression.GroupedRegression(L=2.0, delta=1.0, sizes=(1, 2)),
    lambda: icl.regression.GaussianRegression(L=2.0),
    lambda: icl.Recall(),
    lambda: icl.Recall(
        V=8, triggers=2, outputs=3, alpha=0.1, H=9, attention="softmax", max_steps=300
    ),
    lambda: icl.recall.Training(V=8, triggers=2, outputs=3, H=9, max_steps=3),
    lambda: icl.LinearAttention(d=2),
    lambda: icl.LinearAttention(d=2, N=5, coordinates="heads", heads=2, tasks=3),
    lambda: icl.LinearAttention(d=2, coordinates="pair", noise=0.5),
    lambda: icl.LinearAttention(d=2, coordinates="layer", heads=2, noise=0.5),
    lambda: icl.TokenSelection(trained="pv", eta=0.1, n=2, T=3, d=4, max_steps=9),
    lambda: icl.SingleLocation(
        attention="erf", projection="spheres", scale_decay=0.1, max_steps=9
    ),
    lambda: icl.LinearAttention(d=3, depth=2),
)
KINDS: tuple[Callable[[], Any], ...] = (
    lambda: icl.regression.StepCounter(20, 1e-3),
    lambda: icl.recall.Counts.fixed(1),
    lambda: icl.recall.RecallTask(8, 2, 3),
    lambda: icl.regression.QuadraticLaw(2, 1.0, 1.0),
    *PROMPTS[:4],
)
# Results whose methods show them, as text, tables or figures.
SHOWN: tuple[Callable[[], Any], ...] = (
    lambda: icl.check_bounds(RUNS[0]()),
    lambda: icl.crosscheck(RUNS[0](), N=50, batches=3, points=1, runs=3, phases=0),
    lambda: icl.regression.sampled_phases(RUNS[1](), N=20, runs=3, batch=8),
    lambda: icl.engine.sharpness_along(RUNS[0](), 2),
    lambda: ANSWER,
    lambda: statements.Audit((), (ANSWER,)),
    lambda: icl.linear_attention.task_diversity(
        icl.LinearAttention(d=2), [1, 2], draws=2
    ),
    lambda: icl.linear_attention.shift_table({"a": icl.LinearAttention(d=2)}),
)


def _of_tokens() -> dict[str, Pool]:
    """Return the values of parameters of tokens, chains and their counts."""
    kinds = _made(TOKENS)
    chains = icl.tokens.Chains([[0.9, 0.1], [0.3, 0.7]])
    shares = ([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], [1.0], [0.2, 0.5, 0.3], None)
    return {
        "kinds": ([kinds[0]], [kinds[0], kinds[1]], [], kinds[0]),
        "target": (0.0, 1.0, [0.5], [[1.0], [2.0]]),
        "queries": (None, [1.0], [0.5, 0.5]),
        "second": (None, 1.0, [1.0]),
        "length": (1, 2, 5, 24, 10**6),
        "lengths": (None, [1.0], [0.5, 0.5]),
        "rate": (1e-3, 3.0, 1e9),
        "chains": (chains,),
        "transitions": (
            None,
            [[0.9, 0.1], [0.3, 0.7]],
            np.eye(2),
            [np.full((2, 2), 0.5)] * 2,
        ),
        "window": (1, 2, 3),
        "T": (2, 5, 20, 10**6),
        "concentration": (None, 1.0, [[1.0, 2.0], [3.0, 4.0]], 1e9),
        "sink": (None, [0.5, 0.5], 0.0),
        "objective": ("log", "square", "logistic"),
        "targets": shares,
        "first": (True, False),
        "rare": (1e-30, 1e-4),
        "number": (1, 5, 1000),
        "each": (True, False),
        "reduced": ([0.0, 0.0], [1.0, 2.0, 3.0], np.zeros(2)),
        "tokens": ([0, 1, 2], np.zeros((2, 3), dtype=int)),
        "states": ([0, 1], 3),
        "text": ("a", "1", "1,2", "auto", ""),
        "words": ((), ("a",)),
        "given": (
            {},
            {"L": 1.0},
            {"task": icl.tasks.Linear(2.0)},
            {"law": "x"},
            {"no-such": 1},
        ),
        "common": (
            {},
            {"method": "auto"},
            {"max_steps": 10},
            {"task": "linear", "N": 5, "max_steps": 0},
        ),
    }


def _of_rules() -> dict[str, Pool]:
    """Return the values of parameters of update rules and their schedules."""
    rules = _made(RULES)
    schedules = _made(SCHEDULES)
    gradual = icl.engine.Scheduled(rules[0], lambda t: 1 / (t + 1))
    batch = {name: np.array([1.0, 2.0]) for name in ("L", "delta", "eta")}
    return {
        "rule": ("gd", "ngd", "heavy-ball", "adam", *rules, gradual),
        "momentum": (None, 0.0, 0.9, 1.0 - 1e-12),
        "beta1": (None, 0.0, 0.9),
        "beta2": (None, 0.0, 0.999),
        "weight_decay": (None, 0.0, 0.01, 1e40),
        "clip": (None, 1.0, 1e-12),
        "schedule": (None, "cosine", "step", "piecewise", "inverse-sqrt", *schedules),
        "warmup": (None, 1, 10),
        "decay_steps": (None, 1, 100),
        "decay_factor": (None, 0.1, 1e-12),
        "milestones": (None, (1, 5), [3], ()),
        "stabiliser": (1e-8, 1e-300),
        "radius": (1.0, 1e-12, 1e40),
        "onto": ("ball", "sphere", "none"),
        "final": (0.0, 0.1),
        "after": (0, 1, 5, *schedules),
        "rules": (
            (icl.engine.GradientDescent,),
            (),
            (icl.engine.HeavyBall, icl.engine.Adam),
        ),
        "iteration": (True, False),
        "flow": (True, False),
        "training": (*PROBLEMS, RUNS[0]())[-1:],
        "points": (1, 2, 3, 10, 100, batch, {}, {"L": np.array([1.0])}),
    }


RULES: tuple[Callable[[], Any], ...] = (
    icl.engine.GradientDescent,
    icl.engine.HeavyBall,
    icl.engine.Nesterov,
    icl.engine.Adam,
    icl.engine.AdamW,
    icl.engine.Normalised,
    icl.engine.NormalisedBlocks,
    lambda: icl.engine.Clipped(icl.engine.HeavyBall(), 1.0),
    lambda: icl.engine.Decayed(icl.engine.GradientDescent(), 0.01),
    lambda: icl.engine.Projected(icl.engine.GradientDescent(), 1.0),
    lambda: icl.engine.Scheduled(
        icl.engine.Adam(), icl.engine.rules.schedules.Cosine(50)
    ),
)
SCHEDULES: tuple[Callable[[], Any], ...] = (
    lambda: icl.engine.rules.schedules.Cosine(50),
    lambda: icl.engine.rules.schedules.StepDecay(10),
    lambda: icl.engine.rules.schedules.Piecewise((5, 10)),
    lambda: icl.engine.rules.schedules.InverseSqrt(),
    lambda: icl.engine.rules.schedules.WarmUp(5),
)
TOKENS: tuple[Callable[[], Any], ...] = (
    lambda: icl.Kind(5, probs=np.array([0.5, 0.5]), values=np.array([1.0, 2.0])),
    lambda: icl.Kind(4, probs=np.ones(1), values=np.ones(1)),
    lambda: icl.Kind(icl.Lengths.poisson(3.0), probs=np.ones(1), values=np.ones(1)),
)
LENGTHS: tuple[Callable[[], Any], ...] = (
    lambda: icl.Lengths([0.5, 0.5]),
    lambda: icl.Lengths.uniform(1, 5),
    lambda: icl.Lengths.poisson(3.0),
    lambda: icl.Lengths.geometric(3.0),
)
CHAINS = [[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.6, 0.4]]]


def _problem(name: str) -> Any:
    """Return a problem of a family, with 1 for each required parameter."""
    family = icl.list_families()[name]
    required: dict[str, Any] = {
        key: 1.0 for key, declared in family.parameters().items() if declared.required
    }
    return family(**required, max_steps=12)


def _kind(name: str) -> Any:
    """Return the kind of values of a parameter of regression."""
    return icl.Regression.parameters()[name].kind


# One object of each other public class.
OTHERS: tuple[Callable[[], Any], ...] = (
    *RULES,
    *SCHEDULES,
    *TOKENS,
    *LENGTHS,
    lambda: icl.TokenRisk([TOKENS[0]()]),
    lambda: icl.HeadsRisk(icl.TokenRisk(TOKENS[1](), target=np.ones(()))),
    lambda: icl.tokens.Chains(CHAINS, window=2),
    lambda: icl.tokens.Chains(CHAINS[0]),
    lambda: icl.tokens.ChainRisk(icl.tokens.Chains(CHAINS, window=2), length=5),
    lambda: icl.tokens.IndependentCounts(
        2, np.full(2, 0.5), np.eye(2), np.full(2, 0.5)
    ),
    lambda: icl.tokens.TwoStateCounts(5),
    lambda: icl.tokens.ThreeStateCounts(5),
    lambda: icl.tokens.CountRisk(icl.tokens.TwoStateCounts(5), "square"),
    lambda: icl.tokens.TwoLayerTransformer(
        icl.tokens.Chains(CHAINS, window=2), 5, 4, 0, [0.0, 0.0, 0.0]
    ),
    lambda: icl.regression.FiniteGaussianRisk(
        icl.regression.QuadraticLaw(2, 1.0, 1.0), N=2
    ),
    lambda: icl.engine.Scope(),
    *(
        functools.partial(_problem, name)
        for name in icl.list_families()
        # The starts of heads take seconds, and `PROBLEMS` has regression.
        if name not in ("softmax-heads", "regression")
    ),
    lambda: _problem("fixed-chain").risk(),
    lambda: _problem("induction-heads").risk(),
    lambda: _problem("representation").risk(),
    lambda: _problem("single-location").risk(),
    lambda: _problem("sphere").risk(),
    lambda: _problem("token-selection").risk(),
    lambda: _problem("single-location").simulate(),
    lambda: RUNS[0]().compare(RUNS[0]().loss, RUNS[0]().t, errors=0.01),
    lambda: RUNS[1]().at(5),
    lambda: RUNS[1]().phases,
    lambda: icl.largest_stable_eta(icl.ExchangeableRisk(20, 2.0, N=100, noise=1.0)),
    lambda: plots.Curve("a", [1.0, 2.0], [0.5, 0.25]),
    *(
        functools.partial(_kind, name)
        for name in ("L", "K", "probs", "task", "milestones", "rule", "momentum")
    ),
    lambda: icl.Regression.parameters()["L"],
    lambda: icl.Regression.parameters()["rule"],
)
