"""Papers on single-location regression: rows of the audit, and what the papers say.

The functions that are decorated with `row` or `identity` are rows of the audit: their
docstrings are the statements, and ``quick`` asks for a smaller measurement. `LOCATION`
says which statement of the papers each row tests.

One of the N tokens of a prompt is informative. The tokens are normal, in d dimensions.
The informative one has the mean √snr k* with a unit vector k*, and the deviation γ in
each coordinate; all others have the mean 0 and the deviation 1. The label is the
coordinate of the informative token along a unit vector v* orthogonal to k*, plus noise
of the deviation σ. Attention has the scores k·X and the values v·X of the tokens X;
"erf" and "linear" attention multiply the scores by λ. The array ``overlaps`` of a run
has the overlaps κ = k·k*, ν = v·v*, θ = v·k*, η = k·v* and ρ = k·v, in this order.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from icl_theory.papers.single_location.family import SingleLocation
from icl_theory.statements.claim import Claim, Errors, identity, row
from icl_theory.statements.numbers import decade, listed, minimum, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

MARION = "Marion, Berthier, Biau, Boyer 2025 (reconstructed)"
DURANTHON = "Duranthon, Marion, Boyer, Loureiro, Zdeborová 2025 (reconstructed)"
ARNABOLDI = "Arnaboldi, Loureiro, Stephan, Krzakala, Zdeborová 2025 (reconstructed)"
# The settings of the code of Marion et al., for N = 10 tokens in d = 400 dimensions.
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
    """erf, linear: with kᵀv* = vᵀk* = kᵀv = 0 no step of gradient descent changes these
    overlaps
    """
    rng = np.random.default_rng(0)
    for attention in ("erf", "linear"):
        # With the start "sphere" the risk is a function of all coordinates of k and v.
        problem = PUBLISHED.changed(
            attention=attention, start="sphere", N=3 if quick else 10
        )
        for k_angle, v_angle in rng.uniform(0.0, 2.0 * math.pi, (20, 2)):
            # Unit vectors on the manifold; the axes are k*, v* and two more.
            k = np.array([math.cos(k_angle), 0.0, math.sin(k_angle), 0.0])
            v = np.array([0.0, math.cos(v_angle), 0.0, math.sin(v_angle)])
            gradient = problem.risk().gradient([k, v])
            by_k, by_v = gradient
            # The changes of kᵀv*, vᵀk* and kᵀv along the gradient.
            changes = [by_k[1], by_v[0], by_k @ v + k @ by_v]
            yield np.abs(changes).max() / np.abs(gradient).max()
    return (
        "20 random points each, snr = 200, γ = 0.71, λ = 0.1; the gradient over (k, v)"
        " without restriction"
    )


@row(
    "single location: on the manifold",
    MARION,
    bound="|κ|, |ν| -> 1, κν > 0; escape ~ ln d",
)
def on_the_manifold(quick: bool) -> Claim:
    """erf: from the manifold descent ends at (k*, v*) or (-k*, -v*), after an escape
    that takes ~ ln d steps
    """
    end_overlaps = []
    mean_escape_steps = []  # for each d
    for d in (10**2, 10**4, 10**6):
        escape_steps = []
        for seed in range(1 if quick else 4):
            run = PUBLISHED.changed(seed=seed, d=d).simulate()
            kappa_and_nu = run.observed["overlaps"][:, :2]
            end_overlaps.append(kappa_and_nu[-1])
            # argmax() gives the first saved state with κν > ¼. At the start κν is near
            # 0, and it tends to 1. Any limit well between 0 and 1 would do.
            first_state = np.argmax(kappa_and_nu.prod(axis=1) > 0.25)
            escape_steps.append(run.t[first_state])
        mean_escape_steps.append(float(np.mean(escape_steps)))
    sizes = np.abs(end_overlaps)
    have_equal_signs = min(np.prod(end_overlaps, axis=1)) > 0.0
    # If the number of steps grows like ln d, each factor of 100 in d adds the same
    # number. If it grew like a power of d, the second rise would be several times the
    # first. The bound allows for the error that few starts leave.
    first_rise, second_rise = np.diff(mean_escape_steps)
    is_logarithmic = abs(second_rise / first_rise - 1.0) < 0.5
    return Claim.of(
        sizes.min() > 0.99 and have_equal_signs and is_logarithmic,
        "N = 10, snr = 200, γ = 0.71, λ = 0.1, η = 0.5, d = 1e2, 1e4, 1e6,"
        f" {len(sizes)} starts, 1e9 steps",
        f"|κ|, |ν| {span(sizes.ravel(), '.4f')}; κν > 1/4 after"
        f" {listed(mean_escape_steps, '.0f')} steps on average",
    )


@row("single location: off the manifold", MARION, bound="one of the two")
def off_the_manifold(quick: bool) -> Claim:
    """erf: from anywhere on the spheres descent ends at (k*, v*), up to signs, or with
    k and v in swapped roles
    """
    # Some runs escape late. After 1e5 steps they have not yet reached the loss of their
    # end. The two starts of the quick audit need fewer steps.
    steps = 2 * 10**4 if quick else 10**6
    base = PUBLISHED.changed(start="sphere", max_steps=steps)
    # The runs with the seeds 2 and 3 soon leave the plateau near their start, one
    # towards each of the two ends.
    seeds = (2, 3) if quick else range(8)
    runs = [base.changed(seed=seed).simulate() for seed in seeds]
    overlaps = np.abs([run.observed["overlaps"][-1] for run in runs])
    # |ν| and |η| of each run.
    _, v_with_v_star, _, k_with_v_star, _ = overlaps.T
    losses = np.array([run.loss[-1] for run in runs])
    # At the end of a run one of the two overlaps is nearly 1, and the other far from 1.
    has_right_roles = v_with_v_star > 0.99
    has_swapped_roles = k_with_v_star > 0.99
    # Each maximum is 0 if there is no run of its kind.
    right_loss = losses[has_right_roles].max(initial=0.0)
    swapped_loss = losses[~has_right_roles].max(initial=0.0)
    all_end_at_either = bool((has_right_roles | has_swapped_roles).all())
    some_end_at_each = bool(has_right_roles.any() and not has_right_roles.all())
    right_count = has_right_roles.sum()
    return Claim.of(
        all_end_at_either and some_end_at_each,
        f"N = 10, snr = 200, γ = 0.71, λ = 0.1, d = 400, {len(runs)} starts,"
        f" {steps:.0e} steps",
        f"v = ±v* in {right_count}, loss {right_loss:.4f};"
        f" k = ±v* in {len(runs) - right_count}, loss {swapped_loss:.4f}",
        f"holds only from {right_count} of {len(runs)} starts: off the manifold k and v"
        " may swap their roles",
    )


def least_erf(problem: SingleLocation) -> float:
    """Return the least loss of erf attention over λ, with k = k* and v = v*.

    The search is over λ from e^-7 to e^2, cautious bounds around the best λ of all
    problems in this module.
    """
    # With the start "sphere" the parameters are k and v, (2, 4), and the first two axes
    # are k* and v*.
    base = problem.changed(attention="erf", start="sphere")
    solution = np.eye(2, 4)  # k = k* and v = v*

    def loss(log_scale: float) -> float:
        """Return the loss with the factor λ = exp(``log_scale``) of the scores."""
        return base.changed(scale=math.exp(log_scale)).risk().loss(solution)

    return float(minimize_scalar(loss, bounds=(-7.0, 2.0)).fun)


def least_softmax(problem: SingleLocation) -> float:
    """Return the Bayes risk of a problem with γ = 1, which softmax attains."""
    return problem.risk().floor()


def least_linear(problem: SingleLocation) -> float:
    """Return the least loss of attention b + λs with k = k* and v = v*.

    The output is Σ_i (b + λs_i) V_i for the scores s and the values V of the tokens. So
    the loss is quadratic in b and λ, and the best b and λ are a least-squares fit of
    the label by ΣV and ΣsV.
    """
    mean_score = math.sqrt(problem.snr)
    variance = problem.spread**2  # of the informative token's score, and of its value
    other_tokens = problem.N - 1.0
    # Second moments of ΣV and ΣsV, and their mean products with the label, which is the
    # value of the informative token plus noise. All values have the mean zero and are
    # independent of the scores, so the moments of the tokens add up. A token without
    # information has the identity as its moments.
    informative_moments = variance * np.array(
        [[1.0, mean_score], [mean_score, mean_score * mean_score + variance]]
    )
    moments = informative_moments + other_tokens * np.eye(2)
    label_moments = variance * np.array([1.0, mean_score])
    # With the moments M and the label moments m, the least loss of the fit is
    # ½(E[label²] - mᵀM⁻¹m).
    explained = label_moments @ np.linalg.solve(moments, label_moments)
    return 0.5 * float(variance + problem.noise**2 - explained)


@row("single location: many dimensions", MARION, bound="-> 0")
def many_dimensions(quick: bool) -> Claim:
    """erf with the best λ reaches the noise, and so the Bayes risk, as snr = d/2 grows
    at fixed N
    """
    dimensions = (10**2, 10**3, 10**4)
    N = 4 if quick else 10
    losses = [least_erf(PUBLISHED.changed(snr=d / 2.0, N=N)) for d in dimensions]
    # Each factor of 10 in d divides the loss by 4.6 or more.
    is_falling = all(
        before > 4.0 * after for before, after in itertools.pairwise(losses)
    )
    return Claim.of(
        is_falling,
        f"N = {N}, γ = 0.71, d = {listed(dimensions)}",
        f"loss {listed(losses, '.1e')}",
    )


@row("single location: softmax", DURANTHON, bound="0; 1e-12")
def softmax_is_bayes(quick: bool) -> Claim:
    """softmax attention with k = √snr k* and v = v* is the posterior mean, the minimum
    that descent finds
    """
    cases = [(3, 2.0)]  # N and snr
    if not quick:
        cases = [(2, 1.0), (3, 2.0), (10, 4.0), (10, 16.0), (1000, 9.0)]
    gradients = []
    excesses = []
    for N, snr in cases:
        problem = SingleLocation(N=N, snr=snr, noise=0.3)
        risk = problem.risk()
        gradients.append(float(np.abs(risk.gradient(problem.bayes())).max()))
        end = minimum(risk.evaluate, risk.initial)
        excesses.append(abs(risk.loss(end) - risk.floor()))
    return Claim.of(
        # Both numbers are zero up to rounding and the error of integrals. The bounds
        # are cautious.
        max(gradients) < 1e-10 and max(excesses) < 1e-12,
        f"(N, snr) = {listed(cases)}, γ = 1, σ = 0.3, from a random start",
        f"gradient there below {decade(max(gradients))}, loss over the Bayes risk below"
        f" {decade(max(excesses))}",
    )


@row(
    "single location: softmax against others",
    DURANTHON,
    bound="exponential; no faster than 1/snr",
)
def against_others(quick: bool) -> Claim:
    """the risk of softmax falls exponentially with the signal, the risks of linear
    attention and of erf fall like a power
    """
    signals = (16.0, 32.0) if quick else (8.0, 16.0, 32.0, 64.0)
    problems = [SingleLocation(snr=snr) for snr in signals]
    softmax_losses = [least_softmax(problem) for problem in problems]
    erf_losses = [least_erf(problem) for problem in problems]
    linear_losses = [least_linear(problem) for problem in problems]

    def exponent(losses: list[float]) -> float:
        """Return b of a loss ~ snr^b, from the last two signals."""
        # The last signal is twice the one before it.
        return math.log(losses[-1] / losses[-2]) / math.log(2.0)

    # If a loss falls exponentially, the local exponent b grows in size with the signal.
    # The last doubling of the signal divides the loss of softmax by 60 or more, so that
    # its exponent is below -5.9.
    return Claim.of(
        exponent(softmax_losses) < -4.0
        and min(exponent(erf_losses), exponent(linear_losses)) > -1.0,
        f"N = 10, γ = 1, snr = {listed(signals, 'g')}",
        f"softmax {listed(softmax_losses, '.1e')}, erf {listed(erf_losses, '.2f')},"
        f" linear {listed(linear_losses, '.2f')}",
    )


@row("single location: positions", ARNABOLDI, bound="0")
def positions(quick: bool) -> Claim:
    """if one position is likelier than the others, training learns both semantic and
    positional attention, from a start with either of them alone
    """
    first_probabilities = (0.5,) if quick else (0.2, 0.5, 0.9)
    N, snr = (3, 1.0) if quick else (4, 4.0)
    # The parameters are (κ, κ', ν, ν', b), with the coordinates κ' of k orthogonal to
    # k* and ν' of v orthogonal to v*, and the bias b of the first position. The
    # positional start has attention that depends only on the position, with a large b.
    # The semantic start has attention that depends only on k*, with a large κ.
    positional = (0.0, 0.0, 1.0, 0.0, 4.0)
    semantic = (3.0, 0.0, 1.0, 0.0, 0.0)
    distances = []
    for probability in first_probabilities:
        problem = SingleLocation(N=N, snr=snr, first=probability)
        for start in (positional, semantic):
            end = minimum(problem.risk().evaluate, start)
            distances.append(float(np.abs(end - problem.bayes()).max()))
    return Claim.of(
        # `minimum` ends at a gradient of 1e-9. At this gradient the parameters still
        # have an error, for which the bound leaves room.
        max(distances) < 1e-5,
        f"N = {N}, snr = {snr:g}, first position with probability"
        f" {listed(first_probabilities)}; from attention to it, or to k*, alone",
        f"(κ, ν, b) off the Bayes predictor's by less than {decade(max(distances))}",
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
            "Where k and v start orthogonal to v* and k* and to each other they stay"
            " so, and"
            " descent finds the informative token and the value.",
            (manifold, on_the_manifold, off_the_manifold),
            figure="single_location",
            reconstructed="Plain steps of directions instead of projected ones;"
            " settings as in its code.",
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
            reconstructed="The model of positions: one that is likelier, and a bias of"
            " its score.",
        ),
    ),
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
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(LOCATION,))
