"""Metadata for a package index: the project's addresses, and a README with links.

Links in the README of the repository are relative, and would lead nowhere from a
package index. The addresses of the project are in pyproject.toml, in
``[tool.hatch.metadata.hooks.custom]``, and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A picture, and the paragraph in italics below it, which is its caption.
PICTURE = re.compile(r"!\[[^\]]*\]\(docs/images/[^)]*\)\n\n\*.*?\*\n\n", re.DOTALL)
# A link [text](target) whose target is no web address; the exclamation mark would make
# it a picture.
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)")


def readme(text: str, documentation: str) -> str:
    """Return the README for a package index.

    ``documentation`` is the address of the documentation's site. Links to pages and
    pictures of the documentation become links to the site, and other relative links
    become their texts. Without a site, ``documentation`` is empty: all relative links
    become their texts, and pictures are left out.
    """
    if documentation:
        site = documentation.rstrip("/")
        # Sphinx puts all pictures into _images, and makes NAME.html of NAME.md.
        text = re.sub(r"\]\(docs/images/([^)]*)\)", rf"]({site}/_images/\1)", text)
        text = re.sub(
            r"\]\(docs/([^)#]*)\.md(#[^)]*)?\)", rf"]({site}/\1.html\2)", text
        )
    else:
        text = PICTURE.sub("", text)
    return RELATIVE_LINK.sub(r"\1", text)


class Addresses(MetadataHookInterface):
    """The hook by which hatchling fills in the metadata that depend on addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the entries ``urls`` and ``readme`` of the metadata in place.

        ``self.config`` has the addresses from pyproject.toml, and ``self.root`` is the
        folder of the project.
        """
        addresses = {
            name: self.config[name]
            for name in ("repository", "documentation")
            if self.config.get(name)
        }
        metadata["urls"] = {
            name.capitalize(): address for name, address in addresses.items()
        }
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = readme(text, addresses.get("documentation", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
