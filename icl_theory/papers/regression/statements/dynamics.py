"""Rows on runs: steps, flow, phases, regimes, coordinates and the tail.

Other rows are on derivatives, reductions, skipped steps and stable rates.

Letters: the K features v_m have the probabilities p_m, and Δ is the smallest distance
between two of them. Functions f are L-Lipschitz, with f_m = f(v_m). A prompt has N
tokens, with label noise of standard deviation σ. The score of feature m for a query k
is S_mk. In the exchangeable class all pairs of features have the variogram γ, which is
½ E(f_m - f_j)² = L²Δ²/2, and one number describes the scores: the gap u between the
score of the query's own feature and all other scores. The attention on the query's own
feature is a = 1/(1 + (K-1) e^-u), and the deficit is s = 1 - a. A step of descent at
the learning rate η is u <- u + c a s², with the step constant c = ηγK/(K-1)². The
Abel function A(u) grows by 1 in each step. For gradient flow a function F replaces A:
at the time t, ct = F(a) - F(1/K). The target loss is ε. Phase I ends at a = ½, Phase
III is the tail of the loss, and Phase II lies between them.

The docstring of a row is the statement that it tests, unless ``row`` is given a
statement. A function that is decorated with ``row`` returns ``Claim.of``: whether the
measurements are as expected, the cases, the measured numbers in words, and the verdict.
A function that is decorated with ``identity`` returns the cases, and yields errors or
pairs of values; the error of a pair is its relative difference. The measure ``off`` is
the largest relative difference of two arrays, and ``apart`` the largest absolute one.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

import icl_theory as icl
from icl_theory import regression
from icl_theory._validate import Array
from icl_theory.papers.regression import theorems
from icl_theory.papers.regression.statements import common
from icl_theory.papers.regression.statements.common import (
    WORDS,
    random_cases,
    random_risk,
    random_scores,
)
from icl_theory.papers.regression.theorems import checks as bounds
from icl_theory.papers.regression.theorems.orderwise import (
    DRAWS,
    SEED,
    counted_runs,
    law_runs,
)
from icl_theory.regression import tasks
from icl_theory.statements.claim import Claim, Errors, identity, row
from icl_theory.statements.numbers import apart, decade, deviations, listed, off, span
from icl_theory.statements.statement import OURS, Status

if TYPE_CHECKING:
    from icl_theory.regression.closed.runs import CountedRuns

# A rise of the loss up to this share of the initial loss counts as rounding.
RISE_BY_ROUNDING = 1e-13


@row("steps in closed form", OURS, Status.EXACT, "0; 1e-10")
def closed_counts(quick: bool) -> Claim:
    """⌈A(u₂) - A(u₁)⌉ is the number of gradient steps, to ε and to the end of each
    phase; A inverted gives the iterates
    """
    rng = np.random.default_rng(7)
    steps = 300 if quick else 3000
    runs = []
    for _ in range(15 if quick else 60):
        run = _counted(rng)
        if run is not None:
            runs.append(run)
    longest = max(run.steps for run in runs)
    # ``wrong_count`` is a bool, so that the sum is the number of runs with a wrong
    # count.
    wrong_counts = sum(run.wrong_count for run in runs)
    wrong_phases = sum(run.wrong_phases for run in runs)

    # The gaps u at up to 40 steps, from the inverse of A and by plain iteration. Both
    # agree to the rounding of long sums, for which 1e-10 is generous.
    compared_steps = np.unique(np.geomspace(1, steps, 40).astype(int))
    errors = []
    for K, c in itertools.product((2, 5, 40, 300), (0.02, 0.3, 3.0, 100.0)):
        iterates = common.iterated_gaps(K, c, steps)[compared_steps]
        # `position` returns gaps u from the inverse of A.
        from_inverse = regression.StepCounter(K, c).position(compared_steps)
        errors.append(off(from_inverse, iterates))
    error = max(errors)
    return Claim.of(
        wrong_counts == 0 and wrong_phases == 0 and error <= 1e-10,
        f"{len(runs)} random K, η, ε up to {longest:,} steps, by descent and by"
        f" plain iteration; iterates up to {steps:,} steps, K = 2..300, c = 0.02..100",
        f"{wrong_counts} counts and the phases of {wrong_phases} runs differ; iterates"
        f" off by {decade(error)}",
    )


class Counted(NamedTuple):
    """How the closed form of a run compares with descent and with plain iteration.

    Attributes
    ----------
    steps : int
        Number of steps in closed form.
    wrong_count : bool
        Whether descent, step by step, takes another number of steps.
    wrong_phases : bool
        Whether a phase ends at another step, in closed form or under descent, than by
        plain iteration.
    """

    steps: int
    wrong_count: bool
    wrong_phases: bool


def _counted(rng: np.random.Generator) -> Counted | None:
    """Draw K, η and ε, and count the steps of the run in three ways.

    The result is None if there are too many steps, or if the run does not end.
    """
    # Exponents of ten: K is from 2 to 316, η from 0.03 to 100 and ε from 1e-4 to 0.3.
    lowest = (0.4, -1.5, -4.0)
    highest = (2.5, 2.0, -0.5)
    K_before_rounding, eta, epsilon = (10.0 ** rng.uniform(lowest, highest)).tolist()
    K = int(K_before_rounding)
    L = math.sqrt(2.0)  # γ = L²Δ²/2 = 1
    gamma = 1.0
    closed = icl.simulate(L, delta=1.0, eta=eta, K=K, epsilon=epsilon)
    # With more steps than this the plain iterations below would take long.
    if closed.steps is None or closed.steps > 100_000:
        return None
    exact = icl.simulate(L, delta=1.0, eta=eta, K=K, epsilon=epsilon, method="exact")
    c = eta * K / (K - 1.0) ** 2  # ηγK/(K-1)² with γ = 1
    # The deficits s at the ends of Phases I and II, and at the loss ε.
    deficits = (0.5, regression.tail_start(K), common.deficit(K, gamma, epsilon))
    iterated_ends = common.iterated_steps(K, c, deficits)
    last_step = iterated_ends[-1]
    # A run may reach ε before the end of Phase I or II.
    expected = [min(end, last_step) for end in iterated_ends]
    wrong_phases = _phase_ends(closed) != expected or _phase_ends(exact) != expected
    return Counted(closed.steps, exact.steps != closed.steps, wrong_phases)


def _phase_ends(run: icl.Trajectory) -> list[int]:
    """Return the last step of each phase.

    A phase that the run does not reach counts as ending with the run.
    """
    assert run.phases is not None  # runs of `simulate` have phases
    ends = []
    for phase in run.phases.values():
        if phase is None:
            ends.append(int(run.t[-1]))
        else:
            _, last_step = phase
            ends.append(last_step)
    return ends


@row("step count, proved", OURS, Status.EXACT, "the enclosures, one integer each")
@common.by_proof
def proved_counts(quick: bool) -> Claim:
    """the number of steps is the integer that balls enclose, also where the closed form
    changes its method
    """
    sizes = (4, 20, 50) if quick else range(2, 61)
    proofs = []
    for K, epsilon in itertools.product(sizes, (1e-2, 1e-8)):
        # The closed form changes its method at the step constant c = 27/128 and at
        # ηL²Δ² = K²/16. Here L = Δ = 1, so that c = ηK/(2(K-1)²).
        for edge in (27.0 / 64.0 * (K - 1) ** 2 / K, K**2 / 16.0):
            below = np.nextafter(edge, 0.0)
            above = np.nextafter(edge, math.inf)
            for eta in (below, edge, above):
                run = icl.simulate(1.0, delta=1.0, eta=float(eta), K=K, epsilon=epsilon)
                # One of the saved states is enough: only the proof on the number of
                # steps is used.
                proofs.append(icl.certify(run, states=1).named("steps"))
    # The ball of a number of steps is the range of all integers that it may be. The
    # error is 0 if this range has one integer, which is the number of the run.
    equal_counts = sum(proof.error == 0.0 for proof in proofs)
    widest = max(len(proof.ball) for proof in proofs)
    return Claim.of(
        equal_counts == len(proofs),
        f"{len(proofs)} runs, K = {sizes[0]}..{sizes[-1]}, ηL²Δ² = K²/16 and"
        " c = 27/128 and their neighbours",
        f"{equal_counts} equal; enclosures up to {widest} wide",
    )


@row(bounds.STEP_COUNT, bound="two-sided")
def step_counts(quick: bool) -> Claim:
    """Check the bounds on the number of steps at the saved states of whole runs."""
    constants = [1e-4, 1e-3, 0.1, 1.0, 3.0, 30.0, 1e3]
    if quick:
        constants = [1e-3, 0.1, 3.0, 100.0]
    are_inside = []
    # Widths of the intervals at the ends of the runs, divided by the number of steps.
    widths = []
    for K, c in itertools.product((2, 3, 20, 1000), constants):
        # Choose γ so that η = 1 has the step constant c = ηγK/(K-1)².
        gamma = c * (K - 1.0) ** 2 / K
        L = math.sqrt(2 * gamma)  # γ = L²Δ²/2 with Δ = 1
        run = icl.simulate(L, delta=1.0, eta=1.0, K=K, epsilon=gamma * 1e-9)
        for n, u in zip(run.t.tolist()[1:], run.states[1:], strict=True):
            low, high = regression.step_bounds(K, c, float(u))
            are_inside.append(low <= n <= high)
        # After the loop ``n``, ``low`` and ``high`` are those of the last state.
        width_at_end = high - low
        widths.append(width_at_end / n)
    measured = "inside on all"
    # An interval as wide as the number of steps itself says nothing about this number.
    # Its width is then not shown.
    if max(widths) < 1:
        measured += f"; interval at loss 1e-9 at most {max(widths):.1e} of n"
    grid = (
        f"{len(are_inside)} states, K = 2..1000, c = {constants[0]:g}.."
        f"{constants[-1]:g}"
    )
    return Claim.of(all(are_inside), grid, measured)


@identity(bounds.FLOW, allowed=1e-6)
def flow_solution(quick: bool) -> Errors:
    """Compare SciPy's integration of the flow with the solution by F."""
    sizes = (2, 5, 50) if quick else (2, 3, 5, 20, 50, 400)
    gamma = 2.0
    for K, eta in itertools.product(sizes, (0.1, 4.0)):
        run = icl.descend(
            icl.ExchangeableRisk(K, gamma), eta, steps=10**7, method="flow"
        )
        c = eta * gamma * K / (K - 1.0) ** 2
        # At the first 40 saved times u and t are so small that the absolute error of
        # the integration would be a large relative one. At all later times, compare t
        # with the time that the solution with F takes to reach the attention a.
        late = slice(40, None)
        for t, a in zip(run.t[late].tolist(), run.attention[late], strict=True):
            yield regression.flow_time(float(a), K) / c, t
    return "K = 2..400, t up to 10⁷, DOP853"


