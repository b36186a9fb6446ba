"""Writes the committed pages and pictures again that commands of this project write.

    python scripts/remake.py                            # all of them, one by one
    python scripts/remake.py audit.md images/front.png  # some, by their names below docs
    python scripts/remake.py --prose                    # pages of papers, with the numbers of audit.md
    python scripts/remake.py --rows debiased-descent    # the rows of one paper in audit.md

Each is made in a folder of its own and copied when it is complete: what was finished
before Ctrl-C stays, and the others can be named at the next call. Where nothing changed
the files have the same bytes as before.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from icl_theory import figures
from icl_theory.results.numbers import markdown
from icl_theory.results.prose import read_prose
from icl_theory.results.reproduction import Drawn, Reproduced, Reproduction, papers
from icl_theory.statements.audit import Audit, questions, rows
from icl_theory.statements.claim import (
    HEADINGS,
    OURS_ALONE,
    RECONSTRUCTED,
    Answer,
    Claim,
    Row,
    Status,
)
from icl_theory.statements.paper import Claims, Paper

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
KEPT = {".md", ".png", ".gif"}  # of what the commands write
BY_HAND = {  # what takes hours, and pictures that no later call would draw the same
    "images/cost.png": "python scripts/costs.py --plot docs/images/cost.png, which measures times",
    "images/own-run.png": "python scripts/own_run.py, which needs PyTorch",
    "images/explorer.png": "a screenshot of icl-theory explore",
}


def commands() -> dict[str, str]:
    """Return the commands that write pages and pictures, by what they write, in a folder that stands for docs."""
    sweeps, *guides = (
        (DOCS / page).read_text(encoding="utf-8")
        for page in ("sweeps.md", "guide/your-own-risk.md", "guide/induction-heads.md")
    )
    drawn = re.findall(
        r"^(icl-theory sweep .*) --table \S+ --plot \S+\n```\n\n!\[.*\]\((\S+)\)$",
        sweeps,
        re.MULTILINE,
    )
    codes = [
        "".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
        for page in guides
    ]
    return {
        "audit.md": "icl-theory audit --out audit.md",
        **{
            f"papers/{name}.md": f"icl-theory reproduce {name} --out papers"
            for name in papers()
        },
        **{
            f"images/{name}.png": f"icl-theory figures {name} --out images"
            for name in ("front", "model", "optimisers", "fixed_set")
        },
        "images/maps.gif": "icl-theory figures --animate --out images",
        **{picture: f"{sweep} --plot {picture}" for sweep, picture in drawn},
        **{
            f"images/{picture}": shlex.join(
                ["python", "-c", code.replace(picture, f"images/{picture}")]
            )
            for picture, code in zip(
                ("own-risk.png", "induction-run.png"), codes, strict=True
            )
        },
    }


def make(name: str, folder: Path) -> int:
    """Run the command that writes ``name`` in a folder, and return its exit status; 1 is that of what it found."""
    return run(commands()[name], name, folder)


def run(command: str, name: str, folder: Path) -> int:
    """Run a command that writes ``name`` in a folder, and return its exit status.

    Linear algebra has one thread, because sums are rounded otherwise with another
    number of them.
    """
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    program, *words = shlex.split(command)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [
            sys.executable,
            *(["-m", "icl_theory"] if program == "icl-theory" else []),
            *words,
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if not (folder / name).exists():
        raise SystemExit(f"{done.stderr}{name}: {program} wrote nothing")
    return done.returncode


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [
        cell.strip().replace("\0", "|")
        for cell in line.replace("\\|", "\0").split("|")[1:-1]
    ]


@cache
def printed() -> tuple[list[Claim], dict[str, Answer]]:
    """Return the claims that the audit's page has in their order, and its answers by name."""
    return tables(DOCS / "audit.md")


def tables(page: Path) -> tuple[list[Claim], dict[str, Answer]]:
    """Return the claims of a page of the audit in their order, and its answers by name."""
    lines = page.read_text(encoding="utf-8").splitlines()
    table = [cells(line) for line in lines if line.startswith("| ")]
    claims = []
    answers = {}
    for line in table:
        if len(line) == len(HEADINGS) and line[0] != "claim":
            fields: dict[str, Any] = dict(zip(HEADINGS, line, strict=True))
            verdict = fields["verdict"].removeprefix(f"{RECONSTRUCTED}: ")
            fields["verdict"] = verdict.removesuffix(f". {OURS_ALONE}")
            fields["status"] = Status(fields["status"])
            claims.append(Claim(**fields))
        elif len(line) == 3 and line[0] != "question":
            question, answer, command = line
            name = command.split()[3]
            answers[name] = Answer(name, question, answer, (), "", "")
    return claims, answers


