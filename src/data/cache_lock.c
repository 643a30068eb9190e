#include "data/cache_lock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether the locked file still has its name: its last owner may have removed it meanwhile. */
static bool still_named(int fd, const char *path)
{
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

int cache_lock_try(const char *root, const char *name, struct cache_lock *lock, enum cache_lock_state *state,
                   struct error *err)
{
    lock->fd = -1;
    lock->path = NULL;
    if (asprintf(&lock->path, "%s/%s.lock", root, name) < 0) {
        lock->path = NULL;
        return error_memory(err, 1, "a lock");
    }
    for (;;) {
        lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (lock->fd < 0) {
            error_errno(err, errno, lock->path, "write in the directory of token caches");
            free(lock->path);
            lock->path = NULL;
            return -1;
        }
        int rc;
        do
            rc = flock(lock->fd, LOCK_EX | LOCK_NB);
        while (rc != 0 && errno == EINTR);
        if (rc == 0 && still_named(lock->fd, lock->path)) {
            *state = CACHE_LOCKED;
            return 0;
        }
        int why = errno;
        close(lock->fd);
        lock->fd = -1;
        if (rc == 0)
            continue;
        *state = why == EWOULDBLOCK ? CACHE_LOCK_BUSY : CACHE_LOCK_ABSENT;
        if (*state == CACHE_LOCK_ABSENT)
            unlink(lock->path);
        free(lock->path);
        lock->path = NULL;
        return 0;
    }
}

void cache_lock_release(struct cache_lock *lock)
{
    if (lock->fd >= 0) {
        unlink(lock->path); /* while it is held: see still_named */
        close(lock->fd);
    }
    free(lock->path);
    lock->fd = -1;
    lock->path = NULL;
}
