"""Print constraints for pip: the lowest versions that pyproject.toml allows.

python scripts/lowest.py > constraints.txt

Tests with these versions show that the lower bounds of the dependencies are right.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
# The extras of the package whose dependencies are constrained, too.
EXTRAS = ("distributed", "parquet", "test")


def lowest(requirements: Iterable[str]) -> list[str]:
    """Return ``name==version`` for the lower bound of each name.

    A requirement is a name and a lower bound, ``name>=version``. If a name has several
    bounds, the highest counts.

    Examples
    --------
    >>> lowest(["numpy>=2.0", "xarray>=2024.1", "dask[distributed]>=2024.10", "xarray>=2025.1"])
    ['dask==2024.10', 'numpy==2.0', 'xarray==2025.1']
    """
    versions: dict[str, str] = {}
    for requirement in requirements:
        # A name, perhaps with extras in brackets, and a lower bound.
        bound = re.match(r"([\w.-]+)(?:\[[^]]*\])?>=([\d.]+)$", requirement)
        if bound is None:
            raise ValueError(
                f"dependency = {requirement!r}: must be a name and a lower bound,"
                " name>=version"
            )
        name, version = bound.groups()
        versions[name] = max(versions.get(name, "0"), version, key=_parts)
    return [f"{name}=={versions[name]}" for name in sorted(versions)]


def _parts(version: str) -> list[int]:
    """Return the numbers of a version; their order is the order of versions."""
    return [int(part) for part in version.split(".")]


def main() -> None:
    """Print the constraints of the package and its extras."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    requirements = [*project["dependencies"]]
    for extra in EXTRAS:
        requirements += project["optional-dependencies"][extra]
    # An extra may name another extra of this package, which is no dependency.
    own_extras = f"{project['name']}["
    requirements = [text for text in requirements if not text.startswith(own_extras)]
    sys.stdout.write("\n".join([*lowest(requirements), ""]))


if __name__ == "__main__":
    main()
