"""One call from Lipschitz constant, gap and learning rate to a training run."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._calls import written_call
from icl_theory._validate import (
    INT64_MAX,
    LARGEST,
    MOST_FEATURES,
    choice,
    fraction,
    integer,
    number,
    prompt_length,
    refuse,
)
from icl_theory.descent import MAX_STEPS, Callback, descend
from icl_theory.regression.abel import StepCounter
from icl_theory.regression.closed import closed_runs, step_constant
from icl_theory.regression.exchangeable import ExchangeableRisk
from icl_theory.regression.features import Features
from icl_theory.regression.phases import crossover, papers_regime, run_phases, tail_start
from icl_theory.regression.population import PopulationRisk
from icl_theory.regression.reduction import alike, embedding_speed, is_nondegenerate
from icl_theory.regression.tasks import Exchangeable, Task, exchangeable_gamma
from icl_theory.risk import COORDINATES, Risk, in_coordinates
from icl_theory.trajectory import Label, Phases, State, Trajectory, saved_steps

LABELS = {
    "L": Label("L", "L", "label units per feature unit", "Lipschitz constant"),
    "delta": Label("Δ", r"\Delta", "feature units", "feature gap Δ"),
    "eta": Label("η", r"\eta", "", "learning rate η"),
    "K": Label("K", "K", "", "number of features"),
    "N": Label("N", "N", "", "prompt length"),
    "epsilon": Label("ε", r"\varepsilon", "squared label units", "target loss ε"),
    "noise": Label("σ", r"\sigma", "label units", "standard deviation of the label noise"),
    "imbalance": Label("δ", r"\delta", "", "imbalance δ of the concentration event"),
}
METHODS = ("auto", "closed", "exact", "fast", "flow")


def simulate(
    L: float,
    delta: float,
    eta: float,
    *,
    K: int = 20,
    N: float = math.inf,
    epsilon: float = 1e-3,
    noise: float = 0.0,
    probs: ArrayLike | None = None,
    task: Task | Callable[[float], Task] | None = None,
    features: Features | None = None,
    coordinates: str = "class",
    method: str = "auto",
    max_steps: int = MAX_STEPS,
    imbalance: float | None = None,
    callback: Callback | None = None,
) -> Trajectory:
    r"""Train one-layer softmax attention on in-context regression, exactly, until the loss is ``epsilon``.

    Parameters
    ----------
    L : float
        Lipschitz constant of the task functions, label units per feature unit.
    delta : float
        Feature gap Δ: the (smallest) distance between two features.
    eta : float
        Learning rate of gradient descent.
    K : int
        Number of features (taken from ``features`` where these are given).
    N : int or math.inf
        Prompt length.
    epsilon : float
        Target loss, squared label units.
    noise : float
        Standard deviation of the label noise, label units.
    probs : array_like, (K,), optional
        Probabilities of the features; uniform unless given.
    task : Task or callable, optional
        The task law, or a family that makes it from ``L`` (`icl_theory.tasks.Linear`, say). Unless given, the
        exchangeable L-Lipschitz class, :math:`\gamma = L^2\Delta^2/2`.
    features : Features, optional
        The feature vectors, with gap ``delta``; the regular simplex unless given.
    coordinates : {"class", "embedding", "factored"}
        What is trained: the class scores S, the matrix Q, or its factors W_K, W_Q from a small random start.
    method : {"auto", "closed", "exact", "fast", "flow"}
        "closed" counts the steps of gradient descent by its Abel function (exchangeable tasks, N = ∞, class or
        embedding coordinates), "exact" takes them all, "fast" skips most of them (see `descend`), "flow"
        integrates gradient flow, "auto" takes "closed" where there is one and elsewhere 4096 exact steps before
        it skips; ``run.method`` says which it was.
    max_steps : int
        Largest number of steps. A run that takes its steps also ends within 0.1 % of a floor above ``epsilon``,
        and where the loss no longer falls (see `descend`).
    imbalance : float, optional
        δ in (0, 1) of the concentration event \|n_m - p_m N\| <= δN, kept with the run for the papers' bounds.
    callback : callable, optional
        Called with (step, loss) now and then during a run that takes its steps.

    Returns
    -------
    Trajectory
        ``steps`` is the first step with loss <= epsilon. Where all queries are alike the parameters are the one
        number u (see `ExchangeableRisk`) and ``attention`` is (T,), elsewhere (T, K).

    Raises
    ------
    ValueError
        An argument out of range or in contradiction with another, named in the message.

    References
    ----------
    docs/theory.md, "The exchangeable case", "Phases and regimes".

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-9)
    >>> run.steps, run.regime
    (1187646524, 'sharp')
    >>> exact = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-2, method="exact")
    >>> exact.steps == icl.simulate(2.0, 1.0, 4.0, epsilon=1e-2).steps
    True
    """
    command = written_call("icl.simulate", simulate, locals())
    L, delta, eta = number("L", L), number("delta", delta), number("eta", eta)
    K, N = integer("K", K, minimum=2, maximum=MOST_FEATURES), prompt_length(N)
    epsilon, noise = number("epsilon", epsilon, minimum=1e-300), number("noise", noise, zero=True, maximum=LARGEST)
    choice("method", method, METHODS)
    max_steps = integer("max_steps", max_steps, minimum=1)
    if imbalance is not None:
        imbalance = fraction("imbalance", imbalance)
    risk, K = _risk(L, delta, K, N, noise, probs, task, features, coordinates)

    closed = isinstance(risk, ExchangeableRisk) and math.isinf(risk.N)
    if method == "closed" and not closed:
        raise refuse(
            "method",
            method,
            "'auto', 'exact', 'fast' or 'flow' here; a closed form exists where N = inf, all queries are alike and"
            " coordinates are 'class' or 'embedding'",
        )
    if isinstance(risk, ExchangeableRisk) and closed and method in ("auto", "closed"):
        run = _closed(risk, eta, epsilon, max_steps)
    else:
        run = descend(
            risk, eta, epsilon=epsilon, steps=max_steps, method=method, give_up=True, callback=callback,
        )  # fmt: skip
        tail = tail_limit(risk, eta)
        run.phases = run_phases(run, tail_deficit=tail_start(K) if closed else None, tail=tail)
    if isinstance(risk, ExchangeableRisk) and closed:
        run.regime = "sharp" if math.sqrt(2.0 * risk.gamma) > crossover(epsilon, 1.0, K) else "flat"
    elif tail is not None and run.phases is not None and (run.converged or run.phases.III):
        run.regime = "sharp" if run.phases.III else "flat"
    if imbalance is not None:
        run.notes["paper's rule"] = f"{papers_regime(L, delta, imbalance)} (L against 1/(Δδ), δ = {imbalance:g})"
    run.info = {
        "L": L, "delta": delta, "eta": eta, "K": K, "N": N, "epsilon": epsilon, "noise": noise,
        "probs": None if probs is None else [float(p) for p in np.asarray(probs)],
        "task": None if task is None else _law(task, L), "features": features, "coordinates": coordinates,
        "imbalance": imbalance,
    }  # fmt: skip
    run.labels = dict(LABELS)
    run.command = command
    return run


def _law(task: Task | Callable[[float], Task] | None, L: float) -> Task:
    """Return the task law; a family makes it from L, and a law that carries another L is refused."""
    if task is None:
        return Exchangeable(L)
    law = task if isinstance(task, Task) else task(L) if callable(task) else None
    if not isinstance(law, Task):
        raise refuse("task", task, "a Task or a function that makes one from L (see icl_theory.tasks)")
    if getattr(law, "L", L) != L:
        raise refuse("task", task, f"made for the same Lipschitz constant as L = {L!r}")
    return law


def _risk(
    L: float,
    delta: float,
    K: int,
    N: float,
    noise: float,
    probs: ArrayLike | None,
    task: Task | Callable[[float], Task] | None,
    features: Features | None,
    coordinates: str,
) -> tuple[Risk, int]:
    """Return the risk to descend and the number of features: one number where all queries are alike, else K x K."""
    choice("coordinates", coordinates, COORDINATES)
    if task is None and features is None and probs is None and coordinates != "factored":
        speed = embedding_speed(delta) if coordinates == "embedding" else 1.0
        return ExchangeableRisk(K, exchangeable_gamma(L, delta), N, noise, speed), K
    if features is None:
        features = Features.simplex(K, delta, probs)
    elif not isinstance(features, Features):
        raise refuse("features", features, "a Features object")
    elif probs is not None:
        raise refuse("probs", probs, "left out where features are given: they carry their own")
    elif abs(features.gap - delta) > 1e-9 * delta:
        raise refuse("delta", delta, f"the gap of the features, {features.gap!r}")
    law = _law(task, L)
    reduced = alike(features, law, N, noise, coordinates)
    if reduced is not None:
        return reduced, features.K
    return in_coordinates(PopulationRisk(features, law, N, noise), coordinates, features.vectors), features.K


def tail_limit(risk: Risk, eta: float) -> float | None:
    """Return the limit of t·(loss − floor) by the universal tail law, None where it does not hold or is unknown."""
    if isinstance(risk, ExchangeableRisk):
        return None if risk.noise and math.isfinite(risk.N) else (risk.K - 1.0) / (4.0 * eta * risk.speed)
    if isinstance(risk, PopulationRisk) and math.isinf(risk.N) and is_nondegenerate(risk):
        return (risk.features.K - 1.0) / (4.0 * eta)
    return None


def _closed(risk: ExchangeableRisk, eta: float, epsilon: float, max_steps: int) -> Trajectory:
    """Run of the exchangeable case for N = ∞ without taking its steps."""
    K, gamma = risk.K, risk.gamma
    c = float(step_constant(eta, risk.speed, gamma, K))
    if not c < 1e300:
        raise refuse("eta", eta, f"such that a step, eta*gamma*K/(K-1)^2 = {c:.3g}, is below 1e300")
    counter = StepCounter(K, max(c, 1e-300))
    found = closed_runs(counter, np.array([gamma]), np.array([epsilon]), max_steps, np.array([tail_start(K)]))
    hit, last, first, second = (int(x[0]) for x in (found.hit, found.last, found.attends, found.tails))
    converged = hit <= max_steps and hit < INT64_MAX
    steps = saved_steps(last, 1) if last else np.zeros(1, dtype=np.int64)
    gaps = counter.position(steps)
    loss, attention = risk.curve(gaps)

    def state(t: int) -> State:
        params = counter.position(t)
        return State(t, params, risk.loss(params), risk.observe(params))

    phases = Phases(
        (0, first), (first, second) if first < last else None, (second, last) if second < last else None
    )
    return Trajectory(
        t=steps,
        loss=loss,
        states=gaps,
        observed={"attention": attention, "gap": gaps},
        steps=hit if converged else None,
        stop_reason=(
            f"reached epsilon = {epsilon:g} at step {hit}"
            if converged
            else f"took all {last} steps without reaching epsilon = {epsilon:g}"
        ),
        floor=0.0,
        method="closed",
        rule="gd",
        eta=eta,
        epsilon=epsilon,
        error=float(found.error[0]) if converged else 0.0,
        phases=phases,
        risk=risk,
        resume=state,
    )
