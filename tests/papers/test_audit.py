from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import icl_theory as icl
from icl_theory.engine.comparison import Check, detectable
from icl_theory.papers.regression.statements import dynamics
from icl_theory.results.plots import plot_answer, save
from icl_theory.results.prose import PARTS, Finding, Prose
from icl_theory.results.reproduction import Reproduced, Reproduction, papers
from icl_theory.statements import checks, numbers
from icl_theory.statements.claim import (
    Answer,
    Claim,
    Errors,
    Outcome,
    Question,
    Status,
    identity,
    row,
)
from icl_theory.statements.paper import Claims, Paper, Reading
from tests.test_cli import run_main

audit = importlib.import_module(
    "icl_theory.statements.audit"
)  # as is that of the folder of claims
COMMAND = importlib.import_module(
    "icl_theory.cli.audit"
)  # the package's attribute of this name is the function


@pytest.fixture(scope="module")
def part() -> icl.statements.Audit:
    """A row and a question."""
    return replace(
        icl.audit(quick=True, claim=1), answers=(icl.answer("degenerate", quick=True),)
    )


def test_markdown_has_one_row_a_claim_and_a_question(
    part: icl.statements.Audit,
) -> None:
    rows = [line for line in part.to_markdown().splitlines() if line.startswith("| ")]
    assert len(rows) == len(part.claims) + len(part.answers) + 2


def test_unknown_questions_list_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="question = 'why': must be one of linear, tightness"
    ):
        icl.answer("why")


