"""Rows, questions and pages of papers: quick rows, texts, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import icl_theory as icl
from icl_theory._version import __version__
from icl_theory.papers.convergence import statements as convergence
from icl_theory.papers.debiased_descent import statements as debiased_descent
from icl_theory.papers.fixed_chain import statements as markov
from icl_theory.papers.induction_heads import statements as induction_heads
from icl_theory.papers.linear_attention import preconditioned_descent
from icl_theory.papers.linear_attention import statements as linear_attention
from icl_theory.papers.recall.statements import model, training
from icl_theory.papers.regression.statements import (
    common,
    dynamics,
    experiments,
    lemmas,
)
from icl_theory.papers.regression.statements import questions as asked
from icl_theory.papers.regression.theorems import orderwise
from icl_theory.papers.representation import statements as representation
from icl_theory.papers.single_location import statements as single_location
from icl_theory.papers.sphere import statements as sphere
from icl_theory.papers.token_selection import statements as token_selection
from icl_theory.results.reproduction import Drawn, Reproduced, Reproduction, reproduce
from icl_theory.statements import (
    Answer,
    Claim,
    Claims,
    Outcome,
    Paper,
    Question,
    Reading,
    Series,
    Status,
    checks,
    identity,
    question,
    row,
)
from icl_theory.statements import numbers as figures
from icl_theory.statements.audit import Audit, answer, audit, known, name_of
from icl_theory.statements.audit import questions as every_question
from icl_theory.statements.audit import rows as every_row
from icl_theory.statements.claim import curves
from icl_theory.statements.statement import Statement
from tests.answers import Call
from tests.answers._runs import Asked, refused


def places() -> Asked:
    """Where rows and questions stand, and what the explorer shows of papers."""
    for name, each in known()[0].items():
        yield (
            name,
            lambda each=each: [
                [name_of(measured) for measured in each.rows],
                [one.name for one in each.questions],
                [
                    (
                        paper.name,
                        [
                            (one.name, [name_of(x) for x in one.rows], one.figure)
                            for one in paper.readings
                        ],
                    )
                    for paper in each.papers
                ],
                [each.check, each.compare],
            ],
        )


def quick_rows() -> Asked:
    """What quick rows measure that no other test reads."""
    for number, measured in enumerate(every_row(), start=1):
        name = f"{number} {measured.__module__.rpartition('.')[2]}.{name_of(measured)}"
        if name.split()[1] not in SLOW:
            yield (
                name,
                Call(lambda measured=measured: list(measured(True).cells()), rtol=1e-3),
            )


SLOW = [
    "convergence.concentration",
    "convergence.converging",
    "convergence.dominant_first",
    "convergence.falling",
    "convergence.four_phases",
    "convergence.short_prompts",
    "convergence.small_sizes",
    "debiased_descent.better_than_one",
    "debiased_descent.emerging_pair",
    "debiased_descent.minima",
    "dynamics.stable_rates",
    "dynamics.step_counts",
    "dynamics.tail_law_embeddings",
    "dynamics.tail_law_finite",
    "experiments.block",
    "experiments.cross_terms_of_unequal_tasks",  # prints rounding
    "experiments.other_functions",
    "experiments.phases_of_samples",
    "induction_heads.circuits",
    "induction_heads.first_gradient",
    "induction_heads.reduction",
    "induction_heads.stages",
    "induction_heads.three_phases",
    "lemmas.lemma_1_samples",
    "linear_attention.depth",
    "linear_attention.levels",
    "linear_attention.plateau_lengths",
    "linear_attention.staircase",
    "markov.basins",
    "markov.energy",
    "markov.steps",
    "model.bayes",
    "model.lemma_averaging",
    "model.unseen",
    "preconditioned_descent.inverse_layers",
    "preconditioned_descent.plus_plus",
    "proved.steps",
    "representation.linear_convergence",
    "representation.need_of_heads",
    "single_location.off_the_manifold",
    "single_location.on_the_manifold",
    "single_location.positions",
    "sphere.learnt",
    "token_selection.ends_of_runs",
    "token_selection.path",
    "token_selection.starts_at_solutions",
    "training.one_number",
    "training.plain_descent",
    "training.sample_complexity",
    "training.softmax_rate",
    "training.starts",
]  # half a second and more


def quick_answers() -> Asked:
    """Answers to open questions, in words and in curves."""
    for name, one in every_question().items():
        if name not in LONG:
            settled = (
                3 if name == "learning-rate" else None
            )  # larger steps magnify rounding
            yield name, Call(partial(_answered, one, settled), rtol=1e-3, atol=1e-9)


def _answered(question: Any, settled: int | None) -> Answer:
    answer = question.answer(True)
    if settled is None:
        return answer
    near, *others = answer.series
    return replace(
        answer, series=(near._replace(x=near.x[:settled], y=near.y[:settled]), *others)
    )


LONG = [
    "induction-basins",
    "induction-diversity",
    "induction-emergence",
    "induction-plateau",
    "linear-attention-depth",
    "linear-attention-plateau",
    "recall-samples",
    "whole-transformer",
]  # the same

FOUND = Claim(
    "a row",
    "a paper, Thm 1 (reconstructed)",
    "one is one",
    Status.EXACT,
    "n < 3",
    "1",
    "1e-3",
    "holds",
)
CLAIMED = (
    FOUND,
    replace(
        FOUND,
        name="ours",
        source="this package",
        status=Status.CERTIFIED,
        verdict="holds, loose by 2",
    ),
    replace(FOUND, name="fails", verdict="fails: see measured"),
    replace(
        FOUND, name="order", status=Status.ORDER, verdict="fails: counterexample 2 | 3"
    ),
    replace(FOUND, name="paper's", source="a paper, Thm 2", verdict="holds only for 3"),
    replace(
        FOUND,
        name="exact form",
        source="a paper, Lemma 1 (exact form)",
        status=Status.MEASURED,
    ),
    replace(
        FOUND,
        name="constants",
        source="a paper (our constants)",
        verdict="fails: counterexample",
    ),
)
ANSWERED = Answer(
    "why",
    "Why?",
    "Because of <1> | 2.",
    (Series("one", np.arange(3.0), np.ones(3), True),),
    "x",
    "y",
)


def claims() -> Asked:
    yield (
        "claims",
        lambda: [
            (
                each,
                each.outcome,
                each.formula,
                each.finding,
                each.violated,
                each.cells(),
            )
            for each in CLAIMED
        ],
    )
    yield "answer", lambda: [ANSWERED, ANSWERED.command]
    yield "outcomes", lambda: [(each.name, each.value) for each in Outcome]

    def made(holds: bool, verdict: str = "holds, loose by 3", bound: str = "") -> Claim:
        @row("parity", "a paper, Thm 1", Status.ORDER, bound="even")
        def parity(quick: bool) -> Claim:
            """n(n + 1) is
            even
            """
            return Claim.of(
                holds, "n < 10" if quick else "n < 100", "all even", verdict, bound
            )

        return parity(True)

    yield (
        "row",
        lambda: [
            made(True),
            made(False),
            made(True, bound="odd"),
            made(np.bool_(True), "fails: counterexample 3"),
        ],
    )
    yield (
        "row of a statement",
        lambda: row(
            Statement("a name", "a source", "it says", "upper", Status.MEASURED),
            bound="3",
        )(lambda quick: Claim.of(quick, "g", "m"))(True),
    )
    yield "row by default", lambda: row("a name")(made)(True).source

    def errors(*given: Any, grid: str = "two") -> Any:
        @identity("same", "a paper", 1e-8)
        def same(quick: bool) -> Any:
            """one is one"""
            yield from given
            return grid

        return same(True)

    yield (
        "identity",
        lambda: [
            errors(1e-9, 0.0),
            errors((1.0 + 2e-8, 1.0)),
            errors((np.ones(3), np.array([1.0, 2.0, 1.0])), 0.5),
            errors(math.nan, 0.0),
            errors(math.inf),
            errors(True, False),
            errors(1e-8),
            errors(1.01e-8),
        ],
    )
    yield "identity by default", lambda: identity("same")(lambda quick: iter(()))  # type: ignore[arg-type, return-value]
    yield "identity of nothing", lambda: errors()

    @question("why", "x", "y", "linear")
    def why(quick: bool) -> Any:
        """Why
        so?
        """
        return f"Because. {quick}", iter([Series("one", np.arange(2.0), np.ones(2))])

    yield "question", lambda: [why.name, why.answer(True), why.answer(False)]
    yield (
        "curves",
        lambda: curves(
            np.arange(2.0), {"a": np.ones(2), "b": np.zeros(2)}, points=True
        ),
    )
    yield "series", lambda: curves(np.arange(2.0), {"a": np.ones(2)})
    yield from refused(
        {
            "verdict": lambda: replace(FOUND, verdict="perhaps"),
            "verdict, capital": lambda: replace(FOUND, verdict="Holds"),
            "verdict of a row": lambda: made(True, "is so"),
            "rows": lambda: Claims(rows=[len]),  # type: ignore[arg-type]
            "rows, called": lambda: Claims(rows=(3,)),  # type: ignore[arg-type]
            "questions": lambda: Claims(questions=(len,)),  # type: ignore[arg-type]
            "papers": lambda: Claims(papers=("a",)),  # type: ignore[arg-type]
        }
    )
    reading = Reading("Theorem 1", "It says so.", (len, max), why)  # type: ignore[arg-type]
    paper = Paper(
        "a-paper",
        "Is it so?",
        "A. Author",
        2025,
        "arXiv:1",
        (reading, replace(reading, rows=(max, min))),
    )  # type: ignore[arg-type]
    yield "gathered", lambda: Claims(papers=(paper,))
    yield (
        "given",
        lambda: Claims(rows=(min,), questions=(Question("b", len),), papers=(paper,)),
    )  # type: ignore[arg-type]
    yield (
        "references",
        lambda: [
            replace(paper, title=title).reference
            for title in ("A title", "A title!", "A title.", "Is it?")
        ],
    )


def measures() -> Asked:
    rng = np.random.default_rng(2)
    yield (
        "off",
        lambda: [
            figures.off([1.0, 2.2], [1.0, 2.0]),
            figures.off(0.5, 1.0),
            figures.off(np.ones(2), -1.0),
        ],
    )
    yield (
        "apart",
        lambda: [figures.apart([1.0, 2.2], [1.0, 2.0]), figures.apart(-1.0, 1.0)],
    )
    yield (
        "deviations",
        partial(
            figures.deviations, rng.normal(size=(20, 3)), np.array([0.0, 0.1, 1.0])
        ),
    )
    yield (
        "deviations, constant",
        partial(figures.deviations, np.ones((4, 2)), np.array([1.0, 2.0])),
    )
    yield (
        "power",
        lambda: [
            figures.power([1, 2, 4], [1, 4, 16.5]),
            figures.power([10, 100], [1.0, 0.1]),
        ],
    )
    yield (
        "decade",
        lambda: [
            figures.decade(x)
            for x in (
                0.0,
                1e-17,
                1e-16,
                1.1e-16,
                1e-9,
                9e-10,
                0.5,
                1.0,
                12.0,
                math.nan,
                math.inf,
            )
        ],
    )
    yield (
        "span",
        lambda: [figures.span(iter([3.0, 1.25, 2.0]), ".1f"), figures.span([2], "d")],
    )
    yield (
        "listed",
        lambda: [
            figures.listed([1, 2.5, "a"]),
            figures.listed((0.123, 4.0), ".2f"),
            figures.listed([]),
        ],
    )
    yield (
        "named",
        lambda: [
            figures.named({"a": 0.1234, "b": 2.0}, ".1%"),
            figures.named({"a": 1}),
        ],
    )
    yield (
        "minimum",
        Call(
            lambda: figures.minimum(
                lambda x: (float(np.sum((x - 2.0) ** 2)), 2.0 * (x - 2.0)),
                np.zeros((2, 2)),
            ),
            rtol=1e-6,
        ),
    )
    trainer = icl.SampledRisk(
        icl.Features.simplex(3, 1.0), icl.tasks.Linear(1.0), N=4, batch=3, seed=1
    )
    yield (
        "losses",
        lambda: [
            figures.losses(trainer, np.eye(3), 3),
            figures.losses(trainer, np.eye(3), 2, 1),
        ],
    )


def helpers() -> Asked:
    """What rows and questions are made of."""
    yield (
        "random risk",
        lambda: [
            common.random_risk(3, 4).loss(np.eye(4)),
            repr(common.random_risk(3, 4, 5, 0.2)),
        ],
    )
    yield "random scores", partial(common.random_scores, 3, 3, 1.5)
    yield (
        "random cases",
        lambda: [
            (seed, repr(risk))
            for seed, risk in common.random_cases(
                4, (3, 4), (math.inf, 5.0, 7.0), (0.0, 0.5)
            )
        ],
    )
    yield (
        "equivalent",
        lambda: {
            name: [repr(x) for x in pair] for name, pair in common.equivalent(4).items()
        },
    )
    yield (
        "rescaled",
        lambda: {
            name: common.rescaled(*pair, 5)
            for name, pair in common.equivalent(4).items()
        },
    )
    yield (
        "cross ratios",
        lambda: common.cross_ratios(
            common.random_risk(3, 4), common.random_scores(3, 4, 1.0)
        ),
    )
    yield (
        "iterated",
        lambda: [
            common.iterated_steps(7, 0.4, (0.5, 0.1, 0.02)),
            common.iterated_gaps(7, 0.4, 5),
        ],
    )
    yield (
        "plain descent",
        lambda: common.plain_descent(common.random_risk(3, 3), np.eye(3), 0.3, 4),
    )
    yield (
        "examples",
        lambda: [
            (repr(risk), risk.features.vectors, risk.features.probs, risk.task.matrix)
            for risk in (
                dynamics.correlated_example(),
                dynamics.nested_example(),
                dynamics.nested_example(0.7),
            )
        ],
    )
    yield (
        "unequal tasks",
        lambda: {
            name: repr(risk) for name, risk in experiments.unequal_tasks().items()
        },
    )
    yield (
        "turns",
        lambda: experiments.turns(
            np.exp(
                np.array(
                    [
                        [0.0, 0.0, 0.0],
                        [1.0, 1.0, 1e-7],
                        [0.5, 2.0, 0.0],
                        [0.7, 3.0, 1e-7],
                    ]
                )
            )
        ),
    )
    yield (
        "wandering",
        lambda: [
            (name, repr(risk), repr(trainer), eta)
            for name, risk, trainer, eta in experiments.wandering()
        ],
    )
    for kind in ("networks", "piecewise quadratics"):
        yield (
            kind,
            partial(
                experiments.drawn_functions,
                kind,
                icl.Features.random(4, 3, 0.7, seed=1).vectors,
                2.0,
                5,
            ),
        )

    def survey(low: float, high: float, rise: float = 2.0) -> orderwise.Survey:
        trends = dict.fromkeys(orderwise.PARAMETERS, 1.0) | {
            "K": rise,
            "δ": 1.14,
            "c": 0.86,
        }
        return orderwise.Survey(
            400, low, high, math.sqrt(low * high), trends, trends, ("K = 3", "K = 9")
        )

    for statement in (orderwise.STATEMENTS[0], orderwise.STATEMENTS[6]):
        least, most = orderwise.fitted_constants()[statement.name]
        for low, high in ((0.6, 1.9), (0.4, 1.9), (0.6, 2.1), (0.4, 2.1)):
            found = survey(low * max(least, 1e-3), high * most)
            yield (
                f"{statement.name}: {low} {high}",
                partial(lemmas.verdict, statement, found),
            )
            with_it = lemmas.order_statement(statement)

            def printed(with_it: Any = with_it, found: Any = found) -> Any:
                with mock.patch.object(orderwise, "survey", return_value=found):
                    return list(with_it(True).cells())

            yield f"{statement.name}: {low} {high}, row", printed
    yield (
        "moving",
        lambda: [
            lemmas._moving(survey(1.0, 2.0, rise).rise) for rise in (1.0, 1.16, 0.1)
        ],
    )
    L = np.geomspace(0.01, 10.0, 61)
    for low, high, places in (
        (-2.0, 0.0, 1.0),
        (-1.6, 0.0, 1.0),
        (-0.8, -0.5, 1.0),
        (-1.9, -0.3, 3.0),
    ):
        exponent = low + (high - low) / (1.0 + L ** (-2.0 * places))
        yield (
            f"transition {low} {high}",
            partial(asked._transition, 20, L, exponent, 0.7),
        )
    yield (
        "which",
        lambda: [asked._which([20, 1000]), asked._which([3]), asked._which(iter(()))],
    )
    yield (
        "moves",
        lambda: [
            asked._moves("T", ("a", "b"), "1 and 9", np.array(a), np.array(b))
            for a, b in (
                ([3.0, 2.0, 1.0], [1.0, 1.1, 1.1]),
                ([1.0, 1.0, 1.1], [1.0, 2.0, 4.0]),
            )
        ],
    )
    yield (
        "reviewed",
        lambda: [
            training.reviewed(x) for x in (-0.5, -0.509, -0.489, -1.0, 0.0099, 0.3)
        ],
    )
    yield "zipf", partial(training.zipf, 4)
    yield (
        "recalls",
        lambda: [
            training._recalls(
                {
                    "seen_loss": a,
                    "unseen_loss": b,
                    "seen_accuracy": c,
                    "unseen_accuracy": d,
                }
            )
            for a, b, c, d in (
                (1.0, 1.0, 1.0, 1.0),
                (1.0, 3.0, 0.95, 0.05),
                (1.0, 3.0, 0.85, 0.05),
                (1.0, 3.0, 0.95, 0.4),
            )
        ],
    )
    once = icl.recall.Counts.fixed(1)
    task = icl.recall.RecallTask(12, 3, 4, probs=[0.5, 0.3, 0.2], counts=once, H=7)
    yield "spread", partial(training.missing_spread, task, np.array([1, 5, 30]))
    yield (
        "costs",
        Call(lambda: training.costs(task, 5, 3, "ngd", 1.0, 20), rtol=1e-6, atol=1e-9),
    )
    yield "failures", Call(lambda: training.failures(task, 6, 0.3, 5), rtol=1e-6)
    yield (
        "rate",
        Call(
            lambda: training.rate_ratio(icl.recall.RecallRisk(task), 0.5, 40.0),
            rtol=1e-6,
        ),
    )
    yield "lost", lambda: [debiased_descent.debiased(5, N, 0.3) for N in (10, 40)]
    yield (
        "unpaired",
        lambda: debiased_descent.unpaired(np.array([1.0, -0.8, 0.2, -0.3])),
    )
    yield (
        "other lengths",
        lambda: [debiased_descent.lost(name, (40, 80)) for name in ("sum", "mean")],
    )
    yield (
        "grids",
        lambda: [
            preconditioned_descent.hermite_grid([2, 3]),
            preconditioned_descent.product_grid(
                np.polynomial.laguerre.laggauss, [2, 1]
            ),
        ],
    )
    unit = np.array([0.5 * np.eye(2), 0.2 * np.eye(2)])
    yield (
        "deep loss",
        lambda: preconditioned_descent.deep_loss(
            unit,
            0.1 * unit,
            preconditioned_descent.SKEWED,
            preconditioned_descent.hermite_grid([5] * 4),
        ),
    )
    yield (
        "prompt moments",
        lambda: linear_attention.prompt_moments(linear_attention.skewed(2, 0.5)),
    )
    yield "aligned", partial(linear_attention.aligned, 3, 0.2)
    yield "best losses", lambda: linear_attention.best_losses(20, (1, 3))
    sizes, queries, keys = linear_attention.split(linear_attention.skewed(2, 0.5))
    yield "split", lambda: [sizes, queries.T @ keys]
    mixed, *nodes = linear_attention.exponential(1, 5)
    yield "exponential", lambda: [mixed.floor(), nodes]
    yield (
        "off a level",
        lambda: linear_attention._off_level(
            np.arange(6), np.array([5.0, 1.1, 1.05, 1.04, 0.9, 0.1]), 1.0, 0
        ),
    )
    yield "memorised", Call(lambda: linear_attention.memorised(8, 2), rtol=1e-6)
    yield (
        "loose",
        lambda: [
            convergence.loose(np.array(x), "the logarithm")
            for x in ([1.3, 1.05], [1.01, 1.05], [1.3, 1.2])
        ],
    )
    yield (
        "problems",
        lambda: [
            repr(convergence.imbalanced(9, 1e-3, 0.7)),
            repr(convergence.balanced(9, 1e-3)),
        ],
    )
    yield (
        "trained",
        lambda: [convergence.trained(9, 1e-2).steps, convergence.phases(9, 1e-2)],
    )
    yield (
        "chains",
        lambda: [induction_heads._chains(law, 2, 3) for law in induction_heads.LAWS],
    )
    yield (
        "information",
        lambda: induction_heads._information(induction_heads._chains("lazy", 2), 3),
    )
    nested = induction_heads.NestedLogits(9, np.array([0.1, 0.2, 0.5]), True)
    yield (
        "nested logits",
        lambda: [nested.evaluate(np.array([0.4, 1.0, 2.0])), nested.initial],
    )
    yield (
        "ends of a chain",
        lambda: [
            markov._ends(problem)
            for problem in markov._problems(True, eta=0.5, max_steps=200)[:3]
        ],
    )
    yield (
        "window",
        lambda: [
            sphere.predicted(problem)
            for problem in (
                icl.Sphere(task=task, L=1.5, N=100, noise=noise)
                for task in ("linear", "cosine", "relu")
                for noise in (0.5, 0.0)
            )
        ],
    )
    yield (
        "linear on a sphere",
        lambda: [
            sphere.linear_attention(icl.Sphere(task=task, L=1.5, N=100))
            for task in ("linear", "cosine", "relu")
        ],
    )
    yield (
        "least losses",
        Call(
            lambda: [
                single_location.least_linear(single_location.SingleLocation(snr=4.0)),
                single_location.least_erf(single_location.SingleLocation(snr=4.0)),
            ],
            rtol=1e-6,
        ),
    )
    yield (
        "pace",
        Call(
            lambda: representation.pace(representation.Representation(heads=2)),
            rtol=1e-6,
        ),
    )
    yield (
        "values seen",
        Call(lambda: model._value_rows("relu", 0.2, 5), rtol=1e-6, atol=1e-12),
    )
    yield (
        "fits",
        lambda: (
            [
                model._fit(
                    np.array([[0.0], [0.5], [0.5]]),
                    np.array([1] * 30 + [2] * last),
                    np.zeros(30 + last, int),
                )
                for last in (30, 60)
            ]
            + [model._fit(np.array([[0.0], [1.0]]), np.array([2]), np.array([0]))]
        ),
    )
    yield (
        "ends at tokens",
        Call(
            lambda: token_selection.ends(
                [token_selection.TokenSelection(seed=1)], [1e3, 1e4], "local", 0.9
            ),
            rtol=1e-6,
        ),
    )


def pages() -> Asked:
    """Tables and pages, of made-up claims."""
    report = Audit(CLAIMED, (ANSWERED,), ("the row of the family is left out: no",))
    whole = replace(report, failures=())
    for name, each in (("audit", report), ("audit, whole", whole)):
        yield (
            name,
            lambda each=each: [
                each.to_markdown(),
                each.to_dict(),
                each.columns,
                [c.name for c in each.violations],
            ],
        )
        yield f"{name}: html", lambda each=each: each._repr_html_()
    ours, theirs = (
        Reading("Theorem 1", "It says so.", reconstructed="all of it"),
        Reading("Theorem 2", "And <so> on."),
    )
    paper = Paper(
        "a-paper",
        "On Papers",
        "A. Author",
        2025,
        "arXiv:1",
        (ours, theirs),
        "Read in part.",
    )
    parts = (
        Reproduced(
            ours,
            'icl-theory reproduce a-paper --only "Theorem 1"',
            CLAIMED,
            ANSWERED,
            (),
        ),
        Reproduced(theirs, "a command", CLAIMED[4:5], None, ()),
        Reproduced(theirs, "a command", (), None, ()),
    )
    page = Reproduction(
        paper, "icl-theory reproduce a-paper", parts, ("the figure is left out",)
    )
    drawn = replace(
        page,
        parts=(
            parts[0]._replace(drawn=(Drawn("fig", "A caption", "a command", None),)),
        ),
        failures=(),
    )
    yield "verdicts", lambda: [part.verdict for part in parts]
    yield (
        "tables",
        lambda: [
            parts[0].table,
            page.overview,
            page.notes,
            [c.name for c in page.violations],
        ],
    )
    yield (
        "notes",
        lambda: [
            replace(page, parts=parts[1:]).notes,
            replace(page, paper=replace(paper, note="")).notes,
        ],
    )
    yield "page", lambda: [page.to_markdown(), drawn.to_markdown(), drawn.overview]
    yield "page, html", lambda: page.to_html().replace(__version__, "VERSION")

    def written() -> Any:
        found = page.write("pages")
        return [found, found[0].read_text(encoding="utf-8") == page.to_markdown()]

    yield "written", written
    yield "names of rows", lambda: [name_of(len), name_of(partial(len))]  # type: ignore[arg-type]
    for only in ("Equation 9", "Unequal frequencies"):

        def made(only: str = only) -> Any:
            found = reproduce("nonlinear-regression", only=only, quick=True)
            return [
                found.command,
                found.overview,
                found.failures,
                [(d.name, d.caption, d.command) for p in found.parts for d in p.drawn],
            ]

        yield f"reproduced, {only}", Call(made, rtol=1e-3)
    yield from refused(
        {
            "audit, quick": partial(audit, quick=1),
            "audit, claim": partial(audit, claim=0),
            "audit, claim large": partial(audit, claim=10**6),
            "answer": partial(answer, "what"),
            "answer, quick": partial(answer, "linear", quick="yes"),
            "reproduce": partial(reproduce, "no-paper"),
            "reproduce, only": partial(
                reproduce, "nonlinear-regression", only="Theorem 9"
            ),
            "reproduce, quick": partial(reproduce, "nonlinear-regression", quick=None),
            "folder": lambda: page.write("\0"),
        }
    )
    yield "one claim", lambda: audit(quick=True, claim=12)


def runs() -> Asked:
    """Runs held against statements and samples, as their family declares."""
    recall = partial(icl.recall.simulate, 9, 2, 3, 0.3, H=8, method="exact", above=0.05)
    linear = icl.LinearAttention(d=3, decay=1.0, N=9, coordinates="pair", above=0.05)

    def shown(found: Any) -> Any:
        return [
            found.checks,
            found.note,
            found.power,
            found.passed,
            found.t,
            found.to_markdown(),
        ]

    yield (
        "samples of linear attention",
        Call(
            lambda: shown(
                checks.crosscheck(linear.simulate(), batch=8, batches=5, seed=2)
            ),
            rtol=1e-6,
        ),
    )
    yield (
        "samples by default",
        Call(lambda: shown(checks.crosscheck(linear.simulate(), batches=4)), rtol=1e-6),
    )
    yield (
        "samples of one number",
        Call(
            lambda: shown(
                checks.crosscheck(
                    icl.regression.GroupedRegression(
                        L=1.0, delta=1.0, sizes=(1, 3), N=9
                    ).simulate(),
                    batch=8,
                    batches=5,
                )
            ),
            rtol=1e-6,
        ),
    )
    yield from refused(
        {
            "run": partial(checks.check_bounds, 3),
            "no statements": lambda: checks.check_bounds(recall()),
            "batch": lambda: checks.crosscheck(linear.simulate(), batch=0),
            "batches": lambda: checks.crosscheck(linear.simulate(), batches=3),
            "seed": lambda: checks.crosscheck(linear.simulate(), seed=-1),
            "option": lambda: checks.crosscheck(linear.simulate(), points=3, batch=2),
            "option of regression": lambda: checks.crosscheck(
                icl.simulate(2.0, 1.0, 4.0, K=3, N=5), width=3
            ),
            "not sampled": lambda: checks.crosscheck(recall(), batches=4, batch=2),
            "infinite": lambda: checks.crosscheck(
                linear.changed(N=math.inf).simulate()
            ),
            "no run": partial(checks.crosscheck, 3),
        }
    )
