# Numbers and patterns in a buffer, without bounds checks: the caller has checked the length.

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy


cdef extern from "<endian.h>" nogil:
    uint32_t be32toh(uint32_t)
    uint32_t htobe32(uint32_t)
    uint64_t be64toh(uint64_t)
    uint64_t htobe64(uint64_t)


cdef inline uint32_t u32_at(const unsigned char[::1] memory, Py_ssize_t at) noexcept:
    cdef uint32_t value
    memcpy(&value, &memory[at], 4)
    return be32toh(value)


cdef inline uint64_t u64_at(const unsigned char[::1] memory, Py_ssize_t at) noexcept:
    cdef uint64_t value
    memcpy(&value, &memory[at], 8)
    return be64toh(value)


cdef inline void put_u64(unsigned char[::1] memory, Py_ssize_t at, uint64_t value) noexcept:
    value = htobe64(value)
    memcpy(&memory[at], &value, 8)


cdef inline void put_u32(unsigned char[::1] memory, Py_ssize_t at, uint32_t value) noexcept:
    value = htobe32(value)
    memcpy(&memory[at], &value, 4)


cdef inline bint is_at(const unsigned char[::1] memory, Py_ssize_t at,
                       const unsigned char[::1] pattern) noexcept:
    """Whether the bytes there equal `pattern`; the caller has checked the length."""
    return memcmp(&memory[at], &pattern[0], pattern.shape[0]) == 0


cdef inline bint is_same(const unsigned char[::1] memory, Py_ssize_t at,
                         const unsigned char[::1] other, Py_ssize_t other_at,
                         Py_ssize_t count) noexcept:
    """Whether `count` bytes there equal those of `other` at `other_at`."""
    return memcmp(&memory[at], &other[other_at], count) == 0


cdef inline bytes bytes_at(const unsigned char[::1] memory, Py_ssize_t at, Py_ssize_t count):
    """A copy of memory[at:at + count]."""
    return (<const char *>&memory[at])[:count]


cdef inline void copy_bytes(unsigned char[::1] to, Py_ssize_t to_at,
                            const unsigned char[::1] memory, Py_ssize_t at,
                            Py_ssize_t count) noexcept:
    """Copies memory[at:at + count] to `to_at`."""
    memcpy(&to[to_at], &memory[at], count)
