r"""Groups of exchangeable features: K x K scores reduced to G(G + 1), for any K.

The variogram of two features is half the mean squared difference of the task's values
at them. All features of one group have the same probability, and the same variogram
with any further feature, so that exchanging two of them changes nothing. Gradient
descent from zero then keeps scores equal within groups. A query at a feature of group g
has one score for its own feature, one for the other features of its group and one for
the features of each other group. `SymmetricRisk` is defined by the groups.
`SymmetricRisk.of` reduces a problem of single features, and `exchangeable_groups` finds
the groups.

In the shapes below, K is the number of features, G the number of groups, and G + 1 the
number of classes of features for one query: its own feature, and the groups without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    LARGEST,
    MOST_FEATURES,
    Array,
    argument_error,
    dimensions,
    integer,
    number,
    prompt_length,
    real_array,
    set_fields,
)
from icl_theory.engine.capabilities import gradients_one_by_one
from icl_theory.engine.last_result import LastResult
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits
from icl_theory.regression.features import Features
from icl_theory.regression.risks.floors import Levels, levels_of
from icl_theory.regression.risks.level_loss import Query
from icl_theory.regression.risks.prompts import infima
from icl_theory.regression.tasks import Task, variogram_of
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.square import Moments, change_along, moments

# Two probabilities or variograms count as equal up to this relative difference. It is
# far above their rounding errors. Variograms of single features are compared relative
# to the largest of them.
EQUALITY_TOLERANCE = 1e-12
# A negative eigenvalue of a form C̃ (see `SymmetricRisk`) counts as a rounding error of
# zero if its absolute value is below this share of the largest entry of the form. A
# smaller limit would refuse variograms that are given with rounded digits.
NEGATIVE_ROUNDING = 1e-9
# A form C̃ counts as positive definite if its lowest eigenvalue, relative to the largest
# one, is above this. Smaller eigenvalues may be rounding errors of a zero.
SMALLEST_DEFINITE = 1e-10
# The sum of given probabilities may differ from 1 by this. The probabilities are
# divided by their sum.
SUM_ROUNDING = 1e-6
# The largest entry of a form counts as at least this, so that the limit of its rounding
# errors is not zero. It is below every variogram that matters.
TINY = 1e-300
# Products of a larger variogram with K and the probabilities might overflow.
LARGEST_VARIOGRAM = 1e250
# For N = ∞, several states (arrays of parameters) are evaluated together if an array of
# the mean variograms of all of them has at most this many entries, as with few groups.
# This takes a fifth of the time of a separate call for each state. Larger arrays would
# save no more time, but need memory.
MOST_TOGETHER = 10_000
# The largest K for which the scores of all pairs of features are written out: 3.2 GB.
MOST_WRITTEN_OUT = 20_000


@dataclass(frozen=True, eq=False)
class SymmetricRisk(Risk):
    r"""The population risk of grouped features over grouped scores, (G, G + 1).

    A query of group g divides the features into *classes* c: class 0 is its own
    feature, and class 1 + h has the features of group h (without its own feature if
    h = g). Its scores :math:`\theta_{gc}` are row g of the parameters. With the
    attention :math:`A_{gc}` on a whole class of :math:`n_c` features, the variogram
    :math:`\gamma_{cd}` of a feature of class c and a feature of class d, and the
    variogram :math:`\gamma_{gc}` of the own feature and a feature of class c (0 for c =
    0), the loss is

    .. math:: \ell_g = \tfrac12 A_g^\top \tilde C^{(g)} A_g, \qquad
        \tilde C^{(g)}_{cd} = \gamma_{gc} + \gamma_{gd} - \gamma_{cd}(1 -
        \delta_{cd}/n_c),

    for N = ∞. For finite N it is the same integral as for single features, with the
    probabilities of the classes. A score :math:`\theta_{gc}` takes the place of
    :math:`n_g n_c` equal entries of the K x K scores S, with the number :math:`n_g` of
    features of group g. This product is the metric, by which descent divides gradients.
    See docs/theory.md, "Groups of features".

    Parameters
    ----------
    sizes : array_like of int, (G,)
        Number of features in each group.
    probs : array_like, (G,)
        Probability of *each* feature of a group, so that ``sizes @ probs`` is 1.
    variogram : float or array_like, (G, G)
        :math:`\gamma_{gh} = \tfrac12 E(f_m - f_j)^2` for a feature m of group g and a
        feature j of group h; on the diagonal for two features of one group. A single
        number stands for equal entries.
    N, noise
        As for `PopulationRisk`.

    Raises
    ------
    ValueError
        Sizes, probabilities and variogram contradict each other.

    Examples
    --------
    One feature that half of all tokens show, and a million rare features:

    >>> import icl_theory as icl
    >>> risk = icl.SymmetricRisk([1, 10**6], [0.5, 0.5e-6], 2.0)
    >>> run = icl.descend(risk, eta=4.0, epsilon=1e-3, method="fast")
    >>> run.attention[-1].round(2)
    array([1.  , 0.96])
    """

    sizes: Array
    probs: Array
    variogram: Array
    N: float = math.inf
    noise: float = 0.0
    # The following four arrays are for the G + 1 classes of a query of each group,
    # class 0 first. Number of features in each class, and probability of the class,
    # (G + 1, G), with a column for each query
    members: Array = field(init=False, repr=False)
    _class_probs: Array = field(init=False, repr=False)
    # Mean variograms and forms C̃ between two classes, (G, G + 1, G + 1)
    _mean_variograms: Array = field(init=False, repr=False)
    _error_forms: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = _checked_sizes(self.sizes)
        probs = _checked_probs(self.probs, sizes)
        total = float(sizes @ probs)  # 1, up to `SUM_ROUNDING`
        G = len(sizes)
        # About six (G, G, G) arrays of 8-byte numbers
        check_fits("sizes", self.sizes, 8.0 * 6 * G**3)
        gamma = _checked_variogram(self.variogram, G)
        # The query's own feature, and the features of each group without it
        members = np.vstack([np.ones(G), sizes[:, None] - np.eye(G)])
        # Probability of each feature of a class
        probs_of_features = np.vstack([probs, np.tile(probs[:, None], (1, G))])
        variograms = _variograms_of_classes(gamma, members[1:])
        # C̃_cd = Γ_c0 + Γ_0d - Γ_cd for the mean variograms Γ of two classes
        to_own = variograms[:, 0]
        error_forms = to_own[:, :, None] + to_own[:, None] - variograms
        _require_mean_squares(error_forms, self.variogram)
        set_fields(
            self,
            sizes=sizes,
            probs=probs / total,
            variogram=gamma,
            N=prompt_length(self.N),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            members=members,
            _class_probs=members * probs_of_features / total,
            _mean_variograms=variograms,
            _error_forms=error_forms,
        )
        for array in (self.sizes, self.probs, self.variogram, self.members):
            array.flags.writeable = False

    @classmethod
    def of(
        cls,
        features: Features,
        task: Task,
        groups: ArrayLike | None = None,
        N: float = math.inf,
        noise: float = 0.0,
    ) -> SymmetricRisk:
        """Group the features of a problem, and return the risk over the groups.

        Parameters
        ----------
        features, task, N, noise
            As for `PopulationRisk`.
        groups : array_like of int, (K,), optional
            Number of the group of each feature, 0 to G - 1. By default the groups are
            as large as possible (see `exchangeable_groups`).

        Raises
        ------
        ValueError
            The features of a group are not exchangeable.
        """
        variogram = variogram_of(features, task)
        probs = features.probs
        if groups is None:
            labels = exchangeable_groups(features, task)
        else:
            labels = _checked_groups(groups, features.K)
        sizes = np.bincount(labels)
        # The features of each group, which has at least one
        features_of_group = [np.flatnonzero(labels == g) for g in range(len(sizes))]
        first_of_group = [int(indices[0]) for indices in features_of_group]
        # The first features of two groups stand for the groups. Within a group this
        # rule would pair the first feature with itself, so the first feature is paired
        # with the second one, if there is one.
        gamma = variogram[np.ix_(first_of_group, first_of_group)]
        for g in np.flatnonzero(sizes > 1):
            first, second, *_ = features_of_group[g]
            gamma[g, g] = variogram[first, second]
        # In an exchangeable group, every feature has the probability of the first one,
        # and every pair of features has the variogram of the first two.
        expected = gamma[np.ix_(labels, labels)]
        np.fill_diagonal(expected, 0.0)
        expected_probs = probs[first_of_group][labels]
        probs_differ = np.abs(probs - expected_probs) > EQUALITY_TOLERANCE * probs
        scale = float(variogram.max())
        variograms_differ = np.abs(variogram - expected) > EQUALITY_TOLERANCE * scale
        if probs_differ.any() or variograms_differ.any():
            raise argument_error(
                "groups",
                groups,
                "groups of features that can be exchanged with each other",
            )
        return cls(sizes.astype(float), probs[first_of_group], gamma, N=N, noise=noise)

    @property
    def K(self) -> int:
        """Number of features."""
        return int(self.sizes.sum())

    @property
    def initial(self) -> Array:
        """Zero scores, (G, G + 1)."""
        return np.zeros((len(self.sizes), len(self.sizes) + 1))

    @cached_property
    def metric(self) -> Array:
        """Number of entries of S for each score, (G, G + 1).

        In a group of one there are no other features of the same group. The metric of
        their score, which never moves, is 1, because descent divides by the metric.
        """
        metric = np.maximum(self.sizes[:, None] * self.members.T, 1.0)
        # The array is cached, so a user who changed it would change the risk.
        metric.flags.writeable = False
        return metric

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to the grouped scores, (G, G + 1)."""
        group_probs = self._group_probs
        # The gradients have a column for each query.
        losses, gradient, _attention = self._moments(params)
        return float(group_probs @ losses), (gradient * group_probs).T

    def gradients(self, states: Array) -> Array:
        """Gradients at n states of grouped scores, (n, G, G + 1).

        For finite N all queries of all states are integrated as one batch.
        """
        n, G, _ = states.shape
        scores = np.swapaxes(states, 1, 2)
        if math.isfinite(self.N):
            side_by_side = np.concatenate(scores, axis=1)
            # The gradients of the losses ℓ_g, with the axes (class, state, query)
            gradient = self._moments_finite(side_by_side).gradient.reshape(-1, n, G)
            return (gradient * self._group_probs).transpose(1, 2, 0)
        if n * self._mean_variograms.size > MOST_TOGETHER:
            return gradients_one_by_one(self, states)
        _, gradients, _ = self._moments_infinite(scores)
        return np.swapaxes(gradients * self._group_probs, 1, 2)

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, (G, G + 1)."""

        def gradient(theta: Array) -> Array:
            return self._moments(theta).gradient.T

        # `change_along` differentiates the gradient by a complex step.
        change = change_along(gradient, params, direction)
        return self._group_probs[:, None] * change

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected target attention and loss, for a query of each group, (G,) each."""
        last_moments = self._moments(params)
        return {
            # Class 0 is the target. Copies, because the last moments are kept and must
            # not change.
            "attention": last_moments.attention[0].copy(),
            "loss_per_query": last_moments.loss.copy(),
        }

    def attention(self, params: ArrayLike) -> Array:
        """Expected attention on whole classes, (G, G + 1); rows sum to 1."""
        return self._moments(self._checked(params)).attention.T.copy()

    @property
    def nondegenerate(self) -> bool:
        """Whether no mixture of other classes is as good as the query's own feature.

        True is reliable. False may be wrong, because the test, a positive definite form
        C̃ over the other classes, is sufficient but not necessary.
        """
        members_of_queries = self.members.T
        for error_form, members in zip(
            self._error_forms, members_of_queries, strict=True
        ):
            # The own feature is class 0. An empty class is no part of a mixture.
            _own, *wrong = np.flatnonzero(members > 0)
            eigenvalues = np.linalg.eigvalsh(error_form[np.ix_(wrong, wrong)])
            if not eigenvalues[0] > SMALLEST_DEFINITE * eigenvalues[-1]:
                return False
        return True

    def scores(self, params: ArrayLike) -> Array:
        """Scores S of all single features, (K, K), sorted by group."""
        theta = self._checked(params)
        # The matrix of scores has K² entries of 8 bytes.
        if self.K > MOST_WRITTEN_OUT:
            raise argument_error(
                "sizes",
                self.sizes,
                f"{MOST_WRITTEN_OUT} features at most to write out their scores",
            )
        group_of = np.repeat(np.arange(len(self.sizes)), self.sizes.astype(int))
        # If m != k, S_mk is θ_gc with the group g of the query k, and the class
        # c = 1 + h for the group h of feature m. The own feature, m = k, is class 0.
        S: Array = theta[group_of[None, :], 1 + group_of[:, None]]
        np.fill_diagonal(S, theta[group_of, 0])
        return S

    def floor(self) -> float:
        """Irreducible loss: 0 for N = ∞, else the infimum over the scores.

        As for `PopulationRisk`, it comes from the ``levels`` of the classes if these
        are known, and otherwise from a search, which may end slightly above it.
        """
        if math.isinf(self.N):
            return 0.0
        if self.levels is not None:
            lowest = np.array([levels.lowest for levels in self.levels])
        else:
            is_own = np.zeros(self._class_probs.shape, dtype=bool)
            is_own[0] = True
            lowest = infima(self._moments_finite, is_own, self.N, self.noise)
        return float(self._group_probs @ lowest)

    @cached_property
    def levels(self) -> tuple[Levels, ...] | None:
        """Levels of the classes at the infimum of a query of each group, if known.

        The differences of scores within a level stay finite as the loss tends to its
        infimum. The result is None for N = ∞, and if the levels are unknown. The first
        access searches for the levels of all queries, which takes time.
        """
        if math.isinf(self.N):
            return None
        G = len(self.sizes)
        return levels_of((self._query(g) for g in range(G)), G)

    def _query(self, g: int) -> Query:
        """Return the query of group g over its nonempty classes, the own feature first.

        In a group of one, the class of the other features of the group is empty.
        """
        nonempty = np.flatnonzero(self.members[:, g] > 0)
        return Query(
            error_form=self._error_forms[g][np.ix_(nonempty, nonempty)],
            squared_errors=self._squared_errors[nonempty, g],
            probs=self._class_probs[nonempty, g],
            N=self.N,
            noise=self.noise,
            target=0,
        )

    @cached_property
    def _group_probs(self) -> Array:
        """Probability that the query's feature is in each group, (G,)."""
        return self.sizes * self.probs

    @cached_property
    def _log_class_probs(self) -> Array:
        """Logarithms of the probabilities of the classes, (G + 1, G)."""
        with np.errstate(divide="ignore"):  # a class may be empty
            return np.asarray(np.log(self._class_probs))

    @cached_property
    def _squared_errors(self) -> Array:
        """Mean squared error of a token of each class, with noise, (G + 1, G)."""
        return 2.0 * self._mean_variograms[:, 0].T + self.noise**2

    def _moments(self, params: Array) -> Moments:
        """Return the loss ℓ_g of a query of each group, its gradient, and attention.

        The gradient ∂ℓ_g/∂θ_gc and the attention are (G + 1, G), with a column for each
        query.
        """
        if math.isinf(self.N):
            return self._moments_infinite(params.T)
        return self._last_moments.of(self._moments_finite, params.T)

    @cached_property
    def _last_moments(self) -> LastResult[Moments]:
        """Holds the last moments for finite N, which take long to compute."""
        return LastResult()

    def _moments_infinite(self, scores: Array) -> Moments:
        """Return the moments for N = ∞, at scores with a column for each query.

        ``scores`` are of one state, (G + 1, G), or of n states, (n, G + 1, G).
        """
        # The classes c are on the axis -2, and the queries g on the axis -1.
        log_weight = scores + self._log_class_probs
        # The largest weight of a query becomes 1, so that none overflows.
        weight = np.exp(log_weight - log_weight.max(axis=-2, keepdims=True))
        a = weight / weight.sum(axis=-2, keepdims=True)
        # The residual of a class is (C̃ a)_c minus a constant, the entry of the class
        # with the most attention. For the own feature C̃ a is 0. So a^T C̃ a is the mean
        # residual minus the residual of the own feature.
        residual = self._residual(a, reference=a.argmax(axis=-2))
        mean = np.einsum("...cg,...cg->...g", a, residual)
        own_residual = residual[..., 0, :]
        return Moments(
            loss=0.5 * (mean - own_residual),
            gradient=a * (residual - mean[..., None, :]),
            attention=a,
        )

    def _residual(self, z: Array, reference: NDArray[np.intp]) -> Array:
        """Return ``(C̃ z)_c - (C̃ z)_r`` with a reference class r for each query.

        ``z`` and the result are (G + 1, G) and ``reference`` is (G,), with one more
        axis in front if there are several states. The entries of C̃ are subtracted
        before they are multiplied by z and summed. This keeps the digits even if a
        wrong class has nearly all attention, provided that it is the reference.
        """
        # Let Γ be the mean variograms of classes, with C̃_cd = Γ_c0 + Γ_0d - Γ_cd. The
        # difference C̃_cd - C̃_rd is (Γ_c0 - Γ_r0) + (Γ_rd - Γ_cd). For d = 0, the own
        # feature, it is zero, so that the sums begin at d = 1.
        groups = np.arange(len(self.sizes))
        to_own = self._mean_variograms[:, 0].T  # Γ_c0, (class c, query)
        # Γ_rd - Γ_cd, with the last axes (group of the query, c, d)
        of_reference = self._mean_variograms[groups, reference]
        between = of_reference[..., None, :] - self._mean_variograms
        z_wrong = z[..., 1:, :]
        from_pairs = np.einsum("...gcd,...dg->...cg", between[..., 1:], z_wrong)
        # Γ_c0 - Γ_r0, which is the same for all d
        own_differences = to_own - to_own[reference, groups][..., None, :]
        from_own = own_differences * z_wrong.sum(axis=-2, keepdims=True)
        return np.asarray(from_pairs + from_own)

    def _moments_finite(self, scores: Array) -> Moments:
        """Return the moments for finite N, at scores with a column for each query.

        ``scores`` are (G + 1, n G): the n states stand side by side, so that column q
        belongs to a query of group q modulo G.
        """
        G = len(self.sizes)
        states = scores.shape[1] // G

        # `moments` calls this function to write the products C̃ z of some queries to
        # ``product``. The slice ``rows`` selects the classes of one kind of token.
        # Here there is only one kind, so it selects all classes and is not used.
        def form(
            queries: NDArray[np.intp], rows: slice, z: Array, product: Array
        ) -> None:
            np.matmul(self._error_forms[queries % G], z, out=product)

        class_probs = np.tile(self._class_probs, states)
        occurs = class_probs > 0
        moments_of_queries = moments(
            # In a group of one, the class of its other features is empty. The score
            # -inf says that it never occurs.
            np.where(occurs, scores, -np.inf),
            class_probs,
            np.tile(self._squared_errors, states),
            TokenCount(self.N),
            form,
            spread=np.tile(self._spread, states),
        )
        # Classes that never occur have no gradient, but rounding leaves subnormal
        # numbers.
        gradient = np.where(occurs, moments_of_queries.gradient, 0.0)
        return moments_of_queries._replace(gradient=gradient)

    @cached_property
    def _spread(self) -> Array:
        """Variance of a token's error within its class, (G + 1, G).

        It comes from label noise, and from differences between the features of the
        class.
        """
        # The diagonal of C̃ has the mean products of the errors of two tokens of one
        # class. Rounding may make the difference negative.
        products_of_two = np.diagonal(self._error_forms, axis1=1, axis2=2).T
        return np.asarray(np.maximum(self._squared_errors - products_of_two, 0.0))


