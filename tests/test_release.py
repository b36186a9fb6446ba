"""What stands around the package: notes of a release, continuous integration, references of the paper."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from release_notes import notes

ROOT = Path(__file__).parents[1]
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-02\n\n### Added\n\n- One.\n\n## [1.1.0]\n\n- Two.\n"
)


def test_notes_of_a_release_are_the_section_of_its_tag() -> None:
    assert notes("v1.2.0", CHANGELOG) == "### Added\n\n- One.\n"
    assert notes("v1.1.0", CHANGELOG) == "- Two.\n"


@pytest.mark.parametrize("tag", ["v1.3.0", "v1", "Unreleased"])
def test_a_tag_without_notes_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match=f"tag = '{tag}': must be a version with a section"):
        notes(tag, CHANGELOG)


def test_integration_runs_the_versions_of_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    workflows = {
        path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")
    }
    matrix = workflows["tests"]["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}


def test_references_of_the_paper_are_those_that_it_cites() -> None:
    paper = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")
    entries = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(set(re.findall(r"@(\w+\d{4}\w+)", paper))) == sorted(entries)
