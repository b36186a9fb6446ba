"""Papers on induction heads: rows, whose docstrings are their statements, questions, and what each paper says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.pullback import innermost
from icl_theory.engine.tokens.counted import mean_loss
from icl_theory.families.induction_heads import InductionHeads, dirichlet_points
from icl_theory.papers.claim import Errors, Found, Series, identity, question, row
from icl_theory.papers.numbers import listed, named, power
from icl_theory.papers.paper import Claims, Paper, Reading

EDELMAN, NICHANI = "Edelman et al. 2024, {} (reconstructed)", "Nichani, Damian, Lee 2024, {} (reconstructed)"
LOG = InductionHeads(objective="log", sink=0.0, eta=0.5)


def emergence(problem: InductionHeads, most: int = 20000, levels: tuple[str, str] = ("unigram", "bigram")) -> float:
    """ηt at which the loss is halfway between two predictors, infinite if it does not come so far."""
    middle = 0.5 * sum(problem.predictors[name] for name in levels)
    run = descend(problem.risk(), problem.rate(), epsilon=middle, steps=most, progress=False)
    return math.inf if run.steps is None else run.steps * problem.rate()


def signals(problem: InductionHeads) -> Array:
    """J_l, how steeply the loss falls with b at b = 0 if the first layer attends to lag l alone, (m,)."""
    risks = [problem.changed(scores=80.0 * unit, match=0.0).risk() for unit in np.eye(problem.lags)]
    return np.array([-risk.gradient(risk.initial)[problem.lags] for risk in risks])


@row("induction heads: plateaus", EDELMAN.format("phases"), bound="uniform, unigram, bigram")
def three_phases(quick: bool) -> Found:
    """from small weights the loss is that of uniform predictions first, then the unigram's, then the bigram's"""
    problem = LOG.changed(sink=8.0, ratio=0.03, eta=2.0, max_steps=600 if quick else 3000, method="exact")
    run, known = problem.simulate(), problem.predictors
    near = [np.abs(run.loss - known[name]).min() < 0.02 for name in ("uniform", "unigram", "bigram")]
    phases = {} if run.phases is None else run.phases.present()
    lengths = {name: last - first for name, (first, last) in phases.items()}
    return Found(
        len(phases) == 3 and all(near) and run.regime == "induction",
        f"k = 2, Beta(1, 1), T = {problem.T}, log loss, c = 8 and b = 0.01 at first, ratio 0.03",
        f"steps: {named(lengths, 'd')}; at the end {run.loss[-1] - known['bigram']:.3f} above the bigram",
    )


@row("induction heads: useless unigrams", EDELMAN.format("simplicity bias"), bound="faster")
def useless_unigrams(quick: bool) -> Found:
    """where unigrams say nothing (doubly stochastic chains) the bigram is learnt faster"""
    p = (np.arange(32) + 0.5) / 32
    chains = np.stack([1.0 - p, p, p, 1.0 - p], axis=1).reshape(-1, 2, 2)
    problem = LOG.changed(T=30 if quick else 100)
    times = [emergence(each) for each in (problem, problem.changed(transitions=chains))]
    return Found(
        times[1] < times[0],
        f"k = 2, T = {problem.T}, log loss; both rows uniform, or 32 chains with p = P₀₁ = P₁₀",
        f"half of the way from unigram to bigram at ηt = {times[0]:.0f}, and {times[1]:.0f}",
    )


@identity("induction heads: alignment", EDELMAN.format("alignment of layers"), allowed=1e-5)
def alignment(quick: bool) -> Errors:
    """the first layer learns as far as the second one has: for small b, ∂L/∂a_l = -bα_l(J_l - Σ α_j J_j)"""
    rng, b = np.random.default_rng(1), 1e-6
    for k, m in ((2, 2), (2, 3), (3, 2)):
        P, a = rng.dirichlet(np.ones(k), (4, k)), rng.normal(size=m)
        problem = InductionHeads(k=k, lags=m, T=20, transitions=P, edge="complete", scores=a, match=b)
        alpha, J = np.exp(a) / np.exp(a).sum(), signals(problem)
        expected = -b * alpha * (J - alpha @ J)
        found = problem.risk().gradient(problem.risk().initial)[:m]
        yield np.abs(found - expected).max() / np.abs(expected).max()
    return "k = 2, 3, m = 2, 3, T = 20, four chains, random scores of the lags, b = 1e-6"


@row("induction heads: chi-squared", NICHANI.format("gradient of the first layer"), bound="like 1/T")
def chi_squared(quick: bool) -> Found:
    """for long sequences and the log loss J_1 is E Σ π_q² χ²(P_q‖π), the information of the parent"""
    P, probs = dirichlet_points(np.ones((2, 2)), 1600)
    pi = P[:, [1, 0], [0, 1]] / (P[:, 0, 1] + P[:, 1, 0])[:, None]
    limit = float(probs @ np.sum(pi**2 * np.sum((P - pi[:, None]) ** 2 / pi[:, None], axis=2), axis=1))
    lengths = np.array([25, 50] if quick else [50, 100, 200])
    problem = LOG.changed(start="stationary", points=144, sink=-30.0)
    gaps = [limit - signals(problem.changed(T=T))[1] for T in lengths.tolist()]
    return Found(
        min(gaps) > 0.0 and abs(power(lengths[-2:], gaps[-2:]) + 1.0) < 0.1,
        f"k = 2, Beta(1, 1), T = {listed(lengths)}, stationary start, no sink; a quadrature rule over P",
        f"{limit:.5f}, less {listed(gaps, '.5f')}",
    )


@row("induction heads: short sequences", bound="a higher loss")
def short_sequences(quick: bool) -> Found:
    """in short sequences b falls from 0, and descent ends at anti-induction, with a higher loss"""
    lengths, ends = (6,) if quick else (4, 5, 6, 7), list[tuple[Any, ...]]()
    for T in lengths:
        problem = InductionHeads(T=T, match=0.0, eta=20.0, max_steps=400, method="exact")
        anti, head = (problem.changed(match=b).simulate() for b in (0.0, 1.0))
        ends.append((anti.regime, head.regime, anti.loss[-1], head.loss[-1]))
    high, low = (listed((each[i] for each in ends), ".4f") for i in (2, 3))
    return Found(
        all(each[:2] == ("anti-lag 0", "induction") and each[2] > each[3] for each in ends),
        f"k = 2, Beta(1, 1), square loss, two lags, T = {listed(lengths)}, from b = 0 and from b = 1",
        f"{ends[0][0]} with {high}; {ends[0][1]} with {low}",
    )


@question("induction-emergence", "parameter, over its least value", "emergence, ηt")
def which_exponents(quick: bool) -> tuple[str, list[Series]]:
    """How does the time of emergence depend on T, k, the concentration, the first b, and the ratio of the rates?"""
    ranges: dict[str, list[Any]] = {
        "T": [20, 30, 45] if quick else [12, 15, 20, 30, 50, 100, 200],
        "concentration": [0.3, 1.0, 3.0] if quick else [0.03, 0.1, 0.3, 1.0, 3.0, 5.0, 8.0],
        "match": [0.01, 0.1, 1.0] if quick else [1e-3, 1e-2, 0.1, 0.3, 1.0, 2.0],
        "ratio": [0.1, 1.0, 10.0] if quick else [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0],
        "k": [2, 3] if quick else [2, 3, 4],
        "k (other points)": [2, 3] if quick else [2, 3, 4],
    }
    lines, words, last = [], [], dict[str, list[float]]()
    for label, values in ranges.items():
        name, base = label.split()[0], LOG.changed(T=30) if quick else LOG
        if name == "k":  # counts are enough for two symbols alone
            T, points = (16, 16) if quick else (24, 32)
            base = InductionHeads(T=T, points=points, eta=8.0, seed=int(name != label))
        times = np.array([emergence(base.changed(**{name: value})) for value in values])
        lines.append(Series(label, np.array(values) / values[0], times))
        ends = power(values[:2], times[:2]), power(values[-2:], times[-2:])
        last[label] = list(map(abs, ends))
        words.append(f"{label} {ends[0]:+.2f} at {values[0]:g} to {ends[1]:+.2f} at {values[-1]:g}")
    flat = max(last["T"][1], last["match"][0]) < 0.1
    return (
        f"Local exponents of ηt, two lags, log loss: {'; '.join(words)} (k: square loss, Sobol points)."
        + flat * " Long sequences and small b change little, as b grows at a constant rate from the start."
    ), lines


@question("induction-plateau", "1 / ratio", "unigram plateau, ηt")
def which_plateau(quick: bool) -> tuple[str, list[Series]]:
    """How long is the unigram plateau?"""
    ratios, lines, words, sets = np.geomspace(10.0, 0.1 if quick else 0.01, 3 if quick else 7), [], [], True
    for T in (20,) if quick else (20, 50, 100):
        each = [LOG.changed(T=T, sink=6.0, eta=2.0, ratio=ratio) for ratio in ratios.tolist()]
        found = [emergence(one) - emergence(one, levels=("uniform", "unigram")) for one in each]
        lines.append(Series(f"T = {T}", 1.0 / ratios, np.array(found)))
        exponent = power(ratios[-2:], found[-2:])
        sets &= abs(exponent + 1.0) < 0.15
        words.append(f"T = {T}: {found[0]:.0f} to {found[-1]:.0f}, exponent {exponent:+.2f}")
    return (
        f"After a uniform plateau (c = 6 at first), ratio 10 to {ratios[-1]:g}, with the exponent in the ratio at"
        f" its end: {'; '.join(words)}." + sets * " The first layer sets the length."
    ), lines


@question("induction-diversity", "chains", "excess on new chains, over the unigram's")
def how_many_chains(quick: bool) -> tuple[str, list[Series]]:
    """From how many chains on does the head generalise to new ones?"""
    sizes, seeds = ([1, 4, 16], 3) if quick else ([1, 2, 4, 8, 16, 32, 64], 10)
    new, shape = LOG.changed(T=20 if quick else 50), (len(sizes), seeds)
    every, ends, excesses = new.risk(), np.empty(shape, dtype="U20"), np.empty((*shape, 5))
    for place in np.ndindex(shape):
        few = new.changed(chains=sizes[place[0]], seed=place[1])
        risk, starts = few.risk(), (few, few.changed(match=3.0, scores=(0.0, 3.0)))
        end, head = (descend(each.risk(), 4.0, steps=100, progress=False).params for each in starts)
        # the Bayes-optimal prediction for the chains that are trained on, which has to know them by heart
        table, own = (innermost(each)[0].law.table for each in (every, risk))
        by_heart = mean_loss(table, own.truth).excess
        ends[place] = few.outcome(end)
        excesses[place] = risk.excess(end), risk.excess(head), every.excess(end), every.excess(head), by_heart
    learnt = ends == "induction"
    better = (~learnt & (excesses[..., 0] < excesses[..., 1])).sum(axis=1)
    unit = new.predictors["unigram"] - new.predictors["Bayes"]
    _, trained, found, head, known = np.median(excesses / unit, axis=1).T
    first, last = (
        min((count for count, holds in zip(sizes, which, strict=True) if holds), default="no number of")
        for which in (found < 0.5, known < head)
    )
    return (
        f"From {first} chains on, in the median of {seeds} draws. Chains {listed(sizes)}:"
        f" {listed(learnt.sum(axis=1))} induction heads, median excess on new chains {listed(found, '.2f')} of the"
        f" unigram's. Runs that end at no head end at {', '.join(sorted({*ends[~learnt]}))}; in {listed(better)}"
        f" draws their loss in pretraining is below that of a head that is trained on the same chains. The"
        f" Bayes-optimal prediction for these chains knows them by heart: in pretraining it is better than the head"
        f" by {listed(trained, '.2f')}. On new chains it has {listed(known, '.2f')}, and the head"
        f" {listed(head, '.2f')}: from {last} chains on it is better there, too."
    ), [
        Series(label, np.array(sizes, dtype=float), each)
        for label, each in (("descent", found), ("head", head), ("by heart", known))
    ]


@question("induction-basins", "T", "b at step 0", "linear", "linear")
def which_basin(quick: bool) -> tuple[str, list[Series]]:
    """From which initial b does descent end at an induction head?"""
    lengths, starts = [4, 9] if quick else [4, 5, 6, 7, 8, 9, 12, 16], np.linspace(-1.0, 1.0, 5 if quick else 11)
    ends: dict[str, list[tuple[float, float]]] = {"induction": []}
    boundary = []

    def learns(T: int, match: float) -> bool:
        problem = InductionHeads(T=T, match=match)
        end = problem.outcome(descend(problem.risk(), 20.0, steps=200, progress=False).params)
        ends.setdefault(end, []).append((T, match))
        return end == "induction"

    for T in lengths:
        first = [learns(T, b) for b in starts].index(True)
        low, high = starts[first - 1], starts[first]
        while high - low > (0.1 if quick else 0.02):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if learns(T, middle) else (middle, high)
        boundary.append(high)
    others = sorted(ends.keys() - {"induction"})
    above = dict(zip(lengths, boundary, strict=True))
    parted = all((b >= above[int(T)]) == (end == "induction") for end, found in ends.items() for T, b in found)
    return (
        f"Two lags, square loss, uniform first layer, T = {listed(lengths)}: from b above"
        f" {listed(boundary, '.2f')}. Below, it ends at {', '.join(others)}; of {sum(map(len, ends.values()))}"
        f" starts between -1 and 1 {'none is' if parted else 'some are'} on the other side."
    ), [
        *(Series(end, x, y, True) for end in ("induction", *others) for x, y in [np.transpose(ends[end])]),
        Series("boundary", np.array(lengths, dtype=float), np.array(boundary)),
    ]


HEADS = Paper(
    "statistical-induction-heads",
    "The Evolution of Statistical Induction Heads: In-Context Learning Markov Chains",
    "B. L. Edelman, E. Edelman, S. Goel, E. Malach, N. Tsilivis", 2024, "arXiv:2402.11004",
    (Reading("Phases", "Predictions are uniform first, then unigrams of the context, then bigrams.",
             (three_phases,), which_plateau,
             reconstructed="The rates, and the sink behind uniform predictions, are ours."),
     Reading("Simplicity bias", "The unigram solution delays the bigram one: without it the head is learnt faster.",
             (useless_unigrams,), which_exponents, reconstructed="Times are compared; no rate is claimed."),
     Reading("Alignment", "The first layer learns as far as the second layer has come to its weights.",
             (alignment,), reconstructed="The formula is that of two softmax layers for small b."),
     Reading("Parents", "Nichani, Damian, Lee (arXiv:2402.14735): the first layer's gradient is the information of"
             " tokens on each other, largest for the parent.",
             (chi_squared,),
             reconstructed="The constant is that of two softmax layers on a chain."),
     Reading("Short sequences", "Where descent ends otherwise; for three lags see docs/theory/induction-heads.md.",
             (short_sequences,), which_basin),
     Reading("Task diversity", "How many chains it takes, and what it is worth to know them by heart.",
             question=how_many_chains)),
    "Both papers were read in their abstracts and summaries, and the first one's code as well.",
)  # fmt: skip
CLAIMS = Claims(papers=(HEADS,), questions=(
    which_exponents, which_plateau, how_many_chains, which_basin,
))  # fmt: skip
