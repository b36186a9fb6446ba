from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from icl_theory.sweeps.evaluate import _plain_texts, evaluate, failed
from icl_theory.sweeps.grid import (
    LARGEST_CHUNK,
    LONGEST,
    REACHED,
    Axis,
    Column,
    Grid,
    Values,
    as_block,
    assembled,
    axis_values,
    bytes_of,
    described,
    is_large,
    once,
    whole_numbers,
)
from icl_theory.sweeps.workers import processes
from tests.models import SQUARE, Products, Signs, Squares, grid


def equal(a: Values, b: Values) -> bool:
    return set(a) == set(b) and all(
        np.array_equal(a[n], b[n], equal_nan=a[n].dtype.kind == "f") for n in a
    )


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 40))
def test_chunks_cover_every_point_once_and_in_order(
    shape: list[int], chunk: int
) -> None:
    axes = tuple(
        Axis(f"x{i}", np.arange(float(size)), "", "", True)
        for i, size in enumerate(shape)
    )
    made = Grid(axes, chunk)
    parts = [made.points(made.indices_of(i)) for i in range(made.chunks)]
    for i, expected in enumerate(
        np.meshgrid(*(axis.values for axis in axes), indexing="ij")
    ):
        found = np.concatenate([part[f"x{i}"] for part in parts])
        np.testing.assert_array_equal(found, expected.ravel())


def test_dataset_is_labelled_with_units_and_descriptions() -> None:
    made = grid(4)
    dataset = assembled(
        made, SQUARE, evaluate(made, Squares()).values, {"version": "1"}
    )
    assert dict(dataset.sizes) == {"x": 4, "y": 2}
    assert dataset["z"].item() == 2.0
    assert dataset["square"].attrs == {
        "units": "m²",
        "description": "x squared",
        "role": "detail",
    }
    assert dataset["square"].sel(x=3.0, y=0.5).item() == 9.0
    assert dataset.attrs == {"version": "1"}


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_results_do_not_depend_on_the_chunk_size(chunk: int) -> None:
    assert equal(
        evaluate(grid(20, chunk), Squares()).values,
        evaluate(grid(20, 3), Squares()).values,
    )


@pytest.mark.parametrize("chunk", [6, 10, 16])
def test_a_point_that_fails_is_recorded_and_the_rest_goes_on(chunk: int) -> None:
    """Also where halves of a chunk have it beside one that does not fail."""
    found = evaluate(grid(20, chunk), Squares(fails=7.0)).values
    wrong = found["status"] == "failed"
    x = grid(20).points(np.arange(40))["x"]
    np.testing.assert_array_equal(wrong, x == 7.0)
    assert set(found["message"][wrong]) == {"x = 7.0: must be another number"}
    assert np.isnan(found["square"][wrong]).all()
    assert (found["whole"][wrong] == -1).all()
    np.testing.assert_array_equal(
        found["square"][~wrong], evaluate(grid(20), Squares()).values["square"][~wrong]
    )


def test_interrupt_keeps_what_is_done() -> None:
    found = evaluate(grid(20, 4), Squares(interrupts=9.0))
    assert found.interrupted
    assert (found.values["status"] == REACHED).sum() == 16
    assert (found.values["status"] == "pending").sum() == 24


@pytest.mark.parametrize("at", range(1, 12))
def test_a_chunk_that_ctrl_c_finds_half_in_its_place_is_pending(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, calls = grid(20, 4), iter(range(1, 10**6))

    def pressed(values: Any, lengths: tuple[int, ...]) -> Any:
        if next(calls) == 4 * at:
            raise KeyboardInterrupt
        return as_block(values, lengths)

    whole = evaluate(made, Squares()).values
    monkeypatch.setattr("icl_theory.sweeps.grid.as_block", pressed)
    found = evaluate(made, Squares())
    done = found.values["status"] == REACHED
    assert found.interrupted
    assert done.sum() % 4 == 0
    assert equal(
        {name: x[done] for name, x in found.values.items()},
        {name: x[done] for name, x in whole.items()},
    )
    assert np.isnan(found.values["square"][~done]).all()
    assert (found.values["status"][~done] == "pending").all()


@pytest.mark.parametrize(("part", "large"), [(0.26, True), (0.24, False)])
def test_results_are_held_up_to_a_quarter_of_what_is_free(
    part: float, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "icl_theory.sweeps.grid.free", lambda: bytes_of(SQUARE, grid().size) / part
    )
    assert is_large(SQUARE, grid()) == large


def test_what_counts_is_that_of_the_swept_axes_and_of_every_column() -> None:
    held = [Axis(name, np.ones(1), "", "", False) for name in "abcdef"]
    line = Axis("x", np.arange(2.0**21), "", "", True)
    assert Grid.cut((*held, line), 1).chunk == Grid.cut((line,), 1).chunk
    plain = Column("x", "f8", "", "")
    assert bytes_of((plain,), 3) == 3 * (
        8 + 12 * 4 + 8
    )  # the status, and where the message is
    assert described(plain) == {"description": "", "role": "detail"}
    for kept in (
        np.array([2.0**63]),
        np.array([-(2.0**63)]),
        np.array([1.0, math.inf]),
    ):
        assert whole_numbers(kept) is kept
    assert whole_numbers(np.array([1.0, 2.0**62])).dtype == np.int64
    assert once(np.array([0.0, -0.0])).shape == (2,)  # other bits


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError(), "ValueError"),
        (ValueError("a\nb"), "a b"),
        (KeyError("a"), "KeyError: 'a'"),
        (ValueError("x" * 600), "x" * 500),
    ],
)
def test_an_error_is_said_in_a_line(error: Exception, words: str) -> None:
    assert failed((), 2, error)["message"].tolist() == [words] * 2


