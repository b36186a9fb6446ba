"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "descent-layers": "icl_theory.papers.descent_layers.family:DescentLayers"
    },
    figures=Path(__file__).parent / "figures",
    order=4.5,
)
