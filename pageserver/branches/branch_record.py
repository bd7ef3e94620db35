"""`branch.json`: the properties of a branch, written once, when it is complete. Pure.

    {"format": 1, "name": "before_release", "timeline": "TENANT/TIMELINE",
     "lsn": 83886120, "cut_lsn": 83000000, "tli": 2, "moment": "2026-11-21T10:15:00Z",
     "last_commit_at": "2026-11-21T10:14:59.2Z", "pg_version": "15.18",
     "bin_dir": "/usr/lib/postgresql/15/bin", "port": 5433, "database": "postgres",
     "superuser": "postgres", "prepared": 0, "created_at": "2026-11-21T10:25:03.1Z"}

`lsn` is the position at which the branch's own timeline `tli` begins. `moment` is the requested
time, or null if a position was requested. `superuser` can connect to `database`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from quorum_wal.pageserver.errors import BranchError

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}", re.ASCII)
PORT_MIN, PORT_MAX = 1024, 65535

Position = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Port = Annotated[int, Meta(ge=PORT_MIN, le=PORT_MAX)]
Time = Annotated[datetime, Meta(tz=True)]


class Branch(Struct, frozen=True, kw_only=True):
    """The record of a complete branch."""

    format: int = FORMAT
    name: str
    timeline: str
    lsn: Position
    cut_lsn: Position
    tli: Annotated[int, Meta(ge=1, le=(1 << 32) - 1)]
    moment: Time | None
    last_commit_at: Time | None
    pg_version: str
    bin_dir: str
    port: Port
    database: str
    superuser: str
    prepared: Annotated[int, Meta(ge=0)]
    created_at: Time

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


_DECODER = msgspec.json.Decoder(Branch)


def decode_branch(data: bytes) -> Branch:
    """Raises BranchError."""
    try:
        branch = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BranchError(f"branch.json is damaged: {error}") from error
    if branch.format != FORMAT:
        raise BranchError(
            f"branch.json has format {branch.format}, expected {FORMAT}",
            hint="A newer version of sk has written it. Upgrade sk.",
        )
    return branch


def check_name(name: str) -> None:
    """The name is used as a folder name and in cluster_name. Raises BranchError."""
    if not NAME.fullmatch(name):
        raise BranchError(
            f'"{name}" is not a valid branch name: expected up to 48 letters, digits, ".", "_" and '
            '"-", beginning with a letter or a digit'
        )
