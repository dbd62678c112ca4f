/* Faults on the disk, to be preloaded: the nth sync of a file fails, or the nth write is torn and the process killed.
   Only files below FAULT_ROOT count. FAULT_EIO_AT and FAULT_TORN_AT say which, counted from 1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static long counted(const char *name, long *count, int fd) {
    const char *at = getenv(name), *root = getenv("FAULT_ROOT");
    char link[64], path[PATH_MAX];
    if (!at || !root) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, root, strlen(root))) return 0;
    return __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST) == atol(at);
}

static long syncs, writes;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fsync(int fd) {
    if (counted("FAULT_EIO_AT", &syncs, fd)) { errno = EIO; return -1; }
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    if (counted("FAULT_EIO_AT", &syncs, fd)) { errno = EIO; return -1; }
    return REAL(fdatasync)(fd);
}

ssize_t write(int fd, const void *data, size_t size) {
    if (counted("FAULT_TORN_AT", &writes, fd)) { REAL(write)(fd, data, size / 2); kill(getpid(), SIGKILL); }
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (counted("FAULT_TORN_AT", &writes, fd)) { REAL(pwrite)(fd, data, size / 2, at); kill(getpid(), SIGKILL); }
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (counted("FAULT_TORN_AT", &writes, fd)) { REAL(pwrite64)(fd, data, size / 2, at); kill(getpid(), SIGKILL); }
    return REAL(pwrite64)(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (counted("FAULT_TORN_AT", &writes, fd)) {
        struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2};
        REAL(writev)(fd, &half, 1);
        kill(getpid(), SIGKILL);
    }
    return REAL(writev)(fd, parts, count);
}
