"""The package as a whole: what importing costs, what the README shows, what depends on what."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import icl_theory as icl
from icl_theory.cli import main

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "icl_theory"
ENGINE = {"risk", "descent", "trajectory", "fastforward"}
GENERAL = {"grid", "store", "progress", "workers"}


def test_import_leaves_the_heavy_libraries_alone() -> None:
    heavy = (
        "matplotlib", "xarray", "pandas", "typer", "dask", "distributed", "zarr", "scipy.integrate",
        "scipy.optimize",
    )  # fmt: skip
    code = f"import sys, icl_theory; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_engine_knows_no_model_and_models_not_each_other(path: Path) -> None:
    imported = {
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    if path.stem in ENGINE and path.parent == PACKAGE:
        assert not any(".regression" in name or ".recall" in name for name in imported)
    if path.stem in GENERAL:
        assert not any(".regression" in name or ".recall" in name or name.endswith("sweep") for name in imported)
    if path.parent.name != "cli":
        assert not any(".cli" in name for name in imported)
    part = path.relative_to(PACKAGE).parts[0]
    if part == "regression":
        assert not any(".recall" in name or name.endswith("plotting") for name in imported)
    if part == "recall":
        assert not any(".regression" in name or name.endswith("plotting") for name in imported)
    if path.parent.name != "cli":
        assert not re.search(r"^\s*print\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_public_names_have_docstrings() -> None:
    for name in icl.__all__:
        assert getattr(icl, name).__doc__, name


@pytest.mark.parametrize(
    "page", ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]
)
def test_code_on_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_commands_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = re.findall(r"^```toml\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    (tmp_path / "sweep.toml").write_text("".join(config), encoding="utf-8")
    commands = "".join(re.findall(r"^```sh\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)).splitlines()
    assert len(commands) >= 8
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "icl-theory"
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0, (command, capsys.readouterr().err)
        named = [tmp_path / word for word in arguments if Path(word).suffix in (".md", ".png", ".csv")]
        assert all(path.stat().st_size > 100 for path in named), command


def test_readme_states_the_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", readme, re.MULTILINE):
        assert f"\n{target}:" in makefile
