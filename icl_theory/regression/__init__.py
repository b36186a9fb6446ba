"""In-context nonlinear regression: features, tasks, exact risks, closed forms, sampled trainer."""

from icl_theory.regression.abel import StepCounter, abel_polynomials
from icl_theory.regression.certified import after_phase_one, phase_one_bounds, step_bounds, worst_prediction
from icl_theory.regression.concentration import concentration_probability, smallest_imbalance
from icl_theory.regression.coordinates import compare_coordinates
from icl_theory.regression.exchangeable import ExchangeableRisk
from icl_theory.regression.flow import flow_time
from icl_theory.regression.gaussian import GaussianRisk, QuadraticLaw, SampledGaussianRisk
from icl_theory.regression.orderwise import fitted_constants
from icl_theory.regression.phases import crossover, half_way, papers_regime, query_phases, run_phases, tail_start
from icl_theory.regression.stability import curvature_bound, stable_rate
from icl_theory.regression.symmetric import SymmetricRisk, exchangeable_groups

__all__ = [
    "ExchangeableRisk",
    "GaussianRisk",
    "QuadraticLaw",
    "SampledGaussianRisk",
    "StepCounter",
    "SymmetricRisk",
    "abel_polynomials",
    "after_phase_one",
    "compare_coordinates",
    "concentration_probability",
    "crossover",
    "curvature_bound",
    "exchangeable_groups",
    "fitted_constants",
    "flow_time",
    "half_way",
    "papers_regime",
    "phase_one_bounds",
    "query_phases",
    "run_phases",
    "smallest_imbalance",
    "stable_rate",
    "step_bounds",
    "tail_start",
    "worst_prediction",
]
