"""In-context regression on the unit sphere, as a family.

The attention is a softmax with one trained number, the inverse temperature κ. `Sphere`
holds the parameters of the problem; its risk is a `SphereRisk`, which is built from
`kernel`, the covariance of the tasks as a function of the cosine c of two inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import Array, argument_error, set_fields
from icl_theory.engine.starts import checked_start
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    NumberOrArray,
    Panel,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.parameters import (
    LazyMethod,
    label_noise,
    learning_rate,
    lipschitz_constant,
    loss_form,
)
from icl_theory.tokens.sphere import SphereRisk

# Largest L of cosine tasks; a cautious choice. The larger L is, the faster their kernel
# e^(-L²(1 - c)) falls from c = 1, and the higher are the degrees that its expansion in
# polynomials of c needs.
LARGEST_L_OF_COSINE = 20.0
# `Sphere.stable_rate` takes the largest curvature at this many values of κ. It need not
# be the exact maximum, because descent diverges only at about twice the rate.
CURVATURE_POINTS = 17


def kernel(task: str, L: float, c: Array) -> Array:
    r"""Return :math:`k(c) = E f(x)f(x')` for inputs with :math:`x^\top x' = c`.

    .. math:: k(c) = L^2 c, \qquad k(c) = e^{-L^2(1 - c)}, \qquad
        k(c) = \frac{L^2}\pi \bigl(\sqrt{1 - c^2} + (\pi - \arccos c)\,c\bigr)

    for linear, cosine and ReLU tasks, with the functions f of `Sphere`. All three
    kernels have the slope :math:`k'(1) = L^2`.
    """
    if task == "linear":
        return L**2 * c
    if task == "cosine":
        return np.exp(-(L**2) * (1.0 - c))
    # ReLU tasks
    return L**2 / math.pi * (np.sqrt(1.0 - c * c) + (math.pi - np.arccos(c)) * c)


@dataclass(frozen=True, eq=False)
class Sphere(Family):
    r"""In-context regression on the unit sphere with softmax attention.

    A prompt has N pairs of an input :math:`x_i` and a label :math:`y_i`, which is
    :math:`f(x_i)` plus noise. The prediction for the query x is

    .. math:: \hat y = \sum_i y_i\,\mathrm{softmax}_i(\kappa x_i^\top x)

    Parameters
    ----------
    task : {"linear", "relu", "cosine"}
        The functions :math:`L\beta^\top x`, :math:`\sqrt2 L\max(\beta^\top x, 0)` or
        :math:`\sqrt2\cos(L\beta^\top x + \phi)` with normal β and uniform φ. In all
        three cases L is the least number with :math:`E(f(x) - f(x'))^2 \le L^2|x -
        x'|^2`.
    d : int
        Dimension of the inputs, which are uniform on the unit sphere.
    N : int
        Pairs in a prompt.
    L : float
        Lipschitz constant of the tasks, in root mean square. Linear and ReLU tasks have
        :math:`Ef^2 = L^2`, and cosine tasks have :math:`Ef^2 = 1`.
    noise : float
        Standard deviation of the label noise, label units.
    start : float
        κ at step 0.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`; ``eta="auto"`` is one over the largest curvature between
        the start and the best κ.

    References
    ----------
    docs/theory/sphere.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.Sphere(N=100, above=1e-9).simulate()
    >>> round(float(run.observed["kappa"][-1]), 2), round(run.risk.best, 2)
    (6.15, 6.15)
    """

    name: ClassVar[str] = "sphere"
    title: ClassVar[str] = "in-context regression on the sphere"
    claims = LazySlot("icl_theory.papers.sphere.statements:CLAIMS")
    explorer = Panel(Path(__file__).parent / "panel", ("closed.js", "panel.js"))
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "best",
            "f8",
            "",
            "κ with the least loss",
            "κ*",
            r"\kappa^*",
            extra=(("table", 1),),
        ),
        Column(
            "predicted",
            "f8",
            "",
            "best κ where bias and variance balance, for long prompts",
            "κ*, predicted",
            r"\kappa^*_\mathrm{predicted}",
            extra=(("table", 1),),
        ),
        Column("kappa", "f8", "", "κ at the end", "κ", r"\kappa"),
    )

    eta: float | str = learning_rate("auto")
    task: str = parameter(
        "linear",
        kind=Word(words=("linear", "relu", "cosine")),
        meaning="functions to be learnt",
    )
    d: int = parameter(
        5, kind=Whole(minimum=2, maximum=1000), meaning="dimension of the inputs"
    )
    N: int = parameter(100, kind=Whole(maximum=10**15), meaning="pairs in a prompt")
    # The risk computes with squares of labels, such as L² and noise², which must not
    # overflow.
    L: float = lipschitz_constant(1.0, 1e15)
    noise: float = label_noise(1.0, 1e15)
    loss: str = loss_form()
    start: Any = parameter(
        0.0,
        kind=NumberOrArray(zero=True, maximum=1e3, ndim=(1,)),
        meaning="κ at step 0",
    )

    predicted = LazyMethod("icl_theory.papers.sphere.statements:predicted")

    def validate(self) -> None:
        """Refuse a start or an L out of range, and build the risk.

        The risk finds the best κ when it is built.
        """
        if not isinstance(self.start, float):
            # A start may be an array of one number. It is then replaced by this number.
            kappa = checked_start(self.start, (1,))[0]
            set_fields(self, start=self.parameters()["start"].check(kappa))
        if self.task == "cosine" and self.L > LARGEST_L_OF_COSINE:
            raise argument_error(
                "L", self.L, f"at most {LARGEST_L_OF_COSINE:g} for cosine tasks"
            )
        covariance = partial(kernel, self.task, self.L)  # a function of c alone
        risk = SphereRisk.of_kernel(covariance, self.d, self.N, self.noise, self.start)
        set_fields(self, _risk=risk)

    def risk(self) -> SphereRisk:
        """Return the risk over κ."""
        return self._risk  # type: ignore[attr-defined, no-any-return]

    def stable_rate(self) -> float:
        """Return one over the largest curvature between the start and the best κ.

        With this rate no step of descent from the start passes the best κ. The
        largest curvature is sought at 17 points between the start and the best κ.
        """
        # A single pair gets all the attention at any κ, so the loss is flat, and any
        # rate is stable.
        if self.N == 1:
            return 1.0
        risk = self.risk()
        direction = np.ones(1)
        curvatures = []
        for kappa in np.linspace(self.start, risk.best, CURVATURE_POINTS):
            # The loss has one parameter: its Hessian is its second derivative.
            (curvature,) = risk.hessian_product(np.array([kappa]), direction)
            curvatures.append(float(curvature))
        return 1.0 / max(curvatures)

    def describe(self, run: Trajectory) -> None:
        """Note which κ is best, and how well the least loss is known."""
        risk = self.risk()
        # ``risk.error`` is the relative change of the least loss if the integral is
        # computed with twice as many nodes.
        run.notes["best"] = (
            f"κ = {risk.best:.6g}, within {risk.error:.0e} of the least loss"
            " by twice the nodes"
        )

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        columns = {"best": self.risk().best}
        # Without label noise there is no variance for the bias to balance.
        predicted = self.predicted()
        if predicted is not None:
            columns["predicted"] = predicted
        columns["kappa"] = float(run.params[0])
        return columns
