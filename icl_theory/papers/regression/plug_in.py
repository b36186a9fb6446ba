"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    slots={
        "regression": {
            "claims": "icl_theory.papers.regression.statements:CLAIMS",
            "explorer": "icl_theory.papers.regression.panel:PANEL",
            "theory_columns": "icl_theory.papers.regression.theory_columns:COLUMNS",
        },
    },
    figures=Path(__file__).parent / "figures",
    order=0,
)
