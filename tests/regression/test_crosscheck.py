from __future__ import annotations

import importlib
from dataclasses import dataclass

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import tasks

# the package's attribute of this name is the function
MODULE = importlib.import_module("icl_theory.regression.sampled.crosscheck")
SMALL = {"precision": 0.05, "batch": 256, "steps": 10, "points": 2}


@pytest.mark.parametrize(
    "risk",
    [
        icl.PopulationRisk(icl.Features.simplex(5, 1.0), tasks.Linear(2.0), N=20),
        icl.PopulationRisk(
            icl.Features.simplex(4, 1.0, probs=[0.1, 0.2, 0.3, 0.4]),
            tasks.Halfspace(1.0),
            N=3,
        ),
        icl.PopulationRisk(
            icl.Features.orthonormal(4), tasks.RandomCosine(2.0), N=10, noise=0.5
        ),
        icl.PopulationRisk(
            icl.Features.random(6, 2, 0.5, seed=0), tasks.RandomFourier(1.0)
        ),
        icl.ExchangeableRisk(5, 2.0, N=8, noise=0.3),
    ],
    ids=repr,
)
def test_samples_agree_with_the_population(risk: icl.Risk) -> None:
    assert icl.crosscheck(risk, eta=2.0, **SMALL).passed  # type: ignore[arg-type]


def test_a_run_is_checked_at_its_own_learning_rate() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=5, N=20, epsilon=0.2)
    checked = icl.crosscheck(run, **SMALL)  # type: ignore[arg-type]
    assert checked.passed
    np.testing.assert_allclose(checked.population[:5], run.loss[1:6], rtol=1e-10)
    assert "N = 20 tokens" in checked.note
    # its rows are the largest of all steps, and the last one; the band is what they
    # allow
    worst, last = (
        check for check in checked.checks if check.name.startswith("SGD loss")
    )
    far = np.abs(checked.sgd - checked.population) / checked.band
    assert last.name.endswith(f"step {checked.t[-1]}")
    for check, at in ((worst, int(np.argmax(far))), (last, -1)):
        assert (check.population, check.sampled) == (
            checked.population[at],
            checked.sgd[at],
        )
        assert check.limit * check.standard_error == pytest.approx(
            checked.band[at], rel=1e-12
        )
        assert abs(check.z) == pytest.approx(check.limit * far[at], rel=1e-9)


def test_factored_runs_are_looked_through() -> None:
    run = icl.simulate(
        2.0, 1.0, 4.0, K=3, N=5, epsilon=0.5, coordinates="factored", max_steps=10
    )
    assert icl.crosscheck(run, **SMALL).passed  # type: ignore[arg-type]


@dataclass(frozen=True)
class Skewed(tasks.Task):
    """Samples five per cent larger than its kernel says."""

    def kernel(self, features: icl.Features) -> np.ndarray:
        return np.eye(features.K)

    def sample(
        self, features: icl.Features, rng: np.random.Generator, size: int
    ) -> np.ndarray:
        return 1.05 * rng.normal(size=(size, features.K))


def test_a_wrong_population_is_found_out() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(4, 1.0), Skewed(), N=10)
    checked = icl.crosscheck(risk, batch=64, steps=10)
    assert not checked.passed
    assert "FAIL" in checked.to_markdown()


@dataclass
class Given(icl.Risk):
    """Batches that are off a gradient of ones, by so many of their own deviations."""

    off: float

    @property
    def initial(self) -> np.ndarray:
        return np.zeros((2, 2))

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return 1.0, 1.0 + (-1.0) ** step + self.off * np.ones((2, 2))


@pytest.mark.parametrize("offs", [(-9.0, 1.0), (9.0, -1.0), (0.5, -5.0), (-5.0, -1.0)])
def test_the_entry_that_is_shown_is_the_farthest_on_either_side(
    offs: tuple[float, float],
) -> None:
    scores = np.zeros((2, 2))
    values = MODULE._PopulationValues(scores, 1.0, np.ones((2, 2)), 2.0, 0.0)
    sampler = MODULE._Sampler(
        name="",
        risks=[Given(off) for off in offs],
        batches=10,
        batch=1,
        query_probs=np.ones(2),
    )
    found = MODULE._point_checks(
        [values] * 2, sampler, np.ones(4, dtype=bool), lambda: None
    )
    farthest = max(offs, key=abs)
    assert found[-1].name == "worst of 8 entries"
    assert found[-1].sampled - found[-1].population == pytest.approx(farthest)


