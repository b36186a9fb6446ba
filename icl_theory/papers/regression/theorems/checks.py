"""Theorems evaluated on a run: identities, inequalities, and orders of magnitude.

The decorator `stated` takes the name, source, kind and status of a statement, and the
training to which it applies (``scope``). It turns the function below it into a
`Statement`, and the docstring of this function is the statement in words. The function
measures both sides of the statement on one run, or on one set of scores. If the
statement says nothing about this run or these scores, the function raises
`UnstatedError` with the reason; ``require`` raises this error if its condition is
false. Otherwise the function returns ``BoundCheck.of(...)`` with the measured number,
its bound or bounds, whether the statement holds, the slack that is shown, and a note.
`check_bounds` evaluates all statements on one run. If the run was trained on sampled
prompts, it also compares sampled losses and gradients with Lemmas 1 and 2.

Letters: K features v_m have the probabilities p_m and the smallest distance Δ.
Functions f are L-Lipschitz, with f_m = f(v_m). A prompt has N tokens. Of these n_m have
feature m, and y_m is the mean of their labels, whose noise has the standard deviation
σ. The imbalance of the prompts is δ. The score of feature m for a query k is S_mk, and
the loss of this query ℓ_k. Its attention on feature m is a_m, and on its own feature
Attn_k. The mean loss of the queries is ℒ, which some statements write as L. The growth
-∂ℒ/∂S_kk of the query's own score is α_k. The matrix C^(k) has the second moments of
the differences f_m - f_k, and c_k is the least value of its quadratic form over all
non-negative weights of the other features that sum to 1.

In the exchangeable class all pairs of features have the same variogram γ, half of the
mean squared difference of two values. One number then describes the scores: the gap u
between the score of the query's own feature and the other scores, which are all equal.
A step of descent at the learning rate η has the step constant c = ηγK/(K-1)², and F is
the function of ``flow_time`` with c t = F(Attn) - F(1/K) in gradient flow. Phase I ends
at T₁, the first step with Attn >= ½. A run ends at T, the first step with a loss of at
most ε.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

import icl_theory as icl
from icl_theory import engine, regression
from icl_theory._validate import Array, argument_error, instance
from icl_theory.engine.interrupts import load_whole
from icl_theory.engine.scope import DESCENT, DESCENT_OR_FLOW, ONLY_FLOW
from icl_theory.papers.regression import theorems
from icl_theory.papers.regression.theorems.orderwise import STATEMENTS
from icl_theory.regression import tasks
from icl_theory.regression.closed.flow import flow_difference
from icl_theory.regression.risks.exchangeable import expanded
from icl_theory.statements.statement import (
    OURS,
    BoundCheck,
    BoundChecks,
    NotCoveredError,
    Statement,
    Status,
    UnstatedError,
    require,
    stated,
)

# Parts of SciPy that statements need. `check_bounds` loads them before it begins.
LAZY_SCIPY = (
    "scipy.linalg",
    "scipy.optimize",
    "scipy.spatial.distance",
)

# Up to this number of features, a run over the single number u is expanded to its K x K
# scores, and single steps and tails of queries are checked. With more features these
# checks would take long.
LARGEST = 200
# Up to this number of features the envelope is checked for finite N. The check then
# makes a risk for each query, which would take long with more features.
MOST_FEATURES_OF_ENVELOPE = 30
# How many Lipschitz functions are drawn to check the bound on predictions. The worst
# function is checked in addition, so any number would do.
DRAWN_FUNCTIONS = 100
# Two computations of a loss by different sums must agree up to this relative error.
# This bound is generous: the audit finds errors far below it at scores of moderate
# size.
SAME_LOSS = 1e-7
# A slope by a difference quotient may be off by the share `SLOPE_ERROR` of the slope,
# and by the rounding of the losses. `SLOPE_ERROR` is generous, because the quotients
# are of sixth order. If the rounding is more than the share `LARGEST_SLOPE_ROUNDING` of
# the slope, the statement is not checked.
SLOPE_ERROR = 1e-6
LARGEST_SLOPE_ROUNDING = 1e-3
# The growth of 1/ℓ_k in a step is used if ℓ_k falls by at least the share
# `SMALLEST_FALL` of its value, so that rounding leaves seven digits of the growth. A
# growth or a number of steps that is computed from losses may be off by the share
# `GROWTH_ERROR`.
SMALLEST_FALL = 1e-8
GROWTH_ERROR = 1e-6
# Relative slack for rounding in comparisons of sums; generous.
ROUNDING = 1e-9
# Relative slack for bounds in closed form, whose rounding is smaller.
CLOSED_FORM_ROUNDING = 1e-12
# The rounding of a loss, relative to this loss, and relative to the loss at zero
# scores, the first one of a run. Both are generous.
LOSS_ROUNDING = 1e-14
FIRST_LOSS_ROUNDING = 1e-13
# Losses below `SMALLEST_LOSS`, and sides of a statement below `SMALLEST_SIDE`, are near
# the end of the range of float64: products with other small numbers would lose digits.
SMALLEST_LOSS = 1e-280
SMALLEST_SIDE = 1e-290
# Divisors that may be 0 are raised to this, so that a quotient may be huge or 0, but is
# never NaN.
TINY = 1e-300
# The tail law is about the limit t -> ∞, so it is judged only late in a tail. If
# prompts are finite, the features of a query form levels, whose scores drift apart. The
# attention on a token must then be at most this share of the attention on a token of
# the next higher level. The law may be off by several times this share.
LARGEST_NEIGHBOUR_WEIGHT = 0.05
# The excess of the loss over the resting loss, which descent approaches, must be at
# least this share of the resting loss. A smaller excess, as a difference of two nearly
# equal losses, has too few digits.
SMALLEST_EXCESS = 1e-10
# A run must end at a step that is at least this many times the step at which Phase III
# begins, and this many times the time scale of its tail. The steps before Phase III
# then change the excess at the end by about 1 %.
SHORTEST_TAIL = 100.0
# The test of a sampled run takes means over saved steps, and needs at least this many
# steps: with fewer, the standard errors of the means would be too uncertain.
FEWEST_SAMPLED_STEPS = 20
TOO_LARGE = f"checked for K <= {LARGEST} only"
TOO_NEAR = "the attention deficit is below the range of float64"
TOO_MANY = "too many different prompts to sum over; see crosscheck"


def check_bounds(run: icl.Trajectory) -> BoundChecks:
    """Evaluate every statement of the theory on a run; see `icl_theory.check_bounds`.

    If the run was trained on sampled prompts, its scores are checked like any others,
    and its sampled losses and gradients are compared with Lemmas 1 and 2, up to their
    noise.

    Raises
    ------
    ValueError
        The run has no risk of in-context regression.
    """
    instance("run", run, icl.Trajectory, "a run")
    # Load now all parts of SciPy that statements need. `load_whole` holds back Ctrl-C,
    # which must not leave a module half loaded.
    load_whole(*LAZY_SCIPY)
    risk, scores = class_scores(run)
    on_runs: list[Statement] = list(ON_RUNS)
    if "L" in run.info:  # the paper's orders of magnitude, in terms of L
        on_runs += STATEMENTS
    checks = []
    # Overflows may be ignored, because `Statement.check` refuses sides that are not
    # finite.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for statement in ON_SCORES:
            if risk is None:
                checks.append(statement.unstated(TOO_LARGE))
            else:
                checks.append(statement.check(risk, scores))
        checks += [statement.check(run) for statement in on_runs]
    assert run.risk is not None  # `class_scores` has refused runs without a risk
    population = population_of(run.risk)
    # The population is None if the run was not trained on sampled prompts.
    if population is not None:
        checks += within_noise(run, population)
    return BoundChecks(checks)


def class_scores(run: icl.Trajectory) -> tuple[icl.PopulationRisk | None, Array]:
    """Return the population risk over the scores S behind a run, and the final scores.

    If there are too many scores, the risk is None and the scores are empty.
    """
    risk: icl.Risk | None = run.risk
    if risk is None:
        raise argument_error(
            "run", run.stop_reason, "a run that was not loaded from a file"
        )
    if isinstance(risk, icl.ExchangeableRisk):
        if risk.K > LARGEST:
            return None, np.zeros((0, 0))
        # The same problem over all trained parameters. Its core risk, without a change
        # of coordinates, is a risk over K x K scores.
        full = expanded(risk)
        return engine.pullback.core_risk(full), risk.scores(float(run.params))
    # For a run on sampled prompts, take the population; any other run has its own risk.
    population = population_of(risk) or risk
    core = engine.pullback.core_risk(population)
    if not isinstance(core, icl.PopulationRisk):
        error = argument_error(
            "run",
            type(run.risk).__name__,
            "a run on a population risk of in-context regression",
        )
        raise NotCoveredError(str(error))
    return core, engine.pullback.core_params(population, run.params)


def _has_label_noise(risk: icl.PopulationRisk) -> bool:
    """Whether label noise adds to the loss.

    Infinitely many tokens average it out.
    """
    return risk.noise > 0.0 and math.isfinite(risk.N)


def _equality(
    measured: float, expected: float, tolerance: float, note: str = ""
) -> BoundCheck:
    """Compare two numbers up to a relative error, which is shown as the slack."""
    # The maximum avoids a division by zero.
    scale = max(abs(expected), np.finfo(float).tiny)
    error = abs(measured - expected) / scale
    return BoundCheck.of(measured, expected, error <= tolerance, error, note)


@stated("Lemma 1, identity", "paper, Lemma 1 (exact form)", "identity", Status.EXACT)
def LEMMA_1(risk: icl.PopulationRisk, scores: Array) -> BoundCheck:
    """½ E[aᵀC^(k)a + σ² Σ a²/n] = ½ E(Σ a_m y_m - f_k)² over prompts and functions"""
    # The left side is the loss of the risk; the right one is summed over all prompts
    # and functions, without any formula of the risk.
    require(theorems.enumerable(risk.N, risk.features.K), TOO_MANY)
    summed_loss = float(risk.features.probs @ theorems.direct(risk, scores).loss)
    require(summed_loss > SMALLEST_SIDE, "the loss is below the range of float64")
    return _equality(risk.loss(scores), summed_loss, tolerance=SAME_LOSS)


@stated("Lemma 2, identity", "paper, Lemma 2 (exact form)", "identity", Status.EXACT)
def LEMMA_2(risk: icl.PopulationRisk, scores: Array) -> BoundCheck:
    """d/dh L(S + h g/|g|) = -|g|, g the growth of Lemma 2"""
    growth = risk.growth(scores)
    norm = float(np.linalg.norm(growth))
    first_loss = risk.loss(np.zeros_like(scores))
    require(norm > FIRST_LOSS_ROUNDING * first_loss, "the gradient is zero to rounding")
    slope = theorems.differences(risk.loss, scores, growth / norm)
    # A difference quotient has the rounding of the losses, divided by the step. The
    # rounding is also divided by the slope ``norm``, to which errors are relative.
    rounding = LOSS_ROUNDING * risk.loss(scores) / (theorems.STEP * norm)
    require(
        rounding < LARGEST_SLOPE_ROUNDING, "the slope is lost in the loss's rounding"
    )
    return _equality(-slope, norm, tolerance=SLOPE_ERROR + rounding)


@stated("Lemma 2, sign", "paper, Lemma 2", "lower")
def GROWTH_SIGN(risk: icl.PopulationRisk, scores: Array) -> BoundCheck:
    """α_k = -∂L/∂S_kk >= 0"""
    require(not _has_label_noise(risk), "label noise adds a term of the other sign")
    # ℓ_k depends on column k of the scores alone. So one difference quotient of all
    # losses, along all S_kk at once, gives ∂ℓ_k/∂S_kk = -α_k/p_k for every k.
    along_own_scores = np.eye(risk.features.K)
    slopes = theorems.differences(risk.loss_per_query, scores, along_own_scores)
    fall = -risk.features.probs * slopes  # α_k by differences
    alpha = np.diagonal(risk.growth(scores))
    first_loss = risk.loss(np.zeros_like(scores))
    tolerance = (
        SLOPE_ERROR * np.abs(fall) + FIRST_LOSS_ROUNDING * first_loss / theorems.STEP
    )
    agrees = bool((np.abs(fall - alpha) <= tolerance).all())
    note = "" if agrees else "the growth is not the fall of the loss"
    # α_k >= 0, up to the error of the differences.
    holds = agrees and bool((fall >= -tolerance).all())
    return BoundCheck.of(float(fall.min()), 0.0, holds, slack=None, note=note)


def missed_squared(risk: icl.PopulationRisk, scores: Array) -> Array:
    """Return ``E(1 - a_k)²`` for every query, (K,).

    Here a_k is the attention on the query's own feature. Let the label be 0 at this
    feature and 1 at all others. Then the prediction is 1 - a_k and the answer is 0. So
    the result is twice the loss of this task.
    """
    labels_by_query = 1.0 - np.eye(risk.features.K)
    if math.isinf(risk.N):
        # The attention does not vary between prompts.
        predictions = (risk.attention(scores) * labels_by_query).sum(axis=0)
        return np.asarray(predictions**2)
    squares = []
    # Each query has a task of its own.
    for k, labels in enumerate(labels_by_query):
        task = tasks.FiniteTask(labels[None, :])
        indicator_risk = icl.PopulationRisk(risk.features, task, risk.N)
        squares.append(2.0 * indicator_risk.loss_per_query(scores)[k])
    return np.array(squares)


@stated("Lemma 1, envelope", OURS, "two-sided")
def ENVELOPE(risk: icl.PopulationRisk, scores: Array) -> BoundCheck:
    """c_k <= 2 ℓ_k / E(1 - a_k)² <= max_m C^(k)_mm; attained for N = inf"""
    require(not _has_label_noise(risk), "label noise adds to the loss")
    require(
        risk.features.K <= MOST_FEATURES_OF_ENVELOPE or math.isinf(risk.N),
        f"checked for K <= {MOST_FEATURES_OF_ENVELOPE} where N is finite",
    )
    low = risk.task.nondegeneracy(risk.features)  # c_k, (K,)
    # max_m C^(k)_mm, in which C^(k)_mm = E(f_m - f_k)² is twice the variogram
    high = 2.0 * risk.task.variogram(risk.features).max(axis=0)
    mean_square = missed_squared(risk, scores)  # E(1 - a_k)², (K,)
    require(bool(mean_square.min() >= SMALLEST_SIDE), TOO_NEAR)
    ratio = 2.0 * risk.loss_per_query(scores) / mean_square
    # The term with `high` allows for the rounding of a `low` near 0, which is computed
    # from numbers as large as `high`. A share of 1e-13 is generous.
    is_above_low = low * (1 - ROUNDING) <= ratio + 1e-13 * high
    is_below_high = ratio <= high * (1 + ROUNDING)
    holds = bool((is_above_low & is_below_high).all())

    # Show the query that comes nearest to one of its bounds.
    factor_above_low = ratio / np.maximum(low, TINY)
    factor_below_high = high / np.maximum(ratio, TINY)
    k = int(np.argmin(np.minimum(factor_above_low, factor_below_high)))
    # The slack of a two-sided check is the width of its interval, divided by the
    # measured number.
    slack = float((high[k] - low[k]) / max(ratio[k], np.finfo(float).tiny))
    note = ""
    if low.min() <= 0:
        note = "c_k = 0 for some query: the loss does not control the attention"
    bounds = (float(low[k]), float(high[k]))
    return BoundCheck.of(float(ratio[k]), bounds, holds, slack, note)


@stated("Prop. 1, attention", "paper, Prop. 1 (our constant)", "upper")
def ATTENTION(risk: icl.PopulationRisk, scores: Array) -> BoundCheck:
    """1 - Attn_k <= √(2 ℓ_k / c_k)"""
    require(not _has_label_noise(risk), "label noise adds to the loss")
    c = risk.task.nondegeneracy(risk.features)  # c_k, (K,)
    require(bool(c.min() > 0), "c_k = 0: a small loss does not bound the attention")
    attention = risk.attention(scores)
    # 1 - Attn_k as the sum of the attention on all other features, so that no digits
    # cancel.
    missed = (attention * (1.0 - np.eye(len(attention)))).sum(axis=0)
    bound = np.sqrt(2.0 * risk.loss_per_query(scores) / c)
    require(min(missed.min(), bound.min()) >= SMALLEST_SIDE, TOO_NEAR)
    holds = bool((missed <= bound * (1 + ROUNDING)).all())
    # Show the query that comes nearest to its bound.
    k = int(np.argmax(missed / bound))
    slack = float(bound[k] / missed[k])
    return BoundCheck.of(float(missed[k]), float(bound[k]), holds, slack)


@stated("Prop. 1, prediction", "paper, Prop. 1 (reconstructed)", "upper")
def PREDICTION(run: icl.Trajectory) -> BoundCheck:
    """|ŷ - f(v_k)| <= L Σ_m Attn_m |v_m - v_k|, any L-Lipschitz f; attained"""
    risk, scores = class_scores(run)
    require("L" in run.info, "needs the L of simulate")
    require("delta" in run.info, "needs the delta of simulate")
    if risk is None:
        raise UnstatedError(TOO_LARGE)
    require(theorems.enumerable(risk.N, risk.features.K), TOO_MANY)
    L = float(run.info["L"])
    # The risk behind an exchangeable run has equidistant features whose gap may not be
    # the Δ of the run. Rescale the distances so that the gap is Δ.
    distances = risk.features.distances * (run.info["delta"] / risk.features.gap)
    # The bound of each query, (K,)
    bounds = L * np.sum(risk.attention(scores) * distances, axis=0)
    # The query with the largest bound stands for all.
    k = int(np.argmax(bounds))
    bound = float(bounds[k])
    require(bound >= SMALLEST_SIDE, TOO_NEAR)
    # The bound has the expected attention in it, so it is compared with the errors of
    # expected predictions. For these the expected attention is a sum over prompts,
    # which does not use the formula of the risk.
    prompts = theorems.prompts(risk.features.probs, risk.N, scores[:, k])
    mean_attention = prompts.probability @ prompts.attention

    # The worst function is L times the distance from the query. This function is
    # L-Lipschitz by the triangle inequality, and attains the bound. The bound holds for
    # all functions, so any seed will do for the drawn ones.
    worst_function = L * distances[k]
    rng = np.random.default_rng(0)
    drawn = theorems.lipschitz_values(distances, L, rng, DRAWN_FUNCTIONS)
    functions = np.vstack([worst_function, drawn])
    errors = np.abs((functions - functions[:, [k]]) @ mean_attention)
    error_of_worst = float(errors[0])
    largest = float(errors.max())
    is_attained = error_of_worst >= bound * (1.0 - ROUNDING)
    holds = largest <= bound * (1.0 + ROUNDING) and is_attained
    note = "expected attention over prompts" if math.isfinite(risk.N) else ""
    return BoundCheck.of(largest, bound, holds, bound / max(largest, TINY), note)


def _exchangeable(run: icl.Trajectory) -> icl.ExchangeableRisk:
    """Return the risk of an exchangeable run with N = ∞, and refuse any other run."""
    risk = run.risk
    if not isinstance(risk, icl.ExchangeableRisk) or math.isfinite(risk.N):
        raise UnstatedError("for the exchangeable case, N = inf")
    return risk


def _step_constant(risk: icl.ExchangeableRisk, eta: float) -> float:
    """Return the step constant ``c = η γ K/(K-1)²``.

    The learning rate is multiplied by the speed of the coordinates. The speed is 1 if
    the scores S are trained, and Δ⁴/4 if the matrix Q of keys and queries is trained.
    """
    return eta * risk.speed * risk.gamma * risk.K / (risk.K - 1.0) ** 2


@stated("step count", OURS, "two-sided", scope=DESCENT)
def STEP_COUNT(run: icl.Trajectory) -> BoundCheck:
    """the flow time minus and plus logarithmic terms bounds the number of steps from
    below and above
    """
    risk = _exchangeable(run)
    c = _step_constant(risk, run.eta)
    u = float(run.params)  # the gap at the end of the run
    n = float(run.t[-1])  # the number of steps
    # `step_bounds` takes gaps u up to 300. At larger gaps a step changes u by an amount
    # of the order e^-2u, which comes near the end of the range of float64.
    is_in_range = c >= SMALLEST_SIDE and u <= 300.0
    require(is_in_range, "the steps are below the range of float64")
    bounds = regression.step_bounds(risk.K, c, u)
    low = float(bounds[0])
    high = float(bounds[1])
    slack = (high - low) / max(n, 1.0)
    return BoundCheck.of(n, (low, high), low <= n <= high, slack)


@stated("gradient flow", OURS, "identity", Status.EXACT, scope=ONLY_FLOW)
def FLOW(run: icl.Trajectory) -> BoundCheck:
    """c t = F(a_t) - F(1/K)"""
    risk = _exchangeable(run)
    c = _step_constant(risk, run.eta)
    require(run.t[-1] > 0, "the run ends at its start")
    u = float(run.params)
    # F(a_t) - F(1/K) as a difference between the gaps 0 and u: at 0 the attention is
    # 1/K.
    time_to_u = float(flow_difference(np.zeros(()), np.asarray(u), risk.K)) / c
    # The integrator's absolute error of u is some 1e-9, which is a large share of u if
    # the run is short. Both terms are generous.
    tolerance = 1e-5 + 1e-8 / max(u, TINY)
    return _equality(time_to_u, float(run.t[-1]), tolerance)


@stated("Phase I, explicit", OURS, "two-sided", scope=DESCENT)
def PHASE_ONE(run: icl.Trajectory) -> BoundCheck:
    """[F(1/3) - F(1/K)]/c <= T₁ <= 3K²/(2ηγ) + ln(K/3) + 2 for K >= 3 and every η; T₁ =
    0 for K = 2
    """
    risk = _exchangeable(run)
    c = _step_constant(risk, run.eta)
    if run.phases is None:
        raise UnstatedError("needs a run of simulate")
    _, phase_one_steps = run.phases.I  # T₁, the last step of the phase
    require(
        float(run.at(phase_one_steps).attention) >= 0.5, "the run ends within Phase I"
    )
    require(c >= SMALLEST_SIDE, "the steps are below the range of float64")
    bounds = regression.phase_one_bounds(risk.K, c)
    low = float(bounds[0])
    high = float(bounds[1])
    is_above_low = low * (1.0 - CLOSED_FORM_ROUNDING) <= phase_one_steps
    is_below_high = phase_one_steps <= high * (1.0 + CLOSED_FORM_ROUNDING)
    holds = is_above_low and is_below_high
    slack = (high - low) / max(phase_one_steps, 1.0)
    return BoundCheck.of(float(phase_one_steps), (low, high), holds, slack)


@stated("Theorem 2, explicit", OURS, "upper", scope=DESCENT)
def THEOREM_2(run: icl.Trajectory) -> BoundCheck:
    """T - T₁ <= (7/16)(K-1)/(ηε) + 1 for every K, L, η and ε"""
    return _after_phase_one(run, run.epsilon)


def _after_phase_one(run: icl.Trajectory, epsilon: float) -> BoundCheck:
    """Compare the number of steps after Phase I with the bound of Theorem 2.

    ``epsilon`` is the loss ε in the bound: the target of the run, or a smaller loss,
    whose bound is larger.
    """
    risk = _exchangeable(run)
    if run.phases is None or run.steps is None:
        raise UnstatedError("needs a run of simulate that reached epsilon")
    _, phase_one_steps = run.phases.I
    require(phase_one_steps < run.steps, "the run ends within Phase I")
    bound = float(regression.after_phase_one(risk.K, run.eta * risk.speed, epsilon))
    count = float(run.steps - phase_one_steps)
    holds = count <= bound * (1.0 + CLOSED_FORM_ROUNDING)
    return BoundCheck.of(count, bound, holds, slack=bound / count)


@stated("Theorem 1, explicit", OURS, "upper", scope=DESCENT)
def THEOREM_1(run: icl.Trajectory) -> BoundCheck:
    """T - T₁ <= (7/8)(K-1)/(ηγδ²) + 1 where ε >= γδ²/2; no logarithm"""
    # The result of this call is not used. Theorem 1 has all hypotheses of Theorem 2. If
    # one of them fails, the call raises an error with this reason, before the error
    # below asks for δ.
    _after_phase_one(run, run.epsilon)
    imbalance = run.info.get("imbalance")
    if imbalance is None:
        raise UnstatedError("needs the imbalance δ of the prompts (imbalance=...)")
    smallest_target = 0.5 * _exchangeable(run).gamma * imbalance**2
    require(
        run.epsilon >= smallest_target,
        f"claimed for ε >= γδ²/2 = {smallest_target:.3g}",
    )
    # This is the bound of Theorem 2 at the smallest target.
    return _after_phase_one(run, smallest_target)


def _class_score_risk(run: icl.Trajectory) -> icl.PopulationRisk:
    """Return the risk of a run on the scores S of single features with N = ∞.

    A run on another risk, or with too many features, is refused.
    """
    risk = run.risk
    if not isinstance(risk, icl.PopulationRisk) or math.isfinite(risk.N):
        risk = None
    if risk is None or risk.features.K > LARGEST:
        raise UnstatedError(
            f"for the scores of up to {LARGEST} single features, N = inf"
        )
    return risk


@stated("one step, any task", OURS, "lower", scope=DESCENT)
def ONE_STEP(run: icl.Trajectory) -> BoundCheck:
    """1/ℓ_k grows by (1 - ηλ_k/2) 4ηp_k (K/(K-1)) Attn_k² or more"""
    risk = _class_score_risk(run)
    # g_k = (1 - ηλ_k/2) 4ηp_k K/(K-1), (K,), where λ_k bounds the curvature of p_k ℓ_k.
    # The certified growth of 1/ℓ_k in a step is g_k Attn_k². If g_k is not positive, η
    # is too large for the statement.
    certified_rate = regression.step_rate(risk, run.eta)
    # The least ratio of measured to certified growth, over saved states and queries.
    least = math.inf
    for scores in run.states:
        # The losses of the queries before and after one step from the saved state.
        before = risk.loss_per_query(scores)
        after = risk.loss_per_query(scores - run.eta * risk.gradient(scores))
        attention = np.diagonal(risk.attention(scores))
        is_measurable = np.abs(before - after) > SMALLEST_FALL * before
        is_measurable &= (before > SMALLEST_LOSS) & (after > SMALLEST_LOSS)
        is_used = (certified_rate > 0) & is_measurable
        # 1/after - 1/before, without cancellation
        growth = (before - after)[is_used] / before[is_used] / after[is_used]
        ratio = growth / (certified_rate * attention**2)[is_used]
        # `initial` is the minimum if no query is used.
        least = min(least, float(np.min(ratio, initial=math.inf)))
    require(
        math.isfinite(least),
        "no step is short enough to be certified and long enough to be seen",
    )
    return BoundCheck.of(least, 1.0, least >= 1.0 - GROWTH_ERROR, slack=least)


class TailSteps(NamedTuple):
    """Steps of one query between two losses of its tail, and their bound."""

    steps: float
    bound: float

    def share(self) -> float:
        """Return the steps divided by their bound."""
        return self.steps / max(self.bound, TINY)


@stated("tail steps, any task", OURS, "upper", scope=DESCENT)
def TAIL_STEPS(run: icl.Trajectory) -> BoundCheck:
    """steps from ℓ_k <= c_k/8 on <= 4 [F(1 - s) - F(1 - s₀)]/(c_k g_k) + ..."""
    risk = _class_score_risk(run)
    c = risk.task.nondegeneracy(risk.features)  # c_k, (K,)
    # g_k, (K,): a step adds at least g_k Attn_k² to 1/ℓ_k.
    certified_rate = regression.step_rate(risk, run.eta)
    losses = run.observed["loss_per_query"]  # (saved steps, K)
    # The statement is checked for each query, between the first and the last saved
    # state of its tail. At a loss of c_k/8 the attention is at least ½.
    tails = []
    for k in np.flatnonzero((c > 0) & (certified_rate > 0)):
        is_in_tail = (losses[:, k] <= c[k] / 8.0) & (losses[:, k] > SMALLEST_LOSS)
        saved_in_tail = np.flatnonzero(is_in_tail)
        if saved_in_tail.size < 2:
            continue
        first = saved_in_tail[0]
        last = saved_in_tail[-1]
        bound = regression.tail_steps(
            start=float(losses[first, k]),
            end=float(losses[last, k]),
            c=float(c[k]),
            rate=float(certified_rate[k]),
        )
        tails.append(TailSteps(float(run.t[last] - run.t[first]), bound))
    require(
        bool(tails),
        "no query with a certified rate has two saved states with a loss below c_k/8",
    )
    # Show the query that comes nearest to its bound.
    steps, bound = max(tails, key=TailSteps.share)
    holds = steps <= bound * (1.0 + GROWTH_ERROR)
    return BoundCheck.of(steps, bound, holds, bound / max(steps, 1.0))


@stated("tail law", OURS, "identity", Status.MEASURED, scope=DESCENT_OR_FLOW)
def TAIL(run: icl.Trajectory) -> BoundCheck:
    """η t (L(t) - L_∞) -> tail_constant"""
    ratio, tolerance = tail_ratio(run)
    return _equality(ratio, 1.0, tolerance, "asymptotic: 1 + O(1 - Attn)")


class TailRatio(NamedTuple):
    """The number ``t (loss - resting loss)``, divided by its limit, and a tolerance.

    The tolerance is the largest distance of this ratio from 1 that confirms the law.
    """

    ratio: float
    tolerance: float


def tail_ratio(run: icl.Trajectory) -> TailRatio:
    """Return ``t (loss - resting loss)`` at the end of a run, divided by its limit.

    The resting loss is the loss that descent approaches. The result also has the
    largest distance from 1 that still confirms the law. The function raises
    `UnstatedError` if the law is not known, or if the run is too short for a verdict.
    """
    limit = _known_limit(run)
    if run.phases is None or run.phases.III is None:
        raise UnstatedError("the run does not reach Phase III")
    is_embedded = isinstance(run.risk, engine.Pullback)
    require(
        not is_embedded,
        "over embeddings the attention may settle too slowly for a verdict",
    )
    begin, end = run.phases.III
    resting_loss = regression.tails.resting_loss(run.risk, run.floor)
    tail_time = _tail_time(run, limit, begin, resting_loss)
    # The law has a relative error of the order of the missed attention. For finite
    # prompts the error is of the order of the attention on a level, relative to the
    # attention on the level above it.
    size_of_error = 1.0 - float(np.min(run.attention[-1]))
    if isinstance(run.risk, icl.PopulationRisk) and math.isfinite(run.risk.N):
        size_of_error = _largest_neighbour_weight(run.risk, run.params)
        require(
            size_of_error <= LARGEST_NEIGHBOUR_WEIGHT,
            "the scores of neighbouring levels are not yet far enough apart",
        )
    has_lasted = end >= SHORTEST_TAIL * max(begin, tail_time, 1.0)
    require(
        has_lasted, "Phase III has not lasted for two decades of its own time scale"
    )
    excess = float(run.loss[-1]) - resting_loss
    require(
        excess >= SMALLEST_EXCESS * resting_loss,
        "the excess over the floor is lost in rounding",
    )
    # Both terms are generous. The first, 5 %, is for a tail of only two decades. The
    # second is for the error of the law, whose order of magnitude is ``size_of_error``.
    tolerance = 0.05 + 8.0 * size_of_error
    return TailRatio(float(run.t[-1]) * excess / limit, tolerance)


def _known_limit(run: icl.Trajectory) -> float:
    """Return the limit of ``t (loss - resting loss)``.

    A run whose limit is not known is refused.
    """
    # The reason is empty if the run is descent or gradient flow.
    reason = DESCENT_OR_FLOW.why_not(run)
    if reason:
        raise UnstatedError(reason)
    limit = None
    if run.risk is not None:
        limit = regression.tails.tail_limit(run.risk, run.eta)
    if limit is None:
        raise UnstatedError(
            "no tail law is known for this problem, or the excess falls faster"
        )
    return limit


def _tail_time(
    run: icl.Trajectory, limit: float, begin: int, resting_loss: float
) -> float:
    """Return the time after which the tail that begins at step ``begin`` obeys its law.

    In the tail 1/excess = t/limit + constant, and the law neglects the constant. The
    constant is at most 1/excess at step ``begin``. So the law holds for t much larger
    than limit/excess, with this excess, which is the result. The result is large if
    large first steps have made the excess small.
    """
    start = run.at(begin)
    if isinstance(run.risk, icl.PopulationRisk) and math.isinf(run.risk.N):
        # The resting losses are 0. Every query has its own tail, whose limit is a K-th
        # of the limit of the sum. So the query with the smallest loss takes longest.
        query_losses = run.risk.features.probs * start.observed["loss_per_query"]
        smallest = max(float(query_losses.min()), TINY)
        return limit / len(query_losses) / smallest
    return limit / max(start.loss - resting_loss, TINY)


def _largest_neighbour_weight(risk: icl.PopulationRisk, scores: Array) -> float:
    """Return the largest weight of a feature relative to the next higher level.

    For each query the levels order the features by their scores for t -> ∞. The weight
    of a feature in the softmax is divided by the weight of the lightest feature of the
    next higher level.
    """
    largest = 0.0
    assert risk.levels is not None  # a run with a known limit has levels
    for levels, column in zip(risk.levels, scores.T, strict=True):
        # ``levels.classes`` has the features of each level, the highest level first.
        for upper, lower in itertools.pairwise(levels.classes):
            weight = float(np.exp(column[lower].max() - column[upper].min()))
            largest = max(largest, weight)
    return largest


ON_SCORES = (LEMMA_1, LEMMA_2, GROWTH_SIGN, ENVELOPE, ATTENTION)
ON_RUNS: tuple[Statement, ...] = (
    PREDICTION,
    STEP_COUNT,
    PHASE_ONE,
    THEOREM_2,
    THEOREM_1,
    FLOW,
    ONE_STEP,
    TAIL_STEPS,
    TAIL,
)
SAMPLED = (
    Statement(
        "Lemma 1, sampled",
        "paper, Lemma 1 (exact form)",
        "the step's loss has the mean ½ E[aᵀC^(k)a + σ² Σ a²/n]",
        "identity",
        Status.MEASURED,
    ),
    Statement(
        "Lemma 2, sampled",
        "paper, Lemma 2 (exact form)",
        "the step's gradient has the mean of the lemma, along it",
        "identity",
        Status.MEASURED,
    ),
)


def population_of(trainer: icl.Risk) -> icl.Risk | None:
    """Return the population risk whose prompts a trainer draws.

    The risk has the same parameters as the trainer. The result is None if ``trainer``
    does not draw prompts of regression, or if their tokens have noise.
    """
    # Loaded here, because most runs are not sampled.
    from icl_theory.regression.sampled.counts import CountedRisk

    core = engine.pullback.core_risk(trainer)
    if not isinstance(core, (CountedRisk, icl.SampledRisk)):
        return None
    if isinstance(core, icl.SampledRisk) and core.token_noise:
        return None
    population = icl.PopulationRisk(core.features, core.task, core.N, core.noise)
    return engine.pullback.replace_core(trainer, population)


def within_noise(run: icl.Trajectory, population: icl.Risk) -> list[BoundCheck]:
    r"""Compare losses and gradients of a run's own prompts with Lemmas 1 and 2.

    The population has the loss :math:`\ell` and the gradient g. On the prompts of step
    t, the loss is :math:`\hat\ell_t` and the gradient :math:`\hat g_t`. The parameters
    :math:`\theta_t` of this step are known before its prompts are drawn. So the
    relative differences :math:`\hat\ell_t/\ell(\theta_t) - 1` and :math:`\langle \hat
    g_t, g(\theta_t)\rangle/\|g(\theta_t)\|^2 - 1` have the mean 0 at each step,
    whatever the learning rate. Their means over the saved steps are therefore 0 within
    their standard errors.
    """
    # Loaded here, because most runs are not sampled.
    from icl_theory.engine.comparison import limit_of, mean_check

    trainer = run.risk
    assert trainer is not None  # ``population`` was made from it
    # A trainer with a data set draws its prompts from this fixed set.
    if getattr(engine.pullback.core_risk(trainer), "dataset", None) is not None:
        return _unstated_samples(
            "the prompts are a fixed set: their mean is not that of fresh ones"
        )
    if len(run.t) < FEWEST_SAMPLED_STEPS:
        return _unstated_samples(f"needs {FEWEST_SAMPLED_STEPS} saved steps")

    ratios = []
    for step, params in zip(run.t, run.states, strict=True):
        ratios.append(_sampled_ratios(trainer, population, params, int(step)))
    # Each statement takes an equal share of the probability of a false alarm.
    z_limit = limit_of(share=1.0 / len(SAMPLED), freedom=len(ratios) - 1)
    checks = []
    # The first statement is about the ratios of the losses, and the second about the
    # ratios of the slopes. The expected value of each ratio is 1.
    for statement, step_ratios in zip(SAMPLED, np.array(ratios).T, strict=True):
        check = mean_check(statement.name, 1.0, step_ratios, z_limit)
        note = (
            f"z = {check.z:+.1f} of at most {check.limit:.1f},"
            f" standard error {check.standard_error:.1g}"
        )
        slack = abs(check.sampled - 1.0)
        sides = BoundCheck.of(check.sampled, 1.0, check.passed, slack, note)
        checks.append(statement.complete(sides))
    return checks


def _unstated_samples(reason: str) -> list[BoundCheck]:
    """Return checks of the sampled statements that give a reason and no numbers."""
    return [statement.unstated(reason) for statement in SAMPLED]


class _SampledRatios(NamedTuple):
    """Loss and slope on a step's prompts, relative to the population.

    Each is divided by the loss or the slope of the population. The slope is the
    derivative of the loss along the gradient of the population.
    """

    loss: float
    slope: float


def _sampled_ratios(
    trainer: icl.Risk, population: icl.Risk, params: Array, step: int
) -> _SampledRatios:
    """Compare a step's prompts with the population.

    If the population has no loss or slope left, there is nothing to compare, and both
    ratios are 1.
    """
    sampled_loss, sampled_gradient = trainer.evaluate(params, step)
    loss, gradient = population.evaluate(params)
    squared_norm = float(np.sum(gradient * gradient))
    # Written with "not", the condition also excludes NaN.
    if not (loss > 0.0 and squared_norm > 0.0 and math.isfinite(squared_norm)):
        return _SampledRatios(1.0, 1.0)
    slope_ratio = float(np.sum(sampled_gradient * gradient)) / squared_norm
    return _SampledRatios(sampled_loss / loss, slope_ratio)
