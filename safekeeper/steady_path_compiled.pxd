# The C types of `steady_path.py` when it is compiled: docs/decisions/2026-11-22-steady-path.md

cimport cython
from libc.stdint cimport uint32_t, uint64_t

cdef int COPY_DATA
cdef Py_ssize_t HEADER_BYTES, POSITIONS_AT, WAL_AT, ANSWER_AT, NOT_STEADY
cdef uint32_t LENGTH_MIN, LENGTH_MAX
cdef uint64_t HINTS_BYTES_MAX, BLOCK_BYTES


cdef class SteadyPath:
    cdef public object connection
    cdef public bint is_over, has_taken
    cdef public uint64_t written_lsn, flush_lsn, commit_lsn, truncate_lsn
    cdef public uint64_t record_end_lsn, sent_commit_lsn
    cdef public unsigned char[::1] answer
    cdef public double heard_at
    cdef object _timeline, _acquire, _release, _sums, _path
    cdef set _wakes
    cdef const double[::1] _flush_bounds
    cdef unsigned long[::1] _flush_counts, _flush_sum_us
    cdef const unsigned char[::1] _head
    cdef int _fd
    cdef uint64_t _file_end_lsn, _file_begin_lsn, _hint_lsn

    @cython.locals(memory="unsigned char[::1]", fd=int, begin=Py_ssize_t, end=Py_ssize_t,
                   at=Py_ssize_t, count=Py_ssize_t)
    cpdef run(self, stream)
    cdef bint _answer(self, stream, int fd) except -1
    cpdef Py_ssize_t step(self, view, Py_ssize_t begin, Py_ssize_t end) except -2
    cdef Py_ssize_t _step(self, unsigned char[::1] memory, view, Py_ssize_t begin,
                          Py_ssize_t end) except -2
    @cython.locals(at=Py_ssize_t, next_at=Py_ssize_t,
                   length=uint32_t, lsn=uint64_t, begin_lsn=uint64_t, end_lsn=uint64_t,
                   boundary_lsn=uint64_t, record_end_lsn=uint64_t, commit_lsn=uint64_t,
                   truncate_lsn=uint64_t, sent_commit_lsn=uint64_t, sent_truncate_lsn=uint64_t)
    cdef Py_ssize_t _take(self, unsigned char[::1] memory, view, Py_ssize_t begin,
                          Py_ssize_t end) except -2
    @cython.locals(at=Py_ssize_t, next_at=Py_ssize_t,
                   wal_at=Py_ssize_t, offset=uint64_t, error=int)
    cdef _write(self, unsigned char[::1] memory, view, Py_ssize_t begin, Py_ssize_t end)
    @cython.locals(lsn=uint64_t, crc=uint32_t, count=uint64_t)
    cdef _sum(self, wal)
    @cython.locals(begun=double, error=int, seconds=double, bucket=Py_ssize_t)
    cdef _flush(self)
    cdef _publish(self)
