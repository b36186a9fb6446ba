"""Commands that install optional libraries, for errors about a missing library."""

from __future__ import annotations

# The libraries of each extra, by its name; a test compares them with pyproject.toml.
# Messages name the libraries and not `icl-theory[parquet]`: pip would look for
# icl-theory on a package index, which may not have this package.
REQUIREMENTS = {
    "parquet": ("filelock>=3.32", "pyarrow>=17"),
    "distributed": ("filelock>=3.32", "pyarrow>=17", "dask[distributed]>=2024.8"),
    "certified": ("python-flint>=0.9",),
}


def install(extra: str) -> str:
    """Return the pip command that installs the libraries of an extra.

    Parameters
    ----------
    extra : str
        Name of the extra: "parquet", "distributed" or "certified".

    Returns
    -------
    str
        The command. It also works if pip finds no package named icl-theory.

    Examples
    --------
    >>> install("certified")
    "pip install 'python-flint>=0.9'"
    """
    libraries = [f"'{library}'" for library in REQUIREMENTS[extra]]
    return " ".join(["pip install", *libraries])
