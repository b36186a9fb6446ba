"""Certificates of runs: intervals that are proved, and what each proof rests on.

`certify` returns a `Certificate`, a tuple with one `Proved` for each quantity of the
run. The enclosures themselves are computed in `losses` and in `closed`, which need
python-flint and are imported only when a certificate is asked for.

A *ball* (``flint.arb``) is a number with a bound on its error. A number of steps is
enclosed in a ``range`` of integers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import partial
from typing import Any

import numpy as np

from icl_theory._extras import install
from icl_theory._validate import argument_error, choice, instance, integer
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.engine.scaled import ScaledRisk
from icl_theory.engine.scope import DESCENT_OR_FLOW
from icl_theory.engine.trajectory import Trajectory

# At most this many decimal digits of a ball are printed, and only digits that are
# proved. With the default of 128 bits, some 25 digits of a loss are proved, so that all
# of them are shown.
SHOWN_DIGITS = 30
# An answer with fewer correct bits than this is refused if a higher precision gives at
# least this many. 24 bits are about 7 decimal digits.
FEWEST_CORRECT_BITS = 24


def _rounded_up(bound: float) -> str:
    """Return an upper bound as text, rounded up to two significant digits."""
    two_digits = Context(prec=2, rounding=ROUND_CEILING).create_decimal(bound)
    return f"{float(two_digits):.1e}"


@dataclass(frozen=True, eq=False)
class Proved:
    """A quantity, an interval that provably contains it, and what the proof rests on.

    Attributes
    ----------
    name : str
        Name of the quantity.
    ball : flint.arb, ndarray of flint.arb, or range
        All values that the quantity may have; a range for a number of steps.
    basis : str
        What the proof rests on, and which numbers it takes as exact.
    double : float, int, ndarray or None
        The value that the package computed without proof.
    stated : float
        The error of ``double`` as the package estimates it.
    """

    name: str
    ball: Any
    basis: str
    double: Any = None
    stated: float = 0.0

    @property
    def error(self) -> float | None:
        """Proved bound on the error of ``double``, over all entries of an array."""
        if self.double is None:
            return None
        # The range or ball may be wide, so its farthest number counts.
        if isinstance(self.ball, range):
            return float(max(self.ball[-1] - self.double, self.double - self.ball[0]))
        errors = np.ravel(np.asarray(self.ball, dtype=object) - self.double)
        largest = max(float(abs(error).upper()) for error in errors)
        # float() may have rounded the bound down, by up to a factor of 1 - 2^-53.
        return largest * (1.0 + 2.0**-50)

    @property
    def interval(self) -> str:
        """The interval in decimal digits, rounded outward.

        For an array of balls, the number of entries and the largest radius.
        """
        if isinstance(self.ball, range):
            # A range of a single number has one end.
            ends = sorted({self.ball[0], self.ball[-1]})
            return " to ".join(f"{end:,}" for end in ends)
        if np.ndim(self.ball):
            radius = max(float(entry.rad()) for entry in self.ball.flat)
            return f"{self.ball.size} entries to within {_rounded_up(radius)}"
        return str(self.ball.str(SHOWN_DIGITS))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the balls as integers, because flint cannot pickle them."""
        packed = _packed(self.ball)
        return _unpacked, (self.name, packed, self.basis, self.double, self.stated)

    def __str__(self) -> str:
        statement = f"{self.name}: proved, {self.interval}{self._comparison()}"
        return f"{statement}\n    rests on {self.basis}"

    def _comparison(self) -> str:
        """Say in parentheses how far the double is off, if there is one.

        A number of steps is right if it is one of the possible integers.
        """
        if self.error is None:
            return ""
        if not isinstance(self.ball, range):
            return f" (the double is off by at most {_rounded_up(self.error)})"
        if int(self.double) in self.ball:
            verdict = ""
        elif self.error <= self.stated:
            # The run warned of an error of this size.
            verdict = f" and that it may be off by {self.stated:g}"
        else:
            verdict = ", which is wrong"
        return f" (the run says {self.double:,}{verdict})"


@dataclass(frozen=True)
class _Ball:
    """A ball in integers: midpoint and radius, each as a pair (m, e) for m 2^e.

    A ball that is not finite has no such integers. The text of such a ball takes the
    place of its midpoint.
    """

    middle: tuple[int, int] | str
    radius: tuple[int, int] = (0, 0)


