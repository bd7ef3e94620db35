"""What a proposer is told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consensus.ids import TimelineId
from walproposer.chain_rule import NO_CHAINS, ChainRule
from walproposer.locks.lease import LEASE_SECONDS
from walproposer.primary.primary_address import PrimaryAddress
from walproposer.safekeeper_client import SafekeeperAddress

if TYPE_CHECKING:  # without --qsync none of it is imported
    from access.access import AccessConfig

AGE_MAX_SECONDS = 30.0
ORPHAN_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class QsyncConfig:
    """The coordinator's port, and how its limbo is kept. `port` 0: any that is free. `limbo_max`
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
    """`timeline` None: the one the safekeepers have for this primary, else a new one.

    `configure` sets synchronous_standby_names once streaming; `http` is how others reach the
    status page, "" when there is none.
    """

    primary: PrimaryAddress
    safekeepers: tuple[SafekeeperAddress, ...]
    timeline: TimelineId | None = None
    configure: bool = False
    http: str = ""
    #: Where the lock is that keeps others away while attached; None: there is none.
    lock: str | None = None
    lock_seconds: float = LEASE_SECONDS
    #: Which members take the WAL from another one.
    chains: ChainRule = NO_CHAINS
    #: None: there is no coordinator.
    qsync: QsyncConfig | None = None

    def safekeeper(self, host: str, port: int) -> SafekeeperAddress:
        """One that the membership names: what libpq needs besides is as for those given."""
        return SafekeeperAddress(host, port, self.safekeepers[0].conninfo)
