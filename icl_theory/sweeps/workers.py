"""Workers that compute a sweep: processes on this machine, or a Dask cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import resource_tracker
from typing import Any

from icl_theory._extras import install
from icl_theory._validate import argument_error

# If a scheduler or its workers do not answer within this time, in seconds, the sweep is
# refused. A shorter time would refuse slow networks; a longer one makes a user with a
# wrong address wait. The value is a compromise.
TIMEOUT = 7.0


@contextlib.contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Provide a pool of ``count`` worker processes.

    The workers end when this process ends, even if it is killed. On Ctrl-C they end at
    once.
    """
    earlier_children = set(multiprocessing.active_children())
    # A forked worker might inherit a lock that a thread of this process holds, and wait
    # for it forever.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker)
    try:
        with _without_interrupts():
            # The pool starts a process only if a task needs one. These tasks have no
            # other use than to start all processes now: processes that start in this
            # block ignore Ctrl-C from their first moment.
            for _ in range(count):
                pool.submit(os.getpid)
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - earlier_children:
            # Terminating the process loses nothing: its results have arrived, or are no
            # longer needed.
            process.terminate()
            # A thread of the pool also waits for the process. If that thread learns
            # first that the process has ended, join() returns while is_alive() is still
            # true.
            while process.is_alive():
                process.join(timeout=0.01)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Mask Ctrl-C in the with block, and for good in processes that start there."""
    if not hasattr(signal, "pthread_sigmask"):
        # Windows has no signal masks; there only `_start_worker` keeps Ctrl-C away.
        yield
        return
    # Starting the resource tracker of multiprocessing unblocks Ctrl-C. So the tracker
    # is started before Ctrl-C is blocked.
    resource_tracker.ensure_running()
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _start_worker() -> None:
    """Prepare a worker: it ignores Ctrl-C and ends when its parent ends."""
    # The parent handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None  # this runs in workers only

    def end_with_parent() -> None:
        """Wait until the parent has ended, and end this process."""
        parent.join()
        # sys.exit() would only end this thread.
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@contextlib.contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Provide the executor of a running Dask cluster.

    ``address`` is the address of its scheduler, which ``dask scheduler`` prints. If a
    worker dies, another worker computes its chunk. If no scheduler or no worker answers
    within TIMEOUT, a ValueError is raised.
    """
    import asyncio
    import logging

    try:
        from distributed import Client
        from distributed.comm.core import connect
    except ModuleNotFoundError:
        raise ValueError(f"a cluster needs dask: {install('distributed')}") from None
    # The errors below say all that matters, so Dask need not log its own.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    # These functions of Dask have no type hints, so mypy lets typed code call them only
    # as values of type Any.
    make_client: Any = Client
    connect_to: Any = connect

    async def probe() -> None:
        """Connect to the scheduler and disconnect, or raise an error."""
        connection = await connect_to(address, timeout=TIMEOUT)
        await connection.close()

    allowed = "the address of a running scheduler, which `dask scheduler` prints"
    try:
        # Test the connection first, because a client without a scheduler takes long to
        # end.
        asyncio.run(probe())
    except Exception as error:  # of any type: anything may answer at the address
        reason = str(error) or type(error).__name__
        raise argument_error("dask", address, f"{allowed} ({reason})") from None
    client = make_client(address, timeout=TIMEOUT, set_as_default=False)
    try:
        try:
            client.wait_for_workers(1, timeout=TIMEOUT)
        except TimeoutError:
            raise argument_error(
                "dask",
                address,
                f"a scheduler that has workers: start one with `dask worker {address}`",
            ) from None
        # With pure=True, Dask would hash the arguments of each chunk to find equal
        # chunks, and there are none.
        yield client.get_executor(pure=False)
    finally:
        client.close(timeout=TIMEOUT)
