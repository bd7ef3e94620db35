# The C types of `steady_loop.py`, as it is compiled.

cimport cython
from libc.stdint cimport uint64_t

from walproposer.stream.steady_leader_compiled cimport SteadyLeader as CompiledLeader

cdef Py_ssize_t STATUS_LSNS_AT, STATUS_TIME_AT
cdef uint64_t EPOCH_US


cdef class SteadyLoop:
    cdef public CompiledLeader leader
    cdef public uint64_t reported_lsn
    cdef public bint has_heard
    cdef int _epoll, _upstream
    cdef int[::1] _fds, _copy_fds
    cdef unsigned int[::1] _masks
    cdef long[::1] _begins, _ends
    cdef list _copies, _views
    cdef unsigned char[::1] _status

    @cython.locals(seconds=double, count=int, ready=int, index=int)
    cpdef int run(self, double deadline) except -3
    @cython.locals(index=int)
    cdef int _index_of(self, int fd)
    @cython.locals(memory="unsigned char[::1]", begin=Py_ssize_t, end=Py_ssize_t,
                   count=Py_ssize_t, at=Py_ssize_t, leader=CompiledLeader)
    cdef bint _take(self, int index) except -1
    @cython.locals(leader=CompiledLeader, peer=int, count=Py_ssize_t, is_sent=bint)
    cdef bint _send_append(self) except -1
    @cython.locals(lsn=uint64_t, count=Py_ssize_t, status="unsigned char[::1]")
    cdef bint _report(self) except -1
    cdef _send_rest(self, int index, rest)
