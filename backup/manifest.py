"""`backup_manifest`: the list of files that pg_verifybackup checks a backup against. Pure.

    { "PostgreSQL-Backup-Manifest-Version": 2,
    "System-Identifier": 7123..,                           since Postgres 17, in version 2
    "Files": [
    { "Path": "base/5/1259", "Size": 114688, "Last-Modified": "2026-11-21 10:15:00 GMT",
      "Checksum-Algorithm": "CRC32C", "Checksum": "0a1b2c3d" },         one line for each file
    ],
    "WAL-Ranges": [
    { "Timeline": 1, "Start-LSN": "0/5000028", "End-LSN": "0/5000138" }
    ],
    "Manifest-Checksum": "sha256 of all lines before this one"}

A CRC is the hex of its bytes in memory, least significant byte first. A path that is not UTF-8 is
in hex, as "Encoded-Path". Source: Postgres `backup/backup_manifest.c`, `common/parse_manifest.c`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from quorum_wal.pgwal.lsn import format_lsn

SYSTEM_ID_SINCE = 17


class ManifestWriter:
    """Call `add` for each file, then `finish`. Its memory grows with the number of files."""

    def __init__(self, pg_major: int, system_id: int, modified_at: datetime) -> None:
        has_system_id = pg_major >= SYSTEM_ID_SINCE
        self._head = f'{{ "PostgreSQL-Backup-Manifest-Version": {2 if has_system_id else 1},\n'
        if has_system_id:
            self._head += f'"System-Identifier": {system_id},\n'
        self._modified = f"{modified_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} GMT"
        self._files: list[str] = []

    def add(self, path: str, size_bytes: int, crc: int) -> None:
        """Adds a file below the data directory. Bytes of `path` that are not UTF-8 are surrogates;
        `crc` is CRC-32C."""
        try:
            path.encode()
            name = f'"Path": {json.dumps(path, ensure_ascii=False)}'
        except UnicodeEncodeError:
            name = f'"Encoded-Path": "{path.encode(errors="surrogateescape").hex()}"'
        self._files.append(
            f'{{ {name}, "Size": {size_bytes}, "Last-Modified": "{self._modified}", '
            f'"Checksum-Algorithm": "CRC32C", "Checksum": "{crc.to_bytes(4, "little").hex()}" }}'
        )

    def finish(self, tli: int, start_lsn: int, stop_lsn: int) -> bytes:
        """The whole manifest. A recovery needs [start_lsn, stop_lsn) of one timeline."""
        wal = (
            f'{{ "Timeline": {tli}, "Start-LSN": "{format_lsn(start_lsn)}", '
            f'"End-LSN": "{format_lsn(stop_lsn)}" }}'
        )
        files = ",\n".join(self._files)
        text = f'{self._head}"Files": [\n{files}\n],\n"WAL-Ranges": [\n{wal}\n],\n'
        data = text.encode()
        checksum = hashlib.sha256(data).hexdigest()
        return data + f'"Manifest-Checksum": "{checksum}"}}\n'.encode()
