"""What the panels of the explorer compute, say and scale, run by a JavaScript engine, against Python's."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import linear_attention, recall, regression
from tests.javascript import call, engine

MODEL = """
const panel = require(`${given[0]}/panel`), values = {};
for (const { name, value } of panel.settings) values[name] = value;
Object.assign(values, given[1]);
const model = panel.compute(values), now = panel.moment(model, values);
const laws = (model.laws ?? []).map((law) => ({ ...law, heights: model.times.map(law.at) }));
const { transition } = model, two = transition && transition.L.map(transition.attending);
return { values, model: { ...model, laws, two }, now, words: panel.words(model, now, values) };
"""


def bold(line: str) -> list[float]:
    """Numbers in bold, as the page writes them."""
    found = re.findall(r"\*\*([\d.\u202f\u2009 ]+)(?:\u202f| )?%?\*\*", line)
    return [float(re.sub(r"\s", "", each)) for each in found]


def near(value: float) -> Any:
    """What is written with three digits, or four."""
    return pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    "changes",
    [{}, {"L": 0.4, "delta": 2.0, "eta": 0.3, "K": 9, "epsilon": 2e-3, "t": 40}],
)
def test_the_panel_on_regression_computes_what_python_does(
    changes: dict[str, float],
) -> None:
    found = call(MODEL, "regression", changes)
    values, model, now = found["values"], found["model"], found["now"]
    L, delta, eta, K, epsilon = (
        values[name] for name in ("L", "delta", "eta", "K", "epsilon")
    )
    K = int(K)
    run = icl.simulate(L, delta, eta, K=K, epsilon=epsilon)
    transition = model["transition"]
    for i in range(0, len(transition["L"]), 37):
        assert (
            transition["steps"][i]
            == icl.simulate(transition["L"][i], delta, eta, K=K, epsilon=epsilon).steps
        )
        assert model["two"][i] == pytest.approx(
            2 * K**2 / (eta * (transition["L"][i] * delta) ** 2), rel=1e-12
        )
    assert transition["tail"] == pytest.approx((K - 1) / (4 * eta * epsilon), rel=1e-12)
    # the longest step moves the gap of the scores by 1: c · 4/27 = 1
    assert eta * (transition["leaps"] * delta) ** 2 / 2 * K / (
        K - 1
    ) ** 2 * 4 / 27 == pytest.approx(1.0, rel=1e-9)
    state = run.at(int(values["t"]))
    assert now["loss"] == pytest.approx(state.loss, rel=1e-10)
    assert now["band"] == pytest.approx(
        (1 - float(state.attention)) * L * delta, rel=1e-9
    )
    assert now["ratio"] == pytest.approx(
        values["t"] * state.loss * 4 * eta / (K - 1), rel=1e-10
    )
    a = np.full((K, K), (1 - float(state.attention)) / (K - 1))
    np.fill_diagonal(a, float(state.attention))
    np.testing.assert_allclose(
        now["guess"], a @ np.array(now["truth"]), rtol=1e-9, atol=1e-12
    )
    assert run.phases is not None
    headline, place, at = found["words"][:3]
    assert headline.startswith("**Sharp**" if run.regime == "sharp" else "**Flat**")
    assert bold(headline)[-1] == run.steps
    assert bold(place) == [end - begin for begin, end in run.phases.present().values()]
    attention = [float(run.at(0).attention)]
    attention += [
        float(run.at(end).attention) for _, end in run.phases.present().values()
    ]
    told = re.findall(r"(?:from|to) ([\d.]+) %", place)
    assert [float(part) for part in told] == [near(100 * part) for part in attention]
    ratio, boundary = re.findall(r"L is ([\d.]+) times L\* = ([\d.]+)", place)[0]
    assert float(boundary) == near(regression.crossover(epsilon, delta, K))
    assert float(ratio) == near(L / regression.crossover(epsilon, delta, K))
    assert bold(at) == [
        values["t"],
        near(state.loss),
        near(100 * float(state.attention)),
    ]
    phase = next(
        name for name, (_, end) in run.phases.present().items() if values["t"] <= end
    )
    assert f"in Phase {phase}:" in at
    assert float(re.findall(r"at most ([\d.]+)", at)[0]) == near(now["band"])
    assert float(re.findall(r"loss is ([\d.]+) times its limit", at)[0]) == near(
        now["ratio"]
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "d": 5,
            "decay": 0.0,
            "N": 60,
            "noise": 0.2,
            "eta": 0.3,
            "above": 1e-3,
            "t": 12,
            "test_noise": 2.0,
        },
    ],
)
def test_the_panel_on_linear_attention_computes_what_python_does(
    changes: dict[str, float],
) -> None:
    found = call(MODEL, "linear-attention", changes)
    values, model, now = found["values"], found["model"], found["now"]
    given = {name: values[name] for name in ("decay", "noise", "eta", "start", "above")}
    problem = icl.LinearAttention(d=int(values["d"]), N=int(values["N"]), **given)
    run, law, d = problem.simulate(), problem.law(), problem.d
    test = linear_attention.PromptLaw(
        np.arange(1.0, d + 1) ** -values["test_decay"],
        N=int(values["test_N"]),
        noise=values["test_noise"],
    )
    places = range(0, len(model["times"]), 29)
    for i in places:
        state = run.at(int(model["times"][i]))
        assert model["states"][i]["loss"] == pytest.approx(state.loss, rel=1e-9)
        assert model["tested"][i] == pytest.approx(test.loss(state.params), rel=1e-9)
        if model["waits"] is not None:
            time = values["eta"] * int(model["times"][i])
            size = values["start"] * d**0.5  # Γ begins at the start, as v²/√d does
            gamma = linear_attention.balanced_flow(law, math.sqrt(size), [time])[0]
            assert model["waits"][i] == pytest.approx(
                law.loss(np.full(d, gamma)), rel=1e-9
            )
    assert (model["waits"] is None) == (values["decay"] > 0)
    for N, floor in list(zip(model["lengths"], model["floors"], strict=True))[::9]:
        assert floor == pytest.approx(
            problem.changed(N=int(N), eta="auto").law().floor, rel=1e-9
        )
    state = run.at(int(values["t"]))
    assert now["tested"] == pytest.approx(test.loss(state.params), rel=1e-9)
    headline, phases, at, *more = found["words"]
    plateau = run.phases.plateau[1]  # type: ignore[union-attr]
    assert bold(headline) == [run.steps]
    assert bold(phases) == [plateau, run.t[-1] - plateau]
    part = float(re.findall(r"η is ([\d.]+) of the largest", phases)[0])
    assert part == near(values["eta"] * float(problem.merged().curvature.max()) / 2)
    learnt = int(np.sum(state.params >= 0.5 * law.best))
    assert bold(at) == [values["t"], near(state.loss), learnt]
    if changes:
        least = min(model["tested"])
        assert bold(more[0]) == [near(now["tested"])]
        assert float(re.findall(r"where ([\d.]+) would", more[0])[0]) == near(
            test.floor
        )
        assert ("it was least" in more[0]) == (least < model["tested"][-1] * (1 - 1e-6))
        if "it was least" in more[0]:
            assert float(re.findall(r"it was least, ([\d.]+)", more[0])[0]) == near(
                least
            )
    else:
        assert not more


@pytest.mark.parametrize(
    "changes",
    [{}, {"triggers": 9, "V": 200, "alpha": 0.0, "eta": 0.02, "counts": 3, "t": 90}],
)
def test_the_panel_on_recall_computes_what_python_does(
    changes: dict[str, float],
) -> None:
    found = call(MODEL, "recall", changes)
    values, model = found["values"], found["model"]
    Q, V, alpha, eta = (
        int(values["triggers"]),
        int(values["V"]),
        values["alpha"],
        values["eta"],
    )
    counts = int(values["counts"])
    arguments: dict[str, Any] = {
        "V": V,
        "outputs": 8,
        "alpha": alpha,
        "counts": counts,
        "above": values["above"],
    }
    run = icl.Recall(triggers=Q, eta=eta, **arguments).simulate()
    weight = (1 - alpha) * (V - 2) if alpha else V - 1
    for law, scale in zip(model["laws"], (Q**-0.5, 1 / Q, 1.0), strict=True):
        rate = eta * scale * counts
        assert law["rate"] == pytest.approx(rate, rel=1e-12)
        np.testing.assert_allclose(
            law["heights"], weight * np.exp(-rate * np.array(model["times"])), rtol=1e-9
        )
        assert law["steps"] == pytest.approx(
            math.log(weight / values["above"]) / rate, rel=1e-12
        )
    assert model["laws"][0]["rate"] == pytest.approx(
        recall.decay_rate(
            recall.RecallTask(V, Q, 8, counts=recall.Counts.fixed(counts)), eta
        ),
        rel=1e-12,
    )
    for i in range(0, len(model["sizes"]), 11):
        size = int(model["sizes"][i])
        if size + 10 < V:
            assert (
                model["bySize"][i]
                == icl.Recall(triggers=size, eta=eta, **arguments).simulate().steps
            )
    headline, rates, at = found["words"]
    state = run.at(int(values["t"]))
    excess = float(state.observed["excess"])
    assert bold(headline) == [run.steps]
    assert bold(rates) == [math.ceil(law["steps"]) for law in model["laws"][1:]]
    said = float(re.findall(r"exp\(−([\d.]+) t\)", rates)[0])
    assert said == near(model["laws"][0]["rate"])
    floor = (
        -alpha * math.log(alpha) - (1 - alpha) * math.log(1 - alpha) if alpha else 0.0
    )
    assert float(re.findall(r"Bayes risk: ([\d.]+) nats", rates)[0]) == near(floor)
    strength = eta * values["t"] / Q**0.5 * counts
    total = (
        1
        + (alpha / (1 - alpha) if alpha else 0.0)
        + (V - 2 if alpha else V - 1) * math.exp(-strength)
    )
    numbers = [values["t"], near(state.loss), near(100 / total)]
    assert bold(at) == numbers + (
        [near(100 * alpha / (1 - alpha) / total)] if alpha else []
    )
    assert excess == pytest.approx(state.loss - floor, rel=1e-6)


SPHERE = """
const { parameters, sound } = require("sphere/panel"), { Run } = require("sphere/closed");
return given[0].map((drawn) => {
  const values = { ...drawn, ...sound(drawn).changes }, run = new Run(values);
  const at = [0, 0.3, 1].map((part) => run.at(Math.round(run.last * part)));
  const { slope } = run.tokens.at(0.7 * run.best);
  return { parameters: parameters(values, { run }), steps: run.steps, best: run.best, floor: run.floor, slope, at };
});
"""


@pytest.mark.parametrize("number", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_the_panel_on_the_sphere_computes_what_python_does(number: int) -> None:
    """The best κ, the least loss and a slope; losses along runs, and counts where Python is quick."""
    rng = np.random.default_rng(number)
    drawn = {
        "N": np.floor(10 ** rng.uniform(0.4, 4, number)),
        "d": rng.integers(3, 21, number).astype(float),
        "L": 10 ** rng.uniform(-1, 0.7, number),
        "noise": rng.uniform(0.1, 3, number),
        "start": np.where(rng.random(number) < 0.7, 0.0, rng.uniform(0, 5, number)),
        "rate": 10 ** rng.uniform(-1, 0, number),
        "above": 10 ** rng.uniform(-5, -1, number),
    }
    found = call(
        SPHERE,
        [
            {name: float(values[i]) for name, values in drawn.items()}
            for i in range(number)
        ],
    )
    counted = 0
    for page in found:
        given = page["parameters"] | {
            name: int(page["parameters"][name]) for name in ("N", "d")
        }
        problem = icl.Sphere(**given)
        risk = problem.risk()
        assert page["floor"] == pytest.approx(risk.least, rel=1e-10 + 2 * risk.error)
        assert risk.loss([page["best"]]) == pytest.approx(risk.least, rel=1e-9)
        assert page["slope"] == pytest.approx(
            float(risk.gradient([0.7 * page["best"]])[0]), rel=1e-5, abs=1e-12
        )
        for state in page["at"]:
            assert state["loss"] == pytest.approx(risk.loss(state["params"]), rel=1e-6)
        if page["steps"] is not None and page["steps"] < 100:
            counted += page["steps"] > 0
            assert problem.simulate().steps == page["steps"]
    assert counted > 0.2 * number


CURVES = """
const panel = require("sphere/panel"), { Tokens } = require("sphere/closed");
const usual = Object.fromEntries(panel.settings.map(({ name, value }) => [name, value]));
return given[0].map((changes) => {
  const values = { ...usual, ...changes };
  Object.assign(values, panel.sound(values).changes);
  const { run, kappas, valley, lengths, best } = panel.compute(values), error = [0, 0];
  for (const i of [1, 9, 25, 58]) error[0] = Math.max(error[0], Math.abs(valley[i] / run.tokens.at(kappas[i]).loss - 1));
  for (const i of [0, 3, lengths.length - 1]) error[1] = Math.max(error[1], Math.abs(best[i] / new Tokens({ ...values, N: lengths[i] }).best() - 1));
  return error;
});
"""


def test_curves_on_the_sphere_are_interpolated_to_six_digits() -> None:
    rng = np.random.default_rng(8)
    settings = [
        {
            "N": float(np.floor(10 ** rng.uniform(0.5, 4.5))),
            "d": float(rng.integers(3, 21)),
            "L": float(10 ** rng.uniform(-1, 0.7)),
            "noise": float(rng.uniform(0.1, 3)),
        }
        for _ in range(8)
    ]
    assert np.max(call(CURVES, settings)) < 1e-6


@pytest.mark.parametrize(
    "changes", [{}, {"N": 40, "d": 7, "L": 2.0, "noise": 0.6, "start": 1.0, "t": 30}]
)
def test_what_is_said_of_the_sphere_is_what_python_says(
    changes: dict[str, float],
) -> None:
    found = call(MODEL, "sphere", changes)
    values, model, now = found["values"], found["model"], found["now"]
    given = {
        "d": int(values["d"]),
        "L": values["L"],
        "noise": values["noise"],
        "start": values["start"],
    }
    N, t = int(values["N"]), int(values["t"])
    problem = icl.Sphere(N=N, eta=model["run"]["eta"], above=values["above"], **given)
    run = problem.simulate()
    state = run.at(t)
    kappa = float(state.params[0])
    headline, best, at = found["words"]
    assert bold(headline) == [run.steps]
    assert f"the least loss {call(SHORT, problem.risk().least, 4)} after" in headline
    assert bold(best) == [near(problem.risk().best)]
    assert bold(at) == [t, near(kappa), near(state.loss)]
    # the rate is a part of one over the largest curvature on the way to the best κ
    assert model["run"]["eta"] == pytest.approx(
        values["rate"] * problem.stable_rate(), rel=2e-3
    )
    risk = problem.risk()
    for place, loss in list(zip(model["kappas"], model["valley"], strict=True))[::7]:
        assert loss == pytest.approx(risk.loss([place]), rel=1e-6)
    for length, kappa_best in list(zip(model["lengths"], model["best"], strict=True))[
        ::3
    ]:
        assert kappa_best == pytest.approx(
            icl.Sphere(N=int(length), **given).risk().best, rel=1e-6
        )
    # attention in long prompts has the density sin(θ)^(d-2) e^(κ cos θ); both are in
    # percent per degree
    angle = np.linspace(0.0, np.pi, 18001)
    density = np.sin(angle) ** (given["d"] - 2) * np.exp(kappa * (np.cos(angle) - 1.0))
    share = np.cumsum(density) / density.sum()
    half = math.degrees(angle[np.searchsorted(share, 0.5)])
    assert float(re.findall(r"within ([\d.]+)°", at)[0]) == pytest.approx(half, abs=1.0)
    assert sum(now["near"]) == pytest.approx(100.0)
    assert now["near"][29] == pytest.approx(
        100.0 * (share[3000] - share[2900]), rel=1e-3
    )


INDUCTION_RUNS = """
const { parameters, sound, compute, refine, moment, words, found } = require("induction-heads/panel");
return given[0].map((drawn) => {
  const values = { ...drawn, ...sound(drawn).changes }, model = refine(compute(values)), { run } = model;
  const states = [0, 10, 60].map((t) => moment(model, { ...values, t }));
  const { uniform, unigram, floor } = run, { plane, gaps, matches } = model, sink = run.states.at(-1)[2];
  return { parameters: parameters(values), states, known: [uniform, unigram, floor],
    told: words(model, states[2], values), phases: found(model, states[2]).phases,
    cell: [gaps[5], matches[20], sink, plane[5][20]] };
});
"""


@pytest.mark.parametrize("number", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_the_panel_on_induction_heads_trains_as_python_does(number: int) -> None:
    """Losses of known predictions, states of runs, and in the shortest runs phases and what is learnt."""
    rng = np.random.default_rng(number)
    drawn = [
        {
            "T": int(rng.integers(4, 31)),
            "concentration": float(10 ** rng.uniform(-1, 1)),
            "batch": 0,
            "t": 60,
            "objective": str(rng.choice(["square", "log"])),
            "eta": float(10 ** rng.uniform(-1.5, 0.3)),
            "ratio": float(10 ** rng.uniform(-1, 1)),
            "match": float(rng.uniform(-1, 1)),
            "sink": float(rng.uniform(-1, 6)),
        }
        for _ in range(number)
    ]
    # one as short as runs of the page get
    drawn[0] |= {
        "T": 60,
        "concentration": 1.0,
        "eta": 1.0,
        "ratio": 1.0,
        "match": 0.01,
        "sink": 6.0,
    }
    for page in call(INDUCTION_RUNS, drawn):
        given = page["parameters"]
        short = given["max_steps"] < 1000
        problem: Any = icl.InductionHeads(
            **given | {"max_steps": given["max_steps"] if short else 60}
        )
        run, known = problem.simulate(), problem.predictors
        assert page["known"] == pytest.approx(
            [known[name] for name in ("uniform", "unigram", "Bayes")], rel=1e-10
        )
        for state in page["states"]:
            there = run.at(state["t"])
            assert state["loss"] == pytest.approx(there.loss, rel=1e-9)
            assert state["lag1"] == pytest.approx(
                float(there.observed["first"][1]), rel=1e-7
            )
            assert state["share"] == pytest.approx(
                float(there.observed["attention"]), rel=1e-7
            )
            assert state["params"][1] == pytest.approx(
                float(there.observed["match"]), rel=1e-7, abs=1e-9
            )
        headline, losses, at = page["told"]
        assert bold(at) == [
            60,
            near(there.loss),
            near(100 * page["states"][2]["lag1"]),
            near(100 * state["share"]),
        ]
        *place, cell = page["cell"]
        assert cell == pytest.approx(float(run.risk.excess([0.0, *place])), rel=1e-8)
        if short:
            phases = {
                name: list(part)
                for name, part in run.phases.present().items()
                if part[1] > part[0]
            }
            assert page["phases"] == phases
            assert bold(headline) == [phases["bigram"][0]]
            assert f"**{run.regime}**" in losses


SHORT = "return require('numbers').short(...given)"
INDUCTION = """
const { Run, evaluate, exactRows } = require("induction/closed");
return given[0].map((values) => {
  const rows = exactRows(values), { floor, unigram, uniform } = new Run(values);
  return { floor, unigram, uniform, ...evaluate(rows, values.objective, values.params) };
});
"""


def sequences(T: int, concentration: float) -> tuple[Any, Any, Any]:
    """All sequences of T symbols, (S, T), their probabilities, and those of a 1 to follow, (S,)."""
    x = np.arange(2**T)[:, None] >> np.arange(T) & 1
    pairs, probs = np.full((len(x), 2, 2), concentration), np.full(len(x), 0.5)
    every = np.arange(len(x))
    for t in range(1, T + 1):
        row = pairs[every, x[:, t - 1]]
        if t == T:
            break
        probs = probs * row[every, x[:, t]] / row.sum(axis=1)
        pairs[every, x[:, t - 1], x[:, t]] += 1.0
    return x, probs, row[:, 1] / row.sum(axis=1)


def two_layers(x: Any, gap: float, b: float, c: float) -> tuple[Any, Any]:
    """Prediction of a 1 and attention on tokens after an equal of the last symbol, by softmax over all tokens."""
    lag1 = 1.0 / (1.0 + math.exp(-gap))
    found = np.eye(2)[x]
    found[:, 1:] = (1.0 - lag1) * found[:, 1:] + lag1 * np.eye(2)[x[:, :-1]]
    weight = np.exp(b * np.take_along_axis(found, x[:, -1:, None], axis=2)[:, :, 0])
    total = weight.sum(axis=1) + math.exp(c)
    after = np.column_stack([np.zeros(len(x)), x[:, :-1] == x[:, -1:]])
    return ((weight * x).sum(axis=1) + 0.5 * math.exp(c)) / total, (weight * after).sum(
        axis=1
    ) / total


def read_induction() -> None:
    """Give the engine the script, whether or not a family has it."""
    folder = Path(icl.__file__).parent / "papers" / "induction_heads" / "panel"
    script = (folder / "closed.js").read_text(encoding="utf-8")
    engine().eval(
        f'explorer.define("induction/closed", function (module, require) {{\n{script}}});'
    )


def test_the_panel_on_induction_heads_computes_what_all_sequences_give() -> None:
    """Losses of known predictions, and loss, gradient and attention of the layers, in 100 settings."""
    read_induction()
    rng = np.random.default_rng(3)
    drawn = [
        {
            "T": int(rng.integers(4, 9)),
            "concentration": float(10 ** rng.uniform(-1, 1)),
            "match": 0.01,
            "sink": 0.0,
            "objective": str(rng.choice(["square", "log"])),
            "eta": 1e-3,
            "ratio": 1.0,
            "params": [
                float(rng.uniform(-3, 3)),
                float(rng.uniform(-3, 4)),
                float(rng.uniform(-3, 3)),
            ],
        }
        for _ in range(100)
    ]
    for values, found in zip(drawn, call(INDUCTION, drawn), strict=True):
        x, probs, truth = sequences(values["T"], values["concentration"])

        def mean(
            o: Any, values: Any = values, probs: Any = probs, truth: Any = truth
        ) -> float:
            if values["objective"] == "square":
                return float(probs @ (truth * (1 - o) ** 2 + (1 - truth) * o**2))
            return float(-probs @ (truth * np.log(o) + (1 - truth) * np.log(1 - o)))

        def loss(params: Any, x: Any = x, mean: Any = mean) -> float:
            return float(mean(two_layers(x, *params)[0]))

        ones, prior = x.sum(axis=1), values["concentration"]
        assert found["floor"] == pytest.approx(mean(truth), rel=1e-12)
        assert found["uniform"] == pytest.approx(mean(np.full(len(x), 0.5)), rel=1e-12)
        assert found["unigram"] == pytest.approx(
            mean((ones + prior) / (values["T"] + 2 * prior)), rel=1e-12
        )
        params = np.array(values["params"])
        assert found["floor"] + found["excess"] == pytest.approx(
            loss(params), rel=1e-12
        )
        slopes = [
            (loss(params + e) - loss(params - e)) / 2e-5 for e in 1e-5 * np.eye(3)
        ]
        assert list(found["slopes"]) == pytest.approx(slopes, rel=1e-7, abs=1e-9)
        assert found["share"] == pytest.approx(
            float(probs @ two_layers(x, *params)[1]), rel=1e-12
        )


SAMPLED = """
const { trainer } = require(`${given[0]}/closed`), { random } = require("training");
return Array.from({ length: 400 }, (_, seed) => {
  const next = trainer(given[1], random(seed)), before = [...next.params], loss = next();
  return [loss, ...next.params.map((value, i) => before[i] - value)];
});
"""


def sampled_and_exact(name: str) -> tuple[dict[str, Any], list[float]]:
    """Values for a sampled step, and its exact loss and changes of the parameters."""
    if name == "regression":
        risk = icl.PopulationRisk(
            icl.Features.simplex(6, 2.0), icl.tasks.Exchangeable(1.5)
        )
        exact = [risk.loss(risk.initial), *risk.gradient(risk.initial).T.ravel()]
        return {"K": 6, "L": 1.5, "delta": 2.0, "eta": 1.0}, exact
    if name == "induction":
        read_induction()
        x, probs, truth = sequences(6, 0.7)

        def loss(params: Any) -> float:
            o, _ = two_layers(x, *params)
            return float(-probs @ (truth * np.log(o) + (1 - truth) * np.log(1 - o)))

        start = np.array([0.0, 0.7, 0.5])
        exact = [
            loss(start),
            *((loss(start + e) - loss(start - e)) / 2e-5 for e in 1e-5 * np.eye(3)),
        ]
        values = {
            "T": 6,
            "concentration": 0.7,
            "objective": "log",
            "match": 0.7,
            "sink": 0.5,
        }
        return values | {"eta": 1.0, "ratio": 0.5}, exact
    if name == "sphere":
        values = {"d": 4, "N": 5, "L": 1.3, "noise": 0.4, "start": 1.5}
        sphere = icl.Sphere(**values).risk()  # type: ignore[arg-type]
        return values | {"eta": 1.0}, [
            sphere.loss([1.5]),
            float(sphere.gradient([1.5])[0]),
        ]
    law = linear_attention.PromptLaw(np.arange(1.0, 4.0) ** -1.0, N=4, noise=0.7)
    gamma, epsilon = np.full(3, 0.2), 1e-6
    slopes = [
        (law.loss(gamma + e) - law.loss(gamma - e)) / (2 * epsilon)
        for e in epsilon * np.eye(3)
    ]
    values = {"d": 3, "N": 4, "noise": 0.7, "decay": 1.0, "eta": 1.0, "start": 0.2}
    return values, [law.loss(gamma), *np.diag(slopes).ravel()]


@pytest.mark.parametrize(
    "name", ["regression", "linear-attention", "sphere", "induction"]
)
def test_the_first_step_of_a_sampled_run_has_the_exact_mean(name: str) -> None:
    """Loss and gradient, by their standard errors over 400 runs."""
    values, exact = sampled_and_exact(name)
    found = np.array(
        [list(each) for each in call(SAMPLED, name, values | {"batch": 16})]
    )
    error = found.std(axis=0, ddof=1) / len(found) ** 0.5
    assert float(np.max(np.abs(found.mean(axis=0) - exact) / error)) < 4.5


RECALLED = """
const { trainer } = require("recall/closed"), { random } = require("training");
return Array.from({ length: 400 }, (_, seed) => {
  const next = trainer(given[0], random(seed));
  let loss;
  for (let t = 0; t <= given[1]; t++) loss = next();
  return [loss, ...next.params];
});
"""
RECALL = {"V": 9, "alpha": 0.3, "eta": 0.7, "counts": 2, "above": 1e-3}


def test_a_sampled_run_of_recall_steps_along_the_triggers_of_its_batch() -> None:
    """The mean of the second step's strengths is that of all pairs of batches of two out of three triggers."""
    V, alpha, eta, c = (RECALL[name] for name in ("V", "alpha", "eta", "counts"))
    noise = math.log(alpha / (1 - alpha))

    def loss(strength: float) -> float:
        logits = np.zeros(int(V))
        logits[:2] = c * strength, c * strength + noise
        return float(
            np.logaddexp.reduce(logits) - (1 - alpha) * logits[0] - alpha * logits[1]
        )

    def stepped(strengths: Any, batch: tuple[int, ...]) -> Any:
        slopes = [(loss(each + 1e-6) - loss(each - 1e-6)) / 2e-6 for each in strengths]
        gradient = np.bincount(batch, minlength=3) * slopes
        return strengths - eta * gradient / np.linalg.norm(gradient)

    batches = list(itertools.product(range(3), repeat=2))
    ends = [
        stepped(stepped(np.zeros(3), one), two) for one in batches for two in batches
    ]
    found = np.array(call(RECALLED, {**RECALL, "triggers": 3, "batch": 2}, 1))
    error = found[:, 1:].std(axis=0, ddof=1) / len(found) ** 0.5
    assert (
        float(np.max(np.abs(found[:, 1:].mean(axis=0) - np.mean(ends, axis=0)) / error))
        < 4.5
    )
    entropy = -alpha * math.log(alpha) - (1 - alpha) * math.log(1 - alpha)
    firsts = sorted({tuple(stepped(np.zeros(3), batch)) for batch in batches})
    losses = [
        np.mean([loss(each) for each in strengths]) - entropy for strengths in firsts
    ]
    assert float(np.max([np.min(np.abs(losses - each)) for each in found[:, 0]])) < 1e-9


