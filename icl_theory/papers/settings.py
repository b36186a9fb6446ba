"""What the explorer shows of papers: the address of a setting for each, and what is to be seen there."""

from __future__ import annotations

SETTINGS = {
    "nonlinear-regression": (
        "regression?K=50&L=4&t=20000~L=0.2",
        "Small L, here 0.2 in grey dashes: the run ends in Phase II, as in Theorem 1. Large L: most steps go into"
        " Phase III, about K/(4ηε) of them, as in Theorem 2.",
    ),
    "in-context-convergence": (
        "regression?L=1&delta=1.41421356&K=100&t=10000",
        "Features that are orthonormal and equally frequent, and linear functions with w ~ N(0, I): attention grows"
        " in Phase I, which takes about K²/η steps, and then the loss converges.",
    ),
    "in-context-recall": (
        "recall?alpha=0.2&t=100",
        "Noise in every fifth sentence: the loss falls exponentially to the Bayes risk, as in Theorem 5.4. An"
        " output that training never saw is recalled like any other, as in Theorem 5.5.",
    ),
    "preconditioned-descent": (
        "linear-attention?decay=2&test_decay=2&t=1000000000",
        "Each direction of Γ comes to its best value, largest eigenvalue first: one step of descent with a"
        " preconditioner, as in Theorem 1. Along small eigenvalues, of which the prompt says little, it stays far"
        " below the 1/λ of least squares.",
    ),
    "trained-linear-models": (
        "linear-attention?noise=0&test_noise=0&test_decay=0&t=20000",
        "The trained layer fails if the law of the tokens changes: tested on isotropic tokens its loss ends above"
        " the one it began with.",
    ),
    "linear-attention-dynamics": (
        "linear-attention?decay=0&test_decay=0&t=100",
        "Tokens alike in all directions. As a product of small factors (dashed), as keys and queries merged in one"
        " matrix are, the model waits on a plateau, then its loss drops once.",
    ),
    "attention-window": (
        "sphere?N=10000&t=1000~N=100",
        "The window adapts: with a hundred times as many pairs as in grey dashes it gets narrower. Steeper tasks, a"
        " larger L, narrow it further, and noise widens it.",
    ),
    "statistical-induction-heads": (
        "induction-heads?objective=log&ratio=0.1&t=100",
        "The three phases: predictions are uniform first, then those of the unigram, and in the end nearly those of"
        " the bigram.",
    ),
    "causal-structure": (
        "induction-heads?T=50&eta=0.2&ratio=100&match=0.3&sink=0&t=20",
        "The two stages: a fast first layer turns to the parent of a symbol, here the symbol before, while the"
        " match hardly moves. Then the match grows, and there is an induction head.",
    ),
    "max-margin-tokens": (
        "max-margin-tokens?T=5&t=1000000",
        "Each input comes to attend to one token, and p turns to the hard-margin solution of the selected ones,"
        " ever more slowly: there are 10¹² steps to play.",
    ),
    "debiased-descent": (
        "debiased-descent?N=40&t=100",
        "From this random start the two heads become a pair: output weights and"
        " temperatures of opposite signs. From others they become equal.",
    ),
    "attention-with-markov": (
        "attention-with-markov?q=0.8&t=100~q=0.2",
        "For p + q > 1, here 1.3, a small start ends at the stationary law, far above the floor; in grey dashes,"
        " for p + q = 0.7, at the prediction of the chain.",
    ),
    "single-location": (
        "single-location?d=10000&t=40",
        "After an escape that takes about ln d steps both overlaps rise to 1: the informative token is found.",
    ),
    "contextual-generalization": (
        "contextual-generalization?heads=4&t=1000~heads=1",
        "Several heads end as ridge regression over the representations. One head, in grey dashes, cannot.",
    ),
    "task-diversity": (
        "task-diversity?tasks=8&t=10000",
        "Trained on a quarter as many tasks as dimensions the layer memorises them: on new tasks its loss stays"
        " many times that on its own.",
    ),
}
