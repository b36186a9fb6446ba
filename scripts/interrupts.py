"""Press Ctrl-C at random moments while pages are made from runs.

Afterwards a page must be whole and right, or there must be none.

python scripts/interrupts.py --presses 300

Each page is made in a forked process of its own, because loading the package takes
longer than making a page.
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
from typing import NamedTuple

import icl_theory as icl
from icl_theory.engine.interrupts import is_pressed
from icl_theory.files import replacing
from icl_theory.results.reproduction import papers, reproduce
from icl_theory.statements.audit import rows

Page = Callable[[], str]
# Of the claims of the audit, one in this many is made, to save time.
CLAIMS_STRIDE = 4
# The exit status of a process that Ctrl-C has ended.
INTERRUPTED = 130


def pages() -> dict[str, dict[str, Page]]:
    """Return functions that make a page, by the tested function and a name.

    The pages are those of quick statements of papers that have rows and neither a
    figure nor a question, claims of the audit, and checks of a run.
    """
    run = icl.simulate(2.0, 1.0, 4.0, K=4, epsilon=1e-2, imbalance=0.1)
    readings = [
        (paper.name, reading.name)
        for paper in papers().values()
        for reading in paper.readings
        if reading.rows and not (reading.figure or reading.question)
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
            for claim in range(1, len(rows()) + 1, CLAIMS_STRIDE)
        },
        "check_bounds": {"a run": lambda: str(icl.check_bounds(run))},
        "crosscheck": {"a run": crosschecked},
    }


class Ended(NamedTuple):
    """The exit status of a process, and the seconds that it took."""

    status: int
    seconds: float


def press(make: Page, path: Path, after: float) -> Ended:
    """Write a page in a process of its own, and press Ctrl-C after some seconds."""
    # Ctrl-C waits until the process is ready for it.
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
                status = INTERRUPTED
            else:
                traceback.print_exc()
        finally:
            os._exit(status)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # waitpid returns the process 0 while the child runs.
    process = 0
    wait_status = 0
    while not process and time.perf_counter() - start < after:
        time.sleep(0.005)
        process, wait_status = os.waitpid(child, os.WNOHANG)
    if not process:
        os.kill(child, signal.SIGINT)
        _, wait_status = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(wait_status)
    return Ended(status, time.perf_counter() - start)


class Whole(NamedTuple):
    """A page that was made without Ctrl-C: how, its text, and the seconds it took."""

    make: Page
    text: str
    seconds: float


def tried(
    functions: dict[str, dict[str, Page]], presses: int, longest: float
) -> tuple[list[str], list[str]]:
    """Press Ctrl-C in pages of all functions, and return what was covered and wrong.

    The presses are shared among the functions. Pages that take longer than ``longest``
    seconds are not tried.
    """
    rng = random.Random(0)
    covered: list[str] = []
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.md"
        for turn, (function, makes) in enumerate(functions.items()):
            whole = _whole_pages(function, makes, path, longest, wrong)
            if not whole:
                wrong.append(f"{function}: no page within {longest:g} s")
                continue
            presses_here = len(range(turn, presses, len(functions)))
            ended = 0
            for name in itertools.islice(itertools.cycle(whole), presses_here):
                after = rng.uniform(0.0, whole[name].seconds)
                status, _ = press(whole[name].make, path, after)
                ended += status == INTERRUPTED
                fault = _fault(path, status, whole[name].text)
                if fault:
                    wrong.append(f"{function}, {name}: {fault}")
                for file in Path(folder).iterdir():
                    file.unlink()
            names = "; ".join(list(whole)[:presses_here])
            covered.append(
                f"{function}: {presses_here} presses, {ended} ended, in {len(whole)} of"
                f" {len(makes)} pages: {names}"
            )
    return covered, wrong


def _whole_pages(
    function: str, makes: dict[str, Page], path: Path, longest: float, wrong: list[str]
) -> dict[str, Whole]:
    """Make each page once, and return those that take at most ``longest`` seconds.

    Ctrl-C ends the others. A page that fails is added to ``wrong``.
    """
    whole = {}
    for name, make in makes.items():
        status, seconds = press(make, path, longest)
        if status == 0:
            whole[name] = Whole(make, path.read_text(encoding="utf-8"), seconds)
        elif status != INTERRUPTED:
            wrong.append(f"{function}, {name}: status {status} without Ctrl-C")
        path.unlink(missing_ok=True)
    return whole


def _fault(path: Path, status: int, text: str) -> str:
    """Return what is wrong after Ctrl-C, or "".

    The process must have ended by itself or by Ctrl-C. The folder may have the page, and
    must have it if the process ended by itself, but no other file.
    """
    files = [file.name for file in path.parent.iterdir()]
    has_page = path.exists()
    expected = [path.name] if has_page or status == 0 else []
    if status not in (0, INTERRUPTED) or files != expected:
        return f"status {status}, files {files}"
    if has_page and path.read_text(encoding="utf-8") != text:
        return "another page"
    return ""


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
