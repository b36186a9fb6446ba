"""What a new model must satisfy: checks of a risk and of a family, for the tests of whoever adds one."""

from icl_theory.testing.families import check_family
from icl_theory.testing.risks import check_risk

__all__ = ["check_family", "check_risk"]


def __dir__() -> list[str]:
    return sorted(__all__)
