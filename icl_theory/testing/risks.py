"""Whether a risk keeps its promises to the engine: gradient, floor, metric, observations, shapes and copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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
from icl_theory.engine.trajectory import named
from icl_theory.testing.common import attempt, copied, expect, expect_near, expect_same
from icl_theory.testing.tokens import check_tokens
from icl_theory.tokens.risk import TokenRisk

# (j, w_j): f'(0) = sum_j w_j f(jh) / 60h, of sixth order
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
WIDTHS = 2.0 ** -np.arange(4.0, 20.0, 2.0)
ROUNDING = 1e-14  # relative, of a loss or a gradient
# relative difference of a loss or a gradient from the same one computed in another
# order
CLOSE = 1e-12


def check_risk(
    risk: Risk,
    *,
    points: Sequence[ArrayLike] | None = None,
    spread: float = 0.5,
    seed: int = 0,
    step: int = 0,
) -> None:
    r"""Check that a risk does everything that descent relies on.

    The initial parameters, losses, gradients and observations are finite, of float64,
    of the right shapes and the same bits each time, also of a copy by pickle, and
    evaluating changes no argument. The gradient is the derivative of the loss, and
    Hessian products are derivatives of the gradient. No loss is below the floor.
    `Risk.excess`, and ``excess`` if it is observed, are the loss minus one number, at
    most the floor. The metric is positive. Blocks are views that together hold each
    parameter once. ``series``, ``gradients`` and ``column_gradients`` agree, if they
    are defined, with `Risk.evaluate`, and a `TokenRisk` with the sum over all prompts
    of a few tokens at a few nodes.

    Parameters
    ----------
    risk : Risk
        The risk. A risk that draws data is checked on the data of one step, on which
        its loss is a function.
    points : sequence of array_like, optional
        Parameters to look at besides the initial ones; unless given three random points
        around these.
    spread, seed : float, int
        Standard deviation of the random points, and the seed of these and of the
        directions of derivatives.
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

    .. math:: f'(0) \approx \frac{45\,[f(h) - f(-h)] - 9\,[f(2h) - f(-2h)] + f(3h) - f(-3h)}{60h}, \qquad
        f(s) = \mathcal L(\theta + s u).

    The width h falls from 1/16 of the largest parameter (of 1 if all are smaller) by
    factors of 4, to where the change of the difference plus the rounding of the loss,
    :math:`10^{-14}` of it, is least; this sum bounds the error δ of the difference. The
    gradient may be off by :math:`\delta + 10^{-6}\,\|\nabla\mathcal L\|\,\|u\|`,
    Hessian products by :math:`\delta + 10^{-5}` of their largest entry :math:`+
    10^{-9}` of that of the gradient :math:`+ 10^{-14}` of the loss. At a kink the
    gradient may be any number between the left and the right derivative, and products
    are not checked. If no width gives differences that agree to :math:`10^{-3}`, the
    loss is noise and the check fails. A direction sees every entry of the gradient.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.testing import check_risk
    >>> check_risk(icl.PopulationRisk(icl.Features.simplex(4, 1.0), icl.tasks.Linear(2.0)))
    >>> class Steep(icl.Risk):
    ...     initial = np.array([2.0])
    ...     def evaluate(self, params, step=0):
    ...         return 0.5 * float(params @ params), 1.01 * params
    >>> check_risk(Steep())
    Traceback (most recent call last):
    ...
    AssertionError: gradient of the loss at the initial point, entry (0,): expected 2, found 2.02
    """
    if not isinstance(risk, Risk):
        raise argument_error("risk", risk, "a Risk (inherit from icl_theory.Risk)")
    spread = number("spread", spread)
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    step = integer("step", step, minimum=0)
    start = _initial(risk)
    places = {"the initial point": start}
    if points is None:
        random = [start + spread * rng.normal(size=start.shape) for _ in range(3)]
        places |= {f"random point {i + 1}": point for i, point in enumerate(random)}
    else:
        if dimensions(points) == 0:
            raise argument_error("points", points, "parameters, one array or more")
        given = [
            real_array(f"points[{i}]", point, start.ndim)
            for i, point in enumerate(points)
        ]
        places |= {f"points[{i}]": point for i, point in enumerate(given)}
    for where, params in places.items():
        if params.shape != start.shape:
            raise argument_error(
                where,
                params.shape,
                f"of the shape of the initial parameters, {start.shape}",
            )
        _values(risk, params, step, where)
    _metric(risk, start)
    attempt("blocks", check_blocks, risk, start.shape)
    _observations(risk, places, step)
    for where, params in places.items():
        _gradient(risk, params, step, where, rng)
        if not risk.stochastic:
            _hessian(risk, params, where, rng)
        inner = core_risk(risk)
        scores = core_params(risk, params)
        if isinstance(inner, TokenRisk):
            check_tokens(inner, scores, where)
    if not risk.stochastic:
        _excess(risk, places)
        _series(risk, places)
        _columns(risk, places)
        _at_once(risk, places)
    _copy(risk, places, step)


def evaluated(risk: Risk, params: Array, step: int, where: str) -> tuple[float, Array]:
    """Return loss and gradient, checked in type, shape and range."""
    found: Any = attempt(f"evaluate at {where}", risk.evaluate, params, step)
    expect(
        isinstance(found, tuple) and len(found) == 2,
        f"evaluate at {where}",
        "(loss, gradient)",
        found,
    )
    loss, gradient = found
    expect(
        isinstance(loss, float),
        f"type of the loss at {where}",
        "a float",
        type(loss).__name__,
    )
    expect(np.isfinite(loss), f"loss at {where}", "a finite number", loss)
    array(gradient, np.shape(params), f"gradient at {where}")
    return loss, gradient


def array(found: Any, shape: tuple[int, ...], what: str) -> None:
    """Check that something is a finite array of float64 of a shape."""
    numbers = isinstance(found, np.ndarray | np.float64) or (
        shape == () and isinstance(found, float)
    )
    expect(numbers, what, "an array of NumPy", type(found).__name__)
    found = np.asarray(found)
    expect(
        found.dtype == np.float64, f"dtype of the {what}", "float64", str(found.dtype)
    )
    expect(found.shape == shape, f"shape of the {what}", shape, found.shape)
    expect(np.isfinite(found).all(), what, "finite numbers", found)


def _initial(risk: Risk) -> Array:
    start: Any = attempt("initial parameters", getattr, risk, "initial")
    array(start, np.shape(start), "initial parameters")
    expect(np.size(start), "initial parameters", "one number at least", start)
    expect_same(start, risk.initial, "initial parameters asked for twice")
    return np.array(start)


def _values(risk: Risk, params: Array, step: int, where: str) -> None:
    kept = params.copy()
    loss, gradient = evaluated(risk, params, step, where)
    expect_same(kept, params, f"parameters after evaluate at {where}")
    gradient = np.array(gradient)
    again, slope = evaluated(risk, params, step, where)
    expect_same(loss, again, f"loss at {where}, evaluated twice")
    expect_same(gradient, slope, f"gradient at {where}, evaluated twice")
    if not risk.stochastic:
        other = evaluated(risk, params, step + 7, where)[0]
        expect_same(
            loss,
            other,
            f"loss at {where} at another step, of a risk that is not stochastic",
        )
    floor: Any = attempt("floor", risk.floor)
    expect(
        isinstance(floor, float | int) and np.isfinite(floor),
        "floor",
        "a finite number",
        floor,
    )
    if not risk.stochastic:  # the loss of a few samples may be below the floor of all
        low = floor - ROUNDING * (abs(floor) + abs(loss))
        expect(loss >= low, f"loss at {where}", f"at least the floor, {floor!r}", loss)


def _metric(risk: Risk, start: Array) -> None:
    metric = np.asarray(attempt("metric", getattr, risk, "metric"))
    expect(metric.dtype.kind in "if", "metric", "a number, or an array of them", metric)
    fits = metric.ndim <= start.ndim and all(
        m in (1, n) for m, n in zip(metric.shape[::-1], start.shape[::-1], strict=False)
    )
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
    first: dict[str, tuple[int, ...]] | None = None
    for i, (where, params) in enumerate(places.items()):
        kept = params.copy()
        seen: Any = attempt(f"observe at {where}", risk.observe, params, step + i)
        expect(isinstance(seen, dict), f"observe at {where}", "a dict of arrays", seen)
        expect_same(kept, params, f"parameters after observe at {where}")
        attempt(f"observe at {where}", named, seen)
        for name, value in seen.items():
            values = np.asarray(value)
            good = values.dtype.kind in "iuf" and np.isfinite(values).all()
            expect(good, f"observation {name!r} at {where}", "finite numbers", value)
        shapes = {name: np.shape(value) for name, value in seen.items()}
        first = shapes if first is None else first
        expect(
            shapes == first,
            f"names and shapes of the observations at {where}",
            f"always {first}",
            shapes,
        )


def _excess(risk: Risk, places: dict[str, Array]) -> None:
    """Check that the excess, also an observed one, is the loss minus one number everywhere, at most the floor."""
    floor = risk.floor()
    kinds: dict[str, Callable[[Array], Any]] = {"excess": risk.excess}
    if "excess" in risk.observe(risk.initial):
        kinds["observation 'excess'"] = lambda params: risk.observe(params)["excess"]
    for name, excess in kinds.items():
        level, scale = math.nan, 0.0
        for where, params in places.items():
            what = f"{name} at {where}"
            loss = risk.evaluate(params)[0]
            found = float(attempt(what, excess, params))
            expect(math.isfinite(found), what, "a finite number", found)
            if math.isnan(level):
                level = loss - found
                scale = abs(loss)
            off = abs(loss - found - level)
            expect(
                off <= CLOSE * (scale + abs(loss)),
                what,
                f"the loss less {level!r}, {loss - level!r}",
                found,
            )
        expected = f"the loss less the floor, {floor!r}, or less a number below it"
        expect(
            level <= floor + CLOSE * (scale + abs(floor)),
            name,
            expected,
            f"the loss less {level!r}",
        )


def difference(
    function: Callable[[float], Any],
    scale: float,
    stencil: tuple[tuple[int, float], ...] = CENTRAL,
    resolved: float = 1e-9,
) -> tuple[Any, float]:
    """Differentiate a function at 0, smooth over a length ``scale``, and estimate the error.

    The function returns a float or an array. ``FORWARD`` differences give the
    derivative from the right. Widths fall until the error is a share ``resolved`` of
    the derivative, which is far below all tolerances.
    """
    best: tuple[Any, float] = (None, np.inf)
    weights = sum(abs(weight) for _, weight in stencil) / 60.0
    before = None
    for width in WIDTHS * scale:
        with np.errstate(all="ignore"):
            values = [function(j * width) for j, _ in stencil]
            slope = sum(
                weight * value
                for (_, weight), value in zip(stencil, values, strict=True)
            ) / (60.0 * width)
            rounding = (
                ROUNDING
                * weights
                * max(float(np.abs(value).max()) for value in values)
                / width
            )
        if before is not None and np.isfinite(slope).all():
            error = float(np.abs(slope - before).max()) + rounding
            best = min(best, (slope, error), key=lambda pair: pair[1])
            if error <= resolved * float(np.abs(slope).max()):
                break
        before = slope if np.isfinite(slope).all() else None
    return best


def _width(params: Array) -> float:
    return max(1.0, float(np.abs(params).max()))


def _directions(params: Array, rng: np.random.Generator) -> list[Array]:
    drawn = [rng.normal(size=params.shape) for _ in range(3)]
    return [np.asarray(each / np.abs(each).max()) for each in drawn]


def _gradient(
    risk: Risk,
    params: Array,
    step: int,
    where: str,
    rng: np.random.Generator,
    tolerance: float = 1e-6,
    blurred: float = 1e-3,
) -> None:
    """Compare the gradient with differences, which say nothing if they scatter by ``blurred`` of themselves."""
    gradient = np.array(evaluated(risk, params, step, where)[1])
    what = f"gradient of the loss at {where}"
    norm = float(np.linalg.norm(gradient))
    noise = (
        ROUNDING * abs(risk.evaluate(params, step)[0]) / (WIDTHS[-1] * _width(params))
    )

    def along(
        direction: Array, stencil: tuple[tuple[int, float], ...] = CENTRAL
    ) -> tuple[float, float]:
        return difference(
            lambda s: risk.evaluate(params + s * direction, step)[0],
            _width(params),
            stencil,
        )

    def wrong(direction: Array) -> tuple[float, float, float]:
        """Return the derivative by differences, by the gradient, and their difference beyond the tolerance."""
        slope, error = along(direction)
        found = float(np.sum(gradient * direction))
        size = norm * float(np.linalg.norm(direction))
        expect(np.isfinite(error), what, "a finite loss around it", "none")
        beyond = abs(found - slope) - error - tolerance * size
        if beyond <= 0.0 and error <= blurred * max(abs(slope), size) + noise:
            return slope, found, beyond
        ahead = along(direction, FORWARD)
        behind = along(-direction, FORWARD)
        low, high = sorted((ahead[0], -behind[0]))
        error = max(ahead[1], behind[1])
        settled = error <= blurred * max(abs(low), abs(high), size) + noise
        expect(
            settled,
            what,
            "differences that settle",
            f"noise: {slope:.6g} ± {error:.1g}",
        )
        if high - low > 2.0 * error + blurred * size:  # a kink
            beyond = max(low - found, found - high) - error - tolerance * size
        return slope, found, beyond

    for direction in _directions(params, rng):
        slope, found, beyond = wrong(direction)
        if beyond <= 0.0:
            continue
        if params.size <= 400:  # few enough to try every entry
            units = np.eye(params.size).reshape(params.size, *params.shape)
            entries = [wrong(unit) for unit in units]
            worst = int(np.argmax([each[2] for each in entries]))
            place = tuple(int(i) for i in np.unravel_index(worst, params.shape))
            expect(
                entries[worst][2] <= 0,
                f"{what}, entry {place}",
                *(f"{x:.9g}" for x in entries[worst][:2]),
            )
        expect(
            False, f"{what}, along a random direction", f"{slope:.9g}", f"{found:.9g}"
        )


def _hessian(risk: Risk, params: Array, where: str, rng: np.random.Generator) -> None:
    loss, gradient = evaluated(risk, params, 0, where)
    rounding = ROUNDING * abs(loss) + 1e-9 * float(np.abs(gradient).max())
    what = f"Hessian product at {where}"
    for direction in _directions(params, rng):
        kept = params.copy(), direction.copy()
        tiny = 1e-9 * _width(params) * direction
        sides = [risk.evaluate(params + shift)[1] for shift in (tiny, -tiny)]
        if np.abs(sides[0] - sides[1]).max() > 1e-4 * max(
            float(np.abs(side).max()) for side in sides
        ):
            continue  # a kink: the gradient jumps over a tiny distance
        product: Any = attempt(what, risk.hessian_product, params, direction)
        array(product, params.shape, what)
        expect_same(kept, (params, direction), f"arguments after the {what}")

        def gradient_along(s: float, u: Array = direction) -> Array:
            return risk.evaluate(params + s * u)[1]

        change, error = difference(gradient_along, _width(params))
        allowed = np.asarray(error + 1e-5 * float(np.abs(change).max()) + rounding)
        expect_near(change, product, allowed, what, "that by differences of gradients")


def _series(risk: Risk, places: dict[str, Array]) -> None:
    steps = np.arange(len(places), dtype=np.int64)
    found: Any = attempt(
        "series", series_at, risk, np.stack(list(places.values())), steps
    )
    losses, seen = found
    array(losses, steps.shape, "losses of series")
    for i, (where, params) in enumerate(places.items()):
        loss = risk.evaluate(params)[0]
        near = abs(losses[i] - loss) <= CLOSE * max(abs(loss), abs(losses[i]))
        expect(
            near,
            f"loss of series at {where}",
            f"that of evaluate, {loss!r}",
            float(losses[i]),
        )
        for name, value in risk.observe(params).items():
            expect(
                name in seen,
                "observations of series",
                f"{name!r} among them",
                sorted(seen),
            )
            allowed = CLOSE * (1.0 + np.abs(value))
            what = f"observation {name!r} of series at {where}"
            expect_near(value, seen[name][i], allowed, what, "that of observe")


def _columns(risk: Risk, places: dict[str, Array]) -> None:
    gradients = column_gradients_of(risk)
    if gradients is None:
        return
    for where, params in places.items():
        which = np.append(np.arange(params.shape[1])[::-1], 0)
        found: Any = attempt("column_gradients", gradients, params[:, which], which)
        array(found, (len(params), len(which)), f"column_gradients at {where}")
        whole = risk.evaluate(params)[1]
        allowed = np.asarray(CLOSE * np.abs(whole).max(initial=0.0))
        expect_near(
            whole[:, which],
            found,
            allowed,
            f"column_gradients at {where}",
            "the columns of the gradient",
        )


def _at_once(risk: Risk, places: dict[str, Array]) -> None:
    states = np.stack(list(places.values()))
    found: Any = attempt("gradients", gradients_at, risk, states)
    array(found, states.shape, "gradients at several points")
    each = [risk.evaluate(params)[1] for params in places.values()]
    largest = float(np.abs(each).max(initial=0.0))
    for where, gradient, wanted in zip(places, found, each, strict=True):
        allowed = 1e-9 * (np.abs(wanted) + largest)
        expect_near(
            wanted,
            gradient,
            allowed,
            f"gradient at {where}, by gradients",
            "that of evaluate",
        )


def _copy(risk: Risk, places: dict[str, Array], step: int) -> None:
    again: Any = attempt("pickle, by which a risk is sent to workers", copied, risk)
    for where, params in places.items():
        loss, gradient = risk.evaluate(params, step)
        other, slope = evaluated(again, params, step, where)
        what = f"a copy by pickle at {where}"
        expect_same(loss, other, f"loss of {what}")
        expect_same(gradient, slope, f"gradient of {what}")
