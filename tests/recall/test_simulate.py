from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icl_theory as icl
from icl_theory.papers.recall.statements.training import zipf

Counts, RecallRisk, RecallTask = (
    icl.recall.Counts,
    icl.recall.RecallRisk,
    icl.recall.RecallTask,
)
ONCE = Counts.fixed(1)


@given(
    st.integers(1, 40),
    st.floats(0.05, 20.0),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from(["linear", "relu"]),
    st.floats(1e-9, 1.0),
)
def test_closed_form_takes_the_steps_of_the_iteration(
    Q: int, eta: float, alpha: float, attention: str, above: float
) -> None:
    task = RecallTask(2 * Q + 5, Q, 2, alpha=alpha)
    runs = [
        icl.recall.simulate(
            eta=eta, task=task, attention=attention, above=above, method=method
        )
        for method in ("closed", "exact")
    ]
    assert runs[0].steps == runs[1].steps
    assert runs[0].loss[-1] == pytest.approx(runs[1].loss[-1], rel=1e-9)


def test_uniform_triggers_grow_by_eta_over_root_q_each_step() -> None:
    task = RecallTask(60, 9, 8, counts=Counts(np.array([0.0, 0.2, 0.8])))
    run = icl.descend(RecallRisk(task), 0.7, rule="ngd", steps=300)
    np.testing.assert_allclose(
        run.states, 0.7 * run.t[:, None] / 3.0 * np.ones(9), rtol=1e-12
    )
    t = run.t.astype(float)
    expected = sum(
        p * np.log1p(59 * np.exp(-0.7 * t * c / 3.0)) for p, c in ((0.2, 1), (0.8, 2))
    )
    np.testing.assert_allclose(run.loss, expected, rtol=1e-10)


def test_a_run_of_ten_to_the_fourteen_steps_is_counted() -> None:
    run = icl.recall.simulate(eta=1e-13, counts=ONCE, epsilon=1e-3)
    assert run.steps == pytest.approx(
        2 * math.log(49 / math.expm1(1e-3)) / 1e-13, rel=1e-12
    )
    assert run.at(run.steps).loss <= 1e-3 < run.at(run.steps - 10**4).loss


@pytest.mark.parametrize("attention", ["linear", "softmax-limit"])
@pytest.mark.parametrize("probs", [None, zipf(6)])
def test_the_rate_is_the_predicted_one(
    attention: str, probs: np.ndarray | None
) -> None:
    task = RecallTask(40, 6, 8, probs=probs, counts=Counts.fixed(2))
    eta = 0.4
    run = icl.descend(RecallRisk(task, attention), eta, rule="ngd", steps=800)
    rate = math.log(run.at(400).loss / run.at(800).loss) / 400
    assert rate == pytest.approx(icl.recall.decay_rate(task, eta, attention), rel=1e-2)
    others = {
        "linear": 2 * eta / np.array([6.0, 1.0]),
        "softmax-limit": eta / np.array([6.0, math.sqrt(6.0)]),
    }[attention]
    assert (np.abs(rate / others - 1.0) > 0.5).all()


def test_unequal_counts_share_the_step_like_their_inverses() -> None:
    task = RecallTask(
        40, 3, 8, probs=[0.5, 0.3, 0.2], counts=[Counts.fixed(c) for c in (1, 2, 5)]
    )
    run = icl.descend(RecallRisk(task), 0.2, rule="ngd", steps=2000)
    rate = math.log(run.at(1000).loss / run.at(2000).loss) / 1000
    assert rate == pytest.approx(0.2 / math.sqrt(1 + 1 / 4 + 1 / 25), rel=1e-6)
    assert rate == pytest.approx(icl.recall.decay_rate(task, 0.2), rel=1e-6)


