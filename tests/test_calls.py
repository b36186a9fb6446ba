from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import _calls
from tests.problems import by_default
from tests.test_testing_families import Sound

SPACE = {"icl": icl, "np": np, "math": math}
RUNS: dict[str, Callable[[], icl.Trajectory]] = {
    "defaults": lambda: icl.simulate(2.0, 1.0, 4.0),
    "numbers of NumPy": lambda: icl.simulate(
        np.float32(0.3), 1.0, 4.0, K=np.int64(3), N=np.int64(50), max_steps=5
    ),
    "a family": lambda: icl.simulate(
        2, 1, 2.0, K=4, N=20, task=icl.tasks.Linear, epsilon=0.1, method="exact"
    ),
    "a task": lambda: icl.simulate(
        1.5, 1.0, 2.0, K=4, task=icl.tasks.RandomFourier(1.5, 0.7), max_steps=50
    ),
    "probabilities": lambda: icl.simulate(
        2.0, 1.0, 4.0, K=3, probs=np.array([0.2, 0.3, 0.5]), max_steps=20
    ),
    "recall": lambda: icl.recall.simulate(
        V=10, triggers=1, alpha=0.1, attention="softmax", H=9, max_steps=3
    ),
    "fixed counts": lambda: icl.recall.simulate(
        counts=icl.recall.Counts.fixed(2), M=30, seed=3, max_steps=50
    ),
}
PROBLEMS: dict[str, icl.Family] = {
    "a problem": icl.Regression(
        L=2.0, delta=1.0, eta="auto", K=4, task="quadratic", max_steps=9
    ),
    "rounded": icl.Regression(
        L=2.0, delta=1.0, eta=4.0, K=3, probs=(0.61, 0.29, 0.1), max_steps=20
    ),
    "a problem of recall": icl.Recall(M=20, rule="gd", max_steps=9),
    "grouped": icl.regression.GroupedRegression(
        L=1.0, delta=1.0, eta=1.0, sizes=(1, 3), epsilon=0.1
    ),
    "gaussian": icl.regression.GaussianRegression(L=1.0, d=2, eta=0.1, max_steps=5),
    "sphere": icl.Sphere(N=20, task="relu", max_steps=9),
    "a fixed chain": icl.FixedChain(q=0.9, bias="trained", max_steps=5),
    "induction heads": icl.InductionHeads(
        T=9, objective="log", sink=1.0, scores=(0.0, 0.5), stage=2, max_steps=5
    ),
    "representation": icl.Representation(K=4, m=3, N=2, heads=2, max_steps=3),
    "softmax heads": icl.SoftmaxHeads(heads=1, d=1, N=5, max_steps=3),
    "single location": icl.SingleLocation(attention="erf", max_steps=5),
    "token selection": icl.TokenSelection(n=2, T=3, max_steps=5),
    "linear attention": icl.LinearAttention(eta=0.1, max_steps=9),
    "matrices": icl.recall.Training(
        V=8, triggers=2, outputs=3, H=9, batch=8, max_steps=3
    ),
}
RUNS |= {name: problem.simulate for name, problem in PROBLEMS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_the_call_of_a_run_makes_the_same_run(name: str) -> None:
    run = RUNS[name]()
    assert run.command is not None
    again = eval(run.command, SPACE)
    np.testing.assert_array_equal(again.states, run.states)
    np.testing.assert_array_equal(again.loss, run.loss)
    assert again.command == run.command


def test_a_problem_from_a_file_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """Also where probabilities sum to 1 up to rounding: they are normalised once."""
    run = PROBLEMS["rounded"].simulate()
    run.save(tmp_path / "run.npz")
    again = icl.load(tmp_path / "run.npz").family.simulate()
    np.testing.assert_array_equal(again.states, run.states)


@pytest.mark.parametrize(
    "axes",
    [
        {"L": np.geomspace(0.03, 30.0, 61), "K": [10, 20]},
        {"L": [2.0], "N": [math.inf, 40], "epsilon": 0.1, "K": range(3, 5)},
        {
            "L": 1.0,
            "epsilon": np.linspace(0.1, 0.2, 30),
            "eta": "auto",
            "task": icl.tasks.Linear,
            "K": 4,
        },
    ],
)
def test_the_call_of_a_sweep_makes_the_same_sweep(axes: dict[str, Any]) -> None:
    found = icl.sweep(**{"delta": 1.0, "eta": 0.1, "progress": False, **axes})
    again = eval(
        found.attrs["command"].replace("icl.sweep(", "icl.sweep(progress=False, "),
        SPACE,
    )
    assert again.identical(found)


def test_the_call_of_a_recall_sweep_makes_the_same_sweep() -> None:
    found = icl.sweep(
        icl.Recall, triggers=[4, 16], M=math.inf, counts=1, progress=False
    )
    assert found.attrs["command"] == "icl.sweep('recall', triggers=[4, 16], counts=1)"
    assert eval(found.attrs["command"], SPACE).identical(found)


def test_a_call_that_cannot_be_written_exactly_is_not_known() -> None:
    features = icl.Features.orthonormal(4)
    kernel = icl.tasks.KernelTask(np.eye(4))
    assert (
        icl.simulate(1.0, features.gap, 1.0, features=features, max_steps=3).command
        is None
    )
    assert icl.simulate(1.0, 1.0, 1.0, K=4, task=kernel, max_steps=3).command is None
    assert (
        icl.simulate(
            1.0, 1.0, 1.0, K=4, task=lambda L: icl.tasks.Linear(L), max_steps=3
        ).command
        is None
    )
    rng = np.random.default_rng(0)
    nearly = np.geomspace(0.5, 2.0, 100) * (1.0 + 1e-9 * rng.random(100))
    for values in (rng.random(100), nearly):
        assert "command" not in icl.sweep(values, 1.0, 0.1, progress=False).attrs
    assert (
        icl.descend(
            icl.PopulationRisk(icl.Features.simplex(3, 1.0), kernel_of(3)), 1.0, steps=2
        ).command
        is None
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: icl.simulate(2.0, 1.0, 4.0, K=3, probs=[[1], [1, 2]]), "probs = "),  # type: ignore[list-item]
        (lambda: icl.sweep([[1], [2, 3]], 1.0, 0.1, progress=False), "L = "),  # type: ignore[list-item]
        (
            lambda: icl.sweep(icl.Recall, triggers=[[4], [5, 6]], progress=False),
            "triggers = ",
        ),
    ],
)
def test_lists_of_unequal_lengths_are_refused_by_their_names(
    call: Callable[[], object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def kernel_of(K: int) -> icl.tasks.KernelTask:
    return icl.tasks.KernelTask(np.eye(K))


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_rule_trains_what_a_family_makes_and_one_block_is_all_parameters(
    name: str,
) -> None:
    problem: Any = PROBLEMS[name]
    risk, eta = problem.risk(), 1e-3
    start, slope = risk.initial, np.asarray(risk.evaluate(risk.initial)[1])
    plain, whole, blocks = (
        icl.descend(risk, eta, steps=1, rule=rule).at(1).params - start
        for rule in ("gd", "ngd", "ngd-blocks")
    )
    np.testing.assert_allclose(plain, -eta * slope / risk.metric, rtol=1e-9, atol=1e-15)
    if len(risk.blocks(np.zeros(slope.shape))) == 1:
        np.testing.assert_array_equal(blocks, whole)
    for part, weight in zip(
        risk.blocks(blocks), risk.blocks(risk.metric + 0.0 * blocks), strict=True
    ):
        size = float(
            np.sqrt(np.sum(weight * part**2))
        )  # no step where the part of the gradient is 0
        assert size == 0.0 or size == pytest.approx(eta, rel=1e-9)


def test_the_call_of_a_problem_of_a_family_not_named_above_makes_the_same_problem() -> (
    None
):
    named = {type(problem) for problem in PROBLEMS.values()}
    for family in icl.list_families().values():
        if family not in named:
            run = by_default(family).simulate()
            assert run.command is not None
            again = eval(run.command, {"icl": icl, "math": math, "np": np})
            assert again.family.arguments() == run.family.arguments()


def test_the_call_of_a_problem_of_another_package_finds_it_by_its_name() -> None:
    run = Sound(eta=0.1, scale=2.0).simulate()
    assert run.command == "icl.list_families()['toy'](eta=0.1, scale=2.0).simulate()"


def test_what_results_do_not_depend_on_is_left_out() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, callback=lambda step, loss: None)
    assert run.command == "icl.Regression(L=2.0, delta=1.0, eta=4.0).simulate()"


@pytest.mark.parametrize("size", [2, 8, 9, 10, 60, 61])
@pytest.mark.parametrize("spaced", [np.linspace, np.geomspace])
def test_more_than_eight_evenly_spaced_numbers_are_written_by_their_ends(
    size: int, spaced: Any
) -> None:
    """Others one by one, up to sixty of them."""
    values = spaced(0.3, 7.0, size)
    expected = (
        str(values.tolist()) if size <= 8 else f"np.{spaced.__name__}(0.3, 7.0, {size})"
    )
    assert _calls._numbers(values) == expected
    values[1] *= 1.0 + 1e-15
    assert _calls._numbers(values) == (str(values.tolist()) if size <= 60 else None)
