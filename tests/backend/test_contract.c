/* What every backend promises: checked calls, workspace that suffices for fewer tokens, no allocations once
 * prepared, a probe that tells backends apart, allocation failures reported. */
#include "shapes.h"

#include "support/allocations.h"

/* Everything that a call may be wrong in is refused before anything is touched. */
static void test_wrong_calls_are_refused(void **state)
{
    (void)state;
    struct trial t;
    struct signature_sizes sizes;
    struct error err;
    trial_make(&t, OP_LINEAR, &(struct trial_shape){.tokens = 3, .width = 5, .out = 4, .optional = true},
               DTYPE_F32);
    assert_int_equal(call_check(&t.call, true, &sizes, &err), 0);
    assert_int_equal(sizes.of['T'], 3);
    assert_int_equal(sizes.of['I'], 5);
    assert_int_equal(sizes.of['O'], 4);
    struct op_call call = t.call;
    call.op = OP_COUNT;
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    call = t.call;
    call.in[1].dim[1] = 6;
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    assert_non_null(strstr(err.what, "input 1"));
    call = t.call;
    call.in[1].type = DTYPE_BF16;
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    call = t.call;
    call.out[0].type = DTYPE_BF16; /* y is the compute type or fp32 */
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    call = t.call;
    call.in[0].data = NULL;
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    assert_int_equal(call_check(&call, false, &sizes, &err), 0);
    call = t.call;
    call.outputs = 0;
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    call = t.call;
    call.inputs = 4;
    call.in[3] = call.in[2];
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    call = t.call;
    call.in[0].ndim = 7;
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    call = t.call;
    call.in[0].dim[0] = call.out[0].dim[0] = -1;
    assert_int_equal(call_check(&call, true, &sizes, &err), -1);
    trial_free(&t);
}

static void refuse_attention(void (*spoil)(struct op_call *call))
{
    struct trial t;
    struct signature_sizes sizes;
    struct error err;
    struct trial_shape shape = {
        .tokens = 6, .heads = 4, .kv_heads = 2, .head_dim = 3, .pieces = {{0, 6, 0, 6}}, .piece_count = 1};
    trial_make(&t, OP_ATTENTION, &shape, DTYPE_F32);
    assert_int_equal(call_check(&t.call, true, &sizes, &err), 0);
    assert_int_equal(call_check_indices(&t.call, &sizes, &err), 0);
    spoil(&t.call);
    assert_int_equal(
        call_check(&t.call, true, &sizes, &err) != 0 || call_check_indices(&t.call, &sizes, &err) != 0, 1);
    trial_free(&t);
}

static void spoil_heads(struct op_call *c)
{
    c->attr.kv_heads = 3;
}

static void spoil_no_heads(struct op_call *c)
{
    c->attr.heads = 0;
}

static void spoil_head_dim(struct op_call *c)
{
    c->attr.head_dim = 4;
}

static void spoil_piece_end(struct op_call *c)
{
    operand_set(&c->in[3], 1, 7);
}

static void spoil_piece_start(struct op_call *c)
{
    operand_set(&c->in[3], 0, -1);
}

static void spoil_piece_keys(struct op_call *c)
{
    operand_set(&c->in[3], 3, 5);
}

static void test_wrong_attention_is_refused(void **state)
{
    (void)state;
    refuse_attention(spoil_heads);
    refuse_attention(spoil_no_heads);
    refuse_attention(spoil_head_dim);
    refuse_attention(spoil_piece_end);
    refuse_attention(spoil_piece_start);
    refuse_attention(spoil_piece_keys);
}

static void test_inout_inputs_must_be_the_output(void **state)
{
    (void)state;
    struct trial t;
    struct signature_sizes sizes;
    struct error err;
    trial_make(&t, OP_ACCUMULATE, &(struct trial_shape){.elements = 5}, DTYPE_F32);
    t.call.in[t.call.inputs++] = t.call.out[0];
    assert_int_equal(call_check(&t.call, true, &sizes, &err), 0);
    t.call.in[1] = t.call.in[0];
    assert_int_equal(call_check(&t.call, true, &sizes, &err), -1);
    t.call.inputs = 1;
    trial_free(&t);
}

