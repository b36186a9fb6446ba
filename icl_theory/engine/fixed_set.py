"""Training on a fixed set of prompts, with the exact population loss beside it.

Many training scripts draw M prompts once and take all their steps on them. They then
minimise the mean loss of the M prompts, and not the population loss that the exact
risks compute. `FixedSetRisk` is this mean loss. A run on it also records the population
loss of each saved iterate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    instance,
    integer,
    set_fields,
)
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.pullback import Pullback, SampledPullback, core_risk
from icl_theory.engine.risk import Risk, Solution
from icl_theory.engine.rules import Rule
from icl_theory.engine.sampling import Trainer, check_prompts, prompt_count, selected

# These numbers are parts of the seeds of the set and of its batches. So set and batches
# are independent of the prompts that a trainer with the same seed draws. Each number
# is a word whose bytes are read as an integer.
SET_STREAM = int.from_bytes(b"set")
BATCH_STREAM = int.from_bytes(b"batch")


@dataclass(frozen=True, eq=False)
class FixedSetRisk(Risk):
    r"""Mean loss of M fixed prompts.

    .. math:: \mathcal L_M(\theta) = \frac1M\sum_{m=1}^M \ell(\theta; z_m)

    Here :math:`\ell(\theta; z_m)` is the loss of prompt :math:`z_m` at the parameters
    θ. The population loss :math:`\mathcal L(\theta)` of an iterate is observed as
    ``population_loss``. It is the expected loss of a fresh prompt, so that
    :math:`\mathcal L - \mathcal L_M` is the gap between test loss and training loss.
    The other observations of the population risk are recorded, too; see ``observe``.

    Parameters
    ----------
    population : Risk or None
        The exact risk, over the parameters of the trainer. If it is None, no
        ``population_loss`` is observed.
    trainer : Trainer
        The sampler of the population risk, which evaluates losses of given prompts.
    prompts : int or NamedTuple
        The prompts, or their number M. With a number they are drawn with ``seed``.
    batch : int, optional
        Number of prompts in a step of SGD, drawn from the set without replacement. By
        default each step takes all prompts.
    seed : int
        Seed of the prompts, if they are drawn, and of the batches.

    Attributes
    ----------
    prompts : NamedTuple
        The M prompts.

    Raises
    ------
    ValueError
        The parameters of the population risk do not have the shape of the trainer's
        parameters; the prompts differ in form from the prompts that the trainer draws;
        or a number is out of range. The message names the first difference.

    Examples
    --------
    Fifty prompts are fitted better than new ones:

    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(5, delta=1.0)
    >>> task = icl.tasks.Linear(2.0)
    >>> population = icl.PopulationRisk(features, task, N=20)
    >>> trainer = icl.SampledRisk(features, task, N=20, batch=50, seed=0)
    >>> risk = icl.engine.FixedSetRisk(population, trainer, 50)
    >>> run = icl.descend(risk, eta=4.0, steps=1000)
    >>> bool(run.loss[-1] < run.observed["population_loss"][-1])
    True
    """

    population: Risk | None
    trainer: Trainer[Any]
    prompts: Any = field(repr=False)
    batch: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.trainer, Trainer):
            raise argument_error(
                "trainer", self.trainer, "a Trainer, which draws prompts"
            )
        if self.population is not None:
            _check_population(self.population, self.trainer)
        set_fields(self, seed=integer("seed", self.seed, minimum=0))
        # The argument `prompts` is a NamedTuple of prompts, or their number.
        if isinstance(self.prompts, tuple):
            prompts = check_prompts(self.trainer, self.prompts)
            _check_indices(prompts)
            # A trainer may have a method `check_given` that checks more, such as the
            # length of the prompts. `core_risk` returns the trainer inside all changes
            # of coordinates.
            check_given: Any = getattr(core_risk(self.trainer), "check_given", None)
            if check_given is not None:
                check_given(prompts)
        else:
            size = integer("prompts", self.prompts, minimum=1)
            rng = np.random.default_rng([self.seed, SET_STREAM])
            prompts = self.trainer.draw(rng, size)
        set_fields(self, prompts=prompts)
        M = prompt_count(prompts)
        if self.batch is not None:
            set_fields(self, batch=integer("batch", self.batch, minimum=1, maximum=M))

    @cached_property
    def whole(self) -> Risk:
        """The mean loss of all prompts, as a risk without observations.

        It is built at the first use and kept. Building it may take long if the loss has
        a quicker form (``_condensed``), which is computed from all prompts.
        """
        condensed = _condensed(self.trainer, self.prompts)
        if condensed is None:
            return _WholeSet(self.trainer, self.prompts)
        return condensed

    @property
    def M(self) -> int:
        """Number of prompts."""
        return prompt_count(self.prompts)

    @property
    def initial(self) -> Array:
        """Parameters of the trainer at step 0."""
        return self.trainer.initial

    @property
    def metric(self) -> float | Array:
        """Metric of the population risk, or else of the trainer."""
        return self._geometry.metric

    @property
    def _geometry(self) -> Risk:
        """The risk that knows the metric, the blocks and the gain of the parameters.

        It is the population risk, because a trainer of the same parameters need not
        define these three. Without a population risk it is the trainer.
        """
        return self.trainer if self.population is None else self.population

    @property
    def stochastic(self) -> bool:
        """Whether each step takes a batch that is smaller than the set."""
        return self.batch is not None and self.batch < self.M

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the prompts of a step, and its gradient."""
        if not self.stochastic:
            return self.whole.evaluate(params)
        return self._batches.evaluate(params, step)

    @cached_property
    def _batches(self) -> SetTrainer:
        """The trainer that draws the batch of each step from the set."""
        batch = self.M if self.batch is None else self.batch
        return self.sampled(batch, self.seed)

    def sampled(self, batch: int, seed: int = 0) -> SetTrainer:
        """Return the trainer on batches from the set.

        Parameters
        ----------
        batch : int
            Number of prompts in a step, up to M.
        seed : int
            Seed of the batches.
        """
        return SetTrainer(self.trainer, self.prompts, batch, seed)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Observations of the population risk, and ``population_loss``.

        If the population risk observes its ``excess``, this observation is renamed to
        ``population_excess``, and ``excess`` becomes the loss of the set above its
        floor. With batches, ``set_loss`` is the mean loss of the whole set.
        """
        observed: dict[str, Array] = {}
        if self.population is not None:
            observed |= self.population.observe(params, step)
            population_loss, _gradient = self.population.evaluate(params)
            observed["population_loss"] = np.asarray(population_loss)
        # The ``excess`` of a run belongs to the loss that is trained.
        if "excess" in observed:
            observed["population_excess"] = observed["excess"]
            observed["excess"] = np.asarray(self.whole.excess(params))
        if self.stochastic:
            set_loss, _gradient = self.whole.evaluate(params)
            observed["set_loss"] = np.asarray(set_loss)
        return observed

    def floor(self) -> float:
        """Lower bound of the loss of the set.

        The bound is the least loss itself if there is a formula for the least loss.
        """
        return self.whole.floor()

    def excess(self, params: ArrayLike) -> float:
        """Loss of the set above its floor."""
        return self.whole.excess(params)

    def loss_error(self, params: ArrayLike) -> float:
        """Estimated error of the loss of the set."""
        return self.whole.loss_error(params)

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of a direction with the Hessian of the loss of the set."""
        return self.whole.hessian_product(params, direction)

    def blocks(self, array: Array) -> Sequence[Array]:
        """Blocks of the population risk, or else of the trainer."""
        return self._geometry.blocks(array)

    def gain(self, params: Array) -> float:
        """Change of the scores per unit change of the parameters."""
        return gain_at(self._geometry, params)

    def closed_form(self, eta: float, rule: str | Rule) -> Solution | None:
        """Return the iterates on the whole set in closed form.

        The result is None if they have no closed form, and for training on batches.
        """
        return None if self.stochastic else self.whole.closed_form(eta, rule)


