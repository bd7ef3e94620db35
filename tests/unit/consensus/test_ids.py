"""NodeId and TimelineId: order, text, and errors of their parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId, TimelineId, parse_id

NODE_IDS = st.builds(NodeId, st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16))


@given(NODE_IDS, NODE_IDS)
def test_node_ids_are_ordered_as_pairs(one: NodeId, other: NodeId) -> None:
    assert (one < other) == ((one.term, one.proposer_uuid) < (other.term, other.proposer_uuid))
    assert one >= NodeId.ZERO


@given(NODE_IDS)
def test_a_node_id_survives_its_text(node_id: NodeId) -> None:
    assert NodeId.parse(str(node_id)) == node_id


@given(st.text())
def test_any_text_is_a_node_id_or_a_message_error(text: str) -> None:
    try:
        assert NodeId.parse(text)
    except MessageError:
        return


@pytest.mark.parametrize(
    "text",
    ["", "/", "1", "1/", "-1/" + "0" * 32, "1/" + "0" * 31, "\u0661/" + "0" * 32, "9" * 5000 + "/"],
)
def test_invalid_node_ids(text: str) -> None:
    with pytest.raises(MessageError):
        NodeId.parse(text)


@pytest.mark.parametrize(
    "text",
    ["00112233445566778899aabbccddeeff", "00112233-4455-6677-8899-AABBCCDDEEFF"],
)
def test_ids_with_and_without_dashes(text: str) -> None:
    assert parse_id(text, "tenant id") == bytes.fromhex("00112233445566778899aabbccddeeff")


@pytest.mark.parametrize("text", ["", "0", "0" * 31, "0" * 33, "g" * 32, "0 " * 16, "0" * 32 + " "])
def test_invalid_ids(text: str) -> None:
    with pytest.raises(MessageError, match="invalid tenant id"):
        parse_id(text, "tenant id")


def test_a_timeline_is_named_by_both_ids() -> None:
    assert str(TimelineId(b"\1" * 16, b"\2" * 16)) == "01" * 16 + "/" + "02" * 16
