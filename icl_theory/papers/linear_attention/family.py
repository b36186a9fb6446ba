"""In-context linear regression with linear attention, as a family.

`LinearAttention` declares the parameters, builds the law of the prompts and the risk
from them, and says what is measured of a run. Sweeps over diagonal problems are
computed in closed form, all points of one dimension at once.

Letters, as in the module of the law: the prediction is xᵀΓh for the query x and the
mean h of label times token, and Γ* is the best matrix. Λ is the covariance of the
tokens, W the second moment of the tasks, and Λ_q the second moment of the query. The
loss is a sum over modes with the curvatures q_a m_b, products of eigenvalues of Λ_q and
of the second moment M of h.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    integer,
)
from icl_theory.engine.fixed_set import FixedSetRisk
from icl_theory.engine.pullback import Pullback, core_params, core_risk, replace_core
from icl_theory.engine.risk import Risk
from icl_theory.engine.sampling import Trainer, trainer_of
from icl_theory.engine.scope import DESCENT
from icl_theory.engine.trajectory import Phases, Trajectory
from icl_theory.families import (
    Column,
    Family,
    Number,
    NumberOrArray,
    Numbers,
    Panel,
    Whole,
    WholeOrArray,
    Word,
    parameter,
)
from icl_theory.families.family import check_points
from icl_theory.families.parameters import (
    is_mse,
    label_noise,
    learning_rate,
    loss_form,
)
from icl_theory.families.rule_parameters import within
from icl_theory.memory import check_fits
from icl_theory.papers.linear_attention.depth import DEEPEST, LoopedRisk
from icl_theory.papers.linear_attention.empirical import EmpiricalRisk
from icl_theory.papers.linear_attention.law import PromptLaw, moment, root
from icl_theory.papers.linear_attention.layer import (
    LayerRisk,
    SampledLayer,
    SampledRisk,
)
from icl_theory.papers.linear_attention.risks import (
    PLATEAU,
    Heads,
    MergedRisk,
    Pair,
    closed_runs,
)
from icl_theory.papers.linear_attention.whole import (
    MergedHeads,
    SeparateLayer,
    TensorRisk,
    WholeLayer,
)
from icl_theory.sweeps.grid import blank

COORDINATES = ("merged", "pair", "merged-heads", "heads", "layer", "separate-layer")
# Coordinates with any number of heads, which start at random numbers.
WITH_HEADS = ("merged-heads", "heads", "layer", "separate-layer")
# Coordinates whose keys and queries are separate, so that a head has three factors.
SEPARATE = ("heads", "separate-layer")
# Coordinates that train all entries of the values and of the scores.
WHOLE = ("layer", "separate-layer")
# Largest dimension for matrices that are not diagonal; a cautious choice. A matrix of
# d² numbers then takes 128 MB, and its eigenvectors take time of the order d³.
LARGEST_DENSE = 4000
# Layers in a loop have isotropic tokens and tasks. These parameters must then have
# their defaults.
ISOTROPIC = (
    "decay",
    "coordinates",
    "tasks",
    "covariance",
    "prior",
    "query",
)


def _moment(name: str, value: Any) -> Array:
    """Return a second moment; a matrix that is diagonal becomes its diagonal.

    Anything but a positive semidefinite matrix or diagonal is refused by an error.
    """
    matrix = moment(name, value)
    if matrix.ndim == 2:
        diagonal = np.diag(matrix)
        if np.array_equal(matrix, np.diag(diagonal)):
            return diagonal
    return matrix


class Laws(NamedTuple):
    """The laws of the prompts of training, and of prompts with new tasks."""

    training: PromptLaw
    new: PromptLaw


def _tasks(name: str, tasks: Array) -> Array:
    """Return given tasks, and refuse tasks that are all zero."""
    if not tasks.any():
        raise argument_error(name, tasks, "one task or more, not all of them zero")
    return tasks


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
    coordinates : str
        What is trained: "merged", the matrix Γ; "pair", :math:`(v, A)` with
        :math:`\Gamma = vA`; "merged-heads", heads with merged keys and queries,
        :math:`\Gamma = \sum_h v_hA_h`; "heads", heads with separate keys and queries,
        :math:`\Gamma = \sum_h v_hQ_h^\top K_h`. If tasks and queries are normal, whole
        matrices of heads can be trained: with "layer" the value matrix and the merged
        matrix of keys and queries, with "separate-layer" values, keys and queries.
    heads, rank : int
        Number H of heads, and number R of rows of the keys and of the queries of each
        head if they are separate. The rank of Γ is then at most HR. If this bound is
        below d, the floor is the least loss of matrices up to this rank.
    start : float or array_like
        Size of the parameters at step 0. For "merged" Γ = start·I, and for "pair"
        v = start, A = start·I/√d. Heads and layers start at independent normal numbers
        of this standard deviation. If depth > 1, γ = start. An array gives the
        parameters themselves: (d, d) for "merged", (1 + d²,) for "pair", (H, 1 + d²)
        for merged heads, (H, 1 + 2Rd) for separate ones, (2, H, d + 1, d + 1) for a
        layer, and (H, (d + 1) + R(2d + 1)) for a separate one, see ``SeparateLayer``.
        If all moments are diagonal, a diagonal can take the place of the matrix of
        "merged" or "pair".
    tasks : int or array_like, (k, d), optional
        Train on k tasks, which are drawn from the prior or given, instead of on all
        tasks of the prior.
    seed : int
        Seed of these tasks, and of the start of heads.
    depth : int
        Number of layers in a loop. Each is a step of length γ/depth on the prompt's
        least squares, and γ is trained. Several layers need isotropic tokens and tasks.
    covariance, prior, query : array_like, (d, d) or (d,), optional
        As for `PromptLaw`. A covariance takes the place of ``d`` and ``decay``.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`; ``eta="auto"`` is the stable learning rate of
        `stable_rate`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.LinearAttention(d=8, decay=1.0, noise=0.5).simulate().steps
    494
    >>> problem = icl.LinearAttention(d=8, decay=1.0, coordinates="heads", heads=8)
    >>> problem.risk().initial.shape
    (8, 17)
    """

    name: ClassVar[str] = "linear-attention"
    title: ClassVar[str] = "in-context linear regression with linear attention"
    goal: ClassVar[tuple[str, float]] = ("above", 1e-3)
    phase_names: ClassVar[tuple[str, ...]] = ("plateau", "learning")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "excess",
            dtype="f8",
            unit="squared label units",
            description="loss above its floor at the end",
        ),
        Column(
            "learnt",
            dtype="i8",
            unit="",
            description=(
                "directions along which Γ is half of the best one, or more, at the end"
            ),
        ),
        Column(
            "new_loss",
            dtype="f8",
            unit="squared label units",
            description="loss on new tasks at the end, if tasks are given",
            extra=(("table", 1),),
        ),
    )
    explorer = Panel(Path(__file__).parent / "panel", ("closed.js", "panel.js"))

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
        kind=NumberOrArray(zero=True, maximum=LARGEST),
        meaning="size of the parameters at step 0",
    )
    tasks: Any = parameter(
        None,
        kind=WholeOrArray(optional=True, ndim=(2,), checker=_tasks),
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
        kind=Numbers(optional=True, ndim=(1, 2), checker=_moment),
        meaning="covariance of the tokens",
    )
    prior: Any = parameter(
        None,
        kind=Numbers(optional=True, ndim=(1, 2), checker=_moment),
        meaning="second moment of the tasks",
    )
    loss: str = loss_form()
    query: Any = parameter(
        None,
        kind=Numbers(optional=True, ndim=(1, 2), checker=_moment),
        meaning="second moment of the query",
    )

    def validate(self) -> None:
        """Refuse parameters that contradict each other.

        Law and risk are built here, because they make checks of their own.
        """
        self._check_dimension()
        self._check_coordinates()
        self._check_depth()
        self.risk()
        self._check_rate()

    def _check_dimension(self) -> None:
        """Take d from a covariance, and check that given tasks are of dimension d."""
        if self.covariance is not None:
            if self.decay:
                raise argument_error(
                    "decay", self.decay, "left out if a covariance is given"
                )
            # The dataclass is frozen.
            object.__setattr__(self, "d", len(self.covariance))
        # Given tasks are stored as a tuple with a tuple of d numbers for each task.
        if isinstance(self.tasks, tuple) and len(self.tasks[0]) != self.d:
            raise argument_error(
                "tasks", np.shape(self.tasks), f"of shape (k, {self.d})"
            )

    def _check_coordinates(self) -> None:
        """Refuse parameters that contradict ``coordinates``."""
        if self.coordinates not in WITH_HEADS:
            self._require_defaults(
                ("heads",),
                f"left out unless coordinates is one of {', '.join(WITH_HEADS)}",
            )
        if self.coordinates not in SEPARATE:
            self._require_defaults(
                ("rank",), f"left out unless coordinates is {' or '.join(SEPARATE)}"
            )
        if self.coordinates in WHOLE and self.tasks is not None:
            raise argument_error(
                "tasks",
                self.tasks,
                f"left out for coordinates = {self.coordinates!r}, whose loss is for "
                "normal tasks",
            )
        if self.rank > self.d:
            raise argument_error("rank", self.rank, f"at most d = {self.d}")
        if self.coordinates != "merged" and self.start == 0.0:
            raise argument_error(
                "start",
                self.start,
                f"> 0 for coordinates = {self.coordinates!r}: zero is a saddle",
            )

    def _check_depth(self) -> None:
        """Refuse parameters that several layers in a loop cannot have."""
        if self.depth == 1:
            return
        self._require_defaults(ISOTROPIC, "{default!r} for several layers")
        if not isinstance(self.start, float):
            raise argument_error("start", self.start, "a number for several layers")

    def _check_rate(self) -> None:
        """Refuse a learning rate at which descent on Γ diverges."""
        # The limit of the rate is sharp only for plain gradient descent on a quadratic
        # loss.
        is_quadratic = self.coordinates == "merged" and self.depth == 1
        if not is_quadratic or not DESCENT.applies(self):
            return
        limit = 2.0 * self.stable_rate()  # `stable_rate` is half of the limit
        # A rate that is a string, "auto", is the stable rate itself.
        if not isinstance(self.eta, str) and self.eta >= limit:
            raise argument_error(
                "eta",
                self.eta,
                f"below 2/(q_max m_max) = {limit:.6g}, beyond which descent diverges",
            )

    def _require_defaults(self, names: Sequence[str], allowed: str) -> None:
        """Refuse any of these parameters whose value is not its default.

        ``allowed`` is the end of the error; it may contain ``{default}``.
        """
        for name in names:
            default = self.parameters()[name].default
            value = getattr(self, name)
            if value != default:
                raise argument_error(name, value, allowed.format(default=default))

    @cached_property
    def _laws(self) -> Laws:
        """Law of the prompts in training, and the same law with new tasks."""
        spectrum = self.covariance
        if spectrum is None:
            spectrum = np.arange(1.0, self.d + 1.0) ** -self.decay
        new = PromptLaw(spectrum, self.prior, self.query, N=self.N, noise=self.noise)
        is_dense = (
            self.tasks is not None
            or self.coordinates in WITH_HEADS
            or self.on_fixed_set
            or not new.diagonal
        )
        if is_dense and new.d > LARGEST_DENSE:
            raise argument_error(
                "d", self.d, f"at most {LARGEST_DENSE} unless Γ is diagonal"
            )
        if self.tasks is None:
            return Laws(training=new, new=new)
        if isinstance(self.tasks, int):
            tasks = draw_tasks(new, self.tasks, self.seed)
        else:
            tasks = np.array(self.tasks)
        prior = tasks.T @ tasks / len(tasks)
        training = PromptLaw(spectrum, prior, self.query, N=self.N, noise=self.noise)
        return Laws(training=training, new=new)

    @cached_property
    def _risk(self) -> Risk:
        """The risk that `risk` returns; it is built once."""
        if self.depth > 1:
            return LoopedRisk(self.d, self.N, self.depth, self.noise, self.start)
        if self.coordinates == "merged":
            return self._merged_risk()
        if self.coordinates == "pair":
            return self._pair_risk()
        if self.coordinates == "merged-heads":
            return self._merged_heads_risk()
        if self.coordinates in WHOLE:
            return self._layer_risk()
        return self._heads_risk()

    def _merged_risk(self) -> Risk:
        """Return the risk over Γ, or over its diagonal if all moments are diagonal."""
        law = self.law()
        if not isinstance(self.start, float):
            return MergedRisk(law, np.array(self.start))
        unit = np.ones(law.d) if law.diagonal else np.eye(law.d)
        return MergedRisk(law, self.start * unit)

    def _pair_risk(self) -> Risk:
        """Return the risk over (v, A), where A may be a diagonal."""
        law = self.law()
        d = law.d
        unit = np.ones(d) if law.diagonal else np.eye(d)
        if isinstance(self.start, float):
            start = self.start * np.append(1.0, unit / math.sqrt(d))
        else:
            start = np.array(self.start)
            if start.shape == (1 + d**2,):
                # A whole matrix A is trained, even if the law is diagonal.
                unit = np.eye(d)
        self._check_start(start, (1 + unit.size,))
        # The start of the inner risk is not used: `Pullback` starts at the pair.
        return Pullback(MergedRisk(law, 0.0 * unit), Pair(start, unit.shape))

    def _heads_risk(self) -> Risk:
        """Return the risk over heads with separate keys and queries."""
        law = self.law()
        d = law.d
        start = self._start_of_heads((self.heads, 1 + 2 * self.rank * d))
        rank = min(self.heads * self.rank, d)
        return Pullback(MergedRisk(law, np.zeros((d, d)), rank), Heads(start, d))

    def _merged_heads_risk(self) -> Risk:
        """Return the risk over heads with merged keys and queries."""
        law = self.law()
        d = law.d
        start = self._start_of_heads((self.heads, 1 + d**2))
        return Pullback(MergedRisk(law, np.zeros((d, d))), MergedHeads(start, d))

    def _layer_risk(self) -> Risk:
        """Return the risk over all entries of a layer."""
        law = self.law()
        d = law.d
        tensor = TensorRisk(law, np.zeros((d + 1, d + 1, d)))
        if self.coordinates == "layer":
            start = self._start_of_heads((2, self.heads, d + 1, d + 1))
            return Pullback(tensor, WholeLayer(start))
        # A head has d + 1 weights of the value, and for each of R rows d + 1 weights of
        # a key and d weights of a query.
        weights_per_head = d + 1 + self.rank * (2 * d + 1)
        start = self._start_of_heads((self.heads, weights_per_head))
        return Pullback(tensor, SeparateLayer(start, d, self.rank))

    def _start_of_heads(self, shape: tuple[int, ...]) -> Array:
        """Return random parameters of heads, or the given ones."""
        # A generous bound, in bytes: the start and three copies.
        check_fits("heads", self.heads, 32.0 * math.prod(shape))
        if isinstance(self.start, float):
            # The 1 makes these numbers independent of the tasks, whose seed is
            # [seed, 0].
            rng = np.random.default_rng([self.seed, 1])
            start = rng.normal(0.0, self.start, shape)
        else:
            start = np.array(self.start)
        self._check_start(start, shape)
        return start

    def _check_start(self, start: Array, shape: tuple[int, ...]) -> None:
        """Refuse a start that does not have the shape of the parameters."""
        if start.shape != shape:
            raise argument_error("start", start.shape, f"a number, or of shape {shape}")

    def law(self) -> PromptLaw:
        """Return the law of the prompts for training."""
        return self._laws.training

    def new_tasks(self) -> PromptLaw:
        """Return the law of prompts with new tasks of the prior."""
        return self._laws.new

    def risk(self) -> Risk:
        """Return the risk over Γ or its factors.

        If all moments are diagonal, the risk is over the diagonal of Γ.
        """
        return self._risk

    def merged(self) -> MergedRisk:
        """Return the risk of one layer over Γ itself."""
        core: MergedRisk | TensorRisk = core_risk(self.risk())
        return core.merged if isinstance(core, TensorRisk) else core

    def sampled(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return the trainer on sampled prompts.

        The trained model is a `LayerRisk` if coordinates = "pair", a `SampledLayer` if
        coordinates = "layer", and a loop if there are several layers. In all other
        cases the parameters of `risk` are trained.
        """
        risk = self.risk()
        # Sampled layers have matrices, even if the risk is over diagonals.
        law = self.law().dense
        if self.coordinates == "layer":
            return SampledLayer(law, risk.initial, batch, seed)
        if self.coordinates == "pair" and not isinstance(risk, LoopedRisk):
            return LayerRisk.of(law, risk.initial, batch, seed)
        return trainer_of(risk, batch, seed)

    def unreduced(self) -> Risk:
        """Return the risk over all entries of Γ, even if all moments are diagonal.

        On a fixed set of prompts the entries off the diagonal do not stay zero.
        """
        risk = self.risk()
        core = core_risk(risk)
        # Only a risk over the diagonal of Γ is reduced. Diagonals have one axis, as has
        # the number γ of a loop. All other risks stay as they are.
        if isinstance(core, LoopedRisk) or core.initial.ndim > 1:
            return risk
        law = self.law()
        if not isinstance(risk, Pullback):
            return MergedRisk(law, np.diag(risk.initial))
        # The only change of coordinates with a diagonal core is (v, A).
        v = risk.initial[:1]
        A = np.diag(risk.initial[1:])
        start = np.append(v, A.ravel())
        return Pullback(MergedRisk(law, np.zeros_like(A)), Pair(start, A.shape))

    def set_trainer(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return the trainer whose prompts may form a fixed set.

        It trains the parameters of `unreduced`.
        """
        risk = self.unreduced()
        core = core_risk(risk)
        if isinstance(core, LoopedRisk | TensorRisk):
            return trainer_of(risk, batch, seed)
        # The trainer replaces the risk over Γ, and the coordinates stay as they are.
        trainer = SampledRisk(self.law().dense, core.initial, batch, seed)
        return replace_core(risk, trainer)

    def _empirical(self) -> EmpiricalRisk | None:
        """Return the loss of the fixed set as a quadratic form in Γ.

        The result is None if there is no fixed set, or if its loss does not have this
        form.
        """
        if not self.on_fixed_set:
            return None
        fixed_set = self._set_risk
        assert isinstance(fixed_set, FixedSetRisk)
        # The loss of all prompts of the set, as a function of Γ or B instead of the
        # trained factors.
        loss_of_set = core_risk(fixed_set.whole)
        # For a whole layer the quadratic form is in its tensor B, and not in Γ.
        is_over_gamma = self.coordinates not in WHOLE
        if isinstance(loss_of_set, EmpiricalRisk) and is_over_gamma:
            return loss_of_set
        return None

    def stable_rate(self) -> float:
        r"""Return half the largest stable learning rate.

        The rate is stable at the minimum that descent from a small start reaches. With
        the largest curvature c of the loss with respect to all entries of Γ, it is

        - 1/c for the merged Γ,
        - :math:`1/(2\|\Gamma^*\|_Fc)` for (v, A) and for merged heads,
        - :math:`1/(3s^{4/3}c)` for heads with separate keys and queries, with the sum s
          of the R largest singular values of Γ*,
        - the same for whole layers, merged or separate, with the largest curvature of
          their tensor (`TensorRisk`) as c,
        - the rate of `LoopedRisk` for several layers.

        For normal prompts c is :math:`q_{\max}m_{\max}`, except that c is the largest
        :math:`q_jm_j` for a diagonal merged Γ, whose other entries are not trained. On
        a fixed set whose loss is quadratic in Γ, c and Γ* belong to this loss.
        """
        risk = self.risk()
        if isinstance(risk, LoopedRisk):
            return risk.stable_rate()
        # The loss of the fixed set, if there is one, and else the population loss.
        quadratic = self._empirical() or self.merged()
        if self.coordinates == "merged":
            largest = float(quadratic.curvature.max(initial=0.0))
            # The curvature is zero if tokens and query share no direction. With no
            # curvature any rate is stable.
            return 1.0 / largest if largest > 0.0 else 1.0
        best = self.law().best
        if isinstance(quadratic, EmpiricalRisk):
            best = quadratic.best
        return 1.0 / (self._stretch(best) * self._largest_curvature())

    def _stretch(self, best: Array) -> float:
        """Bound the squared singular values of the derivative of Γ at the minimum.

        The derivative is with respect to the trained factors, and the minimum is the
        balanced one. ``best`` is Γ*, or its diagonal. For (v, A) the squares are at
        most v² + ‖A‖² = 2 ‖Γ*‖. For heads with separate keys and queries the bound is
        3 s^(4/3), with the sum s of the R largest singular values of Γ*. See
        docs/linear-attention-theory.md, the sharpness below "Fixed points".
        """
        if best.ndim == 1:
            values = np.abs(best)
        else:
            values = np.linalg.svd(best, compute_uv=False)
        if self.coordinates in SEPARATE:
            s = float(np.sort(values)[-self.rank :].sum())
            return 3.0 * math.pow(s, 4.0 / 3.0)
        return 2.0 * float(np.linalg.norm(values))

    def _largest_curvature(self) -> float:
        """Return the largest curvature of the loss over Γ or over the tensor B.

        All entries of Γ are taken into account, even if the risk is over a diagonal.
        """
        core = core_risk(self.risk())
        if isinstance(core, TensorRisk):
            return core.largest_curvature()
        # The loss of a fixed set, if there is one. The loss may have no curvature at
        # all.
        quadratic = self._empirical()
        if quadratic is not None:
            return float(quadratic.curvature.max(initial=0.0))
        return self.law().largest_curvature()

    def expected_steps(self) -> float | None:
        """Return an estimate of the length of the first plateau, in steps.

        The plateau lasts while small parameters grow away from the saddle at zero. The
        result is None if there is no such saddle, or if the start is an array.
        """
        law = self.law()
        if self.coordinates == "merged" or not isinstance(self.start, float):
            return None
        # Singular values of B = Λ_q W Λ, the rates at which directions grow from zero.
        # (This matrix B is minus the gradient at Γ = 0, and not the tensor of a layer.)
        covariance, prior, query = law.moments
        if law.diagonal:
            growth = query * prior * covariance
        else:
            product = query @ prior @ covariance
            growth = np.asarray(np.linalg.svd(product, compute_uv=False))
        if self.coordinates not in SEPARATE:
            # v and A grow exponentially at the rate ‖B‖, from the component of the
            # start along the growing direction (1, B/‖B‖) to ‖Γ*‖^½. For a pair the
            # component is v. For random heads the component has the root mean square
            # start √(H/2), see docs/linear-attention-theory.md, "Merged heads".
            component = self.start
            if self.coordinates in WITH_HEADS:
                component *= math.sqrt(0.5 * self.heads)
            # A start beyond ‖Γ*‖^½ has no plateau: the logarithm below is then 0.
            best_v = max(float(np.linalg.norm(law.best)) ** 0.5, component)
            time = math.log(best_v / component) / float(np.linalg.norm(growth))
            return time / self.rate()
        # Three factors of one size s grow like ds/dt = growth s². In the time
        # 1/(growth start) they reach sizes that are far larger than the start.
        return 1.0 / (float(growth.max()) * self.start * self.rate())

    def describe(self, run: Trajectory) -> None:
        """Add phases and notes to a run, such as the number of learnt directions."""
        run.phases = self._phases(run)
        limit = 2.0 * self.stable_rate()  # `stable_rate` is half of the limit
        if run.eta > limit and DESCENT.applies(run):
            run.notes["stability"] = (
                f"only below η = {limit:.4g} is descent known to stay at the minimum"
            )
        if self.coordinates == "merged" and self.depth == 1:
            self._describe_merged(run)
        measured = self.measure(run)
        run.notes["learnt"] = f"{measured['learnt']} of {self.d} directions"
        if "new_loss" in measured:
            run.notes["new tasks"] = (
                f"{measured['new_loss']:.6g} (best {self.new_tasks().floor:.3g})"
            )

    def _phases(self, run: Trajectory) -> Phases:
        """Return the phases of a run: plateau and learning.

        Learning is None if the plateau does not end.
        """
        last = int(run.t[-1])
        plateau_excess = PLATEAU * run.observed["excess"][0]
        plateau_end = run.first(
            lambda state: state.observed["excess"] <= plateau_excess
        )
        if plateau_end is None:
            return Phases(plateau=(0, last), learning=None)
        return Phases(plateau=(0, plateau_end), learning=(plateau_end, last))

    def _describe_merged(self, run: Trajectory) -> None:
        """Add a note on what is trained, and another if one step ends training."""
        run.notes["trained"] = (
            "Γ itself; coordinates = pair or heads train its factors, as papers do"
        )
        # A step multiplies the error of each mode by 1 - shrink.
        shrink = run.eta * self.merged().curvature
        if DESCENT.applies(run) and np.allclose(shrink, 1.0, rtol=1e-12, atol=0.0):
            run.notes["modes"] = (
                "all alike, and one step at this rate is exact; "
                "decay > 0 sets them apart"
            )

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        # The risk over Γ itself, even if its factors are trained. (For a whole layer it
        # is over the tensor B, and for a loop over γ.) The observed "gamma" has the
        # entries of Γ along the eigenvectors of Λ, or γ.
        core = core_risk(self.risk())
        best = core.observe(core.best)["gamma"]
        is_learnt = (run.observed["gamma"][-1] >= 0.5 * best) & (best > 0.0)
        # Layers in a loop have one number γ, which stands for all directions.
        directions = self.d if self.depth > 1 else 1
        columns = {
            "excess": float(run.observed["excess"][-1]),
            "learnt": directions * int(np.sum(is_learnt)),
        }
        if self.tasks is not None:
            columns["new_loss"] = self.new_tasks().loss(self.gamma(run.params))
        return columns

    def gamma(self, params: ArrayLike) -> Array:
        """Return Γ at parameters of the risk, (d, d), or its diagonal, (d,)."""
        risk = self.unreduced() if self.on_fixed_set else self.risk()
        gamma_or_tensor = core_params(risk, risk._checked(params))
        core = core_risk(risk)
        if isinstance(core, TensorRisk):
            return core.gamma(gamma_or_tensor)
        return gamma_or_tensor

    @classmethod
    def batched(
        cls, points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Compute points with diagonal, merged Γ in closed form, a dimension at a time.

        The target of each point has to be given as a loss above the floor, ``above``.
        """
        check_points(cls, points, common)
        values = {**common, **points}
        # The columns in closed form have the loss with the factor 1/2.
        if is_mse(common):
            return None
        if not cls._has_closed_columns(values, targets_excess="above" in points):
            return None
        # Conditions on common parameters are single values, and need an entry for each
        # point. The copy is writable.
        is_closed = np.broadcast_to(values["depth"] == 1, len(points["d"])).copy()
        # `isin` compares a single word as well as an array of words.
        is_closed &= np.isin(values["coordinates"], ("merged",))
        is_closed &= np.isin(values["method"], ("auto", "closed"))
        is_closed &= within(DESCENT, points, common)
        if not common["max_steps"]:
            # With max_steps = 0 a sweep only asks which points have a closed form. The
            # loss is NaN at points without a closed form. At all other points any
            # number will do.
            return {"method": "closed", "loss": np.where(is_closed, 0.0, np.nan)}
        problems = cls._problems(points, common, is_closed)
        # The columns begin without values, which means NaN for losses. The sweep
        # simulates points whose loss stays NaN.
        columns = blank(cls.every_column(), len(is_closed))
        for d in np.unique(points["d"]):
            rows = [i for i in problems if points["d"][i] == d]
            if not rows:
                continue  # no point of this dimension has a closed form
            results = closed_runs(
                [problems[i].merged() for i in rows],
                np.array([problems[i].rate() for i in rows]),
                points["above"][rows],
                common["max_steps"],
            )
            for name, column in results.items():
                columns[name][rows] = column
        return columns

    @classmethod
    def _has_closed_columns(
        cls, values: Mapping[str, Any], targets_excess: bool
    ) -> bool:
        """Whether the columns of all points follow from the modes in closed form.

        The closed form needs a target above the floor, a start that is a number at each
        point, and moments that are not given as matrices. Γ then stays diagonal.
        """
        # An array of starts is a column of the sweep, with a number for each point.
        if not targets_excess or not isinstance(values["start"], float | np.ndarray):
            return False
        matrices = ("tasks", "covariance", "prior", "query")
        return all(values.get(name) is None for name in matrices)

    @classmethod
    def _problems(
        cls,
        points: Mapping[str, NDArray[Any]],
        common: Mapping[str, Any],
        mask: NDArray[np.bool_],
    ) -> dict[int, LinearAttention]:
        """Return the problems of the points where ``mask`` is true.

        The keys are the numbers of the points. The mapping has no points whose
        parameters are refused.
        """
        problems = dict[int, LinearAttention]()
        for i in np.flatnonzero(mask).tolist():
            parameters = dict(common)
            for name, column in points.items():
                parameters[name] = column[i].item()
            # A refused point is skipped here. The sweep then simulates the point, and
            # reports why it is refused.
            with contextlib.suppress(ValueError):
                problems[i] = cls(**parameters)
        return problems


def draw_tasks(law: PromptLaw, k: int, seed: int) -> Array:
    """Draw k tasks of a law's prior, (k, d)."""
    seed = integer("seed", seed, minimum=0)
    k = integer("tasks", k, minimum=1)
    # A generous bound, in bytes: the tasks and two copies.
    check_fits("tasks", k, 24.0 * k * law.d)
    _, prior, _ = law.dense.moments
    # The 0 makes the tasks independent of the start of heads, whose seed is [seed, 1].
    rng = np.random.default_rng([seed, 0])
    return np.asarray(rng.normal(size=(k, law.d)) @ root(prior))
