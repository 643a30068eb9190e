#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

enum { READ_CHUNK = 1 << 20 };

/* error_errno, but as the fault of the input. Returns -1. */
static int input_errno(struct error *err, int errnum, const char *where, const char *doing)
{
    error_errno(err, errnum, where, doing);
    if (err && errnum != ENOMEM && errnum != EMFILE && errnum != ENFILE)
        err->kind = ERROR_INPUT;
    return -1;
}

/* A named pipe may wait for its writer so long, then nobody seems to be there. */
enum { PIPE_MILLISECONDS = 10000 };

/* Goes back to blocking reads, once a pipe with a name has something to read. What a shell passes as
 * <(command) has no name: its writer is there, and may take its time. */
static int wait_for_writer(int fd, const struct stat *info, const char *path, struct error *err)
{
    struct statfs system;
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    int ready = 1;
    if (S_ISFIFO(info->st_mode) && fstatfs(fd, &system) == 0 && system.f_type != PIPEFS_MAGIC) {
        do
            ready = poll(&poller, 1, PIPE_MILLISECONDS);
        while (ready < 0 && errno == EINTR);
    }
    if (ready == 0)
        return error_set(err, ERROR_INPUT, path, "name a regular file, or start its writer first",
                         "it is a pipe, and nothing has been written into it for %d seconds",
                         PIPE_MILLISECONDS / 1000);
    int flags = fcntl(fd, F_GETFL);
    if (ready < 0 || flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0)
        return input_errno(err, errno, path, "read it");
    return 0;
}

/* Opens for reading, never a directory; `regular`: nothing but a regular file. */
static int open_input(const char *path, bool regular, int *fd, struct stat *info, struct error *err)
{
    if (path[0] == '\0')
        return error_set(err, ERROR_INPUT, "\"\"", "give the name of a file", "this name is empty");
    /* Without O_NONBLOCK opening a pipe that nobody writes would hang. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (*fd < 0)
        return input_errno(err, errno, path, "open it");
    int status = 0;
    if (fstat(*fd, info) != 0)
        status = input_errno(err, errno, path, "ask for its size");
    else if (S_ISDIR(info->st_mode))
        status = error_set(err, ERROR_INPUT, path, "name a file in it", "it is a directory, not a file");
    else if (!regular)
        status = wait_for_writer(*fd, info, path, err);
    else if (!S_ISREG(info->st_mode))
        status =
            error_set(err, ERROR_INPUT, path, "store the data in a file first", "it is not a regular file");
    if (status != 0)
        close(*fd);
    return status;
}

int file_map(const char *path, struct file_map *out, struct error *err)
{
    memset(out, 0, sizeof *out);
    int fd;
    struct stat info;
    if (open_input(path, true, &fd, &info, err) != 0)
        return -1;
    if (info.st_size > 0) {
        out->size = (size_t)info.st_size;
        out->address = mmap(NULL, out->size, PROT_READ, MAP_SHARED, fd, 0);
        if (out->address == MAP_FAILED) {
            int why = errno;
            memset(out, 0, sizeof *out);
            close(fd);
            return error_errno(err, why, path, "map it");
        }
        out->data = out->address;
    }
    close(fd);
    return 0;
}

void file_unmap(struct file_map *map)
{
    if (map->address)
        munmap(map->address, map->size);
    memset(map, 0, sizeof *map);
}

/* read(2) that survives signals. */
static ssize_t read_some(int fd, void *buffer, size_t n)
{
    ssize_t got;
    do
        got = read(fd, buffer, n);
    while (got < 0 && errno == EINTR);
    return got;
}

int file_read(const char *path, size_t limit, char **out, size_t *size, struct error *err)
{
    *out = NULL;
    *size = 0;
    int fd;
    struct stat info;
    if (open_input(path, false, &fd, &info, err) != 0)
        return -1;
    size_t known = S_ISREG(info.st_mode) && info.st_size > 0 ? (size_t)info.st_size : 0;
    size_t capacity = known < limit ? known : limit;
    size_t fill = 0;
    capacity = (capacity < 4096 ? 4096 : capacity) + 2; /* one to see that there is more, one for the NUL */
    char *data = malloc(capacity);
    int status = data ? 0 : error_memory(err, capacity, path);
    while (status == 0) {
        ssize_t got = read_some(fd, data + fill, capacity - 1 - fill);
        if (got == 0)
            break;
        if (got < 0) {
            status = input_errno(err, errno, path, "read it");
            break;
        }
        fill += (size_t)got;
        if (fill > limit) {
            status = error_set(err, ERROR_INPUT, path, "check that this is the file that was meant",
                               "it is larger than the %zu bytes that are allowed here", limit);
        } else if (fill == capacity - 1) {
            char *grown = capacity > SIZE_MAX / 2 ? NULL : realloc(data, 2 * capacity);
            if (!grown) {
                status = error_memory(err, capacity, path);
                break;
            }
            data = grown;
            capacity *= 2;
        }
    }
    close(fd);
    if (status != 0) {
        free(data);
        return -1;
    }
    data[fill] = '\0';
    *out = data;
    *size = fill;
    return 0;
}

/* Writes all n bytes; 0, or an errno. */
static int write_fully(int fd, const uint8_t *data, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, data, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno;
        data += put;
        n -= (size_t)put;
    }
    return 0;
}

