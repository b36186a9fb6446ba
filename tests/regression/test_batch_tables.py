"""Tables of losses, which stand for their formulas while a batch is trained."""

from __future__ import annotations

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.regression.batches.tables import LAST, PANELS, TabulatedLosses


@pytest.mark.parametrize(("K", "N", "noise"), [(5, 20, 0.3), (40, 400, 0.0)])
def test_tables_have_the_losses_slopes_and_attention_up_to_their_end(
    K: int, N: int, noise: float
) -> None:
    risk = icl.ExchangeableRisk(K, 1.7, N=N, noise=noise)
    tables = TabulatedLosses(
        K=np.array([K]),
        N=np.array([N]),
        gamma=np.array([1.7]),
        noise_variance=np.array([noise**2]),
        step_factor=np.ones(1),
    )
    # The middle of each panel, and both ends of the range
    u = np.array([0.0, *(np.arange(PANELS) + 0.5) * (LAST / PANELS), LAST])
    index = np.zeros(len(u), dtype=np.intp)
    loss = [risk.loss(x) for x in u]
    slope = [float(risk.gradient(x)) for x in u]
    attention = [float(risk.observe(x)["attention"]) for x in u]
    np.testing.assert_allclose(tables.loss(u, index), loss, rtol=1e-10)
    np.testing.assert_allclose(tables.attention(u, index), attention, rtol=1e-10)
    np.testing.assert_allclose(
        tables.slope(u, index), slope, rtol=1e-8, atol=1e-12 * np.abs(slope).max()
    )