def test_a_sampled_run_of_recall_with_one_trigger_is_the_exact_one() -> None:
    (excess, strength), *_ = call(RECALLED, {**RECALL, "triggers": 1, "batch": 3}, 4)
    run = icl.Recall(triggers=1, outputs=7, **{**RECALL, "V": 9}).simulate()  # type: ignore[arg-type]
    assert strength == pytest.approx(5 * 0.7, rel=1e-14)
    assert excess == pytest.approx(float(run.at(4).observed["excess"]), rel=1e-12)


AVERAGED = """
const [work, growth, end] = given, run = Object.assign(() => run.t++, { t: 0, work, growth });
return require("training").sampled(run, end, 1000);
"""


@pytest.mark.parametrize(
    ("work", "end", "steps"), [(1, 500, 500), (10, 500, 100), (0, 500, 0)]
)
def test_losses_of_a_sampled_run_are_means_over_the_steps_between_points(
    work: int, end: int, steps: int
) -> None:
    """A run whose loss is the number of its step; it ends with the exact one, or where time is up."""
    found = call(AVERAGED, work, 1.1, end)
    assert found["last"] == steps
    first = 0
    for loss, time in zip(found["losses"], found["times"], strict=True):
        last = round(2 * loss) - first
        assert loss == pytest.approx((first + last) / 2)
        assert time == pytest.approx(max(0.5, math.sqrt(first * last)))
        assert last < 1.1 * first + 1
        first = last + 1
    assert first == steps


