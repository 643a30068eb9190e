/* Errors: the one contract of the whole library.
 *
 * A function that can fail returns 0 when it worked and -1 when it did not; it then has filled the
 * caller's `struct error` with the place, the problem and the remedy. Library code never prints and
 * never exits: src/cli reports one error in one place. Assertions are for bugs, never for input.
 *
 *     if (file_map(path, &map, err) != 0)
 *         return -1;                       // err already says what went wrong
 *
 * Passing NULL for `err` is allowed everywhere: the failure is returned, its text is dropped. */
#ifndef TERCET_BASE_ERROR_H
#define TERCET_BASE_ERROR_H

#include <stddef.h>
#include <stdint.h>

/* The values are the exit statuses of the program. */
enum error_kind {
    ERROR_NONE = 0,
    ERROR_RUN = 1,   /* it failed while working: disk full, a lost rank, a non-finite loss */
    ERROR_INPUT = 2, /* wrong usage, configuration or input, found before work started */
};

struct error {
    enum error_kind kind;
    char where[512];  /* "run.yaml:12", "model.safetensors", "rank 2"; may be empty */
    char what[1024];  /* the problem, a sentence without the final stop */
    char remedy[512]; /* what to do about it, a sentence without the final stop; may be empty */
};

/* int error_set(struct error *err, enum error_kind kind, const char *where, const char *remedy,
 *               const char *what_format, ...);
 * Fills *err (cut, never overrun) and returns -1. `where` and `remedy` may be NULL; `what_format` is
 * a printf format and stands last so that its arguments follow. They may point into *err.
 *
 * A macro around the function below, so that compilers and static analysers see that -1 is returned, and
 * do not follow paths where an error was reported and yet nothing failed. */
#define error_set(...) (error_fill(__VA_ARGS__), error_returned())

void error_fill(struct error *err, enum error_kind kind, const char *where, const char *remedy,
                const char *what_format, ...) __attribute__((format(printf, 5, 6)));
void error_fill_errno(struct error *err, int errnum, const char *where, const char *doing);

static inline int error_returned(void)
{
    return -1;
}

/* As error_set with ERROR_RUN and the text of `errnum` (an errno value): "cannot <doing>: <text>".
 * Adds the usual remedy for ENOSPC, EACCES, ENOENT, ENOMEM, EMFILE and some others. Returns -1. */
static inline int error_errno(struct error *err, int errnum, const char *where, const char *doing)
{
    error_fill_errno(err, errnum, where, doing);
    return -1;
}

/* "cannot allocate <bytes> bytes for <what>", ERROR_RUN. Returns -1. */
static inline int error_memory(struct error *err, size_t bytes, const char *what)
{
    return error_set(err, ERROR_RUN, NULL, "free some memory, or ask for less",
                     "cannot allocate %zu bytes for %s", bytes, what);
}

/* Writes "where: what; remedy" (empty parts left out) to out[size], always terminated. */
void error_format(const struct error *err, char *out, size_t size);

/* Several errors found in one pass (every mistake of a run file at once). Zero-initialise; free with
 * error_list_free. Adding never fails: when memory runs out, the count goes on and `lost` is set. */
struct error_list {
    struct error *items;
    int64_t count, capacity, lost;
};
void error_list_add(struct error_list *list, const struct error *err);
void error_list_free(struct error_list *list);

#endif
