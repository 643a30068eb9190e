/* Decoding with a cache: logits against PyTorch's (tests/goldens/README.md has the bounds), the same bits
 * however a sequence is cut, what is refused, and no allocation on the way. */
#include "infer/decoder.h"

#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"
#include "train/weights.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 74, PIECES = 8, MAX_VOCAB = 331 };

static const double u = 0x1p-24;
static const char *const cases[] = {"gqa", "tied_llama3", "bias_linear"};
static const char *const backends[] = {"reference", "guarded-reference", "cpu", "guarded"};
enum { CASES = sizeof cases / sizeof *cases, BACKENDS = sizeof backends / sizeof *backends };

/* A decoder on the weights of one golden, made inside comm_run, which cmocka's longjmp must not leave: checks
 * there return -1 with the reason. */
struct fixture {
    const char *name, *backend;
    struct decoder_options options;
    int (*check)(struct fixture *f, struct error *err);
    const char *weights; /* their directory; NULL: the golden's */
    int threads;
    struct model *model;
    struct backend *be;
    struct comm *comm;
    struct decoder *decoder;
    int64_t vocab;
    uint32_t ids[TOKENS];
    int32_t pieces[PIECES][4];
    struct safetensors expected;
};

static int open_batch(struct fixture *f, const char *directory, struct error *err)
{
    char path[600];
    struct safetensors batch;
    int32_t ids[TOKENS];
    snprintf(path, sizeof path, "%s/batch.safetensors", directory);
    if (safetensors_open(&batch, path, err) != 0)
        return -1;
    int status = safetensors_get(safetensors_find(&batch, "ids"), 0, TOKENS, DTYPE_I32, ids, err);
    if (status == 0)
        status =
            safetensors_get(safetensors_find(&batch, "pieces"), 0, 4 * PIECES, DTYPE_I32, f->pieces, err);
    for (int i = 0; status == 0 && i < TOKENS; i++)
        f->ids[i] = (uint32_t)ids[i];
    safetensors_close(&batch);
    snprintf(path, sizeof path, "%s/expected.safetensors", directory);
    return status == 0 ? safetensors_open(&f->expected, path, err) : -1;
}

static int load(struct fixture *f, const char *directory, struct error *err)
{
    struct safetensors_set set;
    if (weights_open(&set, f->model, f->weights ? f->weights : directory, NULL, err) != 0)
        return -1;
    int status = decoder_load(f->decoder, &set, err);
    safetensors_set_close(&set);
    return status;
}

static int body(struct comm *comm, void *context, struct error *err)
{
    struct fixture *f = context;
    char directory[512];
    struct backend_options be = {.name = f->backend, .isa = "auto", .threads = f->threads ? f->threads : 2};
    snprintf(directory, sizeof directory, "%s/%s", TEST_GOLDENS, f->name);
    f->comm = comm;
    int status = model_load_config(&f->model, directory, NULL, err);
    if (status == 0)
        status = backend_create(&f->be, &be, err);
    if (status == 0)
        status = open_batch(f, directory, err);
    if (status == 0)
        status = decoder_create(&f->decoder, f->model, comm, f->be, &f->options, err);
    if (status == 0)
        status = load(f, directory, err);
    if (status == 0) {
        f->vocab = f->model->config.vocab_size;
        status = f->check(f, err);
    }
    safetensors_close(&f->expected);
    decoder_free(f->decoder);
    backend_destroy(f->be);
    model_free(f->model);
    return status == 0 ? 0 : (int)err->kind;
}

static int run(struct fixture *f, struct error *err)
{
    return comm_run(1, COMM_AUTO, NULL, body, f, err);
}

static void run_or_fail(struct fixture f)
{
    struct error err = {0};
    if (run(&f, &err) == 0)
        return;
    char text[2100];
    error_format(&err, text, sizeof text);
    fail_msg("%s on %s: %s", f.name, f.backend, text);
}

