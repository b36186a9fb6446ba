"""Rows on what the paper says of its runs and experiments: samples, phases, attention, noise, blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.pullback import in_coordinates
from icl_theory.engine.risk import Risk
from icl_theory.engine.statement import OURS, Status
from icl_theory.families.regression import tasks
from icl_theory.families.regression.features import Features
from icl_theory.families.regression.phases import tail_start
from icl_theory.families.regression.risks.gaussian import GaussianRisk, QuadraticLaw
from icl_theory.families.regression.risks.population import PopulationRisk
from icl_theory.families.regression.risks.stability import stable_rate
from icl_theory.families.regression.sampled.block import BlockRisk
from icl_theory.families.regression.sampled.counts import CountedRisk
from icl_theory.families.regression.sampled.phases import run_states, sampled_phases
from icl_theory.families.regression.sampled.risk import SampledRisk
from icl_theory.families.regression.simulate import simulate
from icl_theory.families.regression.theorems.enumeration import direct
from icl_theory.papers.claim import Found, Outcome, Verdict, decade, off, row, span
from icl_theory.papers.regression.common import (
    EQUAL,
    PAPER,
    WORDS,
    cross_ratios,
    iterated_gaps,
    iterated_steps,
    random_risk,
)  # fmt: skip


@row("phases of sampled runs", OURS)
def phases_of_samples(quick: bool) -> Found:
    """T_I, T_II, T_III, T_ε and the growth in each phase of sampled training are those of exact descent on the same
    prompts
    """
    found = [
        sampled_phases(simulate(L, 1.0, eta, K=10, epsilon=epsilon), N=100, runs=8 if quick else 16)
        for L, eta, epsilon in ([(0.2, 80.0, 1e-3)] if quick else [(0.2, 40.0, 1e-3), (2.0, 2.0, 5e-3)])
    ]
    checks = [check for each in found for check in each.checks]
    worst = max(checks, key=lambda check: abs(check.z))
    closest, wrong = min(check.standard_error / abs(check.population) for check in checks), 0
    for each in found:  # with fractions of steps, the exact column is the run
        values = {check.name: math.ceil(check.population) for check in each.checks}
        assert each.exact.phases is not None
        wrong += (values["T_I"] != each.exact.phases.I[1]) + (values["T_ε"] != each.exact.steps)
    good = all(each.passed for each in found) and not wrong
    return Found(
        Verdict(Outcome.HOLDS) if good else Verdict(Outcome.FAILS, f": {worst.name}"),
        f"{' and '.join(str(each.exact.regime) for each in found)}, K = 10, N = 100; {found[0].note}; "
        + ", ".join(f"T_ε = {each.exact.steps}" for each in found),
        f"largest |z| of {len(checks)} means {abs(worst.z):.1f}; the best standard error is {closest:.1%}; {wrong}"
        " exact times are not the run's",
        bound=f"{worst.limit:.1f}; 0",
    )


@row("cross terms, unequal tasks", PAPER.format("Props 3, 4, Lemmas 7, 9"), Status.ORDER, "3; 1e-9")
def cross_terms_of_unequal_tasks(quick: bool) -> Found:
    """|β_mk| = O(α_k/K) in Phases II and III"""
    risks = {
        "linear": PopulationRisk(Features.random(5, 4, 0.7, seed=2), tasks.Linear(2.0)),
        "Fourier": PopulationRisk(Features.random(6, 3, 0.7, seed=2), tasks.RandomFourier(2.0)),
        "random kernel": random_risk(1, 5),
    }
    found, apart = {}, 0.0
    for name, risk in risks.items():
        run = descend(risk, 2.0, steps=10**5 if quick else 10**9, method="fast")
        late = run.states[run.attention.min(axis=1) >= 0.5]
        found[name] = [(risk.features.K - 1.0) * float(cross_ratios(risk, scores).max()) for scores in late]
        middle = run.states[len(run.t) // 2]
        apart = max(apart, off(risk.growth(middle), -risk.features.probs * direct(risk, middle).slope))
    largest, last = max(map(max, found.values())), max(abs(ratios[-1] - 1.0) for ratios in found.values())
    words = "; ".join(f"{max(ratios):.2f}, in the end {ratios[-1]:.2f} ({name})" for name, ratios in found.items())
    return Found(
        largest < 3.0 and apart < EQUAL,
        f"three tasks with unequal features, K = 5, 6, N = inf, all saved states with Attn >= 1/2 up to step"
        f" {int(run.t[-1]):.0e}; against direct sums",
        f"(K-1) max_m |β_mk|/α_k at most {words}; off direct sums by {decade(apart)}",
        ", and in the tail the other scores move alike" if last < 0.5 * (largest - 1.0) else "",
    )


@row("ends of phases", PAPER.format("Lemmas 3, 5, 6, 8, 10"), Status.ORDER, "0.25..4; 1e-9")
def ends_of_phases(quick: bool) -> Found:
    """at T₁ the own score is Θ(ln K) and Attn >= 1/2; at T_ε the own score is Θ(ln(K LΔ ε^-½)) and
    1 - Attn = O(√ε/(LΔ)); the others are -own/(K-1), their attention (1 - Attn)/(K-1)
    """
    ratios: dict[str, list[float]] = {"own/ln K at T₁": [], "own/ln(K LΔ ε^-½)": [], "(1-Attn) LΔ ε^-½": []}
    sizes, apart, inside = (3, 10, 30) if quick else (3, 10, 30, 100, 300), 0.0, True
    for K, c, deficit in itertools.product(sizes, (0.03, 1.0), (0.2, 0.05, 0.01)):
        gamma, epsilon, start = 2.0, 0.5 * 2.0 * K / (K - 1.0) * deficit**2, math.log(K - 1.0)
        run = simulate(2.0, 1.0, c * (K - 1.0) ** 2 / (K * gamma), K=K, epsilon=epsilon)
        assert run.phases is not None
        assert run.steps is not None
        first, path = run.phases.I[1], iterated_gaps(K, c, run.steps)
        gaps = [float(run.at(first).params), float(run.params)]
        apart = max(apart, *(abs(gap - path[step]) for gap, step in zip(gaps, (first, run.steps), strict=True)))
        inside &= bool(path[first] >= start > path[first - 1])  # the attention is 1/2
        (own, end), scale = (gap * (K - 1.0) / K for gap in gaps), 2.0 / math.sqrt(epsilon)
        deficit = 1.0 / (1.0 + math.exp(path[run.steps] - start))
        values = (own / math.log(K), end / math.log(K * scale), scale * deficit)
        for each, value in zip(ratios.values(), values, strict=True):
            each.append(value)
    bounded = all(0.25 < value < 4.0 for each in ratios.values() for value in each)
    return Found(
        bounded and inside and apart < EQUAL,
        f"{len(each)} exchangeable runs, K = 3..{K}, c = 0.03, 1, deficits 0.01..0.2; and by plain iteration",
        "; ".join(f"{name} = {span(each, '.2f')}" for name, each in ratios.items())
        + f"; off plain iteration by {decade(apart)}",
    )


def turns(path: Array, small: float = 1e-6) -> NDArray[np.intp]:
    """How often each of some sequences (T, ...) turns, relative changes that are rounding left out."""
    moves = np.diff(np.log(path.reshape(len(path), -1)), axis=0).T
    signs = [np.sign(each[np.abs(each) > small]) for each in moves]
    return np.array([np.count_nonzero(np.diff(each)) for each in signs]).reshape(path.shape[1:])


def wandering() -> Iterator[tuple[str, PopulationRisk, Risk | None]]:
    """Settings in which the attention on other features is watched: name, risk, and a trainer if it is sampled."""
    features, law = Features.random(6, 3, 0.7, seed=1), tasks.RandomFourier(2.0)
    yield "exchangeable", PopulationRisk(Features.simplex(6, 1.0), tasks.Exchangeable(2.0)), None
    yield "Fourier", PopulationRisk(features, law), None
    yield "Fourier, N = 8", PopulationRisk(features, law, 8), None
    yield "Fourier, N = 8, σ = 1", PopulationRisk(features, law, 8, 1.0), None
    for batch in (4096, 64):
        trainer = CountedRisk(features, law, 8, batch, 0, every_query=False)
        yield f"SGD, N = 8, {batch} prompts a step", PopulationRisk(features, law, 8), trainer


@row("oscillation", WORDS.format("abstract, Props 2 to 4"), bound="turns; 1e-9")
def oscillation(quick: bool) -> Found:
    """attention on other features decays slowly and can oscillate"""
    words, exact_most, sampled_least, alone, apart = [], 0, math.inf, 0, 0.0
    steps, other = 100 if quick else 400, ~np.eye(6, dtype=bool)
    for name, risk, trainer in wandering():
        if quick and math.isfinite(risk.N) and (trainer is None or "64" not in name):
            continue
        seen = PopulationRisk(risk.features, risk.task)
        states = run_states(risk if trainer is None else trainer, 2.0, steps)
        path = np.array([seen.attention(scores) for scores in states])
        apart = max(apart, off(path[-1], direct(seen, states[-1]).attention))
        counts = turns(path)[other]
        turning, most = int((counts > 0).sum()), int(counts.max())
        if trainer is None:
            exact_most, alone = max(exact_most, most), max(alone, turning)
        else:
            sampled_least = min(sampled_least, float(np.median(counts)))
        words.append(f"{turning} of {counts.size}, at most {most} times, median {np.median(counts):g} ({name})")
    return Found(
        apart <= EQUAL and alone > 0,
        f"K = 6, η = 2, every step of {steps}; attention of long prompts at the scores; changes above 1e-6 count",
        f"that turn: {'; '.join(words)}; off direct sums by {decade(apart)}",
        f" for {'sampled' if sampled_least > 5 * exact_most else 'no kind of'} runs: exact descent turns at most"
        f" {exact_most} times, and never for exchangeable tasks",
        Outcome.ONLY,
    )


@row("flat permits larger steps", PAPER.format("Thms 1, 2"), Status.ORDER, "rates as 1/L²; 0")
def larger_steps(quick: bool) -> Found:
    """the flat regime permits a larger learning rate"""
    root, epsilon, wrong = np.random.default_rng(4).normal(size=(3, 3)), 0.02, 0
    rates, guaranteed, best = [], [], []
    for L in (0.5, 4.0):
        risk = PopulationRisk(Features.simplex(3, 1.0, [0.5, 0.3, 0.2]), tasks.KernelTask(L**2 * root @ root.T))
        rates.append(rate := float(stable_rate(float(risk.task.variogram(risk.features).max()), 2.0)))
        runs = [
            descend(risk, eta, epsilon=epsilon, steps=5000)
            for eta in (rate * np.geomspace(1.0, 1e4, 9 if quick else 25)).tolist()
        ]
        counts = [math.inf if run.steps is None else run.steps for run in runs]
        wrong += _plain_count(risk, rate, epsilon) != counts[0]
        guaranteed.append(counts[0])
        best.append(min(counts))
    alike = "both regimes take the same few steps" if best[0] == best[1] <= 3 else "the regimes differ"
    return Found(
        rates[0] > rates[1] and guaranteed[0] <= guaranteed[1] and not wrong,
        f"random kernel with unequal p, K = 3, N = inf, L = 0.5 and 4, ε = {epsilon:g}; η from the guaranteed rate"
        " to 1e4 times it; counts also by plain iteration with direct sums",
        f"guaranteed rates {rates[0]:.3g} and {rates[1]:.3g}, T = {guaranteed[0]} and {guaranteed[1]} there; at the"
        f" best η of each T = {best[0]} and {best[1]}; {wrong} of 2 counts differ",
        f" for the guaranteed rate; at the best rates {alike}",
    )


def _plain_count(risk: PopulationRisk, eta: float, epsilon: float) -> float:
    """Steps of plain descent by sums over functions."""
    scores, p = np.zeros_like(risk.initial), risk.features.probs
    for step in range(5001):
        found = direct(risk, scores)
        if float(p @ found.loss) <= epsilon:
            return step
        scores = scores - eta * p * found.slope
    return math.inf


@row("noisy tokens", WORDS.format("Section 3.1"), bound="attention above 1.5/K; 4.5")
def noisy_tokens(quick: bool) -> Found:
    """tokens are noisy versions of the features, and attention still finds those of the query's feature"""
    K, N, L, batch, steps = 4, 20, 2.0, 64 if quick else 256, 150 if quick else 300
    features, found, worst = Features.simplex(K, 1.0), [], 0.0
    d, vectors = features.d, features.vectors
    spread = float((vectors**2).sum(axis=1).mean() - (vectors.mean(axis=0) ** 2).sum())
    for size in (0.0, 0.1, 0.3):
        trainer: Risk = SampledRisk(features, tasks.Linear(L), N, batch, 0, token_noise=size)
        trainer = trainer if size else in_coordinates(trainer, "embedding", vectors)
        # of linear functions at Q = 0: the distance of the query from the mean of the tokens
        expected = 0.5 * L**2 / d * (1.0 + 1.0 / N) * (spread + d * size**2)
        draws = np.array([trainer.evaluate(np.zeros((d, d)), 10**6 + i)[0] for i in range(200 if quick else 1000)])
        worst = max(worst, abs(draws.mean() - expected) / (draws.std(ddof=1) / math.sqrt(len(draws))))
        params = descend(trainer, 2.0, steps=steps).params
        late = np.mean([trainer.evaluate(params, 2 * 10**6 + i)[0] for i in range(50)]) / expected
        seen = np.mean([float(trainer.observe(params, 3 * 10**6 + i)["attention"]) for i in range(20)])
        found.append((size, float(late), float(seen)))
    fades = all(a[2] > b[2] for a, b in itertools.pairwise(found))
    words = ", ".join(f"{seen:.2f}, loss {late:.0%} of the first (noise {size:g})" for size, late, seen in found)
    return Found(
        worst <= 4.5 and all(seen > 1.5 / K and late < 0.6 for _, late, seen in found),
        f"linear tasks on a simplex, K = {K}, Δ = 1, N = {N}; Q trained for {steps} steps, {batch} prompts each;"
        " loss at Q = 0 in closed form",
        f"attention {words}; largest |z| of the loss at Q = 0 {worst:.1f}",
        "; the noisier the tokens, the less attention" if fades else "",
    )


