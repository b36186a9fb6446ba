"""Links for what docstrings name in the package's own way: pages and sections, objects by their last name."""

from __future__ import annotations

import re
import sys
from functools import cached_property, reduce
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

import icl_theory

PLACE = re.compile(r'docs/([a-z-]+)\.md((?:, "[^"]+")*)')
PARTS = {  # of the mathematics, by their sections
    section: f"theory/{page.stem}"
    for page in Path(__file__).parents[1].glob("theory/*.md")
    for section in re.findall(
        r"^##+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
}
ALIAS = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")

REFERENCE = "".join(
    page.read_text(encoding="utf-8")
    for page in Path(__file__).parents[1].glob("api/*.rst")
)
METHODS = (FunctionType, property, cached_property, classmethod)


def link_places(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Turn ``docs/theory.md, "Setting"`` into links; a section that does not exist is a warning."""
    for number, line in enumerate(lines):
        lines[number] = PLACE.sub(_links, line)


def _links(place: re.Match[str]) -> str:
    page, sections = place[1], re.findall(r'"([^"]+)"', place[2])
    pages = {
        section: PARTS.get(section, page) if page == "theory" else page
        for section in sections
    }
    links = [
        f":doc:`/{page}`",
        *(f":ref:`{section} <{place}:{section}>`" for section, place in pages.items()),
    ]
    return ", ".join(links)


def name_inherited(
    app: Sphinx, what: str, name: str, obj: Any, options: object, lines: list[str]
) -> None:
    """List what a class has from other public classes at the end of its docstring."""
    known = set(vars(obj)) if what == "class" else set()
    for base in obj.__mro__[1:] if what == "class" else ():
        if base.__module__.startswith("icl_theory") and re.search(
            rf"\b{base.__name__}$", REFERENCE, re.M
        ):
            parts = {
                part
                for part, value in vars(base).items()
                if part[0] != "_" and isinstance(value, METHODS)
            }
            links = ", ".join(
                f"`~{base.__name__}.{part}`" for part in sorted(parts - known)
            )
            lines += ["", f"From `{base.__name__}`: {links}.", ""] if links else []
            known |= parts


def skip_fields(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: object
) -> bool | None:
    """Leave out fields of named tuples, which are in the signature and have no text of their own."""
    return True if str(obj.__doc__).startswith("Alias for field number") else None


def find_by_last_name(
    app: Sphinx,
    env: BuildEnvironment,
    node: addnodes.pending_xref,
    inner: nodes.Element,
) -> nodes.Element | None:
    """Resolve `PopulationRisk` wherever it stands, as long as one documented object ends like that."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removeprefix("icl.").removesuffix("()")
    objects = env.domains.python_domain.objects
    module = sys.modules.get(node.get("py:module"), icl_theory)
    for candidate in (target, *_inherited(target, module)):
        found = [
            name
            for name, entry in objects.items()
            if name.endswith(f".{candidate}") and not entry.aliased
        ]
        # a class or function goes before a module, and before a method of the same
        # name; a shorter name goes first
        found = [
            name for name in found if objects[name].objtype in ("class", "function")
        ] or found
        found = [name for name in found if name == f"icl_theory.{candidate}"] or found
        if len(found) == 1:
            entry = objects[found[0]]
            return make_refnode(
                app.builder,
                node["refdoc"],
                entry.docname,
                entry.node_id,
                inner,
                found[0],
            )
    return None


def _inherited(target: str, module: ModuleType) -> list[str]:
    """Names under which `PopulationRisk.loss` may be documented: those of the classes it is inherited from."""
    owner, _, attribute = target.rpartition(".")
    found = reduce(
        lambda thing, name: getattr(thing, name, None),
        filter(None, owner.split(".")),
        module,
    )
    return [
        f"{base.__name__}.{attribute}"
        for base in getattr(found, "__mro__", ())
        if attribute in vars(base)
    ]


def plain_aliases(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Write type aliases by their names within other types, too; leave out constructors that nobody calls."""
    if signature and "<factory>" in signature:
        return "", None
    return tuple(text and ALIAS.sub(r"\1", text) for text in (signature, returned))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect all of it."""
    app.connect("autodoc-process-docstring", link_places, priority=900)
    app.connect("autodoc-process-docstring", name_inherited, priority=901)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-signature", plain_aliases)
    app.connect("missing-reference", find_by_last_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
