"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={"fixed-chain": "icl_theory.papers.fixed_chain.family:FixedChain"},
    figures=Path(__file__).parent / "figures",
    order=6,
)
