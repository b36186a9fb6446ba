"""The audit's rows on in-context regression: each claim of the theory, measured over a grid.

A row is a function of whether the grid is to be small; `ROWS` lists them in the order of the table.
"""

from icl_theory.families.regression.orderwise import STATEMENTS
from icl_theory.papers.regression import dynamics, experiments, lemmas, measured, orders, parts
from icl_theory.papers.regression.common import Row

ORDERS: dict[str, Row] = {statement.name: orders.order_statement(statement) for statement in STATEMENTS}
ROWS: tuple[Row, ...] = (
    lemmas.lemma_1_identity,
    lemmas.direct_sums,
    lemmas.lemma_1_samples,
    parts.laws,
    parts.derivatives,
    parts.reductions,
    lemmas.lemma_1_envelope,
    lemmas.lemma_1_degenerate,
    lemmas.lemma_2_identity,
    lemmas.lemma_2_signs,
    lemmas.concentration,
    *ORDERS.values(),
    orders.phase_one_explicit,
    orders.after_phase_one_explicit,
    orders.theorem_1_explicit,
    lemmas.proposition_1,
    dynamics.closed_counts,
    dynamics.step_counts,
    parts.skipped_steps,
    dynamics.flow_solution,
    dynamics.phase_one,
    dynamics.total_time,
    dynamics.regimes,
    dynamics.papers_rule,
    dynamics.monotone,
    parts.stable_rates,
    dynamics.rescaling,
    dynamics.embedding,
    dynamics.tail_law,
    dynamics.tail_law_finite,
    dynamics.tail_law_embeddings,
    *measured.ROWS,
    *experiments.ROWS,
    lemmas.noise_floor,
    lemmas.lengths,
)
