"""Compare counts and losses of random problems with their enclosures, and prove bounds.

    python scripts/proofs.py counts --problems 2000

An enclosure is a ball of python-flint, a midpoint and a radius, which contains the
exact number. The letters are those of docs/proved.md. For exchangeable tasks, a is the
attention on the right feature and s = 1 - a, K is the number of features, η the
learning rate, and ε the target of the loss. Descent reduces to the map u ↦ u + c g(u)
with g = a s² and a constant c. F is the time of its flow, and B is a function of u that
grows by nearly 1 in each step.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from flint import acb, arb, ctx

import icl_theory as icl
from icl_theory.certified import closed
from icl_theory.certified.losses import enclosed
from icl_theory.papers.linear_attention.law import PromptLaw
from icl_theory.regression.closed.polynomials import POLYNOMIALS

# Problems of more than about this number of steps are not drawn. Any limit would do.
MOST_STEPS = 1e12
# Intervals of a or s on which the polynomials are bounded: the head ends at a = 1/3,
# and the tail begins a little below a = 1/3 (``closed.TAIL_ATTENTION``).
WIDTHS = {"a": arb(1) / 3, "s": arb(0.67)}
# The precision of the balls on the circle |p| = P, on which r is bounded. A bound of
# two or three digits is enough.
BITS_ON_CIRCLE = 64


class Problem(NamedTuple):
    """A problem of exchangeable tasks, with the distance Δ = 1 of the features."""

    K: int
    eta: float
    L: float
    epsilon: float


def at_random(problems: int) -> Iterator[Problem]:
    """Yield random problems with up to about `MOST_STEPS` steps."""
    rng = np.random.default_rng(2026)
    to_draw = problems
    while to_draw:
        K = int(rng.integers(2, 200))
        eta = 10.0 ** rng.uniform(-4, 3)
        L = 10.0 ** rng.uniform(-2, 2)
        epsilon = 10.0 ** rng.uniform(-12, 0) * L**2
        # The tail takes about (K - 1)/(4ηε) steps, and the head K²/(ηγ), γ = L²/2.
        steps = (K - 1) / (4.0 * eta * epsilon) + K**2 / (eta * L**2 / 2.0)
        if steps < MOST_STEPS:
            to_draw -= 1
            yield Problem(K, eta, L, epsilon)


def compare_counts(problems: int) -> None:
    """Compare the counts of steps of the closed form with their enclosures.

    Print how many counts lie outside, and how many enclosures are a single integer.
    """
    tried = single = outside = most = 0
    start = time.perf_counter()
    for problem in at_random(problems):
        run = icl.simulate(
            problem.L, 1.0, problem.eta, K=problem.K, epsilon=problem.epsilon
        )
        # The integers that the count may be, in order.
        possible = icl.certify(run, states=1).named("steps").ball
        tried = tried + 1
        single = single + (possible[0] == possible[-1])
        most = max(most, possible[-1])
        if run.steps is None or not possible[0] <= run.steps <= possible[-1]:
            outside += 1
            print(f"  outside: {problem}: {run.steps}, {possible}, {run.error}")
    spent = time.perf_counter() - start
    print(
        f"{tried} counts up to {most:.1e}, {single} single integers,"
        f" {outside} outside, {spent:.0f} s"
    )


def compare_modes(problems: int) -> None:
    """Compare the counts of steps of linear attention with their enclosures.

    Counts are computed with floats, so some lie outside. Those that are off by more
    than the error that the run states are counted by themselves. Moments are diagonal.
    """
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
            proved = icl.certify(run, states=1).named("steps")
            tried = tried + 1
            is_outside = not proved.ball[0] <= run.steps <= proved.ball[-1]
            outside = outside + is_outside
            beyond = beyond + (is_outside and (proved.error or 0.0) > proved.stated)
    print(
        f"linear attention: {tried} counts, {outside} outside,"
        f" {beyond} by more than the run says"
    )


def states(problems: int) -> Iterator[tuple[str, icl.Risk, np.ndarray]]:
    """Yield the name of the class of a random risk, the risk, and a random state.

    There are five kinds of risks in turn.
    """
    for seed in range(problems):
        rng = np.random.default_rng([7, seed])
        K = int(rng.integers(2, 9))
        N = int(10.0 ** rng.uniform(0.31, 3))
        noise = float(rng.choice([0.0, 0.5]))
        # The size of the state, from nearly uniform to nearly saturated attention.
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


class Errors(NamedTuple):
    """Errors of a loss and a gradient in doubles, and the quality of their enclosures.

    Attributes
    ----------
    loss : float
        The error of the loss, relative to the loss.
    gradient : float
        The largest error of an entry of the gradient, relative to the largest entry.
    width : float
        The larger of the relative radii of the two enclosures.
    seconds : float
        The time that the enclosures took.
    """

    loss: float
    gradient: float
    width: float
    seconds: float


def errors_at(name: str, risk: icl.Risk, state: np.ndarray) -> Errors:
    """Compare loss and gradient in doubles with their enclosures at one state."""
    start = time.process_time()
    # Balls of 128 bits are far sharper than doubles, which have 53.
    loss, gradient = enclosed(risk, state, 128)
    seconds = time.process_time() - start
    loss_double, gradient_double = risk.evaluate(state)
    entries = np.atleast_1d(np.asarray(gradient, dtype=object)).ravel()
    # If one token has all attention, the gradient is 0, and errors are relative to the
    # loss instead.
    size = max(float(abs(entry).mid()) for entry in entries) or loss_double
    loss_error = float(abs(loss - loss_double).upper())
    if isinstance(risk, icl.TokenRisk) and loss_error > risk.error(state):
        stated = risk.error(state)
        print(f"  {name}: loss off by {loss_error:.1e}, stated {stated:.1e}")
    pairs = zip(entries, np.ravel(gradient_double), strict=True)
    gradient_error = max(float(abs(ball - double).upper()) for ball, double in pairs)
    radius = max(float(entry.rad()) for entry in entries)
    return Errors(
        loss=loss_error / loss_double,
        gradient=gradient_error / size,
        width=max(float(loss.rad()) / loss_double, radius / size),
        seconds=seconds,
    )


def compare_states(problems: int) -> None:
    """Print the largest errors of losses and gradients for each class of risks."""
    worst: dict[str, Errors] = {}
    for name, risk, state in states(problems):
        errors = errors_at(name, risk, state)
        earlier = worst.get(name, errors)
        # The larger error and the larger width, field by field.
        worst[name] = Errors(*map(max, earlier, errors))
    for name, errors in worst.items():
        print(
            f"{name}: loss off by {errors.loss:.1e} of itself, gradient by"
            f" {errors.gradient:.1e} of its largest entry; relative width"
            f" {errors.width:.1e}, {errors.seconds:.2f} s"
        )


def soon_after() -> int:
    """From attention 1/2 to the loss ε there are 7(K - 1)/(16ηε) + 1 steps at most, for all K, L, η and ε.

    Prove this, and return the number of pieces of the proof. `boxes` prints the
    sentence above.

    Steps of u become shorter beyond a = 1/3, so their number is at most one more than
    the time (F(1 - s) - F(1/2))/c of the flow, where s is 1 - a at the loss ε. As
    (K - 1)/(ηε) = 2/(c s²), it is to be proved that s² (F(1 - s) - F(1/2)) is at most
    7/8. For s in (0, 1/16] this number is below ½ + 2 s + 3 s² |ln s|, which is proved
    at 1/16 alone because it increases. For s in [1/16, 1/2] it is enclosed in balls.
    """
    half = arb(1) / 2
    first = arb(1) / 16
    if not half + 2 * first - 3 * first**2 * first.log() < 7 / arb(8):
        raise SystemExit("not proved for s <= 1/16")
    # With K = 2, the flow begins at F(1/K) = F(1/2).
    return closed.everywhere(
        lambda s: bool(s * s * closed.flow(s, 2) <= 7 / arb(8)), first, half
    )


def polynomial(coefficients: Any, x: Any) -> Any:
    """Return the value at x of a polynomial with integer coefficients, by Horner.

    The coefficients begin with the constant one.
    """
    # A zero of the type of x, which may be a ball or a power series.
    total = x * 0
    for coefficient in reversed(coefficients):
        total = total * x + int(coefficient)
    return total


def missing(form: str, x: Any, p: Any) -> Any:
    r"""Return p r, where r = B(u + c g) - B(u) - 1 is what a step of the map lacks.

    In the form "a", x is a and p is c a; in the form "s", x is s and p is c s². Both
    may be balls, or power series with rational coefficients. B is the sum of F/c, half
    a logarithm, and polynomials in a or s times powers of p.
    """
    a, s = (x, 1 - x) if form == "a" else (1 - x, x)
    # c g, the step of u.
    step = p * s * s if form == "a" else p * a
    left = (-step).exp()
    rise = step.exp() - 1
    # With w = e^-u, 1/a = 1 + w and 1/s = 1 + 1/w. A step multiplies w by ``left``, and
    # F/c grows by flow/p.
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
    # The step multiplies a by ``up``, and s by ``down``.
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


def piece(width: arb, i: int, count: int) -> arb:
    """Return piece i of ``count`` equal pieces of the interval from 0 to ``width``."""
    length = width / count
    return length * (2 * i + 1) / 2 + arb(0, length / 2)


def largest(form: str, pieces: int = 24, arcs: int = 48) -> arb:
    """Return a bound on |r| on the circle |p| = P.

    The upper half of the circle is covered by ``arcs`` arcs, and the interval of a or s
    by ``pieces`` pieces; r is enclosed in a ball for each pair of them. With fewer of
    them the balls are wider, and so is the bound.
    """
    with ctx.workprec(BITS_ON_CIRCLE):
        most = arb(0)
        for i in range(pieces):
            x = acb(piece(WIDTHS[form], i, pieces))
            # The upper half is enough: the lower one has the conjugate values.
            for k in range(arcs):
                # The ball of the angles of arc k.
                middle = arb.pi() * (arb(2 * k + 1) / (2 * arcs))
                angle = middle + arb(0, arb.pi() / (2 * arcs))
                p = acb(closed.RADIUS * angle.cos(), closed.RADIUS * angle.sin())
                most = most.max(abs(missing(form, x, p)).upper())
        # `missing` returns p r, and |p| is the radius.
        return (most / closed.RADIUS).upper()


def further(form: str, pieces: int = 60, p: float = 0.01) -> arb:
    """Return a bound on |B' - 1/(c g)| for all p up to the given one.

    B' is the derivative of B with respect to u. The difference is the sum of ½(s - 2a),
    the derivative of ½ ln(a s²), and of the derivatives of the polynomials. The default
    p is above ``closed.SMALL``, the largest p for which the form is used.
    """
    most = arb(0)
    for i in range(pieces):
        x = piece(WIDTHS[form], i, pieces)
        a, s = (x, 1 - x) if form == "a" else (1 - x, x)
        total = abs(s - 2 * a) / 2
        for j, (coefficients, denominator) in enumerate(POLYNOMIALS[form], start=1):
            power = j if form == "a" else 2 * j
            # The coefficients of x P'(x), for a polynomial P. The derivative of x with
            # respect to u is x(1 - x) or -x(1 - x), so that of P is x P'(x) (1 - x) up
            # to its sign.
            slope = [k * int(number) for k, number in enumerate(coefficients)]
            total += (
                arb(p) ** j * abs(polynomial(slope[power:], x) * (1 - x)) / denominator
            )
        most = most.max(total.abs_upper())
    return most


def boxes() -> None:
    """Prove the bounds on which the counts rest, and a bound for all parameters."""
    for form in ("a", "s"):
        is_within = bool(further(form) < 2)
        print(f"proved: B' is within 2 of 1/(c g) in form {form}: {is_within}")
        bound = closed.LARGEST[form]
        is_bounded = bool(largest(form) <= bound)
        print(f"proved: |r| <= {bound} in form {form}: {is_bounded}")
    # The first sentence of the docstring is the statement.
    statement, _, _ = (soon_after.__doc__ or "").partition(".")
    print(f"proved: {statement}; {soon_after()} pieces")


def main() -> None:
    """Make one of the comparisons, or the proofs."""
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