PLACES = """
const { Axes, spread } = require("drawing");
const [x, y, values] = given, axes = new Axes(null, 474, 250, {}, x, y);
return {
  X: values.map((value) => axes.X(value)), Y: values.map((value) => axes.Y(value)),
  x: values.map((value) => axes.xAt(axes.X(value))), y: values.map((value) => axes.yAt(axes.Y(value))),
  ends: [axes.X(x.low), axes.X(x.high), axes.Y(y.low), axes.Y(y.high)], spread: spread(2, 2000, 4, true),
  plain: spread(2, 10, 5, false), usual: spread(1, 100, 3),
};
"""


@pytest.mark.parametrize("log", [(True, False), (False, True)])
def test_axes_put_values_where_they_are_and_read_them_back(
    log: tuple[bool, bool],
) -> None:
    values = [2.0, 3.0, 10.0, 50.0]
    scales = [{"low": 2.0, "high": 50.0, "log": each} for each in log]
    found = call(PLACES, *scales, values)
    left, right, bottom, top = found["ends"]
    assert left < right
    assert top < bottom
    for name, each, (first, last) in zip(
        "XY", log, ((left, right), (bottom, top)), strict=True
    ):
        part = (
            np.log(np.array(values) / 2) / math.log(25)
            if each
            else (np.array(values) - 2) / 48
        )
        np.testing.assert_allclose(
            found[name], first + (last - first) * part, rtol=1e-12
        )
        np.testing.assert_allclose(found[name.lower()], values, rtol=1e-12)
    np.testing.assert_allclose(found["plain"], [2, 4, 6, 8, 10], rtol=1e-12)
    np.testing.assert_allclose(found["usual"], [1, 10, 100], rtol=1e-12)
    np.testing.assert_allclose(found["spread"], [2, 20, 200, 2000], rtol=1e-12)


