"""Theorems about a run: bounds, orders of magnitude, tails, and sums to check them.

`checks` evaluates all of them on one run.
"""

from icl_theory._names import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
