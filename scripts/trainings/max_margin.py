# mypy: ignore-errors
"""Attention by one trained vector p, on one input and on several.

    python scripts/trainings/max_margin.py

It follows the default settings of three notebooks beside "Max-Margin Token Selection in
Attention Mechanism". One input of three tokens: normalised descent with rate 0.1. Three
inputs of seven tokens: normalised descent with rate 0.1, and descent with rate 1. Each
takes 1,000 steps from six starts, in float32. Three inputs of two tokens: p and the head
v are trained together, each with normalised steps of length 0.1; in float64, and without
the 1e-9 that they add to norms, which shortens steps once the loss is below 1e-6.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from common import options, rounding, save, verdict
from torch.nn import functional

import icl_theory as icl
from icl_theory.papers.token_selection.family import SelectionRisk

# Scores see the first two coordinates of a token, and the third one is its value.
ONE_INPUT = torch.tensor([[[-0.1, 1.0, 1.0], [1.0, 0.0, 0.9], [0.0, 0.0, 0.9]]])
STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)
# They add these to the norm of a gradient, for one input and for several.
EPSILON = {"one": 1e-9, "several": 1e-12}
JOINT_TOKENS = [
    [[0.0, 0.0], [1.0, 1.0]],
    [[0.0, 0.0], [1.0, -1.0]],
    [[0.0, 0.0], [0.5, 1.0]],
]
JOINT_START = [[0.0, -1.0], [-1.0, 0.0]]  # p, and v
FLOAT32 = 1e-6  # how far rounding takes losses, relative


def several_inputs(seed=0):
    """Draw three inputs: the best token in front, and six in two clouds."""
    generator = torch.Generator().manual_seed(seed)
    tokens = 0.2 * torch.randn(3, 7, 3, generator=generator)
    tokens[:, 0] += torch.tensor([1.0, 0.0, 0.0])
    tokens[:, 1:4] += torch.tensor([-1.0, 1.0, 0.0])
    tokens[:, 4:] += torch.tensor([-0.5, -0.5, 0.0])
    tokens[:, 0, 2] = 1.0
    tokens[:, 1:, 2] = 0.5
    return tokens


def train(tokens, start, rate, epsilon, steps):
    """Return the losses of descent on p, normalised if there is an epsilon."""
    p = start.clone().requires_grad_()
    losses = []
    for _ in range(steps):
        attention = torch.softmax(tokens[..., :2] @ p, dim=1)
        loss = functional.softplus(-(attention * tokens[..., 2]).sum(1)).mean()
        losses.append(loss.item())
        (gradient,) = torch.autograd.grad(loss, p)
        if epsilon is not None:
            gradient = gradient / (gradient.norm() + epsilon)
        with torch.no_grad():
            p -= rate * gradient
    return np.array(losses)


def exact(tokens, start, rate, rule, steps):
    """Return the exact run from the same vector."""
    keys, values = tokens[..., :2].double().numpy(), tokens[..., 2].double().numpy()
    core = SelectionRisk(values)
    risk = icl.in_coordinates(core, "linear", keys, start=start.double().numpy())
    return icl.descend(risk, rate, steps=steps, rule=rule)


def train_jointly(steps):
    """Return the losses of normalised descent on p and v."""
    exactly = {"dtype": torch.double}
    tokens = torch.tensor(JOINT_TOKENS, **exactly)
    labels = torch.tensor([1.0, -1.0, 1.0], **exactly)
    trained = [torch.tensor(x, **exactly, requires_grad=True) for x in JOINT_START]
    losses = []
    for _ in range(steps):
        p, v = trained
        attention = torch.softmax(tokens @ p, dim=1)
        outputs = (attention[:, :, None] * tokens).sum(1) @ v
        loss = functional.softplus(-labels * outputs).mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for vector, gradient in zip(trained, gradients, strict=True):
                vector -= 0.1 * gradient / gradient.norm()
    return np.array(losses)


def exact_jointly(steps):
    """Return the exact run, whose labels take turns as theirs do."""
    return icl.TokenSelection(
        trained="pv",
        tokens=JOINT_TOKENS,
        start=JOINT_START,
        rule="ngd-blocks",
        eta=0.1,
        max_steps=steps,
    ).simulate()


def main():
    """Compare all starts; exit status 1 if one differs."""
    arguments = options(__doc__, 1000)
    cases = [
        ("one", ONE_INPUT, 1, 0.1, "ngd"),
        ("several", several_inputs(), 0, 0.1, "ngd"),
        ("several", several_inputs(), 0, 1.0, "gd"),
    ]
    agree = True
    for inputs, tokens, axis, rate, rule in cases:
        epsilon = EPSILON[inputs] if rule == "ngd" else None
        for size in STARTS:
            start = size * torch.eye(2)[axis]
            losses = train(tokens, start, rate, epsilon, arguments.steps)
            errors = rounding(losses, FLOAT32)
            name = f"{inputs}_{rule}_{size:g}"
            save(arguments.into / f"max_margin_{name}.csv", losses, errors)
            run = exact(tokens, start, rate, rule, arguments.steps - 1)
            agree &= verdict(name, run.compare(losses, errors=errors))
    losses = train_jointly(min(300, arguments.steps))  # the loss ends at 1e-11
    errors = rounding(losses, 1e-9)
    save(arguments.into / "max_margin_joint.csv", losses, errors)
    comparison = exact_jointly(arguments.steps).compare(losses, errors=errors)
    agree &= verdict("p and v together", comparison)
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
