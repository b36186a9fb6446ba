"""Layers of linear attention that descend on the prompt, as a family of problems."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize

from icl_theory._validate import Array, argument_error, integer
from icl_theory.engine.progress import counted
from icl_theory.engine.pullback import Pullback
from icl_theory.engine.risk import Risk
from icl_theory.engine.starts import checked_start
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    NumberOrArray,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.parameters import label_noise, learning_rate, loss_form
from icl_theory.papers.descent_layers.matrices import UnitMatrices
from icl_theory.papers.descent_layers.risk import DEEPEST, LayersRisk

COORDINATES = ("steps", "matrices")
TOKENS = ("moved", "fixed")
# Descents of `best_steps` begin near geometric sequences of steps. From layer to layer
# the spectrum of the tokens shrinks, and good steps grow, by about this factor.
GROWTH = 3.4
# The first terms of these sequences, near good steps of the first layer. A value step η
# changes the labels, and a token step γ the tokens.
FIRST_VALUE_STEP = 0.6
FIRST_TOKEN_STEP = 0.2
# The start of a descent is the sequence times random factors in this range. The range
# is wide, so that the descents end at several minima, of which the lowest counts.
RANDOM_FACTORS = (0.3, 1.7)
# Each descent of `best_steps` consists of this number of runs of BFGS, one after the
# other. Rounding stops the line search of a run early, and a fresh run can go on from
# there. More runs cost more time.
RUNS_OF_BFGS = 3
# A start at which the loss is beyond float64 is multiplied by this factor until the
# loss is finite. Any factor below 1 would do; with one near 1 the start changes little.
SHORTENING = 0.9


@dataclass(frozen=True, eq=False)
class DescentLayers(Family):
    r"""In-context linear regression, learnt by several layers of linear attention.

    Tokens x and tasks w are normal with unit covariance, and labels are y = wᵀx + σξ.
    Layer ℓ takes a step :math:`\eta_\ell` of descent on the prompt's least squares. If
    tokens move, it also changes each token x to :math:`x - \gamma_\ell\hat\Sigma_\ell
    x` (GD++). Here :math:`\hat\Sigma_\ell = \tfrac1N\sum_i x_ix_i^\top` has the second
    moments of the prompt's tokens in this layer. The loss is an integral over the mean
    spectrum of :math:`\hat\Sigma_1`, the matrix of the first layer.

    Parameters
    ----------
    d, N : int
        Dimension of the tokens, and pairs in a prompt (or math.inf).
    depth : int
        Number of layers, at most 6.
    tokens : {"moved", "fixed"}
        Whether the layers change the tokens.
    coordinates : {"steps", "matrices"}
        What is trained. "steps": the steps η and γ themselves. "matrices": the matrices
        Q and P of the layers. They stay multiples of I, Q = -ηI and P = pI, and the
        token step is γ = ηp.
    noise : float
        Standard deviation of the label noise, label units.
    start : float or array_like, (L,) or (2L - 1,)
        The trained numbers at step 0, or the standard deviation with which they are
        drawn. The trained numbers are η and γ of the layers, or for matrices -η and p.
    seed : int
        Seed of the draw of the start.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`.

    References
    ----------
    docs/theory/layers.md; Ahn, Cheng, Daneshmand, Sra 2023; von Oswald et al. 2023.

    Examples
    --------
    Three layers, trained by Adam, at the d and N of Ahn et al.:

    >>> import icl_theory as icl
    >>> from icl_theory.papers.descent_layers.family import DescentLayers
    >>> problem = DescentLayers(eta=0.02, depth=3, rule="adam", max_steps=300)
    >>> run = problem.simulate()
    >>> bool(run.loss[-1] < 0.1 < run.loss[0])
    True
    """

    name: ClassVar[str] = "descent-layers"
    title: ClassVar[str] = "layers of linear attention that descend"
    goal: ClassVar[tuple[str, float]] = ("epsilon", 0.05)
    claims = LazySlot("icl_theory.papers.descent_layers.statements:CLAIMS")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("first_step", "f8", "", "step η of the first layer at the end", "η₁"),
        Column("last_step", "f8", "", "step η of the last layer at the end", "η_L"),
        Column(
            "bound",
            "f8",
            "squared label units",
            "least loss of polynomials of this degree",
        ),
    )

    eta: float | str = learning_rate(0.02)
    d: int = parameter(5, kind=Whole(maximum=10**6), meaning="dimension of the tokens")
    N: float = parameter(
        20, kind=Whole(infinite=True), symbol="N", meaning="pairs in a prompt, or inf"
    )
    depth: int = parameter(
        3, kind=Whole(maximum=DEEPEST), symbol="D", meaning="number of layers"
    )
    tokens: str = parameter(
        "moved", kind=Word(words=TOKENS), meaning="whether layers change the tokens"
    )
    coordinates: str = parameter(
        "steps", kind=Word(words=COORDINATES), meaning="what is trained"
    )
    noise: float = label_noise(0.0, 1e6)
    start: Any = parameter(
        0.01,
        kind=NumberOrArray(zero=True, maximum=10.0, ndim=(1,)),
        meaning="size of the trained numbers at step 0",
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of the start")
    loss: str = loss_form()

    def validate(self) -> None:
        """Refuse matrices with fixed tokens, and whatever the risk refuses."""
        if self.coordinates == "matrices" and self.tokens == "fixed":
            raise argument_error(
                "tokens", self.tokens, "'moved' for matrices: P moves the tokens"
            )
        self.risk()

    def layers(self) -> LayersRisk:
        """Return the risk over the steps η and γ of the layers, which start at 0."""
        return LayersRisk(
            self.d,
            self.N,
            self.depth,
            token_steps=self.tokens == "moved",
            noise=self.noise,
        )

    def risk(self) -> Risk:
        """Return the risk over the trained parameters."""
        layers = self.layers()
        if isinstance(self.start, float):
            rng = np.random.default_rng(self.seed)
            start = rng.normal(0.0, self.start, layers.size)
        else:
            start = checked_start(self.start, (layers.size,))
        if self.coordinates == "steps":
            return LayersRisk(
                self.d, self.N, self.depth, layers.token_steps, self.noise, start
            )
        # Each trained number times I is one of the matrices Q and P.
        matrices = start[:, None, None] * np.eye(self.d)
        return Pullback(layers, UnitMatrices(matrices, self.depth))

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        steps_at_end = run.observed["value_steps"][-1]  # of the layers, (L,)
        return {
            "first_step": float(steps_at_end[0]),
            "last_step": float(steps_at_end[-1]),
            "bound": self.layers().floor(),
        }

    def best_steps(self, starts: int = 60, seed: int = 0) -> Array:
        """Search for the steps with the least loss, by quasi-Newton descents.

        The loss has several minima. The result is the lowest one that was found, which
        need not be the lowest of all. ``LayersRisk.floor`` is a lower bound on the
        loss.

        Parameters
        ----------
        starts, seed : int
            Number of descents, and the seed of their starts.

        Returns
        -------
        ndarray, (L,) or (2L - 1,)
            η of the layers, and γ of all layers but the last if tokens move.

        Raises
        ------
        ValueError
            An argument is out of range.
        """
        starts = integer("starts", starts, minimum=1, maximum=10**5)
        rng = np.random.default_rng(integer("seed", seed, minimum=0))
        risk = self.layers()
        value_steps = FIRST_VALUE_STEP * GROWTH ** np.arange(risk.depth)
        token_steps = FIRST_TOKEN_STEP * GROWTH ** np.arange(risk.depth - 1.0)
        # Without token steps the parameters end after the value steps.
        sequence = np.concatenate([value_steps, token_steps])[: risk.size]
        # If no descent ends below the loss of steps of zero, steps of zero are the
        # result.
        best = np.zeros(risk.size)
        least_loss = risk.loss(best)
        for _ in counted(range(starts), "descents"):
            factors = rng.uniform(*RANDOM_FACTORS, risk.size)
            steps = _descended(risk, sequence, factors)
            loss = risk.loss(steps)
            if loss < least_loss:
                least_loss = loss
                best = steps
        return best


def _descended(risk: LayersRisk, sequence: Array, factors: Array) -> Array:
    """Return the steps at the end of a quasi-Newton descent.

    The descent begins at the steps ``sequence * factors``. It is over the factors,
    which have similar sizes, unlike the steps. It minimises the logarithm of the loss,
    because the loss spans many decades.
    """

    def log_loss(trial: Array) -> tuple[float, Array]:
        """Return the logarithm of the loss, and its gradient in the trial factors."""
        loss, gradient = risk.evaluate(sequence * trial)
        return float(np.log(loss)), sequence * gradient / loss

    # Long steps in many layers have losses beyond float64, from which no descent can
    # begin.
    log_loss_at_start, _ = log_loss(factors)
    while math.isinf(log_loss_at_start):
        factors = SHORTENING * factors
        log_loss_at_start, _ = log_loss(factors)
    # A line search may also try steps with such losses, but rejects them.
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(RUNS_OF_BFGS):
            # If the logarithm of the loss has a curvature of about 1, the loss exceeds
            # its minimum by about 1e-12 of itself at this gradient.
            end = minimize(
                log_loss, factors, jac=True, method="BFGS", options={"gtol": 1e-6}
            )
            factors = end.x
    return np.asarray(sequence * factors)
