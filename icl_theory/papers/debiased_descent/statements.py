"""The paper on linear regression with several softmax heads, and the evidence on it.

A head h has an output weight μ_h and an inverse temperature ω_h. Two heads with ω and
-ω are called a pair. Heads are compared with a step of descent on centred tokens, whose
loss `debiased` returns, and with linear attention (`PromptLaw`). `InterpolatedHeads` is
a fast approximation of the risk, with which many runs are affordable. A prompt has N
pairs (x_i, y_i) of a token in d dimensions and a label. A label is βᵀx_i plus noise of
the standard deviation σ, for a task β that is drawn for each prompt. The answer to the
query x is βᵀx, which is also called the target y.

The functions that are decorated with `row` are rows of the audit: their docstrings are
the statements, and ``quick`` asks for a smaller measurement. `DEBIASED` says which
statement of the paper each row tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize, root_scalar

from icl_theory._validate import Array
from icl_theory.engine import Risk, descend
from icl_theory.engine.risk import WithStart
from icl_theory.papers.debiased_descent.family import SoftmaxHeads
from icl_theory.papers.linear_attention import PromptLaw, ridge_loss
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import decade, listed, off, power, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting
from icl_theory.tokens.heads import GaussianHeadsRisk

SOURCE = "He, Pan, Chen, Yang 2025, {} (reconstructed)"
# Signs of the inverse temperatures of a pair.
PAIR = np.array([1.0, -1.0])
# For such a small ω the difference of a pair's two softmax averages is linear in ω. The
# loss of the pair then equals the loss of a step of descent on centred tokens, up to
# the order of ω², which is 1e-6.
SMALL_OMEGA = 1e-3
# Bounds on the two numbers of `unpaired` at the end of a run. Both numbers are near 0
# for a pair, and near 1 for two equal heads. The bounds only have to tell these two
# cases apart.
MOST_OF_PAIR = 0.05
LEAST_OF_EQUAL = 0.95


class Effort(NamedTuple):
    """How runs of two heads from random starts are computed."""

    # The moments of heads are interpolated between this number of nodes in ω, from
    # -reach to reach. A shorter range needs fewer nodes for the same accuracy.
    nodes: int
    reach: float
    steps: int
    rate: float  # learning rate


# Runs end at |ω| from 0.32 to 0.58. On the way |ω| reaches up to 0.78 in a full audit,
# and 0.73 in a quick one. Beyond the reach the moments are extrapolated.
# `ends_of_heads` measures the error of the last losses. A quick audit takes a quarter
# of the steps, at four times the learning rate.
FULL = Effort(nodes=13, reach=0.7, steps=1000, rate=0.02)
QUICK = Effort(nodes=8, reach=0.5, steps=250, rate=0.08)


class BestHeads(NamedTuple):
    """The best ω of one head, or of a pair with ω and -ω."""

    omega: float
    loss: float  # with this ω and the best output weights


# The first two trials of ω in a quick search, by the number of heads. At N = 40 the
# best ω is 0.52 for one head and 0.074 for a pair; at N = 160 it is 0.033 for a pair.
QUICK_TRIALS = {1: (0.4, 0.5), 2: (0.03, 0.08)}


@lru_cache(maxsize=16)
def best_heads(heads: int, N: int, quick: bool) -> BestHeads:
    """Return the best head, or the best pair for two heads, at d = 5 and σ = 0.1.

    A quick search ends when ω² changes by less than 1 %. As the loss is stationary at
    the best ω, the error of the least loss is of second order in this change.
    """
    risk = SoftmaxHeads(heads=heads, N=N).risk()  # d = 5 and σ = 0.1 by default
    if not quick:
        best = risk.best
        assert best is not None  # it is None only for more than two heads
        return BestHeads(*best)
    signs = PAIR[:heads]  # of ω; one head has a positive ω
    losses = []

    def slope(omega_squared: float) -> float:
        """Return twice the derivative of the loss with respect to ω².

        The factor 2 does not move the root. The loss at this ω is appended to
        ``losses``.
        """
        omega = math.sqrt(omega_squared)
        at_best_output = risk.with_best_output(omega * signs)
        losses.append(at_best_output.loss)
        return float(at_best_output.slopes @ signs) / omega

    # The loss with the best output weights is an even function of ω, so it is a
    # function of ω². Its derivative is nearly linear in ω², so that the secant method
    # needs few trials.
    x0, x1 = (omega**2 for omega in QUICK_TRIALS[heads])
    search = root_scalar(slope, method="secant", x0=x0, x1=x1, rtol=1e-2)
    # No trial is at the root itself. The least loss of the trials replaces the loss at
    # the root.
    return BestHeads(omega=math.sqrt(search.root), loss=min(losses))


def loss_of_heads(risk: GaussianHeadsRisk, params: Array) -> float:
    """Return the exact loss from the moments of the heads, without the gradient.

    The function takes half the time of ``risk.loss``. The parameters are (μ, ω).
    """
    output, omega = np.split(params, 2)
    # G has the moments E[o_h o_k], and g the moments E[o_h y], with the average o_h of
    # the labels in head h. As E y² = d, the loss is ½(μᵀGμ - 2μᵀg + d).
    G, g = risk.quadratic(omega)
    return 0.5 * float(output @ (G @ output - 2.0 * g) + risk.d)


def debiased(d: int, N: int, noise: float) -> float:
    """Return the loss of a step of descent on centred tokens with the best step size η.

    The step predicts (η/N) Σ y_i (x_i - mean)ᵀx with the mean of the x_i.
    """
    # With η = 1 the prediction has the mean product d(N - 1)/N with the answer βᵀx, and
    # the mean square d(N - 1)(N + d + σ²)/N². The answer has the mean square d. The
    # best η leaves the loss ½(d - product²/square), with the first two of these means.
    return 0.5 * d * (1.0 - (N - 1.0) / (N + d + noise**2))


def prompt_law(N: int) -> PromptLaw:
    """Return the law of prompts with N isotropic tokens, d = 5 and σ = 0.1.

    Its methods return losses of linear attention.
    """
    return PromptLaw(covariance=np.ones(5), N=N, noise=0.1)


@row(
    "two heads: better than one",
    SOURCE.format("several heads"),
    bound="linear attention",
)
def better_than_one(quick: bool) -> Claim:
    """two heads are better than one, and nearly as good as linear attention"""
    lengths = (40, 160) if quick else (10, 40, 160, 640)
    # A quick audit searches for the best head at the first length alone.
    lengths_of_one = lengths[:1] if quick else lengths
    one_head = np.array([best_heads(1, N, quick).loss for N in lengths_of_one])
    two_heads = np.array([best_heads(2, N, quick).loss for N in lengths])
    linear = np.array([prompt_law(N).floor for N in lengths])  # the least losses
    gap = two_heads / linear - 1.0
    two_are_better = bool((two_heads[: len(one_head)] < one_head).all())
    gap_falls = bool((np.diff(gap) < 0.0).all())
    return Claim.of(
        two_are_better and gap_falls and gap.min() > 0.0,
        f"d = 5, σ = 0.1, N = {listed(lengths)}",
        f"least loss {listed(one_head, '.4f')} (one head), {listed(two_heads, '.4f')}"
        f" (two), {listed(linear, '.4f')} (linear attention); two heads lose to it by"
        f" {listed(gap, '.2%')}",
        "holds; linear attention, which needs no mean to be taken away, is better"
        " still",
    )


def loss_of_small_pair(N: int) -> float:
    """Return the loss of the pair ω = ±0.001 with the best output weights.

    For small ω the difference of the two softmax averages is linear in ω, and the pair
    predicts the same as a step of descent on centred tokens.
    """
    risk = SoftmaxHeads(heads=2, N=N).risk()
    return risk.with_best_output(SMALL_OMEGA * PAIR).loss


@row("two heads: debiased descent", SOURCE.format("debiased descent"), bound="-> 0")
def debiased_step(quick: bool) -> Claim:
    """the best pair does a step of descent on centred tokens; for long prompts it is as
    good as the best such step
    """
    lengths = (40, 160) if quick else (10, 40, 160, 640)
    step_losses = np.array([debiased(d=5, N=N, noise=0.1) for N in lengths])
    pairs = [best_heads(2, N, quick) for N in lengths]
    omegas = np.array([pair.omega for pair in pairs])
    pair_losses = np.array([pair.loss for pair in pairs])
    gain = 1.0 - pair_losses / step_losses
    # The largest relative difference between the losses of a pair of small ω and of the
    # step.
    error = off([loss_of_small_pair(N) for N in lengths], step_losses)
    # For the longest prompts the gain is 1e-6 in a full audit, and 2e-5 in a quick one.
    gain_vanishes = bool((np.diff(gain) < 0.0).all()) and 0.0 < gain[-1] < 1e-4
    return Claim.of(
        # The error is 3e-7, of the order of ω².
        error < 1e-4 and gain_vanishes,
        f"d = 5, σ = 0.1, N = {listed(lengths)}",
        f"the pair gains {listed(gain, '.1e')} at ω = ±{listed(omegas, '.4f')}, like"
        f" N^{power(lengths, omegas):.2f}; at ω = ±0.001 losses are those of the step"
        f" within {error:.0e}",
    )


def imbalance(numbers: Array) -> float:
    """Return |Σa|/Σ|a|: 0 if the numbers cancel, and 1 if their signs are equal."""
    return float(abs(numbers.sum()) / np.abs(numbers).sum())


def unpaired(params: Array) -> Array:
    """Return |Σμ|/Σ|μ| and |Σω|/Σ|ω| of the parameters (μ, ω).

    Both are 0 for a pair with output weights that sum to zero, and 1 for equal heads.
    """
    output, omega = np.split(params, 2)
    return np.array([imbalance(output), imbalance(omega)])


@dataclass(frozen=True, eq=False)
class InterpolatedHeads(WithStart, Risk):
    r"""The loss of H softmax heads with moments that are interpolated in ω.

    .. math:: \mathcal L = \tfrac12 \mu^\top G(\omega) \mu
        - \mu^\top g(\omega) + \tfrac d2

    The parameters are (μ, ω), (2H,). Let :math:`o_h` be the average of the labels,
    weighted by the attention of head h, and y the target. The moment
    :math:`G_{hk} = E[o_h \cdot o_k]` is a function of :math:`\omega_h` and
    :math:`\omega_k`, and :math:`g_h = E[o_h \cdot y]` is a function of
    :math:`\omega_h`. Here both functions are replaced by polynomials, which are exact
    at n Chebyshev nodes. A step costs microseconds instead of a tenth of a second.
    """

    start: Array  # (μ, ω) at step 0
    reach: float  # the nodes are on [-reach, reach]
    # Coefficients of the functions G, (n, n), and g, (n,), in Chebyshev polynomials of
    # ω/reach.
    gram: Array
    means: Array
    square: float  # E y², which is d

    @classmethod
    def of(cls, risk: GaussianHeadsRisk, nodes: int, reach: float) -> InterpolatedHeads:
        """Return a risk whose moments are interpolated in ω.

        There are ``nodes`` Chebyshev nodes on [-reach, reach].
        """
        x = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)  # on [-1, 1]
        # The matrix maps values at the nodes to coefficients.
        to_coefficients = np.linalg.inv(chebyshev.chebvander(x, nodes - 1))
        # With one head at each node, the moments of these heads are the values of G and
        # g at all nodes.
        gram, means = risk.quadratic(reach * x)
        return cls(
            start=risk.start,
            reach=reach,
            gram=to_coefficients @ gram @ to_coefficients.T,
            means=to_coefficients @ means,
            square=float(risk.d),
        )

    @cached_property
    def _derivatives(self) -> Array:
        """Derivatives of the Chebyshev polynomials T_0 ... T_(n-1), (n - 1, n).

        Column j has the derivative of T_j, as coefficients of T_0 ... T_(n-2).
        """
        return np.asarray(chebyshev.chebder(np.eye(len(self.means))))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (2H,)."""
        output, omega = np.split(params, 2)
        n = len(self.means)
        # The Chebyshev polynomials of ω/reach for each head, and their derivatives with
        # respect to ω, (H, n).
        basis = chebyshev.chebvander(omega / self.reach, n - 1)
        basis_slopes = basis[:, :-1] @ self._derivatives / self.reach
        G = basis @ self.gram @ basis.T
        g = basis @ self.means
        output_gradient = G @ output - g
        # The gradient with respect to row h of the basis is μ_h times this vector.
        basis_gradient = self.gram @ (basis.T @ output) - self.means
        omega_gradient = output * (basis_slopes @ basis_gradient)
        # output_gradient - g is Gμ - 2g.
        loss = 0.5 * float(output @ (output_gradient - g) + self.square)
        return loss, np.concatenate([output_gradient, omega_gradient])


