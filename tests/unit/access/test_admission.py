"""Connection limits and wrong passwords: who is refused, and that memory is bounded."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from quorum_wal.access.access import Access, AccessConfig
from quorum_wal.access.admission import Admission, ConnectionLimits
from quorum_wal.access.roles import Role
from quorum_wal.pgwire.blocking import ServerConfig
from quorum_wal.pgwire.errors import ConnectionRefused

LIMITS = ConnectionLimits(
    connections_max=4,
    connections_per_user_max=2,
    connections_reserved=0,
    unauthenticated_max=3,
    failed_tries_max=3,
    failed_tries_seconds=60.0,
    failed_tries_records_max=5,
)
WRONG_PASSWORD = ConnectionRefused("no", sqlstate="28P01")
HOST = "10.0.0.1"


class World:
    """An admission, its clock, and the far ends of its connections."""

    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        self.now = 1000.0
        self.admission = Admission(limits, lambda: self.now)
        self.far: dict[int, socket.socket] = {}
        self.sockets = ExitStack()

    def arrive(self, number: int) -> None:
        near, far = socket.socketpair()
        self.sockets.enter_context(near)
        self.far[number] = self.sockets.enter_context(far)
        self.admission.arrive(number, near)

    def is_cut_off(self, number: int) -> bool:
        try:
            return self.far[number].recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def enter(self, number: int, user: str, *roles: Role) -> None:
        self.arrive(number)
        self.admission.check_tries(number, user, HOST)
        self.admission.admit(number, user, frozenset(roles))

    def fail(self, user: str, host: str = HOST, number: int = 99) -> None:
        """A whole connection attempt with a wrong password."""
        self.arrive(number)
        try:
            self.admission.check_tries(number, user, host)
            self.admission.fail(number, host, WRONG_PASSWORD)
        finally:
            self.admission.leave(number)


@pytest.fixture
def world() -> Iterator[World]:
    with living(World()) as world:
        yield world


@contextmanager
def living(world: World) -> Iterator[World]:
    """At its end no connection is counted."""
    with world.sockets:
        yield world
        for number in world.far:
            world.admission.leave(number)
        assert (world.admission.unauthenticated, world.admission.authenticated) == (0, 0)


@contextmanager
def refused(sqlstate: str, sentence: str) -> Iterator[None]:
    with pytest.raises(ConnectionRefused, match=sentence) as caught:
        yield
    assert caught.value.sqlstate == sqlstate


def test_the_oldest_unauthenticated_connection_is_closed(world: World) -> None:
    world.enter(1, "alice")
    for number in range(2, 8):
        world.arrive(number)
    assert [number for number in world.far if world.is_cut_off(number)] == [2, 3, 4]
    assert world.admission.unauthenticated == LIMITS.unauthenticated_max
    assert world.admission.evicted_count == 3
    with refused("53300", "closed for newer ones"):
        world.admission.admit(2, "late", frozenset())
    world.admission.admit(7, "bob", frozenset())


def test_an_unauthenticated_connection_is_closed_also_during_tls(world: World) -> None:
    near, far = socket.socketpair()
    world.sockets.enter_context(far)
    world.admission.arrive(1, near)
    with socket.socket(fileno=near.detach()):  # as SSLContext.wrap_socket() does
        for number in range(2, 5):
            world.arrive(number)
        assert far.recv(1, socket.MSG_DONTWAIT) == b""
    world.admission.leave(1)


def test_a_server_that_stops_closes_unauthenticated_connections(world: World) -> None:
    world.enter(1, "alice")
    world.arrive(2)
    world.admission.close_unauthenticated()
    assert [number for number in world.far if world.is_cut_off(number)] == [2]


def test_users_are_limited_each_and_all(world: World) -> None:
    world.enter(1, "alice")
    world.enter(2, "alice")
    with refused("53300", 'too many connections for role "alice"'):
        world.enter(3, "alice")
    world.enter(4, "bob")
    world.enter(5, "carol")
    with refused("53300", "sorry, too many clients already"):
        world.enter(6, "dave")
    assert world.admission.refused_count == 2
    world.admission.leave(1)
    world.enter(7, "alice")
    assert not any(world.is_cut_off(number) for number in (2, 4, 5, 7))


CROWDED = ConnectionLimits(
    connections_max=6,
    connections_per_user_max=6,
    connections_per_role_max=3,
    connections_reserved=2,
)


def test_roles_leave_each_other_places_and_the_reserved_ones() -> None:
    with living(World(CROWDED)) as world:
        for number, user in enumerate(("standby1", "standby2", "standby2"), 1):
            world.enter(number, user, Role.REPLICA)
        with refused("53300", "too many connections of users with the role replica"):
            world.enter(4, "standby3", Role.MONITOR, Role.REPLICA)
        world.enter(5, "ops", Role.MONITOR)
        for number, roles in ((6, [Role.MONITOR]), (7, [])):
            with refused("53300", "remaining connection slots are reserved for users with the"):
                world.enter(number, "late", *roles)
        assert [world.admission.of_role(role) for role in Role] == [0, 3, 1, 0, 0]
        world.enter(8, "primary1", Role.REPLICA, Role.PROPOSER)
        world.enter(9, "root", Role.ADMIN)
        with refused("53300", "sorry, too many clients already"):
            world.enter(10, "primary1", Role.PROPOSER)
        world.admission.leave(5)
        world.enter(11, "primary1", Role.PROPOSER)  # unreserved places are theirs, too
        assert not any(world.is_cut_off(number) for number in (1, 2, 3, 8, 9, 11))


def test_without_known_roles_places_are_reserved_all_the_same() -> None:
    access = Access(AccessConfig(limits=CROWDED), trusted={"primary": frozenset({Role.PROPOSER})})
    base = ServerConfig(server_version="15")
    with living(World()) as world:
        world.admission = access.admission
        for number in range(1, 5):
            world.arrive(number)
            access.server_config(base, number, HOST).on_authenticated({"user": "postgres"})
        world.arrive(5)
        with refused("53300", "remaining connection slots are reserved"):
            access.server_config(base, 5, HOST).on_authenticated({"user": "postgres"})
        world.arrive(6)
        access.server_config(base, 6, HOST).on_authenticated({"user": "primary"})


def test_guessing_is_refused_for_a_while(world: World) -> None:
    for _ in range(LIMITS.failed_tries_max):
        world.fail("alice")
        world.now += 1
    with refused("28000", 'too many failed authentication attempts of user "alice"'):
        world.fail("alice")
    world.enter(1, "bob")  # another user from the same address
    world.arrive(2)
    world.admission.check_tries(2, "alice", "10.0.0.2")  # the user from another address
    world.now += LIMITS.failed_tries_seconds
    world.enter(3, "alice")
    world.fail("alice")  # counted from the beginning
    world.enter(4, "alice")


def test_slow_mistakes_are_not_counted_together(world: World) -> None:
    for _ in range(3 * LIMITS.failed_tries_max):
        world.fail("alice")
        world.now += LIMITS.failed_tries_seconds
    world.enter(1, "alice")


def test_other_refusals_are_not_counted(world: World) -> None:
    for number in range(10, 10 + 2 * LIMITS.failed_tries_max):
        world.arrive(number)
        world.admission.check_tries(number, "alice", HOST)
        world.admission.fail(number, HOST, ConnectionRefused("no TLS"))
        world.admission.leave(number)
    world.enter(1, "alice")


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_what_counts_as_one_address(world: World, first: str, second: str, together: bool) -> None:
    for _ in range(LIMITS.failed_tries_max):
        world.fail("alice", first)
    if together:
        with refused("28000", "too many failed"):
            world.fail("alice", second)
    else:
        world.fail("alice", second)


@pytest.mark.parametrize("is_kept", [True, False])
def test_of_many_failures_the_oldest_are_forgotten(world: World, is_kept: bool) -> None:
    """Each user may make one more mistake, if its mistakes are remembered."""
    count = 100
    for number in range(count):
        for _ in range(LIMITS.failed_tries_max - 1):
            world.fail(f"user{number}")
    oldest_kept = count - LIMITS.failed_tries_records_max
    user = f"user{oldest_kept if is_kept else oldest_kept - 1}"
    world.fail(user)
    if is_kept:
        with refused("28000", "too many failed"):
            world.fail(user)
    else:
        world.fail(user)


def test_a_long_name_is_not_kept() -> None:
    """A startup packet has room for ten thousand characters, and each failure is recorded. The name
    of the connection is forgotten at its end."""
    name = "x" * 10_000
    tracemalloc.start()
    try:
        with living(World(replace(LIMITS, failed_tries_records_max=1000))) as world:
            for number in range(200):
                world.fail(f"{number}{name}", number=number)
            kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1 << 20, kept_bytes
