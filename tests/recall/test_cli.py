from __future__ import annotations

import json
from pathlib import Path

import pytest

import icl_theory as icl
from tests.test_cli import run_main


def test_summary_says_what_simulate_found(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run_main(capsys, "recall", "simulate")
    assert (status, err) == (0, "")
    assert f"reached epsilon = 0.001 at step {icl.recall.simulate().steps}" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("attention", ["linear", "relu", "softmax"])
def test_json_is_the_run(capsys: pytest.CaptureFixture[str], attention: str) -> None:
    arguments = [
        "--attention",
        attention,
        "--alpha",
        "0.1",
        "--json",
        "--above",
        "0.05",
        "--counts",
        "2",
    ]
    status, out, _ = run_main(capsys, "recall", "simulate", *arguments)
    run = icl.recall.simulate(
        attention=attention, alpha=0.1, above=0.05, counts=icl.recall.Counts.fixed(2)
    )
    assert status == 0
    assert json.loads(out)["loss"] == run.loss.tolist()


def test_figure_and_run_are_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = ["--plot", str(tmp_path / "a.png"), "--save", str(tmp_path / "a.npz")]
    options = ["--alpha", "0.1", "--gamma", "best", "--probs", "0.4,0.3,0.2,0.1"]
    assert run_main(capsys, "recall", "simulate", *options, *files)[0] == 0
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert icl.load(tmp_path / "a.npz").converged


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--alpha", "1"], "alpha = 1.0: must be between 0 and 1"),
        (["--V", "5"], "V = 5: must be at least 13"),
        (["--H", "2"], "H = 2"),
        (["--counts", "0"], "counts = 0"),
        (["--counts", "17"], "H = 33: must be at least 35"),
        (["--attention", "dot"], "attention = 'dot'"),
        (["--gamma", "bset"], "gamma = 'bset': must be a number, or trained, best"),
        (["--gamma", "1"], "gamma = 1.0: must be left out"),
        (["--probs", "a,b"], "probs = 'a,b'"),
        (["--probs", "0.5,0.5"], "probs"),
        (["--M", "0"], "M = 0"),
        (["--eta", "-1"], "eta = -1.0"),
        (["--epsilon", "0"], "epsilon = 0.0"),
        (["--plot", "a.xyz"], "plot = 'a.xyz'"),
        (["--method", "closed", "--attention", "softmax"], "method = 'closed'"),
    ],
)
def test_wrong_input_is_one_line_and_status_two(
    capsys: pytest.CaptureFixture[str], extra: list[str], words: str
) -> None:
    status, out, err = run_main(capsys, "recall", "simulate", *extra)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err
