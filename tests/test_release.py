"""What stands around the package: notes of a release, continuous integration, references of the paper."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from release_notes import notes

import icl_theory as icl

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES
}
JOBS = {
    (name, job): said
    for name, workflow in WORKFLOWS.items()
    for job, said in workflow["jobs"].items()
}
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-02\n\n### Added\n\n- One.\n\n## [1.1.0]\n\n- Two.\n"


def test_notes_of_a_release_are_the_section_of_its_tag() -> None:
    assert notes("v1.2.0", CHANGELOG) == "### Added\n\n- One.\n"
    assert notes("v1.1.0", CHANGELOG) == "- Two.\n"


@pytest.mark.parametrize("tag", ["v1.3.0", "v1", "Unreleased"])
def test_a_tag_without_notes_is_refused(tag: str) -> None:
    with pytest.raises(
        ValueError, match=f"tag = '{tag}': must be a version with a section"
    ):
        notes(tag, CHANGELOG)


def test_integration_runs_the_versions_of_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    matrix = WORKFLOWS["tests"]["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert {name.partition("-")[0] for name in matrix["os"]} == {
        "ubuntu",
        "macos",
        "windows",
    }


def uses(job: dict[str, Any]) -> list[str]:
    return [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_a_commit_and_says_its_version(path: Path) -> None:
    lines = [
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\buses:", line)
    ]
    assert lines
    for line in lines:
        assert re.fullmatch(
            r"\s*- uses: [\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line
        ), line


def test_an_action_has_one_commit_in_all_workflows() -> None:
    pins: dict[str, set[str]] = {}
    for path in FILES:
        for name, pin in re.findall(
            r"uses: (\S+?)@(.*)", path.read_text(encoding="utf-8")
        ):
            pins.setdefault(name, set()).add(pin)
    assert all(len(each) == 1 for each in pins.values()), pins


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_grants_nothing_and_each_job_asks_for_what_it_needs(
    workflow: str,
) -> None:
    assert WORKFLOWS[workflow]["permissions"] == {}
    for job in WORKFLOWS[workflow]["jobs"].values():
        assert "permissions" in job


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_a_job_that_may_write_installs_builds_and_checks_out_nothing(
    workflow: str, job: str
) -> None:
    said = JOBS[workflow, job]
    granted = {name for name, right in said["permissions"].items() if right != "read"}
    if not granted:
        assert set(said["permissions"]) <= {"contents"}
        return
    assert workflow == "release"
    assert len(granted) == 1
    assert "actions/checkout" not in uses(said)
    assert "actions/setup-python" not in uses(said)
    commands = [step["run"] for step in said["steps"] if "run" in step]
    assert all(command.startswith("gh release create ") for command in commands)


def test_the_token_of_the_package_index_is_that_of_one_guarded_job() -> None:
    [(name, job)] = [
        (name, job)
        for (_, name), job in JOBS.items()
        if job["permissions"].get("id-token") == "write"
    ]
    assert name == "publish"
    assert job["permissions"] == {"id-token": "write"}
    assert job["environment"]
    assert job["needs"] == "build"
    assert job["if"] == "vars.PUBLISH == 'true'"
    assert uses(job) == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_a_checkout_leaves_no_credentials_behind(workflow: str, job: str) -> None:
    for step in JOBS[workflow, job]["steps"]:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_no_command_of_a_workflow_is_made_of_what_somebody_else_may_write() -> None:
    """GitHub fills in expressions before a shell reads the line."""
    commands = [
        step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step
    ]
    assert not [command for command in commands if "${{" in command]


def test_what_builds_a_release_has_a_version() -> None:
    commands = [
        step["run"] for step in JOBS["release", "build"]["steps"] if "run" in step
    ]
    installed = [command for command in commands if " install " in command]
    assert installed
    assert all(
        re.fullmatch(r"python -m pip install( [\w-]+==[\d.]+)+", command)
        for command in installed
    )


def test_references_of_the_paper_are_those_that_it_cites() -> None:
    paper = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")
    entries = re.findall(
        r"^@\w+\{(\w+),",
        (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert sorted(set(re.findall(r"@(\w+\d{4}\w+)", paper))) == sorted(entries)


def test_the_conda_recipe_has_the_version_and_the_requirements_of_the_package() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert recipe["context"]["version"] == icl.__version__
    run = [entry.replace(" ", "") for entry in recipe["requirements"]["run"]]
    # matplotlib-base is matplotlib without the libraries of windows
    run = [entry.replace("matplotlib-base", "matplotlib") for entry in run]
    python = f"python{project['requires-python']}"
    assert sorted(run) == sorted([python, *project["dependencies"]])
    scripts = [f"{name} = {place}" for name, place in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
