"""`ControlFile`: the fields of global/pg_control that the pageserver needs.

    system identifier u64 | version u32 | catalog version u32 | state u32, 4 empty | time i64 |
    checkpoint: its record u64 | its redo u64 | timeline u32 | ... | 192: max_prepared_xacts i32 |
    ... | 252: data_checksum_version u32

Source: Postgres `catalog/pg_control.h`. These offsets are the same in versions 13 to 18.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quorum_wal.pageserver.errors import LayerDamaged

CONTROL_FILE = "global/pg_control"
_HEAD = struct.Struct("<QIII4xqQQI")
_PREPARED_MAX = struct.Struct("<i")
_PREPARED_MAX_AT = 192
_CHECKSUMS = struct.Struct("<I")
_CHECKSUMS_AT = 252
_SHUTDOWNED = 1  # DB_SHUTDOWNED: a primary wrote a shutdown checkpoint


@dataclass(frozen=True, slots=True)
class ControlFile:
    """The checkpoint is the one from which recovery begins."""

    system_id: int
    catalog_version: int
    checkpoint_lsn: int
    redo_lsn: int
    tli: int
    prepared_max: int
    is_shut_down: bool
    has_checksums: bool

    @classmethod
    def parse(cls, data: bytes) -> ControlFile:
        """Raises LayerDamaged."""
        size = _CHECKSUMS_AT + _CHECKSUMS.size
        if len(data) < size:
            raise LayerDamaged(
                f"{CONTROL_FILE} is too short: expected {size} bytes, found {len(data)}"
            )
        system_id, _, catalog, state, _, checkpoint_lsn, redo_lsn, tli = _HEAD.unpack_from(data)
        (prepared_max,) = _PREPARED_MAX.unpack_from(data, _PREPARED_MAX_AT)
        (checksums,) = _CHECKSUMS.unpack_from(data, _CHECKSUMS_AT)
        return cls(
            system_id, catalog, checkpoint_lsn, redo_lsn, tli, prepared_max,
            state == _SHUTDOWNED, checksums != 0,
        )  # fmt: skip

    def version_folder(self, pg_major: int) -> str:
        """TABLESPACE_VERSION_DIRECTORY."""
        return f"PG_{pg_major}_{self.catalog_version}"
