"""The verdict: for each problem the line that reports it, and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_pages import (
    HTTP,
    NOW,
    OTHER_HTTP,
    TIMELINE,
    Answers,
    address,
    departed,
    emptied,
    lost_peer,
    membership,
    node_id,
    page,
    peer,
    proposer_of,
    safekeeper,
    silent,
)

from quorum_wal.cluster.member_view import MemberState
from quorum_wal.cluster.server_view import Role, ServerView
from quorum_wal.cluster.verdict import LOST_FOR_GOOD, judge
from quorum_wal.walproposer.primary.commit_waits import CommitWaits
from quorum_wal.walproposer.timelines.status_page import TOKEN_MISSING

BLOCKED_QUORUM = {"ok": False, "since": "2026-01-31T12:00:10+00:00"}


def verdict_of(answers: Answers) -> str:
    return str(judge(answers.view()))


def test_a_healthy_cluster_is_ok() -> None:
    assert verdict_of(Answers()) == "OK: commits proceed, 3 of 3 safekeepers"


def test_a_safekeeper_is_down() -> None:
    answers = Answers(
        [safekeeper(1), silent(2), safekeeper(3)], {HTTP: page(peer(1), lost_peer(2), peer(3))}
    )
    assert verdict_of(answers) == (
        "DEGRADED: commits proceed with 2 of 3 safekeepers; safekeeper 2 (10.0.0.2:5454) is "
        "unreachable since 2026-01-31 12:00:10 UTC: start it, or sk member replace 2 NEWADDR"
    )


def test_a_safekeeper_that_only_we_cannot_reach_is_no_problem() -> None:
    assert verdict_of(Answers([safekeeper(1), silent(2), safekeeper(3)])).startswith("OK")


def test_a_safekeeper_runs_but_is_not_connected() -> None:
    peers = (peer(1), peer(2, state="offline", connected=False, error="timeout"), peer(3))
    assert verdict_of(Answers(pages={HTTP: page(*peers)})) == (
        "DEGRADED: commits proceed with 2 of 3 safekeepers; safekeeper 2 (10.0.0.2:5454) runs, "
        "but the proposer is not connected to it, timeout"
    )


def test_a_safekeeper_catches_up() -> None:
    peers = (peer(1), peer(2, state="catching up", lag_bytes=4096), peer(3))
    text = verdict_of(Answers(pages={HTTP: page(*peers)}))
    assert text.startswith("DEGRADED: commits proceed with 3 of 3 safekeepers; ")
    assert text.endswith("(10.0.0.2:5454) is catching up, 4096 bytes behind")


LEFT_BEHIND = (
    "DEGRADED: commits proceed with 2 of 3 safekeepers; safekeeper 2 (10.0.0.2:5454) is left "
    "behind: the others have removed WAL that it lacks (--max-member-wal-keep-size), and no "
    "archive has it: sk member replace 2 NEWADDR"
)


@pytest.mark.parametrize("silent_peer", [{"flush_lsn": "0/1000000"}, {"flush_lsn": "0/0"}])
def test_a_silent_safekeeper_is_left_behind(silent_peer: dict[str, str]) -> None:
    """Its position is known, or only that some member's position is too old."""
    newer = {"local_start_lsn": "0/1800000", "retention": {"member_left_behind": True}}
    peers = (peer(1), {**lost_peer(2), **silent_peer}, peer(3))
    answers = Answers([safekeeper(1, **newer), silent(2), safekeeper(3, **newer)])
    answers.pages = {HTTP: page(*peers)}
    assert verdict_of(answers) == LEFT_BEHIND