def test_the_same_seed_gives_the_same_table() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), tasks.Linear(2.0), N=5)
    tables = [
        icl.crosscheck(risk, precision=0.1, batch=32, steps=5, seed=9).to_markdown()
        for _ in range(2)
    ]
    assert tables[0] == tables[1]


def test_false_alarms_are_rare() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), tasks.Linear(2.0), N=5)
    passed = [
        icl.crosscheck(
            risk,
            precision=0.3,
            batch=64,
            batches=8,
            points=2,
            steps=3,
            runs=4,
            seed=seed,
        ).passed
        for seed in range(20)
    ]
    assert sum(passed) >= 19


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"N": 7}, r"N = 7 contradicts the risk"),
        ({"precision": 0.0}, "precision = 0.0"),
        ({"batch": 0}, "batch = 0"),
        ({"batches": 2}, "batches = 2"),
        ({"runs": 1}, "runs = 1"),
        ({"points": 0}, "points = 0"),
        ({"steps": 0}, "steps = 0"),
        ({"eta": -1.0}, "eta = -1.0"),
        ({"seed": 0.5}, "seed = 0.5"),
    ],
)
def test_refuses_wrong_arguments(arguments: dict[str, object], words: str) -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), tasks.Linear(2.0), N=5)
    with pytest.raises(ValueError, match=words):
        icl.crosscheck(risk, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("K", "words"),
    [
        (1000, r"N = 7 contradicts the risk"),
        (1001, r"K=1001, .*: must be of at most 1000 features"),
    ],
)
def test_at_most_1000_features_are_sampled(K: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        icl.crosscheck(icl.ExchangeableRisk(K, 2.0, N=5), N=7)


def test_refuses_what_cannot_be_sampled(tmp_path: object) -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    with pytest.raises(ValueError, match="infinite prompts"):
        icl.crosscheck(run, N=float("inf"))  # type: ignore[arg-type]
    path = f"{tmp_path}/run.npz"
    icl.descend(icl.ExchangeableRisk(20, 2.0), 4.0, epsilon=1e-3).save(path)
    with pytest.raises(ValueError, match="not loaded from a file"):
        icl.crosscheck(icl.load(path))


@pytest.mark.parametrize(
    ("task", "N"),
    [
        (tasks.Linear(1.4), 1),
        (tasks.FiniteTask([[1.0] * 4]), 6),
        (tasks.FiniteTask([[3e5] * 4]), 1),
    ],
)
@pytest.mark.parametrize("probs", [None, [0.4, 0.3, 0.2, 0.1]])
def test_what_is_zero_but_for_rounding_raises_no_alarm(
    task: tasks.Task, N: int, probs: list[float] | None
) -> None:
    """Gradients are zero for prompts of one token, and losses of constant functions are, too."""
    features = icl.Features([[0.3, -1.0], [2.0, 0.5], [-0.7, 0.4], [1.1, 1.9]], probs)
    checked = icl.crosscheck(
        icl.PopulationRisk(features, task, N),
        batch=32,
        batches=16,
        points=2,
        steps=4,
        runs=3,
    )
    assert checked.passed, checked.to_markdown()


@pytest.mark.parametrize("rare", [1e-3, 1e-9])
def test_rare_features_raise_no_false_alarm(rare: float) -> None:
    features = icl.Features.simplex(4, 1.0, probs=[rare, 0.3, 0.3, 0.4 - rare])
    risk = icl.PopulationRisk(features, tasks.Linear(2.0), N=20)
    assert icl.crosscheck(risk, **SMALL).passed  # type: ignore[arg-type]


def test_tiny_batches_without_any_loss_are_no_obstacle() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(4, 1.0), tasks.Halfspace(1.0), N=2)
    assert icl.crosscheck(risk, precision=0.1, batch=4, steps=20).checks


class Loud(tasks.Linear):
    """A linear task whose samples are three times too large."""

    def sample(
        self, features: icl.Features, rng: np.random.Generator, size: int
    ) -> np.ndarray:
        return 3.0 * super().sample(features, rng, size)


def test_a_reduced_run_is_checked_on_its_own_task() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=5, N=20, epsilon=0.4, task=Loud)
    assert isinstance(run.risk, icl.ExchangeableRisk)
    assert not icl.crosscheck(run, **SMALL).passed  # type: ignore[arg-type]