@row("phases by L", WORDS.format("Section 6"), bound="0")
def phases_by_size(quick: bool) -> Found:
    """two phases for small L, three for large; a larger L is faster"""
    K, eta, sizes, found, wrong, faster = 10, 1.0, (0.4, 0.55, 0.7, 3.0, 4.0, 5.0), {}, 0, True
    for epsilon in (1e-2, 1e-3, 1e-4) if quick else (1e-2, 1e-3, 1e-4, 1e-5):
        third, counts = [], []
        for L in sizes:
            run, gamma = simulate(L, 1.0, eta, K=K, epsilon=epsilon), 0.5 * L**2
            deficit = math.sqrt(2.0 * epsilon * (K - 1.0) / (gamma * K))
            constant = eta * gamma * K / (K - 1.0) ** 2
            tail, steps = (iterated_steps(K, constant, [s])[0] for s in (tail_start(K), deficit))
            assert run.phases is not None
            wrong += (run.steps != steps) + (("III" in run.phases.present()) != (tail < steps))
            third.append(tail < steps)
            counts.append(steps)
        faster &= all(after < before for before, after in itertools.pairwise(counts))
        found[epsilon] = third
    large = {epsilon: [L for L, has in zip(sizes, third, strict=True) if has] for epsilon, third in found.items()}
    divided = all(third == sorted(third) for third in found.values())  # none with two phases above one with three
    everywhere = max(epsilon for epsilon, each in large.items() if len(each) == len(sizes))
    return Found(
        divided and faster and len({len(each) for each in large.values()}) > 1 and not wrong,
        f"exchangeable, K = {K}, L = {', '.join(f'{L:g}' for L in sizes)}; counts also by plain iteration",
        "; ".join(
            f"ε = {epsilon:g}: " + (f"three phases from L = {min(each):g} on" if each else "two for all L")
            for epsilon, each in large.items()
        )
        + f"; T falls with L at {'each' if faster else 'not every'} ε; {wrong} counts and phases differ",
        f" for a given ε: the L at which the third phase appears falls with ε, and from ε = {everywhere:g} down"
        " all of these L have three phases. That a larger L is faster holds at every ε",
        Outcome.ONLY,
    )


