"""In-context linear regression with linear attention, as a family."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    dimensions,
    integer,
    real_array,
)
from icl_theory.engine.pullback import Pullback, around, innermost
from icl_theory.engine.risk import Risk
from icl_theory.engine.scope import DESCENT
from icl_theory.engine.trajectory import Phases, Trajectory
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    Object,
    Panel,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.family import check_points
from icl_theory.families.parameters import label_noise, learning_rate, nested
from icl_theory.families.rule_parameters import within
from icl_theory.memory import check_fits
from icl_theory.papers.linear_attention.depth import DEEPEST, LoopedRisk
from icl_theory.papers.linear_attention.law import PromptLaw, moment, root
from icl_theory.papers.linear_attention.layer import (
    LayerRisk,
    SampledLoop,
    SampledRisk,
)
from icl_theory.papers.linear_attention.risks import (
    PLATEAU,
    Heads,
    MergedRisk,
    Pair,
    closed_runs,
)
from icl_theory.sweeps.grid import blank

COORDINATES = ("merged", "pair", "heads")
# layers in a loop need the defaults
ISOTROPIC = (
    "decay",
    "coordinates",
    "tasks",
    "covariance",
    "prior",
    "query",
)


def _moment(name: str, value: Any) -> Any:
    """Return a moment as nested tuples, a diagonal matrix as its diagonal."""
    found = moment(name, value)
    diagonal = np.diag(found) if found.ndim == 2 else found
    return nested(
        diagonal
        if found.ndim == 2 and np.array_equal(found, np.diag(diagonal))
        else found
    )


@dataclass(frozen=True)
class Start(Number):
    """A size of the parameters at step 0, or the parameters themselves as tuples."""

    def value(self, name: str, value: Any) -> Any:
        """Check the number, or the array."""
        if isinstance(value, str) or dimensions(value) == 0:
            return super().value(name, value)
        return nested(real_array(name, value, dimensions(value)))


@dataclass(frozen=True)
class Tasks(Whole):
    """A number of tasks, or the tasks themselves, (k, d), as tuples."""

    def value(self, name: str, value: Any) -> Any:
        """Check the number, or the tasks."""
        if isinstance(value, str) or dimensions(value) == 0:
            return super().value(name, value)
        found = real_array(name, value, 2)
        if not found.size or not found.any():
            raise argument_error(name, value, "one task or more, not all of them zero")
        return nested(found)


@dataclass(frozen=True, eq=False)
class LinearAttention(Family):
    r"""In-context linear regression, learnt by one layer of linear attention.

    See docs/linear-attention-theory.md.

    Parameters
    ----------
    d, decay : int, float
        Dimension of the tokens, and exponent of their spectrum, :math:`\lambda_j =
        j^{-\mathrm{decay}}`.
    N, noise
        As for `PromptLaw`.
    coordinates : {"merged", "pair", "heads"}
        What is trained: the matrix Γ, :math:`(v, A)` with :math:`\Gamma = vA`, or heads
        with separate keys and queries, :math:`\Gamma = \sum_h v_hQ_h^\top K_h`.
    heads, rank : int
        Number of heads, and rows of the keys and queries of each. Their product bounds
        the rank of Γ; if it is below d, the floor is the least loss of that rank.
    start : float or array_like
        Size of the parameters at step 0: Γ = start·I; v = start, A = start·I/√d; or
        independent normal numbers of this standard deviation. An array gives the
        parameters themselves.
    tasks : int or array_like, (k, d), optional
        Train on k tasks, drawn from the prior or given, instead of on the prior.
    seed : int
        Of these tasks, and of the start of heads.
    depth : int
        Layers in a loop, each a step of length γ/depth on the prompt's least squares,
        with trained γ; more than one only for isotropic tokens and tasks.
    covariance, prior, query : array_like, (d, d) or (d,), optional
        As for `PromptLaw`; a covariance stands for ``d`` and ``decay``.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`; ``eta="auto"`` is the stable learning rate of
        `stable_rate`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.LinearAttention(d=8, decay=1.0, noise=0.5).simulate().steps
    494
    >>> icl.LinearAttention(d=8, decay=1.0, coordinates="heads", heads=8).risk().initial.shape
    (8, 17)
    """

    name: ClassVar[str] = "linear-attention"
    title: ClassVar[str] = "in-context linear regression with linear attention"
    goal: ClassVar[tuple[str, float]] = ("above", 1e-3)
    phase_names: ClassVar[tuple[str, ...]] = ("plateau", "learning")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "excess", "f8", "squared label units", "loss above its floor at the end"
        ),
        Column(
            "learnt",
            "i8",
            "",
            "directions along which Γ is half of the best one, or more, at the end",
        ),
        Column(
            "new_loss",
            "f8",
            "squared label units",
            "loss on new tasks at the end, if tasks are given",
            extra=(("table", 1),),
        ),
    )
    explorer = Panel(Path(__file__).parent / "panel", ("closed.js", "panel.js"))
    claims = LazySlot("icl_theory.papers.linear_attention.statements:CLAIMS")

    eta: float | str = learning_rate("auto")
    d: int = parameter(
        8,
        kind=Whole(maximum=10**5),
        symbol="d",
        tex="d",
        meaning="dimension of the tokens",
    )
    decay: float = parameter(
        0.0,
        kind=Number(zero=True, maximum=40.0),
        symbol="α",
        tex=r"\alpha",
        meaning="exponent of the spectrum of the tokens, λ_j = j^-α",
    )
    N: float = parameter(
        20,
        kind=Whole(infinite=True),
        symbol="N",
        tex="N",
        meaning="pairs in a prompt, or inf",
    )
    noise: float = label_noise()
    coordinates: str = parameter(
        "merged", kind=Word(words=COORDINATES), meaning="what is trained"
    )
    heads: int = parameter(
        1, kind=Whole(), symbol="H", tex="H", meaning="number of heads"
    )
    rank: int = parameter(
        1,
        kind=Whole(),
        symbol="R",
        tex="R",
        meaning="rows of the keys and queries of a head",
    )
    start: Any = parameter(
        0.01,
        kind=Start(zero=True, maximum=LARGEST),
        meaning="size of the parameters at step 0",
    )
    tasks: Any = parameter(
        None,
        kind=Tasks(optional=True),
        symbol="k",
        tex="k",
        meaning="pretraining tasks; by default all",
    )
    seed: int = parameter(
        0, kind=Whole(minimum=0), meaning="seed of the tasks and of the start of heads"
    )
    depth: int = parameter(
        1,
        kind=Whole(maximum=DEEPEST),
        symbol="D",
        tex="D",
        meaning="layers in a loop, of one trained length",
    )
    covariance: Any = parameter(
        None,
        kind=Object(optional=True, checker=_moment),
        meaning="covariance of the tokens",
    )
    prior: Any = parameter(
        None,
        kind=Object(optional=True, checker=_moment),
        meaning="second moment of the tasks",
    )
    query: Any = parameter(
        None,
        kind=Object(optional=True, checker=_moment),
        meaning="second moment of the query",
    )

    def validate(self) -> None:
        """Make the law and the risk, which check the parts against each other."""
        if self.covariance is not None:
            if self.decay:
                raise argument_error(
                    "decay", self.decay, "left out if a covariance is given"
                )
            object.__setattr__(self, "d", len(self.covariance))
        if isinstance(self.tasks, tuple) and len(self.tasks[0]) != self.d:
            raise argument_error(
                "tasks", np.shape(self.tasks), f"of shape (k, {self.d})"
            )
        if self.coordinates != "heads":
            self._refuse_others(
                ("heads", "rank"), "left out unless coordinates = 'heads'"
            )
        if self.rank > self.d:
            raise argument_error("rank", self.rank, f"at most d = {self.d}")
        if self.coordinates != "merged" and self.start == 0.0:
            raise argument_error(
                "start",
                self.start,
                f"> 0 for coordinates = {self.coordinates!r}: zero is a saddle",
            )
        if self.depth > 1:
            self._refuse_others(ISOTROPIC, "{default!r} for several layers")
            if not isinstance(self.start, float):
                raise argument_error("start", self.start, "a number for several layers")
        self.risk()
        if self.coordinates == "merged" and self.depth == 1 and DESCENT.applies(self):
            limit = 2.0 * self.stable_rate()
            if not isinstance(self.eta, str) and self.eta >= limit:
                raise argument_error(
                    "eta",
                    self.eta,
                    f"below 2/(q_max m_max) = {limit:.6g}, beyond which descent diverges",
                )

    def _refuse_others(self, names: Sequence[str], allowed: str) -> None:
        """Refuse values of some parameters that are not their defaults."""
        for name in names:
            default = self.parameters()[name].default
            if getattr(self, name) != default:
                raise argument_error(
                    name, getattr(self, name), allowed.format(default=default)
                )

    @cached_property
    def _laws(self) -> tuple[PromptLaw, PromptLaw]:
        spectrum = (
            np.arange(1.0, self.d + 1.0) ** -self.decay
            if self.covariance is None
            else self.covariance
        )
        new = PromptLaw(spectrum, self.prior, self.query, N=self.N, noise=self.noise)
        if new.d > 4000 and (
            self.tasks is not None or self.coordinates == "heads" or not new.diagonal
        ):
            raise argument_error("d", self.d, "at most 4000 unless Γ is diagonal")
        if self.tasks is None:
            return new, new
        tasks = (
            draw_tasks(new, self.tasks, self.seed)
            if isinstance(self.tasks, int)
            else np.array(self.tasks)
        )
        return PromptLaw(
            spectrum,
            tasks.T @ tasks / len(tasks),
            self.query,
            N=self.N,
            noise=self.noise,
        ), new

    @cached_property
    def _risk(self) -> Risk:
        law = self.law()
        scale = self.start
        if self.depth > 1:
            return LoopedRisk(self.d, self.N, self.depth, self.noise, scale)
        given = None if isinstance(scale, float) else np.array(scale)
        unit = (
            np.ones(law.d)
            if law.diagonal and self.coordinates != "heads"
            else np.eye(law.d)
        )
        if self.coordinates == "merged":
            return MergedRisk(law, scale * unit if given is None else given)
        if self.coordinates == "pair":
            if given is not None and given.shape == (1 + law.d**2,):
                unit = np.eye(law.d)
            merged = MergedRisk(law, 0.0 * unit)
            whole = (
                scale * np.append(1.0, unit / math.sqrt(law.d))
                if given is None
                else given
            )
            wanted: tuple[int, ...] = (1 + unit.size,)
        else:
            merged = MergedRisk(law, 0.0 * unit, min(self.heads * self.rank, law.d))
            wanted = (self.heads, 1 + 2 * self.rank * law.d)
            check_fits("heads", self.heads, 32.0 * math.prod(wanted))
            whole = (
                given
                if given is not None
                else np.random.default_rng([self.seed, 1]).normal(0.0, scale, wanted)
            )
        if whole.shape != wanted:
            raise argument_error(
                "start", whole.shape, f"a number, or of shape {wanted}"
            )
        return Pullback(
            merged,
            Pair(whole, unit.shape)
            if self.coordinates == "pair"
            else Heads(whole, law.d),
        )

    def law(self) -> PromptLaw:
        """Return the law of the prompts for training."""
        return self._laws[0]

    def new_tasks(self) -> PromptLaw:
        """Return the law of prompts with new tasks of the prior."""
        return self._laws[1]

    def risk(self) -> Risk:
        """Return the risk over Γ or its factors; only over the diagonal if all moments are diagonal."""
        return self._risk

    def merged(self) -> MergedRisk:
        """Return the risk of one layer over Γ itself."""
        merged: MergedRisk = innermost(self.risk())[0]
        return merged

    def sampled(self, batch: int, seed: int = 0) -> Risk:
        """Return the trainer on sampled prompts: of the layer (P, K) for "pair", of a loop for several layers."""
        law = self.law().dense
        risk = self.risk()
        if isinstance(risk, LoopedRisk):
            return SampledLoop(law, risk.initial, batch, seed, risk.depth)
        if self.coordinates == "pair":
            return LayerRisk.of(law, risk.initial, batch, seed)
        start = self.merged().initial
        return around(
            risk,
            SampledRisk(law, np.diag(start) if start.ndim == 1 else start, batch, seed),
        )

    def stable_rate(self) -> float:
        r"""Return half the largest stable learning rate at the minimum that a small start reaches.

        :math:`1/(q_{\max}m_{\max})` for the merged Γ, divided by
        :math:`2\|\Gamma^*\|_F` for (v, A), or by :math:`3s^{4/3}` for heads, with the
        sum s of the R largest singular values of Γ*.
        """
        law = self.law()
        risk = self.risk()
        if isinstance(risk, LoopedRisk):
            return risk.stable_rate()
        if self.coordinates == "merged":
            largest = float(self.merged().curvature.max())
            # zero if tokens and query share no direction
            return 1.0 / largest if largest > 0.0 else 1.0
        values = (
            np.abs(law.best)
            if law.diagonal
            else np.linalg.svd(law.best, compute_uv=False)
        )
        if self.coordinates == "pair":
            stretch = 2.0 * float(np.linalg.norm(values))
        else:
            stretch = 3.0 * float(np.sort(values)[-self.rank :].sum()) ** (4.0 / 3.0)
        return 1.0 / (stretch * law.largest_curvature())

    def expected_steps(self) -> float | None:
        """Return an estimate of the first plateau, the time to leave the saddle at zero."""
        law = self.law()
        if self.coordinates == "merged" or not isinstance(self.start, float):
            return None
        covariance, prior, q = law.moments
        pull = q * prior * covariance
        if not law.diagonal:
            pull = np.asarray(np.linalg.svd(q @ prior @ covariance, compute_uv=False))
        if self.coordinates == "pair":
            best = max(float(np.linalg.norm(law.best)) ** 0.5, self.start)
            return (
                math.log(best / self.start) / float(np.linalg.norm(pull)) / self.rate()
            )
        return 1.0 / (float(pull.max()) * self.start * self.rate())

    def describe(self, run: Trajectory) -> None:
        """Add the phases and the number of learnt directions."""
        last = int(run.t[-1])
        excess = run.observed["excess"]
        over = run.first(lambda state: state.observed["excess"] <= PLATEAU * excess[0])
        run.phases = Phases(
            plateau=(0, last if over is None else over),
            learning=None if over is None else (over, last),
        )
        limit = 2.0 * self.stable_rate()
        if run.eta > limit and DESCENT.applies(run):
            run.notes["stability"] = (
                f"only below η = {limit:.4g} is descent known to stay at the minimum"
            )
        if self.coordinates == "merged" and self.depth == 1:
            run.notes["trained"] = (
                "Γ itself; coordinates = pair or heads train its factors, as papers do"
            )
            shrink = run.eta * self.merged().curvature
            if DESCENT.applies(run) and np.allclose(shrink, 1.0, rtol=1e-12, atol=0.0):
                run.notes["modes"] = (
                    "all alike, and one step at this rate is exact; decay > 0 sets them apart"
                )
        measured = self.measure(run)
        run.notes["learnt"] = f"{measured['learnt']} of {self.d} directions"
        if "new_loss" in measured:
            run.notes["new tasks"] = (
                f"{measured['new_loss']:.6g} (best {self.new_tasks().floor:.3g})"
            )

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        inner = innermost(self.risk())[0]
        best = inner.observe(inner.best)["gamma"]
        alike = self.d if self.depth > 1 else 1  # directions
        learnt = alike * int(
            np.sum((run.observed["gamma"][-1] >= 0.5 * best) & (best > 0.0))
        )
        found = {"excess": float(run.observed["excess"][-1]), "learnt": learnt}
        return (
            found
            if self.tasks is None
            else found | {"new_loss": self.new_tasks().loss(self.gamma(run.params))}
        )

    def gamma(self, params: ArrayLike) -> Array:
        """Return the matrix Γ at parameters of the risk, (d, d), or its diagonal, (d,)."""
        risk = self.risk()
        return innermost(risk, risk._checked(params))[1]

    @classmethod
    def batched(
        cls, points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Compute diagonal, merged points with a target above the floor in closed form, a dimension at a time."""
        check_points(cls, points, common)
        given = {**common, **points}
        mask = np.broadcast_to(given["depth"] == 1, len(points["d"])).copy()
        for name, allowed in (
            ("coordinates", ("merged",)),
            ("method", ("auto", "closed")),
        ):
            mask &= np.isin(given[name], allowed)
        mask &= within(DESCENT, points, common)
        plain = "above" in points and isinstance(given["start"], float | np.ndarray)
        if not plain or any(
            given.get(name) is not None
            for name in ("tasks", "covariance", "prior", "query")
        ):
            return None
        if not common["max_steps"]:
            return {"method": "closed", "loss": np.where(mask, 0.0, np.nan)}
        problems = {}
        for i in np.flatnonzero(mask).tolist():
            with contextlib.suppress(ValueError):  # a simulation says why
                problems[i] = cls(
                    **{
                        **common,
                        **{name: value[i].item() for name, value in points.items()},
                    }
                )
        values = blank(cls.every_column(), len(mask))
        for d in np.unique(points["d"]):
            some = [i for i in problems if points["d"][i] == d]
            if some:
                risks, rates = zip(
                    *((problems[i].merged(), problems[i].rate()) for i in some),
                    strict=True,
                )
                found = closed_runs(
                    risks, np.array(rates), points["above"][some], common["max_steps"]
                )
                for name, column in found.items():
                    values[name][some] = column
        return values


def draw_tasks(law: PromptLaw, k: int, seed: int) -> Array:
    """Draw k tasks of a law's prior, (k, d)."""
    rng = np.random.default_rng([integer("seed", seed, minimum=0), 0])
    check_fits("tasks", integer("tasks", k, minimum=1), 24.0 * k * law.d)
    return np.asarray(rng.normal(size=(k, law.d)) @ root(law.dense.moments[1]))
