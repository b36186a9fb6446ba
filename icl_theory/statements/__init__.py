"""Statements of papers, compared with runs: checks of one run, and the audit of all.

A paper is a `Paper` in the `Claims` of a family; a row of the audit is a `Claim`.
"""

import lazy_loader

from icl_theory.engine.interrupts import loads as _loads

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = _loads(__getattr__)
