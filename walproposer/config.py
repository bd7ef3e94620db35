"""The configuration of a proposer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.chain_rule import NO_CHAINS, ChainRule
from quorum_wal.walproposer.locks.lease import LEASE_SECONDS
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

if TYPE_CHECKING:  # without --qsync it is not imported
    from quorum_wal.access.access import AccessConfig

AGE_MAX_SECONDS = 30.0
ORPHAN_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class QsyncConfig:
    """The coordinator's port, and the limits of its limbo. `port` 0: any free port. `limbo_max`
    None: half of the primary's max_prepared_transactions."""

    host: str
    port: int
    access: AccessConfig
    limbo_max: int | None = None
    age_max_seconds: float = AGE_MAX_SECONDS
    orphan_grace_seconds: float = ORPHAN_GRACE_SECONDS
    is_fifo: bool = False


@dataclass(frozen=True, slots=True)
class ProposerConfig:
    """`timeline` None: the timeline that the safekeepers have for this primary, else a new one.

    `configure` sets synchronous_standby_names once the proposer streams. `http` is the address of
    the status page for other machines, "" if there is none.
    """

    primary: PrimaryAddress
    safekeepers: tuple[SafekeeperAddress, ...]
    timeline: TimelineId | None = None
    configure: bool = False
    http: str = ""
    #: URL of the lock that only one proposer can hold while attached; None: no lock.
    lock: str | None = None
    lock_seconds: float = LEASE_SECONDS
    #: Which members take the WAL from another member.
    chains: ChainRule = NO_CHAINS
    #: None: there is no coordinator.
    qsync: QsyncConfig | None = None

    def safekeeper(self, host: str, port: int) -> SafekeeperAddress:
        """The address of a member. Other libpq settings are those of the given safekeepers."""
        return SafekeeperAddress(host, port, self.safekeepers[0].conninfo)
