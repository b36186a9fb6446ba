"""Risks on drawn prompts.

A `Trainer` splits a step of stochastic training into two parts, which can be used
separately: it draws prompts, and it computes losses and gradients on given prompts. The
same prompts can therefore be used at several parameters, kept as a data set, or passed
to many runs at once.

Prompts are a NamedTuple of arrays whose first axis is the prompt. An entry is None if
the prompts of a trainer lack this array. In shapes, B is the number of prompts and R
the number of runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, argument_error, generator, instance, integer
from icl_theory.engine.risk import Risk, refuse_nan
from icl_theory.memory import check_fits

# A batch of prompts: a NamedTuple of arrays whose first axis is the prompt. An entry
# is None if the prompts of a trainer lack this array.
P = TypeVar("P", bound=tuple[Any, ...])


class OnPrompts(ABC, Generic[P]):
    """A model that draws prompts, and has a loss and a gradient on given prompts.

    The methods are called at every step. Like `Risk.evaluate` they do not check
    parameters or prompts. `check_prompts` checks prompts that a user gives.
    """

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: int) -> P:
        """Draw prompts: a NamedTuple of arrays whose first axis is the prompt.

        Parameters
        ----------
        rng : numpy.random.Generator
            The source of randomness.
        size : int
            Number of prompts.
        """
        ...

    @abstractmethod
    def losses_on(self, params: Array, prompts: P) -> Array:
        """Loss of each of B prompts, (B,)."""
        ...

    @abstractmethod
    def evaluate_on(self, params: Array, prompts: P) -> tuple[float, Array]:
        """Mean loss of given prompts, and its gradient."""
        ...


class Trainer(OnPrompts[P], Risk):
    r"""The mean loss of B prompts that are drawn anew at each step.

    The prompts of a step are a function of the seed and the step. A subclass defines
    ``initial``, ``batch`` and ``seed``, and the methods ``draw``, ``losses_on`` and
    ``evaluate_on`` of ``OnPrompts``.

    Attributes
    ----------
    batch : int
        Number B of prompts in a step.
    seed : int
        Seed of all prompts.

    Examples
    --------
    Regression on one number, y = 3x with noise, by mini-batches of 50:

    >>> import icl_theory as icl, numpy as np
    >>> from typing import NamedTuple
    >>> class Pairs(NamedTuple):
    ...     x: np.ndarray
    ...     y: np.ndarray
    >>> class Slope(icl.engine.Trainer):
    ...     initial, batch, seed = np.zeros(1), 50, 0
    ...     def draw(self, rng, size):
    ...         x = rng.normal(size=size)
    ...         return Pairs(x, 3.0 * x + 0.1 * rng.normal(size=size))
    ...     def losses_on(self, params, prompts):
    ...         return 0.5 * (params[0] * prompts.x - prompts.y) ** 2
    ...     def evaluate_on(self, params, prompts):
    ...         error = params[0] * prompts.x - prompts.y
    ...         gradient = np.array([np.mean(error * prompts.x)])
    ...         return 0.5 * float(np.mean(error**2)), gradient
    >>> icl.descend(Slope(), eta=0.5, steps=40).params.round(1)
    array([3.])
    """

    batch: int
    seed: int
    # The generator of a step is seeded with the numbers (seed, *stream, step). Two
    # kinds of trainers of one problem have different streams, and so draw independent
    # prompts even if they share a seed.
    stream: ClassVar[tuple[int, ...]] = ()

    @property
    def stochastic(self) -> bool:
        """Whether the steps have different prompts."""
        return True

    def generator(self, step: int) -> np.random.Generator:
        """Return the random generator of a step."""
        step = integer("step", step, minimum=0)
        return np.random.default_rng([self.seed, *self.stream, step])

    def prompts(self, step: int = 0) -> P:
        """Return the prompts of a step, a function of the seed and the step."""
        return self.draw(self.generator(step), self.batch)

    def losses(self, params: ArrayLike, step: int = 0) -> Array:
        """Loss of each of the B prompts of a step, (B,)."""
        prompts = self.prompts(step)
        # Infinite losses are returned, and NaN is refused, without a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            losses = self.losses_on(self._checked(params), prompts)
        refuse_nan(losses, params)
        return losses

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts, and its gradient."""
        return self.evaluate_on(params, self.prompts(step))

    def cheaper(self) -> Trainer[Any]:
        """Return a trainer of the same law whose prompts cost less to draw.

        The loss of a prompt is a random function of the parameters. The law of this
        function must be the same in both trainers. By default the result is this
        trainer itself. `Trajectory.compare` uses the cheaper trainer, because it trains
        many runs.
        """
        return self

    def draw_runs(self, rng: np.random.Generator, runs: int) -> list[P]:
        """Draw a batch of prompts for each of several independent runs.

        By default the batches are drawn one after the other. A trainer overrides this
        method if it can draw the prompts of all runs at once. If the prompts of one
        call of ``draw`` are independent, it can call ``drawn_at_once``.

        Parameters
        ----------
        rng : numpy.random.Generator
            The source of randomness.
        runs : int
            Number of runs.

        Returns
        -------
        list of NamedTuple
            Joined in order, they hold the prompts of the first run, then the prompts of
            the second run, and so on. There may be one NamedTuple for each run, or one
            for all runs together.
        """
        return [self.draw(rng, self.batch) for _ in range(runs)]

    def evaluate_runs(self, params: Array, prompts: P) -> tuple[Array, Array]:
        """Mean losses and gradients of R runs, each on prompts of its own.

        By default the runs are evaluated one by one. A trainer overrides this method if
        it can do less work for all runs together.

        Parameters
        ----------
        params : ndarray, (R, ...)
            Parameters of each run.
        prompts : NamedTuple
            R times B prompts: first the prompts of the first run, then the prompts of
            the second run, and so on.

        Returns
        -------
        losses : ndarray, (R,)
        gradients : ndarray, (R, ...)
        """
        losses = np.empty(len(params))
        gradients = np.empty_like(params)
        for run, run_prompts in enumerate(prompts_by_run(prompts, len(params))):
            losses[run], gradients[run] = self.evaluate_on(params[run], run_prompts)
        return losses, gradients


