"""The index and the small objects: encoding and decoding, and rejected contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.errors import ObjectDamaged
from quorum_wal.objectstore.sealed import seal, unseal
from quorum_wal.pageserver.objects.attachment_id import AttachmentId
from quorum_wal.pageserver.objects.deletion_list import (
    DeletionList,
    QueueHeader,
    decode_claim,
    decode_header,
    decode_list,
    encode_claim,
    encode_header,
    encode_list,
)
from quorum_wal.pageserver.objects.page_index import (
    Cut,
    FrameRef,
    LayerRef,
    PageIndex,
    decode_index,
    encode_index,
)

S1, S2 = Suffix.pack(1, 1, 1), Suffix.pack(7, 3, 26)
INDEX = PageIndex(
    200,
    (Cut(150, 180, 200, 1, 1_700_000_000), Cut(260, 290, 300, 2, 1_700_000_900)),
    (LayerRef(200, 0, S1, 2, 64 << 20), LayerRef(200, 1, S1, 3, 5), LayerRef(300, 0, S2, 1, 7)),
    (FrameRef(200, S1, 4, 9), FrameRef(300, S2, 2, 9)),
)
ATTACHMENT = AttachmentId(TimelineId(bytes(16), b"t" * 16), S2)
LIST = DeletionList({ATTACHMENT: (INDEX.layers[0].name.format(), INDEX.frames[0].name.format())})
HEADER = QueueHeader("5f" * 16, 41, frozenset({ATTACHMENT}))

suffixes = st.builds(Suffix, st.integers(0, 2**64 - 1))
lsns = st.integers(0, 2**64 - 1)
layers = st.builds(
    LayerRef,
    lsns,
    st.integers(0, 65535),
    suffixes,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**40),
)


@given(st.lists(layers, unique_by=lambda ref: ref.name))
def test_each_reference_keeps_its_own_suffix(refs: list[LayerRef]) -> None:
    index = PageIndex(layers=tuple(refs))
    assert decode_index(encode_index(index), "k") == index


def test_an_index_is_decoded_as_encoded() -> None:
    found = decode_index(encode_index(INDEX), "k")
    assert found == INDEX
    assert found.names == {ref.name for ref in (*INDEX.layers, *INDEX.frames)}
    assert (found.newest_redo_lsn, found.newest_end_lsn) == (260, 300)
    assert decode_index(encode_index(PageIndex()), "k").newest_redo_lsn == 0


def test_small_objects_are_decoded_as_encoded() -> None:
    assert decode_claim(encode_claim("5f" * 16), "k") == "5f" * 16
    assert decode_list(encode_list(LIST), "k") == LIST
    assert decode_header(encode_header(HEADER), "k") == HEADER


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "edit",
    [
        lambda page: page.update(format=0),
        lambda page: page.update(format="1"),
        lambda page: page.update(other=1),
        lambda page: page.pop("layers"),
        lambda page: page.update(horizon_lsn=-1),
        lambda page: page.update(horizon_lsn=1 << 64),
        lambda page: page.update(horizon_lsn=201),
        lambda page: page["cuts"].reverse(),
        lambda page: page["cuts"][0].update(redo_lsn=181),
        lambda page: page["cuts"][1].update(redo_lsn=140),
        lambda page: page["cuts"][0].update(tli=0),
        lambda page: page["layers"].append(page["layers"][0]),
        lambda page: page["layers"].append({**page["layers"][0], "size_bytes": 1}),
        lambda page: page["layers"][0].update(suffix="0000"),
        lambda page: page["layers"][0].update(suffix=S1.format().lower() + "x"),
        lambda page: page["layers"][0].pop("suffix"),
        lambda page: page["layers"][0].update(part=65536),
        lambda page: page["frames"][0].update(seq=1 << 32),
        lambda page: page["frames"][0].update(size_bytes=1.5),
    ],
)
def test_contradictions_are_damage(edit: Edit) -> None:
    page = msgspec.json.decode(unseal(encode_index(INDEX), "k"))
    edit(page)
    with pytest.raises(ObjectDamaged, match='object "k" is damaged') as error:
        decode_index(seal(msgspec.json.encode(page)), "k")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "decode"),
    [
        (encode_index(INDEX), decode_index),
        (encode_claim("a"), decode_claim),
        (encode_list(LIST), decode_list),
        (encode_header(HEADER), decode_header),
    ],
)
def test_other_bytes_are_damage(data: bytes, decode: Callable[[bytes, str], object]) -> None:
    page = msgspec.json.decode(unseal(data, "k"))
    newer = seal(msgspec.json.encode({**page, "format": 2, "what": "else"}))
    with pytest.raises(ObjectDamaged, match="has format 2, expected 1") as error:
        decode(newer, "k")
    assert "newer version" in error.value.hint
    for content in (b"", b"{", b"[]", b"\xff", b"[" * 5000, b"null"):
        with pytest.raises(ObjectDamaged):
            decode(seal(content), "k")
    with pytest.raises(ObjectDamaged):
        decode(data[:-1], "k")


@pytest.mark.parametrize("name", ["deleted", f"attachments/{S1}", "../x", "layers/x", ""])
def test_a_list_with_other_names_is_damaged(name: str) -> None:
    with pytest.raises(ObjectDamaged, match="must not be deleted"):
        decode_list(encode_list(DeletionList({ATTACHMENT: (name,)})), "k")


@pytest.mark.parametrize(("field", "text"), [("timeline", "00"), ("suffix", "7")])
def test_a_list_of_an_invalid_attachment_is_damaged(field: str, text: str) -> None:
    page = msgspec.json.decode(unseal(encode_list(LIST), "k"))
    page["entries"][0][field] = text
    with pytest.raises(ObjectDamaged, match="expected"):
        decode_list(seal(msgspec.json.encode(page)), "k")
