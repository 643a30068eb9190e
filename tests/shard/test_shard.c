/* Sharding on 1, 2, 3 and 5 ranks in shared memory, and with messages where there is MPI (this program starts
 * itself again under mpirun): for every stage, what is filled comes back, gather gives every rank the whole,
 * sums are the additions of micro-batches in global order, an update is that of one rank alone, and the
 * memory held is the planned one. Units have odd sizes; some ranks own nothing. */
#include "support/cmocka.h"

#include "shard/shard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNITS = 5, PARAMS = 4, MICRO = 7, LARGEST = 70001, STATES = 3 };

static const int64_t sizes[UNITS][PARAMS] = {
    {255, 7, 1}, {1024, 1, 2049, 15}, {5000, 1}, {1}, {LARGEST - 3, 3}};
static const int counts[UNITS] = {3, 4, 2, 1, 2};
static const bool decays[UNITS][PARAMS] = {
    {false, true, false}, {true, false, true, false}, {true, false}, {true}, {true, true}};

static void specs_make(struct shard_unit_spec out[UNITS])
{
    for (int u = 0; u < UNITS; u++)
        out[u] = (struct shard_unit_spec){counts[u], sizes[u], decays[u], u == 0};
}

static int64_t unit_elements(int unit)
{
    int64_t n = 0;
    for (int k = 0; k < counts[unit]; k++)
        n += sizes[unit][k];
    return n;
}

/* A cheap hash: a million numbers are wanted, and they need not be good ones. */
static uint64_t bits_of(int salt, int64_t e)
{
    uint64_t z = (uint64_t)e * 0x9e3779b97f4a7c15u + (uint64_t)salt * 0xd1342543de82ef95u;
    z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 32);
}

/* Element e of a unit's flat range. Second moments are positive. */
static float state_value(int salt, int kind, int unit, int64_t e)
{
    double x = (double)(bits_of(salt * 100 + kind * 10 + unit, e) % 2000003) / 1e6 - 1;
    return (float)(kind == SHARD_MOMENT2 ? fabs(x) : x);
}

/* Gradients of very different sizes: the order of additions shows in the last bits. */
static float gradient(int step, int micro, int unit, int64_t e)
{
    uint64_t bits = bits_of(50000 + step * 1000 + micro * 10 + unit, e);
    return ldexpf((float)(bits & 0xffffff) - 8e6f, (int)(bits >> 32) % 12 - 30);
}

static float serial_sum(int step, int unit, int64_t e, bool reverse)
{
    float sum = gradient(step, reverse ? MICRO - 1 : 0, unit, e);
    for (int m = 1; m < MICRO; m++)
        sum += gradient(step, reverse ? MICRO - 1 - m : m, unit, e);
    return sum;
}

static int failed_at(struct error *err, int line, const char *condition)
{
    char before[600] = "", where[32];
    if (err->kind != ERROR_NONE)
        snprintf(before, sizeof before, " (%.500s)", err->what);
    snprintf(where, sizeof where, "line %d", line);
    return error_set(err, ERROR_RUN, where, NULL, "%s%s", condition, before);
}

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return failed_at(err, __LINE__, #condition);                                                     \
    } while (0)

/* What one rank of a test has. `state` is what the shard should hold, as one rank alone computes it. */
struct trial {
    int stage, salt;
    enum dtype compute;
    const char *backend_name;
    struct comm *comm;
    struct backend *backend;
    struct shard *shard;
    float *state[STATES][UNITS];
    float *sums[UNITS]; /* of all micro-batches of a step, in order */
    float *host, *values;
};

