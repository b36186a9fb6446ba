"""The sampled trainer: softmax attention on drawn prompts, with its backward pass.

Tokens are drawn one by one, and gradients go back through the softmax over tokens. The
trainer is a test of the population risk, and shares no formula with it. It has K
features with the vectors v_m, prompts of N tokens, and class scores S, (K, K).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import LARGEST, Array, integer, number, set_fields
from icl_theory.memory import check_fits
from icl_theory.regression.features import Features
from icl_theory.regression.sampled.layer import PromptRisk, Prompts
from icl_theory.regression.tasks import Task, variogram_of


@dataclass(frozen=True, eq=False)
class SampledRisk(PromptRisk):
    r"""Squared error of one-layer softmax attention on sampled prompts.

    The prediction is :math:`\hat y = \sum_i \mathrm{softmax}_i(s_i)\,y_i`. If token i
    shows feature :math:`m_i` and the query feature k, the score of the token is the
    class score :math:`s_i = S_{m_i k}`. With token noise the token is the vector
    :math:`x_i = v_{m_i} + \xi_i`, the query is a vector :math:`x_q` of the same kind,
    and the score is :math:`s_i = x_i^\top Q x_q`. The prompts of step t are a function
    of (seed, t): the same seed gives the same run, and any step can be drawn again. See
    docs/theory.md, "Setting".

    Parameters
    ----------
    features, task, N
        As for `PopulationRisk`, with finite N.
    batch : int
        Number of prompts in a step.
    seed : int
        Seed of all prompts.
    dataset : int, optional
        Number M of prompts of a fixed data set. Every step then draws its batch from
        this set, without replacement; if ``batch >= M``, it takes the whole set. By
        default every step has new prompts.
    noise : float
        Standard deviation of the label noise, label units.
    token_noise : float
        Standard deviation of each coordinate of ξ, in the units of the features. Labels
        are the function's values at the perturbed points. The parameters are then the
        matrix ``Q``, (d, d).

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(5, delta=1.0)
    >>> risk = icl.SampledRisk(features, icl.tasks.Linear(2.0), N=50, batch=64, seed=0)
    >>> icl.descend(risk, eta=4.0, steps=100).stop_reason
    'took all 100 steps without reaching epsilon = 0'
    """

    features: Features
    task: Task
    N: int
    batch: int
    seed: int
    dataset: int | None = None
    noise: float = 0.0
    token_noise: float = 0.0

    def __post_init__(self) -> None:
        # The variogram is not used. Its computation refuses arguments that are not
        # features or not a task, and a task that does not fit the features.
        variogram_of(self.features, self.task)
        for name in ("noise", "token_noise"):
            deviation = number(name, getattr(self, name), zero=True, maximum=LARGEST)
            set_fields(self, **{name: deviation})
        # `_prepare` checks the other fields. It also draws the data set, with the
        # fields above, so it comes last.
        self._prepare()

    @property
    def initial(self) -> Array:
        """Zero: class scores (K, K), or Q (d, d) with token noise."""
        size = self.features.d if self.token_noise else self.features.K
        return np.zeros((size, size))

    def held_out(self, size: int) -> Prompts:
        """Draw prompts for measurements, on which no step trains.

        They are the same at every call.

        Parameters
        ----------
        size : int
            Prompts for each query feature.

        Returns
        -------
        Prompts
            K * size prompts, in the order of the query features.

        Raises
        ------
        ValueError
            The size is not a positive integer.

        Examples
        --------
        >>> import icl_theory as icl
        >>> features = icl.Features.simplex(3, 1.0)
        >>> task = icl.tasks.Linear(1.0)
        >>> risk = icl.SampledRisk(features, task, N=9, batch=4, seed=0)
        >>> risk.held_out(2).query
        array([0, 0, 1, 1, 2, 2])
        """
        size = integer("size", size, minimum=1)
        check_fits("size", size, self._bytes(size * self.features.K))
        query = np.repeat(np.arange(self.features.K), size)
        # Stream 0 of the seed is for the prompts of the steps, and stream 1 for the
        # data set.
        stream_of_held_out = 2
        rng = np.random.default_rng([self.seed, stream_of_held_out])
        return self._draw(rng, len(query), query)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Mean attention of a step's prompts on the tokens of the query's feature."""
        prompts = self.prompts(step)
        total = 0.0
        for part in self.parts(prompts):
            weight, _prediction = self._attended(params, part)
            shows_query = part.token == part.query[:, None]
            total += np.sum(weight * shows_query)
        return {"attention": np.asarray(total / len(prompts.answer))}

    def _bytes(self, size: int) -> float:
        """Return a rough estimate of the memory that ``size`` drawn prompts need.

        The base class counts the arrays over tokens. This class adds three arrays over
        features and, with token noise, four arrays of the vectors of tokens and
        queries. A number has 8 bytes.
        """
        values = 3 * 8.0 * size * self.features.K
        vectors = 0.0
        if self.token_noise:
            vectors = 4 * 8.0 * size * (self.N + 1) * self.features.d
        return super()._bytes(size) + values + vectors

    def _draw(
        self, rng: np.random.Generator, size: int, query: NDArray[np.intp] | None = None
    ) -> Prompts:
        """Draw prompts with random queries, or with the given ``query``, (size,)."""
        token = self._draw_features(rng, (size, self.N))
        if query is None:
            query = self._draw_features(rng, (size,))
        token_vectors = None
        query_vectors = None
        if self.token_noise:
            # The tokens and the query of a prompt are points of the same function. The
            # query is the last of the N + 1 points, (size, N + 1, d).
            points = self.features.vectors[np.column_stack([token, query])]
            points += rng.normal(0.0, self.token_noise, points.shape)
            # `functions` draws a random function for each prompt.
            values_at_points = self.task.functions(self.features, rng, size)(points)
            label = values_at_points[:, :-1]
            answer = values_at_points[:, -1]
            token_vectors = points[:, :-1]
            query_vectors = points[:, -1]
        else:
            # A random function for each prompt, with its values at all features,
            # (size, K)
            values_at_features = self.task.sample(self.features, rng, size)
            label = np.take_along_axis(values_at_features, token, axis=1)
            answer = values_at_features[np.arange(size), query]
        if self.noise:
            label = label + rng.normal(0.0, self.noise, label.shape)
        return Prompts(token, query, label, answer, token_vectors, query_vectors)

    def _draw_features(
        self, rng: np.random.Generator, shape: tuple[int, ...]
    ) -> NDArray[np.intp]:
        """Draw indices of features with their probabilities."""
        if self.features.uniform:
            return rng.integers(self.features.K, size=shape)
        # Feature m has the interval from the sum of the probabilities before it to the
        # sum that includes its own. The last interval has no upper edge, because
        # rounding may leave the sum of all probabilities below 1.
        upper_edges = np.cumsum(self.features.probs)[:-1]
        return np.searchsorted(upper_edges, rng.random(shape), side="right")
