"""The messages of a two-phase slot about prepared transactions, through pgoutput: an independent
reference.

    b  prepare_lsn prepare_end_lsn time xid gid            P  flags, then the same
    K  flags commit_lsn commit_end_lsn time xid gid
    r  flags prepare_end_lsn rollback_end_lsn time time xid gid

Source: Postgres `replication/logical/proto.c`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from quorum_wal.pg_fixtures.postgres import Postgres

PUBLICATION = "nothing"
_FIELDS = {"b": ">QQqI", "P": ">BQQqI", "K": ">BQQqI", "r": ">BQQqqI"}


class ControlMessage(NamedTuple):
    """`end_lsn`: of the PREPARE in b, P and r; of the COMMIT PREPARED in K."""

    kind: str
    gid: str
    end_lsn: int
    xid: int


def create_publication(postgres: Postgres) -> None:
    """A publication without tables, created once."""
    if not postgres.execute("SELECT FROM pg_publication WHERE pubname = %s", (PUBLICATION,)):
        postgres.execute(f"CREATE PUBLICATION {PUBLICATION}")


def create_slot(postgres: Postgres, slot: str, *, two_phase: bool = True) -> None:
    """And the publication, which must exist before."""
    create_publication(postgres)
    postgres.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", (slot, two_phase)
    )


def drop_slot(postgres: Postgres, slot: str) -> None:
    postgres.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def read_messages(
    postgres: Postgres, slot: str, *, proto_version: int = 3, keeps: bool = False
) -> list[tuple[str, bytes]]:
    """Kinds and bodies. The messages are acknowledged, unless `keeps` is set."""
    two_phase = ", 'two_phase', 'on'" if proto_version >= 3 else ""
    function = "peek" if keeps else "get"
    rows = postgres.execute(
        f"SELECT data FROM pg_logical_slot_{function}_binary_changes(%s, NULL, NULL,"
        f" 'proto_version', %s, 'publication_names', %s{two_phase})",
        (slot, str(proto_version), PUBLICATION),
    )
    return [(chr(data[0]), bytes(data[1:])) for (data,) in rows]


def control_message(kind: str, body: bytes) -> ControlMessage:
    fields = struct.Struct(_FIELDS[kind])
    values, gid = fields.unpack_from(body), body[fields.size :]
    assert gid.endswith(b"\0")
    end_lsn = values[1] if kind in "br" else values[2]
    return ControlMessage(kind, gid[:-1].decode(), end_lsn, values[-1])


def read_control(postgres: Postgres, slot: str, **options: bool) -> list[ControlMessage]:
    return [control_message(*message) for message in read_messages(postgres, slot, **options)]