def effort_of(quick: bool) -> Effort:
    """Return the effort of a quick audit or of a full one."""
    return QUICK if quick else FULL


@lru_cache(maxsize=4)
def interpolated_heads(quick: bool) -> InterpolatedHeads:
    """Return the risk of two heads at N = 40, interpolated between nodes in ω."""
    effort = effort_of(quick)
    exact = SoftmaxHeads(heads=2).risk()
    return InterpolatedHeads.of(exact, effort.nodes, effort.reach)


def equal_signs(start: Array) -> bool:
    """Whether μ + ω has the same sign in all heads.

    Near zero the loss falls in proportion to Σ μ_h ω_h. From a small start μ + ω
    therefore grows, while μ - ω decays.
    """
    output, omega = np.split(start, 2)
    growing = output + omega
    return bool((growing > 0.0).all() or (growing < 0.0).all())


class HeadEnds(NamedTuple):
    """The ends of runs of two heads from many starts."""

    has_equal_signs: NDArray[np.bool_]  # `equal_signs` of each start, (starts,)
    imbalances: Array  # |Σμ|/Σ|μ| and |Σω|/Σ|ω| at the end, (starts, 2)
    losses: Array  # at the end, (starts,)
    # The larger of two errors of interpolation: of the least and of the largest loss.
    error: float


