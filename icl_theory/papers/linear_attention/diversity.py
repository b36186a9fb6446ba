"""Task diversity: training on k tasks, tests on these and on new ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    flag,
    instance,
    integer,
    number,
    plain_numbers,
    prompt_length,
    real_array,
)
from icl_theory.engine.progress import counted
from icl_theory.memory import check_fits
from icl_theory.papers.linear_attention.family import LinearAttention, drawn
from icl_theory.papers.linear_attention.law import PromptLaw, prompt_law, root


class Estimate(NamedTuple):
    """A mean over sampled prompts, and its standard error."""

    value: float
    error: float


class Losses(NamedTuple):
    """Loss on the pretraining tasks and on new ones."""

    pretraining: Array
    new: Array


@dataclass(frozen=True, eq=False)
class Diversity:
    """Losses of the best matrix for k pretraining tasks, over draws of the tasks.

    Attributes
    ----------
    tasks : ndarray of int64, (n,)
        Numbers k.
    pretraining, new : ndarray, (n, draws)
        Loss on the k tasks and on new ones, squared label units.
    """

    tasks: NDArray[np.int64]
    pretraining: Array
    new: Array

    def mean(self) -> Losses:
        """Return the means over draws, (n,) each."""
        return Losses(self.pretraining.mean(axis=1), self.new.mean(axis=1))

    def band(self, share: float = 0.8) -> tuple[Losses, Losses]:
        """Return the two quantiles that enclose this share of the draws, (n,) each."""
        share = number("share", share, zero=True, maximum=1.0)
        ends = (0.5 - 0.5 * share, 0.5 + 0.5 * share)
        low, high = (
            Losses(
                *(np.quantile(each, q, axis=1) for each in (self.pretraining, self.new))
            )
            for q in ends
        )
        return low, high


def task_diversity(
    problem: LinearAttention, tasks: Sequence[int], draws: int = 10, seed: int = 0
) -> Diversity:
    r"""Find the best matrix for k tasks, and its exact loss on these and on new tasks, for several draws of tasks.

    See docs/linear-attention-theory.md, "Task diversity"; Raventós et al. 2023; Lu et
    al. 2024.

    Parameters
    ----------
    problem : LinearAttention
        Its prior is the law of the tasks, both for pretraining and new.
    tasks : sequence of int
        Numbers k of pretraining tasks.
    draws, seed : int
        Draws of the tasks for each k, and the seed of the first; further draws have the
        next seeds.

    Returns
    -------
    Diversity

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.LinearAttention(d=16, N=64, noise=0.5)
    >>> (icl.linear_attention.task_diversity(problem, [1, 1000]).mean().new / 16).round(2)
    array([0.48, 0.11])
    """
    instance("problem", problem, LinearAttention, "a LinearAttention")
    draws = integer("draws", draws, minimum=1)
    seed = integer("seed", seed, minimum=0, maximum=2**62)
    counts = [
        integer("tasks", count, minimum=1)
        for count in real_array("tasks", tasks, 1).tolist()
    ]
    shape = len(counts), draws
    check_fits("draws", draws, 16.0 * math.prod(shape))
    found = Losses(np.empty(shape), np.empty(shape))
    for index in _one_thread(math.prod(shape), "draws"):
        i, j = divmod(index, draws)
        some = problem.changed(tasks=counts[i], seed=seed + j)
        law = some.law()
        found.pretraining[i, j], found.new[i, j] = (
            law.floor,
            some.new_tasks().loss(law.best),
        )
    return Diversity(np.array(counts, dtype=np.int64), *found)


def diversity_limit(d: int, N: float, noise: float, ratio: ArrayLike) -> Losses:
    r"""Limit of `task_diversity` for isotropic tokens and tasks, with d, k, N and σ² in proportion.

    The spectrum of :math:`R = \frac1k\sum w_jw_j^\top` tends to the Marchenko–Pastur
    law of ratio d/k, whose Stieltjes transform gives both losses in closed form. See
    docs/linear-attention-theory.md, "Many tasks in many dimensions".

    Parameters
    ----------
    d, N, noise : int, int, float
        Dimension, pairs in a prompt, and standard deviation of the label noise, label
        units.
    ratio : array_like
        Values of k/d.

    Returns
    -------
    Losses
        ``pretraining`` and ``new``, of the shape of ``ratio``, squared label units.

    Examples
    --------
    >>> import icl_theory as icl
    >>> (icl.linear_attention.diversity_limit(64, 256, 0.5, [0.0625, 64.0]).new / 64).round(3)
    array([0.476, 0.102])
    """
    y = 1.0 / plain_numbers("ratio", ratio, 1.0 / LARGEST, LARGEST)
    d = integer("d", d, minimum=1)
    N = prompt_length(N)
    a = 1.0 + 1.0 / N
    c = (d + number("noise", noise, zero=True, maximum=LARGEST) ** 2) / N
    if c == 0.0:  # infinite prompts: all directions of the tasks are learnt
        return Losses(np.zeros_like(y), 0.5 * d * np.maximum(1.0 - 1.0 / y, 0.0))
    z = c / a
    b = 1.0 / (N + 1.0)
    # For the law μ of r, p = ∫ z/(r + z) solves y p² + (z + 1 - y) p - z = 0, q = 1 - p
    # = ∫ r/(r + z), and the
    # derivatives by z give the squares. All terms are positive, so that nothing
    # cancels.
    root = np.sqrt(z**2 + 2.0 * z * (1.0 + y) + (1.0 - y) ** 2)
    middle = z + 1.0 - y
    p = np.where(
        middle < 0.0, (root - middle) / (2.0 * y), 2.0 * z / (np.abs(middle) + root)
    )
    q = 2.0 / (z + 1.0 + y + root)
    # ∫ r²/(r + z)²
    both = q * (2.0 * z * (1.0 + y) + (1.0 - y) ** 2) / (root + z) / root
    # ∫ (1 - g)² with g = r/(a r + c)
    missing = b**2 * both + 2.0 * b * z * q / root + p * (z + y * p) / root
    return Losses(
        0.5 * d * (b + z / a * q), 0.5 * d * (missing + (1.0 / N + c) * both / a**2)
    )


def pretrained(problem: LinearAttention, prompts: int, seed: int = 0) -> Array:
    r"""Draw pretraining prompts, and return the matrix Γ that fits them with the least norm.

    Each prompt has one of the k pretraining tasks, or a new one, and the target of its
    query has label noise. See docs/linear-attention-theory.md, "Finitely many prompts".

    Parameters
    ----------
    problem : LinearAttention
        Its law of prompts, with finite N.
    prompts, seed : int
        Number n of prompts, and their seed. The squared errors of :math:`x^\top\Gamma
        h` have one minimum if :math:`n \ge d^2`, else it is the limit of a small ridge.

    Returns
    -------
    ndarray, (d, d)

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.LinearAttention(d=6, N=30, noise=0.5)
    >>> new = problem.new_tasks()
    >>> [round(new.loss(icl.linear_attention.pretrained(problem, n)) / new.floor) for n in (9, 36, 720)]
    [5, 74, 1]
    """
    law = _law(problem)
    n = integer("prompts", prompts, minimum=1)
    d = law.d
    N = _length(law)
    check_fits("prompts", n, 24.0 * n * d * max(d, N))
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    factor, _, query = (root(matrix) for matrix in law.moments)
    if problem.tasks is None:
        tasks = drawn(law, n, int(rng.integers(2**31)))
    else:
        given = problem.tasks
        known = (
            drawn(problem.new_tasks(), given, problem.seed)
            if isinstance(given, int)
            else np.array(given)
        )
        tasks = known[rng.integers(len(known), size=n)]
    tokens = rng.normal(size=(n, N, d)) @ factor
    asked = rng.normal(size=(n, d)) @ query
    labels = np.einsum("pnd,pd->pn", tokens, tasks) + law.noise * rng.normal(
        size=(n, N)
    )
    seen = np.einsum("pn,pnd->pd", labels, tokens) / N
    target = np.sum(asked * tasks, axis=1) + law.noise * rng.normal(size=n)
    return np.asarray(
        np.linalg.lstsq((asked[:, :, None] * seen[:, None]).reshape(n, -1), target)[
            0
        ].reshape(d, d)
    )


def pretraining_limit(problem: LinearAttention, prompts: ArrayLike) -> Losses:
    r"""Losses of `pretrained` in the mean over prompts, as if their features :math:`x \otimes h` were normal.

    That is the limit of large d with n ~ d². It is infinite at n = d².
    See docs/linear-attention-theory.md, "Finitely many prompts".

    Parameters
    ----------
    problem : LinearAttention
        As for `pretrained`.
    prompts : array_like
        Numbers n of prompts.

    Returns
    -------
    Losses
        ``pretraining`` and ``new``, of the shape of ``prompts``, squared label units.

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.LinearAttention(d=6, N=30, noise=0.5)
    >>> (icl.linear_attention.pretraining_limit(problem, [9, 720]).new / problem.new_tasks().floor).round(2)
    array([4.51, 1.06])
    """
    from scipy.optimize import brentq  # slow to load

    law = _law(problem)
    new, (q, s, reach, bases) = problem.new_tasks().dense, law.modes
    assert bases is not None
    U, V = bases
    sigma = np.outer(q, s**2)
    if not sigma.all():
        raise argument_error(
            "problem", problem, "one whose features have no direction without variance"
        )
    noise = 2.0 * law.floor + law.noise**2
    tests = [np.outer(q, np.diag(V.T @ each.second @ V)) for each in (law, new)]
    count = plain_numbers("prompts", prompts, 1.0, LARGEST)
    found = np.full((2, count.size), math.inf)
    for at, n in enumerate(count.ravel()):
        if n == sigma.size:
            continue
        ridge = 0.0
        if n < sigma.size:
            most = math.log(float(sigma.sum()))  # Σ σ/(σ + κ) is n, and at most Σ σ/κ
            low = math.log(float(sigma.min())) - math.log(sigma.size) - 40.0
            ridge = math.exp(
                brentq(
                    lambda x, n=n: np.sum(sigma / (sigma + math.exp(x))) - n,
                    low,
                    most,
                    xtol=1e-14,
                )
            )
        share = sigma / (sigma + ridge)
        mean = U @ (share * reach / s) @ V.T
        missed = noise + ridge**2 * np.sum(
            (reach / s) ** 2 * sigma / (sigma + ridge) ** 2
        )
        scale = missed / (n - np.sum(share**2))
        for row, (each, test) in enumerate(zip((law, new), tests, strict=True)):
            found[row, at] = each.loss(mean) + 0.5 * scale * np.sum(
                share**2 * test / sigma
            )
    return Losses(*found.reshape(2, *count.shape))


def ridge_loss(law: PromptLaw, prompts: int = 1000, seed: int = 0) -> Estimate:
    r"""Loss of the Bayes-optimal prediction for normal tasks, ridge regression, by sampling the tokens.

    Half the mean of :math:`\mathrm{tr}\,\Lambda_q(W^{-1} + X^\top X/\sigma^2)^{-1}`;
    only X is sampled.

    Parameters
    ----------
    law : PromptLaw
        Law of the prompts, with finite N.
    prompts, seed : int
        Number of sampled prompts, and their seed.

    Returns
    -------
    Estimate
    """
    tokens = root(prompt_law(law).dense.moments[0])
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    factor = root(law.dense.moments[1])
    query = law.dense.moments[2]
    within = factor @ query @ factor.T

    def loss() -> float:
        seen = rng.normal(size=(_length(law), law.d)) @ tokens @ factor.T
        values, vectors = np.linalg.eigh(seen.T @ seen)
        values = np.maximum(values, 0.0)
        scale = law.noise**2 if law.noise else law.d * np.finfo(float).eps * values[-1]
        left = (
            scale / (scale + values) if law.noise else (values <= scale).astype(float)
        )
        return 0.5 * float(left @ np.sum(vectors * (within @ vectors), axis=0))

    return _estimate(loss, prompts)


def posterior_loss(
    law: PromptLaw,
    tasks: ArrayLike,
    prompts: int = 1000,
    seed: int = 0,
    new: bool = False,
) -> Estimate:
    r"""Loss of the Bayes-optimal prediction for a uniform prior on k tasks, by sampling prompts.

    The prediction is the posterior mean, with weights :math:`\propto e^{-\|y -
    Xw_j\|^2/2\sigma^2}`.

    Parameters
    ----------
    law : PromptLaw
        Law of the prompts, with noise and finite N.
    tasks : array_like, (k, d)
    prompts, seed : int
        Number of sampled prompts, and their seed.
    new : bool
        Whether their tasks are new ones, from the prior of the law, instead of the k
        tasks.

    Returns
    -------
    Estimate
    """
    flag("new", new)
    if prompt_law(law).noise == 0.0:
        raise argument_error(
            "noise", law.noise, "> 0: without it the posterior is a single task"
        )
    known = real_array("tasks", tasks, 2)
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    if known.shape[1] != law.d or not len(known):
        raise argument_error("tasks", known.shape, f"of shape (k, {law.d})")
    covariance, prior, query = (root(matrix) for matrix in law.dense.moments)

    def loss() -> float:
        truth = (
            rng.normal(size=law.d) @ prior if new else known[rng.integers(len(known))]
        )
        seen = rng.normal(size=(_length(law), law.d)) @ covariance
        off = seen @ (truth - known).T + law.noise * rng.normal(size=(len(seen), 1))
        log = -0.5 * np.sum(off**2, axis=0) / law.noise**2
        weight = np.exp(log - log.max())
        return 0.5 * float(
            np.sum((query @ (weight @ known / weight.sum() - truth)) ** 2)
        )

    return _estimate(loss, prompts)


def _law(problem: LinearAttention) -> PromptLaw:
    """Return the law of the prompts of a problem with one layer, with matrices."""
    if instance("problem", problem, LinearAttention, "a LinearAttention").depth > 1:
        raise argument_error("problem", problem, "of one layer")
    return problem.law().dense


def _one_thread(count: int, unit: str = "prompts") -> Iterator[int]:
    """Count with a progress bar, and with one thread for linear algebra because the matrices are small."""
    with threadpool_limits(limits=1):
        yield from counted(range(count), unit)


def _length(law: PromptLaw) -> int:
    if math.isinf(law.N):
        raise argument_error("N", law.N, "finite: infinite prompts cannot be sampled")
    return int(law.N)


def _estimate(loss: Callable[[], float], prompts: int) -> Estimate:
    """Mean of a loss over sampled prompts, one after the other, and its standard error."""
    check_fits(
        "prompts", prompts := integer("prompts", prompts, minimum=2), 8.0 * prompts
    )
    losses = np.array([loss() for _ in _one_thread(prompts)])
    return Estimate(
        float(losses.mean()), float(losses.std(ddof=1)) / math.sqrt(prompts)
    )
