"""A run is certified: what is proved of it are intervals, and what each of them rests on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from icl_theory._extras import install
from icl_theory._validate import argument_error, choice, instance, integer
from icl_theory.engine.progress import counted
from icl_theory.engine.pullback import core_risk
from icl_theory.engine.risk import Risk
from icl_theory.engine.scope import DESCENT_OR_FLOW
from icl_theory.engine.trajectory import Trajectory
from icl_theory.papers.linear_attention.risks import MergedRisk


@dataclass(frozen=True, eq=False)
class Proved:
    """A quantity, the interval that is proved to hold it, and what the proof rests on.

    Attributes
    ----------
    name : str
        What is enclosed.
    ball : flint.arb, ndarray of flint.arb, or range
        All numbers that it may be; a range for a number of steps.
    basis : str
        What the proof rests on, and which numbers it takes as exact.
    double : float, int, ndarray or None
        What the package computed without proof.
    stated : float
        By how much the package says that ``double`` may be off.
    """

    name: str
    ball: Any
    basis: str
    double: Any = None
    stated: float = 0.0

    @property
    def error(self) -> float | None:
        """Proved bound on the error of ``double``, the largest of an array; None without one."""
        if self.double is None:
            return None
        if isinstance(self.ball, range):
            return float(max(self.ball[-1] - self.double, self.double - self.ball[0]))
        apart = np.ravel(np.asarray(self.ball, dtype=object) - self.double)
        return max(float(abs(each).upper()) for each in apart) * (1.0 + 2.0**-50)

    @property
    def interval(self) -> str:
        """The interval in decimal digits, rounded outward."""
        if isinstance(self.ball, range):
            return " to ".join(
                f"{end:,}" for end in sorted({self.ball[0], self.ball[-1]})
            )
        if np.ndim(self.ball):
            return f"{self.ball.size} entries to within {max(float(each.rad()) for each in self.ball.flat):.1e}"
        return str(self.ball.str(30))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the numbers that its balls are made of: balls themselves can be neither pickled nor copied."""
        return _unpacked, (
            self.name,
            _packed(self.ball),
            self.basis,
            self.double,
            self.stated,
        )

    def __str__(self) -> str:
        off, error = "", self.error
        if error is not None and isinstance(self.ball, range):
            wrong = (
                f" and that it may be off by {self.stated:g}"
                if error <= self.stated
                else ", which is wrong"
            )
            off = f" (the run says {self.double:,}{'' if int(self.double) in self.ball else wrong})"
        elif error is not None:
            off = f" (the double is off by at most {error:.1e})"
        return f"{self.name}: proved, {self.interval}{off}\n    rests on {self.basis}"


@dataclass(frozen=True)
class _Ball:
    """A ball in whole numbers: midpoint and radius as (mantissa, exponent of 2), or the text of an infinite one."""

    middle: tuple[int, int] | str
    radius: tuple[int, int] = (0, 0)


def _packed(ball: Any) -> Any:
    """Return a ball, an array of balls or a range in plain numbers, exactly."""
    if isinstance(ball, range):
        return ball
    if np.ndim(ball):
        packed = np.empty(np.shape(ball), dtype=object)
        for place in np.ndindex(packed.shape):
            packed[place] = _packed(ball[place])
        return packed
    if not ball.is_finite():
        return _Ball(str(ball))
    middle, radius = (end.man_exp() for end in (ball.mid(), ball.rad()))
    return _Ball((int(middle[0]), int(middle[1])), (int(radius[0]), int(radius[1])))


def _unpacked(name: str, packed: Any, basis: str, double: Any, stated: float) -> Proved:
    """Return what was proved, from plain numbers."""
    return Proved(name, _ball_of(packed), basis, double, stated)


def _ball_of(packed: Any) -> Any:
    from flint import arb

    if isinstance(packed, range):
        return packed
    if isinstance(packed, np.ndarray):
        balls = np.empty(packed.shape, dtype=object)
        for place in np.ndindex(balls.shape):
            balls[place] = _ball_of(packed[place])
        return balls
    if isinstance(packed.middle, str):
        return arb(packed.middle)
    ball = arb(packed.middle, packed.radius)
    if ball.rad() == arb(packed.radius):
        return ball
    # A radius has 30 bits and is rounded upward on its way in: from just below the
    # right one to the right one.
    mantissa, exponent = packed.radius
    shift = 32 - mantissa.bit_length()
    rounded = arb(packed.middle, ((mantissa << shift) - 1, exponent - shift))
    return rounded if rounded.rad() == arb(packed.radius) else ball


