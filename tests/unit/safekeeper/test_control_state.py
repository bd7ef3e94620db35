"""The control file: golden bytes, and a clear refusal of every damage; never a silent reset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.control_state import (
    ControlState,
    decode_control_state,
    encode_control_state,
)
from quorum_wal.safekeeper.errors import ControlFileError

DATA = Path(__file__).parents[2] / "data"
GOLDEN = DATA / "control_v3.hex"
GOLDEN_V2 = DATA / "control_v2.hex"
GOLDEN_V1 = DATA / "control_v1.hex"

STATE = ControlState(
    timeline=TimelineId(bytes(range(16)), bytes(range(16, 32))),
    server=ServerFacts(7_710_436_577_244_032_284, 150_018, 16 * 1024 * 1024),
    active=True,
    membership=Membership(
        Stamp(NodeId(7, b"p" * 16), 3),
        (1, 2, 3),
        (2, 3, 4),
        (
            Member(1, b"1 is one", "10.0.0.1", 5454, "a room"),
            Member(2, b"2 is two", "db-2.example", 5454),
            Member(4, b"4 is 4th", "fd00::4", 65535, "caf\u00e9"),
        ),
    ),
    promised=NodeId(7, b"p" * 16),
    term_history=TermHistory.initial(0x1000000)
    .extended(NodeId(5, b"a" * 16), 0x1000000)
    .extended(NodeId(7, b"p" * 16), 0x16B3748),
    tli_history=TimelineHistory.parse(2, "1\t0/16B3748\tno recovery target specified\n"),
    timeline_start_lsn=0x1000000,
    local_start_lsn=0x1000000,
    commit_lsn=0x16B3748,
    truncate_lsn=0x16B0000,
    archived_lsn=0x1000000,
    remote_consistent_lsn=0x10FFFF8,
    flush_lsn=0x16B3760,
    lost_lsn=0x16B4000,
)
#: The membership in golden bytes of an older format: no stamp, no instances, no addresses.
OLDER = replace(STATE, membership=Membership(Stamp(NodeId.ZERO, 3), (1, 2, 3), (2, 3, 4)))


def golden_bytes() -> bytes:
    return bytes.fromhex(GOLDEN.read_text())


def test_golden_bytes() -> None:
    """A change of these bytes is a change of the format: it needs a new version and a reader of
    the old one."""
    assert encode_control_state(STATE) == golden_bytes()
    assert decode_control_state(golden_bytes(), "golden") == STATE


def test_every_flipped_bit_is_refused() -> None:
    content = golden_bytes()
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            with pytest.raises(ControlFileError):
                decode_control_state(bytes(damaged), "damaged")


def test_every_truncation_is_refused() -> None:
    content = golden_bytes()
    for length in range(len(content)):
        with pytest.raises(ControlFileError):
            decode_control_state(content[:length], "short")


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(ControlFileError, match="checksum"):
        decode_control_state(golden_bytes() + b"\0", "long")


def test_version_1_is_read() -> None:
    """It has no flushed position: the log was flushed at least up to its commit."""
    state = decode_control_state(bytes.fromhex(GOLDEN_V1.read_text()), "older")
    assert state == replace(OLDER, flush_lsn=STATE.commit_lsn, lost_lsn=0)


def test_version_2_is_read() -> None:
    """The first leader fills in the identities of the members."""
    assert decode_control_state(bytes.fromhex(GOLDEN_V2.read_text()), "older") == OLDER


def test_has_left_is_saved() -> None:
    left = replace(STATE, has_left=True)
    assert decode_control_state(encode_control_state(left), "left") == left


def test_another_version_is_named_with_a_hint() -> None:
    content = bytearray(golden_bytes())
    content[7] = 9
    with pytest.raises(ControlFileError, match="format version 9, expected 3") as caught:
        decode_control_state(bytes(content), "newer")
    assert "release" in caught.value.hint
