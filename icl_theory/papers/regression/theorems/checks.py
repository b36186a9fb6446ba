"""Theorems evaluated on a run: identities, certified inequalities, orders of magnitude, and sampled runs."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array, argument_error, instance
from icl_theory.engine.comparison import limit_of, mean_check
from icl_theory.engine.pullback import (
    Pullback,
    core_params,
    core_risk,
    replace_core,
)
from icl_theory.engine.risk import Risk
from icl_theory.engine.scope import DESCENT, DESCENT_OR_FLOW, ONLY_FLOW
from icl_theory.engine.trajectory import Trajectory
from icl_theory.papers.regression.theorems.enumeration import (
    STEP,
    differences,
    direct,
    enumerable,
    lipschitz_values,
    prompts,
)
from icl_theory.papers.regression.theorems.orderwise import STATEMENTS
from icl_theory.regression.bounds import (
    after_phase_one,
    phase_one_bounds,
    step_bounds,
    step_rate,
    tail_steps,
)
from icl_theory.regression.closed.flow import flow_difference
from icl_theory.regression.risks.exchangeable import ExchangeableRisk, expanded
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.risk import SampledRisk
from icl_theory.regression.tails import resting_loss, tail_limit
from icl_theory.regression.tasks import FiniteTask
from icl_theory.statements.statement import (
    OURS,
    BoundCheck,
    BoundChecks,
    Statement,
    Status,
    UnstatedError,
    require,
    stated,
)

LARGEST = 200  # features up to which a reduced run is expanded to its K x K scores
TOO_LARGE = f"checked for K <= {LARGEST} only"
TOO_NEAR = "the attention deficit is below the range of float64"
TOO_MANY = "too many prompts to sum over all: see crosscheck"


def check_bounds(run: Trajectory) -> BoundChecks:
    """Evaluate every statement of the theory on one regression run; see `icl_theory.check_bounds`.

    The scores of a trainer's run are held against the statements on any scores, its
    losses and gradients against Lemmas 1 and 2 within their noise.

    Raises
    ------
    ValueError
        A run that carries no regression risk.
    """
    instance("run", run, Trajectory, "a run")
    risk, scores = class_scores(run)
    with np.errstate(
        over="ignore", divide="ignore", invalid="ignore"
    ):  # Statement.check refuses inf
        checks = [
            each.unstated(TOO_LARGE) if risk is None else each.check(risk, scores)
            for each in ON_SCORES
        ]
        checks += [
            statement.check(run)
            for statement in (*ON_RUNS, *(STATEMENTS if "L" in run.info else ()))
        ]
    population = None if run.risk is None else population_of(run.risk)
    sampled = [] if population is None else within_noise(run, population)
    return BoundChecks([*checks, *sampled])


def class_scores(run: Trajectory) -> tuple[PopulationRisk | None, Array]:
    """Population risk over class scores behind a run and its final scores; None where
    that would be too large.
    """
    risk: Risk | None = run.risk
    if risk is None:
        raise argument_error(
            "run", run.stop_reason, "a run that was not loaded from a file"
        )
    if isinstance(risk, ExchangeableRisk):
        if risk.K > LARGEST:
            return None, np.zeros((0, 0))
        full = expanded(risk)
        return core_risk(full), risk.scores(float(run.params))
    whole = population_of(risk) or risk
    risk = core_risk(whole)
    params = core_params(whole, run.params)
    if not isinstance(risk, PopulationRisk):
        raise argument_error(
            "run",
            type(run.risk).__name__,
            "a run on a population risk of in-context regression",
        )
    return risk, params


def _noisy(risk: PopulationRisk) -> bool:
    return risk.noise > 0.0 and math.isfinite(risk.N)


def _same(measured: float, other: float, within: float, note: str = "") -> BoundCheck:
    difference = abs(measured - other) / max(abs(other), np.finfo(float).tiny)
    return BoundCheck.of(measured, other, difference <= within, difference, note)


@stated("Lemma 1, identity", "paper, Lemma 1 (exact form)", "identity", Status.EXACT)
def LEMMA_1(risk: PopulationRisk, scores: Array) -> BoundCheck:
    """½ E[aᵀC^(k)a + σ² Σ a²/n] = ½ E(Σ a_m y_m - f_k)² over prompts and functions"""
    # loss by the quadratic form against the mean square of ŷ - f, summed over prompts
    # and functions
    require(enumerable(risk.N, risk.features.K), TOO_MANY)
    found = float(risk.features.probs @ direct(risk, scores).loss)
    require(found > 1e-290, "the loss is below the range of float64")
    return _same(risk.loss(scores), found, 1e-7)


@stated("Lemma 2, identity", "paper, Lemma 2 (exact form)", "identity", Status.EXACT)
def LEMMA_2(risk: PopulationRisk, scores: Array) -> BoundCheck:
    """d/dh L(S + h g/|g|) = -|g|, g the growth of Lemma 2"""
    # slope of the loss along the growth direction, by a sixth-order difference, against
    # the norm of the growth
    growth = risk.growth(scores)
    size = float(np.linalg.norm(growth))
    require(
        size > 1e-13 * risk.loss(np.zeros_like(scores)),
        "the gradient is zero to rounding",
    )
    slope = differences(risk.loss, scores, growth / size)
    rounding = 1e-14 * risk.loss(scores) / (STEP * size)
    require(rounding < 1e-3, "the slope is lost in the loss's rounding")
    return _same(-slope, size, 1e-6 + rounding)


@stated("Lemma 2, sign", "paper, Lemma 2", "lower")
def GROWTH_SIGN(risk: PopulationRisk, scores: Array) -> BoundCheck:
    """α_k = -∂L/∂S_kk >= 0"""
    # α_k as the fall of ℓ_k while S_kk grows, by a sixth-order difference: column k is
    # all that ℓ_k depends on
    require(not _noisy(risk), "label noise adds a term of the other sign")
    fall = -risk.features.probs * differences(
        risk.loss_per_query, scores, np.eye(risk.features.K)
    )
    alpha = np.diagonal(risk.growth(scores))
    start = risk.loss(np.zeros_like(scores))
    rounding = 1e-6 * np.abs(fall) + 1e-13 * start / STEP
    same = bool((np.abs(fall - alpha) <= rounding).all())
    note = "" if same else "the growth is not the fall of the loss"
    return BoundCheck.of(
        float(fall.min()), 0.0, same and bool((fall >= -rounding).all()), None, note
    )


def missed_squared(risk: PopulationRisk, scores: Array) -> Array:
    """Return ``E(1 - a_k)²`` for every query, (K,).

    It is twice the loss of the task with label 0 at the query's feature and 1
    elsewhere.
    """
    values = 1.0 - np.eye(risk.features.K)
    if math.isinf(risk.N):
        return np.asarray((risk.attention(scores) * values).sum(axis=0) ** 2)
    tasks = [
        PopulationRisk(risk.features, FiniteTask(row[None, :]), risk.N)
        for row in values
    ]
    return np.array(
        [2.0 * task.loss_per_query(scores)[k] for k, task in enumerate(tasks)]
    )


@stated("Lemma 1, envelope", OURS, "two-sided")
def ENVELOPE(risk: PopulationRisk, scores: Array) -> BoundCheck:
    """c_k <= 2 ℓ_k / E(1 - Attn_k)² <= max_m C^(k)_mm; attained for N = inf"""
    require(not _noisy(risk), "label noise adds to the loss")
    require(
        risk.features.K <= 30 or math.isinf(risk.N),
        "checked for K <= 30 where N is finite",
    )
    low = risk.task.nondegeneracy(risk.features)
    high = 2.0 * risk.task.variogram(risk.features).max(axis=0)
    missed = missed_squared(risk, scores)
    require(bool(missed.min() >= 1e-290), TOO_NEAR)
    ratio = 2.0 * risk.loss_per_query(scores) / missed
    k = int(
        np.argmin(
            np.minimum(
                ratio / np.maximum(low, 1e-300), high / np.maximum(ratio, 1e-300)
            )
        )
    )
    holds = bool(
        (
            (low * (1 - 1e-9) <= ratio + 1e-13 * high) & (ratio <= high * (1 + 1e-9))
        ).all()
    )
    note = (
        ""
        if low.min() > 0
        else "c_k = 0 for some query: the loss does not control the attention"
    )
    slack = float((high[k] - low[k]) / max(ratio[k], np.finfo(float).tiny))
    return BoundCheck.of(
        float(ratio[k]), (float(low[k]), float(high[k])), holds, slack, note
    )


@stated("Prop. 1, attention", "paper, Prop. 1 (our constant)", "upper")
def ATTENTION(risk: PopulationRisk, scores: Array) -> BoundCheck:
    """1 - Attn_k <= √(2 ℓ_k / c_k)"""
    require(not _noisy(risk), "label noise adds to the loss")
    low = risk.task.nondegeneracy(risk.features)
    require(bool(low.min() > 0), "c_k = 0: a small loss does not bound the attention")
    attention = risk.attention(scores)
    missed = (attention * (1.0 - np.eye(len(attention)))).sum(axis=0)
    bound = np.sqrt(2.0 * risk.loss_per_query(scores) / low)
    require(min(missed.min(), bound.min()) >= 1e-290, TOO_NEAR)
    k = int(np.argmax(missed / bound))
    holds = bool((missed <= bound * (1 + 1e-9)).all())
    return BoundCheck.of(
        float(missed[k]), float(bound[k]), holds, float(bound[k] / missed[k])
    )


@stated("Prop. 1, prediction", "paper, Prop. 1 (reconstructed)", "upper")
def PREDICTION(run: Trajectory) -> BoundCheck:
    """|ŷ - f(v_k)| <= L Σ_m Attn_m |v_m - v_k|, any L-Lipschitz f; attained"""
    # errors of the worst Lipschitz function and of drawn ones, by attention summed over
    # prompts; the formula
    risk, scores = class_scores(run)
    require("L" in run.info, "needs the L of simulate")
    require("delta" in run.info, "needs the delta of simulate")
    if risk is None:
        raise UnstatedError(TOO_LARGE)
    require(enumerable(risk.N, risk.features.K), TOO_MANY)
    # a reduced run stands for equidistant features at any gap; the run's is Δ
    L = float(run.info["L"])
    distances = risk.features.distances * (run.info["delta"] / risk.features.gap)
    bounds = L * np.sum(risk.attention(scores) * distances, axis=0)
    k = int(np.argmax(bounds))
    probability, attention, _ = prompts(risk.features.probs, risk.N, scores[:, k])
    drawn = lipschitz_values(distances, L, np.random.default_rng(0), 100)
    # the first is L times the distance from the query
    functions = np.vstack([L * distances[k], drawn])
    errors = np.abs((functions - functions[:, [k]]) @ (probability @ attention))
    bound = float(bounds[k])
    attained = float(errors[0])
    worst = float(errors.max())
    require(bound >= 1e-290, TOO_NEAR)
    holds = worst <= bound * (1.0 + 1e-9) and attained >= bound * (1.0 - 1e-9)
    note = "expected attention over prompts" if math.isfinite(risk.N) else ""
    return BoundCheck.of(worst, bound, holds, bound / max(worst, 1e-300), note)


def _exchangeable(run: Trajectory) -> tuple[ExchangeableRisk, float]:
    """Risk and step constant of an exchangeable run with N = ∞."""
    risk = run.risk
    if not isinstance(risk, ExchangeableRisk) or math.isfinite(risk.N):
        raise UnstatedError("for the exchangeable case, N = inf")
    return risk, run.eta * risk.speed * risk.gamma * risk.K / (risk.K - 1.0) ** 2


@stated("step count", OURS, "two-sided", scope=DESCENT)
def STEP_COUNT(run: Trajectory) -> BoundCheck:
    """flow time ± logarithms bounds the number of steps from both sides"""
    risk, c = _exchangeable(run)
    u = float(run.params)
    n = float(run.t[-1])
    require(c >= 1e-290 and u <= 300.0, "the steps are below the range of float64")
    low, high = map(float, step_bounds(risk.K, c, u))
    return BoundCheck.of(n, (low, high), low <= n <= high, (high - low) / max(n, 1.0))


@stated("gradient flow", OURS, "identity", Status.EXACT, scope=ONLY_FLOW)
def FLOW(run: Trajectory) -> BoundCheck:
    """c t = F(a_t) - F(1/K)"""
    risk, c = _exchangeable(run)
    require(run.t[-1] > 0, "the run ends at its start")
    u = float(run.params)  # integrated to some 1e-9, absolutely
    time = float(flow_difference(np.zeros(()), np.asarray(u), risk.K)) / c
    return _same(time, float(run.t[-1]), 1e-5 + 1e-8 / max(u, 1e-300))


@stated("Phase I, explicit", OURS, "two-sided", scope=DESCENT)
def PHASE_ONE(run: Trajectory) -> BoundCheck:
    """[F(1/3) - F(1/K)]/c <= T₁ <= 3K²/(2ηγ) + ln(K/3) + 2 for K >= 3 and every η; T₁ =
    0 for K = 2
    """
    risk, c = _exchangeable(run)
    if run.phases is None:
        raise UnstatedError("needs a run of simulate")
    count = run.phases.I[1]
    require(float(run.at(count).attention) >= 0.5, "the run ends within Phase I")
    require(c >= 1e-290, "the steps are below the range of float64")
    low, high = map(float, phase_one_bounds(risk.K, c))
    holds = low * (1.0 - 1e-12) <= count <= high * (1.0 + 1e-12)
    return BoundCheck.of(
        float(count), (low, high), holds, (high - low) / max(count, 1.0)
    )


@stated("Theorem 2, explicit", OURS, "upper", scope=DESCENT)
def THEOREM_2(run: Trajectory) -> BoundCheck:
    """T - T₁ <= (7/16)(K-1)/(ηε) + 1 for every K, L, η and ε"""
    return _after_phase_one(run)


def _after_phase_one(run: Trajectory, epsilon: float | None = None) -> BoundCheck:
    """Steps after Phase I, and their bound for the run's loss or another one."""
    risk, _ = _exchangeable(run)
    if run.phases is None or run.steps is None:
        raise UnstatedError("needs a run of simulate that reached epsilon")
    require(run.phases.I[1] < run.steps, "the run ends within Phase I")
    bound = float(
        after_phase_one(
            risk.K, run.eta * risk.speed, run.epsilon if epsilon is None else epsilon
        )
    )
    count = float(run.steps - run.phases.I[1])
    return BoundCheck.of(count, bound, count <= bound * (1.0 + 1e-12), bound / count)


