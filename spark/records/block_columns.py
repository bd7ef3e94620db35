"""The column of block references: a list of structs for each record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit

from quorum_wal.spark.records.arrow_columns import (
    NameTable,
    bool_column,
    name_column,
    number_column,
)
from quorum_wal.spark.records.wal_schema import BLOCK, WAL_SCHEMA
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, load_u16, load_u32
from quorum_wal.walrecords.pool_array import pool_array
from quorum_wal.walrecords.record_survey import (
    FORK_MASK,
    HAS_IMAGE,
    IMAGE_INFO_OFFSET,
    WILL_INIT,
    BlockPlaces,
)

#: `pg_waldump` names the first four; other forks are shown as numbers
_FORKS = NameTable.of(["main", "fsm", "vm", "init", *(str(fork) for fork in range(4, 16))])


def block_column(data: Bytes, places: BlockPlaces, offsets: Numbers) -> pa.Array:
    """One list for each row, of the blocks [offsets[i], offsets[i + 1])."""
    count = int(offsets[-1])
    longs = [pool_array(count, np.int64) for _ in range(4)]
    block_id, data_length = (pool_array(count, np.int32) for _ in range(2))
    fork, has_image, will_init = (pool_array(count, np.uint8) for _ in range(3))
    _fill(data, places, count, *longs, block_id, data_length, fork, has_image, will_init)
    tablespace, database, relfilenode, block = (number_column(v, pa.int64()) for v in longs)
    children = [
        number_column(block_id, pa.int32()),
        tablespace,
        database,
        relfilenode,
        name_column(fork, _FORKS),
        block,
        bool_column(has_image),
        bool_column(will_init),
        number_column(data_length, pa.int32()),
    ]
    blocks = pa.Array.from_buffers(BLOCK, count, [None], children=children)
    return pa.Array.from_buffers(
        WAL_SCHEMA.field("blocks").type,
        len(offsets) - 1,
        [None, pa.py_buffer(offsets)],
        children=[blocks],
    )


def compressed_column(data: Bytes, places: BlockPlaces, offsets: Numbers, mask: int) -> pa.Array:
    """The number of compressed images of each row. `mask`: the bits of compression."""
    counts = pool_array(len(offsets) - 1, np.int32)
    _count_compressed(data, places.header_at, offsets, mask, counts)
    return number_column(counts, pa.int32())


@njit(cache=True, nogil=True)
def _count_compressed(
    data: Bytes, header_at: Numbers, offsets: Numbers, mask: Int, counts: Numbers
) -> None:
    for row in range(len(counts)):
        count = 0
        for block in range(offsets[row], offsets[row + 1]):
            at = np.int64(header_at[block])
            if data[at + 1] & HAS_IMAGE and data[at + IMAGE_INFO_OFFSET] & mask:
                count += 1
        counts[row] = count


@njit(cache=True, nogil=True)
def _fill(
    data: Bytes, places: BlockPlaces, count: Int,
    tablespace: Numbers, database: Numbers, relfilenode: Numbers, block: Numbers,
    block_id: Numbers, data_length: Numbers, fork: Numbers, has_image: Numbers, will_init: Numbers,
) -> None:  # fmt: skip
    for i in range(count):
        header_at = np.int64(places.header_at[i])
        relation_at = np.int64(places.relation_at[i])
        flags = data[header_at + 1]
        block_id[i] = data[header_at]
        data_length[i] = load_u16(data, header_at + 2)
        fork[i] = flags & FORK_MASK
        has_image[i] = flags & HAS_IMAGE
        will_init[i] = flags & WILL_INIT
        tablespace[i] = load_u32(data, relation_at)
        database[i] = load_u32(data, relation_at + 4)
        relfilenode[i] = load_u32(data, relation_at + 8)
        block[i] = load_u32(data, np.int64(places.number_at[i]))
