"""Safekeepers that have removed WAL, are unavailable, or lag. WAL is lost only if every one of them
has removed it, because each keeps its own slots. For the start of the log one answer is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgclient.errors import UNDEFINED_FILE
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs import safekeeper_input
from quorum_wal.spark.inputs.safekeeper_input import SafekeeperInput
from quorum_wal.spark.inputs.safekeeper_session import (
    Position,
    SafekeeperAddress,
    SafekeeperRefused,
)
from quorum_wal.spark.inputs.wal_input import LostWal

MIB = 1 << 20
START_LSN, KEPT_LSN, COMMIT_LSN = 16 * MIB, 24 * MIB, 32 * MIB
SERVER = ServerFacts(7, 160000, MIB)

#: (name, lsn)
Member = Callable[[str, int], bytes]


def keeps_from(begin_lsn: int, end_lsn: int = COMMIT_LSN) -> Member:
    """It has WAL from an LSN on; b"" where it lags."""

    def piece(name: str, lsn: int) -> bytes:
        if lsn < begin_lsn:
            raise SafekeeperRefused(f"safekeeper {name}: removed", sqlstate=UNDEFINED_FILE)
        return b"w" * min(MIB, max(0, end_lsn - lsn))

    return piece


def away(name: str, lsn: int) -> bytes:
    raise WalInputError(f"safekeeper {name}: connection failed: no route to host")


def damaged(name: str, lsn: int) -> bytes:
    raise SafekeeperRefused(f"safekeeper {name}: WAL is damaged", sqlstate="XX001")


REMOVED, BEHIND = keeps_from(KEPT_LSN), keeps_from(START_LSN, START_LSN)
WHOLE = keeps_from(START_LSN)


class Session:
    """A connection whose answers come from its member."""

    members: ClassVar[dict[str, Member]] = {}

    def __init__(self, address: SafekeeperAddress) -> None:
        self.name = address.name
        self._member = self.members[address.name]
        if self._member is away:
            away(self.name, 0)

    def close(self) -> None:
        """Nothing to close."""

    def position(self) -> Position:
        return Position(SERVER, TimelineHistory(1), COMMIT_LSN, START_LSN)

    def commit_lsn(self) -> int:
        return COMMIT_LSN

    def stream(self, lsn: int, tli: int) -> Iterator[bytes]:
        yield self._member(self.name, lsn)


@pytest.fixture
def input_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SafekeeperInput]:
    monkeypatch.setattr(safekeeper_input, "SafekeeperSession", Session)
    monkeypatch.setattr(safekeeper_input, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(safekeeper_input, "RETRY_SECONDS", 0.01)

    def make(*members: Member) -> SafekeeperInput:
        names = [f"sk{number}" for number in range(1, len(members) + 1)]
        monkeypatch.setattr(Session, "members", dict(zip(names, members, strict=True)))
        return SafekeeperInput([SafekeeperAddress(name, "") for name in names])

    return make


InputOf = Callable[..., SafekeeperInput]


@pytest.mark.parametrize("members", [(REMOVED,), (REMOVED, REMOVED, REMOVED)])
def test_wal_that_all_have_removed_is_lost(input_of: InputOf, members: tuple[Member, ...]) -> None:
    wal_input = input_of(*members)
    with pytest.raises(LostWal, match="no safekeeper has WAL from 0/1000000 on") as lost:
        next(wal_input.read(START_LSN))
    assert lost.value.lsn == START_LSN
    assert wal_input.extent() == (KEPT_LSN, COMMIT_LSN)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ((REMOVED, away, away), "safekeeper sk2: connection failed.*safekeeper sk3: connection"),
        ((REMOVED, REMOVED, away), "safekeeper sk3: connection failed"),
        ((away, REMOVED), "safekeeper sk1: connection failed"),
        ((REMOVED, BEHIND), "safekeeper sk2 has not received it yet"),
        ((REMOVED, damaged), "safekeeper sk2: WAL is damaged"),
    ],
    ids=["two are away", "one is away", "the first is away", "one is behind", "one is damaged"],
)
def test_wal_that_another_one_may_have_is_not_lost(
    input_of: InputOf, members: tuple[Member, ...], text: str
) -> None:
    wal_input = input_of(*members)
    for ask in (lambda: next(wal_input.read(START_LSN)), wal_input.extent):
        with pytest.raises(WalInputError, match=f"another one may have it: .*{text}") as error:
            ask()
        assert not isinstance(error.value, LostWal)
        assert "option safekeepers" in error.value.hint


def test_silence_of_all_is_an_error(input_of: InputOf) -> None:
    wal_input = input_of(away, away)
    for ask in (lambda: next(wal_input.read(START_LSN)), wal_input.extent):
        with pytest.raises(WalInputError, match="no safekeeper answers") as error:
            ask()
        assert not isinstance(error.value, LostWal)


def test_one_that_has_it_is_enough(input_of: InputOf) -> None:
    wal_input = input_of(away, REMOVED, WHOLE)
    assert sum(len(chunk.data) for chunk in wal_input.read(START_LSN)) == COMMIT_LSN - START_LSN
    assert wal_input.extent() == (START_LSN, COMMIT_LSN)


def test_below_the_start_of_the_log_there_is_no_wal(input_of: InputOf) -> None:
    """Every member knows the start, so those that do not answer cannot have it."""
    wal_input = input_of(away, REMOVED)
    with pytest.raises(LostWal, match="the log begins at 0/1000000"):
        next(wal_input.read(START_LSN - MIB))
