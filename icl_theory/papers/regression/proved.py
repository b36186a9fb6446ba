"""Rows that are proved, by ball arithmetic; without python-flint they say that they need it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np

from icl_theory.certified import check_installed
from icl_theory.engine.statement import OURS, Status
from icl_theory.families.regression.simulate import simulate
from icl_theory.papers.claim import Found, Outcome, row


def _by_proof(prove: Callable[[bool], Found]) -> Callable[[bool], Found]:
    """Make a row that proves something one that says so where that cannot be done."""

    @functools.wraps(prove)
    def found(quick: bool) -> Found:
        try:
            check_installed()
        except ValueError as error:
            return Found(
                True, "nothing is proved here", str(error), f"{Outcome.ONLY.value} as far as others measure"
            )
        return prove(quick)

    return found


@row("step count, proved", OURS, Status.EXACT, "the enclosures, one integer each")
@_by_proof
def steps(quick: bool) -> Found:
    """the number of steps is the integer that balls enclose, also where the closed form changes its method"""
    from icl_theory.certified.bounds import steps_of

    features, inside, wide = (4, 20, 50) if quick else range(2, 61), [], []
    for K, epsilon, edge in itertools.product(features, (1e-2, 1e-8), (0.0, 1.0)):
        eta = K**2 / 16.0 if edge else 27.0 / 64.0 * (K - 1) ** 2 / K
        for each in (float(np.nextafter(eta, 0.0)), eta, float(np.nextafter(eta, math.inf))):
            (low, high), run = steps_of(1.0, each, K, epsilon), simulate(1.0, 1.0, each, K=K, epsilon=epsilon)
            inside.append(run.steps is not None and low <= run.steps <= high)
            wide.append(high - low)
    grid = (
        f"{len(inside)} runs, K = {features[0]}..{features[-1]}, ηL²Δ² = K²/16 and c = 27/128 and their neighbours"
    )
    return Found(all(inside) and not any(wide), grid, f"{sum(inside)} equal; enclosures up to {max(wide) + 1} wide")


@row("Phase I, proved", OURS, Status.CERTIFIED, "all of the box")
@_by_proof
def phase_one(quick: bool) -> Found:
    """[F(1/3) - F(1/K)]/c <= T₁ <= 3K²/(2ηγ) + ln(K/3) + 2 at every point of a box, cut until balls decide"""
    from icl_theory.certified.bounds import not_earlier, not_later, pieces

    features, decades = (4, 0.5) if quick else (50, 4.0)
    done = [pieces(bound, decades, features) for bound in (not_earlier, not_later)]
    grid = f"K = 2..{features}, {decades:g} decades of L around 1, η = Δ = 1"
    return Found(all(done), grid, f"proved on {done[0]:,} and {done[1]:,} pieces")
