"""Numbers with proof, by ball arithmetic.

It needs python-flint, which the extra ``certified`` installs.
"""

from icl_theory._names import suggesting as _suggesting
from icl_theory.certified.certificate import (
    Certificate,
    Proved,
    certify,
    check_installed,
)

__all__ = ["Certificate", "Proved", "certify", "check_installed"]
__getattr__ = _suggesting(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
