/* A Hugging Face config.json: what is accepted makes graphs of every kind, and is written as one that is
 * accepted. */
#include "fuzz/input.h"

#include "models/model.h"

#include <math.h>

static void use(const struct model *m)
{
    struct graph *graph;
    struct error err;
    FUZZ_CHECK(model_parameter_count(m) > 0);
    FUZZ_CHECK(isfinite(model_flops_per_token(m, 1024)));
    for (int kind = 0; kind < m->kinds; kind++) {
        for (int mode = MODEL_TRAIN; mode <= MODEL_DECODE; mode++) {
            if (model_graph(m, kind, (enum model_mode)mode, mode == MODEL_TRAIN ? DTYPE_BF16 : DTYPE_F32,
                            &graph, &err) == 0)
                graph_free(graph);
            else
                FUZZ_CHECK(err.what[0] != '\0');
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_memory memory;
    struct model *m, *again;
    struct error err;
    fuzz_memory_open(&memory, data, size);
    if (model_load_config(&m, memory.path, NULL, &err) == 0) {
        use(m);
        json_t *written = model_config_json(m, DTYPE_BF16, 1, 2, -1);
        FUZZ_CHECK(written);
        FUZZ_CHECK(model_create(&again, written, "written.json", NULL, &err) == 0);
        FUZZ_CHECK(model_parameter_count(again) == model_parameter_count(m));
        json_decref(written);
        model_free(again);
        model_free(m);
    } else {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    }
    fuzz_memory_close(&memory);
    return 0;
}
