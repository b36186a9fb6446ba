from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine.trajectory import saved_steps


@pytest.fixture
def run() -> icl.Trajectory:
    return icl.simulate(2.0, 1.0, 4.0)


@pytest.fixture
def queries() -> icl.Trajectory:
    return icl.simulate(2.0, 1.0, 4.0, K=4, probs=[0.4, 0.3, 0.2, 0.1], epsilon=1e-2)


def test_saved_run_comes_back_as_it_was(
    queries: icl.Trajectory, tmp_path: Path
) -> None:
    queries.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    for name in ("t", "loss", "states", "attention"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(queries, name))
    for name in (
        "steps",
        "converged",
        "stop_reason",
        "floor",
        "phases",
        "regime",
        "method",
        "eta",
        "epsilon",
    ):
        assert getattr(loaded, name) == getattr(queries, name)
    assert loaded.info["L"] == 2.0
    assert loaded.at(int(loaded.t[3])).loss == loaded.loss[3]


def test_file_needs_no_pickle(run: icl.Trajectory, tmp_path: Path) -> None:
    run.save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz", allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)


@pytest.mark.parametrize("t", [1399, 10**7])
def test_a_run_answers_for_any_step_also_beyond_its_last_and_after_loading(
    run: icl.Trajectory, tmp_path: Path, t: int
) -> None:
    run.save(tmp_path / "run.npz")
    exact = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-12).at(t).loss
    assert run.at(t).loss == exact
    assert icl.load(tmp_path / "run.npz").at(t).loss == exact


def test_a_run_that_goes_on_takes_the_steps_of_a_longer_one(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "K": 3,
        "N": 20,
        "task": "linear",
        "method": "exact",
        "epsilon": 1e-9,
    }
    short, long = (
        icl.simulate(2.0, 1.0, 1.0, **arguments, max_steps=steps) for steps in (50, 80)
    )
    short.save(tmp_path / "run.npz")
    for run in (short, icl.load(tmp_path / "run.npz")):
        np.testing.assert_array_equal(run.at(80).params, long.params)


def test_a_step_that_cannot_be_reached_is_refused() -> None:
    """One of the two numbers changes its sign at each step, and no step is skipped."""

    class Rough(icl.Risk):
        initial = np.ones(2)

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            gradient = np.array([1.0, 1e-3]) * params
            return 0.5 * float(params @ gradient), gradient

    run = icl.descend(Rough(), 1.999, steps=10, method="fast")
    run.solution.budget = 2000  # type: ignore[union-attr]
    with pytest.raises(
        ValueError,
        match=r"^t = 1000000: must be a step that can be reached from step 10: on the",
    ):
        run.at(10**6)


@pytest.mark.parametrize("method", ["exact", "fast"])
def test_a_step_beyond_the_range_of_float64_is_refused(method: str) -> None:
    class Parabola(icl.Risk):
        initial = np.array([1.0, -2.0])

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            return 0.5 * float(params @ params), params

    run = icl.descend(Parabola(), 3.0, steps=50, method=method)
    assert run.at(500).loss == pytest.approx(2.5 * 4.0**500)
    for t in (
        520,
        2000,
    ):  # the square is infinite there, and at step 2000 the numbers are, too
        with pytest.raises(
            ValueError,
            match=f"^t = {t}: must be a step at which loss and parameters are within",
        ):
            run.at(t)


def test_a_loaded_run_of_a_risk_without_a_family_has_its_saved_steps_only(
    tmp_path: Path,
) -> None:
    run = icl.descend(icl.ExchangeableRisk(20, 2.0), 4.0, epsilon=1e-3)
    run.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    assert loaded.at(int(loaded.t[-1])).loss == loaded.loss[-1]
    with pytest.raises(ValueError, match=r"t = 1399: must be a saved step"):
        loaded.at(1399)
    for after in (0, 700, int(run.t[-1])):
        for target in (0.5 * run.loss[0], 0.05 * run.loss[0], 0.0):
            below = [
                t
                for t, loss in zip(run.t.tolist(), run.loss, strict=True)
                if loss <= target and t >= after
            ]
            found = loaded.first(
                lambda state, target=target: state.loss <= target, after=after
            )
            assert found == next(iter(below), None)
    for one in (run, loaded):
        with pytest.raises(ValueError, match=r"^after = "):
            one.first(lambda state: True, after=int(run.t[-1]) + 1)


