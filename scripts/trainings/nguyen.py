# mypy: ignore-errors
"""In-context recall by one strength for each trigger, on fresh batches of sentences.

    python scripts/trainings/nguyen.py

It follows the default settings beside "How Transformers Learn In-Context Recall Tasks?":
60 words, sentences of 256, 5 triggers (1 with noise), 4 outputs, batches of 512, and
steps of length 0.1 along the gradient of a batch. With noise α = 1/2 every sentence has
the same loss, so that two trainings differ by rounding; without it batches differ in
how often each trigger occurs. The gradient of such a batch is longer than that of all
sentences, so that its normalised parts are shorter, on average by (Q - 1)/(2B) for Q
triggers: an exact run with a rate that is so much smaller follows the mean.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from common import options, rounding, save, verdict
from torch.nn import functional

import icl_theory as icl

V, H, OUTPUTS, BATCH, RATE = 60, 256, 4, 512, 0.1
TRIGGERS = 5  # the words that are no filling
NOISE_WORD = V - 1
# Smaller losses are lost in rounding, although these are trained with float64. Theirs
# have float32, and end near 1e-7.
LEAST_LOSS = 1e-12
torch.set_default_dtype(torch.float64)


def sentences(generator, alpha):
    """Draw sentences with one planted bigram, or two with noise, and the next words."""
    draw = lambda low, high, *size: torch.randint(  # noqa: E731
        low, high, size or (BATCH,), generator=generator
    )
    rows = torch.arange(BATCH)
    words = draw(TRIGGERS, NOISE_WORD, BATCH, H)
    trigger = draw(0, 1 if alpha else TRIGGERS)
    output = draw(TRIGGERS, TRIGGERS + OUTPUTS)
    place = draw(0, H - 2)
    words[rows, place] = trigger
    words[rows, place + 1] = output
    answer = output
    if alpha:
        other = draw(0, H - 2)
        while (overlap := (other - place).abs() < 2).any():
            other = torch.where(overlap, draw(0, H - 2), other)
        words[rows, other] = trigger
        words[rows, other + 1] = NOISE_WORD
        is_noise = torch.rand(BATCH, generator=generator) < alpha
        answer = torch.where(is_noise, NOISE_WORD, output)
    words[:, -1] = trigger
    return words, trigger, answer


def logits(strengths, words, trigger, alpha):
    """Return logits: linear attention to what followed the trigger, and F with noise."""
    follows = torch.zeros(words.shape)
    follows[:, 1:] = words[:, :-1] == trigger[:, None]
    scores = strengths[trigger][:, None] * follows
    if alpha:
        scores = scores - strengths * (words == NOISE_WORD)
    result = torch.zeros(BATCH, V).scatter_add(1, words, scores)
    if alpha:
        gamma = np.log(alpha / (1.0 - alpha))
        result[:, NOISE_WORD] += gamma + (scores * follows).sum(1)
    return result


def train(alpha, steps, seed=0):
    """Return losses and their standard errors along normalised descent on batches."""
    generator = torch.Generator().manual_seed(seed)
    strengths = torch.zeros(1 if alpha else TRIGGERS, requires_grad=True)
    losses, errors = [], []
    for _ in range(steps):
        words, trigger, answer = sentences(generator, alpha)
        single = functional.cross_entropy(
            logits(strengths, words, trigger, alpha), answer, reduction="none"
        )
        losses.append(single.mean().item())
        errors.append(single.std().item() / BATCH**0.5)
        (gradient,) = torch.autograd.grad(single.mean(), strengths)
        if gradient.norm() > 0:
            with torch.no_grad():
                strengths -= RATE * gradient / gradient.norm()
    return np.array(losses), np.array(errors)


def exact(alpha, steps, rate=RATE):
    """Return the exact run."""
    return icl.recall.simulate(
        V=V,
        H=H,
        triggers=1 if alpha else TRIGGERS,
        outputs=OUTPUTS,
        alpha=alpha,
        law="planted",
        weights="identity",
        eta=rate,
        above=1e-12 if alpha else 1e-14,
        max_steps=steps,
    )


def main():
    """Compare both; exit status 1 if one differs."""
    arguments = options(__doc__, 2000)
    agree = True
    for alpha in (0.0, 0.5):
        losses, errors = train(alpha, arguments.steps)
        run = exact(alpha, arguments.steps)
        if alpha:
            errors = rounding(losses, 1e-12)
            comparison = run.compare(losses, errors=errors)
        else:
            losses = losses[: np.argmax(np.append(losses, 0.0) < LEAST_LOSS)]
            print(f"compared down to {LEAST_LOSS:g}, the first {len(losses)} steps")
            errors = errors[: len(losses)]
            comparison = run.compare(losses, batch=BATCH, runs=4)
            shorter = RATE * (1.0 - (TRIGGERS - 1) / (2 * BATCH))
            last = len(losses) - 1
            ratio = losses[-1] / exact(alpha, last, shorter).at(last).loss
            print(
                f"rate {shorter:.4f}: loss {ratio:.4f} times the exact one at the end"
            )
            agree &= abs(ratio - 1.0) < 0.03
        save(arguments.into / f"nguyen_{alpha:g}.csv", losses, errors)
        agree &= verdict(f"alpha = {alpha:g}", comparison)
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
