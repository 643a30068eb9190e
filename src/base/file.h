/* Files: read by mapping, written aside and renamed, so that a reader sees a whole file or none.
 *
 * A writer creates PATH.tmp-<pid>, buffers, keeps the byte count and the XXH3-64 checksum of what
 * was written, and file_writer_commit() flushes, fsyncs, renames to PATH and fsyncs the directory.
 * Every error names the path and the remedy. */
#ifndef TERCET_BASE_FILE_H
#define TERCET_BASE_FILE_H

#include "base/error.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
    void *address; /* private */
};
/* Maps a regular file read-only. ERROR_INPUT when it is missing, unreadable or a directory. */
int file_map(const char *path, struct file_map *out, struct error *err);
void file_unmap(struct file_map *map);

/* Reads a whole file of at most `limit` bytes into *out (malloc'd, terminated by a NUL that *size
 * does not count; the caller frees). ERROR_INPUT when missing, unreadable, larger. */
int file_read(const char *path, size_t limit, char **out, size_t *size, struct error *err);

struct file_writer {
    int fd;
    char *path, *temporary;
    uint8_t *buffer;
    size_t fill;
    int64_t bytes;    /* written so far */
    void *hash_state; /* private */
};
/* On failure nothing is left behind and *w needs no abort. */
int file_writer_open(struct file_writer *w, const char *path, struct error *err);
int file_writer_write(struct file_writer *w, const void *data, size_t n, struct error *err);
/* XXH3-64 of the bytes written so far. */
uint64_t file_writer_hash(const struct file_writer *w);
/* Makes the file appear under its name. Frees the writer, whether it worked or not. */
int file_writer_commit(struct file_writer *w, struct error *err);
/* Drops the temporary file. Safe on a zeroed, committed or aborted writer. */
void file_writer_abort(struct file_writer *w);

/* open, write, commit. */
int file_write_all(const char *path, const void *data, size_t n, struct error *err);

/* One file that is written in any order, maybe by several processes: it has its name from the beginning, so
 * it belongs into a directory that gets its own when all is written. */
struct file_part {
    int fd;
    char *path;
};
/* `create`: the file must not be there yet; else it must. On failure nothing is left open. */
int file_part_open(struct file_part *f, const char *path, bool create, struct error *err);
/* n bytes from byte `at` on. */
int file_part_write(struct file_part *f, int64_t at, const void *data, size_t n, struct error *err);
/* What was written through this one is on the disk. */
int file_part_sync(struct file_part *f, struct error *err);
/* Reports what some file systems tell only now. Safe on a zeroed or closed one. */
int file_part_close(struct file_part *f, struct error *err);

/* XXH3-64. */
uint64_t hash_bytes(const void *data, size_t n, uint64_t seed);
int file_hash(const char *path, int64_t *bytes, uint64_t *hash, struct error *err);

/* Also true where it cannot be told (a device fails, memory runs out): using the file then says why. */
bool file_exists(const char *path);
bool file_is_directory(const char *path);
/* An errno value of a function that looks at a path: it says that nothing can be reached there, rather than
 * that looking has failed. */
bool file_says_absent(int errnum);
/* The next name in an open directory, "." and ".." left out, valid until the next call; *name is NULL at the
 * end. `path` is that of the directory, in messages. */
int file_next_name(DIR *directory, const char *path, const char **name, struct error *err);
/* mkdir -p. */
int file_make_directories(const char *path, struct error *err);
/* That `path` is a directory in which files can be made, or can become one, as far as it shows without
 * trying. `room`: bytes that names within it may add to the path. ERROR_INPUT otherwise. */
int file_check_directory(const char *path, size_t room, struct error *err);
int file_sync_directory(const char *path, struct error *err);
/* rename(2), then fsyncs the parent directory of `to`. */
int file_rename(const char *from, const char *to, struct error *err);
/* rm -r, without following links. A path that does not exist is no error. */
int file_remove_tree(const char *path, struct error *err);
/* Bytes that an unprivileged user may still write at `path` (its nearest existing parent). */
int file_free_space(const char *path, int64_t *bytes, struct error *err);
/* "a/b": malloc'd, the caller frees; NULL when out of memory. */
char *file_join(const char *directory, const char *name);

#endif
