# The C types of `steady_loop.py` when compiled.

cimport cython
from libc.stdint cimport uint64_t

from quorum_wal.walproposer.stream.steady_leader_compiled cimport SteadyLeader as CompiledLeader

cdef Py_ssize_t STATUS_LSNS_AT, STATUS_TIME_AT, WAL_AT
cdef int CHAINED, COMMIT, WAKE
cdef uint64_t EPOCH_US


cdef class Lane:
    cdef object copy
    cdef int fd
    cdef object view
    cdef unsigned char[::1] memory
    cdef Py_ssize_t begin, end

    @cython.locals(count=Py_ssize_t)
    cdef Py_ssize_t receive(self) except -3
    @cython.locals(count=Py_ssize_t)
    cdef bint send(self, unsigned char[::1] frame, Py_ssize_t frame_bytes) except -1


cdef class SteadyLoop:
    cdef public CompiledLeader leader
    cdef public uint64_t reported_lsn
    cdef public bint has_heard
    cdef int _epoll, _upstream
    cdef int[::1] _fds
    cdef unsigned int[::1] _masks
    cdef list _lanes
    cdef unsigned char[::1] _status
    cdef object _signal
    cdef unsigned long[::1] _words

    @cython.locals(seconds=double, count=int, ready=int, index=int)
    cpdef int run(self, double deadline) except -3
    @cython.locals(index=int, lane=Lane)
    cdef int _index_of(self, int fd)
    @cython.locals(lane=Lane, leader=CompiledLeader, at=Py_ssize_t)
    cdef bint _take(self, int index) except -1
    @cython.locals(leader=CompiledLeader, peer=int, lane=Lane, is_sent=bint)
    cdef bint _send_append(self) except -1
    @cython.locals(lsn=uint64_t, status="unsigned char[::1]", upstream=Lane, is_sent=bint)
    cdef bint _report(self) except -1
