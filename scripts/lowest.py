"""Constraints for pip that hold every dependency at the lowest version that pyproject.toml allows.

python scripts/lowest.py > constraints.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
EXTRAS = ("distributed", "parquet", "test")


def lowest(requirements: Iterable[str]) -> list[str]:
    """Return ``name==version`` of the lower bounds, the highest where a name has several.

    Examples
    --------
    >>> lowest(["numpy>=2.0", "xarray>=2024.1", "dask[distributed]>=2024.10", "xarray>=2025.1"])
    ['dask==2024.10', 'numpy==2.0', 'xarray==2025.1']
    """
    found: dict[str, str] = {}
    for each in requirements:
        bound = re.match(r"([\w.-]+)(?:\[[^]]*\])?>=([\d.]+)$", each)
        if bound is None:
            raise ValueError(
                f"dependency = {each!r}: must be a name and a lower bound, name>=version"
            )
        name, version = bound.groups()
        found[name] = max(
            found.get(name, "0"), version, key=lambda text: [*map(int, text.split("."))]
        )
    return [f"{name}=={found[name]}" for name in sorted(found)]


def main() -> None:
    """Print the constraints of the package and its extras."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = (
        each for extra in EXTRAS for each in project["optional-dependencies"][extra]
    )
    own = (each for each in extras if not each.startswith(f"{project['name']}["))
    sys.stdout.write("\n".join([*lowest([*project["dependencies"], *own]), ""]))


if __name__ == "__main__":
    main()