def _packed(ball: Any) -> Any:
    """Write a ball, an array of balls or a range in integers, exactly."""
    if isinstance(ball, range):
        return ball
    if np.ndim(ball):
        packed = np.empty(np.shape(ball), dtype=object)
        for index in np.ndindex(packed.shape):
            packed[index] = _packed(ball[index])
        return packed
    if not ball.is_finite():
        return _Ball(str(ball))
    return _Ball(_mantissa_and_exponent(ball.mid()), _mantissa_and_exponent(ball.rad()))


def _mantissa_and_exponent(number: Any) -> tuple[int, int]:
    """Return the integers m and e for which an exact number of flint is m 2^e."""
    mantissa, exponent = number.man_exp()
    return int(mantissa), int(exponent)


def _unpacked(name: str, packed: Any, basis: str, double: Any, stated: float) -> Proved:
    """Restore the `Proved` that ``Proved.__reduce__`` has packed."""
    return Proved(name, _ball_of(packed), basis, double, stated)


def _ball_of(packed: Any) -> Any:
    """Restore the balls or the range that ``_packed`` has written."""
    from flint import arb

    if isinstance(packed, range):
        return packed
    if isinstance(packed, np.ndarray):
        balls = np.empty(packed.shape, dtype=object)
        for index in np.ndindex(balls.shape):
            balls[index] = _ball_of(packed[index])
        return balls
    if isinstance(packed.middle, str):
        return arb(packed.middle)
    ball = arb(packed.middle, packed.radius)
    if ball.rad() == arb(packed.radius):
        return ball
    # A radius has 30 bits. arb() may round it up by a unit of its last bit, although it
    # needs no rounding. So give arb() a radius that is smaller by at most a quarter of
    # such a unit: arb() rounds it up to the right radius. If the radius is wrong all
    # the same, return the first ball, which is wider and still contains the number.
    mantissa, exponent = packed.radius
    shift = 32 - mantissa.bit_length()
    rounded = arb(packed.middle, ((mantissa << shift) - 1, exponent - shift))
    return rounded if rounded.rad() == arb(packed.radius) else ball


class Certificate(tuple[Proved, ...]):
    """The proved quantities of a run; `str` prints two lines for each of them."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__

    def named(self, name: str) -> Proved:
        """Return the quantity of a name."""
        names = [quantity.name for quantity in self]
        return self[names.index(choice("name", name, names))]

    def to_dict(self) -> list[dict[str, str | None]]:
        """Return one row of text for each quantity: name, interval and basis."""
        rows: list[dict[str, str | None]] = []
        for quantity in self:
            row: dict[str, str | None] = {
                "name": quantity.name,
                "proved": quantity.interval,
                "rests on": quantity.basis,
            }
            rows.append(row)
        return rows


def check_installed() -> None:
    """Raise a ValueError that says how to install python-flint, if it is missing."""
    try:
        import flint  # noqa: F401
    except ImportError:
        raise ValueError(
            f"a proof needs python-flint: {install('certified')}"
        ) from None


def certify(run: Trajectory, *, bits: int = 128, states: int = 3) -> Certificate:
    """Enclose losses, gradients, step counts and constants of a run, with proof.

    docs/proved.md lists the quantities, and which numbers the proofs take as exact.

    Parameters
    ----------
    run : Trajectory
        A run with its risk. A run that was read from a file has its risk only if the
        file says what was trained.
    bits : int
        Precision of the arithmetic, 32 to 8192. With 128 bits, some 25 decimal digits
        of a loss are proved.
    states : int
        Number of saved states whose loss and gradient are enclosed. These states are
        spread evenly over all saved states, from the first to the last.

    Returns
    -------
    Certificate
        One `Proved` for each quantity.

    Raises
    ------
    ValueError
        python-flint is not installed, the run has no risk, the risk has no enclosure,
        or the precision is too low for an answer. In the last case the message says how
        many bits are enough, or how many are still too few.

    References
    ----------
    docs/proved.md; F. Johansson, Arb: efficient arbitrary-precision midpoint-radius
    interval arithmetic, 2017.

    Examples
    --------
    >>> import icl_theory as icl
    >>> print(icl.certify(icl.simulate(2.0, 1.0, 4.0, epsilon=1e-9)).named("steps"))
    steps: proved, 1,187,646,524 (the run says 1,187,646,524)
        rests on the map u ← u + c a s² with exact L, Δ, η and ε, and a bounded sum
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
    if isinstance(run.risk, ScaledRisk):
        raise argument_error(
            "loss",
            "mse",
            "'half' for a certificate: with gd, twice the learning rate takes the same"
            " steps",
        )
    proofs = _proofs(run, run.risk, bits, states)
    # `counted` passes the proofs on, and shows how many are done.
    return Certificate(counted(proofs, unit="enclosures"))


