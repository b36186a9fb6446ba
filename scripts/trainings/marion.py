# mypy: ignore-errors
"""Single-location regression with erf attention, by projected descent.

    python scripts/trainings/marion.py

It follows the first and the last setting of the program beside "Attention layers
provably solve single-location regression". The first one takes 20,000 steps on the
population risk, in 400 dimensions from the manifold. The last one takes steps on
batches of five, in 80 dimensions from the sphere, while the factor of the scores falls
like 1/(1 + 1e-4 t). The noise of so small batches has a part in all dimensions, so that
each projection shortens the overlaps: the mean of such runs leaves the exact curve, and
is the reference. Runs with batches of 100 stay on the exact curve. Both take 20,000 of
their 200,000 steps; --steps 200000 takes a quarter of an hour.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from common import options, rounding, save, verdict

import icl_theory as icl

LENGTH, SPREAD = 10, 0.5**0.5
DECAY = 1e-4  # of the factor of the scores


def directions(d, manifold, seed):
    """Draw unit vectors k*, v*, k, v; on the manifold k ⊥ v*, v ⊥ k*, k ⊥ v."""
    torch.manual_seed(seed)
    unit = lambda vector: vector / vector.norm()  # noqa: E731
    without = lambda vector, axis: vector - (axis @ vector) * axis  # noqa: E731
    k_star, v_star, k, v = torch.randn(4, d, dtype=torch.double)
    k_star = unit(k_star)
    v_star = unit(without(v_star, k_star))
    if manifold:
        k = without(k, v_star)
        rest = unit(without(k, k_star))
        v = without(without(v, k_star), rest)
    return k_star, v_star, unit(k), unit(v)


def reduced(k_star, v_star, k, v):
    """Return k and v in an orthonormal basis that begins with k* and v*, (2, 4)."""
    basis = torch.linalg.qr(torch.stack([k_star, v_star, k, v]).T)[0]
    signs = torch.sign(torch.stack([k_star @ basis[:, 0], v_star @ basis[:, 1]]))
    basis[:, :2] *= signs
    return (torch.stack([k, v]) @ basis).numpy()


def projected_step(vectors, gradients, rate):
    """Move each vector along its sphere, and give it the length 1 again."""
    with torch.no_grad():
        for vector, gradient in zip(vectors, gradients, strict=True):
            vector -= rate * (gradient - (vector @ gradient) * vector)
            vector /= vector.norm()


def population_risk(k_star, v_star, k, v, scale):
    """Return the mean squared error over all prompts, by Gauss–Hermite quadrature."""
    signal = (len(k) / 2) ** 0.5
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    z = torch.tensor(nodes)
    weights = torch.tensor(weights / weights.sum())
    rho, eta, nu = k @ v, k @ v_star, v @ v_star
    # Given the noise z along k: means of the informative token's value and of the label.
    attention = torch.erf(scale * (signal * (k @ k_star) + SPREAD * z))
    value = signal * (v @ k_star) + SPREAD * rho * z
    label = SPREAD * eta * z
    miss = (label - attention * value) ** 2 + SPREAD**2 * (
        1 - eta**2 - 2 * attention * (nu - rho * eta) + attention**2 * (1 - rho**2)
    )
    # The output of one of the other tokens: its mean, and its mean square.
    other = torch.erf(scale * z)
    mean = rho * (weights @ (other * z))
    square = weights @ (other**2 * (rho**2 * z**2 + 1 - rho**2))
    count = LENGTH - 1
    difference = weights @ (label - attention * value)
    return (
        weights @ miss
        + count * square
        + count * (count - 1) * mean**2
        - 2 * count * mean * difference
    )


def train_on_population(vectors, steps, rate=4e-3, scale=0.1):
    """Return the losses of projected descent on the population risk."""
    k_star, v_star, k, v = vectors
    trained = [k.clone().requires_grad_(), v.clone().requires_grad_()]
    losses = []
    for _ in range(steps):
        loss = population_risk(k_star, v_star, *trained, scale)
        losses.append(loss.item())
        projected_step(trained, torch.autograd.grad(loss, trained), rate)
    return np.array(losses)


def squared_errors(k_star, v_star, k, v, scale, size, noise=0.1):
    """Return the squared errors of fresh prompts."""
    d = len(k)
    tokens = torch.randn(size, LENGTH, d, dtype=torch.double)
    tokens[:, 0] = SPREAD * tokens[:, 0] + (d / 2) ** 0.5 * k_star
    label = tokens[:, 0] @ v_star + noise * torch.randn(size, dtype=torch.double)
    output = (torch.erf(scale * (tokens @ k)) * (tokens @ v)).sum(1)
    return (output - label) ** 2


def train_on_batches(vectors, steps, batch, rate=1e-3, scale=2.0):
    """Return the batch losses along projected SGD, and their standard errors."""
    k_star, v_star, k, v = vectors
    trained = [k.clone().requires_grad_(), v.clone().requires_grad_()]
    rows = []
    for step in range(steps):
        now = scale / (1.0 + DECAY * step)
        single = squared_errors(k_star, v_star, *trained, now, batch)
        loss = single.mean()
        rows.append((loss.item(), single.std().item() / batch**0.5))
        projected_step(trained, torch.autograd.grad(loss, trained), rate)
    return np.array(rows).T


def main():
    """Compare both settings; exit status 1 if one differs."""
    arguments = options(__doc__, 20_000)
    vectors = directions(400, manifold=True, seed=0)
    problem = icl.SingleLocation(
        attention="erf",
        loss="mse",
        N=LENGTH,
        spread=SPREAD,
        d=400,
        snr=200.0,
        scale=0.1,
        start=reduced(*vectors),
        projection="spheres",
        eta=4e-3,
        max_steps=arguments.steps,
    )
    losses = train_on_population(vectors, arguments.steps)
    errors = rounding(losses, 1e-12)
    save(arguments.into / "marion_population.csv", losses, errors)
    comparison = problem.simulate().compare(losses, errors=errors)
    agree = verdict("population risk, from the manifold", comparison)

    vectors = directions(80, manifold=False, seed=0)
    run = problem.changed(
        d=80,
        snr=40.0,
        noise=0.1,
        scale=2.0,
        scale_decay=DECAY,
        start=reduced(*vectors),
        eta=1e-3,
    ).simulate()
    for batch in (100, 5):
        losses, errors = train_on_batches(vectors, arguments.steps, batch)
        if batch == 100:
            scatter = {"errors": errors}
        else:
            scatter = {"batch": batch}
            errors = None
        save(arguments.into / f"marion_{batch}.csv", losses, errors)
        comparison = run.compare(losses, **scatter)
        agree &= verdict(f"batches of {batch}, from the sphere", comparison)
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
