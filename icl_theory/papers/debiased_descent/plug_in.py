"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "softmax-heads": "icl_theory.papers.debiased_descent.family:SoftmaxHeads"
    },
    # A slot and not an attribute of the family, so that other folders can add claims.
    slots={
        "softmax-heads": {
            "claims": "icl_theory.papers.debiased_descent.statements:CLAIMS"
        }
    },
    figures=Path(__file__).parent / "figures",
    order=5,
)
