r"""Pretraining of linear attention on k tasks and n prompts, and its exact test error.

`Pretraining` is the setting of Letey et al. at finite size. The fit to a draw of its
tasks and prompts is a matrix Γ, whose test error is exact (`error_kernel`).

A layer predicts :math:`\hat y = x^\top(\Gamma h + \gamma s)` for the query x, from the
means :math:`h = \frac1N\sum_i y_ix_i` and :math:`s = \frac1N\sum_i y_i^2` over the N
pairs of a prompt. The column γ is optional. Λ is the covariance of the tokens, here I.
A task is a vector w, and W is the second moment of the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    flag,
    integer,
    number,
    set_fields,
    whole_or_infinite,
)
from icl_theory.memory import check_fits
from icl_theory.papers.alignment.kernel import ErrorKernel, error_kernel
from icl_theory.papers.alignment.limit import AlignmentLimit
from icl_theory.papers.linear_attention.empirical import EmpiricalRisk, equations
from icl_theory.papers.linear_attention.law import PromptLaw, moment, root


@dataclass(frozen=True, eq=False)
class Prompts:
    """The numbers of n drawn prompts that determine the errors of any layer on them.

    Attributes
    ----------
    query : ndarray, (n, d)
        Queries x, which are standard normal.
    means : ndarray, (n, d) or (n, d + 1)
        The mean h of each prompt, followed by the mean s of squared labels if the layer
        has the column γ.
    answer : ndarray, (n,)
        Labels of the queries, with noise.
    """

    query: Array
    means: Array
    answer: Array


@dataclass(frozen=True, eq=False)
class Pretraining:
    r"""Pretraining on k tasks of one covariance, tested on tasks of another one.

    Tokens and queries are standard normal in d dimensions. A task w is normal with the
    covariance C/d, so that labels :math:`w^\top x` have the variance c = tr C/d before
    noise is added. C is :math:`C_{train}` in pretraining, and :math:`C_{test}` in
    tests.

    Parameters
    ----------
    covariance : array_like, (d, d) or (d,)
        Covariance C_train of the pretraining tasks, or its diagonal.
    N : int
        Pairs in a prompt.
    tasks : int or math.inf
        Number k of pretraining tasks.
    prompts : int or math.inf
        Number n of pretraining prompts. Each has one of the k tasks.
    noise : float
        Standard deviation σ of the label noise, label units.
    squares : bool
        Whether the layer also sees the mean of squared labels, as in the paper. The
        layer then has the column γ.

    Raises
    ------
    ValueError
        An argument is not allowed; the message names it.

    References
    ----------
    docs/theory/alignment.md; Letey, Zavatone-Veth, Lu, Pehlevan 2026.

    Examples
    --------
    Eight pretraining tasks in four dimensions, and tests along the first and along the
    last axis:

    >>> from icl_theory.papers.alignment.pretraining import Pretraining
    >>> problem = Pretraining([3.7, 0.1, 0.1, 0.1], N=40, tasks=8)
    >>> errors = problem.errors([[4, 0, 0, 0], [0, 0, 0, 4]], draws=200)
    >>> errors.mean(axis=0).round(1).tolist()
    [0.1, 0.4]
    """

    covariance: Array
    N: int
    tasks: float = math.inf
    prompts: float = math.inf
    noise: float = 0.0
    squares: bool = False

    def __post_init__(self) -> None:
        set_fields(
            self,
            covariance=moment("covariance", self.covariance),
            N=integer("N", self.N, minimum=1),
            tasks=whole_or_infinite("tasks", self.tasks, minimum=1),
            prompts=whole_or_infinite("prompts", self.prompts, minimum=1),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            squares=flag("squares", self.squares),
        )

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return len(self.covariance)

    @property
    def features(self) -> int:
        """Number of trained entries: d² of Γ, and d of γ if the layer has it."""
        return self.d * (self.d + int(self.squares))

    def law(self, tasks: ArrayLike | None = None) -> PromptLaw:
        """Return the law of the prompts with given tasks, or with normal ones.

        Parameters
        ----------
        tasks : array_like, (k, d), optional
            Pretraining tasks, which are equally likely. By default tasks are normal
            with the covariance C_train/d.

        Returns
        -------
        PromptLaw
        """
        if tasks is None:
            prior = self.covariance / self.d
        else:
            w = np.asarray(tasks, dtype=float)
            prior = w.T @ w / len(w)
        return PromptLaw(np.ones(self.d), prior, N=self.N, noise=self.noise)

    def draw_tasks(self, rng: np.random.Generator, count: int) -> Array:
        """Draw normal tasks of the covariance C_train/d, (count, d)."""
        normal = rng.normal(size=(count, self.d)) / math.sqrt(self.d)
        if self.covariance.ndim == 1:
            return np.asarray(normal * np.sqrt(self.covariance))
        # root(C) is a matrix F with FᵀF = C. A row of standard normal numbers times F
        # has the covariance C.
        return np.asarray(normal @ root(self.covariance))

    def draw_prompts(self, seed: int = 0) -> Prompts:
        """Draw the k tasks, and the n pretraining prompts.

        Parameters
        ----------
        seed : int
            Seed of the draw.

        Returns
        -------
        Prompts

        Raises
        ------
        ValueError
            The number of prompts is infinite, or they do not fit into memory.
        """
        if math.isinf(self.prompts):
            raise argument_error("prompts", self.prompts, "finite, to draw them")
        n = int(self.prompts)
        # Each prompt has N d numbers for the tokens, d for the query and d² products of
        # query and means. Allow three times their bytes, 24 for each number: a generous
        # allowance for all that is computed.
        check_fits("prompts", n, 24.0 * n * (self.N + self.d + 1.0) * self.d)
        rng = np.random.default_rng(integer("seed", seed, minimum=0))
        # w has the task of each prompt, (n, d).
        if math.isinf(self.tasks):
            w = self.draw_tasks(rng, n)
        else:
            pretraining_tasks = self.draw_tasks(rng, int(self.tasks))
            w = pretraining_tasks[rng.integers(len(pretraining_tasks), size=n)]
        tokens = rng.normal(size=(n, self.N, self.d))
        query = rng.normal(size=(n, self.d))
        # In the subscripts, p is the prompt, i the pair, and d the coordinate.
        labels = np.einsum("pid,pd->pi", tokens, w)
        labels += self.noise * rng.normal(size=labels.shape)
        answer = np.sum(query * w, axis=1) + self.noise * rng.normal(size=n)
        means = np.einsum("pi,pid->pd", labels, tokens) / self.N
        if self.squares:
            mean_square = np.mean(labels**2, axis=1)
            means = np.column_stack([means, mean_square])
        return Prompts(query, means, answer)

    def risk(self, seed: int = 0) -> EmpiricalRisk:
        """Return the loss of Γ on n drawn prompts, as a risk that starts at Γ = 0.

        Parameters
        ----------
        seed : int
            Seed of the draw.

        Returns
        -------
        EmpiricalRisk
            Descent on this risk has a closed form. Its ``best`` is the fit of least
            norm.

        Raises
        ------
        ValueError
            The layer has the column γ, or the number of prompts is infinite.
        """
        # In the equations that `equations` makes of the prompts, the unknowns are the
        # entries of Γ alone. With ``squares`` the layer also has γ.
        if self.squares:
            raise argument_error("squares", self.squares, "False, for descent")
        drawn = self.draw_prompts(seed)
        system = equations(drawn.query, drawn.means, drawn.answer)
        return EmpiricalRisk(system, np.zeros((self.d, self.d)))

    def fit(self, seed: int = 0, ridge: float = 0.0) -> Array:
        r"""Draw tasks and prompts, and return the matrix that fits the prompts best.

        The matrix G is Γ, or :math:`(\Gamma, \gamma)` if the layer has the column γ. It
        minimises :math:`\frac1n\sum_m(\hat y_m - y_m)^2 + \lambda\lVert G\rVert_F^2`,
        in which :math:`y_m` is the label of the query of prompt m. For λ = 0 and fewer
        prompts than trained entries it is the minimiser of least norm, at which
        gradient descent from zero ends. For infinitely many prompts the mean over
        prompts becomes the expectation over all prompts with the drawn tasks.

        Parameters
        ----------
        seed : int
            Seed of the draw.
        ridge : float
            λ.

        Returns
        -------
        ndarray, (d, d) or (d, d + 1)
            The matrix G.
        """
        ridge = number("ridge", ridge, zero=True, maximum=LARGEST)
        if math.isinf(self.prompts):
            return self._fit_to_law(seed, ridge)
        drawn = self.draw_prompts(seed)
        n = len(drawn.answer)
        # Four copies, with 8 bytes for each number, of the n equations and of a square
        # matrix with a row for each trained entry. This is a generous estimate of the
        # memory that least squares need.
        check_fits("prompts", n, 32.0 * (n + self.features) * self.features)
        # A prompt has the equation Σ G_ij x_i φ_j = y, divided by √n. The features φ of
        # the prompt are its ``means``: h, or h and s.
        products = drawn.query[:, :, None] * drawn.means[:, None, :]
        system = products.reshape(n, -1) / math.sqrt(n)
        target = drawn.answer / math.sqrt(n)
        if ridge > 0.0:
            # The equations √λ G_ij = 0, one for each entry, add λ‖G‖² to the sum of
            # squares.
            system = np.vstack([system, math.sqrt(ridge) * np.eye(self.features)])
            target = np.concatenate([target, np.zeros(self.features)])
        solution, *_ = np.linalg.lstsq(system, target)
        return np.asarray(solution.reshape(self.d, -1))

    def _fit_to_law(self, seed: int, ridge: float) -> Array:
        """Return the matrix of `fit` for infinitely many prompts of k drawn tasks.

        With infinitely many tasks nothing is drawn. The matrix is (d, d) or (d, d + 1).
        """
        if math.isinf(self.tasks):
            # The best γ is zero here. Over normal tasks the means of sh and of sw
            # vanish, because both are odd in w.
            moments = _FeatureMoments.of_law(self.law(), self.squares)
        else:
            rng = np.random.default_rng(integer("seed", seed, minimum=0))
            w = self.draw_tasks(rng, int(self.tasks))
            moments = _FeatureMoments.of_tasks(self.law(w), w, self.squares)
        # The normal equations are G(E φφᵀ + λI) = E wφᵀ with the features φ = (h, s),
        # or φ = h. The code solves their transpose. Least squares take the solution of
        # least norm if the matrix in parentheses is singular.
        second = moments.second + ridge * np.eye(len(moments.second))
        solution, *_ = np.linalg.lstsq(second, moments.cross.T)
        return np.asarray(solution.T)

    def kernel(self, gamma: ArrayLike) -> ErrorKernel:
        """Return the exact test error of a matrix as a function of the test tasks."""
        # `error_kernel` does not use the prior of this law, so any prior will do.
        return error_kernel(gamma, self.law())

    def errors(
        self,
        tests: Sequence[ArrayLike],
        draws: int = 100,
        seed: int = 0,
        ridge: float = 0.0,
    ) -> Array:
        """Return exact test errors for several draws of the pretraining set.

        Parameters
        ----------
        tests : sequence of array_like, (d, d) or (d,)
            Covariances C_test of the test tasks, or their diagonals.
        draws, seed : int
            Number of draws, and the seed of the first draw. Each further draw has the
            next seed.
        ridge : float
            The ridge λ of `fit`.

        Returns
        -------
        ndarray, (draws, tests), squared label units
            The mean over the first axis estimates the expected error.
        """
        draws = integer("draws", draws, minimum=1)
        # Tests of the covariance C have tasks of the second moment C/d, as in
        # pretraining.
        second_moments = [moment("tests", test, self.d) / self.d for test in tests]
        errors = np.empty((draws, len(second_moments)))
        for draw in range(draws):
            kernel = self.kernel(self.fit(seed + draw, ridge))
            for index, second_moment in enumerate(second_moments):
                errors[draw, index] = kernel.error(second_moment)
        return errors

    def limit(self) -> AlignmentLimit:
        """Return the limit of many dimensions at the ratios N/d, k/d and n/d²."""
        d = self.d
        return AlignmentLimit(
            self.covariance,
            context=self.N / d,
            diversity=self.tasks / d,
            prompts=self.prompts / d**2,
            noise=self.noise,
        )


@dataclass(frozen=True, eq=False)
class _FeatureMoments:
    """Second moments of the features of a prompt, and mean products with its task w.

    The features are h and s, or h alone without the column γ. E is the mean over
    prompts.
    """

    second: Array  # E (h, s)(h, s)ᵀ, (d, d) or (d + 1, d + 1)
    cross: Array  # E w (h, s)ᵀ, (d, d) or (d, d + 1)

    @classmethod
    def of_law(cls, law: PromptLaw, squares: bool) -> _FeatureMoments:
        """Return the means over prompts with normal tasks."""
        dense = law.dense  # ``dense.second`` is E h hᵀ
        _, prior, _ = dense.moments  # W, which is also E w hᵀ as Λ = I
        if not squares:
            return cls(dense.second, prior)
        # As Λ = I, the label variance v = |w|² + σ² of a task has the mean tr W + σ²
        # and the variance 2 tr W² over normal tasks. As vw is odd in w, its mean
        # vanishes.
        mean_v = float(np.trace(prior)) + law.noise**2
        mean_v_square = mean_v**2 + 2.0 * float(np.sum(prior**2))
        mean_vw = np.zeros(law.d)
        return cls._with_squares(dense, mean_vw, mean_v_square)

    @classmethod
    def of_tasks(cls, law: PromptLaw, tasks: Array, squares: bool) -> _FeatureMoments:
        """Return the means over prompts with k tasks, which are equally likely.

        The ``law`` must be the law of prompts with these tasks, so that its W is their
        second moment. Then E w hᵀ is W, because tokens have the covariance I.
        """
        dense = law.dense  # ``dense.second`` is E h hᵀ
        _, prior, _ = dense.moments  # W
        if not squares:
            return cls(dense.second, prior)
        v = np.sum(tasks**2, axis=1) + law.noise**2  # label variance of each task
        mean_vw = (v[:, None] * tasks).mean(axis=0)
        return cls._with_squares(dense, mean_vw, float(np.mean(v**2)))

    @classmethod
    def _with_squares(
        cls, law: PromptLaw, mean_vw: Array, mean_v_square: float
    ) -> _FeatureMoments:
        """Return the moments of the features h and s.

        ``law`` is the law of the prompts with matrices, so that ``law.second`` is
        E h hᵀ. For a given task with the label variance v, E s = v, E sh = (1 + 2/N)vw
        and E s² = (1 + 2/N)v². The arguments ``mean_vw`` and ``mean_v_square`` are the
        means of vw and of v² over tasks.
        """
        factor = 1.0 + 2.0 / law.N
        second = np.block(
            [
                [law.second, factor * mean_vw[:, None]],
                [factor * mean_vw[None, :], np.array([[factor * mean_v_square]])],
            ]
        )
        _, prior, _ = law.moments
        # E w hᵀ = w wᵀ and E ws = vw for a given task, as Λ = I.
        return cls(second, np.column_stack([prior, mean_vw]))
