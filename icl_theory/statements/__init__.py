"""Statements of papers, compared with runs: checks of one run, and the audit of all.

A paper is a `Paper` in the `Claims` of a family; a row of the audit is a `Claim`.
"""

from icl_theory._names import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