def test_a_safekeeper_that_came_back_too_late_is_left_behind() -> None:
    """The proposer reports it, or without a proposer the positions show it."""
    peers = (peer(1), peer(2, state="left behind", connected=False, error="removed"), peer(3))
    assert verdict_of(Answers(pages={HTTP: page(*peers)})) == LEFT_BEHIND
    gone: dict[str, Any] = {"proposer": None}
    newer = {"local_start_lsn": "0/1800000", "retention": {"member_left_behind": True}, **gone}
    late = safekeeper(2, flush_lsn="0/1000000", **gone)
    text = verdict_of(Answers([safekeeper(1, **newer), late, safekeeper(3, **newer)], {}))
    assert text.startswith("NO PROPOSER")
    assert text.count("is left behind") == 1
    assert "safekeeper 2 (10.0.0.2:5454) is left behind" in text


def test_a_safekeeper_that_an_archive_waits_for_is_not_left_behind() -> None:
    newer = {"local_start_lsn": "0/1800000", "archive": {"state": "archiving"}}
    peers = (peer(1), {**lost_peer(2), "flush_lsn": "0/1000000"}, peer(3))
    answers = Answers([safekeeper(1, **newer), silent(2), safekeeper(3, **newer)])
    answers.pages = {HTTP: page(*peers)}
    assert "is unreachable" in verdict_of(answers)


@pytest.mark.parametrize(("free_mb", "is_short"), [(47, True), (48, False)])
def test_a_safekeeper_has_no_room_for_three_segments(free_mb: int, is_short: bool) -> None:
    full = replace(safekeeper(2), disk={"free_bytes": free_mb << 20, "total_bytes": 160 << 20})
    text = verdict_of(Answers([safekeeper(1), full, safekeeper(3)]))
    assert text == (
        "DEGRADED: commits proceed with 3 of 3 safekeepers; safekeeper 2 (10.0.0.2:5454) will "
        "stop soon, 47 of 160 MB are free on its disk: free some space"
        if is_short
        else "OK: commits proceed, 3 of 3 safekeepers"
    )


def test_a_safekeeper_lost_its_data() -> None:
    answers = Answers(
        [safekeeper(1), emptied(2), safekeeper(3)], {HTTP: page(peer(1), lost_peer(2), peer(3))}
    )
    assert verdict_of(answers).endswith(
        "; safekeeper 2 (10.0.0.2:5454) lost its data: sk member replace 2 NEWADDR"
    )


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("could not write: No space left on device", "free some space"),
        (
            "could not fdatasync: Input/output error",
            "repair its disk and restart it, or sk member replace 2 NEWADDR",
        ),
    ],
)
def test_a_stopped_timeline_and_its_reason(reason: str, remedy: str) -> None:
    answers = Answers(
        [safekeeper(1), safekeeper(2, state="stopped", stopped_reason=reason), safekeeper(3)],
        {HTTP: page(peer(1), lost_peer(2), peer(3))},
    )
    assert verdict_of(answers).endswith(f"stopped this timeline: {reason}: {remedy}")


@pytest.mark.parametrize("by_status", [True, False])
def test_a_damaged_timeline(by_status: bool) -> None:
    folder = f"{'0' * 32}.{TIMELINE.timeline_id.hex()}"
    damaged = (
        safekeeper(2, state="damaged", stopped_reason="a hole in it")
        if by_status
        else emptied(2, {folder: "a hole in it"})
    )
    answers = Answers(
        [safekeeper(1), damaged, safekeeper(3)], {HTTP: page(peer(1), lost_peer(2), peer(3))}
    )
    assert verdict_of(answers).endswith("is damaged, a hole in it: sk member replace 2 NEWADDR")