static int wrong(struct error *err, const char *what)
{
    return error_set(err, ERROR_RUN, NULL, NULL, "%s", what);
}

/* Collects rows of logits, and sees that positions come in order. */
struct rows {
    float *values;
    int64_t vocab, count, first;
};

static int collect(void *context, int64_t position, const float *logits, struct error *err)
{
    struct rows *r = context;
    if (position != r->first + r->count)
        return wrong(err, "a position out of order");
    memcpy(r->values + r->count++ * r->vocab, logits, (size_t)r->vocab * sizeof *logits);
    return 0;
}

/* Feeds n ids in calls of the given sizes, taken in turn, and keeps all logits. */
static int feed_cut(struct decoder *d, const uint32_t *ids, int64_t n, const int *sizes, int count,
                    struct rows *rows, struct error *err)
{
    int64_t length = decoder_length(d);
    for (int64_t at = 0, i = 0; at < n; i++) {
        int64_t now = sizes[i % count] < n - at ? sizes[i % count] : n - at;
        if (decoder_feed_all(d, ids + at, now, collect, rows, err) != 0)
            return -1;
        at += now;
        if (decoder_length(d) != length + at)
            return wrong(err, "the length is not the number of tokens fed");
    }
    return 0;
}

static double relative(const float *got, const float *want, int64_t n)
{
    double d = 0, s = 0;
    for (int64_t i = 0; i < n; i++) {
        d += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        s += (double)want[i] * (double)want[i];
    }
    return sqrt(d / s);
}

static float value_of(const struct fixture *f, const char *name)
{
    float x = NAN;
    safetensors_get(safetensors_find(&f->expected, name), 0, 1, DTYPE_F32, &x, NULL);
    return x;
}

static int differs(struct error *err, const char *what, double error, double bound)
{
    return error_set(err, ERROR_RUN, NULL, NULL, "%s: relative error %g, bound %g", what, error, bound);
}

/* Each piece of the golden batch is a document of its own: fed as one, its logits are those of the batch. */
static int check_golden(struct fixture *f, struct error *err)
{
    static const int sizes[] = {3, 1, 9, 2};
    static float got[TOKENS * MAX_VOCAB], want[TOKENS * MAX_VOCAB];
    int64_t n = TOKENS * f->vocab;
    for (int p = 0; p < PIECES; p++) {
        struct rows rows = {got + f->pieces[p][0] * f->vocab, f->vocab, 0, 0};
        decoder_reset(f->decoder);
        if (feed_cut(f->decoder, f->ids + f->pieces[p][0], f->pieces[p][1], sizes, 4, &rows, err) != 0)
            return -1;
    }
    if (safetensors_get(safetensors_find(&f->expected, "logits"), 0, n, DTYPE_F32, want, err) != 0)
        return -1;
    double error = relative(got, want, n);
    if (f->options.compute == DTYPE_F32) {
        double bound = 4 * (double)value_of(f, "err.logits") + u;
        return error <= bound ? 0 : differs(err, "logits", error, bound);
    }
    double own = (double)value_of(f, "err.bf16_logits");
    if (!(error <= 2 * own) || error < 0.1 * own)
        return differs(err, "bf16 logits", error, 2 * own);
    if (safetensors_get(safetensors_find(&f->expected, "bf16_logits"), 0, n, DTYPE_F32, want, err) != 0)
        return -1;
    error = relative(got, want, n);
    return error <= 3 * own ? 0 : differs(err, "bf16 logits against PyTorch's", error, 3 * own);
}

static void test_goldens(void **state)
{
    (void)state;
    for (int b = 0; b < BACKENDS; b++)
        for (int c = 0; c < CASES; c++)
            for (int bf16 = 0; bf16 < 2; bf16++)
                run_or_fail((struct fixture){.name = cases[c],
                                             .backend = backends[b],
                                             .options = {.compute = bf16 ? DTYPE_BF16 : DTYPE_F32,
                                                         .capacity = 40,
                                                         .chunk = 7,
                                                         .logits_rows = 3},
                                             .check = check_golden});
}

