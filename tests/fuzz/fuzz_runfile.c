/* The run file, and behind NUL bytes overrides: what is accepted is written out, and read back as the same.
 */
#include "fuzz/input.h"

#include "config/runfile.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_OVERRIDES = 4 };

static void write_and_read(const struct run_config *config)
{
    struct strbuf first = {0}, second = {0};
    struct error_list errors = {0};
    struct run_config again;
    run_config_write(config, &first);
    FUZZ_CHECK(!first.failed);
    int status = run_config_parse("written.yaml", first.data, first.length, NULL, 0, &again, &errors);
    FUZZ_CHECK(status == 0 && errors.count == 0);
    run_config_write(&again, &second);
    FUZZ_CHECK(first.length == second.length && memcmp(first.data, second.data, first.length) == 0);
    FUZZ_CHECK(run_config_difference(config, &again, NULL, 0, &errors) == 0);
    run_config_free(&again);
    error_list_free(&errors);
    strbuf_free(&first);
    strbuf_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_part rest = {data, size}, file = fuzz_part(&rest);
    struct error_list errors = {0};
    struct run_config config;
    char *overrides[MOST_OVERRIDES];
    int64_t count = 0;
    while (rest.size > 0 && count < MOST_OVERRIDES) {
        struct fuzz_part part = fuzz_part(&rest);
        overrides[count] = strndup(part.size > 0 ? (const char *)part.data : "", part.size);
        FUZZ_CHECK(overrides[count]);
        count++;
    }
    if (run_config_parse("run.yaml", file.data, file.size, (const char *const *)overrides, count, &config,
                         &errors) == 0) {
        FUZZ_CHECK(errors.count == 0);
        write_and_read(&config);
        run_config_free(&config);
    } else {
        FUZZ_CHECK(errors.count > 0 && errors.lost == 0);
        for (int64_t i = 0; i < errors.count; i++)
            FUZZ_CHECK(errors.items[i].kind == ERROR_INPUT && errors.items[i].what[0] != '\0');
    }
    error_list_free(&errors);
    for (int64_t i = 0; i < count; i++)
        free(overrides[i]);
    return 0;
}
