"""Papers on single-location regression: rows of the audit, and what the papers say."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import minimize_scalar

from icl_theory.papers.single_location.family import SingleLocation
from icl_theory.statements.claim import Claim, Errors, identity, row
from icl_theory.statements.numbers import decade, listed, minimum, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

MARION = "Marion, Berthier, Biau, Boyer 2025 (reconstructed)"
DURANTHON = "Duranthon, Marion, Boyer, Loureiro, Zdeborová 2025 (reconstructed)"
ARNABOLDI = "Arnaboldi, Loureiro, Stephan, Krzakala, Zdeborová 2025 (reconstructed)"
# N = 10, d = 400
PUBLISHED = SingleLocation(
    attention="erf",
    snr=200.0,
    spread=math.sqrt(0.5),
    scale=0.1,
    method="fast",
    max_steps=10**9,
)


@identity("single location: invariant manifold", MARION, 1e-12)
def manifold(quick: bool) -> Errors:
    """erf, linear: with kᵀv* = vᵀk* = kᵀv = 0 no step of gradient descent changes these overlaps"""
    rng = np.random.default_rng(0)
    for attention in ("erf", "linear"):
        problem = PUBLISHED.changed(
            attention=attention, start="sphere", N=3 if quick else 10
        )
        for a, b in rng.uniform(0.0, 2.0 * math.pi, (20, 2)):
            k = np.array([math.cos(a), 0.0, math.sin(a), 0.0])
            v = np.array([0.0, math.cos(b), 0.0, math.sin(b)])
            slope = problem.risk().gradient([k, v])
            yield (
                np.abs([slope[0, 1], slope[1, 0], slope[0] @ v + k @ slope[1]]).max()
                / np.abs(slope).max()
            )
    return "20 random points each, snr = 200, γ = 0.71, λ = 0.1; the gradient over (k, v) without restriction"


@row(
    "single location: on the manifold",
    MARION,
    bound="|κ|, |ν| -> 1, κν > 0; escape ~ ln d",
)
def on_the_manifold(quick: bool) -> Claim:
    """erf: from the manifold descent ends at (k*, v*) or (-k*, -v*), after an escape that takes ~ ln d steps"""
    overlaps = []
    escapes = []
    for d in (10**2, 10**4, 10**6):
        runs = [
            PUBLISHED.changed(seed=seed, d=d).simulate()
            for seed in range(1 if quick else 4)
        ]
        overlaps += [run.observed["overlaps"][-1, :2] for run in runs]
        leaves = [
            np.argmax(run.observed["overlaps"][:, :2].prod(axis=1) > 0.25)
            for run in runs
        ]
        escapes.append(
            float(np.mean([run.t[at] for run, at in zip(runs, leaves, strict=True)]))
        )
    sizes, (one, two, three) = np.abs(overlaps), escapes
    alike = min(np.prod(overlaps, axis=1)) > 0.0
    return Claim.of(
        sizes.min() > 0.99 and alike and abs((three - two) / (two - one) - 1.0) < 0.5,
        f"N = 10, snr = 200, γ = 0.71, λ = 0.1, η = 0.5, d = 1e2, 1e4, 1e6, {len(sizes)} starts, 1e9 steps",
        f"|κ|, |ν| {span(sizes.ravel(), '.4f')}; κν > 1/4 after {listed(escapes, '.0f')} steps on average",
    )


@row("single location: off the manifold", MARION, bound="one of the two")
def off_the_manifold(quick: bool) -> Claim:
    """erf: from anywhere on the spheres descent ends at (k*, v*), up to signs, or with k and v in swapped roles"""
    base = PUBLISHED.changed(start="sphere", max_steps=2 * 10**4)
    runs = [base.changed(seed=seed).simulate() for seed in range(2 if quick else 8)]
    ends = np.abs([run.observed["overlaps"][-1] for run in runs])
    right = ends[:, 1] > 0.99
    losses = np.array([run.loss[-1] for run in runs])
    most = [losses[which].max(initial=0.0) for which in (right, ~right)]
    return Claim.of(
        bool((right | (ends[:, 3] > 0.99)).all() and right.any() and not right.all()),
        f"N = 10, snr = 200, γ = 0.71, λ = 0.1, d = 400, {len(runs)} starts, 2e4 steps",
        f"v = ±v* in {right.sum()}, loss {most[0]:.4f}; k = ±v* in {len(right) - right.sum()}, loss {most[1]:.4f}",
        "holds only up to the roles of k and v: the manifold keeps them apart",
    )


def least_erf(problem: SingleLocation) -> float:
    """Return the least loss over λ with k = k* and v = v*."""
    base = problem.changed(attention="erf", start="sphere")
    found = minimize_scalar(
        lambda x: base.changed(scale=math.exp(x)).risk().loss(np.eye(2, 4)),
        bounds=(-7.0, 2.0),
    )
    return float(found.fun)


def least_linear(problem: SingleLocation) -> float:
    """Return the least loss of attention b + λs with k along k*, v along v*: a quadratic form in b and λ."""
    m = math.sqrt(problem.snr)
    g = problem.spread**2
    rest = problem.N - 1.0
    products = g * np.array([[1.0, m], [m, m * m + g]]) + rest * np.eye(2)
    along = g * np.array([1.0, m])
    return 0.5 * float(g + problem.noise**2 - along @ np.linalg.solve(products, along))


@row("single location: many dimensions", MARION, bound="-> 0")
def many_dimensions(quick: bool) -> Claim:
    """erf with the best λ reaches the noise, and so the Bayes risk, as snr = d/2 grows at fixed N"""
    sizes = (10**2, 10**3, 10**4)
    losses = [
        least_erf(PUBLISHED.changed(snr=d / 2.0, N=4 if quick else 10)) for d in sizes
    ]
    falls = all(before > 4.0 * after for before, after in itertools.pairwise(losses))
    return Claim.of(
        falls,
        f"N = {4 if quick else 10}, γ = 0.71, d = {listed(sizes)}",
        f"loss {listed(losses, '.1e')}",
    )


@row("single location: softmax", DURANTHON, bound="0; 1e-12")
def softmax_is_bayes(quick: bool) -> Claim:
    """softmax attention with k = √snr k* and v = v* is the posterior mean, the minimum that descent finds"""
    cases = (
        ((3, 2.0),)
        if quick
        else ((2, 1.0), (3, 2.0), (10, 4.0), (10, 16.0), (1000, 9.0))
    )
    problems = [SingleLocation(N=N, snr=snr, noise=0.3) for N, snr in cases]
    slope = max(
        float(np.abs(each.risk().gradient(each.bayes())).max()) for each in problems
    )
    risks = [each.risk() for each in problems]
    left = max(
        abs(risk.loss(minimum(risk.evaluate, risk.initial)) - risk.floor())
        for risk in risks
    )
    return Claim.of(
        slope < 1e-10 and left < 1e-12,
        f"(N, snr) = {listed(cases)}, γ = 1, σ = 0.3, from a random start",
        f"gradient there below {decade(slope)}, loss over the Bayes risk below {decade(left)}",
    )


@row(
    "single location: softmax against others",
    DURANTHON,
    bound="exponential; no faster than 1/snr",
)
def against_others(quick: bool) -> Claim:
    """the risk of softmax falls exponentially with the signal, that of linear attention and of erf like a power"""
    signals = (16.0, 32.0) if quick else (8.0, 16.0, 32.0, 64.0)
    problems = [SingleLocation(snr=snr) for snr in signals]
    soft, curved, linear = (
        [least(each) for each in problems]
        for least in (lambda p: p.risk().floor(), least_erf, least_linear)
    )
    fall, *slow = (
        math.log(each[-1] / each[-2]) / math.log(2.0) for each in (soft, curved, linear)
    )
    return Claim.of(
        fall < -4.0 and min(slow) > -1.0,
        f"N = 10, γ = 1, snr = {listed(signals, 'g')}",
        f"softmax {listed(soft, '.1e')}, erf {listed(curved, '.2f')}, linear {listed(linear, '.2f')}",
    )


@row("single location: positions", ARNABOLDI, bound="0")
def positions(quick: bool) -> Claim:
    """where one position is likelier, semantic and positional attention are both learnt, from either one"""
    shares = (0.5,) if quick else (0.2, 0.5, 0.9)
    starts = ((0.0, 0.0, 1.0, 0.0, 4.0), (3.0, 0.0, 1.0, 0.0, 0.0))
    cases = [
        (SingleLocation(N=4, first=share), start)
        for share, start in itertools.product(shares, starts)
    ]
    off = [
        float(np.abs(minimum(each.risk().evaluate, start) - each.bayes()).max())
        for each, start in cases
    ]
    return Claim.of(
        max(off) < 1e-5,
        f"N = 4, snr = 4, first position with probability {listed(shares)}; from attention to it, or to k*, alone",
        f"(κ, ν, b) off the Bayes predictor's by less than {decade(max(off))}",
    )


LOCATION = Paper(
    "single-location",
    "Attention layers provably solve single-location regression",
    "Pierre Marion, Raphaël Berthier, Gérard Biau, Claire Boyer",
    2025,
    "arXiv:2410.01537",
    (
        Reading(
            "invariant manifold",
            "Where k and v start orthogonal to v* and k* and to each other they stay so, and"
            " descent finds the informative token and the value.",
            (manifold, on_the_manifold, off_the_manifold),
            reconstructed="Plain steps of directions instead of projected ones; settings as in its code.",
        ),
        Reading(
            "Bayes risk",
            "In many dimensions the erf predictor is Bayes optimal.",
            (many_dimensions,),
            reconstructed="The best factor of the scores.",
        ),
        Reading(
            "softmax against linear attention",
            "Softmax reaches the Bayes risk, and linear attention falls short"
            " (Duranthon et al., arXiv:2509.21936).",
            (softmax_is_bayes, against_others),
            reconstructed="What linear attention is: one offset and one slope.",
        ),
        Reading(
            "semantic or positional",
            "Two overlaps, semantic and positional, tell how the task is learnt"
            " (Arnaboldi et al., arXiv:2506.02651).",
            (positions,),
            reconstructed="The model of positions: one that is likelier, and a bias of its score.",
        ),
    ),
    "The first paper was read in its abstract and in its published code, the others in their abstracts. Not"
    " measured: finite samples.",
    setting=Setting(
        "single-location?d=10000&t=40",
        (
            "After an escape that takes about ln d steps both overlaps rise to 1: "
            "the informative token is found."
        ),
    ),
    credit="Single-location regression (`icl.SingleLocation`)",
    related=(
        "Softmax against linear attention: Odilon Duranthon, Pierre Marion,"
        " Claire Boyer, Bruno Loureiro, Lenka Zdeborová. *Statistical "
        "Advantage of Softmax Attention: Insights from Single-Location "
        "Regression*. 2025. "
        "[arXiv:2509.21936](https://arxiv.org/abs/2509.21936). Semantic and"
        " positional overlaps: Luca Arnaboldi, Bruno Loureiro, Ludovic "
        "Stephan, Florent Krzakala, Lenka Zdeborová. *Asymptotics of SGD in"
        " Sequence-Single Index Models and Single-Layer Attention "
        "Networks*. 2025. "
        "[arXiv:2506.02651](https://arxiv.org/abs/2506.02651)."
    ),
    entry=ModelEntry(
        data="normal tokens, one of which is informative",
        attention="erf, linear or softmax",
        trained="a direction that is sought, and one that is read",
        command="icl-theory single-location simulate",
    ),
)
CLAIMS = Claims(papers=(LOCATION,))
