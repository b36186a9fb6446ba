"""An open question: the effect of other update rules on the phases and the tail."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine import (
    Adam,
    Decayed,
    GradientDescent,
    HeavyBall,
    Nesterov,
    Rule,
    descend,
)
from icl_theory.engine.trajectory import Trajectory
from icl_theory.regression import (
    ExchangeableRisk,
    Features,
    PopulationRisk,
    tasks,
)
from icl_theory.regression.phases import tail_start
from icl_theory.statements.claim import Series, along, question
from icl_theory.statements.numbers import listed, off, power, span

# L = 2 and Δ = 1
K = 20
GAMMA = 2.0
# Adam trains all K × K scores, so that it has fewer features.
SMALL_K = 6


class Ends(NamedTuple):
    """Steps at which the phases of a run end: attention ½, the onset of the tail, the
    target.
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
    """Lengths of the phases with momentum, times 1/(1 - β), and their formula."""
    risk = ExchangeableRisk(K, GAMMA)
    eta = 0.1
    epsilon = 5e-3 if quick else 1e-4
    plain_run = descend(risk, eta, epsilon=epsilon)
    plain = _measured_ends(plain_run).lengths
    series = [along("gradient descent", plain_run, plain_run.loss)]
    scaled = []
    errors = []
    for beta in (0.9,) if quick else (0.3, 0.5, 0.7, 0.9):
        for make in (HeavyBall, Nesterov):
            run = descend(risk, eta, epsilon=epsilon, rule=make(beta))
            measured = _measured_ends(run)
            predicted = _predicted_ends(risk, eta, beta, epsilon, make is Nesterov)
            scaled.append(measured.lengths / (1.0 - beta) / plain)
            errors.append(np.subtract(measured, predicted))
        # Both rules have the same curve at this scale.
        series.append(along(f"β = {beta:g}", run, run.loss))
    ratios = np.array(scaled)
    ranges = []
    for name, column in zip(("T_I", "T_II", "T_III", "T_ε"), ratios.T, strict=True):
        ranges.append(f"{name} {span(column, '.3f')}")
    worst = []
    largest_errors = np.abs(errors).max(axis=0)
    for name, error in zip(("T_I", "T_I + T_II", "T_ε"), largest_errors, strict=True):
        worst.append(f"{name} {error:.1f}")
    is_rate = np.abs(ratios - 1.0).max() < 0.15
    return (
        f"Momentum {'acts as' if is_rate else 'is not just'} a larger learning rate: at"
        f" η = {eta:g} the lengths of the phases over 1 - β are {', '.join(ranges)}"
        " times those of gradient descent (heavy ball and Nesterov, β up to 0.9). The"
        " flow at the rate η/(1 - β) with its first correction is off by at most, in"
        f" steps: {', '.join(worst)}."
    ), series


def _measured_ends(run: Trajectory) -> Ends:
    """The first steps with attention ½, in the tail, and at the target."""
    attends = run.first(lambda state: float(np.min(state.attention)) >= 0.5)
    tail = run.first(
        lambda state: float(np.min(state.attention)) >= 1.0 - tail_start(K)
    )
    assert attends is not None
    assert tail is not None
    assert run.steps is not None
    return Ends(attends, tail, run.steps)


def _predicted_ends(
    risk: ExchangeableRisk, eta: float, beta: float, epsilon: float, nesterov: bool
) -> Ends:
    """Predict the ends by docs/theory/rules.md: T = T_flow + delay + κ ln(g_T/g_0)."""
    rate = eta / (1.0 - beta)
    kappa = 0.5 * (1.0 + beta) / (1.0 - beta) - (beta if nesterov else 0.0)
    delay = (beta**2 if nesterov else beta) / (1.0 - beta)

    from scipy.integrate import quad  # rows and questions are listed without it
    from scipy.optimize import brentq

    def slope(u: float) -> float:
        return -float(risk.evaluate(np.asarray(u))[1])

    def steps(u: float) -> float:
        flow = quad(
            lambda x: risk.metric / (rate * slope(x)), 0.0, u, limit=500, epsrel=1e-10
        )[0]
        # the first step at or after the crossing: half a step later on average
        return float(flow) + delay + kappa * math.log(slope(u) / slope(0.0)) + 0.5

    # attention a on the own feature is e^u/(e^u + K - 1)
    gaps = [math.log((K - 1) * a / (1.0 - a)) for a in (0.5, 1.0 - tail_start(K))]
    end = brentq(
        lambda u: math.log(float(risk.loss(np.asarray(u))) / epsilon), 0.0, 60.0
    )
    return Ends(*map(steps, (*gaps, float(end))))


# ---- Adam


