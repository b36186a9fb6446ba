"""Exact simulator of how one-layer transformers learn to learn in context.

The names are listed in ``__init__.pyi``; each is loaded when it is first used.
"""

import lazy_loader

from icl_theory._version import __version__ as __version__
from icl_theory.engine import display as _display
from icl_theory.engine.interrupts import loads as _loads

# what computes knows nothing of how it is drawn
_display.Displayable._display = "icl_theory.results.representations"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = _loads(__getattr__)  # Ctrl-C waits until a module is loaded
