"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "linear-attention": "icl_theory.papers.linear_attention.family:LinearAttention"
    },
    figures=Path(__file__).parent / "figures",
    order=3,
)