/* Drops what a failed or finished writer holds; the temporary file too unless `keep`. */
static void release_writer(struct file_writer *w, bool keep)
{
    if (w->path && w->fd >= 0)
        close(w->fd);
    if (w->temporary && !keep)
        unlink(w->temporary);
    if (w->hash_state)
        XXH3_freeState(w->hash_state);
    free(w->buffer);
    free(w->temporary);
    free(w->path);
    memset(w, 0, sizeof *w);
    w->fd = -1;
}

int file_writer_open(struct file_writer *w, const char *path, struct error *err)
{
    memset(w, 0, sizeof *w);
    w->fd = -1;
    w->path = strdup(path);
    w->buffer = malloc(READ_CHUNK);
    w->hash_state = XXH3_createState();
    char *temporary = NULL;
    if (!w->path || !w->buffer || !w->hash_state ||
        asprintf(&temporary, "%s.tmp-%ld", path, (long)getpid()) < 0) {
        release_writer(w, true);
        return error_memory(err, READ_CHUNK, path);
    }
    XXH3_64bits_reset(w->hash_state);
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    w->fd = open(temporary, flags, 0666);
    if (w->fd < 0 && errno == EEXIST &&
        unlink(temporary) == 0) /* left by a dead process of the same number */
        w->fd = open(temporary, flags, 0666);
    if (w->fd < 0) {
        int why = errno;
        free(temporary);
        release_writer(w, true);
        return error_errno(err, why, path, "create it");
    }
    w->temporary = temporary;
    return 0;
}

/* Hands the buffer to the system. After a failure the writer can only be aborted. */
static int write_out(struct file_writer *w, const uint8_t *data, size_t n, struct error *err)
{
    int why = w->fd < 0 ? EBADF : write_fully(w->fd, data, n);
    if (why == 0)
        return 0;
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    return error_errno(err, why, w->path, "write it");
}

int file_writer_write(struct file_writer *w, const void *data, size_t n, struct error *err)
{
    if (n == 0)
        return 0;
    const uint8_t *bytes = data;
    if (w->fill + n > READ_CHUNK || w->fill + n < n) {
        if (write_out(w, w->buffer, w->fill, err) != 0)
            return -1;
        w->fill = 0;
    }
    if (n >= READ_CHUNK) {
        if (write_out(w, bytes, n, err) != 0)
            return -1;
    } else {
        memcpy(w->buffer + w->fill, bytes, n);
        w->fill += n;
    }
    XXH3_64bits_update(w->hash_state, bytes, n);
    w->bytes += (int64_t)n;
    return 0;
}

uint64_t file_writer_hash(const struct file_writer *w)
{
    return XXH3_64bits_digest(w->hash_state);
}

/* The directory that holds `path`: malloc'd, NULL when out of memory. */
static char *parent_of(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n == 0 ? strdup(".") : strndup(path, n);
}

static int sync_parent(const char *path, struct error *err)
{
    char *parent = parent_of(path);
    if (!parent)
        return error_memory(err, strlen(path), path);
    int status = file_sync_directory(parent, err);
    free(parent);
    return status;
}

int file_writer_commit(struct file_writer *w, struct error *err)
{
    int status = write_out(w, w->buffer, w->fill, err);
    if (status == 0 && fsync(w->fd) != 0)
        status = error_errno(err, errno, w->path, "bring it to the disk");
    if (status == 0) {
        int why = close(w->fd) != 0 ? errno : 0;
        w->fd = -1;
        if (why != 0 && why != EINTR)
            status = error_errno(err, why, w->path, "write it");
    }
    if (status == 0 && rename(w->temporary, w->path) != 0)
        status = error_errno(err, errno, w->path, "give it its name");
    bool renamed = status == 0;
    if (renamed)
        status = sync_parent(w->path, err);
    release_writer(w, renamed);
    return status;
}

