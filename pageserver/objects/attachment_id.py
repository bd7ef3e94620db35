"""`AttachmentId`: whose names, and what is validated. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from consensus.ids import TimelineId
from generations.suffix import Suffix


@dataclass(frozen=True, slots=True, order=True)
class AttachmentId:
    """One timeline, attached once, at one process."""

    timeline: TimelineId
    suffix: Suffix


class Verdict(Enum):
    """What a validation says of an attachment. Anything but VALID is for ever."""

    VALID = "valid"
    OUTDATED = "outdated"  # the service has given the tenant, or the node, to another one
    RIVALLED = "rivalled"  # the store has a claim above, whatever the service says
    DELETED = "deleted"  # there is a tombstone
