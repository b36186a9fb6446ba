"""Compare a run with the theory of its family, and with samples.

The claims of a family, a `Claims`, may have two functions: ``check`` evaluates the
statements of the theory on a run, and ``compare`` compares a run with samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from icl_theory._validate import argument_error, instance, integer
from icl_theory.engine.comparison import Check as Check
from icl_theory.engine.comparison import Comparison as Comparison
from icl_theory.engine.comparison import CrossCheck as CrossCheck
from icl_theory.engine.comparison import Power, compare, detectable
from icl_theory.engine.curves import CurveComparison as CurveComparison
from icl_theory.engine.explanations import Explanation as Explanation
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import Family
from icl_theory.families.registry import default
from icl_theory.statements.statement import BoundChecks, NotCoveredError


def check_bounds(run: Trajectory) -> BoundChecks:
    """Evaluate on one run every statement that the theory makes about its family.

    Parameters
    ----------
    run : Trajectory
        A run of `simulate`, or of `descend` on a regression risk. A run that was read
        from a file must name the family and the parameters that were trained.

    Returns
    -------
    BoundChecks
        A `BoundCheck` for each statement; its ``holds`` is None if the run does not
        satisfy the hypotheses of the statement.

    Raises
    ------
    ValueError
        The family of the run has no statements, or they do not cover the trained risk.

    References
    ----------
    docs/theory.md; each entry names its source.

    Examples
    --------
    >>> import icl_theory as icl
    >>> checks = icl.check_bounds(icl.simulate(2.0, 1.0, 4.0, imbalance=0.1))
    >>> all(check.holds is not False for check in checks)
    True
    """
    family = _family(instance("run", run, Trajectory, "a Trajectory"))
    if family.claims is None or family.claims.check is None:
        error = argument_error(
            "run",
            f"a run of the family {family.name}",
            "of a family that has statements to check",
        )
        # Callers catch NotCoveredError, but `argument_error` makes a plain ValueError.
        raise NotCoveredError(str(error))
    if run.family is not None:
        # The statements are about half the mean squared error. If the mean squared
        # error was trained, `in_theory_units` converts the losses and the learning rate
        # of the run.
        run = run.family.in_theory_units(run)
    checks: BoundChecks = family.claims.check(run)
    return checks


def crosscheck(run_or_risk: Trajectory | Risk, **options: Any) -> CrossCheck:
    """Compare the exact loss and gradient of a run with sampled data.

    A family may have its own comparison; for regression it is
    `icl_theory.regression.crosscheck`. In any other family that can be sampled, losses
    and gradients are compared at the first, the middle and the last saved state, or
    only at the first if the run has fewer parameters than the sampled problem.

    Parameters
    ----------
    run_or_risk : Trajectory or Risk
        A run of a problem, or a risk of regression.
    **options
        The options of the family's own comparison. If the family has no comparison of
        its own, they are ``batch``, the number of prompts in a batch (default 512),
        ``batches``, the number of batches (64), and ``seed`` (0).

    Returns
    -------
    CrossCheck
        All comparisons, and whether they pass. If the code is right, all comparisons
        pass together in 999 of 1,000 calls.

    Raises
    ------
    ValueError
        The run cannot be sampled, or an option is unknown or out of range.

    References
    ----------
    docs/theory.md, "Population against samples".

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 4.0, K=4, N=20)
    >>> icl.crosscheck(run, batch=128, steps=20).passed
    True
    """
    # A risk without a run counts as a risk of regression, the default family.
    family = _family(run_or_risk) if isinstance(run_or_risk, Trajectory) else default()
    claims = family.claims
    comparison: Any = _with_samples
    if claims is not None and claims.compare is not None:
        comparison = claims.compare
    if isinstance(run_or_risk, Trajectory) and run_or_risk.family is not None:
        # Risks and samplers have half the mean squared error as their loss. If the mean
        # squared error was trained, `in_theory_units` converts the run.
        run_or_risk = run_or_risk.family.in_theory_units(run_or_risk)
    try:
        result: CrossCheck = comparison(run_or_risk, **options)
    except TypeError as error:
        # An unknown option is a mistake of the caller, who gets a ValueError. Any other
        # TypeError is a mistake in this package, and is raised as it is.
        if "unexpected keyword argument" not in str(error):
            raise
        raise argument_error(
            "options", sorted(options), f"options of the comparison ({error})"
        ) from None
    return result


def _with_samples(
    run: Trajectory, *, batch: int = 512, batches: int = 64, seed: int = 0
) -> CrossCheck:
    """Compare exact and sampled losses and gradients at three states of a run.

    If the run has fewer parameters than the sampled problem, they are compared only at
    the initial state. The arguments are the options of `crosscheck` for a family that
    has no comparison of its own.
    """
    batch = integer("batch", batch, minimum=1)
    seed = integer("seed", seed, minimum=0)
    # From fewer than four batches the standard error of their mean could hardly be
    # estimated.
    batches = integer("batches", batches, minimum=4)
    problem: Family = run.family
    points = {
        "the beginning": run.states[0],
        "the middle": run.states[len(run.t) // 2],
        "the end": run.states[len(run.t) - 1],
    }
    checks = compare(problem.risk(), problem.sampled(batch, seed), points, batches)

    def smallest_error(quantity: str) -> float:
        """Return the smallest relative error that every check of a quantity detects.

        `detectable` returns the error that one check finds nine times in ten. Student's
        t of a mean over batches has one degree of freedom less than there are batches.
        """
        smallest_errors = []
        for check in checks:
            # The name of a check is "quantity at state".
            checked_quantity, _at, _state = check.name.partition(" at ")
            if quantity in checked_quantity:
                smallest_errors.append(detectable(check, batches - 1))
        return max(smallest_errors)

    # A `CrossCheck` also has curves of training on samples. Only the comparison of
    # regression trains on samples.
    no_curve = np.zeros(0)
    return CrossCheck(
        checks=tuple(checks),
        note=f"{batches} batches of {batch} samples at {len(checks)} comparisons",
        power=Power(smallest_error("loss"), smallest_error("gradient")),
        t=np.zeros(0, dtype=np.int64),
        population=no_curve,
        sgd=no_curve,
        band=no_curve,
    )


def _family(run: Trajectory) -> type[Family]:
    """Return the family of a run; a run of `descend` counts as regression."""
    return default() if run.family is None else type(run.family)
