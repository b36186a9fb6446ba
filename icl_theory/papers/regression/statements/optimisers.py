"""An open question: the effect of update rules other than gradient descent.

Letters: there are K features, whose smallest distance is Δ, and N = ∞ tokens. Functions
are L-Lipschitz. In the exchangeable class all pairs of features have the variogram
γ = L²Δ²/2, and one number describes the scores: the gap u between the score of the
query's own feature and the other scores, which are all equal. The learning rate is η,
the loss at step t is L(t), and a run ends at the loss ε, after T_ε steps. T_I, T_II and
T_III are the lengths of the phases. Phase I ends at attention ½ on the query's own
feature, and Phase III is the tail, in which the loss of gradient descent falls like
1/t. Momentum has the factor β, and weight decay the factor λ. Adam has the decay rate
β₂ of its mean squares, and the term ε of its denominator, which is called the
stabiliser here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

import icl_theory as icl
from icl_theory import engine, regression
from icl_theory._validate import Array
from icl_theory.regression import tasks
from icl_theory.statements.claim import Series, along, question
from icl_theory.statements.numbers import listed, off, power, span

# The exchangeable problem of the runs with momentum and weight decay: K features, and
# γ = L²Δ²/2 for L = 2 and Δ = 1.
K = 20
GAMMA = 2.0
# Adam's steps cannot be written as steps of the one number u: it trains all K × K
# scores. This problem has fewer features, so that it does not take long.
SMALL_K = 6
# Adam's default ε, and the learning rate of the runs with several ε.
DEFAULT_STABILISER = engine.Adam().stabiliser
ETA_OF_STABILISERS = 0.1
# The effective learning rate η/(1 - β) of the runs with weight decay; β is 0 without
# momentum.
DECAYED_RATE = 4.0
# An answer says that measured numbers agree with expected ones if they differ by less
# than this share. The value is a choice, for words and not for verdicts; the largest
# difference here is 7 %.
ROUGHLY = 0.15


class Ends(NamedTuple):
    """Numbers of steps at which the phases of a run end.

    Measured numbers are integers; predicted ones have fractions.

    Attributes
    ----------
    attends : float
        The first step with attention ½, the end of Phase I.
    tail : float
        The first step of the tail, the end of Phase II.
    target : float
        The first step with the target loss, the end of Phase III and of the run.
    """

    attends: float
    tail: float
    target: float

    @property
    def lengths(self) -> Array:
        """T_I, T_II, T_III and T_ε, (4,)."""
        return np.array(
            [
                self.attends,
                self.tail - self.attends,
                self.target - self.tail,
                self.target,
            ]
        )


@question("optimisers", "step", "loss")
def optimisers(quick: bool) -> tuple[str, list[Series]]:
    """What do momentum, Adam and weight decay change?"""
    momentum, momentum_series = _momentum(quick)
    adam, adam_series = _adam(quick)
    decay, decay_series = _weight_decay(quick)
    return f"{momentum} {adam} {decay}", [*momentum_series, *adam_series, *decay_series]


# ---- momentum


def _momentum(quick: bool) -> tuple[str, list[Series]]:
    """Compare momentum with gradient descent, and with a formula.

    Momentum β should act like the learning rate η/(1 - β), so that each phase is 1 - β
    times as long as under gradient descent. Return the answer in words, and its curves.
    """
    risk = icl.ExchangeableRisk(K, GAMMA)
    eta = 0.1
    epsilon = 5e-3 if quick else 1e-4
    plain_run = icl.descend(risk, eta, epsilon=epsilon)
    plain_lengths = _measured_ends(plain_run).lengths
    series = [along("gradient descent", plain_run, plain_run.loss)]
    # For each run, the lengths of its phases, divided by 1 - β and by the lengths under
    # gradient descent.
    length_ratios = []
    errors_of_ends = []
    betas = (0.9,) if quick else (0.3, 0.5, 0.7, 0.9)
    for beta in betas:
        for rule_type in (engine.HeavyBall, engine.Nesterov):
            run = icl.descend(risk, eta, epsilon=epsilon, rule=rule_type(beta))
            measured = _measured_ends(run)
            is_nesterov = rule_type is engine.Nesterov
            predicted = _predicted_ends(risk, eta, beta, epsilon, is_nesterov)
            length_ratios.append(measured.lengths / (1.0 - beta) / plain_lengths)
            errors_of_ends.append(np.subtract(measured, predicted))
        # At the scale of the figure both rules have the same curve: draw it for the
        # last rule.
        series.append(along(f"β = {beta:g}", run, run.loss))

    ratios = np.array(length_ratios)  # (runs, 4): a column for each length
    ranges = _named(
        ("T_I", "T_II", "T_III", "T_ε"),
        [span(ratios_of_length, ".3f") for ratios_of_length in ratios.T],
    )
    largest_errors = np.abs(errors_of_ends).max(axis=0)  # (3,): one for each end
    shown_errors = _named(
        ("T_I", "T_I + T_II", "T_ε"), [f"{error:.1f}" for error in largest_errors]
    )
    acts_as_rate = np.abs(ratios - 1.0).max() < ROUGHLY
    return (
        f"Momentum {'acts as' if acts_as_rate else 'is not just'} a larger learning"
        f" rate: at η = {eta:g} the lengths of the phases over 1 - β are"
        f" {ranges} times those of gradient descent (heavy ball and"
        " Nesterov, β up to 0.9). The flow at the rate η/(1 - β) with its first"
        f" correction is off by at most, in steps: {shown_errors}."
    ), series


def _named(names: tuple[str, ...], texts: list[str]) -> str:
    """Return texts with commas between them, each after its name."""
    pairs = zip(names, texts, strict=True)
    return ", ".join(f"{name} {text}" for name, text in pairs)


def _measured_ends(run: icl.Trajectory) -> Ends:
    """Return the first steps with attention ½, in the tail, and at the target.

    The run must reach its target.
    """
    # `tail_start` returns the deficit 1 - attention at which the tail begins.
    attention_in_tail = 1.0 - regression.tail_start(K)
    attends = run.first(lambda state: float(np.min(state.attention)) >= 0.5)
    tail = run.first(lambda state: float(np.min(state.attention)) >= attention_in_tail)
    # A run that reaches its target has passed the other two ends.
    assert attends is not None
    assert tail is not None
    assert run.steps is not None
    return Ends(attends, tail, run.steps)


def _predicted_ends(
    risk: icl.ExchangeableRisk, eta: float, beta: float, epsilon: float, nesterov: bool
) -> Ends:
    """Predict the ends of the phases with momentum β.

    The number of steps until the gap is u is T = T_flow + delay + κ ln(g_T/g_0). T_flow
    is the time of gradient flow at the rate η/(1 - β), and g_0 and g_T are the slopes
    of the loss at the gaps 0 and u; see docs/theory/rules.md, "Step counts".
    ``nesterov`` tells Nesterov's momentum from the heavy ball.
    """
    # The modules load slowly, and a list of rows and questions does not need them.
    from scipy.integrate import quad
    from scipy.optimize import brentq

    rate = eta / (1.0 - beta)
    # κ and the delay of the heavy ball, and then of Nesterov's momentum.
    kappa = 0.5 * (1.0 + beta) / (1.0 - beta)
    delay = beta / (1.0 - beta)
    if nesterov:
        kappa = kappa - beta
        delay = beta**2 / (1.0 - beta)

    def slope(u: float) -> float:
        """g, minus the derivative of the loss with respect to u."""
        _, gradient = risk.evaluate(np.asarray(u))
        return -float(gradient)

    def time_per_gap(u: float) -> float:
        """dt/du of the flow, whose velocity is the rate times g over the metric.

        The metric is the squared length of the change of all scores if u grows by 1.
        """
        return risk.metric / (rate * slope(u))

    def steps_to(u: float) -> float:
        """T until the gap u, plus half a step."""
        flow_time, _ = quad(time_per_gap, 0.0, u, limit=500, epsrel=1e-10)
        log_ratio = math.log(slope(u) / slope(0.0))
        # The first step at or after the crossing is half a step later on average.
        return float(flow_time) + delay + kappa * log_ratio + 0.5

    def gap_at(attention: float) -> float:
        """Return the gap u with attention e^u/(e^u + K - 1)."""
        return math.log((K - 1) * attention / (1.0 - attention))

    def log_loss_over_target(u: float) -> float:
        """ln(loss/ε), which is zero at the target."""
        return math.log(float(risk.loss(np.asarray(u))) / epsilon)

    # At u = 60 the loss has the factor e^-120, so that the target is passed.
    gap_at_target = float(brentq(log_loss_over_target, 0.0, 60.0))
    return Ends(
        attends=steps_to(gap_at(0.5)),
        tail=steps_to(gap_at(1.0 - regression.tail_start(K))),
        target=steps_to(gap_at_target),
    )


# ---- Adam


def _adam(quick: bool) -> tuple[str, list[Series]]:
    """Measure the rate of Adam's exponential tail, its end, and the 1/t tail after it.

    The loss should fall by the factor √β₂ in each step, until Adam's ε (the stabiliser)
    dominates its denominator. From then on Adam is gradient descent at the rate η/ε, so
    that t L(t) tends to (K-1) ε/(4η). See docs/theory/rules.md, "Adam's tail is
    exponential". Return the answer in words, and its curve.
    """
    # With a smaller β₂, a shorter memory, the loss falls faster. Quick runs then need
    # fewer steps.
    beta2 = 0.95 if quick else 0.99
    expected_rate = 0.5 * abs(math.log(beta2))
    steps = 800 if quick else 6000
    # The 1/t tail begins only after the exponential one, and needs more steps.
    last_steps = 2 * steps if quick else 4 * steps
    # The run with the default ε at the rate 0.1 is used twice: for the rates, and for
    # the ends of the exponential tail.
    runs = _AdamRuns(beta2)

    etas = (0.1, 0.2) if quick else (0.025, 0.05, 0.1, 0.2)
    runs_by_rate = [runs.of(eta, DEFAULT_STABILISER, steps) for eta in etas]
    # The losses 1e-6 and 1e-8 are within the exponential tail: it has begun, and Adam's
    # ε does not matter yet.
    rates = [_decline(run, high=1e-6, low=1e-8) for run in runs_by_rate]
    is_exponential = off(rates, expected_rate) < ROUGHLY

    # For each stabiliser, the loss at which the exponential tail ends.
    end_losses = {}
    for stabiliser in (1e-6, 1e-7, DEFAULT_STABILISER):
        run = runs.of(ETA_OF_STABILISERS, stabiliser, steps)
        end_losses[stabiliser] = _end_of_exponential(run, expected_rate)
    exponent = power(list(end_losses), list(end_losses.values()))

    # The 1/t tail begins first with the largest stabiliser. The limit of t L(t) is
    # (K-1) ε/(4η).
    largest_stabiliser = max(end_losses)
    long_run = runs.of(ETA_OF_STABILISERS, largest_stabiliser, last_steps)
    limit = (SMALL_K - 1) * largest_stabiliser / (4.0 * ETA_OF_STABILISERS)
    over_limit = float(long_run.t[-1] * long_run.loss[-1]) / limit
    drawn_run = runs_by_rate[-1]
    return (
        f"Adam's tail is {'exponential' if is_exponential else 'not exponential'}: for"
        f" β₂ = {beta2:g} the loss falls at the rate {listed(rates, '.4f')} in each"
        f" step for η = {listed(etas, 'g')}, where ½|ln β₂| = {expected_rate:.4f}. The"
        f" rate has halved at the loss {listed(end_losses.values(), '.0e')} for Adam's"
        f" ε = {listed(end_losses, '.0e')}, fitted by ε^{exponent:.2f}; after that t"
        f" L(t) 4η/((K-1)ε) is {over_limit:.2f} at step {int(long_run.t[-1]):,}."
    ), [along("Adam", drawn_run, drawn_run.loss)]


class _AdamRuns:
    """Runs of Adam on a small problem, each of which is computed once."""

    def __init__(self, beta2: float) -> None:
        self._beta2 = beta2
        features = icl.Features.simplex(SMALL_K, delta=1.0)
        self._risk = icl.PopulationRisk(features, tasks.Exchangeable(2.0))
        self._runs: dict[tuple[float, float, int], icl.Trajectory] = {}

    def of(self, eta: float, stabiliser: float, steps: int) -> icl.Trajectory:
        """Return the run of all ``steps``, even if its loss no longer falls."""
        key = (eta, stabiliser, steps)
        if key not in self._runs:
            rule = engine.Adam(beta2=self._beta2, stabiliser=stabiliser)
            self._runs[key] = icl.descend(
                self._risk, eta, steps=steps, rule=rule, give_up=False
            )
        return self._runs[key]


def _decline(run: icl.Trajectory, high: float, low: float) -> float:
    """Return the mean fall of ln loss per step between the losses ``high`` and ``low``.

    The run must go below both losses.
    """
    first = run.first(lambda state: state.loss <= high)
    last = run.first(lambda state: state.loss <= low)
    assert first is not None
    assert last is not None
    return math.log(run.at(first).loss / run.at(last).loss) / (last - first)


def _end_of_exponential(run: icl.Trajectory, expected_rate: float) -> float:
    """Return the loss after which ln loss falls at less than half the expected rate.

    Rates are taken in the intervals between neighbouring saved steps. The result is the
    loss at the end of the last interval whose rate is half of the expected one or more.
    """
    rates = -np.diff(np.log(run.loss)) / np.diff(run.t)
    fast_intervals = np.flatnonzero(rates >= 0.5 * expected_rate)
    end_of_last = fast_intervals[-1] + 1
    return float(run.loss[end_of_last])


# ---- weight decay


def _weight_decay(quick: bool) -> tuple[str, list[Series]]:
    """Compare the loss at which weight decay λ ends the tail with a formula.

    A second rule with the same weight decay must come to rest at the same loss. Return
    the answer in words, and its curves.
    """
    risk = icl.ExchangeableRisk(K, GAMMA)
    decays = [1e-3, 1e-4] if quick else [1e-3, 1e-4, 1e-5, 1e-6]
    resting_losses = []
    predicted = []
    # Relative differences between the two rules.
    differences = []
    series = []
    for decay in decays:
        # Momentum β acts like the learning rate η/(1 - β). This effective rate is the
        # same for both rules: gradient descent has β = 0, and the heavy ball β = ½.
        run = _decayed(
            risk, DECAYED_RATE, engine.Decayed(engine.GradientDescent(), decay), decay
        )
        heavy_run = _decayed(
            risk, 0.5 * DECAYED_RATE, engine.HeavyBall(0.5, weight_decay=decay), decay
        )
        resting_loss = float(run.loss[-1])
        resting_losses.append(resting_loss)
        predicted.append(_predicted_resting_loss(decay))
        differences.append(abs(float(heavy_run.loss[-1]) / resting_loss - 1.0))
        series.append(along(f"λ = {decay:.0e}", run, run.loss))
    ratios = np.divide(resting_losses, predicted)
    # The difference comes from skipped steps. If it is small, only a bound is shown,
    # because its digits would differ between machines.
    largest_difference = max(differences)
    agreement = "1e-6" if largest_difference < 1e-6 else f"{largest_difference:.0e}"
    exponent = power(decays, resting_losses)
    return (
        f"Weight decay ends the tail: for λ = {listed(decays, '.0e')} the loss comes to"
        f" rest at {listed(resting_losses, '.2e')}, which is {span(ratios, '.3f')}"
        f" times ½(K-1)λu* and is fitted by λ^{exponent:.2f}; with the heavy ball it"
        f" rests at the same loss to {agreement}."
    ), series


def _decayed(
    risk: icl.ExchangeableRisk, eta: float, rule: engine.Rule, decay: float
) -> icl.Trajectory:
    """Return a run that is long enough to come to rest.

    ``decay`` is the weight decay λ of the rule, and ``eta`` its learning rate. With
    momentum β the effective rate ``eta/(1 - β)`` must be ``DECAYED_RATE``.
    """
    # After t steps at the effective rate r = 4, the distance of u from its value at
    # rest has fallen at least like e^(-rλt). With t = 10/λ this is e^-40.
    steps = math.ceil(10.0 / decay)
    return icl.descend(risk, eta, steps=steps, rule=rule, method="fast", give_up=False)


def _predicted_resting_loss(decay: float) -> float:
    """Return the loss ½(K-1)λu* at the gap u* with e^(-u*) = √(λu*/(γK)).

    Here λ is the weight decay. docs/theory/rules.md derives both formulas.
    """
    # The module loads slowly, and a list of rows and questions does not need it.
    from scipy.optimize import brentq

    def difference(u: float) -> float:
        """Left side minus right side of the equation for u*."""
        return math.exp(-u) - math.sqrt(decay * u / (GAMMA * K))

    # The difference falls with u. For λ from 1e-9 to 1 its zero is between these ends.
    resting_gap = float(brentq(difference, 1e-3, 40.0))
    return 0.5 * (K - 1) * decay * resting_gap
