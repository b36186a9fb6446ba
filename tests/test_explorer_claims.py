"""What presets and tours of the explorer say, compared with what Python computes at their settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.explorer import papers
from icl_theory.families import list_families
from icl_theory.papers.linear_attention import PromptLaw
from tests.javascript import call

TEXTS = """
const { complete, defaults, fromFragment } = require("settings");
const panels = Object.fromEntries(given[0].map((name) => {
  const panel = require(`${name}/panel`), family = require(`${name}/family`);
  return [name, { ...panel, family, settings: panel.settings.map((one) => complete(one, family.parameters)) }];
}));
const papers = given[1].map(({ place, text }) => {
  const { name, values, ghost, problems } = fromFragment(`#${place}`, panels);
  const found = { panel: name, text, values, ghost, problems };
  return { ...found, parameters: panels[name].parameters(values, panels[name].compute(values)) };
});
return papers.concat(given[0].flatMap((name) => {
  const { settings, presets, tour = [], story = [], parameters, compute, sound } = require(`${name}/panel`);
  const family = require(`${name}/family`);
  const first = defaults(settings.map((one) => complete(one, family.parameters)));
  const filled = (values) => ({ ...first, ...values, ...(sound?.({ ...first, ...values }).changes ?? {}) });
  const said = [...presets.map(({ name, sentence, values }) => [`${name}. ${sentence}`, values]),
    ...tour.map(({ text, values }) => [text, values]),
    ...story.map(({ text, values }) => [text, values]),
    ...story.map(({ values, attempt }) => [attempt.text, { ...values, ...attempt.values }])];
  return said.map(([text, given]) => {
    const values = filled(given);
    return { panel: name, text, values, problems: [], parameters: parameters(values, compute(values)) };
  });
}));
"""
PANELS = [
    name for name, family in list_families().items() if family.explorer is not None
]
SAID = call(
    TEXTS, PANELS, [each for each in papers() if each["place"].split("?")[0] in PANELS]
)


class Said:
    """A text of the page, and runs by Python at its setting or beside it."""

    runs: ClassVar[dict[str, icl.Trajectory]] = {}  # many texts are about the same run

    def __init__(
        self, panel: str, values: dict[str, Any], parameters: dict[str, Any]
    ) -> None:
        self.panel, self.values, self.parameters = panel, values, parameters

    def run(self, **changes: Any) -> icl.Trajectory:
        given = {
            name: int(value)
            if isinstance(value, float) and value.is_integer()
            else value
            for name, value in {**self.parameters, **changes}.items()
        }
        name = f"{self.panel} {sorted(given.items())}"
        if name not in self.runs:
            self.runs[name] = list_families()[self.panel](**given).simulate()
        return self.runs[name]

    def steps(self, **changes: Any) -> int:
        found = self.run(**changes).steps
        assert found is not None
        return found

    def rate(self, **changes: Any) -> float:
        """Rate of exponential decay of the excess at the end of the run."""
        run = self.run(**changes)
        assert run.steps is not None
        early, late = (
            float(run.at(t).observed["excess"])
            for t in (9 * run.steps // 10, run.steps)
        )
        return math.log(early / late) / (run.steps - 9 * run.steps // 10)

    def half(self) -> list[int]:
        """Steps after which each direction is learnt by half."""
        run = self.run()
        best, found = run.at(10**15).observed["gamma"], []
        for j in range(len(best)):
            low, high = 0, 10**15
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (
                    (low, middle)
                    if run.at(middle).observed["gamma"][j] >= best[j] / 2
                    else (middle, high)
                )
            found.append(high)
        return found

    def test_law(self) -> PromptLaw:
        d, decay = int(self.values["d"]), self.values["test_decay"]
        spectrum = np.arange(1.0, d + 1.0) ** -float(decay)
        return PromptLaw(
            spectrum, N=self.values["test_N"], noise=self.values["test_noise"]
        )

    def tested(self, t: int) -> float:
        return float(self.test_law().loss(self.run().at(t).observed["gamma"]))


def near(found: float, expected: float, part: float) -> bool:
    return abs(found / expected - 1.0) < part


def descent(said: Said) -> icl.Trajectory:
    """The run of gradient descent with the loss and the learning rate of another rule."""
    names = ("L", "delta", "eta", "K", "epsilon")
    return icl.Regression(**{name: said.parameters[name] for name in names}).simulate()


def same_way(said: Said) -> bool:
    """Both runs have the same loss at the same attention, which only grows."""
    K, size = said.parameters["K"], said.parameters["L"] * said.parameters["delta"]
    for run in (said.run(), descent(said)):
        attention = np.array([float(run.at(int(t)).attention) for t in run.t])
        loss = 0.25 * (size * (1 - attention)) ** 2 * K / (K - 1)
        alone = np.allclose(run.loss, loss, rtol=1e-9)
        if not (alone and np.all(np.diff(attention) > 0)):
            return False
    return True


def far_above(said: Said) -> bool:
    """Steps hardly depend on L, which is far above L*, and are those of the tail."""
    P = said.parameters
    same = near(said.steps(L=1.5 * P["L"]), said.steps(), 0.01)
    tail = near(said.steps(), (P["K"] - 1) / (4 * P["eta"] * P["epsilon"]), 0.02)
    return (
        same
        and tail
        and P["L"]
        > 10 * icl.regression.crossover(P["epsilon"], P["delta"], int(P["K"]))
    )


def phases_explained(said: Said) -> bool:
    run = said.run()
    first, second, _ = (part[1] for part in run.phases.present().values())
    attention = [float(run.at(t).attention) for t in (0, first - 1, first, second)]
    return (
        near(attention[0], 1 / said.values["K"], 1e-9)
        and attention[1] < 0.5 <= attention[2] < 0.75 < attention[3]
    )


def band(said: Said) -> bool:
    """The worst function has one value at the query and another one, LΔ away, elsewhere."""
    off = 1.0 - float(said.run().at(int(said.values["t"])).attention)
    values = np.random.default_rng(0).uniform(-0.5, 0.5, (1000, int(said.values["K"])))
    rest = (values.sum(axis=1) - values[:, 0]) / (said.values["K"] - 1)
    return bool(np.all(np.abs(off * (rest - values[:, 0])) <= off))


def even(said: Said) -> bool:
    """The same attention on all features predicts the same for every query."""
    return near(float(said.run().at(0).attention), 1 / said.values["K"], 1e-12)


def bend(said: Said) -> bool:
    P = said.parameters
    threshold = icl.regression.crossover(P["epsilon"], P["delta"], int(P["K"]))

    def exponent(L: float) -> float:
        return math.log(said.steps(L=1.05 * L) / said.steps(L=L)) / math.log(1.05)

    return (
        exponent(P["L"]) < -1.9
        and exponent(20 * threshold) > -0.1
        and -1.5 < exponent(threshold) < -0.5
    )


def one_by_one(said: Said) -> bool:
    half = said.half()
    return len(half) == 8 and all(
        after > 1.5 * before for before, after in itertools.pairwise(half)
    )


def first_alone(said: Said) -> bool:
    """Most of the loss that falls at all is gone when the first direction is learnt and the second is not."""
    run, (_, second, *_) = said.run(), said.half()
    start, end = run.at(0).loss, run.risk.floor()
    return (start - run.at(second // 4).loss) / (start - end) > 0.5


def one_drop(said: Said) -> bool:
    run, pair = said.run(), said.run(coordinates="pair")
    t = int(said.values["t"])
    alike = float(np.ptp(run.at(t).observed["gamma"])) < 1e-12
    start = pair.loss[0]
    waits = pair.first(lambda state: state.loss < 0.75 * start)
    falls = run.first(lambda state: state.loss < 0.75 * start)
    return alike and waits > 3 * max(falls, 1)


def turns(said: Said) -> bool:
    losses = [said.tested(int(t)) for t in np.geomspace(1, 1e6, 40)]
    return 0 < int(np.argmin(losses)) < 39 and losses[-1] > 1.05 * min(losses)


def noise_is_known(said: Said) -> bool:
    """Cross-entropy comes near the entropy of the noise only if noise is predicted as often as it occurs."""
    run, alpha = said.run(), said.parameters.get("alpha", 0.0)
    entropy = (
        -alpha * math.log(alpha) - (1 - alpha) * math.log1p(-alpha) if alpha else 0.0
    )
    assert run.steps is not None
    return abs(float(run.at(20 * run.steps).loss) - entropy) < 1e-9


def straight(said: Said) -> bool:
    """Ratios of the excess over equal times at the end of the run."""
    run = said.run()
    assert run.steps is not None
    excess = [
        float(run.at(run.steps - back).observed["excess"]) for back in (0, 10, 20)
    ]
    return near(excess[1] / excess[0], excess[2] / excess[1], 0.02)


def best(said: Said, **changes: Any) -> float:
    """The best κ of a sphere."""
    return float(
        icl.Sphere(**{**said.parameters, "N": int(said.parameters["N"]), **changes})
        .risk()
        .best
    )


def valley(said: Said) -> bool:
    """The loss has one minimum, less deep without noise; and a narrow window would do no harm in long prompts."""
    risk = icl.Sphere(**said.parameters).risk()
    losses = [risk.loss([kappa]) for kappa in np.linspace(0.0, 3.0 * risk.best, 60)]
    turns = np.flatnonzero(np.diff(np.sign(np.diff(losses))))
    long = icl.Sphere(N=10**6).risk().loss([3.0 * risk.best])
    return len(turns) == 1 and losses[-1] > 1.5 * risk.least and long < 0.1 * losses[-1]


def narrows(said: Said) -> bool:
    """The weight of a pair at a right angle, relative to one in the direction of the query, falls with κ."""
    angles = np.linspace(0.0, np.pi, 181)
    widths = []
    for kappa in (0.5, 1.0, 2.0, 5.0, 20.0):
        weights = np.exp(kappa * np.cos(angles))
        weights /= weights.sum()
        widths.append(float(np.arccos(weights @ np.cos(angles))))
    return bool(np.all(np.diff(widths) < 0))


def reaches(said: Said) -> bool:
    """An introduction: no more is claimed than that training works."""
    return said.run().converged


def two_theorems(said: Said) -> bool:
    flat, run = said.run(L=0.2), said.run()
    third = run.phases.III[1] - run.phases.III[0]
    tail = (said.values["K"] - 1) / (4 * said.values["eta"] * said.values["epsilon"])
    return (
        "III" not in flat.phases.present()
        and third > 0.9 * said.steps()
        and near(third, tail, 0.1)
    )


def preconditioned(said: Said) -> bool:
    run = said.run().at(int(said.values["t"]))
    least_squares = run.observed["gamma"] * np.arange(1.0, 9.0) ** -2.0
    return bool(
        least_squares[0] > 0.5
        and least_squares[-1] < 0.2
        and np.all(np.diff(least_squares) < 0)
    )


CLAIMS: dict[str, Callable[[Said], bool]] = {
    "Small L, here 0.2 in grey dashes": two_theorems,
    "Features that are orthonormal and equally frequent": lambda said: (
        near(said.parameters["L"] ** 2 * said.parameters["delta"] ** 2 / 2, 1.0, 1e-7)
        and near(
            said.run().phases.I[1], said.values["K"] ** 2 / said.values["eta"], 0.15
        )
        and said.run().converged
    ),
    "Noise in every fifth sentence": lambda said: (
        said.values["alpha"] == 0.2
        and noise_is_known(said)
        and straight(said)
        and said.steps(outputs=2) == said.steps(outputs=9)
    ),
    "Each direction of Γ comes to its best value": preconditioned,
    "The trained layer fails if the law of the tokens changes": lambda said: (
        said.tested(int(said.values["t"])) > said.tested(0)
    ),
    "Tokens alike in all directions": one_drop,
    "The window adapts": lambda said: (
        best(said) > 3 * best(said, N=100)
        and best(said, L=2.0) > best(said) > best(said, noise=2.0)
    ),
    "Flat. A small L": lambda said: "III" not in said.run().phases.present(),
    "Sharp. A large L": lambda said: (
        said.run().phases.III[0] < 0.5 * said.steps()
        and near(said.run().at(said.steps() // 2).loss, 2 * said.run().loss[-1], 0.1)
    ),
    "Flat beside sharp. In grey dashes the run of L = 0.2": lambda said: (
        said.run(L=0.2).phases.I[1] > said.run().phases.I[1]
        and "III" not in said.run(L=0.2).phases.present()
        and "III" in said.run().phases.present()
    ),
    "Far above L*. The number of steps hardly depends on L": far_above,
    "K = 10⁶. A million features: the first phase takes K²/(ηγ) steps": lambda said: (
        near(
            said.run().phases.I[1],
            2 * said.values["K"] ** 2 / (said.values["eta"] * said.values["L"] ** 2),
            0.01,
        )
    ),
    "Momentum. Momentum 0.9 learns the same": lambda said: (
        same_way(said)
        and near(float(descent(said).steps or 0) / said.steps(), 10.0, 0.05)
    ),
    "Adam. With a small learning rate": lambda said: near(
        said.steps(rule="heavy-ball", momentum=0.9) / said.steps(), 40.0, 0.02
    ),
    "10¹⁴ steps. A target that takes a hundred million million steps": lambda said: (
        near(said.steps(), 1e14, 0.1)
    ),
    "At step 0 the query attends to all K features alike": even,
    "ask for another feature (click": even,
    "Phase I ends at step 273": lambda said: (
        said.run().phases.present()["I"] == (0, 273)
        and float(said.run().at(272).attention) < 0.5
        and said.run().at(273).loss < said.run().at(0).loss / 3
    ),
    "double L": lambda said: near(
        said.run(L=2.0).phases.present()["I"][1] / said.run().phases.present()["I"][1],
        4.0,
        0.02,
    ),
    "In Phase II, to step 941": lambda said: (
        said.run().phases.present()["II"] == (273, 941)
        and near(float(said.run().at(273).attention), 0.5, 0.01)
        and near(float(said.run().at(941).attention), 0.9, 0.01)
        and near(said.run().at(941).loss / said.run().at(0).loss, 0.01, 0.1)
    ),
    "ask for another feature. Now the prediction follows": lambda said: (
        band(said) and float(said.run().at(941).attention) > 0.9
    ),
    "Momentum 0.9 takes attention the same way": lambda said: (
        same_way(said)
        and (said.steps(), descent(said).steps) == (692, 7122)
        and near(7122 / 692, 1 / (1 - 0.9), 0.05)
    ),
    "make single steps large, L = 5": lambda said: (
        same_way(said)
        and (said.steps(), descent(said).steps) == (24, 5037)
        and 5037 - descent(said).phases.III[0] > 0.9 * 5037
    ),
    "In Phase III the attention that is left": lambda said: (
        said.run().phases.present()["III"][0] < 5000
        and near(said.run().at(5000).loss / said.run().at(2500).loss, 0.5, 0.15)
        and near(said.run().at(10**6).loss / said.run().at(10**5).loss, 0.1, 0.05)
    ),
    "go on to step 10 000": lambda said: near(
        said.run().at(10000).loss / said.run().at(5000).loss, 0.5, 0.1
    ),
    "With flat functions": lambda said: "III" not in said.run().phases.present(),
    "raise L to 1": lambda said: (
        "III" in said.run().phases.present()
        and near(icl.regression.crossover(1e-3, 1.0, 20), 0.63, 0.01)
        and near(said.steps(L=0.2) / said.steps(), 5.0, 0.03)
    ),
    "With many features, here 1000": bend,
    "drag the red dot to L = 40": far_above,
    "Bars are a function that the model has never seen": band,
    "draw another function": band,
    "No noise. Every sentence can be completed without doubt": lambda said: (
        noise_is_known(said) and straight(said)
    ),
    "Half noise. Every other sentence ends in noise": noise_is_known,
    "1000 triggers. The rate is η/√|Q|": lambda said: (
        said.values["triggers"] == 250 * 4
        and near(said.rate(triggers=4) / said.rate(), 16, 0.02)
    ),
    "Said thrice. An output that follows its trigger three times": lambda said: near(
        said.rate() / said.rate(counts=1), 3, 0.05
    ),
    "10¹² steps. A tiny learning rate": lambda said: near(said.steps(), 1e12, 0.2),
    "A sentence ends with a trigger": reaches,
    "All that is trained here is one strength λ": straight,
    "A review of the paper names three exponents": lambda said: near(
        said.rate(), said.values["eta"] / math.sqrt(said.values["triggers"]), 0.01
    ),
    "Press Play: the probability of the output": noise_is_known,
    "The model has never seen the output on the right": lambda said: (
        said.steps(outputs=2) == said.steps(outputs=9)
    ),
    "The number of steps grows like √|Q|": lambda said: near(
        said.steps(triggers=400) / said.steps(triggers=100), 2, 0.01
    ),
    "One drop. Isotropic tokens": one_drop,
    "One by one. A steep spectrum": lambda said: one_by_one(said) and first_alone(said),
    "Long prompts. With many pairs and little noise": lambda said: bool(
        np.allclose(said.run().at(10**15).observed["gamma"], np.arange(1, 9), rtol=0.01)
    ),
    "Other noise. Tested with more noise than in training": turns,
    "Other spectrum. Tested on isotropic tokens": lambda said: (
        said.tested(int(said.values["t"]))
        > 2 * said.tested(0)
        > 2 * said.test_law().floor
    ),
    "Longer prompts. Ten times as many pairs": lambda said: (
        said.values["N"] == 10 * 100 and 1.8 < best(said) / best(said, N=100) < 2
    ),
    "Steeper. Steeper tasks want a narrower window": lambda said: (
        best(said) > 1.5 * best(said, L=1.0)
    ),
    "More noise. With more noise it pays": lambda said: (
        best(said) < best(said, noise=1.0) / 1.5
    ),
    "From a narrow window. A start beyond the best": lambda said: (
        said.parameters["start"] > 1.5 * best(said)
        and abs(float(said.run().params[0]) / best(said) - 1) < 0.5
    ),
    "Prompts show N noisy values of a linear function": lambda said: (
        reaches(said) and narrows(said)
    ),
    "The loss while it trains, exactly": reaches,
    "Training rolls down this curve": valley,
    "The best κ grows with the length of prompts": lambda said: (
        abs(
            math.log10(best(said, N=10**8) / best(said, N=10**7))
            - 2 / (said.parameters["d"] + 3)
        )
        < 0.01
    ),
    "Prompts of N pairs (x, y) of a linear regression": reaches,
    "Every direction of the tokens shrinks": one_by_one,
    "With equal eigenvalues there is one drop": one_drop,
    "What remains is the floor": lambda said: near(
        PromptLaw(np.arange(1.0, 9) ** -1.0, N=100, noise=0.5).floor
        / PromptLaw(np.arange(1.0, 9) ** -1.0, N=1000, noise=0.5).floor,
        10,
        0.25,
    ),
    "The same Γ on another law of prompts": turns,
}


def emergence(said: Said, **changes: Any) -> int:
    """The step at which the loss is halfway from unigram to Bayes."""
    return int(said.run(**changes).phases.present()["bigram"][0])


def resting(said: Said, t: int) -> bool:
    """Whether the loss is that of the unigram's prediction at a step."""
    problem: Any = list_families()["induction-heads"](**said.parameters)
    unigram = problem.predictors["unigram"]
    return near(float(said.run().at(t).loss), unigram, 0.025)


