# mypy: ignore-errors
"""Heads of linear attention on a fixed set of sequences, with full batches.

    python scripts/trainings/zhang.py

It follows two commands of the README beside "Training Dynamics of In-Context Learning
in Linear Attention". attnM: eight heads with merged keys and queries, start 1e-6, rate
0.001, 6,001 steps. attnS: five heads with keys and queries of rank one, start 0.01,
rate 0.02, 10,001 steps. The set has 5,000 sequences of 31 pairs and a query in four
dimensions, with centred tokens and whitened tasks. Nothing is random after the start,
so that the training losses differ by rounding; the exact loss on fresh sequences is
printed beside them. Their layer has no factor 1/N, and their loss no factor 1/2.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from common import options, rounding, save, verdict

import icl_theory as icl
from icl_theory.engine import Map, Pullback
from icl_theory.linear_attention import PromptLaw, TensorRisk

D, N, SET = 4, 31, 5000
E = D + 1  # entries of a token (x, y)
torch.set_default_dtype(torch.float64)


def covariance(rng):
    """Return a rotated covariance with eigenvalues 0.1, 0.2, 0.3, 0.4."""
    rotation, _ = np.linalg.qr(rng.normal(size=(D, D)))
    eigenvalues = np.arange(1.0, D + 1.0)
    return rotation @ np.diag(eigenvalues / eigenvalues.sum()) @ rotation.T


def sequences(rng, spread):
    """Draw the set: tokens (x, y), the last one with the label 0, and the answers."""
    tokens = rng.multivariate_normal(np.zeros(D), spread, (SET, N + 1))
    tokens -= tokens.mean(axis=0)
    tasks = rng.normal(size=(SET, D))
    tasks -= tasks.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(tasks.T))
    tasks = tasks @ vectors @ np.diag(values**-0.5) @ vectors.T
    labels = np.einsum("mnd,md->mn", tokens, tasks)
    answers = labels[:, -1].copy()
    labels[:, -1] = 0.0
    return np.concatenate([tokens, labels[:, :, None]], axis=2), answers


def merged_start(rng, heads=8, size=1e-6):
    """Return last rows of the values, (H, E), and rows of the scores, (H, D, E)."""
    values = size * rng.normal(size=(heads, E))
    scores = size * rng.normal(size=(heads, D, E))
    # Both entries that mix labels and tokens begin at zero.
    values[:, :D] = 0.0
    scores[:, :, D] = 0.0
    return [values, scores]


def separate_start(rng, heads=5, size=0.01):
    """Return last rows of the values, keys, (H, E) each, and queries, (H, D)."""
    values = size / (heads * E**2) ** 0.5 * rng.normal(size=(heads, E))
    keys = size / (heads * E) ** 0.5 * rng.normal(size=(heads, E))
    queries = size / (heads * E) ** 0.5 * rng.normal(size=(heads, D))
    values[:, :D] = 0.0
    keys[:, D] = 0.0
    return [values, keys, queries]


def train(data, start, rate, steps):
    """Return the losses of full-batch descent."""
    tokens, answers = (torch.tensor(part) for part in data)
    query = tokens[:, -1, :D]
    # Products of tokens are the same in each step, so that they are summed once.
    gram = tokens.transpose(1, 2) @ tokens
    trained = [torch.tensor(part, requires_grad=True) for part in start]
    optimizer = torch.optim.SGD(trained, lr=rate)
    losses = []
    for _ in range(steps):
        if len(trained) == 2:
            values, scores = trained
            keys = torch.einsum("hde,md->mhe", scores, query)
        else:
            values, key, queries = trained
            keys = (query @ queries.T)[:, :, None] * key
        outputs = torch.einsum("mhe,mef,hf->m", keys, gram, values)
        loss = ((outputs - answers) ** 2).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return np.array(losses)


class OnSet(icl.Risk):
    """The loss of the set, a quadratic form of B in y = Σ B_abm (EEᵀ/N)_ab x_m."""

    initial = np.zeros((E, E, D))

    def __init__(self, tokens, answers):
        gram = np.einsum("mna,mnb->mab", tokens, tokens) / N
        features = np.einsum("mab,mc->mabc", gram, tokens[:, -1, :D])
        features = features.reshape(len(answers), -1)
        self.second = features.T @ features / len(answers)
        self.cross = features.T @ answers / len(answers)
        self.square = np.mean(answers**2)

    def evaluate(self, params, step=0):
        """Return the loss and its gradient."""
        B = params.ravel()
        slope = self.second @ B - self.cross
        loss = 0.5 * (B @ (slope - self.cross) + self.square)
        return float(loss), slope.reshape(params.shape)


class Heads(Map):
    """The tensor B of their parameters, flat; it has the factor N that they lack."""

    initial = None

    def __init__(self, start):
        self.shapes = [part.shape for part in start]
        self.initial = np.concatenate([part.ravel() for part in start])

    def parts(self, params):
        """Return values, (H, E), and the scores of keys and queries, as factors."""
        sizes = np.cumsum([np.prod(shape) for shape in self.shapes])[:-1]
        flat = np.split(params, sizes)
        return [part.reshape(s) for part, s in zip(flat, self.shapes, strict=True)]

    def inward(self, params):
        """Return B."""
        values, *factors = self.parts(params)
        names = "hcb" if len(factors) == 1 else "hb,hc"
        return N * np.einsum(f"ha,{names}->abc", values, *factors, optimize=True)

    def outward(self, params, gradient):
        """Return the gradient by the parameters."""
        values, *factors = self.parts(params)
        names = ["hcb"] if len(factors) == 1 else ["hb", "hc"]
        arrays = dict(zip(["ha", *names], [values, *factors], strict=True))
        pulled = []
        for name in arrays:
            remaining = {key: array for key, array in arrays.items() if key != name}
            subscripts = ",".join(["abc", *remaining])
            pulled.append(
                np.einsum(
                    f"{subscripts}->{name}",
                    gradient,
                    *remaining.values(),
                    optimize=True,
                )
            )
        return N * np.concatenate([part.ravel() for part in pulled])

    def stretch(self, params):
        """Return a bound on the derivative; no run here asks for it."""
        return float("inf")


def main():
    """Compare both; exit status 1 if one differs."""
    arguments = options(__doc__, 10_001)
    rng = np.random.default_rng(10)
    spread = covariance(rng)
    data = sequences(rng, spread)
    path = arguments.into / "zhang_covariance.csv"
    np.savetxt(path, spread, fmt="%.17g", delimiter=",")
    population = TensorRisk(PromptLaw(spread, N=N), np.zeros((E, E, D)))
    merged = merged_start(rng)
    # The same start in the units of a layer with the factor 1/N: rows (v, A).
    values, scores = merged
    rows = np.column_stack([values[:, D], scores[:, :, :D].reshape(len(values), -1)])
    np.savetxt(
        arguments.into / "zhang_start.csv", N**0.5 * rows, fmt="%.9g", delimiter=","
    )
    agree = True
    for name, start, rate, steps in (
        ("attnM", merged, 0.001, 6001),
        ("attnS", separate_start(rng), 0.02, 10_001),
    ):
        losses = train(data, start, rate, min(steps, arguments.steps))
        errors = rounding(losses, 1e-9)
        kept = slice(None, None, 20)  # enough for the file
        t = np.arange(len(losses))[kept]
        save(arguments.into / f"zhang_{name}.csv", losses[kept], None, t)
        heads = Heads(start)
        risk = Pullback(OnSet(*data), heads)
        run = icl.descend(risk, 2 * rate, steps=len(losses), method="exact")
        comparison = run.compare(losses, errors=errors, scale=0.5)
        agree &= verdict(name, comparison)
        fresh = population.loss(heads.inward(run.params))
        print(
            f"{name} at the end: loss on the set {run.loss[-1]:.5f}, on fresh sequences"
            f" {fresh:.5f}, least loss of fresh ones {population.floor():.5f}"
        )
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
