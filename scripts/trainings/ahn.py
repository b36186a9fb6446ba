# mypy: ignore-errors
"""One layer of linear attention with AdamW and clipped gradients.

    python scripts/trainings/ahn.py

It follows the default settings of two notebooks beside "Transformers learn to implement
preconditioned gradient descent for in-context learning", with one layer instead of
three or four: prompts of 20 pairs in five dimensions. "simple": isotropic tokens, fresh
batches of 4,000, rate 0.001, β = (0.9, 0.9), and 10,000 steps. "rotated": tokens with a
covariance and tasks with its inverse, batches of 20,000 that are used for 100 steps,
rate 0.01 halved every 4,000 steps, β = (0.99, 0.9), gradients clipped at 0.01; its loss
stays some 1 % above the exact one in the end, perhaps because of the noise of batches,
and is printed for comparison. The prediction is -xᵀQh with h = Σ y_i x_i / N. Their
matrix P has no gradient in one layer.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch
from common import options, save, verdict

import icl_theory as icl

D, N, SIZE = 5, 20, 1e-4


class Setting(NamedTuple):
    """Numbers of a notebook."""

    batch: int
    reused: int  # steps that a batch is used for
    rate: float
    betas: tuple[float, float]
    clip: float
    halved: int  # steps after which the rate is halved
    steps: int
    root: torch.Tensor  # tokens are this matrix times normal numbers


def settings():
    """Return the settings by name."""
    torch.manual_seed(0)
    rotation = torch.linalg.svd(2 * torch.rand(D, D) - 1)[0]
    scales = torch.diag(torch.tensor([1.0, 1.0, 0.5, 0.25, 1.0]))
    return {
        "simple": Setting(
            4000, 1, 1e-3, (0.9, 0.9), 1000.0, 10**9, 10_000, torch.eye(D)
        ),
        "rotated": Setting(
            20_000, 100, 1e-2, (0.99, 0.9), 1e-2, 4000, 20_000, rotation @ scales
        ),
    }


def prompts(setting):
    """Draw queries, h, and answers."""
    tokens = torch.randn(setting.batch, N, D) @ setting.root.T
    query = torch.randn(setting.batch, D) @ setting.root.T
    task = torch.randn(setting.batch, D) @ torch.linalg.inv(setting.root)
    labels = torch.einsum("bnd,bd->bn", tokens, task)
    h = torch.einsum("bn,bnd->bd", labels, tokens) / N
    return query, h, (query * task).sum(1)


def train(setting, start, steps):
    """Return steps, the losses of fresh batches, and their standard errors."""
    Q = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW(
        [Q], lr=setting.rate, betas=setting.betas, weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, setting.halved, 0.5)
    rows = []
    for step in range(steps):
        is_fresh = step % setting.reused == 0
        if is_fresh:
            query, h, answer = prompts(setting)
        single = (((query @ Q) * h).sum(1) + answer) ** 2
        loss = single.mean()
        if is_fresh:
            # On a batch that has been used a loss is lower than on average.
            error = single.std().item() / setting.batch**0.5
            rows.append((step, loss.item(), error))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([Q], setting.clip)
        optimizer.step()
        schedule.step()
    return np.array(rows).T


def exact(setting, start):
    """Return the exact run, whose matrix is -Q."""
    root = setting.root.double().numpy()
    beta1, beta2 = setting.betas
    return icl.LinearAttention(
        covariance=root @ root.T,
        query=root @ root.T,
        prior=np.linalg.inv(root @ root.T),
        N=N,
        start=-start.double().numpy(),
        rule="adam",
        beta1=beta1,
        beta2=beta2,
        # Their losses are twice as large, and so are the gradients that they clip.
        clip=setting.clip / 2,
        eta=setting.rate,
        schedule="step",
        decay_steps=setting.halved,
        decay_factor=0.5,
        above=1e-6,
    ).simulate()


def main():
    """Compare both; exit status 1 if one differs."""
    arguments = options(__doc__, 20_000)
    agree = True
    for name, setting in settings().items():
        start = SIZE * torch.randn(D, D)
        steps = min(setting.steps, arguments.steps)
        t, losses, errors = train(setting, start, steps)
        save(arguments.into / f"ahn_{name}.csv", losses, errors, t)
        run = exact(setting, start)
        comparison = run.compare(losses, t.astype(int), errors=errors, scale=0.5)
        stays = verdict(name, comparison)
        agree &= stays or name == "rotated"
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