@row("Phase I without a logarithm", bound="-> 1")
def phase_one(quick: bool) -> Claim:
    """T_I = K²/(ηγ) (1 + O(ln K / K))"""
    sizes = (10, 100, 1000, 10**4) if quick else (10, 100, 1000, 10**4, 10**5, 10**6)
    eta = 0.01
    L = math.sqrt(2.0)  # γ = L²Δ²/2 = 1
    scaled_times = []
    scaled_errors = []
    for K in sizes:
        run = icl.simulate(L, delta=1.0, eta=eta, K=K, epsilon=1e-3)
        assert run.phases is not None  # runs of `simulate` have phases
        _, end_of_phase_one = run.phases.I
        # T_I ηγ/K², which tends to 1.
        scaled_time = end_of_phase_one * eta / K**2
        scaled_times.append(scaled_time)
        scaled_errors.append(abs(scaled_time - 1) * K / math.log(K))
    largest = max(scaled_errors)
    # In the flow T_I ηγ/K² - 1 is 3 ln K/K to leading order, so that the scaled errors
    # are near 3 for large K. 6 is a generous bound for all K.
    is_bounded = largest < 6
    return Claim.of(
        is_bounded,
        f"K = 10..{sizes[-1]:,}",
        f"T_I ηγ/K² = {listed(scaled_times, '.4f')}; |·- 1| K/ln K <= {largest:.2f}",
    )


@row("Phase I, both regimes", WORDS.format("Prop. 2, Thm 1"), bound="1; 0")
def phase_one_of_both_regimes(quick: bool) -> Claim:
    """a larger L or Δ shortens Phase I and the run, and Phase I is the same in both
    regimes
    """
    K, eta, epsilon = 50, 1e-4, 1e-3
    # Below LΔ = √(16ε(K-1)/K) = 0.125 a run reaches ε before Phase I ends.
    products = np.geomspace(0.2, 30.0, 6 if quick else 20)
    crossover = regression.crossover(epsilon, delta=1.0, K=K)
    scaled_times = []
    totals = []
    differing_counts = 0
    for product in products.tolist():
        run = icl.simulate(product, delta=1.0, eta=eta, K=K, epsilon=epsilon)
        # The same LΔ with a larger Δ must take the same number of steps.
        wider = icl.simulate(product / 8.0, delta=8.0, eta=eta, K=K, epsilon=epsilon)
        # Runs of `simulate` have phases, and these reach ε.
        assert run.phases is not None
        assert run.steps is not None
        _, end_of_phase_one = run.phases.I
        # T₁ ηL²Δ²/K², with LΔ as `product`.
        scaled_times.append(end_of_phase_one * eta * (product / K) ** 2)
        totals.append(run.steps)
        differing_counts += wider.steps != run.steps
    totals_fall = bool(np.all(np.diff(totals) < 0))
    # Phase I is the same in both regimes if these times are equal up to 1 %. At this
    # small η Phase I takes so many steps that rounding their number up changes the
    # times by less than 1 %.
    spread = max(scaled_times) / min(scaled_times)
    return Claim.of(
        totals_fall and differing_counts == 0 and spread < 1.01,
        f"exchangeable tasks in class coordinates, K = {K}, ε = {epsilon:g}, LΔ ="
        f" {products[0]:g}..{products[-1]:g} on both sides of the crossover"
        f" {crossover:.2f}",
        f"T₁ ηL²Δ²/K² = {span(np.array(scaled_times), '.3f')}; totals fall from"
        f" {totals[0]:,} to {totals[-1]:,} steps; runs of one LΔ with other counts:"
        f" {differing_counts}",
        "holds; L and Δ enter through LΔ alone",
    )


