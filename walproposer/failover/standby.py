"""The standby of a failover: reads its state and changes its settings.

Every question uses a new connection. A new session with the new configuration proves that the
postmaster has reloaded, and it signals the other processes at the same time. The checkpointer
matters: it alone puts synchronous_standby_names into effect, and during a restartpoint it may be
late. It has applied the reload when it is later seen idle, or has completed a CHECKPOINT. Sources:
Postgres `checkpointer.c` (UpdateSharedMemoryConfig), `syncrep.c`
(SyncRepUpdateSyncStandbysDefined).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pgclient.questions import identify_system, read_timeline_history
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.startup import format_options
from quorum_wal.walproposer.connection import converting_errors, open_connection, port_number
from quorum_wal.walproposer.failover import client_writes
from quorum_wal.walproposer.failover.promotion import Standby
from quorum_wal.walproposer.primary.log_marker import mark_log
from quorum_wal.walproposer.primary.prepared_transactions import ours, read_prepared
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings
from quorum_wal.walproposer.primary.slot import ensure_slot, read_slot
from quorum_wal.walproposer.primary.standby_names import one_of
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

_STATE = """
SELECT pg_is_in_recovery(),
    pg_last_wal_receive_lsn()::text, pg_last_wal_replay_lsn()::text,
    CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END,
    current_setting('primary_conninfo'), current_setting('synchronous_standby_names'),
    EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s),
    EXISTS (SELECT FROM pg_stat_activity
        WHERE backend_type = 'checkpointer' AND wait_event = 'CheckpointerMain'),
    extract(epoch FROM clock_timestamp() - pg_conf_load_time())::float8,
    current_setting('max_prepared_transactions')::int > 0
"""
# On a primary, the timeline that it writes on. Its last checkpoint may be on the previous one.
_TIMELINE = """
SELECT CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
    ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END