static bool same(const float *a, const float *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static int fill(void *context, int unit, int param, int64_t first, int64_t n, float *out, struct error *err)
{
    const struct trial *t = ((void **)context)[0];
    int kind = *(int *)((void **)context)[1];
    CHECK(param < counts[unit] && first >= 0 && n >= 1 && first + n <= sizes[unit][param]);
    for (int k = 0; k < param; k++)
        first += sizes[unit][k];
    memcpy(out, t->state[kind][unit] + first, (size_t)n * sizeof *out);
    return 0;
}

static int fill_all(struct trial *t, int kinds, struct error *err)
{
    t->salt++;
    for (int kind = 0; kind < kinds; kind++) {
        void *context[] = {t, &kind};
        for (int u = 0; u < UNITS; u++)
            for (int64_t e = 0; e < unit_elements(u); e++)
                t->state[kind][u][e] = state_value(t->salt, kind, u, e);
        CHECK(shard_fill(t->shard, (enum shard_kind)kind, fill, context, err) == 0);
    }
    return 0;
}

struct sink {
    float *out;
    int64_t n, room;
};

static int sink_add(void *context, const float *values, int64_t n, struct error *err)
{
    struct sink *s = context;
    CHECK(s->n + n <= s->room);
    memcpy(s->out + s->n, values, (size_t)n * sizeof *values);
    s->n += n;
    return 0;
}

/* What this rank owns of a parameter, read in two pieces, is `expected`; *owned adds up to the whole over all
 * ranks. */
static int check_read(struct trial *t, enum shard_kind kind, int u, int k, const float *expected,
                      int64_t *owned, struct error *err)
{
    int64_t first, end;
    float *host = t->host;
    struct error reason = {0};
    shard_owned(t->shard, u, k, &first, &end);
    int64_t n = end - first, half = n / 2;
    CHECK(0 <= first && first <= end && end <= sizes[u][k]);
    CHECK(shard_read(t->shard, kind, u, k, first, half, host, err) == 0);
    CHECK(same(host, expected + first, half));
    CHECK(shard_read(t->shard, kind, u, k, first + half, n - half, host, err) == 0);
    CHECK(same(host, expected + first + half, n - half));
    CHECK(shard_read(t->shard, kind, u, k, end, 1, host, &reason) != 0);
    CHECK(n == 0 || shard_read(t->shard, kind, u, k, first - 1, 1, host, &reason) != 0);
    CHECK(shard_read(t->shard, SHARD_SUMS, u, k, first, n, host, &reason) != 0);
    *owned = n;
    CHECK(comm_sum_i64(t->comm, owned, 1, err) == 0);
    return 0;
}

/* Every parameter of a kind, fetched to rank 0, is `expected`. */
static int check_fetch(struct trial *t, enum shard_kind kind, float *const expected[UNITS], struct error *err)
{
    for (int u = 0; u < UNITS; u++) {
        int64_t at = 0;
        for (int k = 0; k < counts[u]; k++) {
            struct sink s = {t->values, 0, sizes[u][k]};
            CHECK(shard_fetch(t->shard, kind, u, k, sink_add, &s, err) == 0);
            if (comm_rank(t->comm) == 0)
                CHECK(s.n == sizes[u][k] && same(t->values, expected[u] + at, s.n));
            else
                CHECK(s.n == 0);
            int64_t owned = sizes[u][k];
            if (kind != SHARD_SUMS && check_read(t, kind, u, k, expected[u] + at, &owned, err) != 0)
                return -1;
            CHECK(owned == sizes[u][k]);
            at += sizes[u][k];
        }
    }
    return 0;
}

static int download(struct trial *t, const void *device, int64_t n, enum dtype type, float *out,
                    struct error *err)
{
    CHECK(backend_download(t->backend, 0, t->host, device, (size_t)dtype_bytes(type, n), err) == 0);
    CHECK(backend_sync(t->backend, 0, err) == 0);
    dtype_convert(DTYPE_F32, out, type, t->host, n);
    return 0;
}

/* Gather gives this rank the whole unit in the compute type, one unit ahead, and again after a release. */
static int check_gather(struct trial *t, struct error *err)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int u = 0; u < UNITS; u++) {
            void *base;
            int64_t n = unit_elements(u);
            CHECK(shard_gather(t->shard, u, &base, err) == 0);
            if (u + 1 < UNITS)
                CHECK(shard_gather_begin(t->shard, u + 1, err) == 0);
            CHECK(download(t, base, n, t->compute, t->values, err) == 0);
            for (int64_t e = 0; e < n; e++) {
                float wanted = t->state[SHARD_MASTER][u][e];
                CHECK(t->values[e] == (t->compute == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(wanted)) : wanted));
            }
            shard_release(t->shard, u);
        }
    }
    return 0;
}

