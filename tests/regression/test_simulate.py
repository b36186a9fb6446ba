from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icl_theory as icl
from icl_theory import tasks
from tests.references import iterate_gap


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda x: 10.0**x)


@given(
    st.integers(2, 300), powers(-1, 1), powers(-1, 1), powers(-2, 2), powers(-4, -0.02)
)
def test_closed_form_counts_the_steps_of_exact_iteration(
    K: int, L: float, delta: float, eta: float, drop: float
) -> None:
    gamma = L**2 * delta**2 / 2
    epsilon = drop * gamma * (K - 1) / (2 * K)
    closed = icl.simulate(L, delta, eta, K=K, epsilon=epsilon)
    assert closed.method == "closed"
    assert closed.steps is not None
    if closed.steps < 20_000:
        exact = icl.simulate(L, delta, eta, K=K, epsilon=epsilon, method="exact")
        assert closed.steps == exact.steps
        np.testing.assert_allclose(closed.loss, exact.loss, rtol=1e-11)
        np.testing.assert_allclose(closed.attention, exact.attention, rtol=1e-11)


@pytest.mark.parametrize(
    ("L", "eta", "K", "epsilon"), [(0.3, 0.7, 20, 1e-5), (1.0, 3.0, 4, 1e-6)]
)
def test_closed_form_counts_a_million_steps_of_a_plain_loop(
    L: float, eta: float, K: int, epsilon: float
) -> None:
    gamma = L**2 / 2

    def reached(_: int, u: float) -> bool:
        s = (K - 1) * math.exp(-u) / (1 + (K - 1) * math.exp(-u))
        return 0.5 * gamma * K / (K - 1) * s * s <= epsilon

    steps, _ = iterate_gap(K, eta * gamma * K / (K - 1) ** 2, reached)
    assert steps > 100_000
    assert icl.simulate(L, 1.0, eta, K=K, epsilon=epsilon).steps == steps


def test_ten_to_the_fifteen_steps_are_answered() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, epsilon=1.2e-15)
    assert run.steps is not None
    assert run.steps == pytest.approx(19 / 16 / 1.2e-15, rel=1e-4)
    state = run.at(run.steps // 2)
    assert state.loss == pytest.approx(2 * 1.2e-15, rel=1e-4)


@pytest.mark.parametrize(
    ("task", "features"),
    [
        (tasks.Linear(2.0), icl.Features.simplex(6, 0.5)),
        (tasks.Linear(2.0), icl.Features.orthonormal(6, 0.5)),
        (tasks.RandomFourier(2.0), icl.Features.simplex(6, 0.5)),
        (tasks.Quadratic(2.0), icl.Features.orthonormal(6, 0.5)),
        (tasks.KernelTask(np.eye(6) + 3.0), icl.Features.random(6, 2, 0.5, seed=0)),
        (
            tasks.FiniteTask(np.vstack([np.eye(6), -np.eye(6)])),
            icl.Features.simplex(6, 0.5),
        ),
        (tasks.RandomCosine(2.0, direction=[1.0, -1.0]), icl.Features.simplex(2, 0.5)),
    ],
    ids=[
        "linear, simplex",
        "linear, basis",
        "fourier",
        "quadratic",
        "kernel",
        "finite",
        "cosine of two",
    ],
)
def test_every_exchangeable_family_is_the_same_run_in_rescaled_time(
    task: tasks.Task, features: icl.Features
) -> None:
    """Descent on the K x K scores of any such task at rate η is the standard run at rate ηγ, loss / γ."""
    K = features.K
    gamma = float(task.variogram(features)[0, 1])
    full = icl.descend(icl.PopulationRisk(features, task), 1.0 / gamma, steps=200)
    standard = icl.simulate(math.sqrt(2.0), 1.0, 1.0, K=K, epsilon=1e-12, max_steps=200)
    np.testing.assert_allclose(full.loss / gamma, standard.loss, rtol=1e-10)
    np.testing.assert_allclose(
        full.attention, np.tile(standard.attention[:, None], K), rtol=1e-10
    )
    named = icl.simulate(
        2.0,
        features.gap,
        1.0 / gamma,
        task=task,
        features=features,
        epsilon=1e-12 * gamma,
        max_steps=200,
    )
    assert named.method == "closed"
    np.testing.assert_allclose(named.loss / gamma, standard.loss, rtol=1e-10)


@pytest.mark.parametrize(
    "make",
    [icl.Features.simplex, lambda K, d: icl.Features.orthonormal(K, d / math.sqrt(2))],
)
def test_embedding_coordinates_of_equal_features_run_at_eta_delta_to_the_fourth_over_four(
    make: object,
) -> None:
    features = make(5, 1.7)  # type: ignore[operator]
    run = icl.simulate(2.0, 1.7, 0.3, K=5, coordinates="embedding", epsilon=1e-2)
    assert (
        run.steps == icl.simulate(2.0, 1.7, 0.3 * 1.7**4 / 4, K=5, epsilon=1e-2).steps
    )
    full = icl.in_coordinates(
        icl.PopulationRisk(features, tasks.Exchangeable(2.0)),
        "embedding",
        features.vectors,
    )
    assert icl.descend(full, 0.3, epsilon=1e-2).steps == run.steps


def test_factored_coordinates_start_near_zero_and_learn() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=4, coordinates="factored", epsilon=0.05)
    assert run.converged
    assert run.params.shape == (2, 4, 4)
    np.testing.assert_allclose(run.attention[0], 0.25, atol=1e-3)


