"""The paper on in-context regression.

Each `Reading` is a statement of the paper, with the rows, questions and figures that
measure the statement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import icl_theory as icl
from icl_theory import regression
from icl_theory.papers.regression.statements import (
    dynamics,
    experiments,
    lemmas,
    questions,
)
from icl_theory.papers.regression.statements.lemmas import ORDERS
from icl_theory.papers.regression.theorems.checks import check_bounds
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

# Texts for the attribute ``reconstructed`` of several `Reading`s.
ORDER = (
    "the order of magnitude, from the proofs; its constant is fitted on runs from a"
    " smaller range of parameters"
)
LOGARITHM = (
    f"{ORDER}. A public review (ICLR 2026, Reviewer 3) calls the two regimes"
    " logarithmic and polynomial in 1/ε"
)
CHOSEN = "we chose all parameters"


def crosscheck(
    run_or_risk: icl.Trajectory | icl.Risk, **options: Any
) -> icl.statements.CrossCheck:
    """Compare a run or a risk with sampled prompts (`regression.crosscheck`).

    The code of the comparison is loaded at the first call, because rows do not need it.
    """
    return regression.crosscheck(run_or_risk, **options)


NONLINEAR_REGRESSION = Paper(
    "nonlinear-regression",
    "Provable In-Context Learning of Nonlinear Regression with Transformers",
    "Hongbo Li, Lingjie Duan, Yingbin Liang",
    2025,
    "arXiv:2507.20443",
    (
        Reading(
            "Lemma 1",
            "The loss is of the order of E(1 - a_k)², with a_k the attention"
            " on the query's own feature.",
            (
                lemmas.lemma_1_identity,
                lemmas.direct_sums,
                lemmas.lemma_1_samples,
                lemmas.lemma_1_envelope,
                lemmas.lemma_1_degenerate,
            ),
            question=questions.degenerate,
            reconstructed=(
                "the order L²Δ² E(1 - a_k)²; exact form and constants of the"
                " envelope are this package's"
            ),
        ),
        Reading(
            "Lemma 2",
            "In one step the score of the query's own feature changes by α_k >= 0, and"
            " another score by β_mk of either sign.",
            (lemmas.lemma_2_identity, lemmas.lemma_2_signs),
            reconstructed="both formulas, by differentiating the loss",
        ),
        Reading(
            "Equation 9",
            "With high probability every feature is in the prompt about as often as its"
            " probability says.",
            (lemmas.concentration, lemmas.conditional_loss),
            reconstructed=(
                "the bound on the probability, a union over Hoeffding's inequality"
            ),
        ),
        Reading(
            "Proposition 2",
            "Phase I: the score of the own feature grows fast, the others change K"
            " times slower.",
            (
                ORDERS["Phase I growth"],
                ORDERS["Phase I cross terms"],
                ORDERS["Phase I duration"],
                lemmas.phase_one_explicit,
            ),
            reconstructed=ORDER,
        ),
        Reading(
            "Proposition 3",
            "Phase II, flat regime: the score of the own feature grows at a steady"
            " rate, the others change K times slower.",
            (
                ORDERS["Phase II growth"],
                ORDERS["Phase II growth to ε"],
                ORDERS["Phase II cross terms"],
            ),
            reconstructed=ORDER,
        ),
        Reading(
            "Lemmas 3, 5, 6, 8, 10",
            "Scores and attention at the ends of the phases: scores of own features"
            " are of the order of logarithms, other scores are smaller by a factor K,"
            " and at the end 1 - Attn_k is of the order √ε/(LΔ).",
            (experiments.ends_of_phases,),
            reconstructed=(
                "the expressions, from the words of the proofs; the formulas in the"
                " lists are missing"
            ),
        ),
        Reading(
            "Theorem 1",
            "Flat regime: a bound on the time from Phase I to a loss near zero.",
            (ORDERS["Theorem 1"], lemmas.theorem_1_explicit),
            question=questions.tightness,
            reconstructed=LOGARITHM,
        ),
        Reading(
            "L, Δ and the time",
            "Training is faster for a larger L or a larger Δ, in both regimes.",
            (dynamics.phase_one_of_both_regimes,),
            reconstructed=f"{CHOSEN}; the text says this of Phase I and of Theorem 1",
        ),
        Reading(
            "Proposition 4",
            "Phase III, sharp regime: the score of the own feature grows at a slow"
            " rate.",
            (
                ORDERS["Phase III growth"],
                ORDERS["Phase III cross terms"],
                experiments.cross_terms_of_unequal_tasks,
            ),
            reconstructed=ORDER,
        ),
        Reading(
            "Theorem 2",
            "Sharp regime: a bound on the time from Phase I to a loss near zero.",
            (ORDERS["Theorem 2"], lemmas.after_phase_one_explicit),
            reconstructed=LOGARITHM,
        ),
        Reading(
            "The transition",
            "The regimes change at an L of the order 1/(Δδ). The flat one may be faster"
            " at high accuracy; if L is far larger relative to the accuracy, the"
            " sharp one is.",
            (
                dynamics.papers_rule,
                dynamics.regimes,
                dynamics.total_time,
                dynamics.flat_at_high_accuracy,
                experiments.larger_steps,
            ),
            question=questions.separation,
            figure="transition",
            reconstructed=(
                "the constant 1 of the threshold; the first version of the paper"
                " states the order 1/(Δδ), and that the flat regime permits larger"
                " steps"
            ),
        ),
        Reading(
            "Proposition 1",
            "If the loss is small, the attention on the query's own feature is near 1,"
            " and the prediction for any L-Lipschitz function is near its value,"
            " whether or not training has seen that function.",
            (lemmas.proposition_1, lemmas.unseen_functions),
            figure="unseen",
            reconstructed=(
                "both bounds; their constants are this package's and are attained"
            ),
        ),
        Reading(
            "Oscillation",
            "Attention on other features decays more slowly than that on the own"
            " feature grows, and can oscillate.",
            (experiments.oscillation,),
            figure="oscillation",
        ),
        Reading(
            "Other scores",
            "The scores of features other than the query's decrease overall.",
            (experiments.off_target_scores,),
            reconstructed=CHOSEN,
        ),
        Reading(
            "Section 3.1",
            "Prompts are sampled, and tokens are noisy versions of the features.",
            (experiments.phases_of_samples, experiments.noisy_tokens),
        ),
        Reading(
            "Figure 1",
            "Loss and attention against the step: two phases for small L, three for"
            " large; larger L is faster. The paper trains a whole block; the row and"
            " the figure are of the one-matrix model that its theorems are about;"
            " *Section 6, the block* has the block beside it.",
            (experiments.phases_by_size,),
            figure="figure1",
            reconstructed=CHOSEN,
        ),
        Reading(
            "Section 6, the block",
            "The experiments train a whole block, with feed-forward layer and layer"
            " norms, on cosines, and its attention goes to the query's own feature.",
            (experiments.block,),
            figure="block",
            reconstructed=(
                f"{CHOSEN}, the tasks, whose formula is missing, the optimiser, and"
                " what the text leaves open of the block"
            ),
        ),
        Reading(
            "Figures 2 and 3",
            "Attention maps: the diagonal darkens, the rest fades. The paper's are of"
            " the block.",
            (experiments.attention_maps,),
            figure="maps",
            reconstructed=CHOSEN,
        ),
        Reading(
            "Figures 2 and 3, the block",
            "The same maps of the block that the paper trains.",
            (experiments.block,),
            figure="block_maps",
            reconstructed=f"{CHOSEN}, and the tasks",
        ),
        Reading(
            "Figure 4",
            "Random quadratic functions of Gaussian inputs: the same phases, faster"
            " for larger L.",
            (experiments.gaussian_inputs,),
            figure="figure4",
            reconstructed=CHOSEN,
        ),
        Reading(
            "Unequal frequencies",
            "The results are robust if features are not equally frequent.",
            (experiments.unequal_frequencies,),
            question=questions.unequal,
            figure="frequencies",
            reconstructed=CHOSEN,
        ),
        Reading(
            "Function classes",
            "Piecewise polynomials and small networks are in the class, too.",
            (experiments.other_functions,),
            reconstructed=CHOSEN,
        ),
    ),
    setting=Setting(
        "regression?K=50&L=4&t=20000~L=0.2",
        (
            "Small L, here 0.2 in grey dashes: the run ends in Phase II, as in "
            "Theorem 1. Large L: most steps go into Phase III, about K/(4ηε) of "
            "them, as in Theorem 2."
        ),
    ),
    credit=(
        "In-context regression, Lemmas 1 and 2, Propositions 1 to 4, "
        "Theorems 1 and 2, the regimes"
    ),
    entry=ModelEntry(
        data="a finite set of features, nonlinear functions",
        attention="one softmax head",
        trained="scores of features, or the matrix of keys and queries",
        command="icl-theory simulate --L 2 --delta 1 --eta 4 --K 10",
    ),
    folder=Path(__file__).parents[1],
)

CLAIMS = Claims(
    rows=(
        lemmas.lemma_1_identity,
        lemmas.direct_sums,
        lemmas.lemma_1_samples,
        dynamics.laws,
        dynamics.derivatives,
        dynamics.reductions,
        lemmas.lemma_1_envelope,
        lemmas.lemma_1_degenerate,
        lemmas.lemma_2_identity,
        lemmas.lemma_2_signs,
        lemmas.concentration,
        *ORDERS.values(),
        lemmas.phase_one_explicit,
        lemmas.phase_one_proved,
        lemmas.after_phase_one_explicit,
        lemmas.theorem_1_explicit,
        lemmas.proposition_1,
        dynamics.closed_counts,
        dynamics.proved_counts,
        dynamics.step_counts,
        dynamics.skipped_steps,
        dynamics.flow_solution,
        dynamics.phase_one,
        dynamics.total_time,
        dynamics.flat_at_high_accuracy,
        dynamics.regimes,
        dynamics.papers_rule,
        dynamics.monotone,
        dynamics.stable_rates,
        dynamics.rescaling,
        dynamics.embedding,
        dynamics.tail_law,
        dynamics.tail_law_finite,
        dynamics.tail_law_embeddings,
        experiments.phases_of_samples,
        experiments.cross_terms_of_unequal_tasks,
        experiments.ends_of_phases,
        experiments.oscillation,
        experiments.off_target_scores,
        dynamics.phase_one_of_both_regimes,
        experiments.larger_steps,
        lemmas.conditional_loss,
        experiments.noisy_tokens,
        lemmas.unseen_functions,
        experiments.phases_by_size,
        experiments.attention_maps,
        experiments.block,
        experiments.gaussian_inputs,
        lemmas.noise_floor,
        lemmas.lengths,
        experiments.unequal_frequencies,
        experiments.other_functions,
    ),
    questions=questions.QUESTIONS,
    papers=(NONLINEAR_REGRESSION,),
    check=check_bounds,
    compare=crosscheck,
)
