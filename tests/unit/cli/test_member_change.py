"""`sk member`: when a change is done, and which proposer is asked to continue it."""

from __future__ import annotations

import pytest
from cluster_pages import HTTP, Answers, lost_peer, membership, page, peer, safekeeper, silent

import quorum_wal.cli.member_change
from quorum_wal.cli.member_change import MemberChange, completed
from quorum_wal.cluster.member_plan import plan_remove
from quorum_wal.cluster.timeline_view import TimelineView
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.stream.events import ChangeRequest

NEW = membership(1, 2, 3, generation=3)
JOINT = membership(1, 2, 3, 4, 5, new=(1, 2, 3), generation=2)
Requests = list[ChangeRequest]


def change_of(view: TimelineView) -> MemberChange:
    return MemberChange((), "", view, completed(view))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """The requests to a leader, each of which succeeds at once."""
    asked: Requests = []

    def ask(config: object, request: ChangeRequest, *args: object, **options: object) -> None:
        asked.append(request)

    def observe(*args: object) -> MemberChange:
        return change_of(view_of({1, 2, 3}))

    monkeypatch.setattr(quorum_wal.cli.member_change, "change_members", ask)
    monkeypatch.setattr(MemberChange, "observe", observe)
    return asked


def view_of(having: set[int]) -> TimelineView:
    """`remove 4 5` was interrupted after the new set was decided; `having` have it on disk."""
    reports = [
        safekeeper(i, membership=NEW if i in having else JOINT, proposer=None) for i in range(1, 6)
    ]
    return Answers(reports, {}).view()


def remove_again(view: TimelineView, *, dry_run: bool = False) -> None:
    change = change_of(view)
    change.carry_out(plan_remove(change.present, (4, 5)), dry_run=dry_run)


def test_a_change_on_one_disk_is_not_done(
    requests: Requests, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leader died after its first message: 4 and 5 are needed until a quorum has the change."""
    remove_again(view_of({1}))
    (request,) = requests
    assert (request.generation, request.ids) == (3, (1, 2, 3))
    out = capsys.readouterr().out
    assert "not yet on the disks of a quorum" in out
    assert "nothing to change" not in out
    assert out.endswith("done: members 1, 2, 3, generation 3\n")


def test_a_change_on_a_quorum_is_done(
    requests: Requests, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_again(view_of({1, 2}))
    assert requests == []
    assert "nothing to change: it has members 1, 2, 3" in capsys.readouterr().out


def test_a_dry_run_prints_the_missing_step(
    requests: Requests, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_again(view_of({1}), dry_run=True)
    assert requests == []
    assert "1. a quorum of 1, 2, 3 writes this membership to disk" in capsys.readouterr().out


ROTTEN = "segment 000000010000000000000003 at 0/3000000 is damaged: it is short"


def test_a_damaged_member_cannot_be_one_of_two(requests: Requests) -> None:
    """It confirms commits but does not vote, so 1 alone could not elect a leader."""
    reports = [safekeeper(1), safekeeper(2), safekeeper(3, damage=[ROTTEN])]
    change = change_of(Answers(reports).view())
    with pytest.raises(Refusal, match="safekeeper 3 does not vote: segment") as caught:
        change.carry_out(plan_remove(change.present, (2,)), dry_run=False)
    assert "sk member replace 3" in caught.value.hint
    assert requests == []
    change.carry_out(plan_remove(change.present, (3,)), dry_run=True)


def test_a_damaged_member_counts_for_the_present_set_while_a_leader_follows_it() -> None:
    """Otherwise no member could be replaced, and only sk member force would remain."""
    reports = [safekeeper(1), silent(2), safekeeper(3, damage=[ROTTEN])]
    followed = Answers(reports, {HTTP: page(peer(1), lost_peer(2), peer(3))})
    assert change_of(followed.view()).alive == {1, 3}
    reports = [safekeeper(1, proposer=None), silent(2)]
    reports.append(safekeeper(3, proposer=None, damage=[ROTTEN]))
    assert change_of(Answers(reports, {}).view()).alive == {1}
