# What `durable.py` does on the path of a commit, for the compiled modules: pwrite and fdatasync,
# without the interpreter. They return 0, or the errno of what failed, which `durable.py` reports.

from libc.errno cimport EINTR, errno
from posix.unistd cimport fdatasync, pwrite


cdef inline int write_at(int fd, const unsigned char[::1] memory, Py_ssize_t begin, Py_ssize_t end,
                         long long offset) noexcept:
    """memory[begin:end] at `offset`, all of it."""
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
    """Not tried again after a failure, whatever it was: fsyncgate."""
    cdef int result
    with nogil:
        result = fdatasync(fd)
    return errno if result else 0
