"""A paper on softmax attention on the sphere: rows of the audit, and what the paper says.

The docstring of a row is its statement.
"""

from __future__ import annotations

import itertools

import numpy as np

from icl_theory.families.sphere import Sphere
from icl_theory.papers.claim import Found, row
from icl_theory.papers.numbers import span
from icl_theory.papers.paper import Claims, Paper, Reading

SOURCE = "Collins et al. 2024, window (reconstructed)"


@row("sphere: length of the prompt", SOURCE, bound="2/(d + 3) = 0.250, 2/(d + 2) = 0.286 where tasks have a kink")
def longer_prompts(quick: bool) -> Found:
    """the best κ grows like a power of N: the window narrows, and the more slowly the smoother the tasks"""
    ends = (10**5, 10**6) if quick else (10**7, 10**8)
    exponents = []
    for task in ("linear", "relu"):
        first, last = (Sphere(task=task, N=N).risk().best for N in ends)
        exponents.append(float(np.log10(last / first)))
    smooth, kinked = exponents
    return Found(
        abs(smooth - 0.25) < 0.01 and smooth + 0.01 < kinked < 2.0 / 7.0,
        f"d = 5, σ = 1, from N = {ends[0]:.0e} to {ends[1]:.0e}",
        f"exponent {smooth:.3f} (linear), {kinked:.3f} (ReLU)",
    )


@row("sphere: slope and noise", SOURCE, bound="monotone")
def slope_and_noise(quick: bool) -> Found:
    """the window narrows with the Lipschitz constant, and widens with the noise"""
    N, tasks, factors = 10**3 if quick else 10**5, ("linear", "cosine"), []
    for task in tasks:
        for name, values in (("L", (0.5, 1.0, 2.0)), ("noise", (2.0, 1.0, 0.5))):
            base = Sphere(task=task, N=N)
            best = [base.changed(**{name: value}).risk().best for value in values]
            factors += [after / before for before, after in itertools.pairwise(best)]
    return Found(
        min(factors) > 1.0,
        f"linear and cosine tasks, d = 5, N = {N}, L and σ from 0.5 to 2",
        f"doubling L or halving σ multiplies the best κ by {span(factors, '.2f')}",
    )


WINDOW = Paper(
    "attention-window",
    "In-Context Learning with Transformers: Softmax Attention Adapts to Function Lipschitzness",
    "L. Collins, A. Parulekar, A. Mokhtari, S. Sanghavi, S. Shakkottai",
    2024,
    "arXiv:2402.11639",
    (
        Reading(
            "Window",
            "Training fits the width of the attention to the tasks' slopes, the noise and the prompts' length.",
            (longer_prompts, slope_and_noise),
            reconstructed="The exponents are those of the balance of bias and variance.",
        ),
    ),
    note="Read in its abstract and in summaries. ReLU and cosine tasks are chosen so that kernels are closed.",
)

CLAIMS = Claims(rows=(longer_prompts, slope_and_noise), papers=(WINDOW,))
