"""The sharpness of the loss along a run and at a minimum.

The sharpness λ_max is the largest eigenvalue of M^(-1/2) H M^(-1/2), with the Hessian H
of the loss and the metric M of the risk (`Risk.sharpness`). Gradient descent stays at a
minimum if its learning rate is below 2/λ_max. The function `largest_stable_eta`
searches for a minimum by a trust-region method, and then takes steps of Newton's method
from the end of the search. It refuses a risk whose minimum lies at infinity.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error, instance, integer
from icl_theory.engine.progress import Progress
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory

# The relative residual to which the equations of a Newton step are solved. Near a
# minimum a step then reduces the gradient by about this factor. A smaller residual
# would take more products with the Hessian in each step, and fewer steps.
NEWTON_RESIDUAL = 1e-5
# Newton's method is given up after this many steps. From nearby parameters it takes a
# few; if it takes many more, the minimum usually lies at infinity.
NEWTON_STEPS = 8
# A step of Newton's method ends at a minimum if it is smaller than this, relative to
# the distance from the start of the search or to 1, whichever is larger. The error that
# remains is smaller still, because each step reduces it by a large factor.
SMALL_NEWTON_STEP = 1e-6
# Gradients and curvatures below this part of the largest ones count as rounding. This
# part is about five rounding units of 2^-52.
FLAT = 1e-15
# The search for a minimum ends if the norm of the gradient has fallen to the part
# SEARCH_TOLERANCE of its first value, or after SEARCH_ITERATIONS iterations. Neither
# number affects the result if Newton's method converges from the end of the search. A
# larger tolerance or fewer iterations save time, but may leave the search too far from
# the minimum.
SEARCH_TOLERANCE = 1e-10
SEARCH_ITERATIONS = 2000


class Stability(NamedTuple):
    """The stability of gradient descent at a minimum of the loss.

    Attributes
    ----------
    eta : float
        The largest stable learning rate, 2/λ_max.
    sharpness : float
        The sharpness λ_max at the minimum, see `Risk.sharpness`.
    params : ndarray
        The parameters at the minimum.
    loss : float
        The loss at the minimum.
    """

    eta: float
    sharpness: float
    params: Array
    loss: float


def sharpness_along(run: Trajectory, points: int = 50) -> tuple[Array, Array]:
    r"""Sharpness at up to ``points`` saved steps of a run.

    While the sharpness exceeds 2/η, gradient descent with the learning rate η is
    unstable. See docs/theory.md, "Sharpness".

    Parameters
    ----------
    run : Trajectory
        A run that has its risk: a new run, or a loaded run of a family.
    points : int
        Largest number of steps, at least 2. They are spread evenly over the saved
        steps, and include the first and the last one.

    Returns
    -------
    steps : ndarray of int64, (P,)
        P steps: all saved steps, if there are no more than ``points``, and otherwise
        ``points`` of them.
    sharpness : ndarray, (P,)
        The sharpness λ_max at these steps, see `Risk.sharpness`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 4.0, K=3, probs=[0.5, 0.3, 0.2])
    >>> steps, sharpness = icl.engine.sharpness_along(run, points=4)
    >>> bool((2.0 / sharpness[-1]) > (2.0 / sharpness.max()))
    True
    """
    instance("run", run, Trajectory, "a run")
    points = integer("points", points, minimum=2)
    if run.risk is None:
        raise argument_error("run", "loaded from a file", "a run whose risk is known")
    if run.risk.stochastic:
        raise argument_error(
            "run", "of a risk that draws its data", "a run of a risk with a Hessian"
        )
    if run.risk.scheduled:
        raise argument_error(
            "run", "of a loss that changes from step to step", "a run of one loss"
        )
    count = min(points, len(run.t))
    positions = np.linspace(0, len(run.t) - 1, count)
    # The indices of the chosen steps among the saved ones.
    indices = np.unique(positions.round().astype(int))
    sharpness = [run.risk.sharpness(run.states[index]) for index in indices]
    return run.t[indices], np.array(sharpness)


def largest_stable_eta(risk: Risk, start: ArrayLike | None = None) -> Stability:
    r"""Largest learning rate that is stable at a minimum, :math:`2/\lambda_{\max}`.

    See docs/theory.md, "Sharpness".

    Parameters
    ----------
    risk : Risk
        A risk with a minimum at finite parameters, such as one with label noise, finite
        prompts and exchangeable tasks.
    start : array_like, optional
        Start of the search for the minimum; ``risk.initial`` by default.

    Returns
    -------
    Stability
        A tuple with the fields ``eta``, ``sharpness``, ``params`` and ``loss``.

    Raises
    ------
    ValueError
        The risk draws its data, or its loss changes from step to step; the start is not
        finite or has another shape than ``risk.initial``; or no minimum at finite
        parameters was found, for example because the steps of Newton's method do not
        become small.

    Examples
    --------
    >>> import icl_theory as icl
    >>> risk = icl.ExchangeableRisk(20, gamma=2.0, N=100, noise=1.0)
    >>> stability = icl.largest_stable_eta(risk)
    >>> stability.eta * stability.sharpness
    2.0
    """
    instance("risk", risk, Risk, "a Risk")  # type: ignore[type-abstract]
    if risk.stochastic:
        raise argument_error("risk", risk, "one that does not draw its data")
    if risk.scheduled:
        raise argument_error(
            "risk", risk, "one whose loss is the same function at all steps"
        )
    search_start = risk.initial if start is None else risk._checked(start)
    _first_loss, first_gradient = risk.evaluate(search_start)
    # Later gradients count as zero if they are small compared with the first one.
    first_gradient_norm = float(np.linalg.norm(first_gradient))
    nearby = _near_minimum(risk, search_start, first_gradient_norm)
    params = _newton_minimum(risk, nearby, first_gradient_norm, search_start)
    if params is None:
        raise argument_error("risk", risk, "one with a minimum at finite parameters")
    sharpness = risk.sharpness(params)
    loss, _gradient = risk.evaluate(params)
    return Stability(
        eta=2.0 / sharpness, sharpness=sharpness, params=params, loss=float(loss)
    )


def _near_minimum(risk: Risk, search_start: Array, first_gradient_norm: float) -> Array:
    """Return the parameters at which a trust-region search for a minimum ends.

    The search begins at ``search_start``, at which the gradient has the norm
    ``first_gradient_norm``.
    """
    from scipy.optimize import minimize

    # `minimize` works with vectors, so parameters are flattened and reshaped.
    shape = np.shape(search_start)
    evaluations = itertools.count()

    # This function is called only within the block below, which defines `display`.
    def objective(flat: Array) -> tuple[float, Array]:
        loss, gradient = risk.evaluate(flat.reshape(shape))
        display.update(next(evaluations), loss=float(loss))
        return float(loss), np.ravel(gradient)

    def hessian_product(flat: Array, direction: Array) -> Array:
        product = risk.hessian_product(flat.reshape(shape), direction.reshape(shape))
        return np.ravel(product)

    # On a plateau the method divides an actual reduction of 0 by a predicted one of 0.
    no_warnings = np.errstate(divide="ignore", invalid="ignore")
    with Progress("", "steps") as display, no_warnings:
        # It does not matter if the gradient is not small enough at the end:
        # `_newton_minimum` continues from the result.
        result = minimize(
            objective,
            np.ravel(search_start),
            jac=True,
            hessp=hessian_product,
            method="trust-ncg",
            options={
                "gtol": SEARCH_TOLERANCE * first_gradient_norm,
                "maxiter": SEARCH_ITERATIONS,
            },
        )
    return np.asarray(result.x).reshape(shape)


def _newton_minimum(
    risk: Risk, params: Array, first_gradient_norm: float, search_start: Array
) -> Array | None:
    """Return the nearby minimum that Newton's method finds; None if there is none.

    There are two signs of a minimum: a step of the method becomes small
    (SMALL_NEWTON_STEP), or the gradient is only rounding (FLAT), compared with the
    curvature or with ``first_gradient_norm``, the norm of the gradient at
    ``search_start``. On the way to a minimum at infinity, gradient and curvature vanish
    together in some direction, and the steps do not become smaller: for the function
    e^-x all steps have the length 1.
    """
    sharpness = risk.sharpness(params)
    # A gradient counts as zero if its norm is at most this.
    rounding = FLAT * max(first_gradient_norm, sharpness)
    for _ in range(NEWTON_STEPS):
        loss, gradient = risk.evaluate(params)
        # A minimum is not nearby if the steps have led to an infinite loss, or if no
        # direction has a positive curvature.
        if not (math.isfinite(loss) and sharpness > 0.0):
            return None
        if float(np.linalg.norm(gradient)) <= rounding:
            return params
        step = _newton_step(
            risk, params, gradient, flat=FLAT * sharpness, rounding=rounding
        )
        # If the loss is flat or concave in some direction, there is no step, and no
        # minimum is nearby.
        if step is None:
            return None
        params = params - step
        distance = float(np.abs(params - search_start).max())
        if np.abs(step).max() <= SMALL_NEWTON_STEP * max(1.0, distance):
            return params
    return None


def _newton_step(
    risk: Risk, params: Array, gradient: Array, flat: float, rounding: float
) -> Array | None:
    """Solve ``H step = gradient`` for the step by conjugate gradients.

    H is the Hessian. The result is None if the curvature d^T H d / d^T d along some
    direction d of the iteration is at most ``flat``. Directions that do not change the
    loss, such as a constant added to all scores, have no curvature. The gradient along
    them is zero except for ``rounding``. So the iteration ends when the norm of the
    residual is as small as this rounding, before it reaches these directions.
    """
    step = np.zeros_like(params)
    # The residual of a step is the gradient minus H times the step.
    residual = gradient
    direction = gradient
    squared_residual = float(np.sum(residual**2))
    gradient_norm = float(np.linalg.norm(gradient))
    squared_tolerance = max((NEWTON_RESIDUAL * gradient_norm) ** 2, rounding**2)
    # Without rounding, as many iterations as parameters would be enough. Rounding may
    # make several times as many necessary, in particular if there are few parameters.
    # The limit keeps the method from iterating forever.
    for _ in range(4 * params.size + 20):
        product = risk.hessian_product(params, direction)
        curvature = float(np.sum(direction * product))
        if curvature <= flat * float(np.sum(direction**2)):
            return None
        length = squared_residual / curvature
        step = step + length * direction
        residual = residual - length * product
        squared_residual_before = squared_residual
        squared_residual = float(np.sum(residual**2))
        if squared_residual <= squared_tolerance:
            break
        direction = residual + squared_residual / squared_residual_before * direction
    return step