def _proofs(run: Trajectory, risk: Risk, bits: int, states: int) -> Iterator[Proved]:
    """Yield proofs of losses and gradients at saved states, and of closed forms."""
    # These modules need python-flint.
    from icl_theory.certified import closed, losses

    # If the run was made from L and Δ, both parameters of its map follow from these two
    # numbers without rounding: the variogram γ, and the speed, which is the factor on
    # the learning rate if other numbers than the scores are trained. Otherwise
    # ``exact`` is None.
    exact = closed.exact_parameters(run)
    gamma = None if exact is None else exact.gamma
    basis = losses.basis(risk, is_exact=exact is not None)
    n_saved = len(run.t)
    chosen = np.linspace(0, n_saved - 1, min(states, n_saved)).round().astype(int)
    for index in np.unique(chosen):
        state = run.states[index]
        step = f"at step {run.t[index]}"
        loss, gradient = _answer(
            bits,
            f"the loss {step}",
            partial(losses.enclosed, risk, state, gamma=gamma),
        )
        loss_double, gradient_double = risk.evaluate(state)
        # [()] turns an array without axes into a number, and keeps any other array.
        yield Proved(f"loss {step}", loss, basis, double=np.asarray(loss_double)[()])
        yield Proved(
            f"gradient {step}",
            gradient,
            basis,
            double=np.asarray(gradient_double)[()],
        )
    if not DESCENT_OR_FLOW.applies(run):
        return
    for form in closed.closed_forms(run, exact):
        ball = _answer(bits, form.name, partial(closed.with_bits, form.enclose))
        yield Proved(form.name, ball, form.basis, form.double, form.stated)


def _answer(
    bits: int, name: str, enclose: Callable[[int], Any], doublings: int = 4
) -> Any:
    """Return ``enclose(bits)``; refuse the precision if it is too low.

    If the answer is not sharp (see ``_is_sharp``), the precision is doubled up to
    ``doublings`` times. If the answer is sharp at a higher precision, a ValueError says
    how many bits are needed. If it never is, the interval that ``bits`` prove is
    returned although it is wide: more bits would probably not make it sharp. If
    ``bits`` prove no interval at all, an error asks for more bits than were tried. In
    the errors, ``name`` is the quantity. With more ``doublings`` an error could name a
    larger precision, but each doubling takes longer than all before it.
    """
    answer: Any = None
    for doubling in range(doublings + 1):
        precision = bits * 2**doubling
        try:
            ball = enclose(precision)
            is_sharp = _is_sharp(ball)
        except ArithmeticError:
            # Nothing is proved at this precision.
            continue
        if precision == bits:
            answer = ball
            if is_sharp:
                return answer
        elif is_sharp:
            raise argument_error("bits", bits, f"at least {precision} for {name}")
    if answer is None:
        most = bits * 2**doublings
        raise argument_error("bits", bits, f"more than {most} for {name}")
    return answer


def _is_sharp(ball: Any, least_bits: int = FEWEST_CORRECT_BITS) -> bool:
    """Whether a number of steps is one integer, or another quantity has enough bits.

    Enough are at least ``least_bits`` correct bits.
    """
    if isinstance(ball, range):
        return ball[0] == ball[-1]
    number = ball
    if isinstance(ball, tuple):
        # A loss and its gradient, which has about as many bits as the loss.
        number, _gradient = ball
    # A zero without an error is exact.
    return bool(number.is_zero() or number.rel_accuracy_bits() >= least_bits)
