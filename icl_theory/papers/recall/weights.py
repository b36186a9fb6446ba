"""Value and feed-forward matrices: two published ways to write the same transformer.

A word x, 0 to V - 1, has two embeddings. E(x) stands for x itself, and Ẽ(x) for x as
the word before another one. The embeddings are unit vectors with 2V entries: E(x) has
its 1 at entry x, and Ẽ(x) at entry V + x. τ is the noise word, q a trigger, v the scale
of the values 𝒱, W the attention matrix, and F the feed-forward matrix.
"""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array, argument_error, choice, integer
from icl_theory.papers.recall.task import RecallTask, Sentences

# The two ways, see `gates`.
WEIGHTS = ("projection", "identity")


def check_weights(task: RecallTask, weights: str, kappa: int) -> None:
    """Refuse weights that do not fit the task.

    κ is 1 or 0, the factor of the attention's output in the input of F.
    """
    choice("weights", weights, WEIGHTS)
    integer("kappa", kappa, minimum=0, maximum=1)
    noisy = bool(task.alpha)
    # With "projection" the theory has κ = 1 only. Without noise F = 0, and κ has no
    # effect.
    if kappa != 1 and not (weights == "identity" and noisy):
        raise argument_error(
            "kappa", kappa, "1 unless weights = 'identity' and there is noise"
        )
    if weights == "projection":
        return
    # With "identity" and noise, W has the factor Ẽ(q) - E(τ). Here -E(τ) cancels the
    # score of τ after the trigger. It lowers the score of τ everywhere, but in planted
    # sentences τ occurs nowhere else.
    if noisy and task.law != "planted":
        raise argument_error(
            "weights",
            weights,
            "'projection' with noise and law = 'markov': -E(τ) in W repels all noise",
        )
    # Without noise W lacks the term -E(τ), so that τ must not follow a trigger.
    if not noisy and any(law.noise_mean for law in task.counts):
        raise argument_error(
            "counts",
            "with noise",
            "without noise if alpha = 0 and weights = 'identity'",
        )


def gates(task: RecallTask, weights: str, gamma: float) -> dict[str, Array]:
    r"""Return the fixed matrices 𝒱 (for v = 1) and F, (2V, 2V) each.

    𝒱 decides which words attention can predict. F adds to the logit of noise: γ for the
    trigger at the end, and also the attention on words that may be outputs
    ("projection") or that follow a trigger ("identity"). With "projection" the matrices
    are :math:`\mathcal V = \sum_x E(x)E(x)^\top` and :math:`F = \gamma\sum_q
    E(\tau)E(q)^\top + \sum_x E(\tau)E(x)^\top`, over the words x that may be outputs.
    With "identity" they are :math:`\mathcal V = I` and :math:`F = \sum_q E(\tau)(\gamma
    E(q) + \tilde E(q))^\top`. Without noise F = 0.
    """
    V = task.V
    q = task.triggers  # all triggers, (Q,)
    tau = task.noise_word
    value = np.eye(2 * V)
    feed_forward = np.zeros((2 * V, 2 * V))
    if weights == "projection":
        # Ones on the diagonal at the words that may be outputs, `task.passing`.
        value = np.diag(np.isin(np.arange(2 * V), task.passing).astype(float))
    if task.alpha:
        # The columns of Ẽ(q), which are V columns after the columns of E(q), or else
        # the columns of E(x).
        columns_of_attention = V + q if weights == "identity" else task.passing
        feed_forward[tau, q] = gamma
        feed_forward[tau, columns_of_attention] = 1.0
    return {"value": value, "feed_forward": feed_forward}


def estimated_gamma(task: RecallTask, data: Sentences | None) -> float:
    """Return the log-odds of noise among the answers of ``data``.

    Without data they are the log-odds ln(α/(1 - α)) of the task. If the task has no
    noise, they have no effect, and the result is 0. Answers are noise or outputs. If
    one kind does not occur in the sentences, it counts as half an answer, so that the
    log-odds are finite.
    """
    if not task.alpha:
        return 0.0
    if data is None:
        return task.best_gamma
    size = len(data.answer)
    noise_answers = float(np.sum(data.answer == task.noise_word))
    # at least half an answer of each kind
    noise_answers = min(max(noise_answers, 0.5), size - 0.5)
    return math.log(noise_answers) - math.log(size - noise_answers)