@stated("Theorem 1, explicit", OURS, "upper", scope=DESCENT)
def THEOREM_1(run: Trajectory) -> BoundCheck:
    """T - T₁ <= (7/8)(K-1)/(ηγδ²) + 1 where ε >= γδ²/2; no logarithm"""
    _after_phase_one(run)
    delta = run.info.get("imbalance")
    if delta is None:
        raise UnstatedError("needs the imbalance δ of the prompts (imbalance=...)")
    least = 0.5 * _exchangeable(run)[0].gamma * delta**2
    require(run.epsilon >= least, f"claimed for ε >= γδ²/2 = {least:.3g}")
    return _after_phase_one(run, least)


def _single(run: Trajectory, most: int = 200) -> PopulationRisk:
    """Risk of a run of gradient descent on class scores with N = ∞; more than ``most``
    features take too long.
    """
    risk = run.risk
    if (
        isinstance(risk, PopulationRisk)
        and math.isinf(risk.N)
        and most >= risk.features.K
    ):
        return risk
    raise UnstatedError(f"for the scores of up to {most} single features, N = inf")


@stated("one step, any task", OURS, "lower", scope=DESCENT)
def ONE_STEP(run: Trajectory) -> BoundCheck:
    """1/ℓ_k grows by (1 - ηλ_k/2) 4ηp_k (K/(K-1)) Attn_k² or more"""
    # from each saved state; below a relative fall of 1e-8 rounding leaves the growth
    # fewer than seven digits
    risk = _single(run)
    rate = step_rate(risk, run.eta)
    least = math.inf
    for scores in run.states:
        before = risk.loss_per_query(scores)
        after = risk.loss_per_query(scores - run.eta * risk.gradient(scores))
        attention = np.diagonal(risk.attention(scores))
        use = (
            (rate > 0)
            & (before > 1e-280)
            & (np.abs(before - after) > 1e-8 * before)
            & (after > 1e-280)
        )
        growth = (before - after)[use] / before[use] / after[use]
        least = min(
            least, float(np.min(growth / (rate * attention**2)[use], initial=math.inf))
        )
    require(
        math.isfinite(least),
        "no step is short enough to be certified and long enough to be seen",
    )
    return BoundCheck.of(least, 1.0, least >= 1.0 - 1e-6, least)


