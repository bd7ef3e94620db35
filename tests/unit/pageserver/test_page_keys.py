"""Names: format and parse are inverse, and unknown names are ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.emergency import emergency_suffix
from quorum_wal.pageserver.objects.page_keys import (
    LSN_MAX,
    PART_MAX,
    SEQ_MAX,
    ClaimName,
    FrameName,
    HeaderName,
    IndexName,
    LayerName,
    ListName,
    PageKeys,
    PageName,
    QueueKeys,
    TombstoneName,
    parse_page_name,
    parse_queue_name,
)

TIMELINE = TimelineId(bytes(16), b"t" * 16)
KEYS = PageKeys(TIMELINE)
PREFIX = "0" * 32 + "/" + "74" * 16 + "/pages/"
SUFFIX = Suffix.pack(7, 3, 26)

suffixes = st.builds(Suffix, st.integers(0, 2**64 - 1))
seqs, lsns = st.integers(0, SEQ_MAX), st.integers(0, LSN_MAX)
page_names: st.SearchStrategy[PageName] = st.one_of(
    st.builds(ClaimName, suffixes),
    st.builds(IndexName, suffixes, seqs),
    st.builds(LayerName, lsns, st.integers(0, PART_MAX), suffixes, seqs),
    st.builds(FrameName, lsns, suffixes, seqs),
    st.just(TombstoneName()),
)


@given(page_names)
def test_a_name_is_parsed_as_formatted(name: PageName) -> None:
    assert parse_page_name(name.format()) == name
    assert KEYS.parse(KEYS.key(name)) == name
    assert PageKeys(TimelineId(bytes(16), b"o" * 16)).parse(KEYS.key(name)) is None


@given(st.one_of(st.builds(ListName, suffixes, seqs), st.builds(HeaderName, suffixes, seqs)))
def test_a_queue_name_is_parsed_as_formatted(name: ListName | HeaderName) -> None:
    assert parse_queue_name(name.format()) == name
    assert QueueKeys(3).parse(QueueKeys(3).key(name)) == name
    assert QueueKeys(4).parse(QueueKeys(3).key(name)) is None


@given(page_names, st.text(alphabet="0123456789ABCDEFabcdefg-/.\n", max_size=60))
def test_a_parsed_name_is_formatted_the_same(name: PageName, text: str) -> None:
    for candidate in (text, name.format() + text[:2], f"index/{text}", f"layers/{text}"):
        found = parse_page_name(candidate)
        assert found is None or found.format() == candidate
        of_queue = parse_queue_name(candidate)
        assert of_queue is None or of_queue.format() == candidate


@given(st.lists(st.builds(IndexName, suffixes, seqs)))
def test_the_order_of_names_is_that_of_their_texts(names: list[IndexName]) -> None:
    assert [name.format() for name in sorted(names)] == sorted(name.format() for name in names)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (ClaimName(SUFFIX), "attachments/000007000300001A"),
        (IndexName(SUFFIX, 42), "index/000007000300001A-0000002A"),
        (LayerName(0x5000028, 1, SUFFIX, 42),
         "layers/0000000005000028-0001-000007000300001A-0000002A"),
        (FrameName(0x5000028, SUFFIX, 42), "frames/0000000005000028-000007000300001A-0000002A"),
        (TombstoneName(), "deleted"),
    ],
)  # fmt: skip
def test_names_are_as_documented(name: PageName, text: str) -> None:
    assert KEYS.key(name) == PREFIX + text


def test_names_of_the_queue_are_as_documented() -> None:
    suffix = Suffix.pack(0, 3, 26)
    keys = QueueKeys(3)
    assert keys.key(ListName(suffix, 42)) == "deletion/0003/0000002A-000000000300001A.list"
    assert keys.key(HeaderName(suffix, 42)) == "deletion/0003/header-000000000300001A-0000002A"


@pytest.mark.parametrize(
    "name",
    ["", "deleted/", "index/", "index/000007000300001a-0000002A", "index/000007000300001A-2A",
     "index/000007000300001A-0000002A\n", "layers/5000028-0001-000007000300001A-0000002A", "x"],
)  # fmt: skip
def test_unknown_names_are_ignored(name: str) -> None:
    assert parse_page_name(name) is None
    assert KEYS.parse(PREFIX + name) is None
    assert KEYS.parse(name) is None


def test_an_emergency_suffix_is_the_greatest() -> None:
    names = [ClaimName(Suffix.pack(7, 3, 26)), IndexName(Suffix.pack(6, 9, 99), 1), TombstoneName()]
    assert emergency_suffix(names, 3) == Suffix.pack(8, 3, 27)
    assert emergency_suffix(names, 4) == Suffix.pack(8, 4, 1)
    assert emergency_suffix([], 4) == Suffix.pack(1, 4, 1)