@row("total time", bound="50 %; 1 %")
def total_time(quick: bool) -> Claim:
    """T_ε ≈ K²/(ηγ) + (K-1)/(4ηε)"""
    targets = (10.0 ** np.linspace(-9, -1, 5 if quick else 17)).tolist()
    # The largest errors for each K, of the formula and of the time of gradient flow.
    formula_errors = []
    flow_errors = []
    shown = []
    for K in (20, 1000, 10**5):
        errors_or_none = [_time_errors(K, epsilon) for epsilon in targets]
        # Runs that do not reach their target have no errors.
        errors = [error for error in errors_or_none if error is not None]
        largest = max(error.formula for error in errors)
        formula_errors.append(largest)
        flow_errors.append(max(error.flow for error in errors))
        shown.append(f"{largest:.0%} (K = {K:,})")
    formula_error = max(formula_errors)
    flow_error = max(flow_errors)
    # The statement has the leading terms of F, the time of gradient flow (`flow_time`).
    # The terms that it leaves out matter more for few features: 32 % for K = 20. All
    # terms of F leave an error below 0.01 %, as steps of this size are nearly a flow.
    return Claim.of(
        formula_error < 0.5 and flow_error < 0.01,
        "ε/γ = 1e-9..0.1, three K",
        f"off by up to {', '.join(shown)}; with all terms of F by up to"
        f" {flow_error:.2%}",
        f"holds, loose by {formula_error:.0%}",
    )


class TimeErrors(NamedTuple):
    """Relative errors of two predictions of the number of steps of a run.

    ``formula`` is the error of the statement's formula, and ``flow`` the error of the
    time of gradient flow.
    """

    formula: float
    flow: float


def _time_errors(K: int, epsilon: float) -> TimeErrors | None:
    """Return the errors for a run with γ = 1, or None if the run does not reach ε."""
    eta = 0.01
    L = math.sqrt(2.0)  # γ = L²Δ²/2 = 1
    run = icl.simulate(L, delta=1.0, eta=eta, K=K, epsilon=epsilon)
    if not run.converged:
        return None
    attention = 1.0 - common.deficit(K, gamma=1.0, epsilon=epsilon)
    # The flow takes the time (F(a) - F(1/K))/c, with c = ηγK/(K-1)².
    flow = regression.flow_time(attention, K) * (K - 1.0) ** 2 / (eta * K)
    # The statement's formula with γ = 1.
    formula = K**2 / eta + (K - 1) / (4.0 * eta) / epsilon
    steps = float(run.t[-1])
    return TimeErrors(formula=off(formula, steps), flow=off(flow, steps))


@row("regimes", bound="0; -> √2")
def regimes(quick: bool) -> Claim:
    """t ε 4η/(K-1) < 2 at the step t that reaches ε exactly for L > L*;
    L*Δ = √(8εK²/(K-1)) (1 + √(2/K) + ...)
    """
    # First the crossover L*. The number t ε 4η/(K-1) is above 2 if a run reaches ε
    # before the tail, and below 2 if it reaches ε in the tail. So the number must be
    # above 2 at L/L* = 0.5 and 0.9, and below 2 at L/L* = 1.1 and 2.
    # Each case is K, ε and L/L*.
    cases = [*itertools.product((5, 20, 300), (1e-2, 1e-6), (0.5, 0.9, 1.1, 2.0))]
    # The values of t ε 4η/(K-1), divided by 2.
    tail_ratios = np.array([_tail_ratio(*case) for case in cases])
    # Whether L > L*
    is_beyond = np.array([over_crossover > 1.0 for _, _, over_crossover in cases])
    wrong = int(sum((tail_ratios < 1.0) != is_beyond))
    # Then the expansion of L* for many features: the ratio of L* to its leading order,
    # minus 1, must tend to √(2/K).
    sizes = (20, 1000, 10**6)
    over_leading = []
    for K in sizes:
        # The ratio is the same for all ε and Δ; here ε = 1e-3 and Δ = 1.
        leading = regression.crossover(1e-3, delta=1.0, K=K, leading_order=True)
        over_leading.append(regression.crossover(1e-3, delta=1.0, K=K) / leading)
    corrections = (np.array(over_leading) - 1.0) * np.sqrt(sizes)
    error_of_correction = abs(corrections[-1] / math.sqrt(2.0) - 1.0)
    # The next terms of the expansion leave an error of 2 % at K = 10⁶, and the bound is
    # cautious.
    tends_to_limit = error_of_correction < 0.05
    return Claim.of(
        wrong == 0 and tends_to_limit,
        f"{len(cases)} runs iterated at 0.5..2 L*, c = 0.1; K = 20, 10³, 10⁶",
        f"{wrong} disagree (nearest to 2: {np.abs(tail_ratios - 1.0).min():.0%});"
        f" exact/leading L* = {listed(over_leading, '.3f')}; (that - 1) √K ="
        f" {listed(corrections, '.3f')}",
        f"holds; the leading order is off by {over_leading[0] - 1:.0%} at K = 20",
    )


@row(
    "flat at high accuracy",
    "paper, after Thm 2",
    Status.MEASURED,
    "T grows with L, at rates as 1/L²",
)
def flat_at_high_accuracy(quick: bool) -> Claim:
    """for small ε, runs with small L (flat regime) may need fewer steps than runs with
    large L (sharp regime)
    """
    L_values = np.geomspace(0.01, 10.0, 7 if quick else 25)
    epsilons = (1e-6, 1e-9, 1e-12)
    # The numbers of cases in which T falls with L at one learning rate for all L, and
    # in which T grows with L at learning rates proportional to 1/L².
    falling_cases = 0
    growing_cases = 0
    cases = [*itertools.product((10, 100, 1000), epsilons)]
    for K, epsilon in cases:
        # With Δ = 1 the loss at the start is ¼L²(K-1)/K, nearly ¼L². A run whose target
        # ε is above its first loss takes no steps. The L of such a run is left out.
        trained_L = [L for L in L_values.tolist() if epsilon < 0.25 * L**2]
        at_one_rate = [_steps(L, 0.01, K, epsilon) for L in trained_L]
        # Each L gets the same multiple of its guaranteed rate, which falls like 1/L².
        at_own_rates = [_steps(L, 0.01 / L**2, K, epsilon) for L in trained_L]
        falling_cases += int(np.all(np.diff(at_one_rate) <= 0))
        growing_cases += int(np.all(np.diff(at_own_rates) >= 0))
    return Claim.of(
        falling_cases == growing_cases == len(cases),
        f"{len(cases)} pairs of K = 10, 100, 1000 and ε = {listed(epsilons, '.0e')},"
        f" {len(L_values)} values of L = 0.01..10, exact counts; η = 0.01, and 0.01/L²",
        f"at one rate T falls with L in {falling_cases} of {len(cases)} pairs; at"
        f" rates as 1/L² it grows with L in {growing_cases}",
        "holds only if the learning rate is chosen in proportion to 1/L²: at one rate"
        " a larger L is faster at every ε",
    )


def _steps(L: float, eta: float, K: int, epsilon: float) -> float:
    """Return the number of steps to ε for Δ = 1.

    The result is infinite if the number is too large to be counted.
    """
    # The largest count that is allowed here is near the end of the range of int64.
    run = icl.simulate(L, delta=1.0, eta=eta, K=K, epsilon=epsilon, max_steps=2**62)
    return math.inf if run.steps is None else float(run.steps)


def _tail_ratio(K: int, epsilon: float, over_crossover: float) -> float:
    """Return ``t ε 4η/(K-1)`` divided by 2.

    Here t is the step at which a run with L/L* = ``over_crossover`` and Δ = 1 reaches
    ε, by plain iteration. Phase II ends when t times the loss times 4η/(K-1) falls to
    2, so that the run ends in the tail if the result is below 1.
    """
    c = 0.1
    gamma = 0.5 * (over_crossover * regression.crossover(epsilon, delta=1.0, K=K)) ** 2
    (steps,) = common.iterated_steps(K, c, (common.deficit(K, gamma, epsilon),))
    # The learning rate η for which c = ηγK/(K-1)²
    eta = c * (K - 1.0) ** 2 / (K * gamma)
    return steps * epsilon * 4.0 * eta / (K - 1.0) / regression.phases.TAIL_RATIO


