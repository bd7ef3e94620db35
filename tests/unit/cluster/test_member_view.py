"""The safekeepers of a timeline: members, joining and leaving ones, learners, and others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster_pages import (
    HTTP,
    Answers,
    address,
    departed,
    lost_peer,
    membership,
    page,
    peer,
    safekeeper,
    silent,
)

from quorum_wal.cli.member_table import members_json, notes, remarks
from quorum_wal.cluster.change_line import change_line
from quorum_wal.cluster.member_view import MemberState, Standing
from quorum_wal.cluster.timeline_view import timeline_views
from quorum_wal.cluster.verdict import judge
from quorum_wal.walproposer.timelines.discovery import Discovery

JOINT = membership(1, 2, 3, new=(1, 2, 4))


def changing(state: str, waits_for: str = "", error: str = "") -> dict[str, Any]:
    """The proposer's status page."""
    change = {"state": state, "wanted": [1, 2, 4], "waits_for": waits_for, "error": error}
    peers = (peer(1), peer(2), lost_peer(3), peer(4))
    return page(*peers, membership={"change": change})


def joint_answers(**pages: Any) -> Answers:
    reports = [safekeeper(i, membership=JOINT) for i in (1, 2, 4)]
    return Answers([*reports, silent(3)], {HTTP: changing("entered"), **pages})


def test_in_a_joint_membership_each_member_has_a_standing() -> None:
    view = joint_answers().view()
    assert {m.safekeeper_id: m.standing for m in view.members} == {
        1: Standing.MEMBER,
        2: Standing.MEMBER,
        3: Standing.LEAVING,
        4: Standing.JOINING,
    }
    assert not view.is_complete


def test_a_learner_is_in_no_set_and_causes_no_problem() -> None:
    answers = Answers([safekeeper(i) for i in (1, 2, 3, 4)])
    answers.pages = {HTTP: page(*map(peer, (1, 2, 3, 4)))}
    view = answers.view()
    (learner,) = view.others
    assert (learner.safekeeper_id, learner.standing) == (4, Standing.LEARNER)
    assert str(judge(view)) == "OK: commits proceed, 3 of 3 safekeepers"
    assert list(remarks(view)) == []


def test_a_holder_that_is_no_member_is_listed_with_the_command() -> None:
    view = Answers([safekeeper(i) for i in (1, 2, 3, 4)]).view()
    assert [other.standing for other in view.others] == [Standing.OUTSIDE]
    (remark,) = remarks(view)
    assert remark == (
        "safekeeper 4 (10.0.0.4:5454) has the log and is not a member: run sk member remove 4 to "
        "inform it, or sk member add to make it a member"
    )


def test_a_member_that_has_left_is_listed() -> None:
    view = Answers([safekeeper(1), safekeeper(2), safekeeper(3), departed(4)]).view()
    (other,) = view.others
    assert (other.state, other.standing) == (MemberState.LEFT, Standing.OUTSIDE)
    assert list(remarks(view)) == []


def test_all_that_answer_have_left_and_no_member_answers() -> None:
    """The timeline is listed; if its members had answered without it, it would be deleted."""
    reports = [departed(4), *map(silent, (1, 2, 3))]
    (view,) = timeline_views(Discovery(tuple(reports), {}))
    assert {m.state for m in view.members} == {MemberState.UNREACHABLE}
    gone = [replace(safekeeper(i), timelines={}) for i in (1, 2, 3)]
    assert timeline_views(Discovery((departed(4), *gone), {})) == []


def test_another_data_directory_under_a_members_id_has_lost_its_data() -> None:
    another = replace(safekeeper(2), instance="f" * 16)
    answers = Answers([safekeeper(1), another, safekeeper(3)])
    answers.pages = {HTTP: page(peer(1), lost_peer(2), peer(3))}
    view = answers.view()
    assert view.members[1].state is MemberState.LOST_DATA
    assert view.members[1].status is None
    assert str(judge(view)).endswith("lost its data: sk member replace 2 NEWADDR")


def test_the_member_counts_if_another_disk_has_its_id() -> None:
    """In every order of the answers."""
    another = replace(safekeeper(2), instance="f" * 16, address="10.0.0.99:5454")
    for reports in ((another, safekeeper(2)), (safekeeper(2), another)):
        view = Answers([safekeeper(1), *reports, safekeeper(3)]).view()
        assert view.members[1].address == address(2)


def test_a_change_is_reported_with_what_it_waits_for() -> None:
    answers = joint_answers()
    answers.pages = {HTTP: changing("catching up", waits_for="safekeeper 4: 12 MB behind")}
    assert change_line(answers.view()) == (
        "the members are being changed to 1, 2, 4: catching up; safekeeper 4: 12 MB behind"
    )


