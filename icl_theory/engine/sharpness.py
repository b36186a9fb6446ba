"""Sharpness: the largest eigenvalue of the Hessian, and the largest learning rate that is stable at a minimum."""

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


class Stability(NamedTuple):
    """A minimum, its sharpness λ_max and the learning rate 2/λ_max up to which gradient descent stays there."""

    eta: float
    sharpness: float
    params: Array
    loss: float


def sharpness_along(run: Trajectory, points: int = 50) -> tuple[Array, Array]:
    r"""Sharpness at up to ``points`` saved steps of a run; gradient descent becomes unstable where it exceeds 2/η.

    See docs/theory.md, "Sharpness".

    Parameters
    ----------
    run : Trajectory
        A run with its risk: one that was just made, or a run of a family that was saved
        and loaded.
    points : int
        Number of steps, evenly spread over the saved ones.

    Returns
    -------
    (ndarray of int64, (P,), ndarray, (P,))
        Steps and sharpness λ_max.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 4.0, K=3, probs=[0.5, 0.3, 0.2])
    >>> steps, sharpness = icl.engine.sharpness_along(run, points=4)
    >>> bool((2.0 / sharpness[-1]) > (2.0 / sharpness.max()))
    True
    """
    instance("run", run, Trajectory, "a run")
    points = integer("points", points, minimum=1)
    if run.risk is None:
        raise argument_error("run", "loaded from a file", "a run with its risk")
    if run.risk.stochastic:
        raise argument_error(
            "run", "of a risk that draws its data", "a run of a risk with a Hessian"
        )
    chosen = np.unique(
        np.linspace(0, len(run.t) - 1, min(max(2, points), len(run.t)))
        .round()
        .astype(int)
    )
    values = [run.risk.sharpness(run.states[i]) for i in chosen]
    return run.t[chosen], np.array(values)


def largest_stable_eta(risk: Risk, start: ArrayLike | None = None) -> Stability:
    r"""Largest learning rate at which a minimum of a risk is stable, :math:`2/\lambda_{\max}`.

    See docs/theory.md, "Sharpness".

    Parameters
    ----------
    risk : Risk
        A risk with a minimum at finite parameters, with label noise, finite prompts and
        exchangeable tasks, say.
    start : array_like, optional
        Start of the search for the minimum; ``risk.initial`` by default.

    Returns
    -------
    Stability
        With the fields ``eta, sharpness, params, loss``.

    Raises
    ------
    ValueError
        No minimum at finite parameters was found: Newton's steps do not shrink.

    Examples
    --------
    >>> import icl_theory as icl
    >>> found = icl.largest_stable_eta(icl.ExchangeableRisk(20, gamma=2.0, N=100, noise=1.0))
    >>> found.eta * found.sharpness
    2.0
    """
    from scipy.optimize import minimize

    instance("risk", risk, Risk, "a Risk")  # type: ignore[type-abstract]
    if risk.stochastic:
        raise argument_error("risk", risk, "one that does not draw its data")
    shape = np.shape(risk.initial)
    origin = risk.initial if start is None else risk._checked(start)

    def objective(flat: Array) -> tuple[float, Array]:
        loss, gradient = risk.evaluate(flat.reshape(shape))
        shown.update(next(count), loss=float(loss))
        return float(loss), np.ravel(gradient)

    def product(flat: Array, direction: Array) -> Array:
        return np.ravel(
            risk.hessian_product(flat.reshape(shape), direction.reshape(shape))
        )

    count = itertools.count()
    with Progress("", "steps") as shown:
        size = float(np.linalg.norm(objective(np.ravel(origin))[1]))
        # on a plateau the ratio of actual and predicted reduction is 0/0
        with np.errstate(divide="ignore", invalid="ignore"):
            # Newton's steps decide on what is left
            options = {
                "gtol": 1e-10 * size,
                "maxiter": 2000,
            }
            found = minimize(
                objective,
                np.ravel(origin),
                jac=True,
                hessp=product,
                method="trust-ncg",
                options=options,
            )
    params = _settled(risk, np.asarray(found.x).reshape(shape), size, origin)
    if params is None:
        raise argument_error("risk", risk, "one with a minimum at finite parameters")
    value = risk.sharpness(params)
    return Stability(2.0 / value, value, params, float(risk.evaluate(params)[0]))


def _settled(
    risk: Risk,
    params: Array,
    size: float,
    origin: Array,
    steps: int = 8,
    small: float = 1e-6,
    eps: float = 1e-15,
) -> Array | None:
    """Follow Newton's steps to a minimum nearby; None if they do not shrink, or if there is none.

    On the way to a minimum at infinity gradient and curvature vanish together in some
    direction. The function e^-x is an example: all its Newton steps have length 1. A
    minimum is accepted if, within ``steps`` steps, one is smaller than ``small``
    relative to the way from ``origin``, or the gradient is rounding, ``eps`` times
    ``size`` (its norm at the origin) or the curvature.
    """
    value = risk.sharpness(params)
    noise = eps * max(size, value)
    for _ in range(steps):
        loss, gradient = risk.evaluate(params)
        if not (math.isfinite(loss) and value > 0.0):
            return None
        if float(np.linalg.norm(gradient)) <= noise:
            return params
        step = _newton_step(risk, params, gradient, eps * value, noise)
        if step is None:
            return None
        params = params - step
        if np.abs(step).max() <= small * max(1.0, float(np.abs(params - origin).max())):
            return params
    return None


def _newton_step(
    risk: Risk,
    params: Array,
    gradient: Array,
    flat: float,
    noise: float,
    solved: float = 1e-5,
) -> Array | None:
    """``H^-1 gradient`` by conjugate gradients to a residual ``solved``; None if a curvature is at most ``flat``.

    Directions that do not change the loss, such as a constant added to all scores, have
    neither curvature nor gradient except for ``noise``.
    """
    step = np.zeros_like(params)
    rest = gradient
    direction = gradient
    length = float(np.sum(gradient**2))
    enough = max((solved * float(np.linalg.norm(gradient))) ** 2, noise**2)
    for _ in range(4 * params.size + 20):
        bent = risk.hessian_product(params, direction)
        curvature = float(np.sum(direction * bent))
        if curvature <= flat * float(np.sum(direction**2)):
            return None
        step = step + length / curvature * direction
        rest = rest - length / curvature * bent
        before = length
        length = float(np.sum(rest**2))
        if length <= enough:
            break
        direction = rest + length / before * direction
    return step