def test_outcomes_are_typed_and_a_run_is_a_line() -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    assert run.stop is icl.engine.Stop.REACHED
    assert (
        repr(run)
        == "<Trajectory: reached epsilon = 0.001 at step 1413; loss 0.95 -> 0.0009992, 79 saved steps>"
    )
    assert icl.simulate(2.0, 1.0, 4.0, max_steps=3).stop is icl.engine.Stop.STEPS
    assert icl.simulate(2.0, 1.0, 4.0, N=30, epsilon=1e-3).stop is icl.engine.Stop.FLOOR


def test_failed_save_leaves_the_old_file(
    run: icl.Trajectory,
    queries: icl.Trajectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "run.npz"
    run.save(path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        queries.save(path)
    assert icl.load(path).steps == run.steps
    assert os.listdir(tmp_path) == ["run.npz"]


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04broken"])
def test_load_refuses_other_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="a file written by") as refused:
        icl.load(path)
    assert "pickle" not in str(refused.value), "no advice to load it nevertheless"
    with pytest.raises(FileNotFoundError):
        icl.load(tmp_path / "missing")


def test_load_refuses_another_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="a file written by"):
        icl.load(tmp_path / "other.npz")


@pytest.mark.parametrize("t", [-1, 2**63, 0.5, "x", None])
def test_at_refuses_what_is_no_step(run: icl.Trajectory, t: object) -> None:
    with pytest.raises(ValueError, match=r"t = .*must be an integer"):
        run.at(t)  # type: ignore[arg-type]


def test_to_xarray_is_labelled(queries: icl.Trajectory) -> None:
    dataset = queries.to_xarray()
    assert dict(dataset.sizes) == {"t": len(queries.t), "query": 4}
    assert dataset.attrs["steps"] == queries.steps
    np.testing.assert_array_equal(dataset["attention"], queries.attention)


def test_to_dict_is_strict_json(run: icl.Trajectory) -> None:
    text = json.dumps(run.to_dict(), allow_nan=False)
    assert json.loads(text)["steps"] == run.steps


@pytest.mark.parametrize("L", [0.01, 2.0, 1e6])
def test_summary_fits_eighty_columns(L: float) -> None:
    run = icl.simulate(L, 1.0, 4.0, K=12345, epsilon=1.23456789e-9, imbalance=0.25)
    lines = run.summary().splitlines()
    assert max(map(len, lines)) <= 80
    assert run.stop_reason.split(" ")[0] in run.summary()


@pytest.mark.parametrize("size", [1, 400, 10**6])
@pytest.mark.parametrize("last", [1, 7, 10**6, 10**15, 2**63 - 1])
def test_saved_steps_start_at_zero_end_at_last_and_fit_in_memory(
    last: int, size: int
) -> None:
    steps = saved_steps(last, size)
    assert steps[0] == 0
    assert steps[-1] == last
    assert (np.diff(steps) > 0).all()
    assert len(steps) * size <= max(2**26, 5 * size * (len(str(last)) + 1))


def test_files_have_the_permissions_of_any_other_file(
    run: icl.Trajectory, tmp_path: Path
) -> None:
    run.save(tmp_path / "run.npz")
    (tmp_path / "other").write_text("")
    assert (tmp_path / "run.npz").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_arguments_are_kept_as_numbers(tmp_path: Path) -> None:
    run = icl.simulate(
        np.float32(2.0),
        1.0,
        4.0,
        K=np.int64(3),
        N=np.int64(50),
        noise=np.float32(0.5),
        probs=(0.2, 0.3, 0.5),
        max_steps=5,
    )
    assert json.loads(json.dumps(run.to_dict()))["info"]["N"] == 50
    run.save(tmp_path / "run.npz")
    assert icl.load(tmp_path / "run.npz").info["probs"] == [0.2, 0.3, 0.5]
    icl.simulate(2.0, 1.0, 4.0).save(tmp_path / "run.npz")
    assert icl.load(tmp_path / "run.npz").info["N"] == np.inf


