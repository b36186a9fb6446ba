"""In-context nonlinear regression: its theorems, rows that test them, and figures."""

import lazy_loader

from icl_theory.engine.interrupts import loads as _loads

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = _loads(__getattr__)
