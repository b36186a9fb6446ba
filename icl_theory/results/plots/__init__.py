"""Figures of runs and answers (`runs`), of sweeps (`sweeps`) and of arrays (`panels`).

The module `style` has the colours and sizes of all figures, and writes their files.
"""

from icl_theory._names import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
