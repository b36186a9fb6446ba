"""Count the words of prose of each page of the documentation.

    python scripts/words.py             # a table of pages, the longest first
    python scripts/words.py --formulas  # each word of an inline formula counts

The pages are README.md and all pages below docs, without those of `NOT_PROSE` and those
that a build of the documentation writes. Rows of tables, blocks of code, displayed
formulas, addresses of links, and the lists of papers that scripts/indexes.py writes
(the bibliography among them) are not counted as prose. An inline formula is one word,
and so is inline code.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folders below docs that a build of the documentation writes.
BUILT = {"generated", "gallery", "_build"}
# Pages that consist of tables of results.
NOT_PROSE = {"audit.md", "faults.md"}
# The parts of a page that are not prose: blocks of code, displayed formulas, lists that
# a script writes, rows of tables, tags of HTML, and addresses of links.
FENCED = re.compile(r"^(`{3,})[^`\n]*\n.*?^\1 *$", re.DOTALL | re.MULTILINE)
DISPLAYED = re.compile(r"\$\$.*?\$\$", re.DOTALL)
WRITTEN_LIST = re.compile(
    r"^<!-- papers -->$.*?^<!-- end -->$", re.DOTALL | re.MULTILINE
)
TABLE_ROW = re.compile(r"^ *\|.*$", re.MULTILINE)
TAG = re.compile(r"</?[a-z][^<>]*>")
ADDRESS = re.compile(r"\]\([^)\s]*\)")
# An inline formula, or inline code.
INLINE = re.compile(r"\$[^$]+\$|`[^`]+`")


def pages() -> list[Path]:
    """Return the paths of the pages that have prose."""
    below_docs = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *filter(_has_prose, below_docs)]


def _has_prose(page: Path) -> bool:
    """Whether a page is neither built nor one of `NOT_PROSE`."""
    return not BUILT & set(page.parts) and page.name not in NOT_PROSE


def prose(text: str) -> str:
    """Return the prose of a page; inline formulas and inline code stay in it."""
    for pattern in (FENCED, DISPLAYED, WRITTEN_LIST, TABLE_ROW, TAG):
        text = pattern.sub("", text)
    return ADDRESS.sub("]", text)


def count(text: str, formulas: bool = False) -> int:
    """Return the number of words of a page's prose.

    With ``formulas``, each word of an inline formula or of inline code counts.

    Examples
    --------
    >>> count("The loss is $L(t) = 1/t$ nats; see [the *proof*](theory.md).")
    8
    >>> count("The loss is $L(t) = 1/t$ nats.", formulas=True)
    6
    """
    text = prose(text)
    if not formulas:
        text = INLINE.sub("X", text)
    # A dash or another mark that stands alone is no word.
    return sum(any(map(str.isalnum, word)) for word in text.split())


def main() -> None:
    """Print the number of words of each page, and of all pages together."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--formulas", action="store_true", help="count the words of inline formulas"
    )
    formulas = parser.parse_args().formulas
    counts = {}
    for page in pages():
        text = page.read_text(encoding="utf-8")
        counts[page.relative_to(ROOT).as_posix()] = count(text, formulas)
    for name, words in sorted(counts.items(), key=lambda entry: -entry[1]):
        print(f"{words:6d}  {name}")
    print(f"{sum(counts.values()):6d}  in {len(counts)} pages")


if __name__ == "__main__":
    main()
