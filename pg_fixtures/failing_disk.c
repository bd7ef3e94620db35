/*
 * Makes the disk fail, on demand, for a program that preloads this library (LD_PRELOAD).
 *
 * FAILING_DISK_CONTROL names a folder. While it contains a file `sync.<errno>`, the calls that make
 * bytes durable fail with that errno. While it contains `write.<errno>`, the calls that write or
 * allocate fail. `sync.<errno>.once` causes one failure in all processes together. The numbers must
 * be in ERRORS. Each failure appends a byte to the file `failures` in the folder, so that a test can
 * verify it. While the folder contains a file `sync.delay`, each of the former calls first waits for
 * as many milliseconds as that file has bytes.
 *
 * FAILING_DISK_PREFIX limits this to files whose path begins with it. Without it, every regular file
 * is affected except the standard streams. A failed write writes nothing; a failed sync syncs
 * nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const int ERRORS[] = {EIO, ENOSPC};

static int concerns(int fd)
{
    char link[64], path[PATH_MAX];
    struct stat info;
    const char *prefix = getenv("FAILING_DISK_PREFIX");

    if (prefix == NULL)
        return fd > 2 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    return length >= (ssize_t) strlen(prefix) && strncmp(path, prefix, strlen(prefix)) == 0;
}

static int record_failure(const char *control, int error)
{
    char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/failures", control);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || syscall(SYS_write, fd, ".", 1) != 1)
        abort(); /* every failure must be visible to the test */
    close(fd);
    return error;
}

/* The error with which this call must fail, or 0. */
static int failure(const char *kind, int fd)
{
    const char *control = getenv("FAILING_DISK_CONTROL");
    char path[PATH_MAX];
    struct stat order;
    int caller_errno = errno;

    for (size_t i = 0; control != NULL && i < sizeof ERRORS / sizeof *ERRORS; i++) {
        int length = snprintf(path, sizeof path, "%s/%s.%d", control, kind, ERRORS[i]);
        if (stat(path, &order) == 0 && concerns(fd))
            return record_failure(control, ERRORS[i]);
        snprintf(path + length, sizeof path - length, ".once");
        /* unlink() succeeds for one caller only */
        if (stat(path, &order) == 0 && concerns(fd) && unlink(path) == 0)
            return record_failure(control, ERRORS[i]);
    }
    errno = caller_errno;
    return 0;
}

/* A slow disk: waits before the call. */
static void wait_as_ordered(const char *kind, int fd)
{
    const char *control = getenv("FAILING_DISK_CONTROL");
    char path[PATH_MAX];
    struct stat order;
    int caller_errno = errno;

    if (control != NULL) {
        snprintf(path, sizeof path, "%s/%s.delay", control, kind);
        if (stat(path, &order) == 0 && concerns(fd))
            usleep((useconds_t) order.st_size * 1000);
    }
    errno = caller_errno;
}

#define BY_ERRNO (errno = error, -1)
#define BY_RESULT error

/* Defines `name`, which fails on demand and otherwise calls the next definition, that of libc. */
#define INTERPOSE(kind, fails, result, name, parameters, arguments)                               \
    result name parameters                                                                        \
    {                                                                                             \
        static result (*next) parameters;                                                         \
        wait_as_ordered(kind, fd);                                                                \
        int error = failure(kind, fd);                                                            \
        if (error != 0)                                                                           \
            return fails;                                                                         \
        if (next == NULL)                                                                         \
            next = dlsym(RTLD_NEXT, #name);                                                       \
        return next arguments;                                                                    \
    }

INTERPOSE("sync", BY_ERRNO, int, fsync, (int fd), (fd))
INTERPOSE("sync", BY_ERRNO, int, fdatasync, (int fd), (fd))
INTERPOSE("sync", BY_ERRNO, int, syncfs, (int fd), (fd))
INTERPOSE("sync", BY_ERRNO, int, sync_file_range, (int fd, off_t at, off_t n, unsigned flags),
          (fd, at, n, flags))

#define WRITE(name, parameters, arguments)                                                        \
    INTERPOSE("write", BY_ERRNO, ssize_t, name, parameters, arguments)

WRITE(write, (int fd, const void *data, size_t n), (fd, data, n))
WRITE(writev, (int fd, const struct iovec *data, int n), (fd, data, n))
WRITE(pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
WRITE(pwrite64, (int fd, const void *data, size_t n, off64_t at), (fd, data, n, at))
WRITE(pwritev, (int fd, const struct iovec *data, int n, off_t at), (fd, data, n, at))
WRITE(pwritev64, (int fd, const struct iovec *data, int n, off64_t at), (fd, data, n, at))
WRITE(pwritev2, (int fd, const struct iovec *data, int n, off_t at, int flags),
      (fd, data, n, at, flags))
WRITE(pwritev64v2, (int fd, const struct iovec *data, int n, off64_t at, int flags),
      (fd, data, n, at, flags))

INTERPOSE("write", BY_ERRNO, int, ftruncate, (int fd, off_t size), (fd, size))
INTERPOSE("write", BY_ERRNO, int, ftruncate64, (int fd, off64_t size), (fd, size))
INTERPOSE("write", BY_ERRNO, int, fallocate, (int fd, int mode, off_t at, off_t n),
          (fd, mode, at, n))
INTERPOSE("write", BY_ERRNO, int, fallocate64, (int fd, int mode, off64_t at, off64_t n),
          (fd, mode, at, n))
INTERPOSE("write", BY_RESULT, int, posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n))
INTERPOSE("write", BY_RESULT, int, posix_fallocate64, (int fd, off64_t at, off64_t n),
          (fd, at, n))
