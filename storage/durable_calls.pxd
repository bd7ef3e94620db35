# The writes and flushes of `durable.py` on the path of a commit, for the compiled modules: pwrite
# and fdatasync without the interpreter. They return 0 or an errno, which `durable.py` reports.

from libc.errno cimport EINTR, errno
from posix.unistd cimport fdatasync, pwrite


cdef inline int write_at(int fd, const unsigned char[::1] memory, Py_ssize_t begin, Py_ssize_t end,
                         long long offset) noexcept:
    """Writes all of memory[begin:end] at `offset`."""
    cdef const unsigned char *data = &memory[0]
    cdef Py_ssize_t written
    with nogil:
        while begin < end:
            written = pwrite(fd, data + begin, end - begin, offset)
            if written >= 0:
                begin += written
                offset += written
            elif errno != EINTR:
                return errno
    return 0


cdef inline int sync(int fd) noexcept:
    """Never retried after a failure: fsyncgate."""
    cdef int result
    with nogil:
        result = fdatasync(fd)
    return errno if result else 0
