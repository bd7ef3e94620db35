"""Safekeepers to be added, before they are in a set: they get the timeline and are streamed to.
Pure.

    no such timeline, or left --Join--> Joined --greeting, vote, Elected--> learner --> member
                           ^-- LEAVE -- its donors no longer have its WAL

Laws: N1, a log begins at or below commit_lsn. A1 and A3, only a safekeeper outside of all sets gets
the timeline, and the shell compares id and instance. R1, a learner holds truncate_lsn back until it
is silent for too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Member
from quorum_wal.consensus.tli_history import clipped_tli_history
from quorum_wal.walproposer.stream.events import Action, Join, Joined
from quorum_wal.walproposer.stream.progress import PeerState, Progress

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.leader import Leader

# No safekeeper removes this many segments below commit_lsn (`safekeeper/retention.py`): enough for
# the tail that a primary is compared with (`election.py`).
TAIL_SEGMENTS = 2
# A learner that was silent for this long no longer holds truncate_lsn back.
SILENT_MS = 60_000
# A safekeeper that could not be reached is asked again after this time.
RETRY_MS = 5_000


class Learners:
    """The learners of one change."""

    def __init__(self, wanted: tuple[Member, ...], now_ms: int) -> None:
        self.wanted = wanted
        self._begun_ms = now_ms
        #: The places that are to answer with Joined, and their members.
        self._joining: dict[int, Member] = {}
        self._retry_ms: dict[int, int] = {}

    def ask(self, leader: Leader) -> list[Action]:
        """Offer the timeline to those that reported that they lack it. Only after this leader has
        committed something, because a log may begin only there (N1)."""
        if leader.commit_lsn < max(
            leader.peer_set.known_truncate_lsn, leader.term.term_start_lsn, 1
        ):
            return []
        actions: list[Action] = []
        for member in self.wanted:
            place = self._without_timeline(leader, member)
            if place is None or place.peer in self._joining:
                continue
            if leader.now_ms >= self._retry_ms.get(place.peer, 0):
                self._joining[place.peer] = member
                offer = timeline_offer(leader)
                limit_lsn = max(leader.peer_set.known_truncate_lsn, offer.timeline_start_lsn)
                limit_lsn = min(limit_lsn, offer.start_lsn)
                actions.append(Join(place.peer, member, limit_lsn, offer))
        return actions

    def _without_timeline(self, leader: Leader, member: Member) -> Progress | None:
        place = leader.peer_set.of_member(member)
        if place is not None and place.state is PeerState.OUTSIDE and place.has_left:
            return place
        place = leader.peer_set.at(member.host, member.port)
        if place is not None and place.is_open and place.lacks_timeline:
            return place
        return None

    def joined(self, leader: Leader, place: Progress, answer: Joined) -> list[Action]:
        """A refusal ends the change; there is no one else to ask. A safekeeper that had left is
        greeted again. The shell connects to one that was not connected."""
        member = self._joining.pop(place.peer, None)
        if member is None:
            return []
        # After a success too: an earlier attempt to connect may end only now.
        self._retry_ms[place.peer] = leader.now_ms + RETRY_MS
        if answer.error:
            return []
        place.lacks_timeline = place.has_left = False
        if place.state is PeerState.OFFLINE:
            return []
        return place.close("it has joined")

    def problem_of(self, leader: Leader, place: Progress) -> str:
        """Why a safekeeper that has greeted cannot be added in this term, or ""."""
        for member in self.wanted:
            is_it = place.safekeeper_id == member.id and member.is_instance(place.instance)
            if is_it and place.promised > leader.term.node_id:
                return (
                    f"safekeeper {member.id} has promised {place.promised}, greater than this "
                    f"leader's {leader.term.node_id}"
                )
            if not is_it and place.address == (member.host, member.port):
                return (
                    f"at {member.address} there is safekeeper {place.safekeeper_id} (instance "
                    f"{place.instance.hex()}), not {member.id} ({member.instance.hex()})"
                )
        return ""

    def held_lsn(self, leader: Leader) -> int:
        """R1: truncate_lsn stays below this. It is 0 while a learner has not answered, because its
        need is unknown."""
        held_lsn = 1 << 64
        for member in self.wanted:
            place = leader.peer_set.of_member(member)
            heard_ms = max(self._begun_ms, place.last_heard_ms if place is not None else 0)
            if leader.now_ms - heard_ms < SILENT_MS:
                held_lsn = min(held_lsn, place.flush_lsn if place is not None else 0)
        return held_lsn


def timeline_offer(leader: Leader) -> TimelineOffer:
    """An offer of a log that begins as many segments below commit_lsn as every member keeps, or
    earlier. If all members are new, the next primary is compared with that tail."""
    term, seg_size = leader.term, leader.term.server.wal_seg_size
    segment_lsn = leader.commit_lsn - leader.commit_lsn % seg_size
    start_lsn = max(segment_lsn - TAIL_SEGMENTS * seg_size, term.timeline_start_lsn)
    return TimelineOffer(
        server=term.server,
        start_lsn=start_lsn,
        timeline_start_lsn=term.timeline_start_lsn,
        node_id=term.node_id,
        membership=leader.membership,
        term_history=term.term_history.clipped(start_lsn),
        tli_history=clipped_tli_history(term.tli_history, start_lsn),
    )
