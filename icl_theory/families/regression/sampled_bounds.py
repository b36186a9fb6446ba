"""The lemmas on a run of a sampled trainer, within the noise of its prompts."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array
from icl_theory.claims.claim import BoundCheck
from icl_theory.claims.comparison import Check, limit_of, mean_check
from icl_theory.engine.pullback import around, innermost
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.regression.counted import CountedRisk
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.sampled import SampledRisk

FEWEST = 20  # saved steps for a mean with a standard error
SAMPLED = tuple(  # name, source, statement and kind
    (f"{lemma}, sampled", f"paper, {lemma} (exact form)", f"the step's {what}", "identity")
    for lemma, what in {
        "Lemma 1": "loss has the mean ½ E[aᵀC^(k)a + σ² Σ a²/n]",
        "Lemma 2": "gradient has the mean of the lemma, along it",
    }.items()
)


def population_of(trainer: Risk) -> Risk | None:
    """Return the risk, in the same coordinates, that a trainer's prompts are drawn from; None for token noise."""
    core, _ = innermost(trainer)
    if isinstance(core, CountedRisk) or (isinstance(core, SampledRisk) and not core.token_noise):
        return around(trainer, PopulationRisk(core.features, core.task, core.N, core.noise))
    return None


def within_noise(run: Trajectory, population: Risk) -> list[BoundCheck]:
    r"""Hold the losses and gradients of a run's own prompts against Lemmas 1 and 2.

    At step t the scores are known before its prompts are drawn, so that :math:`\hat\ell_t/\ell(\theta_t) - 1` and
    :math:`\langle \hat g_t, g(\theta_t)\rangle/\|g(\theta_t)\|^2 - 1` are differences of a martingale, whatever the
    learning rate: their means over the saved steps are 0 within their standard errors, without a bias.

    Parameters
    ----------
    run : Trajectory
        Of a trainer on fresh prompts.
    population : Risk
        Of the same prompts, see `population_of`.

    Returns
    -------
    list of BoundCheck
        Both lemmas; measured are the means, 1 is their bound. Without values where the trainer's prompts are fixed,
        or fewer than twenty steps are saved.
    """
    assert run.risk is not None
    reason = ""
    if getattr(innermost(run.risk)[0], "dataset", None) is not None:
        reason = "the prompts are a fixed set: their mean is not that of fresh ones"
    elif len(run.t) < FEWEST:
        reason = f"needs {FEWEST} saved steps"
    if reason:
        return [BoundCheck(*head, None, None, None, None, reason) for head in SAMPLED]
    ratios = np.array(
        [_ratios(run.risk, population, state, int(t)) for t, state in zip(run.t, run.states, strict=True)]
    )
    limit = limit_of(1.0 / len(SAMPLED), len(ratios) - 1)
    checks = [mean_check(head[0], 1.0, column, limit) for head, column in zip(SAMPLED, ratios.T, strict=True)]
    return [_entry(head, check) for head, check in zip(SAMPLED, checks, strict=True)]


def _entry(head: tuple[str, str, str, str], check: Check) -> BoundCheck:
    note = f"z = {check.z:+.1f} of at most {check.limit:.1f}, standard error {check.standard_error:.1g}"
    return BoundCheck(*head, check.sampled, 1.0, check.passed, abs(check.sampled - 1.0), note)


def _ratios(trainer: Risk, population: Risk, params: Array, step: int) -> tuple[float, float]:
    """Loss and slope of a step's prompts, relative to the population's."""
    loss, gradient = trainer.evaluate(params, step)
    exact, slope = population.evaluate(params)
    size = float(np.sum(slope * slope))
    if not (exact > 0.0 and size > 0.0 and math.isfinite(size)):
        return 1.0, 1.0  # nothing is left to learn
    return loss / exact, float(np.sum(gradient * slope)) / size
