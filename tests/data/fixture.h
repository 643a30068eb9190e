/* What the tests of this room share: a directory of their own, and files in it. */
#ifndef TERCET_TESTS_DATA_FIXTURE_H
#define TERCET_TESTS_DATA_FIXTURE_H

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <archive.h>
#include <archive_entry.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A fresh directory as *state, and the working directory of the test. */
static int enter_directory(void **state)
{
    char *path = strdup("/tmp/tercet-data-XXXXXX");
    if (!path || !mkdtemp(path) || chdir(path) != 0)
        return -1;
    *state = path;
    return 0;
}

static int leave_directory(void **state)
{
    int result = chdir("/") == 0 ? file_remove_tree(*state, NULL) : -1;
    free(*state);
    return result;
}

static inline void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

/* Compresses by the ending of the name: .gz, .zst, .xz, or not at all. Returns the file's size. */
static inline size_t put_packed(const char *path, const void *data, size_t n)
{
    const char *dot = strrchr(path, '.');
    struct archive *a = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    assert_non_null(a);
    assert_non_null(entry);
    if (strcmp(dot, ".gz") == 0)
        assert_int_equal(archive_write_add_filter_gzip(a), ARCHIVE_OK);
    else if (strcmp(dot, ".zst") == 0)
        assert_int_equal(archive_write_add_filter_zstd(a), ARCHIVE_OK);
    else if (strcmp(dot, ".xz") == 0)
        assert_int_equal(archive_write_add_filter_xz(a), ARCHIVE_OK);
    assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
    assert_int_equal(archive_write_set_bytes_in_last_block(a, 1), ARCHIVE_OK);
    assert_int_equal(archive_write_open_filename(a, path), ARCHIVE_OK);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_pathname(entry, "data");
    assert_int_equal(archive_write_header(a, entry), ARCHIVE_OK);
    const char *at = data;
    while (n > 0) {
        la_ssize_t put = archive_write_data(a, at, n);
        assert_true(put > 0);
        at += put;
        n -= (size_t)put;
    }
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_entry_free(entry);
    archive_write_free(a);
    struct file_map map;
    assert_int_equal(file_map(path, &map, NULL), 0);
    size_t size = map.size;
    file_unmap(&map);
    return size;
}

static inline void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, text);
}

#endif