def ends_of_heads(seeds: int, quick: bool) -> HeadEnds:
    """Run two heads from random starts, with moments interpolated in ω.

    The starts have the seeds 0, ..., ``seeds`` - 1.
    """
    effort = effort_of(quick)
    problem = SoftmaxHeads(heads=2)
    exact = problem.risk()
    interpolated = interpolated_heads(quick)
    starts = [problem.changed(seed=seed).risk().initial for seed in range(seeds)]
    ends = []
    for start in starts:
        risk = replace(interpolated, start=start)
        # These runs are too short for a display of their progress.
        run = descend(risk, effort.rate, steps=effort.steps, progress=False)
        ends.append(run.params)
    losses = np.array([interpolated.loss(end) for end in ends])
    # The exact loss is slow, so only the ends with the least and the largest loss are
    # compared with it.
    extremes = {int(losses.argmin()), int(losses.argmax())}
    errors = [abs(losses[i] - loss_of_heads(exact, ends[i])) for i in extremes]
    return HeadEnds(
        has_equal_signs=np.array([equal_signs(start) for start in starts]),
        imbalances=np.array([unpaired(end) for end in ends]),
        losses=losses,
        error=max(errors),
    )


def least_words(losses: Array) -> str:
    """Return the least of some losses as text, and "of none" if there are none."""
    return f"{losses.min():.4f}" if losses.size else "of none"


