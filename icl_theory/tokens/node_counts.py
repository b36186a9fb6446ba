r"""Softmax attention on sampled prompts that are drawn by the counts of their nodes.

A prompt enters the loss of a `TokenRisk` through the number :math:`n_u` of its tokens
at each node u, and through the sum :math:`\nu_u` of their noises. The noise of a token
is its value minus the mean value of its node. The sum is normal with the variance
``spread`` times :math:`n_u`. If there are fewer nodes than tokens, the numbers and sums
take less time to draw than the tokens. With the scores :math:`\theta_u`, all tokens at
a node together have the attention

.. math:: a_u = \frac{n_u e^{\theta_u}}{\sum_v n_v e^{\theta_v}},

so that a node counts as one token with the score :math:`\theta_u + \ln n_u`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.sampling import prompts_per_run
from icl_theory.tokens.multinomial import multinomial
from icl_theory.tokens.sampled import Indices, Pass, Sampled, first_places

if TYPE_CHECKING:
    from icl_theory.tokens.risk import TokenRisk

# How many numbers of 8 bytes a node takes in a sampled prompt, in addition to one for
# each coordinate of its error.
NUMBERS_OF_NODE = 6.0
# If the scores of a run differ by more than this, their weights e^θ, relative to the
# largest one, may leave the range of float64, which ends at about e^(-708).
WIDEST = 600.0


class NodeCounts(NamedTuple):
    """B prompts, each described by its number of tokens at each of U nodes."""

    query: Indices  # number of the query, (B, 1)
    counts: Array  # n, (B, U)
    noise: Array  # sum of the noises of the tokens at a node, (B, U)


class CountedTokens(Sampled[NodeCounts]):
    """The trainer of a `TokenRisk` on prompts that are drawn by their counts.

    Losses and gradients have the same law as if the prompts were drawn token by token.

    Parameters
    ----------
    risk : TokenRisk
        The law of the tokens.
    start : ndarray
        Scores at step 0.
    batch, seed : int
        Number of prompts in a step, and the seed.
    """

    # This trainer has its own stream of random numbers, so that its prompts are
    # independent of prompts that are drawn token by token with the same seed.
    stream = (1,)

    def __init__(self, risk: TokenRisk, start: Array, batch: int, seed: int) -> None:
        self.risk = risk
        U = len(risk.probs)
        D = risk.errors.shape[2]
        numbers = U * (NUMBERS_OF_NODE + D)
        super().__init__(start, self._drawn, self._losses_on, batch, seed, numbers)

    def _drawn(self, rng: np.random.Generator, size: int) -> NodeCounts:
        """Draw ``size`` prompts by the numbers of their tokens at each node."""
        risk = self.risk
        query = risk.draw_queries(rng, size)
        lengths = risk.draw_lengths(rng, size)
        counts_of_kinds = []
        for kind, length in zip(risk.counts, lengths, strict=True):
            probs = risk.probs[kind.rows]
            # `multinomial` is faster, but all prompts must have the same number of
            # tokens. It is used if this is the largest possible number, ``places``.
            # NumPy refuses probabilities whose sum exceeds 1 by rounding, so they are
            # divided by their sum.
            if (length == kind.places).all():
                counts_of_kinds.append(multinomial(rng, kind.places, probs, size))
            else:
                counts_of_kinds.append(rng.multinomial(length, probs / probs.sum()))
        counts = np.concatenate(counts_of_kinds, axis=1).astype(np.float64)
        if not risk.spread.any():
            # No token has noise.
            return NodeCounts(query, counts, np.zeros(counts.shape))
        # The standard deviation of a sum of n noises is √n times the standard deviation
        # of a single noise. The variance of a single noise is the spread at its node,
        # for the query of the prompt.
        noise = rng.standard_normal(counts.shape)
        noise *= np.sqrt(counts)
        noise *= np.sqrt(risk.spread.T).take(query[:, 0], axis=0)
        return NodeCounts(query, counts, noise)

    def evaluate_runs(self, params: Array, prompts: NodeCounts) -> tuple[Array, Array]:
        r"""Mean losses and gradients of R runs, (R,) and (R, U) or (R, U, Q).

        The formula is for a single query, Q = 1. Let node u have the weight
        :math:`w_u = e^{\theta_u}` and the error :math:`e_u`, which has D coordinates.
        Under the attention, the tokens of a prompt have the mean error :math:`\bar e`
        and the mean noise :math:`\bar\nu`. They give the loss ℓ of the prompt and its
        gradient:

        .. math:: Z = \sum_u n_u w_u, \quad \bar e = \sum_u n_u w_u e_u / Z, \quad
            \bar\nu = \sum_u w_u \nu_u / Z, \quad
            \ell = \tfrac12 (|\bar e|^2 + \bar\nu^2), \quad
            \frac{\partial\ell}{\partial\theta_u} = \frac{w_u}{Z}\bigl[n_u\,
            (e_u\cdot\bar e - |\bar e|^2 - \bar\nu^2) + \nu_u \bar\nu\bigr].

        All sums over nodes, and over the prompts of a run, are matrix products.
        """
        # The formula is for one query, and for weights within the range of float64. In
        # all other cases the method of `Sampled` calls `_losses_on`.
        if len(self.risk.asked) > 1 or (np.ptp(params, axis=1) > WIDEST).any():
            return super().evaluate_runs(params, prompts)
        scores = params.reshape(len(params), -1)
        R, U = scores.shape
        size = prompts_per_run(prompts, R)  # B/R
        n = prompts.counts.reshape(R, size, U)
        nu = prompts.noise.reshape(R, size, U)
        e = self.risk.errors[0]  # of the only query, (U, D)
        # Weights relative to the largest one of a run, (R, U, 1). The factor cancels.
        w = np.exp(scores - scores.max(axis=1, keepdims=True))[:, :, None]
        Z = n @ w  # (R, B/R, 1)
        mean_error = n @ (w * e) / Z  # (R, B/R, D)
        mean_noise = nu @ w / Z
        squared = np.sum(mean_error**2, axis=2, keepdims=True) + mean_noise**2
        counts_by_node = n.swapaxes(1, 2)
        noise_by_node = nu.swapaxes(1, 2)
        # The three terms of the bracket, divided by Z and summed over prompts, (R, U).
        error_term = np.sum(e * (counts_by_node @ (mean_error / Z)), axis=2)
        squared_term = (counts_by_node @ (squared / Z))[:, :, 0]
        noise_term = (noise_by_node @ (mean_noise / Z))[:, :, 0]
        gradients = w[:, :, 0] * (error_term - squared_term + noise_term) / size
        losses = 0.5 * np.mean(squared[:, :, 0], axis=1)
        return losses, gradients.reshape(params.shape)

    def _losses_on(self, params: Array, prompts: NodeCounts) -> Pass:
        """Return losses and derivatives on the prompts of R runs, see `Sampled`.

        All tokens at a node count as one token with the score θ + ln n and the mean of
        their noises.
        """
        query, counts, noise = prompts
        # Flat indices of each node, with the prompt's query, in arrays of the shape
        # (U, Q).
        place_in_run = len(self.risk.asked) * np.arange(counts.shape[1]) + query
        place = first_places(params, len(counts)) + place_in_run
        scores = params.ravel().take(place)
        # A node without tokens gets the score -inf, and so no attention.
        with np.errstate(divide="ignore"):
            scores += np.log(counts)
        mean_noise = noise / np.maximum(counts, 1.0)  # 0 at a node without tokens
        return self.risk.losses_of_scores(scores, place, place_in_run, mean_noise)
