# The numbers of Append and AppendResponse (`codec.py`), for the compiled modules.

from libc.stdint cimport uint64_t

from quorum_wal.storage.big_endian cimport put_u64, u64_at


cdef inline (uint64_t, uint64_t, uint64_t, uint64_t, uint64_t) positions_at(
        const unsigned char[::1] memory, Py_ssize_t at) noexcept:
    """begin, end, record_end, commit, truncate"""
    return (u64_at(memory, at), u64_at(memory, at + 8), u64_at(memory, at + 16),
            u64_at(memory, at + 24), u64_at(memory, at + 32))


cdef inline (uint64_t, uint64_t, uint64_t) answer_positions_at(
        const unsigned char[::1] memory, Py_ssize_t at) noexcept:
    """flush, durable, commit"""
    return u64_at(memory, at), u64_at(memory, at + 8), u64_at(memory, at + 16)


cdef inline void put_positions(unsigned char[::1] memory, Py_ssize_t at, uint64_t flush_lsn,
                               uint64_t durable_lsn, uint64_t commit_lsn) noexcept:
    put_u64(memory, at, flush_lsn)
    put_u64(memory, at + 8, durable_lsn)
    put_u64(memory, at + 16, commit_lsn)


cdef inline void put_append_positions(unsigned char[::1] memory, Py_ssize_t at, uint64_t begin_lsn,
                                      uint64_t end_lsn, uint64_t record_end_lsn,
                                      uint64_t commit_lsn, uint64_t truncate_lsn) noexcept:
    put_u64(memory, at, begin_lsn)
    put_u64(memory, at + 8, end_lsn)
    put_u64(memory, at + 16, record_end_lsn)
    put_u64(memory, at + 24, commit_lsn)
    put_u64(memory, at + 32, truncate_lsn)
