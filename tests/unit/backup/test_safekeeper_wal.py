"""The answers that are needed from safekeepers, and the choice of the one that serves a segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from archived_log import SEG_SIZE, log_facts, log_of

from quorum_wal.backup import safekeeper_wal
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
DEAD, REMOVED, BREAKS = -1, -2, -3


@pytest.fixture
def source_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SafekeeperWalSource]:
    """Safekeepers that have committed that much of segment 5, or are down, have removed it, or
    disconnect while it is read."""

    def make(
        *lengths: int, history: TimelineHistory | None = None, server: ServerFacts = SERVER
    ) -> SafekeeperWalSource:
        safekeepers = [Safekeeper(str(number), _no_connection) for number in range(len(lengths))]

        def ask(safekeeper: Safekeeper, answers: Any) -> None:
            length = lengths[int(safekeeper.name)]
            if length == DEAD:
                answers.put(OSError("nobody listens"))
                return
            commit_lsn = BEGIN_LSN + (SEG_SIZE if length < 0 else length)
            position = Position(safekeeper, server, history or TimelineHistory(1), commit_lsn)
            answers.put(position)

        def read(position: Position, tli: int, begin_lsn: int, end_lsn: int) -> bytes:
            length = lengths[int(position.safekeeper.name)]
            if length == BREAKS:
                raise WalSourceError("lost safekeeper", is_transient=True)
            return b"" if length == REMOVED else log_of(5)[: end_lsn - begin_lsn]

        monkeypatch.setattr(safekeeper_wal, "_ask", ask)
        monkeypatch.setattr(safekeeper_wal, "_read", read)
        return SafekeeperWalSource(safekeepers)

    return make


def _no_connection() -> Any:
    raise AssertionError("nobody connects")


Make = Callable[..., SafekeeperWalSource]


@pytest.mark.parametrize(
    "lengths", [(SEG_SIZE,), (DEAD, DEAD, SEG_SIZE), (100, REMOVED, SEG_SIZE), (BREAKS, SEG_SIZE)]
)
def test_one_with_the_whole_segment_is_enough(source_of: Make, lengths: tuple[int, ...]) -> None:
    assert source_of(*lengths).segment(NAME) == log_of(5)


@pytest.mark.parametrize("lengths", [(100, 5000, 200), (DEAD, 5000, 100), (5000, 5000)])
def test_the_longest_beginning_of_a_majority(source_of: Make, lengths: tuple[int, ...]) -> None:
    assert source_of(*lengths).segment(NAME) == log_of(5)[:5000]


@pytest.mark.parametrize("lengths", [(0, 0, 0), (DEAD, 0, 0), (REMOVED, REMOVED)])
def test_a_majority_has_nothing(source_of: Make, lengths: tuple[int, ...]) -> None:
    source = source_of(*lengths)
    assert source.segment(NAME) == b""
    assert source.history(2) is None


@pytest.mark.parametrize(
    "lengths", [(DEAD,), (DEAD, 5000), (DEAD, DEAD, 5000), (DEAD, DEAD, DEAD), (0, DEAD)]
)
def test_a_minority_is_not_enough(source_of: Make, lengths: tuple[int, ...]) -> None:
    """A quorum may have committed more WAL with the others."""
    source = source_of(*lengths)
    with pytest.raises(WalSourceError, match=f"of {len(lengths)} safekeepers answered") as error:
        source.segment(NAME)
    assert error.value.is_transient
    with pytest.raises(WalSourceError, match="nobody listens"):
        source.history(2)


@pytest.mark.parametrize("lengths", [(REMOVED, REMOVED, DEAD), (REMOVED, 5000, DEAD)])
def test_a_silent_one_may_have_removed_wal(source_of: Make, lengths: tuple[int, ...]) -> None:
    """Members keep WAL for their own slots: there is more, and a recovery must not end here."""
    with pytest.raises(WalSourceError, match="has been removed on safekeeper 0") as error:
        source_of(*lengths).segment(NAME)
    assert error.value.is_transient


def test_one_that_disconnects_may_come_back(
    source_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`connect` raises errors of its own."""
    read = safekeeper_wal._read

    def connect() -> Any:
        raise OSError("nobody listens")

    source = source_of(SEG_SIZE)
    monkeypatch.setattr(safekeeper_wal, "_read", read)
    source._safekeepers = [Safekeeper("0", connect)]
    with pytest.raises(WalSourceError, match="nobody listens") as error:
        source.segment(NAME)
    assert error.value.is_transient


def test_the_only_holder_disconnects(source_of: Make) -> None:
    """No other safekeeper has the whole segment: a beginning must not be taken for its end."""
    with pytest.raises(WalSourceError, match="lost safekeeper"):
        source_of(BREAKS, 5000, 5000).segment(NAME)


@pytest.mark.parametrize(
    ("tli", "segno", "length"),
    [(1, 5, 5000), (2, 5, 9000), (1, 6, 0), (3, 5, 0), (2, 4, 0), (2, 6, 0)],
)
def test_each_timeline_has_its_own_part(source_of: Make, tli: int, segno: int, length: int) -> None:
    """In the segment with the switch both timelines have a part."""
    source = source_of(9000, 9000, 9000, history=TWO)
    name = format_segment_name(tli, segno, SEG_SIZE)
    assert source.segment(name) == log_of(5)[:length]


def test_histories(source_of: Make) -> None:
    source = source_of(9000, history=TWO)
    assert source.history(2) == TWO.format().encode()
    assert source.history(1) is None
    assert source.history(3) is None


def test_of_two_servers(source_of: Make) -> None:
    source = source_of(5000, 5000)
    assert source.segment(NAME)
    assert source.server == SERVER
    stranger = ServerFacts(SERVER.system_id + 1, SERVER.pg_version, SEG_SIZE)
    other = source_of(5000, server=stranger)
    other._server = SERVER
    with pytest.raises(WalSourceError, match="safekeeper 0 has WAL of another server"):
        other.segment(NAME)
