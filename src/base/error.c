#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where a text was cut in the middle of a UTF-8 sequence, drops the broken tail. */
static void trim_broken_utf8(char *text)
{
    size_t n = strlen(text);
    size_t start = n;
    while (start > 0 && n - start < 3 && ((unsigned char)text[start - 1] & 0xc0u) == 0x80u)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t wanted = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (wanted > n - (start - 1))
        text[start - 1] = '\0';
}

static void copy_cut(char *out, size_t size, const char *text)
{
    size_t n = text ? strnlen(text, size) : 0;
    bool cut = n == size;
    if (cut)
        n = size - 1;
    if (n > 0)
        memcpy(out, text, n);
    out[n] = '\0';
    if (cut)
        trim_broken_utf8(out);
}

void error_fill(struct error *err, enum error_kind kind, const char *where, const char *remedy,
                const char *what_format, ...)
{
    if (!err)
        return;
    /* Filled aside: the arguments may point into *err when one error wraps another. */
    struct error fresh;
    memset(&fresh, 0, sizeof fresh);
    fresh.kind = kind;
    copy_cut(fresh.where, sizeof fresh.where, where);
    copy_cut(fresh.remedy, sizeof fresh.remedy, remedy);
    va_list arguments;
    va_start(arguments, what_format);
    int n = vsnprintf(fresh.what, sizeof fresh.what, what_format, arguments);
    va_end(arguments);
    if (n < 0)
        fresh.what[0] = '\0';
    else if ((size_t)n >= sizeof fresh.what)
        trim_broken_utf8(fresh.what);
    *err = fresh;
}

static const char *errno_remedy(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT:
        return "free some space there, or choose another place";
    case EACCES:
    case EPERM:
        return "check the permissions of the file and of its directory";
    case EROFS:
        return "the file system is read-only: choose another place";
    case ENOENT:
        return "check the path";
    case ENOTDIR:
        return "a part of the path is a file where a directory is needed: check the path";
    case ENOMEM:
        return "free some memory, or ask for less";
    case ELOOP:
        return "mend the symbolic links on this path";
    case ENAMETOOLONG:
        return "choose a shorter path";
    case EFBIG:
        return "raise the limit of file sizes (ulimit -f)";
    case EAGAIN:
        return "raise the limit of processes (ulimit -u), or start fewer ranks or threads";
    case EMFILE:
    case ENFILE:
        return "raise the limit of open files (ulimit -n)";
    default:
        return NULL;
    }
}

void error_fill_errno(struct error *err, int errnum, const char *where, const char *doing)
{
    char buffer[256];
    const char *text = strerror_r(errnum, buffer, sizeof buffer);
    error_fill(err, ERROR_RUN, where, errno_remedy(errnum), "cannot %s: %s", doing, text);
}

void error_format(const struct error *err, char *out, size_t size)
{
    if (size == 0)
        return;
    int n = snprintf(out, size, "%s%s%s%s%s", err->where, err->where[0] && err->what[0] ? ": " : "",
                     err->what, err->remedy[0] && (err->where[0] || err->what[0]) ? "; " : "", err->remedy);
    if (n < 0)
        out[0] = '\0';
    else if ((size_t)n >= size)
        trim_broken_utf8(out);
}

void error_list_add(struct error_list *list, const struct error *err)
{
    if (list->count - list->lost == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 4;
        struct error *items = realloc(list->items, (size_t)capacity * sizeof *items);
        if (!items) {
            list->count++;
            list->lost++;
            return;
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count - list->lost] = *err;
    list->count++;
}

void error_list_free(struct error_list *list)
{
    free(list->items);
    memset(list, 0, sizeof *list);
}
