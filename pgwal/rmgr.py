"""Resource managers, which write and replay records, by the names that pg_waldump prints.

The built-in ids are the same from 13 to 18. Since 15, extensions may register ids from 128 on. Only
the server knows their names, so we print `custom###`, like pg_waldump. Source: Postgres
`access/rmgrlist.h`, `access/rmgr.h`, `bin/pg_waldump/rmgrdesc.c`.
"""

from __future__ import annotations

from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.versions import WalVersion, wal_version

RM_XLOG_ID = 0

_BUILTIN_NAMES = (
    "XLOG",
    "Transaction",
    "Storage",
    "CLOG",
    "Database",
    "Tablespace",
    "MultiXact",
    "RelMap",
    "Standby",
    "Heap2",
    "Heap",
    "Btree",
    "Hash",
    "Gin",
    "Gist",
    "Sequence",
    "SPGist",
    "BRIN",
    "CommitTs",
    "ReplicationOrigin",
    "Generic",
    "LogicalMessage",
)

RM_MAX_BUILTIN_ID = len(_BUILTIN_NAMES) - 1
RM_MIN_CUSTOM_ID = 128
RM_MAX_CUSTOM_ID = 255


def is_rmgr_id(rmgr_id: int, version: WalVersion) -> bool:
    """Whether a record of this version may have the id (RmgrIdIsValid)."""
    return 0 <= rmgr_id <= RM_MAX_BUILTIN_ID or (
        version.has_custom_rmgrs and RM_MIN_CUSTOM_ID <= rmgr_id <= RM_MAX_CUSTOM_ID
    )


def rmgr_name(rmgr_id: int, version_major: int) -> str:
    """`rmgr_name(10, 16) == "Heap"`, `rmgr_name(128, 16) == "custom128"`. Raises WalError."""
    if not is_rmgr_id(rmgr_id, wal_version(version_major)):
        raise WalError(f"invalid resource manager ID {rmgr_id} for Postgres {version_major}")
    if rmgr_id >= RM_MIN_CUSTOM_ID:
        return f"custom{rmgr_id:03d}"
    return _BUILTIN_NAMES[rmgr_id]
