"""Linear attention on linear regression: exact risks, shifts, task diversity, depth, a sampled layer."""

from icl_theory.families.linear_attention.depth import LoopedRisk, best_layers, quadrature, wishart_moments
from icl_theory.families.linear_attention.diversity import (
    Diversity,
    diversity_limit,
    posterior_loss,
    ridge_loss,
    task_diversity,
)
from icl_theory.families.linear_attention.family import LinearAttention
from icl_theory.families.linear_attention.law import PromptLaw
from icl_theory.families.linear_attention.layer import LayerRisk, SampledLoop, SampledRisk
from icl_theory.families.linear_attention.risks import HeadsRisk, MergedRisk, PairRisk, balanced_flow
from icl_theory.families.linear_attention.shifts import ShiftTable, shift_table

__all__ = [
    "Diversity",
    "HeadsRisk",
    "LayerRisk",
    "LinearAttention",
    "LoopedRisk",
    "MergedRisk",
    "PairRisk",
    "PromptLaw",
    "SampledLoop",
    "SampledRisk",
    "ShiftTable",
    "balanced_flow",
    "best_layers",
    "diversity_limit",
    "posterior_loss",
    "quadrature",
    "ridge_loss",
    "shift_table",
    "task_diversity",
    "wishart_moments",
]