enum { LONG = 60 };

/* Another decoder on the same weights. */
static int second(struct fixture *f, struct decoder_options options, struct decoder **out, struct error *err)
{
    char directory[512];
    struct decoder *first = f->decoder;
    snprintf(directory, sizeof directory, "%s/%s", TEST_GOLDENS, f->name);
    options.compute = f->options.compute;
    if (decoder_create(out, f->model, f->comm, f->be, &options, err) != 0)
        return -1;
    f->decoder = *out;
    int status = load(f, directory, err);
    f->decoder = first;
    if (status != 0)
        decoder_free(*out);
    return status;
}

/* One pass over 60 tokens, and the same tokens in other calls, chunks, rows of logits and capacities. */
static int check_cuts(struct fixture *f, struct error *err)
{
    static float whole[LONG * MAX_VOCAB], parts[LONG * MAX_VOCAB], last[MAX_VOCAB];
    static const struct {
        struct decoder_options options;
        int sizes[3];
    } cuts[] = {{{.capacity = 60, .chunk = 60}, {60, 60, 60}},
                {{.capacity = 60, .chunk = 60, .logits_rows = 60}, {1, 1, 1}},
                {{.capacity = 61, .chunk = 1}, {60, 60, 60}},
                {{.capacity = 64, .chunk = 16, .logits_rows = 5}, {59, 1, 1}},
                {{.capacity = 64, .chunk = 17, .logits_rows = 17}, {2, 31, 5}}};
    size_t bytes = (size_t)(LONG * f->vocab) * sizeof(float);
    struct rows all = {whole, f->vocab, 0, 0};
    if (decoder_feed_all(f->decoder, f->ids, LONG, collect, &all, err) != 0)
        return -1;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct decoder *d;
        struct rows rows = {parts, f->vocab, 0, 0};
        if (second(f, cuts[i].options, &d, err) != 0)
            return -1;
        memset(parts, 0xff, bytes);
        int status = feed_cut(d, f->ids, LONG, cuts[i].sizes, 3, &rows, err);
        if (status == 0 && memcmp(whole, parts, bytes) != 0)
            status = error_set(err, ERROR_RUN, NULL, NULL, "cut %zu changes bits: relative error %g", i,
                               relative(parts, whole, LONG * f->vocab));
        decoder_reset(d);
        if (status == 0)
            status = decoder_feed(d, f->ids, 20, NULL, err);
        if (status == 0)
            status = decoder_feed(d, f->ids + 20, 13, last, err);
        if (status == 0 && memcmp(last, whole + 32 * f->vocab, (size_t)f->vocab * sizeof(float)) != 0)
            status = wrong(err, "after a reset the last logits are others");
        decoder_free(d);
        if (status != 0)
            return -1;
    }
    return 0;
}

static void test_cuts(void **state)
{
    (void)state;
    for (int b = 0; b < BACKENDS; b++)
        for (int c = 0; c < CASES; c++)
            for (int bf16 = 0; bf16 < 2; bf16++)
                run_or_fail(
                    (struct fixture){.name = cases[c],
                                     .backend = backends[b],
                                     .options = {.compute = bf16 ? DTYPE_BF16 : DTYPE_F32, .capacity = 64},
                                     .threads = 1 + c,
                                     .check = check_cuts});
}

static int is_refused(int status, const struct error *err, const char *part)
{
    return status == -1 && err->kind == ERROR_INPUT && strstr(err->what, part) != NULL;
}

