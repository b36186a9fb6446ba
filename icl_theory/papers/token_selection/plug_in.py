"""What this folder adds to the core."""

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    families={
        "token-selection": "icl_theory.papers.token_selection.family:TokenSelection"
    },
    order=8,
)
