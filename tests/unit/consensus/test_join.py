"""The offer of JOIN_TIMELINE: encoding, consistency, and offers for an earlier start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import MEMBERSHIP, NODE_ID, TERM_HISTORY, TLI_HISTORY, U32, U64

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.join import TimelineOffer, decode_offer, encode_offer
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.consensus.tli_history import clipped_tli_history
from quorum_wal.pgwal.history import TimelineHistory

A, B = NodeId(1, b"a" * 16), NodeId(2, b"b" * 16)
HISTORY = TimelineHistory.parse(3, "1\t0/150\tno reason\n\n2\t0/300\tno reason\n")
OFFER = TimelineOffer(
    server=ServerFacts(7, 160001, 0x100),
    start_lsn=0x400,
    timeline_start_lsn=0x100,
    node_id=B,
    membership=Membership(Stamp(B, 2), (1, 2, 3)),
    term_history=TermHistory.initial(0x100).extended(A, 0x180).extended(B, 0x300),
    tli_history=HISTORY,
)


@st.composite
def offers(draw: st.DrawFn) -> TimelineOffer:
    """Any consistent offer."""
    terms = draw(TERM_HISTORY.filter(lambda terms: bool(terms.entries)))
    start_lsn = max(draw(U64), terms.entries[-1].start_lsn)
    node_id = draw(NODE_ID)
    return TimelineOffer(
        server=ServerFacts(draw(U64), draw(U32), draw(U32)),
        start_lsn=start_lsn,
        timeline_start_lsn=draw(st.integers(0, start_lsn)),
        node_id=node_id,
        membership=draw(MEMBERSHIP).stamped(Stamp(node_id, draw(U32))),
        term_history=terms,
        tli_history=clipped_tli_history(draw(TLI_HISTORY), start_lsn),
    )


@given(offers())
def test_an_offer_survives_its_bytes(offer: TimelineOffer) -> None:
    assert decode_offer(encode_offer(offer)) == offer


@given(offers(), st.data())
def test_mutated_offers_raise_message_error_only(offer: TimelineOffer, data: st.DataObject) -> None:
    payload = bytearray(encode_offer(offer))
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    for damaged in (bytes(payload), bytes(payload[:cut]), bytes(payload) + b"\0"):
        try:
            decode_offer(damaged)
        except MessageError:
            continue  # the only exception that is allowed


@pytest.mark.parametrize(
    ("start_lsn", "ballots", "tli"),
    [(0x400, 3, 3), (0x300, 3, 2), (0x2FF, 2, 2), (0x150, 1, 1), (0x100, 1, 1)],
)
def test_a_log_that_begins_earlier_has_the_histories_below(
    start_lsn: int, ballots: int, tli: int
) -> None:
    """A term's start belongs to the log that ends there; a timeline's first byte does not."""
    offer = OFFER.beginning_at(start_lsn)
    assert offer.start_lsn == start_lsn
    assert offer.term_history.entries == OFFER.term_history.entries[:ballots]
    assert offer.tli_history == TimelineHistory(tli, HISTORY.entries[: tli - 1])


@pytest.mark.parametrize("start_lsn", [0x500, 0xFF])
def test_an_offer_cannot_be_used_for_a_later_start(start_lsn: int) -> None:
    with pytest.raises(MessageError, match=r"log (from|would begin)"):
        OFFER.beginning_at(start_lsn)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"start_lsn": 0xFF}, "before its timeline at 0/100"),
        ({"start_lsn": 0x2FF, "tli_history": TimelineHistory(1)}, "is not clipped to 0/2FF"),
        ({"start_lsn": 0x300}, "history of Postgres timeline 3 is not clipped to 0/300"),
        ({"term_history": TermHistory(())}, "is not clipped"),
        ({"node_id": A}, f"offers a membership that {B} wrote"),
    ],
)
def test_an_offer_that_contradicts_itself_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(MessageError, match=problem):
        replace(OFFER, **fields)
