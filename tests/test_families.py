"""Families: what is refused when one is declared, and what every family is given."""

from __future__ import annotations

import asyncio
import inspect
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import typer
from typer.core import TyperGroup

import icl_theory as icl
from icl_theory.cli import app
from icl_theory.cli.simulate import simulate_command
from icl_theory.cli.sweep import sweep_command
from icl_theory.engine import Phases
from icl_theory.families import (
    LOSS,
    Column,
    Family,
    Number,
    Whole,
    Word,
    parameter,
    registry,
)
from icl_theory.families.family import RESERVED
from icl_theory.families.registry import COMMANDS, find, sound


class Parabola(icl.Risk):
    initial = np.array([2.0])

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        return 0.5 * float(params @ params), params


@dataclass(frozen=True, eq=False)
class Bowl(Family):
    name, title = "bowl", "a parabola"
    width: float = parameter(1.0, kind=Number(), meaning="width")

    def risk(self) -> icl.Risk:
        return Parabola()


def test_sweep_of_a_family_that_is_not_installed_is_that_of_its_class() -> None:
    """The parabola halves at each step of 0.5: 2·0.5^t squared and halved is at most 1e-3 from t = 6 on."""
    found = icl.sweep(Bowl, eta=[0.5, 0.25], epsilon=1e-3, progress=False)
    assert found.attrs["family"] == "bowl"
    assert found.steps.values.tolist() == [
        6,
        14,
    ]  # 2·0.75^(2t) <= 1e-3 from t = 13.2 on


@dataclass(frozen=True, eq=False)
class Batch(Bowl):
    """Knows that the parabola of rate η has the loss 2·(1-η)^(2t), but not what becomes of a slow one."""

    @classmethod
    def batched(cls, points: Any, common: Any) -> Any:
        eta = points["eta"]
        steps = np.ceil(0.5 * np.log(points["epsilon"] / 2.0) / np.log1p(-eta)).astype(
            int
        )
        last = np.minimum(steps, common["max_steps"])
        return {
            "eta_used": eta,
            "steps": np.where(steps > last, -1, steps),
            "last": last,
            "method": "exact",
            "error": 0.0,
            "loss": np.where(eta < 0.2, np.nan, 2.0 * (1.0 - eta) ** (2 * last)),
            "floor": 0.0,
        }


def test_a_batch_gives_what_simulations_give_and_leaves_them_the_rest() -> None:
    for most, status in ((10**4, "reached"), (5, "not reached")):
        given: Any = {
            "eta": [0.5, 0.25, 0.1],
            "epsilon": 1e-3,
            "max_steps": most,
            "progress": False,
        }
        one, two = (icl.sweep(family, **given) for family in (Bowl, Batch))
        assert one.status.values.tolist() == [status] * 3
        for name, values in one.data_vars.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(
                    values.values, two[name].values, rtol=1e-14, err_msg=str(name)
                )
            else:
                assert values.values.tolist() == two[name].values.tolist(), name
    assert two.message.values[0] == "took all 5 steps without reaching epsilon = 0.001"


def test_the_stop_of_a_batch_is_put_into_the_words_of_a_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {
        "steps": -1,
        "last": 7,
        "loss": np.array([0.5]),
        "floor": 0.5,
        "stop": "FLOOR",
    }
    monkeypatch.setattr(Batch, "batched", classmethod(lambda *_: found))
    swept = icl.sweep(Batch, eta=[0.5], above=1e-3, progress=False)
    assert swept.message.values.tolist() == [
        "stagnated at the floor 0.5 > epsilon = 0.501 by step 7"
    ]


@pytest.mark.parametrize("method", ["auto", ["exact", "fast"]])
def test_method_is_no_axis(method: Any) -> None:
    if method == "auto":
        assert icl.sweep(
            Bowl, eta=[0.5], method=method, progress=False
        ).method.values.tolist() == ["exact"]
        return
    with pytest.raises(
        ValueError, match=r"method = \['exact', 'fast'\]: must be one of auto"
    ):
        icl.sweep(Bowl, eta=0.5, method=method, progress=False)


def test_class_that_is_not_made_a_dataclass_is_refused() -> None:
    class Forgotten(Bowl):
        depth: float = parameter(1.0, kind=Number(), meaning="depth")

    with pytest.raises(
        ValueError, match=r"^Forgotten = .*: must be decorated by @dataclass"
    ):
        sound(Forgotten)


@pytest.mark.parametrize("taken", ["store", "rate", "steps", "loss", "weight"])
def test_parameter_with_the_name_of_something_else_is_refused(taken: str) -> None:
    declared = parameter(1.0, kind=Number(), meaning="something")
    columns = (Column("weight", "f8", "", "weight"),)
    made = type(
        "Taken",
        (Bowl,),
        {"__annotations__": {taken: float}, taken: declared, "columns": columns},
    )
    with pytest.raises(
        ValueError, match=rf"Taken\.{taken} = '{taken}': must be called something else"
    ):
        sound(dataclass(frozen=True, eq=False)(made))


