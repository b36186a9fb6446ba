"""Layers of linear attention on any covariance, as a family of problems."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize

from icl_theory._validate import LARGEST, Array, argument_error
from icl_theory.engine.risk import Risk
from icl_theory.engine.starts import checked_start
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    NumberOrArray,
    Numbers,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.parameters import label_noise, learning_rate, loss_form
from icl_theory.papers.depth_covariance.limit import limit_loss
from icl_theory.papers.depth_covariance.moments import (
    Spectra,
    common_spectra,
    moment_matrix,
    positive_definite,
)
from icl_theory.papers.depth_covariance.risk import (
    DepthRisk,
    SymmetricRisk,
)

COORDINATES = ("eigenvalues", "multiple", "matrix")
TERMS = ("all", "leading")
# The search for the best parameters ends at a gradient with entries below this number.
# The excess of the loss over its minimum is quadratic in the gradient, so the excess is
# about 1e-20 at the end.
SEARCH_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class DepthCovariance(Family):
    r"""In-context linear regression on any covariance, learnt by tied layers.

    Tokens x have the covariance Σ, tasks w have the second moment Ω, and labels are y =
    wᵀx + σξ with ξ ~ N(0, 1). L layers of linear attention share a symmetric matrix Γ.
    Each of them takes a step of descent on the prompt's least squares, with the length
    1/L and the preconditioner Γ. The loss is a polynomial in traces, whose exact
    coefficients follow from Wick's theorem.

    Parameters
    ----------
    d, decay : int, float
        Dimension of the tokens, and exponent of their spectrum, :math:`\lambda_j =
        j^{-\mathrm{decay}}`.
    N, depth : int
        Pairs in a prompt (or math.inf), and number of layers, at most 6.
    source : float, optional
        Exponent β of the tasks. If it is given, Ω has the eigenvalues :math:`\omega_j`
        with :math:`\omega_j\lambda_j = j^{-1 - \beta\cdot\mathrm{decay}}`; by default
        Ω = I.
    coordinates : {"eigenvalues", "multiple", "matrix"}
        What is trained. "eigenvalues": the eigenvalues of Γ in the eigenbasis of Σ. If
        Σ and Ω commute, training from Γ = γI changes these eigenvalues alone.
        "multiple": the number γ with Γ = γI. If each prompt's covariance is rotated at
        random, training from Γ = γI changes γ alone. "matrix": any symmetric matrix Γ.
    terms : {"all", "leading"}
        "all": the exact loss. "leading": only the terms of the exact loss that remain
        if d and N grow in proportion.
    noise : float
        Standard deviation of the label noise, label units.
    covariance, prior : array_like, (d, d) or (d,), optional
        Σ and Ω, or their diagonals. A covariance replaces ``d`` and ``decay``.
    start : float or array_like, (d,), (1,) or (d, d)
        The number γ of Γ = γI at step 0, or all parameters at step 0.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`.

    References
    ----------
    docs/theory/depth-covariance.md; Bordelon, Letey, Pehlevan 2025.

    Examples
    --------
    Two layers on a power law, from Γ = 0:

    >>> from icl_theory.papers.depth_covariance.family import DepthCovariance
    >>> problem = DepthCovariance(d=5, decay=1.0, N=20, depth=2, epsilon=0.2)
    >>> run = problem.simulate()
    >>> eigenvalues = run.observed["eigenvalues"][-1]
    >>> bool(run.loss[-1] <= 0.2 and eigenvalues[-1] > 0.0)
    True
    """

    name: ClassVar[str] = "depth-covariance"
    title: ClassVar[str] = "tied layers of linear attention on any covariance"
    goal: ClassVar[tuple[str, float]] = ("epsilon", 0.2)
    claims = LazySlot("icl_theory.papers.depth_covariance.statements:CLAIMS")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("first_eigenvalue", "f8", "", "eigenvalue of Γ for λ_1 at the end"),
        Column("last_eigenvalue", "f8", "", "eigenvalue of Γ for λ_d at the end"),
        Column("limit", "f8", "squared label units", "asymptotic loss of Γ at the end"),
    )

    eta: float | str = learning_rate(0.3)
    d: int = parameter(
        5, kind=Whole(maximum=10**4), symbol="d", meaning="dimension of the tokens"
    )
    decay: float = parameter(
        1.0,
        kind=Number(zero=True, maximum=4.0),
        symbol="ν",
        meaning="exponent of the spectrum of the tokens, λ_j = j^-ν",
    )
    N: float = parameter(
        20, kind=Whole(infinite=True), symbol="N", meaning="pairs in a prompt, or inf"
    )
    depth: int = parameter(
        2, kind=Whole(), symbol="D", meaning="number of layers, at most 6"
    )
    source: float | None = parameter(
        None,
        kind=Number(optional=True, zero=True, maximum=4.0),
        symbol="β",
        meaning="exponent of the tasks, ω_j λ_j = j^-(1 + βν)",
    )
    coordinates: str = parameter(
        "eigenvalues", kind=Word(words=COORDINATES), meaning="what is trained"
    )
    terms: str = parameter(
        "all", kind=Word(words=TERMS), meaning="terms of the loss that are kept"
    )
    noise: float = label_noise(0.0, 1e6)
    covariance: Any = parameter(
        None,
        kind=Numbers(optional=True, ndim=(1, 2), checker=positive_definite),
        meaning="covariance of the tokens",
    )
    prior: Any = parameter(
        None,
        kind=Numbers(optional=True, ndim=(1, 2)),
        meaning="second moment of the tasks",
    )
    start: Any = parameter(
        0.0,
        kind=NumberOrArray(zero=True, maximum=LARGEST, ndim=(1, 2)),
        meaning="γ of Γ = γI at step 0",
    )
    loss: str = loss_form()

    def validate(self) -> None:
        """Check the parameters against each other, and build the risk.

        A given covariance sets d.
        """
        if self.covariance is not None:
            # A decay other than the default must have been given by the user.
            if self.decay != self.parameters()["decay"].default:
                raise argument_error(
                    "decay", self.decay, "left out if a covariance is given"
                )
            # An assignment to a field of a frozen dataclass would raise an error.
            object.__setattr__(self, "d", len(self.covariance))
        if self.source is not None and self.prior is not None:
            raise argument_error("source", self.source, "left out if a prior is given")
        if self.terms == "leading" and self.coordinates == "matrix":
            raise argument_error(
                "terms", self.terms, "'all' for coordinates = 'matrix'"
            )
        self.risk()  # refuses moments and starts that do not fit

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        """Σ and Ω: both as diagonals, (d,), or both as matrices, (d, d).

        They are matrices if at least one of them is given as a matrix.
        """
        if self.covariance is None:
            covariance = np.arange(1.0, self.d + 1.0) ** -self.decay
        else:
            covariance = np.array(self.covariance)
        prior = np.ones(self.d) if self.prior is None else np.array(self.prior)
        if self.source is not None:
            if covariance.ndim == 2:
                raise argument_error(
                    "source", self.source, "left out unless Σ is given by eigenvalues"
                )
            # ω_j λ_j = j^-(1 + βν), with β = source and ν = decay
            ranks = np.arange(1.0, self.d + 1.0)
            prior = ranks ** (-1.0 - self.source * self.decay) / covariance
        if len(prior) != self.d:
            raise argument_error("prior", prior.shape, f"of dimension d = {self.d}")
        if max(covariance.ndim, prior.ndim) == 2:
            return moment_matrix(covariance), moment_matrix(prior)
        return covariance, prior

    @cached_property
    def spectra(self) -> Spectra:
        """The eigenvalues of Σ and Ω in a common eigenbasis.

        Raises
        ------
        ValueError
            Σ and Ω do not commute.
        """
        covariance, prior = self._moments
        if covariance.ndim == 1:
            return Spectra(covariance, prior)
        # This risk is made only for its checks: it refuses matrices that are not second
        # moments.
        SymmetricRisk(covariance, self.N, self.depth, prior)
        return common_spectra(covariance, prior)

    @cached_property
    def _risk(self) -> Risk:
        """The risk that `risk` returns."""
        if self.coordinates == "matrix":
            covariance, prior = self._moments
            return SymmetricRisk(
                covariance,
                self.N,
                self.depth,
                prior,
                self.noise,
                start=self._start_from(np.eye(self.d)),
            )
        covariance, prior = self.spectra
        is_rotated = self.coordinates == "multiple"
        return DepthRisk(
            covariance,
            self.N,
            self.depth,
            prior,
            self.noise,
            rotated=is_rotated,
            leading=self.terms == "leading",
            start=self._start_from(np.ones(1 if is_rotated else self.d)),
        )

    def _start_from(self, unit: Array) -> Array:
        """Return the parameters at step 0; ``unit`` has the parameters of Γ = I."""
        if isinstance(self.start, float):
            return self.start * unit
        return checked_start(self.start, unit.shape)

    def risk(self) -> Risk:
        """Return the risk over the trained parameters."""
        return self._risk

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run.

        The limit is left out for a matrix Γ, which need not commute with Σ.
        """
        eigenvalues = run.observed["eigenvalues"][-1]
        measured = {
            "first_eigenvalue": float(eigenvalues[0]),
            "last_eigenvalue": float(eigenvalues[-1]),
        }
        if self.coordinates != "matrix":
            measured["limit"] = self.limit(eigenvalues)
        return measured

    def limit(self, eigenvalues: Array) -> float:
        """Return the asymptotic loss at given eigenvalues of Γ, (d,).

        Raises
        ------
        ValueError
            Σ and Ω do not commute, or the eigenvalues are of another shape.
        """
        covariance, prior = self.spectra
        return limit_loss(
            eigenvalues, covariance, self.N, self.depth, prior, self.noise
        )

    def best(self) -> Array:
        """Search for the parameters with the least loss, by a quasi-Newton descent.

        The descent starts near L times the best eigenvalues of a single layer. The loss
        of several layers may have other minima.

        Returns
        -------
        ndarray
            The parameters at the end of the descent, in the shape that the methods of
            ``risk()`` take.

        Examples
        --------
        >>> from icl_theory.papers.depth_covariance.family import DepthCovariance
        >>> problem = DepthCovariance(d=5, N=20, depth=2)
        >>> round(problem.risk().loss(problem.best()), 3)
        0.111
        """
        spectrum = self._spectrum
        sampling_noise = (float(spectrum.sum()) + self.noise**2) / self.N
        # The best Γ of a single layer has eigenvalues near 1/(λ + (tr Σ + σ²)/N). Each
        # of L layers makes a step of the length 1/L, so the guess is L times as large.
        # If Γ begins as a multiple of I, the smallest of the d guesses is taken, with
        # which the layers converge in every direction.
        guess = self.depth / (spectrum + sampling_noise)
        if self.coordinates == "eigenvalues":
            return _descended(self._risk, guess)
        if self.coordinates == "multiple":
            return _descended(self._risk, guess.min(keepdims=True))
        return _descended(self._risk, guess.min() * np.eye(self.d))

    @property
    def _spectrum(self) -> Array:
        """The eigenvalues of Σ.

        The largest eigenvalue is first, unless a user has given the eigenvalues in
        another order.
        """
        covariance, _ = self._moments
        if self.coordinates == "matrix":
            return np.asarray(np.linalg.eigvalsh(moment_matrix(covariance))[::-1])
        return self.spectra.covariance


def _descended(risk: Risk, start: Array) -> Array:
    """Return the end of a quasi-Newton descent from ``start``.

    The variables of the descent are the parameters divided by their sizes at the start,
    because these sizes may be of different orders of magnitude.
    """
    # The entries off the diagonal of a matrix start at zero, by which nothing can be
    # divided. They are divided by the largest size at the start.
    scale = np.where(start == 0.0, np.abs(start).max(), start)

    def evaluate_scaled(scaled: Array) -> tuple[float, Array]:
        """Return the loss, and its gradient with respect to the scaled parameters."""
        loss, gradient = risk.evaluate(scale * scaled.reshape(scale.shape))
        return loss, (scale * gradient).ravel()

    options = {"gtol": SEARCH_TOLERANCE, "maxiter": 2000}
    # A line search may try parameters at which the loss is beyond float64.
    with np.errstate(over="ignore", invalid="ignore"):
        end = minimize(
            evaluate_scaled,
            (start / scale).ravel(),
            jac=True,
            method="BFGS",
            options=options,
        )
    return np.asarray(scale * end.x.reshape(scale.shape))
