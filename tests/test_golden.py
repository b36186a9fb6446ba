"""Results are those that were found once: the same integers and closed-form doubles, iterated doubles to 1e-12.

Skipped states are known to some 1e-8 (`states_error`) and flows to 1e-10: other steps of the solver move them by
less than that.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.golden import FILE, results

pytestmark = pytest.mark.slow
SOLVED = {"fast": 1e-9, "flow": 1e-10}  # relative, where a solver chooses its steps


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]]]:
    return results()


@pytest.mark.parametrize("kind", ["regression", "recall", "closed", "exact", "fast", "flow", "auto"])
def test_results_have_not_moved(found: dict[str, list[dict[str, Any]]], kind: str) -> None:
    expected = json.loads(FILE.read_text())[kind]
    assert len(found[kind]) == len(expected)
    for i, (mine, theirs) in enumerate(zip(found[kind], expected, strict=True)):
        for name in ("loss", "params"):
            values, wanted = (np.array([float.fromhex(x) for x in each.pop(name)]) for each in (mine, theirs))
            if mine["method"] == "closed":
                np.testing.assert_array_equal(values, wanted, err_msg=f"{kind} {i} {name}")
            else:
                rtol = SOLVED.get(kind, 1e-12)
                np.testing.assert_allclose(values, wanted, rtol=rtol, atol=1e-300, err_msg=f"{kind} {i} {name}")
        assert mine == theirs, (kind, i)
