"""Who computes a sweep: processes of this machine, or a Dask cluster through its client."""

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

TIMEOUT = 7.0  # seconds until a scheduler that does not answer is given up


@contextlib.contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes that end with this one, and on Ctrl-C at once."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker)
    try:
        with _without_interrupts():
            for _ in range(count):  # they start now, when Ctrl-C does not reach them
                pool.submit(os.getpid)
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            # what has been asked for is done, or not wanted any more
            process.terminate()
            # The pool's own thread also waits for its processes. If it learns first
            # that one has
            # ended, join() returns before this process has been told so.
            while process.is_alive():
                process.join(timeout=0.01)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Put Ctrl-C off, for processes that are started here also for good, where the system knows how to."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # where it starts it lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Connect to a running Dask cluster by the address of its scheduler, as ``dask scheduler`` prints it.

    A chunk whose worker dies goes to another one. No scheduler or worker within seconds
    is a ValueError.
    """
    import asyncio
    import logging

    try:
        from distributed import Client
        from distributed.comm.core import connect
    except ModuleNotFoundError:
        raise ValueError(f"a cluster needs dask: {install('distributed')}") from None
    for name in ("distributed", "distributed.client"):  # what matters is said here
        logging.getLogger(name).setLevel(logging.CRITICAL)

    async def probe() -> None:
        reach: Any = connect
        await (await reach(address, timeout=TIMEOUT)).close()

    wanted = "the address of a running scheduler, which `dask scheduler` prints"
    try:
        asyncio.run(probe())  # a client without a scheduler takes long to end
    except Exception as error:  # whatever may answer there
        raise argument_error(
            "dask", address, f"{wanted} ({str(error) or type(error).__name__})"
        ) from None
    make: Any = Client
    client = make(address, timeout=TIMEOUT, set_as_default=False)
    try:
        try:
            client.wait_for_workers(1, timeout=TIMEOUT)
        except TimeoutError:
            raise argument_error(
                "dask",
                address,
                f"a scheduler that has workers: start one with `dask worker {address}`",
            ) from None
        # which need not compare the chunks that it is given
        yield client.get_executor(pure=False)
    finally:
        client.close(timeout=TIMEOUT)
