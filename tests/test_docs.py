"""The documentation as text: what is in it without building it. `make docs` checks the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import icl_theory as icl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)]


def anchors(page: Path) -> set[str]:
    """Return the targets of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def source(target: Path) -> Path:
    """Return the file that a target of a link is made from: pages of the gallery are made from scripts."""
    if target.parent != DOCS / "gallery":
        return target
    return ROOT / "scripts" / "figures" / ("GALLERY_HEADER.rst" if target.stem == "index" else f"{target.stem}.py")


@pytest.mark.parametrize("name", icl.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.rst"))
    assert re.search(rf"^   {name}$|^\.\. py:module:: icl_theory\.{name}$", pages, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_have_targets(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = source((page.parent / path).resolve()) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
