"""A paper on how the first of two layers finds the parent of a symbol: its rows, question and page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine import ChainRisk, Chains, Risk, TwoLayerTransformer, descend
from icl_theory.engine.pullback import in_coordinates
from icl_theory.families.induction_heads import InductionHeads
from icl_theory.papers.claim import Found, Series, question, row
from icl_theory.papers.numbers import deviations, listed, losses, named, power, span
from icl_theory.papers.paper import Paper, Reading

SOURCE = "Nichani et al. 2024, {} (reconstructed)"


def _chains(law: str, count: int, seed: int = 0) -> Array:
    """Draw chains of three states: mixtures of permutations, Dirichlet rows, or lazy ones."""
    rng = np.random.default_rng(seed)
    if law == "doubly stochastic":
        permutations = np.eye(3)[list(itertools.permutations(range(3)))]
        return np.einsum("cp,pxy->cxy", rng.dirichlet(np.ones(6), count), permutations)
    rows = rng.dirichlet(np.ones(3), (count, 3))
    return rows if law == "Dirichlet" else 0.6 * np.eye(3) + 0.4 * rows


LAWS = ("doubly stochastic", "Dirichlet", "lazy")


def _information(chains: Array, lags: int) -> tuple[Array, Array]:
    """Return Σ (J_j - ππ)(J_1 - ππ) of the joint laws J_j of symbols j apart, and the same over ππ: χ² at j = 1."""
    plain, chi = np.zeros((2, lags))
    for P in chains:
        law = Chains(P).start[0]
        joint = [law[:, None] * np.linalg.matrix_power(P, j) - np.outer(law, law) for j in (*range(lags), 1)]
        plain += np.array([np.sum(each * joint[-1]) for each in joint[:-1]]) / len(chains)
        chi += np.array([np.sum(each * joint[-1] / np.outer(law, law)) for each in joint[:-1]]) / len(chains)
    return plain, chi


def _gradient(chains: Array, lags: int, T: int) -> Array:
    """Return how steeply the exact loss falls with the attention on each lag, at uniform attention, per b, (m,)."""
    k = chains.shape[1]
    seen = np.eye(k)[np.arange(k**lags)[:, None] // k ** np.arange(lags) % k]
    slopes = ChainRisk(Chains(chains, window=lags), T).gradient(np.zeros((k**lags, k)))
    return -np.einsum("wq,wjq->j", slopes, seen)


@row("first layer: gradient", SOURCE.format("gradient"), bound="within 1 %, halved as T doubles")
def first_gradient(quick: bool) -> Found:
    """at uniform attention the slope by the attention on a lag j is Σ (J_j - ππ)(J_1 - ππ) in the limit of long
    sequences, with the joint laws J_j of symbols j apart: an inner product of lag j with the parent
    """
    T, off, ratio = 32 if quick else 64, [], []
    for law in LAWS:
        chains = _chains(law, 8)
        short, long = (_gradient(chains, 3, each) for each in (T, 2 * T))
        limit = _information(chains, 3)[0]
        off.append(np.abs(2.0 * long - short - limit).max() / limit.max())
        ratio.append(np.abs(short - limit).max() / np.abs(long - limit).max())
    return Found(
        max(off) < (0.08 if quick else 0.03) and 1.6 < min(ratio) <= max(ratio) < 2.2,
        f"{', '.join(LAWS)}: 8 chains of 3 states each, lags 0 to 2, T = {T}, {2 * T}",
        f"extrapolated from both T: off by {span(off, '.1%')} of the largest; error falls by {span(ratio, '.2f')}",
        "holds only in the limit",
        "half the error at twice the length",
    )


@row("first layer: chi-squared information", SOURCE.format("gradient"), bound="1")
def chi_squared(quick: bool) -> Found:
    """k² times the slope of lag 1 is the χ² information of a symbol on its parent, but for chains with a uniform
    stationary law only; other lags have inner products with lag 1 instead of information of their own
    """
    ratios, others = {}, []
    for law in LAWS:
        every = [_information(chain[None], 3) for chain in _chains(law, 200)]
        ratios[law] = [9.0 * plain[1] / chi[1] for plain, chi in every]
        others += [chi[2] / chi[1] for _, chi in every]
    uniform = ratios["doubly stochastic"]
    return Found(
        np.abs(np.subtract(uniform, 1.0)).max() < 1e-12 and max(others) < 1.0,
        f"200 chains of 3 states of each law: {', '.join(LAWS)}",
        f"ratio {listed([min(uniform), max(uniform)], '.3f')}, {span(ratios['Dirichlet'], '.2f')},"
        f" {span(ratios['lazy'], '.2f')}; lag 2 has up to {max(others):.2f} of lag 1",
        "holds only for uniform stationary laws",
    )


@row("first layer: the parent wins", SOURCE.format("argmax"), bound="lag 1")
def argmax(quick: bool) -> Found:
    """the slope of the parent, lag 1, is larger than those of earlier symbols; that of the symbol itself, lag 0, is
    larger still in lazy chains, and seldom in others
    """
    size, wins, later = 3 if quick else 12, [], 0
    for law in LAWS:
        slopes = np.array([_gradient(_chains(law, 4, seed), 3, 24) for seed in range(size)])
        wins.append(int(np.sum(slopes.argmax(axis=1) == 1)))
        later += int(np.sum(slopes[:, 1] > slopes[:, 2]))
    return Found(
        min(wins[:2]) > 0.8 * size and wins[2] == 0 and later == 3 * size,
        f"{', '.join(LAWS)}: {size} sets of 4 chains of 3 states each, lags 0 to 2, T = 24, exact",
        f"lag 1 wins in {listed(wins)} sets of {size}; against lag 2 alone in {later} of {3 * size}",
        "holds only against earlier symbols; the symbol itself can win",
    )


@row("first layer first", SOURCE.format("training in stages"), bound="the loss of joint training")
def stages(quick: bool) -> Found:
    """training the lags at a small match b and then b learns the induction head if b > 0; if b < 0 the first stage
    takes lag 0 and the second cannot mend it, while both trained together do
    """
    square = InductionHeads(T=25, edge="complete", eta=10.0, ratio=20.0)
    log = InductionHeads(T=50, objective="log", sink=math.log(2.0), eta=10.0, ratio=10.0)
    steps, said, holds = (200, 300) if quick else (1500, 500), [], []
    for problem, b in ((square, 0.1), (log, 0.1), (square, -0.1)):
        alone = problem.changed(match=b, stage=steps[0], max_steps=sum(steps))
        runs = alone.simulate(), alone.changed(stage=0, ratio=1.0).simulate()
        share, (apart, joint) = runs[0].observed["first"][-1, 1], (run.loss[-1] - run.floor for run in runs)
        holds.append(share > 0.95 and apart < 2.0 * joint if b > 0.0 else share < 0.05 and apart > 10.0 * joint)
        said.append(f"{problem.objective}, b = {b}: {share:.3f} on lag 1; {apart:.5f} and {joint:.5f}")
    return Found(
        all(holds),
        f"two states, uniform rows, lags 0 and 1; square loss, T = 25, and log loss, T = 50; steps {listed(steps)}",
        f"above the Bayes loss in stages and together: {'; '.join(said)}",
        "holds only for b > 0",
    )


def _settings() -> Iterable[tuple[str, TwoLayerTransformer, Risk]]:
    """Yield transformers that train (r, b), and their exact losses; a sink is held at 0."""
    rng = np.random.default_rng(1)
    for k, m, T, objective in ((3, 2, 16, "square"), (2, 3, 24, "square"), (2, 2, 16, "log")):
        P, start = rng.dirichlet(np.ones(k), (8, k)), np.append(np.zeros(m), 1.0)
        sink = 0.0 if objective == "log" else None
        problem = InductionHeads(k=k, lags=m, T=T + m - 1, edge="complete", start="stationary", transitions=P,
                                 objective=objective, sink=sink)  # fmt: skip
        risk = replace(problem.risk(), added=0.0, least=problem.risk().risk.floor())
        whole = TwoLayerTransformer(Chains(P, window=m), T, 128, 3, start, objective=objective, sink=sink)
        exact = in_coordinates(risk, "linear", np.eye(len(risk.initial), m + 1), start=start)
        yield f"{k} states, {m} lags, {objective}", whole, exact


@row("two layers: the reduction", bound="|z| < 4")
def reduction(quick: bool) -> Found:
    """a whole transformer on samples, trained in the reduction's numbers, has the exact loss at each saved step"""
    worst, ends, names = [], [], []
    for name, whole, exact in _settings():
        run, wanted = (descend(each, 4.0, steps=20 if quick else 200) for each in (whole, exact))
        found = [
            deviations(losses(whole, state, 30, 1000 * (i + 1)), exact.loss(state))
            for i, state in enumerate(run.states[:: 6 if quick else 3])
        ]
        worst.append(float(np.max(found)))
        ends.append(float(np.abs(run.params - wanted.params).max()))
        names.append(f"{name}, {len(found)} steps")
    return Found(
        max(worst) < 4.0,
        "; ".join(names),
        f"|z| up to {listed(worst, '.1f')}; at the end off exact descent by {listed(ends, '.2f')} in (r, b)",
    )


