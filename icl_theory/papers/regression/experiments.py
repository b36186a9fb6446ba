"""Audit rows on what the paper says of its experiments: phases, attention maps, the block, and Gaussian inputs."""

from __future__ import annotations

import itertools
import math

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.families.regression import tasks
from icl_theory.families.regression.block import BlockRisk
from icl_theory.families.regression.direct import direct
from icl_theory.families.regression.features import Features
from icl_theory.families.regression.gaussian import GaussianRisk, QuadraticLaw
from icl_theory.families.regression.phases import tail_start
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.sampled import SampledRisk
from icl_theory.families.regression.simulate import simulate
from icl_theory.papers.claim import Claim, Outcome, Status, decade, judged
from icl_theory.papers.regression.common import WORDS, iterated_steps

EQUAL = 1e-9  # to which two ways to the same number agree
SIZES = (0.4, 0.55, 0.7, 3.0, 4.0, 5.0)


def phases_by_size(quick: bool) -> Claim:
    """Phases and steps of small and large L, at several targets."""
    K, eta, found, wrong, faster = 10, 1.0, {}, 0, True
    for epsilon in (1e-2, 1e-3, 1e-4) if quick else (1e-2, 1e-3, 1e-4, 1e-5):
        third, counts = [], []
        for L in SIZES:
            run = simulate(L, 1.0, eta, K=K, epsilon=epsilon)
            gamma = 0.5 * L**2
            deficit = math.sqrt(2.0 * epsilon * (K - 1.0) / (gamma * K))
            constant = eta * gamma * K / (K - 1.0) ** 2
            tail, steps = (iterated_steps(K, constant, [s])[0] for s in (tail_start(K), deficit))
            assert run.phases is not None
            wrong += int(run.steps != steps) + int(("III" in run.phases.present()) != (tail < steps))
            third.append(tail < steps)
            counts.append(steps)
        faster &= all(after < before for before, after in itertools.pairwise(counts))
        found[epsilon] = third
    large = {epsilon: [L for L, has in zip(SIZES, third, strict=True) if has] for epsilon, third in found.items()}
    divided = all(
        third == sorted(third) for third in found.values()
    )  # none has two phases above one that has three
    moves = len({len(each) for each in large.values()}) > 1
    everywhere = max(epsilon for epsilon, each in large.items() if len(each) == len(SIZES))
    return Claim(
        "phases by L",
        WORDS.format("Section 6"),
        "two phases for small L, three for large; a larger L is faster",
        Status.MEASURED,
        f"exchangeable, K = {K}, L = {', '.join(f'{L:g}' for L in SIZES)}; counts also by plain iteration",
        "; ".join(
            f"ε = {epsilon:g}: three phases from L = {min(each):g} on"
            if each
            else f"ε = {epsilon:g}: two for all L"
            for epsilon, each in large.items()
        )
        + f"; T falls with L at {'each' if faster else 'not every'} ε; {wrong} counts and phases differ",
        "0",
        judged(
            divided and faster and moves and not wrong,
            Outcome.ONLY,
            f" for a given ε: the L at which the third phase appears falls with ε, and from ε = {everywhere:g} down"
            " all of these L have three phases. That a larger L is faster holds at every ε",
        ),
    )


def attention_maps(quick: bool) -> Claim:
    """The diagonal and the rest of an attention map."""
    risk = PopulationRisk(Features.random(6, 3, 0.7, seed=1), tasks.RandomFourier(2.0))
    run = descend(risk, 1.0, steps=1000)
    maps = np.array([risk.attention(scores) for scores in run.states])
    own, rest = np.diagonal(maps, axis1=1, axis2=2), maps[:, ~np.eye(6, dtype=bool)]
    off = float(np.max(np.abs(maps[-1] / direct(risk, run.states[-1]).attention - 1.0)))
    rises = bool((np.diff(own, axis=0) > 0.0).all())
    return Claim(
        "attention maps",
        WORDS.format("Appendix A"),
        "the diagonal darkens, the rest fades",
        Status.MEASURED,
        f"random Fourier functions, six random features, {int(run.t[-1])} steps; the last map also by direct sums",
        f"on the diagonal from {own[0].mean():.2f} to {own[-1].mean():.2f}, {'rising' if rises else 'not rising'}"
        f" for every query; each other entry from {rest[0].mean():.2f} to at most {rest[-1].max():.2f}; off direct"
        f" sums by {decade(off)}",
        "1e-9",
        judged(rises and bool((rest[-1] < rest[0]).all()) and off < EQUAL),
    )


