"""In-context recall: the task, its exact risks, closed forms, a sampled trainer."""

from icl_theory.families.recall import evidence, questions
from icl_theory.families.recall.bounds import decay_rate, loss_bound, missing_loss, noise_cost, plain_tail, stall
from icl_theory.families.recall.counts import Counts
from icl_theory.families.recall.family import Recall
from icl_theory.families.recall.population import RecallRisk
from icl_theory.families.recall.sampled import Measure, Reparameterised, TransformerRisk
from icl_theory.families.recall.simulate import simulate
from icl_theory.families.recall.task import RecallTask, Sentences

# what the theory says of the family stands on its runs, and so comes after it
Recall.rows, Recall.questions = evidence.ROWS, questions.QUESTIONS

__all__ = [
    "Counts",
    "Measure",
    "Recall",
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