@dataclass(frozen=True, eq=False)
class SetTrainer(Trainer[Any]):
    """The mean loss of batches that are drawn from a fixed set of prompts.

    A batch has no prompt twice. The batch of a step is a function of the seed and the
    step.

    Parameters
    ----------
    trainer : Trainer
        The sampler of the prompts, which evaluates their losses.
    prompts_of_set : NamedTuple
        The set.
    batch, seed : int
        Number of prompts in a step, at most the number of prompts in the set; and the
        seed of the batches.
    """

    trainer: Trainer[Any]
    prompts_of_set: Any = field(repr=False)
    batch: int
    seed: int = 0

    stream = (BATCH_STREAM,)

    def __post_init__(self) -> None:
        M = prompt_count(self.prompts_of_set)
        set_fields(self, batch=integer("batch", self.batch, minimum=1, maximum=M))
        set_fields(self, seed=integer("seed", self.seed, minimum=0))

    @property
    def initial(self) -> Array:
        """Parameters of the trainer at step 0."""
        return self.trainer.initial

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        """Draw prompts from the set, without replacement."""
        M = prompt_count(self.prompts_of_set)
        size = integer("size", size, minimum=1, maximum=M)
        indices = rng.choice(M, size, replace=False)
        return selected(self.prompts_of_set, indices)

    def losses_on(self, params: Array, prompts: Any) -> Array:
        """Loss of each of B prompts, (B,)."""
        return self.trainer.losses_on(params, prompts)

    def evaluate_on(self, params: Array, prompts: Any) -> tuple[float, Array]:
        """Mean loss of given prompts, and its gradient."""
        return self.trainer.evaluate_on(params, prompts)

    def evaluate_runs(self, params: Array, prompts: Any) -> tuple[Array, Array]:
        """Mean losses, (R,), and gradients, (R, ...), of R runs on separate prompts."""
        return self.trainer.evaluate_runs(params, prompts)


