"""What the page for contributors shows works as it stands, and what it warns of is named."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import figures, papers
from icl_theory.cli.figures import script
from icl_theory.families import plug_ins
from icl_theory.testing import check_rule
from icl_theory.testing.rules import QuarticBowl

PAGE = Path(__file__).parents[1] / "docs" / "contributing.md"
SWEEP = """
import sys
import icl_theory.papers

icl_theory.papers.__path__.append(sys.argv[1])
import icl_theory as icl

swept = icl.sweep(L=2.0, delta=1.0, eta=4.0, epsilon=0.1, progress=False)
print(int(swept.half_time))
"""


def files() -> dict[str, str]:
    """Return the files that the page's blocks of ``diff`` add, by their paths."""
    added: dict[str, str] = {}
    for block in re.findall(
        r"^```diff\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S
    ):
        path = ""
        for line in block.splitlines():
            if line.startswith("+++ "):
                path = line.removeprefix("+++ ")
                added[path] = ""
            else:
                added[path] += line.removeprefix("+") + "\n"
    return added


def test_the_rule_of_the_page_is_one_file_and_keeps_its_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = files()["icl_theory/engine/rules/softsign.py"]
    (tmp_path / "softsign.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    (rule,) = importlib.import_module("softsign").NAMED
    check_rule(rule)
    gradient = np.array([3.0, -1.0])
    change, _ = rule.step(QuarticBowl(), gradient, gradient, 0.5, np.zeros(0), 0)
    assert change.tolist() == [-0.375, 0.25]
    runs = [
        icl.simulate(
            2.0, 1.0, 4.0, K=6, epsilon=1e-2, rule=rule, coordinates=coordinates
        )
        for coordinates in ("class", "embedding")
    ]
    assert [run.params.size > 1 for run in runs] == [True, True]


def test_the_column_of_the_page_is_in_sweeps(tmp_path: Path) -> None:
    for path, text in files().items():
        if "half_time" in path:
            file = tmp_path / Path(path).relative_to("icl_theory/papers")
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", SWEEP, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    run = icl.simulate(2.0, 1.0, 4.0, epsilon=0.1)
    half = run.first(lambda state: state.loss <= run.loss[0] / 2)
    assert (int(done.stdout), done.stderr) == (half, "")


def test_a_folder_that_is_no_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bowl").mkdir()
    (tmp_path / "bowl" / "plug_in.toml").write_text("", encoding="utf-8")
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    _, lines = plug_ins.discover.__wrapped__()
    assert lines == (
        "the plug-in bowl (icl_theory.papers.bowl) is left out: "
        "ModuleNotFoundError: its folder has no __init__.py",
    )


def test_a_figure_that_runs_when_it_is_loaded_is_told_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"bowl\.py': must be called below if __name"):
        script("figures/bowl.py")


def test_a_second_figure_of_one_name_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "bowl.py").write_text(f'"""{folder}"""', encoding="utf-8")
    found = [plug_ins.PlugIn(figures=tmp_path / folder) for folder in ("one", "two")]
    monkeypatch.setattr(figures, "discover", lambda: (tuple(found), ()))
    recipes, lines = figures.recipes()
    assert recipes["bowl"] == tmp_path / "one" / "bowl.py"
    assert len(lines) == 1
    assert "name = 'bowl': must be another name" in lines[0]