@pytest.mark.parametrize("Q", [1, 4])
def test_softmax_with_noise_is_slowed_down_by_the_words_that_feed_it(Q: int) -> None:
    task = RecallTask(60, Q, 8, alpha=0.1, counts=Counts.fixed(2, 1))
    run = icl.descend(
        RecallRisk(task, "softmax-limit", task.best_gamma, tied=True),
        0.1,
        rule="ngd",
        steps=600,
    )
    steps = int(run.t[-1])
    ends = [float(run.at(t).observed["excess"]) for t in (steps // 2, steps)]
    rate = math.log(ends[0] / ends[1]) / (steps - steps // 2)
    assert rate == pytest.approx(0.1 / math.sqrt(9 / 4 + Q / 4), rel=0.05)
    assert rate == pytest.approx(
        icl.recall.decay_rate(task, 0.1, "softmax-limit"), rel=0.05
    )


@pytest.mark.parametrize(
    ("attention", "alpha"), [("linear", 0.0), ("relu", 0.2), ("softmax-limit", 0.0)]
)
def test_plain_descent_converges_like_one_over_t(attention: str, alpha: float) -> None:
    task = RecallTask(
        20, 3, 8, alpha=alpha, probs=[0.5, 0.3, 0.2], counts=Counts.fixed(2)
    )
    run = icl.descend(RecallRisk(task, attention), 4.0, steps=4_000)
    limit = icl.recall.plain_tail(task, 4.0, attention)
    assert run.t[-1] * run.observed["excess"][-1] == pytest.approx(limit, rel=0.05)


@pytest.mark.parametrize(
    ("attention", "alpha", "eta"), [("linear", 0.1, 0.4), ("softmax-limit", 0.3, 0.8)]
)
def test_normalised_descent_on_gamma_too_ends_in_a_cycle(
    attention: str, alpha: float, eta: float
) -> None:
    scale = {"v": "trained"} if attention == "softmax-limit" else {}
    run = icl.recall.simulate(
        eta=eta, alpha=alpha, attention=attention, gamma="trained", above=1e-4, **scale
    )
    assert run.stop_reason.endswith("the loss settles above epsilon")
    pair = [
        float(run.at(int(run.t[-1]) - shift).observed["excess"]) for shift in (0, 1)
    ]
    assert np.mean(pair) == pytest.approx(icl.recall.stall(alpha, eta), rel=0.2)
    assert "cycle" in run.notes


def test_training_on_sentences_reports_the_population() -> None:
    run = icl.recall.simulate(
        alpha=0.2, M=50, gamma="trained", rule="gd", eta=4.0, above=1e-2
    )
    assert run.converged
    population = RecallRisk(RecallTask(50, 4, 8, alpha=0.2))
    assert run.notes["population"].startswith(f"{population.excess(run.params):.6g}")
    assert icl.recall.simulate(M=1, above=1e-2).converged


def test_missing_triggers_are_not_learnt() -> None:
    task = RecallTask(30, 2, 4, probs=[0.9, 0.1], counts=ONCE)
    seed = next(
        s
        for s in range(100)
        if not task.sentences(np.random.default_rng(s), 5).trigger.any()
    )
    run = icl.recall.simulate(task=task, M=5, seed=seed, above=1e-9)
    assert run.params[1] == 0.0
    assert RecallRisk(task).loss(run.params) == pytest.approx(
        0.1 * math.log(30), rel=1e-6
    )


def test_runs_are_saved_and_loaded(tmp_path: Path) -> None:
    run = icl.recall.simulate(
        alpha=0.1, attention="softmax-limit", above=0.05, v="trained"
    )
    run.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    np.testing.assert_array_equal(loaded.states, run.states)
    assert loaded.info["attention"] == "softmax-limit"
    assert run.to_xarray()["excess"].dims == ("t",)


@pytest.mark.parametrize("eta", [1e-12, 1e9, 1e300])
def test_extreme_rates_have_defined_answers(eta: float) -> None:
    run = icl.recall.simulate(eta=eta, counts=ONCE)
    assert run.converged
    assert np.isfinite(run.loss).all()


def test_targets_above_the_start_are_reached_at_once() -> None:
    assert icl.recall.simulate(epsilon=10.0).steps == 0


def test_targets_below_the_floor_end_at_it() -> None:
    runs = [
        icl.recall.simulate(alpha=0.2, gamma=-1.0, epsilon=0.5, method=method)
        for method in ("closed", "exact")
    ]
    assert runs[0].steps is runs[1].steps is None
    assert runs[0].stop_reason == runs[1].stop_reason
    assert runs[0].stop_reason.startswith("stagnated at the floor")
    assert runs[0].t[-1] == runs[1].t[-1]


def test_runs_that_are_cut_short_say_so() -> None:
    run = icl.recall.simulate(max_steps=5)
    assert (run.steps, int(run.t[-1])) == (None, 5)
    assert run.stop_reason == "took all 5 steps without reaching epsilon = 0.001"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eta": 0.0}, "eta = 0.0"),
        ({"attention": "x"}, "attention = 'x'"),
        ({"rule": "sgd"}, "rule = 'sgd'"),
        ({"method": "fastest"}, "method = 'fastest'"),
        ({"method": "closed", "attention": "softmax-limit"}, "method = 'closed'"),
        ({"method": "closed", "probs": [0.4, 0.3, 0.2, 0.1]}, "method = 'closed'"),
        ({"method": "closed", "alpha": 0.1, "gamma": "trained"}, "method = 'closed'"),
        ({"method": "closed", "rule": "gd"}, "method = 'closed'"),
        ({"M": 0}, "M = 0"),
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"above": -1.0}, "above = -1.0"),
        ({"max_steps": 0}, "max_steps = 0"),
        ({"task": "x"}, "task = 'x'"),
        ({"gamma": 0.5}, "gamma = 0.5"),
        ({"task": RecallTask(20, 2, 3), "V": 20}, "V = 20: the task already sets V"),
        (
            {"alpha": 0.1, "above": 1e-20},
            "above = 1e-20: must be at least 1e-13 of the floor",
        ),
        ({"H": 4003}, "H = 4003: must be at most 4001"),
    ],
)
def test_wrong_input_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        icl.recall.simulate(**options)  # type: ignore[arg-type]
    assert words in str(error.value)


