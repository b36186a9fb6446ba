"""Rows on what the paper says of its runs and experiments: samples, phases, attention, noise, blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine import Risk, descend, in_coordinates
from icl_theory.papers.regression.statements import common
from icl_theory.papers.regression.statements.common import (
    EQUAL,
    PAPER,
    WORDS,
    cross_ratios,
    random_risk,
)
from icl_theory.papers.regression.theorems.enumeration import direct
from icl_theory.regression import (
    BlockRisk,
    Features,
    PopulationRisk,
    stable_rate,
    tail_start,
    tasks,
)
from icl_theory.regression.risks.gaussian import GaussianRisk, QuadraticLaw
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.phases import (
    SampledPhases,
    run_states,
    sampled_phases,
)
from icl_theory.regression.sampled.risk import SampledRisk
from icl_theory.regression.simulate import simulate
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import (
    apart,
    decade,
    deviations,
    listed,
    losses,
    off,
    span,
)
from icl_theory.statements.statement import OURS, Status


@row("phases of sampled runs", OURS)
def phases_of_samples(quick: bool) -> Claim:
    """T_I, T_II, T_III, T_ε and the growth in each phase of sampled training are those of exact descent on the same
    prompts
    """
    problems = [(0.2, 80.0, 1e-3)] if quick else [(0.2, 40.0, 1e-3), (2.0, 2.0, 5e-3)]
    runs = [
        simulate(L, 1.0, eta, K=10, epsilon=epsilon) for L, eta, epsilon in problems
    ]
    found = [sampled_phases(run, N=100, runs=8 if quick else 16) for run in runs]
    checks = [check for each in found for check in each.checks]
    exact = [each.exact for each in found]
    wrong = sum(map(_wrong_times, found))
    worst = max(checks, key=lambda check: abs(check.z))
    closest = min(check.standard_error / abs(check.population) for check in checks)
    return Claim.of(
        all(each.passed for each in found) and not wrong,
        f"{' and '.join(str(run.regime) for run in exact)}, K = 10, N = 100;"
        f" {found[0].note}; {', '.join(f'T_ε = {run.steps}' for run in exact)}",
        f"largest |z| of {len(checks)} means {abs(worst.z):.1f}; the best standard"
        f" error is {closest:.1%}; {wrong} exact times are not the run's",
        bound=f"{worst.limit:.1f}; 0",
    )


def _wrong_times(found: SampledPhases) -> int:
    values = {check.name: math.ceil(check.population) for check in found.checks}
    assert found.exact.phases is not None
    return (values["T_I"] != found.exact.phases.I[1]) + (
        values["T_ε"] != found.exact.steps
    )


@row(
    "cross terms, unequal tasks",
    PAPER.format("Props 3, 4, Lemmas 7, 9"),
    Status.ORDER,
    "3; 1e-9",
)
def cross_terms_of_unequal_tasks(quick: bool) -> Claim:
    """|β_mk| = O(α_k/K) in Phases II and III"""
    steps = 10**5 if quick else 10**9
    ratios, errors = zip(
        *(_cross_terms(risk, steps) for risk in unequal_tasks().values()), strict=True
    )
    most = [max(each) for each in ratios]
    ends = [each[-1] for each in ratios]
    alike = apart(ends, 1.0) < 0.5 * (max(most) - 1.0)
    shown = [
        f"{x:.2f}, in the end {y:.2f} ({k})"
        for k, x, y in zip(unequal_tasks(), most, ends, strict=True)
    ]
    return Claim.of(
        max(most) < 3.0 and np.max(errors) < EQUAL,
        "three tasks with unequal features, K = 5, 6, N = inf, all saved states with"
        f" Attn >= 1/2 up to step {steps:.0e}; against direct sums",
        f"(K-1) max_m |β_mk|/α_k at most {'; '.join(shown)}; off direct sums by"
        f" {decade(np.max(errors))}",
        "holds, and in the tail the other scores move alike" if alike else "holds",
    )


def unequal_tasks() -> dict[str, PopulationRisk]:
    """Tasks with unequal features."""
    return {
        "linear": PopulationRisk(Features.random(5, 4, 0.7, seed=2), tasks.Linear(2.0)),
        "Fourier": PopulationRisk(
            Features.random(6, 3, 0.7, seed=2), tasks.RandomFourier(2.0)
        ),
        "random kernel": random_risk(1, 5),
    }


def _cross_terms(risk: PopulationRisk, steps: int) -> tuple[list[float], float]:
    run = descend(risk, 2.0, steps=steps, method="fast")
    late = run.states[run.attention.min(axis=1) >= 0.5]
    middle = run.states[len(run.t) // 2]
    ratios = [
        (risk.features.K - 1.0) * float(cross_ratios(risk, scores).max())
        for scores in late
    ]
    return ratios, off(
        risk.growth(middle), -risk.features.probs * direct(risk, middle).slope
    )


@row(
    "ends of phases",
    PAPER.format("Lemmas 3, 5, 6, 8, 10"),
    Status.ORDER,
    "0.25..4; 1e-9",
)
def ends_of_phases(quick: bool) -> Claim:
    """at T₁ the own score is Θ(ln K) and Attn >= 1/2; at T_ε the own score is Θ(ln(K LΔ ε^-½)) and
    1 - Attn = O(√ε/(LΔ)); the others are -own/(K-1), their attention (1 - Attn)/(K-1)
    """
    K = (3, 10, 30) if quick else (3, 10, 30, 100, 300)
    found = [
        _ends(*case) for case in itertools.product(K, (0.03, 1.0), (0.2, 0.05, 0.01))
    ]
    inside, errors, *ratios = zip(*found, strict=True)
    names = ("own/ln K at T₁", "own/ln(K LΔ ε^-½)", "(1-Attn) LΔ ε^-½")
    return Claim.of(
        all(inside)
        and np.max(errors) < EQUAL
        and np.min(ratios) > 0.25
        and np.max(ratios) < 4.0,
        f"{len(found)} exchangeable runs, K = 3..{K[-1]}, c = 0.03, 1, deficits"
        " 0.01..0.2; and by plain iteration",
        "; ".join(
            f"{name} = {span(each, '.2f')}"
            for name, each in zip(names, ratios, strict=True)
        )
        + f"; off plain iteration by {decade(np.max(errors))}",
    )


def _ends(K: int, c: float, deficit: float) -> tuple[bool, float, float, float, float]:
    """Whether Phase I ends at the attention 1/2, errors of the scores at both ends, and
    what the lemmas bound.
    """
    gamma = 2.0
    epsilon = 0.5 * 2.0 * K / (K - 1.0) * deficit**2
    start = math.log(K - 1.0)
    run = simulate(2.0, 1.0, c * (K - 1.0) ** 2 / (K * gamma), K=K, epsilon=epsilon)
    assert run.phases is not None
    assert run.steps is not None
    first = run.phases.I[1]
    path = common.iterated_gaps(K, c, run.steps)
    gaps = np.array([float(run.at(first).params), float(run.params)])
    scale = 2.0 / math.sqrt(epsilon)
    own, end = gaps * (K - 1.0) / K
    missed = scale / (1.0 + math.exp(path[run.steps] - start))
    inside = bool(path[first] >= start > path[first - 1])  # the attention is 1/2
    return (
        inside,
        apart(gaps, path[[first, run.steps]]),
        own / math.log(K),
        end / math.log(K * scale),
        missed,
    )


def turns(path: Array, small: float = 1e-6) -> NDArray[np.intp]:
    """How often each of some sequences (T, ...) turns, relative changes that are
    rounding left out.
    """
    moves = np.diff(np.log(path.reshape(len(path), -1)), axis=0).T
    signs = [np.sign(each[np.abs(each) > small]) for each in moves]
    return np.array([np.count_nonzero(np.diff(each)) for each in signs]).reshape(
        path.shape[1:]
    )


class Setting(NamedTuple):
    """A run in which the attention on other features is watched; its trainer, if it is
    sampled.
    """

    name: str
    risk: PopulationRisk
    trainer: Risk | None
    eta: float


def wandering() -> Iterator[Setting]:
    """Settings in which the attention on other features is watched."""
    features = Features.random(6, 3, 0.7, seed=1)
    law = tasks.RandomFourier(2.0)
    gentle = 2.0
    exchangeable = PopulationRisk(Features.simplex(6, 1.0), tasks.Exchangeable(2.0))
    linear = PopulationRisk(features, tasks.Linear(2.0))
    for eta in (gentle, 100.0):
        yield Setting(f"exchangeable, η = {eta:g}", exchangeable, None, eta)
    for eta in (gentle, 30.0, 100.0, 300.0):
        yield Setting(f"linear, η = {eta:g}", linear, None, eta)
    yield Setting("Fourier", PopulationRisk(features, law), None, gentle)
    yield Setting("Fourier, N = 8", PopulationRisk(features, law, 8), None, gentle)
    yield Setting(
        "Fourier, N = 8, σ = 1", PopulationRisk(features, law, 8, 1.0), None, gentle
    )
    for batch in (4096, 64):
        trainer = CountedRisk(features, law, 8, batch, 0, every_query=False)
        yield Setting(
            f"SGD, N = 8, {batch} prompts a step",
            PopulationRisk(features, law, 8),
            trainer,
            gentle,
        )


@row("oscillation", WORDS.format("abstract, Props 2 to 4"), bound="turns; 1e-9")
def oscillation(quick: bool) -> Claim:
    """attention on other features can oscillate"""
    steps = 100 if quick else 400
    most = dict[str, int]()
    errors = list[float]()
    words = list[str]()
    medians = list[float]()
    never = 0
    for setting in wandering():
        if quick and not math.isinf(setting.risk.N) and "64" not in setting.name:
            continue
        counts, error, often = _turns(setting, steps)
        errors.append(error)
        words.append(often)
        if "exchangeable" in setting.name:
            never = max(never, int(np.max(counts)))
        elif setting.trainer is None:
            rate = f"{setting.eta:g}"
            most[rate] = max(most.get(rate, 0), int(np.max(counts)))
        else:
            medians.append(float(np.median(counts)))
    exact = ", ".join(f"{count} times at η = {rate}" for rate, count in most.items())
    return Claim.of(
        np.max(errors) <= EQUAL and max(most.values()) > 0 and never == 0,
        f"K = 6, η = 2 unless named, every step of {steps}; attention of long prompts"
        " at the scores; changes above 1e-6 count",
        f"that turn: {'; '.join(words)}; off direct sums by {decade(np.max(errors))}",
        f"holds: in exact descent an entry turns up to {exact}, never for exchangeable"
        f" tasks; in sampled runs half of the entries turn {min(medians):g} times or"
        " more",
    )


def _turns(setting: Setting, steps: int) -> tuple[NDArray[np.intp], float, str]:
    """How often each off-target entry turns, how far attention is off direct sums, and
    this in words.
    """
    seen = PopulationRisk(setting.risk.features, setting.risk.task)
    states = run_states(
        setting.risk if setting.trainer is None else setting.trainer, setting.eta, steps
    )
    path = np.array([seen.attention(scores) for scores in states])
    counts = turns(path)[~np.eye(6, dtype=bool)]
    error = off(path[-1], direct(seen, states[-1]).attention)
    often = f"{(counts > 0).sum()} of {counts.size}, at most {counts.max()} times, median {np.median(counts):g}"
    return counts, error, f"{often} ({setting.name})"


@row(
    "flat permits larger steps",
    WORDS.format("Section 1, Thms 1, 2"),
    Status.ORDER,
    "rates as 1/L²; 0",
)
def larger_steps(quick: bool) -> Claim:
    """the flat regime permits a larger learning rate"""
    (rate, flat, wrong), (low, sharp, other) = (
        _rates(L, 9 if quick else 25, 0.02) for L in (0.5, 4.0)
    )
    alike = (
        "both regimes take the same few steps"
        if min(flat) == min(sharp) <= 3
        else "the regimes differ"
    )
    return Claim.of(
        rate > low and flat[0] <= sharp[0] and not (wrong or other),
        "random kernel with unequal p, K = 3, N = inf, L = 0.5 and 4, ε = 0.02; η from"
        " the guaranteed rate to 1e4 times it; counts also by plain iteration with"
        " direct sums",
        f"guaranteed rates {rate:.3g} and {low:.3g}, T = {flat[0]} and {sharp[0]}"
        f" there; at the best η of each T = {min(flat)} and {min(sharp)};"
        f" {wrong + other} of 2 counts differ",
        f"holds for the guaranteed rate; at the best rates {alike}",
    )


def _rates(L: float, many: int, epsilon: float) -> tuple[float, list[float], bool]:
    """Guaranteed rate, steps from it to 1e4 times it, and whether plain iteration takes
    others at it.
    """
    root = np.random.default_rng(4).normal(size=(3, 3))
    risk = PopulationRisk(
        Features.simplex(3, 1.0, [0.5, 0.3, 0.2]),
        tasks.KernelTask(L**2 * root @ root.T),
    )
    rate = float(stable_rate(float(risk.task.variogram(risk.features).max()), 2.0))
    etas = (rate * np.geomspace(1.0, 1e4, many)).tolist()
    found = [descend(risk, eta, epsilon=epsilon, steps=5000).steps for eta in etas]
    counts = [math.inf if steps is None else steps for steps in found]
    scores = np.zeros_like(risk.initial)
    p = risk.features.probs
    step = 0
    while float(p @ direct(risk, scores).loss) > epsilon and step <= 5000:
        scores = scores - rate * p * direct(risk, scores).slope
        step = step + 1
    return rate, counts, (step if step <= 5000 else math.inf) != counts[0]


@row("noisy tokens", WORDS.format("Section 3.1"), bound="attention above 1.5/K; 4.5")
def noisy_tokens(quick: bool) -> Claim:
    """tokens are noisy versions of the features, and attention still finds those of the
    query's feature
    """
    batch, steps = (64, 150) if quick else (256, 300)
    sizes = (0.0, 0.1, 0.3)
    z, late, seen = zip(
        *(_noisy(size, batch, steps, 200 if quick else 1000) for size in sizes),
        strict=True,
    )
    shown = zip(seen, late, sizes, strict=True)
    return Claim.of(
        np.max(z) <= 4.5 and min(seen) > 1.5 / 4 and np.max(late) < 0.6,
        f"linear tasks on a simplex, K = 4, Δ = 1, N = 20; Q trained for {steps}"
        f" steps, {batch} prompts each; loss at Q = 0 in closed form",
        "attention"
        f" {', '.join(f'{a:.2f}, loss {b:.0%} of the first (noise {size:g})' for a, b, size in shown)}; largest |z| of the loss at Q = 0 {np.max(z):.1f}",
        "holds"
        + (
            "; the noisier the tokens, the less attention"
            if seen[0] > seen[1] > seen[2]
            else ""
        ),
    )


def _noisy(
    size: float, batch: int, steps: int, many: int
) -> tuple[float, float, float]:
    """|z| of the loss at Q = 0, and the loss over it and the attention in the end, with
    noise of a size.
    """
    L = 2.0
    N = 20
    features = Features.simplex(4, 1.0)
    d, vectors = features.d, features.vectors
    trainer: Risk = SampledRisk(
        features, tasks.Linear(L), N, batch, 0, token_noise=size
    )
    trainer = trainer if size else in_coordinates(trainer, "embedding", vectors)
    # of linear functions at Q = 0: the distance of the query from the mean of the
    # tokens
    spread = float((vectors**2).sum(axis=1).mean() - (vectors.mean(axis=0) ** 2).sum())
    expected = 0.5 * L**2 / d * (1.0 + 1.0 / N) * (spread + d * size**2)
    z = float(deviations(losses(trainer, np.zeros((d, d)), many, 10**6), expected))
    params = descend(trainer, 2.0, steps=steps).params
    seen = np.mean(
        [float(trainer.observe(params, 3 * 10**6 + i)["attention"]) for i in range(20)]
    )
    return (
        z,
        float(np.mean(losses(trainer, params, 50, 2 * 10**6))) / expected,
        float(seen),
    )


@row("phases by L", WORDS.format("Section 6"), bound="0")
def phases_by_size(quick: bool) -> Claim:
    """two phases for small L, three for large; a larger L is faster"""
    sizes = (0.4, 0.55, 0.7, 3.0, 4.0, 5.0)
    targets = (1e-2, 1e-3, 1e-4) if quick else (1e-2, 1e-3, 1e-4, 1e-5)
    steps, third, wrong = np.array(
        [[_three(L, epsilon) for L in sizes] for epsilon in targets]
    ).transpose(2, 0, 1)
    first = [int(each.argmax()) if each.any() else 6 for each in third]
    faster = bool((np.diff(steps) < 0).all())
    # none with two phases above one with three
    divided = bool((np.diff(third) >= 0).all())
    ends = [*(f"three phases from L = {L:g} on" for L in sizes), "two for all L"]
    words = [
        f"ε = {epsilon:g}: {ends[at]}"
        for epsilon, at in zip(targets, first, strict=True)
    ]
    return Claim.of(
        divided and faster and len({*first}) > 1 and not wrong.any(),
        f"exchangeable, K = 10, L = {listed(sizes, 'g')}; counts also by plain"
        " iteration",
        f"{'; '.join(words)}; T falls with L at {'each' if faster else 'not every'} ε;"
        f" {wrong.sum():.0f} counts and phases differ",
        "holds only for a given ε: the L at which the third phase appears falls with"
        f" ε, and from ε = {targets[first.index(0)]:g} down all of these L have three"
        " phases; larger L converges faster at every ε",
    )


def _three(
    L: float, epsilon: float, K: int = 10, eta: float = 1.0
) -> tuple[int, int, int]:
    run = simulate(L, 1.0, eta, K=K, epsilon=epsilon)
    gamma = 0.5 * L**2
    deficits = (tail_start(K), common.deficit(K, gamma, epsilon))
    tail, steps = (
        common.iterated_steps(K, eta * gamma * K / (K - 1.0) ** 2, [deficit])[0]
        for deficit in deficits
    )
    assert run.phases is not None
    return (
        steps,
        tail < steps,
        (run.steps != steps) + (("III" in run.phases.present()) != (tail < steps)),
    )


@row("attention maps", WORDS.format("Appendix A"), bound="1e-9")
def attention_maps(quick: bool) -> Claim:
    """the diagonal darkens, the rest fades"""
    risk = PopulationRisk(Features.random(6, 3, 0.7, seed=1), tasks.RandomFourier(2.0))
    run = descend(risk, 1.0, steps=1000)
    maps = np.array([risk.attention(scores) for scores in run.states])
    own = np.diagonal(maps, axis1=1, axis2=2)
    rest = maps[:, ~np.eye(6, dtype=bool)]
    error = off(maps[-1], direct(risk, run.states[-1]).attention)
    rising = "rising" if (np.diff(own, axis=0) > 0.0).all() else "not rising"
    return Claim.of(
        rising == "rising" and (rest[-1] < rest[0]).all() and error < EQUAL,
        f"random Fourier functions, six random features, {int(run.t[-1])} steps; the"
        " last map also by direct sums",
        f"on the diagonal from {own[0].mean():.2f} to {own[-1].mean():.2f}, {rising}"
        f" for every query; each other entry from {rest[0].mean():.2f} to at most"
        f" {rest[-1].max():.2f}; off direct sums by {decade(error)}",
    )


@row("block", PAPER.format("Section 6"), bound="attention ½")
def block(quick: bool) -> Claim:
    """a block with feed-forward layer and layer norms, trained on cosines, attends to
    the query's own feature
    """
    steps, seeds = (500, (0,)) if quick else (10_000, (0, 1, 2))
    few = 2000 if quick else 5000
    free, *_ = _block_ends(tasks.RandomFourier(3.0), steps // 4, 0)
    law = tasks.RandomCosine(3.0)
    bound, loss, alone = np.transpose([_block_ends(law, steps, seed) for seed in seeds])
    adapted = np.array([_attention_by_adam(law, few, seed) for seed in seeds])
    beyond = int(np.sum(adapted > 0.5))
    return Claim.of(
        free > 0.5 > bound.max()
        and (loss < 0.8 * alone).all()
        and (adapted > bound).all(),
        "cosines, whose formula our text of the paper lacks; simplex, K = 6, Δ = 2, L"
        f" = 3, N = 40, 64 prompts a step; gradient descent, η = 0.1, {steps // 4}"
        f" steps for random frequencies, {steps} for one; Adam, rate 0.003, {few}"
        f" steps, for one; seeds {listed(seeds)}",
        f"mean target attention {free:.2f} for cosines of random frequency,"
        f" {span(bound, '.2f')} for those of one frequency, {span(adapted, '.2f')}"
        f" with Adam; loss {span(loss, '.2g')} by gradient descent,"
        f" {span(alone, '.2g')} by the block's attention alone",
        "holds only for cosines of random frequency under gradient descent: on those"
        f" of one frequency attention on the target ends at {span(bound, '.2f')}, and"
        " the loss falls by the layers after the attention. Adam ends at"
        f" {span(adapted, '.2f')} there, above ½ for {beyond} of {len(seeds)} seeds."
        " We do not know the paper's tasks, nor its optimiser",
    )


def _block(law: tasks.Task, seed: int) -> BlockRisk:
    return BlockRisk(
        SampledRisk(Features.simplex(6, 2.0), law, 40, 64, seed), seed=seed
    )


def _block_ends(law: tasks.Task, steps: int, seed: int) -> list[float]:
    """Attention, loss and loss with the block's attention alone after gradient descent
    on a block.
    """
    seen = descend(_block(law, seed), 0.1, steps=steps).observed
    return [
        float(np.mean(seen[name][-1]))
        for name in ("attention", "test_loss", "attention_loss")
    ]


def _attention_by_adam(
    law: tasks.Task, steps: int, seed: int, rate: float = 0.003
) -> float:
    """Mean target attention of a block after Adam with its usual constants."""
    trained = _block(law, seed)
    params = trained.initial
    first = np.zeros_like(params)
    second = np.zeros_like(params)
    for step in range(1, steps + 1):
        _, gradient = trained.evaluate(params, step - 1)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        mean = first / (1.0 - 0.9**step)
        square = second / (1.0 - 0.999**step)
        params = params - rate * mean / (np.sqrt(square) + 1e-8)
    return float(np.mean(trained.observe(params)["attention"]))


@row("unequal frequencies", WORDS.format("Appendix A"), bound="all; 1e-9")
def unequal_frequencies(quick: bool) -> Claim:
    """features that are not equally frequent: every query ends up attending to its own,
    faster for larger L
    """
    features = Features.simplex(6, 1.0, np.arange(6.0, 0.0, -1.0) / 21.0)
    epsilon = 1e-3 if quick else 1e-5
    risks = [PopulationRisk(features, tasks.Exchangeable(L)) for L in (0.5, 2.0, 8.0)]
    runs = [descend(risk, 0.5, epsilon=epsilon, method="fast") for risk in risks]
    steps = [int(run.t[-1]) for run in runs]
    seen = [float(run.attention[-1].min()) for run in runs]
    plain = [
        np.diagonal(direct(risk, run.params).attention)
        for risk, run in zip(risks, runs, strict=True)
    ]
    error = off([run.attention[-1] for run in runs], plain)
    ordered = all((np.diff(run.attention, axis=1) < 0.0).all() for run in runs)
    return Claim.of(
        ordered and steps[0] > steps[1] > steps[2] and error < EQUAL,
        "exchangeable, K = 6, p from 6/21 to 1/21, L = 0.5, 2, 8, η = 0.5, to a loss"
        f" of {epsilon:g}",
        f"{listed(steps)} steps; frequent features are ahead at every step; least"
        f" attention on the own feature {listed(seen, '.3f')}; off direct sums by"
        f" {decade(error)}",
    )


def drawn_functions(kind: str, points: Array, L: float, count: int = 400) -> Array:
    """Values (count, K) of random L-Lipschitz functions at points (K, d): piecewise
    quadratics, or networks.
    """
    from scipy.interpolate import make_interp_spline

    rng = np.random.default_rng(0)
    if kind == "networks":  # of four ReLU units
        W, shift, out = (
            rng.normal(size=(count, 4, size)) for size in (points.shape[1], 1, 1)
        )
        out *= L / np.sum(
            np.abs(out) * np.linalg.norm(W, axis=2, keepdims=True),
            axis=1,
            keepdims=True,
        )
        return np.sum(out * np.maximum(W @ points.T + shift, 0.0), axis=1)
    found = []
    for direction in rng.normal(size=(count, points.shape[1])):
        along = points @ (direction / np.linalg.norm(direction))
        knots = np.sort(
            np.append(
                rng.uniform(along.min(), along.max(), 4), [along.min(), along.max()]
            )
        )
        found.append(
            make_interp_spline(knots, rng.uniform(-L, L, 6), k=1).antiderivative()(
                along
            )
        )
    return np.array(found)


@row("other functions", WORDS.format("Section 1"), bound="1e-9")
def other_functions(quick: bool) -> Claim:
    """piecewise polynomials and small networks are learnt as well: two phases for small
    L, three for large
    """
    sizes = (2.0, 8.0) if quick else (0.5, 2.0, 8.0, 32.0)
    found = {
        kind: _learnt(kind, sizes) for kind in ("piecewise quadratics", "networks")
    }
    told = (
        f"{kind}: {listed(times)} steps, {listed(count)} phases"
        for kind, (times, count, _) in found.items()
    )
    faster = all(
        [*times] == sorted(times, reverse=True) for times, *_ in found.values()
    )
    error = max(error for *_, error in found.values())
    return Claim.of(
        faster
        and all([*n] == sorted(n) and n[-1] == 3 > n[0] for _, n, _ in found.values())
        and error < EQUAL,
        "400 functions of each kind, six random features in three dimensions, L ="
        f" {listed(sizes, 'g')}, η = 0.2, ε = 0.001; the last loss also by a sum over"
        " all functions",
        f"{'; '.join(told)}; off by {decade(error)}",
        "holds at this ε, as for cosines; larger L is faster",
    )


def _learnt(kind: str, sizes: tuple[float, ...]) -> tuple[list[int], list[int], float]:
    """Steps to ε and numbers of phases by L, and how far the last loss is off a sum
    over all functions.
    """
    features = Features.random(6, 3, 0.7, seed=1)
    laws = {
        L: tasks.FiniteTask(drawn_functions(kind, features.vectors, L)) for L in sizes
    }
    runs = [
        simulate(L, features.gap, 0.2, task=law, features=features, epsilon=1e-3)
        for L, law in laws.items()
    ]
    values = laws[sizes[-1]].values
    weights = PopulationRisk(features, laws[sizes[-1]]).attention(runs[-1].params)
    error = off(
        runs[-1].loss[-1], 0.5 * float(np.mean((values @ weights - values) ** 2))
    )
    phases = [len(run.phases.present()) for run in runs if run.phases is not None]
    return [int(run.t[-1]) for run in runs], phases, error


@row("Gaussian inputs", WORDS.format("Appendix A"), bound="1e-9; κ > 1")
def gaussian_inputs(quick: bool) -> Claim:
    """quadratic functions of Gaussian inputs: two phases for small L, three for large;
    a larger L is faster
    """
    sizes = (0.8, 1.6, 2.4, 8.0)
    eta = 0.02
    steps = 50
    error = max(_off_one_curve(L, eta, steps) for L in sizes)
    risks = [GaussianRisk(QuadraticLaw.lipschitz(2, L, 0.5)) for L in sizes]
    left = [
        float(run.loss[-1] / run.loss[0])
        for run in (descend(risk, eta, steps=steps) for risk in risks[:3])
    ]
    plateau = {kappa: _speeds_up(kappa) for kappa in (0.25, 0.9, 1.1, 50.0)}
    return Claim.of(
        error < EQUAL
        and left[0] > left[1] > left[2]
        and all(up == (k > 1.0) for k, up in plateau.items()),
        f"two dimensions, N = inf, {steps} steps; L = {listed(sizes, 'g')} at the same"
        f" ηL², and by plain iteration of one number; L = {listed(sizes[:3], 'g')} at"
        f" the same η; κ = 2α²(d + 1)/β² = {listed(plateau, 'g')}",
        f"loss/L² at the same ηL² is one curve for all L, to {decade(error)}; at the"
        f" same η the loss falls to {listed(left, '.0%')} of the first; floors"
        f" {listed((each.floor() for each in risks), '.2g')}; Q speeds up at first for"
        f" κ = {listed((k for k, up in plateau.items() if up), 'g')} alone",
        "holds only for the speed, and for a given share of the loss, as the floor"
        " grows like L²; multiples of one law have the same phases for every L, and a"
        " plateau comes with the share of the quadratic part, κ > 1",
    )


def _speeds_up(kappa: float) -> bool:
    """Whether Q speeds up in the first steps from zero."""
    run = descend(
        GaussianRisk(QuadraticLaw(2, math.sqrt(kappa / 6.0), 1.0)), 1e-3, steps=3
    )
    return bool(np.diff(run.states[:, 0, 0], 2)[-1] > 0.0)


def _off_one_curve(L: float, eta: float, steps: int) -> float:
    """How far loss/L² at the rate η/L² is off plain iteration of c for L = 1: from zero
    Q stays c times I.
    """
    run = descend(
        GaussianRisk(QuadraticLaw.lipschitz(2, L, 0.5)), eta / L**2, steps=steps
    )
    law = QuadraticLaw.lipschitz(2, 1.0, 0.5)
    c = 0.0
    losses = []
    d = law.d
    a = law.sigma_a**2
    b = law.sigma_b**2
    for _ in range(steps + 1):
        quartic = (d + 2) * c**4 - 2 * (d + 1) * c**2 + d + 1
        losses.append(0.5 * d * (a * quartic + b * (1.0 - c) ** 2))
        c -= eta * (2.0 * a * ((d + 2) * c**3 - (d + 1) * c) + b * (c - 1.0))
    return off(run.loss / L**2, np.array(losses)[run.t])
