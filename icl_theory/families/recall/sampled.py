"""The sampled trainer: the loss of a one-layer transformer with full matrices on sampled sentences.

It shares no formula with the exact risks: attention is computed word by word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array, choice, instance, integer, number, refuse, signed, store
from icl_theory.engine.risk import Risk
from icl_theory.families.recall.divergence import cross_entropy
from icl_theory.families.recall.population import ATTENTION
from icl_theory.families.recall.task import RecallTask, Sentences
from icl_theory.families.recall.transformer import Transformer
from icl_theory.families.recall.weights import check_weights, estimated_gamma, gates
from icl_theory.memory import check_fits

MATRICES = ("embedding", "previous", "attention", "value", "feed_forward", "readout")
PARTS = ("attention", "feed_forward")


class Measure(NamedTuple):
    """Means of a model over some sentences."""

    loss: float  # nats
    accuracy: float  # share of sentences whose likeliest next word is the output
    output: float  # probability of the output
    noise: float  # probability of the noise word


class Drawn(NamedTuple):
    """Sentences, and the `Transformer.places` of their words."""

    sentences: Sentences
    places: Any


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
        Sentences in a step: 64 fresh ones by default, or some of the ``data`` in turn, by default all.
    seed : int
        Seed of sentences and start: the sentences of step t are a function of (seed, t).
    data : Sentences, optional
        Train on these instead of fresh ones.
    trained : sequence of str, optional
        Which of "embedding", "previous", "attention", "value", "feed_forward", "readout" are trained; by default
        the three in the middle (without noise there is no feed-forward layer). If 𝒱 and F are not trained, they are
        those of the reparameterised model.
    scale : float
        Standard deviation of the initial entries of W, 𝒱 and F, times √(2V); 0 starts them from zero.
    weights : {"projection", "identity"}
        𝒱 and F if they are not trained, see `RecallRisk`; with "identity" all H words are attended to.
    kappa : {1, 0}
        Whether the feed-forward layer reads what is attended to.
    kink : float
        Added to the scores of ReLU attention, whose derivative at 0 is 1: a start from zero is then at or to the
        right of its kink; the paper adds 1e-8.
    gamma : float, optional
        γ in F if that is not trained; by default ln(α/(1-α)), or its estimate from the ``data``.
    tests : int
        Sentences on which runs are observed.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

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
        given = self.trained if isinstance(self.trained, Iterable) else ()
        names = middle if self.trained is None else tuple(given)
        if not (names and all(isinstance(name, str) and name in MATRICES for name in names)):
            raise refuse("trained", self.trained, "some of " + ", ".join(MATRICES))
        if sum(self._shapes[name][0] * self._shapes[name][1] for name in names) > 10**7:
            raise refuse("V", self.task.V, "smaller: the matrices may have at most 10000000 entries together")
        store(
            self,
            batch=self._size(),
            seed=integer("seed", self.seed, minimum=0),
            kink=number("kink", self.kink, zero=True),
            tests=integer("tests", self.tests, minimum=1),
            gamma=estimated_gamma(self.task, self.data) if self.gamma is None else signed("gamma", self.gamma),
            trained=tuple(name for name in MATRICES if name in names),
            scale=number("scale", self.scale, zero=True),
        )
        for name, count in (("batch", self.batch), ("tests", self.tests)):
            assert count is not None
            check_fits(name, count, 40.0 * count * (self.task.H + 2.0 * self.task.V))

    def _size(self) -> int:
        if self.data is None:
            return 64 if self.batch is None else integer("batch", self.batch, minimum=1)
        M = len(instance("data", self.data, Sentences, "Sentences of `RecallTask.sentences`").answer)
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
        """The trained matrices at the start, in the order of ``trained`` above."""
        return np.concatenate([self._start[name].ravel() for name in self.trained or ()])

    def floor(self) -> float:
        """Bayes risk of the task; 0 for fixed data, which can be learnt by heart."""
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

    def drawn(self, step: int) -> Drawn:
        """Sentences of a step, prepared for this model and for others that attend to the same words."""
        sentences = self.sentences(step)
        return Drawn(sentences, self._model.places(sentences.tokens))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's sentences and its gradient, by the backward pass."""
        return self.on(params, self.drawn(step))

    def on(self, params: Array, drawn: Drawn) -> tuple[float, Array]:
        """Mean loss of sentences and its gradient."""
        m, (tokens, answer, *_) = self.matrices(params), drawn.sentences
        forward = self._model.forward(m, tokens, places=drawn.places)
        if not np.isfinite(forward.logits).all():
            return math.inf, np.zeros_like(params)
        losses, error = cross_entropy(forward.logits, answer)
        error[error < 1e-200] = 0.0  # denormal numbers slow the products down
        own = np.arange(len(answer)), answer
        error[own] = 0.0
        error[own] = -error.sum(axis=1)
        gradients = self._model.backward(m, forward, error / len(answer))
        return float(np.mean(losses)), np.concatenate([gradients[name].ravel() for name in self.trained or ()])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Measure on test sentences with outputs seen in training and, if there are any, with unseen ones.

        Loss and accuracy are measured on both; on the seen ones also the mean probabilities of output and noise,
        the logit that attention gives the output, the largest logit that it gives another word, and both logits of
        the feed-forward layer for noise.
        """
        found: dict[str, Any] = {}
        m = self.matrices(params)
        for name, test in self._tests.items():
            forward = self._model.forward(m, test.tokens)
            measured = self._measured(forward.logits, test)
            found |= {f"{name}_loss": measured.loss, f"{name}_accuracy": measured.accuracy}
            if name == "seen":
                noise = np.full_like(test.output, self.task.noise_word)
                by_layer = (("attention", forward.u, test.output), ("feed_forward", forward.fed, noise))
                found |= {"output": measured.output, "noise": measured.noise}
                for layer, stream, word in by_layer:
                    logits = self._model.read_out(m, stream).copy()
                    own = logits[np.arange(len(word)), word]
                    logits[np.arange(len(word)), word] = -np.inf
                    kind = "output" if layer == "attention" else "noise"
                    found |= {f"{layer}_{kind}": np.mean(own), f"{layer}_other": np.mean(logits.max(axis=1))}
        return {name: np.asarray(value) for name, value in found.items()}

    def measure(self, params: Array, sentences: Sentences, without: Collection[str] = ()) -> Measure:
        """Measure a model on sentences, if desired without some of its parts.

        Parameters
        ----------
        params : ndarray
            Parameters, flat.
        sentences : Sentences
            From `RecallTask.sentences`.
        without : collection of {"attention", "feed_forward"}
            Parts without whose contribution, u or F, it is measured.

        Returns
        -------
        Measure
            Loss, accuracy and mean probabilities.
        """
        for part in instance("without", without, Collection, "a collection of attention, feed_forward"):  # type: ignore[type-abstract]
            choice("without", part, PARTS)
        tokens = instance("sentences", sentences, Sentences, "sentences of a RecallTask").tokens
        if tokens.max(initial=0) >= self.task.V:
            raise refuse("sentences", int(tokens.max()), f"made of words below V = {self.task.V}")
        forward = self._model.forward(self.matrices(self._checked(params)), tokens, without)
        measured = self._measured(forward.logits, sentences)
        if not math.isfinite(measured.loss):
            raise refuse("params", float(np.max(np.abs(params))), "numbers with finite logits (largest shown)")
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
        trained = zip(self.trained or (), self.blocks(params), strict=True)
        return self._start | {name: part.reshape(self._shapes[name]) for name, part in trained}

    @property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        V = self.task.V
        return {name: (2 * V if name in MATRICES[2:5] else V, 2 * V) for name in MATRICES}

    @cached_property
    def _model(self) -> Transformer:
        np.empty(2**21)  # freed at once: glibc then keeps up to these 16 MiB from step to step
        whole, trained = self.weights == "identity", tuple(self.trained or ())
        return Transformer(self.task.V, self.attention, whole, self.kappa, self.kink, trained)

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