def test_the_quorum_is_lost() -> None:
    answers = Answers(
        [safekeeper(1), silent(2), silent(3)],
        {HTTP: page(peer(1), lost_peer(2), lost_peer(3), quorum=BLOCKED_QUORUM)},
    )
    verdict = judge(answers.view())
    assert not verdict.commits_proceed
    since = "is unreachable since 2026-01-31 12:00:10 UTC: start it"
    assert str(verdict) == (
        "BLOCKED: commits wait since 2026-01-31 12:00:10 UTC: 1 of 3 safekeepers follow, 2 are "
        f"needed; safekeeper 2 (10.0.0.2:5454) {since}; safekeeper 3 (10.0.0.3:5454) {since}; "
        f"{LOST_FOR_GOOD}"
    )


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (emptied(2), "lost its data;"),
        (safekeeper(2, state="stopped", stopped_reason="Input/output error"), "restart it;"),
        (departed(2), "is a member again;"),
    ],
    ids=["lost its data", "stopped", "has left"],
)
def test_without_a_quorum_no_replacement_is_offered(second: Any, said: str) -> None:
    """sk member replace is refused then."""
    answers = Answers(
        [safekeeper(1), second, silent(3)],
        {HTTP: page(peer(1), lost_peer(2), lost_peer(3), quorum=BLOCKED_QUORUM)},
    )
    text = verdict_of(answers)
    assert text.startswith("BLOCKED: ")
    assert said in text
    assert "sk member replace" not in text
    assert text.endswith(LOST_FOR_GOOD)


def test_a_member_that_refuses_to_answer_may_be_sound() -> None:
    refused = replace(silent(2), hint="Give a password.")
    answers = Answers([safekeeper(1), refused, silent(3)], {HTTP: None})
    assert LOST_FOR_GOOD not in verdict_of(answers)


def test_no_proposer() -> None:
    answers = Answers([safekeeper(i, proposer=None) for i in (1, 2, 3)], {})
    assert verdict_of(answers) == (
        "NO PROPOSER: no proposer is connected (the last election was 5/00000000): run sk attach "
        "for its primary or, if the primary is lost, sk promote for a standby"
    )


def test_no_proposer_and_too_few_to_elect_one() -> None:
    """It is unknown which of the two addresses belongs to which member."""
    older = {**membership(), "roster": []}  # of a release that did not store addresses
    answers = Answers([safekeeper(1, proposer=None, membership=older), silent(2), silent(3)], {})
    either = f"({address(2)} or {address(3)}) is unreachable: start it"
    assert f"; safekeeper 2 {either}; safekeeper 3 {either}; {LOST_FOR_GOOD}" in verdict_of(answers)
    assert verdict_of(answers).startswith(
        "NO PROPOSER: no proposer is connected (the last election was 5/00000000): only 1 of 3 "
        "safekeepers can take part, 2 are needed: repair the others, then run sk attach for its "
        "primary unless a proposer waits for them; "
    )


def test_the_last_proposer_waits_for_its_primary() -> None:
    last = {"address": "10.0.0.9:40000", "http": HTTP}
    waiting = page(
        state="waiting_for_primary",
        node_id=None,
        primary={"dsn": "host=db", "connected": False, "error": "Connection refused"},
        quorum={"ok": False},
    )
    answers = Answers(
        [safekeeper(i, proposer=None, last_proposer=last) for i in (1, 2, 3)], {HTTP: waiting}
    )
    assert verdict_of(answers) == (
        f"NO PRIMARY: proposer ({HTTP}) waits for the primary: Connection refused; "
        "start the primary"
    )


def test_the_last_leader_waits_for_its_primary_after_another_one_has_ended() -> None:
    last = {"address": "10.0.0.9:40000", "http": HTTP}
    gone = {"address": "10.0.0.8:40000", "http": "10.0.0.8:7000"}
    waiting = page(state="waiting_for_primary", node_id=None, primary={"dsn": "host=db"})
    reports = [
        safekeeper(i, proposer=None, last_proposer=gone, last_leader=last) for i in (1, 2, 3)
    ]
    answers = Answers(reports, {HTTP: waiting, "10.0.0.8:7000": None})
    assert verdict_of(answers).startswith(f"NO PRIMARY: proposer ({HTTP}) waits for the primary")


def test_a_last_proposer_that_has_ended_is_not_counted() -> None:
    last = {"address": "10.0.0.9:40000", "http": HTTP}
    reports = [safekeeper(i, proposer=None, last_proposer=last) for i in (1, 2, 3)]
    for found in (None, page(timeline_id="cd" * 16)):
        assert verdict_of(Answers(reports, {HTTP: found})).startswith("NO PROPOSER")


