"""One call from vocabulary, triggers and learning rate to a training run."""

from __future__ import annotations

from numpy.typing import ArrayLike

from icl_theory.engine.descent import MAX_STEPS, Callback
from icl_theory.engine.interrupts import returns_runs
from icl_theory.engine.trajectory import Trajectory
from icl_theory.papers.recall.counts import Counts
from icl_theory.papers.recall.family import Recall
from icl_theory.papers.recall.task import RecallTask


@returns_runs
def simulate(
    V: int | None = None,
    triggers: int | None = None,
    outputs: int | None = None,
    eta: float = 0.5,
    *,
    attention: str = "linear",
    alpha: float | None = None,
    probs: ArrayLike | None = None,
    counts: Counts | ArrayLike | None = None,
    H: int | None = None,
    law: str | None = None,
    weights: str | None = None,
    kappa: int | None = None,
    task: RecallTask | None = None,
    gamma: float | str | None = None,
    v: float | str | None = None,
    M: int | None = None,
    seed: int = 0,
    start: ArrayLike | None = None,
    rule: str = "ngd",
    epsilon: float | None = None,
    above: float | None = None,
    method: str = "auto",
    max_steps: int = MAX_STEPS,
    callback: Callback | None = None,
) -> Trajectory:
    r"""Train a reparameterised transformer on in-context recall.

    The training is exact gradient descent, normalised by default. See docs/theory.md,
    "In-context recall".

    Parameters
    ----------
    V, triggers, outputs : int
        Number of words, of triggers and of outputs; 50, 4 and 8 by default.
    eta : float
        Learning rate.
    attention : {"linear", "relu", "softmax", "softmax-limit"}
        "softmax-limit" is softmax in the limit of long contexts.
    alpha, probs, H, law
        As for `RecallTask`.
    counts : int, Counts or array_like, optional
        Number of times that the output follows the trigger, or the law of this number;
        by default as for `RecallTask`.
    weights, kappa
        As for `RecallRisk`; the weights "identity" are the paper's.
    task : RecallTask, optional
        The task, instead of ``V, triggers, outputs, alpha, probs, counts, H, law``.
    gamma : float or {"trained", "best"}
        Log-odds γ of noise. They are trained, or held at a value. The default is to
        hold them at ``"best"``, :math:`\ln(\alpha/(1-\alpha))`. If M is given, the
        frequency of noise in the M sentences takes the place of α; if all answers are
        of one kind, the other kind counts as half an answer.
    v : float or {"trained"}
        Value scale of softmax attention. It is trained, or held at a value, by default
        at 1.
    M, seed : int
        Train on the empirical risk of M sentences, drawn with this seed, instead of the
        population risk (M = inf).
    start : array_like, optional
        The parameters at step 0, in the order of the returned parameters; zero by
        default. The start may have a λ for each trigger even if all triggers have the
        same law.
    rule : {"ngd", "gd"}
        Normalised or plain gradient descent.
    epsilon, above : float, optional
        Target loss, nats, or target excess over the floor; by default an excess of
        1e-3. The floor is the Bayes risk, unless ``gamma``, ``v``, ``kappa`` or ``M``
        change it.
    method : {"auto", "closed", "exact", "fast", "flow"}
        "closed" needs normalised descent on λ alone, for linear or ReLU attention with
        κ = 1, and triggers that all have the same law; then λ is ηt/√Q, whatever the
        loss. "exact" takes every step, "fast" skips most steps, and "flow" integrates
        the limit of small steps. "auto" is "closed" if possible (see
        `icl_theory.descend`).
    max_steps : int
        Largest number of steps. A run also ends when the loss no longer falls (see
        `icl_theory.descend`).
    callback : callable, optional
        Called with (step, loss) from time to time during a run that takes every step.

    Returns
    -------
    Trajectory
        Its parameters are ``(lambda_1, ..., lambda_Q, [v], [gamma])``. If all triggers
        have the same law, there is a single λ, unless M is given or the start has a λ
        for each trigger. ``observed["excess"]`` is the excess over the Bayes risk; if M
        is given, both are measured on the M sentences. For M sentences with "softmax"
        or κ = 0, ``observed`` has instead the values of `TransformerRisk.observe`.

    Raises
    ------
    ValueError
        An argument is out of range or contradicts another; the message names it.

    Examples
    --------
    >>> import icl_theory as icl
    >>> once = icl.recall.Counts.fixed(1)
    >>> run = icl.recall.simulate(eta=0.5, counts=once)
    >>> run.steps, run.method
    (44, 'closed')
    >>> icl.recall.simulate(eta=0.5, counts=once, method="exact").steps
    44
    """
    # At this point `locals` has all arguments by name and nothing else.
    arguments = dict(locals())
    del arguments["callback"]
    # None stands for "not given". Parameters whose default is not None are always
    # passed on, so that the family refuses a None that is given for them.
    always_passed = ("eta", "attention", "seed", "rule", "method", "max_steps")
    parameters = {
        name: value
        for name, value in arguments.items()
        if value is not None or name in always_passed
    }
    # `unfolded` replaces a ``task`` by the parameters of the family that describe it.
    return Recall(**Recall.unfolded(parameters)).simulate(callback=callback)
