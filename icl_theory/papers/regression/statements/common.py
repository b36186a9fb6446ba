"""Problems and plain iteration, which rows and questions on regression share.

A row is a function that tests a statement of the paper, and a question asks something
that the paper leaves open.

Letters: there are K features, prompts of N tokens, and scores S_mk of feature m for a
query k. In the exchangeable class all pairs of features have the variogram γ, and one
number describes the scores: the gap u between the score of the query's own feature and
the other scores, which are all equal. The attention on the query's own feature is Attn,
and 1 - Attn is the deficit. The target loss is ε. At the learning rate η the change of
u in a step is proportional to the step constant c = ηγK/(K-1)², see `iterates`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.regression import tasks
from icl_theory.statements.claim import Claim

# The source of a statement. PAPER is for statements of the paper whose formula we
# reconstructed, and WORDS is for statements that the paper makes in words. The name in
# the paper, such as "Thm 1", takes the place of the braces.
PAPER = "paper, {} (reconstructed)"
WORDS = "paper, {}"
# Two computations of the same number must agree up to this relative error.
EQUAL = 1e-9
# Dirichlet parameter of random feature probabilities. With it they are unequal, but
# rarely tiny.
DIRICHLET = 4.0


def by_proof(proof: Callable[[bool], Claim]) -> Callable[[bool], Claim]:
    """Decorate a row that proves its statement by ball arithmetic.

    Without python-flint the row passes, and says that nothing was proved.
    """

    @functools.wraps(proof)
    def proved_row(quick: bool) -> Claim:
        try:
            icl.certified.check_installed()
        except ValueError as error:
            return Claim.of(
                holds=True,
                grid="not proved here",
                measured=str(error),
                verdict="holds only as far as other rows measure it",
            )
        try:
            return proof(quick)
        # Proofs raise this error if the balls are too wide to decide the statement.
        except ArithmeticError as error:
            return Claim.of(holds=False, grid="ball arithmetic", measured=str(error))

    return proved_row


def random_risk(
    seed: int, K: int, N: float = math.inf, noise: float = 0.0
) -> icl.PopulationRisk:
    """Return a risk with a random kernel and random feature probabilities.

    Prompts have N tokens, and ``noise`` is the standard deviation of the label noise.
    """
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(K, K))
    features = icl.Features.simplex(
        K, delta=1.0, probs=rng.dirichlet(np.full(K, DIRICHLET))
    )
    return icl.PopulationRisk(features, tasks.KernelTask(root @ root.T), N, noise)


def random_scores(seed: int, K: int, size: float) -> Array:
    """Return normal scores with the standard deviation ``size``, (K, K)."""
    return size * np.random.default_rng(seed).normal(size=(K, K))


def random_cases(
    count: int,
    sizes: Sequence[int],
    lengths: Sequence[float] = (math.inf,),
    noises: Sequence[float] = (0.0,),
) -> Iterator[tuple[int, icl.PopulationRisk]]:
    """Yield seeds and random risks.

    There are ``count`` seeds, from 0 on. Each takes the next of the ``sizes`` (K), of
    the prompt ``lengths`` (N) and of the ``noises``, and after the last one the first
    again.
    """
    for seed in range(count):
        K = sizes[seed % len(sizes)]
        N = lengths[seed % len(lengths)]
        noise = noises[seed % len(noises)]
        yield seed, random_risk(seed, K, N, noise)


def equivalent(K: int) -> dict[str, tuple[tasks.Task, icl.Features]]:
    """Return exchangeable tasks of five families, each with K features, by family.

    The variogram of a family is the same for all pairs of its features.
    """
    simplex = icl.Features.simplex(K, delta=0.5)
    basis = icl.Features.orthonormal(K, scale=0.5)
    return {
        "linear": (tasks.Linear(2.0), simplex),
        "Fourier": (tasks.RandomFourier(2.0), simplex),
        "quadratic": (tasks.Quadratic(2.0), basis),
        "Gaussian": (tasks.KernelTask(np.eye(K) + 3.0), simplex),
        "finite": (tasks.FiniteTask(np.vstack([np.eye(K), -np.eye(K)])), simplex),
    }


def rescaled(law: tasks.Task, features: icl.Features, steps: int) -> Array:
    """Return losses divided by γ along gradient descent at the learning rate 1/γ.

    Here γ is the variogram of two features, which is the same for all pairs. In theory
    the result depends only on K and ``steps``.
    """
    gamma = float(law.variogram(features)[0, 1])  # any pair of features will do
    run = icl.descend(icl.PopulationRisk(features, law), 1.0 / gamma, steps=steps)
    return run.loss / gamma


def cross_ratios(risk: icl.PopulationRisk, scores: Array) -> Array:
    """Return the largest ``|β_mk|/α_k`` over m ≠ k for every query k, (K,).

    With the loss ℒ, α_k is the growth -∂ℒ/∂S_kk of the query's own score, and β_mk the
    growth -∂ℒ/∂S_mk of its score of another feature m.
    """
    growth = risk.growth(scores)  # minus the gradient of the loss, (K, K)
    alpha = np.diagonal(growth)
    # The diagonal is subtracted, so that it does not enter the maximum.
    return np.asarray(np.abs(growth - np.diag(alpha)).max(axis=0) / alpha)


def deficit(K: float, gamma: float, epsilon: float) -> float:
    """Return the deficit 1 - Attn at which the loss ½ γ (1 - Attn)² K/(K-1) is ε."""
    return math.sqrt(2.0 * epsilon * (K - 1.0) / (gamma * K))


def rise(run: icl.Trajectory) -> float:
    """Return the largest rise of the loss from a saved step to the next, at least 0."""
    return float(np.max(np.diff(run.loss), initial=0.0))


def iterates(K: float, c: float) -> Iterator[float]:
    """Yield the gaps u <- u + c a s² from 0, by plain iteration.

    The deficit is s = 1/(1 + e^u/(K-1)), and the attention a = 1 - s.
    """
    log_others = math.log(K - 1.0)
    u = 0.0
    while True:
        yield u
        s = 1.0 / (1.0 + math.exp(u - log_others))
        u += c * (1.0 - s) * s * s


def iterated_steps(K: float, c: float, deficits: Sequence[float]) -> list[int]:
    """Return the first steps at which 1 - Attn is at most each deficit.

    The steps are found by plain iteration from the gap u = 0, see `iterates`.
    """
    first_steps = []
    for s in deficits:
        # The gap at which the deficit is s: u = ln((K-1)(1-s)/s).
        gap = math.log(K - 1.0) + math.log1p(-s) - math.log(s)
        first_steps.append(_first_at_least(iterates(K, c), gap))
    return first_steps


def _first_at_least(sequence: Iterator[float], goal: float) -> int:
    """Return the index, from 0, of the first number that is at least ``goal``."""
    return next(n for n, u in enumerate(sequence) if u >= goal)


def iterated_gaps(K: float, c: float, steps: int) -> Array:
    """Return the gaps u at the steps 0 to ``steps`` of `iterates`, (steps + 1,)."""
    return np.fromiter(iterates(K, c), dtype=float, count=steps + 1)


def plain_descent(
    risk: icl.PopulationRisk, params: Array, eta: float, steps: int
) -> Array:
    """Return the parameters after plain gradient steps, taken one by one."""
    for _ in range(steps):
        params = params - eta * risk.gradient(params)
    return params
