"""Rows that are proved, by ball arithmetic; without python-flint they say that they need it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np

from icl_theory.certified import certify, check_installed
from icl_theory.engine.statement import OURS, Status
from icl_theory.families.regression.simulate import simulate
from icl_theory.papers.claim import Found, Outcome, row


def _by_proof(proof: Callable[[bool], Found]) -> Callable[[bool], Found]:
    """Make a row that proves something one that says so where that cannot be done."""

    @functools.wraps(proof)
    def found(quick: bool) -> Found:
        try:
            check_installed()
        except ValueError as error:
            only = f"{Outcome.ONLY.value} as far as others measure"
            return Found(True, "nothing is proved here", str(error), only)
        try:
            return proof(quick)
        except ArithmeticError as error:
            return Found(False, "balls", str(error))

    return found


@row("step count, proved", OURS, Status.EXACT, "the enclosures, one integer each")
@_by_proof
def steps(quick: bool) -> Found:
    """the number of steps is the integer that balls enclose, also where the closed form changes its method"""
    features = (4, 20, 50) if quick else range(2, 61)
    proofs = [
        certify(simulate(1.0, 1.0, float(eta), K=K, epsilon=epsilon), states=1).named("steps")
        for K, epsilon in itertools.product(features, (1e-2, 1e-8))
        for edge in (27.0 / 64.0 * (K - 1) ** 2 / K, K**2 / 16.0)
        for eta in (np.nextafter(edge, 0.0), edge, np.nextafter(edge, math.inf))
    ]
    equal, wide = sum(each.error == 0.0 for each in proofs), max(len(each.ball) for each in proofs)
    places = "ηL²Δ² = K²/16 and c = 27/128 and their neighbours"
    grid = f"{len(proofs)} runs, K = {features[0]}..{features[-1]}, {places}"
    return Found(equal == len(proofs), grid, f"{equal} equal; enclosures up to {wide} wide")


@row("Phase I, proved", OURS, Status.CERTIFIED, "all of the box")
@_by_proof
def phase_one(quick: bool) -> Found:
    """[F(1/3) - F(1/K)]/c <= T₁ <= 3K²/(2ηγ) + ln(K/3) + 2 at every point of a box, cut until balls decide"""
    from flint import arb, ctx

    from icl_theory.certified.closed import everywhere, phase_one_lies_between

    features, decades, done = *((4, 0.5) if quick else (50, 4.0)), 0
    with ctx.workprec(96):
        for K in range(2, features + 1):
            least = K / (2 * arb(K - 1) ** 2) / arb(10) ** decades  # c = ηL²Δ²K/(2(K - 1)²) at the smallest L
            done += everywhere(functools.partial(phase_one_lies_between, K), least, least * arb(100) ** decades)
    grid = f"K = 2..{features}, {decades:g} decades of L around 1, η = Δ = 1"
    return Found(True, grid, f"proved on {done:,} pieces")
