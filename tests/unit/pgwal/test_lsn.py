"""`Lsn` parses and prints as Postgres does, and stays an Lsn under addition only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.lsn import Lsn, format_lsn


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0/0", 0),
        ("16/B374D848", 0x16B374D848),
        ("16/b374d848", 0x16B374D848),
        ("00000001/00000002", 0x100000002),
        ("FFFFFFFF/FFFFFFFF", 0xFFFFFFFFFFFFFFFF),
    ],
)
def test_parse(text: str, value: int) -> None:
    assert Lsn.parse(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "/", "1", "1/", "/1", "0x1/2", "1/2/3", " 1/2", "1/ 2", "-1/2", "123456789/0", "G/0"],
)
def test_not_an_lsn(text: str) -> None:
    with pytest.raises(LsnSyntaxError, match="invalid LSN"):
        Lsn.parse(text)


@settings(deadline=None)
@given(st.integers(0, 0xFFFFFFFFFFFFFFFF))
def test_there_and_back(value: int) -> None:
    text = str(Lsn(value))
    assert Lsn.parse(text) == value
    assert text == format_lsn(value) == f"{Lsn(value)}"


def test_arithmetic() -> None:
    assert isinstance(Lsn(8) + 8, Lsn)
    assert type(Lsn(16) - Lsn(8)) is int
    assert f"{Lsn(0x1000000):>12s}" == "   0/1000000"
    assert f"{Lsn(255):x}" == "ff"
    assert repr(Lsn(255)) == "Lsn(0/FF)"
