"""Exact simulator of how one-layer transformers learn to learn in context."""

from icl_theory._version import __version__ as __version__
from icl_theory.claims.audit import Audit, answer, audit
from icl_theory.claims.claim import Answer, BoundCheck, Claim
from icl_theory.engine.descent import descend
from icl_theory.engine.risk import Embedding, Factored, Risk, in_coordinates
from icl_theory.engine.sharpness import Stability, largest_stable_eta, sharpness_along
from icl_theory.engine.trajectory import Phases, State, Stop, Trajectory
from icl_theory.families import Family, families, parameter, recall, regression
from icl_theory.families.recall.family import Recall
from icl_theory.families.regression import tasks
from icl_theory.families.regression.block import BlockRisk
from icl_theory.families.regression.bounds import check_bounds
from icl_theory.families.regression.crosscheck import Check, CrossCheck, crosscheck
from icl_theory.families.regression.exchangeable import ExchangeableRisk
from icl_theory.families.regression.family import Regression
from icl_theory.families.regression.features import Features
from icl_theory.families.regression.gaussian import GaussianRisk, QuadraticLaw, SampledGaussianRisk
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.sampled import SampledRisk
from icl_theory.families.regression.simulate import simulate
from icl_theory.families.regression.symmetric import SymmetricRisk
from icl_theory.families.saved import load
from icl_theory.grids.sweep import load_sweep, sweep
from icl_theory.results.plots.sweeps import plot_sweep
from icl_theory.results.report import html_report
from icl_theory.results.tables import phase_table
from icl_theory.results.transitions import transition_table

__all__ = [
    "Answer",
    "Audit",
    "BlockRisk",
    "BoundCheck",
    "Check",
    "Claim",
    "CrossCheck",
    "Embedding",
    "ExchangeableRisk",
    "Factored",
    "Family",
    "Features",
    "GaussianRisk",
    "Phases",
    "PopulationRisk",
    "QuadraticLaw",
    "Recall",
    "Regression",
    "Risk",
    "SampledGaussianRisk",
    "SampledRisk",
    "Stability",
    "State",
    "Stop",
    "SymmetricRisk",
    "Trajectory",
    "answer",
    "audit",
    "check_bounds",
    "crosscheck",
    "descend",
    "families",
    "html_report",
    "in_coordinates",
    "largest_stable_eta",
    "load",
    "load_sweep",
    "parameter",
    "phase_table",
    "plot_sweep",
    "recall",
    "regression",
    "sharpness_along",
    "simulate",
    "sweep",
    "tasks",
    "transition_table",
]
