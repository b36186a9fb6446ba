# mypy: ignore-errors
"""The minimal model of induction heads on random Markov chains, at all positions.

    python scripts/trainings/edelman.py

It follows the default settings of the minimal model beside "The Evolution of
Statistical Induction Heads": two symbols, chains with uniform rows, the cross entropy
averaged over all positions, 2,000 steps of SGD with batches of 64 sequences, the rate
5e-4 for the matrix W of the second layer and 1 for the scores v of the first one, which
sees the whole sequence because its mask is not applied. Sequences have 10 symbols
instead of 100, so that the exact loss can sum over all of them: their number doubles
with each symbol, and the loss depends on the place of each.
"""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import torch
from common import options, save, verdict
from torch.nn import functional

import icl_theory as icl

T, BATCH, RATE = 10, 64, 5e-4
# The difference of two positions, 0 for positions that come later.
LAGS = np.maximum(np.arange(T)[:, None] - np.arange(T), 0)


def all_sequences():
    """Return all sequences of T + 1 symbols, and their probabilities.

    With P₀₁ and P₁₀ uniform, the mean probability of n_ab transitions is a product of
    beta integrals.
    """
    sequences = np.array([*itertools.product((0, 1), repeat=T + 1)])
    probabilities = np.full(len(sequences), 0.5)
    for i, row in enumerate(sequences):
        for a in (0, 1):
            following = row[1:][row[:-1] == a]
            ones = int(following.sum())
            probabilities[i] /= (len(following) + 1) * math.comb(len(following), ones)
    return sequences, probabilities


class MinimalModel(icl.Risk):
    """The loss of v, (T,), and W, (2, 2), over all sequences."""

    def __init__(self):
        sequences, self.probabilities = all_sequences()
        self.symbols = np.eye(2)[sequences[:, :-1]]
        self.answers = np.eye(2)[sequences[:, 1:]]

    @property
    def initial(self):
        """Zeros in v, and 0.01 in W."""
        return np.append(np.zeros(T), np.full(4, 0.01))

    @property
    def metric(self):
        """One for v, and for W what makes its rate smaller."""
        return np.append(np.ones(T), np.full(4, 1.0 / RATE))

    def evaluate(self, params, step=0):
        """Return the loss and its gradient."""
        e, W = self.symbols, params[T:].reshape(2, 2)
        attention = np.exp(params[:T][LAGS])
        attention /= attention.sum(axis=1, keepdims=True)
        attended = attention @ e
        keys = attended @ W.T
        logits = np.tril(e @ np.swapaxes(keys, 1, 2)) @ e
        largest = logits.max(axis=2, keepdims=True)
        partition = np.exp(logits - largest).sum(axis=2, keepdims=True)
        log_softmax = logits - largest - np.log(partition)
        losses = -np.sum(log_softmax * self.answers, axis=(1, 2)) / T

        weight = self.probabilities[:, None, None] / T
        by_logits = weight * (np.exp(log_softmax) - self.answers)
        by_scores = np.tril(by_logits @ np.swapaxes(e, 1, 2))
        by_keys = np.swapaxes(by_scores, 1, 2) @ e
        by_W = np.einsum("btk,btl->kl", by_keys, attended)
        by_attention = np.einsum("btk,bsk->ts", by_keys @ W, e)
        mean = np.sum(attention * by_attention, axis=1, keepdims=True)
        by_position = attention * (by_attention - mean)
        by_v = np.bincount(LAGS.ravel(), by_position.ravel(), T)
        return float(self.probabilities @ losses), np.append(by_v, by_W)


def sequences(generator):
    """Draw a batch of sequences of T + 1 symbols, whose first one is uniform."""
    chain = torch.rand(BATCH, 2, generator=generator)  # probabilities of a 1
    columns = [torch.randint(2, (BATCH,), generator=generator)]
    for _ in range(T):
        p = chain.gather(1, columns[-1][:, None])[:, 0]
        columns.append((torch.rand(BATCH, generator=generator) < p).long())
    return torch.stack(columns, dim=1)


def train(steps):
    """Return losses and their standard errors along SGD."""
    generator = torch.Generator().manual_seed(0)
    v = torch.zeros(T, requires_grad=True)
    W = torch.full((2, 2), 0.01, requires_grad=True)
    optimizer = torch.optim.SGD([{"params": [W]}, {"params": [v], "lr": 1.0}], lr=RATE)
    lags = torch.tensor(LAGS)
    rows = []
    for _ in range(steps):
        batch = sequences(generator)
        e = functional.one_hot(batch[:, :-1], 2).float()
        attended = torch.softmax(v[lags], dim=1) @ e
        scores = (e @ (attended @ W.T).transpose(1, 2)).tril()
        logits = scores @ e
        single = functional.cross_entropy(
            logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none"
        )
        single = single.view(BATCH, T).mean(1)
        rows.append((single.mean().item(), single.std().item() / BATCH**0.5))
        optimizer.zero_grad()
        single.mean().backward()
        optimizer.step()
    return np.array(rows).T


def main():
    """Compare both; exit status 1 if they differ."""
    arguments = options(__doc__, 2000)
    losses, errors = train(arguments.steps)
    save(arguments.into / "edelman.csv", losses, errors)
    risk = MinimalModel()
    run = icl.descend(risk, 1.0, steps=arguments.steps, give_up=False)
    comparison = run.compare(losses, errors=errors)
    return int(not verdict("all positions", comparison))


if __name__ == "__main__":
    sys.exit(main())
