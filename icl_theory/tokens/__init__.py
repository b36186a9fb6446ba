"""Softmax attention over random tokens: exact losses and gradients."""

from icl_theory._names import attach as _attach

# The stub __init__.pyi lists the names; each is loaded when it is first used.
__getattr__, __dir__, __all__ = _attach(__name__, __file__)
