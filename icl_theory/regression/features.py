"""The finite set of features in prompts.

Every token of a prompt shows one of K features, which are vectors. A `Features` object
holds the vectors and their probabilities. Its class methods return the usual sets: a
regular simplex, a scaled basis, and random vectors.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    integer,
    number,
    probabilities,
    real_array,
)
from icl_theory.memory import check_fits

# Largest number of features that are generated. The Gram matrix of 20 000 features
# takes 3 GiB.
MOST_GENERATED = 20_000


class Features:
    r"""Features :math:`v_1, \ldots, v_K \in \mathbb R^d` and their probabilities.

    See docs/theory.md, "Setting".

    Parameters
    ----------
    vectors : array_like, (K, d)
        One feature in each row, all different; K >= 2.
    probs : array_like, (K,), optional
        Positive numbers that sum to 1; uniform by default.

    Raises
    ------
    ValueError
        There are fewer than two vectors, two of them coincide, a coordinate is not
        finite or is above 1e40 in size, or ``probs`` are not probabilities.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.Features([[0, 0], [3, 4], [3, 0]]).gap
    3.0
    """

    def __init__(self, vectors: ArrayLike, probs: ArrayLike | None = None) -> None:
        points = real_array("vectors", vectors, 2)
        if len(points) < 2 or points.shape[1] < 1:
            raise argument_error(
                "vectors", points.shape, "an array of shape (K, d) with K >= 2, d >= 1"
            )
        self.vectors = points
        if probs is None:
            self.probs = np.full(len(points), 1.0 / len(points))
        else:
            self.probs = probabilities("probs", probs, len(points))
        # With larger coordinates, squares of products of a few of them might overflow.
        if np.abs(points).max() > LARGEST:
            raise argument_error(
                "vectors", points.tolist(), f"of coordinates up to {LARGEST:g}"
            )
        # The first access to the gap computes the distances of all pairs.
        if not self.gap > 0:
            raise argument_error(
                "vectors", points.tolist(), "pairwise distinct (two of these coincide)"
            )
        self.vectors.flags.writeable = False
        self.probs.flags.writeable = False

    @classmethod
    def simplex(cls, K: int, delta: float, probs: ArrayLike | None = None) -> Features:
        """Centred regular simplex, with the distance ``delta`` between all pairs.

        It has K vectors in K dimensions.

        Examples
        --------
        >>> import icl_theory as icl
        >>> round(icl.Features.simplex(5, delta=2.0).gap, 12)
        2.0
        """
        K = _count(K)
        delta = _length("delta", delta)
        # The vectors of a standard basis, less their mean, have the distances √2.
        return cls(delta / np.sqrt(2.0) * (np.eye(K) - 1.0 / K), probs)

    @classmethod
    def orthonormal(
        cls, K: int, scale: float = 1.0, probs: ArrayLike | None = None
    ) -> Features:
        """Scaled standard basis: K vectors in K dimensions.

        All pairs have the distance ``scale * sqrt(2)``.
        """
        return cls(_length("scale", scale) * np.eye(_count(K)), probs)

    @classmethod
    def random(
        cls, K: int, d: int, delta: float, seed: int, probs: ArrayLike | None = None
    ) -> Features:
        """Normal vectors, scaled so that the smallest distance is ``delta``."""
        K = _count(K)
        d = integer("d", d, minimum=1)
        delta = _length("delta", delta)
        # Three arrays of 8-byte numbers: the draws, their copy, and the scaled vectors
        check_fits("d", d, 24.0 * K * d)
        rng = np.random.default_rng(integer("seed", seed, minimum=0))
        points = rng.normal(size=(K, d))
        return cls(points * (delta / cls(points).gap), probs)

    @property
    def K(self) -> int:
        """Number of features."""
        return len(self.vectors)

    @property
    def d(self) -> int:
        """Dimension of the features."""
        return int(self.vectors.shape[1])

    @cached_property
    def uniform(self) -> bool:
        """Whether all features are equally likely."""
        return bool(np.all(self.probs == self.probs[0]))

    @cached_property
    def gram(self) -> Array:
        """Gram matrix of the features, (K, K)."""
        gram = self.vectors @ self.vectors.T
        gram.flags.writeable = False
        return gram

    @cached_property
    def gap(self) -> float:
        """Smallest distance between two features, Δ."""
        return float(self._pair_distances.min())

    @cached_property
    def distances(self) -> Array:
        """Distances between all pairs, (K, K)."""
        # Imported here, because closed forms have no features and do not need SciPy.
        from scipy.spatial.distance import squareform

        distances = np.asarray(squareform(self._pair_distances))
        distances.flags.writeable = False
        return distances

    @cached_property
    def _pair_distances(self) -> Array:
        """Distances of all pairs, each once, in the order of SciPy's ``pdist``."""
        # Imported here, because closed forms have no features and do not need SciPy.
        from scipy.spatial.distance import pdist

        # K vectors in K dimensions may be a simplex or a basis, the usual cases. Then
        # all entries on the diagonal are equal, and so are all others.
        if self.d == self.K:
            diagonal = np.diagonal(self.vectors)
            off_diagonal = self.vectors[~np.eye(self.K, dtype=bool)]
            is_regular = np.ptp(diagonal) == 0.0 and np.ptp(off_diagonal) == 0.0
            if is_regular:
                # All distances are equal, also after rounding. The first two vectors
                # give the distance, so that K²/2 others need not be computed.
                (distance,) = pdist(self.vectors[:2])
                return np.full(self.K * (self.K - 1) // 2, distance)
        return np.asarray(pdist(self.vectors))

    def __repr__(self) -> str:
        unequal = ""
        if not self.uniform:
            unequal = ", unequal probs"
        return f"Features(K={self.K}, d={self.d}, gap={self.gap:g}{unequal})"


def _count(K: int) -> int:
    """Return K as an integer; refuse it if (K, K) arrays do not fit into memory."""
    K = integer("K", K, minimum=2, maximum=MOST_GENERATED)
    # Three (K, K) arrays of 8-byte numbers: vectors, distances, and a temporary one
    check_fits("K", K, 24.0 * K**2)
    return K


def _length(name: str, value: float) -> float:
    """Return a length as a float.

    Within its limits, squares of products of a few lengths stay within float64, and so
    do their inverses.
    """
    return number(name, value, minimum=1.0 / LARGEST, maximum=LARGEST)
