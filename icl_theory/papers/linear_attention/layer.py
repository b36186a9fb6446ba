"""The layer on sampled prompts, with its gradient; it shares no formula with the population risk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error, integer, real_array, set_fields
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.memory import check_fits
from icl_theory.papers.linear_attention.law import PromptLaw, prompt_law, root, shaped


class Prompts(NamedTuple):
    """B prompts: tokens (B, N, d), labels (B, N), queries (B, d) and their answers (B,)."""

    tokens: Array
    labels: Array
    query: Array
    answer: Array


@dataclass(frozen=True, eq=False)
class SampledRisk(WithStart, Risk):
    r"""Squared error of :math:`x^\top\Gamma h` on fresh prompts at every step, over the matrix Γ.

    Parameters
    ----------
    law : PromptLaw
        Law of the prompts; tasks are normal.
    start : ndarray, (d, d)
        Γ at step 0.
    batch, seed : int
        Prompts in a step; those of step t are a function of (seed, t).

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10)
    >>> risk = icl.linear_attention.SampledRisk(law, np.eye(2), batch=100_000)
    >>> round(risk.loss(np.eye(2)), 2), round(law.loss(np.eye(2)), 2)
    (0.21, 0.21)
    """

    law: PromptLaw
    start: Array
    batch: int
    seed: int = 0

    stochastic = True  # every step draws its prompts

    def __post_init__(self) -> None:
        if not np.isfinite(prompt_law(self.law).N):
            raise argument_error(
                "N", self.law.N, "finite: infinite prompts cannot be sampled"
            )
        set_fields(
            self,
            batch=integer("batch", self.batch, minimum=1),
            seed=integer("seed", self.seed, minimum=0),
        )
        set_fields(self, start=shaped("start", self.start, self._shape))
        check_fits(
            "batch",
            self.batch,
            32.0 * self.batch * (self.law.N + 2.0) * (self.law.d + 2.0),
        )
        object.__setattr__(
            self, "_roots", [root(matrix) for matrix in self.law.dense.moments]
        )

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.law.d, self.law.d)

    def prompts(self, step: int) -> Prompts:
        """Draw the prompts of a step."""
        rng = np.random.default_rng([self.seed, integer("step", step, minimum=0)])
        covariance, prior, query = self._roots  # type: ignore[attr-defined]
        d = self.law.d
        N = int(self.law.N)
        tokens = rng.normal(size=(self.batch, N, d)) @ covariance
        task = rng.normal(size=(self.batch, d)) @ prior
        asked = rng.normal(size=(self.batch, d)) @ query
        labels = np.einsum("bnd,bd->bn", tokens, task) + self.law.noise * rng.normal(
            size=(self.batch, N)
        )
        return Prompts(tokens, labels, asked, np.sum(asked * task, axis=1))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the prompts of a step, and its gradient."""
        tokens, labels, query, answer = self.prompts(step)
        h = np.einsum("bn,bnd->bd", labels, tokens) / tokens.shape[1]
        error = np.sum((query @ params) * h, axis=1) - answer
        return 0.5 * float(np.mean(error**2)), (
            query * error[:, None]
        ).T @ h / self.batch


@dataclass(frozen=True, eq=False)
class SampledLoop(SampledRisk):
    r"""D layers in a loop on fresh prompts, over γ, (1,); each adds :math:`\frac\gamma D(h - \hat\Sigma w)` to w.

    Parameters
    ----------
    law, start, batch, seed, depth
        As for `SampledRisk`; ``start`` is γ at step 0, (1,), and ``depth`` the number D
        of layers.
    """

    depth: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, depth=integer("depth", self.depth, minimum=1, maximum=10_000))

    @property
    def _shape(self) -> tuple[int, ...]:
        return (1,)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the prompts of a step, and its derivative, propagated from layer to layer."""
        tokens, labels, query, answer = self.prompts(step)
        rate = params[0] / self.depth
        slope = 1.0 / self.depth
        weight = np.zeros_like(query)
        change = np.zeros_like(query)
        for _ in range(self.depth):
            missing = labels - np.einsum("bnd,bd->bn", tokens, weight)
            pull = np.einsum("bn,bnd->bd", missing, tokens) / tokens.shape[1]
            bend = (
                np.einsum("bn,bnd->bd", np.einsum("bnd,bd->bn", tokens, change), tokens)
                / tokens.shape[1]
            )
            weight = weight + rate * pull
            change = change + slope * pull - rate * bend
        error = np.sum(query * weight, axis=1) - answer
        return 0.5 * float(np.mean(error**2)), np.array(
            [np.mean(error * np.sum(query * change, axis=1))]
        )


class LayerRisk(SampledRisk):
    r"""The whole layer on sampled prompts, over its matrices (P, K), (2, d + 1, d + 1).

    The prompt is the matrix :math:`E` with columns :math:`(x_i, y_i)` and :math:`(x,
    0)`, and the prediction the last entry of :math:`\frac1N P E E^\top K (x, 0)`. See
    docs/linear-attention-theory.md, "The layer".
    """

    @property
    def _shape(self) -> tuple[int, ...]:
        return (2, self.law.d + 1, self.law.d + 1)

    @classmethod
    def of(
        cls, law: PromptLaw, pair: ArrayLike, batch: int, seed: int = 0
    ) -> LayerRisk:
        """Start from v, an entry of P, and the transpose of A, a block of K; all other entries are zero."""
        d = prompt_law(law).d
        pair = real_array("pair", pair, 1)
        if len(pair) not in {1 + d, 1 + d * d}:
            raise argument_error(
                "pair", pair.shape, f"of shape ({1 + d},) or ({1 + d * d},)"
            )
        both = np.zeros((2, d + 1, d + 1))
        both[0, d, d] = pair[0]
        both[1, :d, :d] = (
            np.diag(pair[1:])
            if len(pair) == d + 1 and d > 1
            else pair[1:].reshape(d, d).T
        )
        return cls(law, both, batch, seed)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the prompts of a step, and its gradient."""
        tokens, labels, query, answer = self.prompts(step)
        asked = np.pad(query, ((0, 0), (0, 1)))
        columns = np.concatenate(
            [np.concatenate([tokens, labels[:, :, None]], axis=2), asked[:, None]],
            axis=1,
        )
        N = tokens.shape[1]

        def seen(vectors: Array) -> Array:
            """Return EEᵀ/N times a vector, for each prompt."""
            return (
                np.einsum(
                    "bn,bni->bi", np.einsum("bni,bi->bn", columns, vectors), columns
                )
                / N
            )

        value = np.broadcast_to(params[0, -1], asked.shape)
        keyed = asked @ params[1].T
        attended = seen(keyed)
        error = np.sum(attended * value, axis=1) - answer
        gradient = np.zeros_like(params)
        gradient[0, -1] = error @ attended / self.batch
        gradient[1] = (seen(value) * error[:, None]).T @ asked / self.batch
        return 0.5 * float(np.mean(error**2)), gradient
