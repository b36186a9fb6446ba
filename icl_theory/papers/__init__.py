"""Papers, one folder each: a model, statements, figures, a panel of the explorer.

`icl_theory.families.plug_ins` finds the folders; nothing else lists them.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from icl_theory._names import unknown as _unknown
from icl_theory.engine.interrupts import loads as _loads

__all__ = sorted(folder.name for folder in pkgutil.iter_modules(__path__))


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> ModuleType:
    """Import a folder when it is first used."""
    if name not in __all__:
        raise _unknown(__name__, name, __all__)
    return importlib.import_module(f"{__name__}.{name}")


# Ctrl-C during the import of a folder is put off until the import ends.
__getattr__ = _loads(__getattr__)
