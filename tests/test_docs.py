"""The documentation as text: what is in it without building it. `make docs` checks the rest."""

from __future__ import annotations

import html
import importlib
import re
import runpy
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import icl_theory as icl

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
]


def anchors(page: Path) -> set[str]:
    """Return the targets of a page's headings, as GitHub and the site make them."""
    text = re.sub(
        r"^```.*?^```",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


def source(target: Path) -> Path:
    """Return the file that a target of a link is made from: pages of the gallery are made from scripts."""
    if target.parent != DOCS / "gallery":
        return target
    if target.stem == "index":
        return DOCS / "gallery_header.rst"
    (script,) = ROOT.glob(f"icl_theory/papers/*/figures/{target.stem}.py")
    return script


@pytest.mark.parametrize("name", icl.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    pages = "".join(
        page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.rst")
    )
    assert re.search(
        rf"^   {name}$|^\.\. py:module:: icl_theory\.{name}$", pages, re.MULTILINE
    )


def listed_objects() -> list[object]:
    """Return what the pages of the reference list, modules left out."""
    listed = []
    for page in (DOCS / "api").glob("*.rst"):
        tables = re.findall(
            r"autosummary::\n(?:   :.*\n)*\n((?:   \S+\n)+)",
            page.read_text(encoding="utf-8"),
        )
        names = " ".join(tables).split()
        listed.extend(reduce(getattr, name.split("."), icl) for name in names)
    return listed


# The modules whose public names the reference must have.
DOCUMENTED = (
    "engine",
    "explorer",
    "families",
    "figures",
    "papers.linear_attention",
    "papers.recall",
    "papers.regression",
    "regression",
    "regression.tasks",
    "results.plots",
    "statements",
    "certified",
    "testing",
    "tokens",
)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_class_and_function_of_a_module_is_in_the_reference(
    name: str,
) -> None:
    module = importlib.import_module(f"icl_theory.{name}")
    listed = listed_objects()
    missing = []
    for public in module.__all__:
        value = getattr(module, public)
        # Colours and other constants are explained by the functions that use them.
        if callable(value) and not any(value is other for other in listed):
            missing.append(public)
    assert missing == []


@pytest.mark.parametrize("name", DOCUMENTED)
def test_completion_offers_public_names_alone(name: str) -> None:
    module = importlib.import_module(f"icl_theory.{name}")
    assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_have_targets(page: Path) -> None:
    # a block of `diff` shows files of a paper that is made up
    shown = re.compile(r"^```diff\n.*?^```$", re.MULTILINE | re.DOTALL)
    text = shown.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = source((page.parent / path).resolve()) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_audit_has_a_card_for_each_claim_with_all_that_its_row_says() -> None:
    """The table is taken apart here by its own means: a bar that is not escaped begins a cell."""
    cards = runpy.run_path(str(DOCS / "_ext" / "cards.py"))
    text = (DOCS / "audit.md").read_text(encoding="utf-8")
    table = text[text.index("| claim |") : text.index("## Open questions")].strip()
    page = cards["_claims"](table)
    lines = table.replace("\\|", "\0").splitlines()[2:]
    assert page.count('<article class="claim') == len(lines)
    shown = re.findall(
        r"<header><b>(.*?)</b><span>(.*?)</span>.*?<p class=\"verdict\">(.*?)</p>", page
    )
    for line, (name, status, verdict) in zip(lines, shown, strict=True):
        cells = [cell.strip().replace("\0", "|") for cell in line.split("|")[1:-1]]
        assert [html.unescape(name), status] == [cells[0], cells[3]]
        assert html.unescape(verdict)[:5] == cells[-1][:5]
    commands = re.findall(r"icl-theory audit --claim (\d+)", page)
    assert commands == [str(number) for number in range(1, len(lines) + 1)]


def test_formulas_of_the_audit_have_indices_powers_and_signs() -> None:
    typeset = runpy.run_path(str(DOCS / "_ext" / "cards.py"))["typeset"]
    assert (
        typeset("c_k <= 2 e^-2 C^(k)_mm")
        == "c<sub>k</sub> ≤ 2 e<sup>-2</sup> C<sup>(k)</sup><sub>mm</sub>"
    )
    assert typeset("<b> |z|") == "&lt;b&gt; |z|"


def test_the_readme_of_a_package_index_has_whole_addresses() -> None:
    """hatch_build.py makes it; its function is taken out, because only builds have hatchling."""
    source = (ROOT / "hatch_build.py").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    plain = source[: source.index("class Addresses")].replace(
        "from hatchling", "# from hatchling"
    )
    exec(compile(plain, "hatch_build.py", "exec"), names)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    bare, whole = (
        names["readme"](text, ""),
        names["readme"](text, "https://docs.example/"),
    )
    for shown in (bare, whole):
        assert not re.search(r"\]\((?!https://)", shown)
    assert "![" not in bare
    assert "pip install ." in bare
    assert "](https://docs.example/_images/front.png)" in whole
    assert "](https://docs.example/exactness.html#what-the-models-leave-out)" in whole


def test_every_paper_that_is_named_is_cited_once() -> None:
    """Identifiers of arXiv on pages, in docstrings and in the rows of the audit are those of the page on citing."""
    citing = ROOT / "docs" / "citing.md"
    identifier = re.compile(r"(?<![\d.])(\d{2}(?:0[1-9]|1[0-2])\.\d{5})(?!\d)")
    pages = [
        path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".rst")
    ]
    pages = [
        path
        for path in pages
        if not {"_build", "generated", "gallery"} & set(path.parts)
    ]
    sources = [
        path
        for folder in ("icl_theory", "scripts")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named: dict[str, str] = {}
    for path in [*pages, *sources, ROOT / "README.md", ROOT / "CITATION.cff"]:
        for number in identifier.findall(path.read_text(encoding="utf-8")):
            named.setdefault(number, str(path.relative_to(ROOT)))
    entries = re.findall(
        r"\[arXiv:([\d.]+)\]\(https://arxiv\.org/abs/\1\)",
        citing.read_text(encoding="utf-8"),
    )
    assert len(entries) > 20
    assert [number for number in entries if entries.count(number) > 1] == []
    assert {
        number: path for number, path in named.items() if number not in entries
    } == {}
