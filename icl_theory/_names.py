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
    # Not imported at the top of this file, because this import loads the package
    # `icl_theory.engine`, which itself imports `attach` from this file.
    from icl_theory.engine.interrupts import loads

    # The stub is next to `file`, the package's __init__.py. `get` loads the module that
    # defines a name.
    get, list_names, public = lazy_loader.attach_stub(package, file)

    # Python calls this function only for names that the package does not have yet.
    def get_or_suggest(name: str) -> Any:
        if name in public:
            return get(name)
        raise unknown(package, name, public)

    # `loads` puts Ctrl-C off until the module that defines the name is loaded.
    return loads(get_or_suggest), list_names, public


def unknown(module: str, name: str, public: Iterable[str]) -> AttributeError:
    """Return the error for a name that a module does not have.

    Its message suggests the most similar name of ``public``, if one is similar.
    """
    # Tools look for names like __wrapped__ in every module, and need no suggestion.
    suggestion = "" if name.startswith("__") else nearest(name, public)
    return AttributeError(f"module {module!r} has no attribute {name!r}{suggestion}")


def suggesting(module: str, public: Iterable[str]) -> GetAttribute:
    """Return a ``__getattr__`` for a module that defines all of its names itself.

    Python calls this ``__getattr__`` only for names that the module does not have. It
    raises an error with a suggestion.
    """

    def raise_unknown(name: str) -> Any:
        raise unknown(module, name, public)

    return raise_unknown


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the candidate that is most similar to a word.

    Return the empty text if no candidate is similar.
    """
    import difflib  # only an error needs it

    # The candidates by their lower-case spelling. Words are compared in lower case,
    # because a wrong capital is a likely mistake.
    spellings: dict[str, list[str]] = {}
    for candidate in candidates:
        spellings.setdefault(candidate.lower(), []).append(candidate)
    similar = difflib.get_close_matches(word.lower(), spellings, n=1)
    if not similar:
        return ""
    # Several candidates may differ in capitals alone, like a module and its class.
    # Choose the one with the most similar capitals. With the cutoff 0 no candidate is
    # too different, so there always is one.
    (lower_case,) = similar
    (best,) = difflib.get_close_matches(word, spellings[lower_case], n=1, cutoff=0.0)
    return f" (did you mean {best}?)"
