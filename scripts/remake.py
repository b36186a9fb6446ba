"""Write those committed pages and pictures again that commands of this project write.

    python scripts/remake.py                            # all of them, one by one
    python scripts/remake.py audit.md images/front.png  # some, by their names below docs
    python scripts/remake.py --prose                    # pages of papers, with the numbers of audit.md
    python scripts/remake.py --rows debiased-descent    # the rows of one paper in audit.md

Each page or picture is made in a folder of its own, and copied when it is complete.
After Ctrl-C the finished ones stay, and the others can be named at the next call. If
nothing has changed, the files have the same bytes as before.
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
# The endings of the files that are copied; commands also write HTML, which is not.
KEPT = {".md", ".png", ".gif"}
# Pictures that this script does not make, and how they were made: they take hours, or
# no later call would draw the same picture.
BY_HAND = {
    "images/cost.png": "python scripts/costs.py --plot docs/images/cost.png, which measures times",
    "images/own-run.png": "python scripts/own_run.py, which needs PyTorch",
    "images/explorer.png": "a screenshot of icl-theory explore",
}


def commands() -> dict[str, str]:
    """Return the commands that write pages and pictures, by the path that they write.

    The paths are relative to docs, and the commands run in a folder that stands for it.
    """
    sweeps, *guides = (
        (DOCS / page).read_text(encoding="utf-8")
        for page in ("sweeps.md", "guide/your-own-risk.md", "guide/induction-heads.md")
    )
    # A command of a sweep on the page, and below it the picture that it draws.
    commands_and_pictures = re.findall(
        r"^(icl-theory sweep .*) --table \S+ --plot \S+\n```\n\n!\[.*\]\((\S+)\)$",
        sweeps,
        re.MULTILINE,
    )
    command_of = {"audit.md": "icl-theory audit --out audit.md"}
    for name in papers():
        command_of[f"papers/{name}.md"] = f"icl-theory reproduce {name} --out papers"
    for name in ("front", "model", "optimisers", "fixed_set"):
        command = f"icl-theory figures {name} --out images"
        command_of[f"images/{name}.png"] = command
    command_of["images/maps.gif"] = "icl-theory figures --animate --out images"
    for sweep, picture in commands_and_pictures:
        command_of[picture] = f"{sweep} --plot {picture}"
    # All Python on a guide is one program, which writes a picture.
    for picture, guide in zip(
        ("own-risk.png", "induction-run.png"), guides, strict=True
    ):
        blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
        code = "".join(blocks).replace(picture, f"images/{picture}")
        command_of[f"images/{picture}"] = shlex.join(["python", "-c", code])
    return command_of


def make(name: str, folder: Path) -> int:
    """Run the command that writes ``name`` in a folder, and return its exit status.

    The exit status is 1 if a claim is violated, although the command has worked.
    """
    return run(commands()[name], name, folder)


def run(command: str, name: str, folder: Path) -> int:
    """Run a command that writes ``name`` in a folder, and return its exit status.

    Linear algebra has one thread, because the number of threads decides how sums are
    rounded.
    """
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    program, *words = shlex.split(command)
    # The only other program is python.
    module = ["-m", "icl_theory"] if program == "icl-theory" else []
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run(
        [sys.executable, *module, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if not (folder / name).exists():
        raise SystemExit(f"{ended.stderr}{name}: {program} wrote nothing")
    return ended.returncode


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table in Markdown."""
    # In a cell a bar is written with a backslash; NUL stands for it while the line is
    # split at the other bars. Outside the first and the last bar there is no cell.
    _, *texts, _ = line.replace("\\|", "\0").split("|")
    return [text.strip().replace("\0", "|") for text in texts]


@cache
def printed() -> tuple[list[Claim], dict[str, Answer]]:
    """Return the claims on the audit's page in their order, and its answers by name."""
    return tables(DOCS / "audit.md")


