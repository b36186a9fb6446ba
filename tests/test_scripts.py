"""Scripts that are run from a checkout, in short."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import interrupts
import pytest
import stores
import xarray as xr
from lowest import PROJECT, lowest
from stores import lost_after_kills, silent_flips, silent_swaps

import icl_theory as icl
from icl_theory.sweeps import store

ROOT = Path(__file__).parents[1]
# The options that make every script short, by its name; a part of a script is a call of
# its own. OUT is a folder.
SHORT = {
    "indexes": ["--check"],
    "benchmark": ["--quick"],
    "cluster": ["--points 20000 --times 1"],
    "costs": ["--quick --plot OUT/cost.png"],
    "demo": ["--out OUT/demo"],
    "deviations": ["--model linear-attention --only factor --unperturbed 2 --float32"],
    "frames": [""],
    "fuzz": ["--calls 20 --commands 2"],
    "interrupts": ["--quick --presses 1"],
    "kernels": ["--only own python -c print(1)"],
    "larger": ["--points 1000 --parts CSV"],
    "lowest": [""],
    "measurements": [
        "block --quick",
        "gaussian --quick",
        "skipping --problems 1 --workers 1",
        "batches --problems 1 --workers 1",
    ],
    "mutants": ["--number 1 --seconds 5"],
    "notebooks": ["--out OUT/notebooks"],
    "own_run": ["--into OUT", "--time"],
    "proofs": [
        "counts --problems 1",
        "modes --problems 1",
        "states --problems 1",
        "boxes",
    ],
    "recorded": ["max-margin-tokens --quick --out OUT/runs.json"],
    "release_notes": ["v0.1.0"],
    "remake": ["images/model.png --into OUT"],
    "sampling_cost": ["--quick"],
    "stores": ["--flips 1 --kills 1"],
    "torch_rules": ["--steps 3"],
    "trainings/ahn": ["--into OUT --steps 200"],
    "trainings/edelman": ["--into OUT --steps 20"],
    "trainings/lu": ["--into OUT --steps 2 --dimension 10"],
    "trainings/marion": ["--into OUT --steps 1100"],
    "trainings/max_margin": ["--into OUT --steps 30"],
    "trainings/nguyen": ["--into OUT --steps 30"],
    "trainings/svm": ["--into OUT --steps 30"],
    "trainings/zhang": ["--into OUT --steps 50"],
    "words": [""],
}
RUN = 'if __name__ == "__main__":'
NEEDS = {
    "mutants": "cosmic_ray",
    "own_run": "torch",
    "sampling_cost": "torch",
    "torch_rules": "torch",
    "cluster": "distributed",
    "proofs": "flint",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def test_every_script_that_is_run_has_a_short_call() -> None:
    """A new script is run by the tests, too: otherwise nobody notices when a later change breaks it."""
    folder = ROOT / "scripts"
    scripts = {
        path.relative_to(folder).with_suffix("").as_posix()
        for path in [*folder.glob("*.py"), *folder.glob("trainings/*.py")]
        if RUN in path.read_text(encoding="utf-8")
    }
    assert scripts == set(SHORT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name, calls in SHORT.items() for options in calls],
    ids=[
        f"{name} {options}".strip()
        for name, calls in SHORT.items()
        for options in calls
    ],
)
def test_every_script_runs(name: str, options: str, tmp_path: Path) -> None:
    """Each script ends with status 0, as it is called on the command line."""
    needs = "torch" if name.startswith("trainings/") else NEEDS.get(name)
    if needs is not None and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{name} needs {needs}")
    if name == "frames" and not any(map(shutil.which, BROWSERS)):
        pytest.skip("frames needs a browser")
    shutil.copyfile(ROOT / "docs" / "figures.md", tmp_path / "figures.md")
    words = [word.replace("OUT", str(tmp_path)) for word in options.split()]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


def test_no_flipped_bit_of_a_store_of_a_sweep_goes_unnoticed(tmp_path: Path) -> None:
    icl.sweep(
        L=[0.1, 1.0, 10.0],
        delta=1.0,
        eta=0.1,
        K=[5, 20],
        store=tmp_path / "a",
        progress=False,
    )
    tried, silent = silent_flips(tmp_path / "a", 20)
    assert (tried, silent) == (40, [])


def test_no_files_that_changed_places_go_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "delta": 1.0,
        "eta": 4.0,
        "K": 3,
        "N": 20,
        "above": 0.1,
        "method": "exact",
        "progress": False,
    }
    icl.sweep(L=[1.0 + 0.1 * i for i in range(16)], **given, store=tmp_path / "a")
    tried, silent = silent_swaps(tmp_path / "a")
    assert (tried > 3, silent) == (True, [])
    monkeypatch.setattr(
        store, "digest", lambda *_: "0" * 16
    )  # names of which nothing but the sizes is compared
    icl.sweep(L=[1.0 + 0.1 * i for i in range(16)], **given, store=tmp_path / "b")
    assert silent_swaps(tmp_path / "b")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "returned", ["found", "found[['steps']] + (path[-5:] != 'whole')"]
)
def test_a_killed_sweep_that_returns_other_values_than_it_keeps_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: str
) -> None:
    quick = "given = dict(L=[1.0, 2.0], delta=1.0, eta=1.0); path = sys.argv[1]\n"
    sweep = re.sub("given = .*\n", quick, stores.SWEEP).replace(
        "dump(found,", f"dump({returned},"
    )
    monkeypatch.setattr(stores, "SWEEP", sweep)
    wrong = lost_after_kills(tmp_path, 1)[1]
    assert all("the call returned other values" in line for line in wrong)
    assert bool(wrong) == (returned != "found")


@pytest.mark.parametrize("seconds", [0.5, 100.0])
def test_sweeps_are_killed_also_where_the_first_was_slower_or_faster(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of the test, the first sweep takes 5 seconds."""
    clock, started = [0.0], []

    class Run:
        returncode = 0

        def __init__(self, command: list[str], **_: Any) -> None:
            started.append(command[3])
            Path(command[3]).mkdir(exist_ok=True)
            assert len(started) < 50

        def wait(self, limit: float | None) -> None:
            clock[0] += min(limit or seconds, seconds)
            if limit is not None and limit < seconds:
                raise subprocess.TimeoutExpired("", limit)

        def send_signal(self, number: int) -> None:
            self.returncode = -number

        def communicate(self) -> tuple[str, str]:
            return "", "an error"

    def slow(command: list[str], **_: Any) -> None:
        clock[0] += 5.0

    kept = xr.Dataset({"a": 1.0})
    monkeypatch.setattr(stores.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(stores.subprocess, "Popen", Run)
    monkeypatch.setattr(stores.subprocess, "run", slow)
    monkeypatch.setattr(stores.icl, "load_sweep", lambda _: kept)
    monkeypatch.setattr(stores, "returned", lambda _: kept)
    assert lost_after_kills(tmp_path, 3) == (3, [])


@pytest.mark.parametrize(
    ("status", "files", "said"),
    [
        (130, {}, None),
        (130, {"page.md": "whole"}, None),
        (0, {"page.md": "whole"}, None),
        (0, {"page.md": "part"}, "f, p: another page"),
        (0, {}, "f, p: status 0, files []"),
        (130, {"page.md.part": "whole"}, "f, p: status 130, files ['page.md.part']"),
        (1, {}, "f, p: status 1, files []"),
    ],
)
def test_an_interrupted_page_that_is_neither_whole_nor_missing_is_found(
    status: int,
    files: dict[str, str],
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages of a function that take too long are left out, and a function without a page is wrong."""
    first = {"p": (0, {"page.md": "whole"}), "long": (130, {})}
    pressed: set[str] = set()

    def press(make: interrupts.Page, path: Path, after: float) -> tuple[int, float]:
        ended, left = (status, files) if make() in pressed else first[make()]
        pressed.add(make())
        for name, content in left.items():
            path.with_name(name).write_text(content)
        return ended, 1.0

    monkeypatch.setattr(interrupts, "press", press)
    covered, wrong = interrupts.tried(
        {"f": {"p": lambda: "p", "long": lambda: "long"}}, 1, 2.0
    )
    assert covered == [f"f: 1 presses, {int(status == 130)} ended, in 1 of 2 pages: p"]
    assert wrong == ([said] if said else [])
    pressed.clear()
    assert interrupts.tried({"g": {"long": lambda: "long"}}, 1, 2.0) == (
        [],
        ["g: no page within 2 s"],
    )


def test_ctrl_c_is_pressed_in_all_functions_that_make_pages() -> None:
    assert all(
        interrupts.pages()[name]
        for name in ("reproduce", "audit", "check_bounds", "crosscheck")
    )


def test_constraints_hold_every_dependency_at_its_lower_bound() -> None:
    assert lowest(["a>=1.9", "a[x]>=1.10", "b>=3"]) == ["a==1.10", "b==3"]
    with pytest.raises(
        ValueError, match="dependency = 'a<2': must be a name and a lower bound"
    ):
        lowest(["a<2"])
    assert "numpy>=2.0" in PROJECT.read_text()
