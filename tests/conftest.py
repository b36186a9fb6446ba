from __future__ import annotations

import importlib
import math
import os
import pkgutil
import signal

import pytest
from hypothesis import HealthCheck, settings

import icl_theory
from icl_theory.engine import progress

# The default is the same examples every time; HYPOTHESIS_PROFILE=thorough looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=20, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=600, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Modules are loaded when first used: were that while a test has replaced a name, they would keep it for good.
for module in pkgutil.walk_packages(icl_theory.__path__, "icl_theory."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C is ignored where tests are run in the background


@pytest.fixture(autouse=True)
def nothing_is_shown_because_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress appears after a moment, which is no part of what most tests compare."""
    monkeypatch.setattr(progress, "SCREEN", progress.Screen(math.inf))