def tables(page: Path) -> tuple[list[Claim], dict[str, Answer]]:
    """Return the claims on a page of the audit in order, and its answers by name."""
    lines = page.read_text(encoding="utf-8").splitlines()
    claims = []
    answers = {}
    for row in [cells(line) for line in lines if line.startswith("| ")]:
        # The table of claims, without its headings.
        if len(row) == len(HEADINGS) and row[0] != "claim":
            fields: dict[str, Any] = dict(zip(HEADINGS, row, strict=True))
            # The cell has the finding, which adds words about our formulas.
            verdict = fields["verdict"].removeprefix(f"{RECONSTRUCTED}: ")
            fields["verdict"] = verdict.removesuffix(f". {OURS_ALONE}")
            fields["status"] = Status(fields["status"])
            claims.append(Claim(**fields))
        # The table of questions, without its headings.
        elif len(row) == 3 and row[0] != "question":
            question, answer, command = row
            # The command is "icl-theory audit --question NAME ...".
            name = command.split()[3]
            answers[name] = Answer(name, question, answer, series=(), x="", y="")
    return claims, answers


def paper_page(name: str, only: str | None = None) -> Reproduction:
    """Return the page of a paper with the numbers of the audit's page.

    Nothing is measured or drawn. With ``only``, the page is about this statement alone.
    """
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
    """Measure the rows and questions of one paper, and return the audit's new page."""
    with tempfile.TemporaryDirectory() as folder:
        command = f"icl-theory audit --paper {name} --out audit.md"
        run(command, "audit.md", Path(folder))
        return with_paper(papers()[name], *tables(Path(folder, "audit.md")))


def with_paper(paper: Paper, claims: list[Claim], answers: dict[str, Answer]) -> Audit:
    """Return the audit's page with new claims and answers of one paper.

    The claims and answers of all other papers are those that the page has now.
    """
    # The rows and questions of the paper, in their order.
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
    """Write the pages of all papers with the numbers of the audit's page.

    Their pictures stay as they are.
    """
    for name in papers():
        page = docs / "papers" / f"{name}.md"
        page.write_text(paper_page(name).to_markdown(), encoding="utf-8")


def with_parameters(page: str) -> str:
    """Return the page of figures with a new table of the parameters of each figure.

    The table is the end of the page.
    """
    titles = figures.available()
    chosen = []
    for name in titles:
        parameters = figures.parameters(name).items()
        chosen.append(
            ", ".join(f"{key} = {_plain(value)}" for key, value in parameters)
        )
    names = [f"`{name}`" for name in titles]
    table = markdown(
        {"figure": names, "title": list(titles.values()), "chosen parameters": chosen}
    )
    return page[: page.index("| figure | title |")] + table + "\n"


def _plain(value: Any) -> str:
    """Return a value of a parameter as text; floats have up to six digits."""
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_plain, value)) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Make the pages and pictures that are named, and print which files changed."""
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
        # The pages of papers are made from the new page.
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
    make_all(names, docs)


def make_all(names: list[str], docs: Path) -> None:
    """Make pages and pictures, and print for each how long it took and what changed.

    The script ends with an error if a claim is violated, after all are made.
    """
    violated = []
    for name in names:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            if make(name, Path(folder)):
                violated.append(name)
            changed = copy_changed(Path(folder), docs)
        words = ", ".join(path.as_posix() for path in changed) or "nothing"
        print(f"{name}, {time.monotonic() - start:.0f} s: {words} changed", flush=True)
    if violated:
        raise SystemExit(f"a claim is violated: {', '.join(violated)}")


def copy_changed(folder: Path, docs: Path) -> list[Path]:
    """Copy pages and pictures from a folder into ``docs``, if they differ.

    Return the relative paths of the copied files.
    """
    changed = []
    for source in sorted(folder.rglob("*")):
        if source.suffix not in KEPT:
            continue
        path = source.relative_to(folder)
        target = docs / path
        # The contents are compared: a new file always has another time.
        if target.exists() and filecmp.cmp(source, target, shallow=False):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        changed.append(path)
    return changed


if __name__ == "__main__":
    main()
