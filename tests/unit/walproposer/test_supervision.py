"""The state of a server from the observations, and when a proposer attaches and ends."""

from __future__ import annotations

import pytest

from quorum_wal.walproposer.supervision.server_state import Seen, ServerState
from quorum_wal.walproposer.supervision.supervision import (
    RESTART_SECONDS,
    Action,
    Attach,
    End,
    Report,
    Supervision,
)

ABSENT = Seen()
STARTING = Seen(7, "starting")
RECOVERING = Seen(7, "ready", in_recovery=True)
STANDBY = Seen(7, "ready", has_standby_signal=True, in_recovery=True)
PRIMARY = Seen(7, "ready", in_recovery=False)
STOPPING = Seen(7, "stopping")
SILENT = Seen(7, "ready", reason="no answer")


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (ABSENT, ServerState.ABSENT),
        (STARTING, ServerState.STARTING),
        (Seen(7, "starting", has_standby_signal=True), ServerState.STARTING),
        (Seen(7, "standby", has_standby_signal=True), ServerState.STANDBY),
        (Seen(7, "standby"), ServerState.RECOVERING),
        (RECOVERING, ServerState.RECOVERING),
        (STANDBY, ServerState.STANDBY),
        (PRIMARY, ServerState.PRIMARY),
        # Another process prepares the next start of a primary: it is one until then.
        (Seen(7, "ready", has_standby_signal=True, in_recovery=False), ServerState.PRIMARY),
        (SILENT, ServerState.SILENT),
        (STOPPING, ServerState.STOPPING),
        (Seen(7, "stopping", in_recovery=False), ServerState.STOPPING),
    ],
)
def test_a_server_is_what_its_files_and_its_answer_say(seen: Seen, state: ServerState) -> None:
    assert seen.state is state


def actions_of(supervision: Supervision, *looks: tuple[Seen, float]) -> list[Action]:
    return [action for seen, now in looks for action in supervision.step(seen, now)]


def test_each_state_is_reported_once() -> None:
    looks = (ABSENT, STARTING, RECOVERING, STANDBY, PRIMARY, STOPPING, ABSENT)
    twice = [(seen, float(number)) for number, seen in enumerate(looks) for _ in range(2)]
    actions = actions_of(Supervision(), *twice)
    assert [a.state for a in actions if isinstance(a, Report)] == [seen.state for seen in looks]
    assert actions.count(Attach()) == 2
    assert not any(isinstance(action, End) for action in actions)


def test_another_reason_is_reported_too() -> None:
    other = Seen(7, "ready", reason="another")
    assert actions_of(Supervision(), (SILENT, 0), (SILENT, 1), (other, 2)) == [
        Report(ServerState.SILENT, "no answer"),
        Report(ServerState.SILENT, "another"),
    ]


def test_a_server_that_was_never_there_is_waited_for() -> None:
    assert actions_of(Supervision(), (ABSENT, 0), (ABSENT, 100 * RESTART_SECONDS)) == [
        Report(ServerState.ABSENT, "")
    ]


@pytest.mark.parametrize("before", [STARTING, STANDBY, PRIMARY, STOPPING, SILENT])
def test_it_ends_when_the_server_has_ended_and_is_not_back(before: Seen) -> None:
    supervision = Supervision()
    supervision.step(before, 5.0)
    (told,) = actions_of(supervision, (ABSENT, 5.1), (ABSENT, 4.9 + RESTART_SECONDS))
    assert isinstance(told, Report)
    assert supervision.step(ABSENT, 5.0 + RESTART_SECONDS) == [End("the server has ended")]


def test_a_restart_is_no_end() -> None:
    supervision = Supervision()
    for lap in range(3):
        begun = 2 * lap * RESTART_SECONDS
        assert Attach() in supervision.step(PRIMARY, begun)
        looks = [(ABSENT, begun + 1), (STARTING, begun + RESTART_SECONDS - 1)]
        assert not any(isinstance(a, End) for a in actions_of(supervision, *looks))


@pytest.mark.parametrize("after", [STANDBY, RECOVERING])
def test_it_ends_when_the_server_comes_back_as_no_primary(after: Seen) -> None:
    supervision = Supervision()
    actions_of(supervision, (STANDBY, 0), (PRIMARY, 1), (ABSENT, 2), (STARTING, 3))
    assert supervision.step(after, 4)[-1] == End("the server came back as a standby")
