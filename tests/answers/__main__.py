"""Write the record again, and list what changed: ``python -m tests.answers [module ...]``."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.answers import RECORDS, answer, called, differences, read, sections


def record(module: str) -> None:
    kept, answers = read(module), {}
    for section, asked in sections().items():
        if section.partition(": ")[0] != module:
            continue
        title = section.partition(": ")[2]
        mine = answers[title] = dict[str, Any]()
        for name, call in called(asked):
            assert name not in mine, f"{section}: two calls are named {name}"
            found, theirs = answer(call.ask), kept.get(title, {}).get(name)
            changes = [": new"] if theirs is None else list(differences(found, theirs, call))
            mine[name] = found if changes else theirs
            for text in changes:
                print(f"{section}: {name}{text}"[:300])
    parts = []
    for title, calls in answers.items():
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in calls.items())
        parts.append(f"{json.dumps(title)}: {{\n{lines}\n}}")
    (RECORDS / f"{module}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


RECORDS.mkdir(parents=True, exist_ok=True)
for one in sorted({section.partition(":")[0] for section in sections()}):
    if one in sys.argv[1:] or not sys.argv[1:]:
        record(one)
