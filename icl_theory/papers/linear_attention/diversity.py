r"""Task diversity: training on k tasks, and tests on these tasks and on new ones.

`task_diversity` and `diversity_limit` give the losses of the best matrix Γ for k tasks.
`pretrained` fits Γ to finitely many prompts, and `pretraining_limit` gives the mean
losses of such a fit. `ridge_loss` and `posterior_loss` sample the losses of two
Bayes-optimal predictors for comparison.

Letters: the prediction is xᵀΓh for the query x and the mean h of label times token, in
d dimensions. A prompt has N pairs and a task w, whose second moment is W. The second
moments of tokens and query are Λ and Λ_q. The label noise has the standard deviation σ.
"""

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
from icl_theory.papers.linear_attention.family import LinearAttention, draw_tasks
from icl_theory.papers.linear_attention.law import PromptLaw, prompt_law, root
from icl_theory.papers.linear_attention.layer import labelled_means

# A least-squares system of n prompts has n d² numbers. A system of more numbers than
# this, 256 MB, is solved by iteration if n >= 2d²: a decomposition would take several
# arrays of this size, and a time that grows like n d⁴.
LARGEST_DIRECT = 2**25
# Tolerance of the iteration on the residual, relative to the right-hand side. This
# tolerance is far below the sampling error of a fit, and above the rounding of float64.
FIT_TOLERANCE = 1e-12
# Logarithm of a distance, e^-40. If the numbers of features and prompts differ by this
# distance or more, the search for the effective ridge begins below the ridge. Numbers
# above 1 that differ by less are equal in float64.
LEAST_LOG_DISTANCE = -40.0


class Estimate(NamedTuple):
    """A mean over sampled prompts, and its standard error."""

    value: float
    error: float


class Losses(NamedTuple):
    """Losses in squared label units; both arrays have the same shape."""

    pretraining: Array  # on the k pretraining tasks
    new: Array  # on new tasks