RECORD = """
const { Axes, Ghost } = require("drawing"), drawn = [];
const pen = new Proxy({}, {
  get: (store, name) => (name in store ? store[name] : (...given) => {
    if (name === "measureText") return { width: 6 * given[0].length };
    drawn.push([name, ...given, store.globalAlpha, store.fillStyle]);
  }),
});
const scales = [{ low: 1, high: 100, log: true, label: "x" }, { low: 10, high: 1000, log: true, label: "y" }];
const make = (kind) => new kind(pen, 474, 250, { blue: "blue", paper: "paper" }, ...scales);
const axes = make(Axes), ghost = make(Ghost);
"""
LAW = """
axes.law((x) => 1e5 * x ** -2.5, "blue", "steep", 0.5);
axes.write();
const places = drawn.filter(([name]) => name === "moveTo" || name === "lineTo").map(([, x, y]) => [x, y]);
const words = drawn.filter(([name]) => name === "fillText").map(([, text, x, y]) => [text, x, y]);
return { places, words, frame: [axes.left, axes.right, axes.top, axes.bottom] };
"""


def test_a_law_keeps_its_slope_where_it_leaves_the_axes() -> None:
    """A power law is a straight line between logarithmic axes, with its name beside it."""
    found = call(RECORD + LAW)
    left, right, top, bottom = found["frame"]
    x, y = np.transpose(found["places"])
    expected = bottom - (bottom - top) / 2 * (
        np.log10(1e5) - 2.5 * 2 * (x - left) / (right - left) - 1
    )
    inside = (y >= top) & (y <= bottom)
    np.testing.assert_allclose(y, expected, rtol=1e-9)
    assert 20 < np.sum(inside) < 60
    ((text, place, height),) = found["words"]
    assert text == "steep"
    # half-way along the axis the law is at 316
    assert place == pytest.approx((left + right) / 2 + 8)
    assert height == pytest.approx(bottom - (bottom - top) / 2 * 1.5 - 10)