def paper_page(name: str, only: str | None = None) -> Reproduction:
    """Return the page of a paper with the numbers of the audit's page: nothing is measured or drawn."""
    claims, answers = printed()
    every_row = rows()
    if len(claims) != len(every_row) or answers.keys() != questions().keys():
        raise SystemExit(
            f"audit.md has {len(claims)} rows and {len(answers)} questions, the package"
            f" {len(every_row)} and {len(questions())}: python scripts/remake.py --rows"
            " PAPER measures those of one paper, python scripts/remake.py audit.md all"
        )
    claims_by_row: dict[Row, Claim] = dict(zip(every_row, claims, strict=True))
    titles = figures.available()
    paper = papers()[name]
    parts = []
    for reading in paper.readings:
        answer = answers[reading.question.name] if reading.question else None
        drawn = []
        if answer is not None:
            drawn.append(Drawn(answer.name, answer.question, None))
        if reading.figure:
            drawn.append(Drawn(reading.figure, titles[reading.figure], None))
        measured = tuple(claims_by_row[row] for row in reading.rows)
        if only in (None, reading.name):
            parts.append(Reproduced(reading, measured, answer, tuple(drawn)))
    command = f"icl-theory reproduce {name}"
    return Reproduction(paper, command, tuple(parts), read_prose(paper), only)


def measure_rows(name: str) -> Audit:
    """Return the audit's page after the rows and questions of one paper are measured."""
    with tempfile.TemporaryDirectory() as made:
        command = f"icl-theory audit --paper {name} --out audit.md"
        run(command, "audit.md", Path(made))
        return with_paper(papers()[name], *tables(Path(made, "audit.md")))


def with_paper(paper: Paper, claims: list[Claim], answers: dict[str, Answer]) -> Audit:
    """Return the audit's page with other claims and answers of one paper.

    Those of all other papers are the ones that the page has.
    """
    own = Claims(papers=(paper,))
    if len(claims) != len(own.rows) or len(answers) != len(own.questions):
        command = f"icl-theory audit --paper {paper.name}"
        raise SystemExit(f"a row or question of the paper is left out: try {command}")
    measured = dict(zip(own.rows, claims, strict=True))
    names = {claim.name for claim in claims}
    printed_claims, printed_answers = printed()
    kept = [claim for claim in printed_claims if claim.name not in names]
    others = [row for row in rows() if row not in measured]
    missing = questions().keys() - answers.keys() - printed_answers.keys()
    if len(kept) != len(others) or missing:
        raise SystemExit(
            f"audit.md has {len(kept)} rows of other papers, the package {len(others)}:"
            " python scripts/remake.py audit.md measures all of them"
        )
    by_row = measured | dict(zip(others, kept, strict=True))
    by_name = printed_answers | answers
    return Audit(
        tuple(by_row[row] for row in rows()),
        tuple(by_name[question] for question in questions()),
    )


def write_prose(docs: Path) -> None:
    """Write the pages of all papers from the audit's page; their pictures stay."""
    for name in papers():
        page = docs / "papers" / f"{name}.md"
        page.write_text(paper_page(name).to_markdown(), encoding="utf-8")


def with_parameters(page: str) -> str:
    """Return the page of figures with the table of parameters that the figures have."""
    titles = figures.available()
    every = [figures.parameters(name) for name in titles]
    chosen = [
        ", ".join(f"{key} = {_plain(value)}" for key, value in each.items())
        for each in every
    ]
    names = [f"`{name}`" for name in titles]
    table = markdown(
        {"figure": names, "title": list(titles.values()), "chosen parameters": chosen}
    )
    return page[: page.index("| figure | title |")] + table + "\n"


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_plain, value)) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Make what is named, and say of each whether it changed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"any of {', '.join(commands())}; all unless given",
    )
    parser.add_argument(
        "--into", type=Path, default=DOCS, help="folder of the pages, docs unless given"
    )
    parser.add_argument(
        "--prose",
        action="store_true",
        help="write the pages of papers, with the numbers of audit.md, and measure nothing",
    )
    parser.add_argument(
        "--rows",
        metavar="PAPER",
        help="measure the rows and questions of one paper again, and write them into audit.md",
    )
    arguments = parser.parse_args()
    docs = arguments.into
    if arguments.rows is not None:
        if arguments.rows not in papers():
            parser.error(f"{arguments.rows}: must be one of {', '.join(papers())}")
        audit = measure_rows(arguments.rows)
        (docs / "audit.md").write_text(audit.to_markdown(), encoding="utf-8")
        printed.cache_clear()
        print(f"audit.md: the rows of {arguments.rows} are measured", flush=True)
        if audit.violations:
            raise SystemExit("a claim is violated: audit.md")
    if arguments.prose:
        write_prose(docs)
    if not arguments.names and (arguments.prose or arguments.rows):
        return
    names = arguments.names or list(commands())
    for unknown in set(names) - set(commands()):
        parser.error(f"{unknown}: must be one of {', '.join(commands())}")
    page = docs / "figures.md"
    page.write_text(with_parameters(page.read_text(encoding="utf-8")), encoding="utf-8")
    failed = []
    for name in names:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as made:
            if make(name, Path(made)):
                failed.append(name)
            written = [
                path.relative_to(made)
                for path in sorted(Path(made).rglob("*"))
                if path.suffix in KEPT
            ]
            changed = [
                path for path in written if not _equal(Path(made, path), docs / path)
            ]
            for path in changed:
                (docs / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(made, path), docs / path)
        words = ", ".join(path.as_posix() for path in changed) or "nothing"
        print(f"{name}, {time.monotonic() - start:.0f} s: {words} changed", flush=True)
    if failed:
        raise SystemExit(f"a claim is violated: {', '.join(failed)}")


def _equal(made: Path, kept: Path) -> bool:
    return kept.exists() and filecmp.cmp(made, kept, shallow=False)


if __name__ == "__main__":
    main()