void file_writer_abort(struct file_writer *w)
{
    release_writer(w, false);
}

int file_write_all(const char *path, const void *data, size_t n, struct error *err)
{
    struct file_writer w;
    if (file_writer_open(&w, path, err) != 0)
        return -1;
    if (file_writer_write(&w, data, n, err) != 0) {
        file_writer_abort(&w);
        return -1;
    }
    return file_writer_commit(&w, err);
}

int file_part_open(struct file_part *f, const char *path, bool create, struct error *err)
{
    *f = (struct file_part){.fd = -1, .path = strdup(path)};
    if (!f->path)
        return error_memory(err, strlen(path), path);
    f->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_EXCL : 0), 0666);
    if (f->fd >= 0)
        return 0;
    int why = errno;
    free(f->path);
    *f = (struct file_part){.fd = -1};
    return error_errno(err, why, path, create ? "create it" : "open it for writing");
}

int file_part_write(struct file_part *f, int64_t at, const void *data, size_t n, struct error *err)
{
    const uint8_t *bytes = data;
    while (n > 0) {
        ssize_t put = pwrite(f->fd, bytes, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return error_errno(err, errno, f->path, "write it");
        bytes += put;
        at += put;
        n -= (size_t)put;
    }
    return 0;
}

int file_part_sync(struct file_part *f, struct error *err)
{
    return fsync(f->fd) != 0 ? error_errno(err, errno, f->path, "bring it to the disk") : 0;
}

int file_part_close(struct file_part *f, struct error *err)
{
    if (!f->path)
        return 0;
    int status = close(f->fd) != 0 && errno != EINTR ? error_errno(err, errno, f->path, "write it") : 0;
    free(f->path);
    *f = (struct file_part){.fd = -1};
    return status;
}

uint64_t hash_bytes(const void *data, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n, seed);
}

int file_hash(const char *path, int64_t *bytes, uint64_t *hash, struct error *err)
{
    int fd;
    struct stat info;
    if (open_input(path, true, &fd, &info, err) != 0)
        return -1;
    XXH3_state_t *state = XXH3_createState();
    uint8_t *buffer = malloc(READ_CHUNK);
    int status = 0;
    int64_t total = 0;
    if (!state || !buffer)
        status = error_memory(err, READ_CHUNK, path);
    else
        XXH3_64bits_reset(state);
    while (status == 0) {
        ssize_t got = read_some(fd, buffer, READ_CHUNK);
        if (got == 0)
            break;
        if (got < 0) {
            status = input_errno(err, errno, path, "read it");
        } else {
            XXH3_64bits_update(state, buffer, (size_t)got);
            total += got;
        }
    }
    if (status == 0) {
        *bytes = total;
        *hash = XXH3_64bits_digest(state);
    }
    XXH3_freeState(state);
    free(buffer);
    close(fd);
    return status;
}

bool file_says_absent(int errnum)
{
    return errnum == ENOENT || errnum == ENOTDIR || errnum == EACCES || errnum == ELOOP ||
           errnum == ENAMETOOLONG;
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 || !file_says_absent(errno);
}

bool file_is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int file_make_directories(const char *path, struct error *err)
{
    if (path[0] == '\0')
        return error_errno(err, ENOENT, path, "make a directory without a name");
    char *copy = strdup(path);
    if (!copy)
        return error_memory(err, strlen(path), path);
    int why = 0;
    for (char *p = copy + 1; why == 0; p++) {
        char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        /* EEXIST is judged at the end; other failures too, where a parent may be passed but not written. */
        int failed = mkdir(copy, 0777) != 0 ? errno : 0;
        if (failed != 0 && !file_is_directory(copy))
            why = failed == EEXIST ? ENOTDIR : failed;
        if (c == '\0')
            break;
        *p = c;
    }
    free(copy);
    return why == 0 ? 0 : error_errno(err, why, path, "make this directory");
}

