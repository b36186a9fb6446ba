"""The engine: risks, update rules, descent, and the runs that it returns."""

from icl_theory._names import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