class Certificate(tuple[Proved, ...]):
    """What is proved of a run; `str` has a line or two for each quantity, and entries are found by their names."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__

    def named(self, name: str) -> Proved:
        """Return the quantity of a name."""
        names = [each.name for each in self]
        return self[names.index(choice("name", name, names))]

    def to_dict(self) -> list[dict[str, str | None]]:
        """Return names, intervals and what they rest on as text."""
        return [
            {"name": each.name, "proved": each.interval, "rests on": each.basis}
            for each in self
        ]


def check_installed() -> None:
    """Ask for python-flint if it cannot be imported."""
    try:
        import flint  # noqa: F401
    except ImportError:
        raise ValueError(
            f"a proof needs python-flint: {install('certified')}"
        ) from None


def certify(run: Trajectory, *, bits: int = 128, states: int = 3) -> Certificate:
    """Enclose losses, gradients, numbers of steps and constants of a run in balls, with proof.

    Which of them, and what the proofs take as exact, is said in docs/proved.md.

    Parameters
    ----------
    run : Trajectory
        With its risk: not one read from a file that does not say what was trained.
    bits : int
        Precision of the arithmetic, 32 to 8192; 128 leave losses some 25 digits.
    states : int
        How many saved states, from the first to the last.

    Returns
    -------
    Certificate
        One `Proved` for each quantity.

    Raises
    ------
    ValueError
        python-flint is not installed; the risk has no enclosure; or the precision is
        too low for an answer, and the message says how many bits would do.

    References
    ----------
    docs/proved.md; F. Johansson, Arb: efficient arbitrary-precision midpoint-radius
    interval arithmetic, 2017.

    Examples
    --------
    >>> import icl_theory as icl
    >>> print(icl.certify(icl.simulate(2.0, 1.0, 4.0, epsilon=1e-9)).named("steps"))
    steps: proved, 1,187,646,524 (the run says 1,187,646,524)
        rests on the map u ← u + c a s² for L, Δ, η and ε as they are, and a bounded sum
    """
    check_installed()
    instance("run", run, Trajectory, "a Trajectory")
    bits = integer("bits", bits, minimum=32, maximum=8192)
    states = integer("states", states, minimum=1)
    if run.risk is None:
        raise argument_error(
            "run", "a run without its risk", "one that says what was trained"
        )
    if run.risk.stochastic:
        raise argument_error("run", "trained on samples", "one on the population")
    return Certificate(counted(_proofs(run, run.risk, bits, states), "enclosures"))


def _proofs(run: Trajectory, risk: Risk, bits: int, states: int) -> Iterator[Proved]:
    """Yield losses and gradients at saved states, and what gradient descent has in closed form."""
    from icl_theory.certified import closed, losses  # need python-flint

    given = closed.given(run)
    core = core_risk(risk)
    sums = not isinstance(core, MergedRisk) and math.isfinite(getattr(core, "N", 0.0))
    basis = f"the {'parameters L and Δ' if given else 'doubles of the risk'} and of the state as they are, "
    basis += (
        "and sums in balls with the proved error of their rule"
        if sums
        else "and closed formulas in balls"
    )
    for i in np.unique(
        np.linspace(0, len(run.t) - 1, min(states, len(run.t))).round().astype(int)
    ):
        state = run.states[i]
        step = f"at step {run.t[i]}"
        found = _answer(
            bits,
            f"the loss {step}",
            partial(losses.enclosed, risk, state, gamma=given and given[0]),
        )
        for name, ball, double in zip(
            ("loss", "gradient"), found, risk.evaluate(state), strict=True
        ):
            yield Proved(f"{name} {step}", ball, basis, np.asarray(double)[()])
    for name, enclose, *others in (
        closed.closed_forms(run, given) if DESCENT_OR_FLOW.applies(run) else ()
    ):
        yield Proved(name, _answer(bits, name, partial(closed.at, enclose)), *others)


def _answer(
    bits: int,
    name: str,
    enclose: Callable[[int], Any],
    doublings: int = 4,
    sharp: int = 24,
) -> Any:
    """Return what some bits enclose; if fewer than ``sharp`` of them are known, say how many would do."""
    found: dict[int, Any] = {}

    def known(
        bits: int,
    ) -> bool:  # whether steps are one number, and other numbers have digits
        with contextlib.suppress(ArithmeticError):
            found[bits] = number = enclose(bits)
            if isinstance(number, range):
                return number[0] == number[-1]
            # a gradient has those of its loss
            number = number[0] if isinstance(number, tuple) else number
            return bool(number.is_zero() or number.rel_accuracy_bits() >= sharp)
        return False

    enough = next(filter(known, (bits * 2**k for k in range(doublings + 1))), 0)
    if enough > bits or bits not in found:
        least = f"at least {enough}" if enough else f"more than {bits * 2**doublings}"
        raise argument_error("bits", bits, f"{least} for {name}")
    return found[
        bits
        # if nothing is enough, an honest interval, which more bits do not make one
        # number
    ]
