"""Ctrl-C at random moments in what measures with runs: every page must be whole and right, or there is none.

python scripts/interrupts.py --presses 300

Each call has a process of its own, which is forked, as loading the package takes longer
than what is measured.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import icl_theory as icl
from icl_theory.engine.interrupts import is_pressed
from icl_theory.files import replacing
from icl_theory.results.reproduction import papers, reproduce
from icl_theory.statements.audit import rows

Page = Callable[[], str]


def pages() -> dict[str, dict[str, Page]]:
    """Return what makes a page, by function and name: quick statements with rows alone, claims, checks."""
    run = icl.simulate(2.0, 1.0, 4.0, K=4, epsilon=1e-2, imbalance=0.1)
    readings = [
        (paper.name, each.name)
        for paper in papers().values()
        for each in paper.readings
        if each.rows and not (each.figure or each.question)
    ]

    def reproduced(paper: str, name: str) -> str:
        return reproduce(paper, only=name, quick=True).to_markdown()

    def audited(claim: int) -> str:
        return icl.audit(claim=claim, quick=True).to_markdown()

    def crosschecked() -> str:
        return icl.crosscheck(
            run, batch=64, batches=3, points=1, steps=20, runs=3
        ).to_markdown()

    return {
        "reproduce": {
            f"{paper}, {name}": partial(reproduced, paper, name)
            for paper, name in readings
        },
        "audit": {
            f"claim {claim}": partial(audited, claim)
            for claim in range(1, len(rows()) + 1, 4)
        },
        "check_bounds": {"a run": lambda: str(icl.check_bounds(run))},
        "crosscheck": {"a run": crosschecked},
    }


def press(make: Page, path: Path, after: float) -> tuple[int, float]:
    """Write a page in a process of its own, and press Ctrl-C after some seconds; return its status and seconds."""
    # until the process is ready for it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    start = time.perf_counter()
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            page = make()
            with replacing(path) as temporary:
                temporary.write_text(page, encoding="utf-8")
            status = 0
        except BaseException as error:
            if is_pressed(error):
                status = 130
            else:
                traceback.print_exc()
        finally:
            os._exit(status)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    ended = (0, 0)
    while not ended[0] and time.perf_counter() - start < after:
        time.sleep(0.005)
        ended = os.waitpid(child, os.WNOHANG)
    if not ended[0]:
        os.kill(child, signal.SIGINT)
        ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended[1]), time.perf_counter() - start


def tried(
    functions: dict[str, dict[str, Page]], presses: int, longest: float
) -> tuple[list[str], list[str]]:
    """Press Ctrl-C in pages of every function in turn; return what was covered and what was wrong."""
    rng = random.Random(0)
    covered = []
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.md"
        for turn, (function, makes) in enumerate(functions.items()):
            whole = {}
            for name, make in makes.items():
                status, seconds = press(make, path, longest)
                if status == 0:
                    whole[name] = make, path.read_text(encoding="utf-8"), seconds
                elif status != 130:
                    wrong.append(f"{function}, {name}: status {status} without Ctrl-C")
                path.unlink(missing_ok=True)
            if not whole:
                wrong.append(f"{function}: no page within {longest:g} s")
                continue
            ended = 0
            own = len(range(turn, presses, len(functions)))
            for name in itertools.islice(itertools.cycle(whole), own):
                make, page, seconds = whole[name]
                status, _ = press(make, path, rng.uniform(0.0, seconds))
                ended += status == 130
                left = [each.name for each in Path(folder).iterdir()]
                if status not in (0, 130) or left != ["page.md"] * (
                    path.exists() or status == 0
                ):
                    wrong.append(f"{function}, {name}: status {status}, files {left}")
                elif left and path.read_text(encoding="utf-8") != page:
                    wrong.append(f"{function}, {name}: another page")
                for each in Path(folder).iterdir():
                    each.unlink()
            counts = (
                f"{own} presses, {ended} ended, in {len(whole)} of {len(makes)} pages"
            )
            covered.append(f"{function}: {counts}: {'; '.join(list(whole)[:own])}")
    return covered, wrong


def main() -> None:
    """Print what was covered, and what was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--presses", type=int, default=300)
    parser.add_argument(
        "--longest",
        type=float,
        default=2.0,
        help="seconds that a page may take to be tried",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one page of each function: to see that it runs",
    )
    options = parser.parse_args()
    functions = pages()
    if options.quick:
        functions = {
            name: dict([*makes.items()][:1]) for name, makes in functions.items()
        }
    covered, wrong = tried(functions, options.presses, options.longest)
    for line in [*covered, *wrong]:
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"{options.presses} presses, {len(wrong)} wrong\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
