"""Limits of one tenant on a safekeeper: timelines, connections, WAL on its disk.

    timelines     CREATE_TIMELINE is refused                                        53400
    connections   a connection is refused after its authentication                  53300
    WAL           the timeline that would grow stops until there is room again      53100

A connection belongs to the tenant whose id it names at the start; if it names only a timeline, to
the tenant of zeros. Law: a tenant's readers, however many, do not keep its own proposers out.
Connections of proposers and admins are counted separately, each kind up to the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

from quorum_wal.access.admission import RESERVED_FOR, TOO_MANY_CONNECTIONS
from quorum_wal.access.roles import Role
from quorum_wal.consensus.ids import parse_id
from quorum_wal.pgwire.errors import ConnectionRefused
from quorum_wal.safekeeper.errors import TimelineError
from quorum_wal.storage.durable import DISK_FULL
from quorum_wal.storage.errors import StorageError

CONFIGURATION_LIMIT_EXCEEDED = "53400"
#: Tenant of a connection that names a timeline and no tenant.
NO_TENANT = bytes(16)


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Of each tenant, on one safekeeper; 0 means no limit."""

    timelines_max: int = 0
    connections_max: int = 0
    wal_bytes_max: int = 0


NO_LIMITS = TenantLimits()


def check_timelines(limits: TenantLimits, tenant_id: bytes, count: int) -> None:
    """Called before one more than `count` is created. Raises TimelineError (53400)."""
    if limits.timelines_max and count >= limits.timelines_max:
        raise TimelineError(
            f"tenant {tenant_id.hex()} has {count} timelines here, its limit is "
            f"{limits.timelines_max}",
            hint="Delete a timeline, or raise --tenant-timelines-max on all members.",
            sqlstate=CONFIGURATION_LIMIT_EXCEEDED,
        )


class WalQuota:
    """Of one tenant. `used_bytes` returns the present size of all segments of its timelines."""

    def __init__(self, limit_bytes: int, tenant_id: bytes, used_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._tenant_id = tenant_id
        self._used_bytes = used_bytes

    def is_reached(self, growth_bytes: int) -> bool:
        """Whether growth by so much would exceed the limit."""
        return self._used_bytes() + growth_bytes > self._limit_bytes

    def check(self, growth_bytes: int) -> None:
        """Called before a log grows. Raises StorageError (53100)."""
        used_bytes = self._used_bytes()
        if used_bytes + growth_bytes > self._limit_bytes:
            raise StorageError(
                f"tenant {self._tenant_id.hex()} has {used_bytes} bytes of WAL here, its limit is "
                f"{self._limit_bytes}",
                hint="See the retention of its timelines in the status. Drop a slot, lower "
                "--wal-keep-size, delete a timeline, or raise --tenant-wal-max.",
                sqlstate=DISK_FULL,
            )


class TenantConnections:
    """Thread-safe; a connection is named by its number."""

    def __init__(self, limits: TenantLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._places: dict[int, tuple[bytes, bool]] = {}
        self._counts: Counter[tuple[bytes, bool]] = Counter()

    def enter(self, number: int, parameters: Mapping[str, str], roles: frozenset[Role]) -> None:
        """Called after authentication, with the startup parameters. Raises ConnectionRefused
        (53300)."""
        tenant_id = tenant_of(parameters)
        if tenant_id is None or not self._limits.connections_max:
            return
        place = tenant_id, not roles.isdisjoint(RESERVED_FOR)
        with self._lock:
            if self._counts[place] >= self._limits.connections_max:
                raise ConnectionRefused(
                    f"too many connections for tenant {tenant_id.hex()}",
                    sqlstate=TOO_MANY_CONNECTIONS,
                    hint=f"Its limit here is {self._limits.connections_max} "
                    "(--tenant-connections-max).",
                )
            self._counts[place] += 1
            self._places[number] = place

    def leave(self, number: int) -> None:
        """The connection ended, whether it had entered or not."""
        with self._lock:
            place = self._places.pop(number, None)
            if place is not None:
                self._counts[place] -= 1
                if not self._counts[place]:
                    del self._counts[place]


def tenant_of(parameters: Mapping[str, str]) -> bytes | None:
    """The tenant of a connection; None for one that names no timeline and no tenant."""
    if "tenant_id" in parameters:
        return parse_id(parameters["tenant_id"], "tenant id")
    return NO_TENANT if "timeline_id" in parameters else None
