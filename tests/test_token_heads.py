"""Attention over fixed inputs with a trained head: losses written out input by input, loops, floors by search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.token_selection.family import SelectionRisk
from icl_theory.papers.token_selection.heads import (
    MARGIN_LOSSES,
    HeadRisk,
    JointRisk,
    WithHead,
)
from icl_theory.testing import check_family, check_risk
from tests.test_cli import run_main

OF_MARGIN = {
    "logistic": lambda m: math.log(1.0 + math.exp(-m)),
    "exponential": lambda m: math.exp(-m),
    "correlation": lambda m: -m,
    "squared": lambda m: 0.5 * (1.0 - m) ** 2,
}


def written_out(
    scores: Any, head: Any, X: Any, y: Any, V: Any, margin_loss: str
) -> float:
    """Mean loss, input by input and token by token."""
    total = 0.0
    for s, tokens, label in zip(scores, X, y, strict=True):
        weight = [math.exp(score) for score in s]
        mean = sum(w * x for w, x in zip(weight, tokens, strict=True)) / sum(weight)
        hidden = mean if V is None else np.array([max(0.0, row @ mean) for row in V])
        total += OF_MARGIN[margin_loss](label * float(hidden @ head))
    return total / len(X)


def some_inputs(m: int | None) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(0)
    V = None if m is None else rng.normal(size=(m, 3))
    head = rng.normal(size=3 if m is None else m)
    return rng.normal(size=(3, 4, 3)), np.array([1.0, -1.0, 1.0]), V, head


@pytest.mark.parametrize("m", [None, 5])
@pytest.mark.parametrize("margin_loss", MARGIN_LOSSES)
def test_losses_are_those_of_each_input_and_gradients_their_differences(
    margin_loss: str, m: int | None
) -> None:
    X, y, V, head = some_inputs(m)
    scores = np.random.default_rng(1).normal(size=(3, 4))
    fixed = HeadRisk(X, y, np.abs(head), V, margin_loss)
    wanted = written_out(scores, np.abs(head), X, y, V, margin_loss)
    assert fixed.loss(scores) == pytest.approx(wanted, rel=1e-13)
    check_risk(fixed)
    if margin_loss == "correlation":
        return
    joint = JointRisk(X, y, head, V, margin_loss)
    at = np.append(scores.ravel(), head)
    wanted = written_out(scores, head, X, y, V, margin_loss)
    assert joint.loss(at) == pytest.approx(wanted, rel=1e-13)
    check_risk(joint)
    for i, unit in enumerate(np.eye(at.size)):
        ends = []
        for sign in (-1.0, 1.0):
            moved = at + sign * 1e-5 * unit
            ends.append(
                written_out(moved[:12].reshape(3, 4), moved[12:], X, y, V, margin_loss)
            )
        slope = (ends[1] - ends[0]) / 2e-5
        assert joint.gradient(at)[i] == pytest.approx(slope, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("m", [None, 5])
def test_floors_are_the_least_losses_of_a_search_over_attention(m: int | None) -> None:
    X, y, V, head = some_inputs(m)
    head = np.abs(head)
    rng = np.random.default_rng(2)
    spread, sparse = (
        rng.dirichlet(np.ones(4), 20_000),
        rng.dirichlet(np.full(4, 0.2), 20_000),
    )
    means = np.einsum("st,ntd->nsd", np.concatenate([spread, sparse, np.eye(4)]), X)
    margins = y[:, None] * (
        (means if V is None else np.maximum(means @ V.T, 0.0)) @ head
    )
    for margin_loss, of_margin in OF_MARGIN.items():
        searched = np.mean([min(map(of_margin, row)) for row in margins])
        floor = HeadRisk(X, y, head, V, margin_loss).floor()
        assert floor <= searched + 1e-12
        assert floor == pytest.approx(searched, rel=2e-3, abs=1e-6)


@pytest.mark.parametrize("margin_loss", MARGIN_LOSSES)
def test_small_excesses_keep_their_digits(margin_loss: str) -> None:
    """One of two tokens with the weight e^-40 is worth a slope of the loss times it."""
    risk = SelectionRisk([[0.5, -0.25]], margin_loss)
    slope = {
        "logistic": 1.0 / (1.0 + math.exp(0.5)),
        "exponential": math.exp(-0.5),
        "correlation": 1.0,
        "squared": 0.5,
    }[margin_loss]
    wanted = 0.75 * math.exp(-40.0) * slope
    assert risk.excess([[40.0, 0.0]]) == pytest.approx(wanted, rel=1e-12)
    inside = SelectionRisk([[3.0, -1.0]], "squared")
    assert inside.floor() == 0.0
    assert inside.excess([[0.0, 0.0]]) == 0.0


# The example of three inputs in the plane that the code beside the paper trains.
TOKENS = np.array([[[0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, 1]]], float)
SIGNS = np.array([1.0, -1.0, 1.0])
PLANE = icl.TokenSelection(
    trained="pv",
    tokens=TOKENS,
    signs=SIGNS,
    start=[[0.0, -1.0], [-1.0, 0.0]],
    eta=0.1,
    rule="ngd-blocks",
    method="exact",
    max_steps=1000,
    above=1e-250,
)


def test_prompt_and_head_are_trained_as_in_a_loop_of_their_own() -> None:
    """Both gradients normalised, each by its own norm."""
    p, v = np.array([0.0, -1.0]), np.array([-1.0, 0.0])
    losses = []
    for _ in range(300):
        weight = np.exp(TOKENS @ p)
        weight /= weight.sum(axis=1, keepdims=True)
        mean = np.einsum("nt,ntd->nd", weight, TOKENS)
        margin = SIGNS * (mean @ v)
        losses.append(np.mean(np.log1p(np.exp(-margin))))
        slope = -SIGNS / (1.0 + np.exp(margin)) / 3.0
        by_v = slope @ mean
        values = TOKENS @ v
        centred = values - np.sum(weight * values, axis=1, keepdims=True)
        by_p = np.einsum("n,nt,ntd->d", slope, weight * centred, TOKENS)
        p = p - 0.1 * by_p / np.linalg.norm(by_p)
        v = v - 0.1 * by_v / np.linalg.norm(by_v)
    run = PLANE.changed(max_steps=300).simulate()
    np.testing.assert_allclose(run.loss[:-1], np.array(losses)[run.t[:-1]], rtol=1e-10)
    np.testing.assert_allclose(run.params, [p, v], rtol=1e-9)


def test_joint_training_turns_to_both_hard_margins() -> None:
    """p to the one of the labelled tokens, v to the separator of these."""
    run = PLANE.simulate()
    assert run.family is PLANE
    columns = PLANE.measure(run)
    assert PLANE.selected(run.params).tolist() == [1, 1, 1]
    assert columns["best"] == columns["local"] == 1.0
    assert columns["cosine"] > 0.99
    assert columns["head_cosine"] > 0.99
    # By hand: the tokens 1 with their labels are (1, 1), (-1, 1), (½, 1).
    assert run.params[1] @ [0.0, 1.0] / np.linalg.norm(run.params[1]) > 0.99


def test_command_line_trains_prompt_and_head(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "tokens.npy", TOKENS)
    np.save(tmp_path / "signs.npy", SIGNS)
    np.save(tmp_path / "start.npy", np.array([[0.0, -1.0], [-1.0, 0.0]]))
    options = [
        f"--{name}={tmp_path / name}.npy" for name in ("tokens", "signs", "start")
    ]
    command = "token-selection simulate --trained pv --eta 0.1 --rule ngd-blocks"
    code, out = run_main(capsys, *command.split(), *options)[:2]
    assert code == 0
    assert f"at step {PLANE.changed(above=1e-3).simulate().steps}" in out


@pytest.mark.parametrize(
    "arguments",
    [
        {"trained": "pv", "start": 0.1},
        {"trained": "Wv", "head": "relu", "start": 0.3, "margin_loss": "squared"},
        {"trained": "W", "head": "relu", "margin_loss": "exponential"},
        {"margin_loss": "correlation"},
    ],
    ids=str,
)
def test_problems_of_every_form_train(arguments: dict[str, Any]) -> None:
    problem = icl.TokenSelection(**arguments, n=3, T=3, d=4, eta=0.1, max_steps=300)
    check_risk(problem.risk())
    run = problem.simulate()
    assert run.loss[-1] < run.loss[0]
    assert run.floor <= run.loss[-1]
    assert set(problem.measure(run)) >= {"best", "local"}


@pytest.mark.slow
def test_family_with_a_trained_head() -> None:
    check_family(
        icl.TokenSelection,
        trained="pv",
        n=2,
        T=3,
        d=4,
        start=0.5,
        eta=0.2,
        max_steps=200,
        rows=False,
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trained": "pv"}, "eta = 'auto': must be a number unless"),
        ({"head": "relu"}, "eta = 'auto': must be a number unless"),
        ({"margin_loss": "squared"}, "eta = 'auto': must be a number unless"),
        (
            {"trained": "pv", "eta": 0.1, "margin_loss": "correlation"},
            "margin_loss = 'correlation': must be another one if the head is trained",
        ),
        (
            {"trained": "pv", "eta": 0.1, "values": "one"},
            "values = 'one': must be 'linear' unless",
        ),
        ({"signs": [1.0, 2.0, 1.0, 1.0]}, "signs = .*: must be 1 or -1"),
        ({"signs": [1.0]}, r"signs = \(1,\): must be of shape \(4,\)"),
        ({"signs": [1.0] * 4, "values": "one"}, "signs = .*: must be left out"),
        (
            {"trained": "pv", "eta": 0.1, "start": np.ones(20)},
            r"start = \(20,\): must be a number, or of shape \(2, 20\)",
        ),
        ({"head": "tanh"}, "head = 'tanh'"),
        ({"trained": "Wv", "eta": 0.1, "d": 100, "n": 100}, "d = 100"),
    ],
)
def test_heads_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        icl.TokenSelection(**wrong)


def test_risks_refuse_inputs_that_do_not_fit() -> None:
    X, y, V, head = some_inputs(5)
    for make, message in (
        (lambda: JointRisk(X, y[:2], head, V), "labels = "),
        (lambda: JointRisk(X, y, head[:4], V), r"layer = \(5, 3\)"),
        (lambda: JointRisk(X, y, head), r"head = \(5,\): must be of shape \(3,\)"),
        (lambda: JointRisk(X[:0], y[:0], head, V), r"tokens = \(0, 4, 3\)"),
        (
            lambda: HeadRisk(X, y, -np.abs(head), V),
            "head = .*: must be of numbers >= 0",
        ),
        (lambda: HeadRisk(X, y, np.abs(head), V, "hinge"), "margin_loss = 'hinge'"),
        (lambda: WithHead(np.ones((3, 3)), X), r"start = \(3, 3\)"),
        (lambda: SelectionRisk([[1.0]], "hinge"), "margin_loss = 'hinge'"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize("margin_loss", ["exponential", "squared"])
@pytest.mark.parametrize("kind", ["values", "fixed", "joint"])
def test_batches_of_inputs_have_their_loss_and_gradient(
    kind: str, margin_loss: str
) -> None:
    """Every input once is the whole loss; and an input twice counts twice."""
    X, y, V, head = some_inputs(5)
    risks: dict[str, Any] = {
        "values": SelectionRisk(y[:, None] * (X @ head[:3]), margin_loss),
        "fixed": HeadRisk(X, y, np.abs(head), V, margin_loss),
        "joint": JointRisk(X, y, head, V, margin_loss),
    }
    risk = risks[kind]
    trainer = risk.sampled(batch=4, seed=3)
    check_risk(trainer)
    at = risk.initial + 0.3 * np.random.default_rng(1).normal(size=risk.initial.shape)
    every = type(trainer.prompts(0))(np.arange(3))
    loss, gradient = trainer.evaluate_on(at, every)
    assert loss == pytest.approx(risk.loss(at), rel=1e-13)
    np.testing.assert_allclose(gradient, risk.gradient(at), rtol=1e-10, atol=1e-14)
    losses = trainer.losses_on(at, every)
    repeated = every._replace(rows=np.array([0, 2, 2, 1]))
    wanted = (losses.sum() + losses[2]) / 4.0
    assert trainer.evaluate_on(at, repeated)[0] == pytest.approx(wanted, rel=1e-13)


def test_compare_trains_heads_on_batches_of_inputs() -> None:
    problem = icl.TokenSelection(
        trained="pv", n=20, T=3, d=5, start=0.3, eta=0.3, max_steps=60
    )
    run = problem.simulate()
    sgd = icl.descend(problem.sampled(batch=5, seed=9), 0.3, steps=60)
    assert run.compare(sgd.loss, sgd.t, batch=5).passed