static int check_refusals(struct fixture *f, struct error *err)
{
    static float a[MAX_VOCAB], b[MAX_VOCAB];
    struct decoder *d = f->decoder;
    struct error e = {0};
    uint32_t beyond[] = {5, (uint32_t)f->vocab, 5};
    if (decoder_feed(d, f->ids, 5, NULL, err) != 0)
        return -1;
    if (!is_refused(decoder_feed(d, beyond, 3, a, &e), &e, "token id 331 at place 1") ||
        !is_refused(decoder_feed(d, f->ids, 0, a, &e), &e, "no tokens") ||
        !is_refused(decoder_feed(d, f->ids, -1, a, &e), &e, "no tokens") ||
        !is_refused(decoder_feed(d, f->ids, 6, a, &e), &e, "more than the context of 10"))
        return error_set(err, ERROR_RUN, NULL, NULL, "not refused as it should be: %s", e.what);
    /* None of them left a trace. */
    if (decoder_length(d) != 5 || decoder_feed(d, f->ids + 5, 5, a, err) != 0)
        return -1;
    if (!is_refused(decoder_feed(d, f->ids, 1, a, &e), &e, "more than the context"))
        return wrong(err, "a full cache took another token");
    decoder_reset(d);
    if (decoder_length(d) != 0 || decoder_feed(d, f->ids, 10, b, err) != 0)
        return -1;
    return memcmp(a, b, (size_t)f->vocab * sizeof *a) == 0 ? 0
                                                           : wrong(err, "a refused call changed the logits");
}

static int check_nothing(struct fixture *f, struct error *err)
{
    (void)f;
    (void)err;
    return 0;
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        struct decoder_options options;
        const char *what;
    } wrongs[] = {{{.compute = DTYPE_F32, .capacity = 65}, "max_position_embeddings"},
                  {{.compute = DTYPE_F32, .capacity = INT64_MAX}, "max_position_embeddings"},
                  {{.compute = DTYPE_F32, .capacity = 0}, "too short"},
                  {{.compute = DTYPE_F32, .capacity = -3}, "too short"},
                  {{.compute = DTYPE_F16, .capacity = 8}, "fp16"}};
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct fixture f = {
            .name = "gqa", .backend = "reference", .options = wrongs[i].options, .check = check_nothing};
        struct error err = {0};
        int status = run(&f, &err);
        if (!is_refused(status == 0 ? 0 : -1, &err, wrongs[i].what))
            fail_msg("options %zu: %s", i, err.what);
    }
    run_or_fail((struct fixture){.name = "gqa",
                                 .backend = "guarded-reference",
                                 .options = {.compute = DTYPE_F32, .capacity = 10},
                                 .check = check_refusals});
}

/* The golden's weights with all of one tensor replaced. */
static void write_weights(const char *directory, const char *golden, const char *tensor, float value)
{
    char path[600];
    struct safetensors_set set;
    struct safetensors_plan plan = {0};
    struct safetensors_writer writer;
    snprintf(path, sizeof path, "%s/%s", TEST_GOLDENS, golden);
    assert_int_equal(safetensors_set_open(&set, path, NULL), 0);
    for (int64_t i = 0; i < set.count; i++)
        assert_int_equal(safetensors_plan_add(&plan, set.tensors[i]->name, DTYPE_F32, set.tensors[i]->rank,
                                              set.tensors[i]->shape, NULL),
                         0);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    assert_int_equal(safetensors_writer_open(&writer, path, &plan, NULL), 0);
    for (int64_t i = 0; i < set.count; i++) {
        const struct safetensors_tensor *t = set.tensors[i];
        float *values = malloc((size_t)t->elements * sizeof *values);
        assert_non_null(values);
        assert_int_equal(safetensors_get(t, 0, t->elements, DTYPE_F32, values, NULL), 0);
        for (int64_t j = 0; j < t->elements && strcmp(t->name, tensor) == 0; j++)
            values[j] = value;
        assert_int_equal(safetensors_writer_write(&writer, values, (size_t)t->bytes, NULL), 0);
        free(values);
    }
    assert_int_equal(safetensors_writer_commit(&writer, NULL, NULL, NULL), 0);
    safetensors_plan_free(&plan);
    safetensors_set_close(&set);
}

