# mypy: ignore-errors
"""Linear attention fitted to prompts with a finite set of tasks.

    python scripts/trainings/lu.py

It follows the sweep over task diversity beside "Asymptotic theory of in-context
learning by linear attention": α = N/d = 50, τ = n/d² = 50, ρ = 0.1, κ = k/d tasks of
length √d, a least-squares fit of n prompts, six draws. There are 10 dimensions instead
of 75, which take hours. Their layer also reads Σ y²; the table has fits with that
column and without it. `pretrained` fits prompts of its own, so that both scatter.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from common import LIMIT, options

import icl_theory as icl

D, ALPHA, TAU, RHO = 10, 50, 50, 0.1
N = ALPHA * D
PROMPTS = TAU * D**2
RATIOS = (0.1, 0.5, 0.9, 1.5)
BLOCK = 500  # prompts that are drawn at once


def prompts(tasks, count, generator):
    """Draw queries, features of the context, and targets, as in their scaling.

    The sum of N tokens with their labels is drawn in one go: along the task it is a sum
    of squares and products, and across it a normal vector.
    """
    draw = lambda *shape: torch.randn(  # noqa: E731
        *shape, generator=generator, dtype=torch.double
    )
    w = tasks[torch.randint(len(tasks), (count,), generator=generator)]
    direction = w / w.norm(dim=1, keepdim=True)
    along = draw(count, N)  # of the tokens, times √d
    labels = w.norm(dim=1, keepdim=True) / D**0.5 * along
    labels += RHO**0.5 * draw(count, N)
    across = draw(count, D) * labels.norm(dim=1, keepdim=True)
    across -= (across * direction).sum(1, keepdim=True) * direction
    h = (across + (labels * along).sum(1, keepdim=True) * direction) * D**0.5 / N
    s = (labels**2).mean(1, keepdim=True)
    query = draw(count, D) / D**0.5
    target = (query * w).sum(1) + RHO**0.5 * draw(count)
    return query, torch.cat([h, s], dim=1), target


def fit(tasks, generator, with_column):
    """Return the least-squares matrix, (d, d + 1), with zeros for a missing column."""
    used = D + 1 if with_column else D
    gram = torch.zeros(D * used, D * used, dtype=torch.double)
    cross = torch.zeros(D * used, dtype=torch.double)
    for _ in range(PROMPTS // BLOCK):
        query, context, target = prompts(tasks, BLOCK, generator)
        features = (query[:, :, None] * context[:, None, :used]).reshape(BLOCK, -1)
        gram += features.T @ features
        cross += features.T @ target
    solution = torch.linalg.solve(gram, cross).reshape(D, used).numpy()
    return np.pad(solution, ((0, 0), (0, D + 1 - used)))


def exact_problem(tasks):
    """Return their problem with tokens of variance 1 and tasks of mean length 1."""
    return icl.LinearAttention(
        d=D, N=N, noise=RHO**0.5, prior=np.full(D, 1.0 / D), tasks=tasks / D**0.5
    )


def new_task_error(matrix, problem):
    """Return the mean squared error of a matrix on new tasks, as they define it."""
    column = matrix[:, D]
    square = ((1 + RHO) ** 2 + 2 / D) * (1 + 2 / N)  # of Σ y²/N
    loss = problem.new_tasks().loss(matrix[:, :D])
    return 2 * loss + RHO + square * float(column @ column) / D


def main():
    """Compare the fits; exit status 1 if one differs."""
    arguments = options(__doc__, 6)
    draws = max(2, arguments.steps)
    generator = torch.Generator().manual_seed(0)
    lines = ["kappa,tasks,limit,pretrained,fitted,standard_error,z,with_column"]
    agree = True
    for ratio in RATIOS if draws > 2 else RATIOS[-1:]:
        k = max(1, int(ratio * D))
        rows = []
        for seed in range(draws):
            tasks = torch.randn(k, D, generator=generator, dtype=torch.double)
            tasks *= D**0.5 / tasks.norm(dim=1, keepdim=True)
            problem = exact_problem(tasks.numpy())
            limit = icl.linear_attention.pretraining_limit(problem, PROMPTS)
            ours = icl.linear_attention.pretrained(problem, PROMPTS, seed)
            fits = [np.pad(ours, ((0, 0), (0, 1)))]
            fits += [fit(tasks, generator, column) for column in (False, True)]
            errors = [new_task_error(matrix, problem) for matrix in fits]
            rows.append([2 * float(limit.new) + RHO, *errors])
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
