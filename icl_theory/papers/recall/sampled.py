r"""The sampled trainer: a one-layer transformer with full matrices on sampled sentences, with gradients by hand.

It shares no formula with the exact risks: attention is computed word by word. With
words z, x_h = E(z_h) + Ẽ(z_{h−1}) (orthonormal), and over the words h < H

    w_h = σ(x_Hᵀ W x_h),    u = 𝒱 Σ_h w_h x_h,    logits = (1, 0) (u + F (x_H + κu)).

With the weights "identity" the last word is attended to as well, h ≤ H. Each sentence
has a table with an entry for each word and one for each previous word. A sparse matrix
with two ones for each attended word reads the words' numbers from the tables, and its
transpose adds their weights up into tables.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    INT64_MAX,
    Array,
    argument_error,
    choice,
    instance,
    integer,
    number,
    set_fields,
    signed,
)
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits
from icl_theory.papers.recall.divergence import cross_entropy
from icl_theory.papers.recall.population import ATTENTION
from icl_theory.papers.recall.task import (
    RecallTask,
    Sentences,
    Words,
    check_sentences,
)
from icl_theory.papers.recall.weights import check_weights, estimated_gamma, gates

MATRICES = ("attention", "value", "feed_forward")
PARTS = ("attention", "feed_forward")


class Measure(NamedTuple):
    """Means of a model over some sentences."""

    loss: float  # nats
    accuracy: float  # share of sentences whose likeliest next word is the output
    output: float  # probability of the output
    noise: float  # probability of the noise word


class _Pass(NamedTuple):
    """Results of a forward pass over B sentences."""

    places: Any  # sparse, (B n, 2 B V): places of the attended words in the tables
    query: Array  # x_H
    scores: Array  # (B, n); for softmax attention the weights
    attended: Array
    u: Array
    mixed: Array  # input of the feed-forward layer
    fed: Array  # its logits
    logits: Array


@dataclass(frozen=True, eq=False)
class TransformerRisk(Risk):
    """Cross-entropy of a full one-layer transformer on sampled sentences; the parameters are one flat vector.

    See docs/theory.md, "In-context recall".

    Parameters
    ----------
    task : RecallTask
        The matrices are (2V, 2V).
    attention : {"linear", "relu", "softmax"}
    batch : int, optional
        Sentences in a step: 64 fresh ones by default, or some of the ``data`` in turn,
        by default all.
    seed : int
        Seed of sentences and start: the sentences of step t are a function of (seed,
        t).
    data : Sentences, optional
        Train on these instead of fresh ones.
    trained : sequence of str, optional
        Which of "attention", "value", "feed_forward" are trained, by default all
        (without noise there is no feed-forward layer). If 𝒱 and F are not trained, they
        are those of the reparameterised model.
    scale : float
        Standard deviation of the initial entries of W, 𝒱 and F, times √(2V); 0 starts
        them from zero.
    weights, kappa
        As for `RecallRisk`: 𝒱 and F if they are not trained, and what attention and F
        read.
    kink : float
        Added to the scores of ReLU attention, whose derivative at 0 is 1: a start from
        zero is then at or to the right of its kink; the paper adds 1e-8.
    gamma : float, optional
        γ in F if that is not trained; by default ln(α/(1-α)), or its estimate from the
        ``data``.
    tests : int
        Sentences on which runs are observed.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

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
    batch: int | None = None
    seed: int = 0
    data: Sentences | None = None
    trained: Sequence[str] | None = None
    scale: float = 0.5
    weights: str = "projection"
    kappa: int = 1
    kink: float = 0.0
    gamma: float | None = None
    tests: int = 128

    def __post_init__(self) -> None:
        task = instance("task", self.task, RecallTask, "a RecallTask")
        choice("attention", self.attention, ATTENTION[:3])
        check_weights(task, self.weights, self.kappa)
        if self.kink and self.attention != "relu":
            raise argument_error("kink", self.kink, "0 unless attention = 'relu'")
        given = self.trained if isinstance(self.trained, Iterable) else ()
        names = (
            MATRICES[: 3 if task.alpha else 2] if self.trained is None else tuple(given)
        )
        if not (
            names and all(isinstance(name, str) and name in MATRICES for name in names)
        ):
            raise argument_error(
                "trained", self.trained, "some of " + ", ".join(MATRICES)
            )
        if len(set(names)) * (2 * task.V) ** 2 > 10**7:
            raise argument_error(
                "V",
                task.V,
                "smaller: the matrices may have at most 10000000 entries together",
            )
        most, batch = INT64_MAX, 64
        if self.data is not None:
            most = batch = len(check_sentences(self.data, task).answer)
        batch = (
            batch
            if self.batch is None
            else integer("batch", self.batch, minimum=1, maximum=most)
        )
        set_fields(
            self,
            batch=batch,
            seed=integer("seed", self.seed, minimum=0),
            kink=number("kink", self.kink, zero=True),
            tests=integer("tests", self.tests, minimum=1),
            gamma=estimated_gamma(task, self.data)
            if self.gamma is None
            else signed("gamma", self.gamma),
            trained=tuple(name for name in MATRICES if name in names),
            scale=number("scale", self.scale, zero=True),
        )
        for name, count in (("batch", batch), ("tests", self.tests)):
            check_fits(name, count, 40.0 * count * (task.H + 2.0 * task.V))

    @property
    def stochastic(self) -> bool:
        """Whether the steps see different sentences."""
        return self.data is None or self.batch != len(self.data.answer)

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the trained matrices, one by one."""
        return np.split(array, len(self.trained or ()))

    @property
    def initial(self) -> Array:
        """The trained matrices at the start, in the order of ``trained`` above."""
        return np.concatenate(
            [self._start[name].ravel() for name in self.trained or ()]
        )

    def floor(self) -> float:
        """Bayes risk of the task; 0 for fixed data, which can be learnt by heart."""
        return self.task.bayes_risk if self.data is None else 0.0

    def sentences(self, step: int = 0) -> Sentences:
        """Return the sentences of one step."""
        assert self.batch is not None
        step = integer("step", step, minimum=0)
        if self.data is None:
            return self.task.sentences(
                np.random.default_rng([self.seed, 0, step]), self.batch
            )
        if not self.stochastic:
            return self.data
        rows = (step * self.batch + np.arange(self.batch)) % len(self.data.answer)
        return Sentences(*(each[rows] for each in self.data))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's sentences and its gradient, by the backward pass."""
        m, (tokens, answer, *_) = self._matrices(params), self.sentences(step)
        forward = self._forward(m, tokens)
        if not np.isfinite(forward.logits).all():
            return math.inf, np.zeros_like(params)
        losses, error = cross_entropy(forward.logits, answer)
        error[error < 1e-200] = 0.0  # denormal numbers slow the products down
        own = np.arange(len(answer)), answer
        error[own] = 0.0
        error[own] = -error.sum(axis=1)
        gradients = self._backward(m, forward, error / len(answer))
        return float(np.mean(losses)), np.concatenate(
            [gradients[name].ravel() for name in self.trained or ()]
        )

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Measure on test sentences with outputs seen in training and, if there are any, with unseen ones.

        Loss and accuracy are measured on both; on the seen ones also the mean
        probabilities of output and noise, the logit that attention gives the output,
        the largest logit that it gives another word, and both logits of the
        feed-forward layer for noise.
        """
        found: dict[str, Any] = {}
        m = self._matrices(params)
        task = self.task
        for name, test in self._tests.items():
            forward = self._forward(m, test.tokens)
            measured = self._measured(forward.logits, test)
            found |= {
                f"{name}_loss": measured.loss,
                f"{name}_accuracy": measured.accuracy,
            }
            if name == "seen":
                found |= {"output": measured.output, "noise": measured.noise}
                noise = np.full_like(test.output, task.noise_word)
                attention = forward.u[:, : task.V]
                found["attention_output"], found["attention_other"] = _own_and_other(
                    attention, test.output
                )
                found["feed_forward_noise"], found["feed_forward_other"] = (
                    _own_and_other(forward.fed, noise)
                )
        return {name: np.asarray(value) for name, value in found.items()}

    def measure(
        self, params: Array, sentences: Sentences, without: Collection[str] = ()
    ) -> Measure:
        """Measure a model on sentences, if desired without some of its parts.

        Parameters
        ----------
        params, sentences : ndarray, Sentences
            Flat parameters, and what `RecallTask.sentences` returns.
        without : collection of {"attention", "feed_forward"}
            Parts without whose contribution, u or F, it is measured.

        Returns
        -------
        Measure
        """
        for part in instance(
            "without", without, Collection, "a collection of attention, feed_forward"
        ):  # type: ignore[type-abstract]
            choice("without", part, PARTS)
        tokens = instance(
            "sentences", sentences, Sentences, "sentences of a RecallTask"
        ).tokens
        if tokens.max(initial=0) >= self.task.V:
            raise argument_error(
                "sentences", int(tokens.max()), f"made of words below V = {self.task.V}"
            )
        forward = self._forward(self.matrices(params), tokens, without)
        measured = self._measured(forward.logits, sentences)
        if not math.isfinite(measured.loss):
            raise argument_error(
                "params",
                float(np.max(np.abs(params))),
                "numbers with finite logits (largest shown)",
            )
        return measured

    def _measured(self, logits: Array, sentences: Sentences) -> Measure:
        if not np.isfinite(logits).all():
            return Measure(math.inf, 0.0, 0.0, 0.0)
        losses, probs = cross_entropy(logits, sentences.answer)
        return Measure(
            float(np.mean(losses)),
            float(np.mean(logits.argmax(axis=1) == sentences.output)),
            float(np.mean(probs[np.arange(len(probs)), sentences.output])),
            float(np.mean(probs[:, self.task.noise_word])),
        )

    def matrices(self, params: ArrayLike) -> dict[str, Array]:
        """Return W, 𝒱 and F, by name."""
        return self._matrices(self._checked(params))

    def _matrices(self, params: Array) -> dict[str, Array]:
        trained = zip(self.trained or (), self.blocks(params), strict=True)
        return self._start | {
            name: part.reshape(2 * self.task.V, -1) for name, part in trained
        }

    @cached_property
    def _start(self) -> dict[str, Array]:
        # freed at once: glibc then keeps up to these 16 MiB from step to step
        np.empty(2**21)
        rng = np.random.default_rng([self.seed, 1])
        width = 2 * self.task.V
        start = {
            name: rng.normal(0.0, self.scale / np.sqrt(width), (width, width))
            for name in MATRICES
        }
        assert self.gamma is not None
        fixed = gates(self.task, self.weights, self.gamma)
        return start | {
            name: matrix
            for name, matrix in fixed.items()
            if name not in (self.trained or ())
        }

    @cached_property
    def _tests(self) -> dict[str, Sentences]:
        words = {"seen": self.task.outputs, "unseen": self.task.unseen}
        return {
            name: self.task.sentences(
                np.random.default_rng([self.seed, 2]), self.tests, some
            )
            for name, some in words.items()
            if some.size
        }

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(
        self, m: Mapping[str, Array], tokens: Words, without: Collection[str] = ()
    ) -> _Pass:
        """Run the model; callers have to check for infinite logits."""
        B = len(tokens)
        V = self.task.V
        last = tokens[:, -1]
        previous = tokens[:, -2]
        query = np.zeros((B, 2 * V))
        query[np.arange(B), last] = query[np.arange(B), V + previous] = 1.0
        key = m["attention"][last] + m["attention"][V + previous]
        places = self._places(tokens)
        scores = (places @ key.ravel()).reshape(B, -1)
        if self.attention == "softmax":
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
        scores += self.kink
        attended = _added(
            places, np.maximum(scores, 0.0) if self.attention == "relu" else scores
        )
        u = (
            attended @ m["value"].T
            if self._trains("value")
            else attended * m["value"].diagonal()
        )
        if "attention" in without:
            u = np.zeros_like(u)
        mixed = query + u if self.kappa else query
        fed = np.zeros((B, V))
        rows = self._rows(m)
        if "feed_forward" not in without:
            fed[:, rows] = mixed @ m["feed_forward"][rows].T
        return _Pass(places, query, scores, attended, u, mixed, fed, u[:, :V] + fed)

    def _backward(
        self, m: Mapping[str, Array], forward: _Pass, error: Array
    ) -> dict[str, Array]:
        """Gradients with respect to the trained matrices, from that for the logits, ``error``, (B, V)."""
        rows = self._rows(m)
        gradients = {}
        by_mixed = error[:, rows] @ m["feed_forward"][rows]
        if self._trains("feed_forward"):
            gradients["feed_forward"] = np.zeros_like(m["feed_forward"])
            gradients["feed_forward"][rows] = error.T @ forward.mixed
        by_u = self.kappa * by_mixed
        by_u[:, : self.task.V] += error
        if self._trains("value"):
            gradients["value"] = by_u.T @ forward.attended
        if not self._trains("attention"):
            return gradients
        by_attended = (
            by_u @ m["value"] if self._trains("value") else by_u * m["value"].diagonal()
        )
        by_score = (forward.places @ by_attended.ravel()).reshape(forward.scores.shape)
        if self.attention == "softmax":
            by_score -= np.sum(by_attended * forward.attended, axis=1, keepdims=True)
            by_score *= forward.scores
        elif self.attention == "relu":
            by_score[forward.scores < 0.0] = 0.0
        gradients["attention"] = forward.query.T @ _added(forward.places, by_score)
        return gradients

    def _places(self, tokens: Words) -> Any:
        """Return the places of the attended words in the tables, a sparse (B n, 2 B V) matrix."""
        from scipy.sparse import csr_array

        attended = tokens if self.weights == "identity" else tokens[:, :-1]
        V = self.task.V
        B, n = attended.shape
        at = np.empty((B, n, 2), np.int32 if 2 * B * max(n, V) < 2**31 else np.int64)
        np.add(
            attended, 2 * V * np.arange(B)[:, None], out=at[:, :, 0], casting="unsafe"
        )
        np.add(at[:, :-1, 0], V, out=at[:, 1:, 1])
        at[:, 0, 1] = 0
        ones = np.ones((B, n, 2))
        ones[:, 0, 1] = 0.0  # the first word has no previous one
        ends = np.arange(0, at.size + 1, 2, dtype=at.dtype)
        return csr_array((ones.ravel(), at.ravel(), ends), shape=(B * n, 2 * B * V))

    def _trains(self, name: str) -> bool:
        return name in (self.trained or ())

    def _rows(self, m: Mapping[str, Array]) -> slice | Words:
        """Rows of F that reach logits: all if it is trained, else the one of noise."""
        if self._trains("feed_forward"):
            return slice(self.task.V)
        return np.flatnonzero(m["feed_forward"].any(axis=1))


def _added(places: Any, weights: Array) -> Array:
    """Tables of the weights, added up over equal words and over equal words before, (B, 2V)."""
    return np.asarray(places.T @ weights.ravel()).reshape(len(weights), -1)


def _own_and_other(logits: Array, word: Words) -> tuple[float, float]:
    """Mean logit of a word in each sentence, and of the likeliest other one."""
    own = (np.arange(len(word)), word)
    others = logits.copy()
    others[own] = -np.inf
    return float(np.mean(logits[own])), float(np.mean(others.max(axis=1)))
