"""Checks of a risk, a family and an update rule, for the tests of whoever adds one."""

from icl_theory._names import suggesting as _suggesting
from icl_theory.testing.families import check_family
from icl_theory.testing.risks import check_risk
from icl_theory.testing.rules import check_rule

__all__ = ["check_family", "check_risk", "check_rule"]
__getattr__ = _suggesting(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