def count_of_pairs(is_pair: NDArray[np.bool_]) -> str:
    """Return the text "m of n" for m pairs among the ends of n runs."""
    return f"{int(is_pair.sum())} of {len(is_pair)}"


@row(
    "two heads: descent from random starts",
    SOURCE.format("training"),
    bound="0, 0; 1, 1",
)
def emerging_pair(quick: bool) -> Claim:
    """descent turns two heads into a pair (output weights that sum to zero, opposite ω)
    if μ + ω has opposite signs in the two heads; from equal signs most runs end as two
    equal heads
    """
    starts = 6 if quick else 40
    effort = effort_of(quick)
    ends = ends_of_heads(starts, quick)
    has_equal_signs = ends.has_equal_signs
    one_head = best_heads(1, 40, quick).loss
    is_pair = ends.imbalances.max(axis=1) < MOST_OF_PAIR
    # The bound of 1 % allows for runs that have not quite converged at the last step.
    has_loss_of_one = np.abs(ends.losses / one_head - 1.0) < 0.01
    are_equal_heads = (ends.imbalances.min(axis=1) > LEAST_OF_EQUAL) & has_loss_of_one
    all_are_pairs_or_equal = bool((is_pair | are_equal_heads).all())
    opposite_end_as_pairs = is_pair[~has_equal_signs].all()
    # "Most" means more than half of the runs from equal signs.
    most_equal_merge = are_equal_heads[has_equal_signs].mean() > 0.5
    pairs_from_opposite = count_of_pairs(is_pair[~has_equal_signs])
    pairs_from_equal = count_of_pairs(is_pair[has_equal_signs])
    return Claim.of(
        # An interpolation error of 0.01 is far below the difference of the two losses
        # that the row tells apart: 0.35 of a pair, and 0.72 of equal heads.
        all_are_pairs_or_equal
        and ends.error < 0.01
        and opposite_end_as_pairs
        and most_equal_merge,
        f"d = 5, N = 40, σ = 0.1, {starts} starts of size 0.1, {effort.steps:,} steps"
        f" of η = {effort.rate}; moments of heads interpolated in ω",
        f"a pair in the end: {pairs_from_opposite} with opposite signs, with the loss"
        f" {least_words(ends.losses[is_pair])}, {pairs_from_equal} with equal ones; all"
        " others end with two equal heads and the loss"
        f" {least_words(ends.losses[are_equal_heads])}, of one head {one_head:.4f};"
        f" interpolation adds at most {decade(ends.error)}",
        f"holds only for {is_pair.sum()} of {starts} starts of two heads; among more"
        " heads signs are seldom all equal",
    )


