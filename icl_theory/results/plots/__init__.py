"""Figures of runs and answers (`runs`), of sweeps (`sweeps`) and of arrays (`panels`).

`style` has their colours, sizes and files.
"""

import lazy_loader

from icl_theory.engine.interrupts import loads as _loads

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = _loads(__getattr__)
