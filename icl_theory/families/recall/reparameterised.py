"""The full transformer in the few parameters of the theory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from icl_theory._validate import Array, instance, refuse, store
from icl_theory.engine.risk import Risk
from icl_theory.families.recall.sampled import Drawn, TransformerRisk
from icl_theory.families.recall.task import Words
from icl_theory.families.recall.weights import gates, held


@dataclass(frozen=True, eq=False)
class Reparameterised(Risk):
    r"""The same transformer on the same sentences, trained in ``(lambda_1, ..., lambda_Q, [v], [gamma])`` alone.

    With sums over the triggers q and the words x that may be outputs, seen or not,

    .. math::
        W = \sum_q \lambda_q E(q)\tilde E(q)^\top, \qquad \mathcal V = v\sum_x E(x)E(x)^\top, \qquad
        F = \gamma\sum_q E(\tau)E(q)^\top + \sum_x E(\tau)E(x)^\top,

    or with the weights "identity" :math:`W = \sum_q \lambda_q E(q)(\tilde E(q) - E(\tau))^\top` (without
    :math:`E(\tau)` where there is no noise), :math:`\mathcal V = vI` and
    :math:`F = \sum_q E(\tau)(\gamma E(q) + \tilde E(q))^\top`.
    This map is affine: the gradient is that of the full matrices, summed over the entries that a parameter sets.

    Parameters
    ----------
    full : TransformerRisk
        With W, 𝒱 and (with noise) F as what is trained, and nothing else.
    gamma, v : float, optional
        Hold γ or v at this value instead of training it.

    References
    ----------
    docs/theory.md, "In-context recall".
    """

    full: TransformerRisk
    gamma: float | None = None
    v: float | None = None

    def __post_init__(self) -> None:
        instance("full", self.full, TransformerRisk, "a TransformerRisk")
        noisy, softmax = bool(self.full.task.alpha), self.full.attention == "softmax"
        wanted = ("attention", "value", "feed_forward") if noisy else ("attention", "value")
        if self.full.trained != wanted:
            raise refuse("full", self.full.trained, "a TransformerRisk that trains " + ", ".join(wanted))
        for name, value, there in (("gamma", self.gamma, noisy), ("v", self.v, softmax)):
            if value is not None and not there:
                raise refuse(
                    name, value, "left out where alpha = 0" if name == "gamma" else "left out unless softmax"
                )
            if value is not None:
                store(self, **{name: held(name, value)})

    @property
    def stochastic(self) -> bool:
        """Whether the steps draw different sentences."""
        return self.full.stochastic

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the parameters of each matrix."""
        return np.split(array, range(self.full.task.Q, len(self._entries)))

    @property
    def initial(self) -> Array:
        """Zero."""
        return np.zeros(len(self._entries))

    def floor(self) -> float:
        """Bayes risk of the task, or 0 for fixed sentences (a lower bound)."""
        return self.full.floor()

    def inward(self, params: Array) -> Array:
        """Parameters of the full transformer."""
        flat = self._base.copy()
        for value, (entries, signs) in zip(params, self._entries, strict=True):
            flat[entries] = signs * value
        return flat

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient on the step's sentences."""
        return self.on(params, self.full.drawn(step))

    def on(self, params: Array, drawn: Drawn) -> tuple[float, Array]:
        """Mean loss of sentences and its gradient."""
        loss, gradient = self.full.on(self.inward(params), drawn)
        return loss, np.array([gradient[entries] @ signs for entries, signs in self._entries])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """What the full transformer observes at these matrices."""
        return self.full.observe(self.inward(params), step)

    @cached_property
    def _base(self) -> Array:
        """The entries that no parameter sets."""
        full, d = self.full, 2 * self.full.task.V
        fixed = gates(full.task, full.weights, 0.0 if self.gamma is None else self.gamma)
        scale = 1.0 if full.attention != "softmax" else self.v or 0.0
        parts = [np.zeros((d, d)), scale * fixed["value"], *([fixed["feed_forward"]] if full.task.alpha else [])]
        return np.concatenate([part.ravel() for part in parts])

    @cached_property
    def _entries(self) -> list[tuple[Words, Array]]:
        """For each parameter the flat positions that it sets, and their signs."""
        full, task, d = self.full, self.full.task, 2 * self.full.task.V
        cancelled = full.weights == "identity" and task.alpha > 0
        entries = [
            (
                np.array([q * d + task.V + q, *([q * d + task.noise_word] * cancelled)]),
                np.array([1.0, -1.0])[: 1 + cancelled],
            )
            for q in task.triggers
        ]
        passing = np.arange(d) if full.weights == "identity" else task.passing
        if full.attention == "softmax" and self.v is None:
            entries.append((d * d + passing * (d + 1), np.ones(len(passing))))
        if task.alpha and self.gamma is None:
            entries.append((2 * d * d + task.noise_word * d + task.triggers, np.ones(task.Q)))
        return entries