def exchangeable_groups(features: Features, task: Task) -> NDArray[np.int64]:
    """Find the largest groups of exchangeable features.

    Exchanging two features of a group changes neither probabilities nor variograms.

    Parameters
    ----------
    features, task
        As for `PopulationRisk`.

    Returns
    -------
    ndarray of int64, (K,)
        Number of the group of each feature. Groups are numbered in the order of their
        first features.

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(4, 1.0, [0.4, 0.2, 0.2, 0.2])
    >>> icl.regression.exchangeable_groups(features, icl.tasks.Linear(1.0))
    array([0, 1, 1, 1])
    """
    variogram = variogram_of(features, task)
    probs = features.probs
    tolerance = EQUALITY_TOLERANCE * float(variogram.max())
    labels = np.full(features.K, -1, dtype=np.int64)
    for k in range(features.K):
        if labels[k] >= 0:
            continue
        # Γ_mj - Γ_kj, for the variograms Γ of a feature m and of feature k with each j
        difference = np.abs(variogram - variogram[k])
        # An exchange of m and k does not change the variogram of each with itself,
        # which is zero, nor the variogram of the two. So j = m and j = k need no test.
        np.fill_diagonal(difference, 0.0)
        difference[:, k] = 0.0
        same_variogram = difference.max(axis=1) <= tolerance
        same_probability = np.abs(probs - probs[k]) <= EQUALITY_TOLERANCE * probs[k]
        group = same_variogram & same_probability & (labels < 0)
        labels[group] = labels.max() + 1
    return labels