@pytest.mark.parametrize("letter", ["a", "λ"])
def test_messages_are_kept_to_a_length(letter: str) -> None:
    found = _plain_texts(np.array([letter * 2000, letter], dtype=object))
    assert found.tolist() == [letter * LONGEST, letter]


def test_progress_counts_points() -> None:
    seen: list[tuple[int, int]] = []
    evaluate(
        grid(5, 4), Squares(), progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(0, 10), (4, 10), (8, 10), (10, 10)]


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    """Two processes."""
    with processes(2) as pool:
        yield pool


def test_any_executor_gives_the_same_bits(workers: Executor) -> None:
    made = grid(4, 2)
    expected = evaluate(made, Products()).values
    with ThreadPoolExecutor(3) as threads:
        assert equal(evaluate(made, Products(), executor=threads).values, expected)
    assert equal(evaluate(made, Products(), executor=workers).values, expected)


def test_signs_of_zero_and_what_is_missing_come_back_from_workers(
    workers: Executor,
) -> None:
    made = grid(4, 4)
    expected = evaluate(made, Signs()).values
    found = evaluate(made, Signs(), executor=workers).values
    assert np.signbit(expected["square"]).any()
    assert {
        name: column.tobytes() for name, column in found.items() if name != "message"
    } == {
        name: column.tobytes() for name, column in expected.items() if name != "message"
    }


def test_the_number_of_blas_threads_is_as_before_afterwards() -> None:
    with threadpool_limits(limits=2):
        before = [library["num_threads"] for library in threadpool_info()]
        evaluate(grid(2), Products(10))
        assert [library["num_threads"] for library in threadpool_info()] == before


def test_a_worker_that_dies_is_an_error_in_one_line() -> None:
    with (
        processes(1) as pool,
        pytest.raises(ChildProcessError, match="the workers died: BrokenProcessPool"),
    ):
        evaluate(grid(5, 2), Squares(dies=1.0), executor=pool)


def test_an_executor_that_cannot_send_the_model_fails_its_points(
    workers: Executor,
) -> None:
    class Local(Squares):
        pass

    found = evaluate(grid(3, 2), Local(), executor=workers).values
    assert set(found["status"]) == {"failed"}
    assert "Local" in found["message"][0]


def floats(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values]


@pytest.mark.parametrize(
    ("given_values", "words"),
    [
        ([], "x = \\[\\]: must be a sequence of at least one value"),
        ([1.0, 2.0, 1.0], "without duplicates \\(1 occurs twice\\)"),
        (
            [0.1, 0.3, 0.30000000001, 0.30000000001],
            "without duplicates \\(0.30000000001 occurs twice\\)",
        ),
        ("1:2", "could not convert"),
        ([[1.0]], "one-dimensional"),
        ([[1.0], [2.0, 3.0]], "one-dimensional"),
        ([1.0, "two"], "could not convert"),
    ],
)
def test_sequences_that_are_none_are_refused(given_values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        axis_values("x", given_values, floats)


@pytest.mark.parametrize(
    "given_values",
    [
        [3.0, 1.0],
        (3.0, 1.0),
        np.array([3.0, 1.0]),
        range(3, 0, -2),
        {3: "a", 1: "b"}.keys(),
        iter([3.0, 1.0]),
    ],
)
def test_sequences_of_any_kind_keep_their_order(given_values: Any) -> None:
    values, swept = axis_values("x", given_values, floats)
    assert (values.tolist(), swept) == ([3.0, 1.0], True)
    assert axis_values("x", np.float64(3.0), floats)[1] is False
    assert axis_values("x", np.array(3.0), floats)[1] is False


@pytest.mark.parametrize(
    "shape", [(10**7,), (5, 10**6), (10**6, 9), (999, 1001, 7), (2,) * 23, (3, 10**10)]
)
@pytest.mark.parametrize("chunk", [1, 2**16])
def test_a_grid_is_cut_into_as_few_chunks_as_can_be_opened(
    shape: tuple[int, ...], chunk: int
) -> None:
    axes = tuple(
        Axis(f"a{i}", np.broadcast_to(0.0, n), "", "", True)
        for i, n in enumerate(shape)
    )
    made = Grid.cut(axes, chunk)
    assert made.chunks <= 2**17
    assert chunk <= made.chunk <= LARGEST_CHUNK
