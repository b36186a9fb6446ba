r"""The sampled transformer: logits of sentences, and gradients with respect to the matrices.

With words z and d = 2V, x_h = E(z_h) + Ẽ(z_{h−1}) (orthonormal at the start), and over the words h < H

    w_h = σ(x_Hᵀ W x_h),    u = 𝒱 Σ_h w_h x_h,    logits = U (u + F (x_H + κu)).

With the weights "identity" the last word is attended to as well, h ≤ H.

Each sentence has a table with an entry for each word and one for each previous word. A sparse matrix with two ones
for each attended word reads the words' numbers from the tables, and its transpose adds their weights up into
tables. Multiplications with matrices that are not trained are avoided: E, Ẽ and U then select coordinates, 𝒱 is
diagonal, and at most one row of F is not zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.families.recall.task import Words


class Pass(NamedTuple):
    """Results of a forward pass over B sentences."""

    tokens: Words
    places: Any  # sparse, (B n, 2 B V): places of the attended words in the tables
    query: Array  # x_H
    scores: Array  # (B, n); for softmax attention the weights
    attended: Array
    u: Array
    mixed: Array  # input of the feed-forward layer
    fed: Array  # its output
    logits: Array


@dataclass(frozen=True)
class Transformer:
    """Forward and backward pass, with the parameters of `TransformerRisk`."""

    V: int
    attention: str
    whole: bool  # whether the last word is attended to
    kappa: int
    kink: float
    trained: tuple[str, ...]  # matrices whose gradients are wanted; the others keep their initial form

    @np.errstate(over="ignore", invalid="ignore")
    def forward(
        self, m: Mapping[str, Array], tokens: Words, without: Collection[str] = (), places: Any = None
    ) -> Pass:
        """Run the model, with the `places` of the words if known; callers have to check for infinite logits."""
        B, V, last, previous = len(tokens), self.V, tokens[:, -1], tokens[:, -2]
        query = np.zeros((B, 2 * V))
        query[np.arange(B), last] = query[np.arange(B), V + previous] = 1.0
        if self._plain:
            key = m["attention"][last] + m["attention"][V + previous]
        else:
            query = query @ self._embeddings(m)
            key = query @ m["attention"] @ self._embeddings(m).T
        places = self.places(tokens) if places is None else places
        scores = (places @ key.ravel()).reshape(B, -1)
        if self.attention == "softmax":
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
        scores += self.kink
        attended = self._added(places, self._weights(scores))
        if not self._plain:
            attended = attended @ self._embeddings(m)
        u = attended @ m["value"].T if "value" in self.trained else attended * m["value"].diagonal()
        if "attention" in without:
            u = np.zeros_like(u)
        mixed = query + u if self.kappa else query
        fed, rows = np.zeros((B, self._width)), self._rows(m)
        if "feed_forward" not in without:
            fed[:, rows] = mixed @ m["feed_forward"][rows].T
        logits = self.read_out(m, u[:, : self._width] + fed)
        return Pass(tokens, places, query, scores, attended, u, mixed, fed, logits)

    def read_out(self, m: Mapping[str, Array], stream: Array) -> Array:
        """Logits of one vector for each sentence, (B, V)."""
        return stream @ m["readout"].T if "readout" in self.trained else stream[:, : self.V]

    def backward(self, m: Mapping[str, Array], forward: Pass, error: Array) -> dict[str, Array]:
        """Gradients with respect to the trained matrices, from that for the logits, ``error``, (B, V)."""
        query, places, by_stream, rows = forward.query, forward.places, error, self._rows(m)
        gradients = {}
        if "readout" in self.trained:
            by_stream = error @ m["readout"]
            gradients["readout"] = error.T @ (forward.u + forward.fed)
        by_mixed = by_stream[:, rows] @ m["feed_forward"][rows]
        if "feed_forward" in self.trained:
            gradients["feed_forward"] = np.zeros_like(m["feed_forward"])
            gradients["feed_forward"][rows] = by_stream.T @ forward.mixed
        by_u = self.kappa * by_mixed
        by_u[:, : self._width] += by_stream
        if "value" in self.trained:
            gradients["value"] = by_u.T @ forward.attended
        if self._plain and "attention" not in self.trained:
            return gradients
        by_attended = by_u @ m["value"] if "value" in self.trained else by_u * m["value"].diagonal()
        by_word = by_attended if self._plain else by_attended @ self._embeddings(m).T
        by_score = (places @ by_word.ravel()).reshape(forward.scores.shape)
        if self.attention == "softmax":
            by_score -= np.sum(by_attended * forward.attended, axis=1, keepdims=True)
            by_score *= forward.scores
        elif self.attention == "relu":
            by_score[forward.scores < 0.0] = 0.0
        added = self._added(places, by_score)
        scored = added if self._plain else added @ self._embeddings(m)
        gradients["attention"] = query.T @ scored
        if not self._plain:
            key, by_query = query @ m["attention"], by_mixed + scored @ m["attention"].T
            table = self._added(places, self._weights(forward.scores)).T @ by_attended + added.T @ key
            np.add.at(table, forward.tokens[:, -1], by_query)
            np.add.at(table, self.V + forward.tokens[:, -2], by_query)
            gradients["embedding"], gradients["previous"] = table[: self.V], table[self.V :]
        return gradients

    def places(self, tokens: Words) -> Any:
        """Return the places of the attended words in the tables, a sparse (B n, 2 B V) matrix."""
        from scipy.sparse import csr_array

        attended = tokens if self.whole else tokens[:, :-1]
        (B, n), width = attended.shape, 2 * self.V
        at = np.empty((B, n, 2), np.int32 if 2 * B * max(n, self.V) < 2**31 else np.int64)
        np.add(attended, width * np.arange(B)[:, None], out=at[:, :, 0], casting="unsafe")
        np.add(at[:, :-1, 0], self.V, out=at[:, 1:, 1])
        at[:, 0, 1] = 0
        ones = np.ones((B, n, 2))
        ones[:, 0, 1] = 0.0  # the first word has no previous one
        ends = np.arange(0, at.size + 1, 2, dtype=at.dtype)
        return csr_array((ones.ravel(), at.ravel(), ends), shape=(B * n, B * width))

    @property
    def _plain(self) -> bool:
        """Whether words are embedded as unit vectors."""
        return not {"embedding", "previous"} & set(self.trained)

    @property
    def _width(self) -> int:
        """Number of coordinates of the stream that are read out."""
        return 2 * self.V if "readout" in self.trained else self.V

    def _rows(self, m: Mapping[str, Array]) -> slice | Words:
        if "feed_forward" in self.trained:
            return slice(self._width)
        return np.flatnonzero(m["feed_forward"].any(axis=1))

    def _embeddings(self, m: Mapping[str, Array]) -> Array:
        return np.vstack([m["embedding"], m["previous"]])

    def _weights(self, scores: Array) -> Array:
        return np.maximum(scores, 0.0) if self.attention == "relu" else scores

    def _added(self, places: Any, weights: Array) -> Array:
        """Tables of the weights, added up over equal words and over equal words before, (B, 2V)."""
        return np.asarray(places.T @ weights.ravel()).reshape(len(weights), -1)
