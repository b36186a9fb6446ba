"""Write the record again, and list what changed: ``python -m tests.answers [module ...]``.

``python -m tests.answers --check [module ...]`` lists the same and writes nothing.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.answers import RECORDS, answer, called, compare, differences, read, sections


def record(module: str) -> None:
    kept, answers = read(module), {}
    for section, asked in sections().items():
        if section.partition(": ")[0] != module:
            continue
        title = section.partition(": ")[2]
        mine = answers[title] = dict[str, Any]()
        for name, call in called(asked):
            assert name not in mine, f"{section}: two calls are named {name}"
            found, theirs = answer(call.ask), kept.get(title, {})
            changes = (
                list(differences(found, theirs[name], call))
                if name in theirs
                else [": new"]
            )
            mine[name] = found if changes else theirs[name]
            for text in changes:
                print(f"{section}: {name}{text}"[:300])
    parts = []
    for title, calls in answers.items():
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(found)}" for name, found in calls.items()
        )
        parts.append(f"{json.dumps(title)}: {{\n{lines}\n}}")
    (RECORDS / f"{module}.json").write_text(
        "{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8"
    )


def check(modules: list[str]) -> int:
    changes = [
        f"{section}: {text}"
        for section, asked in sections().items()
        if section.partition(":")[0] in modules
        for text in compare(section, asked)
    ]
    for text in changes:
        print(text[:300])
    return int(bool(changes))


every = sorted({section.partition(":")[0] for section in sections()})
chosen = [module for module in every if module in sys.argv[1:]] or every
if "--check" in sys.argv[1:]:
    sys.exit(check(chosen))
RECORDS.mkdir(parents=True, exist_ok=True)
for module in chosen:
    record(module)
