"""Families: their base class, parameters, plug-ins, saved runs, and a registry."""

from icl_theory._names import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
