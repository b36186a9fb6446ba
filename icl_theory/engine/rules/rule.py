"""The contract of an update rule, which turns a gradient and a memory into a step.

The memory is an array in which a rule keeps numbers from step to step, such as a
velocity. The rule gets the memory in each step, and returns the memory after the step.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.risk import Risk

# The memory of a rule without memory. All such rules share this array, so it must not
# be changed.
NO_MEMORY = np.zeros(0)
NO_MEMORY.flags.writeable = False


@runtime_checkable
class Rule(Protocol):
    r"""An update rule: inherit from it and define ``name`` and ``step``.

    A rule with a memory defines ``init`` as well.

    The state of a run is its parameters :math:`\theta_t`, the memory :math:`m_t` of the
    rule and the step t. One step is :math:`(\Delta, m_{t+1}) = \mathrm{step}(\theta_t,
    g_t, m_t, t)` and :math:`\theta_{t+1} = \theta_t + \Delta`. The engine calls
    ``step`` once for each step. It saves the memory with the parameters, so that a run
    continues from any saved step as if it had never stopped. Therefore a rule must not
    keep anything of a run in itself, and must not change its arguments.

    Attributes
    ----------
    name : str
        The name that runs and the command line show.
    skippable : bool
        Whether runs may skip steps. This requires a step that does not depend on t. A
        memory must decay and have the shape of the parameters, and the rule must then
        define `jacobian`. False by default; ``method="auto"`` then takes every step.
    may_stagnate : bool
        Whether a run that makes no more progress may be stopped. It must not be stopped
        if later steps can be larger than the present ones, as in training by stages or
        during a warm-up. False by default.
    reducible : bool
        Whether the rule commutes with reductions of the parameters (`Risk.metric`). If
        it does, training the few numbers of a reduced risk gives the same result as
        training the matrices for which they stand. A rule that divides each entry of
        the gradient by its own size, such as Adam, does not commute. True by default.
    horizon : int or None
        The step from which the learning rate is zero, so that runs by this rule end
        there at the latest; None by default.

    Examples
    --------
    Momentum in seven lines, with a learning rate that is the same at all steps:

    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.engine import Rule
    >>> class Momentum(Rule):
    ...     name = "my-momentum"
    ...     def init(self, risk, params):
    ...         return np.zeros_like(params)
    ...     def step(self, risk, params, gradient, eta, memory, t):
    ...         velocity = 0.5 * memory + gradient / risk.metric
    ...         return -eta * velocity, velocity
    >>> class Bowl(icl.Risk):
    ...     initial = np.ones(2)
    ...     def evaluate(self, params, step=0):
    ...         return 0.5 * float(params @ params), params
    >>> run = icl.descend(Bowl(), 0.5, steps=100, rule=Momentum())
    >>> shorter = icl.descend(Bowl(), 0.5, steps=90, rule=Momentum())
    >>> run.at(3).params, bool((run.at(90).params == shorter.params).all())
    (array([-0.25, -0.25]), True)
    """

    name: str
    skippable: ClassVar[bool] = False
    may_stagnate: ClassVar[bool] = False
    reducible: ClassVar[bool] = True
    horizon: ClassVar[int | None] = None

    def init(self, risk: Risk, params: Array) -> Array:
        """Return the memory at step 0, an array of any shape.

        It is empty for a rule without memory.
        """
        return NO_MEMORY

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        r"""Return the change of the parameters in step t and the memory after it.

        Both are new arrays.

        Parameters
        ----------
        risk : Risk
            The risk that is trained. A step may use its ``metric`` M and its
            ``blocks``.
        params, gradient : ndarray
            :math:`\theta_t` and :math:`g_t = \nabla\mathcal L(\theta_t)`, of the same
            shape.
        eta : float
            Learning rate.
        memory : ndarray
            The memory that `init` or the step before returned.
        t : int
            Number of the step; the first one is 0.
        """
        ...

    def memory_scale(self, eta: float) -> float:
        """Return the total change of the parameters that a memory of size 1 causes.

        It is the sum of the changes in the step that computes the memory and in all
        later steps. Runs that skip steps multiply the memory by this factor, so that
        one tolerance suits parameters and memory.
        """
        return 1.0

    def jacobian(self, rates: Array, eta: float) -> Array | None:
        r"""Return the derivative of a step along an eigenvector of the Hessian.

        Along an eigenvector, a rule with a memory changes k = 2 numbers in each step,
        the parameter and the memory; a rule without a memory changes k = 1 number, the
        parameter. With the derivative, runs that skip steps can pass over directions in
        which the parameters have come to rest. Without it, the steps of a rule with a
        memory cannot be skipped.

        Parameters
        ----------
        rates : ndarray of any shape (...)
            η times eigenvalues of :math:`M^{-1/2}HM^{-1/2}`, with the Hessian H and the
            metric M.
        eta : float
            Learning rate η.

        Returns
        -------
        ndarray of shape (..., k, k), or None
            The derivative of the k changes with respect to the k numbers; None if it is
            not known.
        """
        return None
