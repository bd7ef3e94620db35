"""What others may see of a timeline."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from safekeeper.control_state import ControlState


class TimelineState(Enum):
    """In order of a timeline's life."""

    CREATING = "creating"  #: created, not yet activated: never votes
    ACTIVE = "active"
    STOPPED = "stopped"  #: a write failed or the disk is full; `stopped_reason` says which
    DAMAGED = "damaged"  #: what is on disk cannot be trusted; never votes
    LEFT = "left"  #: its WAL is gone; promise and membership are kept, and greetings are answered


def resting_state(control: ControlState) -> TimelineState:
    """Of a timeline that is well."""
    if control.has_left:
        return TimelineState.LEFT
    return TimelineState.ACTIVE if control.active else TimelineState.CREATING


class Positions(Struct, frozen=True, gc=False):
    """What others may see: published after the actions of a step were executed."""

    written_lsn: int
    flush_lsn: int
    commit_lsn: int
    truncate_lsn: int
