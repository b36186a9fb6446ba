"""In-context regression on the unit sphere with softmax attention of one trained number, as a family."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import Array, refuse
from icl_theory.engine.pullback import Linear, Pullback, around
from icl_theory.engine.risk import Risk
from icl_theory.engine.tokens.risk import Kind, TokenRisk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.parameters import (
    LIPSCHITZ,
    Later,
    Number,
    Panel,
    Whole,
    Word,
    label_noise,
    learning_rate,
    parameter,
)
from icl_theory.grids.grid import Column

MOST = 1e15  # of labels: their squares are values of tokens
TASKS = ("linear", "relu", "cosine")


def kernel(task: str, L: float, c: Array) -> Array:
    r"""Return :math:`k(c) = E f(x)f(x')` for inputs with :math:`x^\top x' = c`; :math:`k'(1) = L^2`."""
    if task == "linear":
        return L**2 * c
    if task == "cosine":
        return np.exp(-(L**2) * (1.0 - c))
    return L**2 / math.pi * (np.sqrt(1.0 - c * c) + (math.pi - np.arccos(c)) * c)


def sphere_tokens(
    task: str, d: int, N: int, L: float = 1.0, noise: float = 0.0, nodes: int = 60
) -> tuple[Array, TokenRisk]:
    r"""Return Gauss–Jacobi nodes in :math:`c = x_i^\top x`, (U,), and the risk over their scores.

    With the zonal expansion :math:`k = \sum_l a_l P_l`, :math:`P_l(1) = 1`, the coordinates of a token's value are
    :math:`\sqrt{a_l} P_l(c)`, those of the target :math:`\sqrt{a_l}`, and the variance of the value around them is
    :math:`\sum_l a_l (1 - P_l(c)^2) + \sigma^2`. The degrees beyond half the number of nodes share one coordinate,
    whose covariance with the target is exact.
    """
    from scipy.special import roots_jacobi  # slow to load

    c, weights = roots_jacobi(nodes, (d - 3.0) / 2.0, (d - 3.0) / 2.0)
    probs = weights / weights.sum()
    k, size = kernel(task, L, c), float(kernel(task, L, np.ones(1))[0])
    mean = 0.0 if task == "linear" else float(probs @ k)
    left, at_one, values, target = k - mean, size - mean, list[Array](), list[float]()
    before, now, many = np.ones_like(c), c, float(d)  # P_0, P_1, and how many harmonics there are of degree 1
    for degree in range(1, nodes // 2):
        if at_one <= 1e-14 * size or many > 1e10:  # beyond, rounding is larger than the coefficients
            break
        a = max(many * float(probs @ (k * now)), 0.0)
        if a > 1e-15 * size:
            values.append(math.sqrt(a) * now)
            target.append(math.sqrt(a))
            left, at_one = left - a * now, at_one - a
        before, now = now, ((2 * degree + d - 2) * c * now - degree * before) / (degree + d - 2)
        many *= (2 * degree + d) * (degree + d - 2) / ((2 * degree + d - 2) * (degree + 1))
    if at_one > 1e-14 * size:
        values.append(left / math.sqrt(at_one))
        target.append(math.sqrt(at_one))
    found = np.stack(values, axis=1)
    spread = np.maximum(size - mean - np.sum(found**2, axis=1), 0.0) + noise**2
    return c, TokenRisk([Kind(N, probs, found, spread)], np.array(target))


@dataclass(frozen=True, eq=False)
class SphereRisk(Pullback):
    """The loss of κ, (1,), with its minimum ``least`` at ``best``."""

    best: float
    least: float
    error: float  # of the least loss, relative, by twice as many nodes

    @classmethod
    def made(cls, problem: Sphere, tolerance: float = 1e-7, most: int = 240) -> SphereRisk:
        """Find the best κ, and take up to ``most`` nodes until the least loss is that of twice as many."""
        nodes, at, risk = 60, None, over_kappa(problem, 60)
        if problem.N == 1:  # attention has no choice
            return cls(risk.risk, risk.map, 0.0, risk.loss([0.0]), 0.0)
        while nodes <= most:
            # nodes are apart by less than the window of κ
            at = _least(risk, nodes**2 / 8.0) if at is None else _polished(risk, at)
            nodes *= 2
            finer = over_kappa(problem, nodes)
            error = math.inf if at is None else abs(risk.loss([at]) / finer.loss([at]) - 1.0)
            if at is not None and (error <= tolerance or nodes > most):
                return cls(risk.risk, risk.map, at, risk.loss([at]), error)
            risk = finer
        raise refuse("N", problem.N, f"less, or noise more: the best κ is beyond {most**2 // 32}")

    def floor(self) -> float:
        """Return the least loss."""
        return self.least

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """κ itself."""
        return {"kappa": params[0]}


def over_kappa(problem: Sphere, nodes: int) -> Pullback:
    """Return the loss of κ by a number of nodes."""
    c, tokens = sphere_tokens(problem.task, problem.d, problem.N, problem.L, problem.noise, nodes)
    return Pullback(tokens, Linear(c[:, None], np.array([problem.start])))


def _least(risk: Risk, most: float) -> float | None:
    """Return the κ up to ``most`` with the least loss, None where the loss does not rise before."""
    from scipy.optimize import minimize_scalar  # slow to load

    kappas, losses = [0.0, 1.0 / 16.0], [risk.loss([0.0]), risk.loss([1.0 / 16.0])]
    while losses[-3:] != sorted(losses[-3:]) or len(losses) < 6:
        kappas.append(2.0 * kappas[-1])
        if kappas[-1] > most:
            return None
        losses.append(risk.loss([kappas[-1]]))
    at = int(np.argmin(losses))
    ends = kappas[max(at - 1, 0)], kappas[at + 1]
    return _polished(risk, float(minimize_scalar(lambda x: risk.loss([x]), bounds=ends, method="bounded").x))


def _polished(risk: Risk, kappa: float) -> float:
    """Return the κ that Newton's method finds beside another."""
    for _ in range(3):
        at = np.array([kappa])
        curvature = float(risk.hessian_product(at, np.ones(1))[0])
        kappa -= float(risk.gradient(at)[0]) / curvature if curvature > 0.0 else 0.0
    return max(kappa, 0.0)


