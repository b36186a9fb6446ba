"""What rows of the audit and answers say on their smaller grids, for those that say it within a fifth of a second.

``python -m tests.smaller`` writes the file again, for the names that it has. Rows under
``whole`` are as quick on their larger grids, where the committed page has their
numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

from icl_theory.statements.audit import questions, rows
from icl_theory.statements.claim import Answer

FILE = Path(__file__).parent / "data" / "smaller.json"
NAMES = json.loads(FILE.read_text(encoding="utf-8"))


def said(answer: Answer) -> list[str]:
    """Return an answer, the axes of its figure, and where each curve begins and ends."""
    curves = [
        " ".join(
            [
                each.label,
                *(
                    f"{float(axis[end]):.3e}"
                    for axis in (each.x, each.y)
                    for end in (0, -1)
                ),
            ]
        )
        + f" ({'points' if each.points else 'line'})"
        for each in answer.series
    ]
    axes = (f"{answer.x} ({answer.x_scale})", f"{answer.y} ({answer.y_scale})")
    return [answer.question, answer.answer, *axes, *curves]


if __name__ == "__main__":
    claims = {claim.name: claim for claim in (row(True) for row in rows())}
    NAMES["rows"] = {name: claims[name].cells() for name in NAMES["rows"]}
    NAMES["answers"] = {
        name: said(questions()[name].answer(True)) for name in NAMES["answers"]
    }
    FILE.write_text(
        json.dumps(NAMES, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
