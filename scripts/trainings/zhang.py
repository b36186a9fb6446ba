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
from common import options, rounding, save, save_array, verdict

import icl_theory as icl
from icl_theory.engine import FixedSetRisk
from icl_theory.papers.linear_attention.layer import Prompts

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


def merged_in_our_units(start):
    """Return the matrices P and K, (2, H, E, E), of a layer with the factor 1/N."""
    values, scores = start
    matrices = np.zeros((2, len(values), E, E))
    matrices[0, :, -1] = values
    matrices[1, :, :, :D] = scores.swapaxes(1, 2)
    return N**0.5 * matrices


def separate_in_our_units(start):
    """Return a row of values, keys and queries for each head."""
    return N ** (1 / 3) * np.concatenate(start, axis=1)


def exact(problem, data):
    """Return the exact run on the set."""
    tokens, answers = data
    pairs = tokens[:, :-1]
    prompts = Prompts(pairs[:, :, :D], pairs[:, :, D], tokens[:, -1, :D], answers)
    risk = FixedSetRisk(problem.risk(), problem.set_trainer(SET), prompts)
    return icl.descend(risk, problem.rate(), steps=problem.max_steps, method="exact")


def main():
    """Compare both; exit status 1 if one differs."""
    arguments = options(__doc__, 10_001)
    rng = np.random.default_rng(10)
    spread = covariance(rng)
    data = sequences(rng, spread)
    save_array(arguments.into / "zhang_covariance.csv", spread)
    merged = merged_start(rng)
    separate = separate_start(rng)
    # Heads without the entries that begin at zero, as `merged-heads` has them.
    values, scores = merged
    rows = np.column_stack([values[:, D], scores[:, :, :D].reshape(len(values), -1)])
    save_array(arguments.into / "zhang_start.csv", N**0.5 * rows)
    save_array(
        arguments.into / "zhang_start_attnS.csv", separate_in_our_units(separate)
    )

    given = {"covariance": spread, "N": N, "above": 1e-9}
    attn_m = icl.LinearAttention(
        coordinates="layer",
        heads=8,
        start=merged_in_our_units(merged),
        eta=2 * N * 0.001,
        max_steps=min(6001, arguments.steps),
        **given,
    )
    attn_s = icl.LinearAttention(
        coordinates="separate-layer",
        heads=5,
        start=separate_in_our_units(separate),
        eta=2 * N ** (2 / 3) * 0.02,
        max_steps=arguments.steps,
        **given,
    )
    agree = True
    for name, problem, start, rate in (
        ("attnM", attn_m, merged, 0.001),
        ("attnS", attn_s, separate, 0.02),
    ):
        losses = train(data, start, rate, problem.max_steps)
        kept = slice(None, None, 20)  # enough for the file
        t = np.arange(len(losses))[kept]
        save(arguments.into / f"zhang_{name}.csv", losses[kept], None, t)
        run = exact(problem, data)
        errors = rounding(losses, 1e-9)
        comparison = run.compare(losses, errors=errors, scale=0.5)
        agree &= verdict(name, comparison)
        largest = np.abs(comparison.losses / comparison.population - 1.0).max()
        print(
            f"{name}: losses differ by {largest:.1g} of their value at most; at the end"
            f" {run.loss[-1]:.5f} on the set,"
            f" {float(run.observed['population_loss'][-1]):.5f} on fresh sequences,"
            f" whose least loss is {problem.law().floor:.5f}"
        )
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
