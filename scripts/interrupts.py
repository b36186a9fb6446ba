"""Ctrl-C at random moments in what measures with runs: every page must be whole and right, or there is none.

python scripts/interrupts.py --presses 300

Each call has a process of its own, which is forked, as loading the package takes longer than what is measured.
"""

from __future__ import annotations

import argparse
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
from icl_theory.claims.audit import rows
from icl_theory.claims.reproduction import papers, reproduce
from icl_theory.files import replacing


def pages() -> dict[str, Callable[[], str]]:
    """Return what makes a page, by name: quick statements with rows alone, claims of the audit, checks."""
    run = icl.simulate(2.0, 1.0, 4.0, K=4, epsilon=1e-2, imbalance=0.1)
    readings = [(paper.name, each.name) for paper in papers().values() for each in paper.readings
                if each.rows and not (each.figure or each.question)]  # fmt: skip

    def reproduced(paper: str, name: str) -> str:
        return reproduce(paper, only=name, quick=True).to_markdown()

    def audited(claim: int) -> str:
        return icl.audit(claim=claim, quick=True).to_markdown()

    return {
        **{f"{paper}, {name}": partial(reproduced, paper, name) for paper, name in readings},
        **{f"audit, {claim}": partial(audited, claim) for claim in range(1, len(rows()) + 1, 4)},
        "check_bounds": lambda: str(icl.check_bounds(run)),
        "crosscheck": lambda: icl.crosscheck(run, batch=64, steps=20).to_markdown(),
    }


def press(make: Callable[[], str], path: Path, after: float) -> tuple[int, float]:
    """Write a page in a process of its own, and press Ctrl-C after some seconds; return its status and seconds."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process is ready for it
    start, child = time.perf_counter(), os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            page = make()
            with replacing(path) as temporary:
                temporary.write_text(page, encoding="utf-8")
            status = 0
        except KeyboardInterrupt:
            status = 130
        except BaseException:
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


def main() -> None:
    """Print how many processes were interrupted, and what was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--presses", type=int, default=300)
    parser.add_argument("--longest", type=float, default=2.0, help="seconds that a page may take to be tried")
    options = parser.parse_args()
    rng, interrupted, wrong = random.Random(0), 0, []
    with tempfile.TemporaryDirectory() as folder:
        path, whole = Path(folder) / "page.md", {}
        for name, make in pages().items():
            status, seconds = press(make, path, options.longest)
            if status == 0:
                whole[name] = make, path.read_text(encoding="utf-8"), seconds
            path.unlink(missing_ok=True)
        for number in range(options.presses):
            name = list(whole)[number % len(whole)]
            make, page, seconds = whole[name]
            status, _ = press(make, path, rng.uniform(0.0, seconds))
            interrupted += status == 130
            left = [each.name for each in Path(folder).iterdir()]
            if status not in (0, 130) or left != ["page.md"] * (path.exists() or status == 0):
                wrong.append(f"{name}: status {status}, files {left}")
            elif left and path.read_text(encoding="utf-8") != page:
                wrong.append(f"{name}: another page")
            for each in Path(folder).iterdir():
                each.unlink()
    for line in wrong:
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"{options.presses} presses in {len(whole)} pages: {interrupted} ended, {len(wrong)} wrong\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
