"""Statements of papers: checks on a single run, and the audit of all statements.

A paper is a `Paper` in the `Claims` of a family. A row of the audit is a function that
measures a statement and returns a `Claim`.
"""

from icl_theory._names import attach as _attach

# The stub __init__.pyi lists the names; each is loaded when it is first used.
__getattr__, __dir__, __all__ = _attach(__name__, __file__)
