"""Processes that tests start: what they wait for is an event, and never that some time has passed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

# seconds for what takes a moment: a machine that is busy with other things is no
# failure
PATIENCE = 600.0
COMMAND = "from icl_theory.cli import main\nif __name__ == '__main__': main()"
# the same, but it waits for a line on its input when it has kept a chunk, for the first
# time
PAUSED = """
import sys
from icl_theory.sweeps.store import Store
write, waits = Store.write, [1]

def paused(self, chunk, *kept):
    write(self, chunk, *kept)
    if waits:
        waits.clear()
        print("kept", flush=True)
        sys.stdin.readline()

if __name__ == "__main__":
    Store.write = paused
"""


def start(
    *arguments: str, paused: bool = False, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start the command line; ``paused`` until `go_on` where it has kept a chunk."""
    code = (PAUSED if paused else "") + COMMAND
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=os.environ | {"TERM": "xterm"},
    )
    if paused:
        assert process.stdout is not None
        assert process.stdout.readline() == "kept\n"
    return process


def go_on(process: subprocess.Popen[str], *, interrupted: bool = False) -> str:
    """Let a paused command go on, after Ctrl-C or without, and return what it said of errors."""
    if interrupted:
        process.send_signal(signal.SIGINT)
    return process.communicate("\n", timeout=PATIENCE)[1]


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    last = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > last:
            raise TimeoutError
        time.sleep(0.01)