@dataclass(frozen=True, eq=False)
class Sphere(Family):
    r"""In-context regression on the unit sphere, :math:`\hat y = \sum_i y_i\,\mathrm{softmax}(\kappa x_i^\top x)`.

    Parameters
    ----------
    task : {"linear", "relu", "cosine"}
        :math:`L\beta^\top x`, :math:`\sqrt2 L\max(\beta^\top x, 0)` or :math:`\sqrt2\cos(L\beta^\top x + \phi)`
        with normal β and uniform φ: :math:`E(f(x) - f(x'))^2 \le L^2|x - x'|^2`, and no smaller L would do.
    d : int
        Dimension of the inputs, which are uniform on the unit sphere.
    N : int
        Pairs in a prompt.
    L : float
        Lipschitz constant of the tasks in the root mean square; linear and ReLU tasks are L times those with
        :math:`Ef^2 = 1`.
    noise : float
        Standard deviation of the label noise, label units.
    start : float
        κ at step 0.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`; ``eta="auto"`` is one over the largest curvature between the start and the best κ.

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
    claims = Later("icl_theory.papers.sphere:CLAIMS")
    explorer = Panel(Path(__file__).parent / "panels" / "sphere", ("closed.js", "panel.js"))
    columns: ClassVar[tuple[Column, ...]] = (
        Column("best", "f8", "", "κ with the least loss", "κ*", r"\kappa^*", extra=(("table", 1),)),
        Column("predicted", "f8", "", "best κ where bias and variance balance, for long prompts", "κ*, predicted",
               r"\kappa^*_\mathrm{predicted}", extra=(("table", 1),)),
        Column("kappa", "f8", "", "κ at the end", "κ", r"\kappa"),
    )  # fmt: skip

    eta: float | str = learning_rate("auto")
    task: str = parameter("linear", kind=Word(words=TASKS), meaning="functions to be learnt")
    d: int = parameter(
        5, kind=Whole(minimum=2, maximum=1000), symbol="d", tex="d", meaning="dimension of the inputs"
    )
    N: int = parameter(100, kind=Whole(maximum=10**15), symbol="N", tex="N", meaning="pairs in a prompt")
    L: float = parameter(
        1.0, kind=Number(maximum=MOST), symbol="L", tex="L", unit=LIPSCHITZ, meaning="Lipschitz constant"
    )
    noise: float = label_noise(1.0, MOST)
    start: float = parameter(0.0, kind=Number(zero=True, maximum=1e3), meaning="κ at step 0")

    def validate(self) -> None:
        """Find the best κ."""
        if self.task == "cosine" and self.L > 20.0:
            raise refuse("L", self.L, "at most 20 for cosine tasks")
        object.__setattr__(self, "_risk", SphereRisk.made(self))

    def risk(self) -> SphereRisk:
        """Return the risk over κ."""
        return self._risk  # type: ignore[attr-defined, no-any-return]

    def sampled(self, batch: int, seed: int = 0) -> Risk:
        """Return the trainer on sampled prompts."""
        tokens: Any = self.risk().risk
        return around(self.risk(), tokens.sampled(batch, seed))

    def stable_rate(self) -> float:
        """Return one over the largest curvature between the start and the best κ: no step goes beyond that."""
        risk = self.risk()
        between = np.linspace(self.start, risk.best, 17)[:, None]
        curvature = max(float(risk.hessian_product(kappa, np.ones(1))[0]) for kappa in between)
        return 1.0 / curvature if self.N > 1 else 1.0

    def predicted(self) -> float | None:
        r"""Return the best κ for long prompts, where squared bias :math:`C\kappa^{-p}` and variance balance."""
        if not self.noise:
            return None
        n, a = self.d - 1.0, self.L**2
        C, p = n**2 * a / 4.0, 2.0
        if self.task == "cosine":
            C *= 1.0 + a * (n + 2.0) / n
        if self.task == "relu":  # of the kink alone
            density, p = math.exp(math.lgamma(self.d / 2.0) - math.lgamma(n / 2.0)), 1.5
            C = a * self.d * density * 4.0 * (math.sqrt(2.0) - 1.0) / (3.0 * math.sqrt(2.0) * math.pi)
        log_area = math.log(2.0) + 0.5 * self.d * math.log(math.pi) - math.lgamma(0.5 * self.d)
        log_ratio = math.log(2.0 * p * C * self.N / n) - 2.0 * math.log(self.noise) - log_area
        return math.exp((log_ratio + 0.5 * n * math.log(4.0 * math.pi)) / (0.5 * n + p))

    def describe(self, run: Trajectory) -> None:
        """Say which κ is best."""
        risk = self.risk()
        run.notes["best"] = f"κ = {risk.best:.6g}, within {risk.error:.0e} of the least loss by twice the nodes"

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        found = {"best": self.risk().best, "kappa": float(run.params[0])}
        predicted = self.predicted()
        return found if predicted is None else found | {"predicted": predicted}