@pytest.mark.parametrize("attention", ["linear", "relu", "softmax-limit"])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_skipped_steps_are_counted_as_if_they_were_taken(
    attention: str, alpha: float
) -> None:
    call = {
        "attention": attention,
        "alpha": alpha,
        "rule": "gd",
        "above": 2e-3,  # after 1,000 to 4,000 steps: long enough for skipping to pay
        "gamma": "trained",
    }
    if attention == "softmax-limit":
        call["v"] = "trained"
    exact = icl.recall.simulate(**call, method="exact")  # type: ignore[arg-type]
    fast = icl.recall.simulate(**call, method="fast")  # type: ignore[arg-type]
    assert fast.states_error is not None
    assert fast.steps == exact.steps


OWN_WORDS = RecallTask(60, [3, 7], range(10, 20), probs=[0.3, 0.7], H=40, noise_word=2)


@pytest.mark.parametrize(
    "task",
    [
        RecallTask(60, 1, 4, alpha=0.2, H=256, law="planted"),
        RecallTask(30, 3, 5, probs=[0.61, 0.29, 0.1], counts=Counts.fixed(2)),
        RecallTask(30, 2, 5, counts=[Counts.fixed(1), Counts.fixed(2)]),
        RecallTask(30, 2, 5, counts=np.array([0.0, 0.4, 0.6]), H=9),
        RecallTask(30, 4, 8, alpha=0.1, noise_word=29),
        OWN_WORDS,
    ],
    ids=repr,
)
def test_a_run_says_which_task_was_trained_on(
    task: icl.recall.RecallTask, tmp_path: Path
) -> None:
    """Summary, facts, saved file, family and command: each of them is, or makes, the task itself."""
    run = icl.recall.simulate(task=task, above=0.05)
    run.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    for found in (run.info, loaded.info, run.to_dict()["info"]):
        facts = {
            "V": task.V,
            "triggers": task.Q,
            "outputs": len(task.outputs),
            "alpha": task.alpha,
        }
        assert {name: found[name] for name in facts} == facts
        assert (found["H"], found["law"]) == (task.H, task.law)
    for said in (run.summary(), loaded.summary()):
        for name, value in (
            ("V", task.V),
            ("triggers", task.Q),
            ("H", task.H),
            ("law", task.law),
        ):
            assert f"{name}={value}," in " ".join(said.split())
    assert isinstance(run.family, icl.Recall)
    again = [run.family.simulate()]
    if run.command is not None:
        again.append(eval(run.command, {"icl": icl, "np": np}))
    if loaded.family is not None:
        again.append(loaded.family.simulate())
    for other in again:
        np.testing.assert_array_equal(other.loss, run.loss)
    assert (run.command is None) == (task is OWN_WORDS or len(set(task.counts)) > 1)
    changed = run.family.changed(eta=0.1).whole_task
    assert (changed.V, changed.H, changed.law, changed.bayes_risk) == (
        task.V,
        task.H,
        task.law,
        task.bayes_risk,
    )
    np.testing.assert_allclose(changed.probs, task.probs, rtol=1e-15)
