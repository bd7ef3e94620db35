"""What others may see of a timeline."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class TimelineState(Enum):
    """In order of a timeline's life."""

    CREATING = "creating"  #: created, not yet activated: never votes
    ACTIVE = "active"
    STOPPED = "stopped"  #: a write failed or the disk is full; `stopped_reason` says which
    DAMAGED = "damaged"  #: what is on disk cannot be trusted; never votes


class Positions(Struct, frozen=True, gc=False):
    """What others may see: published after the actions of a step were executed."""

    written_lsn: int
    flush_lsn: int
    commit_lsn: int
    truncate_lsn: int
