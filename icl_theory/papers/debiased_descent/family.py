"""In-context linear regression with several softmax heads, as a family.

Each head has two trained numbers, an output weight and an inverse temperature.
`SoftmaxHeads` holds the parameters of the problem; its risk is a `GaussianHeadsRisk`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import set_fields
from icl_theory.engine.starts import checked_start
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import (
    Column,
    Family,
    NumberOrArray,
    Whole,
    parameter,
)
from icl_theory.families.parameters import label_noise, learning_rate, loss_form
from icl_theory.tokens.heads import GaussianHeadsRisk


@dataclass(frozen=True, eq=False)
class SoftmaxHeads(Family):
    r"""In-context linear regression with H softmax heads.

    .. math:: \hat y = \sum_h \mu_h \sum_i y_i\,\mathrm{softmax}_i(\omega_h x_i^\top x)

    A prompt has N pairs (x_i, y_i) and a query x. All inputs are N(0, I), and labels
    are y = βᵀx + σξ with β ~ N(0, I) and ξ ~ N(0, 1). The output weights μ and inverse
    temperatures ω are trained from small normal numbers.

    Parameters
    ----------
    d : int
        Dimension of the inputs.
    N : int
        Number of pairs in a prompt.
    noise : float
        Standard deviation of the label noise, label units.
    heads : int
        Number of heads H.
    start : float or array_like, (2H,)
        Standard deviation of all parameters at step 0, or the parameters (μ, ω)
        themselves.
    seed : int
        Seed of the start.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`.

    References
    ----------
    docs/theory/softmax-heads.md.

    Examples
    --------
    The least loss of two heads with the inverse temperatures ω and -ω:

    >>> import icl_theory as icl
    >>> omega, least_loss = icl.SoftmaxHeads(heads=2).risk().best
    >>> round(least_loss, 4)
    0.3337
    """

    name: ClassVar[str] = "softmax-heads"
    title: ClassVar[str] = "in-context linear regression with softmax heads"
    goal: ClassVar[tuple[str, float]] = ("above", 0.05)
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "best",
            "f8",
            "",
            "best |ω| of one head, or of two heads with opposite ω",
            "ω*",
            r"\omega^*",
        ),
        Column(
            "zero_sum", "f8", "", "|Σμ|/Σ|μ| at the end: 0 if the output weights cancel"
        ),
        Column("omega", "f8", "", "largest |ω| at the end", "ω", r"\omega"),
    )

    eta: float | str = learning_rate(0.02)
    d: int = parameter(5, kind=Whole(maximum=1000), meaning="dimension of the inputs")
    N: int = parameter(40, kind=Whole(maximum=10**9), meaning="pairs in a prompt")
    noise: float = label_noise(0.1, 1e15)
    heads: int = parameter(
        1, kind=Whole(maximum=8), symbol="H", meaning="number of heads"
    )
    start: Any = parameter(
        0.1,
        kind=NumberOrArray(maximum=10.0, ndim=(1,)),
        meaning="size of the parameters at step 0",
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of the start")
    loss: str = loss_form()

    def validate(self) -> None:
        """Build the risk, which `risk` returns.

        The risk searches for its floor when the floor is first needed. Problems that
        differ only in the start or the learning rate share the result of this search.
        """
        if isinstance(self.start, float):
            rng = np.random.default_rng(self.seed)
            start = rng.normal(0.0, self.start, 2 * self.heads)
        else:
            start = checked_start(self.start, (2 * self.heads,))
        risk = GaussianHeadsRisk(self.d, self.N, self.noise, start)
        set_fields(self, _risk=risk)

    def risk(self) -> GaussianHeadsRisk:
        """Return the risk over output weights and inverse temperatures."""
        return self._risk  # type: ignore[attr-defined, no-any-return]

    def describe(self, run: Trajectory) -> None:
        """Add the best ω and its loss to the notes of a run, for one or two heads."""
        best = self.risk().best
        if best is not None:
            omega, loss = best
            run.notes["best"] = f"|ω| = {omega:.4g} with the loss {loss:.6g}"

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        output, omega = np.split(run.params, 2)  # μ and ω, (H,) each
        columns = {
            "zero_sum": float(abs(output.sum()) / np.abs(output).sum()),
            "omega": float(np.abs(omega).max()),
        }
        best = self.risk().best
        # The best ω of more than two heads is not known.
        if best is not None:
            best_omega, _ = best
            columns["best"] = best_omega
        return columns
