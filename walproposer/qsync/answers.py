"""The answers to each verb: rows, their columns and types. Pure.

Law: the columns of a verb are known before it runs, because a driver may ask for them first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwire.messages import (
    BOOL_OID,
    FLOAT8_OID,
    INT8_OID,
    JSON_OID,
    TEXT_OID,
    TIMESTAMPTZ_OID,
    Column,
    DataRow,
)
from quorum_wal.walproposer.qsync.limbo_events import Verdict
from quorum_wal.walproposer.qsync.verbs import (
    Admit,
    AskOutcome,
    Barrier,
    Resolve,
    ShowList,
    ShowStatus,
    Verb,
    WaitLsn,
)


class Outcome(Enum):
    """The outcome of a transaction. UNKNOWN: it cannot be determined, here and now."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    PENDING = "pending"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to ADMIT. `limbo_len`: the number of prepared gids of qsync."""

    term: int
    limbo_len: int


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The answer to WAIT_LSN, BARRIER and RESOLVE."""

    verdict: Verdict
    commit_lsn: Lsn
    term: int


@dataclass(frozen=True, slots=True)
class FoundOutcome:
    """The answer to OUTCOME. `lsn`: an upper bound of the end of the transaction; while it is
    pending, of its PREPARE."""

    outcome: Outcome
    lsn: Lsn | None


@dataclass(frozen=True, slots=True)
class StatusPage:
    """The answer to QSYNC_STATUS: JSON values."""

    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LimboRow:
    """A row of QSYNC_LIST, one for each prepared transaction of qsync. `is_exact`: the LSN is the
    end of its PREPARE, not an upper bound. Times are in UTC."""

    gid: str
    database: str
    owner: str
    prepared_at: datetime
    age_seconds: float
    prepare_end_lsn: Lsn | None
    is_exact: bool
    confirmed: bool
    policy: str
    deadline: datetime
    state: str


Row: TypeAlias = Admission | Confirmation | FoundOutcome | StatusPage | LimboRow

ROW_OF: Mapping[type[Verb], type[Row]] = {
    Admit: Admission,
    WaitLsn: Confirmation,
    Barrier: Confirmation,
    AskOutcome: FoundOutcome,
    ShowStatus: StatusPage,
    ShowList: LimboRow,
    Resolve: Confirmation,
}

_TYPES = {
    "int": INT8_OID,
    "float": FLOAT8_OID,
    "bool": BOOL_OID,
    "datetime": TIMESTAMPTZ_OID,
    "Mapping[str, Any]": JSON_OID,
}
_COLUMNS = {
    row: tuple(Column(field.name, _TYPES.get(str(field.type), TEXT_OID)) for field in fields(row))
    for row in ROW_OF.values()
}


def columns_of(verb: type[Verb]) -> Sequence[Column]:
    """The columns of every row that answers such a verb."""
    return _COLUMNS[ROW_OF[verb]]


def data_row(row: Row) -> DataRow:
    """The row as a message."""
    return DataRow(tuple(_text(getattr(row, column.name)) for column in _COLUMNS[type(row)]))


def _text(value: object) -> bytes | None:
    match value:
        case None:
            return None
        case bool():
            return b"t" if value else b"f"
        case Lsn():
            return format_lsn(value).encode()
        case Enum():
            return str(value.value).encode()
        case datetime():
            return value.isoformat(" ").encode()
        case Mapping():
            return msgspec.json.encode(value)
        case _:
            return str(value).encode()
