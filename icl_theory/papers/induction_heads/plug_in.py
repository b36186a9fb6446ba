"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "induction-heads": "icl_theory.papers.induction_heads.family:InductionHeads",
        "minimal-heads": "icl_theory.papers.induction_heads.minimal:MinimalHeads",
    },
    figures=Path(__file__).parent / "figures",
    order=9,
)