@pytest.mark.parametrize("state", ["connecting", "campaigning", "recovering"])
def test_a_campaign(state: str) -> None:
    answers = Answers(
        [safekeeper(1), silent(2), silent(3)],
        {HTTP: page(lost_peer(1), lost_peer(2), lost_peer(3), state=state)},
    )
    text = verdict_of(answers)
    assert text.startswith(f"ELECTION: proposer 5/00000000 ({HTTP}) is {state}, commits wait; ")
    assert "safekeeper 2 (10.0.0.2:5454) is unreachable since" in text


def test_a_proposer_whose_page_does_not_answer() -> None:
    text = verdict_of(Answers(pages={HTTP: None}))
    assert text == (
        f"DEGRADED: proposer 5/00000000 ({HTTP}) streams to 3 of 3 safekeepers, but cannot be "
        f"asked: {HTTP} is silent"
    )
    error = f"status page {HTTP} {TOKEN_MISSING}"
    view = Answers(pages={HTTP: None}).view()
    (leader,) = view.proposers
    text = str(judge(replace(view, proposers=(replace(leader, error=error),))))
    assert text.endswith(f"; it is unknown whether commits proceed, because {error}")
    keepers = [safekeeper(1), safekeeper(2), safekeeper(3, damage=["a hole"])]
    text = verdict_of(Answers(keepers, {HTTP: None}))
    assert f"cannot be asked: {HTTP} is silent; safekeeper 3" in text
    assert "does not vote until a proposer has repaired it: a hole" in text
    alone = [safekeeper(1), safekeeper(2, proposer=None), silent(3)]
    text = verdict_of(Answers(alone, {HTTP: None}))
    assert text.startswith("BLOCKED: ")
    assert "streams to 1 of 3 safekeepers only" in text


def test_a_proposer_that_is_silent_hangs() -> None:
    """Its connections are open, but its page does not answer: the reports of the safekeepers count.
    Silence at only a few of them is their problem."""

    def heard(*silent_seconds: float) -> str:
        keepers = [
            safekeeper(number, proposer={**proposer_of(5), "silent_seconds": seconds})
            for number, seconds in enumerate(silent_seconds, 1)
        ]
        return verdict_of(Answers(keepers, {HTTP: None}))

    assert heard(0.4, 12.0, 0.8).startswith("DEGRADED: proposer 5/00000000")
    assert "streams to 2 of 3 safekeepers, but cannot be asked" in heard(0.4, 12.0, 0.8)
    assert heard(12.4, 12.0, 0.8) == (
        f"HUNG: proposer 5/00000000 ({HTTP}) is connected to 3 of 3 safekeepers, but silent for "
        f"12 s, and cannot be asked: {HTTP} is silent; commits wait: restart it"
    )


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (
            {"stalled_seconds": 7.2},
            f"HUNG: proposer 5/00000000 ({HTTP}) has made no progress for 7 s, commits wait: "
            "restart it",
        ),
        (
            {"primary": {"dsn": "host=db", "connected": True, "silent_seconds": 8.0}},
            f"HUNG: the primary (host=db) is connected to proposer 5/00000000 ({HTTP}), but silent "
            "for 8 s: look at the primary",
        ),
        (
            {"unconfirmed_seconds": 9.0, "commit_lsn": "0/5"},
            "BLOCKED: commits wait: commit_lsn has been 0/5 for 9 s, although a quorum is "
            "connected",
        ),
    ],
)
def test_stalls_while_all_are_connected(changes: dict[str, Any], verdict: str) -> None:
    assert verdict_of(Answers(pages={HTTP: page(**changes)})) == verdict


def server(**changes: Any) -> ServerView:
    return ServerView(**{"dsn": "host=db", "role": Role.PRIMARY, "system_id": 7, **changes})


