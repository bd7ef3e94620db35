"""Opening the data connections to a safekeeper: to push WAL to it, and to read a donor's log."""

from __future__ import annotations

import struct

import psycopg
from psycopg import pq

from consensus.ids import NodeId, TimelineId
from pgwal.lsn import Lsn
from pgwire.commands import StartReplication, format_option_command, format_start_replication
from walproposer.connection import command_result, server_error
from walproposer.errors import Unreachable, WalProposerError
from walproposer.safekeeper_client import SafekeeperAddress

#: XLogData: 'w', start LSN, the server's end of WAL, its clock in microseconds.
XLOG_DATA = struct.Struct("!cQQq")


def open_push(
    address: SafekeeperAddress, timeline: TimelineId, proposer_http: str
) -> psycopg.Connection:
    """A connection that takes the proposer's messages. Blocks; raises WalProposerError."""
    options = {"proposer_http": proposer_http} if proposer_http else {}
    return _start_copy(address, timeline, format_option_command("START_WAL_PUSH"), **options)


def open_donor(
    address: SafekeeperAddress, timeline: TimelineId, node_id: NodeId, begin_lsn: int
) -> psycopg.Connection:
    """A connection that brings the donor's log from `begin_lsn` up to its flush_lsn, as long as
    it has promised nobody more than `node_id`. Blocks; raises WalProposerError."""
    command = StartReplication(Lsn(begin_lsn), options={"node_id": str(node_id)})
    return _start_copy(address, timeline, format_start_replication(command))


def read_tail(
    address: SafekeeperAddress,
    timeline: TimelineId,
    node_id: NodeId,
    begin_lsn: int,
    end_lsn: int,
) -> bytes:
    """[begin_lsn, end_lsn) of the donor's log. Blocks; raises WalProposerError."""
    connection = open_donor(address, timeline, node_id, begin_lsn)
    tail = bytearray()
    try:
        while len(tail) < end_lsn - begin_lsn:
            size, data = connection.pgconn.get_copy_data(0)
            if size <= 0:
                raise _donor_error(address, connection.pgconn, len(tail))
            if data[0] == ord("w"):
                tail += data[XLOG_DATA.size :]
    except psycopg.Error as error:
        raise Unreachable(f"lost donor {address}: {error}") from error
    finally:
        connection.close()
    return bytes(tail[: end_lsn - begin_lsn])


def _donor_error(
    address: SafekeeperAddress, pgconn: pq.abc.PGconn, tail_bytes: int
) -> WalProposerError:
    """Why the donor's stream ended early, in its own words if it has any."""
    result = pgconn.get_result()
    if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
        return server_error(result, pgconn)
    return Unreachable(f"donor {address} ended its log at {tail_bytes} bytes")


def _start_copy(
    address: SafekeeperAddress, timeline: TimelineId, command: str, **options: str
) -> psycopg.Connection:
    connection = address.connect(timeline, **options)
    try:
        result = command_result(connection.pgconn, command)
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise Unreachable(f"safekeeper {address} did not start CopyBoth")
    except psycopg.Error as error:
        connection.close()
        raise Unreachable(f"lost safekeeper {address}: {error}") from error
    except WalProposerError:
        connection.close()
        raise
    return connection
