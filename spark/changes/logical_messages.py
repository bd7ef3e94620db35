"""Messages of `pg_logical_emit_message()`, found in the WAL and shown as rows.

    | database 4 | transactional 1 | padding 3 | prefix bytes 8 | content bytes 8 |
    | prefix, ends with a zero byte | content |

    transactional      a change of its transaction: shown if the transaction commits, in its order
    not transactional  stands for itself: shown at its own LSN, also if its transaction is rolled
                       back

Laws. `wal_level` has no effect on messages. A message that is not transactional has no xid and no
time. Its LSN is its `commit_lsn`: no commit record starts there, so `(commit_lsn, lsn, seq)` is a
total order of messages and changes. Source: Postgres `replication/message.h`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.heap_fields import (
    CHANGE_FIELDS,
    DATABASE,
    LSN,
    MESSAGE,
    NEW_AT,
    NEW_LENGTH,
    OPERATION,
    PREFIX,
    RECORD,
    XID,
)
from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.walrecords.record_index import Array

#: of changes that belong to no transaction
NO_XID = 0

_HEADER = struct.Struct("<IB3xQQ")
_RM_LOGICALMSG, _XLOG_LOGICAL_MESSAGE = 21, 0x00
_INFO_AT, _RMGR_AT, _XID_AT = 16, 17, 4


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """`prefix_bytes` includes the zero byte. Prefix and content end the record."""

    database_oid: int
    is_transactional: bool
    prefix_bytes: int
    content_bytes: int


def with_messages(scan: HeapScan, database_oid: int) -> HeapScan:
    """Adds the messages of this database to the changes. `PREFIX` is the size of the prefix with
    its zero byte, and the tuple is prefix and content. Raises WalFormatError."""
    index = scan.index
    is_message = index.data[index.at + _RMGR_AT] == _RM_LOGICALMSG
    is_message &= index.data[index.at + _INFO_AT] & 0xF0 == _XLOG_LOGICAL_MESSAGE
    found = [_message(scan, number) for number in np.flatnonzero(is_message).tolist()]
    mine = [row for row in found if row[DATABASE] == database_oid]
    if not mine:
        return scan
    changes = np.concatenate((scan.changes, np.stack(mine, axis=1)), axis=1)
    return replace(scan, changes=changes[:, np.argsort(changes[LSN], kind="stable")])


def _message(scan: HeapScan, number: int) -> Array:
    """One row of changes. Raises WalFormatError."""
    index, lsn = scan.index, int(scan.index.start_lsn[number])
    message = decode_message(lsn, scan.body(number).main_data)
    at = int(index.at[number])
    xid = int.from_bytes(index.data[at + _XID_AT : at + _XID_AT + 4].tobytes(), "little")
    if message.is_transactional and xid == NO_XID:
        raise _damaged(lsn, "is transactional, but has no transaction")
    record_bytes = int.from_bytes(index.data[at : at + 4].tobytes(), "little")
    length = message.prefix_bytes + message.content_bytes
    row = np.zeros(CHANGE_FIELDS, np.int64)
    row[LSN], row[OPERATION], row[RECORD] = lsn, MESSAGE, number
    row[DATABASE] = message.database_oid
    row[XID] = xid if message.is_transactional else NO_XID
    row[NEW_AT], row[NEW_LENGTH] = at + record_bytes - length, length
    row[PREFIX] = message.prefix_bytes
    return row


def decode_message(lsn: int, main_data: bytes) -> MessageHeader:
    """The record at `lsn` has this main data. Raises WalFormatError."""
    if len(main_data) < _HEADER.size:
        raise _damaged(lsn, f"has {len(main_data)} bytes, expected at least {_HEADER.size}")
    database, is_transactional, prefix, content = _HEADER.unpack_from(main_data)
    if len(main_data) != _HEADER.size + prefix + content:
        sizes = f"{prefix} bytes of prefix and {content} of content"
        raise _damaged(lsn, f"has {len(main_data)} bytes, which does not fit {sizes}")
    if prefix == 0 or main_data[_HEADER.size + prefix - 1] != 0 or is_transactional > 1:
        raise _damaged(lsn, "does not have the format of its kind")
    return MessageHeader(database, bool(is_transactional), prefix, content)


def _damaged(lsn: int, text: str) -> WalFormatError:
    return WalFormatError(lsn, f"message at {format_lsn(lsn)} {text}")


def message_json(lsn: int, stored: bytes, prefix_bytes: int, *, is_transactional: bool) -> str:
    """The column `new` of the message at `lsn`. `encoding` says whether `content` is the text
    itself, or `\\x` and hexadecimal digits because the bytes are not UTF-8. Raises WalFormatError
    if the prefix is not text."""
    prefix, content = _prefix(lsn, stored[: prefix_bytes - 1]), stored[prefix_bytes:]
    try:
        text, encoding = content.decode(), "text"
    except UnicodeDecodeError:
        text, encoding = f"\\x{content.hex()}", "hex"
    row = {
        "prefix": prefix,
        "transactional": is_transactional,
        "encoding": encoding,
        "content": text,
    }
    return msgspec.json.encode(row).decode()


def _prefix(lsn: int, stored: bytes) -> str:
    """It has the encoding of the database, which must be UTF-8. Raises WalFormatError."""
    try:
        text = stored.decode()
    except UnicodeDecodeError as error:
        raise _damaged(lsn, "has a prefix that is not text in UTF-8") from error
    if "\0" in text:
        raise _damaged(lsn, "has a prefix that is not text in UTF-8")
    return text
