"""Print the section of CHANGELOG.md for a tag, as the notes of its release.

python scripts/release_notes.py v1.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def notes(tag: str, changelog: str) -> str:
    """Return the section of a version in a changelog, without its heading.

    Parameters
    ----------
    tag : str
        The tag of the version, such as "v1.2.0".
    changelog : str
        The text of a changelog in the form of Keep a Changelog, in which a version has
        the heading "## [1.2.0] - date".

    Returns
    -------
    str
        The section, with one line break at its end.

    Raises
    ------
    ValueError
        There is no such section, or it is empty.
    """
    version = tag.removeprefix("v")
    # The text before the first heading, then versions and sections in turn.
    _, *pieces = re.split(r"^## \[(.*?)\].*$", changelog, flags=re.MULTILINE)
    section_of = dict(zip(pieces[::2], pieces[1::2], strict=True))
    section = section_of.get(version, "").strip()
    if not section:
        raise ValueError(
            f"tag = {tag!r}: must be a version with a section in CHANGELOG.md"
        )
    return section + "\n"


if __name__ == "__main__":
    sys.stdout.write(notes(sys.argv[1], CHANGELOG.read_text(encoding="utf-8")))