@dataclass(frozen=True, eq=False)
class Diversity:
    """Losses of the best matrix for k pretraining tasks, for several draws of tasks.

    Attributes
    ----------
    tasks : ndarray of int64, (n,)
        The n values of k, the number of pretraining tasks.
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
        """Return two quantiles between which this share of the draws lies, (n,) each.

        The shares below the first and above the second are equal.
        """
        share = number("share", share, zero=True, maximum=1.0)
        return self._quantile(0.5 - 0.5 * share), self._quantile(0.5 + 0.5 * share)

    def _quantile(self, level: float) -> Losses:
        """Return a quantile over draws of both losses, (n,) each."""
        return Losses(
            pretraining=np.quantile(self.pretraining, level, axis=1),
            new=np.quantile(self.new, level, axis=1),
        )


def task_diversity(
    problem: LinearAttention, tasks: Sequence[int], draws: int = 10, seed: int = 0
) -> Diversity:
    r"""Return the exact losses of the best matrix for k tasks.

    The losses are taken on the k tasks and on new ones, for several draws of the k
    tasks. See docs/linear-attention-theory.md, "Task diversity"; Raventós et al. 2023;
    Lu et al. 2024.

    Parameters
    ----------
    problem : LinearAttention
        The prior of the problem is the law of pretraining tasks and of new tasks.
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
    >>> losses = icl.linear_attention.task_diversity(problem, [1, 1000]).mean()
    >>> (losses.new / 16).round(2)
    array([0.48, 0.11])
    """
    instance("problem", problem, LinearAttention, "a LinearAttention")
    draws = integer("draws", draws, minimum=1)
    # The maximum keeps the seeds of further draws within int64.
    seed = integer("seed", seed, minimum=0, maximum=2**62)
    values = real_array("tasks", tasks, 1).tolist()
    counts = [integer("tasks", value, minimum=1) for value in values]
    runs = len(counts) * draws
    # Two losses of 8 bytes for each run.
    check_fits("draws", draws, 16.0 * runs)
    pretraining = np.empty((len(counts), draws))
    new = np.empty((len(counts), draws))
    for run in _counted_on_one_thread(runs, "draws"):
        i, draw = divmod(run, draws)
        problem_of_draw = problem.changed(tasks=counts[i], seed=seed + draw)
        law = problem_of_draw.law()  # its prior is uniform on the k tasks
        pretraining[i, draw] = law.floor
        new[i, draw] = problem_of_draw.new_tasks().loss(law.best)
    return Diversity(np.array(counts, dtype=np.int64), pretraining, new)


def diversity_limit(d: int, N: float, noise: float, ratio: ArrayLike) -> Losses:
    r"""Return the limit of `task_diversity` for many tasks in many dimensions.

    Tokens and tasks are isotropic, and d, k, N and σ² grow in proportion. The spectrum
    of :math:`R = \frac1k\sum w_jw_j^\top` tends to the Marchenko–Pastur law of ratio
    d/k, whose Stieltjes transform gives both losses in closed form. See
    docs/linear-attention-theory.md, "Many tasks in many dimensions".

    Parameters
    ----------
    d, N, noise : int, int or math.inf, float
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
    >>> losses = icl.linear_attention.diversity_limit(64, 256, 0.5, [0.0625, 64.0])
    >>> (losses.new / 64).round(3)
    array([0.476, 0.102])
    """
    y = 1.0 / plain_numbers("ratio", ratio, 1.0 / LARGEST, LARGEST)  # d/k
    d = integer("d", d, minimum=1)
    N = prompt_length(N)
    noise = number("noise", noise, zero=True, maximum=LARGEST)
    # The best matrix Γ* has the eigenvalue r/(a r + c) along a direction in which R has
    # the eigenvalue r.
    a = 1.0 + 1.0 / N
    c = (d + noise**2) / N
    if c == 0.0:
        # Prompts are infinite. All directions of the tasks are learnt, and a share
        # 1 - k/d of all directions has no task if k < d.
        unlearnt = np.maximum(1.0 - 1.0 / y, 0.0)
        return Losses(pretraining=np.zeros_like(y), new=0.5 * d * unlearnt)
    z = c / a
    b = 1.0 / (N + 1.0)  # 1 - 1/a
    # For the law μ of the eigenvalues r of R, p = ∫ z/(r + z) dμ solves
    # y p² + (z + 1 - y) p - z = 0, and q = 1 - p = ∫ r/(r + z) dμ. The integrals of
    # squares follow from ∫ r/(r + z)² dμ = dp/dz = q/D, where D, the root of the
    # discriminant, is ``discriminant_root``. (The page that the docstring names has the
    # letter s = p/z.) All terms below are positive, so that nothing cancels.
    discriminant_root = np.sqrt(z**2 + 2.0 * z * (1.0 + y) + (1.0 - y) ** 2)
    middle = z + 1.0 - y
    # These are two forms of the positive root of the quadratic equation. In the first
    # no digits cancel if `middle` is negative, and in the second if it is positive.
    p_below = (discriminant_root - middle) / (2.0 * y)
    p_above = 2.0 * z / (np.abs(middle) + discriminant_root)
    p = np.where(middle < 0.0, p_below, p_above)
    # 1 - p in a form without a difference.
    q = 2.0 / (z + 1.0 + y + discriminant_root)
    # ∫ r²/(r + z)² dμ = q - z q/D = q (D² - z²)/((D + z) D)
    learnt = q * (2.0 * z * (1.0 + y) + (1.0 - y) ** 2)
    learnt = learnt / (discriminant_root + z) / discriminant_root
    # ∫ (1 - g)² dμ for the eigenvalue g = r/(a r + c) of Γ*, whose integrand is
    # (b² r² + 2 b r z + z²)/(r + z)². The lines below add the three integrals. The last
    # one is ∫ z²/(r + z)² dμ = p - z q/D = p (z + y p)/D.
    missing = b**2 * learnt + 2.0 * b * z * q / discriminant_root
    missing = missing + p * (z + y * p) / discriminant_root
    # The floor for the k tasks is ½d ∫ r (b r + z)/(r + z) dμ = ½d [b + (1 - b) z q],
    # as r has the mean 1. The loss of Γ* on new tasks is
    # ½d [∫ (1 - g)² dμ + (1/N + c) ∫ g² dμ], a bias and the scatter of h.
    return Losses(
        pretraining=0.5 * d * (b + z / a * q),
        new=0.5 * d * (missing + (1.0 / N + c) * learnt / a**2),
    )


def pretrained(problem: LinearAttention, prompts: int, seed: int = 0) -> Array:
    r"""Draw pretraining prompts, and return the matrix Γ that fits them best.

    Each prompt has one of the k pretraining tasks, or a new task if the problem has no
    ``tasks``. The target of its query has label noise. See
    docs/linear-attention-theory.md, "Finitely many prompts".

    Parameters
    ----------
    problem : LinearAttention
        The problem whose law of prompts is used; N must be finite.
    prompts, seed : int
        Number n of prompts, and their seed. The squared errors of :math:`x^\top\Gamma
        h` have one minimum if :math:`n \ge d^2`. Otherwise Γ is the minimiser of least
        norm, the limit of a small ridge. Large problems with :math:`n \ge 2d^2`, such
        as d = 75 and n = 281,250, are solved by iteration, and their h is drawn without
        tokens.

    Returns
    -------
    ndarray, (d, d)

    Examples
    --------
    The loss on new tasks over its floor, for n below, at, and far above d² = 36:

    >>> import icl_theory as icl
    >>> problem = icl.LinearAttention(d=6, N=30, noise=0.5)
    >>> new = problem.new_tasks()
    >>> for n in (9, 36, 720):
    ...     gamma = icl.linear_attention.pretrained(problem, n)
    ...     round(new.loss(gamma) / new.floor)
    5
    74
    1
    """
    law = _law(problem)
    n = integer("prompts", prompts, minimum=1)
    d = law.d
    N = _length(law)
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    is_large = n * d * d > LARGEST_DIRECT
    # With twice as many equations as entries of Γ the iteration converges quickly.
    is_iterated = is_large and n >= 2 * d * d
    # Generous bounds, in bytes. The iteration has ten arrays of the size of the
    # queries, and the direct solution three of the size of all tokens, or of all
    # features.
    needed = 80.0 * n * d if is_iterated else 24.0 * n * d * max(d, N)
    check_fits("prompts", n, needed)
    tasks = _tasks_of_prompts(rng, problem, law, n)
    if is_iterated:
        return _iterated_fit(*_prompts_without_tokens(rng, law, tasks))
    return _direct_fit(*_prompts_with_tokens(rng, law, tasks))


def _tasks_of_prompts(
    rng: np.random.Generator, problem: LinearAttention, law: PromptLaw, count: int
) -> Array:
    """Draw the task of each of ``count`` prompts, (count, d).

    A prompt has one of the pretraining tasks, with equal probabilities. If the problem
    has no pretraining tasks, each prompt has a new task of the prior.
    """
    if problem.tasks is None:
        return draw_tasks(law, count, int(rng.integers(2**31)))
    pretraining_tasks = _pretraining_tasks(problem)
    task_indices = rng.integers(len(pretraining_tasks), size=count)
    return np.asarray(pretraining_tasks[task_indices])


class _FitData(NamedTuple):
    """Drawn prompts, as data of the n equations xᵀΓh = y."""

    queries: Array  # x, (n, d)
    h: Array  # the means of label times token, (n, d)
    targets: Array  # y, the answers with label noise, (n,)


def _prompts_without_tokens(
    rng: np.random.Generator, law: PromptLaw, tasks: Array
) -> _FitData:
    """Draw prompts with given tasks, (n, d), and their h directly, without tokens."""
    covariance, _, query = law.moments  # Λ and Λ_q; `root` returns F with FᵀF = Λ
    h = labelled_means(rng, law, root(covariance), tasks)
    queries = rng.normal(size=tasks.shape) @ root(query)
    target_noise = law.noise * rng.normal(size=len(tasks))
    targets = np.sum(queries * tasks, axis=1) + target_noise
    return _FitData(queries, h, targets)


def _prompts_with_tokens(
    rng: np.random.Generator, law: PromptLaw, tasks: Array
) -> _FitData:
    """Draw prompts with given tasks, (n, d), token by token."""
    n, d = tasks.shape
    N = _length(law)
    covariance, _, query = law.moments  # Λ and Λ_q; `root` returns F with FᵀF = Λ
    tokens = rng.normal(size=(n, N, d)) @ root(covariance)
    queries = rng.normal(size=(n, d)) @ root(query)
    label_noise = law.noise * rng.normal(size=(n, N))
    labels = np.einsum("pnd,pd->pn", tokens, tasks) + label_noise
    target_noise = law.noise * rng.normal(size=n)
    targets = np.sum(queries * tasks, axis=1) + target_noise
    h = np.einsum("pn,pnd->pd", labels, tokens) / N
    return _FitData(queries, h, targets)


def _direct_fit(queries: Array, h: Array, targets: Array) -> Array:
    r"""Return the least-squares solution Γ of n equations :math:`x^\top\Gamma h = y`.

    It is the solution of least norm, if there are several.
    """
    n, d = queries.shape
    # In xᵀΓh the entry Γ_ij has the coefficient x_i h_j; (n, d²).
    features = (queries[:, :, None] * h[:, None]).reshape(n, -1)
    solution = np.linalg.lstsq(features, targets)[0]
    return np.asarray(solution.reshape(d, d))


def _iterated_fit(queries: Array, h: Array, targets: Array) -> Array:
    r"""Return the least-squares solution Γ of n equations :math:`x^\top\Gamma h = y`.

    The equations are solved by iteration. With whitened x and h, whose second moments
    are I, the equations have a condition number near 1 if they are many more than the
    entries of Γ. LSQR then takes few iterations, each of O(n d²).
    """
    from scipy.sparse.linalg import LinearOperator, lsqr  # slow to load

    n, d = queries.shape
    x_whitener = _whitener(queries)
    h_whitener = _whitener(h)
    x = queries @ x_whitener
    h = h @ h_whitener

    # LSQR needs only products with C and Cᵀ, for the system C vec(Γ) = y.
    def outputs(gamma: Array) -> Array:
        """C vec(Γ), (n,)."""
        return np.asarray(np.sum((x @ gamma.reshape(d, d)) * h, axis=1))

    def transposed_product(errors: Array) -> Array:
        """Cᵀ errors, (d²,)."""
        return np.asarray((x.T @ (errors.ravel()[:, None] * h)).ravel())

    system = LinearOperator(
        (n, d * d), matvec=outputs, rmatvec=transposed_product, dtype=np.float64
    )
    # The limit of iterations is generous: at a condition number near 1, LSQR needs
    # some tens of them.
    solution = lsqr(
        system, targets, atol=FIT_TOLERANCE, btol=FIT_TOLERANCE, iter_lim=1000
    )[0]
    # The solution is for whitened vectors. The product is the matrix Γ for the given
    # vectors.
    return np.asarray(x_whitener @ solution.reshape(d, d) @ h_whitener.T)


def _whitener(vectors: Array) -> Array:
    """Return the matrix that turns n vectors into vectors with the second moment I.

    A direction along which no vector has a component is mapped to zero.
    """
    variances, axes = np.linalg.eigh(vectors.T @ vectors / len(vectors))
    # The variances come in increasing order. Variances below this one are rounding
    # errors.
    rounding = len(variances) * np.finfo(float).eps * variances[-1]
    is_nonzero = variances > rounding
    # The 1 avoids divisions by zero in directions that are mapped to zero.
    positive_variances = np.where(is_nonzero, variances, 1.0)
    scales = np.where(is_nonzero, 1.0 / np.sqrt(positive_variances), 0.0)
    return np.asarray(axes * scales)


def _pretraining_tasks(problem: LinearAttention) -> Array:
    """Return the k tasks of a problem, (k, d), as given or as drawn with its seed."""
    tasks = problem.tasks
    if isinstance(tasks, int):
        return draw_tasks(problem.new_tasks(), tasks, problem.seed)
    return np.array(tasks)


def pretraining_limit(problem: LinearAttention, prompts: ArrayLike) -> Losses:
    r"""Return the mean losses of a fit by `pretrained`, as if features were normal.

    The mean is over the drawn prompts, whose features are the entries of :math:`x
    \otimes h`. For large d with n ~ d² the mean of the real features tends to the same
    result. At n = d² the result is infinite. See docs/linear-attention-theory.md,
    "Finitely many prompts".

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
    >>> losses = icl.linear_attention.pretraining_limit(problem, [9, 720])
    >>> (losses.new / problem.new_tasks().floor).round(2)
    array([4.51, 1.06])
    """
    law = _law(problem)
    new = problem.new_tasks().dense
    # Λ_q has the eigenvalues q and the axes U. The second moment of h has the
    # eigenvalues s² and the axes V. In these axes Γ* is UᵀΓ*V = reach / s: column b is
    # divided by s_b.
    q, s, reach, bases = law.modes
    assert bases is not None  # they are None for diagonal laws alone
    U, V = bases
    # Eigenvalues of the covariance of the features, (d, d).
    sigma = np.outer(q, s**2)
    if not sigma.all():
        raise argument_error(
            "problem", problem, "one whose features have no direction without variance"
        )
    # Mean squared error of Γ* on a target, which has label noise.
    least_error = 2.0 * law.floor + law.noise**2
    # The mean squares of the features along these axes, in prompts with pretraining
    # tasks and in prompts with new tasks.
    mean_square = np.outer(q, np.diag(V.T @ law.second @ V))
    new_mean_square = np.outer(q, np.diag(V.T @ new.second @ V))

    def losses_at(n: float) -> tuple[float, float]:
        """Return the losses on pretraining tasks and on new ones after n prompts."""
        if n == sigma.size:
            # With as many prompts as features the variance of the fit is infinite.
            return math.inf, math.inf
        ridge = _effective_ridge(sigma, n)
        # The share σ/(σ + κ) of each component of Γ* that the mean fit has, with the
        # effective ridge κ; (d, d).
        learnt = sigma / (sigma + ridge)
        mean_fit = U @ (learnt * reach / s) @ V.T
        # The squared error of the mean fit is the error that Γ* leaves, plus the bias
        # of the ridge. This squared error, divided by n minus the effective number of
        # features Σ σ²/(σ + κ)², is the variance of the fit.
        bias = ridge**2 * np.sum((reach / s) ** 2 * sigma / (sigma + ridge) ** 2)
        error = least_error + bias
        variance = error / (n - np.sum(learnt**2))
        # Half of the variance times the sum of these numbers is the part of the loss
        # that is due to the variance of the fit, on pretraining tasks and on new ones.
        spread = learnt**2 * mean_square / sigma
        new_spread = learnt**2 * new_mean_square / sigma
        return (
            law.loss(mean_fit) + 0.5 * variance * np.sum(spread),
            new.loss(mean_fit) + 0.5 * variance * np.sum(new_spread),
        )

    prompt_counts = plain_numbers("prompts", prompts, 1.0, LARGEST)
    # The columns are the losses on pretraining tasks and on new ones. The reshape also
    # gives two columns to an empty array.
    losses = np.array([losses_at(n) for n in prompt_counts.ravel()]).reshape(-1, 2)
    return Losses(
        pretraining=losses[:, 0].reshape(prompt_counts.shape),
        new=losses[:, 1].reshape(prompt_counts.shape),
    )


def _effective_ridge(sigma: Array, n: float) -> float:
    """Return the ridge κ with Σ σ/(σ + κ) = n, or 0 for no fewer prompts than features.

    ``sigma`` has the variances of p features. On average, the fit of least norm to n
    prompts is the ridge regression with this κ on infinitely many prompts. For n >= p
    the fit has no ridge.
    """
    from scipy.optimize import brentq  # slow to load

    if n >= sigma.size:
        return 0.0

    def excess_dimensions(log_ridge: float) -> float:
        """Σ σ/(σ + κ) - n, which falls with ln κ and is zero at the result."""
        return float(np.sum(sigma / (sigma + math.exp(log_ridge))) - n)

    # The sum is at most Σ σ/κ and n at least 1, so that κ is at most Σ σ.
    highest = math.log(float(sigma.sum()))
    # At the root p - n is Σ κ/(σ + κ), which is at most p κ/min σ. So κ is at least
    # (p - n) min σ/p. For numbers p and n that float64 tells apart, ln (p - n) is above
    # LEAST_LOG_DISTANCE.
    lowest = math.log(float(sigma.min())) - math.log(sigma.size) + LEAST_LOG_DISTANCE
    # The tolerance is absolute for ln κ, and so relative for κ.
    return math.exp(brentq(excess_dimensions, lowest, highest, xtol=1e-14))


def ridge_loss(law: PromptLaw, prompts: int = 1000, seed: int = 0) -> Estimate:
    r"""Sample the loss of the Bayes-optimal prediction for normal tasks.

    The prediction is ridge regression. Its loss is half the mean of
    :math:`\mathrm{tr}\,\Lambda_q(W^{-1} + X^\top X/\sigma^2)^{-1}` over the tokens X,
    which are sampled. The means over tasks and noise are exact.

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
    covariance, prior, query = prompt_law(law).dense.moments
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    token_factor = root(covariance)
    task_factor = root(prior)
    # Λ_q in coordinates of the task in which the prior is the unit matrix. The function
    # below also transforms tokens to these coordinates.
    query_metric = task_factor @ query @ task_factor.T

    def sampled_loss() -> float:
        """Return the loss for one prompt's tokens, averaged over tasks and noise."""
        normal = rng.normal(size=(_length(law), law.d))
        tokens = normal @ token_factor @ task_factor.T
        values, vectors = np.linalg.eigh(tokens.T @ tokens)
        values = np.maximum(values, 0.0)  # a zero may be negative by rounding
        if law.noise > 0.0:
            uncertainty = law.noise**2 / (law.noise**2 + values)
        else:
            # Without noise the task is known along the directions of the tokens, and as
            # uncertain as before along all others.
            rounding = law.d * np.finfo(float).eps * values[-1]
            uncertainty = (values <= rounding).astype(float)
        # uᵀΛ_q u for each eigenvector u, in the transformed coordinates.
        query_variance = np.sum(vectors * (query_metric @ vectors), axis=0)
        return 0.5 * float(uncertainty @ query_variance)

    return _estimate(sampled_loss, prompts)