class Regimes(NamedTuple):
    """Whether runs are in the sharp regime, by three criteria.

    Each array has an entry for each run.
    """

    paper: NDArray[np.bool_]  # L is above the paper's threshold 1/(Δδ)
    exact: NDArray[np.bool_]  # L is above the exact crossover L*
    counted: NDArray[np.bool_]  # the counted steps end in the tail of the loss

    @property
    def agreement(self) -> float:
        """Share of the runs in the same regime by the paper's threshold and by L*."""
        return float(np.mean(self.paper == self.exact))


def _regimes_of(runs: CountedRuns) -> Regimes:
    """Return the regimes of the runs whose loss is above ε at the start.

    The attribute ``size`` of ``runs`` is LΔ. The regimes depend on L and Δ through this
    product alone, so that each run is taken to have Δ = 1 and L = ``size``. The
    attribute ``imbalance`` is the δ of the paper's threshold 1/(Δδ).
    """
    # ½γ(K-1)/K with γ = L²Δ²/2
    first_loss = 0.25 * runs.size**2 * (runs.K - 1.0) / runs.K
    is_trained = runs.epsilon < first_loss
    size = runs.size[is_trained]
    imbalance = runs.imbalance[is_trained]
    epsilon = runs.epsilon[is_trained]
    K = runs.K[is_trained]
    by_threshold = []
    for L, imbalance_of_run in zip(size.tolist(), imbalance.tolist(), strict=True):
        regime = regression.papers_regime(L, delta=1.0, imbalance=imbalance_of_run)
        by_threshold.append(regime == "sharp")
    by_crossover = []
    for L, epsilon_of_run, K_of_run in zip(
        size.tolist(), epsilon.tolist(), K.tolist(), strict=True
    ):
        crossover = regression.crossover(epsilon_of_run, delta=1.0, K=int(K_of_run))
        by_crossover.append(crossover < L)
    # The run ends in the tail if t ℒ 4η/(K-1), with the loss ℒ = ε at the last step t,
    # is below `TAIL_RATIO`, its value at the end of Phase II.
    ratio_at_end = (
        runs.steps[is_trained] * epsilon * 4.0 * runs.eta[is_trained] / (K - 1.0)
    )
    return Regimes(
        paper=np.array(by_threshold),
        exact=np.array(by_crossover),
        counted=ratio_at_end < regression.phases.TAIL_RATIO,
    )


def _tied(runs: CountedRuns, factor: float) -> CountedRuns:
    """Return the runs with other targets, for which L* is about 1/(Δδ).

    For the target (K-1)/(8K²δ²) the crossover L* is 1/(Δδ) to leading order. Each run
    gets this target times a random number between 1/``factor`` and ``factor``.
    """
    exponents = np.random.default_rng(SEED).uniform(-1.0, 1.0, runs.K.size)
    spread = factor**exponents
    epsilon = spread * (runs.K - 1.0) / (8.0 * runs.K**2 * runs.imbalance**2)
    return counted_runs(runs.size, runs.eta, runs.K, epsilon, runs.imbalance)


@row(
    "regimes, paper's rule",
    WORDS.format("Section 1 of version 1"),
    Status.ORDER,
    "0; above 85 %",
)
def papers_rule(quick: bool) -> Claim:
    """the flat and the sharp regime meet at an L of the order 1/(Δδ)"""
    # Runs with targets that do not depend on δ, and runs with targets within a factor 3
    # or 10 of the target for which the paper's threshold 1/(Δδ) is the crossover L*.
    free = _regimes_of(law_runs())
    near = _regimes_of(_tied(law_runs(), 3.0))
    far = _regimes_of(_tied(law_runs(), 10.0))
    # How many step counts contradict L*.
    wrong = 0
    for compared in (free, near, far):
        wrong += int(np.sum(compared.exact != compared.counted))
    imbalances = law_runs().imbalance.tolist()
    switched = sum(_switches_at_one(imbalance) for imbalance in imbalances)
    # The rule holds near ε = (K-1)/(8K²δ²) if most runs agree. Here 95 % or more do,
    # and the bound of 85 % is cautious.
    holds_near = min(near.agreement, far.agreement) > 0.85
    return Claim.of(
        wrong == 0 and switched == DRAWS and holds_near,
        f"{DRAWS} runs of the law (seed {SEED}), the constant of the order being 1;"
        " against our definition of the regimes, by the exact crossover L*, and L*"
        " against step counts; ε drawn without regard to δ, and within a factor 3 or"
        " 10 of (K-1)/(8K²δ²)",
        f"same regime in {free.agreement:.0%}, {near.agreement:.0%} and"
        f" {far.agreement:.0%} of {len(free.exact)}, {len(near.exact)} and"
        f" {len(far.exact)} runs; {wrong} step counts say otherwise than L*; changes at"
        f" LΔδ = 1 in {switched} of {DRAWS}",
        "holds only for ε of the order 1/(8Kδ²), where"
        f" {near.agreement:.0%} (within a factor 3) and {far.agreement:.0%} (10) of the"
        f" runs have the same regime; the {free.agreement:.0%} for ε that do not depend"
        " on δ is a property of the ranges that we draw from",
    )


def _switches_at_one(imbalance: float) -> bool:
    """Whether the paper's regime changes at LΔδ = 1, for Δ = 0.7.

    ``imbalance`` is δ.
    """
    delta = 0.7  # any Δ but 1, which would hide a missing factor
    product_over_L = delta * imbalance  # LΔδ = 1 at L = 1/(Δδ)
    below = regression.papers_regime((1 - 1e-9) / product_over_L, delta, imbalance)
    above = regression.papers_regime((1 + 1e-9) / product_over_L, delta, imbalance)
    return below == "flat" and above == "sharp"


@row("monotone for every η", OURS, Status.CERTIFIED, "0")
def monotone(quick: bool) -> Claim:
    """for exchangeable tasks without noise the loss never increases"""
    relative_rises = []
    for K, eta, N in itertools.product(
        (2, 20, 500), (1e-6, 1.0, 1e3, 1e9), (math.inf, 1.0, 40.0)
    ):
        run = icl.descend(
            icl.ExchangeableRisk(K, gamma=2.0, N=N), eta, steps=20 if quick else 60
        )
        relative_rises.append(common.rise(run) / run.loss[0])
    largest = max(relative_rises)
    grid = f"{len(relative_rises)} runs, η = 1e-6..1e9, N = 1, 40, inf"
    return Claim.of(
        largest <= RISE_BY_ROUNDING,
        grid,
        f"largest rise {largest:.0e} of the initial loss",
    )


@identity("one dynamics")
def rescaling(quick: bool) -> Errors:
    """linear, Fourier, quadratic, Gaussian and finite exchangeable tasks: same run in
    time γ t
    """
    steps = 50 if quick else 300
    standard = icl.descend(icl.ExchangeableRisk(6, gamma=1.0), eta=1.0, steps=steps)
    # γ is the variogram of the task. `rescaled` trains at the rate 1/γ, and divides the
    # losses by γ.
    for law, features in common.equivalent(6).values():
        yield common.rescaled(law, features, steps), standard.loss
    return "five families, K = 6, K x K scores"


@identity("embedding coordinates")
def embedding(quick: bool) -> Errors:
    """descent on Q is descent on one number at the rate η Δ⁴/4"""
    steps = 50 if quick else 200
    L, eta = 2.0, 0.3
    for delta in (0.5, 1.7):
        features = icl.Features.simplex(5, delta)
        over_scores = icl.PopulationRisk(features, tasks.Exchangeable(L))
        over_q = icl.in_coordinates(over_scores, "embedding", features.vectors)
        run = icl.descend(over_q, eta, steps=steps)
        # `simulate` reduces this problem to the number u, at the rate η Δ⁴/4.
        reduced = icl.simulate(
            L,
            delta,
            eta,
            K=5,
            coordinates="embedding",
            method="exact",
            epsilon=1e-9,
            max_steps=steps,
        )
        yield run.loss, [float(reduced.at(int(t)).loss) for t in run.t]
    return "simplex, K = 5, Δ = 0.5, 1.7"


