"""Checks of arguments that are second moments, of tokens (Σ) or of tasks (Ω)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array, argument_error, floats, symmetric

# Bounds on moments. A term of the loss of six layers has up to 14 moments as factors:
# 13 times Σ, and Ω. Their product, up to 1e280, is below the largest float. The lower
# bound is a choice.
SMALLEST = 1e-30
LARGEST_MOMENT = 1e20
# Negative eigenvalues up to this size, relative to d times the largest one, are taken
# for rounding errors, which are about 1e-16. The size is generous.
EIGENVALUE_ROUNDING = 1e-12
# Two matrices are taken as commuting if the entries of their commutator are at most
# this large, relative to d times the product of their largest entries. This bound is
# far above rounding errors, because matrices may be given with fewer digits, or may be
# products.
COMMUTATION = 1e-10
# Weight of the second of two commuting matrices in a sum. The eigenvectors of the sum
# are eigenvectors of both matrices. But if the sum has equal eigenvalues for two
# eigenvectors, any mixtures of these two are eigenvectors of the sum. With a weight
# that is far from simple fractions such equal eigenvalues are rare.
MIXTURE = 0.6180339887


def positive_definite(name: str, value: object) -> Array:
    """Return a copy of a positive definite matrix, or of its positive eigenvalues."""
    allowed = "a symmetric, positive definite matrix (d x d), or its d eigenvalues > 0"
    entries = _entries(name, value, allowed)
    if entries.ndim == 1:
        least = float(entries.min())
        is_definite = least > 0.0
    else:
        # `symmetric` removes a small difference from the transpose, and refuses a large
        # one.
        entries = symmetric(name, value, entries, allowed)
        spectrum = np.linalg.eigvalsh(entries)
        least = float(spectrum[0])
        # An eigenvalue below this size cannot be told from zero in float64.
        rounding = len(entries) * 2.0**-52 * float(spectrum[-1])
        is_definite = least > rounding
    if not is_definite:
        raise argument_error(name, value, f"{allowed} (the least is {least:.3g})")
    largest = float(np.abs(entries).max())
    if least < SMALLEST or largest > LARGEST_MOMENT:
        raise argument_error(
            name,
            value,
            f"{allowed}, from {SMALLEST:g} to {LARGEST_MOMENT:g}",
        )
    return entries


def moment_diagonal(name: str, value: object, d: int, whole: bool = False) -> Array:
    """Return a copy of the diagonal, (d,), of a positive semidefinite matrix.

    If ``whole`` is True, the value may also be the whole matrix, (d, d), and a copy of
    the matrix is returned.
    """
    allowed = f"{d} numbers >= 0"
    if whole:
        allowed += f", or a symmetric, positive semidefinite matrix ({d} x {d})"
    entries = _entries(name, value, allowed)
    is_matrix = entries.ndim == 2
    if len(entries) != d or (is_matrix and not whole):
        raise argument_error(name, value, allowed)
    if is_matrix:
        entries = symmetric(name, value, entries, allowed)
        spectrum = np.linalg.eigvalsh(entries)
        least = float(spectrum[0])
        slack = d * EIGENVALUE_ROUNDING * float(np.abs(spectrum).max())
    else:
        least = float(entries.min())
        slack = 0.0  # given numbers have no rounding errors
    if least < -slack:
        raise argument_error(name, value, f"{allowed} (the least is {least:.3g})")
    if np.abs(entries).max() > LARGEST_MOMENT:
        raise argument_error(name, value, f"{allowed}, up to {LARGEST_MOMENT:g}")
    return entries


def moment_matrix(moment: Array) -> Array:
    """Return a moment as a matrix, (d, d); it may be given as its diagonal, (d,)."""
    return np.diag(moment) if moment.ndim == 1 else moment


class Spectra(NamedTuple):
    """Eigenvalues of two matrices in a common eigenbasis.

    Both arrays have the order of the eigenvectors. The largest eigenvalue of the
    covariance is first, unless a user has given its eigenvalues in another order.
    """

    covariance: Array  # (d,)
    prior: Array  # (d,)


def common_spectra(covariance: Array, prior: Array) -> Spectra:
    """Return the eigenvalues of two commuting matrices in a common eigenbasis.

    Refuse matrices, (d, d) each, that do not commute.
    """
    size = float(np.abs(covariance).max() * np.abs(prior).max())
    commutator = covariance @ prior - prior @ covariance
    largest_entry = float(np.abs(commutator).max())
    if largest_entry > COMMUTATION * len(prior) * size:
        raise argument_error(
            "prior",
            prior,
            "a matrix that commutes with the covariance, unless coordinates ="
            f" 'matrix' (their commutator has entries up to {largest_entry:.3g})",
        )
    # If one matrix has equal eigenvalues, the other one selects the eigenvectors. A
    # prior of zero selects none, and its scale is then `SMALLEST`, so that the division
    # by the scale is possible.
    scale = max(float(np.abs(prior).max()), SMALLEST)
    mixture = covariance / np.abs(covariance).max() + MIXTURE * prior / scale
    _, vectors = np.linalg.eigh(mixture)
    # The diagonals of the matrices in the eigenbasis.
    spectrum = np.einsum("ik,ij,jk->k", vectors, covariance, vectors)
    tasks = np.einsum("ik,ij,jk->k", vectors, prior, vectors)
    order = np.argsort(-spectrum, kind="stable")
    # Rounding may have made an eigenvalue of the prior negative.
    return Spectra(spectrum[order], np.maximum(tasks[order], 0.0))


def _entries(name: str, value: object, allowed: str) -> Array:
    """Return a copy of a diagonal, (d,), or of a square matrix, (d, d).

    If the value is neither, or has entries that are not finite, raise an error that
    says what is ``allowed``.
    """
    entries = floats(value)  # None for any value that is no array of real numbers
    if entries is None or entries.ndim not in (1, 2) or entries.size == 0:
        raise argument_error(name, value, allowed)
    has_allowed_shape = entries.ndim == 1 or entries.shape[0] == entries.shape[1]
    if not has_allowed_shape or not np.isfinite(entries).all():
        raise argument_error(name, value, allowed)
    return np.array(entries)