static int write_gradients(struct trial *t, int step, int micro, int unit, struct error *err)
{
    float *base;
    int64_t n = unit_elements(unit);
    CHECK(shard_grads(t->shard, unit, &base, err) == 0);
    for (int64_t e = 0; e < n; e++)
        t->host[e] = gradient(step, micro, unit, e);
    CHECK(backend_upload(t->backend, 0, base, t->host, (size_t)n * sizeof(float), err) == 0);
    return backend_sync(t->backend, 0, err);
}

/* All micro-batches of a step in rounds, as training does it: the reduce of a unit ends behind the next. */
static int reduce_step(struct trial *t, int step, bool behind, struct error *err)
{
    int n = comm_size(t->comm), rank = comm_rank(t->comm);
    for (int start = 0; start < MICRO; start += n) {
        int contributors = MICRO - start < n ? MICRO - start : n, open = -1;
        for (int u = UNITS - 1; u >= 0; u--) {
            if (start + rank < MICRO)
                CHECK(write_gradients(t, step, start + rank, u, err) == 0);
            CHECK(shard_reduce_begin(t->shard, u, contributors, err) == 0);
            if (open >= 0)
                CHECK(shard_reduce_finish(t->shard, open, start == 0, err) == 0);
            open = u;
            if (behind)
                continue;
            CHECK(shard_reduce_finish(t->shard, open, start == 0, err) == 0);
            open = -1;
        }
        if (open >= 0)
            CHECK(shard_reduce_finish(t->shard, open, start == 0, err) == 0);
    }
    return comm_barrier(t->comm, err);
}

/* A block's sum of squares: 16 interleaved partial sums, added in order. */
static double block_squares(const float *x, int64_t n)
{
    double partial[16] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i++)
        partial[i % 16] += (double)x[i] * (double)x[i];
    for (int i = 0; i < 16; i++)
        sum += partial[i];
    return sum;
}

static int check_squares(struct trial *t, float *const sums[UNITS], struct error *err)
{
    struct exact_sum squares, wanted;
    exact_sum_clear(&wanted);
    for (int u = 0; u < UNITS; u++)
        for (int64_t e = 0, n = unit_elements(u); e < n; e += SHARD_BLOCK)
            exact_sum_add(&wanted, block_squares(sums[u] + e, n - e < SHARD_BLOCK ? n - e : SHARD_BLOCK));
    CHECK(shard_sum_squares(t->shard, &squares, err) == 0);
    CHECK(comm_sum_i64(t->comm, (int64_t *)&squares, EXACT_SUM_WORDS, err) == 0);
    CHECK(exact_sum_value(&squares) == exact_sum_value(&wanted));
    CHECK(exact_sum_value(&squares) > 0);
    return 0;
}

/* One AdamW step on whole parameters, by the same kernel. */
static int update_alone(struct trial *t, const struct op_adamw *adamw, float *const sums[UNITS],
                        struct error *err)
{
    void *d[4];
    for (int i = 0; i < 4; i++)
        CHECK(backend_alloc(t->backend, MEMORY_DEVICE, LARGEST * sizeof(float), &d[i], err) == 0);
    for (int u = 0; u < UNITS; u++) {
        int64_t at = 0;
        for (int k = 0; k < counts[u]; at += sizes[u][k++]) {
            int64_t n = sizes[u][k];
            struct op_call call = {.op = OP_ADAMW, .inputs = 1, .outputs = 3, .attr = {.adamw = *adamw}};
            const float *from[] = {sums[u] + at, t->state[0][u] + at, t->state[1][u] + at,
                                   t->state[2][u] + at};
            for (int i = 0; i < 4; i++) {
                struct operand o = {.data = d[i], .type = DTYPE_F32, .ndim = 1, .dim = {n}};
                *(i == 0 ? &call.in[0] : &call.out[i - 1]) = o;
                memcpy(t->host, from[i], (size_t)n * sizeof(float));
                CHECK(backend_upload(t->backend, 0, d[i], t->host, (size_t)n * sizeof(float), err) == 0);
                CHECK(backend_sync(t->backend, 0, err) == 0);
            }
            if (!decays[u][k])
                call.attr.adamw.weight_decay = 0;
            CHECK(backend_run(t->backend, 0, &call, err) == 0);
            for (int i = 0; i < STATES; i++)
                CHECK(download(t, d[i + 1], n, DTYPE_F32, t->state[i][u] + at, err) == 0);
        }
    }
    for (int i = 0; i < 4; i++)
        backend_free(t->backend, d[i]);
    return 0;
}