def block(quick: bool) -> Claim:
    """Target attention of the whole block, for cosines of one frequency and of random ones."""
    features, steps, seen = Features.simplex(6, 2.0), 500 if quick else 4000, []
    for law, share in ((tasks.RandomFourier(3.0), 4), (tasks.RandomCosine(3.0), 1)):
        run = descend(BlockRisk(SampledRisk(features, law, 40, 64, 0), seed=0), 0.1, steps=steps // share)
        last = {name: float(np.mean(values[-1])) for name, values in run.observed.items()}
        seen.append((last["attention"], last["test_loss"], last["attention_loss"]))
    (free, *_), (bound, loss, alone) = seen
    return Claim(
        "block",
        WORDS.format("Section 6"),
        "a block with feed-forward layer and layer norms, trained on cosines, attends to the query's own feature",
        Status.MEASURED,
        f"simplex, K = 6, Δ = 2, L = 3, N = 40, η = 0.1, 64 prompts a step, one seed; {steps // 4} steps for random"
        f" frequencies, {steps} for one",
        f"mean target attention {free:.2f} for cosines of random frequency, {bound:.2f} for those of one frequency,"
        f" the paper's tasks; the loss is {loss:.2g} there, where the block's attention alone gives {alone:.2g}",
        "attention ½",
        judged(
            free > 0.5 > bound and loss < 0.8 * alone,
            Outcome.ONLY,
            " for cosines of random frequency: with one frequency the layers after the attention do the work, and"
            " the loss falls without attention on the target",
        ),
    )


def gaussian_inputs(quick: bool) -> Claim:
    """Losses of quadratic functions of Gaussian inputs, for several L at the same η and at the same ηL²."""
    sizes, eta, steps = (0.8, 1.6, 2.4, 8.0), 0.02, 50
    same = [descend(GaussianRisk(QuadraticLaw.lipschitz(2, L, 0.5)), eta / L**2, steps=steps) for L in sizes]
    curves = [run.loss / L**2 for run, L in zip(same, sizes, strict=True)]
    plain = _plain_curve(QuadraticLaw.lipschitz(2, 1.0, 0.5), eta, steps)[same[0].t]
    apart = max(float(np.max(np.abs(curve / plain - 1.0))) for curve in curves)
    equal = [descend(GaussianRisk(QuadraticLaw.lipschitz(2, L, 0.5)), eta, steps=steps) for L in sizes[:3]]
    left = [float(run.loss[-1] / run.loss[0]) for run in equal]
    faster = left[0] > left[1] > left[2]
    return Claim(
        "Gaussian inputs",
        WORDS.format("Appendix A"),
        "quadratic functions of Gaussian inputs: two phases for small L, three for large; a larger L is faster",
        Status.MEASURED,
        f"two dimensions, N = inf, {steps} steps; L = {', '.join(f'{L:g}' for L in sizes)} at the same ηL², and by"
        f" plain iteration of one number; L = {', '.join(f'{L:g}' for L in sizes[:3])} at the same η",
        f"loss/L² at the same ηL² is one curve for all L, to {decade(apart)}; at the same η the loss falls to"
        f" {', '.join(f'{share:.0%}' for share in left)} of the first",
        "1e-9",
        judged(
            apart < EQUAL and faster,
            Outcome.ONLY,
            " for the speed: at the same ηL² every L has the same curve, so that the number of phases does not"
            " depend on L",
        ),
    )


def _plain_curve(law: QuadraticLaw, eta: float, steps: int) -> Array:
    """Losses of descent from zero, where Q stays a multiple c of the identity, by plain iteration of c."""
    d, a, b, c, losses = law.d, law.sigma_a**2, law.sigma_b**2, 0.0, []
    for _ in range(steps + 1):
        quartic = (d + 2) * c**4 - 2 * (d + 1) * c**2 + d + 1
        losses.append(0.5 * d * (a * quartic + b * (1.0 - c) ** 2))
        c -= eta * (2.0 * a * ((d + 2) * c**3 - (d + 1) * c) + b * (c - 1.0))
    return np.array(losses)


ROWS = (phases_by_size, attention_maps, block, gaussian_inputs)
