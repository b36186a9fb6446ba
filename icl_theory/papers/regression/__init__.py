"""In-context nonlinear regression: theorems, tests of the statements, and figures."""

from icl_theory._names import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
