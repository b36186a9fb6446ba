r"""The sampled trainer: a one-layer transformer with full matrices on real sentences, backward pass included.

It shares no formula with the exact risks: words are embedded, attended to and read out one by one. With words z and
d = 2V, x_h = E(z_h) + Ẽ(z_{h−1}) (orthonormal at the start), and over the words h < H

    w_h = σ(x_Hᵀ W x_h),    u = 𝒱 Σ_h w_h x_h,    logits = U (u + F (x_H + κu)).

With the weights "identity" the last word is attended to as well, h ≤ H.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, choice, integer, number, refuse, store
from icl_theory.engine.risk import Risk
from icl_theory.families.recall.divergence import cross_entropy
from icl_theory.families.recall.population import ATTENTION
from icl_theory.families.recall.task import RecallTask, Sentences, Words
from icl_theory.families.recall.weights import check_weights, estimated_gamma, gates, held

MATRICES = ("embedding", "previous", "attention", "value", "feed_forward", "readout")
PARTS = ("attention", "feed_forward")
LARGEST_MODEL = 10**7
NEGLIGIBLE = 1e-200
CHUNK = 64  # sentences at a time: their arrays stay in the cache


class Measure(NamedTuple):
    """Mean losses, accuracies and probabilities of a model on some sentences.

    ``loss`` (nats), ``accuracy`` (share of sentences whose likeliest next word is the output), and the mean
    probabilities ``output`` and ``noise`` given to the output and to the noise word.
    """

    loss: float
    accuracy: float
    output: float
    noise: float


class _Words(NamedTuple):
    """Flat positions of the words attended to in (B, V), of those before them in (B, V + 1), and the last two."""

    here: Words
    before: Words
    last: Words
    previous: Words


class _Pass(NamedTuple):
    """What the backward pass needs of the forward pass."""

    words: _Words
    query: Array
    weights: Array
    active: NDArray[np.bool_] | None  # derivative of ReLU
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
    batch : int, optional
        Sentences a step: fresh ones, 64 unless given, or some of the ``data`` in turn, all unless given.
    seed : int
        Seed of sentences and start: the sentences of step t are a function of (seed, t).
    data : Sentences, optional
        Train on these instead of fresh ones.
    trained : sequence of str, optional
        Which of "embedding", "previous", "attention", "value", "feed_forward", "readout" are trained; the three
        in the middle unless given (without noise there is no feed-forward layer). 𝒱 and F that are not trained are
        those of the reparameterised model.
    scale : float
        Standard deviation of the initial entries of W, 𝒱 and F, times √(2V); they start from zero where it is 0.
    weights : {"projection", "identity"}
        𝒱 and F where they are not trained, see `RecallRisk`; with "identity" all H words are attended to.
    kappa : {1, 0}
        Whether the feed-forward layer reads what is attended to.
    kink : float
        Added to the scores of ReLU attention, whose derivative at 0 is 1: from zero it starts at its kink from the
        right, the paper's by 1e-8.
    gamma : float, optional
        γ in F where that is not trained; ln(α/(1-α)), or its estimate from the ``data``, unless given.
    tests : int
        Sentences on which runs are observed.

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
        if not isinstance(self.task, RecallTask):
            raise refuse("task", self.task, "a RecallTask")
        choice("attention", self.attention, ATTENTION[:3])
        check_weights(self.task, self.weights, self.kappa)
        if self.kink and self.attention != "relu":
            raise refuse("kink", self.kink, "0 unless attention = 'relu'")
        middle = ("attention", "value", "feed_forward") if self.task.alpha else ("attention", "value")
        names = middle if self.trained is None else tuple(self.trained)
        if not names or set(names) - set(MATRICES):
            raise refuse("trained", self.trained, "some of " + ", ".join(MATRICES))
        if sum(self._shapes[name][0] * self._shapes[name][1] for name in names) > LARGEST_MODEL:
            raise refuse("V", self.task.V, f"such that the matrices have at most {LARGEST_MODEL} entries")
        store(
            self,
            batch=self._size(),
            seed=integer("seed", self.seed, minimum=0),
            kink=number("kink", self.kink, zero=True),
            tests=integer("tests", self.tests, minimum=1),
            gamma=estimated_gamma(self.task, self.data) if self.gamma is None else held("gamma", self.gamma),
            trained=tuple(name for name in MATRICES if name in names),
            scale=number("scale", self.scale, zero=True),
        )

    def _size(self) -> int:
        """Sentences a step."""
        if self.data is None:
            return 64 if self.batch is None else integer("batch", self.batch, minimum=1)
        M = len(self.data.answer)
        return M if self.batch is None else integer("batch", self.batch, minimum=1, maximum=M)

    @property
    def stochastic(self) -> bool:
        """Whether the steps see different sentences."""
        return self.data is None or self.batch != len(self.data.answer)

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the trained matrices, one by one."""
        sizes = [self._shapes[name][0] * self._shapes[name][1] for name in self.trained or ()]
        return np.split(array, np.cumsum(sizes)[:-1])

    @property
    def initial(self) -> Array:
        """The trained matrices at the start, one after the other in the order of the module's list."""
        return np.concatenate([self._start[name].ravel() for name in self.trained or ()])

    def floor(self) -> float:
        """Bayes risk of the task; a fixed data set can be learnt by heart, so then 0."""
        return self.task.bayes_risk if self.data is None else 0.0

    def sentences(self, step: int = 0) -> Sentences:
        """Return the sentences of one step."""
        assert self.batch is not None
        step = integer("step", step, minimum=0)
        if self.data is None:
            return self.task.sentences(np.random.default_rng([self.seed, 0, step]), self.batch)
        if not self.stochastic:
            return self.data
        rows = (step * self.batch + np.arange(self.batch)) % len(self.data.answer)
        return Sentences(*(each[rows] for each in self.data))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's sentences and its gradient, by the backward pass below."""
        m, sentences, trained = self.matrices(params), self.sentences(step), self.trained or ()
        size, total = len(sentences.answer), 0.0
        sums = {name: np.zeros(self._shapes[name]) for name in trained}
        for first in range(0, size, CHUNK):
            tokens, answer = (each[first : first + CHUNK] for each in sentences[:2])
            forward = self._forward(m, tokens)
            if not np.isfinite(forward.logits).all():
                return math.inf, np.zeros_like(params)
            losses, probs = cross_entropy(forward.logits, answer)
            rows = np.arange(len(losses))
            error = np.where(probs > NEGLIGIBLE, probs, 0.0)  # denormal numbers slow the products down
            error[rows, answer] = 0.0
            error[rows, answer] = -error.sum(axis=1)
            gradients = self._backward(m, forward, error / size)
            total += float(losses.sum())
            for name in trained:
                sums[name] += gradients[name]
        return total / size, np.concatenate([sums[name].ravel() for name in trained])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Measure it on outputs seen in training and, where there are, on unseen ones.

        Loss and accuracy on both, the same but for the outputs; on the seen ones the mean probabilities of
        output and noise, the logit that attention gives the output and the largest that it gives another word, and
        the same of the feed-forward layer for noise.
        """
        found: dict[str, Any] = {}
        m = self.matrices(params)
        for name, test in self._tests.items():
            forward = self._forward(m, test.tokens)
            measured = self._measured(forward.logits, test)
            found |= {f"{name}_loss": measured.loss, f"{name}_accuracy": measured.accuracy}
            if name == "seen":
                noise = np.full_like(test.output, self.task.noise_word)
                by_layer = (
                    ("attention", forward.u, test.output),
                    ("feed_forward", forward.stream - forward.u, noise),
                )
                found |= {"output": measured.output, "noise": measured.noise}
                for layer, stream, word in by_layer:
                    logits = stream @ m["readout"].T
                    own = logits[np.arange(len(word)), word]
                    logits[np.arange(len(word)), word] = -np.inf
                    kind = "output" if layer == "attention" else "noise"
                    found |= {f"{layer}_{kind}": np.mean(own), f"{layer}_other": np.mean(logits.max(axis=1))}
        return {name: np.asarray(value) for name, value in found.items()}

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
        measured = self._measured(self._forward(self.matrices(params), sentences.tokens, without).logits, sentences)
        if not math.isfinite(measured.loss):
            raise refuse(
                "params", float(np.max(np.abs(params))), "such that the logits are finite (the largest is shown)"
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
        assert self.gamma is not None
        fixed = gates(self.task, self.weights, self.gamma)
        start |= {name: matrix for name, matrix in fixed.items() if name not in (self.trained or ())}
        return start | {"readout": start["embedding"]}

    @cached_property
    def _tests(self) -> dict[str, Sentences]:
        task = self.task
        kinds = {"seen": task.outputs} | ({"unseen": task.unseen} if task.unseen.size else {})
        return {
            name: task.sentences(np.random.default_rng([self.seed, 2]), self.tests, words)
            for name, words in kinds.items()
        }

    def _words(self, tokens: Words) -> _Words:
        V, row = self.task.V, np.arange(len(tokens))[:, None]
        attended = tokens if self.weights == "identity" else tokens[:, :-1]
        before = np.empty_like(attended)
        before[:, 0], before[:, 1:] = V, attended[:, :-1]  # no word is before the first
        return _Words(attended + V * row, before + (V + 1) * row, tokens[:, -1], tokens[:, -2])

    def _read(self, m: dict[str, Array], words: _Words, vector: Array) -> Array:
        """Products of a vector a sentence, (B, 2V), with all words attended to, (B, n)."""
        here, before = vector @ m["embedding"].T, np.zeros((len(vector), self.task.V + 1))
        before[:, :-1] = vector @ m["previous"].T
        return np.asarray(here.ravel()[words.here] + before.ravel()[words.before])

    def _gather(self, words: _Words, weights: Array) -> tuple[Array, Array]:
        """Weights of words attended to, summed over equal words and over equal words before, (B, V) each."""
        size, V = len(weights), self.task.V
        here, before = (
            np.bincount(index.ravel(), weights.ravel(), size * width).astype(float).reshape(size, width)
            for index, width in ((words.here, V), (words.before, V + 1))
        )
        return here, before[:, :-1]

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(self, m: dict[str, Array], tokens: Words, without: Collection[str] = ()) -> _Pass:
        """Run the model; numbers out of range are for the callers to notice in the logits."""
        words, active = self._words(tokens), None
        query = m["embedding"][words.last] + m["previous"][words.previous]
        weights = self._read(m, words, query @ m["attention"])
        if self.attention == "softmax":
            weights = np.exp(weights - weights.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
        elif self.attention == "relu":
            weights = weights + self.kink
            active = weights >= 0.0
            weights = np.maximum(weights, 0.0)
        here, before = self._gather(words, weights)
        attended = here @ m["embedding"] + before @ m["previous"]
        u = attended @ m["value"].T
        if "attention" in without:
            u = np.zeros_like(u)
        mixed = query + self.kappa * u
        stream = u if "feed_forward" in without else u + mixed @ m["feed_forward"].T
        logits = stream @ m["readout"].T
        return _Pass(words, query, weights, active, attended, u, mixed, stream, logits)

    def _backward(self, m: dict[str, Array], forward: _Pass, error: Array) -> dict[str, Array]:
        """Gradients by the trained matrices, of a loss whose derivative by the logits is ``error``, (B, V)."""
        words, query, trained = forward.words, forward.query, self.trained or ()
        by_stream = error @ m["readout"]
        by_mixed = by_stream @ m["feed_forward"]
        by_u = by_stream + self.kappa * by_mixed
        by_attended = by_u @ m["value"]
        gradients = {
            "value": by_u.T @ forward.attended,
            "feed_forward": by_stream.T @ forward.mixed,
            "readout": error.T @ forward.stream,
        }
        if not {"embedding", "previous", "attention"} & set(trained):
            return gradients
        by_score = self._read(m, words, by_attended)
        if self.attention == "softmax":
            by_score = forward.weights * (by_score - np.sum(by_attended * forward.attended, axis=1, keepdims=True))
        elif forward.active is not None:
            by_score = np.where(forward.active, by_score, 0.0)
        here, before = self._gather(words, by_score)
        scored = here @ m["embedding"] + before @ m["previous"]
        gradients["attention"] = query.T @ scored
        if {"embedding", "previous"} & set(trained):
            key, by_query = query @ m["attention"], by_mixed + scored @ m["attention"].T
            weighed = self._gather(words, forward.weights)
            ends = (words.last, words.previous)
            parts = zip(("embedding", "previous"), weighed, (here, before), ends, strict=True)
            for name, by_weight, by_product, end in parts:
                gradients[name] = by_weight.T @ by_attended + by_product.T @ key
                np.add.at(gradients[name], end, by_query)
        return gradients
