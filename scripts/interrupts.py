"""Press Ctrl-C at random moments while pages are made from runs.

python scripts/interrupts.py --presses 300

After each press, the page must be complete and right, or there must be no file. Each
page is made in a forked process of its own: the package is loaded only once, because
loading it takes longer than making a page.
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

# A function that makes a page and returns its text.
Page = Callable[[], str]
# One in this many claims of the audit is made, to save time.
CLAIMS_STRIDE = 4
# The exit status of a process that Ctrl-C has ended, by convention 128 + 2.
INTERRUPTED = 130


def pages() -> dict[str, dict[str, Page]]:
    """Return functions that make pages, by the tested function and a name of the page.

    The pages are about statements of papers that have rows but neither a figure nor a
    question, about claims of the audit, and about a run. All are quick versions.
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
    """Write a page in a process of its own, and press Ctrl-C ``after`` some seconds.

    Ctrl-C is not pressed if the process has ended before.
    """
    # Until the child has set its handler, Ctrl-C is put off.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    start = time.perf_counter()
    child = os.fork()
    # fork() returns 0 in the child, which must not go on with the rest of the script:
    # os._exit() ends it in any case.
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
    # With WNOHANG, waitpid returns 0 as the process while the child runs.
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
    """A page that was made without Ctrl-C."""

    make: Page  # the function that makes it
    text: str
    seconds: float  # the time that it took


def tried(
    functions: dict[str, dict[str, Page]], presses: int, longest: float
) -> tuple[list[str], list[str]]:
    """Press Ctrl-C while pages of all functions are made.

    The presses are shared among the functions. Pages that take longer than ``longest``
    seconds are left out. Return two lists of lines: what was tried, and what was wrong.
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
            # The presses turn, turn + n, turn + 2n, ... of all, for n functions.
            presses_here = len(range(turn, presses, len(functions)))
            ended = 0
            # The presses go through the pages of the function again and again.
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

    The making of any other page is ended by Ctrl-C. A line about a page that fails is
    added to ``wrong``.
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

    The process must have ended by itself or by Ctrl-C. If it ended by itself, the page
    must be in the folder; otherwise it may be. No other file may be there. ``text`` is
    what the page must contain.
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
    """Print what was tried, and what was wrong; exit with 1 if anything was."""
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