TICKS = """
const { both } = require("drawing");
axes.x = { low: 1, high: given[0], log: given[1], label: "x" };
axes.frame();
const words = drawn.filter(([name]) => name === "fillText").map(([, text, x, y]) => [text, x, y]);
return { words, places: given[2].map((value) => axes.X(value)),
  both: both([{ low: 1, high: 10 }, { low: 2, high: 3 }], [{ low: 0.5, high: 8 }, { low: 4, high: 5 }]) };
"""


@pytest.mark.parametrize(
    ("high", "log", "ticks"),
    [
        (1e4, True, {"1": 1, "10": 10, "100": 100, "1000": 1000, "10⁴": 1e4}),
        (1e15, True, {"1": 1, "10⁹": 1e9}),
        (10.0, False, {"2": 2, "6": 6, "10": 10}),
    ],
)
def test_labels_of_an_axis_stand_at_their_values(
    high: float, log: bool, ticks: dict[str, float]
) -> None:
    """And two scales together have room for both."""
    found = call(RECORD + TICKS, high, log, list(ticks.values()))
    written: dict[str, float] = {}
    for text, x, y in found["words"]:
        if y > 200:  # below the horizontal axis
            written.setdefault(text, x)
    for text, place in zip(ticks, found["places"], strict=True):
        assert written[text] == pytest.approx(place, abs=1.0)
    assert found["both"] == [{"low": 0.5, "high": 10}, {"low": 2, "high": 5}]


