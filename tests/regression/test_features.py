from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

import icl_theory as icl


@pytest.mark.parametrize("K", [2, 3, 20])
def test_simplex_is_centred_and_equidistant(K: int) -> None:
    features = icl.Features.simplex(K, delta=0.7)
    off = features.distances[~np.eye(K, dtype=bool)]
    np.testing.assert_allclose(off, 0.7, rtol=1e-13)
    np.testing.assert_allclose(features.vectors.sum(axis=0), 0.0, atol=1e-14)
    np.testing.assert_allclose(
        features.gram, 0.7**2 / 2 * (np.eye(K) - 1 / K), atol=1e-15
    )


def test_orthonormal_has_gap_root_two() -> None:
    features = icl.Features.orthonormal(5, scale=3.0)
    assert features.gap == pytest.approx(3.0 * math.sqrt(2.0), rel=1e-14)
    np.testing.assert_allclose(features.gram, 9.0 * np.eye(5))


def test_random_features_have_the_gap_asked_for_and_repeat_with_the_seed() -> None:
    first, again = (icl.Features.random(12, 3, 0.25, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.vectors, again.vectors)
    assert first.gap == pytest.approx(0.25, rel=1e-13)


def test_features_do_not_change_with_the_array_they_came_from() -> None:
    source = np.eye(3)
    features = icl.Features(source)
    source[0, 0] = 9.0
    assert features.vectors[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        features.vectors[0, 0] = 2.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: icl.Features([[1.0, 0.0]]), "K >= 2"),
        (lambda: icl.Features([1.0, 0.0]), "vectors = .*2 dimensions"),
        (lambda: icl.Features([[0.0], [np.inf]]), "vectors = .*finite"),
        (lambda: icl.Features([[0.0], [1.0], [0.0]]), "pairwise distinct"),
        (lambda: icl.Features(np.eye(2), probs=[0.5, 0.6]), "probs = .*sum to 1"),
        (lambda: icl.Features(np.eye(2), probs=[1.0, 0.0]), "probs = .*positive"),
        (lambda: icl.Features(np.eye(2), probs=[1.5, -0.5]), "probs = .*positive"),
        (lambda: icl.Features(np.eye(2), probs=[1.0]), "probs = .*2 positive"),
        (lambda: icl.Features.simplex(1, 1.0), "K = 1"),
        (lambda: icl.Features.simplex(3, 0.0), "delta = 0.0"),
        (lambda: icl.Features.orthonormal(3, scale=-1.0), "scale = -1.0"),
        (lambda: icl.Features.random(3, 0, 1.0, seed=0), "d = 0"),
        (lambda: icl.Features.random(3, 2, 1.0, seed=-1), "seed = -1"),
    ],
)
def test_refuses_what_is_no_feature_set(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("K", [2, 3, 50])
def test_distances_are_those_of_all_pairs_to_the_last_bit(K: int) -> None:
    simplex, basis = icl.Features.simplex(K, 0.7), icl.Features.orthonormal(K, 1.3)
    moved = simplex.vectors + 0.1 * np.outer(np.arange(K) == K - 1, np.arange(K) == 0)
    for features in (simplex, basis, icl.Features(moved)):
        assert (features.distances == squareform(pdist(features.vectors))).all()


def test_features_that_are_alike_are_not_compared_pair_by_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []
    monkeypatch.setattr(
        "scipy.spatial.distance.pdist", lambda x: compared.append(len(x)) or pdist(x)
    )
    assert icl.Features.simplex(300, 1.0).gap == pytest.approx(1.0)
    assert compared == [2]


@pytest.mark.parametrize("lengths", [(1.0, 2.0, 3.0), (2.0, 2.0, 1.0)])
def test_vectors_on_the_axes_of_unequal_length_have_distances_of_their_own(
    lengths: tuple[float, ...],
) -> None:
    features = icl.Features(np.diag(lengths), np.full(3, 1.0 / 3.0))
    expected = [math.hypot(lengths[i], lengths[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    np.testing.assert_allclose(
        features.distances[np.triu_indices(3, 1)], expected, rtol=1e-14
    )
    assert features.gap == pytest.approx(min(expected), rel=1e-14)
