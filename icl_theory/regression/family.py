"""In-context regression as a family: one-layer softmax attention over K features.

`Regression` declares the parameters of a problem and chooses its risk. If all queries
are exchangeable, so that relabelling the features changes nothing, the risk is usually
a function of one number. Otherwise it is a function of all trained parameters.

The letters: L is the Lipschitz constant of the tasks, Δ (``delta``) the gap between the
features, K their number, N the length of a prompt, η the learning rate, ε the target
loss, and γ = L²Δ²/2 the variogram of exchangeable tasks. In *class coordinates* the
scores themselves are trained, in *embedding coordinates* a matrix that acts on the
feature vectors, and in *factored coordinates* the two factors of this matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from icl_theory._validate import (
    MOST_FEATURES,
    argument_error,
    dimensions,
    mapping,
    probabilities,
)
from icl_theory.engine.pullback import (
    COORDINATES,
    in_coordinates,
)
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.parameters import (
    LIPSCHITZ,
    Fraction,
    LazyMethod,
    Numbers,
    Object,
    Probabilities,
    Whole,
    Word,
    feature_gap,
    is_array_file,
    label_noise,
    lipschitz_constant,
    loss_form,
    nested,
    parameter,
    prompt_length,
    starting_parameters,
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

# The laws of tasks that have a name; each function makes a task from L.
LAWS: dict[str, Callable[[float], Task]] = {
    "exchangeable": tasks.Exchangeable,
    "linear": tasks.Linear,
    "cosine": tasks.RandomCosine,
    "fourier": tasks.RandomFourier,
    "quadratic": tasks.Quadratic,
    "halfspace": tasks.Halfspace,
}

# The relative difference of two gaps that counts as rounding. The gap of given vectors
# is a root of a sum of squares, whose rounding error is far smaller than this.
GAP_TOLERANCE = 1e-9

# The end of the description of a column that judges a theorem. It says what the values
# mean.
HELD = "1 if it holds, 0 if it fails, -1 if its hypotheses fail"

# The arguments of a column are, in this order: name, dtype, unit and description; and
# if it is shown in tables or figures, its symbol as text and as TeX, its role and
# further attributes.
COLUMNS: tuple[Column, ...] = (
    Column(
        "regime",
        "U6",
        "",
        '"flat" or "sharp"; empty if it is not defined',
        role="word",
        extra=(("table", 1),),
    ),
    Column("attention", "f8", "", "target attention at the end, mean over queries"),
    Column(
        "tail_constant",
        "f8",
        "squared label units",
        "limit of t (loss - floor), if it is known",
    ),
    Column(
        "tail_ratio", "f8", "", "t (loss - floor) at the end, divided by tail_constant"
    ),
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
        "predicted crossover L* at leading order in K",
        "leading-order L*",
        r"\mathrm{leading\ order}\ L^*",
        "boundary",
        (("of", "L"), ("definition", "leading order in K")),
    ),
    Column(
        "steps_low",
        "f8",
        "steps",
        "certified lower bound on the last step, exchangeable with N = inf",
    ),
    Column("steps_high", "f8", "steps", "certified upper bound on the last step"),
    Column(
        "certified",
        "i1",
        "",
        f"whether the last step lies between steps_low and steps_high: {HELD}",
        role="verdict",
    ),
)


def _task(name: str, value: Any) -> Any:
    """Return the word for a law of `LAWS`, and any other law of tasks as it is.

    So a problem does not depend on whether the law was given as a word or as its
    function, and a saved run holds the word. Anything else is refused.
    """
    for word, law in LAWS.items():
        if value is law:
            return word
    if isinstance(value, Task) or callable(value):
        return value
    raise argument_error(
        name, value, "a Task or a function that makes one from L (see icl_theory.tasks)"
    )


@dataclass(frozen=True)
class FeatureVectors(Numbers):
    """A Features object, or an array of vectors, (K, d), which are equally likely."""

    def value(self, name: str, value: Any) -> Any:
        """Return the features, or refuse the value."""
        if isinstance(value, Features):
            return value
        if not is_array_file(value) and dimensions(value) != 2:
            raise argument_error(name, value, "a Features object, or an array (K, d)")
        # `Numbers` reads a file, and refuses entries that are not finite numbers.
        vectors = super().value(name, value)
        try:
            return Features(vectors)
        except ValueError as error:
            # The message of `Features` does not name the parameter of the family.
            raise ValueError(f"{name}: {error}") from None

    def plain(self, value: Any) -> Any:
        """Return the vectors as nested tuples if they are equally likely.

        Otherwise return the `Features` object itself, because tuples would lose its
        probabilities.
        """
        if isinstance(value, Features) and value.uniform:
            return nested(value.vectors)
        return value


@dataclass(frozen=True, eq=False)
class Regression(Family):
    r"""In-context regression on functions of K features.

    The model is softmax attention with one trained matrix. See docs/theory.md,
    "Setting" and the sections after it.

    Parameters
    ----------
    L, delta, K, N, noise, probs, task, features, coordinates, imbalance, start,
    loss
        As in `icl_theory.simulate`, which makes a `Regression` and trains it.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`. With ``eta="auto"`` the learning rate is the result of
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
    batched = LazyMethod("icl_theory.regression.batches.dispatch:batched")

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
        meaning=(
            "imbalance of the prompts in the concentration event, "
            "for the papers' bounds"
        ),
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
        kind=FeatureVectors(optional=True, ndim=(2,)),
        meaning="the features; by default a regular simplex",
    )
    coordinates: str = parameter(
        "class", kind=Word(words=COORDINATES), meaning="what is trained"
    )
    start: Any = starting_parameters()
    loss: str = loss_form()

    def validate(self) -> None:
        """Refuse features, probabilities and a gap Δ that contradict each other.

        A start of a wrong shape is refused, too. K becomes the number of given
        features. A law that is left out becomes the exchangeable one.
        """
        # The dataclass is frozen, so fields are set by the method of `object`.
        if self.features is not None:
            self._validate_features(self.features)
            object.__setattr__(self, "K", self.features.K)
        if self.probs is not None:
            # This refuses anything but K positive numbers that sum to 1.
            probabilities("probs", self.probs, self.K)
        if self.task is None:
            object.__setattr__(self, "task", "exchangeable")
        if self.start is not None:
            self._validate_start()

    def _validate_start(self) -> None:
        """Refuse a start that does not have the shape of the trained parameters.

        The shape is checked before the risk exists, because with a wrong shape the risk
        may ask for more memory than there is.
        """
        shape = np.shape(self.start)
        # The vectors of a regular simplex, the default, have K entries.
        d = self.K if self.features is None else self.features.d
        # The scores are (K, K), and the matrix Q of embedding coordinates is (d, d).
        size = self.K if self.coordinates == "class" else d
        if self.coordinates != "factored":
            # Imported here because most problems have no start of their own.
            from icl_theory.engine.starts import checked_start

            checked_start(self.start, (size, size))
            return
        # The two factors of Q have a common rank.
        is_pair_of_factors = len(shape) == 3 and (shape[0], shape[2]) == (2, d)
        if not (is_pair_of_factors and 1 <= shape[1] <= d):
            raise argument_error(
                "start", shape, f"of shape (2, rank, {d}) with a rank from 1 to {d}"
            )

    def _validate_features(self, features: Features) -> None:
        """Refuse features that contradict the probabilities, the gap Δ or K."""
        if self.probs is not None:
            raise argument_error(
                "probs",
                self.probs,
                "left out, because the given features have their own probabilities",
            )
        # Rounding of the vectors may change the gap in its last digits.
        if abs(features.gap - self.delta) > GAP_TOLERANCE * self.delta:
            raise ValueError(
                f"delta = {self.delta!r} contradicts features (gap = {features.gap!r})"
            )
        # A K that equals the default was perhaps not given by the user. So it does not
        # contradict the features, and is replaced by their number.
        if self.K not in (features.K, self.parameters()["K"].default):
            raise ValueError(f"K = {self.K} contradicts features (K = {features.K})")

    def changed(self, **parameters: Any) -> Self:
        """Return the same problem with other parameters.

        If ``features`` are among them, K becomes the number of these features.
        """
        # `check` makes a Features object of an array. It leaves None as it is.
        features = self.parameters()["features"].check(parameters.get("features"))
        if features is not None:
            # If K is given as well, it is kept, so that it is refused if it contradicts
            # the features.
            parameters = {"K": features.K} | parameters
        return super().changed(**parameters)

    def law(self) -> Task:
        """Return the law of the tasks, made from L unless the parameter is a `Task`."""
        law = self.task
        if not isinstance(law, Task):
            # A word, or the function of L itself
            make = LAWS[law] if isinstance(law, str) else law
            law = make(self.L)
        # A function that a user has written may return anything.
        if not isinstance(law, Task):
            raise argument_error(
                "task",
                self.task,
                "a Task or a function that makes one from L (see icl_theory.tasks)",
            )
        # A task that a user has written need not have an L.
        L = getattr(law, "L", self.L)
        if L != self.L:
            raise ValueError(f"L = {self.L!r} contradicts task (L = {L!r})")
        return law

    def risk(self) -> Risk:
        """Return the risk in the coordinates of the problem.

        It is a function of one number if the problem can be reduced to one, and
        otherwise of the scores, matrix or factors that are trained.
        """
        is_symmetric = (
            self.task == "exchangeable" and self.features is None and self.probs is None
        )
        # With some update rules, steps of the one number would differ from steps of the
        # scores. A given start need not be exchangeable, and the random start of
        # factored coordinates is not.
        is_reducible = self.trained_by.reducible and self.start is None
        if is_symmetric and is_reducible and self.coordinates != "factored":
            gamma = exchangeable_gamma(self.L, self.delta)
            return ExchangeableRisk(
                self.K, gamma, self.N, noise=self.noise, speed=self._speed()
            )
        features = self.features or Features.simplex(self.K, self.delta, self.probs)
        law = self.law()
        if is_reducible:
            # None if the features or the law are not exchangeable, and in factored
            # coordinates
            reduced = reduce_to_one_number(
                features, law, self.N, self.noise, self.coordinates
            )
            if reduced is not None:
                return reduced
        # Imported here because problems with a closed form do not need it.
        from icl_theory.regression.risks.population import PopulationRisk

        population = PopulationRisk(features, law, self.N, self.noise)
        # A start for the two factors also sets their rank, and so the shape of the
        # parameters. Therefore `in_coordinates` takes it as an argument.
        if self.coordinates == "factored":
            return in_coordinates(
                population, "factored", features.vectors, start=self.start
            )
        risk = in_coordinates(population, self.coordinates, features.vectors)
        if self.start is None:
            return risk
        # Imported here because most problems have no start of their own.
        from icl_theory.engine.starts import with_start

        return with_start(risk, self.start)

    @property
    def own_start(self) -> bool:
        """Whether training has a given start, for which the theory does not hold."""
        return self.start is not None

    def unreduced(self) -> Risk:
        """Return the risk over all parameters, even if it reduces to one number."""
        return expanded(self.risk())

    def stable_rate(self) -> float:
        r"""Return a learning rate at which every step lowers the loss.

        It is one over a bound on the curvature,

        .. math:: \eta = \frac{1}
            {\kappa\,\max_k p_k\,\bigl(\max\Gamma + \sigma^2\,[N<\infty]\bigr)\,g}

        Here κ is the constant of `curvature_bound`, :math:`p_k` the probability of
        feature k, Γ the variogram of the task, σ the label noise, and
        :math:`[N < \infty]` is 1 for finite prompts and 0 otherwise. In class
        coordinates g is 1. In embedding coordinates over features X it is
        :math:`\lambda_{\max}(\tilde X\tilde X^\top)\,\lambda_{\max}(XX^\top)` with the
        centred features :math:`\tilde X`; over a simplex this is Δ⁴/4. See
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
        if self.task == "exchangeable" and self.features is None:
            # K may be too large for an array of features.
            largest_gamma = exchangeable_gamma(self.L, self.delta)
            if self.probs is None:
                largest_prob = 1.0 / self.K
            else:
                largest_prob = probabilities("probs", self.probs, self.K).max()
        else:
            features = self.features or Features.simplex(self.K, self.delta, self.probs)
            largest_gamma = float(self.law().variogram(features).max())
            largest_prob = features.probs.max()
        # The factor g of the docstring, over a simplex. `_speed` also refuses a gap Δ
        # that is too large or too small for embedding coordinates.
        speed = self._speed()
        if self.coordinates == "embedding" and self.features is not None:
            speed = embedding_stretch(self.features.vectors)
        # The function `stable_rate` is for equally likely features, and takes their
        # number. One over the largest probability stands in for this number.
        return float(
            stable_rate(
                largest_gamma,
                1.0 / largest_prob,
                noise=self.noise,
                N=self.N,
                speed=speed,
            )
        )

    def describe(self, run: Trajectory) -> None:
        """Add phases and regime to a run.

        If an imbalance is given, a note states the regime by the paper's own criterion.
        """
        # The limit of t (loss - limit of the loss) with the step t, if it is known
        tail = None
        if isinstance(run.solution, ExchangeableSteps):
            # Only gradient descent from the usual start has this closed form, so the
            # theory applies.
            has_theory = True
            # The closed form finds both ends of Phase II without any states. They are
            # the first steps at which the attention deficit 1 - a is at most ½, and at
            # most the deficit at which the tail begins.
            attends, tail_begins = run.solution.first_with_deficits(
                0.5, tail_start(self.K)
            )
            run.phases = phases_of(int(run.t[-1]), attends, tail_begins)
        else:
            # Imported here because problems with a closed form do not need it.
            from icl_theory.regression.tails import tail_limit

            # Whether the run has the rule and the start that the theory supposes
            has_theory = self.theory.applies(run)
            if run.risk is not None and has_theory:
                tail = tail_limit(run.risk, run.eta)
            is_exact = has_theory and _is_exact_case(run.risk)
            deficit = tail_start(self.K) if is_exact else None
            run.phases = run_phases(run, tail_deficit=deficit, tail=tail)
        run.regime = self._regime(run, tail, has_theory)
        if self.imbalance is not None and has_theory:
            regime = papers_regime(self.L, self.delta, self.imbalance)
            run.notes["paper's rule"] = (
                f"{regime} (L against 1/(Δδ), δ = {self.imbalance:g})"
            )

    def _regime(
        self, run: Trajectory, tail: float | None, has_theory: bool
    ) -> str | None:
        """Return "flat" or "sharp" if the regime of a run is defined.

        If the crossover L* is known exactly, the regime is "sharp" for L > L*.
        Otherwise it is "sharp" if the run had a Phase III, and "flat" if the run
        reached its target without one. ``tail`` is the limit of t times the excess of
        the loss over the loss that the run approaches. It is None if this limit is not
        known, and then no regime is defined.
        """
        risk = run.risk
        if isinstance(risk, ExchangeableRisk) and math.isinf(risk.N) and has_theory:
            # This is L Δ, because γ = L²Δ²/2, and the crossover for Δ = 1 is L* Δ.
            scaled_L = math.sqrt(2.0 * risk.gamma)
            is_sharp = scaled_L > crossover(run.epsilon, 1.0, self.K)
            return "sharp" if is_sharp else "flat"
        # If no regime is defined, the run keeps its own, which is None for a new run.
        if tail is None or run.phases is None:
            return run.regime
        if run.phases.III:
            return "sharp"
        return "flat" if run.converged else run.regime

    def expected_steps(self) -> float | None:
        """Return the number of steps to the target at leading order in K.

        The formula is for the exchangeable case with N = ∞. For any other problem it is
        a rough estimate.
        """
        eta = self.rate() * self._speed()
        gamma = exchangeable_gamma(self.L, self.delta)
        target = self.epsilon if self.epsilon is not None else self.above
        # The formula gives 0 steps to a target above the loss at the start. For an
        # estimate this loss is not computed: it counts as infinite.
        steps = leading_order(
            eta=np.asarray(eta),
            gamma=np.asarray(gamma),
            K=np.asarray(float(self.K)),
            epsilon=np.asarray(target),
            start=np.asarray(math.inf),
        )
        return float(steps)

    def _speed(self) -> float:
        """Return the factor by which the coordinates multiply the learning rate.

        With η times this factor, descent on the scores would change the scores in the
        same way. The factor is 1 unless the coordinates are embedding coordinates. For
        them it is exact if the features form a regular simplex.
        """
        return embedding_speed(self.delta) if self.coordinates == "embedding" else 1.0

    @classmethod
    def limits(cls, arguments: Mapping[str, Any]) -> Mapping[str, tuple[float, float]]:
        """Return the limits of the exponent of the number of steps in each parameter.

        One of the two limits holds if most steps are spent on learning to attend, and
        the other if most are spent in the tail. The stable learning rate ("auto") has
        limits of its own, because it depends on the parameters: it is of the order
        K/(L²Δ²) in class coordinates. In embedding coordinates it is divided by Δ⁴/4,
        the factor with which it acts on the scores. So the limits with this learning
        rate are the same in both coordinates.
        """
        # The limits are the exponents in the two terms of the leading order, K²/(ηγ)
        # and (K-1)/(4ηε) with γ = L²Δ²/2. The smaller exponent comes first.
        mapping("arguments", arguments, "parameters")
        # From a given start most steps may be spent on forgetting it.
        if arguments.get("start") is not None:
            return {}
        if arguments.get("eta") == "auto":
            return {
                "L": (0.0, 2.0),
                "delta": (0.0, 2.0),
                "K": (0.0, 1.0),
                "epsilon": (-1.0, 0.0),
            }
        # In embedding coordinates the learning rate acts with a factor Δ⁴/4.
        is_embedding = arguments.get("coordinates") == "embedding"
        return {
            "L": (-2.0, 0.0),
            "delta": (-6.0, -4.0) if is_embedding else (-2.0, 0.0),
            "K": (1.0, 2.0),
            "epsilon": (-1.0, 0.0),
        }


def _is_exact_case(risk: Risk | None) -> bool:
    """Whether a risk is exchangeable with N = ∞, the case of the exact theory."""
    return isinstance(risk, ExchangeableRisk) and math.isinf(risk.N)