BOXES = """
for (const one of [axes, ghost]) {
  one.box([0.1, 10], [100, 1e5], "blue", 0.5);
  one.cells([[0, 1], [1, 0]], "blue", (value) => value / 4);
}
const boxes = drawn.filter(([name]) => name === "fillRect");
return { boxes, frame: [axes.left, axes.right, axes.top, axes.bottom] };
"""


def test_boxes_end_with_the_axes_and_a_kept_run_draws_none() -> None:
    found = call(RECORD + BOXES)
    left, right, top, bottom = found["frame"]
    first, *cells = found["boxes"]
    assert first[1:6] == pytest.approx(
        [left, top, (right - left) / 2, (bottom - top) / 2, 0.5]
    )
    assert [cell[5] for cell in cells] == [0, 0.25, 0.25, 0]
    assert [cell[2] + cell[4] for cell in cells[:2]] == pytest.approx([bottom, bottom])


FIGURES = """
const { Axes } = require("drawing"), calls = [];
const { curve, dot } = Axes.prototype;
const pen = new Proxy({}, { get: () => () => ({ width: 40 }), set: () => true });
const panel = require(`${given[0]}/panel`), values = {};
for (const { name, value } of panel.settings) values[name] = value;
Object.assign(values, given[1]);
const model = panel.compute(values), now = panel.moment(model, values), found = {};
for (const figure of panel.figures) {
  const axes = new Axes(pen, 500, 300, {}, ...figure.scales(model, values)), curves = [], dots = [];
  const laws = [];
  axes.law = (f, colour, word) => laws.push([word, f(10), f(40), f(axes.x.high)]);
  axes.curve = (xs, ys, colour, look) => curves.push([[...xs], [...ys], colour, look?.dash ?? []]);
  axes.dot = (x, y, colour) => dots.push([x, y, colour]);
  figure.still?.(axes, model, values);
  figure.moving?.(axes, model, now, values);
  const [drag, far] = [axes.X(30), axes.right].map((x) => figure.drag?.(axes, x, 100, model, now, values));
  const used = far && panel.sound?.({ ...values, ...far }).changes;
  found[figure.name] = { curves, dots, laws, drag, used, scales: [axes.x, axes.y] };
}
return found;
"""


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("regression", {"t": 400}),
        ("recall", {"t": 60}),
        ("linear-attention", {"t": 300, "test_noise": 1.5}),
        ("sphere", {"t": 20}),
        ("induction-heads", {"t": 2000}),
    ],
)
def test_dots_are_on_their_curves_and_inside_the_axes(
    name: str, changes: dict[str, float]
) -> None:
    """At a step or a setting between points of the curve, as far as these are apart."""
    figures = call(FIGURES, name, changes)
    for without_axes in ("function", "model"):  # predictions are on no curve
        figures.pop(without_axes, None)
    if plane := figures.pop(
        "plane", None
    ):  # a path, which turns: its end is that of the run
        ((x, y, _),), ((xs, ys, *_),) = plane["dots"], plane["curves"]
        assert [x, y] == pytest.approx([xs[-1], ys[-1]], rel=1e-3)
    dotted = 0
    for figure in figures.values():
        x_scale, y_scale = figure["scales"]
        for x, y, colour in figure["dots"]:
            assert x_scale["low"] <= x <= x_scale["high"]
            assert y_scale["low"] <= y <= y_scale["high"]
            curves = [
                each
                for each in figure["curves"]
                if each[2] == colour or (colour, each[2]) == ("red", "blue")
            ]
            allowed = 0.03 * y + (0 if y_scale.get("log") else 0.02 * y_scale["high"])
            assert (
                min(abs(np.interp(x, xs, ys) - y) for xs, ys, *_ in curves) < allowed
            ), colour
            dotted += 1
        if figure.get("drag"):
            assert list(figure["drag"].values()) == pytest.approx([30], rel=0.02)
        assert not figure.get(
            "used"
        )  # nothing has to be changed about a setting that dragging gives
    assert dotted >= 3


