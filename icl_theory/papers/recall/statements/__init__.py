"""The paper on in-context recall: its statements, and the evidence for them.

Each statement names the rows, questions and figures that measure it.
"""

from pathlib import Path

from icl_theory.papers.recall.statements import model, training
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

# What we reconstructed of a statement, see `Reading`.
WORDS = "the formula, from the words of the text"
RATE = (
    "the exponent; a public review (ICLR 2026, Reviewer 4) quotes ηt/√|Q| from the"
    " paper's appendix, and ηt/|Q| and ηt from its text"
)

IN_CONTEXT_RECALL = Paper(
    "in-context-recall",
    "How Transformers Learn In-Context Recall Tasks? Optimality, Training Dynamics"
    " and Generalization",
    "Quan Nguyen, Thanh Nguyen-Tang",
    2025,
    "arXiv:2505.15009",
    (
        Reading(
            "Lemma 3.1",
            "Linear and ReLU attention reach the Bayes risk under the paper's"
            " reparameterisation.",
            (model.lemma_adding, model.bayes, model.sentence_counts),
            reconstructed="the loss as a function of the trained numbers",
        ),
        Reading(
            "Theorem 3.2",
            "Normalised descent without noise: the loss falls exponentially.",
            (
                model.certified_bound,
                training.linear_convergence,
                training.exponents,
                training.unequal_rate,
                training.plain_descent,
            ),
            question=training.exponent,
            figure="recall_exponents",
            reconstructed=RATE,
        ),
        Reading(
            "Theorem 3.3",
            "Outputs that training has never seen are recalled like seen ones, with a"
            " probability that is bounded from below at every step.",
            (model.UNSEEN, model.unseen_lower_bound, model.unseen_rows),
            question=training.unseen,
            figure="recall_models",
            reconstructed=WORDS,
        ),
        Reading(
            "Lemma 4.1",
            "Softmax attention reaches the Bayes risk as well.",
            (model.lemma_averaging,),
            reconstructed="the loss at finite length, by one integral",
        ),
        Reading(
            "Theorem 4.2",
            "Normalised descent on softmax attention: the loss falls exponentially.",
            (training.softmax_rate, training.one_number),
            reconstructed=(
                "the exponent; the same review quotes exp(-t), and expects exp(-ηt)"
            ),
        ),
        Reading(
            "Theorem 5.4",
            "The same with noise, down to the Bayes risk.",
            (training.noisy_convergence, training.starts),
            question=training.noise,
            reconstructed="the exponent",
        ),
        Reading(
            "Theorem 5.5",
            "Outputs never seen are recalled with noise, too.",
            (model.UNSEEN_NOISY,),
            reconstructed=WORDS,
        ),
        Reading(
            "Theorem 5.6",
            "Attention finds the output, and the feed-forward layer the noise.",
            (model.part_roles, model.layer_logits),
            question=training.roles,
            figure="recall_roles",
            reconstructed=WORDS,
        ),
        Reading(
            "Finite samples",
            "A certain number of sentences suffices for a small excess.",
            (
                training.missing_triggers,
                training.sample_complexity,
                training.learnt_frequency,
            ),
            question=training.samples,
            figure="recall_samples",
            reconstructed="the number of sentences",
        ),
        Reading(
            "Experiments, finite data",
            "Training on a fixed set of sentences, epoch by epoch.",
            figure="recall_finite",
        ),
        Reading(
            "Experiments, layers",
            "Logits of the two layers during training.",
            figure="recall_layers",
        ),
    ),
    setting=Setting(
        "recall?alpha=0.2&t=100",
        (
            "Noise in every fifth sentence: the loss falls exponentially to the "
            "Bayes risk, as in Theorem 5.4. An output that training never saw is "
            "recalled like any other, as in Theorem 5.5."
        ),
    ),
    credit="In-context recall, Lemmas 3.1 and 4.1, Theorems 3.2 to 5.6",
    entry=ModelEntry(
        data="words, a trigger and what followed it",
        attention="linear, ReLU or softmax",
        trained="one strength a trigger, a value scale; all matrices on samples",
        command="icl-theory recall simulate --law planted",
    ),
    folder=Path(__file__).parents[1],
)

CLAIMS = Claims(
    questions=(
        training.exponent,
        training.noise,
        training.samples,
        training.unseen,
        training.roles,
    ),
    papers=(IN_CONTEXT_RECALL,),
)
