"""What this folder adds to the core."""

from pathlib import Path

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={"match-copy": "icl_theory.papers.match_copy.family:MatchCopy"},
    figures=Path(__file__).parent / "figures",
    order=7.5,
)
