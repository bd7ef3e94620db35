"""The suffix: packing is lossless, the order is that of time, invalid values are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.generations.errors import GenerationError
from quorum_wal.generations.suffix import (
    ATTACHMENT_GENERATION_MAX,
    NODE_GENERATION_MAX,
    NODE_ID_MAX,
    Suffix,
)

PARTS = st.tuples(
    st.integers(0, ATTACHMENT_GENERATION_MAX),
    st.integers(0, NODE_ID_MAX),
    st.integers(0, NODE_GENERATION_MAX),
)


def parts_of(suffix: Suffix) -> tuple[int, int, int]:
    return suffix.attachment_generation, suffix.node_id, suffix.node_generation


def test_the_documented_example() -> None:
    suffix = Suffix.pack(7, 3, 26)
    assert str(suffix) == suffix.format() == "000007000300001A"
    assert str(Suffix.pack(ATTACHMENT_GENERATION_MAX, NODE_ID_MAX, NODE_GENERATION_MAX)) == "F" * 16


@given(PARTS)
def test_packing_is_lossless(parts: tuple[int, int, int]) -> None:
    suffix = Suffix.pack(*parts)
    assert parts_of(suffix) == parts
    assert Suffix.parse(str(suffix)) == suffix


@given(PARTS, PARTS)
def test_parts_numbers_and_texts_have_one_order(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    first, second = Suffix.pack(*one), Suffix.pack(*other)
    assert (first < second) == (one < other) == (str(first) < str(second))


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ((ATTACHMENT_GENERATION_MAX + 1, 0, 0), "attachment generation 16777216"),
        ((0, NODE_ID_MAX + 1, 0), "node id 65536"),
        ((0, 0, NODE_GENERATION_MAX + 1), "node generation 16777216"),
        ((-1, 0, 0), "attachment generation -1"),
    ],
)
def test_values_out_of_range_are_refused(parts: tuple[int, int, int], what: str) -> None:
    with pytest.raises(GenerationError, match=f"invalid {what}: expected 0 to"):
        Suffix.pack(*parts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "000007000300001a",
        "000007000300001A0",
        "000007000300001A\n",
        "00000700030000\u0660A",
    ],
)
def test_invalid_texts_are_refused(text: str) -> None:
    with pytest.raises(GenerationError, match="expected 16 hex digits in upper case"):
        Suffix.parse(text)