MARKS = """
const { Axes } = require("drawing"), pen = new Proxy({}, { get: () => () => ({ width: 40 }), set: () => true });
const panel = require(`${given[0]}/panel`), values = {};
for (const { name, value } of panel.settings) values[name] = value;
Object.assign(values, given[1]);
Object.assign(values, panel.sound?.(values).changes);
const model = panel.compute(values), now = panel.moment(model, values), found = {};
for (const figure of panel.figures) {
  const axes = new Axes(pen, 500, 300, {}, ...figure.scales(model, values)), levels = [], shades = [], boxes = [];
  const lines = [], curves = [];
  axes.horizontal = (y, colour) => levels.push([y, colour]);
  axes.shade = (from, to, colour, word) => shades.push([word, from, to]);
  axes.box = (x, y, colour) => boxes.push([x, y, colour]);
  axes.line = (places) => lines.push([axes.xAt(places[0][0]), axes.xAt(places[1][0]), axes.yAt(places[0][1])]);
  axes.curve = (xs, ys, colour) => curves.push([xs[0], xs.at(-1), ys[0], ys.at(-1), colour]);
  figure.still?.(axes, model, values);
  figure.moving?.(axes, model, now, values);
  found[figure.name] = { levels, shades, boxes, lines, curves };
}
return { found, told: panel.found(model, now), parameters: panel.parameters(values, model), values };
"""


@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("counts", [1, 40])
def test_what_the_figures_on_recall_mark_is_the_run(alpha: float, counts: int) -> None:
    """The target and where it is reached, the best probabilities, and how many words there are."""
    found = call(
        MARKS,
        "recall",
        {"alpha": alpha, "counts": counts, "t": 40, "triggers": 6, "V": 60},
    )
    figures, given = found["found"], found["parameters"]
    whole = ("V", "triggers", "outputs", "counts", "H")
    run = icl.Recall(**given | {name: int(given[name]) for name in whole}).simulate()  # type: ignore[arg-type]
    state, last = run.at(40), max(10, math.ceil(1.35 * run.t[-1]))
    total = math.exp(
        state.loss + (alpha * math.log(alpha / (1 - alpha)) if alpha else 0.0)
    )
    now = {"blue": 1 / total, "red": alpha / (1 - alpha) / total if alpha else None}
    best = {"blue": 1.0 - alpha, "red": alpha, "muted": 0.0}
    assert figures["loss"]["levels"] == [[1e-3, "red"]]
    assert figures["loss"]["shades"] == [["within ε", run.steps, last]]
    assert figures["probabilities"]["levels"] == [
        [best[name], name] for name in ("blue", "red")[: 1 + (alpha > 0)]
    ]
    boxes, lines = figures["next"]["boxes"], figures["next"]["lines"]
    assert [colour for *_, colour in boxes] == ["blue", "red", "muted"] * 2
    for (x, (low, high), colour), (left, right, y) in zip(boxes, lines, strict=True):
        assert (low, [left, right]) == (0, pytest.approx(x))
        assert y == pytest.approx(best[colour], abs=1e-9)
        assert now.get(colour) is None or high == pytest.approx(now[colour], rel=1e-9)
    ((word, first, _),) = figures["steps"]["shades"]
    assert (word, first) == ("more than V words", 58)  # one output at least, and noise
    told = found["told"]
    assert (told["steps"], told["t"]) == (run.steps, 40)
    assert told["loss"] == pytest.approx(state.loss, rel=1e-10)
    assert told["excess"] == pytest.approx(float(state.observed["excess"]), rel=1e-9)
    assert told["output"] == pytest.approx(now["blue"], rel=1e-9)


@pytest.mark.parametrize(
    "changes", [{}, {"d": 20, "decay": 2.0, "eta": 5.0, "noise": 1.0, "t": 5}]
)
def test_what_the_figures_on_linear_attention_mark_is_the_run(
    changes: dict[str, float],
) -> None:
    """A rate that is too large gives way to one below the limit; phases, the floor, and the share of every mode."""
    found = call(MARKS, "linear-attention", changes)
    figures, values, told = found["found"], found["values"], found["told"]
    given = found["parameters"] | {
        name: int(found["parameters"][name]) for name in ("d", "N")
    }
    problem = icl.LinearAttention(**given)  # type: ignore[arg-type]
    run, law, d = problem.simulate(), problem.law(), problem.d
    assert values["eta"] < 2.0 * problem.stable_rate()
    if "eta" in changes:
        assert values["eta"] > 1.9 * problem.stable_rate()
    plateau, last = run.phases.plateau[1], int(run.t[-1])  # type: ignore[union-attr]
    phases = [["plateau", 0, plateau], ["learning", plateau, last]]
    assert figures["loss"]["levels"] == [[pytest.approx(law.floor, rel=1e-12), "red"]]
    for name in ("loss", "modes"):
        assert figures[name]["shades"] == [
            [word, max(first, 0.5), end] for word, first, end in phases
        ]
    state, curves = run.at(int(values["t"])), figures["modes"]["curves"]
    shown = (
        range(d) if d <= 12 else sorted({round(d ** (i / 11)) - 1 for i in range(12)})
    )
    ends = [float(run.at(int(curves[0][1])).params[j] / law.best[j]) for j in shown]
    assert [end for *_, end, _ in curves] == pytest.approx(ends, rel=1e-9)
    assert (told["steps"], told["learnt"]) == (
        run.steps,
        int(np.sum(state.params >= 0.5 * law.best)),
    )
    assert told["loss"] == pytest.approx(state.loss, rel=1e-10)
    assert told["excess"] == pytest.approx(float(state.observed["excess"]), rel=1e-8)
    assert told["phases"] == {
        word: [first, end] for word, first, end in phases if end > first
    }


