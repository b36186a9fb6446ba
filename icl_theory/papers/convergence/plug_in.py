"""What this folder adds to the core."""

from icl_theory.families.plug_ins import PlugIn

PLUG_IN = PlugIn(
    slots={
        "grouped-regression": {
            "claims": "icl_theory.papers.convergence.statements:CLAIMS"
        },
    },
    order=2,
)
