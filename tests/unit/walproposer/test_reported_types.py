"""Pages of other services are accepted with the fields that our services write, and with no value
of another type: a command or a web page would fail on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from quorum_wal.consensus.errors import MessageError
from quorum_wal.walproposer.timelines.reported_types import (
    SafekeeperPage,
    check_proposer,
    check_safekeeper,
    check_timeline,
)

NODE_ID = {"term": 5, "uuid": f"{5:032x}"}
SINCE = "2026-01-31T11:59:00.123456+00:00"
PROPOSER = {"node_id": NODE_ID, "address": "10.0.0.9:40000", "http": "10.0.0.9:7677",
            "connected_since": SINCE, "silent_seconds": 0.1}  # fmt: skip
TIMELINE: dict[str, Any] = {
    "state": "active", "active": True, "stopped_reason": None, "damage": [], "forced": False,
    "system_id": "7", "pg_version": 150018, "wal_seg_size": 16 << 20, "promised": NODE_ID,
    "membership": {"author": f"5/{5:032x}", "generation": 1, "members": [1], "new_members": [],
                   "roster": []},
    "last_log_node_id": NODE_ID, "local_start_lsn": "0/1000000", "written_lsn": "0/2000000",
    "flush_lsn": "0/2000000", "commit_lsn": "0/2000000", "wal_bytes": 9,
    "proposer": PROPOSER, "last_proposer": None, "last_leader": None,
    "replicas": [{"application_name": "a", "address": "b", "state": "streaming", "slot": None,
                  "pageserver": None, "sent_lsn": "0/1", "flush_lsn": None, "replay_lsn": None}],
    "slots": [{"slot_name": "s", "active": True, "restart_lsn": None, "wal_status": None}],
    "pageserver": {"suffix": "00", "held_bytes": 3},
    "retention": {"held_by": "a slot", "member_left_behind": False},
    "archive": {"archived_lsn": "0/1", "backlog_bytes": 0, "backlog_max_bytes": 7,
                "backlog_is_high": True, "state": "following", "error": None},
}  # fmt: skip
SAFEKEEPER: dict[str, Any] = {
    "version": "1", "disk": {"free_bytes": 1, "total_bytes": 2},
    "scrub": {"pass_ended_at": SINCE, "bytes_per_second": 1.5},
}  # fmt: skip
PAGE: dict[str, Any] = {
    "state": "streaming", "node_id": NODE_ID, "timeline_id": "ab" * 16, "commit_lsn": "0/2",
    "received_lsn": "0/2", "commit_bytes_per_second": 7, "commit_problems": ["x"],
    "failover": {"error": "x"},
    "primary": {"dsn": "host=db", "connected": True, "silent_seconds": None, "flush_lsn": "0/2",
                "system_id": "7", "slot": "s", "application_name": "a"},
    "quorum": {"ok": True, "since": SINCE}, "stalled_seconds": 0.0, "unconfirmed_seconds": 0.0,
    "safekeepers": [{"id": 1, "address": "a", "state": "streaming", "connected": True, "via": None,
                     "flush_lsn": "0/2", "commit_lsn": "0/2", "lag_bytes": 0, "lag_seconds": 0.0,
                     "error": None, "silent_seconds": 0.1}],
    "membership": {"change": {"state": "done", "wanted": [1], "waits_for": None, "error": None}},
    "qsync": {"address": "a", "owner": "ab", "refuses": None, "len": 1, "len_max": 2, "age": 0.1},
}  # fmt: skip
WAITING: dict[str, Any] = {
    "state": "waiting_for_primary", "primary": {"dsn": "", "connected": False, "error": "no"},
    "quorum": {"ok": False}, "safekeepers": [{"address": "a"}],
    "qsync": {"address": "a", "owner": None, "refuses": "no quorum"},
}  # fmt: skip

Check = Callable[[Mapping[str, Any]], None]


def check_decoded(page: Mapping[str, Any]) -> None:
    """As a page is read: decoded, and then checked. The times remain texts."""
    decoded = msgspec.convert(page, SafekeeperPage)
    check_safekeeper(decoded)
    ended_at = (decoded.get("scrub") or {}).get("pass_ended_at")
    assert ended_at is None or isinstance(ended_at, str)


CHECKS: list[tuple[Check, dict[str, Any]]] = [
    (check_timeline, TIMELINE),
    (check_decoded, SAFEKEEPER),
    (check_proposer, PAGE),
    (check_proposer, WAITING),
]
#: No field of any page may have one of these.
WRONG = ({"a": 1}, 10**400, -(2**70), object())


@pytest.mark.parametrize(("check", "page"), CHECKS)
def test_our_own_pages_are_accepted(check: Check, page: dict[str, Any]) -> None:
    check(page)
    check({**page, "new_field": {"of": "a later release"}})


def test_what_a_proposer_does_not_know_may_be_null() -> None:
    unknown = ("commit_problems", "failover", "membership", "node_id")
    check_proposer({**PAGE, **dict.fromkeys(unknown)})


@pytest.mark.parametrize(("check", "page"), CHECKS)
def test_a_field_of_another_type_is_refused(check: Check, page: dict[str, Any]) -> None:
    accepted = [
        (path, wrong)
        for wrong in WRONG
        for path, changed in changes(page, wrong)
        if is_accepted(check, changed)
    ]
    assert accepted == []


def is_accepted(check: Check, page: Mapping[str, Any]) -> bool:
    try:
        check(page)
    except (ValueError, MessageError):
        return False
    return True


def changes(value: Any, wrong: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """The value with one of its parts replaced, for each part."""
    if isinstance(value, dict):
        for key, part in value.items():
            for where, changed in changes(part, wrong, f"{path}.{key}"):
                yield where, {**value, key: changed}
            if not isinstance(part, dict) or not isinstance(wrong, dict):
                yield f"{path}.{key}", {**value, key: wrong}
    elif isinstance(value, list):
        for number, part in enumerate(value):
            for where, changed in changes(part, wrong, f"{path}[{number}]"):
                yield where, [*value[:number], changed, *value[number + 1 :]]


@pytest.mark.parametrize(
    ("check", "page", "change"),
    [
        (check_timeline, TIMELINE, {"state": "dancing"}),
        (check_timeline, TIMELINE, {"flush_lsn": "x"}),
        (check_timeline, TIMELINE, {"system_id": "x"}),
        (check_timeline, TIMELINE, {"promised": {"term": -1, "uuid": "zz"}}),
        (check_timeline, TIMELINE, {"archive": {**TIMELINE["archive"], "backlog_max_bytes": None}}),
        (check_proposer, PAGE, {"stalled_seconds": 1e300}),
        (check_proposer, PAGE, {"quorum": {"ok": True}}),
        (check_proposer, PAGE, {"quorum": {"ok": True, "since": "yesterday"}}),
        (check_proposer, PAGE, {"quorum": {"ok": True, "since": "2026-01-31T11:59:00"}}),
        (check_decoded, SAFEKEEPER, {"scrub": {"pass_ended_at": "2026-02-30T00:00:00+00:00"}}),
        (check_decoded, SAFEKEEPER, {"scrub": {"pass_ended_at": "2026-02-03T00:00:00"}}),
        (check_proposer, PAGE, {"qsync": {**PAGE["qsync"], "len": "many"}}),
        (check_proposer, PAGE, {"qsync": {"address": "a", "owner": "ab", "refuses": None}}),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    check: Check, page: dict[str, Any], change: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"\$"):
        check({**page, **change})


def test_a_page_without_a_necessary_field_is_refused() -> None:
    for name in ("state", "primary", "quorum", "safekeepers"):
        with pytest.raises(ValueError, match=name):
            check_proposer({key: value for key, value in PAGE.items() if key != name})
