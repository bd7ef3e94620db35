"""A start needs enough open files; a listener that runs out of them logs it once."""

from __future__ import annotations

import resource

import pytest
import structlog
from structlog.testing import capture_logs

from quorum_wal.access import open_files
from quorum_wal.access.admission import ConnectionLimits
from quorum_wal.access.errors import AccessError
from quorum_wal.access.open_files import raise_limit
from quorum_wal.safekeeper.open_files import files_needed
from quorum_wal.telemetry.accept_trouble import AcceptTrouble

LIMITS = ConnectionLimits()


class Limit:
    """Replaces the process's own limit."""

    def __init__(self, soft: int, hard: int, refuses: type[Exception] | None = None) -> None:
        self.now = soft, hard
        self._refuses = refuses

    def get(self, _: int) -> tuple[int, int]:
        return self.now

    def set(self, _: int, limits: tuple[int, int]) -> None:
        if self._refuses is not None:
            raise self._refuses("not permitted")
        self.now = limits


def given(monkeypatch: pytest.MonkeyPatch, limit: Limit) -> Limit:
    monkeypatch.setattr(resource, "getrlimit", limit.get)
    monkeypatch.setattr(resource, "setrlimit", limit.set)
    assert open_files.resource is resource
    return limit


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = given(monkeypatch, Limit(256, 4096))
    assert raise_limit(files_needed(LIMITS, 4), LIMITS) == 4096
    assert limit.now == (4096, 4096)


def test_too_few_are_refused_with_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Limit(12, 12))
    with pytest.raises(AccessError) as caught:
        raise_limit(files_needed(LIMITS, 0), LIMITS)
    needed = files_needed(LIMITS, 0)
    assert (
        str(caught.value) == f"the limit of open files is 12, but 200 connections may need {needed}"
    )
    assert "ulimit -n" in caught.value.hint
    assert "--connections-max" in caught.value.hint
    assert caught.value.sqlstate == "53000"


def test_fewer_connections_need_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ConnectionLimits(connections_max=10, connections_reserved=2)
    needed = files_needed(few, 0)
    assert needed < files_needed(LIMITS, 0) <= 1024
    given(monkeypatch, Limit(needed, needed))
    assert raise_limit(files_needed(few, 0), few) == needed
    with pytest.raises(AccessError):
        raise_limit(files_needed(few, 1), few)


@pytest.mark.parametrize("refuses", [ValueError, OSError])
def test_a_limit_that_cannot_be_raised_may_suffice(
    monkeypatch: pytest.MonkeyPatch, refuses: type[Exception]
) -> None:
    given(monkeypatch, Limit(1024, resource.RLIM_INFINITY, refuses))
    assert raise_limit(files_needed(LIMITS, 4), LIMITS) == 1024


def test_no_limit_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, Limit(resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert raise_limit(files_needed(LIMITS, 4), LIMITS) == resource.RLIM_INFINITY


def test_a_problem_is_logged_once_and_its_end_once() -> None:
    with capture_logs() as lines:
        trouble = AcceptTrouble(structlog.get_logger(), "wal")
        trouble.accepted()
        for _ in range(100):
            trouble.failed(OSError(24, "Too many open files"))
        trouble.accepted()
        trouble.accepted()
        trouble.failed(OSError(24, "Too many open files"))
    assert [line["event"] for line in lines] == [
        "could not accept connections, retrying",
        "connections are accepted again",
        "could not accept connections, retrying",
    ]
    assert lines[0]["reason"] == "Too many open files"
    assert lines[1]["failed_tries"] == 100
