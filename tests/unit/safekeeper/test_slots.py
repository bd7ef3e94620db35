"""Slots: Postgres's names and codes, what survives a restart, and damage of their file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.slots import NAME_BYTES_MAX, SLOTS_FILE_NAME, SLOTS_MAX, Slots
from quorum_wal.safekeeper.slots_file import SavedHolders, SavedSlot, decode_slots, encode_slots
from quorum_wal.safekeeper.trim_rule import Trim
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

OURS, THEIRS = 1, 2


def sqlstate_of(error: pytest.ExceptionInfo[SafekeeperError]) -> str:
    return error.value.sqlstate


def test_a_created_slot_exists_after_a_restart(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slots.create("archive", 0)
    slots.create("standby", 0x1000)
    slots.create("backup", 5, temporary_for=OURS)
    again = Slots(tmp_path)
    assert [(s.name, s.restart_lsn) for s in again.all()] == [("archive", 0), ("standby", 0x1000)]


def test_a_position_is_saved_later_and_never_decreases(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slot = slots.create("s", 0)
    for flush_lsn in (0x2000, 0, 0x1000):
        slots.advance(slot, flush_lsn)
    assert slot.restart_lsn == 0x2000
    assert Slots(tmp_path).all()[0].restart_lsn == 0
    slots.save()
    assert Slots(tmp_path).all()[0].restart_lsn == 0x2000
    assert slots.oldest() is slot


def test_only_one_may_use_it(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slots.create("s", 0)
    slot = slots.acquire("s", OURS)
    for use in (slots.acquire, slots.drop):
        with pytest.raises(SafekeeperError, match="is active for session 1") as error:
            use("s", THEIRS)
        assert sqlstate_of(error) == "55006"
    slots.release(slot)
    slots.drop("s", THEIRS)
    assert Slots(tmp_path).all() == slots.all() == []


def test_a_temporary_slot_ends_with_its_session(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slot = slots.create("t", 7, temporary_for=OURS)
    slots.release(slots.acquire("t", OURS))
    with pytest.raises(SafekeeperError, match="is active"):
        slots.acquire("t", THEIRS)
    slots.end_session(THEIRS)
    assert slots.oldest() is slot
    slots.end_session(OURS)
    assert slots.all() == []


@pytest.mark.parametrize("name", ["", "Upper", "a-b", "a b", "ä", "x" * (NAME_BYTES_MAX + 1)])
def test_names_are_those_of_postgres(tmp_path: Path, name: str) -> None:
    with pytest.raises(SafekeeperError, match="replication slot name") as error:
        Slots(tmp_path).create(name, 0)
    assert sqlstate_of(error) == "42602"
    assert not (tmp_path / SLOTS_FILE_NAME).exists()


def test_the_codes_that_clients_know(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slots.create("s", 0)
    with pytest.raises(SafekeeperError, match="already exists") as error:
        slots.create("s", 0)
    assert sqlstate_of(error) == "42710"
    for use in (slots.acquire, slots.drop):
        with pytest.raises(SafekeeperError, match="does not exist") as error:
            use("nobody", OURS)
        assert sqlstate_of(error) == "42704"
    for number in range(SLOTS_MAX - 1):
        slots.create(f"s{number}", 0)
    with pytest.raises(SafekeeperError, match="all replication slots are in use") as error:
        slots.create("one_more", 0)
    assert sqlstate_of(error) == "53400"


def test_a_lost_slot_stays_lost(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    lost, kept, unused = slots.create("lost", 99), slots.create("kept", 100), slots.create("u", 0)
    slots.lose_below(100)
    assert [lost.is_lost, kept.is_lost, unused.is_lost] == [True, False, False]
    slots.advance(lost, 1000)
    assert lost.restart_lsn == 99
    assert slots.oldest() is kept
    again = Slots(tmp_path)
    with pytest.raises(SafekeeperError, match="can no longer access") as error:
        again.acquire("lost", OURS)
    assert sqlstate_of(error) == "55000"
    again.drop("lost", OURS)


def test_a_damaged_file_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    """For damage of every single byte."""
    slots = Slots(tmp_path)
    slots.create("archive", 0x1000)
    slots.register(0x700000300001A)
    file = tmp_path / SLOTS_FILE_NAME
    good = file.read_bytes()
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        damaged = Slots(tmp_path)
        assert damaged.damaged is not None
        for use in (lambda d: d.find("archive"), lambda d: d.create("x", 0),
                    lambda d: d.register(1 << 63), lambda d: d.forget_pageserver()):  # fmt: skip
            with pytest.raises(SafekeeperError) as error:
                use(damaged)
            assert sqlstate_of(error) == "XX001"
        damaged.save()
    assert file.read_bytes() != good  # a save did not overwrite the evidence
    for length in range(len(good)):
        with pytest.raises(SafekeeperError):
            decode_slots(good[:length], "slots")


def test_the_file_is_read_back(request: pytest.FixtureRequest) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    slots = [
        SavedSlot("s" * dice.randint(1, NAME_BYTES_MAX), dice.getrandbits(64), dice.random() < 0.5)
        for _ in range(dice.randint(0, SLOTS_MAX))
    ]
    trim = Trim(dice.getrandbits(64), dice.getrandbits(64), dice.random() < 0.5)
    for known in (None, trim):
        found = decode_slots(encode_slots(slots, known), "slots")
        assert found == SavedHolders(tuple(slots), known)


def test_a_file_of_an_older_release_is_read_and_written_in_its_format(tmp_path: Path) -> None:
    """While no pageserver is known."""
    old = bytes.fromhex("51534c5400000001000000010761726368697665000000000000100000d092c21a")
    (tmp_path / SLOTS_FILE_NAME).write_bytes(old)
    slots = Slots(tmp_path)
    assert (slots.damaged, slots.trim) == (None, None)
    assert [(s.name, s.restart_lsn) for s in slots.all()] == [("archive", 0x1000)]
    slots.advance(slots.all()[0], 0x2000)
    slots.save()
    assert (tmp_path / SLOTS_FILE_NAME).read_bytes()[:8] == b"QSLT\0\0\0\1"
    slots.register(7)
    assert (tmp_path / SLOTS_FILE_NAME).read_bytes()[:8] == b"QSLT\0\0\0\2"
    slots.forget_pageserver()
    assert (tmp_path / SLOTS_FILE_NAME).read_bytes()[:8] == b"QSLT\0\0\0\1"


def test_a_pageserver_is_saved_before_it_streams_and_its_horizon_later(
    tmp_path: Path,
) -> None:
    slots = Slots(tmp_path)
    slots.create("s", 5)
    slots.register(7)
    assert Slots(tmp_path).trim == Trim(7)
    slots.report(7, 0x1000)
    assert (slots.trim, Slots(tmp_path).trim) == (Trim(7, 0x1000), Trim(7))
    slots.save()
    again = Slots(tmp_path)
    assert (again.trim, len(again.all())) == (Trim(7, 0x1000), 1)
    again.register(9)
    with pytest.raises(SafekeeperError, match="is stale: 0000000000000009 has") as error:
        again.register(8)
    assert sqlstate_of(error) == "55006"
    for use in (lambda: again.report(7, 0x9000), lambda: again.check_newest(7)):
        with pytest.raises(SafekeeperError, match="is stale"):
            use()
    assert Slots(tmp_path).trim == Trim(9, 0x1000, is_inherited=True)
    again.forget_pageserver()
    again.report(9, 0x9000)
    assert Slots(tmp_path).trim is again.trim is None
    with pytest.raises(SafekeeperError, match="no pageserver is known") as error:
        again.forget_pageserver()
    assert sqlstate_of(error) == "42704"


def test_a_pageserver_is_not_known_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(tmp_path)
    slots.register(7)

    def fail(*_: object) -> None:
        raise StorageError("pulled")

    monkeypatch.setattr(durable, "replace_file", fail)
    with pytest.raises(StorageError):
        slots.register(9)
    assert slots.trim == Trim(7)
    with pytest.raises(StorageError):
        slots.forget_pageserver()
    assert slots.trim == Trim(7)
