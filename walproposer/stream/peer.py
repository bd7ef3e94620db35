"""Opens the data connections to a safekeeper: to send WAL to it, and to read a donor's log."""

from __future__ import annotations

from contextlib import closing

import psycopg

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.pgclient.errors import Silent
from quorum_wal.pgclient.stream import ReplicationStream, start_copy
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.commands import (
    StartReplication,
    format_option_command,
    format_start_replication,
)
from quorum_wal.walproposer.errors import Unreachable, WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.plain_copy import begin_copy

# A working donor sends at least a keepalive each second.
DONOR_TIMEOUT_SECONDS = 10


def open_push(
    address: SafekeeperAddress, timeline: TimelineId, proposer_http: str
) -> CopyConnection:
    """A connection that accepts the proposer's messages. Blocks; raises WalProposerError."""
    options = {"proposer_http": proposer_http} if proposer_http else {}
    connection = address.connect(timeline, **options)
    try:
        with address.answering():
            # A safekeeper encrypts by TLS or not at all.
            copy = begin_copy(
                connection,
                format_option_command("START_WAL_PUSH"),
                is_encrypted=bool(connection.pgconn.ssl_in_use),
            )
            if copy is None:
                raise Unreachable(f"safekeeper {address} did not start CopyBoth")
    except WalProposerError:
        connection.close()
        raise
    return copy


def open_donor(
    address: SafekeeperAddress, timeline: TimelineId, node_id: NodeId, begin_lsn: int
) -> psycopg.Connection:
    """A connection that streams the donor's log from `begin_lsn` up to its flush_lsn, as long as it
    has promised nothing greater than `node_id`. Blocks; raises WalProposerError."""
    command = StartReplication(Lsn(begin_lsn), options={"node_id": str(node_id)})
    return _start_copy(address, timeline, format_start_replication(command))


def open_repair(
    address: SafekeeperAddress, timeline: TimelineId, begin_lsn: int
) -> psycopg.Connection:
    """A connection that accepts the bytes of the damaged segment that begins there. Blocks; raises
    WalProposerError."""
    command = format_option_command("MEND_SEGMENT", {"lsn": str(Lsn(begin_lsn))})
    return _start_copy(address, timeline, command)


def read_tail(
    address: SafekeeperAddress,
    timeline: TimelineId,
    node_id: NodeId,
    begin_lsn: int,
    end_lsn: int,
) -> bytes:
    """[begin_lsn, end_lsn) of the donor's log. Blocks; raises WalProposerError."""
    with (
        closing(open_donor(address, timeline, node_id, begin_lsn)) as connection,
        address.answering(),
    ):
        stream = ReplicationStream(connection.pgconn, begin_lsn, DONOR_TIMEOUT_SECONDS)
        try:
            return stream.read(end_lsn)
        except Silent as error:
            raise Unreachable(
                f"donor {address} sent nothing for {DONOR_TIMEOUT_SECONDS} s"
            ) from error


def _start_copy(
    address: SafekeeperAddress, timeline: TimelineId, command: str, **options: str
) -> psycopg.Connection:
    connection = address.connect(timeline, **options)
    try:
        with address.answering():
            if not start_copy(connection.pgconn, command):
                raise Unreachable(f"safekeeper {address} did not start CopyBoth")
    except WalProposerError:
        connection.close()
        raise
    return connection
