"""How parameters are written on the command line: numbers, lists and ranges."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array, refuse

FORM = "a number, a list a,b,c or a range first:last:log:count or first:last:lin:count"
WHOLE = ("K", "N")  # values of a range are rounded
MOST = 10_000_000


def parse_axis(name: str, text: str) -> float | Array | str:
    """Read one parameter.

    Parameters
    ----------
    name : str
        What it is called.
    text : str
        ``2``, ``0.5,1,2``, ``0.03:30:log:25`` or ``0:1:lin:11``; ``inf`` counts as a number, and ``auto`` is the
        stable learning rate.

    Returns
    -------
    float, ndarray or "auto"
        A list or range makes a dimension, also of one value.

    Raises
    ------
    ValueError
        Anything else.

    Examples
    --------
    >>> from icl_theory.cli.axes import parse_axis
    >>> parse_axis("L", "0.1:10:log:3"), parse_axis("K", "5,20"), parse_axis("N", "inf")
    (array([ 0.1,  1. , 10. ]), array([ 5., 20.]), inf)
    """
    text = text.strip()
    if name == "eta" and text == "auto":
        return text
    if ":" in text:
        return _range(name, text)
    try:
        if "," in text:
            return np.array([float(part) for part in text.split(",")])
        return float(text)
    except ValueError:
        raise refuse(name, text, FORM + (", or auto" if name == "eta" else "")) from None


def _range(name: str, text: str) -> Array:
    parts = text.split(":")
    if len(parts) != 4 or parts[2] not in ("log", "lin"):
        raise refuse(name, text, FORM)
    try:
        first, last, count = float(parts[0]), float(parts[1]), int(parts[3])
    except ValueError:
        raise refuse(name, text, FORM) from None
    if not (math.isfinite(first) and math.isfinite(last)) or not 2 <= count <= MOST:
        raise refuse(name, text, f"a range between finite numbers, of 2 to {MOST:,} values")
    if first == last:
        raise refuse(name, text, "a range between two different numbers")
    if parts[2] == "log":
        if first <= 0 or last <= 0:
            raise refuse(name, text, "a range between positive numbers where it is logarithmic")
        values = np.geomspace(first, last, count)
    else:
        values = np.linspace(first, last, count)
    if name in WHOLE:
        values = np.round(values)
        if len(np.unique(values)) < count:
            raise refuse(name, text, f"a range of at most {len(np.unique(values))} different integers")
    return values
