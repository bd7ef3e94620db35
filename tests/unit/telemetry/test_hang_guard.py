"""A silent process is killed; a running or ended one, or one without a guard, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 30.0
SERVICE = """
import os, sys, time
from quorum_wal.telemetry.hang_guard import hang_guard
with hang_guard(float(sys.argv[1])):
    print("inside", flush=True)
    time.sleep(float(sys.argv[2]))
print("after", flush=True)
"""


@contextmanager
def service(timeout_seconds: float, sleep_seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that runs inside its guard."""
    arguments = (sys.executable, "-c", SERVICE, str(timeout_seconds), str(sleep_seconds))
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "inside\n"
            yield process
        finally:
            process.kill()


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]


def test_a_stopped_process_is_killed() -> None:
    with service(2, TIMEOUT) as process:
        process.send_signal(signal.SIGSTOP)
        assert process.wait(TIMEOUT) == -signal.SIGKILL
        assert process.stderr is not None
        assert f"process {process.pid} sent no heartbeat for 2 s" in process.stderr.read()


def test_a_running_process_is_not_killed() -> None:
    """It runs for longer than the timeout, and its guard ends with it."""
    with service(1, 3) as process:
        (killer,) = children_of(process.pid)
        output, errors = process.communicate(timeout=TIMEOUT)
        assert (process.returncode, output, errors) == (0, "after\n", "")
        with pytest.raises(ProcessLookupError):
            os.kill(killer, 0)


def test_a_guard_outlives_no_service_that_was_killed() -> None:
    with service(TIMEOUT, TIMEOUT) as process:
        (killer,) = children_of(process.pid)
        os.kill(killer, signal.SIGTERM)  # sent to the whole group; the service decides when to end
        process.kill()
        process.wait(TIMEOUT)
        wait_until(
            lambda: not os.path.exists(f"/proc/{killer}/exe"), TIMEOUT, "the guard to end, too"
        )


def test_a_service_without_a_guard_continues() -> None:
    with service(0, 1) as process:
        assert children_of(process.pid) == []
    with service(TIMEOUT, 2) as process:
        (killer,) = children_of(process.pid)
        os.kill(killer, signal.SIGKILL)
        output, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0
        assert "no guard against hangs any more" in output
