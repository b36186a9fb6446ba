"""What is proved at length: counts and losses of random problems, and bounds on boxes of parameters."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flint import acb, arb, ctx

import icl_theory as icl
from icl_theory.certified import closed
from icl_theory.certified.losses import enclosed
from icl_theory.papers.linear_attention.law import PromptLaw
from icl_theory.regression.closed.polynomials import POLYNOMIALS


def at_random(problems: int) -> Iterator[tuple[int, float, float, float]]:
    """Random problems with up to some 10¹² steps: K, η, L and ε, for Δ = 1."""
    rng = np.random.default_rng(2026)
    left = problems
    while left:
        K = int(rng.integers(2, 200))
        eta = 10.0 ** rng.uniform(-4, 3)
        L = 10.0 ** rng.uniform(-2, 2)
        epsilon = 10.0 ** rng.uniform(-12, 0) * L**2
        if (K - 1) / (4.0 * eta * epsilon) + K**2 / (eta * L**2 / 2.0) < 1e12:
            left -= 1
            yield K, eta, L, epsilon


def compare_counts(problems: int) -> None:
    """Compare the counts of the closed form with their enclosures."""
    tried = single = outside = most = 0
    start = time.perf_counter()
    for K, eta, L, epsilon in at_random(problems):
        run = icl.simulate(L, 1.0, eta, K=K, epsilon=epsilon)
        found = icl.certify(run, states=1).named("steps").ball
        tried = tried + 1
        single = single + (found[0] == found[-1])
        most = max(most, found[-1])
        if run.steps is None or not found[0] <= run.steps <= found[-1]:
            outside += 1
            print(
                f"  outside: K={K} eta={eta!r} L={L!r} epsilon={epsilon!r}: {run.steps}, {found}, {run.error}"
            )
    spent = time.perf_counter() - start
    print(
        f"{tried} counts up to {most:.1e}, {single} single integers, {outside} outside, {spent:.0f} s"
    )


def compare_modes(problems: int) -> None:
    """Compare the counts of linear attention along a diagonal with their enclosures."""
    tried = outside = beyond = 0
    rng = np.random.default_rng(2027)
    for _ in range(problems):
        d = int(rng.integers(1, 9))
        N = int(10.0 ** rng.uniform(0, 3))
        decay = float(rng.choice([0.0, 1.0, 4.0]))
        noise = float(rng.choice([0.0, 0.3]))
        above = 10.0 ** rng.uniform(-10, -1)
        eta = ("auto", 0.1, 0.01)[int(rng.integers(3))]
        run = icl.LinearAttention(
            d=d, decay=decay, N=N, noise=noise, above=above, eta=eta
        ).simulate()
        if run.steps:
            found = icl.certify(run, states=1).named("steps")
            tried = tried + 1
            off = not found.ball[0] <= run.steps <= found.ball[-1]
            outside = outside + off
            beyond = beyond + (off and (found.error or 0.0) > found.stated)
    print(
        f"linear attention: {tried} counts, {outside} outside, {beyond} by more than the run says"
    )


def states(problems: int) -> Iterator[tuple[str, icl.Risk, np.ndarray]]:
    """Random risks at random states."""
    for seed in range(problems):
        rng = np.random.default_rng([7, seed])
        K = int(rng.integers(2, 9))
        N = int(10.0 ** rng.uniform(0.31, 3))
        noise = float(rng.choice([0.0, 0.5]))
        scale = 10.0 ** rng.uniform(-1, 1)
        match seed % 5:
            case 0:
                kind = icl.Kind(
                    N,
                    rng.dirichlet(np.ones(K)),
                    rng.normal(size=(K, 2)),
                    rng.uniform(size=K),
                )
                risk: icl.Risk = icl.TokenRisk([kind], rng.normal(size=2))
            case 1 | 2:
                features = icl.Features.random(
                    K, 3, 0.3, seed=seed, probs=rng.dirichlet(np.full(K, 4.0))
                )
                risk = icl.PopulationRisk(
                    features,
                    icl.tasks.Linear(1.5),
                    N if seed % 5 == 1 else math.inf,
                    noise,
                )
            case 3:
                risk = icl.ExchangeableRisk(
                    int(rng.integers(2, 100)),
                    2.0,
                    float(rng.choice([N, math.inf])),
                    noise,
                )
            case _:
                square, other = rng.normal(size=(2, 3, 3))
                law = PromptLaw(square @ square.T, other @ other.T, N=N, noise=noise)
                risk = icl.linear_attention.MergedRisk(law, np.zeros((3, 3)))
        yield type(risk).__name__, risk, rng.normal(size=np.shape(risk.initial)) * scale


def compare_states(problems: int) -> None:
    """Compare losses and gradients in doubles with their enclosures."""
    worst: dict[str, tuple[float, float, float, float]] = {}
    for name, risk, state in states(problems):
        start = time.process_time()
        loss, gradient = enclosed(risk, state, 128)
        spent = time.process_time() - start
        value, slope = risk.evaluate(state)
        flat = np.atleast_1d(np.asarray(gradient, dtype=object)).ravel()
        # one token has all attention
        size = max(float(abs(each).mid()) for each in flat) or value
        apart = float(abs(loss - value).upper())
        if isinstance(risk, icl.TokenRisk) and apart > risk.error(state):
            print(f"  {name}: loss off by {apart:.1e}, stated {risk.error(state):.1e}")
        tilted = (
            max(
                float(abs(a - b).upper())
                for a, b in zip(flat, np.ravel(slope), strict=True)
            )
            / size
        )
        wide = max(
            float(loss.rad()) / value, max(float(each.rad()) for each in flat) / size
        )
        old = worst.get(name, (0.0,) * 4)
        worst[name] = tuple(map(max, old, (apart / value, tilted, wide, spent)))  # type: ignore[assignment]
    for name, (off, tilted, wide, spent) in worst.items():
        print(
            f"{name}: loss off by {off:.1e} of itself, gradient by {tilted:.1e} of its largest entry; "
            f"relative width {wide:.1e}, {spent:.2f} s"
        )


def soon_after() -> int:
    """From attention 1/2 to the loss ε there are 7(K - 1)/(16ηε) + 1 steps at most, for all K, L, η and ε.

    Returned is the number of pieces.

    Beyond a = 1/3 steps become shorter, so there are (F(1 - s) - F(1/2))/c + 1 at most,
    and 2/(c s²) is (K - 1)/(ηε). On (0, 1/16] s² (F(1 - s) - F(1/2)) is below ½ + 2 s +
    3 s² |ln s|.
    """
    half = arb(1) / 2
    first = arb(1) / 16
    if not half + 2 * first - 3 * first**2 * first.log() < 7 / arb(8):
        raise SystemExit("not proved for s <= 1/16")
    # F(1/K) is F(1/2)
    return closed.everywhere(
        lambda s: bool(s * s * closed.flow(s, 2) <= 7 / arb(8)), first, half
    )


def polynomial(coefficients: Any, x: Any) -> Any:
    """Return a polynomial, lowest power first."""
    total = x * 0
    for coefficient in reversed(coefficients):
        total = total * x + int(coefficient)
    return total


def missing(form: str, x: Any, p: Any) -> Any:
    r"""Return p r, where r = B(u + c g) - B(u) - 1, for a = x and p = c a (form "a"), or s = x and p = c s² ("s").

    It takes balls, and power series with rational coefficients.
    """
    a, s = (x, 1 - x) if form == "a" else (1 - x, x)
    step = p * s * s if form == "a" else p * a
    left = (-step).exp()
    rise = step.exp() - 1
    # 1/a = 1 + w and 1/s = 1 + 1/w, where w falls by the factor e^-step; F grows by
    # flow/p
    if form == "a":
        flow = (
            s * (1 - left)
            + 3 * a * step
            + 3 * a * a / s * rise
            + a**3 / (2 * s * s) * rise * (2 + rise)
        )
    else:
        flow = (
            s**3 / a * (1 - left)
            + 3 * s * s * step
            + 3 * a * s * rise
            + a * a / 2 * rise * (2 + rise)
        )
    up = 1 / (a + s * left)
    down = left * up
    power = 1 if form == "a" else 2
    ratio = up if form == "a" else down
    total = (up * down * down).log() / 2 - 1
    for j, (coefficients, denominator) in enumerate(POLYNOMIALS[form], start=1):
        before, after = (
            polynomial(coefficients[power * j :], place) / denominator
            for place in (x, x * ratio)
        )
        total = total + p**j * (ratio ** (power * j) * after - before)
    return flow + p * total


def largest(form: str, pieces: int = 24, arcs: int = 48) -> arb:
    """Return a bound on |r| where |p| = P, from balls over arcs of the circle and intervals of a or s."""
    with ctx.workprec(64):
        width = (arb(1) / 3 if form == "a" else arb(0.67)) / pieces
        most = arb(0)
        for i in range(pieces):
            x = acb(width * (2 * i + 1) / 2 + arb(0, width / 2))
            for k in range(
                arcs
            ):  # the upper half; the lower one has the conjugate values
                angle = arb.pi() * (arb(2 * k + 1) / (2 * arcs)) + arb(
                    0, arb.pi() / (2 * arcs)
                )
                most = most.max(
                    abs(
                        missing(
                            form,
                            x,
                            acb(
                                closed.RADIUS * angle.cos(), closed.RADIUS * angle.sin()
                            ),
                        )
                    ).upper()
                )
        return (most / closed.RADIUS).upper()


def further(form: str, pieces: int = 60, p: float = 0.01) -> arb:
    """Return a bound on B' - 1/(c g) up to this p: on ½(s - 2a) and the slopes of the polynomials."""
    width = (arb(1) / 3 if form == "a" else arb(0.67)) / pieces
    most = arb(0)
    for i in range(pieces):
        x = width * (2 * i + 1) / 2 + arb(0, width / 2)
        a, s = (x, 1 - x) if form == "a" else (1 - x, x)
        total = abs(s - 2 * a) / 2
        for j, (coefficients, denominator) in enumerate(POLYNOMIALS[form], start=1):
            power = j if form == "a" else 2 * j
            # of x P', where x' = ±x(1 - x)
            slope = [k * int(each) for k, each in enumerate(coefficients)]
            total += (
                arb(p) ** j * abs(polynomial(slope[power:], x) * (1 - x)) / denominator
            )
        most = most.max(total.abs_upper())
    return most


def boxes() -> None:
    """Prove what the counts and a bound on all parameters rest on."""
    for form in "as":
        print(
            f"proved: B' is within 2 of 1/(c g) in form {form}: {bool(further(form) < 2)}"
        )
        known = closed.LARGEST[form]
        print(f"proved: |r| <= {known} in form {form}: {bool(largest(form) <= known)}")
    print(
        f"proved: {(soon_after.__doc__ or '').partition('.')[0]}; {soon_after()} pieces"
    )


def main() -> None:
    """Make one of the proofs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("counts", "modes", "states", "boxes"))
    parser.add_argument(
        "--problems",
        type=int,
        default=2000,
        help="how many random problems (not boxes)",
    )
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {
        "counts": lambda: compare_counts(arguments.problems),
        "modes": lambda: compare_modes(arguments.problems),
        "states": lambda: compare_states(arguments.problems),
        "boxes": boxes,
    }
    parts[arguments.part]()


if __name__ == "__main__":
    main()
