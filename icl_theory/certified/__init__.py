"""Intervals that provably contain the numbers of a run, by ball arithmetic.

This package needs python-flint, which the extra ``certified`` installs.
"""

from icl_theory._names import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