def test_task_families_and_their_laws_give_the_same_run() -> None:
    features = icl.Features.random(4, 3, 1.0, seed=0)
    by_family = icl.simulate(
        2.0, 1.0, 4.0, task=tasks.Linear, features=features, epsilon=0.05
    )
    by_law = icl.simulate(
        2.0, 1.0, 4.0, task=tasks.Linear(2.0), features=features, epsilon=0.05
    )
    assert by_family.steps == by_law.steps
    assert by_family.info["K"] == 4


def test_finite_prompts_below_their_floor_stop_and_say_so() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, N=30, epsilon=1e-3)
    assert not run.converged
    assert run.steps is None
    assert "stagnated at the floor" in run.stop_reason
    assert run.loss[-1] == pytest.approx(run.floor, rel=2e-3)


def test_target_above_the_initial_loss_is_reached_at_once() -> None:
    for method in ("closed", "exact", "flow"):
        run = icl.simulate(2.0, 1.0, 4.0, epsilon=5.0, method=method)
        assert run.steps == 0
        assert run.t.tolist() == [0]
        assert run.phases == icl.engine.Phases(I=(0, 0), II=None, III=None)
        assert "step 0" in run.summary()


@given(
    powers(-12, 12),
    powers(-3, 3),
    powers(-12, 9),
    st.integers(2, 10**6),
    powers(-30, 5),
    st.sampled_from(["class", "embedding"]),
)
def test_extreme_input_has_a_finite_answer(
    L: float, delta: float, eta: float, K: int, epsilon: float, coordinates: str
) -> None:
    run = icl.simulate(L, delta, eta, K=K, epsilon=epsilon, coordinates=coordinates)
    assert run.steps is None or 0 <= run.steps <= 10**15
    for values in (run.loss, run.attention, run.states):
        assert np.isfinite(values).all()
    assert (np.diff(run.loss) <= 0).all()
    if run.converged:
        assert run.loss[-1] <= epsilon * (1 + 1e-13)


