#include "data/name.h"
#include "data/reader.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *suffix;
    enum text_packing packing;
} packings[] = {{".gz", TEXT_GZIP}, {".zst", TEXT_ZSTD}, {".xz", TEXT_XZ}};

static const struct {
    const char *suffix;
    bool jsonl;
} contents[] = {{".jsonl", true},      {".json", true},      {".ndjson", true},
                {".json-lines", true}, {".jsonlines", true}, {".txt", false}};

static bool ends_with(const char *text, size_t n, const char *suffix)
{
    size_t m = strlen(suffix);
    return n > m && strncasecmp(text + n - m, suffix, m) == 0;
}

int text_kind_of(const char *path, struct text_kind *out)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    out->packing = TEXT_PLAIN;
    for (size_t i = 0; i < sizeof packings / sizeof packings[0]; i++) {
        if (ends_with(name, n, packings[i].suffix)) {
            out->packing = packings[i].packing;
            n -= strlen(packings[i].suffix);
            break;
        }
    }
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
        if (ends_with(name, n, contents[i].suffix)) {
            out->jsonl = contents[i].jsonl;
            return 0;
        }
    }
    return -1;
}

static int add_path(struct text_files *files, int64_t *capacity, const char *path, struct error *err)
{
    struct text_kind kind;
    struct stat st;
    if (stat(path, &st) != 0 || access(path, R_OK) != 0) {
        error_errno(err, errno, path, "read the text file");
        goto input;
    }
    if (!S_ISREG(st.st_mode))
        return error_set(err, ERROR_INPUT, path,
                         S_ISDIR(st.st_mode) ? "name the files in it, as in DIRECTORY/*.jsonl"
                                             : "write the text to a file first",
                         S_ISDIR(st.st_mode) ? "is a directory, where a text file is needed"
                                             : "is not a regular file");
    if (text_kind_of(path, &kind) != 0)
        return error_set(err, ERROR_INPUT, path,
                         "give it a name that ends in .jsonl or .txt, with .gz, .zst or .xz behind it where "
                         "it is compressed",
                         "cannot tell from the name what kind of text it holds");
    if (files->count == *capacity) {
        int64_t grown = *capacity ? 2 * *capacity : 16;
        char **paths = realloc(files->paths, (size_t)grown * sizeof *paths);
        if (!paths)
            return error_memory(err, (size_t)grown * sizeof *paths, "the list of text files");
        files->paths = paths;
        *capacity = grown;
    }
    files->paths[files->count] = strdup(path);
    if (!files->paths[files->count])
        return error_memory(err, strlen(path) + 1, "the list of text files");
    files->count++;
    return 0;
input:
    if (err)
        err->kind = ERROR_INPUT;
    return -1;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_glob(struct text_files *files, int64_t *capacity, const char *pattern, struct error *err)
{
    glob_t found;
    int rc = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (rc != 0) {
        globfree(&found);
        if (rc == GLOB_NOMATCH)
            return error_set(err, ERROR_INPUT, pattern, "check the path", "no file matches this pattern");
        return error_set(err, rc == GLOB_NOSPACE ? ERROR_RUN : ERROR_INPUT, pattern,
                         rc == GLOB_NOSPACE ? "free some memory" : "check the permissions of its directories",
                         "cannot list the files that match this pattern");
    }
    /* glob's own order depends on the locale. */
    qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_paths);
    int result = 0;
    for (size_t i = 0; i < found.gl_pathc && result == 0; i++)
        result = add_path(files, capacity, found.gl_pathv[i], err);
    globfree(&found);
    return result;
}

int text_files_find(const char *const *patterns, int64_t count, struct text_files *out, struct error *err)
{
    memset(out, 0, sizeof *out);
    if (count <= 0)
        return error_set(err, ERROR_INPUT, NULL, "name at least one .jsonl or .txt file",
                         "no text files are given");
    int64_t capacity = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *pattern = patterns[i];
        struct stat st;
        bool plain = stat(pattern, &st) == 0 || !strpbrk(pattern, "*?[");
        if ((plain ? add_path : add_glob)(out, &capacity, pattern, err) != 0) {
            text_files_free(out);
            return -1;
        }
    }
    return 0;
}

void text_files_free(struct text_files *files)
{
    for (int64_t i = 0; i < files->count; i++)
        free(files->paths[i]);
    free(files->paths);
    memset(files, 0, sizeof *files);
}