@row("tail law, N = inf", bound="1; 1")
def tail_law(quick: bool) -> Claim:
    """t L(t) -> (K-1)/(4η) and t ℓ_k(t) -> (K-1)/(4ηKp_k) for every non-degenerate
    task and every p
    """
    steps = 10**8 if quick else 10**10
    risks = [risk for _, risk in random_cases(2 if quick else 8, range(3, 7))]
    risks.append(
        icl.PopulationRisk(icl.Features.orthonormal(4), tasks.RandomCosine(2.0))
    )
    ratios = []
    query_ratios = []
    for risk in risks:
        run = icl.descend(risk, eta=1.0, steps=steps, method="flow")
        ratios.append(_over_tail_law(run, risk.features.K))
        # For each query k, t ℓ_k tends to a limit.
        last_query_losses = run.observed["loss_per_query"][-1]
        limits = np.asarray(regression.tails.tail_limits(risk, eta=1.0))
        query_ratios += (run.t[-1] * last_query_losses / limits).tolist()
    # Both bounds are cautious: at t = 10¹⁰ the errors are 0.3 % and 0.6 %.
    return Claim.of(
        off(ratios, 1.0) < 0.02 and off(query_ratios, 1.0) < 0.05,
        f"{len(ratios)} random kernels and cosines, unequal p, t ="
        f" {'10⁸' if quick else '10¹⁰'}",
        f"t L 4η/(K-1) = {span(ratios, '.4f')}; t ℓ_k over its limit"
        f" {span(query_ratios, '.4f')}",
    )


@row("tail law, finite N", bound="1")
def tail_law_finite(quick: bool) -> Claim:
    """η t p_k (ℓ_k - inf ℓ_k) tends to the squared norm of the smallest scores whose
    levels keep their margins
    """
    time = 1e6 if quick else 1e9
    ratios = []
    for K, N in ((3, 5), (10, 60)):
        run = icl.descend(
            icl.ExchangeableRisk(K, gamma=2.0, N=N), eta=1.0, steps=10**8, method="flow"
        )
        ratios.append(_over_tail_law(run, K))
    grid = (
        "exchangeable K = 3, 10, at t = 1e8; three features of which one hides another,"
        " without noise and with"
    )
    problems = {"nested": nested_example(), "with noise": nested_example(noise=0.7)}
    if not quick:
        # For a query at an end of a line, whose feature is not in the prompt, the best
        # answer is the value of the nearest feature in the prompt.
        points = icl.Features([[0.0], [1.0], [2.2], [3.5]])
        problems["on a line"] = icl.PopulationRisk(points, tasks.Linear(1.0), N=3)
        grid += "; four on a line"
    shown = []
    for name, risk in problems.items():
        tails = _tails(risk, time)
        ratios += tails.ratios()
        shown.append(f"{name} {tails.in_words()}")
    # The bound is cautious: at t = 10⁹ the largest error is 0.1 %.
    return Claim.of(
        off(ratios, 1.0) < 0.01,
        grid,
        f"t = {time:.0e}, over (K-1)/(4ηK), by query, computed in brackets:"
        f" {'; '.join(shown)}; all over their limits {span(ratios, '.4f')}",
    )


class Tails(NamedTuple):
    """The tail ``t p_k (ℓ_k - inf ℓ_k)`` of each query, in units of (K-1)/(4ηK).

    Attributes
    ----------
    measured : numpy.ndarray, (K,)
        The tails at one time t.
    limits : numpy.ndarray, (K,)
        Their limits for t -> ∞, from the theory.
    """

    measured: Array
    limits: Array

    def ratios(self) -> list[float]:
        """Return measured tails, divided by their limits.

        If a limit is 0, there is no such ratio. The entry is then 1 plus the measured
        tail, which also tends to 1.
        """
        ratios = []
        for measured, limit in zip(self.measured, self.limits, strict=True):
            if limit == 0.0:
                ratios.append(1.0 + measured)
            else:
                ratios.append(measured / limit)
        return ratios

    def in_words(self) -> str:
        """Return the measured tails in words, with their limits in brackets."""
        pairs = zip(self.measured, self.limits, strict=True)
        return ", ".join(f"{measured:.2f} ({limit:.4g})" for measured, limit in pairs)


def _over_tail_law(run: icl.Trajectory, K: int) -> float:
    """Return ``t (ℒ - ℒ_∞)`` at the end of a run at η = 1, divided by (K-1)/(4η).

    Here ℒ is the loss, ℒ_∞ its floor, and (K-1)/(4η) the limit by the tail law.
    """
    return float(run.t[-1] * (run.loss[-1] - run.floor) * 4.0 / (K - 1.0))


def _tails(risk: icl.PopulationRisk, time: float) -> Tails:
    """Measure the tails of all queries at a time, and compute their limits."""
    unit = (risk.features.K - 1.0) / (4.0 * risk.features.K)  # (K-1)/(4ηK) for η = 1
    # The limits of η t p_k (ℓ_k - inf ℓ_k)
    limits = regression.tails.query_constants(risk)
    assert limits is not None  # they are known for the problems of this row
    return Tails(measured=_tails_at(risk, time) / unit, limits=limits / unit)


def _tails_at(risk: icl.PopulationRisk, time: float) -> Array:
    """Return ``t p_k (ℓ_k - inf ℓ_k)`` at a time t of the flow, (K,).

    The loss approaches its infimum as some scores of a query drift apart. So the
    infimum is computed as the loss at scores that have been moved far apart, in the
    order in which they drift.
    """
    run = icl.descend(risk, eta=1.0, steps=int(time), method="flow")
    earlier_scores = run.at(int(time / 100.0)).params
    scores = run.params
    separated = run.params.copy()
    # ``order`` has the features from the highest score of query k to the lowest.
    for k, order in enumerate(np.argsort(-scores, axis=0).T):
        # From t/100 to t a score that drifts like -b ln t falls by b ln 100 = 4.6 b. If
        # two scores next to each other in this order drift apart, their values of b
        # differ by at least ½, so that their falls differ by 2.3 or more. If the two
        # scores stay together, their falls differ by 0.01 or less. Any limit between
        # 0.01 and 2.3 would do.
        falls = earlier_scores[order, k] - scores[order, k]
        drifts_apart = np.diff(falls) > 0.7
        # A score that is lower by 60 has an attention that is smaller by the factor
        # e^-60, which is below rounding.
        separated[order[1:], k] -= 60.0 * np.cumsum(drifts_apart)
    # `direct` sums the losses of the queries over all prompts and functions, (K,).
    excess = theorems.direct(risk, scores).loss - theorems.direct(risk, separated).loss
    return np.asarray(time * risk.features.probs * excess)