@given(
    powers(-12, 12),
    powers(-2, 2),
    powers(-12, 9),
    st.integers(2, 5),
    st.sampled_from([math.inf, 1, 2, 50]),
    st.sampled_from([0.0, 1e-3, 1e3]),
    st.sampled_from(["class", "embedding", "factored"]),
    st.sampled_from(
        [None, tasks.Linear, tasks.RandomCosine, tasks.Halfspace, tasks.Quadratic]
    ),
    st.booleans(),
)
def test_extreme_input_of_every_kind_has_a_finite_answer(
    L: float,
    delta: float,
    eta: float,
    K: int,
    N: float,
    noise: float,
    coordinates: str,
    task: object,
    unequal: bool,
) -> None:
    probs = np.arange(1.0, K + 1) / (K * (K + 1) / 2) if unequal else None
    run = icl.simulate(
        L,
        delta,
        eta,
        K=K,
        N=N,
        noise=noise,
        coordinates=coordinates,
        task=task,
        probs=probs,
        epsilon=1e-9,  # type: ignore[arg-type]
        method="exact",
        max_steps=25,
    )
    for values in (run.loss, run.states, *run.observed.values()):
        assert np.isfinite(values).all()
    assert run.stop_reason


@pytest.mark.parametrize("name", ["L", "delta", "eta", "epsilon"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "2", True, [1.0]])
def test_refuses_numbers_that_are_not_positive(name: str, value: object) -> None:
    arguments: dict[str, object] = {"L": 2.0, "delta": 1.0, "eta": 4.0, name: value}
    with pytest.raises(ValueError, match=f"{name} = .*must be a finite number > 0"):
        icl.simulate(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"K": 1}, "K = 1"),
        ({"K": 2.5}, "K = 2.5"),
        ({"N": 0}, "N = 0"),
        ({"N": 1.5}, "N = 1.5"),
        ({"N": math.nan}, "N = nan"),
        ({"noise": -1.0}, "noise = -1.0"),
        ({"noise": math.inf}, "noise = inf"),
        ({"max_steps": 0}, "max_steps = 0"),
        ({"max_steps": 2**63}, "max_steps = 9223372036854775808"),
        (
            {"method": "magic"},
            "method = 'magic': must be one of auto, closed, exact, fast, flow",
        ),
        (
            {"coordinates": "polar"},
            "coordinates = 'polar': must be one of class, embedding, factored",
        ),
        ({"imbalance": 1.0}, "imbalance = 1.0"),
        ({"imbalance": 0.0}, "imbalance = 0.0"),
        ({"K": 3, "probs": [0.5, 0.6, -0.1]}, "probs = .*positive"),
        ({"K": 3, "probs": [0.5, 0.4, 0.2]}, "probs = .*sum to 1"),
        ({"K": 3, "probs": [0.5, 0.5]}, "probs = .*3 positive"),
        (
            {"task": "linaer"},
            r"task = 'linaer': must be one of .*\(did you mean linear\?\)",
        ),
        (
            {"above": 1e-3, "epsilon": 1e-3},
            "above = 0.001: must be left out if epsilon = 0.001 is given",
        ),
        ({"task": lambda L: L}, "task = "),
        ({"task": tasks.Linear(3.0)}, r"L = 2.0 contradicts task \(L = "),
        ({"task": tasks.KernelTask(np.eye(3))}, "matrix = "),
        ({"features": np.ones(3)}, "features = "),
        ({"features": np.eye(3)}, r"delta = 1.0 contradicts features \(gap = 1.414"),
        (
            {"features": icl.Features.simplex(3, 2.0)},
            r"delta = 1.0 contradicts features \(gap = ",
        ),
        (
            {"features": icl.Features.simplex(3, 1.0), "K": 5},
            r"K = 5 contradicts features \(K = 3\)",
        ),
        (
            {"features": icl.Features.simplex(3, 1.0), "probs": [0.2, 0.3, 0.5]},
            "probs = .*left out",
        ),
        (
            {"method": "closed", "N": 50},
            "method = 'closed': must be 'auto', 'exact', 'fast' or 'flow' here",
        ),
        ({"method": "closed", "coordinates": "factored"}, "method = 'closed'"),
        ({"method": "closed", "K": 2, "probs": [0.4, 0.6]}, "method = 'closed'"),
        ({"method": "closed", "task": tasks.Halfspace}, "method = 'closed'"),
        ({"L": 1e200}, r"L = 1e\+200"),
        ({"L": 1e130, "eta": 1e100}, r"eta = 1e\+100"),
    ],
)
def test_refuses_wrong_arguments(arguments: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"L": 2.0, "delta": 1.0, "eta": 4.0, **arguments}
    with pytest.raises(ValueError, match=words):
        icl.simulate(**given)  # type: ignore[arg-type]


