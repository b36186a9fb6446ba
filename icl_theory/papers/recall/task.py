r"""The in-context recall task: its words, its sentences, and the law of the next word.

A sentence has H words out of a vocabulary of V words. It ends with a trigger q, one of
Q words. Earlier in the sentence q is followed by an output y at least once, and
otherwise only by the noise word τ. These pairs of words are the *bigrams* of q: there
are c bigrams (q, y) and c_τ bigrams (q, τ). The word after the sentence, the answer, is
τ with probability α and y otherwise. A `RecallTask` draws such sentences and predicts
their next words. Every risk in this folder is the risk of a task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    floats,
    instance,
    integer,
    is_masked,
    probabilities,
)
from icl_theory.memory import check_fits
from icl_theory.papers.recall.counts import Counts, noise_level

# Largest V that is allowed. The value is a choice: no vocabulary in use is so large.
LARGEST_VOCABULARY = 10**9
# How the words around the bigrams are drawn, see `RecallTask`.
LAWS = ("markov", "planted")
# An estimate of the memory for each word of a drawn sentence: about five numbers of 8
# bytes.
BYTES_PER_WORD = 40.0
# An array of words. Indices and counts have the same type.
Words = NDArray[np.intp]


class Sentences(NamedTuple):
    """A batch of B sentences of H words; arrays are (B,) except ``tokens``."""

    tokens: Words  # the words, (B, H)
    answer: Words  # the word after the sentence: the output, or noise
    output: Words  # the word y
    trigger: Words  # index of q among the task's triggers
    c: Words  # number of bigrams of the trigger with the output
    c_tau: Words  # number of bigrams of the trigger with noise


def check_sentences(data: Sentences, task: RecallTask) -> Sentences:
    """Return a batch of sentences; refuse words or triggers that the task lacks."""
    instance("data", data, Sentences, "Sentences of `RecallTask.sentences`")
    limits = (
        ("words", data.tokens, task.V),
        ("answers", data.answer, task.V),
        ("outputs", data.output, task.V),
        ("triggers", data.trigger, task.Q),
    )
    for name, numbers, limit in limits:
        smallest = numbers.min()
        largest = numbers.max()
        if not 0 <= smallest <= largest < limit:
            raise ValueError(
                f"data has {name} {smallest} to {largest}: must be sentences of the"
                f" task, whose {name} are 0 to {limit - 1}"
            )
    return data


class RecallTask:
    r"""In-context recall over a vocabulary of words 0 to V−1.

    `sentences` places the bigrams (q, y) and (q, τ), as blocks of two words, uniformly
    at random among the first H - 1 words. The other words are not q, so that no bigram
    with q arises by accident and the counts have exactly the law ``counts``. With the
    law "markov" the other words are uniform among all words but q. With the counts of
    `Counts.sentence` the sentences have the law of words that are drawn from left to
    right, as described there. With "planted", the law of the paper's experiments, the
    other words are neither triggers nor τ. Unless ``counts`` is given, there is then
    one bigram (q, y), and with noise also one (q, τ). With noise this law allows only
    one trigger. See docs/theory.md, "In-context recall"; *How Transformers Learn
    In-Context Recall Tasks?*, experiments.

    Parameters
    ----------
    V, H : int
        Number of words of the vocabulary, and of a sentence.
    triggers, outputs : int or sequence of int
        The words, or their number. A number of triggers stands for the first words, and
        a number of outputs for the words after these triggers.
    alpha : float
        α in [0, 1): probability that the next word is noise.
    probs : array_like, (Q,), optional
        Probabilities of the triggers; uniform by default.
    counts : Counts, array_like or sequence of Counts, optional
        Law of the numbers of bigrams, either one for all triggers or one for each of
        them. An array is the ``pmf`` of a `Counts` for all triggers. The default is
        `Counts.sentence` with density ¼ and noise α for the law "markov"; for
        "planted" see above.
    noise_word : int, optional
        τ; by default the last word.
    law : {"markov", "planted"}
        Which words stand around the bigrams, as described above.

    Raises
    ------
    ValueError
        An argument is out of range or contradicts another; the message names it.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> task = icl.recall.RecallTask(V=10, triggers=2, outputs=3, alpha=0.1, H=9)
    >>> batch = task.sentences(np.random.default_rng(0), 2)
    >>> batch.tokens.shape, round(task.bayes_risk, 4)
    ((2, 9), 0.3251)
    """

    def __init__(
        self,
        V: int,
        triggers: int | Sequence[int] | Words,
        outputs: int | Sequence[int] | Words,
        *,
        alpha: float = 0.0,
        probs: ArrayLike | None = None,
        counts: Counts | ArrayLike | Sequence[Counts] | None = None,
        H: int = 33,
        noise_word: int | None = None,
        law: str = "markov",
    ) -> None:
        self.law = choice("law", law, LAWS)
        self.V = integer("V", V, minimum=3, maximum=LARGEST_VOCABULARY)
        self.noise_word = self.V - 1
        if noise_word is not None:
            self.noise_word = self._word("noise_word", noise_word)
        self.triggers = self._words("triggers", triggers, first=0)
        # Outputs that are given by their number follow triggers given by their number.
        first_output = 0
        if _is_number_of_words(triggers):
            first_output = int(self.triggers.max()) + 1
        self.outputs = self._words("outputs", outputs, first=first_output)
        self._check_words()
        self.alpha = noise_level("alpha", alpha)
        Q = len(self.triggers)
        self.probs = np.full(Q, 1.0 / Q)
        if probs is not None:
            self.probs = probabilities("probs", probs, Q)
        if integer("H", H, minimum=0) < 3:
            # This error gives the reason, which the error of `integer` would not.
            raise argument_error(
                "H", H, "at least 3: a trigger, its output, and the trigger again"
            )
        self.H = int(H)  # a float without a fraction is allowed
        if self.law == "planted" and self.alpha and Q > 1:
            raise argument_error(
                "triggers",
                Q,
                "1 with noise and law = 'planted', as in the paper's sentences",
            )
        self.counts = self._laws(counts)
        self._check_length()

        # The arguments by name, from which a sweep can make the task again; None if the
        # task has words of its own, which numbers do not describe.
        self.parts: dict[str, Any] | None = None
        only_numbers = _is_number_of_words(triggers) and _is_number_of_words(outputs)
        if only_numbers and self.noise_word == self.V - 1:
            given_probs = None
            if probs is not None:
                given_probs = tuple(np.asarray(probs, dtype=np.float64).tolist())
            given_counts = None if counts is None else self.law_of_counts
            self.parts = self.numbers | {"probs": given_probs, "counts": given_counts}

    def _check_words(self) -> None:
        """Refuse too many words, and words with two roles."""
        needed = len(self.triggers) + len(self.outputs) + 1
        if needed > self.V:
            raise argument_error(
                "V",
                self.V,
                f"at least {needed}, the number of triggers, outputs and noise words",
            )
        for name, words in (("triggers", self.triggers), ("outputs", self.outputs)):
            if self.noise_word in words:
                raise argument_error(
                    name, words.tolist(), f"without the noise word {self.noise_word}"
                )
        if np.intersect1d(self.triggers, self.outputs).size:
            raise argument_error(
                "outputs", self.outputs.tolist(), "disjoint from the triggers"
            )

    def _check_length(self) -> None:
        """Refuse sentences that are too short for their bigrams."""
        most = max(law.longest for law in set(self.counts))  # bigrams of a sentence
        needed = 2 * most + 1  # the last word is the trigger
        if needed > self.H:
            raise argument_error(
                "H",
                self.H,
                f"at least {needed}: there are up to {most} bigrams of two words",
            )

    def __repr__(self) -> str:
        words = f"V={self.V}, triggers={self.Q}, outputs={len(self.outputs)}"
        law = "" if self.law == "markov" else f", law={self.law!r}"
        return f"RecallTask({words}, alpha={self.alpha:g}, H={self.H}{law})"

    @property
    def Q(self) -> int:
        """Number of triggers."""
        return len(self.triggers)

    @property
    def law_of_counts(self) -> Counts | tuple[Counts, ...]:
        """The law of the numbers of bigrams; one for each trigger if they differ."""
        return self.counts[0] if len(set(self.counts)) == 1 else self.counts

    @property
    def numbers(self) -> dict[str, Any]:
        """The arguments of the task except ``probs``, ``counts`` and ``noise_word``.

        Each is a number or a string. The entries ``triggers`` and ``outputs`` are the
        numbers of these words, even if the words themselves were given.
        """
        return {
            "V": self.V,
            "triggers": self.Q,
            "outputs": len(self.outputs),
            "alpha": self.alpha,
            "H": self.H,
            "law": self.law,
        }

    @property
    def uniform(self) -> bool:
        """Whether all triggers are equally likely."""
        # Normalising ``probs`` rounds, so that equal probabilities may differ a little.
        return bool(np.ptp(self.probs) <= 1e-15)

    @cached_property
    def alike(self) -> bool:
        """Whether all triggers have the same probability and law of counts."""
        first = self.counts[0]
        return self.uniform and all(law.same(first) for law in set(self.counts))

    @property
    def bayes_risk(self) -> float:
        """Least cross-entropy of any predictor: the binary entropy of α, nats."""
        return entropy(self.alpha)

    @property
    def best_gamma(self) -> float:
        """Log-odds of noise, ``ln(alpha/(1-alpha))``; they are -inf without noise."""
        if not self.alpha:
            return -math.inf
        return math.log(self.alpha) - math.log1p(-self.alpha)

    @cached_property
    def passing(self) -> Words:
        """Words that may be outputs, seen in training or not: no triggers, no noise."""
        # An upper estimate: all words, and copies of them for the comparison.
        check_fits("V", self.V, 40.0 * self.V)
        excluded = [*self.triggers, self.noise_word]
        return np.setdiff1d(np.arange(self.V), excluded).astype(np.intp)

    @cached_property
    def unseen(self) -> Words:
        """Words that are neither triggers, nor outputs, nor noise."""
        return np.setdiff1d(self.passing, self.outputs).astype(np.intp)

    def sentences(
        self,
        rng: np.random.Generator,
        size: int,
        outputs: Sequence[int] | Words | None = None,
    ) -> Sentences:
        """Draw sentences.

        Parameters
        ----------
        rng, size : numpy Generator, int
            The source of randomness, and the number of sentences.
        outputs : sequence of int, optional
            Draw the outputs from these words instead of the task's (any words but
            triggers and noise).

        Returns
        -------
        Sentences
        """
        size = integer("size", size, minimum=1)
        instance("rng", rng, np.random.Generator, "a numpy Generator")
        check_fits("size", size, BYTES_PER_WORD * size * self.H)
        words = self.outputs
        if outputs is not None:
            # An array is never taken for a number of words.
            words = self._words("outputs", np.asarray(outputs), first=0)
        if np.isin(words, [*self.triggers, self.noise_word]).any():
            raise argument_error(
                "outputs", words.tolist(), "words that are neither triggers nor noise"
            )
        # A uniform number selects the trigger between whose edges it falls. The last
        # edge is left out, because rounding may put it below 1.
        edges = np.cumsum(self.probs)[:-1]
        trigger = np.searchsorted(edges, rng.random(size), side="right")
        # Draw one uniform number for each output: the choice of the ``outputs`` then
        # does not change the draws that follow.
        output = words[(rng.random(size) * len(words)).astype(np.intp)]
        c, c_tau = self._draw_counts(rng, trigger)
        # ``trigger`` is an index, and q the word that it stands for.
        q = self.triggers[trigger]
        tokens = self._draw_background(rng, q)
        tokens[:, -1] = q
        self._place_bigrams(rng, tokens, output, c, c_tau)
        answer = np.where(rng.random(size) < self.alpha, self.noise_word, output)
        return Sentences(tokens, answer, output, trigger, c, c_tau)

    def _draw_background(self, rng: np.random.Generator, q: Words) -> Words:
        """Return random words, (B, H), other than the trigger of their sentence.

        ``q`` is the trigger of each sentence, (B,).
        """
        shape = (len(q), self.H)
        if self.law == "planted":
            # neither triggers nor noise
            return self.passing[rng.integers(len(self.passing), size=shape)]
        tokens = rng.integers(self.V - 1, size=shape, dtype=np.intp)
        # Adding 1 to the numbers from q on skips q. The results are uniform over all
        # other words.
        tokens += tokens >= q[:, None]
        return tokens

    def _place_bigrams(
        self,
        rng: np.random.Generator,
        tokens: Words,
        output: Words,
        c: Words,
        c_tau: Words,
    ) -> None:
        """Write the bigrams of the trigger into ``tokens``, as blocks at random places.

        The last words of ``tokens`` are the triggers already.
        """
        q = tokens[:, -1]
        block_count = c + c_tau
        # Sentences with the same number k of blocks are filled together.
        for k in np.unique(block_count):
            with_k_blocks = np.flatnonzero(block_count == k)
            slot, rank = self._slots(rng, len(with_k_blocks), int(k))
            # ``slot`` has the k slots of the first sentence in increasing order, then
            # the slots of the second one, and so on. A slot counts each earlier block
            # of its sentence as one word. As a block has two words, block i of a
            # sentence, i = 0, ..., k - 1, starts at the word number slot + i.
            block_of_sentence = np.arange(len(slot)) % k
            start = slot + block_of_sentence
            row = np.repeat(with_k_blocks, k)
            # The ranks are random: the blocks of the c lowest ranks have the output,
            # and the c_τ others have noise.
            has_output = rank < c[row]
            tokens[row, start] = q[row]
            tokens[row, start + 1] = np.where(has_output, output[row], self.noise_word)

    def predict(self, tokens: ArrayLike) -> Array:
        """Return the Bayes predictor, the law of the next word after each sentence.

        The result has the shape (B, V), for sentences (B, H).

        Raises
        ------
        ValueError
            A sentence does not end with a trigger, or the words after this trigger are
            not one output, at least once, and noise.
        """
        words = self._checked_tokens(tokens)
        output = self._outputs_of(words)
        check_fits("tokens", words.shape, 8.0 * len(words) * self.V)
        law = np.zeros((len(words), self.V))
        law[np.arange(len(words)), output] = 1.0 - self.alpha
        law[:, self.noise_word] = self.alpha
        return law

    def _checked_tokens(self, tokens: ArrayLike) -> Words:
        """Return sentences as an array of integers; refuse other shapes and words."""
        allowed = f"an array of integers, of shape (B, {self.H})"
        # `floats` returns None for anything but real numbers.
        if is_masked(tokens) or floats(tokens) is None:
            raise argument_error("tokens", tokens, allowed)
        words = np.asarray(tokens)
        has_shape = words.ndim == 2 and words.shape[1] == self.H
        if not has_shape or not np.issubdtype(words.dtype, np.integer):
            # The message shows the shape, even if only the type is wrong: a large array
            # would not fit into it.
            raise argument_error("tokens", words.shape, allowed)
        if words.size and not (words.min() >= 0 and words.max() < self.V):
            extremes = [int(words.min()), int(words.max())]
            raise argument_error("tokens", extremes, f"words 0 to {self.V - 1}")
        return words

    def _outputs_of(self, words: Words) -> Words:
        """Output of each sentence; refuse sentences without exactly one output.

        Also refuse sentences that do not end with a trigger.
        """
        q = words[:, -1:]  # (B, 1), to be compared with all words of the sentence
        # The words from the second on, with -1 in place of noise and of each word that
        # does not follow the trigger.
        after_trigger = np.where(words[:, :-1] == q, words[:, 1:], -1)
        after_trigger[after_trigger == self.noise_word] = -1
        output = after_trigger.max(axis=1)  # -1 if there is none
        is_output = after_trigger == output[:, None]
        has_one_output = (is_output | (after_trigger == -1)).all(axis=1)
        is_impossible = (
            ~np.isin(q[:, 0], self.triggers)
            | (output < 0)
            | ~has_one_output
            | np.isin(output, self.triggers)
        )
        if is_impossible.any():
            first_impossible = words[np.argmax(is_impossible)]
            raise argument_error(
                "tokens",
                first_impossible.tolist(),
                "a sentence of the task: see RecallTask",
            )
        return output

    def _words(
        self, name: str, value: int | Sequence[int] | Words, first: int
    ) -> Words:
        """Return given words, or if ``value`` is a number, that many from ``first`` on.

        The noise word is not among the words that a number stands for.
        """
        # A bool is an int in Python, but no number of words. The check of iterables
        # below refuses it.
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            # The limit is generous. A word takes about 200 bytes, so a million words
            # take 200 MB.
            count = integer(name, value, minimum=1, maximum=10**6)
            check_fits(name, value, 200.0 * count)
            if first + count >= self.V:
                raise argument_error(
                    "V", self.V, f"at least {first + count + 1} with {count} {name}"
                )
            # One word more than needed, because the noise word may be among them.
            candidates = np.arange(first, first + count + 1)
            return candidates[candidates != self.noise_word][:count].astype(np.intp)
        if not np.iterable(value) or isinstance(value, str | bytes):
            raise argument_error(name, value, "a number of words, or the words")
        words = np.array([self._word(name, word) for word in value], dtype=np.intp)
        if not words.size or np.unique(words).size < words.size:
            raise argument_error(name, value, "one word at least, none of them twice")
        return words

    def _word(self, name: str, value: int) -> int:
        """Return a word, or refuse it unless it is an integer from 0 to V - 1."""
        return integer(name, value, minimum=0, maximum=self.V - 1)

    def _laws(
        self, counts: Counts | ArrayLike | Sequence[Counts] | None
    ) -> tuple[Counts, ...]:
        """Return the law of the counts for each trigger, a tuple of Q laws.

        ``counts`` is the argument of the constructor: None; one law for all triggers,
        given as a `Counts` or by its probabilities; or a list with a `Counts` for each
        trigger.
        """
        if counts is None:
            return (self._default_law(),) * self.Q
        if isinstance(counts, Counts):
            return (counts,) * self.Q
        if not isinstance(counts, list | tuple):
            # an array of probabilities
            return (Counts(counts),) * self.Q  # type: ignore[arg-type]
        is_law = [isinstance(law, Counts) for law in counts]
        if not any(is_law):
            # a list of probabilities
            return (Counts(counts),) * self.Q  # type: ignore[arg-type]
        if len(counts) != self.Q or not all(is_law):
            raise argument_error(
                "counts", counts, f"one Counts, or {self.Q} of them, one a trigger"
            )
        return tuple(counts)

    def _default_law(self) -> Counts:
        """Default law of the counts, which depends on the law of sentences."""
        if self.law == "planted":
            return Counts.fixed(1, int(self.alpha > 0))
        return Counts.sentence(self.H, noise=self.alpha)

    def _slots(
        self, rng: np.random.Generator, size: int, k: int
    ) -> tuple[Words, Words]:
        """Draw slots of k blocks for ``size`` sentences, and ranks of the blocks.

        With each block counted as one word, the first H - 1 words of a sentence are
        H - 1 - k slots. The returned slots of a sentence are in increasing order, and
        its ranks are 0 to k - 1 in random order. Both arrays are (size k,), sentence by
        sentence.
        """
        if self.law == "markov":
            # Give all slots random ranks. The slots of the ranks 0, ..., k - 1 have
            # blocks. `argsort` gives the order of numbers, and `argsort` of that order
            # gives their ranks.
            uniform = rng.random((size, self.H - 1 - k))
            rank = np.argsort(uniform, axis=1).argsort(axis=1)
            sentence, slot = np.nonzero(rank < k)
            return slot, rank[sentence, slot]
        # A planted sentence has few blocks. Draw each slot by its number among the
        # slots that are still free, and then add one for each taken slot at or before
        # it, in increasing order.
        slots = np.empty((size, 0), dtype=np.intp)
        for taken_count in range(k):
            new_slot = rng.integers(self.H - 1 - k - taken_count, size=size)
            for taken_slot in np.sort(slots, axis=1).T:
                new_slot += new_slot >= taken_slot
            slots = np.column_stack([slots, new_slot])
        # The order in which the slots were drawn is random, so it gives the ranks.
        order = np.argsort(slots, axis=1)
        return np.take_along_axis(slots, order, axis=1).ravel(), order.ravel()

    def _draw_counts(
        self, rng: np.random.Generator, trigger: Words
    ) -> tuple[Words, Words]:
        """Draw c and c_τ for each sentence."""
        uniform = rng.random(len(trigger))
        c = np.empty_like(trigger)
        c_tau = np.empty_like(trigger)
        # Sentences whose triggers have the same law are drawn together.
        different_laws = dict.fromkeys(self.counts)  # in the order of the triggers
        index_of = {law: index for index, law in enumerate(different_laws)}
        law_of_trigger = np.array([index_of[law] for law in self.counts])
        law_of_sentence = law_of_trigger[trigger]
        for law, index in index_of.items():
            sentences_of_law = np.flatnonzero(law_of_sentence == index)
            possible_pairs = np.flatnonzero(law.pmf)
            # A uniform number selects the pair between whose edges it falls, and the
            # last edge is left out, as in `sentences`.
            edges = np.cumsum(law.pmf.ravel()[possible_pairs])[:-1]
            drawn = np.searchsorted(edges, uniform[sentences_of_law], side="right")
            pair = possible_pairs[drawn]
            # The flat index of a pair is c × (number of columns) + c_τ.
            number_of_columns = law.pmf.shape[1]
            drawn_c, drawn_c_tau = np.divmod(pair, number_of_columns)
            c[sentences_of_law] = drawn_c
            c_tau[sentences_of_law] = drawn_c_tau
        return c, c_tau


def _is_number_of_words(words: int | Sequence[int] | Words) -> bool:
    """Whether words are given by their number, and not one by one."""
    return isinstance(words, int | np.integer)


def entropy(alpha: float) -> float:
    """Return the entropy of a coin with the probabilities α and 1 - α, in nats."""
    # At 0 and 1 the formula would take the logarithm of 0.
    if not 0 < alpha < 1:
        return 0.0
    return float(-alpha * math.log(alpha) - (1.0 - alpha) * math.log1p(-alpha))