def test_commands_that_no_family_may_be_called_are_those_that_there_are() -> None:
    made = vars(typer.main.get_command(app))["commands"]
    assert [*made] == [*COMMANDS, *icl.list_families()]
    groups = {name for name, command in made.items() if isinstance(command, TyperGroup)}
    assert groups == set(icl.list_families())
    assert all(command.name == name for name, command in made.items())


@pytest.mark.parametrize("name", ["report", "two words", "", "Bowl", "--x", 3])
def test_name_that_cannot_be_a_command_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"Bowl\.name = "):
        sound(type("Bowl", (Bowl,), {"name": name}))


def test_reserved_names_are_the_options_of_sweeps_and_commands() -> None:
    regression = find("regression")
    own = {"given", "context", "family", "help", "json", "status", "message", "version"}
    for function in (
        icl.sweep,
        simulate_command(regression),
        sweep_command(regression),
    ):
        keywords = inspect.signature(function).parameters.values()
        own |= {each.name for each in keywords if each.kind is each.KEYWORD_ONLY}
    assert own - regression.parameters().keys() == set(RESERVED)


@pytest.mark.parametrize(
    "value", [True, "three", float("nan"), float("inf"), None, [1.0], 1j]
)
def test_number_of_either_sign_refuses_what_is_none(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"gamma = .*: must be a finite number(, or trained, best)?$"
    ):
        icl.Recall(alpha=0.2, gamma=value)


@pytest.mark.parametrize("value", [-1.5, np.float32(-1.5), np.int64(-2), 0, -0.0])
def test_number_of_either_sign_takes_every_real_number(value: Any) -> None:
    assert Number(signed=True).check("x", value) == float(value)
    with pytest.raises(ValueError, match="x = -9"):
        Number(signed=True, maximum=4.0).check("x", -9)
    assert Whole().check("n", 3.0) == 3


@pytest.mark.parametrize("goal", [("banana", 3.0), ("above", -1.0), ("epsilon", "x")])
def test_a_goal_that_is_no_target_is_refused(goal: Any) -> None:
    @dataclass(frozen=True, eq=False)
    class Lost(Family):
        name, title = "lost", "a family with a wrong goal"

        def risk(self) -> icl.Risk:
            return icl.ExchangeableRisk(3, 1.0)

    Lost.goal = goal
    with pytest.raises(
        ValueError, match=r"Lost\.goal = |above = -1\.0: must|epsilon = 'x': must"
    ):
        Lost(eta=0.1)


@pytest.mark.parametrize(
    ("family", "given"),
    [
        (
            icl.Regression,
            {"L": 1.0, "delta": 1.0, "eta": 1.0, "K": 10, "N": 5, "max_steps": 20},
        ),
        (icl.LinearAttention, {"d": 3, "N": 10, "eta": 0.1, "max_steps": 5}),
    ],
    ids=["one by one", "in whole arrays"],
)
def test_the_message_of_a_point_that_misses_its_target_names_the_loss(
    family: Any, given: dict[str, Any]
) -> None:
    """Above the floor: the loss that is aimed at, and not the excess."""
    given |= {"noise": 0.3, "above": 1e-9}
    swept = icl.sweep(family, **{**given, "eta": [given["eta"]]}, progress=False)
    run = family(**given).simulate()
    assert run.steps is None
    assert swept.message.values.ravel()[0] == run.stop_reason
    assert f"{run.floor + 1e-9:.6g}" in run.stop_reason


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_no_run_in_closed_form_counts_steps_to_a_target_below_its_floor(
    share: float,
) -> None:
    problem = icl.LinearAttention(d=3, N=10, noise=0.3, eta=0.1, above=1e-6)
    floor = problem.risk().floor()
    run = icl.LinearAttention(
        d=3, N=10, noise=0.3, eta=0.1, epsilon=share * floor
    ).simulate()
    assert run.method == "closed"
    assert run.steps is None
    assert not run.converged
    assert run.loss[-1] >= floor


class Raised(Parabola):
    """A parabola whose least loss is 1."""

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        return 1.0 + 0.5 * float(params @ params), params

    def floor(self) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class Valley(Bowl):
    """Falls in three phases, of which the third begins at a loss of 1e-9 alone; has a learning rate of its own."""

    name, loss_unit, phase_names = "valley", "J", ("fall", "rest", "end")
    eta: float | str = icl.families.parameters.learning_rate("auto")
    kind: str = parameter(
        "low", kind=Word(words=("low", "raised")), meaning="kind", axis=False
    )
    lost: float = parameter(
        1.0, kind=Number(words=("all",)), unit=LOSS, meaning="what is lost"
    )

    def risk(self) -> icl.Risk:
        return Parabola() if self.kind == "low" else Raised()

    def stable_rate(self) -> float:
        return 0.5

    def describe(self, run: icl.Trajectory) -> None:
        run.phases = Phases(fall=(0, 2), rest=(2, int(run.t[-1])), end=None)


