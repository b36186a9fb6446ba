"""The papers on linear attention: their statements, and the rows, questions and figures that measure them."""

from icl_theory.claims.paper import Paper, Reading
from icl_theory.families.linear_attention import evidence

NOTE = "The statements are in our words, for the layer of this package. The constants are derived here."

PAPERS = (
    Paper(
        "preconditioned-descent",
        "Transformers learn to implement preconditioned gradient descent for in-context learning",
        "Kwangjun Ahn, Xiang Cheng, Hadi Daneshmand, Suvrit Sra",
        2023,
        "arXiv:2306.00297",
        (
            Reading(
                "Theorem 1",
                "The best layer is a step of gradient descent, preconditioned by the tokens, length and noise.",
                (evidence.population_loss,),
            ),
            Reading(
                "several layers",
                "Each layer is a step of gradient descent on the prompt, and more layers reach a lower loss.",
                (evidence.depth,),
                question="linear-attention-depth",
                figure="depth",
            ),
        ),
        NOTE,
    ),
    Paper(
        "trained-linear-models",
        "Trained Transformers Learn Linear Models In-Context",
        "Ruiqi Zhang, Spencer Frei, Peter L. Bartlett",
        2024,
        "arXiv:2306.09927",
        (
            Reading(
                "convergence",
                "Gradient flow from a small balanced start converges to the best layer.",
                (evidence.small_starts, evidence.every_mode),
            ),
            Reading(
                "distribution shifts",
                "The trained layer works for other queries and tasks, and fails if the law of the tokens changes.",
                (evidence.shifts,),
                figure="shifts",
            ),
        ),
        NOTE,
    ),
    Paper(
        "linear-attention-dynamics",
        "Training Dynamics of In-Context Learning in Linear Attention",
        "Yedi Zhang, Aaditya K. Singh, Peter E. Latham, Andrew Saxe",
        2025,
        "arXiv:2501.16265",
        (
            Reading(
                "merged keys and queries",
                "From a small start the loss has one plateau and one abrupt drop.",
                (evidence.one_drop, evidence.plateau_lengths),
                question="linear-attention-plateau",
            ),
            Reading(
                "separate keys and queries",
                "Heads go from saddle to saddle and learn one principal direction after another.",
                (evidence.staircase,),
                figure="staircase",
            ),
        ),
        NOTE,
    ),
    Paper(
        "task-diversity",
        "Asymptotic theory of in-context learning by linear attention",
        "Yue M. Lu, Mary I. Letey, Jacob A. Zavatone-Veth, Anindita Maiti, Cengiz Pehlevan",
        2024,
        "arXiv:2405.11751",
        (
            Reading(
                "transition in task diversity",
                "With fewer tasks than dimensions the layer memorises them; with more it learns in context.",
                (evidence.transition,),
                figure="task_diversity",
            ),
        ),
        NOTE + " The transition was observed by Raventós et al. 2023, arXiv:2306.15063.",
    ),
)
