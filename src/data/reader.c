#include "data/reader.h"
#include "data/name.h"

#include <archive.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_CHUNK = 1 << 20 };
/* A longer line is a file of another kind, and would fill the memory. */
static const size_t item_limit = (size_t)2 << 30;

struct text_reader {
    const struct text_files *files;
    int64_t file; /* the open one, or the next to open */
    int fd;       /* -1: none open */
    struct text_kind kind;
    struct archive *archive; /* NULL for plain files */
    uint8_t *buffer;
    size_t capacity, start, end, scanned; /* start <= scanned <= end; no LF in start … scanned */
    bool source_ended;
    int64_t line;       /* lines cut so far in this file */
    int64_t file_items; /* items that this file gave */
    int64_t blank_lines;
    int64_t bytes_done, bytes_total; /* of files that are closed; of all */
};

static const char *reader_path(const struct text_reader *r)
{
    return r->files->paths[r->file];
}

static int input_errno(struct error *err, int errnum, const char *path, const char *doing)
{
    error_errno(err, errnum, path, doing);
    if (err)
        err->kind = ERROR_INPUT;
    return -1;
}

int text_reader_open(struct text_reader **out, const struct text_files *files, struct error *err)
{
    *out = NULL;
    struct text_reader *r = calloc(1, sizeof *r);
    if (!r)
        return error_memory(err, sizeof *r, "a text reader");
    r->files = files;
    r->fd = -1;
    r->capacity = READ_CHUNK;
    r->buffer = malloc(r->capacity);
    if (!r->buffer) {
        text_reader_close(r);
        return error_memory(err, READ_CHUNK, "a text reader");
    }
    for (int64_t i = 0; i < files->count; i++) {
        struct stat st;
        if (stat(files->paths[i], &st) != 0) {
            text_reader_close(r);
            return input_errno(err, errno, files->paths[i], "read the text file");
        }
        r->bytes_total += (int64_t)st.st_size;
    }
    *out = r;
    return 0;
}

static void close_source(struct text_reader *r)
{
    if (r->archive)
        archive_read_free(r->archive);
    r->archive = NULL;
    if (r->fd >= 0) {
        struct stat st;
        if (fstat(r->fd, &st) == 0)
            r->bytes_done += (int64_t)st.st_size;
        close(r->fd);
    }
    r->fd = -1;
}

void text_reader_close(struct text_reader *r)
{
    if (!r)
        return;
    close_source(r);
    free(r->buffer);
    free(r);
}

static int archive_failed(struct text_reader *r, struct error *err)
{
    const char *text = archive_error_string(r->archive);
    return error_set(err, ERROR_INPUT, reader_path(r),
                     "it may be cut short or damaged: copy or make it again", "cannot uncompress it: %s",
                     text ? text : "unknown failure");
}

/* Sets up decompression. The name decides: content of another kind is refused, not guessed at. */
static int open_archive(struct text_reader *r, struct error *err)
{
    static const struct {
        int (*support)(struct archive *);
        int code;
        const char *name;
    } filters[] = {
        [TEXT_PLAIN] = {archive_read_support_filter_none, ARCHIVE_FILTER_NONE, "plain text"},
        [TEXT_GZIP] = {archive_read_support_filter_gzip, ARCHIVE_FILTER_GZIP, "gzip"},
        [TEXT_ZSTD] = {archive_read_support_filter_zstd, ARCHIVE_FILTER_ZSTD, "zstd"},
        [TEXT_XZ] = {archive_read_support_filter_xz, ARCHIVE_FILTER_XZ, "xz"},
    };
    r->archive = archive_read_new();
    if (!r->archive)
        return error_memory(err, 1, "a decompressor");
    int rc = filters[r->kind.packing].support(r->archive);
    /* ARCHIVE_WARN means that an external program would be run: not for untrusted input. */
    if (rc != ARCHIVE_OK)
        return error_set(err, ERROR_INPUT, reader_path(r), "uncompress it first",
                         "this build of libarchive cannot read %s", filters[r->kind.packing].name);
    struct archive_entry *entry;
    if (archive_read_support_format_raw(r->archive) != ARCHIVE_OK ||
        archive_read_support_format_empty(r->archive) != ARCHIVE_OK ||
        archive_read_open_fd(r->archive, r->fd, READ_CHUNK) != ARCHIVE_OK)
        return archive_failed(r, err);
    rc = archive_read_next_header(r->archive, &entry);
    if (archive_filter_code(r->archive, 0) != filters[r->kind.packing].code)
        return error_set(err, ERROR_INPUT, reader_path(r), "name it after what it is, or make it again",
                         "its name says %s, but its content is not", filters[r->kind.packing].name);
    if (rc == ARCHIVE_EOF) {
        /* Nothing came out: an empty text, or a stream cut within its first block. */
        if (archive_errno(r->archive) != 0)
            return archive_failed(r, err);
        r->source_ended = true;
        return 0;
    }
    return rc == ARCHIVE_OK ? 0 : archive_failed(r, err);
}

