"""Tables of sweeps of any model, a row a point: with phases where the model has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_theory._validate import choice, refuse
from icl_theory.tables import HEADINGS, phase_table

if TYPE_CHECKING:
    import pandas as pd
    import xarray


def point_table(dataset: xarray.Dataset, over: str | None = None) -> pd.DataFrame:
    """Return what a sweep found, a row a point: `phase_table` where there are phases, every quantity elsewhere.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep`, `sweep_recall` or `load_sweep`.
    over : str, optional
        The parameter whose values follow one another; the first dimension unless given.

    Returns
    -------
    pandas.DataFrame
        Parameters, T_ε in steps, the local exponent d ln T/d ln x, the other quantities under their names, and the
        status where not all points reached their target. Points not computed are left out.

    Raises
    ------
    ValueError
        ``over`` is no dimension of the dataset, or it has none.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.points import point_table
    >>> found = icl.sweep_recall(Q=[4, 16], count=1, progress=False)
    >>> point_table(found)[["Q", "T_ε"]].to_dict("records")
    [{'Q': 4, 'T_ε': 44}, {'Q': 16, 'T_ε': 87}]
    """
    if "regime" in dataset:
        return phase_table(dataset, over)
    names = [str(name) for name in dataset.dims]
    if not names:
        raise refuse("dataset", list(dataset), "swept over one parameter at least")
    over = names[0] if over is None else choice("over", over, names)
    order = [*(name for name in names if name != over), over]
    frame = dataset.to_dataframe(dim_order=order).reset_index()
    frame = frame[frame["status"] != "pending"].reset_index(drop=True)
    quantities = [
        str(name)
        for name in dataset.data_vars
        if name not in ("steps", "status", "message") and not str(name).startswith("exponent_")
    ]
    table = frame[order].copy()
    if "steps" in frame:
        table[HEADINGS["steps"]] = frame["steps"].astype("Int64").mask(frame["steps"] < 0)
    if f"exponent_{over}" in frame:
        table["exponent"] = frame[f"exponent_{over}"]
    table[quantities] = frame[quantities]
    if not (frame["status"] == "reached").all():
        table["status"] = frame["status"]
    return table
