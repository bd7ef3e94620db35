"""Limits of connections and of wrong passwords.

A connection takes one of a number of places before authentication. If all are taken, the oldest
connection is closed. So silent clients, however many, keep no other client out. Authentication
moves a connection to the places of the users; if there is none, the client gets an error:

    | reserved: proposer, admin | at most per_role_max of each: replica, monitor, client |
    `---- connections_max -------------------------------------------------------------`

So idle connections of one of these roles, however many, keep out neither the proposer, for which
commits wait, nor the other roles. One user has at most per_user_max of all.

Wrong passwords are counted for each user from each address: a monitor with an old password does not
lock out the proposer on the same host. An IPv6 network of 64 bits counts as one address, because a
host has all of it. Law: memory is bounded; the oldest record is forgotten first.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from quorum_wal.access.roles import Role
from quorum_wal.pgwire.errors import INVALID_AUTHORIZATION, INVALID_PASSWORD, ConnectionRefused
from quorum_wal.pgwire.transport import shut_down

TOO_MANY_CONNECTIONS = "53300"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Of one listener."""

    connections_max: int = 200
    connections_per_user_max: int = 100
    #: Of all replicas, of all monitors, and of all clients.
    connections_per_role_max: int = 100
    #: Part of connections_max, for proposers and admins alone. A proposer has one connection for
    #: each timeline, and a few more in an election and while a member catches up.
    connections_reserved: int = 20
    unauthenticated_max: int = 64
    #: After this many wrong passwords within the time, attempts are refused for the same time.
    failed_tries_max: int = 10
    failed_tries_seconds: float = 60.0
    failed_tries_records_max: int = 10_000


DEFAULT_LIMITS = ConnectionLimits()
#: More than a name in a user file has (NAME_BYTES_MAX of `users.py`).
NAME_CHARACTERS_KEPT = 64

RESERVED_FOR = (Role.PROPOSER, Role.ADMIN)
#: A user of several roles counts as the first of these.
_ROLES_COUNTED = (*RESERVED_FOR, Role.REPLICA, Role.MONITOR, Role.CLIENT)


@dataclass(frozen=True, slots=True)
class _Place:
    """Of an authenticated connection. `role`: the role that it counts as; None if unknown."""

    user: str
    role: Role | None


@dataclass(slots=True)
class _Failures:
    """Of one user from one address, since the first failure."""

    since: float
    count: int = 0


class Admission:
    """Called by the thread that accepts and by the clients' threads. `clock` is in seconds."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.evicted_count = 0
        self.refused_count = 0
        self._clock = clock
        self._lock = Lock()
        self._arrivals: dict[int, socket.socket] = {}  # oldest first
        self._names: dict[int, str] = {}  # as claimed, before authentication or after
        self._users: dict[int, _Place] = {}
        self._failures: dict[tuple[str, str], _Failures] = {}  # oldest first

    @property
    def unauthenticated(self) -> int:
        """Connections before authentication."""
        return len(self._arrivals)

    @property
    def authenticated(self) -> int:
        """Connections of users."""
        return len(self._users)

    def arrive(self, number: int, sock: socket.socket) -> None:
        """A connection was accepted. Raises OSError if no file descriptor is left."""
        own = sock.dup()  # TLS detaches the other one
        with self._lock:
            oldest = None
            if len(self._arrivals) >= self.limits.unauthenticated_max:
                oldest = self._arrivals.pop(next(iter(self._arrivals)))
                self.evicted_count += 1
            self._arrivals[number] = own
        if oldest is not None:
            shut_down(oldest)
            oldest.close()

    def check_tries(self, number: int, user: str, host: str) -> None:
        """Called before a password is requested. Raises ConnectionRefused."""
        with self._lock:
            self._names[number] = user
            failures = self._failures.get(_tries_key(user, host))
            if failures is None or failures.count < self.limits.failed_tries_max:
                return
            wait = failures.since + self.limits.failed_tries_seconds - self._clock()
            if wait <= 0:
                return
            self.refused_count += 1
        raise ConnectionRefused(
            f'too many failed authentication attempts of user "{user}" from this address',
            sqlstate=INVALID_AUTHORIZATION,
            hint=f"Try again in {wait:.0f} s.",
        )

    def of_role(self, role: Role) -> int:
        """Connections that count as this role's."""
        return sum(place.role is role for place in self._users.copy().values())

    def admit(self, number: int, user: str, roles: frozenset[Role]) -> None:
        """Called after authentication. `roles` are the user's. Raises ConnectionRefused (53300)."""
        place = _Place(user, next((role for role in _ROLES_COUNTED if role in roles), None))
        with self._lock:
            reason = self._why_full(number, place)
            if reason:
                self.refused_count += 1
                raise ConnectionRefused(reason, sqlstate=TOO_MANY_CONNECTIONS)
            self._arrivals.pop(number).close()
            self._users[number] = place

    def fail(self, number: int, host: str, error: ConnectionRefused) -> None:
        """A connection was refused; wrong passwords are counted."""
        if error.sqlstate != INVALID_PASSWORD:
            return
        now = self._clock()
        with self._lock:
            key = _tries_key(self._names[number], host)
            failures = self._failures.get(key)
            if failures is None or now - failures.since > self.limits.failed_tries_seconds:
                self._failures.pop(key, None)
                failures = self._failures[key] = _Failures(now)
                if len(self._failures) > self.limits.failed_tries_records_max:
                    del self._failures[next(iter(self._failures))]
            failures.count += 1
            if failures.count == self.limits.failed_tries_max:
                failures.since = now  # the time without attempts begins

    def close_unauthenticated(self) -> None:
        """The server stops: closes the connections before authentication."""
        with self._lock:
            for sock in self._arrivals.values():
                shut_down(sock)

    def leave(self, number: int) -> None:
        """The connection ended."""
        with self._lock:
            self._names.pop(number, None)
            self._users.pop(number, None)
            if (sock := self._arrivals.pop(number, None)) is not None:
                sock.close()

    def _why_full(self, number: int, place: _Place) -> str:
        """Postgres's text for the reason; "" if there is a place."""
        if number not in self._arrivals:
            return "connection was closed for newer ones before it was authenticated"
        limits, places = self.limits, list(self._users.values())
        if len(places) >= limits.connections_max:
            return "sorry, too many clients already"
        if sum(other.user == place.user for other in places) >= limits.connections_per_user_max:
            return f'too many connections for role "{place.user}"'
        if place.role in RESERVED_FOR:
            return ""
        others = [other for other in places if other.role not in RESERVED_FOR]
        if len(others) >= limits.connections_max - limits.connections_reserved:
            return (
                "remaining connection slots are reserved for users with the role proposer or admin"
            )
        of_role = sum(other.role is place.role for other in others)
        if place.role is not None and of_role >= limits.connections_per_role_max:
            return f"too many connections of users with the role {place.role.value}"
        return ""


def _tries_key(user: str, host: str) -> tuple[str, str]:
    """A client may send a name of thousands of characters; no user has such a name."""
    return user[:NAME_CHARACTERS_KEPT], _network(host)


def _network(host: str) -> str:
    """The address for which attempts are counted together."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
