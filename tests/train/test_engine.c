/* An engine that cannot be made: each allocation on the way fails once, the last of all is the first that
 * does not matter. What leaks is the sanitizer's to find. */
#include "support/allocations.h"
#include "support/cmocka.h"
#include "train/engine.h"

#include <jansson.h>

struct trial {
    struct model *model;
    struct backend *backend;
    int64_t failed;
};

static const struct engine_options options = {
    .compute = DTYPE_BF16, .micro_batch = 1, .seq_len = 4, .stage = 3, .overlap = true};

static int body(struct comm *comm, void *context, struct error *err)
{
    struct trial *t = context;
    for (int status = -1; status != 0; t->failed++) {
        struct engine *e;
        struct error why = {0};
        allocations_fail_once(t->failed);
        status = engine_create(&e, t->model, comm, t->backend, &options, &why);
        allocations_fail_after(-1);
        if (status == 0 ? why.kind != ERROR_NONE : why.kind != ERROR_RUN || e || !why.what[0]) {
            error_set(err, ERROR_RUN, NULL, NULL, "allocation %d: status %d, \"%s\"", (int)t->failed, status,
                      why.what);
            return ERROR_RUN;
        }
        engine_free(e);
    }
    return 0;
}

static void test_no_memory(void **state)
{
    (void)state;
    struct error err = {0};
    struct trial t = {0};
    json_t *config = json_loads("{\"model_type\":\"llama\",\"vocab_size\":33,\"hidden_size\":20,"
                                "\"intermediate_size\":24,\"num_hidden_layers\":1,\"num_attention_heads\":2}",
                                0, NULL);
    assert_non_null(config);
    assert_int_equal(model_create(&t.model, config, "the test", NULL, &err), 0);
    json_decref(config);
    const struct backend_options cpu = {.name = "cpu", .isa = "auto", .threads = 1};
    assert_int_equal(backend_create(&t.backend, &cpu, &err), 0);
    if (comm_run(1, COMM_AUTO, NULL, body, &t, &err) != 0)
        fail_msg("%s", err.what);
    assert_in_range(t.failed, 30, 5000);
    backend_destroy(t.backend);
    model_free(t.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
