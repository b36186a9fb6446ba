"""Write the lists of papers on pages and in CITATION.cff.

    python scripts/indexes.py          # writes the files again
    python scripts/indexes.py --check  # fails if one of them would change

The lists are made from the `Paper` objects of the families. A page has its list between
two comments, ``<!-- papers -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path

from icl_theory.families import list_families
from icl_theory.results.numbers import markdown
from icl_theory.statements.audit import all_claims
from icl_theory.statements.paper import Paper

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- papers -->\n"
END = "<!-- end -->"
# The largest number of statements in a cell of the table of models.
SHOWN = 7


def papers() -> dict[str, list[Paper]]:
    """Return the papers by the titles of their families."""
    families = list_families()
    claims_by_family, _messages = all_claims()
    return {
        families[name].title: list(claims.papers)
        for name, claims in claims_by_family.items()
        if claims.papers
    }


def every_paper() -> list[Paper]:
    """Return all papers in order."""
    return [paper for group in papers().values() for paper in group]


def index() -> str:
    """Return the table of the papers' pages, and their list in the sidebar."""
    rows: dict[str, list[str]] = {"family": [], "paper": []}
    for family, group in papers().items():
        for i, paper in enumerate(group):
            # The first row of a family names it.
            rows["family"].append(family if i == 0 else "")
            rows["paper"].append(f"[{paper.title}]({paper.name}.md)")
    names = "\n".join(paper.name for paper in every_paper())
    return f"{markdown(rows)}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def models() -> str:
    """Return the table of models, with a row for each paper that has an entry."""
    rows: dict[str, list[str]] = {}
    for paper in every_paper():
        if paper.entry is None:
            continue
        tested = [reading.name for reading in paper.readings if reading.rows]
        more = ["…"] if len(tested) > SHOWN else []
        cells = {
            "data": paper.entry.data,
            "attention": paper.entry.attention,
            "trained": paper.entry.trained,
            "statements": "; ".join(tested[:SHOWN] + more),
            "page": f"[{paper.name}](papers/{paper.name}.md)",
            "try it": f"`{paper.entry.command}`",
            "explorer": _explorer(paper),
        }
        for heading, cell in cells.items():
            rows.setdefault(heading, []).append(cell)
    return markdown(rows) + "\n"


def _explorer(paper: Paper) -> str:
    """Return a link to the panel of the explorer that shows the model of a paper."""
    if paper.setting is None:
        return "–"
    # The address of a setting is "PANEL?PARAMETER=VALUE&...".
    panel, _, _ = paper.setting.place.partition("?")
    words = panel.replace("-", " ")
    return f'<a href="_static/explorer.html#{panel}">{words}</a>'


def citations() -> str:
    """Return an entry of the bibliography for each paper, with its related works.

    Entries are wrapped at 118 characters, as wide as other text on the pages.
    """
    entries = []
    for paper in every_paper():
        # The number of a paper on arXiv. Any other identifier is not changed.
        number = paper.identifier.removeprefix("arXiv:")
        where = paper.identifier
        if where != number:
            where = f"[{where}](https://arxiv.org/abs/{number})"
        end = "" if paper.title.endswith(("?", "!")) else "."
        text = f"{paper.credit}: " if paper.credit else ""
        text += f"{paper.authors}. *{paper.title}*{end} {paper.year}. {where}."
        if paper.related:
            text += f" {paper.related}"
        entries.append(
            textwrap.fill(
                text,
                118,
                initial_indent="- ",
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n".join(entries) + "\n"


def references() -> str:
    """Return the references of CITATION.cff, in YAML."""
    lines = []
    for paper in every_paper():
        number = paper.identifier.removeprefix("arXiv:")
        lines += [
            "  - type: article",
            f"    title: {_quoted(paper.title)}",
            f"    year: {paper.year}",
            f"    url: {_quoted(f'https://arxiv.org/abs/{number}')}",
            f"    identifiers: [{{type: other, value: {_quoted(paper.identifier)}}}]",
            "    authors:",
        ]
        for author in paper.authors.split(", "):
            given_names, _, family_name = author.rpartition(" ")
            lines.append(
                f"      - {{family-names: {family_name},"
                f" given-names: {_plain(given_names)}}}"
            )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text in quotes for YAML, which reads a text of JSON as it is."""
    return json.dumps(text, ensure_ascii=False)


def _plain(text: str) -> str:
    """Return a text for YAML, in quotes only if it has signs, such as a full stop."""
    return text if re.fullmatch(r"[\w ]+", text) else _quoted(text)


# The function that makes the list of each page.
PAGES: dict[str, Callable[[], str]] = {
    "docs/papers/index.md": index,
    "docs/find-your-model.md": models,
    "docs/citing.md": citations,
}


def rewritten() -> dict[str, str]:
    """Return every file with its list made again, by its path in the repository."""
    files = {}
    for name, make in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        files[name] = f"{before}{BEGIN}\n{make()}\n{END}{after}"
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    before, heading, _ = text.partition("references:\n")
    files["CITATION.cff"] = with_addresses(before) + heading + references()
    return files


def with_addresses(head: str) -> str:
    """Return the head of CITATION.cff with the addresses of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    addresses = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    # The old addresses are left out; an empty address has no line.
    old_addresses = ("repository-code:", "url:")
    lines = [line for line in head.splitlines() if not line.startswith(old_addresses)]
    if addresses["repository"]:
        lines.append(f"repository-code: {_quoted(addresses['repository'])}")
    if addresses["documentation"]:
        lines.append(f"url: {_quoted(addresses['documentation'])}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the files that have changed, or with --check only print their names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for name, text in rewritten().items():
        path = ROOT / name
        if path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    print(", ".join(stale) or "nothing", "would change" if check else "changed")
    if check and stale:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