def _minimised(risk: Risk, start: Array, iterations: int) -> OptimizeResult:
    """Return the result of L-BFGS after at most ``iterations`` iterations."""
    return minimize(
        risk.evaluate,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": iterations},
    )


@row("two heads: minima", SOURCE.format("training"), bound="0; ω, -ω; best pair")
def minima(quick: bool) -> Claim:
    """if μ + ω has opposite signs in two heads, training ends with the same |ω| in
    both, and output weights that sum to zero; a third head hardly helps
    """
    # With these seeds μ + ω has opposite signs in the two heads at the start.
    seeds = (0,) if quick else (0, 1)
    pair = best_heads(2, 40, quick)
    interpolation = "; moments of heads interpolated in ω" if quick else ""
    imbalances = []
    omega_sizes = []
    size_differences = []  # between the two |ω| of a pair, relative to their mean
    excesses = []  # loss above the best pair's loss, as a share of it
    for seed in seeds:
        risk = SoftmaxHeads(heads=2, seed=seed).risk()
        # An iteration on the exact loss takes a tenth of a second or more, and 40
        # iterations are enough for the bounds below. A quick audit interpolates the
        # moments, with which iterations cost next to nothing.
        if quick:
            interpolated = interpolated_heads(quick)
            params = _minimised(interpolated, risk.initial, iterations=100).x
            loss = loss_of_heads(risk, params)
        else:
            minimum = _minimised(risk, risk.initial, iterations=40)
            params = minimum.x
            loss = minimum.fun
        output, omega = np.split(params, 2)
        imbalances.append(imbalance(output))
        sizes = np.abs(omega)
        omega_sizes.extend(sizes)
        size_differences.append(float(np.ptp(sizes) / np.mean(sizes)))
        excesses.append(loss / pair.loss - 1.0)

    three_heads = SoftmaxHeads(heads=3).risk()
    gains = []  # by which share a third head lowers the best pair's loss
    third_omegas = (0.2,) if quick else (0.0, 0.2, 0.5)
    for third_omega in third_omegas:
        omega = np.array([pair.omega, -pair.omega, third_omega])
        gains.append(1.0 - three_heads.with_best_output(omega).loss / pair.loss)
    largest_difference = max(map(abs, [*excesses, *gains]))
    # In a full audit the searches end at imbalances up to 5e-4, excesses of 2e-4, and
    # |ω| = 0.1, with a difference of 2 % between the two heads. With more iterations
    # imbalances, excesses and differences would be smaller. The bound on |ω| excludes
    # 0.52, where a single head is best.
    weights_cancel = max(imbalances) < 1e-3
    has_loss_of_pair = largest_difference < 1e-3
    return Claim.of(
        weights_cancel
        and has_loss_of_pair
        and max(omega_sizes) < 0.2
        and max(size_differences) < 0.05,
        f"d = 5, N = 40, σ = 0.1, L-BFGS from {len(seeds)} starts with opposite"
        f" signs{interpolation}; third heads with ω = {listed(third_omegas)}",
        f"|Σμ|/Σ|μ| at most {max(imbalances):.0e}; |ω| = {span(omega_sizes, '.3f')};"
        f" loss over that of the best pair {span(excesses, '+.0e')}; a third head gains"
        f" {max(gains):.0e} at most",
    )


