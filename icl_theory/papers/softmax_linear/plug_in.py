"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    slots={
        "softmax-heads": {
            "claims": "icl_theory.papers.softmax_linear.statements:CLAIMS"
        }
    },
    figures=Path(__file__).parent / "figures",
    order=5.5,
)