@row("attention maps", WORDS.format("Appendix A"), bound="1e-9")
def attention_maps(quick: bool) -> Found:
    """the diagonal darkens, the rest fades"""
    risk = PopulationRisk(Features.random(6, 3, 0.7, seed=1), tasks.RandomFourier(2.0))
    run = descend(risk, 1.0, steps=1000)
    maps = np.array([risk.attention(scores) for scores in run.states])
    own, rest = np.diagonal(maps, axis1=1, axis2=2), maps[:, ~np.eye(6, dtype=bool)]
    apart = off(maps[-1], direct(risk, run.states[-1]).attention)
    rises = bool((np.diff(own, axis=0) > 0.0).all())
    return Found(
        rises and bool((rest[-1] < rest[0]).all()) and apart < EQUAL,
        f"random Fourier functions, six random features, {int(run.t[-1])} steps; the last map also by direct sums",
        f"on the diagonal from {own[0].mean():.2f} to {own[-1].mean():.2f}, {'rising' if rises else 'not rising'}"
        f" for every query; each other entry from {rest[0].mean():.2f} to at most {rest[-1].max():.2f}; off direct"
        f" sums by {decade(apart)}",
    )


@row("block", WORDS.format("Section 6"), bound="attention ½")
def block(quick: bool) -> Found:
    """a block with feed-forward layer and layer norms, trained on cosines, attends to the query's own feature"""
    features, steps, seen = Features.simplex(6, 2.0), 500 if quick else 4000, []
    for law, share in ((tasks.RandomFourier(3.0), 4), (tasks.RandomCosine(3.0), 1)):
        run = descend(BlockRisk(SampledRisk(features, law, 40, 64, 0), seed=0), 0.1, steps=steps // share)
        names = ("attention", "test_loss", "attention_loss")
        seen.append([float(np.mean(run.observed[name][-1])) for name in names])
    (free, *_), (bound, loss, alone) = seen
    return Found(
        free > 0.5 > bound and loss < 0.8 * alone,
        f"simplex, K = 6, Δ = 2, L = 3, N = 40, η = 0.1, 64 prompts a step, one seed; {steps // 4} steps for random"
        f" frequencies, {steps} for one",
        f"mean target attention {free:.2f} for cosines of random frequency, {bound:.2f} for those of one frequency,"
        f" the paper's tasks; the loss is {loss:.2g} there, where the block's attention alone gives {alone:.2g}",
        " for cosines of random frequency: with one frequency the layers after the attention do the work, and"
        " the loss falls without attention on the target",
        Outcome.ONLY,
    )


@row("Gaussian inputs", WORDS.format("Appendix A"), bound="1e-9")
def gaussian_inputs(quick: bool) -> Found:
    """quadratic functions of Gaussian inputs: two phases for small L, three for large; a larger L is faster"""
    sizes, eta, steps = (0.8, 1.6, 2.4, 8.0), 0.02, 50
    risks = [GaussianRisk(QuadraticLaw.lipschitz(2, L, 0.5)) for L in sizes]
    same = [descend(risk, eta / L**2, steps=steps) for risk, L in zip(risks, sizes, strict=True)]
    plain = _plain_curve(QuadraticLaw.lipschitz(2, 1.0, 0.5), eta, steps)[same[0].t]
    apart = max(off(run.loss / L**2, plain) for run, L in zip(same, sizes, strict=True))
    equal = [descend(risk, eta, steps=steps) for risk in risks[:3]]
    left = [float(run.loss[-1] / run.loss[0]) for run in equal]
    return Found(
        apart < EQUAL and left[0] > left[1] > left[2],
        f"two dimensions, N = inf, {steps} steps; L = {', '.join(f'{L:g}' for L in sizes)} at the same ηL², and by"
        f" plain iteration of one number; L = {', '.join(f'{L:g}' for L in sizes[:3])} at the same η",
        f"loss/L² at the same ηL² is one curve for all L, to {decade(apart)}; at the same η the loss falls to"
        f" {', '.join(f'{share:.0%}' for share in left)} of the first",
        " for the speed: at the same ηL² every L has the same curve, so that the number of phases does"
        " not depend on L",
        Outcome.ONLY,
    )


def _plain_curve(law: QuadraticLaw, eta: float, steps: int) -> Array:
    """Losses of descent from zero, where Q stays a multiple c of the identity, by plain iteration of c."""
    d, a, b, c, losses = law.d, law.sigma_a**2, law.sigma_b**2, 0.0, []
    for _ in range(steps + 1):
        quartic = (d + 2) * c**4 - 2 * (d + 1) * c**2 + d + 1
        losses.append(0.5 * d * (a * quartic + b * (1.0 - c) ** 2))
        c -= eta * (2.0 * a * ((d + 2) * c**3 - (d + 1) * c) + b * (c - 1.0))
    return np.array(losses)
