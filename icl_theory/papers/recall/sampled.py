r"""A one-layer transformer with full matrices on sampled sentences, gradients by hand.

`TransformerRisk` shares no formula with the exact risks: attention is computed word by
word. A sentence has the words z_1, ..., z_H, out of V words. The h-th word has the
vector x_h = E(z_h) + Ẽ(z_{h−1}), with embeddings E of a word and Ẽ of the word before
it; x_1 = E(z_1). E(z) and Ẽ(z) are unit vectors, with a 1 at the indices z and V + z.
With sums over the words h < H, the model is

    w_h = σ(x_Hᵀ W x_h),    u = 𝒱 Σ_h w_h x_h,    logits = (1, 0) (u + F (x_H + κu)).

Here σ is the identity, ReLU or softmax, and κ is 1 or 0. With ``weights="identity"``
the last word is attended to as well, h ≤ H. The logits (1, 0) a of a vector a are its
entries for E, that is, its first V entries. An answer is the output y of the trigger
z_H, or the noise word τ.

A vector of 2V numbers that belongs to a sentence is called a table: it has an entry for
each word, along E, and one for each previous word, along Ẽ. The matrix whose rows are
all x_h of the sentences is sparse, with at most two ones in each row. Its product with
the tables Wᵀ x_H gives the scores x_Hᵀ W x_h of the words, and its transpose sums the
weights of the words into the tables Σ_h w_h x_h.
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
    generator,
    instance,
    integer,
    number,
    set_fields,
    signed,
)
from icl_theory.engine.sampling import Trainer, selected
from icl_theory.memory import check_fits, keep_freed
from icl_theory.papers.recall.divergence import cross_entropy
from icl_theory.papers.recall.population import ATTENTION
from icl_theory.papers.recall.task import (
    RecallTask,
    Sentences,
    Words,
    check_sentences,
)
from icl_theory.papers.recall.weights import check_weights, estimated_gamma, gates

# Names of W, 𝒱 and F.
MATRICES = ("attention", "value", "feed_forward")
# The parts of the model that `TransformerRisk.measure` can leave out.
PARTS = ("attention", "feed_forward")
# The trained matrices have at most this many entries together, 80 MB. Larger ones would
# take long at every step.
MOST_ENTRIES = 10**7
# Probabilities below this are replaced by 0 in the gradient. Their products with other
# small numbers could be subnormal, and arithmetic on subnormal numbers is slow.
SMALLEST_PROBABILITY = 1e-200


class Measure(NamedTuple):
    """Means of a model over a batch of sentences."""

    loss: float  # nats
    accuracy: float  # share of sentences for which the likeliest word is the output
    output: float  # probability of the output
    noise: float  # probability of the noise word


class _Pass(NamedTuple):
    """Results of a forward pass over B sentences with n attended words."""

    # The vectors x_h, the rows of a sparse (B n, 2 B V) matrix, see `_word_vectors`.
    word_vectors: Any
    query: Array  # x_H, (B, 2V)
    scores: Array  # x_Hᵀ W x_h plus ``kink`` of the risk, (B, n)
    weights: Array  # w_h, (B, n)
    attended: Array  # Σ w_h x_h, (B, 2V)
    u: Array  # output of the attention, (B, 2V)
    feed_forward_input: Array  # x_H + κu, (B, 2V)
    feed_forward_logits: Array  # (B, V)
    logits: Array  # (B, V)


@dataclass(frozen=True, eq=False)
class TransformerRisk(Trainer[Sentences]):
    """Cross-entropy of a full one-layer transformer on sampled sentences.

    The parameters are one flat vector. See docs/theory.md, "In-context recall".

    Parameters
    ----------
    task : RecallTask
        The matrices are (2V, 2V).
    attention : {"linear", "relu", "softmax"}
    batch : int, optional
        Number of sentences in a step: by default 64 fresh ones, or all of the ``data``.
        A smaller batch of the ``data`` has consecutive sentences.
    seed : int
        Seed of sentences and start: the sentences of step t are a function of (seed,
        t).
    data : Sentences, optional
        Train on these sentences instead of fresh ones.
    trained : sequence of str, optional
        The matrices to train, of "attention", "value", "feed_forward"; by default all
        (without noise there is no feed-forward layer). If 𝒱 or F is not trained, it is
        the matrix of the reparameterised model. If W is not trained, it stays at its
        random start.
    scale : float
        Standard deviation of the initial entries of W, 𝒱 and F, times √(2V); 0 starts
        them from zero.
    weights, kappa
        As for `RecallRisk`: they determine 𝒱 and F if these are not trained, and the
        inputs of attention and F.
    kink : float
        A number that is added to the scores of ReLU attention, 1e-8 in the paper. A
        start from zero is then to the right of the kink of ReLU, or at it if the number
        is 0. In both cases ReLU has the derivative 1.
    gamma : float, optional
        γ in F if F is not trained; by default ln(α/(1-α)), or its estimate from the
        ``data``.
    tests : int
        Runs are observed on this many test sentences with seen outputs, and on as many
        with unseen ones.

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
    batch: int | None = None  # type: ignore[assignment]
    seed: int = 0
    data: Sentences | None = None
    trained: Sequence[str] | None = None
    scale: float = 0.5
    weights: str = "projection"
    kappa: int = 1
    kink: float = 0.0
    gamma: float | None = None
    tests: int = 128

    # The sentences of step t are drawn with the seed [seed, 0, t].
    stream = (0,)

    def __post_init__(self) -> None:
        task = instance("task", self.task, RecallTask, "a RecallTask")
        choice("attention", self.attention, ATTENTION[:3])
        check_weights(task, self.weights, self.kappa)
        if self.kink and self.attention != "relu":
            raise argument_error("kink", self.kink, "0 unless attention = 'relu'")
        names = self._trained_names()
        if len(names) * (2 * task.V) ** 2 > MOST_ENTRIES:
            raise argument_error(
                "V",
                task.V,
                f"smaller: the matrices may have at most {MOST_ENTRIES} entries"
                " together",
            )
        batch = self._batch_size()
        set_fields(
            self,
            batch=batch,
            seed=integer("seed", self.seed, minimum=0),
            kink=number("kink", self.kink, zero=True),
            tests=integer("tests", self.tests, minimum=1),
            gamma=self._held_gamma(),
            trained=names,
            scale=number("scale", self.scale, zero=True),
        )
        # an estimate: five float64 numbers for each word and for each entry of a table
        bytes_per_sentence = 40.0 * (task.H + 2.0 * task.V)
        for name, count in (("batch", batch), ("tests", self.tests)):
            check_fits(name, count, count * bytes_per_sentence)

    def _trained_names(self) -> tuple[str, ...]:
        """Names of the trained matrices, in the order of `MATRICES`."""
        if self.trained is None:
            # Without noise there is no feed-forward layer.
            return MATRICES if self.task.alpha else MATRICES[:2]
        requested = tuple(self.trained) if isinstance(self.trained, Iterable) else ()
        valid = all(isinstance(name, str) and name in MATRICES for name in requested)
        if not requested or not valid:
            raise argument_error(
                "trained", self.trained, "some of " + ", ".join(MATRICES)
            )
        return tuple(name for name in MATRICES if name in requested)

    def _batch_size(self) -> int:
        """Return the number of sentences in a step.

        By default these are all of the ``data``, or 64 fresh sentences.
        """
        default = 64
        most = INT64_MAX
        if self.data is not None:
            number_of_data = len(check_sentences(self.data, self.task).answer)
            default = number_of_data
            most = number_of_data
        if self.batch is None:
            return default
        return integer("batch", self.batch, minimum=1, maximum=most)

    def _held_gamma(self) -> float:
        """Return the γ in F, which has an effect only if F is not trained."""
        if self.gamma is None:
            return estimated_gamma(self.task, self.data)
        return signed("gamma", self.gamma)

    @property
    def stochastic(self) -> bool:
        """Whether the steps have different sentences."""
        return self.data is None or self.batch != len(self.data.answer)

    @property
    def _trained_in_order(self) -> Sequence[str]:
        """Names of the trained matrices, in the order of ``MATRICES``."""
        assert self.trained is not None  # `__post_init__` has set it
        return self.trained

    def blocks(self, array: Array) -> Sequence[Array]:
        """Flat views of the trained matrices in a flat vector, one for each matrix."""
        # All matrices have the same size.
        return np.split(array, len(self._trained_in_order))

    @property
    def initial(self) -> Array:
        """The trained matrices at the start, as one vector: first W, then 𝒱, then F."""
        return np.concatenate(
            [self._start[name].ravel() for name in self._trained_in_order]
        )

    def floor(self) -> float:
        """Bayes risk of the task; 0 for fixed data, which can be learnt by heart."""
        return self.task.bayes_risk if self.data is None else 0.0

    def draw(self, rng: np.random.Generator, size: int) -> Sentences:
        """Draw sentences, from the ``data`` without replacement if they are given.

        If ``size`` exceeds their number, all of the ``data`` are returned.
        """
        if self.data is None:
            return self.task.sentences(rng, size)
        generator("rng", rng)
        size = integer("size", size, minimum=1)
        count = len(self.data.answer)
        if size >= count:
            return self.data
        return selected(self.data, rng.choice(count, size, replace=False))

    def prompts(self, step: int = 0) -> Sentences:
        """Return the sentences of a step: fresh ones, or the next ones of the ``data``.

        After the last of the ``data`` the first ones follow again.
        """
        if self.data is None:
            return super().prompts(step)
        step = integer("step", step, minimum=0)
        if not self.stochastic:
            return self.data
        assert self.batch is not None  # `__post_init__` has set it
        position = step * self.batch + np.arange(self.batch)
        return selected(self.data, position % len(self.data.answer))

    def losses_on(self, params: Array, prompts: Sentences) -> Array:
        """Loss of each of B sentences, (B,).

        If a logit of any sentence is not finite, all losses are infinite.
        """
        logits = self._forward(self._matrices(params), prompts.tokens).logits
        if not np.isfinite(logits).all():
            return np.full(len(logits), math.inf)
        losses, _ = cross_entropy(logits, prompts.answer)
        return losses

    def evaluate_on(self, params: Array, prompts: Sentences) -> tuple[float, Array]:
        """Mean loss of some sentences, and its gradient, by a backward pass.

        If a logit is not finite, the loss is infinite and the gradient zero.
        """
        matrices = self._matrices(params)
        answer = prompts.answer
        forward = self._forward(matrices, prompts.tokens)
        if not np.isfinite(forward.logits).all():
            return math.inf, np.zeros_like(params)
        # At first ``logit_gradient`` has the probabilities of all words. These are the
        # derivatives with respect to the logits, except at the answers.
        losses, logit_gradient = cross_entropy(forward.logits, answer)
        logit_gradient[logit_gradient < SMALLEST_PROBABILITY] = 0.0
        # The derivative with respect to the logit of the answer is p - 1, with the
        # probability p of the answer. Computed as minus the sum of the other
        # probabilities, the derivative keeps its digits if p is close to 1.
        at_answer = (np.arange(len(answer)), answer)
        logit_gradient[at_answer] = 0.0
        logit_gradient[at_answer] = -logit_gradient.sum(axis=1)
        gradients = self._backward(matrices, forward, logit_gradient / len(answer))
        gradient = [gradients[name].ravel() for name in self._trained_in_order]
        return float(np.mean(losses)), np.concatenate(gradient)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Measure on test sentences with seen outputs, and with unseen ones.

        Loss and accuracy are measured on both kinds of sentences, if the task has
        unseen outputs: words that are neither outputs nor triggers nor noise. Further
        numbers are measured only on the sentences with seen outputs: the mean
        probabilities of output and noise, and four mean logits. Two of the logits are
        from attention, for the output and for the other word with the largest logit.
        Two are from the feed-forward layer, for noise and for the other word with the
        largest logit.
        """
        observed: dict[str, float] = {}
        matrices = self._matrices(params)
        for name, test in self._tests.items():
            forward = self._forward(matrices, test.tokens)
            measured = self._measured(forward.logits, test)
            observed[f"{name}_loss"] = measured.loss
            observed[f"{name}_accuracy"] = measured.accuracy
            if name == "seen":
                observed["output"] = measured.output
                observed["noise"] = measured.noise
                observed |= self._layer_logits(forward, test)
        return {name: np.asarray(value) for name, value in observed.items()}

    def _layer_logits(self, forward: _Pass, test: Sentences) -> dict[str, float]:
        """Mean logits that each layer gives its own word, and the best other word.

        Attention's own word is the output, and the feed-forward layer's own word is
        noise. The best other word has the largest logit.
        """
        noise = np.full_like(test.output, self.task.noise_word)
        attention_logits = forward.u[:, : self.task.V]
        of_attention = _mean_logits(attention_logits, test.output)
        of_feed_forward = _mean_logits(forward.feed_forward_logits, noise)
        return {
            "attention_output": of_attention.of_word,
            "attention_other": of_attention.of_other,
            "feed_forward_noise": of_feed_forward.of_word,
            "feed_forward_other": of_feed_forward.of_other,
        }

    def measure(
        self, params: Array, sentences: Sentences, without: Collection[str] = ()
    ) -> Measure:
        """Measure a model on sentences, whole or without some of its parts.

        Parameters
        ----------
        params, sentences : ndarray, Sentences
            Flat parameters, and sentences from `RecallTask.sentences`.
        without : collection of {"attention", "feed_forward"}
            Parts to leave out: the output u of attention, and the matrix F.

        Returns
        -------
        Measure
        """
        parts = instance(
            "without",
            without,
            Collection,  # type: ignore[type-abstract]
            "a collection of attention, feed_forward",
        )
        for part in parts:
            choice("without", part, PARTS)
        instance("sentences", sentences, Sentences, "sentences of a RecallTask")
        tokens = sentences.tokens
        if tokens.max(initial=0) >= self.task.V:
            raise argument_error(
                "sentences", int(tokens.max()), f"made of words below V = {self.task.V}"
            )
        forward = self._forward(self.matrices(params), tokens, without)
        measured = self._measured(forward.logits, sentences)
        if not math.isfinite(measured.loss):
            # The error shows the largest parameter, because all would be too many.
            raise argument_error(
                "params",
                float(np.max(np.abs(params))),
                "numbers with finite logits (largest shown)",
            )
        return measured

    def _measured(self, logits: Array, sentences: Sentences) -> Measure:
        """Measure predictions; a logit that is not finite makes the loss infinite."""
        if not np.isfinite(logits).all():
            return Measure(loss=math.inf, accuracy=0.0, output=0.0, noise=0.0)
        losses, probs = cross_entropy(logits, sentences.answer)
        likeliest = logits.argmax(axis=1)
        output_prob = probs[np.arange(len(probs)), sentences.output]
        noise_prob = probs[:, self.task.noise_word]
        return Measure(
            loss=float(np.mean(losses)),
            accuracy=float(np.mean(likeliest == sentences.output)),
            output=float(np.mean(output_prob)),
            noise=float(np.mean(noise_prob)),
        )

    def matrices(self, params: ArrayLike) -> dict[str, Array]:
        """Return W, 𝒱 and F, by name."""
        return self._matrices(self._checked(params))

    def _matrices(self, params: Array) -> dict[str, Array]:
        """Return W, 𝒱 and F: the trained ones from ``params``, the others fixed."""
        matrices = dict(self._start)
        blocks = self.blocks(params)
        for name, block in zip(self._trained_in_order, blocks, strict=True):
            matrices[name] = block.reshape(2 * self.task.V, -1)
        return matrices

    @cached_property
    def _start(self) -> dict[str, Array]:
        """All three matrices at step 0, by name."""
        # Every step allocates arrays of the same sizes again, so the process keeps
        # freed memory instead of returning it to the system.
        keep_freed()
        # The start has the stream 1, because the sentences of the steps have the stream
        # 0 (see ``stream``) and the test sentences the stream 2.
        rng = np.random.default_rng([self.seed, 1])
        width = 2 * self.task.V
        deviation = self.scale / np.sqrt(width)
        assert self.gamma is not None  # `__post_init__` has set it
        # 𝒱 and F of the reparameterised model, by name.
        fixed = gates(self.task, self.weights, self.gamma)
        start = {}
        for name in MATRICES:
            # Draw a matrix even if it is not used, so that the draws of the others do
            # not depend on ``trained``.
            random = rng.normal(0.0, deviation, (width, width))
            is_fixed = name in fixed and not self._trains(name)
            start[name] = fixed[name] if is_fixed else random
        return start

    @cached_property
    def _tests(self) -> dict[str, Sentences]:
        """Test sentences with seen outputs, and with unseen ones if there are any."""
        tests = {}
        for name, words in (("seen", self.task.outputs), ("unseen", self.task.unseen)):
            if words.size:
                # With the same seed, seen and unseen test sentences differ only in
                # their outputs.
                rng = np.random.default_rng([self.seed, 2])
                tests[name] = self.task.sentences(rng, self.tests, words)
        return tests

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(
        self,
        matrices: Mapping[str, Array],
        tokens: Words,
        without: Collection[str] = (),
    ) -> _Pass:
        """Run the model, without the named parts.

        Logits may overflow: callers have to check that they are finite.
        """
        B = len(tokens)
        V = self.task.V
        last = tokens[:, -1]
        previous = tokens[:, -2]
        # x_H = E(last) + Ẽ(previous)
        query = np.zeros((B, 2 * V))
        query[np.arange(B), last] = 1.0
        query[np.arange(B), V + previous] = 1.0
        # The tables Wᵀ x_H, (B, 2V). As x_H has two ones, they are sums of two rows of
        # W.
        W = matrices["attention"]
        score_tables = W[last] + W[V + previous]

        word_vectors = self._word_vectors(tokens)
        scores = (word_vectors @ score_tables.ravel()).reshape(B, -1)
        scores += self.kink  # 0 unless the attention is ReLU
        weights = self._weights_of(scores)
        attended = _weighted_sums(word_vectors, weights)

        u = self._times_value(matrices["value"].T, attended)
        if "attention" in without:
            u = np.zeros_like(u)
        feed_forward_input = query + u if self.kappa else query
        feed_forward_logits = np.zeros((B, V))
        # the rows of F that add to the logits
        rows = self._rows(matrices)
        if "feed_forward" not in without:
            feed_forward_logits[:, rows] = (
                feed_forward_input @ matrices["feed_forward"][rows].T
            )
        return _Pass(
            word_vectors=word_vectors,
            query=query,
            scores=scores,
            weights=weights,
            attended=attended,
            u=u,
            feed_forward_input=feed_forward_input,
            feed_forward_logits=feed_forward_logits,
            logits=u[:, :V] + feed_forward_logits,
        )

    def _weights_of(self, scores: Array) -> Array:
        """Return the attention weights σ(scores), (B, n)."""
        if self.attention == "relu":
            return np.maximum(scores, 0.0)
        if self.attention == "linear":
            return scores
        # softmax, in place because new large arrays take as long as the arithmetic
        weights = scores - scores.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def _times_value(self, value: Array, vectors: Array) -> Array:
        """Product of row vectors with ``value``, which is 𝒱 or 𝒱ᵀ."""
        if self._trains("value"):
            return vectors @ value
        # A 𝒱 that is not trained is diagonal.
        return vectors * value.diagonal()

    def _backward(
        self, matrices: Mapping[str, Array], forward: _Pass, logit_gradient: Array
    ) -> dict[str, Array]:
        """Gradients with respect to the trained matrices, by name.

        ``logit_gradient`` is the gradient with respect to the logits, (B, V).
        """
        gradients = {}
        # the rows of F that add to the logits
        rows = self._rows(matrices)
        # With respect to the input x_H + κu of F.
        input_gradient = logit_gradient[:, rows] @ matrices["feed_forward"][rows]
        if self._trains("feed_forward"):
            gradients["feed_forward"] = np.zeros_like(matrices["feed_forward"])
            gradients["feed_forward"][rows] = (
                logit_gradient.T @ forward.feed_forward_input
            )

        # u reaches the logits directly, and through F if κ = 1.
        u_gradient = self.kappa * input_gradient
        u_gradient[:, : self.task.V] += logit_gradient
        if self._trains("value"):
            gradients["value"] = u_gradient.T @ forward.attended
        if not self._trains("attention"):
            return gradients

        attended_gradient = self._times_value(matrices["value"], u_gradient)
        # The attended vector is Σ_h w_h x_h, so the derivative with respect to the
        # weight w_h is x_h · attended_gradient.
        weight_gradient = forward.word_vectors @ attended_gradient.ravel()
        weight_gradient = weight_gradient.reshape(forward.weights.shape)
        score_gradient = self._through_weights(
            weight_gradient, attended_gradient, forward
        )
        # The gradient of the score x_Hᵀ W x_h with respect to W is x_H x_hᵀ. So the sum
        # over the words of a sentence is x_H times a table.
        gradient_tables = _weighted_sums(forward.word_vectors, score_gradient)
        gradients["attention"] = forward.query.T @ gradient_tables
        return gradients

    def _through_weights(
        self, weight_gradient: Array, attended_gradient: Array, forward: _Pass
    ) -> Array:
        """Return the gradient with respect to the scores, (B, n).

        ``weight_gradient``, which may be overwritten, is the gradient with respect to
        the weights.
        """
        if self.attention == "softmax":
            # The derivative with respect to the score of h is w_h (g_h - Σ_k w_k g_k),
            # where g is the gradient with respect to the weights. As
            # g_k = x_k · attended_gradient, the sum is
            # Σ_k w_k x_k · attended_gradient = attended · attended_gradient.
            mean_gradient = np.sum(
                attended_gradient * forward.attended, axis=1, keepdims=True
            )
            weight_gradient -= mean_gradient
            weight_gradient *= forward.weights
        elif self.attention == "relu":
            # The derivative of ReLU is taken as 1 at 0, so that training from zero can
            # start.
            weight_gradient[forward.scores < 0.0] = 0.0
        return weight_gradient

    def _word_vectors(self, tokens: Words) -> Any:
        """Vectors x_h of the attended words, the rows of a sparse (B n, 2 B V) matrix.

        The columns are the entries of the B tables, one table after the other. The
        vector of a word of sentence i stands in the columns 2 V i to 2 V (i + 1), which
        are the table of this sentence.
        """
        from scipy.sparse import csr_array

        # The weights "identity" attend to the last word, too.
        attended_tokens = tokens if self.weights == "identity" else tokens[:, :-1]
        V = self.task.V
        B, n = attended_tokens.shape
        # ``columns`` has, for each attended word, the column of the word itself and the
        # column of the word before it. The index type of the sparse matrix is chosen
        # here to save a conversion: int32 if all indices and the number 2 B n of stored
        # entries fit into it.
        index_type = np.int32 if 2 * B * max(n, V) < 2**31 else np.int64
        columns = np.empty((B, n, 2), index_type)
        own_columns = columns[:, :, 0]
        previous_columns = columns[:, :, 1]
        first_column = 2 * V * np.arange(B)[:, None]
        # "unsafe" allows NumPy to write the sum of int64 numbers into int32.
        np.add(attended_tokens, first_column, out=own_columns, casting="unsafe")
        # The column of Ẽ(z) is V columns after the column of E(z).
        np.add(own_columns[:, :-1], V, out=previous_columns[:, 1:])
        # The first word of a sentence has no previous word. The second entry of its row
        # is a stored zero.
        previous_columns[:, 0] = 0
        entries = np.ones((B, n, 2))
        entries[:, 0, 1] = 0.0
        # Every row has two entries.
        row_ends = np.arange(0, columns.size + 1, 2, dtype=index_type)
        return csr_array(
            (entries.ravel(), columns.ravel(), row_ends), shape=(B * n, 2 * B * V)
        )

    def _trains(self, name: str) -> bool:
        """Whether the matrix of this name is trained."""
        return name in self._trained_in_order

    def _rows(self, matrices: Mapping[str, Array]) -> slice | Words:
        """Rows of F that add to the logits.

        If F is trained, they are its first V rows, one for the logit of each word.
        Otherwise they are the rows that are not zero: the row of noise, or none.
        """
        if self._trains("feed_forward"):
            return slice(self.task.V)
        return np.flatnonzero(matrices["feed_forward"].any(axis=1))


def _weighted_sums(word_vectors: Any, weights: Array) -> Array:
    """Return the tables Σ_h w_h x_h, (B, 2V), for the ``weights`` w, (B, n).

    ``word_vectors`` is the sparse matrix of all x_h, see
    ``TransformerRisk._word_vectors``. An entry of a table adds up the weights of equal
    words, or of equal previous words.
    """
    return np.asarray(word_vectors.T @ weights.ravel()).reshape(len(weights), -1)


class _MeanLogits(NamedTuple):
    """Two logits, averaged over the sentences."""

    of_word: float  # the logit of a given word of each sentence
    of_other: float  # the largest logit of all other words


def _mean_logits(logits: Array, word: Words) -> _MeanLogits:
    """Return the mean logits of a word of each sentence, and of the best other word.

    ``logits`` is (B, V). ``word`` has the words, (B,).
    """
    at_word = (np.arange(len(word)), word)
    other_logits = logits.copy()
    other_logits[at_word] = -np.inf
    return _MeanLogits(
        of_word=float(np.mean(logits[at_word])),
        of_other=float(np.mean(other_logits.max(axis=1))),
    )
