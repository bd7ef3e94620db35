"""`AttachmentId`: identifies an attachment, and the verdict of a validation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix


@dataclass(frozen=True, slots=True, order=True)
class AttachmentId:
    """One attachment of one timeline to one process."""

    timeline: TimelineId
    suffix: Suffix


class Verdict(Enum):
    """The result of a validation. Every verdict but VALID is permanent."""

    VALID = "valid"
    OUTDATED = "outdated"  # the service has assigned a newer number for the tenant or the node
    RIVALLED = "rivalled"  # the store has a greater claim, whatever the service answers
    DELETED = "deleted"  # a tombstone exists