static int open_source(struct text_reader *r, struct error *err)
{
    const char *path = reader_path(r);
    r->start = r->end = r->scanned = 0;
    r->source_ended = false;
    r->line = 0;
    r->file_items = 0;
    if (text_kind_of(path, &r->kind) != 0)
        return error_set(err, ERROR_INPUT, path, "give it a name that ends in .jsonl or .txt",
                         "cannot tell from the name what kind of text it holds");
    r->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0)
        return input_errno(err, errno, path, "read the text file");
    return r->kind.packing == TEXT_PLAIN ? 0 : open_archive(r, err);
}

/* Reads a chunk behind `end`, making room first. Sets source_ended at the end. */
static int fill(struct text_reader *r, struct error *err)
{
    if (r->start > 0) {
        memmove(r->buffer, r->buffer + r->start, r->end - r->start);
        r->end -= r->start;
        r->scanned -= r->start;
        r->start = 0;
    }
    if (r->end >= item_limit)
        return error_set(err, ERROR_INPUT, reader_path(r), "split it into smaller documents",
                         "a document longer than 2 GiB stands %s", r->kind.jsonl ? "in one line" : "in it");
    if (r->capacity - r->end < READ_CHUNK) {
        size_t capacity = r->capacity * 2;
        uint8_t *buffer = realloc(r->buffer, capacity);
        if (!buffer)
            return error_memory(err, capacity, "a long line of text");
        r->buffer = buffer;
        r->capacity = capacity;
    }
    ssize_t n;
    if (r->archive) {
        do
            n = archive_read_data(r->archive, r->buffer + r->end, READ_CHUNK);
        while (n == ARCHIVE_RETRY);
        if (n < 0)
            return archive_failed(r, err);
    } else {
        do
            n = read(r->fd, r->buffer + r->end, READ_CHUNK);
        while (n < 0 && errno == EINTR);
        if (n < 0)
            return input_errno(err, errno, reader_path(r), "read the text file");
    }
    if (n == 0)
        r->source_ended = true;
    r->end += (size_t)n;
    return 0;
}

static int skip_byte_order_mark(struct text_reader *r, struct error *err)
{
    while (r->end < 3 && !r->source_ended)
        if (fill(r, err) != 0)
            return -1;
    if (r->end >= 3 && memcmp(r->buffer, "\xef\xbb\xbf", 3) == 0)
        r->start = r->scanned = 3;
    return 0;
}

/* Cuts the next line out of the buffer. 1: there is one, 0: the file's end. */
static int cut_line(struct text_reader *r, const char **data, size_t *size, struct error *err)
{
    for (;;) {
        const uint8_t *found = NULL;
        if (r->end > r->scanned)
            found = memchr(r->buffer + r->scanned, '\n', r->end - r->scanned);
        if (found || (r->source_ended && r->end > r->start)) {
            size_t stop = found ? (size_t)(found - r->buffer) : r->end;
            *data = (const char *)r->buffer + r->start;
            *size = stop - r->start;
            if (*size > 0 && (*data)[*size - 1] == '\r')
                --*size;
            r->start = r->scanned = found ? stop + 1 : stop;
            r->line++;
            return 1;
        }
        if (r->source_ended)
            return 0;
        r->scanned = r->end;
        if (fill(r, err) != 0)
            return -1;
    }
}

static bool is_blank(const char *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (data[i] != ' ' && data[i] != '\t' && data[i] != '\r')
            return false;
    return true;
}

/* 1: *item is set, 0: this file holds no more. */
static int next_of_file(struct text_reader *r, struct text_item *item, struct error *err)
{
    int got;
    if (r->kind.jsonl) {
        while ((got = cut_line(r, &item->data, &item->size, err)) == 1 && is_blank(item->data, item->size))
            r->blank_lines++;
        item->line = r->line;
    } else {
        if (r->file_items > 0)
            return 0;
        while (!r->source_ended)
            if (fill(r, err) != 0)
                return -1;
        item->data = (const char *)r->buffer + r->start;
        item->size = r->end - r->start;
        item->line = 0;
        got = item->size > 0;
    }
    if (got == 1) {
        item->path = reader_path(r);
        item->file = r->file;
        r->file_items++;
    } else if (got == 0 && r->file_items == 0)
        return error_set(err, ERROR_INPUT, reader_path(r), "remove it from the list, or fill it",
                         r->line > 0 ? "the file holds nothing but blank lines" : "the file is empty");
    return got;
}

int text_reader_next(struct text_reader *r, struct text_item *item, struct error *err)
{
    memset(item, 0, sizeof *item);
    while (r->file < r->files->count) {
        if (r->fd < 0 && (open_source(r, err) != 0 || skip_byte_order_mark(r, err) != 0)) {
            close_source(r);
            return -1;
        }
        int got = next_of_file(r, item, err);
        if (got != 0)
            return got;
        close_source(r);
        r->file++;
    }
    return 0;
}

int64_t text_reader_blank_lines(const struct text_reader *r)
{
    return r->blank_lines;
}

int64_t text_reader_bytes(const struct text_reader *r)
{
    if (r->fd < 0)
        return r->bytes_done;
    off_t at = lseek(r->fd, 0, SEEK_CUR);
    return r->bytes_done + (at > 0 ? (int64_t)at : 0);
}

int64_t text_reader_total_bytes(const struct text_reader *r)
{
    return r->bytes_total;
}
