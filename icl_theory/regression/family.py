"""In-context regression as a family: one-layer softmax attention over finitely many features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from icl_theory._validate import (
    MOST_FEATURES,
    argument_error,
    instance,
    mapping,
    probabilities,
)
from icl_theory.engine.pullback import COORDINATES, around, in_coordinates, innermost
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import rule_of
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.parameters import (
    LIPSCHITZ,
    Fraction,
    LazyMethod,
    Object,
    Probabilities,
    Whole,
    Word,
    feature_gap,
    label_noise,
    lipschitz_constant,
    parameter,
    prompt_length,
)
from icl_theory.regression import tasks
from icl_theory.regression.closed.runs import ExchangeableSteps, leading_order
from icl_theory.regression.features import Features
from icl_theory.regression.phases import (
    crossover,
    papers_regime,
    phases_of,
    run_phases,
    tail_start,
)
from icl_theory.regression.risks.exchangeable import (
    ExchangeableRisk,
    embedding_speed,
    expanded,
    reduce_to_one_number,
)
from icl_theory.regression.risks.stability import (
    embedding_stretch,
    stable_rate,
)
from icl_theory.regression.tasks import Task, exchangeable_gamma
from icl_theory.sweeps.grid import Column

LAWS: dict[str, Callable[[float], Task]] = {
    "exchangeable": tasks.Exchangeable,
    "linear": tasks.Linear,
    "cosine": tasks.RandomCosine,
    "fourier": tasks.RandomFourier,
    "quadratic": tasks.Quadratic,
    "halfspace": tasks.Halfspace,
}

HELD = "1 holds, 0 fails, -1 where its hypotheses do"

COLUMNS: tuple[Column, ...] = (
    Column(
        "regime",
        "U6",
        "",
        '"flat" or "sharp"; empty where it is not defined',
        role="word",
        extra=(("table", 1),),
    ),
    Column("attention", "f8", "", "target attention at the end, mean over queries"),
    Column(
        "tail_constant",
        "f8",
        "squared label units",
        "limit of t (loss - floor), where it is known",
    ),
    Column("tail_ratio", "f8", "", "t (loss - floor) at the end, over tail_constant"),
    Column(
        "predicted_steps",
        "f8",
        "steps",
        "leading order K²/(ηγ) + (K-1)/(4ηε), exchangeable with N = inf",
        "predicted T_ε",
        r"\mathrm{predicted}\ T_\varepsilon",
        "predicted",
    ),
    Column(
        "L_half",
        "f8",
        LIPSCHITZ,
        "L at which the exponents of T in L, Δ and ε are half-way between their limits,"
        " for gradient flow with K >= 7 features, exchangeable with N = inf",
        "L½",
        "L_{1/2}",
        "boundary",
        (
            ("of", "L"),
            ("definition", "half-way in L"),
            ("half_way", ("L", "delta", "epsilon")),
        ),
    ),
    Column(
        "L_star",
        "f8",
        LIPSCHITZ,
        "predicted crossover L*, exact, for the exchangeable class with N = inf",
        "L*",
        "L^*",
        "boundary",
        (("of", "L"), ("definition", "exact onset of the tail")),
    ),
    Column(
        "L_star_leading",
        "f8",
        LIPSCHITZ,
        "the same at leading order in K",
        "leading-order L*",
        r"\mathrm{leading\ order}\ L^*",
        "boundary",
        (("of", "L"), ("definition", "leading order in K")),
    ),
    Column(
        "steps_low",
        "f8",
        "steps",
        "certified lower bound on last, exchangeable with N = inf",
    ),
    Column("steps_high", "f8", "steps", "certified upper bound on last"),
    Column(
        "certified",
        "i1",
        "",
        f"whether last lies between the two: {HELD}",
        role="verdict",
    ),
)


def _task(name: str, value: Any) -> Any:
    for word, law in LAWS.items():
        if value is law:
            return word
    if isinstance(value, Task) or callable(value):
        return value
    raise argument_error(
        name, value, "a Task or a function that makes one from L (see icl_theory.tasks)"
    )


def _features(name: str, value: Any) -> Features:
    return instance(name, value, Features, "a Features object")


@dataclass(frozen=True, eq=False)
class Regression(Family):
    r"""In-context regression on functions of K features, learnt by one trained matrix of softmax attention.

    See docs/theory.md, from "Setting" on.

    Parameters
    ----------
    L, delta, K, N, noise, probs, task, features, coordinates, imbalance
        As in `icl_theory.simulate`, which makes one and trains it.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`; ``eta="auto"`` is the stable learning rate of
        `stable_rate`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.Regression(L=2.0, delta=1.0, eta=4.0, epsilon=1e-9)
    >>> problem.simulate().steps
    1187646524
    >>> problem.changed(N=50, above=1e-2).simulate().regime
    'flat'
    """

    name: ClassVar[str] = "regression"
    title: ClassVar[str] = "in-context regression"
    goal: ClassVar[tuple[str, float]] = ("epsilon", 1e-3)
    phase_names: ClassVar[tuple[str, ...]] = ("I", "II", "III")
    columns: ClassVar[tuple[Column, ...]] = COLUMNS
    measure = LazyMethod("icl_theory.regression.batches.infinite_prompts:measured")
    batched = LazyMethod("icl_theory.regression.batches.infinite_prompts:batched")

    L: float = lipschitz_constant()
    delta: float = feature_gap()
    K: int = parameter(
        20,
        kind=Whole(minimum=2, maximum=MOST_FEATURES),
        symbol="K",
        tex="K",
        meaning="number of features",
    )
    N: float = prompt_length()
    noise: float = label_noise()
    imbalance: float | None = parameter(
        None,
        kind=Fraction(optional=True),
        symbol="δ",
        tex=r"\delta",
        meaning="imbalance of the prompts in the concentration event, for the papers' bounds",
    )
    probs: Any = parameter(
        None,
        kind=Probabilities(optional=True),
        meaning="probabilities of the features; uniform by default",
        axis=False,
    )
    task: Any = parameter(
        "exchangeable",
        kind=Object(words=tuple(LAWS), optional=True, checker=_task),
        meaning="law of the tasks",
    )
    features: Features | None = parameter(
        None,
        kind=Object(optional=True, checker=_features),
        meaning="the features; by default a regular simplex",
    )
    coordinates: str = parameter(
        "class", kind=Word(words=COORDINATES), meaning="what is trained"
    )

    def validate(self) -> None:
        """Refuse features, probabilities and gap that contradict each other."""
        if self.features is not None:
            if self.probs is not None:
                raise argument_error(
                    "probs",
                    self.probs,
                    "left out: features have probabilities of their own",
                )
            if abs(self.features.gap - self.delta) > 1e-9 * self.delta:
                raise ValueError(
                    f"delta = {self.delta!r} contradicts features (gap = {self.features.gap!r})"
                )
            if self.K not in (self.features.K, self.parameters()["K"].default):
                raise ValueError(
                    f"K = {self.K} contradicts features (K = {self.features.K})"
                )
            object.__setattr__(self, "K", self.features.K)
        if self.probs is not None:
            probabilities("probs", self.probs, self.K)
        if self.task is None:
            object.__setattr__(self, "task", "exchangeable")

    def changed(self, **parameters: Any) -> Self:
        """Return the same problem with other parameters; new features bring their number K."""
        features = parameters.get("features")
        return super().changed(
            **({"K": features.K} if isinstance(features, Features) else {}) | parameters
        )

    def law(self) -> Task:
        """Return the law of the tasks."""
        found = self.task
        if not isinstance(found, Task):
            found = (LAWS[found] if isinstance(found, str) else found)(self.L)
        if not isinstance(found, Task):
            raise argument_error(
                "task",
                self.task,
                "a Task or a function that makes one from L (see icl_theory.tasks)",
            )
        if getattr(found, "L", self.L) != self.L:
            raise ValueError(f"L = {self.L!r} contradicts task (L = {found.L!r})")  # type: ignore[attr-defined]
        return found

    def risk(self) -> Risk:
        """Return the risk of one number if all queries are alike, else that of K x K scores."""
        plain = (
            self.task == "exchangeable" and self.features is None and self.probs is None
        )
        reducible = rule_of(self.update()).reducible
        if plain and reducible and self.coordinates != "factored":
            gamma = exchangeable_gamma(self.L, self.delta)
            return ExchangeableRisk(self.K, gamma, self.N, self.noise, self._speed())
        features = self.features or Features.simplex(self.K, self.delta, self.probs)
        law = self.law()
        if reducible:
            reduced = reduce_to_one_number(
                features, law, self.N, self.noise, self.coordinates
            )
            if reduced is not None:
                return reduced
        from icl_theory.regression.risks.population import (
            PopulationRisk,  # not where there is a closed form
        )

        population = PopulationRisk(features, law, self.N, self.noise)
        return in_coordinates(population, self.coordinates, features.vectors)

    def sampled(self, batch: int, seed: int = 0) -> Risk:
        """Return the trainer on sampled prompts, drawn by their counts, in the same coordinates."""
        risk = expanded(self.risk())
        core, _ = innermost(risk)
        if math.isinf(core.N):
            raise argument_error(
                "N", self.N, "finite: infinite prompts cannot be sampled"
            )
        from icl_theory.regression.sampled.counts import CountedRisk

        trainer = CountedRisk(
            core.features,
            core.task,
            int(core.N),
            batch,
            seed,
            core.noise,
            every_query=False,
        )
        return around(risk, trainer)

    def stable_rate(self) -> float:
        r"""Return a learning rate at which every step lowers the loss: one over a bound on the curvature.

        .. math:: \eta = \frac{1}{\kappa\,\max_k p_k\,\bigl(\max\Gamma + \sigma^2\,[N<\infty]\bigr)\,g}

        In class coordinates g is 1; in embedding coordinates over features X it is
        :math:`\lambda_{\max}(\tilde X\tilde X^\top)\,\lambda_{\max}(XX^\top)` with the
        centred features :math:`\tilde X`, which is Δ⁴/4 over a simplex. See
        docs/theory.md, "A stable learning rate".

        Raises
        ------
        ValueError
            In factored coordinates, in which the curvature has no bound.
        """
        if self.coordinates == "factored":
            raise argument_error(
                "eta",
                self.eta,
                "a number: in factored coordinates the curvature has no bound",
            )
        if (
            self.task == "exchangeable" and self.features is None
        ):  # K may be too large for features
            largest = exchangeable_gamma(self.L, self.delta)
            most = (
                1.0 / self.K
                if self.probs is None
                else probabilities("probs", self.probs, self.K).max()
            )
        else:
            features = self.features or Features.simplex(self.K, self.delta, self.probs)
            largest = float(self.law().variogram(features).max())
            most = features.probs.max()
        # of a simplex; refuses gaps that no coordinates over embeddings allow
        stretch = self._speed()
        if self.coordinates == "embedding" and self.features is not None:
            stretch = embedding_stretch(self.features.vectors)
        return float(
            stable_rate(largest, 1.0 / most, noise=self.noise, N=self.N, speed=stretch)
        )

    def describe(self, run: Trajectory) -> None:
        """Add phases and regime, and the paper's own rule if an imbalance is given."""
        risk, tail = run.risk, None
        infinite = (
            isinstance(risk, ExchangeableRisk)
            and math.isinf(risk.N)
            and self.theory.applies(run)
        )
        if isinstance(run.solution, ExchangeableSteps):
            run.phases = phases_of(
                int(run.t[-1]), *run.solution.first_missing(0.5, tail_start(self.K))
            )
        else:
            from icl_theory.regression.tails import tail_limit

            tail = (
                tail_limit(risk, run.eta)
                if risk is not None and self.theory.applies(run)
                else None
            )
            run.phases = run_phases(
                run, tail_deficit=tail_start(self.K) if infinite else None, tail=tail
            )
        if isinstance(risk, ExchangeableRisk) and infinite:
            run.regime = (
                "sharp"
                if math.sqrt(2.0 * risk.gamma) > crossover(run.epsilon, 1.0, self.K)
                else "flat"
            )
        elif tail is not None and (run.converged or run.phases.III):
            run.regime = "sharp" if run.phases.III else "flat"
        if self.imbalance is not None and self.theory.applies(run):
            rule = papers_regime(self.L, self.delta, self.imbalance)
            run.notes["paper's rule"] = (
                f"{rule} (L against 1/(Δδ), δ = {self.imbalance:g})"
            )

    def expected_steps(self) -> float | None:
        """Return the leading order of the exchangeable case."""
        eta = self.rate() * self._speed()
        gamma = exchangeable_gamma(self.L, self.delta)
        goal = self.epsilon if self.epsilon is not None else self.above
        return float(
            leading_order(*map(np.asarray, (eta, gamma, float(self.K), goal, math.inf)))
        )

    def _speed(self) -> float:
        return embedding_speed(self.delta) if self.coordinates == "embedding" else 1.0

    @classmethod
    def limits(cls, arguments: Mapping[str, Any]) -> Mapping[str, tuple[float, float]]:
        """Return the limits of the exponents: learning to attend dominates at one end, the tail at the other.

        The stable learning rate ("auto") is of the order K/(L²Δ²), divided by the speed
        of the coordinates, which is Δ⁴/4 for embeddings; this shifts the exponents of a
        fixed learning rate.
        """
        mapping("arguments", arguments, "parameters")
        if arguments.get("eta") == "auto":
            return {
                "L": (0.0, 2.0),
                "delta": (0.0, 2.0),
                "K": (0.0, 1.0),
                "epsilon": (-1.0, 0.0),
            }
        gap = (
            (-6.0, -4.0) if arguments.get("coordinates") == "embedding" else (-2.0, 0.0)
        )
        return {"L": (-2.0, 0.0), "delta": gap, "K": (1.0, 2.0), "epsilon": (-1.0, 0.0)}