class Samplable(OnPrompts[P], Risk):
    """An exact risk that can also be sampled: inherit from it instead of `Risk`.

    In addition to ``initial`` and ``evaluate`` a subclass defines the methods ``draw``,
    ``losses_on`` and ``evaluate_on`` of ``OnPrompts``. Then `sampled` returns a trainer
    on drawn prompts, and `Trajectory.compare` accepts a ``batch``.

    Examples
    --------
    The exact loss of y = 3x for a normal x, and a trainer on samples:

    >>> import icl_theory as icl, numpy as np
    >>> from typing import NamedTuple
    >>> class Inputs(NamedTuple):
    ...     x: np.ndarray
    >>> class Slope(icl.engine.Samplable):
    ...     initial = np.zeros(1)
    ...     def evaluate(self, params, step=0):
    ...         error = params[0] - 3.0
    ...         return 0.5 * float(error**2), np.array([error])
    ...     def draw(self, rng, size):
    ...         return Inputs(rng.normal(size=size))
    ...     def losses_on(self, params, prompts):
    ...         return 0.5 * ((params[0] - 3.0) * prompts.x) ** 2
    ...     def evaluate_on(self, params, prompts):
    ...         error = params[0] - 3.0
    ...         mean_square = float(np.mean(prompts.x**2))
    ...         return 0.5 * error**2 * mean_square, np.array([error * mean_square])
    >>> run = icl.descend(Slope(), eta=0.1, steps=50)
    >>> sgd = icl.descend(Slope().sampled(batch=20, seed=0), eta=0.1, steps=50)
    >>> run.compare(sgd.loss, batch=20).passed
    True
    """

    def sampled(self, batch: int, seed: int = 0) -> Trainer[P]:
        """Return the trainer on drawn prompts."""
        return DrawnTrainer(self, batch, seed)


