"""Figures of runs and answers (`runs`), of sweeps (`sweeps`) and of arrays (`panels`).

`style` has their colours, sizes and files.
"""

from icl_theory._names import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
