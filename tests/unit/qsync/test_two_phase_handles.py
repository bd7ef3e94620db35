"""The protocol on another connection than the one that prepared, and on standbys."""

from __future__ import annotations

import pytest
from two_phase_world import NEVER, Fault, Truth, TwoPhaseWorld

from quorum_wal.qsync.errors import TransactionPending, TransactionRolledBack, UsageError
from quorum_wal.qsync.options import Options
from quorum_wal.qsync.outcome import Committed, Pending
from quorum_wal.qsync.statements import parse_lsn

SUBMIT = Options(wait="submit")
ROLLBACK_LATER = Options(on_timeout="rollback", wait="submit")


def committed(world: TwoPhaseWorld) -> Committed:
    world.begin()
    world.end()
    return world.two_phase.result


def test_submit_ends_with_prepare_and_a_handle_goes_on() -> None:
    world = TwoPhaseWorld(Options(wait="submit"))
    world.begin()
    world.end()
    assert isinstance(world.two_phase.outcome, Pending)
    assert world.truth is Truth.PREPARED
    with pytest.raises(TransactionPending):
        _ = world.two_phase.result
    world.wait(1.0)
    assert world.two_phase.result == Committed(parse_lsn("0/3000"))


def test_on_another_connection_a_handle_asks_for_the_server() -> None:
    world = submitted(ROLLBACK_LATER)
    world.has_standby_names = world.has_pooler = True
    world.wait()
    assert world.asked[-4:] == ["SESSION", "COMMIT PREPARED", "FLUSH", "WAIT_LSN"]
    other = submitted(ROLLBACK_LATER)
    other.has_standby_names = True  # and no pooler: the setting is changed for the command
    other.wait()
    assert other.asked.count("SELECT") == 3


def submitted(options: Options) -> TwoPhaseWorld:
    world = TwoPhaseWorld(options)
    world.begin()
    world.end()
    return world


def test_a_handle_whose_prepare_has_not_answered_asks_for_the_outcome() -> None:
    """There is no position to wait for."""
    world = TwoPhaseWorld(SUBMIT, faults={4: Fault.BREAKS_AFTER}, confirms_at=6.0)
    world.begin()
    with pytest.raises(TransactionPending) as raised:
        world.end()
    assert raised.value.outcome.lsn == 0
    assert world.truth is Truth.PREPARED
    world.wait()
    assert isinstance(world.two_phase.outcome, Committed)
    assert "WAIT_LSN" not in world.asked


def test_only_one_waits_for_a_handle() -> None:
    world = submitted(SUBMIT)
    with world.two_phase.waiting(), pytest.raises(UsageError, match="another thread or task"):
        world.wait()
    world.wait()


# ---- a primary that was replaced


def test_what_was_prepared_on_another_timeline_is_not_rolled_back() -> None:
    """It may have been committed, and seen, on the previous primary."""
    world = submitted(ROLLBACK_LATER)
    world.confirms_at = NEVER
    world.tli = 2
    with pytest.raises(TransactionPending, match="has been replaced"):
        world.wait()
    assert world.truth is Truth.PREPARED
    assert "ROLLBACK PREPARED" not in world.asked


def test_what_was_confirmed_once_is_not_rolled_back() -> None:
    world = submitted(ROLLBACK_LATER)
    world.sqlstates["COMMIT PREPARED"] = ["42501"] * 2
    world.sqlstates["OUTCOME"] = ["42501"]
    with pytest.raises(TransactionPending):
        world.wait()
    world.confirms_at = NEVER
    with pytest.raises(TransactionPending):
        world.wait()
    assert world.truth is Truth.PREPARED


@pytest.mark.parametrize("options", [SUBMIT, ROLLBACK_LATER], ids=lambda o: o.on_timeout)
def test_a_handle_on_a_standby_finishes_nothing(options: Options) -> None:
    world = submitted(options)
    world.is_in_recovery = True
    world.sqlstates["OUTCOME"] = ["42501"]
    with pytest.raises(TransactionPending):
        world.wait()
    assert not {"COMMIT PREPARED", "ROLLBACK PREPARED"} & set(world.asked)


# ---- standbys


@pytest.mark.parametrize("parameter", [b"on", None])  # None: Postgres 13
def test_a_read_on_a_standby_just_commits(parameter: bytes | None) -> None:
    world = TwoPhaseWorld(writes=False)
    world.primary.in_hot_standby = parameter
    world.is_in_recovery = True
    assert committed(world) == Committed(0)
    assert world.asked[2:] == ["IN_RECOVERY", "COMMIT"]


@pytest.mark.parametrize("parameter", [b"on", None])
def test_a_pooler_that_was_in_front_of_a_standby_is_not_believed(parameter: bytes | None) -> None:
    world = TwoPhaseWorld()
    world.primary.in_hot_standby = parameter
    assert committed(world) == Committed(parse_lsn("0/3000"))
    assert "PREPARE" in world.asked


def test_a_server_that_does_not_say_whether_it_is_a_standby() -> None:
    world = TwoPhaseWorld(faults={1: Fault.BREAKS_BEFORE})
    world.primary.in_hot_standby = b"on"
    with pytest.raises(TransactionRolledBack, match="broken"):
        committed(world)