@row("tail law, embeddings", bound="1")
def tail_law_embeddings(quick: bool) -> Claim:
    """η t L -> min ‖Q‖² subject to (x_k - x_m)ᵀ Q x_k >= ½ for all k ≠ m, N = ∞"""
    steps = 10**8 if quick else 10**12
    # A draw has a ratio only if it can meet all margins. In a quick audit one of the
    # two draws can meet them.
    seeds = (1, 2) if quick else range(12)
    ratios = []
    for seed in seeds:
        ratio = _embedded_ratio(_random_problem(seed), steps)
        if ratio is not None:
            ratios.append(ratio)
    # Negatively correlated errors cancel in part, and the law then does not hold. In
    # `correlated_example` η t L ends 6 % above the minimum, and for all random draws
    # within 1 % of the minimum. The bound of 3 % on the example lies between.
    correlated = _embedded_ratio(correlated_example(), steps)
    shown = "margins that cannot be met" if correlated is None else f"{correlated:.4f}"
    return Claim.of(
        off(ratios, 1.0) < 0.01 and correlated is not None and correlated > 1.03,
        f"{len(seeds)} draws of random features, K, d = 3..5, of which {len(ratios)}"
        " can meet all margins; three features with errors of negative correlation; t ="
        f" {steps:.0e}",
        f"{span(ratios, '.4f')} of the minimum; with negative correlation {shown}",
        "holds only where errors are not negatively correlated",
    )


def _random_problem(seed: int) -> icl.PopulationRisk:
    """Return a risk of tasks with independent values at random features.

    The number K of the features and their dimension d are from 3 to 5.
    """
    rng = np.random.default_rng(seed)
    K, d = rng.integers(3, 6, 2).tolist()
    vectors = rng.normal(size=(K, d))
    probs = rng.dirichlet(np.full(K, common.DIRICHLET))
    law = tasks.KernelTask(np.eye(K))
    return icl.PopulationRisk(icl.Features(vectors, probs), law)


def _embedded_ratio(risk: icl.PopulationRisk, steps: int) -> float | None:
    """Return ``η t ℒ`` at the end of a flow on Q, divided by its limit.

    Here ℒ is the loss, and Q the matrix of keys and queries. The limit is the constant
    of the tail law. The result is None if the margins cannot all be met. The rate η is
    1.
    """
    over_q = icl.in_coordinates(risk, "embedding", risk.features.vectors)
    # Compute the constant even if it is not proved to be the limit, for example because
    # errors are negatively correlated.
    constant = regression.tail_constant(over_q, proved=False)
    if constant is None:
        return None
    run = icl.descend(over_q, eta=1.0, steps=steps, method="flow")
    return float(run.t[-1] * run.loss[-1]) / constant


def correlated_example() -> icl.PopulationRisk:
    """Return a risk on three features in the plane with negatively correlated errors.

    For a query of the first feature, k = 0, the errors f_m - f_k at the two other
    features m have the correlation -0.98, so that they cancel in part. The numbers were
    drawn at random.
    """
    points = np.array(
        [
            [-1.00699571, 1.6023286],
            [1.92172117, -0.01622114],
            [-0.93665946, -0.59087902],
        ]
    )
    values = np.array(
        [[0.00617841, 0.3115922], [-0.86930945, -0.64843364], [2.18176492, 1.89007088]]
    )
    return icl.PopulationRisk(icl.Features(points), tasks.KernelTask(values @ values.T))


def nested_example(noise: float = 0.0) -> icl.PopulationRisk:
    """Return a risk on three features that lie nearly on a line.

    If a prompt lacks the first or the third feature, the best answer to a query of the
    missing feature is the value of the second feature alone.
    """
    points = np.array([[0.0, 0.0], [1.0, 0.3], [3.0, 0.0]])
    return icl.PopulationRisk(
        icl.Features(points, [0.3, 0.3, 0.4]),
        tasks.KernelTask(points @ points.T),
        N=4,
        noise=noise,
    )


# The groups of six features. Features of the same group are exchangeable.
GROUPS = np.array([0, 1, 1, 1, 2, 2])


class GroupedRisks(NamedTuple):
    """The same problem as a risk over groups, and as a risk over single features."""

    over_groups: icl.SymmetricRisk
    over_features: icl.PopulationRisk


def _grouped(N: float, noise: float) -> GroupedRisks:
    """Return risks of a problem with the features of `GROUPS`.

    The value of a feature is a random value of its group plus an independent value of
    its own, whose variance depends on the group.
    """
    root = np.random.default_rng(5).normal(size=(3, 3))
    between_groups = root @ root.T  # second moments of the values of the groups
    own_variance = np.array([0.5, 1.0, 2.0])
    kernel = between_groups[np.ix_(GROUPS, GROUPS)] + np.diag(own_variance[GROUPS])
    probs = np.array([0.4, 0.12, 0.12])[GROUPS]  # their sum is 1
    features = icl.Features.simplex(6, delta=1.0, probs=probs)
    law = tasks.KernelTask(kernel)
    return GroupedRisks(
        over_groups=icl.SymmetricRisk.of(features, law, GROUPS, N, noise),
        over_features=icl.PopulationRisk(features, law, N, noise),
    )


def _risks() -> list[icl.Risk]:
    """Return a risk of every kind.

    The numbers are chosen only to be without symmetries: unequal frequencies, and short
    and infinitely long prompts, with label noise and without.
    """
    # Loaded here, because no other row needs it.
    from icl_theory.regression.sampled.counts import CountedRisk

    features = icl.Features.random(
        4, d=3, delta=0.7, seed=2, probs=[0.4, 0.3, 0.2, 0.1]
    )
    law = tasks.Quadratic(1.5)
    # Arguments of a trainer: N = 7 tokens, 40 prompts a step, and the seed 0.
    sampled = (features, law, 7, 40, 0)
    over_scores = icl.PopulationRisk(features, law)
    # In order: risks over all scores S_mk, over groups, over the one number u, over
    # other coordinates, on Gaussian inputs, and trainers on sampled prompts.
    return [
        random_risk(seed=0, K=4),
        random_risk(seed=1, K=4, N=5.0, noise=0.4),
        icl.PopulationRisk(features, tasks.Linear(1.5)),
        _grouped(N=math.inf, noise=0.0).over_groups,
        _grouped(N=5.0, noise=0.4).over_groups,
        icl.ExchangeableRisk(6, gamma=2.0),
        icl.ExchangeableRisk(6, gamma=2.0, N=5, noise=0.4),
        icl.in_coordinates(over_scores, "embedding", features.vectors),
        icl.in_coordinates(
            over_scores, "factored", features.vectors, rank=2, scale=1.0
        ),
        icl.GaussianRisk(regression.QuadraticLaw(d=3, sigma_a=0.7, sigma_b=1.1)),
        icl.SampledRisk(*sampled, noise=0.3),
        icl.SampledRisk(*sampled, noise=0.3, token_noise=0.2),
        regression.SampledGaussianRisk(
            regression.QuadraticLaw(d=3, sigma_a=0.7, sigma_b=1.1), 7, 40, 0
        ),
        CountedRisk(*sampled, noise=0.3),
        CountedRisk(*sampled, noise=0.3, every_query=False),
    ]


@identity("derivatives", OURS, 1e-8)
def derivatives(quick: bool) -> Errors:
    """gradients and Hessian products are the derivatives of losses and gradients"""
    risks = _risks()
    draws = 1 if quick else 5
    for seed, risk in enumerate(risks):
        rng = np.random.default_rng(seed)
        shape = np.shape(risk.initial)
        for _ in range(draws):
            params = risk.initial + rng.normal(size=shape)
            direction = rng.normal(size=shape)
            direction /= np.linalg.norm(direction)
            gradient = risk.gradient(params)
            slope = np.sum(gradient * direction)
            # The slope by differences against the slope by the gradient. The norm of
            # the gradient is the unit, as the slope itself may be near zero.
            error = theorems.differences(risk.loss, params, direction) - slope
            yield abs(float(error)) / float(np.linalg.norm(gradient))
            # Sampled risks compute Hessian products as differences of gradients, so
            # that a comparison with differences would say nothing.
            if not risk.stochastic:
                expected = theorems.differences(risk.gradient, params, direction)
                product = risk.hessian_product(params, direction)
                yield np.linalg.norm(product - expected) / np.linalg.norm(expected)
    return (
        f"{len(risks)} risks of every kind, trainers at fixed prompts, {draws} random"
        " directions each, sixth-order differences"
    )


