"""Checks of risks, families and update rules, to call in the tests of a new one."""

from icl_theory._names import suggesting as _suggesting
from icl_theory.testing.families import check_family
from icl_theory.testing.risks import check_risk
from icl_theory.testing.rules import check_rule

__all__ = ["check_family", "check_risk", "check_rule"]
# If a name does not exist, the error suggests a similar one.
__getattr__ = _suggesting(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