def _adam(quick: bool) -> tuple[str, list[Series]]:
    """The rate of Adam's exponential tail, and the loss at which it ends."""
    risk = PopulationRisk(Features.simplex(SMALL_K, 1.0), tasks.Exchangeable(2.0))
    beta2 = 0.99
    expected = 0.5 * abs(math.log(beta2))
    etas = (0.05, 0.2) if quick else (0.025, 0.05, 0.1, 0.2)
    steps = 3000 if quick else 6000
    runs = [_trained(risk, eta, Adam(beta2=beta2), steps) for eta in etas]
    rates = [_decline(run, 1e-6, 1e-8) for run in runs]
    ends = {}
    for stabiliser in (1e-6, 1e-7, 1e-8):
        run = _trained(risk, 0.1, Adam(beta2=beta2, stabiliser=stabiliser), steps)
        ends[stabiliser] = _end_of_exponential(run, expected)
    exponent = power(list(ends), list(ends.values()))
    # From then on Adam is gradient descent at the rate η/ε
    last_steps = 2 * steps if quick else 4 * steps
    last = _trained(risk, 0.1, Adam(beta2=beta2, stabiliser=1e-6), last_steps)
    law = (SMALL_K - 1) * 1e-6 / (4.0 * 0.1)
    tail = float(last.t[-1] * last.loss[-1]) / law
    return (
        "Adam's tail is"
        f" {'exponential' if off(rates, expected) < 0.15 else 'not exponential'}: for"
        f" β₂ = {beta2:g} the loss falls at the rate {listed(rates, '.4f')} in each"
        f" step for η = {listed(etas, 'g')}, where ½|ln β₂| = {expected:.4f}. The rate"
        f" has halved at the loss {listed(ends.values(), '.0e')} for Adam's ε ="
        f" {listed(ends, '.0e')}, fitted by ε^{exponent:.2f}; after that t L(t)"
        f" 4η/((K-1)ε) is {tail:.2f} at step {int(last.t[-1]):,}."
    ), [along("Adam", runs[-1], runs[-1].loss)]


def _trained(risk: PopulationRisk, eta: float, rule: Rule, steps: int) -> Trajectory:
    """Return a run of all steps, also if the loss no longer falls."""
    return descend(risk, eta, steps=steps, rule=rule, give_up=False)


def _decline(run: Trajectory, high: float, low: float) -> float:
    """Fall of ln loss in each step, between the first steps at two losses."""
    first = run.first(lambda state: state.loss <= high)
    last = run.first(lambda state: state.loss <= low)
    assert first is not None
    assert last is not None
    return math.log(run.at(first).loss / run.at(last).loss) / (last - first)


def _end_of_exponential(run: Trajectory, expected: float) -> float:
    """The loss from which ln loss falls half as fast as expected, or more slowly."""
    falls = -np.diff(np.log(run.loss)) / np.diff(run.t)
    fast = np.flatnonzero(falls >= 0.5 * expected)
    return float(run.loss[fast[-1] + 1])


# ---- weight decay


def _weight_decay(quick: bool) -> tuple[str, list[Series]]:
    """The loss at which weight decay ends the tail, by two rules, and its formula."""
    risk = ExchangeableRisk(K, GAMMA)
    decays = [1e-3, 1e-4] if quick else [1e-3, 1e-4, 1e-5, 1e-6]
    rests = []
    predicted = []
    # Relative differences between the two rules.
    differences = []
    series = []
    for decay in decays:
        run = _decayed(risk, 4.0, Decayed(GradientDescent(), decay), decay)
        heavy_run = _decayed(risk, 2.0, HeavyBall(0.5, weight_decay=decay), decay)
        rest = float(run.loss[-1])
        rests.append(rest)
        predicted.append(_resting(decay))
        differences.append(abs(float(heavy_run.loss[-1]) / rest - 1.0))
        series.append(along(f"λ = {decay:.0e}", run, run.loss))
    ratios = np.divide(rests, predicted)
    largest = max(differences)
    agreement = "1e-6" if largest < 1e-6 else f"{largest:.0e}"
    return (
        f"Weight decay ends the tail: for λ = {listed(decays, '.0e')} the loss comes to"
        f" rest at {listed(rests, '.2e')}, which is {span(ratios, '.3f')} times"
        f" ½(K-1)λu* and is fitted by λ^{power(decays, rests):.2f}; with the heavy ball"
        f" it rests at the same loss to {agreement}."
    ), series


def _decayed(
    risk: ExchangeableRisk, eta: float, rule: Rule, decay: float
) -> Trajectory:
    """A run that is long enough to come to rest."""
    steps = math.ceil(10.0 / decay)
    return descend(risk, eta, steps=steps, rule=rule, method="fast", give_up=False)


def _resting(decay: float) -> float:
    """½(K-1)λu* with (K-1)e^(-u*) = (K-1)√(λu*/(γK)), from docs/theory/rules.md."""
    from scipy.optimize import brentq  # rows and questions are listed without it

    def balance(u: float) -> float:
        return math.exp(-u) - math.sqrt(decay * u / (GAMMA * K))

    return 0.5 * (K - 1) * decay * float(brentq(balance, 1e-3, 40.0))