@identity("reductions")
def reductions(quick: bool) -> Errors:
    """groups and the one number u have the loss, the attention and the step of all
    single scores
    """
    cases = [(math.inf, 0.0), (2.0, 0.0), (5.0, 0.4), (40.0, 0.4)]
    if quick:
        cases = [(math.inf, 0.0), (5.0, 0.4)]
    compared_risks = []
    for N, noise in cases:
        compared_risks += _reductions(N, noise)
    for seed, (reduced, full, group) in enumerate(compared_risks):
        params = np.random.default_rng(seed).normal(size=np.shape(reduced.initial))
        scores = reduced.scores(params)  # all K² scores, (K, K)
        yield reduced.loss(params), full.loss(scores)

        # A step of all scores, and the step of all scores that follows from a step of
        # the reduced parameters. A reduced gradient is divided by the metric, because a
        # reduced parameter stands for several scores.
        step = -full.gradient(scores)
        params_after_step = params - reduced.gradient(params) / reduced.metric
        step_of_reduced = reduced.scores(params_after_step) - scores
        yield apart(step_of_reduced, step) / np.max(np.abs(step))

        # The attention on the query's own feature, for each group or the single one.
        attention = np.atleast_1d(reduced.observe(params)["attention"])
        yield attention[group], np.diagonal(full.attention(scores))
    return (
        f"{len(compared_risks)} risks of six features: three groups of a random kernel"
        " with unequal p, and the exchangeable class;"
        f" N = {'5' if quick else '2, 5, 40'}, inf, σ = 0, 0.4"
    )


class Reduction(NamedTuple):
    """A risk over fewer numbers, and the risk over all scores that it stands for.

    ``group`` has the group of each feature, (K,), counted from 0.
    """

    reduced: Any
    full: icl.PopulationRisk
    group: NDArray[Any]


def _reductions(N: float, noise: float) -> list[Reduction]:
    """Return a reduction to groups of features, and one to the gap u of scores."""
    grouped = _grouped(N, noise)
    features = icl.Features.simplex(6, delta=1.0)
    exchangeable = icl.PopulationRisk(features, tasks.Exchangeable(2.0), N, noise)
    one_group = np.zeros_like(GROUPS)
    return [
        Reduction(grouped.over_groups, grouped.over_features, GROUPS),
        Reduction(
            icl.ExchangeableRisk(6, gamma=2.0, N=N, noise=noise),
            exchangeable,
            one_group,
        ),
    ]


@row("skipped steps", bound="1e-7; 0")
def skipped_steps(quick: bool) -> Claim:
    """method="fast" agrees with single steps: in the states to 1e-7 and within its
    estimate of the error, and exactly in the numbers of steps
    """
    risks: list[icl.Risk] = [
        random_risk(seed=3, K=3),
        icl.ExchangeableRisk(5, gamma=2.0, N=20, noise=0.3),
    ]
    if not quick:
        risks += [_grouped(N=math.inf, noise=0.0).over_groups, random_risk(seed=4, K=5)]
    steps = 3000 if quick else 8000
    results = [_skipped(risk, steps) for risk in risks]
    error = max(result.error for result in results)
    is_within = all(result.is_within for result in results)
    wrong_counts = sum(result.wrong_count for result in results)
    return Claim.of(
        error <= 1e-7 and is_within and not wrong_counts,
        f"{len(results)} risks, single features, groups and one number, η = 0.1,"
        f" {steps:,} steps, every one taken",
        f"scores apart by less than {decade(error)},"
        f" {'within' if is_within else 'beyond'} the estimate; {wrong_counts} of"
        f" {len(results)} counts differ",
    )


class Skipped(NamedTuple):
    """How a run that skips steps compares with a run that takes every step.

    Attributes
    ----------
    error : float
        Largest difference of the states.
    is_within : bool
        Whether the error is within the run's own estimate.
    wrong_count : bool
        Whether the two take different numbers of steps to the same loss.
    """

    error: float
    is_within: bool
    wrong_count: bool


def _skipped(risk: icl.Risk, steps: int) -> Skipped:
    """Compare a run that skips steps with one that takes every step, at η = 0.1."""
    single = icl.descend(risk, eta=0.1, steps=steps, method="exact")
    fast = icl.descend(risk, eta=0.1, steps=steps, method="fast")
    error = apart(fast.states, single.states)
    is_within = fast.states_error is not None and error <= fast.states_error
    # A target that the run reaches on its way: any loss between the last and the first.
    epsilon = float(single.loss[-1] * 0.3 + single.loss[0] * 0.7)
    single_count = icl.descend(
        risk, eta=0.1, epsilon=epsilon, steps=steps, method="exact"
    )
    fast_count = icl.descend(risk, eta=0.1, epsilon=epsilon, steps=steps, method="fast")
    return Skipped(error, is_within, single_count.steps != fast_count.steps)


@row("laws against samples", OURS, Status.EXACT)
def laws(quick: bool) -> Claim:
    """½ E(f_m - f_j)² of every task family, from formulas and factors; tokens, queries
    and noise of the trainer
    """
    count = 10_000 if quick else 100_000
    false_alarm = 1e-3
    task_laws = _laws()
    features = icl.Features.random(
        4, d=3, delta=0.8, seed=1, probs=[0.4, 0.3, 0.2, 0.1]
    )
    equally_likely = icl.Features(features.vectors)
    # Distances of sample means from their expectations, in standard errors.
    z_of_means = []
    for seed, law in enumerate(task_laws):
        rng = np.random.default_rng(seed)
        z_of_means.append(_z_of_functions(law, features, rng, count))
    z_of_means.append(_z_of_prompts(equally_likely, count, seed=0))
    z_of_means.append(_z_of_prompts(features, count, seed=1))
    z = np.concatenate(z_of_means)
    # The limit of |z|. If all laws are right, the probability that any mean exceeds it
    # is at most `false_alarm`: each mean, on either side, gets an equal share of it.
    limit = -float(ndtri(0.5 * false_alarm / len(z)))
    return Claim.of(
        z.max() <= limit,
        f"{len(task_laws)} laws, {count:,} functions each; {count:,} tokens of prompts"
        " with equal p and unequal p, σ = 0.5",
        f"largest |z| of {len(z)} means {z.max():.1f}",
        bound=f"{limit:.1f} (a false alarm in one of {1 / false_alarm:,.0f} seeds)",
    )


def _laws() -> list[tasks.Task]:
    """Return a law of every family of tasks."""
    root = np.random.default_rng(3).normal(size=(4, 4))
    return [
        tasks.Exchangeable(1.5),
        tasks.Linear(1.5),
        tasks.Quadratic(1.5),
        tasks.RandomCosine(1.5),
        tasks.RandomCosine(1.5, "frequency"),
        tasks.RandomFourier(1.5, length_scale=0.8),
        tasks.Halfspace(1.5),
        tasks.KernelTask(root @ root.T),
        tasks.FiniteTask(root, [0.4, 0.3, 0.2, 0.1]),
    ]


