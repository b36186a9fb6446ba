"""A run is certified: what it says is enclosed, one quantity after the other."""

from __future__ import annotations

from icl_theory._validate import instance, integer, refuse
from icl_theory.certified.certificate import Certificate
from icl_theory.engine.progress import counted
from icl_theory.engine.trajectory import Trajectory


def check_installed() -> None:
    """Ask for python-flint if it cannot be imported."""
    try:
        import flint  # noqa: F401
    except ImportError:
        raise ValueError("a proof needs python-flint: pip install 'icl-theory[certified]'") from None


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
        python-flint is not installed; the risk has no enclosure; or the precision is too low for an answer, and the
        message says how many bits would do.

    References
    ----------
    docs/proved.md; F. Johansson, Arb: efficient arbitrary-precision midpoint-radius interval arithmetic, 2017.

    Examples
    --------
    >>> import icl_theory as icl
    >>> print(icl.certify(icl.simulate(2.0, 1.0, 4.0, epsilon=1e-9)).named("steps"))
    steps: proved, 1,187,646,524 (the run says 1,187,646,524)
        rests on the map u ← u + c a s² for L, Δ, η and ε as they are, and a bounded sum
    """
    check_installed()
    instance("run", run, Trajectory, "a Trajectory")
    bits, states = integer("bits", bits, minimum=32, maximum=8192), integer("states", states, minimum=1)
    if run.risk is None:
        raise refuse("run", "a run without its risk", "one that says what was trained")
    if run.risk.stochastic:
        raise refuse("run", "trained on samples", "one on the population")
    from icl_theory.certified.facts import facts  # needs python-flint

    return Certificate(counted(facts(run, bits, states), "enclosures"))