def test_observations_of_different_lengths_can_be_exported() -> None:
    class Two(icl.Risk):
        initial = np.ones(2)

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            return 0.5 * float(params @ params), params

        def observe(self, params: np.ndarray, step: int = 0) -> dict[str, np.ndarray]:
            return {"x": params, "y": np.zeros(3)}

    dataset = icl.descend(Two(), 0.1, steps=4).to_xarray()
    assert dataset["x"].shape == (5, 2)
    assert dataset["y"].shape == (5, 3)
    run = icl.descend(icl.LinearAttention(d=2, N=9).risk(), 0.1, steps=1)
    run.observed = {
        "attention": np.zeros((2, 3)),
        "alike": np.zeros((2, 3)),
        "x": np.zeros((2, 5)),
        "y": run.loss,
    }
    dims = {name: values.dims for name, values in run.to_xarray().data_vars.items()}
    wanted = {
        "attention": ("t", "query"),
        "alike": ("t", "query"),
        "x": ("t", "x_0"),
        "y": ("t",),
        "loss": ("t",),
    }
    assert (
        dims == wanted
        # only what is as long as the attention of each query is one number for each of
        # them
    )


@pytest.mark.parametrize("error", [None, 0.0, 0.09, 0.2, 0.9, 30.0])
def test_a_count_that_may_be_off_is_said_to_be(
    run: icl.Trajectory, error: float | None
) -> None:
    run.error = error
    assert ("may be off" in run.facts()["method"]) == (
        error is not None and error > 0.1
    )


def test_curves_of_a_closed_run_are_computed_when_they_are_first_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, series = [], icl.ExchangeableRisk.series

    def counted(risk: icl.ExchangeableRisk, *given: Any) -> Any:
        made.append(risk)
        return series(risk, *given)

    monkeypatch.setattr(icl.ExchangeableRisk, "series", counted)
    run = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-6)
    assert run.regime == "sharp"
    assert run.steps == pytest.approx(19 / (4 * 4.0 * 1e-6), rel=0.01)
    assert not made
    assert run.loss[0] == pytest.approx(0.95, rel=1e-15)
    assert run.attention.shape == run.states.shape == run.loss.shape == run.t.shape
    assert len(made) == 1
    with pytest.raises(AttributeError, match="nothing"):
        _ = run.nothing


class Watched(icl.Risk):
    """A parabola with an observation of any name."""

    initial = np.ones(2)

    def __init__(self, name: str) -> None:
        self.name = name

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return 0.5 * float(params @ params), params

    def observe(self, params: np.ndarray, step: int = 0) -> dict[str, np.ndarray]:
        return {self.name: params[0]}


class Form:
    """Descent on it, in closed form."""

    def states(self, steps: np.ndarray) -> np.ndarray:
        return 0.5 ** steps[:, None] * np.ones(2)

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        return None, 0.0


class Closed(Watched):
    def closed_form(self, eta: float, rule: str) -> Form:
        return Form()


def test_no_observation_takes_the_place_of_an_entry_of_the_run(
    queries: icl.Trajectory, tmp_path: Path
) -> None:
    """Whatever a run writes under a name, in any of its forms, is refused as the name of an observation."""
    run = icl.descend(Watched("size"), 0.5, steps=2)
    run.save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as file:
        names = {name for name in file.files if not name.startswith("observed_")} - {
            "meta"
        }
    names |= {*run.to_dict(), *run.to_xarray().attrs, *run.to_xarray().coords} - {
        "size"
    }
    names |= {str(name) for name in queries.to_xarray().dims}  # "query" is one of them
    assert {"steps", "loss", "method", "t", "states", "info"} <= names
    for name in names:
        for risk in (Watched(name), Closed(name)):
            with pytest.raises(
                ValueError,
                match=f"observation = '{name}': must be another name",
            ):
                _ = icl.descend(risk, 0.5, steps=2, method="auto").loss


def test_a_run_whose_family_is_not_here_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = icl.Recall(counts=1).simulate()
    monkeypatch.setattr(icl.Recall, "name", "toy")
    run.save(tmp_path / "a.npz")
    monkeypatch.undo()
    again = icl.load(tmp_path / "a.npz")
    assert again.family is None
    assert again.notes["family"].startswith(
        "the problem cannot be made on this machine, so only saved steps are known: family = 'toy': must"
    )
    assert "cannot be made on this machine" in again.summary()
