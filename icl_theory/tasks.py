"""Task families of regression: a shorter name of `icl_theory.regression.tasks`."""

from typing import Any

from icl_theory.regression import tasks
from icl_theory.regression.tasks import *  # noqa: F403
from icl_theory.regression.tasks import __all__ as __all__


# Python calls this function for a name that this module does not have. The module
# `icl_theory.regression.tasks` then returns the object of this name, or raises an error
# that suggests a similar name.
def __getattr__(name: str) -> Any:
    return getattr(tasks, name)


def __dir__() -> list[str]:
    return sorted(__all__)
