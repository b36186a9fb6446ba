r"""The in-context recall task: its words, its sentences, and the law of the next word.

A sentence ends with a trigger q. Earlier q was followed by an output y at least once,
and otherwise only by the noise word τ. The next word is τ with probability α and y
otherwise.
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

LARGEST_VOCABULARY = 10**9
LAWS = ("markov", "planted")
BYTES = 40.0  # of memory for each word of a sentence
Words = NDArray[np.intp]


class Sentences(NamedTuple):
    """A batch of B sentences; arrays are (B,) except ``tokens``."""

    tokens: Words  # (B, H)
    answer: Words  # the next word
    output: Words
    trigger: Words  # index among the task's triggers
    c: Words  # bigrams of the trigger with the output
    c_tau: Words  # bigrams of the trigger with noise


def check_sentences(data: Sentences, task: RecallTask) -> Sentences:
    """Refuse what is no batch of sentences, and sentences over other words or triggers."""
    instance("data", data, Sentences, "Sentences of `RecallTask.sentences`")
    for name, words, most in (
        ("words", data.tokens, task.V),
        ("answers", data.answer, task.V),
        ("outputs", data.output, task.V),
        ("triggers", data.trigger, task.Q),
    ):
        if not 0 <= words.min() <= words.max() < most:
            found = f"{name} {words.min()} to {words.max()}"
            allowed = f"{name} are 0 to {most - 1}"
            raise ValueError(
                f"data has {found}: must be sentences of the task, whose {allowed}"
            )
    return data


class RecallTask:
    r"""In-context recall over a vocabulary of words 0 to V−1.

    `sentences` places the blocks (q, y) and (q, τ) uniformly at random among the first
    H - 1 words. The other words are uniform among words other than q, so that no bigram
    with q arises by accident and the counts have exactly the law ``counts``. The law
    "markov" fills with all of these words; for `Counts.sentence` it is the law of the
    Markov chain described there. The law "planted" is that of the paper's experiments:
    it fills with words that are neither triggers nor τ, and plants one bigram (q, y),
    with noise also one bigram (q, τ), unless ``counts`` differs. With noise it has one
    trigger. See docs/theory.md, "In-context recall"; *How Transformers Learn In-Context
    Recall Tasks?*, experiments.

    Parameters
    ----------
    V, H : int
        Number of words of the vocabulary, and of a sentence.
    triggers, outputs : int or sequence of int
        The words, or their numbers: then the triggers are the first words, and the
        outputs follow them.
    alpha : float
        α in [0, 1): probability that the next word is noise.
    probs : array_like, (Q,), optional
        Probabilities of the triggers; uniform by default.
    counts : Counts, array_like or sequence of Counts, optional
        Law of the numbers of bigrams, one for all triggers or one for each; by default
        `Counts.sentence` with density ¼ and noise α.
    noise_word : int, optional
        τ; by default the last word.
    law : {"markov", "planted"}

    Raises
    ------
    ValueError
        An argument is out of range or contradicts another; the message names it.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> task = icl.recall.RecallTask(V=10, triggers=2, outputs=3, alpha=0.1, H=9)
    >>> some = task.sentences(np.random.default_rng(0), 2)
    >>> some.tokens.shape, round(task.bayes_risk, 4)
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
        self.noise_word = (
            self.V - 1 if noise_word is None else self._word("noise_word", noise_word)
        )
        self.triggers = self._words("triggers", triggers, 0)
        first = (
            int(self.triggers.max()) + 1
            if isinstance(triggers, int | np.integer)
            else 0
        )
        self.outputs = self._words("outputs", outputs, first)
        needed = len(self.triggers) + len(self.outputs) + 1
        if needed > self.V:
            raise argument_error(
                "V",
                V,
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
        self.alpha = noise_level("alpha", alpha)
        Q = len(self.triggers)
        self.probs = (
            np.full(Q, 1.0 / Q) if probs is None else probabilities("probs", probs, Q)
        )
        if integer("H", H, minimum=0) < 3:
            raise argument_error(
                "H", H, "at least 3: a trigger, its output, and the trigger again"
            )
        self.H = int(H)
        if self.law == "planted" and self.alpha and Q > 1:
            raise argument_error(
                "triggers",
                Q,
                "1 with noise and law = 'planted', as in the paper's sentences",
            )
        self.counts = self._laws(counts)
        longest = max(law.longest for law in set(self.counts))
        if 2 * longest + 1 > self.H:
            raise argument_error(
                "H",
                H,
                f"at least {2 * longest + 1}: there are up to {longest} bigrams of two words",
            )
        given = (
            None
            if probs is None
            else tuple(np.asarray(probs, dtype=np.float64).tolist())
        )
        laws = None if counts is None else self.law_of_counts
        counted = isinstance(triggers, int | np.integer) and isinstance(
            outputs, int | np.integer
        )
        default = counted and self.noise_word == self.V - 1
        # its arguments by name; None if its words are not the default ones
        self.parts: dict[str, Any] | None = (
            self.numbers | {"probs": given, "counts": laws} if default else None
        )

    def __repr__(self) -> str:
        law = "" if self.law == "markov" else f", law={self.law!r}"
        words = f"V={self.V}, triggers={self.Q}, outputs={len(self.outputs)}, alpha={self.alpha:g}"
        return f"RecallTask({words}, H={self.H}{law})"

    @property
    def Q(self) -> int:
        """Number of triggers."""
        return len(self.triggers)

    @property
    def law_of_counts(self) -> Counts | tuple[Counts, ...]:
        """The law of the numbers of bigrams, or those of the triggers if they differ."""
        return self.counts[0] if len(set(self.counts)) == 1 else self.counts

    @property
    def numbers(self) -> dict[str, Any]:
        """The arguments that are numbers and words, of any task."""
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
        return bool(np.ptp(self.probs) <= 1e-15)

    @cached_property
    def alike(self) -> bool:
        """Whether all triggers have the same probability and counts."""
        first = self.counts[0]
        return self.uniform and all(law.same(first) for law in set(self.counts))

    @property
    def bayes_risk(self) -> float:
        """Least cross-entropy of any predictor: the binary entropy of α, nats."""
        return entropy(self.alpha)

    @property
    def best_gamma(self) -> float:
        """``ln(alpha/(1-alpha))``, the log-odds of noise: -inf without noise."""
        return (
            math.log(self.alpha) - math.log1p(-self.alpha) if self.alpha else -math.inf
        )

    @cached_property
    def passing(self) -> Words:
        """Words that may be outputs, seen or not: neither triggers nor noise."""
        check_fits("V", self.V, 40.0 * self.V)
        return np.setdiff1d(
            np.arange(self.V), [*self.triggers, self.noise_word]
        ).astype(np.intp)

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
            The source of randomness, and how many.
        outputs : sequence of int, optional
            Draw the outputs from these words instead of the task's (any words but
            triggers and noise).

        Returns
        -------
        Sentences
        """
        size = integer("size", size, minimum=1)
        instance("rng", rng, np.random.Generator, "a numpy Generator")
        check_fits("size", size, BYTES * size * self.H)
        words = (
            self.outputs
            if outputs is None
            else self._words("outputs", np.asarray(outputs), 0)
        )
        if np.isin(words, [*self.triggers, self.noise_word]).any():
            raise argument_error(
                "outputs", words.tolist(), "words that are neither triggers nor noise"
            )
        trigger = np.searchsorted(
            np.cumsum(self.probs)[:-1], rng.random(size), side="right"
        )
        # a choice of outputs does not change the other draws
        output = words[(rng.random(size) * len(words)).astype(np.intp)]
        c, c_tau = self._draw_counts(rng, trigger)
        q = self.triggers[trigger]
        if self.law == "planted":
            tokens = self.passing[rng.integers(len(self.passing), size=(size, self.H))]
        else:
            tokens = rng.integers(self.V - 1, size=(size, self.H), dtype=np.intp)
            tokens += tokens >= q[:, None]  # any word but the sentence's trigger
        tokens[:, -1] = q
        blocks = c + c_tau
        for k in np.unique(blocks):
            rows = np.flatnonzero(blocks == k)
            slot, rank = self._slots(rng, len(rows), int(k))
            # earlier blocks of the sentence have two words each
            start = slot + (np.arange(len(slot)) % k)
            row = np.repeat(rows, k)
            right = rank < c[row]
            tokens[row, start] = q[row]
            tokens[row, start + 1] = np.where(right, output[row], self.noise_word)
        answer = np.where(rng.random(size) < self.alpha, self.noise_word, output)
        return Sentences(tokens, answer, output, trigger, c, c_tau)

    def predict(self, tokens: ArrayLike) -> Array:
        """Return the Bayes predictor: the distribution of the next word after each sentence, (B, V).

        Raises
        ------
        ValueError
            The task cannot produce one of the sentences.
        """
        if is_masked(tokens) or floats(tokens) is None:
            raise argument_error(
                "tokens", tokens, f"an array of integers, of shape (B, {self.H})"
            )
        read = np.asarray(tokens)
        if (
            read.ndim != 2
            or read.shape[1] != self.H
            or not np.issubdtype(read.dtype, np.integer)
        ):
            raise argument_error(
                "tokens", read.shape, f"an array of integers, of shape (B, {self.H})"
            )
        if read.size and not (read.min() >= 0 and read.max() < self.V):
            raise argument_error(
                "tokens", [int(read.min()), int(read.max())], f"words 0 to {self.V - 1}"
            )
        q = read[:, -1:]
        after = np.where(read[:, :-1] == q, read[:, 1:], -1)
        after[after == self.noise_word] = -1
        output = after.max(axis=1)
        single = ((after == output[:, None]) | (after == -1)).all(axis=1)
        wrong = (
            ~np.isin(q[:, 0], self.triggers)
            | (output < 0)
            | ~single
            | np.isin(output, self.triggers)
        )
        for row in np.flatnonzero(wrong)[:1]:
            raise argument_error(
                "tokens", read[row].tolist(), "a sentence of the task: see RecallTask"
            )
        check_fits("tokens", read.shape, 8.0 * len(read) * self.V)
        law = np.zeros((len(read), self.V))
        law[np.arange(len(read)), output] = 1.0 - self.alpha
        law[:, self.noise_word] = self.alpha
        return law

    def _words(
        self, name: str, value: int | Sequence[int] | Words, first: int
    ) -> Words:
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            count = integer(name, value, minimum=1, maximum=10**6)
            check_fits(name, value, 200.0 * count)
            if first + count >= self.V:
                raise argument_error(
                    "V", self.V, f"at least {first + count + 1} with {count} {name}"
                )
            candidates = np.arange(first, first + count + 1)
            return candidates[candidates != self.noise_word][:count].astype(np.intp)
        if not np.iterable(value) or isinstance(value, str | bytes):
            raise argument_error(name, value, "a number of words, or the words")
        words = np.array([self._word(name, word) for word in value], dtype=np.intp)
        if not words.size or np.unique(words).size < words.size:
            raise argument_error(name, value, "one word at least, none of them twice")
        return words

    def _word(self, name: str, value: int) -> int:
        return integer(name, value, minimum=0, maximum=self.V - 1)

    def _laws(
        self, counts: Counts | ArrayLike | Sequence[Counts] | None
    ) -> tuple[Counts, ...]:
        if counts is None:
            planted = self.law == "planted"
            law = (
                Counts.fixed(1, int(self.alpha > 0))
                if planted
                else Counts.sentence(self.H, noise=self.alpha)
            )
            return (law,) * self.Q
        if isinstance(counts, Counts):
            return (counts,) * self.Q
        if isinstance(counts, list | tuple) and any(
            isinstance(law, Counts) for law in counts
        ):
            if len(counts) != self.Q or not all(
                isinstance(law, Counts) for law in counts
            ):
                raise argument_error(
                    "counts", counts, f"one Counts, or {self.Q} of them, one a trigger"
                )
            return tuple(counts)
        return (Counts(counts),) * self.Q  # type: ignore[arg-type]

    def _slots(
        self, rng: np.random.Generator, size: int, k: int
    ) -> tuple[Words, Words]:
        """Ordered places of k blocks among H − 1 − k in each sentence, and the random ranks of the blocks."""
        if self.law == "markov":
            rank = np.argsort(rng.random((size, self.H - 1 - k)), axis=1).argsort(
                axis=1
            )
            row, slot = np.nonzero(rank < k)
            return slot, rank[row, slot]
        drawn = np.empty((size, 0), dtype=np.intp)
        for taken in range(k):  # few blocks: each place is drawn among those not taken
            place = rng.integers(self.H - 1 - k - taken, size=size)
            for column in np.sort(drawn, axis=1).T:
                place += place >= column
            drawn = np.column_stack([drawn, place])
        order = np.argsort(drawn, axis=1)
        return np.take_along_axis(drawn, order, axis=1).ravel(), order.ravel()

    def _draw_counts(
        self, rng: np.random.Generator, trigger: Words
    ) -> tuple[Words, Words]:
        uniform = rng.random(len(trigger))
        c = np.empty_like(trigger)
        c_tau = np.empty_like(trigger)
        number = {law: index for index, law in enumerate(dict.fromkeys(self.counts))}
        kind = np.array([number[law] for law in self.counts])[trigger]
        for law, index in number.items():
            rows = np.flatnonzero(kind == index)
            cells = np.flatnonzero(law.pmf)
            edges = np.cumsum(law.pmf.ravel()[cells])[:-1]
            cell = cells[np.searchsorted(edges, uniform[rows], side="right")]
            c[rows], c_tau[rows] = np.divmod(cell, law.pmf.shape[1])
        return c, c_tau


def entropy(alpha: float) -> float:
    """Binary entropy, nats."""
    return (
        float(-alpha * math.log(alpha) - (1.0 - alpha) * math.log1p(-alpha))
        if 0 < alpha < 1
        else 0.0
    )