def posterior_loss(
    law: PromptLaw,
    tasks: ArrayLike,
    prompts: int = 1000,
    seed: int = 0,
    new: bool = False,
) -> Estimate:
    r"""Sample the loss of the Bayes-optimal prediction for a uniform prior on k tasks.

    The prediction is the query times the posterior mean of the task. For the tokens X
    and labels y it weights the tasks :math:`w_j` by :math:`\propto e^{-\|y -
    Xw_j\|^2/2\sigma^2}`.

    Parameters
    ----------
    law : PromptLaw
        Law of the prompts, with noise and finite N.
    tasks : array_like, (k, d)
        The k tasks of the prior of the prediction.
    prompts, seed : int
        Number of sampled prompts, and their seed.
    new : bool
        Whether prompts have new tasks, from the prior of the law, instead of the k
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
    candidates = real_array("tasks", tasks, 2)
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    if candidates.shape[1] != law.d or len(candidates) == 0:
        raise argument_error("tasks", candidates.shape, f"of shape (k, {law.d})")
    covariance, prior, query = law.dense.moments
    token_factor = root(covariance)
    task_factor = root(prior)
    query_factor = root(query)

    def sampled_loss() -> float:
        """Return the loss of one prompt, averaged over its query."""
        if new:
            task = rng.normal(size=law.d) @ task_factor
        else:
            task = candidates[rng.integers(len(candidates))]
        tokens = rng.normal(size=(_length(law), law.d)) @ token_factor
        label_noise = law.noise * rng.normal(size=(len(tokens), 1))
        # y - X w_j for each of the k tasks, (N, k).
        residuals = tokens @ (task - candidates).T + label_noise
        log_weights = -0.5 * np.sum(residuals**2, axis=0) / law.noise**2
        # The largest weight becomes 1, so that the sum of the weights cannot underflow.
        weights = np.exp(log_weights - log_weights.max())
        posterior_mean = weights @ candidates / weights.sum()
        # Half the mean square of xᵀ(posterior_mean - task) over queries x.
        return 0.5 * float(np.sum((query_factor @ (posterior_mean - task)) ** 2))

    return _estimate(sampled_loss, prompts)


def _law(problem: LinearAttention) -> PromptLaw:
    """Return the law of the prompts of a one-layer problem, with (d, d) moments."""
    if instance("problem", problem, LinearAttention, "a LinearAttention").depth > 1:
        raise argument_error("problem", problem, "of one layer")
    return problem.law().dense


def _counted_on_one_thread(count: int, unit: str = "prompts") -> Iterator[int]:
    """Yield 0 to count - 1, with a progress bar and one thread for linear algebra.

    ``unit`` is the word for what is counted. The threads are limited until the loop
    over the numbers ends.
    """
    # The matrices are small: several threads would wait for one another.
    with threadpool_limits(limits=1):
        yield from counted(range(count), unit)


def _length(law: PromptLaw) -> int:
    """Return the number of pairs in a prompt, which must be finite."""
    if math.isinf(law.N):
        raise argument_error("N", law.N, "finite: infinite prompts cannot be sampled")
    return int(law.N)


def _estimate(sampled_loss: Callable[[], float], prompts: int) -> Estimate:
    """Return the mean of the losses of sampled prompts, and its standard error.

    ``sampled_loss`` draws a prompt at each call, and ``prompts`` is their number.
    """
    prompts = integer("prompts", prompts, minimum=2)
    check_fits("prompts", prompts, 8.0 * prompts)
    losses = np.array([sampled_loss() for _ in _counted_on_one_thread(prompts)])
    error = float(losses.std(ddof=1)) / math.sqrt(prompts)
    return Estimate(float(losses.mean()), error)
