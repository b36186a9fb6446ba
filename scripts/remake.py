"""Writes the committed pages and pictures again that commands of this project write.

    python scripts/remake.py                            # all of them, one by one
    python scripts/remake.py audit.md images/front.png  # some, by their names below docs

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
from pathlib import Path
from typing import Any

from icl_theory import figures
from icl_theory.results.numbers import markdown
from icl_theory.results.reproduction import papers

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
    """Run the command that writes ``name`` in a folder, and return its exit status; 1 is that of what it found.

    Linear algebra has one thread, because sums are rounded otherwise with another
    number of them.
    """
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    program, *words = shlex.split(commands()[name])
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
    arguments = parser.parse_args()
    docs = arguments.into
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