def _checked_groups(groups: ArrayLike, K: int) -> NDArray[np.int64]:
    """Return the group of each feature; refuse groups that are numbered with gaps."""
    numbers = real_array("groups", groups, 1)
    labels = numbers.astype(np.int64)
    is_whole = not (labels != numbers).any()
    if (
        len(labels) != K
        or not is_whole
        # The numbers that occur must be all numbers up to the largest one.
        or set(labels.tolist()) != set(range(int(labels.max()) + 1))
    ):
        raise argument_error(
            "groups", groups, f"{K} integers that cover 0, 1, ..., G - 1"
        )
    return labels


def _checked_sizes(sizes: ArrayLike) -> Array:
    """Return the number of features of each group; refuse fewer than 2 altogether."""
    numbers = real_array("sizes", sizes, 1)
    for size in numbers:
        # `integer` refuses a size that is not an integer in this range.
        integer("sizes", float(size), minimum=1, maximum=MOST_FEATURES)
    # With a single feature there is nothing to learn.
    if numbers.sum() < 2:
        raise argument_error("sizes", sizes, "two features or more altogether")
    return numbers


def _checked_probs(probs: ArrayLike, sizes: Array) -> Array:
    """Return the probability of a single feature of each group, (G,).

    All features together must have the probability 1, up to ``SUM_ROUNDING``.
    """
    numbers = real_array("probs", probs, 1)
    # If the numbers of probabilities and of groups differ, the sum is NaN, which fails
    # the test below.
    total = math.nan
    if numbers.shape == sizes.shape:
        total = float(sizes @ numbers)
    if not ((numbers > 0).all() and abs(total - 1.0) <= SUM_ROUNDING):
        raise argument_error(
            "probs", probs, f"{len(sizes)} positive numbers with sizes @ probs = 1"
        )
    return numbers


