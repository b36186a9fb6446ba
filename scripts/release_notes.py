"""The part of CHANGELOG.md that belongs to a tag, as the notes of its release."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def notes(tag: str, changelog: str) -> str:
    """Return what stands below the heading of a version.

    Parameters
    ----------
    tag : str
        Like "v1.2.0".
    changelog : str
        In the form of Keep a Changelog.

    Returns
    -------
    str
        The section without its heading.

    Raises
    ------
    ValueError
        There is no such section, or it is empty.
    """
    version = tag.removeprefix("v")
    sections = re.split(r"^## \[(.*?)\].*$", changelog, flags=re.MULTILINE)
    found = (
        dict(zip(sections[1::2], sections[2::2], strict=True)).get(version, "").strip()
    )
    if not found:
        raise ValueError(
            f"tag = {tag!r}: must be a version with a section in CHANGELOG.md"
        )
    return found + "\n"


if __name__ == "__main__":
    sys.stdout.write(notes(sys.argv[1], CHANGELOG.read_text(encoding="utf-8")))
