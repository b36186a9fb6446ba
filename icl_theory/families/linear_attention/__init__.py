"""Linear attention on linear regression: exact risks, closed forms, a sampled layer."""

from icl_theory.families.linear_attention.family import LinearAttention
from icl_theory.families.linear_attention.law import PromptLaw
from icl_theory.families.linear_attention.layer import LayerRisk, SampledRisk
from icl_theory.families.linear_attention.risks import HeadsRisk, MergedRisk, PairRisk, balanced_flow

__all__ = [
    "HeadsRisk",
    "LayerRisk",
    "LinearAttention",
    "MergedRisk",
    "PairRisk",
    "PromptLaw",
    "SampledRisk",
    "balanced_flow",
]