class DrawnTrainer(Trainer[P]):
    """The trainer of a `Samplable` risk.

    Parameters
    ----------
    risk : Samplable
        The risk, which draws prompts and evaluates its loss on them.
    batch, seed : int
        Number of prompts in a step, and the seed.

    Raises
    ------
    ValueError
        An argument is out of range; or, in a later step, a method of the risk returns
        another number of prompts than it should, or an array of another shape.
    """

    def __init__(self, risk: Samplable[P], batch: int, seed: int = 0) -> None:
        self.risk = risk
        self.batch = integer("batch", batch, minimum=1)
        self.seed = integer("seed", seed, minimum=0)

    @property
    def initial(self) -> Array:
        """Parameters at step 0, as in the risk."""
        return self.risk.initial

    @property
    def metric(self) -> float | Array:
        """Metric of the risk."""
        return self.risk.metric

    def blocks(self, array: Array) -> Sequence[Array]:
        """Blocks of the risk."""
        return self.risk.blocks(array)

    def floor(self) -> float:
        """Floor of the risk."""
        return self.risk.floor()

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Observations of the risk, which are exact."""
        return self.risk.observe(params, step)

    def draw(self, rng: np.random.Generator, size: int) -> P:
        """Draw prompts of the risk, and refuse them unless their number is ``size``."""
        prompts = self.risk.draw(rng, size)
        count = prompt_count(prompts)
        if count != size:
            raise argument_error(
                "prompts", count, f"{size}, the number that draw was asked for"
            )
        return prompts

    def losses_on(self, params: Array, prompts: P) -> Array:
        """Loss of each of B prompts, (B,); an array of another shape is refused."""
        losses = self.risk.losses_on(params, prompts)
        shape = (prompt_count(prompts),)
        if np.shape(losses) != shape:
            raise argument_error(
                "losses_on", np.shape(losses), f"an array of shape {shape}"
            )
        return losses

    def evaluate_on(self, params: Array, prompts: P) -> tuple[float, Array]:
        """Mean loss of given prompts, and its gradient, whose shape is checked."""
        loss, gradient = self.risk.evaluate_on(params, prompts)
        # NumPy would broadcast a gradient of another shape without an error.
        if np.shape(gradient) != np.shape(params):
            raise argument_error(
                "gradient of evaluate_on",
                np.shape(gradient),
                f"of the shape of the parameters, {np.shape(params)}",
            )
        return float(loss), gradient


def trainer_of(risk: Risk, batch: int, seed: int = 0) -> Trainer[Any]:
    """Return the trainer of a risk on sampled prompts.

    Raises
    ------
    ValueError
        The risk cannot be sampled, or an argument is out of range.
    """
    sampled = getattr(risk, "sampled", None)
    if sampled is None:
        raise argument_error(
            "risk", risk, "one that can be sampled, such as an engine.Samplable"
        )
    trainer: Trainer[Any] = instance(
        "sampled", sampled(batch, seed), Trainer, "a method that returns a Trainer"
    )
    return trainer


def drawn_at_once(trainer: Trainer[P], rng: np.random.Generator, runs: int) -> list[P]:
    """Draw the prompts of several runs by one call of ``draw``.

    `Trainer.draw_runs` explains when this may be used.
    """
    return [trainer.draw(rng, runs * trainer.batch)]


def prompt_count(prompts: tuple[Any, ...]) -> int:
    """Return the number of prompts.

    Raises
    ------
    ValueError
        The prompts are not a tuple of arrays whose first axes have the same length.
    """
    if isinstance(prompts, tuple):
        # An array that the prompts lack is None.
        shapes = [np.shape(array) for array in prompts if array is not None]
        # The first axis of each array: (length,), or () for a single number.
        first_axes = {shape[:1] for shape in shapes}
        # All arrays have the same length, and none is a single number.
        if len(first_axes) == 1 and () not in first_axes:
            count, *_other_axes = shapes[0]
            return int(count)
    raise argument_error(
        "prompts",
        prompts,
        "a NamedTuple of arrays with first axes of one length, the number of prompts",
    )


def prompts_per_run(prompts: tuple[Any, ...], runs: int) -> int:
    """Return the number of prompts of each run.

    Prompts that cannot be shared equally among the runs are refused, and so is an empty
    batch.
    """
    count = prompt_count(prompts)
    if count == 0 or count % runs:
        raise argument_error(
            "prompts", count, f"{runs} times as many as a run has (one batch for each)"
        )
    return count // runs


def selected(prompts: P, which: slice | NDArray[np.intp]) -> P:
    """Return the prompts with the indices ``which``."""
    arrays = [None if array is None else array[which] for array in prompts]
    return _of_type(prompts, arrays)


def joinable(batches: Sequence[tuple[Any, ...]]) -> bool:
    """Whether batches of prompts have arrays of the same shapes after the first axis.

    Batches of prompts with random lengths may differ in the number of tokens.
    """
    shapes = set()
    for batch in batches:
        # The shapes of the batch's arrays after the first axis, in order.
        shapes_of_batch = tuple(
            None if array is None else array.shape[1:] for array in batch
        )
        shapes.add(shapes_of_batch)
    return len(shapes) == 1


def joined(batches: Sequence[P]) -> P:
    """Join batches of prompts, one after the other."""
    if len(batches) == 1:
        return batches[0]
    joined_arrays = []
    # A batch is a tuple of arrays, its fields. Join the same field of all batches.
    for field_of_batches in zip(*batches, strict=True):
        is_missing = field_of_batches[0] is None
        joined_arrays.append(None if is_missing else np.concatenate(field_of_batches))
    return _of_type(batches[0], joined_arrays)


def prompts_by_run(prompts: P, runs: int) -> Iterator[P]:
    """Yield the prompts of each of several runs, from the prompts of all runs.

    ``prompts`` holds the prompts of the first run, then the prompts of the second run,
    and so on.
    """
    size = prompts_per_run(prompts, runs)
    for run in range(runs):
        yield selected(prompts, slice(run * size, (run + 1) * size))


def _of_type(prompts: P, arrays: Sequence[Any]) -> P:
    """Build a tuple of the type of ``prompts`` from other arrays."""
    # A NamedTuple has the method `_make` for this, because its constructor takes the
    # arrays one by one. A plain tuple is made from a sequence.
    make = getattr(type(prompts), "_make", type(prompts))
    new_prompts: P = make(arrays)
    return new_prompts


def check_prompts(trainer: Trainer[P], prompts: P) -> P:
    """Return prompts if a trainer can evaluate its loss on them.

    They must have the type of the prompts that the trainer draws. Their arrays must
    hold finite numbers, and have as many axes as in drawn prompts. The trainer must
    return one loss for each prompt.

    Raises
    ------
    ValueError
        The prompts lack one of these properties. The message says which.
    """
    instance("trainer", trainer, Trainer, "a Trainer")
    # One drawn prompt shows the types and axes. Its numbers do not matter, so any seed
    # would do.
    example = trainer.draw(np.random.default_rng(0), 1)
    type_name = type(example).__name__
    if type(prompts) is not type(example) or len(prompts) != len(example):
        raise argument_error(
            "prompts", prompts, f"{type_name} as this trainer draws them"
        )
    count = prompt_count(prompts)
    if count == 0:
        raise argument_error("prompts", 0, "at least one prompt")
    # The names of the fields of a NamedTuple, or the positions in a plain tuple.
    fields = getattr(example, "_fields", range(len(example)))
    for name, array, drawn_array in zip(fields, prompts, example, strict=True):
        _check_array(f"{name} of the prompts", array, drawn_array)
    # The axes may have other lengths than in drawn prompts if the trainer can use them,
    # because prompts may have random lengths.
    try:
        losses = trainer.losses_on(trainer.initial, prompts)
    except (ValueError, IndexError) as error:
        raise argument_error(
            "prompts",
            prompts,
            f"prompts that this trainer can evaluate; losses_on raises: {error}",
        ) from error
    if np.shape(losses) != (count,):
        raise argument_error(
            "prompts", prompts, f"such that each has a loss, not {np.shape(losses)}"
        )
    return prompts


def _check_array(name: str, array: Any, drawn_array: Any) -> None:
    """Refuse an array of given prompts that differs in form from a drawn one.

    The array must have as many axes as ``drawn_array``, the array of drawn prompts, and
    hold finite numbers. If ``drawn_array`` is None, it must be None as well.
    """
    if drawn_array is None:
        if array is not None:
            raise argument_error(name, array, "None, as this trainer draws them")
        return
    if array is None:
        raise argument_error(name, array, "an array, as this trainer draws them")
    axes = np.ndim(drawn_array)
    if np.ndim(array) != axes:
        raise argument_error(name, np.shape(array), f"an array with {axes} axes")
    is_numeric = np.asarray(array).dtype.kind in "biuf"  # bools, integers and floats
    if not is_numeric or not np.isfinite(array).all():
        raise argument_error(name, array, "finite numbers")


def prompts_to_draw(rng: np.random.Generator, size: int, numbers: float) -> int:
    """Check the arguments of a method ``draw``, and return the number of prompts.

    A prompt takes ``numbers`` numbers of 8 bytes in memory.
    """
    generator("rng", rng)
    size = integer("size", size, minimum=1)
    check_fits("size", size, 8.0 * size * numbers)
    return size
