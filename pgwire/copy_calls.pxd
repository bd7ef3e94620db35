# Sockets and the clock, for the compiled modules. None raises: the caller checks the result, and
# the general path finds the error.

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec


cdef extern from "<sys/socket.h>" nogil:
    Py_ssize_t recv(int fd, void *buffer, size_t length, int flags)
    Py_ssize_t send(int fd, const void *buffer, size_t length, int flags)
    int MSG_NOSIGNAL, MSG_DONTWAIT


cdef inline Py_ssize_t receive(int fd, unsigned char[::1] memory, Py_ssize_t at) noexcept:
    """Waits for bytes and receives them to `at`; returns their count, 0 at the end, < 0 on error."""
    cdef void *room = &memory[at]
    cdef Py_ssize_t length = memory.shape[0] - at, count
    with nogil:
        count = recv(fd, room, length, 0)
        while count < 0 and errno == EINTR:
            count = recv(fd, room, length, 0)
    return count


cdef inline Py_ssize_t send_all(int fd, const unsigned char[::1] memory) noexcept:
    """Waits until all is sent; returns < 0 on error."""
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


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        unsigned int events
        epoll_data_t data
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)

cdef enum:
    NOTHING = -1
    FAILED = -2
    READABLE = 1
    READY_MAX = 64


cdef inline Py_ssize_t receive_some(int fd, unsigned char[::1] memory, Py_ssize_t at) noexcept:
    """Receives bytes to `at`; returns their count, NOTHING or FAILED."""
    cdef Py_ssize_t count = recv(fd, &memory[at], memory.shape[0] - at, MSG_DONTWAIT)
    if count < 0:
        return NOTHING if errno == EAGAIN or errno == EINTR else FAILED
    return count


cdef inline Py_ssize_t send_some(int fd, const unsigned char[::1] memory,
                                 Py_ssize_t count) noexcept:
    """Returns how many of the first `count` bytes the socket took, or FAILED."""
    cdef Py_ssize_t sent = send(fd, &memory[0], count, MSG_NOSIGNAL | MSG_DONTWAIT)
    if sent < 0:
        return 0 if errno == EAGAIN or errno == EINTR else FAILED
    return sent


cdef inline int wait_ready(int epoll, int[::1] fds, unsigned int[::1] masks,
                           double seconds) noexcept:
    """Returns the number of ready files; puts them and their events into the arrays."""
    cdef epoll_event events[READY_MAX]
    cdef int index, count, most = min(READY_MAX, fds.shape[0])
    with nogil:
        count = epoll_wait(epoll, events, most, <int>(seconds * 1000) + 1)
    if count < 0:
        return 0
    for index in range(count):
        fds[index] = events[index].data.fd
        masks[index] = events[index].events
    return count


cdef inline uint64_t time_us() noexcept:
    """Microseconds since 1970."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t>now.tv_sec * 1000000 + now.tv_nsec // 1000
