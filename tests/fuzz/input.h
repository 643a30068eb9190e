/* Inputs of the fuzz harnesses as files, for parsers that take a path.
 *
 *     struct fuzz_directory d;
 *     fuzz_directory_make(&d);
 *     fuzz_directory_put(&d, "config.json", data, size);
 *     … model_load_config(&model, d.path, …)
 *     fuzz_directory_remove(&d);
 *
 * Directories are made in $TMPDIR, else /dev/shm, else /tmp. An input that stands for several files is cut at
 * NUL bytes (fuzz_part). What goes wrong here is no finding: it ends the process with a message and status 1.
 */
#ifndef TERCET_TESTS_FUZZ_INPUT_H
#define TERCET_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

/* What a harness defines: looks at one input, returns 0. libFuzzer calls it, or replay.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_directory {
    char path[200];
};

void fuzz_directory_make(struct fuzz_directory *d);
/* `name` is relative; its directory is made where it has one. A file that is there is replaced. */
void fuzz_directory_put(const struct fuzz_directory *d, const char *name, const void *data, size_t size);
void fuzz_directory_remove(const struct fuzz_directory *d);

/* A file in memory: `path` (/proc/self/fd/N) can be opened until fuzz_memory_close. */
struct fuzz_memory {
    int fd;
    char path[40];
};
void fuzz_memory_open(struct fuzz_memory *m, const void *data, size_t size);
void fuzz_memory_close(const struct fuzz_memory *m);

struct fuzz_part {
    const uint8_t *data;
    size_t size;
};
/* Takes the bytes before the next NUL off *rest, and the NUL; all of them where there is none. */
struct fuzz_part fuzz_part(struct fuzz_part *rest);

/* A property that must hold, whatever the input: abort() where it does not, which is a finding. */
#define FUZZ_CHECK(condition)                                                                                \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fuzz_broken(__FILE__, __LINE__, #condition);                                                     \
    } while (0)
_Noreturn void fuzz_broken(const char *file, int line, const char *condition);

#endif