def predictors(said: Said, **changes: Any) -> dict[str, float]:
    problem: Any = list_families()["induction-heads"](**said.parameters | changes)
    return dict(problem.predictors)


def gain(said: Said, **changes: Any) -> float:
    losses = predictors(said, **changes)
    return losses["unigram"] - losses["Bayes"]


def at_lag_1(said: Said) -> float:
    return float(said.run().at(int(said.values["t"])).observed["first"][1])


def sink_first(said: Said) -> bool:
    """The sink's score is c, and no other score is above the match."""
    T, match, sink = (said.parameters[name] for name in ("T", "match", "sink"))
    share = math.exp(sink) / (math.exp(sink) + T * math.exp(match))
    start = float(said.run().at(0).loss)
    return share > 0.9 and near(start, predictors(said)["uniform"], 0.04)


def levels(said: Said) -> bool:
    """A run goes through all plateaus, from near the loss of the first to near that of the last."""
    problem: Any = list_families()["induction-heads"](**said.parameters)
    run, known = said.run(), problem.predictors
    learns = list(run.phases.present()) == ["uniform", "unigram", "bigram"]
    return (
        learns
        and near(run.at(0).loss, known["uniform"], 0.04)
        and near(run.loss[-1], known["Bayes"], 0.02)
    )


