"""In-context nonlinear regression: features, tasks, exact risks, closed forms, sampled trainer."""

from icl_theory.families.regression import evidence, papers, questions
from icl_theory.families.regression.abel import StepCounter, abel_polynomials
from icl_theory.families.regression.bounds import check_bounds
from icl_theory.families.regression.certified import (
    after_phase_one,
    phase_one_bounds,
    step_bounds,
    worst_prediction,
)
from icl_theory.families.regression.concentration import concentration_probability, smallest_imbalance
from icl_theory.families.regression.coordinates import compare_coordinates
from icl_theory.families.regression.exchangeable import ExchangeableRisk
from icl_theory.families.regression.family import Regression
from icl_theory.families.regression.flow import flow_time
from icl_theory.families.regression.gaussian import GaussianRisk, QuadraticLaw, SampledGaussianRisk
from icl_theory.families.regression.orderwise import fitted_constants
from icl_theory.families.regression.phases import (
    crossover,
    half_way,
    papers_regime,
    query_phases,
    run_phases,
    tail_start,
)
from icl_theory.families.regression.stability import curvature_bound, stable_rate
from icl_theory.families.regression.symmetric import SymmetricRisk, exchangeable_groups

# what the theory says of the family stands on its runs, and so comes after it
Regression.rows, Regression.questions = evidence.ROWS, questions.QUESTIONS
Regression.papers = (papers.NONLINEAR_REGRESSION,)
Regression.check = staticmethod(check_bounds)

__all__ = [
    "ExchangeableRisk",
    "GaussianRisk",
    "QuadraticLaw",
    "Regression",
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
