"""Several softmax heads over the same tokens, added up with output weights.

In `HeadsRisk` the scores of each head are free, and the tokens have any law. In
`GaussianHeadsRisk` the inputs are Gaussian, and each head has one inverse temperature.

In the shapes below, H is the number of heads, U the number of nodes of the tokens, Q
the number of queries, D the number of coordinates of a value, R the number of runs and
N the largest number of tokens of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

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
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.tokens.cross import head_functions, mean_product, product
from icl_theory.tokens.gaussian import gaussian_queries, next_power_of_two
from icl_theory.tokens.risk import NUMBERS_OF_TOKEN, DrawnTokens, Kind, TokenRisk
from icl_theory.tokens.sampled import Pass, Sampled, first_places, softmax

# The ranges of ln ω in which the best inverse temperature ω is searched for. The search
# begins at `LOW_LOG_OMEGA` and goes up, with `FIRST_LOG_OMEGA` as its first upper end.
# If the loss already rises at `LOW_LOG_OMEGA`, the range from `LOWEST_LOG_OMEGA` to
# `LOW_LOG_OMEGA` is searched instead. For two heads, some laws with more dimensions d
# than tokens N have a best ln ω in this lower range (-5.1 for d = 75, N = 50, and -7
# for d = 1000, N = 20). Below this range the loss of two heads is constant up to
# rounding. Values of ω above 2 are not searched, because larger ω need ever more nodes.
LOWEST_LOG_OMEGA = -8.0
LOW_LOG_OMEGA = -5.0
FIRST_LOG_OMEGA = math.log(0.125)
HIGHEST_LOG_OMEGA = math.log(2.0)
# Let o_h be the average of head h. A singular value of the matrix E[o_h · o_h'] is
# treated as zero if it is below this share of the largest one: it may be rounding.
NEGLIGIBLE = 1e-14
# `HeadsRisk` takes at most this many heads. Each loss takes one integral for each pair
# of heads: about 2000 integrals at this limit.
MOST_HEADS = 64
# Error up to which the best ln ω is determined. The loss is stationary at the best ω,
# so the error of the loss is of second order.
ERROR_OF_LOG_OMEGA = 1e-5


class Products(NamedTuple):
    """Mean products for one query. The averages of the H heads are o_1, ..., o_H.

    The rows and columns of the Gram matrix stand for the errors o_1 - y, ..., o_H - y
    and, last, for the target y.
    """

    prob: float  # probability of the query
    gram: Array  # (H + 1, H + 1)
    # Derivatives of the entries of rows 1 ... H with respect to the scores of the row's
    # head, (H, H + 1, U). On the diagonal, where row and column have the same head, the
    # entry is half of the derivative, so that sums over rows and columns count the
    # derivative once.
    slopes: Array


@dataclass(frozen=True, eq=False)
class HeadsRisk(Risk):
    r"""The exact loss of H softmax heads with output weights :math:`\mu_h`.

    .. math:: \mathcal L = \tfrac12 E\Bigl|\sum_h \mu_h o_h - y\Bigr|^2

    with the softmax averages :math:`o_h` and the target y of `TokenRisk`. A parameter
    array, (H, 1 + UQ), has a row for each head: its output weight, and then the scores
    of the U nodes for the Q queries. Because

    .. math:: \sum_h \mu_h o_h - y
        = \sum_h \mu_h (o_h - y) + \Bigl(\sum_h \mu_h - 1\Bigr) y ,

    the loss is half a quadratic form of :math:`\mu_1, \ldots, \mu_H` and
    :math:`\sum_h \mu_h - 1`. The matrix of this form has the mean products of the
    errors :math:`o_h - y` and of the target y (see ``Products``).

    Parameters
    ----------
    tokens : TokenRisk
        The tokens of a prompt and the target.
    heads : int
        Number of heads H.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory.md, "Tokens".

    Examples
    --------
    Two heads with opposite output weights subtract the part that they have in common:

    >>> import icl_theory as icl, numpy as np
    >>> kind = icl.Kind(40, probs=[0.5, 0.5], values=[-1.0, 1.0])
    >>> risk = icl.HeadsRisk(icl.TokenRisk(kind, target=1.0), heads=2)
    >>> weights = risk.best_output([[0.0, 0.1], [0.0, -0.1]])
    >>> weights.round(2)
    array([ 10.25, -10.25])
    """

    tokens: TokenRisk
    heads: int = 2
    _target: Array = field(init=False, repr=False)  # (Q, D)
    # The same tokens with the target 0.
    _without_target: TokenRisk = field(init=False, repr=False)

    def __post_init__(self) -> None:
        instance("tokens", self.tokens, TokenRisk, "a TokenRisk")
        # The loss contains the target, which second moments of the errors do not give.
        if self.tokens.second is not None:
            raise argument_error(
                "tokens",
                self.tokens,
                "given by values and a target, not by second moments",
            )
        # `product` needs kinds whose numbers of tokens are independent.
        if self.tokens.grow_together:
            raise argument_error(
                "tokens",
                self.tokens,
                "of kinds whose numbers of tokens are independent",
            )
        set_fields(
            self, heads=integer("heads", self.heads, minimum=1, maximum=MOST_HEADS)
        )
        Q, _, D = self.tokens.errors.shape
        target = self.tokens.target
        set_fields(
            self,
            _target=np.broadcast_to(target.T, (Q, D)),
            _without_target=replace(self.tokens, target=np.zeros_like(target)),
        )

    @property
    def initial(self) -> Array:
        """Zero scores, and output weights 1/H, (H, 1 + UQ)."""
        start = np.zeros((self.heads, 1 + self.tokens.initial.size))
        start[:, 0] = 1.0 / self.heads
        return start

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (H, 1 + UQ)."""
        mu = params[:, 0]
        # The weights of the errors o_h - y and of the target y.
        weights = np.append(mu, mu.sum() - 1.0)
        loss = 0.0
        gradient = np.zeros_like(params)
        # A view, so that the loop fills the gradient: (H, U, Q).
        gradient_scores = gradient[:, 1:].reshape(
            len(mu), *self.tokens.mean_square.shape
        )
        for q, (p, gram, slopes) in enumerate(self._products(params[:, 1:])):
            # The query has the probability p, and the loss ½ weights·gram weights.
            gram_weights = gram @ weights
            loss += 0.5 * p * float(weights @ gram_weights)
            # μ_h is the weight of o_h - y, and it is also added to the weight of y.
            gradient[:, 0] += p * (gram_weights[:-1] + gram_weights[-1])
            # The scores of head h change row h of the Gram matrix, and column h by the
            # same amount. The two changes together cancel the factor ½.
            weighted_slopes = np.einsum("k,hku->hu", weights, slopes)
            gradient_scores[:, :, q] = p * mu[:, None] * weighted_slopes
        return loss, gradient

    def quadratic(self, scores: ArrayLike) -> tuple[Array, Array]:
        """Return E[o_h · o_h'], (H, H), and E[o_h · y], (H,).

        A row of ``scores``, (H, UQ), has the scores of one head.
        """
        checked = real_array("scores", scores, 2)
        columns = self.tokens.mean_square.size
        if not len(checked) or checked.shape[1] != columns:
            raise argument_error(
                "scores", checked.shape, f"of shape (H, {columns}), a row for each head"
            )
        mean_gram = np.sum([p * gram for p, gram in self._grams(checked)], axis=0)
        return moments_of_averages(mean_gram)

    def best_output(self, scores: ArrayLike) -> Array:
        """Return the output weights that minimise the loss for given scores, (H, UQ).

        If the minimum is not unique, the weights with the smallest norm are returned.
        """
        return least_output(*self.quadratic(scores))

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Output weights, and losses of single heads, (H,) each.

        The prediction of a single head is its average, with the output weight 1.
        """
        losses = []
        for scores in params[:, 1:]:
            loss, _ = self.tokens.evaluate(scores.reshape(self.tokens.initial.shape))
            losses.append(loss)
        return {"output": params[:, 0].copy(), "loss_per_head": np.array(losses)}

    def sampled(self, batch: int, seed: int = 0) -> Sampled[DrawnTokens]:
        """Return the trainer on sampled prompts, which are drawn token by token."""
        # A token takes NUMBERS_OF_TOKEN numbers in each head. As many numbers again,
        # and the D coordinates of the error, are shared by all heads.
        D = self.tokens.errors.shape[2]
        numbers = self.tokens.tokens_of_prompt * (
            self.heads * NUMBERS_OF_TOKEN + NUMBERS_OF_TOKEN + D
        )
        return Sampled(
            self.initial, self.tokens.draw, self._losses_on, batch, seed, numbers
        )

    def _losses_on(self, params: Array, prompts: DrawnTokens) -> Pass:
        """Return losses and derivatives on B prompts of R runs, see `Sampled`.

        The first axis of ``params`` runs over the runs. Each run has B/R prompts of up
        to N tokens.
        """
        # The array of queries is (B, 1), and the others are (B, N).
        query, node, is_missing, noise = prompts
        B = len(node)
        # The parameters of a run have a row for each head: its output weight, then its
        # scores, with the axes (node, query). `first_places` returns where the
        # parameters of each prompt's run begin. The indices of output weights have the
        # shape (B, H, 1), and the indices of scores (B, H, N).
        columns = params.shape[2]
        first_of_head = columns * np.arange(self.heads)[:, None]
        output_place = first_places(params, B)[:, None] + first_of_head
        number_of_queries = len(self.tokens.asked)
        place_among_scores = node * number_of_queries + query
        score_place = output_place + 1 + place_among_scores[:, None]
        mu = params.ravel()[output_place[:, :, 0]]
        scores = params.ravel()[score_place]
        attention, _ = softmax(np.where(is_missing[:, None], -np.inf, scores))

        errors = self.tokens.errors[query, node]  # (B, N, D)
        target = self._target[query[:, 0]]  # (B, D)
        mean_errors = np.einsum("bhn,bnd->bhd", attention, errors)
        mean_noise = np.einsum("bhn,bn->bh", attention, noise)
        # Σ μ_h o_h - y = Σ μ_h (o_h - y) + (Σ μ_h - 1) y, without the noise. The noise
        # counts as one more coordinate, because it is independent of the others.
        residual = np.einsum("bh,bhd->bd", mu, mean_errors)
        residual = residual + (mu.sum(axis=1) - 1.0)[:, None] * target
        noise_residual = np.einsum("bh,bh->b", mu, mean_noise)
        losses = 0.5 * (np.sum(residual**2, axis=1) + noise_residual**2)

        averages = mean_errors + target[:, None]  # o_h, (B, H, D)
        # ∂loss/∂μ_h = o_h·r + ξ̄_h r_noise, with the residual r, the mean noise ξ̄_h of
        # head h and the residual r_noise of the noise
        output_slopes = np.einsum("bhd,bd->bh", averages, residual)
        output_slopes = output_slopes + mean_noise * noise_residual[:, None]
        # The derivative of the loss with respect to the part Σ_h μ_h a_hn of token n in
        # the prediction, e_n·r + ξ_n r_noise, (B, N)
        token_slopes = np.einsum("bnd,bd->bn", errors, residual)
        token_slopes = token_slopes + noise * noise_residual[:, None]
        score_slopes = _score_slopes(mu, attention, token_slopes)
        places = np.concatenate([output_place, score_place], axis=2)
        slopes = np.concatenate([output_slopes[:, :, None], score_slopes], axis=2)
        return Pass(losses, places, slopes)

    def _grams(self, scores: Array) -> Iterator[tuple[float, Array]]:
        """Yield the probability and the Gram matrix of each query, see `Products`.

        Unlike `_products`, this method computes no slopes, and takes half the time.
        """
        tokens = self.tokens
        H = len(scores)
        scores_by_head = scores.reshape(H, *tokens.mean_square.shape)
        moments = [tokens.moments(theta) for theta in scores_by_head]
        for q, (errors, y) in enumerate(zip(tokens.errors, self._target, strict=True)):
            functions = [
                head_functions(theta[:, q], tokens.counts) for theta in scores_by_head
            ]
            gram = np.empty((H + 1, H + 1))
            gram[H, H] = y @ y
            for h in range(H):
                gram[h, h] = 2.0 * moments[h].loss[q]  # E|o_h - y|²
                gram[h, H] = self._with_target(moments[h].attention[:, q], q)
                gram[H, h] = gram[h, H]
                for k in range(h):
                    # E[(o_h - y)·(o_k - y)]
                    gram[h, k] = gram[k, h] = mean_product(
                        functions[h],
                        functions[k],
                        tokens.probs,
                        errors,
                        tokens.mean_square[:, q],
                        tokens.counts,
                    )
            yield tokens.asked[q], gram

    def _with_target(self, attention: Array, q: int) -> float:
        """Return E[(o - y)·y] for the mean attention (U,) of a query."""
        # The result is computed as E[o·y] - |y|². The mean of the errors v - y would
        # contain minus |y|² times the sum of the attention, which is 1 only up to
        # rounding.
        y = self._target[q]
        mean_average = attention @ ((self.tokens.errors[q] + y) @ y)
        return float(mean_average - y @ y)

    def _products(self, scores: Array) -> Iterator[Products]:
        """Yield the mean products of the heads' errors and the target, for each query.

        The scores, (H, UQ), are not checked.
        """
        tokens = self.tokens
        H = len(scores)
        scores_by_head = scores.reshape(H, *tokens.mean_square.shape)
        # Half of E|o_h - y|² and half of E|o_h|² for each head, with their gradients.
        errors_squared = [tokens.moments(theta) for theta in scores_by_head]
        averages_squared = [
            self._without_target.moments(theta) for theta in scores_by_head
        ]
        for q, (errors, y) in enumerate(zip(tokens.errors, self._target, strict=True)):
            gram = np.empty((H + 1, H + 1))
            slopes = np.empty((H, H + 1, scores_by_head.shape[1]))
            gram[H, H] = y @ y
            for h in range(H):
                moments = errors_squared[h]
                gram[h, h] = 2.0 * moments.loss[q]  # E|o_h - y|²
                slopes[h, h] = moments.gradient[:, q]  # half of its derivative
                gram[h, H] = self._with_target(moments.attention[:, q], q)
                gram[H, h] = gram[h, H]
                # (o - y)·y = ½ (|o|² - |o - y|² - |y|²)
                slopes[h, H] = averages_squared[h].gradient[:, q]
                slopes[h, H] -= moments.gradient[:, q]
                for k in range(h):
                    # E[(o_h - y)·(o_k - y)], and its derivatives with respect to the
                    # scores of head h and of head k
                    gram[h, k], slopes[h, k], slopes[k, h] = product(
                        scores_by_head[h, :, q],
                        scores_by_head[k, :, q],
                        tokens.probs,
                        errors,
                        tokens.mean_square[:, q],
                        tokens.counts,
                    )
                    gram[k, h] = gram[h, k]
            yield Products(tokens.asked[q], gram, slopes)


def _score_slopes(mu: Array, attention: Array, token_slopes: Array) -> Array:
    """Return the derivatives of losses with respect to the scores, (B, H, N).

    The derivative for token n in head h is μ_h a_n (f_n - Σ_m a_m f_m). Here a is the
    ``attention`` of the head, (B, H, N), and f are the ``token_slopes``, (B, N): the
    derivatives of a loss with respect to the part Σ_h μ_h a_hn of token n in the
    prediction.
    """
    mean_slope = np.einsum("bhn,bn->bh", attention, token_slopes)
    centred = token_slopes[:, None] - mean_slope[:, :, None]
    return np.asarray(mu[:, :, None] * attention * centred)


def moments_of_averages(gram: Array) -> tuple[Array, Array]:
    """Return E[o_h · o_h'], (H, H), and E[o_h · y], (H,), from a Gram matrix.

    The Gram matrix, (H + 1, H + 1), has the mean products of the errors o_h - y and the
    target y, as in ``Products``.
    """
    # Adding the row of y to the row of o_h - y gives the row of o_h. The same holds for
    # columns.
    rows_of_averages = gram[:-1] + gram[-1]
    means = rows_of_averages[:, -1]
    return rows_of_averages[:, :-1] + rows_of_averages[:, -1:], means


def least_output(gram: Array, means: Array) -> Array:
    """Return the output weights that minimise the loss, (H,).

    They solve ``gram`` μ = ``means``, in which ``gram`` is E[o_h · o_h'] and ``means``
    is E[o_h · y]. If the solution is not unique, the one with the smallest norm is
    returned.
    """
    weights, *_ = np.linalg.lstsq(gram, means, rcond=NEGLIGIBLE)
    return np.asarray(weights)


@dataclass(frozen=True, eq=False)
class GaussianHeadsRisk(WithStart, Risk):
    r"""The loss of softmax heads in linear regression on Gaussian inputs.

    The parameters are the output weights μ of the H heads and then their inverse
    temperatures ω, (2H,). For a query vector of length r, the score of a token in head
    h is :math:`\omega_h r X`, with the component X of the token along the query. The
    loss is an average over r.

    Parameters
    ----------
    d : int
        Number of dimensions of the inputs.
    N : int
        Number of tokens.
    noise : float
        Standard deviation of the noise of the labels.
    start : ndarray, (2H,)
        Initial output weights, and then inverse temperatures.

    References
    ----------
    docs/theory/softmax-heads.md.
    """

    d: int
    N: int
    noise: float
    start: Array  # (2H,)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (2H,)."""
        output, omega = np.split(params, 2)
        loss = 0.0
        gradient = np.zeros((2, len(output)))  # for the output weights, and for ω
        for prob, scores, heads in self._queries(omega):
            # The scores of head h are ω_h times the scores for ω = 1.
            params_of_heads = np.column_stack([output, np.outer(omega, scores)])
            loss_of_length, slopes = heads.evaluate(params_of_heads)
            loss += prob * loss_of_length
            output_slopes = slopes[:, 0]
            omega_slopes = slopes[:, 1:] @ scores
            gradient += prob * np.stack([output_slopes, omega_slopes])
        return loss, gradient.ravel()

    def eliminated(self, omega: Array) -> tuple[Array, float]:
        """Return the best output weights for given ω, (H,), and the loss with them."""
        best = self.with_best_output(omega)
        return best.output, best.loss

    def with_best_output(self, omega: Array) -> Eliminated:
        """Return the best output weights for given ω, (H,), and the loss with them.

        The result also has the derivatives of this loss with respect to ω.
        """
        H = len(omega)
        gram = np.zeros((H + 1, H + 1))
        # Derivatives of the Gram matrix with respect to ω, as the slopes of `Products`.
        gram_slopes = np.zeros((H, H + 1))
        for prob, scores, heads in self._queries(omega):
            for p, gram_of_query, slopes in heads._products(np.outer(omega, scores)):
                gram += prob * p * gram_of_query
                gram_slopes += prob * p * (slopes @ scores)
        output = least_output(*moments_of_averages(gram))
        # The weights of the errors o_h - y and of the target y.
        weights = np.append(output, output.sum() - 1.0)
        loss = 0.5 * float(weights @ gram @ weights)
        # ω_h changes row h of the Gram matrix, and column h by the same amount. The two
        # changes together cancel the factor ½ of the loss. The weight of o_h - y is the
        # output weight of head h.
        return Eliminated(output, loss, slopes=output * (gram_slopes @ weights))

    def quadratic(self, omega: Array) -> tuple[Array, Array]:
        """Return E[o_h · o_h'], (H, H), and E[o_h · y], (H,), for given ω, (H,)."""
        gram = np.zeros((len(omega), len(omega)))
        means = np.zeros(len(omega))
        for prob, scores, heads in self._queries(omega):
            gram_of_length, means_of_length = heads.quadratic(np.outer(omega, scores))
            gram = gram + prob * gram_of_length
            means = means + prob * means_of_length
        return gram, means

    @cached_property
    def best(self) -> tuple[float, float] | None:
        """The best ω up to 2, and the loss with it.

        A single head has the inverse temperature ω, and two heads have ω and -ω. For
        more heads the property is None. Computing it may take seconds.
        """
        heads = len(self.start) // 2
        if heads > 2:
            return None
        return least_of_heads(self.d, self.N, self.noise, heads)

    def floor(self) -> float:
        """Return the least loss of one head, or of two heads, with ω up to 2.

        For more heads the least loss is not known, and the lower bound 0 is returned.
        """
        if self.best is None:
            return 0.0
        _, least_loss = self.best
        return least_loss

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Output weights and inverse temperatures, (H,) each."""
        output, omega = np.split(params, 2)
        return {"output": output, "omega": omega}

    def _queries(self, omega: Array) -> tuple[_Query, ...]:
        """Return nodes for each length r, fine enough for given inverse temperatures.

        All ω up to the next power of two have the same nodes, which a cache keeps.
        """
        return self._nodes(next_power_of_two(float(np.abs(omega).max())))

    # All risks share this cache, whose keys contain the risk itself. It keeps the nodes
    # of the last four calls with different arguments, and thus up to four risks alive.
    @lru_cache(maxsize=4)  # noqa: B019
    def _nodes(self, largest: float) -> tuple[_Query, ...]:
        """Return quadrature nodes for the length r of the query.

        The nodes are fine enough for all ω between -``largest`` and ``largest``.
        """
        # Labels are linear in the random task β. The coefficient of β along the query
        # stands for a label (see `Kind`): X for a token, and r for the answer.
        queries = []
        # The variance of a label comes from the noise, and from the d - 1 components of
        # its input that are orthogonal to the query.
        spread = np.array(self.d - 1.0 + self.noise**2)
        for prob, r, X, probs in gaussian_queries(self.d, self.N, largest):
            kind = Kind(self.N, probs, values=X, spread=spread)
            tokens = TokenRisk([kind], target=np.array(r))
            heads = HeadsRisk(tokens, heads=len(self.start) // 2)
            queries.append(_Query(prob, r * X, heads))
        return tuple(queries)

    def sampled(self, batch: int, seed: int = 0) -> Sampled[GaussianPrompts]:
        """Return the trainer on sampled prompts."""
        # For each token its d coordinates, and about eight numbers in each head.
        numbers = self.N * (self.d + 4.0 * len(self.start))
        return Sampled(self.start, self._draw, self._losses_on, batch, seed, numbers)

    def _draw(self, rng: np.random.Generator, size: int) -> GaussianPrompts:
        """Draw prompts of N tokens, with the query after the tokens."""
        x = rng.normal(size=(size, self.N + 1, self.d))
        beta = rng.normal(size=(size, self.d))
        y = np.einsum("bnd,bd->bn", x, beta)
        labels = y[:, :-1] + self.noise * rng.normal(size=(size, self.N))
        return GaussianPrompts(x[:, :-1], labels, x[:, -1], y[:, -1])

    def _losses_on(self, params: Array, prompts: GaussianPrompts) -> Pass:
        """Return losses and derivatives on B prompts of R runs, see `Sampled`.

        The parameters of the runs are (R, 2H). Each run has B/R prompts.
        """
        labels = prompts.labels
        size = len(labels) // len(params)
        # Output weights and inverse temperatures of each prompt's run, (H, B).
        output, omega = np.split(np.repeat(params, size, axis=0).T, 2)
        scores = np.einsum("bnd,bd->bn", prompts.tokens, prompts.query)
        attention, _ = softmax(omega[:, :, None] * scores)
        means = np.einsum("hbn,bn->hb", attention, labels)  # o_h of each prompt
        error = np.sum(output * means, axis=0) - prompts.answer
        # ∂o_h/∂ω_h = Σ_n a_n (score_n - mean score) label_n, with the attention a_n of
        # the head and the scores for ω = 1
        mean_scores = np.einsum("hbn,bn->hb", attention, scores)
        centred = scores - mean_scores[:, :, None]
        slope_of_mean = np.einsum("hbn,hbn,bn->hb", attention, centred, labels)
        slopes = error * np.concatenate([means, output * slope_of_mean])
        # The indices of the parameters of each prompt's run among the parameters of all
        # runs, (B, 2H)
        places = first_places(params, len(labels)) + np.arange(params.shape[1])
        return Pass(0.5 * error**2, places, slopes.T)


class _Query(NamedTuple):
    """The queries of one length in `GaussianHeadsRisk`."""

    prob: float  # probability of the length
    scores: Array  # the scores r X of the nodes for ω = 1, (U,)
    heads: HeadsRisk  # the loss given the length


class GaussianPrompts(NamedTuple):
    """B prompts of linear regression on Gaussian inputs."""

    tokens: Array  # (B, N, d)
    labels: Array  # (B, N)
    query: Array  # (B, d)
    answer: Array  # (B,)


class Eliminated(NamedTuple):
    """The loss of heads with the best output weights, as a function of ω."""

    output: Array  # the best output weights, (H,)
    loss: float
    # Derivatives of the loss with respect to ω, (H,). They are taken at fixed output
    # weights, because the loss is stationary at the best ones.
    slopes: Array


@lru_cache(maxsize=64)
def least_of_heads(d: int, N: int, noise: float, heads: int) -> tuple[float, float]:
    """Return the best ω up to 2, and the loss with it.

    There are one or two ``heads``: one has ω, and two have ω and -ω. Runs of the same
    law share the result, whatever their starts and learning rates are.
    """
    from scipy.optimize import brentq  # slow to load

    signs = np.array([1.0, -1.0])[:heads]
    # A risk needs a start, which the search does not use.
    risk = GaussianHeadsRisk(d, N, noise, np.zeros(2 * heads))

    # Cached, because the search below and brentq evaluate the same ends, and a slope
    # takes up to a second.
    @cache
    def slope(log_omega: float) -> float:
        """Return the derivative of the loss with respect to ω, at ω = e^log_omega."""
        slopes = risk.with_best_output(math.exp(log_omega) * signs).slopes
        return float(slopes @ signs)

    # Look for an interval in which the slope changes its sign from minus to plus. The
    # search goes up from small ω, because larger ω need finer nodes.
    low = LOW_LOG_OMEGA
    high = FIRST_LOG_OMEGA
    while slope(high) < 0.0 and high < HIGHEST_LOG_OMEGA:
        low = high
        high = min(high + math.log(2.0), HIGHEST_LOG_OMEGA)
    if slope(low) >= 0.0:
        high = low
        low = LOWEST_LOG_OMEGA
    if slope(high) < 0.0:
        log_omega = high  # the loss falls up to the largest ω
    elif slope(low) >= 0.0:
        log_omega = low  # the loss is constant, up to rounding, and rises at larger ω
    else:
        log_omega = brentq(slope, low, high, xtol=ERROR_OF_LOG_OMEGA)
    omega = math.exp(log_omega)
    return omega, risk.with_best_output(omega * signs).loss
