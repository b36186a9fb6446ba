"""A paper on softmax attention on the sphere: rows of the audit, and what the paper says."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import roots_jacobi

from icl_theory.papers.sphere.family import Sphere, kernel
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import listed, named, off, power, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

SOURCE = "Collins et al. 2024, window (reconstructed)"


def predicted(problem: Sphere) -> float | None:
    r"""Return the best κ for long prompts, where squared bias :math:`C\kappa^{-p}` and variance balance."""
    if not problem.noise:
        return None
    n = problem.d - 1.0
    a = problem.L**2
    C = n**2 * a / 4.0
    p = 2.0
    if problem.task == "cosine":
        C *= 1.0 + a * (n + 2.0) / n
    if problem.task == "relu":  # of the kink alone
        density = math.exp(math.lgamma(problem.d / 2.0) - math.lgamma(n / 2.0))
        p = 1.5
        C = (
            a
            * problem.d
            * density
            * 4.0
            * (math.sqrt(2.0) - 1.0)
            / (3.0 * math.sqrt(2.0) * math.pi)
        )
    log_area = (
        math.log(2.0)
        + 0.5 * problem.d * math.log(math.pi)
        - math.lgamma(0.5 * problem.d)
    )
    log_ratio = (
        math.log(2.0 * p * C * problem.N / n) - 2.0 * math.log(problem.noise) - log_area
    )
    return math.exp((log_ratio + 0.5 * n * math.log(4.0 * math.pi)) / (0.5 * n + p))


@row(
    "sphere: length of the prompt",
    SOURCE,
    bound="2/(d + 3) = 0.250, 2/(d + 2) = 0.286 where tasks have a kink",
)
def longer_prompts(quick: bool) -> Claim:
    """the best κ grows like a power of N: the window narrows, and the more slowly the smoother the tasks"""
    ends = (10**5, 10**6) if quick else (10**7, 10**8)
    best = (
        [Sphere(task=task, N=N).risk().best for N in ends]
        for task in ("linear", "relu")
    )
    smooth, kinked = (power(ends, each) for each in best)
    return Claim.of(
        abs(smooth - 0.25) < 0.01 and smooth + 0.01 < kinked < 2.0 / 7.0,
        f"d = 5, σ = 1, from N = {ends[0]:.0e} to {ends[1]:.0e}",
        f"exponent {smooth:.3f} (linear), {kinked:.3f} (ReLU)",
    )


@row("sphere: slope and noise", SOURCE, bound="monotone")
def slope_and_noise(quick: bool) -> Claim:
    """the window narrows with the Lipschitz constant, and widens with the noise"""
    problems = [
        Sphere(task=task, N=10**3 if quick else 10**5) for task in ("linear", "cosine")
    ]
    changes = [
        [{"L": L} for L in (0.5, 1.0, 2.0)],
        [{"noise": noise} for noise in (2.0, 1.0, 0.5)],
    ]
    best = np.array(
        [
            [[base.changed(**x).risk().best for x in each] for each in changes]
            for base in problems
        ]
    )
    factors = best[..., 1:] / best[..., :-1]
    return Claim.of(
        factors.min() > 1.0,
        f"linear and cosine tasks, d = 5, N = {problems[0].N}, L and σ from 0.5 to 2",
        f"doubling L or halving σ multiplies the best κ by {span(factors.ravel(), '.2f')}",
    )


def linear_attention(problem: Sphere) -> float:
    """The least loss of linear attention, (γ/N) Σ y_i x_iᵀx: with any matrix for γ, as tasks prefer no direction.

    ½(k(1) - a²/((1 - 1/N)a + d(k(1) + σ²)/N)), a = d E k(c)c the part of the kernel of
    degree 1.
    """
    d = problem.d
    N = float(problem.N)
    c, weights = roots_jacobi(400, (d - 3.0) / 2.0, (d - 3.0) / 2.0)
    first = (
        d * float(weights @ (kernel(problem.task, problem.L, c) * c)) / weights.sum()
    )
    size = float(kernel(problem.task, problem.L, np.ones(1))[0])
    return 0.5 * (
        size - first**2 / ((1.0 - 1.0 / N) * first + d * (size + problem.noise**2) / N)
    )


@row("sphere: learnt by descent", SOURCE, bound="best κ")
def learnt(quick: bool) -> Claim:
    """descent from κ = 0 finds the best κ, whatever the tasks and the length of the prompt"""
    tasks = ("linear", "relu", "cosine")
    lengths = (10, 1000) if quick else (10, 100, 1000, 10**4, 10**5)
    runs = {
        task: [Sphere(task=task, N=N, above=1e-10).simulate() for N in lengths]
        for task in tasks
    }
    found = {
        task: [float(run.observed["kappa"][-1]) for run in each]
        for task, each in runs.items()
    }
    best = {
        task: [Sphere(task=task, N=N).risk().best for N in lengths] for task in tasks
    }
    return Claim.of(
        max(off(found[task], best[task]) for task in tasks) < 1e-2,
        f"d = 5, σ = 1, N = {listed(lengths)}",
        "; ".join(f"κ = {listed(each, '.2f')} ({task})" for task, each in found.items())
        + f"; last exponent {power(lengths[-2:], best['linear'][-2:]):.3f} (linear)",
    )


@row("sphere: linear attention", SOURCE, bound="0 for N = ∞")
def linear_is_stuck(quick: bool) -> Claim:
    """softmax attention learns every task, linear attention only linear ones"""
    N = 10**6 if quick else 10**8
    cases = (("linear", 1.0), ("relu", 1.0), ("cosine", 1.0), ("cosine", 2.0))
    problems = {f"{task}, L = {L:g}": Sphere(task=task, L=L, N=N) for task, L in cases}
    window = {name: problem.risk().floor() for name, problem in problems.items()}
    linear = {name: linear_attention(problem) for name, problem in problems.items()}
    return Claim.of(
        all(
            linear[name] > 10.0 * window[name]
            for name in problems
            if not name.startswith("linear")
        ),
        f"d = 5, σ = 1, N = {N:.0e}",
        f"least loss {named(window, '.2g')} (softmax); {named(linear, '.2g')} (linear attention)",
        "holds; on linear tasks linear attention is"
        f" {window['linear, L = 1'] / linear['linear, L = 1']:.0f} times better",
    )


@row("sphere: other tasks", SOURCE, bound="the least loss of the other tasks")
def other_tasks(quick: bool) -> Claim:
    """what was learnt serves other tasks of the same Lipschitz constant, and not those of another one"""
    N = 10**3 if quick else 10**5
    costs = {}
    given = Sphere(N=N).risk().best
    for task, L in (
        ("relu", 1.0),
        ("cosine", 1.0),
        ("linear", 0.3),
        ("linear", 3.0),
        ("cosine", 3.0),
    ):
        risk = Sphere(task=task, L=L, N=N).risk()
        costs[f"{task}, L = {L:g}:"] = risk.loss([given]) / risk.least - 1.0
    same = [*costs.values()][:2]
    others = [*costs.values()][2:]
    return Claim.of(
        max(same) < 0.5 * min(others),
        f"κ of linear tasks with L = 1, d = 5, σ = 1, N = {N:.0e}",
        f"more than the least loss by {named(costs, '.1%')}",
    )


WINDOW = Paper(
    "attention-window",
    "In-Context Learning with Transformers: Softmax Attention Adapts to Function Lipschitzness",
    "Liam Collins, Advait Parulekar, Aryan Mokhtari, Sujay Sanghavi, Sanjay Shakkottai",
    2024,
    "arXiv:2402.11639",
    (
        Reading(
            "Window",
            "Training fits the width of the attention to the tasks' slopes, the noise and the prompts' length.",
            (learnt, longer_prompts, slope_and_noise),
            figure="attention_window",
            reconstructed="The exponents are those of the balance of bias and variance.",
        ),
        Reading(
            "Softmax is needed",
            "Linear attention cannot adapt to the tasks, however long the prompts.",
            (linear_is_stuck,),
            reconstructed="The least loss of linear attention.",
        ),
        Reading(
            "Other tasks",
            "Attention serves new tasks if they have the Lipschitz constant of those of training.",
            (other_tasks,),
            reconstructed="How much is lost.",
        ),
    ),
    "Read in its abstract and in summaries. ReLU and cosine tasks are chosen so that kernels are closed. Left"
    " out are tasks that depend on a few directions alone, for which the paper trains a matrix.",
    setting=Setting(
        "sphere?N=10000&t=1000~N=100",
        (
            "The window adapts: with a hundred times as many pairs as in grey "
            "dashes it gets narrower. Steeper tasks, a larger L, narrow it further, "
            "and noise widens it."
        ),
    ),
    credit="Softmax attention on the sphere (`icl.Sphere`)",
    entry=ModelEntry(
        data="inputs on a sphere, linear, ReLU or cosine functions",
        attention="one softmax head",
        trained="the inverse temperature",
        command="icl-theory sphere simulate --task relu",
    ),
)
CLAIMS = Claims(papers=(WINDOW,))
