"""Theorems about a run: bounds, orders of magnitude and tails.

The module ``checks`` evaluates all of them on one run. ``orderwise`` has the orders of
magnitude, ``concentration`` the probability of the event that the paper assumes of its
prompts, and ``enumeration`` the sums over all prompts that serve as a reference.
"""

from icl_theory._names import attach as _attach

# The stub __init__.pyi lists the names; each is loaded when it is first used.
__getattr__, __dir__, __all__ = _attach(__name__, __file__)
