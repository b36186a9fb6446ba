"""Linear attention on sampled prompts, with gradients.

Prompts are drawn anew in every step. Means over sampled prompts check the formulas of
the population risk, because this module uses none of them.

Letters: a prompt has N pairs of a token of dimension d and a label. Its task is w, its
query x, and h the mean of label times token. R runs are trained together, with M
prompts for each run, and B prompts in all. In the subscripts of ``einsum``, b is the
prompt, n the pair, and d the entry of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    instance,
    integer,
    real_array,
    set_fields,
)
from icl_theory.engine.risk import WithStart
from icl_theory.engine.sampling import (
    Trainer,
    drawn_at_once,
    prompts_per_run,
    prompts_to_draw,
)
from icl_theory.memory import check_fits
from icl_theory.papers.linear_attention.empirical import (
    LARGEST_SYSTEM,
    EmpiricalRisk,
    bilinear_equations,
    equations,
)
from icl_theory.papers.linear_attention.law import PromptLaw, prompt_law, root, shaped

# Largest number of layers of a sampled loop. Many layers only cost time; the limit
# catches mistakes.
DEEPEST_LOOP = 10_000


class Prompts(NamedTuple):
    """B prompts with their queries."""

    tokens: Array  # (B, N, d)
    labels: Array  # (B, N)
    query: Array  # (B, d)
    answer: Array  # to the query, (B,)


@dataclass(frozen=True, eq=False)
class SampledRisk(WithStart, Trainer[Prompts]):
    r"""Squared error of :math:`x^\top\Gamma h` on fresh prompts, over the matrix Γ.

    Parameters
    ----------
    law : PromptLaw
        Law of the prompts; tasks are normal.
    start : ndarray, (d, d)
        Γ at step 0.
    batch, seed : int
        Prompts in a step, and the seed. The prompts of step t depend on seed and t
        alone.

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10)
    >>> risk = icl.linear_attention.SampledRisk(law, np.eye(2), batch=100_000)
    >>> round(risk.loss(np.eye(2)), 2), round(law.loss(np.eye(2)), 2)
    (0.21, 0.21)
    """

    law: PromptLaw
    start: Array
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not np.isfinite(prompt_law(self.law).N):
            raise argument_error(
                "N", self.law.N, "finite: infinite prompts cannot be sampled"
            )
        set_fields(self, batch=integer("batch", self.batch, minimum=1))
        set_fields(self, seed=integer("seed", self.seed, minimum=0))
        set_fields(self, start=shaped("start", self.start, self._shape))
        # A number takes 8 bytes.
        check_fits("batch", self.batch, 8.0 * self.batch * self._numbers)

    @property
    def _numbers(self) -> float:
        """How many numbers a prompt takes in memory.

        The number is a generous bound: N tokens, a query and a task of d numbers with a
        label each, and three copies of them in the course of a computation.
        """
        return 4.0 * (self.law.N + 2.0) * (self.law.d + 2.0)

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the parameters; subclasses with other parameters override it."""
        return (self.law.d, self.law.d)

    @cached_property
    def roots(self) -> tuple[Array, Array, Array]:
        """Roots F of the second moments FᵀF of tokens, tasks and queries, (d, d) each.

        A normal vector z becomes zᵀF, which has this second moment.
        """
        covariance, prior, query = self.law.dense.moments
        return root(covariance), root(prior), root(query)

    def draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw prompts, whose number is ``size``."""
        # `prompts_to_draw` checks the generator, and that the prompts fit into memory.
        B = prompts_to_draw(rng, size, self._numbers)
        token_root, task_root, query_root = self.roots
        d = self.law.d
        N = int(self.law.N)
        # One product of matrices with two axes is faster than B products.
        tokens = (rng.standard_normal((B * N, d)) @ token_root).reshape(B, N, d)
        task = rng.standard_normal((B, d)) @ task_root
        query = rng.standard_normal((B, d)) @ query_root
        noise = self.law.noise * rng.standard_normal((B, N))
        labels = np.einsum("bnd,bd->bn", tokens, task) + noise
        answer = np.sum(query * task, axis=1)
        return Prompts(tokens, labels, query, answer)

    def check_given(self, prompts: Prompts) -> None:
        """Refuse given prompts that do not have N pairs in d dimensions.

        Parameters
        ----------
        prompts : Prompts
            Prompts that a user gives.
        """
        instance("prompts", prompts, Prompts, "prompts of this trainer")
        shape = np.shape(prompts.tokens)
        if shape[1:] != (self.law.N, self.law.d):
            raise argument_error(
                "tokens of the prompts",
                shape,
                f"of shape (B, {self.law.N:.0f}, {self.law.d}), with N pairs",
            )

    def condensed(self, prompts: Prompts) -> EmpiricalRisk | None:
        """Return the loss of given prompts as a quadratic form in Γ.

        The result is None if the form is too large, or if the parameters are not Γ.
        Training then evaluates the prompts at each step.
        """
        instance("prompts", prompts, Prompts, "prompts of this trainer")
        M, d = prompts.query.shape
        # M prompts make at most d² + 1 equations. Above the limit their singular values
        # take minutes.
        if self._shape != (d, d) or min(M, d * d) > LARGEST_SYSTEM:
            return None
        N = prompts.tokens.shape[1]
        h = np.einsum("bn,bnd->bd", prompts.labels, prompts.tokens) / N
        system = equations(prompts.query, h, prompts.answer)
        return EmpiricalRisk(system, self.start)

    def losses_on(self, params: Array, prompts: Prompts) -> Array:
        """Loss of each of B prompts, (B,)."""
        # All prompts belong to a single run.
        errors, _ = self._passes(params[None], prompts)
        return 0.5 * errors[0] ** 2

    def evaluate_on(self, params: Array, prompts: Prompts) -> tuple[float, Array]:
        """Mean loss of some prompts, and its gradient."""
        losses, gradients = self.evaluate_runs(params[None], prompts)
        return float(losses[0]), gradients[0]

    def evaluate_runs(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Mean losses and gradients of R runs, (R,) and (R, ...).

        ``params`` has the parameters of each run, (R, ...). The prompts of the first
        run come first, then those of the second, and so on.
        """
        errors, gradients = self._passes(params, prompts)
        return 0.5 * np.mean(errors**2, axis=1), gradients

    def cheaper(self) -> Trainer[Any]:
        """Return ``ReducedRisk``, for which h is drawn without the tokens."""
        return ReducedRisk(self)

    def _passes(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return the errors of R runs on M prompts each, (R, M), and gradients.

        There is a gradient of the mean loss for each run, (R, ...). The prompts of the
        first run come first, then those of the second, and so on.
        """
        tokens = prompts.tokens
        h = np.einsum("bn,bnd->bd", prompts.labels, tokens) / tokens.shape[1]
        return _bilinear_passes(params, Means(h, prompts.query, prompts.answer))


class Means(NamedTuple):
    """B prompts, each reduced to the mean of its labelled tokens."""

    h: Array  # mean of label times token, (B, d)
    query: Array  # (B, d)
    answer: Array  # to the query, (B,)


def _bilinear_passes(params: Array, means: Means) -> tuple[Array, Array]:
    """Return errors of R runs over Γ on M prompts each, (R, M), and gradients.

    There is a gradient of the mean loss for each run, (R, d, d). ``params`` has the Γ
    of each run, (R, d, d). The R M prompts are in the order of the runs.
    """
    R = len(params)
    M = prompts_per_run(means, R)
    h = means.h.reshape(R, M, -1)
    query = means.query.reshape(R, M, -1)
    predictions = np.sum((query @ params) * h, axis=2)  # xᵀΓh
    errors = predictions - means.answer.reshape(R, M)
    # The gradient of a run is the mean over its prompts of the error times x hᵀ.
    gradients = (query * errors[:, :, None]).swapaxes(1, 2) @ h / M
    return errors, gradients


class ReducedRisk(Trainer[Means]):
    r"""`SampledRisk` on prompts whose means h are drawn without their tokens.

    Losses and gradients have the same law, and a prompt of N tokens takes O(d) random
    numbers instead of O(Nd). Let the tokens be :math:`x_i = T^\top z_i` with standard
    normal :math:`z_i`, the rows of a matrix Z. For the task w, let :math:`u = Tw` have
    the length ρ and the direction e. With :math:`s = Ze \sim N(0, I_N)` and standard
    normal noise ξ, the labels are :math:`y = \rho s + \sigma\xi`, and

    .. math:: Nh = T^\top\bigl[e\,(s^\top y) + |y|\,(I - ee^\top) g\bigr], \qquad
        g \sim N(0, I_d),

    because the part of the tokens orthogonal to e is independent of y. The numbers
    :math:`s^\top y` and :math:`|y|^2` follow from :math:`|s|^2 \sim \chi^2_N`, from the
    component of ξ along s, and from the length of the part of ξ orthogonal to s. See
    docs/linear-attention-theory.md, "Prompts without tokens".

    Parameters
    ----------
    tokenwise : SampledRisk
        The trainer that draws token by token.
    """

    # ``stream`` is a part of the seed of each step, which the seeds of `SampledRisk` do
    # not have. So this class draws random numbers that are independent of the numbers
    # of `SampledRisk`.
    stream = (1,)

    def __init__(self, tokenwise: SampledRisk) -> None:
        self.tokenwise = tokenwise
        self.batch = tokenwise.batch
        self.seed = tokenwise.seed

    @property
    def initial(self) -> Array:
        """Γ at step 0, (d, d)."""
        return self.tokenwise.initial

    def draw(self, rng: np.random.Generator, size: int) -> Means:
        """Draw prompts, whose number is ``size``."""
        law = self.tokenwise.law
        d = law.d
        # `labelled_means` holds about ten vectors of d numbers per prompt; 12 is
        # generous.
        B = prompts_to_draw(rng, size, 12.0 * (d + 2.0))
        token_root, task_root, query_root = self.tokenwise.roots
        task = rng.standard_normal((B, d)) @ task_root
        query = rng.standard_normal((B, d)) @ query_root
        h = labelled_means(rng, law, token_root, task)
        return Means(h, query, np.sum(query * task, axis=1))

    def draw_runs(self, rng: np.random.Generator, runs: int) -> list[Means]:
        """Draw the prompts of several runs at once, which is faster than run by run."""
        return drawn_at_once(self, rng, runs)

    def losses_on(self, params: Array, prompts: Means) -> Array:
        """Loss of each of B prompts, (B,)."""
        # All prompts belong to a single run.
        errors, _ = _bilinear_passes(params[None], prompts)
        return 0.5 * errors[0] ** 2

    def evaluate_on(self, params: Array, prompts: Means) -> tuple[float, Array]:
        """Mean loss of some prompts, and its gradient."""
        losses, gradients = self.evaluate_runs(params[None], prompts)
        return float(losses[0]), gradients[0]

    def evaluate_runs(self, params: Array, prompts: Means) -> tuple[Array, Array]:
        """Mean losses and gradients of R runs, (R,) and (R, d, d).

        The prompts are in the order of the runs.
        """
        errors, gradients = _bilinear_passes(params, prompts)
        return 0.5 * np.mean(errors**2, axis=1), gradients


def labelled_means(
    rng: np.random.Generator, law: PromptLaw, token_root: Array, task: Array
) -> Array:
    r"""Draw the means h of B prompts, (B, d), by the formula of `ReducedRisk`.

    Parameters
    ----------
    rng : numpy.random.Generator
        The source of randomness.
    law : PromptLaw
        The law of the prompts, with finite N.
    token_root : ndarray, (d, d)
        Root T of the covariance :math:`T^\top T` of the tokens.
    task : ndarray, (B, d)
        Tasks of the prompts.
    """
    B = len(task)
    N = int(law.N)
    u = task @ token_root.T  # Tw for each prompt, (B, d)
    rho = np.sqrt(np.sum(u**2, axis=1))
    # If Tw is zero, it has no direction. The labels are then noise alone, for which the
    # formula holds with e = 0.
    e = u / np.where(rho > 0.0, rho, 1.0)[:, None]
    s_square = rng.chisquare(N, B)  # |s|²
    # Without noise y = ρs, so that sᵀy = ρ|s|² and |y|² = ρ²|s|².
    s_y = rho * s_square
    y_square = rho * s_y
    if law.noise:
        # `noise_along` is the component of the noise along s. `noise_across_square` is
        # the squared length of the noise orthogonal to s, divided by σ². A prompt of
        # one pair has no direction orthogonal to s, and numpy refuses a chi-square law
        # of 0 degrees of freedom.
        noise_along = law.noise * rng.standard_normal(B)
        noise_across_square = rng.chisquare(N - 1, B) if N > 1 else np.zeros(B)
        s_noise = np.sqrt(s_square) * noise_along
        s_y = s_y + s_noise
        y_square = y_square + 2.0 * rho * s_noise + noise_along**2
        y_square = y_square + law.noise**2 * noise_across_square
    g = rng.standard_normal((B, law.d))
    g_across = g - e * np.sum(e * g, axis=1)[:, None]  # (I - eeᵀ) g
    # Rounding may make the square of a length that is 0 negative.
    y_length = np.sqrt(np.maximum(y_square, 0.0))
    return (e * s_y[:, None] + g_across * y_length[:, None]) @ token_root / N


@dataclass(frozen=True, eq=False)
class SampledLoop(SampledRisk):
    r"""Squared error of D layers in a loop on fresh prompts, over γ, (1,).

    Each layer adds :math:`\frac\gamma D(h - \hat\Sigma w)` to the estimate w of the
    task, which starts at zero. Here :math:`\hat\Sigma = \frac1N\sum x_ix_i^\top`.

    Parameters
    ----------
    law, start, batch, seed, depth
        As for `SampledRisk`; ``start`` is γ at step 0, (1,), and ``depth`` the number D
        of layers.
    """

    depth: int = 1

    # A loop reads more of a prompt than h. So, unlike `SampledRisk`, it has no cheaper
    # trainer, and takes the method of the base class, which returns the trainer itself.
    cheaper = Trainer.cheaper

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(
            self, depth=integer("depth", self.depth, minimum=1, maximum=DEEPEST_LOOP)
        )

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the parameters: the one number γ."""
        return (1,)

    def _passes(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return errors of R runs on M prompts, (R, M), and slopes of mean losses.

        The slopes, (R, 1), are derivatives with respect to γ.
        """
        tokens, labels, query, answer = prompts
        M = prompts_per_run(prompts, len(params))
        N = tokens.shape[1]
        # The rate γ/D of a layer, in the run to which a prompt belongs; (R M, 1).
        rate = np.repeat(params / self.depth, M, axis=0)
        rate_slope = 1.0 / self.depth
        # The estimate w of the task, and its slope, from layer to layer; (R M, d).
        w = np.zeros_like(query)
        w_slope = np.zeros_like(query)
        for _ in range(self.depth):
            residual = labels - np.einsum("bnd,bd->bn", tokens, w)
            descent = np.einsum("bn,bnd->bd", residual, tokens) / N  # h - Σ̂w
            # Σ̂w' for the slope w' of w. The slope of h - Σ̂w is -Σ̂w'.
            fit_slope = np.einsum("bnd,bd->bn", tokens, w_slope)
            sigma_w_slope = np.einsum("bn,bnd->bd", fit_slope, tokens) / N
            w = w + rate * descent
            w_slope = w_slope + rate_slope * descent - rate * sigma_w_slope
        errors = np.sum(query * w, axis=1) - answer
        loss_slopes = errors * np.sum(query * w_slope, axis=1)
        slopes_of_runs = loss_slopes.reshape(-1, M)
        return errors.reshape(-1, M), slopes_of_runs.mean(axis=1, keepdims=True)


class SampledLayer(SampledRisk):
    r"""The loss of a layer of H heads on sampled prompts.

    The parameters are its matrices :math:`P_h` and :math:`K_h`, (2, H, d + 1, d + 1).

    The prompt is the matrix :math:`E` with columns :math:`(x_i, y_i)` and :math:`(x,
    0)`. The prediction is the last entry of
    :math:`\frac1N\sum_hP_hEE^\top K_h(x, 0)`.

    Parameters
    ----------
    law, start, batch, seed
        As for `SampledRisk`; ``start`` has the matrices at step 0.
    """

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the parameters, with as many heads as the start has."""
        size = self.law.d + 1
        return (2, self._heads, size, size)

    @property
    def _heads(self) -> int:
        """The number H, or 1 for a start of another shape.

        The constructor refuses such a start, because its shape is not ``_shape``.
        """
        if np.ndim(self.start) != 4:
            return 1
        _, heads, _, _ = np.shape(self.start)
        return heads

    @property
    def _numbers(self) -> float:
        """How many numbers a prompt takes in memory; a generous bound.

        In addition to the numbers of `SampledRisk`, a prompt has the matrix EEᵀ/N, and
        four vectors of d + 1 numbers for each head.
        """
        size = self.law.d + 2.0
        return super()._numbers + size * (size + 4.0 * self._heads)

    def cheaper(self) -> Trainer[Prompts]:
        """Return the trainer itself: a layer reads more of a prompt than h."""
        return self

    def blocks(self, array: Array) -> Sequence[Array]:
        """The matrices P_h of all heads, and then the matrices K_h."""
        return tuple(array.reshape(-1, *array.shape[-2:]))

    def _passes(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return errors of R runs on M prompts, (R, M), and gradients of mean losses.

        With G = EEᵀ/N the prediction is the sum over heads of p_hᵀ G K_h (x, 0). Only
        the last row p_h of a matrix P_h matters.
        """
        R = len(params)
        M = prompts_per_run(prompts, R)
        gram, query_column = _gram_and_query(prompts)
        size = query_column.shape[1]
        gram = gram.reshape(R, M, size, size)
        query_column = query_column.reshape(R, M, size)

        # In the sums r is the run, b its prompt, h the head, and i, j, k are entries.
        p = params[:, 0, :, -1]  # (R, H, d + 1)
        K = params[:, 1]  # (R, H, d + 1, d + 1)
        # K_h (x, 0) and G K_h (x, 0) of all runs, prompts and heads; (R, M, H, d + 1).
        # G is symmetric, so it may stand to the right of a vector as well.
        K_query = np.einsum("rhij,rbj->rbhi", K, query_column)
        G_K_query = np.matmul(K_query, gram)
        outputs = np.einsum("rhi,rbhi->rb", p, G_K_query)
        errors = outputs - prompts.answer.reshape(R, M)

        # The gradient is a mean over prompts. With respect to p_h it is the mean of the
        # error times G K_h (x, 0), and with respect to K_h the mean of the error times
        # G p_h (x, 0)ᵀ. Other rows of P_h have no gradient.
        gradients = np.zeros_like(params)
        gradients[:, 0, :, -1] = np.einsum("rb,rbhi->rhi", errors, G_K_query) / M
        error_G_p = np.einsum("rb,rhi,rbij->rbhj", errors, p, gram)
        gradients[:, 1] = np.einsum("rbhj,rbk->rhjk", error_G_p, query_column) / M
        return errors, gradients


class SampledTensor(SampledRisk):
    r"""The prediction :math:`\sum B_{abm}(EE^\top/N)_{ab}x_m` on sampled prompts.

    It is the prediction of a whole layer, for the matrix :math:`E` of a prompt with
    columns :math:`(x_i, y_i)` and :math:`(x, 0)`. The tensor B stands for the sum over
    heads :math:`\sum_h p_{ha} (K_h)_{bm}`, with the last row :math:`p_h` of
    :math:`P_h`. The entries of B themselves are trained. In this class B is the tensor,
    and not the number of prompts.

    Parameters
    ----------
    law, start, batch, seed
        As for `SampledRisk`; ``start`` is B at step 0, (d + 1, d + 1, d).
    """

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the parameters B."""
        d = self.law.d
        return (d + 1, d + 1, d)

    @property
    def _numbers(self) -> float:
        """How many numbers a prompt takes in memory, with two copies of EEᵀ/N.

        The number is a generous bound.
        """
        return super()._numbers + 2.0 * (self.law.d + 2.0) ** 2

    def cheaper(self) -> Trainer[Prompts]:
        """Return the trainer itself: the prediction reads more of a prompt than h."""
        return self

    def condensed(self, prompts: Prompts) -> EmpiricalRisk | None:
        """Return the loss of given prompts as a quadratic form in B.

        The result is None if the form is too large. Training then evaluates the prompts
        at each step.
        """
        instance("prompts", prompts, Prompts, "prompts of this trainer")
        # For each prompt the prediction should equal the answer, an equation linear in
        # B. The quadratic form needs the singular values of all equations, which take
        # minutes above the limit.
        if min(len(prompts.answer), self.start.size) > LARGEST_SYSTEM:
            return None
        gram, query_column = _gram_and_query(prompts)
        flat_gram = gram.reshape(len(gram), -1)
        query = query_column[:, :-1]  # x alone, without the last entry 0
        system = bilinear_equations(flat_gram, query, prompts.answer)
        return EmpiricalRisk(system, self.start)

    def _passes(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return errors of R runs on M prompts, (R, M), and gradients of mean losses.

        If the entries of EEᵀ/N are written as one vector g, B is a matrix, and the
        prediction is the bilinear form gᵀBx.
        """
        R = len(params)
        M = prompts_per_run(prompts, R)
        gram, query_column = _gram_and_query(prompts)
        flat_gram = gram.reshape(R, M, -1)
        # x alone, without the last entry 0.
        query = query_column[:, :-1].reshape(R, M, -1)
        B = params.reshape(R, flat_gram.shape[2], -1)
        outputs = np.sum((flat_gram @ B) * query, axis=2)
        errors = outputs - prompts.answer.reshape(R, M)
        # The gradient of a run is the mean over its prompts of the error times g xᵀ.
        error_gram = flat_gram * errors[:, :, None]
        gradients = error_gram.swapaxes(1, 2) @ query / M
        return errors, gradients.reshape(params.shape)


def _gram_and_query(prompts: Prompts) -> tuple[Array, Array]:
    """Return EEᵀ/N of B prompts, (B, d + 1, d + 1), and (x, 0), (B, d + 1)."""
    N = prompts.tokens.shape[1]
    # The columns (x_i, y_i) of E, and its last column (x, 0).
    pairs = np.concatenate([prompts.tokens, prompts.labels[:, :, None]], axis=2)
    query_column = np.pad(prompts.query, ((0, 0), (0, 1)))
    columns = np.concatenate([pairs, query_column[:, None]], axis=1)
    return np.matmul(columns.swapaxes(1, 2), columns) / N, query_column


class LayerRisk(SampledLayer):
    r"""The layer of one head on sampled prompts, over (P, K), (2, d + 1, d + 1).

    The prompt is the matrix :math:`E` with columns :math:`(x_i, y_i)` and :math:`(x,
    0)`. The prediction is the last entry of :math:`\frac1N P E E^\top K (x, 0)`. See
    docs/linear-attention-theory.md, "The layer".
    """

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the parameters (P, K)."""
        return (2, self.law.d + 1, self.law.d + 1)

    @classmethod
    def of(
        cls, law: PromptLaw, pair: ArrayLike, batch: int, seed: int = 0
    ) -> LayerRisk:
        """Return the risk that starts from the parameters (v, A) of a `Pair`.

        The parameters are v and the entries of A, or of its diagonal. The number v is
        the last entry of P, and the transpose of A is the first block of K. All other
        entries are zero, so that the layer predicts with Γ = vA.
        """
        d = prompt_law(law).d
        pair = real_array("pair", pair, 1)
        if len(pair) not in {1 + d, 1 + d * d}:
            raise argument_error(
                "pair", pair.shape, f"of shape ({1 + d},) or ({1 + d * d},)"
            )
        v = pair[0]
        entries = pair[1:]
        is_matrix = len(entries) == d * d
        A = entries.reshape(d, d) if is_matrix else np.diag(entries)
        P = np.zeros((d + 1, d + 1))
        K = np.zeros((d + 1, d + 1))
        P[d, d] = v
        K[:d, :d] = A.T
        return cls(law, np.array([P, K]), batch, seed)

    def _passes(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return errors of R runs on M prompts, (R, M), and mean losses' gradients."""
        # The parent class has an axis of heads, which is of length 1 here.
        errors, gradients = super()._passes(params[:, :, None], prompts)
        return errors, gradients[:, :, 0]
