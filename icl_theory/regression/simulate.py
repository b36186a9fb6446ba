"""One function call that trains in-context regression and returns the run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

from numpy.typing import ArrayLike

from icl_theory._names import nearest
from icl_theory._validate import argument_error
from icl_theory.engine.descent import MAX_STEPS, Callback
from icl_theory.engine.interrupts import returns_runs
from icl_theory.engine.pullback import COORDINATES
from icl_theory.engine.rules import Rule
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.fixed_set import SET_PARAMETERS
from icl_theory.families.rule_parameters import RULE_PARAMETERS
from icl_theory.regression.family import Regression
from icl_theory.regression.features import Features
from icl_theory.regression.tasks import Task


@returns_runs
def simulate(
    L: float,
    delta: float,
    eta: float | Literal["auto"],
    *,
    K: int = 20,
    N: float = math.inf,
    epsilon: float | None = None,
    above: float | None = None,
    noise: float = 0.0,
    probs: ArrayLike | None = None,
    task: str | Task | Callable[[float], Task] | None = None,
    features: Features | ArrayLike | None = None,
    coordinates: str = "class",
    method: str = "auto",
    max_steps: int = MAX_STEPS,
    imbalance: float | None = None,
    rule: str | Rule = "gd",
    start: ArrayLike | None = None,
    loss: str = "half",
    callback: Callback | None = None,
    **settings: Any,
) -> Trajectory:
    r"""Train one-layer softmax attention on in-context regression, exactly.

    The run ends when the loss has fallen to ``epsilon``. See docs/theory.md, "The
    exchangeable case", "Phases and regimes".

    Parameters
    ----------
    L : float
        Lipschitz constant of the task functions, label units per feature unit.
    delta : float
        Feature gap Δ: the (smallest) distance between two features.
    eta : float or "auto"
        Learning rate. "auto" stands for `Regression.stable_rate`, at which every step
        of gradient descent lowers the loss.
    K : int
        Number of features. With ``features`` it is ``features.K``, and may be left out.
    N : int or math.inf
        Prompt length.
    epsilon : float, optional
        Target loss, squared label units; 1e-3 by default.
    above : float, optional
        Target excess of the loss over its floor, instead of ``epsilon``.
    noise : float
        Standard deviation of the label noise, label units.
    probs : array_like, (K,), optional
        Probabilities of the features; uniform by default.
    task : str, Task or callable, optional
        The law of the tasks: "linear", "cosine", "fourier", "quadratic" or "halfspace",
        a `Task`, or a function that returns a Task for a given ``L`` (such as
        `icl_theory.tasks.Linear`). The default is "exchangeable": independent normal
        values at the features, with the variance :math:`\gamma = L^2\Delta^2/2`.
    features : Features or array_like, (K, d), optional
        The feature vectors, with gap ``delta``; a regular simplex by default. Vectors
        in an array are equally likely.
    coordinates : {"class", "embedding", "factored"}
        The parameters that are trained: the class scores S (one for each feature and
        query), the matrix Q of the scores ``x_m^T Q x_k``, or the factors W_K, W_Q of
        Q, from a small random start.
    method : {"auto", "closed", "exact", "fast", "flow"}
        "closed" counts the steps of gradient descent by its Abel function, which grows
        by 1 in each step (exchangeable tasks, N = ∞, class or embedding coordinates).
        "exact" takes every step. "fast" skips most steps (see `descend`). "flow"
        integrates gradient flow. "auto" is "closed" if possible; otherwise it takes
        4096 exact steps before it skips. ``run.method`` tells which method was used.
    max_steps : int
        Largest number of steps. A run that takes every step also ends within 0.1 % of a
        floor above ``epsilon``, and when the loss no longer falls (see `descend`).
    imbalance : float, optional
        The δ in (0, 1) of the event that \|n_m - p_m N\| <= δN for the counts n_m of
        all features. It is stored with the run, for the bounds of the papers.
    rule : {"gd", "ngd", "ngd-blocks", "heavy-ball", "nesterov", "adam", "adamw"}, Rule
        The update rule; gradient descent by default. Closed forms and most theory are
        for gradient descent only.
    start : array_like, optional
        The parameters at step 0, instead of zeros or random factors: scores (K, K), the
        matrix Q (d, d), or the factors (2, rank, d). Closed forms, and the theory of
        phases, do not apply to other starts.
    loss : {"half", "mse"}
        The loss that is trained: half the mean squared error, or all of it. Targets,
        losses and the learning rate are in its units.
    callback : callable, optional
        Called with (step, loss) from time to time during a run, but not if the run is
        in closed form.
    **settings
        Settings of the rule and of the schedule of the learning rate: ``momentum``,
        ``beta1``, ``beta2``, ``weight_decay``, ``clip``, ``schedule``, ``warmup``,
        ``decay_steps``, ``decay_factor`` and ``milestones``; see
        `icl_theory.families.RuleParameters`. Also ``dataset``, ``dataset_seed`` and
        ``dataset_batch``, which train on a fixed set of prompts; see
        `icl_theory.families.FixedSetParameters`.

    Returns
    -------
    Trajectory
        ``steps`` is the first step with loss <= epsilon. If queries are exchangeable,
        the parameters are the single number u (see `ExchangeableRisk`) and
        ``attention`` is (T,); otherwise it is (T, K).

    Raises
    ------
    ValueError
        An argument is out of range or contradicts another; the message names it.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-9)
    >>> run.steps, run.regime
    (1187646524, 'sharp')
    >>> exact = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-2, method="exact")
    >>> exact.steps == icl.simulate(2.0, 1.0, 4.0, epsilon=1e-2).steps
    True

    With momentum 0.9 this run takes about a tenth of the steps of gradient descent:

    >>> icl.simulate(2.0, 1.0, 4.0, epsilon=1e-2).steps
    236
    >>> momentum = {"rule": "heavy-ball", "momentum": 0.9}
    >>> icl.simulate(2.0, 1.0, 4.0, epsilon=1e-2, **momentum).steps
    23
    """
    for name in settings:
        if name not in (*RULE_PARAMETERS, *SET_PARAMETERS):
            # `nearest` suggests a name that is spelt similarly, if there is one.
            arguments = inspect.signature(simulate).parameters.keys()
            suggestion = nearest(name, arguments | {*RULE_PARAMETERS, *SET_PARAMETERS})
            raise TypeError(f"simulate() has no argument {name!r}{suggestion}")
    # `Regression` declares a Features object, and makes one of an array. The type Any
    # lets mypy accept both.
    features_or_vectors: Any = features
    problem = Regression(
        L=L,
        delta=delta,
        eta=eta,
        K=K,
        N=N,
        epsilon=epsilon,
        above=above,
        noise=noise,
        probs=probs,
        task="exchangeable" if task is None else task,
        features=features_or_vectors,
        coordinates=coordinates,
        method=method,
        max_steps=max_steps,
        imbalance=imbalance,
        rule=rule,
        start=start,
        loss=loss,
        **settings,
    )
    return problem.simulate(callback=callback)


@returns_runs
def compare_coordinates(
    L: float, delta: float, eta: float, **arguments: Any
) -> dict[str, Trajectory]:
    """Run `simulate` once in each of the three coordinates.

    See docs/theory.md, "Coordinates".

    Parameters
    ----------
    L, delta, eta : float
        As for `simulate`.
    **arguments
        Other arguments of `simulate`, except ``coordinates``.

    Returns
    -------
    dict of Trajectory
        Runs by the name of the coordinates. If Ctrl-C interrupts, the runs that have
        not begun are missing. `icl_theory.results.plots.compare_runs` draws the runs.

    Examples
    --------
    >>> import icl_theory as icl
    >>> runs = icl.regression.compare_coordinates(2.0, 1.0, 4.0, K=4, epsilon=1e-2)
    >>> {name: run.steps for name, run in runs.items()}
    {'class': 27, 'embedding': 111, 'factored': 36}
    """
    if "coordinates" in arguments:
        raise argument_error(
            "coordinates",
            arguments["coordinates"],
            "left out: the function runs all three coordinates",
        )
    runs: dict[str, Trajectory] = {}
    for name in COORDINATES:
        runs[name] = simulate(L, delta, eta, coordinates=name, **arguments)
        # After Ctrl-C a run returns what it has. No further run is begun then.
        if runs[name].interrupted:
            break
    return runs
