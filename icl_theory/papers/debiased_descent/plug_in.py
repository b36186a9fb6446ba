"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "softmax-heads": "icl_theory.papers.debiased_descent.family:SoftmaxHeads"
    },
    figures=Path(__file__).parent / "figures",
    order=5,
)