static void test_unknown_names_are_refused(void **state)
{
    (void)state;
    struct backend *b;
    struct error err;
    assert_int_equal(backend_create(&b, &(struct backend_options){.name = "gpu", .threads = 1}, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_int_equal(backend_create(&b, &(struct backend_options){.name = "cpu", .threads = 0}, &err), -1);
    assert_int_equal(
        backend_create(&b, &(struct backend_options){.name = "cpu", .isa = "mmx", .threads = 1}, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    b = test_backend("cpu", NULL, 1);
    assert_int_equal(backend_record(b, 2, 0, &err), -1);
    assert_int_equal(backend_record(b, 0, BACKEND_EVENTS, &err), -1);
    assert_int_equal(backend_sync(b, -1, &err), -1);
    backend_destroy(b);
}

static bool counts_tokens(enum op op)
{
    return op != OP_ACCUMULATE && op != OP_SUM_SQUARES && op != OP_ADAMW && op != OP_CAST && op != OP_ADD &&
           op != OP_SWIGLU && op != OP_SWIGLU_GRAD;
}

/* A workspace asked for once serves every smaller number of tokens. */
static void test_workspace_serves_fewer_tokens(void **state)
{
    (void)state;
    struct backend *cpu = test_backend("cpu", NULL, 3);
    struct error err = {0};
    for (int i = 0; i < TRIALS; i++) {
        struct trial_shape shape = trials[i].shape;
        if (!counts_tokens(trials[i].op) || shape.tokens < 2)
            continue;
        size_t most = 0, bytes = 0;
        for (int64_t tokens = shape.tokens; tokens >= 1; tokens = tokens > 40 ? tokens - 13 : tokens - 1) {
            struct trial t;
            shape.tokens = tokens;
            trial_make(&t, trials[i].op, &shape, i % 2 ? DTYPE_BF16 : DTYPE_F32);
            must(backend_prepare(cpu, &t.call, &bytes, &err), &err);
            if (tokens == shape.tokens && most == 0)
                most = bytes;
            if (bytes > most)
                fail_msg("%s needs %zu bytes for %lld tokens, more than %zu", op_name(t.call.op), bytes,
                         (long long)tokens, most);
            trial_free(&t);
        }
    }
    backend_destroy(cpu);
}

/* No tokens at all: nothing to do, but sums over tokens are zeros. */
static void test_no_tokens(void **state)
{
    (void)state;
    static const char *const names[] = {"cpu", "reference", "guarded"};
    for (int n = 0; n < 3; n++) {
        struct backend *b = test_backend(names[n], NULL, 2);
        for (int i = 0; i < TRIALS; i++) {
            struct trial_shape shape = trials[i].shape;
            if (!counts_tokens(trials[i].op) || trials[i].op == OP_GATHER_ROWS)
                continue;
            shape.tokens = shape.piece_count = 0;
            struct trial t;
            struct result r;
            trial_make(&t, trials[i].op, &shape, DTYPE_F32);
            trial_run(b, &t, &r);
            bool sums = t.call.op == OP_EMBED_GRAD || t.call.op == OP_LINEAR_GRAD_WEIGHT ||
                        t.call.op == OP_LINEAR_GRAD_BIAS || t.call.op == OP_RMSNORM_GRAD_WEIGHT;
            const struct operand *sum = sums ? &r.out[0] : t.call.op == OP_LOSS_GRAD ? &r.out[1] : NULL;
            for (int64_t k = 0; sum && k < operand_elements(sum); k++)
                assert_true(operand_get(sum, k) == 0);
            result_free(&r);
            trial_free(&t);
        }
        backend_destroy(b);
    }
}

/* Prepared and run, a call allocates nothing: neither do transfers and waits. */
static void test_nothing_is_allocated_once_prepared(void **state)
{
    (void)state;
    static const char *const names[] = {"cpu", "reference", "guarded"};
    for (int n = 0; n < 3; n++) {
        struct backend *b = test_backend(names[n], NULL, 3);
        struct error err = {0};
        for (int i = 0; i < TRIALS; i++) {
            struct trial t;
            struct placed p;
            float host[1];
            trial_make(&t, trials[i].op, &trials[i].shape, i % 2 ? DTYPE_BF16 : DTYPE_F32);
            place(b, &t, &p);
            int64_t before = allocations_count();
            must(backend_run(b, 0, &p.call, &err), &err);
            must(backend_record(b, 0, 1, &err), &err);
            must(backend_stream_wait(b, 1, 1, &err), &err);
            if (operand_bytes(&p.call.out[0]) >= 4)
                must(backend_download(b, 1, host, p.call.out[0].data, 4, &err), &err);
            must(backend_sync(b, 1, &err), &err);
            must(backend_sync(b, 0, &err), &err);
            assert_int_equal(allocations_count() - before, 0);
            unplace(b, &p);
            trial_free(&t);
        }
        backend_destroy(b);
    }
}

static void test_probe(void **state)
{
    (void)state;
    struct error err = {0};
    uint64_t cpu[3], guarded, reference;
    for (int n = 0; n < 3; n++) {
        struct backend *b = test_backend("cpu", NULL, n + 1);
        must(backend_probe(b, &cpu[n], &err), &err);
        backend_destroy(b);
    }
    assert_true(cpu[0] == cpu[1] && cpu[1] == cpu[2]);
    struct backend *b = test_backend("guarded", NULL, 2);
    must(backend_probe(b, &guarded, &err), &err);
    backend_destroy(b);
    assert_true(guarded == cpu[0]);
    b = test_backend("reference", NULL, 1);
    must(backend_probe(b, &reference, &err), &err);
    backend_destroy(b);
    assert_true(reference != cpu[0]); /* other orders of addition */
}

/* Every allocation that fails is reported, and nothing is lost (a leak checker looks on). */
static void test_failing_allocations(void **state)
{
    (void)state;
    static const char *const names[] = {"cpu", "reference", "guarded"};
    for (int i = 0; i < 3; i++) {
        struct error err;
        struct backend *b = NULL;
        int status = -1;
        for (int64_t n = 0; status != 0; n++) {
            struct trial t;
            void *memory = NULL;
            size_t bytes;
            trial_make(&t, OP_LOSS_GRAD, &(struct trial_shape){.tokens = 20, .width = 6, .vocabulary = 700},
                       DTYPE_F32);
            err = (struct error){0};
            allocations_fail_after(n);
            status = backend_create(&b, &(struct backend_options){.name = names[i], .threads = 2}, &err);
            if (status == 0)
                status = backend_alloc(b, MEMORY_DEVICE, 1000, &memory, &err);
            if (status == 0)
                status = backend_prepare(b, &t.call, &bytes, &err);
            allocations_fail_after(-1);
            if (status != 0)
                assert_int_equal(err.kind, ERROR_RUN);
            if (b) {
                backend_free(b, memory);
                backend_destroy(b);
            }
            b = NULL;
            trial_free(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_calls_are_refused),
        cmocka_unit_test(test_wrong_attention_is_refused),
        cmocka_unit_test(test_inout_inputs_must_be_the_output),
        cmocka_unit_test(test_unknown_names_are_refused),
        cmocka_unit_test(test_workspace_serves_fewer_tokens),
        cmocka_unit_test(test_no_tokens),
        cmocka_unit_test(test_nothing_is_allocated_once_prepared),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests_name("contract", tests, NULL, NULL);
}