class _WholeSet(Risk):
    """The mean loss of given prompts, evaluated prompt by prompt."""

    def __init__(self, trainer: Trainer[Any], prompts: Any) -> None:
        self._trainer = trainer
        self._prompts = prompts

    @property
    def initial(self) -> Array:
        """Parameters of the trainer at step 0."""
        return self._trainer.initial

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the prompts, and its gradient; the same at all steps."""
        return self._trainer.evaluate_on(params, self._prompts)


def _condensed(trainer: Trainer[Any], prompts: Any) -> Risk | None:
    """Return the mean loss of given prompts in a quicker form, or None.

    A trainer that has such a form, for example a quadratic form in the parameters, has
    a method ``condensed``. The method takes the prompts and returns a risk, or None if
    these prompts have no quicker form.
    """
    if isinstance(trainer, SampledPullback):
        inner = _condensed(trainer.risk, prompts)
        # A subclass of `Pullback` may add a constant to the loss, its `offset`. The
        # plain `Pullback` below would lack this constant.
        if inner is None or trainer.pullback.offset():
            return None
        return Pullback(inner, trainer.map)
    condense: Callable[[Any], Risk | None] | None = getattr(trainer, "condensed", None)
    return None if condense is None else condense(prompts)


def _check_indices(prompts: Any) -> None:
    """Refuse given prompts with negative integers.

    Integers are indices or counts. NumPy would count a negative index from the end.
    """
    # The names of the fields of a NamedTuple, or the positions in a plain tuple.
    names = getattr(prompts, "_fields", range(len(prompts)))
    for name, array in zip(names, prompts, strict=True):
        # The kinds "i" and "u" of dtypes are signed and unsigned integers. For an empty
        # array np.min() returns `initial`.
        is_integer = array is not None and np.asarray(array).dtype.kind in "iu"
        if is_integer and np.min(array, initial=0) < 0:
            raise argument_error(f"{name} of the prompts", array, "integers >= 0")


def _check_population(population: Risk, trainer: Risk) -> None:
    """Refuse a risk with parameters of another shape than the trainer's parameters."""
    instance("population", population, Risk, "a Risk")  # type: ignore[type-abstract]
    shape = np.shape(trainer.initial)
    if np.shape(population.initial) != shape:
        raise argument_error(
            "population",
            np.shape(population.initial),
            f"a risk with parameters of the shape of the trainer's, {shape}",
        )