DANGER = "names: empty: ALTER"
STUCK = CommitWaits(3, 2, 12.4)


@pytest.mark.parametrize(
    ("view", "verdict", "is_well"),
    [
        (server(), "OK: commits proceed, 3 of 3 safekeepers", True),
        (server(commit_waits=CommitWaits(9, 0, 0.3)), "OK: commits proceed, 3 of 3 safek", True),
        (server(dangers=(DANGER,)), f"UNPROTECTED: commits return without the quorum: {DANGER}", 0),
        (
            server(commit_waits=STUCK),
            "BLOCKED: 3 commits wait, the longest for 12 s; otherwise OK: commits proceed, 3 of 3",
            False,
        ),
        (server(risks=("r: s",)), "DEGRADED: commits proceed, 3 of 3 safekeepers; r: s", True),
        # Servers of other systems do not affect this timeline.
        (server(dangers=(DANGER,), system_id=8), "OK", True),
        (server(dangers=(DANGER,), role=Role.DEPOSED), "OK", True),
        (server(dangers=(DANGER,), role=Role.STANDBY), "OK", True),
    ],
)
def test_the_report_of_the_primary_counts(view: ServerView, verdict: str, is_well: bool) -> None:
    judged = judge(Answers().view(), [view])
    assert str(judged).startswith(verdict)
    assert judged.is_well is bool(is_well)


def test_the_report_of_the_proposer_counts_unless_the_primary_was_asked() -> None:
    view = Answers(pages={HTTP: page(commit_problems=[DANGER])}).view()
    unprotected = f"UNPROTECTED: commits return without the quorum: {DANGER}"
    assert str(judge(view)) == unprotected
    assert str(judge(view, [server(role=Role.UNREACHABLE)])) == unprotected
    assert judge(view, [server()]).is_well


def test_the_report_of_the_primary_beside_other_problems() -> None:
    nobody = Answers([safekeeper(i, proposer=None) for i in (1, 2, 3)], {}).view()
    judged = judge(nobody, [server(commit_waits=STUCK)])
    assert str(judged).startswith("NO PROPOSER: ")
    assert str(judged).endswith("; 3 commits wait, the longest for 12 s")
    judged = judge(nobody, [server(dangers=(DANGER,))])
    assert str(judged).startswith(f"UNPROTECTED: commits return without the quorum: {DANGER}; also")
    assert "NO PROPOSER" in judged.text
    assert judged.commits_proceed
    assert not judged.is_well


@pytest.mark.parametrize("proposers", ["none", "one"])
def test_several_primaries_are_a_problem(proposers: str) -> None:
    """Even if commits seem to proceed, because it is unknown on which of them."""
    nobody = Answers([safekeeper(i, proposer=None) for i in (1, 2, 3)], {})
    view = (nobody if proposers == "none" else Answers()).view()
    rivals = [server(dsn=dsn, role=Role.CONTENDER) for dsn in ("host=a", "host=b")]
    judged = judge(view, rivals)
    assert str(judged).startswith(
        "CONTESTED: 2 servers are primaries that could continue the log: host=a, host=b; run sk "
        "attach for one of them"
    )
    assert ("; also, NO PROPOSER: " if proposers == "none" else "; also, OK: ") in judged.text
    assert not judged.is_well
    assert not judged.commits_proceed
    unsafe = [rivals[0], server(dsn="host=b", role=Role.CONTENDER, dangers=(DANGER,))]
    assert str(judge(view, unsafe)).startswith("UNPROTECTED: ")
    assert "; also, CONTESTED: " in judge(view, unsafe).text


def test_a_deposed_proposer_is_listed_beside_the_leader() -> None:
    answers = Answers(
        [safekeeper(1, proposer=proposer_of(4, OTHER_HTTP)), safekeeper(2), safekeeper(3)],
        {HTTP: page(lost_peer(1), peer(2), peer(3)), OTHER_HTTP: page(node_id=node_id(4))},
    )
    text = verdict_of(answers)
    assert text.startswith("DEGRADED: commits proceed with 2 of 3 safekeepers; ")
    assert text.endswith(f"; deposed and to be stopped: proposer 4/00000000 ({OTHER_HTTP})")


