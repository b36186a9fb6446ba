# mypy: ignore-errors
"""Attention over fixed inputs with one matrix W, or with keys and queries.

    python scripts/trainings/svm.py

It follows the default settings of the notebook on local convergence beside
"Transformers as Support Vector Machines": n = 6 inputs of T = 8 tokens in d = 10
dimensions, queries of their own, 2,000 steps of length 0.1 along the gradient of each
matrix, and PyTorch's random start of linear layers. Nothing is random after the start,
so that two trainings differ by rounding.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from common import options, rounding, save, verdict
from torch.nn import functional

import icl_theory as icl
from icl_theory.engine import Factored, Pullback
from icl_theory.papers.token_selection.family import SelectionRisk

N, T, D, RATE = 6, 8, 10, 0.1
# They add it to the norm of a gradient, and give it to weight decay as its factor.
EPSILON = np.finfo(float).eps
# Below this norm a gradient of PyTorch has lost its digits, and its direction is that
# of its rounding errors. The loss has ended to fall long before.
ROUNDED = 1e-15


def problem(seed):
    """Draw tokens and queries of length 1, labels, and the vector of the values."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.double)  # noqa: E731
    tokens = functional.normalize(draw(N, T, D), dim=-1)
    queries = functional.normalize(draw(N, D), dim=-1)
    labels = torch.sign(draw(N))
    return tokens, queries, labels, functional.normalize(draw(D), dim=0)


def starts(seed, count):
    """Return matrices as `torch.nn.Linear` draws them."""
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(D, D, bias=False).double() for _ in range(count)]
    return [layer.weight.detach().clone().requires_grad_() for layer in layers]


def train(data, matrices, steps):
    """Return the losses of normalised descent on W, or on the keys and the queries.

    It ends early if the gradient is lost in rounding.
    """
    tokens, queries, labels, v = data
    losses = []
    for _ in range(steps):
        if len(matrices) == 1:
            scores = torch.einsum("itd,de,ie->it", tokens, matrices[0], queries)
        else:
            keys = tokens @ matrices[0].T
            scores = torch.einsum("itr,ir->it", keys, queries @ matrices[1].T)
        values = torch.einsum("it,itd->id", torch.softmax(scores, dim=1), tokens) @ v
        loss = functional.softplus(-labels * values).mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, matrices)
        if max(gradient.norm() for gradient in gradients) < ROUNDED:
            print(f"the gradient is lost in rounding after {len(losses) - 1} steps")
            break
        with torch.no_grad():
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix -= RATE * gradient / (gradient.norm() + EPSILON)
    return np.array(losses)


def exact(data, start, steps):
    """Return the exact run from the same matrices."""
    tokens, queries, labels, v = (part.numpy() for part in data)
    core = SelectionRisk(labels[:, None] * (tokens @ v))
    features = np.einsum("itd,ie->itde", tokens, queries)
    if len(start) == 1:
        risk = icl.in_coordinates(core, "linear", features, start=start[0])
        return icl.descend(risk, RATE, steps=steps, rule="ngd")
    zero = np.zeros((D, D))
    over_w = icl.in_coordinates(core, "linear", features, start=zero)
    risk = Pullback(over_w, Factored(np.stack(start)))
    return icl.descend(risk, RATE, steps=steps, rule="ngd-blocks")


def main():
    """Compare four draws of both parametrisations; exit status 1 if one differs."""
    arguments = options(__doc__, 2000)
    agree = True
    for seed in range(4):
        data = problem(seed)
        for name, count in (("W", 1), ("KQ", 2)):
            matrices = starts(seed, count)
            start = [matrix.detach().clone().numpy() for matrix in matrices]
            losses = train(data, matrices, arguments.steps)
            errors = rounding(losses, 1e-12)
            path = arguments.into / f"svm_{name}_{seed}.csv"
            save(path, losses, errors)
            run = exact(data, start, len(losses) - 1)
            comparison = run.compare(losses, errors=errors)
            agree &= verdict(f"{name}, draw {seed}", comparison)
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
