"""What a family brings to the explorer: the scripts of its panel, and the numbers that they take from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Panel(NamedTuple):
    """The panel of a family.

    Attributes
    ----------
    folder : Path
        Where the scripts lie. ``panel.js`` exports what the page shows; it may require the others.
    scripts : tuple of str
        File names, with their endings.
    constants : callable
        Returns what the scripts find under ``require("./constants")``: values that JSON can hold.

    References
    ----------
    docs/explorer.md.
    """

    folder: Path
    scripts: tuple[str, ...] = ("panel.js",)
    constants: Callable[[], Mapping[str, Any]] = dict
