#include "fuzz/input.h"

#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static _Noreturn void give_up(const char *doing, const char *path)
{
    fprintf(stderr, "fuzz: cannot %s %s: %s\n", doing, path, strerror(errno));
    _exit(1);
}

_Noreturn void fuzz_broken(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    abort();
}

void fuzz_directory_make(struct fuzz_directory *d)
{
    const char *root = getenv("TMPDIR");
    if (!root || strlen(root) > 150)
        root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(d->path, sizeof d->path, "%s/tercet-fuzz-XXXXXX", root);
    if (!mkdtemp(d->path))
        give_up("make a directory in", root);
}

void fuzz_directory_put(const struct fuzz_directory *d, const char *name, const void *data, size_t size)
{
    char path[400];
    struct error err;
    int n = snprintf(path, sizeof path, "%s/%s", d->path, name);
    FUZZ_CHECK(n > 0 && (size_t)n < sizeof path);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (file_make_directories(path, &err) != 0)
        give_up("make", path);
    *slash = '/';
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0)
        give_up("write", path);
}

void fuzz_directory_remove(const struct fuzz_directory *d)
{
    if (file_remove_tree(d->path, NULL) != 0)
        give_up("remove", d->path);
}

void fuzz_memory_open(struct fuzz_memory *m, const void *data, size_t size)
{
    m->fd = memfd_create("tercet-fuzz", MFD_CLOEXEC);
    snprintf(m->path, sizeof m->path, "/proc/self/fd/%d", m->fd);
    if (m->fd < 0 || write(m->fd, data, size) != (ssize_t)size)
        give_up("write", "a file in memory");
}

void fuzz_memory_close(const struct fuzz_memory *m)
{
    close(m->fd);
}

struct fuzz_part fuzz_part(struct fuzz_part *rest)
{
    const uint8_t *nul = rest->size > 0 ? memchr(rest->data, 0, rest->size) : NULL;
    struct fuzz_part part = {rest->data, nul ? (size_t)(nul - rest->data) : rest->size};
    size_t taken = nul ? part.size + 1 : part.size;
    if (taken > 0)
        *rest = (struct fuzz_part){rest->data + taken, rest->size - taken};
    return part;
}