@question("whole-transformer", "steps t", "loss above the least, share of the first")
def leaving(quick: bool) -> tuple[str, Iterable[Series]]:
    """Which matrix of a two-layer transformer leaves the reduced model, when, and how far?"""
    series, said, steps, late = list[Series](), list[str](), 30 if quick else 400, list[int]()
    for name, reduced, exact in _settings():
        whole, floor = replace(reduced, trained="all", batch=256), exact.floor()
        run, wanted = (descend(each, 0.5, steps=steps) for each in (whole, exact))
        kept = np.unique(np.linspace(0, len(run.t) - 1, 20).astype(int))
        t, found = run.t[kept], np.array([losses(whole, run.states[i], 10, 1000).mean() for i in kept])
        curve = np.interp(t, wanted.t, wanted.loss)
        off = np.abs(found - curve) > 0.1 * np.ptp(wanted.loss)
        left = int(np.argmax(off)) if off.any() else len(t) - 1
        first, last = (whole.outside(run.states[i]) for i in (kept[left], -1))
        del first["lags"], last["lags"]
        said.append(
            f"{name}: {'' if off.any() else 'not '}off by a tenth of what the reduction learns at step {t[left]},"
            f" with the distances {named(first, '.2f')}; at step {steps} {named(last, '.2f')}, and the loss"
            f" {found[-1]:.4f} instead of {curve[-1]:.4f}."
        )
        share = wanted.loss[0] - floor
        series.append(Series(f"{name}, reduction", wanted.t + 1, (wanted.loss - floor) / share))
        series.append(Series(f"{name}, all matrices", t + 1, (found - floor) / share, points=True))
        late += [int(t[left])] if off.any() else []
    many = "All" if len(late) == len(said) else f"{len(late)} of {len(said)}"
    return f"{many} have left it at step {max(late, default=steps)}. {' '.join(said)}", series


