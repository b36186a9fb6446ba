"""What this folder adds to the core."""

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "induction-heads": "icl_theory.papers.induction_heads.family:InductionHeads"
    },
    order=9,
)
