"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={"recall": "icl_theory.papers.recall.family:Recall"},
    figures=Path(__file__).parent / "figures",
    order=0.5,
)