@dataclass(frozen=True, eq=False)
class NestedLogits(Risk):
    """A reduced induction head, (α, β, ξ): each of three logits needs the one before.

    The first layer finds the parent among N by α, the second one its copy by β times that, and the output names one
    of two labels by ξ times that.
    """

    N: int
    xi: float
    trained: bool  # ξ

    @property
    def initial(self) -> Array:
        """Uniform attention."""
        return np.array([0.0, 0.0, self.xi])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Log loss and its gradient."""
        alpha, beta, xi = params
        first = 1.0 / (1.0 + (self.N - 1.0) * np.exp(-alpha))
        second = 1.0 / (1.0 + (self.N - 1.0) * np.exp(-beta * first))
        slope = -1.0 / (1.0 + np.exp(xi * second))
        pull = slope * xi * second * (1.0 - second)
        gradient = [pull * beta * first * (1.0 - first), pull * first, self.trained * slope * second]
        return float(np.log1p(np.exp(-xi * second))), np.array(gradient)


@row("reduced induction head", "Reddy 2312.03002, Musat et al. 2511.01033 (reconstructed)", bound="2")
def circuits(quick: bool) -> Found:
    """in a reduced model of three nested logits the loss falls abruptly after a plateau, which grows with the
    square of the context if the size of the output is given; if that is trained from 0.01, with the power 3/2
    """
    lengths, exponents, drops = (256, 1024) if quick else (1024, 4096), [], []
    for xi, trained in ((6.0, False), (0.01, True)):
        risks = [NestedLogits(N, xi, trained) for N in lengths]
        half = [descend(risk, 1.0, epsilon=0.5 * np.log(2.0), method="flow").t[-1] for risk in risks]
        exponents.append(power(lengths, half))
        drops.append(1.0 - descend(risks[-1], 1.0, epsilon=0.9 * np.log(2.0), method="flow").t[-1] / half[-1])
    return Found(
        abs(exponents[0] - 2.0) < 0.02 and abs(exponents[1] - 1.5) < 0.02 and drops[0] < 0.05,
        f"reduced: N = {listed(lengths)}, from α = β = 0, flow until half of the loss is gone",
        f"exponent {exponents[0]:.3f}, with trained output {exponents[1]:.3f}; from 90 to 50 % of ln 2 it takes"
        f" {drops[0]:.0e} and {drops[1]:.0e} of the time",
        "holds only for a given output",
    )


CAUSAL_STRUCTURE = Paper(
    "causal-structure", "How Transformers Learn Causal Structure with Gradient Descent",
    "Eshaan Nichani, Alex Damian, Jason D. Lee", 2024, "arXiv:2402.14735",
    (Reading("Gradient of the first layer",
             "At uniform attention the gradient holds the χ² information between symbols; the parent's is largest.",
             (first_gradient, chi_squared, argmax),
             reconstructed="The formula, here for layers with relative positions on Markov chains, and its limit."),
     Reading("Training in stages",
             "The first layer learns the parent, then the second one the match: an induction head.",
             (stages, reduction), question=leaving,
             reconstructed="The stages, here with a fixed small match b in the first one."),
     Reading("Reduced circuits",
             "Reduced models of an induction head: nested logits and an abrupt drop (Reddy, arXiv:2312.03002); time"
             " that grows with the square of the context (Musat et al., arXiv:2511.01033).",
             (circuits,),
             reconstructed="The model. The abstracts of both papers were read; their data are not in it.")),
    "Abstract and summaries were read, the text was not. Trees and several parents are left out. The whole"
    " transformer trains on eight chains, and may learn these chains rather than a better induction head.",
)  # fmt: skip
