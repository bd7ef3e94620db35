"""All planted bugs: the simulator must catch every one."""

from __future__ import annotations

from . import (
    bugs_of_chains,
    bugs_of_change,
    bugs_of_compaction,
    bugs_of_damage,
    bugs_of_deletion,
    bugs_of_limbo,
    bugs_of_membership,
    bugs_of_pageserver,
    bugs_of_proposer,
    bugs_of_safekeeper,
)
from .planting import (
    CHANGE_PLANTS,
    LIMBO_PLANTS,
    PAGESERVER_PLANTS,
    PLANTS,
    RARE_LIMBO_PLANTS,
    RARE_PAGESERVER_PLANTS,
    RARE_PLANTS,
    Plant,
    planted,
)

__all__ = [
    "CHANGE_PLANTS",
    "LIMBO_PLANTS",
    "PAGESERVER_PLANTS",
    "PLANTS",
    "RARE_LIMBO_PLANTS",
    "RARE_PAGESERVER_PLANTS",
    "RARE_PLANTS",
    "Plant",
    "bugs_of_chains",
    "bugs_of_change",
    "bugs_of_compaction",
    "bugs_of_damage",
    "bugs_of_deletion",
    "bugs_of_limbo",
    "bugs_of_membership",
    "bugs_of_pageserver",
    "bugs_of_proposer",
    "bugs_of_safekeeper",
    "planted",
]