def test_command_prints_json(
    capsys: pytest.CaptureFixture[str],
    part: icl.statements.Audit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(COMMAND, "measure_audit", lambda **_: part)
    status, out, _ = run_main(capsys, "audit", "--json")
    assert status == 0
    assert len(json.loads(out)["claims"]) == len(part.claims)


def test_a_violated_claim_is_status_one(
    capsys: pytest.CaptureFixture[str],
    part: icl.statements.Audit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = replace(
        part,
        claims=(
            replace(part.claims[0], verdict="fails: see the column 'measured'"),
            *part.claims[1:],
        ),
    )
    monkeypatch.setattr(COMMAND, "measure_audit", lambda **_: broken)
    status, out, _ = run_main(capsys, "audit")
    assert status == 1
    assert "Violated: Lemma 1" in out


def judged(*sources: str, verdict: str = "holds") -> tuple[Claim, ...]:
    return tuple(
        Claim("a", source, "so", Status.ORDER, "", "", "", verdict)
        for source in sources
    )


THEIRS, REBUILT, OWN = "paper, Thm 1", "paper, Thm 2 (reconstructed)", "this package"


def test_an_audit_counts_whose_statements_it_judges_and_whose_fail() -> None:
    claims = judged(
        THEIRS, REBUILT, "paper, Lemma 1 (exact form)", OWN, "x (our constants)"
    )
    found = audit.Audit((*claims, *judged(REBUILT, REBUILT, verdict="fails for x")), ())
    assert found.formulas == {"paper": 1, "as reconstructed": 5, "this package": 1}
    assert sum(found.formulas.values()) == len(found.claims)
    assert found.summary == (
        "7 claims are judged: 1 in a paper's own words, 5 in formulas that we reconstructed and 1 of this package."
        " Those that fail: 2 in formulas that we reconstructed."
    )
    assert found.to_markdown().startswith(
        f"# Audit\n\n{found.summary}\n\n## Claims\n\n"
    )
    assert found.to_dict()["formulas"] == found.formulas
    theirs = audit.Audit(
        (*judged(THEIRS, verdict="fails: counterexample x"), *judged(OWN)), ()
    )
    assert theirs.summary.endswith("Those that fail: 1 in a paper's own words.")
    assert audit.Audit(judged(OWN), ()).summary == (
        "1 claim is judged: 0 in a paper's own words, 0 in formulas that we reconstructed and 1 of this package."
        " None of them fails."
    )
    assert audit.Audit((), ()).summary == ""


def test_the_command_prints_whose_statements_were_judged(
    capsys: pytest.CaptureFixture[str],
    part: icl.statements.Audit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = replace(part, claims=judged(THEIRS, REBUILT, REBUILT))
    monkeypatch.setattr(COMMAND, "measure_audit", lambda **_: found)
    assert found.summary in " ".join(run_main(capsys, "audit")[1].split())


def test_only_the_failure_of_our_formula_says_that_it_is_ours() -> None:
    claims = (
        *judged(THEIRS, REBUILT, OWN),
        *judged(THEIRS, REBUILT, OWN, verdict="fails for x"),
    )
    ours = "This concerns our formula, not the published one"
    assert [ours in claim.finding for claim in claims] == [
        False,
        False,
        False,
        False,
        True,
        False,
    ]
    assert [claim.violated for claim in claims] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("outcome", Outcome)
def test_a_verdict_begins_with_its_outcome(outcome: Outcome) -> None:
    made = [
        Claim("a", "b", "c", Status.EXACT, "", "", "", outcome.value + words)
        for words in ("", ": x", " by 3")
    ]
    assert {claim.outcome for claim in made} == {outcome}
    with pytest.raises(
        ValueError,
        match="verdict = 'perhaps': must be a sentence that begins with holds or fails",
    ):
        replace(made[0], verdict="perhaps")


@pytest.mark.parametrize(
    "errors",
    [[0.0, math.nan], [math.nan, 0.0], [0.0, (np.ones(2), np.array([1.0, math.nan]))]],
)
def test_an_error_that_is_no_number_is_no_identity(errors: list[Any]) -> None:
    @identity("x = x")
    def row(quick: bool) -> Errors:
        """equal"""
        yield from errors
        return "a grid"

    assert row(True).violated
    assert row(True).measured == "error below nan"


@pytest.mark.parametrize(
    ("found", "holds"), [([1.0, 1.59], True), ([1.0, 1.61], False), ([0.41, 1.0], True)]
)
def test_pairs_of_an_identity_are_compared_with_what_is_expected(
    found: list[float], holds: bool
) -> None:
    @identity("x = x", allowed=0.6)
    def row(quick: bool) -> Errors:
        """equal"""
        yield np.array(found), np.array([1.0, 1.0])
        return "a grid"

    assert row(True).violated != holds


@pytest.mark.parametrize(
    "verdict",
    ["holds", "holds, loose by 3", "holds only so far", "fails: counterexample x"],
)
def test_a_row_whose_measurements_are_not_as_expected_fails_whatever_it_says(
    verdict: str,
) -> None:
    for holds in (True, np.True_, False, np.False_):

        @row("parity", "a paper", bound="declared")
        def even(quick: bool, holds: Any = holds) -> Claim:
            """n(n + 1) is even"""
            return Claim.of(holds, "n < 10", "all", verdict, "found" if quick else "")

        claims = [even(quick) for quick in (True, False)]
        assert {claim.verdict for claim in claims} == {
            verdict if holds else "fails: see the column 'measured'"
        }
        assert [claim.bound for claim in claims] == ["found", "declared"]
        assert {claim.violated for claim in claims} == {
            not holds or verdict.startswith("fails")
        }


def test_claims_that_bind_and_fail_are_violations(part: icl.statements.Audit) -> None:
    """Of all statuses and outcomes; a page of a paper counts the same ones."""
    claims = tuple(
        Claim(outcome.value, "a paper", "so", status, "", "", "", outcome.value)
        for status in Status
        for outcome in Outcome
    )
    wrong = {
        (status, word)
        for status in ("exact", "certified")
        for word in ("fails", "fails for", "fails: counterexample")
    }
    page = Reproduction(
        Paper("p", "", "", 0, "", ()),
        "",
        (Reproduced(Reading("", ""), claims, None, ()),),
        Prose(dict.fromkeys(PARTS, ""), {"": Finding("", "fails", "")}),
    )
    for found in (replace(part, claims=claims), page):
        assert {(str(each.status), each.name) for each in found.violations} == wrong


@pytest.fixture(scope="module")
def small() -> icl.statements.Audit:
    """The claims of one paper."""
    return icl.audit(quick=True, paper="trained-linear-models")


def test_one_paper_is_measured_alone_and_timed(small: icl.statements.Audit) -> None:
    report = small
    readings = papers()["trained-linear-models"].readings
    assert len(report.claims) == len({row for each in readings for row in each.rows})
    assert [*report.seconds] == ["trained-linear-models"]
    assert report.seconds["trained-linear-models"] > 0.0
    with pytest.raises(ValueError, match="paper = 'mine': must be one of"):
        icl.audit(paper="mine")
    with pytest.raises(ValueError, match="claim = 5: give a claim or a paper"):
        icl.audit(paper="trained-linear-models", claim=5)


def test_two_processes_print_what_one_does(
    capsys: pytest.CaptureFixture[str],
    small: icl.statements.Audit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = []

    def measured(**given: Any) -> icl.statements.Audit:
        assert given["jobs"] == 2
        reports.append(icl.audit(**given))
        return reports[0]

    monkeypatch.setattr(COMMAND, "measure_audit", measured)
    command = ("audit", "--quick", "--paper", "trained-linear-models", "--json")
    by_two = run_main(capsys, *command, "--jobs", "2")
    assert reports == [small]
    assert reports[0].seconds["trained-linear-models"] > 0.0
    monkeypatch.setattr(COMMAND, "measure_audit", lambda **_: small)
    assert by_two == run_main(capsys, *command)
    with pytest.raises(ValueError, match="jobs = 0: must be"):
        icl.audit(jobs=0)


@pytest.mark.parametrize("quick", [True, False])
def test_rows_and_questions_are_told_how_quick_to_be(
    quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def spy(quick: bool) -> Any:
        told.append(quick)
        return Claim("a", "b", "c", Status.EXACT, "", "", "", "holds")

    def asked(quick: bool) -> Any:
        told.append(quick)
        return Answer("why", "why?", "so", (), "x", "y")

    lines = ["a family is at fault"]
    claims = Claims((spy,), (Question("why", asked),))

    def in_order(failures: list[str]) -> Any:
        failures.extend(lines)
        yield "one", claims

    monkeypatch.setattr(audit, "claims_in_order", in_order)
    found = icl.audit(quick=quick)
    assert (told, found.failures) == ([quick] * 2, (*lines,))
    assert (
        icl.audit(quick=quick, claim=1).failures == ()
    )  # what is not asked for is not missed
    assert told == [quick] * 3
    assert audit.questions()["why"].name == "why"


def test_questions_that_are_given_come_before_those_of_papers() -> None:
    mine, theirs = (Question(name, lambda quick: None) for name in ("mine", "theirs"))  # type: ignore[arg-type, return-value]
    papers = (
        Paper(
            "p",
            "",
            "",
            0,
            "",
            (Reading("", "", question=theirs), Reading("", "", question=theirs)),
        ),
    )
    assert Claims(papers=papers).questions == (theirs,)
    assert Claims(questions=(mine,), papers=papers).questions == (mine,)


def test_a_row_that_two_statements_name_is_one_row() -> None:
    one, two = (lambda quick, each=each: each for each in range(2))  # type: ignore[misc]
    papers = (
        Paper(
            "p",
            "",
            "",
            0,
            "",
            (Reading("", "", (one, two)), Reading("", "", (two, one))),
        ),
    )
    assert Claims(papers=papers).rows == (one, two)
    assert Claims(rows=(two,), papers=papers).rows == (two,)


def test_numbers_of_rows_are_those_of_their_names() -> None:
    rng = np.random.default_rng(0)
    samples, expected = rng.normal(size=(40, 3)), np.array([0.3, -0.2, 0.1])
    z = [stats.ttest_1samp(samples[:, i], expected[i]).statistic for i in range(3)]
    assert numbers.deviations(samples, expected) == pytest.approx(np.abs(z), rel=1e-12)
    assert numbers.off([1.0, 1.5, 4.0], [2.0, 2.0, 4.0]) == 0.5
    assert numbers.apart([1.0, -3.0], [1.5, 2.0]) == 5.0
    trainer: Any = SimpleNamespace(evaluate=lambda params, step: (params + step, None))
    assert numbers.losses(trainer, 0.5, 3, 10).tolist() == [10.5, 11.5, 12.5]  # type: ignore[arg-type]
    assert numbers.power([1.0, 10.0, 100.0], [5.0, 0.05, 0.0005]) == pytest.approx(
        -2.0, rel=1e-12
    )
    assert numbers.span(iter([2.0, -1.0, 3.5]), ".1f") == "-1.0..3.5"
    assert numbers.listed([1, 2.5], "g") == "1, 2.5"
    assert numbers.named({"a": 0.5, "b": 2.0}, ".0%") == "a 50%, b 200%"
    assert numbers.decade(math.inf) == "inf"


@pytest.mark.parametrize("gtol", [1e-2, 1e-6])
def test_a_descent_ends_where_the_gradient_is_as_small_as_it_is_told(
    gtol: float,
) -> None:
    """x⁴ + y⁴ is so flat that the place tells the tolerance."""
    seen = numbers.minimum(
        lambda x: (float(np.sum(x**4)), 4.0 * x**3), [[1.0], [0.5]], gtol=gtol
    )
    assert seen.shape == (2, 1)
    assert 1e-3 * gtol < np.abs(4.0 * seen**3).max() <= gtol


def test_a_run_is_compared_at_three_states_with_prompts_of_its_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = SimpleNamespace(
        risk=lambda: "risk", sampled=lambda batch, seed: (batch, seed)
    )
    run: Any = SimpleNamespace(family=problem, t=np.arange(7), states=10 * np.arange(7))
    given: list[Any] = []

    def compared(*arguments: Any) -> list[Check]:
        given.extend(arguments)
        places = (
            ("loss", 0.01),
            ("gradient of the loss", 0.02),
            ("loss", 0.05),
            ("gradient norm", 0.04),
        )
        return [
            Check(f"{name} at the end", 1.0, 1.0, error, 0.0, 4.0)
            for name, error in places
        ]

    monkeypatch.setattr(checks, "compare", compared)
    found = checks._with_samples(run, batch=32, batches=9, seed=5)
    assert given == [
        "risk",
        (32, 5),
        {"the beginning": 0, "the middle": 30, "the end": 60},
        9,
    ]
    power = [detectable(found.checks[i], 8) for i in (2, 3)]
    assert found.power == pytest.approx(power, rel=1e-12)
    assert "9 batches of 32 samples" in str(found)
    for wrong in ({"batch": 0}, {"batches": 3}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))} = "):
            checks._with_samples(run, **wrong)


def test_question_is_answered_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    status, out, _ = run_main(
        capsys, "audit", "--quick", "--question", "degenerate", "--plot", str(path)
    )
    assert status == 0
    assert "c_k = 0" in out
    assert path.stat().st_size > 1000
    status, out, _ = run_main(
        capsys, "audit", "--quick", "--question", "degenerate", "--json"
    )
    assert "question" in json.loads(out)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--question", "why"], "question = 'why'"),
        (["--plot", "a.png"], "give --question, too"),
        (["--out", "/no/such/folder/a.md"], "in a folder that exists"),
        (["--question", "linear", "--plot", "a.xyz"], "a file name ending in"),
        (["--question", "linear", "--out", "a.md"], "--question prints its answer"),
    ],
)
def test_wrong_input_is_one_line_and_status_two(
    capsys: pytest.CaptureFixture[str], extra: list[str], words: str
) -> None:
    status, _, err = run_main(capsys, "audit", "--quick", *extra)
    assert (status, err.count("\n")) == (2, 1)
    assert words in err


def test_an_interrupt_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """descend keeps half a run; a claim must not be judged by it."""
    calls = iter(range(10**6))
    whole = icl.ExchangeableRisk.evaluate

    def interrupted(
        self: icl.ExchangeableRisk, params: np.ndarray, step: int = 0
    ) -> tuple[float, np.ndarray]:
        if next(calls) == 200:
            raise KeyboardInterrupt
        return whole(self, params, step)

    monkeypatch.setattr(icl.ExchangeableRisk, "evaluate", interrupted)
    monkeypatch.setattr(
        audit, "all_claims", lambda: ({"one": Claims((dynamics.closed_counts,))}, [])
    )
    with pytest.raises(KeyboardInterrupt):
        icl.audit(quick=True)


def test_it_says_which_row_is_measured(
    monkeypatch: pytest.MonkeyPatch, heard: list[str]
) -> None:
    def spying(_: bool) -> Any:
        raise ValueError

    module = importlib.import_module("icl_theory.statements.audit")
    monkeypatch.setattr(
        module,
        "all_claims",
        lambda: ({"spy": Claims((spying,), (Question("why", spying),))}, []),
    )
    assert [line.split(" is left out")[0] for line in icl.audit().failures] == [
        "the row spying of the family spy",
        "the question why of the family spy",
    ]
    assert heard[0].startswith("0 of 1 claims, ")
    assert heard[-1] == "answering question why, 0:00:00"


def no_exact_or_certified_claim_is_violated(report: icl.statements.Audit) -> None:
    assert report.violations == ()
    assert {claim.status for claim in report.claims} == {
        "exact",
        "certified",
        "order-wise",
        "measured",
    }


def every_verdict_is_one_of_the_known_ones(report: icl.statements.Audit) -> None:
    for claim in report.claims:
        assert claim.outcome is not Outcome.FAILS, claim
        assert all(
            (claim.source, claim.statement, claim.grid, claim.measured, claim.bound)
        ), claim


def every_lemma_proposition_and_theorem_has_a_row(report: icl.statements.Audit) -> None:
    sources = " ".join(claim.source for claim in report.claims)
    for wanted in (
        "Lemma 1",
        "Lemma 2",
        "Prop. 1",
        "Prop. 2",
        "Prop. 3",
        "Prop. 4",
        "Thm 1",
        "Thm 2",
        "Eq. 9",
    ):
        assert wanted in sources
    for wanted in (
        "Lemma 3.1",
        "Thm 3.2",
        "Thm 3.3",
        "Lemma 4.1",
        "Thm 4.2",
        "Thm 5.4",
        "Thm 5.5",
        "Thm 5.6",
    ):
        assert f"recall paper, {wanted} (reconstructed)" in sources


def a_failure_is_not_laid_to_a_paper_whose_formula_we_lack(
    report: icl.statements.Audit,
) -> None:
    measured = dict(zip(audit.rows(), report.claims, strict=True))
    readings = [reading for paper in papers().values() for reading in paper.readings]
    for reading in readings:
        for claim in map(measured.__getitem__, reading.rows):
            if claim.formula == "as reconstructed":
                assert reading.reconstructed, (
                    reading.name,
                    claim.name,
                )  # the page says what
                assert claim.cells()[-1].startswith("as reconstructed: ")
            if claim.violated:
                assert not (claim.formula == "paper" and reading.reconstructed), (
                    reading.name,
                    claim.name,
                )
    assert any(
        claim.violated
        for reading in readings
        for claim in map(measured.__getitem__, reading.rows)
    )


def findings_are_those_of_the_documentation(report: icl.statements.Audit) -> None:
    verdicts = {claim.name: claim.verdict for claim in report.claims}
    assert verdicts["Theorem 1"].startswith("fails for ε ≪ (LΔδ)²")
    assert verdicts["Theorem 2"].startswith("holds, loose")
    assert verdicts["Phase I duration"].startswith("holds, loose")
    assert verdicts["Phase I growth"].startswith("holds only as a lower bound")
    assert verdicts["Phase II growth"].startswith("holds only as a lower bound")
    assert verdicts["Phase III growth"].startswith("holds only as a lower bound")
    assert verdicts["Theorem 1, explicit"] == verdicts["Theorem 2, explicit"] == "holds"
    assert verdicts["tail law, finite N"] == "holds"
    assert verdicts["Lemma 1, lower bound"].startswith(
        "fails: counterexample Halfspace"
    )
    assert verdicts["phases by L"].startswith("holds only for a given ε")
    assert verdicts["Gaussian inputs"].startswith("holds only for the speed")
    assert verdicts["block"].startswith("holds only for cosines of random frequency")
    assert verdicts["recall: exponent"].startswith("holds with ηt/√|Q|")
    assert verdicts["recall: Theorem 5.4"].startswith("holds; beyond the theorem")
    assert verdicts["recall: Theorem 3.3"].startswith("holds for λ alone, by symmetry")
    assert verdicts["linear attention: plateau"] == (
        "holds for (v, A); with separate keys and queries it grows like 1/start"
    )
    assert verdicts["linear attention: staircase"] == "holds"
    answers = {found.name: found.answer for found in report.answers}
    assert answers["linear-attention-plateau"].startswith(
        "Only with keys and queries merged"
    )


def the_committed_page_states_what_the_rows_state(report: icl.statements.Audit) -> None:
    """Names, sources, statements and statuses do not depend on the grid; tests/test_pages.py measures the rest."""
    lines = (
        (Path(__file__).parents[2] / "docs" / "audit.md")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    page, made = (
        [line.split(" | ") for line in text if line.startswith("| ")]
        for text in (lines, report.to_markdown().splitlines())
    )
    last = len(report.claims)
    assert [row[:4] for row in page[: last + 1]] == [
        row[:4] for row in made[: last + 1]
    ]
    assert [(row[0], row[-1]) for row in page[last + 1 :]] == [
        (row[0], row[-1]) for row in made[last + 1 :]
    ]


def one_claim_is_measured_by_its_number(
    report: icl.statements.Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (5, 11):
        assert (
            icl.audit(quick=True, claim=number).claims
            == report.claims[number - 1 : number]
        )
    status, out, _ = run_main(capsys, "audit", "--quick", "--claim", "11")
    assert (status, out.splitlines()[0].split()) == (
        0,
        ["name", *report.claims[10].name.split()],
    )
    assert run_main(capsys, "audit", "--claim", "1000")[0] == 2
    assert run_main(capsys, "audit", "--claim", "3", "--question", "linear")[0] == 2


def every_question_has_an_answer_and_a_figure(
    report: icl.statements.Audit, tmp_path: Path
) -> None:
    assert [found.name for found in report.answers] == list(audit.questions())
    for found in report.answers:
        assert (
            found.command
            == f"icl-theory audit --question {found.name} --plot {found.name}.png"
        )
        save(plot_answer(found), str(tmp_path / f"{found.name}.png"))


def command_prints_the_tables_and_writes_markdown(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    report: icl.statements.Audit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(COMMAND, "measure_audit", lambda **_: report)
    status, out, _ = run_main(
        capsys, "audit", "--quick", "--out", str(tmp_path / "audit.md")
    )
    assert status == 0
    assert "No exact or certified claim is violated." in out
    assert max(map(len, out.splitlines())) <= 80
    assert (tmp_path / "audit.md").read_text(encoding="utf-8") == report.to_markdown()


def an_order_of_magnitude_that_fails_is_no_violation(
    report: icl.statements.Audit,
) -> None:
    failing = [claim for claim in report.claims if claim.violated]
    assert failing
    assert not set(failing) & set(report.violations)


@pytest.mark.slow
def test_all_rows_and_questions_on_small_grids(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test of many checks: it takes half a minute to measure what they look at."""
    report = icl.audit(quick=True)
    no_exact_or_certified_claim_is_violated(report)
    every_verdict_is_one_of_the_known_ones(report)
    every_lemma_proposition_and_theorem_has_a_row(report)
    a_failure_is_not_laid_to_a_paper_whose_formula_we_lack(report)
    findings_are_those_of_the_documentation(report)
    the_committed_page_states_what_the_rows_state(report)
    one_claim_is_measured_by_its_number(report, capsys)
    every_question_has_an_answer_and_a_figure(report, tmp_path)
    command_prints_the_tables_and_writes_markdown(capsys, tmp_path, report, monkeypatch)
    an_order_of_magnitude_that_fails_is_no_violation(report)