def bayes_factor(d: int, noise_share: float, draws: int) -> float:
    """Return the loss of the debiased step, divided by the loss of ridge regression.

    Ridge regression is Bayes-optimal. Its loss is a mean over ``draws`` drawn prompts.
    Prompts have 8d tokens, and the noise has the variance ``noise_share`` times d.
    """
    N = 8 * d
    law = PromptLaw(np.ones(d), N=N, noise=(noise_share * d) ** 0.5)
    return debiased(d, N, law.noise) / ridge_loss(law, draws).value


@row("two heads: near Bayes", SOURCE.format("optimality"), bound="a constant")
def near_bayes(quick: bool) -> Claim:
    """the loss is the Bayes loss times a factor, which tends to a constant if d, N and
    σ² grow in proportion
    """
    draws = 400 if quick else 4000
    sizes = (5, 10, 20)
    little_noise, much_noise = 0.002, 1.0  # σ²/d
    noise_shares = (little_noise, 0.2, much_noise)
    last_factors = {}  # at the largest d, by σ²/d
    last_changes = []  # relative changes from the second largest d to the largest
    phrases = []
    for share in noise_shares:
        factors = [bayes_factor(d, share, draws) for d in sizes]
        last_factors[share] = factors[-1]
        last_changes.append(abs(factors[-1] / factors[-2] - 1.0))
        phrases.append(f"{listed(factors, '.3g')} (σ² = {share}d)")
    # From d = 10 to d = 20 the factors change by at most 4 %, and the sampling error
    # adds to this. The last factor is 1.7 for much noise, and 400 for little noise.
    tends_to_constants = max(last_changes) < 0.06
    largest_factor = last_factors[little_noise]
    return Claim.of(
        tends_to_constants and last_factors[much_noise] < 2.0 < largest_factor,
        f"N = 8d, d = {listed(sizes)}, σ²/d = {listed(noise_shares)}; ridge regression"
        f" on {draws} drawn prompts",
        f"factor {'; '.join(phrases)}",
        f"holds, loose: a constant, but {largest_factor:.0f} where labels have little"
        " noise",
    )


def pair_at_lengths(lengths: tuple[int, ...], quick: bool) -> Array:
    """Return the losses of the pair that is best at N = 40, on prompts of N tokens.

    The numbers N are ``lengths``.
    """
    omega = best_heads(2, 40, quick).omega * PAIR
    output = SoftmaxHeads(heads=2).risk().with_best_output(omega).output
    params = np.concatenate([output, omega])
    risks = [SoftmaxHeads(heads=2, N=N).risk() for N in lengths]
    return np.array([loss_of_heads(risk, params) for risk in risks])