def steeper(said: Said) -> bool:
    risk: Any = said.run().risk
    pulls = [
        float(-risk.gradient([0.0, 0.0, b, said.parameters["sink"]])[1])
        for b in (0.5, 1.0, 2.0)
    ]
    first, last = said.run().at(0).observed, said.run().at(1000).observed
    right, up = last["match"] > first["match"], last["first"][1] > first["first"][1]
    return 0.0 < pulls[0] < pulls[1] < pulls[2] and bool(right and up)


def head(said: Said) -> bool:
    observed = said.run().at(int(said.values["t"])).observed
    return float(observed["first"][1]) > 0.9 and float(observed["attention"]) > 0.7


def three_phases(said: Said) -> bool:
    return levels(said) and resting(said, int(said.values["t"]))


def stages(said: Said) -> bool:
    """When the first layer attends to the parent, the match has made a small part of its way."""
    run = said.run()
    turned = run.first(lambda state: state.observed["first"][1] > 0.9)
    start, then, end = (
        float(run.at(t).observed["match"]) for t in (0, turned, run.t[-1])
    )
    return (
        turned <= 1.2 * said.values["t"]
        and 0 < then - start < 0.1 * (end - start)
        and run.regime == "induction"
    )


INDUCTION: dict[str, Callable[[Said], bool]] = {
    "The three phases: predictions are uniform first": three_phases,
    "The two stages: a fast first layer": stages,
    "Log loss. The same in nats": levels,
    "Slow first layer. The match grows while both lags": lambda said: (
        resting(said, 200)
        and resting(said, 600)
        and near(emergence(said) / emergence(said, ratio=1.0), 9, 0.1)
        and float(said.run().at(200).observed["match"]) > 1
        and near(float(said.run().at(200).observed["first"][1]), 0.5, 0.1)
    ),
    "Against the match. From a negative match": lambda said: (
        resting(said, 70)
        and resting(said, 300)
        and said.run().regime == "induction"
        and abs(float(said.run().at(150).observed["match"])) < 0.3
    ),
    "Nearly certain. Chains whose rows are nearly certain": lambda said: (
        emergence(said) < emergence(said, concentration=1.0)
        and said.run().risk.floor() < 0.5 * said.run(concentration=1.0).risk.floor()
    ),
    "At the start the sink takes more than nine tenths": sink_first,
    "lower the sink's score": lambda said: near(
        float(said.run().at(0).loss), predictors(said)["unigram"], 0.01
    ),
    "With a slow first layer": lambda said: resting(said, 200) and resting(said, 600),
    "set ρ back to 1": lambda said: near(
        emergence(said, ratio=0.03) / emergence(said), 9, 0.1
    ),
    "The first layer turns to the symbol before": lambda said: at_lag_1(said) > 0.9,
    "train the first layer at a tenth": lambda said: 0.5 < at_lag_1(said) < 0.7,
    "The second layer attends to symbols that followed": lambda said: (
        head(said) and near(said.run().at(2000).loss, predictors(said)["Bayes"], 0.01)
    ),
    # the excess of the square loss is the mean square distance to the best prediction
    "look at other sequences": lambda said: near(
        math.sqrt(said.run().at(2000).loss - predictors(said)["Bayes"]), 0.03, 0.05
    ),
    "The same run as a path over the loss": steeper,
    "start from a negative match": lambda said: (
        said.run().regime == "induction"
        and abs(float(said.run().at(150).observed["match"])) < 0.3
    ),
    "If the rows of the chains are nearly certain": lambda said: (
        emergence(said) < emergence(said, concentration=1.0)
        and said.run().risk.floor() < 0.5 * said.run(concentration=1.0).risk.floor()
    ),
    "set α to 10": lambda said: gain(said) < 0.1 * gain(said, concentration=1.0),
}
if "induction-heads" in PANELS:
    CLAIMS |= INDUCTION


@pytest.mark.parametrize(
    "entry", SAID, ids=lambda entry: f"{entry['panel']}: {entry['text'][:30]}"
)
def test_a_text_of_the_explorer_is_true_at_its_setting(entry: dict[str, Any]) -> None:
    claims = [
        holds for words, holds in CLAIMS.items() if entry["text"].startswith(words)
    ]
    assert len(claims) == 1, f"no test for: {entry['text']}"
    assert entry["problems"] == []
    assert claims[0](Said(entry["panel"], entry["values"], entry["parameters"])), entry[
        "text"
    ]


def test_every_claim_is_on_the_page() -> None:
    assert len(SAID) == len(CLAIMS) >= 30