def test_a_failed_change_is_reported() -> None:
    answers = Answers()
    answers.pages = {HTTP: changing("gone back", error="4 gave no answers for 10 s")}
    assert change_line(answers.view()) == (
        "the last change of the members, to 1, 2, 4, was undone: 4 gave no answers for 10 s"
    )
    answers.pages = {HTTP: changing("done")}
    assert change_line(answers.view()) == ""


def test_a_change_without_a_proposer_is_reported() -> None:
    answers = joint_answers()
    answers.safekeepers = [safekeeper(i, membership=JOINT, proposer=None) for i in (1, 2, 4)]
    answers.pages = {}
    assert change_line(answers.view()).startswith(
        "the members are being changed from 1, 2, 3 to 1, 2, 4"
    )


def test_complete_means_on_the_disks_of_a_quorum() -> None:
    newer = membership(1, 2, 4, generation=3)
    some = Answers([safekeeper(1, membership=newer), safekeeper(2), safekeeper(4)]).view()
    assert not some.is_complete
    most = [safekeeper(1, membership=newer), safekeeper(2, membership=newer), safekeeper(4)]
    assert Answers(most).view().is_complete


def test_a_forced_log_is_reported_in_one_line_for_any_members() -> None:
    marked = {**membership(4, 5, 6), "forced": True}
    reports = [safekeeper(i, membership=marked, forced=True) for i in (4, 5, 6)]
    view = Answers(reports, {HTTP: page(peer(4), peer(5), peer(6))}).view()
    assert list(notes(view)) == [
        "the members were forced once: acknowledged commits may be missing in this log "
        "(docs/members.md)"
    ]
    assert list(remarks(view)) == []
    assert str(judge(view)) == "OK: commits proceed, 3 of 3 safekeepers"
    assert [m["forced"] for m in members_json(view)["members"]] == [True, True, True]


def test_a_keeper_marked_by_an_older_release_is_reported() -> None:
    reports = [safekeeper(1, forced=True), safekeeper(2), safekeeper(3)]
    assert len(list(notes(Answers(reports).view()))) == 1
    assert list(notes(Answers().view())) == []


def test_a_site_whose_member_does_not_vote_is_not_counted() -> None:
    """The proposer that it follows may be at the lost site."""
    labelled = membership(1, 2, 3, sites={1: "a", 2: "b", 3: "c"})
    reports = [safekeeper(i, membership=labelled) for i in (1, 2)]
    reports.append(safekeeper(3, membership=labelled, damage=["segment at 0/3000000 is damaged"]))
    assert str(Answers(reports).view().site_losses) == (
        "sites: the loss of site c is survived; that of site a or b is not"
    )


def test_a_membership_on_too_few_disks_is_reported() -> None:
    """The leader died after one of them had it: removed members are still needed."""
    newer = membership(1, 2, 3, generation=3)
    joint = membership(1, 2, 3, 4, 5, new=(1, 2, 3), generation=2)
    rest = [safekeeper(i, membership=joint) for i in (2, 3, 4, 5)]
    answers = Answers([safekeeper(1, membership=newer), *rest])
    assert change_line(answers.view()) == (
        "the membership 1, 2, 3 is on disk only on safekeeper 1, and a quorum is needed: removed "
        "members are still needed; the next proposer completes the change, or run the same command "
        "again"
    )
    answers.safekeepers[1] = safekeeper(2, membership=newer)
    assert change_line(answers.view()) == ""


def test_nothing_is_known_about_the_disks_of_silent_members() -> None:
    assert change_line(Answers([safekeeper(1), silent(2), silent(3)]).view()) == ""


def test_a_page_of_an_older_release_is_not_another_membership() -> None:
    more = {**membership(), "forced": False}
    reports = [safekeeper(1, membership=more), safekeeper(2), safekeeper(3)]
    assert Answers(reports).view().is_complete


def test_waiting_commits_in_a_joint_membership_list_the_quorums() -> None:
    answers = joint_answers()
    blocked = {**changing("entered"), "quorum": {"ok": False, "since": None}}
    answers.pages = {HTTP: blocked}
    assert "2 of 1, 2, 3 and 2 of 1, 2, 4 are needed, because the members are being changed" in str(
        judge(answers.view())
    )


def test_json_has_everything_with_standing_and_instance() -> None:
    shown = members_json(joint_answers().view())
    assert shown["membership"]["new_members"] == [1, 2, 4]
    assert [(m["safekeeper_id"], m["standing"]) for m in shown["members"]] == [
        (1, "member"),
        (2, "member"),
        (3, "leaving"),
        (4, "joining"),
    ]
    assert shown["members"][0]["instance"] == f"{1:016x}"
    assert shown["change"]["state"] == "entered"
