"""Exact simulator of how one-layer transformers learn to learn in context.

The public names are listed in ``__init__.pyi``; each is loaded when it is first used.
"""

# `from icl_theory.engine import display` would first search the public names of
# `engine`, which do not include this module.
import icl_theory.engine.display as _display
from icl_theory._names import attach as _attach
from icl_theory._version import __version__ as __version__

# The module `icl_theory.results.representations` draws results. The engine, which
# computes the results, must not import that module, so the engine gets only its name.
_display.Displayable._display = "icl_theory.results.representations"

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
