"""The drawn models of the explorer: attention, prediction and error against loops of Python."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.families import list_families
from tests.javascript import call

PICTURES = """
const { picture } = require(`${given[0]}/picture`), panel = require(`${given[0]}/panel`);
const defaults = Object.fromEntries(panel.settings.map(({ name, value }) => [name, value]));
return given[1].map((changes) => {
  const values = { ...defaults, ...changes }, model = panel.compute(values);
  const now = panel.moment(model, values);
  return { values, now, drawn: picture(now, values) };
});
"""


def test_the_drawn_regression_has_the_attention_and_the_prediction_of_python() -> None:
    rng = np.random.default_rng(0)
    settings = []
    for _ in range(12):
        K = int(rng.integers(2, 60))
        settings.append(
            {
                "L": float(rng.uniform(0.3, 4.0)),
                "K": K,
                "query": int(rng.integers(1, min(K, 24) + 1)),
                "t": int(rng.integers(0, 3000)),
            }
        )
    for page in call(PICTURES, "regression", settings):
        values, drawn = page["values"], page["drawn"]
        K, query = int(values["K"]), int(values["query"])
        run = icl.simulate(
            values["L"], values["delta"], values["eta"], K=K, epsilon=values["epsilon"]
        )
        attention = float(run.at(int(values["t"])).attention)
        truth = page["now"]["truth"]
        weights = [(1 - attention) / (K - 1)] * K
        weights[query - 1] = attention
        shares = {row["feature"]: row["share"] for row in drawn["rows"]}
        assert shares[query] == pytest.approx(attention, rel=1e-9)
        assert math.fsum(shares.values()) == pytest.approx(1.0, rel=1e-12)
        # the function's values are repeated in turn over all K features
        prediction = math.fsum(weights[i] * truth[i % len(truth)] for i in range(K))
        size = values["L"] * values["delta"]
        assert drawn["prediction"] == pytest.approx(prediction, abs=1e-9 * size)
        error = prediction - truth[query - 1]
        assert drawn["error"] == pytest.approx(error, abs=1e-9 * size)


def two_layers(symbols: list[int], params: list[float]) -> tuple[list[float], float]:
    """Attention of the second layer, the sink's first, and the prediction of a 1."""
    gap, match, sink = params
    lag1 = math.exp(gap) / (1.0 + math.exp(gap))
    scores = [sink]
    for i, symbol in enumerate(symbols):
        looked_at = [1.0 - lag1, lag1] if i else [1.0]
        values = [symbol, symbols[i - 1]][: len(looked_at)]
        matches = [value == symbols[-1] for value in values]
        scores.append(match * float(np.dot(looked_at, matches)))
    weights = np.exp(np.array(scores) - max(scores))
    weights /= weights.sum()
    prediction = float(weights[1:] @ np.array(symbols) + 0.5 * weights[0])
    return weights.tolist(), prediction


@pytest.mark.skipif(
    "induction-heads" not in list_families(), reason="no induction heads"
)
def test_the_drawn_induction_head_is_two_layers_of_attention() -> None:
    settings: list[dict[str, Any]] = [
        {"T": 4, "t": 0, "sequence": 3},
        {"T": 9, "t": 40, "sequence": 7, "match": -1.0},
        {"T": 20, "t": 300, "sequence": 12, "ratio": 0.1},
        {"T": 20, "t": 0, "sequence": 100, "match": 2.0, "sink": -4.0},
    ]
    for page in call(PICTURES, "induction-heads", settings):
        drawn = page["drawn"]
        symbols = [token["symbol"] for token in drawn["tokens"]]
        assert len(symbols) == page["values"]["T"]
        weights, prediction = two_layers(symbols, page["now"]["params"])
        shares = [drawn["sink"], *(token["share"] for token in drawn["tokens"])]
        np.testing.assert_allclose(shares, weights, rtol=1e-12)
        assert drawn["prediction"] == pytest.approx(prediction, rel=1e-12)
        after = [j for i, j in itertools.pairwise(symbols) if i == symbols[-1]]
        prior = page["values"]["concentration"]
        best = (sum(after) + prior) / (len(after) + 2.0 * prior)
        assert drawn["best"] == pytest.approx(best, rel=1e-12)


def test_ribbons_end_without_gaps_and_are_as_wide_as_their_shares() -> None:
    shares = [0.5, 0.2, 0.3]
    ends = call("return require('diagram').stacked(...given)", shares, 10.0, 40.0)
    widths = [end - begin for begin, end in ends]
    np.testing.assert_allclose(widths, 40.0 * np.array(shares), rtol=1e-12)
    assert ends[0][0] == 10.0
    assert [end for _, end in ends[:-1]] == [begin for begin, _ in ends[1:]]
