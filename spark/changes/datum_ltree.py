"""`ltree` as text.

    | labels 2 | 2 | labels: | length 2 | text | to a multiple of 8 |

The first label begins 8 bytes behind the start of the value's own length, which is not here.
Source: Postgres `ltree.h`, `ltree_io.c`.
"""

from __future__ import annotations

import struct

from quorum_wal.spark.changes.datum_varlena import DatumError

_U16 = struct.Struct("<H")
_FIRST, _ALIGN = 4, 8


def ltree_text(data: bytes) -> str:
    """Raises DatumError, struct.error."""
    (count,) = _U16.unpack_from(data)
    labels, at = [], _FIRST
    for _ in range(count):
        (length,) = _U16.unpack_from(data, at)
        label = data[at + _U16.size : at + _U16.size + length]
        if len(label) != length:
            raise DatumError(f"label of {length} bytes at byte {at} of {len(data)}")
        labels.append(label.decode())
        at += _U16.size + length
        at += -(at - _FIRST) % _ALIGN
    return ".".join(labels)
