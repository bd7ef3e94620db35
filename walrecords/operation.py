"""The operation of a record, by the names that `pg_waldump` prints: `INSERT+INIT`.

A resource manager has 16 operations, in the upper four bits of a record's `info`:

    operation_name(10, 0x80, 16) == "INSERT+INIT"      Heap
    operation_name(0, 0xE0, 16) == "UNKNOWN (e0)"      CHECKPOINT_REDO is new in 17

Only the differences between versions are listed by version. Sources: Postgres
`access/rmgrdesc/*desc.c`, the functions `*_identify`.
"""

from __future__ import annotations

from quorum_wal.pgwal.rmgr import RM_MIN_CUSTOM_ID, is_rmgr_id, rmgr_name
from quorum_wal.pgwal.versions import wal_version

OPERATIONS_PER_RMGR = 16

#: in the order of their codes: 0x00, 0x10, ...; `-` is a code without a name
_OPERATIONS = {
    "XLOG": "CHECKPOINT_SHUTDOWN CHECKPOINT_ONLINE NOOP NEXTOID SWITCH BACKUP_END PARAMETER_CHANGE"
    " RESTORE_POINT FPW_CHANGE END_OF_RECOVERY FPI_FOR_HINT FPI - OVERWRITE_CONTRECORD"
    " CHECKPOINT_REDO",
    "Transaction": "COMMIT PREPARE ABORT COMMIT_PREPARED ABORT_PREPARED ASSIGNMENT INVALIDATION",
    "Storage": "- CREATE TRUNCATE",
    "CLOG": "ZEROPAGE TRUNCATE",
    "Database": "CREATE_FILE_COPY CREATE_WAL_LOG DROP",
    "Tablespace": "CREATE DROP",
    "MultiXact": "ZERO_OFF_PAGE ZERO_MEM_PAGE CREATE_ID TRUNCATE_ID",
    "RelMap": "UPDATE",
    "Standby": "LOCK RUNNING_XACTS INVALIDATIONS",
    "Heap2": "REWRITE PRUNE_ON_ACCESS PRUNE_VACUUM_SCAN PRUNE_VACUUM_CLEANUP VISIBLE MULTI_INSERT"
    " LOCK_UPDATED NEW_CID - - - - - MULTI_INSERT+INIT",
    "Heap": "INSERT DELETE UPDATE TRUNCATE HOT_UPDATE HEAP_CONFIRM LOCK INPLACE"
    " INSERT+INIT - UPDATE+INIT - HOT_UPDATE+INIT",
    "Btree": "INSERT_LEAF INSERT_UPPER INSERT_META SPLIT_L SPLIT_R INSERT_POST DEDUP DELETE"
    " UNLINK_PAGE UNLINK_PAGE_META NEWROOT MARK_PAGE_HALFDEAD VACUUM REUSE_PAGE META_CLEANUP",
    "Hash": "INIT_META_PAGE INIT_BITMAP_PAGE INSERT ADD_OVFL_PAGE SPLIT_ALLOCATE_PAGE SPLIT_PAGE"
    " SPLIT_COMPLETE MOVE_PAGE_CONTENTS SQUEEZE_PAGE DELETE SPLIT_CLEANUP UPDATE_META_PAGE"
    " VACUUM_ONE_PAGE",
    "Gin": "- CREATE_PTREE INSERT SPLIT VACUUM_PAGE DELETE_PAGE UPDATE_META_PAGE INSERT_LISTPAGE"
    " DELETE_LISTPAGE VACUUM_DATA_LEAF_PAGE",
    "Gist": "PAGE_UPDATE DELETE PAGE_REUSE PAGE_SPLIT - - PAGE_DELETE ASSIGN_LSN",
    "Sequence": "LOG",
    "SPGist": "- ADD_LEAF MOVE_LEAFS ADD_NODE SPLIT_TUPLE PICKSPLIT VACUUM_LEAF VACUUM_ROOT"
    " VACUUM_REDIRECT",
    "BRIN": "CREATE_INDEX INSERT UPDATE SAMEPAGE_UPDATE REVMAP_EXTEND DESUMMARIZE"
    " - - - INSERT+INIT UPDATE+INIT",
    "CommitTs": "ZEROPAGE TRUNCATE",
    "ReplicationOrigin": "SET DROP",
    "Generic": " ".join(["Generic"] * OPERATIONS_PER_RMGR),
    "LogicalMessage": "MESSAGE",
}

#: (first major, resource manager) -> its operations before that version
_BEFORE = {
    (17, "XLOG"): "CHECKPOINT_SHUTDOWN CHECKPOINT_ONLINE NOOP NEXTOID SWITCH BACKUP_END"
    " PARAMETER_CHANGE RESTORE_POINT FPW_CHANGE END_OF_RECOVERY FPI_FOR_HINT FPI -"
    " OVERWRITE_CONTRECORD",
    (17, "Heap2"): "REWRITE PRUNE VACUUM FREEZE_PAGE VISIBLE MULTI_INSERT LOCK_UPDATED NEW_CID"
    " - - - - - MULTI_INSERT+INIT",
    (15, "Database"): "CREATE DROP",
    (14, "Transaction"): "COMMIT PREPARE ABORT COMMIT_PREPARED ABORT_PREPARED ASSIGNMENT",
    (14, "Heap2"): "REWRITE CLEAN FREEZE_PAGE CLEANUP_INFO VISIBLE MULTI_INSERT LOCK_UPDATED"
    " NEW_CID - - - - - MULTI_INSERT+INIT",
    (14, "CommitTs"): "ZEROPAGE TRUNCATE SETTS",
}

#: the highest bit says that the record has more information, not that it is another operation
_XACT_OPMASK = 0x70


def operation_name(rmgr_id: int, info: int, version_major: int) -> str:
    """`UNKNOWN (c0)` for a code that the version does not use. Raises WalError if the version does
    not have the rmgr id."""
    rmgr = rmgr_name(rmgr_id, version_major)
    names = [] if rmgr_id >= RM_MIN_CUSTOM_ID else _names(rmgr, version_major)
    operation = (info & _XACT_OPMASK if rmgr == "Transaction" else info) >> 4
    if operation < len(names) and names[operation] != "-":
        return names[operation]
    return f"UNKNOWN ({info & 0xF0:x})"


def _names(rmgr: str, version_major: int) -> list[str]:
    older = sorted(major for major, name in _BEFORE if name == rmgr and version_major < major)
    return (_BEFORE[older[0], rmgr] if older else _OPERATIONS[rmgr]).split()


def operation_names(version_major: int) -> list[str]:
    """All names: element `rmgr_id << 4 | info >> 4`; "" if the version has no such rmgr."""
    version = wal_version(version_major)
    return [
        operation_name(code >> 4, (code & 0x0F) << 4, version_major)
        if is_rmgr_id(code >> 4, version)
        else ""
        for code in range(256 * OPERATIONS_PER_RMGR)
    ]
