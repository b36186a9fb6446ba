"""What is published: the source distribution, the wheel, and what a new user can do with it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import icl_theory as icl

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
NAME = f"icl_theory-{icl.__version__}"
INFO = f"{NAME}.dist-info"
LEFT = {"__pycache__", "_build", "generated", "gallery"}
CORE = {
    "numpy",
    "scipy",
    "matplotlib",
    "xarray",
    "typer",
    "rich",
    "threadpoolctl",
    "jinja2",
    "markdown-it-py",
    "lazy-loader",
}


class Built(NamedTuple):
    """The two files, and the wheel that is built straight from the checkout."""

    sdist: Path
    wheel: Path
    direct: Path


def run(*command: str | Path, folder: Path) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def files(folder: Path) -> set[str]:
    """Files of the checkout below one of its folders, without what running it leaves."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not LEFT & set(path.parts[len(ROOT.parts) :])
    }


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    before = set(ROOT.iterdir()), files(ROOT / "icl_theory")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--outdir",
        folder / "direct",
        ROOT,
        folder=folder,
    )
    assert (set(ROOT.iterdir()), files(ROOT / "icl_theory")) == before, (
        "building writes into the checkout"
    )
    [sdist], [wheel], [direct] = (
        folder.glob("*.tar.gz"),
        folder.glob("*.whl"),
        folder.glob("direct/*.whl"),
    )
    return Built(sdist, wheel, direct)


@pytest.fixture(scope="session")
def command(
    built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """Programs of a new environment that has the wheel and what it needs, run in an empty folder."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", environment, folder=environment)
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    options = ("--no-compile", "--disable-pip-version-check")
    run(
        programs / "python",
        "-m",
        "pip",
        "install",
        *options,
        built.wheel,
        folder=environment,
    )
    empty = tmp_path_factory.mktemp("empty")
    return lambda program, *arguments: run(programs / program, *arguments, folder=empty)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_the_package_its_figures_and_nothing_else(built: Built) -> None:
    about = {
        f"{INFO}/{name}"
        for name in (
            "METADATA",
            "WHEEL",
            "RECORD",
            "entry_points.txt",
            "licenses/LICENSE",
        )
    }
    assert names(built.wheel) == files(ROOT / "icl_theory") | about
    assert "icl_theory/py.typed" in names(built.wheel)


def test_the_wheel_of_the_source_distribution_is_that_of_the_checkout(
    built: Built,
) -> None:
    with zipfile.ZipFile(built.wheel) as one, zipfile.ZipFile(built.direct) as two:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: two.read(name) for name in two.namelist()
        }


def test_the_wheel_says_what_it_is_and_what_it_needs(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        about = archive.read(f"{INFO}/METADATA").decode("utf-8")
        programs = archive.read(f"{INFO}/entry_points.txt").decode("utf-8")
        licence = archive.read(f"{INFO}/licenses/LICENSE")
    assert f"\nVersion: {icl.__version__}\n" in about
    assert "\nLicense-Expression: MIT\n" in about
    assert (
        set(re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", about, re.MULTILINE))
        == CORE
    )
    assert programs.split() == [
        "[console_scripts]",
        "icl-theory",
        "=",
        "icl_theory.__main__:main",
    ]
    shown = about.split("\n\n", 1)[
        1
    ]  # a package index shows it, and has no files beside it
    assert shown.startswith("# icl-theory")
    assert not re.search(r"\]\((?!https?:)", shown)
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_the_source_distribution_has_what_is_needed_to_test_it(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        found = {
            member.name.removeprefix(f"{NAME}/")
            for member in archive.getmembers()
            if member.isfile()
        }
    folders = (
        ".github",
        "binder",
        "conda",
        "icl_theory",
        "tests",
        "scripts",
        "docs",
        "paper",
    )
    expected = set().union(*(files(ROOT / folder) for folder in folders))
    single = {
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "CODE_OF_CONDUCT.md",
        "SECURITY.md",
        "LICENSE",
        "Makefile",
        "hatch_build.py",
        "pyproject.toml",
    }
    assert found - {"PKG-INFO", ".gitignore"} == expected | single


def test_an_installed_wheel_has_its_command_and_only_the_core(
    command: Callable[..., str],
) -> None:
    assert command("icl-theory", "--version") == f"{icl.__version__}\n"
    installed = command(
        "python", "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"
    )
    have = {line.split("==")[0].lower() for line in installed.splitlines()}
    assert have >= CORE
    assert not have & {
        "zarr",
        "dask",
        "distributed",
        "pyarrow",
        "pytest",
        "hypothesis",
        "mypy",
    }


def test_an_installed_wheel_simulates_reports_and_knows_its_figures(
    command: Callable[..., str],
) -> None:
    base = ("simulate", "--L", "2", "--delta", "1", "--eta", "4", "--epsilon", "1e-9")
    assert "at step 1187646524" in command(
        "icl-theory", *base, "--save", "run.npz", "--plot", "run.png"
    )
    command("icl-theory", "report", "run.npz", "--out", "run.html")
    command(
        "icl-theory",
        "sweep",
        "--L",
        "0.03:30:log:25",
        "--delta",
        "1",
        "--eta",
        "4",
        "--csv",
        "a.csv",
    )
    assert "figure1" in command("icl-theory", "figures", "--list")
    assert "explorer.html" in command(
        "icl-theory", "explore", "--no-browser", "--out", "explorer.html"
    )


def test_an_installed_wheel_runs_the_tutorial(
    command: Callable[..., str], tmp_path: Path
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text(
        "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    )
    code = "import icl_theory, runpy, sys; print(icl_theory.__file__); runpy.run_path(sys.argv[1])"
    printed = command("python", "-c", code, script).splitlines()
    assert not Path(printed[0]).is_relative_to(ROOT / "icl_theory")
    assert "12423 True closed" in printed
    commands = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for line in "".join(commands).splitlines():
        command(*shlex.split(line))
    assert commands
