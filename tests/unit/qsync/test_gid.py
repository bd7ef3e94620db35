"""Gids: their fields, and texts that are not gids of qsync."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.qsync.gid import Gid, GidError, Policy, uuid7

TEXT = "skq1.d.19c1f0a3e55.2-16b374d848-2f1-1.019c1f0a3e557b2c8d0e4f6a7b8c9d0e"
GID = Gid(
    Policy.DETACH, 0x19C1F0A3E55, 2, 0x16B374D848, 0x2F1, 1, "019c1f0a3e557b2c8d0e4f6a7b8c9d0e"
)


def test_the_fields_of_a_gid() -> None:
    assert Gid.parse(TEXT) == GID
    assert str(GID) == TEXT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "skq1",
        "skq2" + TEXT[4:],
        TEXT + " ",
        TEXT + "\n",
        TEXT.upper(),
        TEXT.replace(".d.", ".c."),
        TEXT.replace("019c", "019"),
        TEXT.replace(".19c", ".019c"),
        TEXT.replace("-2f1-1.", "-2f1."),
        TEXT.replace("-2f1-1.", "-2f1-1-3."),
        TEXT.replace(".2-", ".0-"),
        TEXT.replace(".2-", ".100000000-"),
        TEXT.replace("2f1", "10000000000000000"),
        TEXT.replace("2f1", "٢"),
        "x" * 100_000,
    ],
)
def test_any_other_text_is_not_a_gid(text: str) -> None:
    assert not Gid.is_ours(text)
    with pytest.raises(GidError, match="invalid gid"):
        Gid.parse(text)


U64 = st.integers(0, (1 << 64) - 1)


@given(
    st.builds(
        Gid,
        st.sampled_from(Policy),
        U64,
        st.integers(1, (1 << 32) - 1),
        U64,
        U64,
        U64,
        st.from_regex("[0-9a-f]{32}", fullmatch=True),
    )
)
def test_a_gid_is_read_as_it_was_written(gid: Gid) -> None:
    assert Gid.parse(str(gid)) == gid
    assert Gid.is_ours(str(gid))
    assert len(str(gid)) <= 116


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))
def test_a_uuid7_is_one(unix_ms: int, entropy: bytes) -> None:
    text = uuid7(unix_ms, entropy)
    assert len(text) == 32
    read = uuid.UUID(text)
    assert read.variant == uuid.RFC_4122
    assert read.version == 7
    assert read.int >> 80 == unix_ms


def test_uuids_of_one_moment_differ() -> None:
    assert uuid7(1, bytes(10)) != uuid7(1, bytes(9) + b"\1")
    assert uuid7(1, b"\xff" * 10) > uuid7(1, bytes(10))
