"""The published state of a timeline."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from quorum_wal.safekeeper.control_state import ControlState


class TimelineState(Enum):
    """In the order of a timeline's life."""

    CREATING = "creating"  #: created, not yet activated: never votes
    ACTIVE = "active"
    STOPPED = "stopped"  #: a write failed or the disk is full; `stopped_reason` has the cause
    DAMAGED = "damaged"  #: the files on disk cannot be trusted; never votes
    LEFT = "left"  #: its WAL was removed; it keeps promise and membership, and answers greetings


def healthy_state(control: ControlState) -> TimelineState:
    """The state of a timeline that is neither stopped nor damaged."""
    if control.has_left:
        return TimelineState.LEFT
    return TimelineState.ACTIVE if control.active else TimelineState.CREATING


class Positions(Struct, frozen=True, gc=False):
    """Published after the actions of a step were executed."""

    written_lsn: int
    flush_lsn: int
    commit_lsn: int
    truncate_lsn: int