@stated("tail steps, any task", OURS, "upper", scope=DESCENT)
def TAIL_STEPS(run: Trajectory) -> BoundCheck:
    """steps from ℓ_k <= c_k/8 on <= 4 [F(1 - s) - F(1 - s₀)]/(c_k g_k) + ..."""
    risk = _single(run)
    c = risk.task.nondegeneracy(risk.features)
    rate = step_rate(risk, run.eta)
    losses = run.observed["loss_per_query"]
    found = []
    for k in np.flatnonzero((c > 0) & (rate > 0)):
        inside = np.flatnonzero((losses[:, k] <= c[k] / 8.0) & (losses[:, k] > 1e-280))
        if inside.size > 1:
            count = float(run.t[inside[-1]] - run.t[inside[0]])
            first, last = (float(losses[i, k]) for i in inside[[0, -1]])
            found.append((count, tail_steps(first, last, float(c[k]), float(rate[k]))))
    require(
        bool(found),
        "no query with a certified rate has two saved states with a loss below c_k/8",
    )
    # the closest to its bound
    steps, bound = max(found, key=lambda pair: pair[0] / max(pair[1], 1e-300))
    return BoundCheck.of(
        steps, bound, steps <= bound * (1.0 + 1e-6), bound / max(steps, 1.0)
    )


