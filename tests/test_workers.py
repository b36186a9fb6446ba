"""Who computes a sweep: processes that end with their parent, and Dask clusters."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from icl_theory.families.registry import find
from icl_theory.sweeps import workers
from icl_theory.sweeps.evaluate import evaluate
from icl_theory.sweeps.sweep import plan
from icl_theory.sweeps.workers import cluster, processes
from tests.models import finite
from tests.processes import until


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "from icl_theory.sweeps.workers import processes\n"
        "if __name__ == '__main__':\n"
        "    with processes(2) as pool:\n"
        "        print(*{pool.submit(os.getpid).result() for _ in range(20)}, flush=True)\n"
        "        pool.submit(time.sleep, 1000)\n"
        "        time.sleep(1000)\n"
    )
    (tmp_path / "main.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "main.py"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    workers = [int(number) for number in process.stdout.readline().split()]
    process.kill()
    process.wait()
    process.stdout.close()
    assert workers
    for worker in workers:
        until(lambda: _has_ended(worker))  # noqa: B023


def test_workers_are_started_with_interrupts_put_off() -> None:
    """The process that cleans up after workers lets interrupts through again where it is started."""
    code = (
        "import signal\n"
        "from multiprocessing import resource_tracker\n"
        "from icl_theory.sweeps.workers import _without_interrupts\n"
        "with _without_interrupts():\n"
        "    resource_tracker.ensure_running()\n"
        "    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        ).stdout
        == "True\n"
    )


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


class Cluster:
    """A Dask scheduler and its workers, as commands on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self._log = (folder / "log").open("w")
        self._started: list[subprocess.Popen[str]] = []
        self._start(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--scheduler-file",
            str(self.file),
        )
        until(
            lambda: self.file.exists() and self.file.read_text().rstrip().endswith("}")
        )  # written whole
        self.address = json.loads(self.file.read_text())["address"]

    def worker(self) -> subprocess.Popen[str]:
        return self._start(
            "worker",
            self.address,
            "--no-nanny",
            "--nthreads",
            "1",
            "--host",
            "127.0.0.1",
            "--local-directory",
            str(self.folder),
        )

    @property
    def has_worker(self) -> bool:
        return any(process.poll() is None for process in self._started[1:])

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dask", kind, *arguments, "--no-dashboard"]
        process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, text=True, cwd=self.folder
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in reversed(self._started):
            process.kill()
            process.wait()
        self._log.close()


@pytest.fixture(scope="module")
def dask_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("dask"))
    try:
        yield running
    finally:
        running.close()


def test_a_dask_cluster_that_loses_a_worker_gives_the_same_bits(
    dask_cluster: Cluster,
) -> None:
    made = plan(
        find("regression"),
        {
            "L": np.geomspace(1.0, 2.0, 12),
            "delta": 1.0,
            "eta": 2.0,
            "K": [6, 8],
            "N": [40, 60],
            "epsilon": 0.02,
            "imbalance": 0.1,
            "method": "exact",
        },
    )
    expected = evaluate(made.grid, made.model).values
    victim, _ = dask_cluster.worker(), dask_cluster.worker()
    killed = []

    def kill(done: int, total: int) -> None:
        if done and not killed:
            killed.append(done)
            victim.send_signal(signal.SIGKILL)

    with cluster(dask_cluster.address) as executor:
        found = evaluate(made.grid, made.model, executor=executor, progress=kill)
    assert victim.wait() == -signal.SIGKILL
    assert killed[0] < made.grid.size
    assert not found.interrupted
    for name, values in expected.items():
        np.testing.assert_array_equal(found.values[name], values)
    assert set(expected["status"]) == {"reached"}


def test_sweep_runs_on_a_dask_client(dask_cluster: Cluster) -> None:
    if not dask_cluster.has_worker:  # of the test above
        dask_cluster.worker()
    with cluster(dask_cluster.address) as executor:
        assert finite(executor).identical(finite())


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("tcp://127.0.0.1:1", "Timed out"),
        ("nowhere", "missing port"),
        ("x://y", "unknown"),
    ],
)
def test_no_scheduler_at_the_address_is_said(
    address: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workers.TIMEOUT < 8.0  # and two seconds to load Dask
    monkeypatch.setattr(workers, "TIMEOUT", 0.5)
    with (
        pytest.raises(ValueError, match="the address of a running scheduler.*" + words),
        cluster(address),
    ):
        pass


def test_a_scheduler_without_workers_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "TIMEOUT", 2.0)
    empty = Cluster(tmp_path)
    try:
        with (
            pytest.raises(ValueError, match="start one with `dask worker"),
            cluster(empty.address),
        ):
            pass
    finally:
        empty.close()


def test_dask_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(
            ValueError, match=r"pip install 'filelock>=3.32' 'pyarrow>=17' 'dask"
        ),
        cluster("tcp://127.0.0.1:1"),
    ):
        pass


def test_a_pool_of_processes_is_closed_also_after_an_error_and_no_other_process() -> (
    None
):
    other = multiprocessing.get_context("spawn").Process(
        target=time.sleep, args=(1000,)
    )
    other.start()

    def fail() -> None:
        with processes(1) as pool:
            assert pool.submit(math.sqrt, 4.0).result() == 2.0
            pool.submit(time.sleep, 1000)
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert multiprocessing.active_children() == [other]
    finally:
        other.kill()
        other.join()
