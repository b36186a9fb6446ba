"""Two variants of regression: groups of exchangeable features, and Gaussian inputs.

For `GroupedRegression` G is the number of groups, K the number of all features, and
γ = L²Δ²/2 the variogram of the tasks. For `GaussianRegression` the inputs have d
dimensions. The trained parameters are a matrix Q, (d, d), for infinite prompts, and a
number c with Q = c I for finite prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import MOST_FEATURES, argument_error, integer, probabilities
from icl_theory.engine.risk import Risk
from icl_theory.engine.sampling import Trainer
from icl_theory.engine.starts import checked_start, with_start
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.parameters import (
    Number,
    Probabilities,
    Whole,
    Wholes,
    feature_gap,
    label_noise,
    learning_rate,
    lipschitz_constant,
    loss_form,
    parameter,
    prompt_length,
    starting_parameters,
)
from icl_theory.regression.features import Features
from icl_theory.regression.phases import query_phases, run_phases
from icl_theory.regression.risks.gaussian import (
    MOST_DIMENSIONS,
    FiniteGaussianRisk,
    GaussianRisk,
    QuadraticLaw,
    SampledGaussianRisk,
)
from icl_theory.regression.risks.stability import stable_rate
from icl_theory.regression.risks.symmetric import SymmetricRisk
from icl_theory.regression.sampled.risk import SampledRisk
from icl_theory.regression.tasks import Exchangeable, exchangeable_gamma
from icl_theory.sweeps.grid import Column

# The largest K for which prompts are sampled. The trained scores of all features have
# K² entries.
MOST_SAMPLED_FEATURES = 1000


@dataclass(frozen=True, eq=False)
class GroupedRegression(Family):
    r"""In-context regression on groups of features of any size and frequency.

    The features of a group have the same probability. The tasks are
    ``tasks.Exchangeable``, so that all pairs of features have the same variogram. The
    cost depends on the number of groups, and not on the number of features. See
    docs/theory.md, "Groups of features".

    Parameters
    ----------
    L, delta, N, noise
        As for `Regression`.
    sizes : sequence of int
        Number of features in each group.
    shares : sequence of float
        Probability of each group as a whole. All features of a group are equally
        likely.
    start : array_like, (G, G + 1), optional
        Scores of the G groups at step 0, instead of zeros; see
        ``regression.risks.symmetric.SymmetricRisk``.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`; ``eta="auto"`` is a learning rate at which every step
        lowers the loss.

    Examples
    --------
    Ten frequent features, and a thousand rare ones that are learnt later:

    >>> import icl_theory as icl
    >>> problem = icl.regression.GroupedRegression(
    ...     L=2.0, delta=1.0, sizes=(10, 1000), shares=(0.5, 0.5)
    ... )
    >>> values = problem.measured(problem.simulate())
    >>> values["attends_first"] < values["attends_last"] == values["T_I"]
    True
    """

    name: ClassVar[str] = "grouped-regression"
    title: ClassVar[str] = "in-context regression on groups of features"
    # The default target. With finite prompts the floor is not zero, so the target is an
    # excess.
    goal: ClassVar[tuple[str, float]] = ("above", 1e-3)
    phase_names: ClassVar[tuple[str, ...]] = ("I", "II", "III")
    # The arguments of a column are its name, dtype, unit and description.
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "attends_first",
            "i8",
            "steps",
            "end of Phase I of the first group to attend; -1 if none does",
        ),
        Column(
            "attends_last",
            "i8",
            "steps",
            "end of Phase I of the last group to attend; -1 if not all groups attend",
        ),
    )

    eta: float | str = learning_rate("auto")
    L: float = lipschitz_constant()
    delta: float = feature_gap()
    sizes: tuple[int, ...] = parameter(
        (1, 19),
        kind=Wholes(maximum=MOST_FEATURES),
        meaning="number of features in each group",
        axis=False,
    )
    shares: tuple[float, ...] = parameter(
        (0.5, 0.5),
        kind=Probabilities(),
        meaning="probability of each group as a whole",
        axis=False,
    )
    N: float = prompt_length()
    noise: float = label_noise()
    start: Any = starting_parameters((2,))
    loss: str = loss_form()

    def validate(self) -> None:
        """Refuse shares and a start that do not fit the number of groups."""
        if len(self.shares) != len(self.sizes):
            raise argument_error(
                "shares",
                self.shares,
                f"{len(self.sizes)} numbers, one for each entry of sizes",
            )
        if self.start is not None:
            # A query of a group has a score for its own feature, and one for the
            # features of each group.
            checked_start(self.start, (len(self.sizes), len(self.sizes) + 1))

    @property
    def own_start(self) -> bool:
        """Whether training starts elsewhere than at zero scores."""
        return self.start is not None

    def _probs(self) -> Any:
        """Probability of a single feature of each group, (G,)."""
        # `probabilities` refuses shares that do not sum to 1.
        shares = probabilities("shares", self.shares, len(self.sizes))
        return shares / np.asarray(self.sizes, dtype=float)

    def risk(self) -> Risk:
        """Return the risk over G(G + 1) scores."""
        risk = self._risk_from_zero()
        return risk if self.start is None else with_start(risk, self.start)

    def _risk_from_zero(self) -> SymmetricRisk:
        """Return the risk with zero scores at step 0, whatever ``start`` is."""
        # One number stands for the variogram of all pairs of features.
        gamma = exchangeable_gamma(self.L, self.delta)
        return SymmetricRisk(
            np.asarray(self.sizes, float),
            self._probs(),
            variogram=np.asarray(gamma),
            N=self.N,
            noise=self.noise,
        )

    def sampled(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return the trainer on sampled prompts, over the scores of all features."""
        if math.isinf(self.N):
            raise argument_error(
                "N", self.N, "finite: infinite prompts cannot be sampled"
            )
        if sum(self.sizes) > MOST_SAMPLED_FEATURES:
            raise argument_error(
                "sizes",
                self.sizes,
                f"at most {MOST_SAMPLED_FEATURES} features in all "
                "if prompts are sampled",
            )
        # The probability of each of the K features, group by group
        probs = np.repeat(self._probs(), self.sizes)
        features = Features.simplex(len(probs), self.delta, probs)
        trainer = SampledRisk(
            features, Exchangeable(self.L), int(self.N), batch, seed, noise=self.noise
        )
        if self.start is None:
            return trainer
        # The grouped scores of the start, written out for all features
        scores = self._risk_from_zero().scores(self.start)
        return with_start(trainer, scores)

    def unreduced(self) -> Risk:
        """Return the risk over the scores of all features."""
        # Loaded here, because the reduced risk does not need it.
        from icl_theory.regression.risks.population import PopulationRisk

        # The probability of each of the K features, group by group
        probs = np.repeat(self._probs(), self.sizes)
        features = Features.simplex(len(probs), self.delta, probs)
        return PopulationRisk(features, Exchangeable(self.L), self.N, self.noise)

    def stable_rate(self) -> float:
        """Return a learning rate at which every step lowers the loss."""
        gamma = exchangeable_gamma(self.L, self.delta)
        # The function takes the number K of equally likely features. For features of
        # unequal probabilities p_k its bound holds with 1/max_k p_k in place of K.
        K = 1.0 / float(self._probs().max())
        return float(stable_rate(gamma, K, noise=self.noise, N=self.N))

    def describe(self, run: Trajectory) -> None:
        """Add the phases of the run.

        Phase I lasts until the queries of all groups attend. Phase III is the tail of
        the loss as a whole. It is found for infinite prompts only, for which the tail
        law is a formula.
        """
        K = integer("sizes", sum(self.sizes), minimum=2)
        tail = None
        # The tail law is about gradient descent and its flow, the scope of the theory.
        if math.isinf(self.N) and self.theory.applies(self):
            # The limit of t times the loss at step t, see docs/tail-laws.md
            tail = (K - 1.0) / (4.0 * run.eta)
        run.phases = run_phases(run, tail)

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the steps at which the first and the last group end their Phase I.

        Phase I of a group ends when its queries attend, with half of their attention on
        their own feature. The step of the first group is -1 if no group attends, and
        the step of the last group is -1 if not all groups attend.
        """
        ends = []
        for phases in query_phases(run):
            # If a group has no Phase II, its Phase I lasts to the end of the run.
            if phases.II is not None:
                _start, end_of_phase_1 = phases.I
                ends.append(end_of_phase_1)
        all_attend = len(ends) == len(self.sizes)
        return {
            "attends_first": min(ends, default=-1),
            "attends_last": max(ends) if all_attend else -1,
        }


@dataclass(frozen=True, eq=False)
class GaussianRegression(Family):
    r"""In-context regression of random quadratic functions on Gaussian inputs.

    Prompts have any length. See docs/theory.md, "Gaussian inputs".

    Parameters
    ----------
    L : float
        Root mean square of the norm of the functions' gradient, label units.
    d : int
        Dimension of the inputs.
    curved : float
        Share of L² that is due to the quadratic part, in [0, 1].
    N : int or math.inf
        Prompt length. For finite prompts descent from zero stays at multiples Q = c I
        of the identity, and c is the only parameter.
    noise : float
        Standard deviation of the label noise, label units. For N = ∞ noise averages
        out.
    start : array_like, optional
        Q at step 0, (d, d), or c, (1,), for finite prompts; zero by default.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`; ``eta="auto"`` is 1/λ with the largest eigenvalue λ of
        the Hessian at the minimum (for finite prompts, with the largest curvature
        between zero and the minimum).

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.regression.GaussianRegression(L=2.0, d=3, above=1e-6).simulate()
    >>> run.converged, bool(run.observed["alignment"][-1] < 1.0)
    (True, True)
    """

    name: ClassVar[str] = "gaussian-regression"
    title: ClassVar[str] = "in-context regression on Gaussian inputs"
    # The default target. The floor is positive unless tasks are linear, so the target
    # is an excess.
    goal: ClassVar[tuple[str, float]] = ("above", 1e-3)
    columns: ClassVar[tuple[Column, ...]] = (
        Column("alignment", "f8", "", "tr(Q)/d at the end"),
        Column(
            "excess", "f8", "squared label units", "loss above the floor at the end"
        ),
    )

    eta: float | str = learning_rate("auto")
    L: float = parameter(
        kind=Number(),
        symbol="L",
        tex="L",
        unit="label units",
        meaning="root mean square norm of the gradient of the functions",
    )
    d: int = parameter(
        4,
        kind=Whole(maximum=MOST_DIMENSIONS),
        symbol="d",
        tex="d",
        meaning="dimension of the inputs",
    )
    curved: float = parameter(
        0.5,
        kind=Number(zero=True, maximum=1.0),
        meaning="share of L² that is due to the quadratic part",
    )
    N: float = prompt_length()
    noise: float = label_noise()
    start: Any = starting_parameters()
    loss: str = loss_form()

    def validate(self) -> None:
        """Refuse a start that does not have the shape of the parameters."""
        if self.start is not None:
            shape = (self.d, self.d) if math.isinf(self.N) else (1,)
            checked_start(self.start, shape)

    @property
    def own_start(self) -> bool:
        """Whether training starts elsewhere than at zero."""
        return self.start is not None

    def risk(self) -> Risk:
        """Return the risk over Q, or over c for finite prompts."""
        risk = self._risk_from_zero()
        return risk if self.start is None else with_start(risk, self.start)

    def _risk_from_zero(self) -> GaussianRisk | FiniteGaussianRisk:
        """Return the risk with zero parameters at step 0, whatever ``start`` is."""
        law = QuadraticLaw.lipschitz(self.d, self.L, self.curved)
        if math.isinf(self.N):
            return GaussianRisk(law)
        return FiniteGaussianRisk(law, int(self.N), self.noise)

    def sampled(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return the trainer on sampled prompts, over Q."""
        if math.isinf(self.N):
            raise argument_error(
                "N", self.N, "finite: infinite prompts cannot be sampled"
            )
        law = self._risk_from_zero().law
        trainer = SampledGaussianRisk(law, int(self.N), batch, seed, noise=self.noise)
        if self.start is None:
            return trainer
        # For finite prompts the start is c, which stands for Q = c I.
        (c,) = self.start
        return with_start(trainer, c * np.eye(self.d))

    def stable_rate(self) -> float:
        """Return 1/λ: descent from zero then comes closer to the minimum at every step.

        λ is the largest eigenvalue of the Hessian at the minimum. For finite prompts it
        is the largest curvature between zero and the minimum.
        """
        if self.N == 1:
            raise argument_error(
                "N",
                self.N,
                "at least 2 for eta='auto': a single token has all attention",
            )
        # The ``rate`` of the risk is λ.
        return 1.0 / self._risk_from_zero().rate

    def expected_steps(self) -> float | None:
        """Estimate the number of steps to the target from the decay near the minimum.

        The estimate is rough, because the excess falls at another rate at first.
        """
        risk = self.risk()
        initial_excess = risk.excess(risk.initial)
        # ``epsilon`` is a target loss, and ``above`` a target excess over the floor.
        if self.epsilon is not None:
            target_excess = self.epsilon - risk.floor()
        elif self.above is not None:
            target_excess = self.above
        else:
            return None
        # A target at the floor or below it is never reached.
        if target_excess <= 0.0:
            return None
        if initial_excess <= target_excess:
            return 0.0
        # Near the minimum the excess falls like (1 - ηλ)^(2t), and its logarithm falls
        # by about 2ηλ in each step, with the learning rate η, `self.rate()`, and the
        # largest curvature λ (see `stable_rate`), the ``rate`` of the risk.
        fall_of_log = math.log(initial_excess / target_excess)
        curvature = self._risk_from_zero().rate
        return fall_of_log / (2.0 * self.rate() * curvature)

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return alignment and excess at the end of the run."""
        return {name: float(run.observed[name][-1]) for name in ("alignment", "excess")}
