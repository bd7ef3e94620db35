"""One change of the members: from a request, or a joint membership that was found, to its end.

    JOINING <-> CATCHING_UP --J1 D2 R2--> ENTERED --L1 L2--> LEAVING --in force--> TELLING -> DONE
         REFUSED, GONE_BACK <-- cancelled ---'  `-- back: L1 L2, or one's own --'          GONE_BACK

Pure. Laws: the proposer's rules 5 to 7 and 10 (`docs/protocol.md`). It decides when the leader
writes which membership. It sends nothing itself, and a written membership belongs to the leader. It
does not outlive the leader: the next one finds only the membership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.consensus.membership import (
    UNKNOWN_INSTANCE,
    Member,
    Membership,
    MembershipError,
    Stamp,
)
from quorum_wal.consensus.quorum import committed_lsn, has_quorum, quorum_size
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.stream.events import Action, ChangeRequest, ChangeState, ChangeView
from quorum_wal.walproposer.stream.progress import IN_STEP, Progress

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.leader import Leader

# A new set without a quorum of answers for this long, while commits wait for it, is left again.
SILENT_MS = 10_000
# A new set that was found and still lacks data gets this long before the leader goes back to the
# old set, although that has it: it may be a few records behind, and the change would have to be
# repeated.
FOUND_PATIENCE_MS = 1000
# Time to wait for safekeepers outside to leave, before the change is done without them.
TELL_MS = 10_000

PREPARING = (ChangeState.JOINING, ChangeState.CATCHING_UP)
ENDS = (ChangeState.DONE, ChangeState.REFUSED, ChangeState.GONE_BACK)


class MembershipChange:
    """`wanted` is the new set, `added` its safekeepers that are not members yet."""

    def __init__(self, wanted: tuple[Member, ...], added: tuple[Member, ...], now_ms: int) -> None:
        self.wanted = wanted
        self.added = added
        self.state = ChangeState.JOINING
        #: What prevents it, or why it did not end as intended.
        self.error = ""
        #: Another leader entered it (rule 6).
        self.is_found = False
        self._is_cancelled = False
        self._goes_back = False
        #: When the current state began; for a change that was found, since when it could have gone
        #: back.
        self._since_ms = now_ms

    @classmethod
    def requested(
        cls, request: ChangeRequest, membership: Membership, now_ms: int
    ) -> MembershipChange:
        """REFUSED from the start if it is impossible. A request for another generation may want the
        present set."""
        staying = [_completed(member, membership) for member in request.members]
        wanted = tuple(sorted(staying, key=lambda member: member.id))
        added = tuple(m for m in wanted if m.id not in membership.all_members)
        change = cls(wanted, added, now_ms)
        problem = _request_problem(request, change, membership)
        if problem:
            change.refuse(problem)
        return change

    @classmethod
    def found(cls, membership: Membership, now_ms: int) -> MembershipChange:
        wanted = tuple(membership.member(i) for i in membership.new_members)
        change = cls(wanted, (), now_ms)
        change.state, change.is_found = ChangeState.ENTERED, True
        return change

    # ---- queries

    @property
    def is_finished(self) -> bool:
        return self.state in ENDS

    @property
    def learners(self) -> tuple[Member, ...]:
        """The safekeepers that are streamed to before they are in a set."""
        return self.added if self.state in PREPARING else ()

    @property
    def wanted_ids(self) -> tuple[int, ...]:
        return tuple(member.id for member in self.wanted)

    def difference(self, request: ChangeRequest) -> str:
        """The safekeeper of the request, all in `wanted`, that has another disk or address here; ""
        if all are equal. A value that one side does not know is no difference."""
        wanted = {member.id: member for member in self.wanted}
        for asked in request.members:
            here = wanted[asked.id]
            is_same_disk = here.is_instance(asked.instance) or asked.is_instance(here.instance)
            is_there = not (here.host and asked.host) or here.address == asked.address
            if not is_same_disk or not is_there or asked.site not in ("", here.site):
                return f"safekeeper {here.id} at {here.address} (instance {here.instance.hex()})"
        return ""

    def cancel(self) -> None:
        """Too late once the joint set was left forward. A change that was found cannot be
        cancelled."""
        may_go_back = self.state is ChangeState.ENTERED and not self.is_found
        self._is_cancelled = self._is_cancelled or self.state in PREPARING or may_go_back

    def refuse(self, problem: str) -> None:
        """Only before it was entered."""
        self.state, self.error = ChangeState.REFUSED, problem

    # ---- transitions

    def go_on(self, leader: Leader) -> list[Action]:
        """Advance as far as possible. Called again after everything that may allow a transition."""
        actions: list[Action] = []
        while True:
            state = self.state
            if state in PREPARING:
                actions += self._prepare(leader)
            elif state is ChangeState.ENTERED:
                actions += self._maybe_leave(leader)
            elif state is ChangeState.LEAVING and leader.is_in_force:
                self._enter_state(ChangeState.TELLING, leader)
            elif state is ChangeState.TELLING:
                self._maybe_end(leader)
            if self.state is state or self.is_finished:
                return actions

    def _enter_state(self, state: ChangeState, leader: Leader) -> None:
        self.state, self._since_ms = state, leader.now_ms

    def _prepare(self, leader: Leader) -> list[Action]:
        if self._is_cancelled:
            self.state, self.error = ChangeState.GONE_BACK, "it was cancelled"
            return leader.seat()
        if self.wanted_ids == leader.membership.members:
            return self._write_addresses(leader)
        is_joined = all(_has_answered(leader.peer_set.of_member(m)) for m in self.added)
        self.state = ChangeState.CATCHING_UP if is_joined else ChangeState.JOINING
        told = [leader.members.ordered_generation(member) for member in self.added]
        if leader.membership.generation in told:
            # Our own LEAVE may still be on its way. They refuse it once they have a greater stamp.
            return leader.write(leader.membership.stamped(_next_stamp(leader)))
        if not self._may_enter(leader):
            return []
        self._enter_state(ChangeState.ENTERED, leader)
        return leader.write(leader.membership.joint_with(_next_stamp(leader), self.wanted))

    def _write_addresses(self, leader: Leader) -> list[Action]:
        """Rule 10: the same sets. If the addresses are the same too, the membership only has to be
        in force."""
        self._enter_state(ChangeState.LEAVING, leader)
        old = leader.membership
        if self.wanted == tuple(old.member(i) for i in old.members):
            return []
        return leader.write(old.listed_as(_next_stamp(leader), self.wanted))

    def _may_enter(self, leader: Leader) -> bool:
        """D2 and R2; and, for latency, a quorum of the new set has what is no longer in the
        window."""
        for member in self.added:
            place = leader.peer_set.of_member(member)
            if place is None or place.generation <= leader.members.ordered_generation(member):
                return False
            if place.flush_lsn < leader.peer_set.known_truncate_lsn:
                return False
        places = [leader.peer_set.of_member(member) for member in self.wanted]
        near = [p for p in places if p and p.state in IN_STEP and p.answered]
        return len(near) >= quorum_size(len(self.wanted))

    def _maybe_leave(self, leader: Leader) -> list[Action]:
        """Rule 6. L1: a quorum of the leaving set has the joint membership on disk. L2: the
        remaining set has everything that was reported, and the term's start."""
        joint = leader.membership
        if self._is_cancelled:
            return self._leave(leader, joint.members, "it was cancelled")
        if _may_leave(leader, joint.members, joint.new_members):
            return self._leave(leader, joint.new_members)
        if not self.is_found:
            if not self._is_new_set_silent(leader):
                return []
            problem = f"the new set gave no quorum of answers for {SILENT_MS // 1000} s"
            return self._leave(leader, joint.members, problem)
        if not _may_leave(leader, joint.new_members, joint.members):
            self._since_ms = leader.now_ms
        elif leader.now_ms - self._since_ms >= FOUND_PATIENCE_MS:
            problem = "the new set lacked a part of the log after an election"
            return self._leave(leader, joint.members, problem)
        return []

    def _is_new_set_silent(self, leader: Leader) -> bool:
        places = [leader.peer_set.of_member(member) for member in self.wanted]
        answered_ms = sorted(max(self._since_ms, p.answered_ms if p else 0) for p in places)
        quorum_ms = answered_ms[-quorum_size(len(answered_ms))]
        return leader.now_ms - quorum_ms > SILENT_MS

    def _leave(self, leader: Leader, members: tuple[int, ...], error: str = "") -> list[Action]:
        self._goes_back, self.error = members == leader.membership.members, error
        self._enter_state(ChangeState.LEAVING, leader)
        return leader.write(leader.membership.left_to(_next_stamp(leader), members))

    def _maybe_end(self, leader: Leader) -> None:
        """D1: complete. Safekeepers outside were ordered to leave by then, or will be by the next
        leader that meets them."""
        waits = _remaining_ids(leader)
        if not waits or leader.now_ms - self._since_ms >= TELL_MS:
            self.state = ChangeState.GONE_BACK if self._goes_back else ChangeState.DONE

    # ---- status

    def view(self, leader: Leader) -> ChangeView:
        return ChangeView(self.state, self.wanted_ids, self._waits_for(leader), self.error)

    def _waits_for(self, leader: Leader) -> str:
        membership = leader.membership
        match self.state:
            case ChangeState.JOINING:
                return f"safekeepers to get the timeline: {_text(self._unjoined_ids(leader))}"
            case ChangeState.CATCHING_UP:
                return self._lag(leader)
            case ChangeState.ENTERED if not _is_informed(leader, membership.members):
                uninformed = set(membership.members) - leader.informed_ids
                return f"a quorum of the old set to have the membership: {_text(uninformed)}"
            case ChangeState.ENTERED:
                return self._lag(leader)
            case ChangeState.LEAVING:
                uninformed = set(membership.all_members) - leader.informed_ids
                return f"a quorum of the members to have the membership: {_text(uninformed)}"
            case ChangeState.TELLING:
                return f"safekeepers to leave: {_text(_remaining_ids(leader))}"
            case ChangeState.DONE | ChangeState.REFUSED | ChangeState.GONE_BACK:
                return ""

    def _unjoined_ids(self, leader: Leader) -> list[int]:
        return [m.id for m in self.added if not _has_answered(leader.peer_set.of_member(m))]

    def _lag(self, leader: Leader) -> str:
        end_lsn = leader.window.record_end_lsn
        ends = []
        for member in self.wanted:
            place = leader.peer_set.of_member(member)
            lsn = place.flush_lsn if place is not None else 0
            if lsn < end_lsn:
                ends.append(f"safekeeper {member.id} at {format_lsn(lsn)}")
        return f"the log to {format_lsn(end_lsn)}: {', '.join(ends) or 'all have it'}"