static int check_steps(struct trial *t, struct error *err)
{
    float **sums = t->sums;
    for (int step = 0; step < 2; step++) {
        for (int u = 0; u < UNITS; u++)
            for (int64_t e = 0; e < unit_elements(u); e++)
                sums[u][e] = serial_sum(step, u, e, false);
        CHECK(reduce_step(t, step, step == 0, err) == 0);
        CHECK(check_fetch(t, SHARD_SUMS, sums, err) == 0);
        CHECK(check_squares(t, sums, err) == 0);
        const struct op_adamw adamw = {.lr = 0.01f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .weight_decay = 0.1f,
                                       .correction1 = step == 0 ? 0.1f : 0.19f,
                                       .correction2 = step == 0 ? 0.05f : 0.0975f,
                                       .gradient_scale = 0.5f};
        CHECK(shard_update(t->shard, &adamw, err) == 0);
        CHECK(update_alone(t, &adamw, sums, err) == 0);
        for (int kind = 0; kind < STATES; kind++)
            CHECK(check_fetch(t, (enum shard_kind)kind, t->state[kind], err) == 0);
        CHECK(check_gather(t, err) == 0);
    }
    return 0;
}

static int check_memory(const struct trial *t, const struct shard_options *options, struct error *err)
{
    struct shard_unit_spec specs[UNITS];
    struct shard_memory plan, held = *shard_memory_held(t->shard);
    specs_make(specs);
    CHECK(shard_plan(options, specs, UNITS, comm_size(t->comm), comm_shares_memory(t->comm), &plan, err) ==
          0);
    CHECK(held.parameters == plan.parameters && held.masters == plan.masters && held.moments == plan.moments);
    CHECK(held.sums == plan.sums && held.sent == plan.sent && held.received == plan.received);
    CHECK(held.parameters_shared == plan.parameters_shared && held.sums_shared == plan.sums_shared);
    return 0;
}

static int trial_open(struct trial *t, const struct shard_options *options, struct error *err)
{
    struct shard_unit_spec specs[UNITS];
    struct backend_options be = {.name = t->backend_name, .isa = "auto", .threads = 1};
    specs_make(specs);
    CHECK(backend_create(&t->backend, &be, err) == 0);
    CHECK(shard_create(&t->shard, t->comm, t->backend, options, specs, UNITS, err) == 0);
    void *host;
    CHECK(backend_alloc(t->backend, MEMORY_HOST, LARGEST * sizeof(float), &host, err) == 0);
    t->host = host;
    CHECK((t->values = malloc(LARGEST * sizeof *t->values)) != NULL);
    for (int kind = 0; kind < STATES; kind++)
        for (int u = 0; u < UNITS; u++)
            CHECK((t->state[kind][u] = malloc((size_t)unit_elements(u) * sizeof(float))) != NULL);
    for (int u = 0; u < UNITS; u++)
        CHECK((t->sums[u] = malloc((size_t)unit_elements(u) * sizeof(float))) != NULL);
    return check_memory(t, options, err);
}

static void trial_close(struct trial *t)
{
    for (int kind = 0; kind < STATES; kind++)
        for (int u = 0; u < UNITS; u++)
            free(t->state[kind][u]);
    for (int u = 0; u < UNITS; u++)
        free(t->sums[u]);
    shard_free(t->shard);
    if (t->backend)
        backend_free(t->backend, t->host);
    backend_destroy(t->backend);
    free(t->values);
}