"""
_HISTORY_FILE = "SELECT pg_read_file(%s)"

# With this setting a standby continues with the next safekeeper when the host of its current one
# stops responding. A WAL receiver ignores connect_timeout, but tcp_user_timeout also ends a
# connection attempt. wal_receiver_timeout of the standby ends the stream itself.
VANISHED_HOST_SETTINGS = {"tcp_user_timeout": "5000"}


class StandbyServer:
    """Every method raises Unreachable, or Refusal with the server's message."""

    def __init__(self, address: PrimaryAddress) -> None:
        self.address = address

    # ---- questions

    def read(self) -> Standby:
        with self._session("could not inspect the standby") as connection:
            row = connection.execute(_STATE, (self.address.slot,)).fetchone()
            limbo = ours(read_prepared(connection))
            is_closed = client_writes.is_closed(connection)
        assert row is not None
        in_recovery, received, replayed, paused, conninfo, names, has_slot, idle, age, room = row
        return Standby(
            in_recovery=in_recovery,
            received_lsn=_lsn(received),
            replayed_lsn=_lsn(replayed),
            is_paused=paused,
            sources=sources_of(conninfo),
            standby_names=one_of(names),
            has_slot=has_slot,
            checkpointer_idle=idle,
            config_age_seconds=age,
            may_prepare=room,
            limbo_len=len(limbo),
            is_closed=is_closed,
        )

    def proposer_pid(self) -> int | None:
        """The pid of the proposer that streams from it: our application_name, with our slot."""
        with self._session("could not inspect the server") as connection:
            slot = read_slot(connection, self.address.slot)
        if slot is None or slot.holder != self.address.application_name:
            return None
        return slot.holder_pid

    def read_history(self) -> tuple[TimelineHistory, int]:
        """The history of its timeline, and the end of the WAL that it has on that timeline."""
        connection = open_connection(
            self.address.dsn,
            f"the standby ({self.address})",
            replication="true",
            application_name="sk",
        )
        with closing(connection), converting_errors("could not identify the standby"):
            system = identify_system(connection.pgconn)
            return read_timeline_history(connection.pgconn, system.tli), system.flush_lsn

    def read_history_of(self, settings: PrimarySettings) -> TimelineHistory:
        """The history of its timeline. It uses SQL if no replication connection is possible. Only a
        superuser can read the history file."""
        if not settings.replication_error:
            return self.read_history()[0]
        with self._session("could not read the timeline's history") as connection:
            row = connection.execute(_TIMELINE).fetchone()
            assert row is not None
            (tli,) = row
            if tli == 1:
                return TimelineHistory(1)
            row = connection.execute(_HISTORY_FILE, (f"pg_wal/{tli:08X}.history",)).fetchone()
        assert row is not None
        return TimelineHistory.parse(tli, row[0])

    # ---- changes

    def configure(self) -> None:
        """Its commits wait for the proposer once it is promoted. A standby has no commits."""
        # Identifier and Literal quote the name: a list of quoted identifiers inside a literal.
        names = sql.Identifier(self.address.application_name).as_string()
        self._alter({"synchronous_standby_names": names})

    def follow(self, conninfo: str) -> None:
        """Its WAL receiver restarts with this primary_conninfo, and without a slot."""
        self._alter({"primary_conninfo": conninfo, "primary_slot_name": ""})

    def wake(self) -> None:
        """A reload ends the pause (wal_retrieve_retry_interval) in which it waits for WAL."""
        with self._session("could not reload the standby") as connection:
            connection.execute("SELECT pg_reload_conf()")

    def checkpoint(self) -> None:
        """Make a restartpoint. Returns when the checkpointer has completed it, and so has passed
        through its main loop."""
        with self._session("could not make a restartpoint") as connection:
            connection.execute("CHECKPOINT")

    def reserve(self, timeline: TimelineId) -> None:
        """Write the marker of its log, and create our slot. Slots of a standby survive its
        promotion."""
        with self._session("could not create the slot") as connection:
            mark_log(connection, timeline)
            ensure_slot(connection, self.address)

    def promote(self, timeout_seconds: int) -> bool:
        """Returns False if it takes longer. Returns True if the server is already promoted."""
        with self._session("could not promote the standby") as connection:
            try:
                statement = "SELECT pg_promote(true, %s)"
                row = connection.execute(statement, (timeout_seconds,)).fetchone()
            except psycopg.errors.ObjectNotInPrerequisiteState:
                return True  # its recovery has just ended
        return row is not None and bool(row[0])

    def close(self) -> None:
        """Make it read-only for clients. Raises Refusal if it does not reload its configuration."""
        client_writes.close(lambda: self._session("could not keep clients from writing"))

    def _alter(self, settings: dict[str, str]) -> None:
        with self._session("could not configure the standby") as connection:
            for name, value in settings.items():
                connection.execute(
                    sql.SQL("ALTER SYSTEM SET {} = {}").format(
                        sql.Identifier(name), sql.Literal(value)
                    )
                )
            connection.execute("SELECT pg_reload_conf()")

    @contextmanager
    def _session(self, doing: str) -> Iterator[psycopg.Connection[Any]]:
        with closing(self.address.connect()) as connection, converting_errors(doing):
            yield connection


def _lsn(text: str | None) -> int:
    return int(Lsn.parse(text)) if text else 0


def sources_of(conninfo: str) -> tuple[str, ...]:
    """The host:port pairs of a primary_conninfo, in the form of safekeeper addresses; () if it
    cannot be parsed, or has none."""
    try:
        parts = conninfo_to_dict(conninfo)
    except (psycopg.Error, UnicodeError):
        return ()
    hosts = str(parts.get("host") or parts.get("hostaddr") or "").split(",")
    ports = [port_number(port or "5432") for port in str(parts.get("port") or "").split(",")]
    if len(ports) == 1:
        ports *= len(hosts)
    if not hosts[0] or len(ports) != len(hosts):
        return ()
    pairs = zip(hosts, ports, strict=True)
    known = tuple(str(SafekeeperAddress(host, port)) for host, port in pairs if port is not None)
    return known if len(known) == len(hosts) else ()


def safekeepers_conninfo(
    addresses: Sequence[SafekeeperAddress], timeline: TimelineId, conninfo: str
) -> str:
    """A primary_conninfo that names the safekeepers in this order. `conninfo` has the other libpq
    settings (user, sslmode, passfile ...) as the standby needs them, and takes precedence over
    ours."""
    ids = {"tenant_id": timeline.tenant_id.hex(), "timeline_id": timeline.timeline_id.hex()}
    own = conninfo_to_dict(conninfo)
    return make_conninfo(
        conninfo,
        **{name: own.get(name, value) for name, value in VANISHED_HOST_SETTINGS.items()},
        host=",".join(address.host for address in addresses),
        port=",".join(str(address.port) for address in addresses),
        options=format_options(ids),
    )
