"""Task families: laws of the functions in prompts, in closed form and as samples."""

# A name that is imported ``as`` itself can be imported from this module, but is not in
# its public list.
from icl_theory._names import suggesting as _suggesting
from icl_theory.regression.tasks.functions import (
    Halfspace,
    Linear,
    Quadratic,
    RandomCosine,
    RandomFourier,
)
from icl_theory.regression.tasks.functions import quadratics as quadratics
from icl_theory.regression.tasks.law import (
    Exchangeable,
    FiniteTask,
    KernelTask,
    Task,
)
from icl_theory.regression.tasks.law import Function as Function
from icl_theory.regression.tasks.law import (
    exchangeable_gamma as exchangeable_gamma,
)
from icl_theory.regression.tasks.law import variogram_of as variogram_of

__all__ = [
    "Exchangeable",
    "FiniteTask",
    "Halfspace",
    "KernelTask",
    "Linear",
    "Quadratic",
    "RandomCosine",
    "RandomFourier",
    "Task",
]
__getattr__ = _suggesting(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
