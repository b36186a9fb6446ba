r"""Groups of exchangeable features: the K x K problem reduced to G(G + 1) numbers, for any K.

Features of one group have the same probability and the same variogram to every other
feature, so that exchanging two of them changes nothing. Gradient descent from zero
keeps the scores alike within groups: a query of group g has one score for its own
feature, one for the others of its group and one for each other group.
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
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits
from icl_theory.regression.features import Features
from icl_theory.regression.risks.floors import Levels, Query, levels_of
from icl_theory.regression.risks.prompts import infima
from icl_theory.regression.tasks import Task, variogram_of
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.square import Moments, change_along, moments


@dataclass(frozen=True, eq=False)
class SymmetricRisk(Risk):
    r"""The population risk of grouped features over scores :math:`\theta_{gc}`, (G, G + 1).

    Row g holds the scores of a query of group g: column 0 for its own feature, column 1
    + h for the features of group h (h = g: the others of its group). With the attention
    :math:`A_{gc}` on a whole class of :math:`n_c` features,

    .. math:: \ell_g = \tfrac12 A_g^\top \tilde C^{(g)} A_g, \qquad
        \tilde C^{(g)}_{cd} = \gamma_{gc} + \gamma_{gd} - \gamma_{cd}(1 -
        \delta_{cd}/n_c),

    and for finite N the same integral as for single features, with the probabilities of
    the classes. A unit of :math:`\theta_{gc}` stands for :math:`n_g n_c` entries of S:
    that is the metric. See docs/theory.md, "Groups of features".

    Parameters
    ----------
    sizes : array_like of int, (G,)
        Number of features in each group.
    probs : array_like, (G,)
        Probability of *each* feature of a group, so that ``sizes @ probs`` is 1.
    variogram : float or array_like, (G, G)
        :math:`\gamma_{gh} = \tfrac12 E(f_m - f_j)^2` for features of groups g and h, on
        the diagonal for two features of one group; one number if all pairs are alike.
    N, noise
        As for `PopulationRisk`.

    Raises
    ------
    ValueError
        Sizes, probabilities and variogram contradict each other.

    Examples
    --------
    One feature that every other token shows, and a million rare ones:

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
    # of the classes of a query, that of its own feature first
    members: Array = field(init=False, repr=False)  # (G + 1, G)
    _mass: Array = field(init=False, repr=False)  # probabilities, (G + 1, G)
    _spread: Array = field(init=False, repr=False)  # mean variograms, (G, G + 1, G + 1)
    _matrix: Array = field(init=False, repr=False)  # error forms, of the same shape

    def __post_init__(self) -> None:
        sizes = real_array("sizes", self.sizes, 1)
        for size in sizes:
            integer("sizes", float(size), minimum=1, maximum=MOST_FEATURES)
        if sizes.sum() < 2:
            raise argument_error("sizes", self.sizes, "two features or more altogether")
        probs = real_array("probs", self.probs, 1)
        total = float(sizes @ probs) if probs.shape == sizes.shape else math.nan
        if not ((probs > 0).all() and abs(total - 1.0) <= 1e-6):
            raise argument_error(
                "probs",
                self.probs,
                f"{len(sizes)} positive numbers with sizes @ probs = 1",
            )
        G = len(sizes)
        check_fits("sizes", self.sizes, 8.0 * 6 * G**3)
        gamma = self.variogram
        gamma = (
            np.full((G, G), number("variogram", gamma, zero=True))
            if dimensions(gamma) == 0
            else gamma
        )
        gamma = real_array("variogram", gamma, 2)
        symmetric = gamma.shape == (G, G) and np.allclose(
            gamma, gamma.T, rtol=1e-12, atol=0.0
        )
        if not symmetric or (gamma < 0).any() or gamma.max(initial=0.0) > 1e250:
            raise argument_error(
                "variogram",
                self.variogram,
                f"a number or a symmetric ({G}, {G}) array, >= 0",
            )
        # class c of a query of group g: its own feature, then the groups, its own less
        # one feature
        members = np.vstack([np.ones(G), sizes[:, None] - np.eye(G)])
        alone = np.divide(1.0, members[1:], out=np.ones((G, G)), where=members[1:] > 0)
        spread = np.zeros((G, G + 1, G + 1))
        spread[:, 0, 1:] = spread[:, 1:, 0] = gamma
        spread[:, 1:, 1:] = gamma * (1.0 - np.eye(G) * alone.T[:, None])
        matrix = spread[:, 0, :, None] + spread[:, :1] - spread
        if (
            np.linalg.eigvalsh(matrix)[:, 0]
            < -1e-9 * np.maximum(np.abs(matrix).max(axis=(1, 2)), 1e-300)
        ).any():
            raise argument_error(
                "variogram",
                self.variogram,
                "one for which all mean squared differences are >= 0",
            )
        set_fields(
            self,
            sizes=sizes,
            probs=probs / total,
            variogram=gamma,
            N=prompt_length(self.N),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            members=members,
            _mass=members * np.vstack([probs, np.tile(probs[:, None], (1, G))]) / total,
            _spread=spread,
            _matrix=matrix,
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
        """Reduce a problem of single features.

        Parameters
        ----------
        features, task, N, noise
            As for `PopulationRisk`.
        groups : array_like of int, (K,), optional
            Group of each feature, 0 to G - 1; by default the largest ones (see
            `exchangeable_groups`).

        Raises
        ------
        ValueError
            The features of a group are not exchangeable.
        """
        variogram = variogram_of(features, task)
        probs = features.probs
        labels = (
            exchangeable_groups(features, task)
            if groups is None
            else _labels(groups, features.K)
        )
        scale = float(variogram.max())
        first = [int(np.flatnonzero(labels == g)[0]) for g in range(labels.max() + 1)]
        sizes = np.bincount(labels)
        gamma = variogram[np.ix_(first, first)]
        for g in np.flatnonzero(sizes > 1):
            pair = np.flatnonzero(labels == g)[:2]
            gamma[g, g] = variogram[pair[0], pair[1]]
        expected = gamma[np.ix_(labels, labels)]
        np.fill_diagonal(expected, 0.0)
        uneven = np.abs(probs - probs[first][labels]) > 1e-12 * probs
        if uneven.any() or (np.abs(variogram - expected) > 1e-12 * scale).any():
            raise argument_error(
                "groups",
                groups,
                "groups of features that can be exchanged with each other",
            )
        return cls(sizes.astype(float), probs[first], gamma, N, noise)

    @property
    def K(self) -> int:
        """Number of features."""
        return int(self.sizes.sum())

    @property
    def initial(self) -> Array:
        """Zero scores, (G, G + 1)."""
        return np.zeros((len(self.sizes), len(self.sizes) + 1))

    @property
    def metric(self) -> Array:
        """Number of entries of S for each score, (G, G + 1); 1 for the others of a group of one."""
        return np.maximum(self.sizes[:, None] * self.members.T, 1.0)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to the grouped scores, (G, G + 1)."""
        share = self.sizes * self.probs
        losses, gradient, _ = self._parts(params)
        return float(share @ losses), (gradient * share).T

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, (G, G + 1)."""
        change = change_along(
            lambda theta: self._parts(theta).gradient.T, params, direction
        )
        return (self.sizes * self.probs)[:, None] * change

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected target attention and loss of a query of each group, (G,) each."""
        found = self._parts(params)
        return {"attention": found.attention[0].copy(), "loss_per_query": found.loss}

    def attention(self, params: ArrayLike) -> Array:
        """Expected attention on whole classes, (G, G + 1); rows sum to 1."""
        return self._parts(self._checked(params)).attention.T

    @property
    def nondegenerate(self) -> bool:
        """Whether no mixture of the other classes is as good as the query's own feature (sufficient condition)."""
        there = [np.flatnonzero(members > 0)[1:] for members in self.members.T]
        values = (
            np.linalg.eigvalsh(each[np.ix_(on, on)])
            for each, on in zip(self._matrix, there, strict=True)
        )
        return all(each[0] > 1e-10 * each[-1] for each in values)

    def scores(self, params: ArrayLike) -> Array:
        """Scores of all single features, (K, K), group after group."""
        theta = self._checked(params)
        if self.K > 20_000:
            raise argument_error(
                "sizes", self.sizes, "20000 features at most to write out their scores"
            )
        group = np.repeat(np.arange(len(self.sizes)), self.sizes.astype(int))
        full: Array = theta[group[None, :], 1 + group[:, None]]
        np.fill_diagonal(full, theta[group, 0])
        return full

    def floor(self) -> float:
        """Irreducible loss: 0 for N = ∞, else the infimum over the scores, as for `PopulationRisk`."""
        if math.isinf(self.N):
            return 0.0
        G = len(self.sizes)
        if self.levels is not None:
            return float(
                self.sizes
                * self.probs
                @ np.array([each.lowest for each in self.levels])
            )
        target = np.arange(G + 1)[:, None] == np.zeros(G)
        return float(
            self.sizes * self.probs @ infima(self._finite, target, self.N, self.noise)
        )

    @cached_property
    def levels(self) -> tuple[Levels, ...] | None:
        """Levels of the classes at the infimum of each group's query; None if unknown."""
        if math.isinf(self.N):
            return None
        return levels_of(map(self._query, range(len(self.sizes))), len(self.sizes))

    def _query(self, g: int) -> Query:
        """The query of group g over the classes that are not empty, with its own feature first."""
        there = np.flatnonzero(self.members[:, g] > 0)
        matrix = self._matrix[g][np.ix_(there, there)]
        own = self._own[there, g]
        return Query(matrix, own, self._mass[there, g], self.N, self.noise, 0)

    @property
    def _own(self) -> Array:
        """Mean squared errors of a token of each class, (G + 1, G)."""
        return 2.0 * self._spread[:, 0].T + self.noise**2

    def _parts(self, params: Array) -> Moments:
        return (
            self._infinite(params.T) if math.isinf(self.N) else self._finite(params.T)
        )

    def _infinite(self, scores: Array) -> Moments:
        """N = ∞: losses (G,), gradients ∂ℓ_g/∂θ_gc and attention, (G + 1, G)."""
        with np.errstate(divide="ignore"):
            tilted = scores + np.log(self._mass)
        weight = np.exp(tilted - tilted.max(axis=0))
        a = weight / weight.sum(axis=0)

        residual = self._against(a.argmax(axis=0), a)
        mean = np.einsum("cg,cg->g", a, residual)
        return Moments(0.5 * (mean - residual[0]), a * (residual - mean), a)

    def _against(self, top: NDArray[np.intp], z: Array) -> Array:
        """``(C z)_c - (C z)_top``, (G + 1, G), accurate also if a wrong class ``top`` has nearly all attention."""
        groups = np.arange(len(top))
        gap = self._spread[:, 0].T
        difference = self._spread[groups, top][:, None] - self._spread
        return np.einsum("gcd,dg->cg", difference[..., 1:], z[1:]) + (
            gap - gap[top, groups]
        ) * z[1:].sum(axis=0)

    def _finite(self, scores: Array) -> Moments:
        def form(
            queries: NDArray[np.intp], rows: slice, z: Array, product: Array
        ) -> None:
            np.matmul(self._matrix[queries], z, out=product)

        own = self._own
        # within classes, and noise
        spread = own - np.diagonal(self._matrix, axis1=1, axis2=2).T
        present = np.where(self._mass > 0, scores, -np.inf)
        return moments(
            present,
            self._mass,
            own,
            [TokenCount(self.N)],
            form,
            spread=np.maximum(spread, 0.0),
        )


def exchangeable_groups(features: Features, task: Task) -> NDArray[np.int64]:
    """Label the features by the largest groups whose members can be exchanged with each other.

    Parameters
    ----------
    features, task
        As for `PopulationRisk`.

    Returns
    -------
    ndarray of int64, (K,)
        Group of each feature; groups are numbered in the order of their first members.

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(4, 1.0, [0.4, 0.2, 0.2, 0.2])
    >>> icl.regression.exchangeable_groups(features, icl.tasks.Linear(1.0))
    array([0, 1, 1, 1])
    """
    variogram = variogram_of(features, task)
    probs = features.probs
    tolerance = 1e-12 * float(variogram.max())
    labels = np.full(features.K, -1, dtype=np.int64)
    for k in range(features.K):
        if labels[k] < 0:
            difference = np.abs(variogram - variogram[k])
            # exchanging two features moves neither's own entry
            np.fill_diagonal(difference, 0.0)
            difference[:, k] = 0.0
            alike = (difference.max(axis=1) <= tolerance) & (
                np.abs(probs - probs[k]) <= 1e-12 * probs[k]
            )
            labels[alike & (labels < 0)] = labels.max() + 1
    return labels


def _labels(groups: ArrayLike, K: int) -> NDArray[np.int64]:
    given = real_array("groups", groups, 1)
    labels = given.astype(np.int64)
    if (
        len(labels) != K
        or (labels != given).any()
        or set(labels.tolist()) != set(range(int(labels.max()) + 1))
    ):
        raise argument_error(
            "groups", groups, f"{K} integers that cover 0, 1, ..., G - 1"
        )
    return labels
