"""Task families of regression: a shorter name of `icl_theory.regression.tasks`."""

from typing import Any

from icl_theory.regression import tasks
from icl_theory.regression.tasks import *  # noqa: F403
from icl_theory.regression.tasks import __all__ as __all__


def __getattr__(name: str) -> Any:
    return getattr(tasks, name)


def __dir__() -> list[str]:
    return sorted(__all__)
