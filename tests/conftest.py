from __future__ import annotations

import importlib
import os
import pkgutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import icl_theory
from icl_theory.engine import progress

# The default is the same examples every time; HYPOTHESIS_PROFILE=thorough looks for new
# ones.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=20, print_blob=True
)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=600,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Modules are loaded when first used: were that while a test has replaced a name, they
# would keep it for good.
for module in pkgutil.walk_packages(icl_theory.__path__, "icl_theory."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

progress.DISPLAY.delay = (
    3600.0  # what a test prints does not depend on how long it takes
)

signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # Ctrl-C is ignored where tests are run in the background


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """pytest keeps exceptions, and these keep loops over `counted` that they have left."""
    yield
    progress.DISPLAY.computations.clear()


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time of a report."""
    report = "icl_theory.results.report"
    monkeypatch.setattr(f"{report}.plot_run", lambda run: None)
    monkeypatch.setattr(f"{report}.plot_sweep", lambda part, over: None)
    monkeypatch.setattr(f"{report}.picture", lambda axes: "data:image/svg+xml;base64,")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What works say when they are updated and when they are over, as far as they would be shown if they lasted."""
    lines: list[str] = []
    update, leave = progress.Progress.update, progress.Progress.__exit__

    def say(work: progress.Progress) -> None:
        if work in progress.DISPLAY.shown() and (
            line := work.line()
        ):  # nothing is drawn of an empty one
            lines.append(line)

    def updated(work: progress.Progress, *given: Any, **more: Any) -> None:
        update(work, *given, **more)
        say(work)

    def left(work: progress.Progress, *error: Any) -> None:
        say(work)
        leave(work, *error)

    monkeypatch.setattr(progress.Progress, "update", updated)
    monkeypatch.setattr(progress.Progress, "__exit__", left)
    return lines