def _next_stamp(leader: Leader) -> Stamp:
    return Stamp(leader.term.node_id, leader.membership.generation + 1)


def _has_answered(place: Progress | None) -> bool:
    """D2: under this leader's NodeId."""
    return place is not None and place.generation > 0


def _is_informed(leader: Leader, members: tuple[int, ...]) -> bool:
    """L1."""
    group = leader.membership.left_to(leader.membership.stamp, members)
    return has_quorum(group, leader.informed_ids)


def _has_data(leader: Leader, members: tuple[int, ...]) -> bool:
    """L2."""
    group, term_start_lsn = (
        leader.membership.left_to(leader.membership.stamp, members),
        leader.term.term_start_lsn,
    )
    lsn = committed_lsn(group, leader.flush_lsns, term_start_lsn)
    return lsn >= leader.commit_lsn and lsn >= term_start_lsn


def _may_leave(leader: Leader, going: tuple[int, ...], staying: tuple[int, ...]) -> bool:
    return _is_informed(leader, going) and _has_data(leader, staying)


def _remaining_ids(leader: Leader) -> list[int]:
    return [p.safekeeper_id or 0 for p in leader.members.remaining(leader)]


def _completed(member: Member, membership: Membership) -> Member:
    """Values of a member that the request does not know stay as they are."""
    if member.id not in membership.all_members:
        return member
    known = membership.member(member.id)
    has_instance = member.instance != UNKNOWN_INSTANCE
    address = (member.host, member.port) if member.host else (known.host, known.port)
    return Member(
        member.id, member.instance if has_instance else known.instance, *address, member.site
    )


def _request_problem(
    request: ChangeRequest, change: MembershipChange, membership: Membership
) -> str:
    """Why it is refused, or ""."""
    try:
        Membership(membership.stamp, change.wanted_ids)
    except MembershipError as error:
        return str(error)
    for member in change.wanted:
        if member.id in membership.all_members:
            known = membership.member(member.id)
            if not known.is_instance(member.instance) and member.instance != UNKNOWN_INSTANCE:
                return (
                    f"safekeeper {member.id} has another data directory than the member: it is a "
                    "new safekeeper, and needs a new id"
                )
        elif member.instance == UNKNOWN_INSTANCE or not member.host:
            return f"instance and address of safekeeper {member.id} must be known to add it"
    present = tuple(membership.member(i) for i in membership.members)
    if request.generation != membership.generation and change.wanted != present:
        return (
            f"the request was made for generation {request.generation} of the members, but they "
            f"have generation {membership.generation}"
        )
    return ""


def _text(ids: list[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"