static int training(struct comm *comm, void *context, struct error *err)
{
    struct trial t = *(const struct trial *)context;
    struct shard_options options = {.stage = t.stage, .compute = t.compute};
    t.comm = comm;
    int status = trial_open(&t, &options, err);
    if (status == 0)
        status = fill_all(&t, STATES, err);
    /* A second filling replaces the first, also where nobody has gathered in between. */
    if (status == 0)
        status = fill_all(&t, STATES, err);
    for (int kind = 0; kind < STATES && status == 0; kind++)
        status = check_fetch(&t, (enum shard_kind)kind, t.state[kind], err);
    if (status == 0)
        status = check_gather(&t, err);
    if (status == 0)
        status = check_steps(&t, err);
    /* Nobody's memory goes away while another rank still reads it. */
    if (status == 0)
        status = comm_barrier(comm, err);
    trial_close(&t);
    return status == 0 ? 0 : 1;
}

static int refused(struct trial *t, struct error *err)
{
    int kind = SHARD_MOMENT1;
    void *context[] = {t, &kind};
    struct error reason = {0};
    CHECK(shard_fill(t->shard, SHARD_MOMENT1, fill, context, &reason) != 0 && reason.kind == ERROR_RUN);
    CHECK(shard_fill(t->shard, SHARD_SUMS, fill, context, &reason) != 0);
    CHECK(shard_fetch(t->shard, SHARD_MOMENT2, 0, 0, sink_add, NULL, &reason) != 0);
    CHECK(shard_read(t->shard, SHARD_MOMENT2, 0, 0, 0, 0, t->host, &reason) != 0);
    return 0;
}

static int inference(struct comm *comm, void *context, struct error *err)
{
    struct trial t = *(const struct trial *)context;
    struct shard_options options = {.stage = t.stage, .compute = t.compute, .inference = true};
    t.comm = comm;
    int status = trial_open(&t, &options, err);
    if (status == 0)
        status = fill_all(&t, 1, err);
    if (status == 0)
        status = check_gather(&t, err);
    if (status == 0)
        status = refused(&t, err);
    if (status == 0 && (shard_memory_held(t.shard)->moments != 0 || shard_memory_held(t.shard)->sent != 0))
        status = error_set(err, ERROR_RUN, "inference", NULL, "holds more than parameters");
    if (status == 0)
        status = comm_barrier(comm, err);
    trial_close(&t);
    return status == 0 ? 0 : 1;
}

static void run(int ranks, comm_body *body, int stage, enum dtype compute, const char *backend)
{
    struct trial t = {.stage = stage, .compute = compute, .backend_name = backend};
    struct error err = {0};
    int status = comm_run(ranks, COMM_AUTO, NULL, body, &t, &err);
    if (status != 0)
        fail_msg("%d ranks, stage %d, type %d, %s: %s: %s", ranks, stage, (int)compute, backend, err.where,
                 err.what);
}

static const int rank_counts[] = {1, 2, 3, 5};

static void run_all(comm_body *body, const char *backend, bool some)
{
    for (size_t i = 0; i < sizeof rank_counts / sizeof *rank_counts; i++)
        for (int stage = 0; stage <= 3; stage++)
            for (int type = 0; type < 2; type++)
                if (!some || (stage + type + (int)i) % 4 == 0)
                    run(rank_counts[i], body, stage, type ? DTYPE_BF16 : DTYPE_F32, backend);
}

static void test_training(void **state)
{
    (void)state;
    run_all(training, "cpu", false);
}

static void test_guarded(void **state)
{
    (void)state;
    run_all(training, "guarded", true);
}

static void test_inference(void **state)
{
    (void)state;
    run_all(inference, "cpu", false);
}

/* The gradients above tell orders apart: the reverse chain gives other sums. */
static void test_order_shows(void **state)
{
    (void)state;
    int different = 0;
    for (int64_t e = 0; e < 5000; e++)
        different += serial_sum(0, 2, e, false) != serial_sum(0, 2, e, true);
    assert_true(different > 1000);
}