static int check_not_finite(struct fixture *f, struct error *err)
{
    static float logits[MAX_VOCAB];
    struct error e = {0};
    if (decoder_feed(f->decoder, f->ids, 12, logits, &e) == 0)
        return wrong(err, "logits that are not finite were handed out");
    if (e.kind != ERROR_RUN || !strstr(e.what, "position 11") || !strstr(e.remedy, "weights"))
        return error_set(err, ERROR_RUN, NULL, NULL, "another message was expected than: %s", e.what);
    return 0;
}

static void test_not_finite(void **state)
{
    (void)state;
    /* Weights that are not finite are refused when they are read; these overflow on the way. */
    static const float values[] = {FLT_MAX, -FLT_MAX};
    static const char *const tensors[] = {"model.norm.weight", "lm_head.weight"};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
            struct scratch scratch;
            scratch_open(&scratch);
            write_weights(scratch.directory, "gqa", tensors[t], values[v]);
            run_or_fail(
                (struct fixture){.name = "gqa",
                                 .backend = "reference",
                                 .options = {.compute = t == 0 ? DTYPE_F32 : DTYPE_BF16, .capacity = 20},
                                 .check = check_not_finite,
                                 .weights = scratch.directory});
            scratch_close(&scratch);
        }
    }
}

static int check_allocations(struct fixture *f, struct error *err)
{
    static float logits[MAX_VOCAB];
    static const int sizes[] = {9, 1, 1, 4};
    for (int round = 0; round < 2; round++) {
        int64_t before = allocations_count();
        decoder_reset(f->decoder);
        for (int64_t at = 0, i = 0; at < 40; at += sizes[i++ % 4])
            if (decoder_feed(f->decoder, f->ids + at, sizes[i % 4], logits, err) != 0)
                return -1;
        /* A backend may prepare itself when it meets a shape for the first time. */
        if ((round == 1 || strcmp(f->backend, "reference") == 0) && allocations_count() != before)
            return error_set(err, ERROR_RUN, NULL, NULL, "%lld allocations while decoding",
                             (long long)(allocations_count() - before));
    }
    const struct decoder_memory *m = decoder_memory(f->decoder);
    int64_t weights = dtype_bytes(f->options.compute, model_parameter_count(f->model));
    /* Keys and values of 50 tokens in two blocks, one head of 12 each. */
    int64_t cache = 2 * 2 * dtype_bytes(f->options.compute, 50 * 12);
    if (m->weights != weights || m->cache < cache || m->cache >= cache + 4 * 64 || m->work <= 0)
        return wrong(err, "the memory is not what the sizes come to");
    return 0;
}

static void test_allocations(void **state)
{
    (void)state;
    static const char *const unguarded[] = {"reference", "cpu"};
    for (int b = 0; b < 2; b++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            run_or_fail((struct fixture){
                .name = "gqa",
                .backend = unguarded[b],
                .options = {.compute = bf16 ? DTYPE_BF16 : DTYPE_F32, .capacity = 50, .chunk = 9},
                .check = check_allocations});
}

/* Every allocation of decoder_create fails once: an error, and nothing lost (the leak checker looks). */
static int check_memory_short(struct fixture *f, struct error *err)
{
    for (int64_t n = 0; n < 100000; n++) {
        struct decoder *d;
        struct error e = {0};
        allocations_fail_after(n);
        int status = decoder_create(&d, f->model, f->comm, f->be, &f->options, &e);
        allocations_fail_after(-1);
        if (status == 0) {
            decoder_free(d);
            return n > 20 ? 0 : wrong(err, "there were hardly any allocations");
        }
        if (e.kind != ERROR_RUN || d)
            return error_set(err, ERROR_RUN, NULL, NULL, "allocation %lld: %s", (long long)n, e.what);
    }
    return wrong(err, "it never worked");
}

static void test_memory_short(void **state)
{
    (void)state;
    run_or_fail((struct fixture){.name = "tied_llama3",
                                 .backend = "reference",
                                 .options = {.compute = DTYPE_F32, .capacity = 10},
                                 .check = check_memory_short});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),     cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_allocations), cmocka_unit_test(test_memory_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
