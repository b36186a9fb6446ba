"""What a package index shows: addresses of the project, and a README whose links lead somewhere.

The addresses stand in pyproject.toml, in ``[tool.hatch.metadata.hooks.custom]``, and
nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(
    r"!\[[^\]]*\]\(docs/images/[^)]*\)\n\n\*.*?\*\n\n", re.DOTALL
)  # with its caption


def readme(text: str, documentation: str) -> str:
    """Return the README with whole addresses; without a site of the documentation, without picture and links."""
    if not documentation:
        return re.sub(
            r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", PICTURE.sub("", text)
        )
    site = documentation.rstrip("/")
    text = re.sub(r"\]\(docs/images/([^)]*)\)", rf"]({site}/_images/\1)", text)
    text = re.sub(r"\]\(docs/([^)#]*)\.md(#[^)]*)?\)", rf"]({site}/\1.html\2)", text)
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


class Addresses(MetadataHookInterface):
    """Fills in the fields of the metadata that depend on addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``urls`` and ``readme``."""
        addresses = {
            name: self.config[name]
            for name in ("repository", "documentation")
            if self.config.get(name)
        }
        metadata["urls"] = {
            name.capitalize(): address for name, address in addresses.items()
        }
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = readme(text, addresses.get("documentation", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