/* The table of shard.h, with sizes counted by hand. */
static void test_plan(void **state)
{
    (void)state;
    enum { P = 263 + 3089 + 5001 + 1 + LARGEST, FREE = LARGEST, REFERRED = 263, BLOCK = 1024 };
    const int64_t runs[] = {0, P, BLOCK * (1 + 2 + 3 + 1 + 35), BLOCK * (1 + 2 + 2 + 1 + 23)};
    struct shard_unit_spec specs[UNITS];
    specs_make(specs);
    for (int ranks = 2; ranks <= 3; ranks++) {
        for (int shares = 0; shares < 2; shares++) {
            int64_t s = runs[ranks], part = shares ? 0 : ranks - 1,
                    free_run = ranks == 2 ? 35 * BLOCK : 23 * BLOCK;
            for (int stage = 0; stage <= 3; stage++) {
                struct shard_memory m;
                struct shard_options o = {.stage = stage, .compute = DTYPE_BF16};
                assert_int_equal(shard_plan(&o, specs, UNITS, ranks, shares, &m, NULL), 0);
                bool slots = stage == 3 && !shares;
                assert_int_equal(m.parameters, slots ? 2 * s + 2 * REFERRED + 2 * 2 * FREE : 2 * P);
                assert_int_equal(m.masters, 4 * (stage == 0 ? P : s));
                assert_int_equal(m.moments, 8 * (stage == 0 ? P : s));
                assert_int_equal(m.sums, 4 * (stage == 0 ? P : s));
                assert_int_equal(m.sent, stage == 1 ? 4 * P : 4 * REFERRED + 2 * 4 * FREE);
                assert_int_equal(m.received, 4 * part * (stage == 1 ? s : BLOCK + 2 * free_run));
                assert_int_equal(m.parameters_shared, shares && stage > 0);
                assert_int_equal(m.sums_shared, shares && stage == 0);
                o.compute = DTYPE_F32;
                assert_int_equal(shard_plan(&o, specs, UNITS, ranks, shares, &m, NULL), 0);
                assert_int_equal(m.masters, 0);
            }
        }
    }
}

/* Every stage and type, in one process of several that mpirun started. */
static int all_with_messages(struct comm *comm, void *context, struct error *err)
{
    (void)context;
    for (int stage = 0; stage <= 3; stage++) {
        for (int type = 0; type < 2; type++) {
            struct trial t = {.stage = stage,
                              .compute = type ? DTYPE_BF16 : DTYPE_F32,
                              .backend_name = stage + type == 3 ? "guarded" : "cpu"};
            if (training(comm, &t, err) != 0 || inference(comm, &t, err) != 0)
                return 1;
        }
    }
    return 0;
}

static void tell(void *context, enum log_level level, const char *text)
{
    (void)context;
    if (level == LOG_ERROR)
        fprintf(stderr, "%s\n", text);
}

static int be_rank(void)
{
    struct error err = {0};
    const struct log log = {.line = tell};
    int status = comm_run(0, COMM_MPI, &log, all_with_messages, NULL, &err);
    if (status != 0 && err.kind != ERROR_NONE)
        fprintf(stderr, "%s: %s\n", err.where, err.what);
    return status;
}

static int mpirun(const char *ranks)
{
    char self[4096] = {0};
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char options[512];
        const char *before = getenv("ASAN_OPTIONS");
        snprintf(options, sizeof options, "%s%sdetect_leaks=0", before ? before : "", before ? ":" : "");
        setenv("ASAN_OPTIONS", options, 1);         /* what the MPI library never frees is not ours */
        setenv("TSAN_OPTIONS", "report_bugs=0", 1); /* nor are its threads */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
        if (ranks)
            execlp("mpirun", "mpirun", "-n", ranks, self, "--rank", (char *)NULL);
        else if (freopen("/dev/null", "w", stdout))
            execlp("mpirun", "mpirun", "--version", (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_messages(void **state)
{
    (void)state;
    if (!comm_has_mpi() || mpirun(NULL) != 0) {
        print_message("without MPI\n");
        skip();
    }
    assert_int_equal(mpirun("2"), 0);
    assert_int_equal(mpirun("3"), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--rank") == 0)
        return be_rank();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),    cmocka_unit_test(test_order_shows), cmocka_unit_test(test_training),
        cmocka_unit_test(test_guarded), cmocka_unit_test(test_inference),   cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
