/* training/manifest.json of a checkpoint, and behind a NUL training/state.json. */
#include "fuzz/input.h"

#include "train/checkpoint_files.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_part rest = {data, size}, manifest = fuzz_part(&rest);
    struct fuzz_directory d;
    struct manifest_list list;
    struct checkpoint_state state;
    struct error err;
    char checkpoint[300], *newest;
    fuzz_directory_make(&d);
    fuzz_directory_put(&d, "checkpoint-000002/training/manifest.json", manifest.data, manifest.size);
    fuzz_directory_put(&d, "checkpoint-000002/training/state.json", rest.data, rest.size);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-000002", d.path);
    if (manifest_list_read(&list, checkpoint, &err) == 0) {
        FUZZ_CHECK(list.count > 0);
        manifest_list_free(&list);
    } else {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    }
    if (checkpoint_newest(d.path, &newest, &err) == 0) {
        FUZZ_CHECK(newest && strcmp(newest, checkpoint) == 0);
        free(newest);
    } else {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    }
    if (checkpoint_read_state(checkpoint, &state, &err) == 0)
        FUZZ_CHECK(state.step >= 0 && state.tokens_seen >= 0);
    else
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    fuzz_directory_remove(&d);
    return 0;
}