int file_check_directory(const char *path, size_t room, struct error *err)
{
    struct stat info;
    int why = path[0] == '\0' ? ENOENT : strlen(path) + room >= PATH_MAX ? ENAMETOOLONG : 0;
    char *at = strdup(path);
    if (!at)
        return error_memory(err, strlen(path), path);
    while (why == 0 && stat(at, &info) != 0) {
        why = errno;
        if (why != ENOENT && why != ENOTDIR)
            break;
        if (lstat(at, &info) == 0) {
            free(at);
            return error_set(err, ERROR_INPUT, path, "remove the link, or make the directory it names",
                             "a symbolic link on this path leads nowhere");
        }
        char *parent = parent_of(at);
        free(at);
        if (!parent)
            return error_memory(err, strlen(path), path);
        at = parent;
        why = 0;
    }
    if (why == 0 && !S_ISDIR(info.st_mode))
        why = ENOTDIR;
    else if (why == 0 && faccessat(AT_FDCWD, at, W_OK | X_OK, AT_EACCESS) != 0)
        why = errno;
    bool there = strcmp(at, path) == 0;
    free(at);
    return why == 0
               ? 0
               : input_errno(err, why, path, there ? "write into this directory" : "make this directory");
}

int file_sync_directory(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, errno, path, "open this directory");
    /* EINVAL: a file system without such a thing. */
    int why = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return why == 0 ? 0 : error_errno(err, why, path, "bring this directory to the disk");
}

int file_rename(const char *from, const char *to, struct error *err)
{
    if (rename(from, to) != 0)
        return error_errno(err, errno, from, "rename it");
    return sync_parent(to, err);
}

int file_next_name(DIR *directory, const char *path, const char **name, struct error *err)
{
    struct dirent *entry;
    do {
        errno = 0;
        entry = readdir(directory);
    } while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    *name = entry ? entry->d_name : NULL;
    return !entry && errno != 0 ? error_errno(err, errno, path, "read this directory") : 0;
}

static int remove_at(int directory, const char *name, const char *path, struct error *err);

/* Removes what is in the directory `fd`, which it closes. */
static int remove_entries(int fd, const char *path, struct error *err)
{
    DIR *stream = fdopendir(fd);
    if (!stream) {
        int why = errno;
        close(fd);
        return error_errno(err, why, path, "read this directory");
    }
    const char *name;
    int status;
    while ((status = file_next_name(stream, path, &name, err)) == 0 && name) {
        char *inner = file_join(path, name);
        status = inner ? remove_at(dirfd(stream), name, inner, err) : error_memory(err, strlen(path), path);
        free(inner);
        if (status != 0)
            break;
    }
    closedir(stream);
    return status;
}

/* Removes `name`, relative to the open `directory`; `path` is its name in messages. */
static int remove_at(int directory, const char *name, const char *path, struct error *err)
{
    if (unlinkat(directory, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM) /* EPERM: POSIX's answer for a directory */
        return error_errno(err, errno, path, "remove it");
    int why = errno;
    int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, errno == ENOTDIR ? why : errno, path, "remove it");
    if (remove_entries(fd, path, err) != 0)
        return -1;
    if (unlinkat(directory, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return error_errno(err, errno, path, "remove this directory");
    return 0;
}

int file_remove_tree(const char *path, struct error *err)
{
    if (path[0] == '\0')
        return 0;
    /* A trailing slash would make unlink follow a link. */
    char *copy = strdup(path);
    if (!copy)
        return error_memory(err, strlen(path), path);
    for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = '\0';
    int status = remove_at(AT_FDCWD, copy, copy, err);
    free(copy);
    return status;
}

int file_free_space(const char *path, int64_t *bytes, struct error *err)
{
    struct statvfs info;
    char *at = strdup(path[0] ? path : ".");
    if (!at)
        return error_memory(err, strlen(path), path);
    while (statvfs(at, &info) != 0) {
        int why = errno;
        bool top = strcmp(at, "/") == 0 || strcmp(at, ".") == 0;
        if (why == EINTR)
            continue;
        char *parent = top || (why != ENOENT && why != ENOTDIR) ? NULL : parent_of(at);
        free(at);
        if (!parent)
            return error_errno(err, why, path, "ask for the free space");
        at = parent;
    }
    free(at);
    uint64_t product;
    if (__builtin_mul_overflow((uint64_t)info.f_bavail, (uint64_t)info.f_frsize, &product) ||
        product > INT64_MAX)
        product = INT64_MAX;
    *bytes = (int64_t)product;
    return 0;
}

char *file_join(const char *directory, const char *name)
{
    size_t n = strlen(directory);
    const char *between = n == 0 || directory[n - 1] == '/' ? "" : "/";
    char *joined;
    return asprintf(&joined, "%s%s%s", directory, between, name) < 0 ? NULL : joined;
}
