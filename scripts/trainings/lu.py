# mypy: ignore-errors
"""Linear attention fitted to prompts with a finite set of tasks.

    python scripts/trainings/lu.py

It follows the sweep over task diversity beside "Asymptotic theory of in-context
learning by linear attention": d = 75, α = N/d = 50, τ = n/d² = 50, ρ = 0.1, κ = k/d
tasks of length √d, and a least-squares fit of n = 281,250 prompts of 3,750 pairs. Each
step is a draw of the tasks and prompts. Their layer also reads Σ y²; the table has fits
with that column and without it. `pretrained` fits prompts of its own, so that both
scatter. --dimension 10 takes seconds.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch
from common import LIMIT, options

import icl_theory as icl

ALPHA, TAU, RHO = 50, 50, 0.1
RATIOS = (0.1, 0.5, 0.9, 1.5)
BLOCK = 500  # prompts that are drawn at once
torch.set_default_dtype(torch.float64)


class Prompts(NamedTuple):
    """Queries, (n, d), features of the context, (n, d + 1), and targets, (n,)."""

    query: torch.Tensor
    context: torch.Tensor
    target: torch.Tensor


def prompts(tasks, count, generator):
    """Draw prompts in their scaling.

    The sum of N tokens with their labels is drawn in one go: along the task it is a sum
    of squares and products, and across it a normal vector. The numbers of single tokens
    have the precision float32, in which they are drawn four times faster.
    """

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    def draw_tokens():
        return torch.randn(count, N, generator=generator, dtype=torch.float32)

    d = tasks.shape[1]
    N = ALPHA * d
    w = tasks[torch.randint(len(tasks), (count,), generator=generator)]
    direction = w / w.norm(dim=1, keepdim=True)
    along = draw_tokens()  # the part of the tokens along the task, times √d
    labels = (w.norm(dim=1, keepdim=True) / d**0.5).float() * along
    labels += RHO**0.5 * draw_tokens()
    s = (labels**2).mean(1, keepdim=True).double()
    along_task = (labels * along).sum(1, keepdim=True).double()
    across = draw(count, d) * (N * s).sqrt()
    across -= (across * direction).sum(1, keepdim=True) * direction
    h = (across + along_task * direction) * d**0.5 / N
    query = draw(count, d) / d**0.5
    target = (query * w).sum(1) + RHO**0.5 * draw(count)
    return Prompts(query, torch.cat([h, s], dim=1), target)


def training_prompts(tasks, generator):
    """Draw n prompts, a block at a time."""
    count = TAU * tasks.shape[1] ** 2
    blocks = [prompts(tasks, BLOCK, generator) for _ in range(count // BLOCK)]
    rest = count % BLOCK
    if rest:
        blocks.append(prompts(tasks, rest, generator))
    return Prompts(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def whitened(vectors):
    """Return vectors of the second moment 1, and the factor that undoes it."""
    lower = torch.linalg.cholesky(vectors.T @ vectors / len(vectors))
    return torch.linalg.solve_triangular(lower, vectors.T, upper=False).T, lower


def fit(data, with_column):
    """Return the least-squares matrix, (d, d + 1), with zeros for a missing column.

    The normal equations are solved by conjugate gradients, for whitened queries and
    contexts, until the residual is as small as rounding.
    """
    d = data.query.shape[1]
    used = d + 1 if with_column else d
    x, x_lower = whitened(data.query)
    h, h_lower = whitened(data.context[:, :used])

    def product(matrix):
        outputs = ((x @ matrix) * h).sum(1)
        return x.T @ (outputs[:, None] * h)

    solution = torch.zeros(d, used)
    residual = x.T @ (data.target[:, None] * h)
    first = square = (residual**2).sum()
    direction = residual
    while square > 1e-24 * first:
        image = product(direction)
        length = square / (direction * image).sum()
        solution = solution + length * direction
        residual = residual - length * image
        previous, square = square, (residual**2).sum()
        direction = residual + square / previous * direction
    matrix = torch.linalg.solve(x_lower.T, solution)
    matrix = torch.linalg.solve(h_lower.T, matrix.T).T
    return np.pad(matrix.numpy(), ((0, 0), (0, d + 1 - used)))


def exact_problem(tasks):
    """Return their problem with tokens of variance 1 and tasks of mean length 1."""
    d = tasks.shape[1]
    return icl.LinearAttention(
        d=d,
        N=ALPHA * d,
        noise=RHO**0.5,
        prior=np.full(d, 1.0 / d),
        tasks=tasks / d**0.5,
    )


def new_task_error(matrix, problem):
    """Return the mean squared error of a matrix on new tasks, as they define it."""
    d = problem.d
    column = matrix[:, d]
    square = ((1 + RHO) ** 2 + 2 / d) * (1 + 2 / problem.N)  # of Σ y²/N
    loss = problem.new_tasks().loss(matrix[:, :d])
    return 2 * loss + RHO + square * float(column @ column) / d


def draw_errors(k, d, seed, generator):
    """Return errors on new tasks: in the limit, of `pretrained`, and of both fits."""
    tasks = torch.randn(k, d, generator=generator)
    tasks *= d**0.5 / tasks.norm(dim=1, keepdim=True)
    problem = exact_problem(tasks.numpy())
    count = TAU * d**2
    limit = icl.linear_attention.pretraining_limit(problem, count)
    ours = icl.linear_attention.pretrained(problem, count, seed)
    data = training_prompts(tasks, generator)
    fits = [np.pad(ours, ((0, 0), (0, 1)))]
    fits += [fit(data, with_column) for with_column in (False, True)]
    errors = [new_task_error(matrix, problem) for matrix in fits]
    return [2 * float(limit.new) + RHO, *errors]


def main():
    """Compare the fits; exit status 1 if one differs."""
    arguments = options(__doc__, 4, dimension=75)
    d = arguments.dimension
    draws = max(2, arguments.steps)
    generator = torch.Generator().manual_seed(0)
    lines = ["kappa,tasks,limit,pretrained,fitted,standard_error,z,with_column"]
    agree = True
    for ratio in RATIOS if draws > 2 else RATIOS[-1:]:
        k = max(1, int(ratio * d))
        rows = [draw_errors(k, d, seed, generator) for seed in range(draws)]
        limit, ours, fitted, with_column = np.mean(rows, axis=0)
        difference = np.diff(np.array(rows)[:, 1:3])[:, 0]
        error = difference.std(ddof=1) / draws**0.5
        z = difference.mean() / error
        agree &= abs(z) <= LIMIT
        lines.append(
            f"{ratio},{k},{limit:.4f},{ours:.4f},{fitted:.4f},{error:.1g},{z:.2f},"
            f"{with_column:.4f}"
        )
        print(lines[-1], flush=True)
    (arguments.into / "lu.csv").write_text("\n".join([*lines, ""]))
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
