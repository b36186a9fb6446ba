"""Write the record again, of the files that are named or of all, and list what changed.

``--check`` lists the same and writes nothing.
"""

from __future__ import annotations

import json
import sys

from tests.record import ANSWERS, changes, files


def main() -> int:
    """Ask the chosen files, and return 1 if answers are checked and one has changed."""
    check = "--check" in sys.argv[1:]
    chosen = [name for name in files() if name in sys.argv[1:]] or files()
    ANSWERS.mkdir(parents=True, exist_ok=True)
    any_changed = False
    for name in chosen:
        answers, changed = changes(name)
        any_changed |= bool(changed)
        for text in changed:
            print(f"{name}: {text}"[:300], flush=True)
        if not check:
            rows = [f"{json.dumps(t)}: {json.dumps(a)}" for t, a in answers.items()]
            text = "{\n" + ",\n".join(rows) + "\n}\n"
            (ANSWERS / f"{name}.json").write_text(text, encoding="utf-8")
    return int(check and any_changed)


if __name__ == "__main__":  # sweeps start processes, which import this module again
    sys.exit(main())
