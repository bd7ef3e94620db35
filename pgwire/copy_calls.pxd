# Sockets and the clock, for the compiled modules. None raises: the caller looks at
# the result, and asks the general path what is wrong.

from libc.errno cimport EINTR, errno
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef extern from "<sys/socket.h>" nogil:
    Py_ssize_t recv(int fd, void *buffer, size_t length, int flags)
    Py_ssize_t send(int fd, const void *buffer, size_t length, int flags)
    int MSG_NOSIGNAL, MSG_DONTWAIT


cdef inline Py_ssize_t receive(int fd, unsigned char[::1] memory, Py_ssize_t at) noexcept:
    """Waits for bytes and puts them behind `at`: how many; 0 at the end, below 0 for an error."""
    cdef void *room = &memory[at]
    cdef Py_ssize_t length = memory.shape[0] - at, count
    with nogil:
        count = recv(fd, room, length, 0)
        while count < 0 and errno == EINTR:
            count = recv(fd, room, length, 0)
    return count


cdef inline Py_ssize_t send_all(int fd, const unsigned char[::1] memory) noexcept:
    """Waits until all is sent; below 0 for an error."""
    cdef const unsigned char *data = &memory[0]
    cdef Py_ssize_t at = 0, length = memory.shape[0], count
    with nogil:
        while at < length:
            count = send(fd, data + at, length - at, MSG_NOSIGNAL)
            if count >= 0:
                at += count
            elif errno != EINTR:
                return -1
    return at


cdef inline double monotonic() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec / 1e9