def test_laws_beside_the_curves_are_those_of_their_names() -> None:
    """At 10 and at 40 on the axis, for the settings that a panel opens with; and where a law meets its curve."""

    def laws(panel: str, figure: str) -> dict[str, list[float]]:
        return {
            word: values for word, *values in call(FIGURES, panel, {})[figure]["laws"]
        }

    K, eta, epsilon = 20, 1.0, 1e-3
    assert laws("regression", "loss")["(K − 1)/(4ηt)"][:2] == pytest.approx(
        [(K - 1) / (4 * eta * t) for t in (10, 40)]
    )
    steps = laws("regression", "steps")
    assert steps["2K²/(ηL²Δ²)"][:2] == pytest.approx(
        [2 * K**2 / (eta * L**2) for L in (10, 40)]
    )
    assert steps["(K − 1)/(4ηε)"][:2] == pytest.approx(
        [(K - 1) / (4 * eta * epsilon)] * 2
    )
    one = (
        math.log(0.8 * 48 / 1e-3) / 0.1
    )  # steps that the exponent ηt wants for one trigger
    recalled = laws("recall", "steps")
    assert recalled["ηt/|Q|"][:2] == pytest.approx([10 * one, 40 * one])
    assert recalled["ηt"][:2] == pytest.approx([one, one])
    exponents = {
        "ηt/√|Q|": 0.05,
        "ηt/|Q|, another exponent": 0.025,
        "ηt, another exponent": 0.1,
    }
    for word, rate in exponents.items():
        assert laws("recall", "loss")[word][:2] == pytest.approx(
            [0.8 * 48 * math.exp(-rate * t) for t in (10, 40)]
        )
    for panel, figure, word, power in (
        ("linear-attention", "floor", "1/N", -1),
        ("sphere", "best", "N^0.25", 0.25),
    ):
        ten, forty, last = laws(panel, figure)[word]
        assert forty / ten == pytest.approx(4.0**power)
        assert last == pytest.approx(
            call(FIGURES, panel, {})[figure]["curves"][-1][1][-1]
        )


CARD = """
const pen = new Proxy({}, { get: () => () => ({ width: 40 }), set: () => true }), heard = {}, moved = [], seen = [];
const node = () => ({
  append() {}, setAttribute() {}, setPointerCapture() {}, classList: { add() {} }, getContext: () => pen,
  addEventListener: (name, act) => { heard[name] = act; }, getBoundingClientRect: () => ({ left: 7, top: 9 }),
  parentElement: { clientWidth: 500, clientHeight: 300 },
});
globalThis.document = { createElement: node };
globalThis.window = { devicePixelRatio: 2 };
const { Card } = require("figures");
const figure = {
  name: "a", title: "A", scales: ({ low, high }) => [{ low: 1, high, log: true }, { low, high: 2 * high }],
  still: (axes, model) => seen.push(["still", model.name, axes.x.low, axes.x.high, axes.y.low, axes.y.high]),
  moving: (axes, model) => seen.push(["moving", model.name, axes.x.low, axes.x.high, axes.y.low, axes.y.high]),
  drag: (axes, x, y, model, now, values) => ({ x, y, name: model.name, now, values }),
};
const [own, other] = given, card = new Card(figure, { set: (found) => moved.push(found) });
const ghost = other && { model: other, values: {} };
card.draw(own, 3, { a: 5 }, {}, true, ghost);
card.draw(own, 4, { a: 6 }, {}, false, ghost);
for (const type of ["pointermove", "pointerdown", "pointermove", "pointerup", "pointermove"]) {
  heard[type]({ type, clientX: 100, clientY: 50 });
}
delete globalThis.document;
delete globalThis.window;
return { seen, moved };
"""


@pytest.mark.parametrize(
    "other",
    [
        None,
        {"name": "kept", "low": -1, "high": 9},
        {"name": "kept", "low": 2, "high": 400},
    ],
)
def test_a_figure_has_room_for_the_run_that_is_kept_and_is_dragged_by_its_moment(
    other: Any,
) -> None:
    """Both runs lie on the same axes; what is still is drawn once, and a drag is told where it is and of what."""
    found = call(CARD, {"name": "own", "low": 1, "high": 50}, other)
    runs = [each for each in ({"low": 1, "high": 50}, other) if each]
    low, high = min(each["low"] for each in runs), max(each["high"] for each in runs)
    drawn = [("still", "kept")] * (other is not None) + [
        ("still", "own"),
        ("moving", "own"),
        ("moving", "own"),
    ]
    assert found["seen"] == [[*each, 1, high, low, 2 * high] for each in drawn]
    assert (
        found["moved"]
        == [{"x": 93, "y": 41, "name": "own", "now": 4, "values": {"a": 6}}] * 2
    )


FIRST = """
const { firstStep, doubt } = require("training"), [drop, shift, most] = given;
const run = firstStep((t) => 1 - drop * t, 1 - drop * (10 - shift), most);
return [run.steps, run.reached, run.last, doubt(run)];
"""


@pytest.mark.parametrize(
    ("drop", "shift", "most", "steps", "words"),
    [
        (1e-3, 0.5, 100, 10, ""),
        (1e-3, 0.0, 100, 10, "open by 1 step "),
        (1e-3, 0.5, 9, None, ""),
        (1e-3, 10.0, 100, 0, ""),
    ],
)
def test_the_first_step_at_a_target_says_how_far_rounding_leaves_it_open(
    drop: float, shift: float, most: int, steps: int | None, words: str
) -> None:
    """A loss that is the target itself up to rounding is a step in doubt, however far apart the losses are."""
    found, reached, last, said = call(FIRST, drop, shift, most)
    assert (found, reached, last) == (
        steps,
        steps is not None,
        most if steps is None else steps,
    )
    assert words in said
    assert bool(said) == bool(words)