def _z_of_functions(
    law: tasks.Task, features: icl.Features, rng: np.random.Generator, count: int
) -> Array:
    """Compare the means of ½ (f_m - f_j)² with the variogram, and with the factor.

    The means are over ``count`` drawn functions, for each pair of features. The factor
    of a law has a row φ_m for each feature, and ½ ‖φ_m - φ_j‖² is the variogram. Return
    the distances from both in standard errors.
    """
    first, second = np.triu_indices(features.K, 1)
    values = law.sample(features, rng, count)
    half_squares = 0.5 * (values[:, first] - values[:, second]) ** 2
    variogram = law.variogram(features)[first, second]
    factor = law.factor(features)
    from_factor = 0.5 * np.sum((factor[first] - factor[second]) ** 2, axis=1)
    return np.concatenate(
        [deviations(half_squares, variogram), deviations(half_squares, from_factor)]
    )


def _z_of_prompts(features: icl.Features, count: int, seed: int) -> Array:
    """Compare label noise, and frequencies of tokens and queries, with expectations.

    The prompts have ``count`` tokens together. Return the distances in standard errors.
    """
    N = 10
    label = 2.0
    sigma = 0.5
    # All features have the same label, so that a drawn label minus it is the noise.
    constant = tasks.FiniteTask(np.full((1, features.K), label))
    trainer = icl.SampledRisk(
        features, constant, N, count // N, seed, noise=sigma, token_noise=0.0
    )
    prompts = trainer.prompts()
    noise = (prompts.label - label).ravel()
    moments = np.column_stack([noise, noise**2])
    # Whether each token, and each query, has the feature of a column.
    is_token = prompts.token.ravel()[:, None] == np.arange(features.K)
    is_query = prompts.query[:, None] == np.arange(features.K)
    return np.concatenate(
        [
            deviations(moments, np.array([0.0, sigma**2])),
            deviations(is_token.astype(float), features.probs),
            deviations(is_query.astype(float), features.probs),
        ]
    )


@row("stable learning rates", OURS, Status.CERTIFIED, "1, attained to 1e-8; 0")
def stable_rates(quick: bool) -> Claim:
    """λ_max(∇²L) <= κ (max Γ + σ² [N < ∞])/K, with equality for two features; descent
    at the reciprocal of this bound never raises the loss; near a minimum descent
    converges for η < 2/λ_max, and leaves it for larger η
    """
    attained = _largest_curvature() / float(
        regression.curvature_bound(variogram=2.0, K=2)
    )
    count = 4 if quick else 40
    # Largest curvatures divided by their bounds, and rises of the loss divided by the
    # initial loss.
    curvature_ratios = []
    relative_rises = []
    prompt_lengths = (math.inf, 4.0)
    noises = (0.0, 0.0, 0.5, 0.5)  # each length comes without noise and with noise
    for seed, risk in random_cases(count, range(3, 6), prompt_lengths, noises):
        at_bound = _at_bound(risk, seed)
        curvature_ratios.append(at_bound.curvature_ratio)
        relative_rises.append(at_bound.relative_rise)
    largest_ratio = max(curvature_ratios)
    largest_rise = max(relative_rises)
    # At 0.98 and 1.02 times the limit 2/λ_max the gradient changes by about 4 % in a
    # step. So many steps show clearly whether it grows or shrinks.
    steps = 150 if quick else 300
    growth_below = _growth_at_minimum(0.98, steps)
    growth_above = _growth_at_minimum(1.02, steps)
    # The search finds the scores of the largest curvature up to its tolerance, and the
    # largest curvature itself up to the square of the tolerance.
    is_attained = abs(attained - 1.0) < 1e-8
    shrinks_only_below = growth_below < 1.0 < growth_above
    return Claim.of(
        is_attained
        and largest_ratio <= 1.0
        and largest_rise <= RISE_BY_ROUNDING
        and shrinks_only_below,
        f"two features by search, with sums over functions; {count} random kernels, p,"
        " scores, N = 4, inf, σ = 0, 0.5; a minimum of three equidistant features,"
        " N = 6, σ = 0.5, plain iteration at 0.98 and 1.02 times 2/λ_max",
        f"two features: λ_max over the bound {attained:.9f}; random ones at most"
        f" {largest_ratio:.2f}; largest rise {largest_rise:.0e} of the initial"
        f" loss; the gradient {'shrinks' if growth_below < 1 else 'grows'} at 0.98,"
        f" {'grows' if growth_above > 1 else 'shrinks'} at 1.02",
    )


class AtBound(NamedTuple):
    """How a risk compares with the bound on its curvature.

    Attributes
    ----------
    curvature_ratio : float
        The largest curvature at random scores, divided by its bound.
    relative_rise : float
        The largest rise of the loss in descent at the guaranteed rate, divided by the
        initial loss.
    """

    curvature_ratio: float
    relative_rise: float


def _at_bound(risk: icl.PopulationRisk, seed: int) -> AtBound:
    """Measure the curvature at random scores, and descend at the guaranteed rate."""
    # In the bound, 1/max p takes the place of K if features are not equally frequent.
    effective_K = 1.0 / float(risk.features.probs.max())
    gamma = float(risk.task.variogram(risk.features).max())
    bound = float(
        regression.curvature_bound(gamma, effective_K, noise=risk.noise, N=risk.N)
    )
    rate = float(regression.stable_rate(gamma, effective_K, noise=risk.noise, N=risk.N))
    # `sharpness` is the largest eigenvalue of the Hessian.
    curvature = risk.sharpness(random_scores(seed, risk.features.K, size=1.0))
    run = icl.descend(risk, rate, steps=30)
    return AtBound(curvature / bound, common.rise(run) / float(run.loss[0]))


def _largest_curvature() -> float:
    """Find the largest curvature of the loss of two features, for γ = 2 and N = ∞.

    The losses are summed over functions, which does not use the formula of the risk.
    """
    # The module loads slowly, and a list of the rows does not need it.
    from scipy.optimize import minimize_scalar

    risk = icl.PopulationRisk(
        icl.Features.simplex(2, delta=1.0), tasks.Exchangeable(2.0)
    )

    def slope(scores: Array) -> float:
        """Return the derivative of ℓ₀ with respect to S₀₀."""
        return float(theorems.direct(risk, scores).slope[0, 0])

    def negative_curvature(x: float) -> float:
        """Return minus the largest curvature, ℓ₀''(x), at the scores S = xI."""
        # The loss of query k is a function ℓ_k of the one number x = S_kk - S_mk. Along
        # the direction (1, -1)/√2 of its two scores the second derivative is 2 ℓ_k''.
        # With p_k = ½, the largest curvature of the loss is ℓ_k''. At S = xI the slope
        # ∂ℓ₀/∂S₀₀ is ℓ₀'(x), and its difference along I, which changes x, is ℓ₀''(x).
        return -float(theorems.differences(slope, x * np.eye(2), np.eye(2)))

    # The curvature is largest near x = ½, and the bounds need only contain this peak:
    # the curvature is negative below x = -1, and at x = 3 it is 5 % of the largest one.
    minimum = minimize_scalar(
        negative_curvature,
        bounds=(-3.0, 3.0),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return -float(minimum.fun)


def _growth_at_minimum(share: float, steps: int) -> float:
    """Return the factor by which the gradient grows in ``steps`` steps near a minimum.

    The learning rate is ``share`` times the stability limit 2/λ_max.
    """
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, delta=1.0), tasks.Linear(2.0), N=6, noise=0.5
    )
    stable = icl.largest_stable_eta(risk)
    minimum = stable.params
    # This start is so near that the gradient is linear in the distance from the
    # minimum, and so far that the gradient is well above its rounding.
    near = minimum + 1e-7 * np.random.default_rng(0).normal(size=(3, 3))
    last = common.plain_descent(risk, near, share * stable.eta, steps)
    first_norm = np.linalg.norm(risk.gradient(near))
    return float(np.linalg.norm(risk.gradient(last)) / first_norm)