@stated("tail law", OURS, "identity", Status.MEASURED, scope=DESCENT_OR_FLOW)
def TAIL(run: Trajectory) -> BoundCheck:
    """η t (L(t) - L_∞) -> tail_constant"""
    ratio, within = tail_ratio(run)
    return _same(ratio, 1.0, within, "asymptotic: 1 + O(1 - Attn)")


def tail_ratio(
    run: Trajectory, apart: float = 0.05, lost: float = 1e-10
) -> tuple[float, float]:
    """``t (loss - floor)`` at the end over its limit, and its largest distance from 1.

    The law is judged only if a token has at most the weight ``apart`` relative to one
    of the level above it, and if the excess is at least the share ``lost`` of the
    floor, below which rounding dominates.
    """
    if reason := DESCENT_OR_FLOW.why_not(run):
        raise UnstatedError(reason)
    limit = tail_limit(run.risk, run.eta) if run.risk is not None else None
    if limit is None:
        raise UnstatedError(
            "no tail law is known for this problem, or the excess falls faster"
        )
    if run.phases is None or run.phases.III is None:
        raise UnstatedError("the run does not reach Phase III")
    embedded = isinstance(run.risk, Pullback)
    require(
        not embedded,
        "over embeddings the attention may settle too slowly for a verdict",
    )
    begin, end = run.phases.III
    start = run.at(begin)
    rest = resting_loss(run.risk, run.floor)
    # 1/excess = t/limit + const: t must outgrow the constant, which may be large after
    # large first steps
    own = limit / max(start.loss - rest, 1e-300)
    missed = 1.0 - float(np.min(run.attention[-1]))
    if isinstance(run.risk, PopulationRisk) and math.isfinite(run.risk.N):
        missed = _beside(run.risk, run.params)
        require(missed <= apart, "the features have not come far enough apart")
    elif isinstance(run.risk, PopulationRisk):
        each = run.risk.features.probs * start.observed["loss_per_query"]
        own = limit / len(each) / max(float(each.min()), 1e-300)
    lasted = end >= 100.0 * max(begin, own, 1.0)
    require(lasted, "Phase III has not lasted for two decades of its own time scale")
    excess = float(run.loss[-1]) - rest
    require(excess >= lost * rest, "the excess over the floor is lost in rounding")
    return float(run.t[-1]) * excess / limit, 0.05 + 8.0 * missed


