"""`NodeState`: what became of a safekeeper."""

from __future__ import annotations

from enum import Enum


class NodeState(Enum):
    """In order of a safekeeper's life."""

    EMPTY = "empty"  #: it knows of no timeline; JOIN_TIMELINE brings one
    UP = "up"  #: one that has left is up, too
    DOWN = "down"  #: the process ended, or a write failed; a restart brings it back
    DAMAGED = "damaged"  #: what was on disk is gone; it says so, for ever
    GONE = "gone"  #: the machine was switched off, or its disk lost, for ever
