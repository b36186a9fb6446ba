"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "depth-covariance": "icl_theory.papers.depth_covariance.family:DepthCovariance"
    },
    figures=Path(__file__).parent / "figures",
    order=4.6,
)
