"""`vector`, `halfvec` and `sparsevec` of the extension vector, as text.

    vector     | dimensions 2 | 2 | numbers, float4 each |
    halfvec    | dimensions 2 | 2 | numbers, float2 each |
    sparsevec  | dimensions 4 | numbers 4 | 4 | indices from zero, 4 each | numbers, float4 each |

Source: pgvector `vector.h`, `halfvec.h`, `sparsevec.h`, and the functions `*_out`.
"""

from __future__ import annotations

import struct

import numpy as np

from quorum_wal.spark.changes.datum_float import float4_texts
from quorum_wal.spark.changes.datum_varlena import DatumError

_VECTOR = struct.Struct("<H2x")
_SPARSE = struct.Struct("<ii4x")
_HALF_SIZE, _INDEX_SIZE = 2, 4


def vector_text(data: bytes) -> str:
    """Raises DatumError, struct.error."""
    (count,) = _VECTOR.unpack_from(data)
    return f"[{','.join(float4_texts(data[_VECTOR.size :], count))}]"


def halfvec_text(data: bytes) -> str:
    """Raises DatumError, struct.error."""
    (count,) = _VECTOR.unpack_from(data)
    stored = data[_VECTOR.size :]
    if len(stored) != _HALF_SIZE * count:
        raise DatumError(f"{count} numbers in {len(stored)} bytes")
    numbers = np.frombuffer(stored, "<f2").astype("<f4").tobytes()
    return f"[{','.join(float4_texts(numbers, count))}]"


def sparsevec_text(data: bytes) -> str:
    """Indices are printed from one. Raises DatumError, struct.error."""
    dimensions, count = _SPARSE.unpack_from(data)
    numbers_at = _SPARSE.size + _INDEX_SIZE * count
    if not _SPARSE.size <= numbers_at <= len(data):
        raise DatumError(f"sparse vector of {count} numbers in {len(data)} bytes")
    indices = struct.unpack_from(f"<{count}i", data, _SPARSE.size)
    texts = zip(indices, float4_texts(data[numbers_at:], count), strict=True)
    return "{" + ",".join(f"{index + 1}:{text}" for index, text in texts) + f"}}/{dimensions}"
