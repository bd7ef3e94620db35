"""The answers that are needed from safekeepers, and the choice of the one that serves a segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from archived_log import SEG_SIZE, log_facts, log_of

from quorum_wal.backup.safekeeper_wal import Position, Safekeeper, SafekeeperWalSource
from quorum_wal.backup.wal_source import WalSourceError
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name

SERVER = log_facts().server
BEGIN_LSN = 5 * SEG_SIZE
NAME = format_segment_name(1, 5, SEG_SIZE)
TWO = TimelineHistory(2, (TimelineSwitch(1, Lsn(BEGIN_LSN + 5000), "test"),))
DEAD, REMOVED, BREAKS, LEAVES = -1, -2, -3, -4


def _no_connection() -> Any:
    raise OSError("nobody listens")


@dataclass(frozen=True)
class Member(Safekeeper):
    """It has committed that much of segment 5; or is down, has removed it, disconnects while it is
    read, or is down when it is read."""

    length: int
    history: TimelineHistory
    #: One, which a test may replace.
    servers: list[ServerFacts]

    def position(self) -> Position:
        if self.length == DEAD:
            return super().position()
        commit_lsn = BEGIN_LSN + (SEG_SIZE if self.length < 0 else self.length)
        return Position(self, self.servers[0], self.history, commit_lsn)

    def read(self, server: ServerFacts, tli: int, begin_lsn: int, end_lsn: int) -> bytes:
        if self.length == LEAVES:
            return super().read(server, tli, begin_lsn, end_lsn)
        if self.length == BREAKS:
            raise WalSourceError("lost safekeeper", is_transient=True)
        return b"" if self.length == REMOVED else log_of(5)[: end_lsn - begin_lsn]


def source_of(
    *lengths: int,
    history: TimelineHistory | None = None,
    servers: list[ServerFacts] | None = None,
) -> SafekeeperWalSource:
    history, servers = history or TimelineHistory(1), servers or [SERVER]
    return SafekeeperWalSource(
        [
            Member(str(number), _no_connection, length, history, servers)
            for number, length in enumerate(lengths)
        ]
    )


@pytest.mark.parametrize(
    "lengths", [(SEG_SIZE,), (DEAD, DEAD, SEG_SIZE), (100, REMOVED, SEG_SIZE), (BREAKS, SEG_SIZE)]
)
def test_one_with_the_whole_segment_is_enough(lengths: tuple[int, ...]) -> None:
    assert source_of(*lengths).segment(NAME) == log_of(5)


@pytest.mark.parametrize("lengths", [(100, 5000, 200), (DEAD, 5000, 100), (5000, 5000)])
def test_the_longest_beginning_of_a_majority(lengths: tuple[int, ...]) -> None:
    assert source_of(*lengths).segment(NAME) == log_of(5)[:5000]


@pytest.mark.parametrize("lengths", [(0, 0, 0), (DEAD, 0, 0), (REMOVED, REMOVED)])
def test_a_majority_has_nothing(lengths: tuple[int, ...]) -> None:
    source = source_of(*lengths)
    assert source.segment(NAME) == b""
    assert source.history(2) is None


@pytest.mark.parametrize(
    "lengths", [(DEAD,), (DEAD, 5000), (DEAD, DEAD, 5000), (DEAD, DEAD, DEAD), (0, DEAD)]
)
def test_a_minority_is_not_enough(lengths: tuple[int, ...]) -> None:
    """A quorum may have committed more WAL with the others."""
    source = source_of(*lengths)
    with pytest.raises(WalSourceError, match=f"of {len(lengths)} safekeepers answered") as error:
        source.segment(NAME)
    assert error.value.is_transient
    with pytest.raises(WalSourceError, match="nobody listens"):
        source.history(2)


@pytest.mark.parametrize("lengths", [(REMOVED, REMOVED, DEAD), (REMOVED, 5000, DEAD)])
def test_a_silent_one_may_have_removed_wal(lengths: tuple[int, ...]) -> None:
    """Members keep WAL for their own slots: there is more, and a recovery must not end here."""
    with pytest.raises(WalSourceError, match="has been removed on safekeeper 0") as error:
        source_of(*lengths).segment(NAME)
    assert error.value.is_transient


def test_one_that_disconnects_may_come_back() -> None:
    """`connect` raises errors of its own."""
    with pytest.raises(WalSourceError, match="nobody listens") as error:
        source_of(LEAVES).segment(NAME)
    assert error.value.is_transient


def test_the_only_holder_disconnects() -> None:
    """No other safekeeper has the whole segment: a beginning must not be taken for its end."""
    with pytest.raises(WalSourceError, match="lost safekeeper"):
        source_of(BREAKS, 5000, 5000).segment(NAME)


@pytest.mark.parametrize(
    ("tli", "segno", "length"),
    [(1, 5, 5000), (2, 5, 9000), (1, 6, 0), (3, 5, 0), (2, 4, 0), (2, 6, 0)],
)
def test_each_timeline_has_its_own_part(tli: int, segno: int, length: int) -> None:
    """In the segment with the switch both timelines have a part."""
    source = source_of(9000, 9000, 9000, history=TWO)
    name = format_segment_name(tli, segno, SEG_SIZE)
    assert source.segment(name) == log_of(5)[:length]


def test_histories() -> None:
    source = source_of(9000, history=TWO)
    assert source.history(2) == TWO.format().encode()
    assert source.history(1) is None
    assert source.history(3) is None


def test_of_two_servers() -> None:
    source = source_of(5000, 5000)
    assert source.segment(NAME)
    assert source.server == SERVER
    servers = [SERVER]
    other = source_of(5000, servers=servers)
    assert other.segment(NAME)
    servers[0] = ServerFacts(SERVER.system_id + 1, SERVER.pg_version, SEG_SIZE)
    with pytest.raises(WalSourceError, match="safekeeper 0 has WAL of another server"):
        other.segment(NAME)