def test_a_proposer_was_deposed_without_a_successor() -> None:
    reports = [safekeeper(1), *(safekeeper(i, promised=node_id(6)) for i in (2, 3))]
    answers = Answers(
        reports, {HTTP: page(peer(1), lost_peer(2), lost_peer(3), quorum=BLOCKED_QUORUM)}
    )
    assert verdict_of(answers) == (
        f"FENCED: proposer 5/00000000 ({HTTP}) was deposed by 6/00000000, which does not stream: "
        "run sk attach for the primary that should continue"
    )


def test_an_unfinished_creation() -> None:
    creating = {"state": "creating", "proposer": None}
    answers = Answers([safekeeper(1, **creating), safekeeper(2, **creating), emptied(3)], {})
    view = answers.view()
    assert [m.state for m in view.members] == [MemberState.CREATING] * 3
    assert str(judge(view)).startswith("UNFINISHED: ")


def test_a_member_whose_address_was_not_given() -> None:
    answers = Answers([safekeeper(1), safekeeper(2)])
    assert verdict_of(answers).startswith("OK")
    answers.pages = {HTTP: page(peer(1), peer(2), lost_peer(3))}
    assert verdict_of(answers).endswith(
        "; safekeeper 3 (10.0.0.3:5454) was not asked: give its address in --safekeepers"
    )


def test_a_silent_member_has_the_address_known_to_the_proposer() -> None:
    answers = Answers(
        [safekeeper(1), silent(3), silent(2)], {HTTP: page(peer(1), lost_peer(2), lost_peer(3))}
    )
    assert {m.safekeeper_id: m.address for m in answers.view().members} == {
        number: address(number) for number in (1, 2, 3)
    }


def test_the_newest_membership_counts() -> None:
    newer = membership(1, 2, 4, generation=2)
    answers = Answers([safekeeper(1, membership=newer), safekeeper(2), safekeeper(4)])
    view = answers.view()
    assert view.membership.generation == 2
    assert [m.safekeeper_id for m in view.members] == [1, 2, 4]
    assert view.leader is not None
    assert view.leader.read_at == NOW


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (
            {"qsync": {"owner": "ab", "refuses": "5 transactions wait, of at most 5"}},
            "DEGRADED: commits proceed with 3 of 3 safekeepers; qsync admits no transaction: 5 "
            "transactions wait, of at most 5: run sk qsync list",
        ),
        (
            {"qsync": {"owner": None, "refuses": "could not listen on db:5455: Address in use"}},
            "DEGRADED: commits proceed with 3 of 3 safekeepers; qsync admits no transaction: could "
            "not listen on db:5455: Address in use: see the proposer's log",
        ),
        (
            {"failover": {"finished": False, "error": "role a may not commit; Give another one."}},
            "BLOCKED: the failover is not finished, clients cannot connect: role a may not commit; "
            "Give another one.",
        ),
        (
            {"qsync": {"refuses": None}, "failover": {"finished": True, "error": None}},
            "OK: commits proceed, 3 of 3 safekeepers",
        ),
    ],
)
def test_reasons_why_clients_cannot_connect(changes: dict[str, Any], verdict: str) -> None:
    peers = (peer(1), peer(2), peer(3))
    assert verdict_of(Answers(pages={HTTP: page(*peers) | changes})) == verdict


def test_a_lost_quorum_is_reported_once() -> None:
    """A refusal by qsync for that reason is not a separate problem."""
    changes = {"quorum": BLOCKED_QUORUM, "qsync": {"refuses": "no quorum of safekeepers answers"}}
    made = page(peer(1), lost_peer(2), lost_peer(3)) | changes
    assert "qsync" not in verdict_of(Answers([safekeeper(1), silent(2), silent(3)], {HTTP: made}))
