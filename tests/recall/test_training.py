"""The trainer of the paper's experiments."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.recall import training
from tests.recall.enumeration import matrices
from tests.test_cli import run_main

SMALL = {"V": 14, "H": 16, "outputs": 3, "batch": 64, "max_steps": 80, "eta": 0.1}
FLAGS = [
    word
    for name, value in SMALL.items()
    for word in (f"--{name.replace('_', '-')}", str(value))
]
SEEN = {
    "output",
    "noise",
    "attention_output",
    "attention_other",
    "feed_forward_noise",
    "feed_forward_other",
}


def train(**options: object) -> icl.Trajectory:
    return icl.recall.Training(**(SMALL | options)).simulate()  # type: ignore[arg-type]


@pytest.mark.parametrize("attention", ["linear", "relu", "softmax"])
@pytest.mark.parametrize("rule", ["ngd", "ngd-blocks", "gd"])
@pytest.mark.parametrize("model", ["full", "attention", "reparameterised"])
def test_every_model_learns_by_every_rule(
    model: str, attention: str, rule: str
) -> None:
    run = train(
        model=model,
        attention=attention,
        rule=rule,
        alpha=0.2,
        eta=0.2 if rule == "gd" else 0.1,
        max_steps=80 if rule == "gd" else 40,
    )
    assert run.observed["seen_loss"][-1] < run.observed["seen_loss"][0] - 0.05
    assert set(run.observed) >= SEEN
    assert all(np.isfinite(values).all() for values in run.observed.values())


def test_what_is_observed_is_what_the_matrices_do() -> None:
    """Logits by layer from the matrices written out, sentence by sentence."""
    problem = icl.recall.Training(model="reparameterised", alpha=0.2, **SMALL)  # type: ignore[arg-type]
    task, model = problem.task, problem.risk()
    W, value, F = matrices(task, "identity", np.array([2.5]), 1.0, task.best_gamma)
    test = task.sentences(np.random.default_rng([0, 2]), 128, task.outputs)
    eye, kept = np.eye(2 * task.V), []
    for tokens, y in zip(test.tokens.tolist(), test.output.tolist(), strict=True):
        x = np.array(
            [
                eye[z] + (eye[task.V + tokens[h - 1]] if h else 0.0)
                for h, z in enumerate(tokens)
            ]
        )
        u = value @ (x.T @ (x @ (W.T @ x[-1])))
        first, second = u[: task.V], (F @ (x[-1] + u))[: task.V]
        probs = np.exp(first + second) / np.exp(first + second).sum()
        tau = task.noise_word
        kept.append(
            [
                probs[y],
                probs[tau],
                first[y],
                np.delete(first, y).max(),
                second[tau],
                np.delete(second, tau).max(),
            ]
        )
    seen = model.observe(np.array([2.5]))
    order = [
        "output",
        "noise",
        "attention_output",
        "attention_other",
        "feed_forward_noise",
        "feed_forward_other",
    ]
    np.testing.assert_allclose(
        [seen[name] for name in order], np.mean(kept, axis=0), rtol=1e-12, atol=1e-12
    )
    assert icl.recall.RecallRisk(task, gamma=task.best_gamma, weights="identity").loss(
        [2.5]
    ) == pytest.approx(float(model.observe(np.array([2.5]))["seen_loss"]), abs=0.3)


def test_attention_alone_recalls_unseen_outputs_and_full_matrices_do_not() -> None:
    runs = {model: train(model=model, max_steps=250) for model in ("attention", "full")}
    last = {
        name: {key: float(run.observed[key][-1]) for key in run.observed}
        for name, run in runs.items()
    }
    assert (
        min(last["attention"]["unseen_accuracy"], last["full"]["seen_accuracy"]) > 0.9
    )
    assert last["full"]["unseen_accuracy"] < 0.1
    assert (
        last["full"]["unseen_loss"]
        > math.log(14)
        > 1.0
        > last["attention"]["unseen_loss"]
    )


def test_relu_starts_from_zero_at_its_kink_and_linear_attention_does_not() -> None:
    assert (
        train(attention="relu", scale=0.0, rule="ngd-blocks").observed["seen_loss"][-1]
        < 2.0
    )
    with pytest.raises(ValueError, match="scale = 0: must be positive"):
        train(scale=0.0)


def test_fixed_sentences_are_seen_in_turn() -> None:
    risk = icl.recall.Training(**(SMALL | {"M": 100, "batch": 64})).transformer  # type: ignore[arg-type]
    assert risk.stochastic
    first, second = (risk.prompts(step).tokens for step in (0, 1))
    assert risk.data is not None
    np.testing.assert_array_equal(
        np.concatenate([first, second[:36]]), risk.data.tokens
    )
    np.testing.assert_array_equal(second[36:], risk.data.tokens[:28])
    whole = icl.recall.Training(**(SMALL | {"M": 40, "batch": 64})).transformer  # type: ignore[arg-type]
    assert not whole.stochastic


def test_where_no_words_are_left_nothing_is_said_of_unseen_outputs() -> None:
    problem = icl.recall.Training(
        V=7, triggers=3, outputs=3, H=12, batch=8, max_steps=2
    )
    assert problem.task.unseen.size == 0
    run = problem.simulate()
    assert {name for name in run.observed if name.startswith("unseen")} == set()
    assert (
        run.notes["test loss"]
        == f"{run.observed['seen_loss'][-1]:.3g} (seen outputs); Bayes risk 0"
    )
    assert set(problem.measure(run)) == {"seen_loss", "output", "noise"}


def test_fixed_sentences_are_those_of_the_seed() -> None:
    problem = icl.recall.Training(**(SMALL | {"M": 30, "batch": 64, "seed": 3}))  # type: ignore[arg-type]
    data = problem.task.sentences(np.random.default_rng(3), 30)
    np.testing.assert_array_equal(problem.transformer.prompts(0).tokens, data.tokens)
    np.testing.assert_array_equal(
        problem.transformer.initial,
        icl.recall.TransformerRisk(problem.task, seed=3, weights="identity").initial,
    )


def test_nothing_is_drawn_to_refuse_what_does_not_go_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(icl.recall.RecallTask, "sentences", drawn)
    with pytest.raises(ValueError, match="'projection' with noise"):
        icl.recall.Training(
            M=10**6, V=8, outputs=3, alpha=0.5, law="markov", model="reparameterised"
        )
    with pytest.raises(ValueError, match=r"this takes .* of memory"):
        icl.recall.Training(M=1e12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention", "softmax"),
        ("weights", "projection"),
        ("kappa", 0),
        ("batch", 7),
        ("tests", 9),
        ("seed", 5),
        ("scale", 0.3),
        ("gamma", -2.5),
    ],
)
def test_what_is_given_is_what_is_trained(name: str, value: object) -> None:
    given = {**SMALL, "alpha": 0.2, name: value}
    assert getattr(icl.recall.Training(**given).transformer, name) == value  # type: ignore[arg-type]


def test_gamma_of_few_sentences_is_their_log_odds() -> None:
    risk = icl.recall.Training(alpha=0.3, M=50, **SMALL).transformer  # type: ignore[arg-type]
    assert risk.data is not None
    share = np.mean(risk.data.answer == risk.task.noise_word)
    assert risk.gamma == pytest.approx(math.log(share / (1.0 - share)), rel=1e-12)


@pytest.mark.parametrize("M", [1, 2, 3, 8])
def test_an_answer_that_does_not_occur_counts_as_half_an_answer(M: int) -> None:
    seen = set()
    for seed in range(12):
        problem = icl.Recall(V=8, triggers=2, outputs=3, alpha=0.4, H=9, M=M, seed=seed)
        noise = int(np.sum(problem.data.answer == 7))  # type: ignore[union-attr]
        seen.add(noise)
        share = {0: 0.5, M: M - 0.5}.get(noise, noise) / M
        assert problem.held[0] == pytest.approx(
            math.log(share / (1 - share)), abs=1e-12
        )
    assert seen & {0, M} or M == 8


def test_command_trains_and_says_how_it_went(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, out, _ = run_main(
        capsys, "recall", "train", *FLAGS, "--model", "attention", "--json"
    )
    found = json.loads(out)
    assert status == 0
    assert (
        found["unseen_loss"]
        == train(model="attention").observed["unseen_loss"].tolist()
    )
    status, out, _ = run_main(
        capsys,
        "recall",
        "train",
        *FLAGS,
        "--save",
        str(tmp_path / "a.npz"),
        "--alpha",
        "0.2",
    )
    assert (status, "feed-forward" in out) == (0, True)
    assert icl.load(tmp_path / "a.npz").at(3).loss == train(alpha=0.2).at(3).loss
    assert run_main(capsys, "recall", "train", *FLAGS, "--epsilon", "1e-9")[0] == 1
    assert (
        run_main(capsys, "recall", "train", *FLAGS, "--rule", "gd", "--eta", "1e200")[0]
        == 1
    )


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            ["--model", "half"],
            "model = 'half': must be one of full, attention, reparameterised",
        ),
        (["--alpha", "0.2", "--triggers", "2"], "triggers = 2: must be 1 with noise"),
        (["--attention", "softmax-limit"], "attention = 'softmax-limit'"),
        (["--H", "2"], "H = 2"),
        (["--V", "6"], "V = 6: must be at least 10"),
        (["--batch", "0"], "batch = 0"),
        (["--rule", "sgd"], "rule = 'sgd'"),
        (["--gamma", "trained", "--alpha", "0.1"], "gamma = 'trained'"),
        (["--v", "trained", "--attention", "softmax"], "v = 'trained'"),
        (
            ["--v", "trained", "--attention", "softmax", "--model", "attention"],
            "v = 'trained'",
        ),
    ],
)
def test_wrong_input_is_one_line(
    capsys: pytest.CaptureFixture[str], extra: list[str], words: str
) -> None:
    status, out, err = run_main(capsys, "recall", "train", *extra)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_tables_hold_the_words_attended_to_and_those_before() -> None:
    tokens = np.array([[2, 0, 2, 1], [1, 1, 0, 2]])
    for whole in (True, False):
        weights = "identity" if whole else "projection"
        risk = icl.recall.TransformerRisk(
            icl.recall.RecallTask(3, 1, 1, H=4), weights=weights
        )
        places = risk._word_vectors(tokens).toarray().reshape(2, -1, 2, 6)
        for sentence, h in np.ndindex(2, 4 if whole else 3):
            expected = np.zeros((2, 6))
            expected[sentence, tokens[sentence, h]] = 1.0
            if h:
                expected[sentence, 3 + tokens[sentence, h - 1]] = 1.0
            np.testing.assert_array_equal(places[sentence, h], expected)


@pytest.mark.parametrize(
    "changes", [{"rule": "gd"}, {"rule": "ngd-blocks"}, {"epsilon": 0.5}, {}]
)
def test_models_that_may_not_be_trained_together_run_as_they_do_alone(
    changes: dict[str, object],
) -> None:
    """Of other rules or with targets; and of other seeds, whose sentences differ."""
    models = [{"model": "attention"}, {"model": "full"}, {"model": "full", "seed": 3}]
    given = {**SMALL, "max_steps": 6, "batch": 16, **changes}
    problems = [icl.recall.Training(**(given | model)) for model in models]  # type: ignore[arg-type]
    for problem, found in zip(problems, training.observe(problems), strict=True):
        alone = problem.simulate()
        np.testing.assert_array_equal(found.t, alone.t)
        for name, values in alone.observed.items():
            np.testing.assert_allclose(
                found.values[name], values, rtol=1e-9, err_msg=name
            )
