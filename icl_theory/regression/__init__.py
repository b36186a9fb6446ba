"""In-context nonlinear regression: features, tasks, exact risks, closed forms, sampled trainer."""

from icl_theory.regression.abel import StepCounter, abel_polynomials
from icl_theory.regression.exchangeable import ExchangeableRisk, flow_time
from icl_theory.regression.phases import crossover, run_phases, tail_start

__all__ = [
    "ExchangeableRisk",
    "StepCounter",
    "abel_polynomials",
    "crossover",
    "flow_time",
    "run_phases",
    "tail_start",
]
