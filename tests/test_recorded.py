"""Runs in the explorer that were computed beforehand: they are those of today, and what is said of them is true."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded

import icl_theory
from icl_theory.families import list_families
from icl_theory.statements.audit import all_claims
from tests.javascript import call

SETTINGS = {
    paper.name: paper.setting
    for claims in all_claims()[0].values()
    for paper in claims.papers
    if paper.setting is not None
}

RECORDS: dict[str, Any] = json.loads(
    (Path(icl_theory.__file__).parent / "explorer" / "runs.json").read_text(
        encoding="utf-8"
    )
)
SLOW = {"debiased-descent"}  # integrals over two variables: half a minute a run


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(
            name, place, marks=pytest.mark.slow if name in SLOW or place else []
        )
        for name, record in RECORDS.items()
        for place in ([0] if name in SLOW else range(len(record["values"])))
    ],
)
def test_recorded_runs_are_those_that_python_makes(name: str, place: int) -> None:
    record, made = RECORDS[name], recorded.RECORDS[name]
    kept = record["runs"][place]
    for key in ("family", "varied", "fixed", "lead", "figures"):
        assert record[key] == getattr(made, key)
    value = {record["varied"]: record["values"][place]}
    problem: Any = list_families()[record["family"]](**record["fixed"], **value)
    run = problem.simulate()
    assert run.steps == kept["steps"]
    assert run.eta == kept["eta"]
    assert run.floor == pytest.approx(kept["floor"], rel=1e-5, abs=1e-12)
    for i in np.random.default_rng(place).choice(len(kept["t"]), 5):
        # beyond rounding: of long runs the package skips steps, to a part in 1e7 of the
        # states
        state = run.at(kept["t"][i])
        assert state.loss == pytest.approx(kept["loss"][i], rel=1e-9)
        numbers = {number: each[i] for number, each in kept["numbers"].items()}
        assert made.numbers(problem, state) == pytest.approx(
            numbers, rel=1e-5, abs=1e-6
        )


def test_the_page_shows_what_is_recorded() -> None:
    body = """
      const panel = require(`${given[0]}/panel`), model = panel.compute(given[1]);
      const now = panel.moment(model, given[1]);
      return [model.steps, model.floor, now.t, now.loss, now.numbers, panel.parameters(given[1], model)];
    """
    rng = np.random.default_rng(0)
    for _ in range(100):
        name = str(rng.choice([*RECORDS]))
        record = RECORDS[name]
        place, i = int(rng.integers(len(record["values"]))), int(rng.integers(60))
        kept, value = record["runs"][place], record["values"][place]
        i = min(i, len(kept["t"]) - 1)
        shown = call(body, name, {record["varied"]: value, "t": kept["t"][i]})
        numbers = {key: each[i] for key, each in kept["numbers"].items()}
        given = record["fixed"] | {record["varied"]: value, "eta": kept["eta"]}
        assert shown == [
            kept["steps"],
            kept["floor"],
            kept["t"][i],
            kept["loss"][i],
            numbers,
            given,
        ]


def test_other_values_are_answered_by_the_nearest_in_words() -> None:
    found = call(
        "return require('max-margin-tokens/panel').sound(given[0])", {"T": 7, "t": 3}
    )
    assert found["changes"] in ({"T": 6}, {"T": 8})
    assert found["problem"].startswith("Runs are here for T = 2, 3, 4")
    assert (
        call(
            "return require('max-margin-tokens/panel').sound(given[0])",
            {"T": 6, "t": 3},
        )
        == {}
    )


def end(name: str, value: float, number: str, at: int = -1) -> float:
    record = RECORDS[name]
    return float(record["runs"][record["values"].index(value)]["numbers"][number][at])


def of(name: str, value: float, key: str) -> Any:
    record = RECORDS[name]
    return record["runs"][record["values"].index(value)][key]


def after(name: str, value: float, t: int, number: str) -> float:
    times = of(name, value, "t")
    return end(name, value, number, max(i for i, each in enumerate(times) if each <= t))


M, D, A, L, C, T = (
    "max-margin-tokens",
    "debiased-descent",
    "attention-with-markov",
    "single-location",
    "contextual-generalization",
    "task-diversity",
)


def unpaired(value: float, kind: str, at: int = -1) -> float:
    """The sum of a number of the two heads, over that of its sizes."""
    one, two = (end(D, value, f"{kind}, head {h}", at) for h in (1, 2))
    assert at != -1 or one * two < 0
    return abs(one + two) / (abs(one) + abs(two))


def selected(value: float) -> bool:
    return all(
        end(M, value, f"input {i}") > 0.999 and end(M, value, f"input {i}", 0) < 0.51
        for i in range(1, 5)
    )


def trapped(q: float) -> bool:
    one = q / (0.5 + q)  # the stationary law gives 0 this probability
    entropy = -one * math.log(one) - (1 - one) * math.log1p(-one)
    return of(A, q, "steps") is None and math.isclose(
        of(A, q, "loss")[-1], entropy, rel_tol=1e-6
    )


def slowly() -> bool:
    """1 - cos falls like (ln t)^-2, so that the angle falls like 1/ln t: it halves when ln t doubles."""
    ratios = []
    for value in RECORDS[M]["values"]:
        lost = [1.0 - after(M, value, t, "cosine") for t in (10**6, 10**12)]
        ratios.append(lost[0] / lost[1])
    return all(2.0 < ratio < 8.0 for ratio in ratios)


def steps(name: str) -> list[int]:
    """The steps of all runs that the figure shows beside the text."""
    return [run["steps"] for run in RECORDS[name]["runs"]]


def increasing(counts: list[int]) -> bool:
    return all(before < later for before, later in itertools.pairwise(counts))


def logarithmic(values: list[float], counts: list[int]) -> bool:
    """A line in the logarithm of the values is never wrong by more than a tenth."""
    line = np.polynomial.Polynomial.fit(np.log(values), counts, 1)
    return bool(np.all(np.abs(line(np.log(values)) / counts - 1.0) < 0.1))


def ends_at_the_wrong_law(q: float) -> bool:
    return trapped(q) == (0.5 + q > 1.0)


CLAIMS: dict[str, Callable[[], bool]] = {
    SETTINGS[M][1]: lambda: selected(5) and slowly(),
    SETTINGS[D][1]: lambda: unpaired(40, "μ") < 0.02 and unpaired(40, "ω") < 0.02,
    SETTINGS[A][1]: lambda: trapped(0.8) and of(A, 0.2, "steps") is not None,
    SETTINGS[L][1]: lambda: (
        after(L, 1e4, 10, "|κ|") < 0.1
        and end(L, 1e4, "|κ|") > 0.99
        and end(L, 1e4, "|ν|") > 0.99
    ),
    SETTINGS[C][1]: lambda: end(C, 4, "distance") < 1e-6 < 1 < end(C, 1, "distance"),
    SETTINGS[T][1]: lambda: end(T, 8, "new tasks") > 5 * end(T, 8, "its tasks"),
    "A choice between two tokens": lambda: end(M, 2, "input 1", 0) == 0.5,
    "The setting of the page on this paper.": lambda: (
        RECORDS[C]["fixed"]["m"] == 8
        and RECORDS[D]["fixed"]["d"] == 5
        and RECORDS[M]["fixed"]["d"] == 20
    ),
    "The most steps of all these runs": lambda: (
        of(M, 10, "steps") == max(steps(M)) and not increasing(steps(M))
    ),
    "Each of the four inputs attends": lambda: all(map(selected, RECORDS[M]["values"])),
    "The vector p turns": slowly,
    "Ten pairs in a prompt": lambda: of(D, 10, "floor") > 0.35 * of(D, 10, "loss")[0],
    "Sixteen times as many pairs": lambda: (
        of(D, 160, "floor") < 0.1 * of(D, 10, "floor")
    ),
    "The output weights of the two heads": lambda: (
        unpaired(10, "μ")
        < unpaired(40, "μ")
        < unpaired(160, "μ")
        < 0.5 * unpaired(160, "μ", 10)
    ),
    "So do the sizes": lambda: (
        unpaired(10, "ω") < unpaired(40, "ω") < unpaired(160, "ω") < 0.1
    ),
    "p + q = 0.7": lambda: of(A, 0.2, "steps") is not None,
    "p + q = 1.1": lambda: (
        trapped(0.6) and of(A, 0.6, "loss")[-1] - of(A, 0.6, "floor") < 0.01
    ),
    "p + q = 1.3": lambda: (
        trapped(0.8) and of(A, 0.8, "loss")[-1] - of(A, 0.8, "floor") > 0.04
    ),
    "The embedding e decides": lambda: all(
        (abs(end(A, q, "e")) < 1e-9) == trapped(q) == (q > 0.5)
        for q in RECORDS[A]["values"]
    ),
    "A random start is not far": lambda: end(L, 10, "|ν|", 0) > 0.3,
    "The escape takes longer": lambda: (
        increasing(steps(L)) and logarithmic(RECORDS[L]["values"], steps(L))
    ),
    "A hundred times the dimensions": lambda: (
        0 < of(L, 1e6, "steps") - of(L, 1e4, "steps") < 20
    ),
    "κ is the overlap": lambda: all(
        end(L, d, key) > 0.9 and (d < 100 or end(L, d, key, 0) < 0.1)
        for d in RECORDS[L]["values"]
        for key in ("|κ|", "|ν|")
    ),
    "One head has weights of one sign": lambda: end(C, 1, "distance") > 1,
    "Two heads have both signs": lambda: end(C, 2, "distance") < 1e-6,
    "What is learnt are coefficients": lambda: all(
        (end(C, H, "distance") < 1e-6) == (H > 1) for H in RECORDS[C]["values"]
    ),
    "A quarter of the dimensions": lambda: (
        end(T, 8, "new tasks") > 5 * end(T, 8, "its tasks")
    ),
    "Attention over fixed inputs with a logistic loss.": lambda: all(
        end(M, value, "cosine") > 0.99 for value in RECORDS[M]["values"]
    ),
    "Linear tasks on Gaussian inputs": lambda: all(
        end(D, value, f"{kind}, head 1") * end(D, value, f"{kind}, head 2") < 0
        for value in RECORDS[D]["values"]
        for kind in ("μ", "ω")
    ),
    "One layer on a fixed chain of two states": lambda: all(
        map(ends_at_the_wrong_law, RECORDS[A]["values"])
    ),
    "The label is a function of one token among ten": lambda: (
        RECORDS[L]["fixed"]["N"] == 10
    ),
    "Labels of four tokens of a dictionary of twelve": lambda: (
        RECORDS[C]["fixed"]["K"] == 12
        and RECORDS[C]["fixed"]["N"] == 4
        and end(C, 8, "distance") < 1e-6
    ),
    "One layer of linear attention, trained on a finite number": lambda: (
        RECORDS[T]["fixed"]["d"] == 32
        and end(T, 4, "new tasks") > 5 * end(T, 4, "its tasks")
        and end(T, 256, "new tasks") < 1.1 * end(T, 256, "its tasks")
    ),
    "At the transition": lambda: (
        2 < end(T, 32, "new tasks") / end(T, 32, "its tasks") < 3
    ),
    "Eight times the dimensions": lambda: (
        end(T, 256, "new tasks") < 1.1 * end(T, 256, "its tasks")
    ),
    "On the tasks that it was trained with": lambda: (
        all(end(T, k, "new tasks") > 2 * of(T, k, "floor") for k in (4, 8, 16))
        and np.diff(of(T, 8, "loss")).max() < 1e-12
    ),
}


def texts() -> list[str]:
    said = [SETTINGS[name][1] for name in RECORDS]
    for record in RECORDS.values():
        said.append(record["lead"])
        said += [each["sentence"] for each in record["presets"]] + [
            each["text"] for each in record["figures"]
        ]
    return said


@pytest.mark.parametrize("text", sorted({*texts()}), ids=lambda text: text[:40])
def test_what_is_said_of_recorded_runs_is_true(text: str) -> None:
    claims = [holds for words, holds in CLAIMS.items() if text.startswith(words)]
    assert len(claims) == 1, text
    assert claims[0]()


def test_every_claim_is_on_the_page() -> None:
    assert [
        words for words in CLAIMS if not any(text.startswith(words) for text in texts())
    ] == []