def _beside(risk: PopulationRisk, scores: Array) -> float:
    """Largest weight of a token relative to the lightest one of the level above it."""
    largest = 0.0
    assert risk.levels is not None
    for levels, column in zip(risk.levels, scores.T, strict=True):
        for upper, lower in zip(levels.classes, levels.classes[1:], strict=False):
            largest = max(
                largest, float(np.exp(column[lower].max() - column[upper].min()))
            )
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
SAMPLED = tuple(
    Statement(
        f"{lemma}, sampled",
        f"paper, {lemma} (exact form)",
        words,
        "identity",
        Status.MEASURED,
    )
    for lemma, words in (
        ("Lemma 1", "the step's loss has the mean ½ E[aᵀC^(k)a + σ² Σ a²/n]"),
        ("Lemma 2", "the step's gradient has the mean of the lemma, along it"),
    )
)


def population_of(trainer: Risk) -> Risk | None:
    """Return the risk, in the same coordinates, that a trainer's prompts are drawn
    from; None for token noise.
    """
    core = core_risk(trainer)
    if isinstance(core, CountedRisk) or (
        isinstance(core, SampledRisk) and not core.token_noise
    ):
        return replace_core(
            trainer, PopulationRisk(core.features, core.task, core.N, core.noise)
        )
    return None


