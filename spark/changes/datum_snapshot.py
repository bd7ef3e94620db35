"""`pg_snapshot` and `txid_snapshot` as text.

    | running transactions 4 | xmin 8 | xmax 8 | running transactions 8 each |

Source: Postgres `xid8funcs.c`.
"""

from __future__ import annotations

import struct

from quorum_wal.spark.changes.datum_varlena import DatumError

_HEADER = struct.Struct("<IQQ")
_XID_SIZE = 8


def snapshot_text(data: bytes) -> str:
    """Raises DatumError, struct.error."""
    count, xmin, xmax = _HEADER.unpack_from(data)
    if len(data) != _HEADER.size + _XID_SIZE * count:
        raise DatumError(f"snapshot of {count} running transactions in {len(data)} bytes")
    running = struct.unpack_from(f"<{count}Q", data, _HEADER.size)
    return f"{xmin}:{xmax}:{','.join(map(str, running))}"
