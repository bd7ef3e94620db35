# The C types of `steady_leader.py` when compiled.

cimport cython
from libc.stdint cimport uint32_t, uint64_t

cdef int COPY_DATA, XLOG_DATA
cdef Py_ssize_t HEADER_BYTES, START_AT, END_AT, DATA_AT, POSITIONS_AT, WAL_AT
cdef int DIRECTLY, CHAINED
cdef Py_ssize_t ANSWER_BYTES, ANSWER_AT, TAIL_AT, TAIL_BYTES, ODD, APPEND_BYTES_MAX
cdef uint64_t WAL_PAGE_SIZE, IN_FLIGHT_BYTES_MAX


cdef class SteadyLeader:
    cdef public uint64_t next_lsn, commit_lsn, sent_commit_lsn, truncate_lsn, term_start_lsn
    cdef public uint64_t record_end_lsn, primary_end_lsn, window_end_lsn_max
    cdef public int quorum_size
    cdef public unsigned char[::1] follows, has_answered, has_caught_up
    cdef public unsigned long[::1] flush_lsns, durable_lsns, commit_lsns
    cdef public unsigned long[::1] sent_counts, taken_counts, wal_counts
    cdef public uint64_t append_count
    cdef public list wal
    cdef public unsigned char[::1] frame, end_frame
    cdef public bint has_chained
    cdef public Py_ssize_t frame_bytes
    cdef const unsigned char[::1] _answer_head, _answer_tails

    @cython.locals(frame="unsigned char[::1]", at=Py_ssize_t,
                   size=Py_ssize_t, count=Py_ssize_t, length=uint32_t, lsn=uint64_t,
                   primary_end_lsn=uint64_t, peer=int, full_lsn=uint64_t)
    cpdef Py_ssize_t take_wal(self, unsigned char[::1] memory, Py_ssize_t begin,
                              Py_ssize_t end) except -2
    @cython.locals(tails="const unsigned char[::1]", at=Py_ssize_t, flush_lsn=uint64_t,
                   durable_lsn=uint64_t, commit_lsn=uint64_t, flushed_lsn=uint64_t,
                   written_lsn=uint64_t, told_lsn=uint64_t, taken_count=uint64_t,
                   wal_count=uint64_t, is_news=bint)
    cpdef Py_ssize_t take_answers(self, int peer, unsigned char[::1] memory, Py_ssize_t begin,
                                  Py_ssize_t end) except -2
    @cython.locals(candidate=int, peer=int, count=int, lsn=uint64_t)
    cdef _advance_commit(self)
