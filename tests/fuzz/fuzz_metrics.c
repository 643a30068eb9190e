/* metrics.jsonl as a run that goes on finds it, cut back to the step in the first byte: whole lines are left,
 * and doing so again changes nothing. */
#include "fuzz/input.h"

#include "train/metrics.h"

#include <stdlib.h>
#include <string.h>

static size_t open_and_read(const struct fuzz_directory *d, int64_t step, char **text)
{
    struct metrics m;
    struct error err;
    char path[300];
    size_t size;
    FUZZ_CHECK(metrics_open(&m, d->path, step, 1, false, &err) == 0);
    FUZZ_CHECK(m.last_evaluation <= step);
    FUZZ_CHECK(metrics_close(&m, &err) == 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", d->path);
    FUZZ_CHECK(file_read(path, SIZE_MAX / 2, text, &size, &err) == 0);
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_directory d;
    char *first, *second;
    if (size == 0)
        return 0;
    fuzz_directory_make(&d);
    fuzz_directory_put(&d, "metrics.jsonl", data + 1, size - 1);
    size_t n = open_and_read(&d, data[0], &first);
    FUZZ_CHECK(n < size);
    FUZZ_CHECK(n == 0 || first[n - 1] == '\n');
    FUZZ_CHECK(n == open_and_read(&d, data[0], &second));
    FUZZ_CHECK(n == 0 || memcmp(first, second, n) == 0);
    free(first);
    free(second);
    fuzz_directory_remove(&d);
    return 0;
}
