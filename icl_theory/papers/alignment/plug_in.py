"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    slots={
        "linear-attention": {"claims": "icl_theory.papers.alignment.statements:CLAIMS"}
    },
    figures=Path(__file__).parent / "figures",
    order=3.5,
)
