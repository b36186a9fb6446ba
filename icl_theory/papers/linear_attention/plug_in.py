"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "linear-attention": "icl_theory.papers.linear_attention.family:LinearAttention"
    },
    # A slot and not an attribute of the family, so that other folders can add claims.
    slots={
        "linear-attention": {
            "claims": "icl_theory.papers.linear_attention.statements:CLAIMS"
        }
    },
    figures=Path(__file__).parent / "figures",
    order=3,
)