def linear_at_lengths(lengths: tuple[int, ...], sums: bool) -> Array:
    """Return losses of linear attention on prompts of the given lengths.

    Its matrix Γ is the best one for prompts of 40 tokens. If ``sums`` is False, linear
    attention averages over the tokens. If it is True, linear attention sums over the
    tokens, and the sum is divided by 40 at all lengths.
    """
    gamma = prompt_law(40).best
    losses = []
    for N in lengths:
        # `PromptLaw` averages over the N tokens. Their sum divided by 40 is N/40 times
        # this average.
        scale = N / 40.0 if sums else 1.0
        losses.append(prompt_law(N).loss(scale * gamma))
    return np.array(losses)


@row(
    "two heads: longer prompts",
    SOURCE.format("length generalisation"),
    bound="best at each length",
)
def longer_prompts(quick: bool) -> Claim:
    """heads that were trained on prompts of 40 tokens also work for longer prompts;
    linear attention does not
    """
    lengths = (40, 160, 640) if quick else (20, 40, 80, 160, 640, 2560)
    pair = pair_at_lengths(lengths, quick)
    summed = linear_at_lengths(lengths, sums=True)
    averaged = linear_at_lengths(lengths, sums=False)
    # The pair has a lower loss on the longest prompts than on the shortest ones. Linear
    # attention that sums over tokens has a higher loss on the longest prompts than the
    # pair has on the shortest ones.
    pair_works_and_sum_fails = pair[-1] < pair[0] < summed[-1]
    return Claim.of(
        pair_works_and_sum_fails and averaged[-1] < summed[-1],
        f"d = 5, σ = 0.1, N = {listed(lengths)}",
        f"loss {listed(pair, '.3g')} (pair), {listed(summed, '.3g')} (linear attention,"
        f" summed), {listed(averaged, '.3g')} (linear attention, averaged)",
        "holds only if linear attention sums over tokens: where it averages its last"
        f" loss is {averaged[-1] / pair[-1]:.2f} times the pair's",
    )


DEBIASED = Paper(
    "debiased-descent",
    "In-Context Linear Regression Demystified: Training Dynamics and Mechanistic"
    " Interpretability of Multi-Head Softmax Attention",
    "Jianliang He, Xintian Pan, Siyu Chen, Zhuoran Yang",
    2025,
    "arXiv:2503.12734",
    (
        Reading(
            "Several heads",
            "Several heads are better than one.",
            (better_than_one,),
            figure="two_heads",
            reconstructed="the reduced model, a number for each matrix",
        ),
        Reading(
            "Patterns",
            "Training leads to key-query matrices of one size and to output weights"
            " that sum to zero.",
            (emerging_pair, minima),
            reconstructed="the reduced model, a number for each matrix",
        ),
        Reading(
            "Debiased descent",
            "Heads with these patterns do a step of descent on centred tokens.",
            (debiased_step,),
            reconstructed="the loss of this step",
        ),
        Reading(
            "Optimality",
            "The loss is nearly that of Bayes, up to a proportional factor.",
            (near_bayes,),
            reconstructed="what is proportional: d, N and σ² to each other",
        ),
        Reading(
            "Length generalisation",
            "Softmax attention serves prompts that are longer than those of training,"
            " linear attention does not.",
            (longer_prompts,),
            reconstructed="how linear attention is scaled",
        ),
    ),
    setting=Setting(
        "debiased-descent?N=40&t=100",
        (
            "From this random start the two heads become a pair: output weights and "
            "temperatures of opposite signs. From others they become equal."
        ),
    ),
    credit="Several softmax heads (`icl.SoftmaxHeads`)",
    entry=ModelEntry(
        data="normal inputs, linear functions",
        attention="several softmax heads",
        trained="a temperature and an output weight for each head",
        command="icl-theory softmax-heads simulate",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(DEBIASED,))
