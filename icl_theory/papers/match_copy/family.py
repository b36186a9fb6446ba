"""Gaussian match-and-copy, as a family of problems."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from icl_theory._validate import LARGEST, Array, argument_error
from icl_theory.engine.risk import Risk
from icl_theory.engine.starts import checked_start
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    NumberOrArray,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.parameters import learning_rate, loss_form
from icl_theory.papers.match_copy.risk import (
    VALUES,
    CopyRisk,
    CopySampleRisk,
    draw_prompts,
)
from icl_theory.papers.token_selection.family import cosine, hard_margin

# `MatchCopy.largest_margin` needs a matrix of d² entries for each prompt and key. All
# matrices together have at most this number of entries, 80 MB; a cautious limit.
MOST_ENTRIES = 1e7


@dataclass(frozen=True, eq=False)
class MatchCopy(Family):
    r"""Attention that finds the key that a query matches, and copies this key's value.

    The N keys :math:`k_t` of a prompt are normal in d dimensions, and the query q has
    the correlation ρ with one of them. Attention with the scores :math:`k_t^\top Wq`
    should return this key's value. W is trained on the squared error: over all prompts
    with W = ωI, or over a fixed number of prompts with any W.

    Parameters
    ----------
    d, N : int
        Dimension of keys and values, and number of keys in a prompt.
    correlation : float
        The correlation ρ of each coordinate of the query with the same coordinate of
        its match, 0 < ρ <= 1.
    prompts : int
        Prompts that are drawn once, or math.inf for the loss over all prompts.
    values : {"separate", "next"}
        "separate": values are independent of the keys. "next", for a finite number of
        prompts: the keys are the first N tokens of a sequence, and the value of a key
        is the token after it.
    start : float or array_like, (1,) or (d, d)
        The parameters at step 0. A number stands for ω, with W = ωI. An array has all
        parameters: ω alone, (1,), over all prompts, or W, (d, d), on fixed prompts.
    seed : int
        Seed of the prompts.
    eta, epsilon, above, loss, rule, method, max_steps
        As for every `Family`. The loss is per coordinate of the values.

    References
    ----------
    docs/theory/match-copy.md; Gonon, Cordonnier, Boumal 2026.

    Examples
    --------
    On eight prompts W grows towards the direction of the largest margin. The loss over
    all prompts is least at a finite ω:

    >>> import math
    >>> from icl_theory.papers.match_copy.family import MatchCopy
    >>> sample = MatchCopy(d=4, N=4, prompts=8, epsilon=1e-6, method="flow")
    >>> sample.measure(sample.simulate())["cosine"] > 0.9
    True
    >>> population = sample.changed(prompts=math.inf)
    >>> round(population.risk().best, 2)
    1.03
    """

    name: ClassVar[str] = "match-copy"
    title: ClassVar[str] = "Gaussian match-and-copy"
    goal: ClassVar[tuple[str, float]] = ("epsilon", 1e-3)
    claims = LazySlot("icl_theory.papers.match_copy.statements:CLAIMS")
    columns: ClassVar[tuple[Column, ...]] = (
        Column("omega", "f8", "", "ω at the end, or the mean diagonal entry of W"),
        Column(
            "cosine",
            "f8",
            "",
            "cosine of W with the matrix of the largest margin on the fixed prompts",
        ),
        Column(
            "attention", "f8", "", "mean attention on the match of the fixed prompts"
        ),
    )

    eta: float | str = learning_rate(1.0)
    d: int = parameter(
        8, kind=Whole(maximum=1000), symbol="d", meaning="dimension of keys and values"
    )
    N: int = parameter(
        8,
        kind=Whole(minimum=2, maximum=10**4),
        symbol="N",
        meaning="keys of a prompt",
    )
    correlation: float = parameter(
        0.8,
        kind=Number(maximum=1.0),
        symbol="ρ",
        meaning="correlation of the query with its match",
    )
    prompts: float = parameter(
        20,
        kind=Whole(infinite=True),
        meaning="prompts that are drawn once, or inf",
    )
    values: str = parameter(
        "separate",
        kind=Word(words=VALUES),
        meaning="how the values of the keys are drawn",
    )
    start: Any = parameter(
        0.0,
        kind=NumberOrArray(zero=True, maximum=LARGEST, ndim=(1, 2)),
        meaning="ω of W = ωI at step 0",
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of the prompts")
    loss: str = loss_form()

    def validate(self) -> None:
        """Check the parameters against each other, and build the risk."""
        if self.values == "next" and not self._is_sample:
            raise argument_error("values", self.values, "'separate' for prompts = inf")
        if self._is_sample and self.prompts * self.N * self.d**2 > MOST_ENTRIES:
            raise argument_error(
                "prompts",
                self.prompts,
                "less: prompts times N d² is at most 1e7, for the margins",
            )
        # Building the risk checks the correlation and the start.
        self.risk()

    @property
    def _is_sample(self) -> bool:
        """Whether training uses a finite number of prompts."""
        return math.isfinite(self.prompts)

    @cached_property
    def _risk(self) -> Risk:
        """The risk over all prompts, or over prompts that this property draws once."""
        if not self._is_sample:
            start = self._start(shape=(1,), unit=np.ones(1))
            return CopyRisk(self.d, self.N, self.correlation, start)
        rng = np.random.default_rng(self.seed)
        prompts = draw_prompts(
            rng, int(self.prompts), self.d, self.N, self.correlation, self.values
        )
        start = self._start(shape=(self.d, self.d), unit=np.eye(self.d))
        return CopySampleRisk(prompts, start)

    def _start(self, shape: tuple[int, ...], unit: Array) -> Array:
        """Return the parameters at step 0, of the given shape.

        ``unit`` has the parameters for ω = 1.
        """
        if isinstance(self.start, float):
            return self.start * unit
        return checked_start(self.start, shape)

    def risk(self) -> Risk:
        """Return the risk over ω, or over W."""
        return self._risk

    @cached_property
    def largest_margin(self) -> Array | None:
        r"""The W of least norm for which all leads are at least 1, or None.

        A lead is the difference :math:`(k_m - k_t)^\top Wq` of the scores of the match
        and of another key of its prompt. The result is None if no W has only positive
        leads.

        Raises
        ------
        ValueError
            The number of prompts is infinite.
        """
        risk = self._risk
        if not isinstance(risk, CopySampleRisk):
            raise argument_error("prompts", self.prompts, "finite, for a margin")
        # `hard_margin` returns the W of least norm whose inner products with all these
        # matrices are at least 1.
        return hard_margin(risk.leads())

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run.

        For the loss over all prompts, ``omega`` is the only one.
        """
        risk = self._risk
        if not isinstance(risk, CopySampleRisk):
            return {"omega": float(run.params[0])}
        W = run.params
        measured = {
            "omega": float(np.trace(W) / self.d),
            "attention": float(risk.observe(W)["attention_on_match"].mean()),
        }
        largest_margin = self.largest_margin
        # W = 0 has no direction.
        if largest_margin is not None and W.any():
            measured["cosine"] = cosine(W, largest_margin)
        return measured
