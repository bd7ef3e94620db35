"""Which WAL is kept, for which use, and what happens to a slot that needs too much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorum_wal.safekeeper.retention import (
    Horizon,
    LogExtent,
    RetentionPolicy,
    WalStatus,
    member_safe_wal_bytes,
    safe_wal_bytes,
    slot_limit_lsn,
    wal_horizon,
    wal_status,
)

MB = 1 << 20
# 100 segments of 1 MB, the last of them begun; no lag; wal_keep is 10, slots may hold 40.
LOG = LogExtent(0, 100 * MB + 5, 100 * MB, MB)
POLICY = RetentionPolicy(10 * MB, 40 * MB, max_member_wal_keep_bytes=70 * MB)


@pytest.mark.parametrize(
    ("changes", "slot", "expected"),
    [
        ({}, None, Horizon(90 * MB, "wal_keep")),
        ({}, ("s", 95 * MB), Horizon(90 * MB, "wal_keep")),
        ({}, ("s", 80 * MB + 7), Horizon(80 * MB, "slot s")),
        ({}, ("s", 30 * MB), Horizon(60 * MB, "slot s")),  # beyond its limit
        ({"truncate_lsn": 40 * MB + 1}, ("s", 80 * MB), Horizon(40 * MB, "members")),
        ({"truncate_lsn": 0}, None, Horizon(30 * MB, "members")),  # beyond its limit
        ({"truncate_lsn": 0, "archived_lsn": 20 * MB}, None, Horizon(20 * MB, "archive")),
        ({"local_start_lsn": 95 * MB}, None, Horizon(95 * MB, "wal_keep")),  # removed before
        ({"commit_lsn": 3 * MB, "truncate_lsn": 3 * MB}, None, Horizon(0, "wal_keep")),
    ],
)
def test_the_least_horizon_decides(
    changes: dict[str, int], slot: tuple[str, int] | None, expected: Horizon
) -> None:
    assert wal_horizon(POLICY, replace(LOG, **changes), slot) == expected


@pytest.mark.parametrize(
    ("changes", "pageserver_lsn", "expected"),
    [
        ({}, 95 * MB, Horizon(90 * MB, "wal_keep")),  # it never allows an earlier removal
        ({"truncate_lsn": 40 * MB}, 95 * MB, Horizon(40 * MB, "members")),
        ({"archived_lsn": 70 * MB}, 95 * MB, Horizon(70 * MB, "archive")),
        ({}, 80 * MB + 7, Horizon(80 * MB, "pageserver")),
        ({"archived_lsn": 99 * MB}, 80 * MB + 7, Horizon(80 * MB, "pageserver")),
        ({}, 30 * MB, Horizon(60 * MB, "pageserver")),  # beyond the limit
        ({}, 0, Horizon(60 * MB, "pageserver")),  # it has made nothing durable yet
        ({"local_start_lsn": 85 * MB}, 80 * MB, Horizon(85 * MB, "pageserver")),  # removed before
    ],
)
def test_a_pageserver_holds_what_it_has_not_made_durable(
    changes: dict[str, int], pageserver_lsn: int, expected: Horizon
) -> None:
    extent = replace(LOG, **changes)
    found = wal_horizon(POLICY, extent, None, pageserver_lsn=pageserver_lsn)
    assert found == expected
    assert found.lsn <= wal_horizon(POLICY, extent, None).lsn


def test_the_tail_is_kept_with_every_configuration() -> None:
    """A proposer compares the last segment before it leads."""
    horizon = wal_horizon(RetentionPolicy(0, 1), LOG, None)
    assert horizon == Horizon(98 * MB, "tail")


def test_without_a_limit_a_slot_may_hold_everything() -> None:
    policy = replace(POLICY, max_slot_wal_keep_bytes=0)
    assert wal_horizon(policy, LOG, ("s", 1)) == Horizon(0, "slot s")
    assert wal_status(policy, LOG, 1, is_lost=False) is WalStatus.EXTENDED
    assert safe_wal_bytes(policy, LOG, 1) is None


@pytest.mark.parametrize(
    ("changes", "is_left_behind", "safe_bytes"),
    [
        ({}, False, 70 * MB),
        ({"truncate_lsn": 75 * MB + 3, "local_start_lsn": 75 * MB}, False, 45 * MB),
        ({"truncate_lsn": 30 * MB, "local_start_lsn": 30 * MB}, False, 0),
        ({"truncate_lsn": 30 * MB - 1, "local_start_lsn": 30 * MB}, True, 0),
        ({"truncate_lsn": 3, "local_start_lsn": 30 * MB, "archived_lsn": 90 * MB}, False, None),
    ],
)
def test_a_lagging_member_is_left_behind_at_its_limit(
    changes: dict[str, int], is_left_behind: bool, safe_bytes: int | None
) -> None:
    extent = replace(LOG, **changes)
    assert extent.is_member_left_behind is is_left_behind
    assert member_safe_wal_bytes(POLICY, extent) == safe_bytes


def test_without_a_limit_a_member_may_hold_everything() -> None:
    policy = replace(POLICY, max_member_wal_keep_bytes=0)
    extent = replace(LOG, truncate_lsn=1)
    assert wal_horizon(policy, extent, None) == Horizon(0, "members")
    assert member_safe_wal_bytes(policy, extent) is None


def test_slots_that_cannot_be_read_hold_everything() -> None:
    extent = replace(LOG, local_start_lsn=7 * MB)
    horizon = wal_horizon(POLICY, extent, None, damaged=True)
    assert horizon == Horizon(7 * MB, "slots that cannot be read")


@pytest.mark.parametrize(
    ("restart_lsn", "is_lost", "status"),
    [
        (0, False, None),
        (100 * MB, False, WalStatus.RESERVED),
        (91 * MB, False, WalStatus.RESERVED),
        (90 * MB, False, WalStatus.EXTENDED),
        (60 * MB, False, WalStatus.EXTENDED),
        (60 * MB - 1, False, WalStatus.UNRESERVED),
        (50 * MB, False, WalStatus.UNRESERVED),
        (50 * MB - 1, False, WalStatus.LOST),
        (100 * MB, True, WalStatus.LOST),
    ],
)
def test_the_status_of_a_slot(restart_lsn: int, is_lost: bool, status: WalStatus | None) -> None:
    extent = replace(LOG, local_start_lsn=50 * MB)
    assert wal_status(POLICY, extent, restart_lsn, is_lost=is_lost) is status


def test_how_much_may_be_written_before_a_slot_is_lost() -> None:
    assert slot_limit_lsn(POLICY, LOG) == 60 * MB
    assert safe_wal_bytes(POLICY, LOG, 75 * MB + 3) == 15 * MB
    assert safe_wal_bytes(POLICY, LOG, 0) is None
