"""`NodeState`: the state of a safekeeper."""

from __future__ import annotations

from enum import Enum


class NodeState(Enum):
    """In order of a safekeeper's life."""

    EMPTY = "empty"  # it has no timeline; JOIN_TIMELINE brings one
    UP = "up"  # one that has left is up, too
    DOWN = "down"  # the process ended, or a write failed; a restart repairs it
    DAMAGED = "damaged"  # the content of the disk is lost; it reports so, permanently
    GONE = "gone"  # the machine was switched off, or its disk lost, permanently