def within_noise(
    run: Trajectory, population: Risk, fewest: int = 20
) -> list[BoundCheck]:
    r"""Hold the losses and gradients of a run's own prompts against Lemmas 1 and 2.

    At step t the scores are known before its prompts are drawn, so that
    :math:`\hat\ell_t/\ell(\theta_t) - 1` and :math:`\langle \hat g_t,
    g(\theta_t)\rangle/\|g(\theta_t)\|^2 - 1` are differences of a martingale, whatever
    the learning rate: their means over the saved steps, at least ``fewest``, are 0
    within their standard errors, without a bias.
    """
    assert run.risk is not None
    fixed = getattr(core_risk(run.risk), "dataset", None) is not None
    if fixed or len(run.t) < fewest:
        fresh = "the prompts are a fixed set: their mean is not that of fresh ones"
        reason = fresh if fixed else f"needs {fewest} saved steps"
        return [statement.unstated(reason) for statement in SAMPLED]
    ratios = np.array(
        [
            _ratios(run.risk, population, state, int(t))
            for t, state in zip(run.t, run.states, strict=True)
        ]
    )
    limit = limit_of(1.0 / len(SAMPLED), len(ratios) - 1)
    found = []
    for statement, column in zip(SAMPLED, ratios.T, strict=True):
        check = mean_check(statement.name, 1.0, column, limit)
        note = f"z = {check.z:+.1f} of at most {check.limit:.1f}, standard error {check.standard_error:.1g}"
        found.append(
            statement.complete(
                BoundCheck.of(
                    check.sampled, 1.0, check.passed, abs(check.sampled - 1.0), note
                )
            )
        )
    return found


def _ratios(
    trainer: Risk, population: Risk, params: Array, step: int
) -> tuple[float, float]:
    """Loss and slope of a step's prompts, relative to the population's."""
    loss, gradient = trainer.evaluate(params, step)
    exact, slope = population.evaluate(params)
    size = float(np.sum(slope * slope))
    if not (exact > 0.0 and size > 0.0 and math.isfinite(size)):
        return 1.0, 1.0  # nothing is left to learn
    return loss / exact, float(np.sum(gradient * slope)) / size
