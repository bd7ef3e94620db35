"""Which transactions were open at a place of the WAL, and where a checkpoint began.

    running     | transactions 4 | subtransactions 4 | overflow 1, 3 | next 4 | oldest 4 |
                | latest 4 | xids 4 each, of both |
    checkpoint  | redo 8 | ..

Source: Postgres `storage/standbydefs.h`, `catalog/pg_control.h`.
"""

from __future__ import annotations

import struct

_RUNNING = struct.Struct("<iiB3xIII")
_REDO = struct.Struct("<Q")


def parse_running(main_data: bytes) -> frozenset[int]:
    """The transactions that are open, prepared ones included; subtransactions may be missing.

    Raises struct.error.
    """
    count, subxids, *_ = _RUNNING.unpack_from(main_data)
    return frozenset(struct.unpack_from(f"<{count + subxids}I", main_data, _RUNNING.size))


def parse_redo(main_data: bytes) -> int:
    """Where the checkpoint of this record began. Raises struct.error."""
    return int(_REDO.unpack_from(main_data)[0])
