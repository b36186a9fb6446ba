"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={"sphere": "icl_theory.papers.sphere.family:Sphere"},
    figures=Path(__file__).parent / "figures",
    order=4,
)
