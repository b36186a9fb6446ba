r"""The sampled trainer: a one-layer transformer with full matrices on real sentences, backward pass included.

It shares no formula with the exact risks: words are embedded, attended to and read out one by one. With words z and
d = 2V, x_h = E(z_h) + Ẽ(z_{h−1}) (orthonormal at the start), and over the words h < H

    w_h = σ(x_Hᵀ W x_h),    u = 𝒱 Σ_h w_h x_h,    logits = U (u + F (x_H + u)).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array, choice, instance, integer, number, refuse, store
from icl_theory.engine.risk import Risk
from icl_theory.families.recall.population import ATTENTION
from icl_theory.families.recall.task import RecallTask, Sentences, Words

MATRICES = ("embedding", "previous", "attention", "value", "feed_forward", "readout")
PARTS = ("attention", "feed_forward")
LARGEST_MODEL = 10**7
TEST_SENTENCES = 128
NEGLIGIBLE = 1e-200


class Measure(NamedTuple):
    """How a model does on sentences: means over them.

    ``loss`` (nats), ``accuracy`` (share of sentences whose likeliest next word is the output), and the mean
    probabilities ``output`` and ``noise`` given to the output and to the noise word.
    """

    loss: float
    accuracy: float
    output: float
    noise: float


class _Pass(NamedTuple):
    """What the backward pass needs of the forward pass."""

    x: Array
    weights: Array
    attended: Array
    u: Array
    mixed: Array
    stream: Array
    logits: Array


@dataclass(frozen=True, eq=False)
class TransformerRisk(Risk):
    """Cross-entropy of a full one-layer transformer on sampled sentences; the parameters are one flat vector.

    Parameters
    ----------
    task : RecallTask
        The task; the matrices have 2V columns.
    attention : {"linear", "relu", "softmax"}
        The attention weights.
    batch : int
        Fresh sentences a step.
    seed : int
        Seed of sentences and start: the sentences of step t are a function of (seed, t).
    data : Sentences, optional
        Train on all of these at every step instead of fresh ones.
    trained : sequence of str, optional
        Which of "embedding", "previous", "attention", "value", "feed_forward", "readout" are trained; the three
        in the middle unless given (without noise there is no feed-forward layer).
    scale : float
        Standard deviation of the initial entries of W, 𝒱 and F, times √(2V).

    Raises
    ------
    ValueError
        An argument out of range, named in the message.

    References
    ----------
    docs/theory.md, "In-context recall".

    Examples
    --------
    >>> import icl_theory as icl
    >>> task = icl.recall.RecallTask(V=8, triggers=2, outputs=3, H=9)
    >>> risk = icl.recall.TransformerRisk(task, batch=32)
    >>> run = icl.descend(risk, eta=0.2, rule="ngd", steps=60)
    >>> bool(run.loss[-1] < 0.5 * run.loss[0])
    True
    """

    task: RecallTask
    attention: str = "linear"
    batch: int = 64
    seed: int = 0
    data: Sentences | None = None
    trained: Sequence[str] | None = None
    scale: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.task, RecallTask):
            raise refuse("task", self.task, "a RecallTask")
        choice("attention", self.attention, ATTENTION)
        middle = ("attention", "value", "feed_forward") if self.task.alpha else ("attention", "value")
        names = middle if self.trained is None else tuple(self.trained)
        if not names or set(names) - set(MATRICES):
            raise refuse("trained", self.trained, "some of " + ", ".join(MATRICES))
        if sum(self._shapes[name][0] * self._shapes[name][1] for name in names) > LARGEST_MODEL:
            raise refuse("V", self.task.V, f"such that the matrices have at most {LARGEST_MODEL} entries")
        store(
            self,
            batch=integer("batch", self.batch, minimum=1),
            seed=integer("seed", self.seed, minimum=0),
            trained=tuple(name for name in MATRICES if name in names),
            scale=number("scale", self.scale, zero=True),
        )

    @property
    def stochastic(self) -> bool:
        """Whether the steps draw different sentences."""
        return self.data is None

    @property
    def initial(self) -> Array:
        """The trained matrices at the start, one after the other in the order of the module's list."""
        return np.concatenate([self._start[name].ravel() for name in self.trained or ()])

    def floor(self) -> float:
        """Bayes risk of the task; a fixed data set can be learnt by heart, so then 0."""
        return self.task.bayes_risk if self.data is None else 0.0

    def sentences(self, step: int = 0) -> Sentences:
        """Return the sentences of one step."""
        if self.data is not None:
            return self.data
        return self.task.sentences(
            np.random.default_rng([self.seed, 0, integer("step", step, minimum=0)]), self.batch
        )

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's sentences and its gradient, by the backward pass below."""
        matrices = self.matrices(params)
        sentences = self.sentences(step)
        forward = self._forward(matrices, sentences.tokens)
        if not np.isfinite(forward.logits).all():
            return math.inf, np.zeros_like(params)
        losses, probs = _cross_entropy(forward.logits, sentences.answer)
        rows = np.arange(len(losses))
        error = np.where(probs > NEGLIGIBLE, probs, 0.0)  # denormal numbers slow the products down
        error[rows, sentences.answer] = 0.0
        error[rows, sentences.answer] = -error.sum(axis=1)
        gradients = self._backward(matrices, sentences.tokens, forward, error / len(rows))
        return float(np.mean(losses)), np.concatenate([gradients[name].ravel() for name in self.trained or ()])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss and accuracy on test sentences with outputs seen in training and, where there are, unseen ones.

        The two sets are the same but for the outputs.
        """
        found = {}
        for name, test in self._tests.items():
            measured = self._measured(params, test)
            found[f"{name}_loss"] = np.asarray(measured.loss)
            found[f"{name}_accuracy"] = np.asarray(measured.accuracy)
        return found

    def measure(self, params: Array, sentences: Sentences, without: Collection[str] = ()) -> Measure:
        """Measure a model on sentences, with parts of it ablated.

        Parameters
        ----------
        params : ndarray
            Parameters, flat.
        sentences : Sentences
            From `RecallTask.sentences`.
        without : collection of {"attention", "feed_forward"}
            Parts whose contribution is left out: u, or F.

        Returns
        -------
        Measure
            Loss, accuracy and mean probabilities.
        """
        for part in without:
            choice("without", part, PARTS)
        measured = self._measured(params, sentences, without)
        if not math.isfinite(measured.loss):
            raise refuse(
                "params", float(np.max(np.abs(params))), "such that the logits are finite (the largest is shown)"
            )
        return measured

    def _measured(self, params: Array, sentences: Sentences, without: Collection[str] = ()) -> Measure:
        logits = self._forward(self.matrices(params), sentences.tokens, without).logits
        if not np.isfinite(logits).all():
            return Measure(math.inf, 0.0, 0.0, 0.0)
        losses, probs = _cross_entropy(logits, sentences.answer)
        return Measure(
            float(np.mean(losses)),
            float(np.mean(logits.argmax(axis=1) == sentences.output)),
            float(np.mean(probs[np.arange(len(probs)), sentences.output])),
            float(np.mean(probs[:, self.task.noise_word])),
        )

    def matrices(self, params: Array) -> dict[str, Array]:
        """Return all six matrices, by name."""
        result, start = dict(self._start), 0
        for name in self.trained or ():
            rows, columns = self._shapes[name]
            result[name] = params[start : start + rows * columns].reshape(rows, columns)
            start += rows * columns
        return result

    @property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        V = self.task.V
        return {name: (2 * V if name in MATRICES[2:5] else V, 2 * V) for name in MATRICES}

    @cached_property
    def _start(self) -> dict[str, Array]:
        V = self.task.V
        unit, zero = np.eye(V), np.zeros((V, V))
        rng = np.random.default_rng([self.seed, 1])
        start = {"embedding": np.hstack([unit, zero]), "previous": np.hstack([zero, unit])}
        start |= {name: rng.normal(0.0, self.scale / np.sqrt(2 * V), (2 * V, 2 * V)) for name in MATRICES[2:5]}
        if not self.task.alpha and "feed_forward" not in (self.trained or ()):
            start["feed_forward"] = np.zeros((2 * V, 2 * V))
        return start | {"readout": start["embedding"]}

    @cached_property
    def _tests(self) -> dict[str, Sentences]:
        task = self.task
        kinds = {"seen": task.outputs} | ({"unseen": task.unseen} if task.unseen.size else {})
        return {
            name: task.sentences(np.random.default_rng([self.seed, 2]), TEST_SENTENCES, words)
            for name, words in kinds.items()
        }

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(self, matrices: dict[str, Array], tokens: Words, without: Collection[str] = ()) -> _Pass:
        """Run the model; numbers out of range are for the callers to notice in the logits."""
        x = matrices["embedding"][tokens]
        x[:, 1:] += matrices["previous"][tokens[:, :-1]]
        keys, query = x[:, :-1], x[:, -1]
        weights = np.matmul(keys, (query @ matrices["attention"])[:, :, None])[:, :, 0]
        if self.attention == "softmax":
            weights = np.exp(weights - weights.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
        elif self.attention == "relu":
            weights = np.maximum(weights, 0.0)
        attended = np.matmul(weights[:, None, :], keys)[:, 0, :]
        u = attended @ matrices["value"].T
        if "attention" in without:
            u = np.zeros_like(u)
        mixed = query + u
        stream = u if "feed_forward" in without else u + mixed @ matrices["feed_forward"].T
        return _Pass(x, weights, attended, u, mixed, stream, stream @ matrices["readout"].T)

    def _backward(self, m: dict[str, Array], tokens: Words, forward: _Pass, error: Array) -> dict[str, Array]:
        """Gradients by all six matrices, of a loss whose derivative by the logits is ``error``, (B, V)."""
        x, keys, query = forward.x, forward.x[:, :-1], forward.x[:, -1]
        by_stream = error @ m["readout"]
        by_mixed = by_stream @ m["feed_forward"]
        by_u = by_stream + by_mixed
        by_attended = by_u @ m["value"]
        by_score = np.matmul(keys, by_attended[:, :, None])[:, :, 0]
        if self.attention == "softmax":
            by_score = forward.weights * (by_score - np.sum(forward.weights * by_score, axis=1, keepdims=True))
        elif self.attention == "relu":
            by_score = np.where(forward.weights > 0, by_score, 0.0)
        scored = np.matmul(by_score[:, None, :], keys)[:, 0, :]
        gradients = {
            "attention": query.T @ scored,
            "value": by_u.T @ forward.attended,
            "feed_forward": by_stream.T @ forward.mixed,
            "readout": error.T @ forward.stream,
        }
        if {"embedding", "previous"} & set(self.trained or ()):
            by_x = np.empty_like(x)
            by_x[:, :-1] = forward.weights[:, :, None] * by_attended[:, None, :]
            by_x[:, :-1] += by_score[:, :, None] * (query @ m["attention"])[:, None, :]
            by_x[:, -1] = by_mixed + scored @ m["attention"].T
            for name, words, part in (("embedding", tokens, by_x), ("previous", tokens[:, :-1], by_x[:, 1:])):
                gradients[name] = np.zeros_like(m[name])
                np.add.at(gradients[name], words, part)
        return gradients


def _cross_entropy(logits: Array, answer: Words) -> tuple[Array, Array]:
    """Losses, accurate however small, (B,), and probabilities, (B, V)."""
    rows = np.arange(len(answer))
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    others = logits - logits[rows, answer][:, None]
    others[rows, answer] = -np.inf
    top = others.max(axis=1)
    wrong = top + np.log(np.sum(np.exp(others - top[:, None]), axis=1))
    return np.logaddexp(0.0, wrong), shifted / shifted.sum(axis=1, keepdims=True)


@dataclass(frozen=True, eq=False)
class Reparameterised(Risk):
    r"""The same transformer on the same sentences, trained in ``(lambda_1, ..., lambda_Q, [v], [gamma])`` alone.

    With sums over the triggers q and the words x that may be outputs, seen or not,

    .. math::
        W = \sum_q \lambda_q E(q)\tilde E(q)^\top, \qquad \mathcal V = v\sum_x E(x)E(x)^\top, \qquad
        F = \gamma\sum_q E(\tau)E(q)^\top + \sum_x E(\tau)E(x)^\top .

    This map is affine: the gradient is that of the full matrices, summed over the entries that a parameter sets.

    Parameters
    ----------
    full : TransformerRisk
        With W, 𝒱 and (with noise) F as what is trained, and nothing else.

    References
    ----------
    docs/theory.md, "In-context recall".
    """

    full: TransformerRisk

    def __post_init__(self) -> None:
        instance("full", self.full, TransformerRisk, "a TransformerRisk")
        wanted = ("attention", "value", "feed_forward") if self.full.task.alpha else ("attention", "value")
        if self.full.trained != wanted:
            raise refuse("full", self.full.trained, "a TransformerRisk that trains " + ", ".join(wanted))

    @property
    def stochastic(self) -> bool:
        """Whether the steps draw different sentences."""
        return self.full.stochastic

    @property
    def initial(self) -> Array:
        """Zero."""
        return np.zeros(len(self._entries))

    def floor(self) -> float:
        """Bayes risk of the task, or 0 for fixed sentences (a lower bound)."""
        return self.full.floor()

    def inward(self, params: Array) -> Array:
        """Parameters of the full transformer."""
        flat = self._base.copy()
        for value, entries in zip(params, self._entries, strict=True):
            flat[entries] = value
        return flat

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient on the step's sentences."""
        loss, gradient = self.full.evaluate(self.inward(params), step)
        return loss, np.array([gradient[entries].sum() for entries in self._entries])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """What the full transformer observes at these matrices."""
        return self.full.observe(self.inward(params), step)

    @cached_property
    def _passing(self) -> Words:
        task = self.full.task
        return np.setdiff1d(np.arange(task.V), [*task.triggers, task.noise_word])

    @cached_property
    def _base(self) -> Array:
        """The entries that no parameter sets."""
        task, d = self.full.task, 2 * self.full.task.V
        value, feed_forward = np.zeros((d, d)), np.zeros((d, d))
        if self.full.attention != "softmax":
            value[self._passing, self._passing] = 1.0
        feed_forward[task.noise_word, self._passing] = 1.0
        parts = [np.zeros((d, d)), value, *([feed_forward] if task.alpha else [])]
        return np.concatenate([part.ravel() for part in parts])

    @cached_property
    def _entries(self) -> list[Words]:
        """For each parameter the flat positions that it sets."""
        task, d = self.full.task, 2 * self.full.task.V
        entries = [np.array([q * d + task.V + q]) for q in task.triggers]
        if self.full.attention == "softmax":
            entries.append(d * d + self._passing * (d + 1))
        if task.alpha:
            entries.append(2 * d * d + task.noise_word * d + task.triggers)
        return entries