@pytest.mark.parametrize("method", ["exact", "fast", "flow"])
def test_columns_and_facts_are_those_of_the_run(method: str) -> None:
    problem = Valley(eta=1e-3, epsilon=1e-3, method=method)
    run = problem.simulate()
    found = problem.measured(run)
    last = int(run.t[-1])
    assert (run.converged, run.method, found["method"], found["eta_used"]) == (
        True,
        method,
        method,
        1e-3,
    )
    assert (found["status"], found["message"], found["last"]) == ("reached", "", last)
    assert (found["T_fall"], found["T_rest"], found["T_end"]) == (2, last - 2, 0)
    np.testing.assert_equal(
        found["error"], {"exact": 0.0, "fast": run.error, "flow": math.nan}[method]
    )
    assert run.info == {
        "eta": 1e-3,
        "width": 1.0,
        "kind": "low",
        "lost": 1.0,
        "epsilon": 1e-3,
        "above": None,
    }
    other = problem.changed(rule="ngd", eta="auto", max_steps=3, epsilon=1e-9)
    short = other.simulate()
    assert (short.info["rule"], short.info["eta"]) == ("ngd", 0.5)
    assert short.error is None
    assert math.isnan(other.measured(short)["error"]) == (method != "exact")
    assert other.measured(short)["message"] == short.stop_reason != ""


def test_units_of_losses_are_those_of_the_family() -> None:
    assert {
        column.name: column.unit
        for column in Valley.every_column()
        if column.unit == "J"
    } == {
        "loss": "J",
        "floor": "J",
        "population_loss": "J",
        "test_gap": "J",
        "best_loss": "J",
    }
    labels = Valley.labels()
    assert {name for name, label in labels.items() if label.unit == "J"} == {
        "epsilon",
        "above",
        "lost",
    }
    assert labels["lost"] == ("lost", r"\mathrm{lost}", "J", "what is lost")
    assert labels["eta"][:2] == ("η", r"\eta")
    assert icl.SoftmaxHeads.labels()["heads"][:2] == ("H", "H")
    assert {
        name for name, declared in Valley.parameters().items() if not declared.axis
    } == {
        "method",
        "max_steps",
        "milestones",
        "kind",
    }


def test_a_run_gives_up_at_its_floor() -> None:
    run = Valley(kind="raised", epsilon=0.5, max_steps=1000).simulate()
    assert run.stop_reason.startswith("stagnated at the floor 1 > epsilon = 0.5")
    assert run.t[-1] < 10


def test_a_rate_that_a_family_cannot_choose_is_refused_when_the_problem_is_made() -> (
    None
):
    with pytest.raises(
        ValueError, match="eta = 'auto': must be a number: the family bowl has no rule"
    ):
        Bowl(eta="auto")
    with pytest.raises(
        ValueError,
        match=r"^depth: the family bowl has no such parameter.*; it has eta, ",
    ):
        Bowl(eta=0.5).changed(depth=2.0)


@pytest.mark.parametrize(
    ("wrong", "meant"), [("Width", "width"), ("EPSILON", "epsilon"), ("wdith", "width")]
)
def test_names_that_are_nearly_right_are_suggested(wrong: str, meant: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^{wrong}: the family bowl has no such parameter \(did you mean {meant}\?\)",
    ):
        Bowl.refuse_unknown([wrong])


class Fatal(BaseException):
    """An error that is no `Exception`."""


class Point:
    """An entry point whose module raises an error when it is imported."""

    name, value = "broken", "broken.module:Broken"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def load(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError("no loop"),
        pytest.skip.Exception("not here"),
        pytest.fail.Exception("not here"),
        GeneratorExit("at once"),
        SystemExit(3),
        Fatal("no more"),
        BaseExceptionGroup("both", [Fatal("one"), Fatal("two")]),
        ImportError("no such library"),
        RecursionError("too deep"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_family_whose_import_fails_in_any_way_is_left_out_with_a_line(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point(error)])
    known, [line] = registry._installed.__wrapped__()
    assert not known
    assert line.startswith(
        f"the family broken (broken.module:Broken) is left out: {type(error).__name__}: "
    )
    assert "\n" not in line


def _half_loaded() -> ImportError:
    error = ImportError("numpy._core.multiarray failed to import")
    error.__cause__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), _half_loaded()],
    ids=["plain", "of a compiled module"],
)
def test_ctrl_c_while_a_family_is_imported_stays_ctrl_c(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point(error)])
    with pytest.raises(KeyboardInterrupt):
        registry._installed.__wrapped__()
