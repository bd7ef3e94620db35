"""What one tenant may have of a safekeeper: timelines, connections, WAL on its disk.

    timelines     CREATE_TIMELINE is refused                                        53400
    connections   a connection is refused after its authentication                  53300
    WAL           the timeline that would grow stops, and comes back by itself      53100

A connection is the tenant's whose id it names as it connects, or that of zeros when it names only a
timeline. Law: a tenant's crowd of readers does not keep its own proposers out: those of proposers
and admins are counted apart from all others, each up to the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

from access.admission import RESERVED_FOR, TOO_MANY_CONNECTIONS
from access.roles import Role
from consensus.ids import parse_id
from pgwire.errors import ConnectionRefused
from safekeeper.errors import TimelineError
from storage.durable import DISK_FULL
from storage.errors import StorageError

CONFIGURATION_LIMIT_EXCEEDED = "53400"
#: Of a connection that names a timeline and no tenant.
NO_TENANT = bytes(16)


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Of each tenant, on one safekeeper; 0: no limit."""

    timelines_max: int = 0
    connections_max: int = 0
    wal_bytes_max: int = 0


NO_LIMITS = TenantLimits()


def check_timelines(limits: TenantLimits, tenant_id: bytes, count: int) -> None:
    """Before one more is created; there are `count`. Raises TimelineError (53400)."""
    if limits.timelines_max and count >= limits.timelines_max:
        raise TimelineError(
            f"tenant {tenant_id.hex()} has {count} timelines here, its limit is "
            f"{limits.timelines_max}",
            hint="Delete one that is not needed, or raise --tenant-timelines-max on all members.",
            sqlstate=CONFIGURATION_LIMIT_EXCEEDED,
        )


class WalQuota:
    """Of one tenant. `used_bytes` is what the segments of all its timelines occupy now."""

    def __init__(self, limit_bytes: int, tenant_id: bytes, used_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._tenant_id = tenant_id
        self._used_bytes = used_bytes

    def is_reached(self, growth_bytes: int) -> bool:
        """So much more would be too much."""
        return self._used_bytes() + growth_bytes > self._limit_bytes

    def check(self, growth_bytes: int) -> None:
        """Before a log grows. Raises StorageError (53100)."""
        used_bytes = self._used_bytes()
        if used_bytes + growth_bytes > self._limit_bytes:
            raise StorageError(
                f"tenant {self._tenant_id.hex()} has {used_bytes} bytes of WAL here, its limit is "
                f"{self._limit_bytes}",
                hint="The retention of its timelines says what holds the WAL: drop a slot, lower "
                "--wal-keep-size, delete a timeline, or raise --tenant-wal-max.",
                sqlstate=DISK_FULL,
            )


class TenantConnections:
    """Any thread may call it; a connection is named by its number."""

    def __init__(self, limits: TenantLimits) -> None:
        self._limits = limits
        self._lock = Lock()
        self._places: dict[int, tuple[bytes, bool]] = {}
        self._counts: Counter[tuple[bytes, bool]] = Counter()

    def enter(self, number: int, parameters: Mapping[str, str], roles: frozenset[Role]) -> None:
        """After authentication, with what it said as it connected. Raises ConnectionRefused
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
        """The connection is gone, whether it had entered or not."""
        with self._lock:
            place = self._places.pop(number, None)
            if place is not None:
                self._counts[place] -= 1
                if not self._counts[place]:
                    del self._counts[place]


def tenant_of(parameters: Mapping[str, str]) -> bytes | None:
    """Whose a connection is; None of one that asks about the safekeeper as a whole."""
    if "tenant_id" in parameters:
        return parse_id(parameters["tenant_id"], "tenant id")
    return NO_TENANT if "timeline_id" in parameters else None
