"""Verdicts on chains, induction heads, tokens and locations follow the evidence: made-up measurements again."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace as Made
from typing import Any

import numpy as np
import pytest

from icl_theory.papers import induction_heads as rows
from icl_theory.papers import markov
from tests.papers.test_verdicts import Case, Measured, by, first, in_turn, judged


def chains(ends: Callable[..., bool], basin: Callable[..., bool] = lambda q, **_: q < 0.5, off: float = 0.0) -> Any:
    """Fixed chains that end at the bigram or not, and whose flow ends there or not; energies that are off."""

    def problem(**given: Any) -> Any:
        e, w = given["e"], given["w"]
        return Made(
            basin=lambda: "bigram" if basin(**given) else "unigram",
            energy=e**2 - w**2 - math.copysign(1.0, w) * math.log(abs(w)) + off * (given["p"] == 0.5),
            risk=lambda: Made(gap=2.0),
            simulate=lambda: Made(
                loss=[9.0, 3.99 if ends(**given) else 4.01], floor=3.0, states=np.array([[e, w], [e, w]])
            ),
        )

    return problem


def lazily(q: float, **_: Any) -> bool:
    return q < 0.5


def from_tied(lazy: float = 9.0, switching: float = 9.0, untied: float = 9.0) -> Any:
    """Ends of small starts: bigrams but for tied chains that switch, and for w beyond these sizes."""

    def ends(q: float, w: float, readout: Any, **_: Any) -> bool:
        if readout != "tied":
            return w < untied
        return w < lazy if q < 0.5 else w > switching

    return chains(ends)


def apart_from(**limits: float) -> Any:
    """Chains whose ends leave the basins of the flow beyond a w for each learning rate."""
    off = {0.1: 9.0, 1.0: 1.8, 4.0: 0.8} | {float(eta[1:].replace("_", ".")): w for eta, w in limits.items()}
    return chains(lambda q, w, eta, **_: (q < 0.5) == (w < off[eta]))


MARKOV = [
    Case(
        markov.curvature,
        {
            "_curvatures": by(
                first, {"tied": [(2.0, [-9e-9]), (-0.1, [-1.1e-8])], 0.5: [(2.0, [-2e-3]), (1.0, [-1.1e-3])]}
            )
        },
        [
            {"_curvatures": by(first, {"tied": tied, 0.5: [(1.0, [untied])]})}
            for tied, untied in (
                ([(0.1, [-1.1e-8])], -1.0), ([(-0.1, [-9e-9])], -1.0), ([(0.1, [0.0])], -9e-4),
            )
        ],
        ("1 minima in 2 cases", "-0.002..-0.001"),
    ),
    Case(markov.energy, {"FixedChain": chains(lazily, off=9e-8)}, [{"FixedChain": chains(lazily, off=1.1e-7)}]),
    Case(
        markov.basins,
        {"FixedChain": chains(lazily)},
        [{"FixedChain": chains(lambda w, x=x, **_: w < x)} for x in (-2.0, 1.8)],
        ("108 of 108 as predicted; at the unigram 0 and 54",),
    ),
    Case(
        markov.small_starts,
        {"FixedChain": from_tied()},
        [{"FixedChain": from_tied(**x)} for x in ({"lazy": 0.1}, {"switching": 0.1}, {"untied": 0.1})],
        ("40 and 0 tied, 40 and 40 untied",),
    ),
    Case(
        markov.steps,
        {"FixedChain": apart_from()},
        [{"FixedChain": apart_from(**x)} for x in ({"_0_1": 1.8}, {"_1_0": 9.0}, {"_4_0": 1.8})],
        ("at the other end 0, 12, 36 with η = 0.1, 1.0, 4.0",),
    ),
]  # fmt: skip


class Base(Made):
    """A problem of a module that makes others; what is called is taken as it is by `judged`."""

    def __call__(self) -> None:
        raise NotImplementedError


def plateaus(
    losses: tuple[float, ...] = (0.709, 0.581, 0.519), few: bool = False, regime: str = "induction"
) -> Any:
    names = ("uniform", "unigram", "bigram")
    spans = dict(zip(names[few:], ((0, 5), (5, 30), (30, 99)), strict=False))
    problem = Made(
        T=50,
        predictors=dict(zip(names, (0.69, 0.6, 0.5), strict=True)),
        simulate=lambda: Made(loss=np.array(losses), phases=Made(present=lambda: spans), regime=regime),
    )
    return Base(changed=lambda **_: problem)


def informed(power: float = -1.09, sign: float = 1.0) -> Measured:
    """A chain whose information is 0.135, and slopes that lack a power of the length."""
    problem = Made(changed=lambda T: T)
    return {
        "dirichlet_points": lambda *_: (np.array([[[0.9, 0.1], [0.3, 0.7]]]), np.ones(1)),
        "LOG": Base(changed=lambda **_: problem),
        "signals": lambda T: [0.0, 0.135 - sign * T**power],
    }


def ended(anti: str = "anti-lag 0", head: str = "induction", high: float = 0.3, low: float = 0.2) -> Any:
    def started(T: int, match: float) -> Any:
        found = (anti if T == 7 else "anti-lag 0", high) if match == 0.0 else (head if T == 4 else "induction", low)
        return Made(simulate=lambda: Made(regime=found[0], loss=[1.0, found[1]]))

    return lambda T, **_: Made(changed=lambda match: started(T, match))


def longer(off: float = 0.0, power: float = 1.0) -> Measured:
    limit = np.array([1.0, 2.0, 4.0])
    return {
        "on_chains": lambda _chains, _lags, T: T,
        "signals": lambda T: limit + 5.0 * (32.0 / T) ** power + off * (T == 128),
        "_information": lambda *_: (limit, None),
    }


def information(ratio: float = 1.0 + 9e-13, later: float = 0.99) -> Measured:
    codes = {law: 1.0 + i for i, law in enumerate(rows.LAWS)}
    return {
        "_chains": lambda law, count: np.full(count, codes[law]),
        "_information": lambda chain, _: (
            np.array([0.0, (ratio if chain[0] == 1.0 else chain[0]) / 9.0, 0.0]), np.array([0.0, 1.0, later]),
        ),
    }  # fmt: skip


def winning(wins: tuple[int, int, int] = (10, 12, 0), later: int = 12) -> Measured:
    """Slopes of which that of lag 1 is the largest in so many draws of each law, and above lag 2 in so many."""

    def slopes(drawn: tuple[str, int]) -> Any:
        law, seed = drawn
        own = 1.0 if seed < wins[rows.LAWS.index(law)] else 3.0
        return np.array([own, 2.0, 2.5 if law == "lazy" and seed >= later else 0.5])

    return {"_chains": lambda law, _, seed: (law, seed), "on_chains": first, "signals": slopes}


def in_stages(shares: tuple[float, float] = (0.951, 0.049), apart: tuple[float, float] = (1.9, 10.1)) -> Any:
    """Two layers in stages: attention on lag 1 and what is above the floor, in units of joint training."""

    def made(match: float = 0.0, stage: int = 0, objective: str = "square", **_: Any) -> Any:
        good, share = match > 0.0, shares[0] if match > 0.0 else shares[1]
        loss = 1.0 + 0.01 * ((apart[0] if good else apart[1]) if stage else 1.0)
        given = {"match": match, "stage": stage, "objective": objective}
        run = Made(observed={"first": np.array([[0.5, 0.5], [1.0 - share, share]])}, loss=[2.0, loss], floor=1.0)
        return Made(objective=objective, simulate=lambda: run, changed=lambda **more: made(**{**given, **more}))

    return made


def nested(given: float = 2.019, trained: float = 1.519, drop: float = 0.049) -> Any:
    """Times of the flow to half of ln 2, and a bit less to 90 %."""

    def flowed(risk: Any, _: float, epsilon: float, method: str) -> Any:
        assert method == "flow"
        time = risk.N ** (trained if risk.trained else given)
        return Made(t=[0.0, time * (1.0 if epsilon < 0.4 else 1.0 - (0.5 if risk.trained else drop))])

    return flowed


PROBLEM: Any = Base(T=100, changed=lambda **_: PROBLEM)
TWO_LAYERS = [
    Case(
        rows.three_phases,
        {"LOG": plateaus()},
        [
            {"LOG": plateaus(**x)}
            for x in (
                {"losses": (0.711, 0.6, 0.5)}, {"losses": (0.69, 0.579, 0.5)}, {"losses": (0.69, 0.6, 0.521)},
                {"few": True}, {"regime": "lag 0"},
            )
        ],
        ("uniform 5, unigram 25, bigram 69", "0.019 above the bigram"),
    ),
    Case(
        rows.useless_unigrams,
        {"LOG": PROBLEM, "emergence": in_turn(10.0, 9.9)},
        [{"emergence": in_turn(10.0, 10.0)}],
        ("ηt = 10, and 10",),
    ),
    Case(
        rows.long_sequences,
        informed(),
        [informed(-1.11), informed(-0.89), informed(sign=-1.0)],
        ("0.13500, less",),
    ),
    Case(
        rows.short_sequences,
        {"InductionHeads": ended()},
        [
            {"InductionHeads": ended(**x)}
            for x in ({"anti": "anti-lag 1"}, {"head": "lag 0"}, {"high": 0.2}, {"anti": "induction"})
        ],
        ("anti-lag 0 with 0.3000", "induction with 0.2000"),
    ),
    Case(
        rows.first_gradient,
        longer(0.059),
        [longer(0.061), longer(-0.061), longer(power=0.6), longer(power=1.3)],
        ("T = 64, 128",),
    ),
    Case(
        rows.chi_squared,
        information(),
        [information(1.0 + 2e-12), information(1.0 - 2e-12), information(later=1.0)],
        ("ratio 1.000, 1.000, 2.00..2.00, 3.00..3.00; lag 2 has up to 0.99",),
    ),
    Case(
        rows.argmax,
        winning(),
        [winning((9, 12, 0)), winning((12, 9, 0)), winning((12, 12, 1)), winning(later=11)],
        ("lag 1 wins in 10, 12, 0 sets of 12; against lag 2 alone in 36 of 36",),
    ),
    Case(
        rows.stages,
        {"InductionHeads": in_stages()},
        [
            {"InductionHeads": in_stages(*x)}
            for x in (
                ((0.949, 0.0), (1.0, 20.0)), ((1.0, 0.051), (1.0, 20.0)), ((1.0, 0.0), (2.1, 20.0)),
                ((1.0, 0.0), (1.0, 9.9)),
            )
        ],
        ("square, b = 0.1: 0.951 on lag 1; 0.01900 and 0.01000", "b = -0.1: 0.049 on lag 1; 0.10100 and 0.01000"),
    ),
    Case(
        rows.circuits,
        {"descend": nested()},
        [{"descend": nested(*x)} for x in ((2.021,), (1.979,), (2.0, 1.521), (2.0, 1.479), (2.0, 1.5, 0.051))],
        ("exponent 2.019, with trained output 1.519", "5e-02 and 5e-01"),
    ),
]  # fmt: skip

CASES = [*MARKOV, *TWO_LAYERS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row.__module__[18:]}-{case.row.__name__}")
def test_evidence_beyond_a_limit_turns_the_verdict(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = judged(case.row, case.good, monkeypatch)
    assert not claim.violated, claim
    said = f"{claim.grid} {claim.measured} {claim.verdict}"
    assert [words for words in case.said if words not in said] == [], said
    turned = [judged(case.row, {**case.good, **bad}, monkeypatch).violated for bad in case.bad]
    assert turned == [True] * len(case.bad)
