"""Any value that messages, offers and control files contain, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.term_history import TermHistory, TermStart
from quorum_wal.pgwal.history import TimelineHistory

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
ID = st.binary(min_size=16, max_size=16)
INSTANCE = st.binary(min_size=8, max_size=8)
NODE_ID = st.builds(NodeId, U64, ID)
STAMP = st.builds(Stamp, NODE_ID, U32)
GROUP = st.sets(st.integers(1, 2**64 - 1), min_size=1, max_size=9).map(
    lambda ids: tuple(sorted(ids))
)
_TEXT = st.text(max_size=20)


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    """Joint or not; some of the members with more than the id."""
    members, new_members = draw(GROUP), draw(st.one_of(st.just(()), GROUP))
    known = sorted(draw(st.sets(st.sampled_from([*members, *new_members]))))
    roster = tuple(
        Member(i, draw(INSTANCE), draw(_TEXT), draw(st.integers(0, 65535)), draw(_TEXT))
        for i in known
    )
    return Membership(draw(STAMP), members, new_members, roster, draw(st.booleans()))


MEMBERSHIP = memberships()
TERM_HISTORY = st.lists(st.tuples(NODE_ID, U64), max_size=5, unique_by=lambda e: e[0]).map(
    lambda entries: TermHistory(
        tuple(
            TermStart(node_id, lsn)
            for node_id, lsn in zip(
                sorted(n for n, _ in entries), sorted(lsn for _, lsn in entries), strict=True
            )
        )
    )
)
TLI_HISTORY = st.one_of(
    st.builds(TimelineHistory, st.integers(1, 2**32 - 1)),
    st.just(TimelineHistory.parse(7, "1\t0/3000110\tno reason\n\n3\t1/50001A8\tbefore noon\n")),
)