def test_the_number_of_features_follows_the_features() -> None:
    problem = icl.Regression(
        L=2.0, delta=1.0, eta=4.0, features=icl.Features.simplex(3, 1.0)
    )
    assert problem.changed(L=3.0).K == 3
    assert problem.changed(features=icl.Features.simplex(4, 1.0)).K == 4


@pytest.mark.parametrize(
    ("K", "L", "eta", "ratio"),
    [
        (
            10_421,
            2.0,
            1465217.35,
            0.99989325 / (20_840 / 10_421),
        ),  # a head of small steps before a giant one
        (20, 2.0, 4.0, 1 - 2**-52),
        (20, 2.0, 4.0, 1 - 1e-13),
    ],
)
def test_targets_just_below_the_start_take_the_steps_of_exact_iteration(
    K: int, L: float, eta: float, ratio: float
) -> None:
    epsilon = ratio * icl.ExchangeableRisk(K, L**2 / 2).loss(0.0)
    closed, exact = (
        icl.simulate(L, 1.0, eta, K=K, epsilon=epsilon, method=method)
        for method in ("closed", "exact")
    )
    assert exact.steps is not None
    assert closed.steps is not None
    assert closed.steps == exact.steps
    assert closed.loss[-1] <= epsilon


def test_no_run_converges_at_the_limit_of_int64() -> None:
    run = icl.simulate(1e-9, 1.0, 1e-12, epsilon=1e-30, max_steps=2**63 - 1)
    assert not run.converged
    assert run.loss[-1] > 1e-30


def test_regime_is_left_open_where_no_tail_is_known() -> None:
    assert (
        icl.simulate(2.0, 1.0, 4.0, K=4, coordinates="factored", epsilon=1e-2).regime
        is None
    )
    assert (
        icl.simulate(2.0, 1.0, 4.0, K=4, N=400, noise=1e-3, epsilon=0.05).regime is None
    )
    assert (
        icl.simulate(2.0, 1.0, 4.0, K=4, task=tasks.Halfspace, epsilon=1e-2).regime
        is None
    )


def test_runs_that_cannot_reach_their_target_end_by_themselves() -> None:
    features = icl.Features.random(
        6, 2, 1.0, seed=1
    )  # too few dimensions for the scores it takes
    run = icl.simulate(
        2.0, 1.0, 0.05, task=tasks.Linear, features=features, coordinates="embedding"
    )
    assert not run.converged
    assert "stagnated" in run.stop_reason


@pytest.mark.parametrize(
    "scalar", [np.float32, np.float64, np.int8, np.int64, np.uint8]
)
def test_numpy_scalars_mean_what_python_numbers_mean(scalar: type) -> None:
    wide = icl.Features.simplex(3, 1.0)
    for family in (
        tasks.Linear,
        tasks.Quadratic,
        tasks.Exchangeable,
        tasks.RandomCosine,
        tasks.Halfspace,
    ):
        np.testing.assert_array_equal(
            family(scalar(100)).kernel(wide), family(100.0).kernel(wide)
        )
    noisy = icl.ExchangeableRisk(scalar(20), scalar(2), N=scalar(10), noise=scalar(20))
    assert noisy.loss(0.0) == icl.ExchangeableRisk(20, 2.0, N=10, noise=20.0).loss(0.0)


@pytest.mark.parametrize("value", [np.True_, 2 + 0j, np.complex128(2)])
def test_refuses_what_only_looks_like_a_number(value: object) -> None:
    with pytest.raises(ValueError, match="L = "):
        icl.simulate(value, 1.0, 4.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("features", [[1.0, 2.0, 3.0], [[[1.0]]]])
def test_features_are_an_array_of_vectors(features: Any) -> None:
    allowed = r"must be a Features object, or an array \(K, d\)$"
    with pytest.raises(ValueError, match=rf"^features = .*: {allowed}"):
        icl.Regression(L=1.0, delta=1.0, eta=1.0, features=features)