@pytest.mark.parametrize("coordinates", ["embedding", "factored"])
def test_a_run_is_checked_in_its_own_coordinates(coordinates: str) -> None:
    run = icl.simulate(
        2.0, 1.6, 0.5, K=4, N=20, coordinates=coordinates, epsilon=0.5, max_steps=40
    )
    checked = icl.crosscheck(run, **SMALL)  # type: ignore[arg-type]
    assert checked.passed
    np.testing.assert_allclose(checked.population[:4], run.loss[1:5], rtol=1e-9)


@pytest.mark.parametrize(
    ("loss", "gradient"), [(1.01, 1.0), (1.0, 1.01)], ids=["loss", "gradient"]
)
def test_one_per_cent_is_found_by_default(
    monkeypatch: pytest.MonkeyPatch, loss: float, gradient: float
) -> None:
    right = icl.PopulationRisk.evaluate

    def wrong(
        self: icl.PopulationRisk, params: np.ndarray, step: int = 0
    ) -> tuple[float, np.ndarray]:
        value, slope = right(self, params, step)
        return loss * value, gradient * slope

    monkeypatch.setattr(icl.PopulationRisk, "evaluate", wrong)
    risk = icl.PopulationRisk(
        icl.Features.simplex(4, 1.0, [0.1, 0.2, 0.3, 0.4]),
        tasks.RandomCosine(2.0),
        12,
        0.3,
    )
    checked = icl.crosscheck(risk, steps=5, runs=3)
    assert max(checked.power) < 0.01
    assert not checked.passed


def test_one_wrong_entry_is_found_where_loss_and_norm_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = icl.PopulationRisk.evaluate

    def wrong(
        self: icl.PopulationRisk, params: np.ndarray, step: int = 0
    ) -> tuple[float, np.ndarray]:
        value, slope = right(self, params, step)
        slope.flat[np.argmin(np.abs(slope))] += 0.1 * np.linalg.norm(slope)
        return value, slope

    monkeypatch.setattr(icl.PopulationRisk, "evaluate", wrong)
    risk = icl.PopulationRisk(icl.Features.simplex(4, 1.0), tasks.Linear(2.0), N=10)
    loss, norm, entry = icl.crosscheck(risk, **SMALL).checks[:3]  # type: ignore[arg-type]
    assert entry.name.startswith("worst of")
    assert (loss.passed, norm.passed, entry.passed) == (True, True, False)


def test_errors_of_the_stated_size_are_found_nine_times_in_ten() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), tasks.Linear(2.0), N=6)
    found = []
    for seed in range(80):
        checked = icl.crosscheck(
            risk,
            precision=0.3,
            batch=8,
            batches=3,
            points=1,
            steps=1,
            runs=3,
            seed=seed,
        )
        for check, error in zip(checked.checks[:2], checked.power, strict=True):
            for sign in (1.0, -1.0):
                z = (
                    check.sampled - check.population * (1.0 + sign * error)
                ) / check.standard_error
                found.append(abs(z) > check.limit)
    assert 0.82 < np.mean(found) < 0.96  # 320 trials, those of one seed not independent


def test_power_and_what_was_left_out_are_printed() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), tasks.Linear(2.0), N=5)
    checked = icl.crosscheck(risk, precision=0.1, batch=4, batches=3, steps=5, runs=3)
    assert not any(" 0 entries" in check.name for check in checked.checks)
    assert (
        "trainer: no entry of the gradient has a sample in 1000 prompts"
        in checked.to_markdown()
    )
    assert str(checked.power) in checked.to_markdown()
    assert "nine times in ten" in checked._repr_html_()


def test_work_is_bounded_where_the_precision_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MODULE, "MOST_WORK", 1e8)
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), tasks.Linear(2.0), N=5)
    checked = icl.crosscheck(risk, precision=1e-6, steps=5)
    assert checked.passed
    assert min(checked.power) > 1e-4


def test_far_scores_of_large_features_are_compared_too() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 40.0), tasks.Linear(2.0), N=5)
    run = icl.descend(
        icl.in_coordinates(risk, "embedding", risk.features.vectors), 1e-10, steps=5
    )
    assert icl.crosscheck(run, **SMALL).passed  # type: ignore[arg-type]
