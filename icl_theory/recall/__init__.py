"""In-context recall: the task, its exact risks, closed forms, a sampled trainer."""

from icl_theory.recall.bounds import decay_rate, loss_bound, missing_loss, noise_cost, plain_tail, stall
from icl_theory.recall.counts import Counts
from icl_theory.recall.population import RecallRisk
from icl_theory.recall.sampled import Measure, Reparameterised, TransformerRisk
from icl_theory.recall.simulate import simulate
from icl_theory.recall.task import RecallTask, Sentences

__all__ = [
    "Counts",
    "Measure",
    "RecallRisk",
    "RecallTask",
    "Reparameterised",
    "Sentences",
    "TransformerRisk",
    "decay_rate",
    "loss_bound",
    "missing_loss",
    "noise_cost",
    "plain_tail",
    "simulate",
    "stall",
]
