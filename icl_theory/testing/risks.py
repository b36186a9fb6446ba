"""Whether a risk keeps its promises to the engine.

`check_risk` checks gradient, floor, metric, observations, shapes and copies, a function
for each, and raises an AssertionError at the first fault. In all functions here,
``params`` are parameters at which the risk is checked, ``where`` names them in error
messages, and ``places`` are several of them by their names. `attempt` turns an
exception of a call into an AssertionError, and `expect` raises one unless a condition
holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    dimensions,
    integer,
    number,
    real_array,
)
from icl_theory.engine.capabilities import (
    column_gradients_of,
    gain_at,
    gradients_at,
    series_at,
)
from icl_theory.engine.pullback import core_params, core_risk
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import check_blocks
from icl_theory.engine.sampling import Trainer
from icl_theory.engine.trajectory import named
from icl_theory.testing.common import attempt, copied, expect, expect_near, expect_same
from icl_theory.testing.tokens import check_tokens
from icl_theory.testing.trainers import check_trainer
from icl_theory.tokens.risk import TokenRisk

# Pairs (j, w_j) of a difference of sixth order: f'(0) = sum_j w_j f(jh) / (60h), up to
# an error that is proportional to h^6. FORWARD uses only values with j >= 0, and gives
# the derivative from the right at a kink.
Stencil = tuple[tuple[int, float], ...]
CENTRAL = ((1, 45.0), (-1, -45.0), (2, -9.0), (-2, 9.0), (3, 1.0), (-3, -1.0))
FORWARD = (
    (0, -147.0),
    (1, 360.0),
    (2, -450.0),
    (3, 400.0),
    (4, -225.0),
    (5, 72.0),
    (6, -10.0),
)
# The widths h that are tried, as shares of the largest parameter: 1/16, 1/64, ...,
# 2^-18. Large widths have less rounding error, and small widths serve losses that bend
# within a short distance.
WIDTHS = 2.0 ** -np.arange(4.0, 20.0, 2.0)
# The relative rounding of a loss or a gradient: about 50 times the rounding of a single
# float64, because losses and gradients are sums.
ROUNDING = 1e-14
# Two values of a loss or of a gradient may differ by this share if they are sums of the
# same numbers in different orders.
CLOSE = 1e-12
# The largest relative difference between gradients at many points at once and at each
# point alone. The value is not derived: rounding is far smaller, and a wrong formula is
# off by far more.
CLOSE_AT_ONCE = 1e-9
# A Hessian product may be off by the error of the differences with which it is
# compared, plus HESSIAN_TOLERANCE times its largest entry and, for rounding,
# GRADIENT_SHARE times the largest entry of the gradient and ROUNDING times the loss. By
# default a product is itself a difference of gradients, so its tolerance is larger than
# the one for gradients.
HESSIAN_TOLERANCE = 1e-5
GRADIENT_SHARE = 1e-9
# The gradient is taken to jump, as at a kink, if it changes by more than KINK_JUMP
# times its size over twice KINK_DISTANCE times the largest parameter. Over this
# distance a smooth gradient changes by a share of the order of KINK_DISTANCE.
KINK_JUMP = 1e-4
KINK_DISTANCE = 1e-9
# To name the wrong entry of a gradient, all entries are checked one by one, if there
# are at most this many. To check more would take longer than a few seconds.
MOST_ENTRIES = 400


def check_risk(
    risk: Risk,
    *,
    points: Sequence[ArrayLike] | None = None,
    spread: float = 0.5,
    seed: int = 0,
    step: int = 0,
) -> None:
    r"""Check that a risk does everything that descent relies on.

    The initial parameters, losses, gradients and observations are finite, of float64
    and of the right shapes. Losses and gradients have the same bits when they are
    evaluated again, also by a copy of the risk by pickle. Evaluating changes no
    argument. The gradient is the derivative of the loss, and Hessian products are
    derivatives of the gradient. No loss is below the floor. `Risk.excess`, and the
    observation ``excess`` if there is one, differ from the loss by the same number at
    all points, and this number is at most the floor. The metric is positive. The views
    of `Risk.blocks` together hold each parameter once. A risk that draws data or is
    scheduled offers no `Risk.closed_form`. If the risk defines the optional methods
    ``series``, ``gradients`` and ``column_gradients``, they agree with `Risk.evaluate`.
    The loss of a step of a `Trainer` is the mean over the prompts of the step, and a
    run that is evaluated together with others has the same losses and gradients as by
    itself. A `TokenRisk` that is cut down to few and short prompts has the loss that a
    sum over all of them gives.

    Parameters
    ----------
    risk : Risk
        The risk. A risk that draws data is checked on the data of one step, because
        its loss is a function of the parameters only if the data stay the same.
    points : sequence of array_like, optional
        Parameters to check besides the initial ones; by default three random points
        around the initial ones.
    spread : float
        Standard deviation of the random points.
    seed : int
        Seed of the random points and of the directions of derivatives.
    step : int
        The step whose data are used.

    Raises
    ------
    AssertionError
        Something is wrong; the message says what was expected and what was found.
    ValueError
        An argument is out of range, or the object is not a Risk.

    Notes
    -----
    Derivatives along a direction u are central differences of sixth order,

    .. math:: f'(0) \approx \frac{45\,[f(h) - f(-h)] - 9\,[f(2h) - f(-2h)]
        + f(3h) - f(-3h)}{60h}, \qquad f(s) = \mathcal L(\theta + s u).

    The width h falls from 1/16 of the largest parameter (of 1 if all are smaller) by
    factors of 4. The error of a difference is estimated as its change from the next
    larger width, plus its rounding error if the loss is exact to a share of
    :math:`10^{-14}`. The width with the least error δ is used.

    The derivative by the gradient may be off by :math:`\delta + 10^{-6}\,
    \|\nabla\mathcal L\|\,\|u\|`. A Hessian product may be off by the sum of δ,
    :math:`10^{-5}` of its largest entry, :math:`10^{-9}` of the largest entry of the
    gradient, and :math:`10^{-14}` of the loss. At a kink the derivative may be any
    number between the derivatives from the left and from the right, and Hessian
    products are not checked. If no width gives differences that agree to
    :math:`10^{-3}`, the loss is noise and the check fails. All entries of the gradient
    contribute to the derivative along a random direction, so that a wrong entry shows
    in it.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.testing import check_risk
    >>> features = icl.Features.simplex(4, 1.0)
    >>> check_risk(icl.PopulationRisk(features, icl.tasks.Linear(2.0)))
    >>> class Steep(icl.Risk):
    ...     initial = np.array([2.0])
    ...     def evaluate(self, params, step=0):
    ...         return 0.5 * float(params @ params), 1.01 * params
    >>> check_risk(Steep())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    AssertionError: gradient of the loss at ..., entry (0,): expected 2, found 2.02
    """
    if not isinstance(risk, Risk):
        raise argument_error("risk", risk, "a Risk (inherit from icl_theory.Risk)")
    spread = number("spread", spread)
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    step = integer("step", step, minimum=0)
    start = _initial(risk)
    places = {"the initial point": start}
    if points is None:
        places |= _random_points(start, spread, rng)
    else:
        places |= _given_points(points, start)
    for where, params in places.items():
        _values(risk, params, step, where)
    _metric(risk, start)
    attempt("blocks", check_blocks, risk, start.shape)
    _observations(risk, places, step)
    if risk.stochastic or risk.scheduled:
        # `descend` uses a closed form before it asks whether the loss depends on the
        # step. Any learning rate would do here.
        form = attempt("closed form", risk.closed_form, 1.0, "gd")
        subject = "closed form of a risk that draws data or is scheduled"
        expect(form is None, subject, None, form)
    for where, params in places.items():
        _gradient(risk, params, step, where, rng)
        if not risk.stochastic:
            _hessian(risk, params, where, rng)
        # A risk in other coordinates wraps a risk whose parameters are the scores.
        # These two functions return the wrapped risk and its parameters. They return an
        # unwrapped risk and its parameters as they are.
        inner = core_risk(risk)
        scores = core_params(risk, params)
        if isinstance(inner, TokenRisk):
            check_tokens(inner, scores, where)
    if not risk.stochastic:
        _excess(risk, places)
        _series(risk, places)
        _columns(risk, places)
        _at_once(risk, places)
    if isinstance(risk, Trainer):
        check_trainer(risk, places, step)
    _copy(risk, places, step)


def _random_points(
    start: Array, spread: float, rng: np.random.Generator
) -> dict[str, Array]:
    """Return three random points around the initial one ``start``, by their names.

    ``spread`` is the standard deviation of each coordinate.
    """
    places = {}
    for i in range(3):
        deviation = spread * rng.normal(size=start.shape)
        places[f"random point {i + 1}"] = start + deviation
    return places


def _given_points(points: Sequence[ArrayLike], start: Array) -> dict[str, Array]:
    """Return the points of the caller, by their names in messages.

    Each point must have the shape of the initial parameters ``start``. Otherwise a
    ValueError names the argument ``points`` of `check_risk`.
    """
    # A single number is not a sequence of parameters.
    if dimensions(points) == 0:
        raise argument_error("points", points, "parameters, one array or more")
    places = {}
    for i, point in enumerate(points):
        name = f"points[{i}]"
        params = real_array(name, point, start.ndim)
        if params.shape != start.shape:
            raise argument_error(
                name,
                params.shape,
                f"of the shape of the initial parameters, {start.shape}",
            )
        places[name] = params
    return places


def evaluated(risk: Risk, params: Array, step: int, where: str) -> tuple[float, Array]:
    """Return loss and gradient, after a check that both are finite floats.

    The gradient must have the shape of the parameters.
    """
    result: Any = attempt(f"evaluate at {where}", risk.evaluate, params, step)
    expect(
        isinstance(result, tuple) and len(result) == 2,
        f"evaluate at {where}",
        "(loss, gradient)",
        result,
    )
    loss, gradient = result
    expect(
        isinstance(loss, float),
        f"type of the loss at {where}",
        "a float",
        type(loss).__name__,
    )
    expect(np.isfinite(loss), f"loss at {where}", "a finite number", loss)
    array(gradient, np.shape(params), f"gradient at {where}")
    return loss, gradient


def array(value: Any, shape: tuple[int, ...], subject: str) -> None:
    """Check that a value is an array of finite float64 numbers, of the given shape.

    If the shape is (), a Python float is allowed, too.
    """
    is_array = isinstance(value, np.ndarray | np.float64)
    is_scalar = shape == () and isinstance(value, float)
    expect(is_array or is_scalar, subject, "an array of NumPy", type(value).__name__)
    numbers = np.asarray(value)
    dtype = numbers.dtype
    expect(dtype == np.float64, f"dtype of the {subject}", "float64", str(dtype))
    expect(numbers.shape == shape, f"shape of the {subject}", shape, numbers.shape)
    expect(np.isfinite(numbers).all(), subject, "finite numbers", numbers)


def _initial(risk: Risk) -> Array:
    """Return a copy of the initial parameters, after a check of them."""
    # ``initial`` may be a property, whose code may raise an exception.
    start: Any = attempt("initial parameters", getattr, risk, "initial")
    array(start, np.shape(start), "initial parameters")
    expect(np.size(start), "initial parameters", "one number at least", start)
    expect_same(start, risk.initial, "initial parameters, read twice")
    return np.array(start)


def _values(risk: Risk, params: Array, step: int, where: str) -> None:
    """Check that loss and gradient are repeatable, and the loss not below the floor."""
    params_before = params.copy()
    loss, gradient = evaluated(risk, params, step, where)
    expect_same(params_before, params, f"parameters after evaluate at {where}")
    # Keep a copy, because a risk might write its next gradient into the same array.
    gradient = np.array(gradient)
    loss_again, gradient_again = evaluated(risk, params, step, where)
    expect_same(loss, loss_again, f"loss at {where}, evaluated twice")
    expect_same(gradient, gradient_again, f"gradient at {where}, evaluated twice")
    if not risk.stochastic:
        # Any step other than ``step`` would do.
        loss_at_other_step, _ = evaluated(risk, params, step + 7, where)
        expect_same(
            loss,
            loss_at_other_step,
            f"loss at {where} at another step, of a risk that is not stochastic",
        )
    floor: Any = attempt("floor", risk.floor)
    expect(
        isinstance(floor, float | int) and np.isfinite(floor),
        "floor",
        "a finite number",
        floor,
    )
    # The loss of a few samples may be below the floor of the mean loss.
    if not risk.stochastic:
        least = floor - ROUNDING * (abs(floor) + abs(loss))
        expect(
            loss >= least, f"loss at {where}", f"at least the floor, {floor!r}", loss
        )


def _metric(risk: Risk, start: Array) -> None:
    """Check that the metric is positive and has a fitting shape, and check the gain.

    Update rules divide gradients by the metric. The scores are the numbers to which the
    tolerance of a run applies, the parameters or functions of them. The gain is the
    norm of the change of the scores per unit change of the parameters, 1 unless the
    risk defines it.
    """
    metric = np.asarray(attempt("metric", getattr, risk, "metric"))
    expect(metric.dtype.kind in "if", "metric", "a number, or an array of them", metric)
    # By NumPy's rules of broadcasting, gradient / metric must have the shape of the
    # gradient, which is the shape of ``start``.
    try:
        fits = np.broadcast_shapes(metric.shape, start.shape) == start.shape
    except ValueError:
        # The shapes cannot be broadcast.
        fits = False
    expect(
        fits,
        "shape of the metric",
        f"one that divides gradients of shape {start.shape}",
        metric.shape,
    )
    expect(
        (np.isfinite(metric) & (metric > 0)).all(), "metric", "positive numbers", metric
    )
    gain: Any = attempt("gain at the initial point", gain_at, risk, start)
    expect(
        np.isfinite(gain) and gain >= 0,
        "gain at the initial point",
        "a number >= 0",
        gain,
    )


def _observations(risk: Risk, places: dict[str, Array], step: int) -> None:
    """Check that observations are finite, and have the same shapes at all places.

    Each place has another step, because the shapes must not depend on the step either.
    """
    first_shapes: dict[str, tuple[int, ...]] | None = None
    for i, (where, params) in enumerate(places.items()):
        params_before = params.copy()
        subject = f"observe at {where}"
        observed: Any = attempt(subject, risk.observe, params, step + i)
        expect(isinstance(observed, dict), subject, "a dict of arrays", observed)
        expect_same(params_before, params, f"parameters after {subject}")
        # `named` refuses names that runs use for other entries.
        attempt(subject, named, observed)
        for name, value in observed.items():
            values = np.asarray(value)
            is_finite = values.dtype.kind in "iuf" and np.isfinite(values).all()
            subject = f"observation {name!r} at {where}"
            expect(is_finite, subject, "finite numbers", value)
        shapes = {name: np.shape(value) for name, value in observed.items()}
        if first_shapes is None:
            first_shapes = shapes
        expect(
            shapes == first_shapes,
            f"names and shapes of the observations at {where}",
            f"always {first_shapes}",
            shapes,
        )


def _excess(risk: Risk, places: dict[str, Array]) -> None:
    """Check `Risk.excess`, and the observation ``excess`` if the risk has one."""
    _check_excess(risk, places, "excess", risk.excess)
    if "excess" in risk.observe(risk.initial):

        def observed_excess(params: Array) -> Any:
            return risk.observe(params)["excess"]

        _check_excess(risk, places, "observation 'excess'", observed_excess)


def _check_excess(
    risk: Risk, places: dict[str, Array], name: str, excess: Callable[[Array], Any]
) -> None:
    """Check that an excess is the loss minus one number, which is at most the floor.

    ``excess`` returns the excess for parameters, and messages call it ``name``.
    """
    losses = {}
    values = {}
    for where, params in places.items():
        subject = f"{name} at {where}"
        losses[where], _ = risk.evaluate(params)
        values[where] = float(attempt(subject, excess, params))
        expect(math.isfinite(values[where]), subject, "a finite number", values[where])
    # The number that is subtracted from the loss; it must be the same at all places.
    first = next(iter(places))
    level = losses[first] - values[first]
    # ``level`` has the rounding error of the loss from which it was computed.
    scale = abs(losses[first])
    for where, loss in losses.items():
        expect(
            abs(loss - values[where] - level) <= CLOSE * (scale + abs(loss)),
            f"{name} at {where}",
            f"the loss less {level!r}, {loss - level!r}",
            values[where],
        )
    floor = risk.floor()
    expect(
        level <= floor + CLOSE * (scale + abs(floor)),
        name,
        f"the loss less the floor, {floor!r}, or less a number below it",
        f"the loss less {level!r}",
    )


def difference(
    function: Callable[[float], Any],
    scale: float,
    stencil: Stencil = CENTRAL,
    resolved: float = 1e-9,
) -> tuple[Any, float]:
    """Return the derivative of a function at 0, and an estimate of its error.

    The function returns a float or an array. The widths are `WIDTHS` times ``scale``, a
    length over which the function is taken to be smooth. The widths are tried from the
    largest one on, until the error is at most the share ``resolved`` of the derivative.
    (By default this share is far below the tolerances of gradients, 1e-6, and of
    Hessian products, 1e-5.) If no width reaches this error, the width with the least
    error is used. If no two successive widths give finite differences, the derivative
    is None and the error infinite. ``FORWARD`` differences give the derivative from the
    right.
    """
    best_slope = None
    least_error = np.inf
    wider_slope = None
    for width in WIDTHS * scale:
        slope, rounding = _quotient(function, width, stencil)
        if not np.isfinite(slope).all():
            # The stencil reached beyond the domain; a smaller width may stay within.
            wider_slope = None
            continue
        if wider_slope is not None:
            # A difference of sixth order changes by more than its remaining error if
            # the width falls by a factor of 4.
            error = float(np.abs(slope - wider_slope).max()) + rounding
            if error < least_error:
                best_slope = slope
                least_error = error
            if error <= resolved * float(np.abs(slope).max()):
                break
        wider_slope = slope
    return best_slope, least_error


def _quotient(
    function: Callable[[float], Any], width: float, stencil: Stencil
) -> tuple[Any, float]:
    """Return the derivative by a difference of this width, and its rounding error."""
    total: Any = 0
    sum_of_weights = 0.0
    largest = 0.0
    # Far points may overflow; `difference` checks whether the result is finite.
    with np.errstate(all="ignore"):
        for j, weight in stencil:
            value = function(j * width)
            total = total + weight * value
            sum_of_weights += abs(weight)
            largest = max(largest, float(np.abs(value).max()))
        slope = total / (60.0 * width)
        # Each value may be off by ``ROUNDING`` times the largest value, and at worst
        # these errors add up.
        rounding = ROUNDING * (sum_of_weights / 60.0) * largest / width
    return slope, rounding


def _smooth_length(params: Array) -> float:
    """Return the length over which a loss is taken to be smooth.

    It is the largest parameter, or 1 if all are smaller: the initial parameters may all
    be 0.
    """
    return max(1.0, float(np.abs(params).max()))


def _directions(params: Array, rng: np.random.Generator) -> list[Array]:
    """Return three random directions, scaled so that the largest entry is 1 or -1.

    A wrong entry of a gradient shows along nearly every direction. Three directions
    make a chance agreement unlikely, and cost less than a check of each entry.
    """
    directions = []
    for _ in range(3):
        normal = rng.normal(size=params.shape)
        directions.append(np.asarray(normal / np.abs(normal).max()))
    return directions


class Slopes(NamedTuple):
    """The derivative of a loss along a direction, computed in two ways.

    Attributes
    ----------
    by_differences, by_gradient : float
        The derivative from finite differences of the loss, and the derivative as the
        scalar product of the gradient and the direction.
    excess : float
        The amount by which the two derivatives differ beyond the error of the
        differences and the tolerance. They agree if it is at most 0.
    """

    by_differences: float
    by_gradient: float
    excess: float


class GradientCheck:
    """The gradient at one point, compared with differences of the loss.

    The notes of `check_risk` state how they are compared. A derivative may be off by
    the error of the differences, plus the share ``tolerance`` of the gradient's norm
    times the direction's norm. With the default tolerance, an error in a single entry
    is found if it exceeds 1e-5 of the norm and the gradient has few entries. If the
    error of the differences is more than the share ``blurred`` of the largest
    derivative, the point is at a kink or the loss is noise.
    """

    def __init__(
        self,
        risk: Risk,
        params: Array,
        step: int,
        where: str,
        tolerance: float = 1e-6,
        blurred: float = 1e-3,
    ) -> None:
        self.risk = risk
        self.params = params
        self.step = step
        self.subject = f"gradient of the loss at {where}"
        self.tolerance = tolerance
        self.blurred = blurred
        loss, gradient = evaluated(risk, params, step, where)
        # Keep a copy, because a risk might write its next gradient into the same array.
        self.gradient = np.array(gradient)
        self.norm = float(np.linalg.norm(self.gradient))
        # The rounding error of a difference at the smallest width. A difference may be
        # off by this much without a kink and without a loss that is noise.
        self.rounding = ROUNDING * abs(loss) / (WIDTHS[-1] * _smooth_length(params))

    def slope(
        self, direction: Array, stencil: Stencil = CENTRAL
    ) -> tuple[float, float]:
        """Return the derivative along a direction by differences, and its error."""

        def loss(s: float) -> float:
            """Return the loss after a move by ``s`` times the direction."""
            value, _ = self.risk.evaluate(self.params + s * direction, self.step)
            return value

        return difference(loss, _smooth_length(self.params), stencil)

    def along(self, direction: Array) -> Slopes:
        """Return the derivative along a direction, by differences and the gradient."""
        slope, error = self.slope(direction)
        by_gradient = float(np.sum(self.gradient * direction))
        # The largest derivative along any direction of this length.
        steepest = self.norm * float(np.linalg.norm(direction))
        expect(np.isfinite(error), self.subject, "a finite loss around it", "none")
        excess = abs(by_gradient - slope) - error - self.tolerance * steepest
        is_sharp = error <= self.blurred * max(abs(slope), steepest) + self.rounding
        if excess <= 0.0 and is_sharp:
            return Slopes(slope, by_gradient, excess)
        # Either the gradient is wrong, or the point is at a kink, or the loss is noise.
        # To find out which, compute the derivatives from the right and from the left.
        # The latter is minus the derivative along -direction.
        ahead, error_ahead = self.slope(direction, FORWARD)
        behind, error_behind = self.slope(-direction, FORWARD)
        low, high = sorted((ahead, -behind))
        error_of_sides = max(error_ahead, error_behind)
        largest = max(abs(low), abs(high), steepest)
        expect(
            error_of_sides <= self.blurred * largest + self.rounding,
            self.subject,
            "differences that converge as their width falls",
            f"noise: {slope:.6g} ± {error_of_sides:.1g}",
        )
        # Only at a kink do the two derivatives differ by far more than their errors. At
        # a kink the derivative by the gradient may be any number between the two.
        if high - low > 2.0 * error_of_sides + self.blurred * steepest:
            # How far it is outside of this interval; negative if it is inside.
            outside = max(low - by_gradient, by_gradient - high)
            excess = outside - error_of_sides - self.tolerance * steepest
        return Slopes(slope, by_gradient, excess)

    def check_entries(self) -> None:
        """Check the derivative with respect to each entry of the parameters.

        If any is wrong, an AssertionError names the entry with the largest error.
        """
        size = self.params.size
        # Unit directions, one for each entry, in the shape of the parameters.
        units = np.eye(size).reshape(size, *self.params.shape)
        entries = [self.along(unit) for unit in units]
        worst = int(np.argmax([slopes.excess for slopes in entries]))
        index = tuple(int(i) for i in np.unravel_index(worst, self.params.shape))
        expect(
            entries[worst].excess <= 0,
            f"{self.subject}, entry {index}",
            f"{entries[worst].by_differences:.9g}",
            f"{entries[worst].by_gradient:.9g}",
        )


def _gradient(
    risk: Risk, params: Array, step: int, where: str, rng: np.random.Generator
) -> None:
    """Compare the gradient with differences of the loss along random directions."""
    check = GradientCheck(risk, params, step, where)
    for direction in _directions(params, rng):
        slopes = check.along(direction)
        if slopes.excess <= 0.0:
            continue
        # A message that names the wrong entry helps more than one about a direction.
        if params.size <= MOST_ENTRIES:
            check.check_entries()
        expect(
            False,
            f"{check.subject}, along a random direction",
            f"{slopes.by_differences:.9g}",
            f"{slopes.by_gradient:.9g}",
        )


def _hessian(risk: Risk, params: Array, where: str, rng: np.random.Generator) -> None:
    """Compare Hessian products with differences of the gradient.

    The notes of `check_risk` state the tolerances.
    """
    loss, gradient = evaluated(risk, params, 0, where)
    rounding = ROUNDING * abs(loss) + GRADIENT_SHARE * float(np.abs(gradient).max())
    subject = f"Hessian product at {where}"
    for direction in _directions(params, rng):
        # At a kink there is no Hessian.
        if _is_kink(risk, params, direction):
            continue
        # Both arrays have the same shape, so `expect_same` compares the pair as one
        # array.
        arguments_before = params.copy(), direction.copy()
        product: Any = attempt(subject, risk.hessian_product, params, direction)
        array(product, params.shape, subject)
        arguments = params, direction
        expect_same(arguments_before, arguments, f"arguments after the {subject}")

        # As a default argument, ``u`` keeps the direction of this pass through the
        # loop.
        def gradient_along(s: float, u: Array = direction) -> Array:
            """Return the gradient after a move by ``s`` times the direction ``u``."""
            _, gradient = risk.evaluate(params + s * u)
            return gradient

        by_differences, error = difference(gradient_along, _smooth_length(params))
        largest = float(np.abs(by_differences).max())
        allowed = np.asarray(error + HESSIAN_TOLERANCE * largest + rounding)
        expect_near(
            by_differences,
            product,
            allowed,
            subject,
            "the product estimated by differences of gradients",
        )


def _is_kink(risk: Risk, params: Array, direction: Array) -> bool:
    """Return whether the gradient jumps within a tiny distance along a direction."""
    tiny_change = KINK_DISTANCE * _smooth_length(params) * direction
    _, ahead = risk.evaluate(params + tiny_change)
    _, behind = risk.evaluate(params - tiny_change)
    largest = max(float(np.abs(ahead).max()), float(np.abs(behind).max()))
    return bool(np.abs(ahead - behind).max() > KINK_JUMP * largest)


def _series(risk: Risk, places: dict[str, Array]) -> None:
    """Compare losses and observations of many states at once with each state's own.

    `series_at` calls the optional method ``series`` of the risk, or else evaluates the
    states one by one.
    """
    states = np.stack(list(places.values()))
    # The risk is not stochastic, so its loss does not depend on the step.
    steps = np.arange(len(places), dtype=np.int64)
    result: Any = attempt("series", series_at, risk, states, steps)
    losses, observed = result
    array(losses, steps.shape, "losses of series")
    for i, (where, params) in enumerate(places.items()):
        loss, _ = risk.evaluate(params)
        larger = max(abs(loss), abs(losses[i]))
        expect(
            abs(losses[i] - loss) <= CLOSE * larger,
            f"loss of series at {where}",
            f"that of evaluate, {loss!r}",
            float(losses[i]),
        )
        for name, value in risk.observe(params).items():
            expect(
                name in observed,
                "observations of series",
                f"{name!r} among them",
                sorted(observed),
            )
            # An observation may be a small difference of numbers near 1, such as 1
            # minus an attention. The term 1 allows for the rounding of these numbers.
            allowed = CLOSE * (1.0 + np.abs(value))
            subject = f"observation {name!r} of series at {where}"
            expect_near(value, observed[name][i], allowed, subject, "that of observe")


def _columns(risk: Risk, places: dict[str, Array]) -> None:
    """Compare gradients of single columns with the columns of the gradient.

    A risk may define ``column_gradients`` if its parameters are a matrix and its loss
    is a sum of one term for each column. The method takes columns and their indices.
    """
    gradients = column_gradients_of(risk)
    if gradients is None:
        return
    for where, params in places.items():
        # Take all columns in another order, and one of them twice.
        column_indices = np.append(np.arange(params.shape[1])[::-1], 0)
        columns: Any = attempt(
            "column_gradients",
            gradients,
            params[:, column_indices],
            column_indices,
        )
        shape = (len(params), len(column_indices))
        array(columns, shape, f"column_gradients at {where}")
        _, gradient = risk.evaluate(params)
        allowed = np.asarray(CLOSE * np.abs(gradient).max(initial=0.0))
        expect_near(
            gradient[:, column_indices],
            columns,
            allowed,
            f"column_gradients at {where}",
            "the columns of the gradient",
        )


def _at_once(risk: Risk, places: dict[str, Array]) -> None:
    """Compare the gradients at many points at once with the gradient at each point.

    `gradients_at` calls the optional method ``gradients`` of the risk, or else
    evaluates the points one by one.
    """
    states = np.stack(list(places.values()))
    gradients: Any = attempt("gradients", gradients_at, risk, states)
    array(gradients, states.shape, "gradients at several points")
    one_by_one = []
    for params in places.values():
        _, gradient_at_point = risk.evaluate(params)
        one_by_one.append(gradient_at_point)
    # A small entry may be a difference of large terms, so the largest entry of all sets
    # the scale of rounding errors.
    largest = float(np.abs(one_by_one).max(initial=0.0))
    for where, gradient, expected in zip(places, gradients, one_by_one, strict=True):
        allowed = CLOSE_AT_ONCE * (np.abs(expected) + largest)
        expect_near(
            expected,
            gradient,
            allowed,
            f"gradient at {where}, by gradients",
            "that of evaluate",
        )


def _copy(risk: Risk, places: dict[str, Array], step: int) -> None:
    """Check that a copy by pickle has the same losses and gradients."""
    copied_risk: Any = attempt(
        "pickle, by which a risk is sent to workers", copied, risk
    )
    for where, params in places.items():
        loss, gradient = risk.evaluate(params, step)
        copied_loss, copied_gradient = evaluated(copied_risk, params, step, where)
        subject = f"a copy by pickle at {where}"
        expect_same(loss, copied_loss, f"loss of {subject}")
        expect_same(gradient, copied_gradient, f"gradient of {subject}")
