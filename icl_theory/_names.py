"""Public names of packages: loaded when first used, and suggested if misspelt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import lazy_loader

GetAttribute = Callable[[str], Any]


def attach(
    package: str, file: str
) -> tuple[GetAttribute, Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package with a stub.

    The stub, ``__init__.pyi``, lists the names and the modules that define them.
    """
    # The package of this module may be the one whose names are attached.
    from icl_theory.engine.interrupts import loads

    get, names, public = lazy_loader.attach_stub(package, file)

    def get_or_suggest(name: str) -> Any:
        if name in public:
            return get(name)
        raise unknown(package, name, public)

    # Ctrl-C waits until a module is loaded.
    return loads(get_or_suggest), names, public


def unknown(module: str, name: str, public: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module does not have."""
    from icl_theory._validate import nearest  # which loads NumPy

    # Tools look for names like __wrapped__ in every module, and need no suggestion.
    suggestion = "" if name.startswith("__") else nearest(name, public)
    return AttributeError(f"module {module!r} has no attribute {name!r}{suggestion}")


def suggesting(module: str, public: Iterable[str]) -> GetAttribute:
    """Return a ``__getattr__`` for a module that has loaded all of its names."""

    def refuse(name: str) -> Any:
        raise unknown(module, name, public)

    return refuse
