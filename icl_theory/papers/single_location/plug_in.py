"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "single-location": "icl_theory.papers.single_location.family:SingleLocation"
    },
    figures=Path(__file__).parent / "figures",
    order=7,
)