def _require_mean_squares(error_forms: Array, variogram: ArrayLike) -> None:
    """Refuse a variogram whose forms C̃, (G, G + 1, G + 1), are not mean squares.

    Such a variogram does not belong to any random function. For a mean square, negative
    eigenvalues come from rounding only, and are small.
    """
    lowest = np.linalg.eigvalsh(error_forms)[:, 0]
    largest = np.maximum(np.abs(error_forms).max(axis=(1, 2)), TINY)
    if (lowest < -NEGATIVE_ROUNDING * largest).any():
        raise argument_error(
            "variogram",
            variogram,
            "the variogram of a random function: every mean squared difference must"
            " be >= 0",
        )


def _checked_variogram(variogram: ArrayLike, G: int) -> Array:
    """Return the variogram between groups, (G, G). A number stands for all pairs."""
    gamma = variogram
    if dimensions(gamma) == 0:
        # `number` refuses a negative or infinite number.
        gamma = np.full((G, G), number("variogram", gamma, zero=True))
    gamma = real_array("variogram", gamma, 2)
    # The shape is tested first: arrays of other shapes may not be comparable.
    is_symmetric = gamma.shape == (G, G) and np.allclose(
        gamma, gamma.T, rtol=EQUALITY_TOLERANCE, atol=0.0
    )
    if (
        not is_symmetric
        or (gamma < 0).any()
        or gamma.max(initial=0.0) > LARGEST_VARIOGRAM
    ):
        raise argument_error(
            "variogram", variogram, f"a number or a symmetric ({G}, {G}) array, >= 0"
        )
    return gamma


def _variograms_of_classes(gamma: Array, members: Array) -> Array:
    """Return mean variograms between the classes of each query, (G, G + 1, G + 1).

    ``gamma`` has the variograms between groups, (G, G). ``members[h, g]`` is the number
    of features of group h without the own feature of a query of group g. Within a class
    the mean is over all pairs of features, also over the pairs of a feature with
    itself, whose variogram is zero.
    """
    G = len(gamma)
    # 1/n_c, the share of the pairs of a feature with itself; 1 for an empty class, so
    # that its mean variogram is 0
    self_share = np.divide(1.0, members, out=np.ones((G, G)), where=members > 0)
    # (query, class, class), with the share on the diagonal of the last two axes
    self_share_within = np.eye(G) * self_share.T[:, None]
    variograms = np.zeros((G, G + 1, G + 1))
    # Class 0 is the own feature of the query of group g, so row g of ``gamma`` has its
    # variograms with the other classes.
    variograms[:, 0, 1:] = gamma
    variograms[:, 1:, 0] = gamma
    variograms[:, 1:, 1:] = gamma * (1.0 - self_share_within)
    return variograms
