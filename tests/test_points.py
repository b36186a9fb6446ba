from __future__ import annotations

import pandas as pd
import pytest

import icl_theory as icl
from icl_theory.points import point_table


def test_a_sweep_with_phases_has_its_phase_table() -> None:
    found = icl.sweep([0.1, 1.0], 1.0, 4.0, K=[5, 6], progress=False)
    pd.testing.assert_frame_equal(point_table(found, "K"), icl.phase_table(found, "K"))


def test_another_sweep_has_every_quantity_and_no_pending_points() -> None:
    found = icl.sweep_recall(Q=[4, 16], alpha=[0.0, 0.1], max_steps=50, progress=False)
    found["status"].values[1, 1] = "pending"
    table = point_table(found, "alpha")
    assert list(table.columns) == ["Q", "alpha", "T_ε", "last", "loss", "excess", "bayes_risk", "status"]
    assert table["Q"].tolist() == [4, 4, 16]
    assert table["T_ε"].isna().tolist() == [False, True, False]  # with noise 50 steps are too few
    assert table["loss"].tolist() == found["loss"].values.ravel()[:3].tolist()


def test_a_single_point_and_an_unknown_parameter_are_refused() -> None:
    with pytest.raises(ValueError, match="must be swept over one parameter at least"):
        point_table(icl.sweep_recall(max_steps=50, progress=False))
    with pytest.raises(ValueError, match="over = 'L': must be one of Q"):
        point_table(icl.sweep_recall(Q=[4, 16], max_steps=50, progress=False), "L")
