"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "token-selection": "icl_theory.papers.token_selection.family:TokenSelection"
    },
    figures=Path(__file__).parent / "figures",
    order=8,
)
