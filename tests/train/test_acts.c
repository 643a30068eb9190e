/* Every setting of a run does what it says: equal results on all settings are worth nothing when a setting is
 * ignored. Looked at from outside where the operating system can tell, else in what the engine holds and
 * counts; what is expected is computed here, from the sizes of the model. */
#include "train/runs.h"
#include "train/saver.h"

#include <sys/stat.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

struct seen {
    int64_t steps, micro_batches;
    int64_t ops[OP_COUNT], recomputed[OP_COUNT];
    struct engine_memory memory;
    int64_t gathers, gathers_ahead, exchanges, bytes_sent;
    int threads;
    int64_t anonymous[2]; /* bytes of this process before the engine was made, and after the last step; -1
                             unknown */
    int64_t windows;      /* bytes of the file behind shared windows; -1 none */
};

/* Bytes of pages that are this process's own. */
static int64_t anonymous_bytes(void)
{
    char line[256];
    long long kb = -1;
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    while (f && kb < 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "Anonymous: %lld kB", &kb) != 1)
            kb = -1;
    if (f)
        fclose(f);
    return kb < 0 ? -1 : kb * 1024;
}

/* Bytes that the memory file of this process's group takes. */
static int64_t window_bytes(void)
{
    for (int fd = 3; fd < 256; fd++) {
        char path[64], target[256] = {0};
        struct stat st;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) > 0 && strncmp(target, "/memfd:tercet", 13) == 0 &&
            fstat(fd, &st) == 0)
            return (int64_t)st.st_blocks * 512;
    }
    return -1;
}

static void watch(struct runs_table *table, int rank, struct engine *e, int64_t step)
{
    struct seen *s = runs_record(table, rank);
    if (!e) {
        s->anonymous[0] = anonymous_bytes();
        return;
    }
    s->steps = step;
    s->micro_batches = e->micro_batches;
    memcpy(s->ops, e->exec.stats.ops, sizeof s->ops);
    memcpy(s->recomputed, e->exec.stats.recomputed, sizeof s->recomputed);
    s->memory = e->memory;
    s->gathers = comm_stats(e->comm)->gathers;
    s->exchanges = comm_stats(e->comm)->exchanges;
    s->bytes_sent = comm_stats(e->comm)->bytes_sent;
    s->gathers_ahead = e->gathers_ahead;
    s->threads = backend_threads_seen(e->backend);
    if (step == runs_or(table->ask.steps, 2)) {
        s->anonymous[1] = anonymous_bytes();
        s->windows = window_bytes();
    }
}

/* ---- what the sizes of the model come to ---- */

enum { UNITS_MOST = 16 };

struct sizes {
    int units;
    int64_t elements[UNITS_MOST]; /* embedding, blocks, head; tied: the head has its norm alone */
    bool referred[UNITS_MOST];
};

static struct sizes sizes_of(const struct ask *a)
{
    int64_t d = runs_or(a->hidden, 60), f = runs_or(a->intermediate, 100), layers = runs_or(a->layers, 3);
    int64_t kv = d / RUNS_HEADS, v = RUNS_VOCABULARY;
    int64_t biases = a->untied ? d + 2 * kv + d + 2 * f + d : 0;
    struct sizes s = {.units = (int)layers + 2};
    assert_in_range(s.units, 3, UNITS_MOST);
    s.elements[0] = v * d;
    s.referred[0] = !a->untied;
    for (int i = 1; i <= layers; i++)
        s.elements[i] = 2 * d * d + 2 * kv * d + 3 * d * f + biases + 2 * d;
    s.elements[layers + 1] = d + (a->untied ? v * d : 0);
    return s;
}

/* Elements of one rank's buffer for a run of whole blocks of 1,024. */
static int64_t run_of(int64_t elements, int ranks)
{
    int64_t blocks = (elements + 1023) / 1024;
    return (blocks + ranks - 1) / ranks * 1024;
}

/* The table at the head of shard.h. */
static struct shard_memory expected_bytes(const struct ask *a)
{
    struct sizes s = sizes_of(a);
    struct shard_memory m = {0};
    int64_t c = a->bfloat ? 2 : 4, p = 0, owned = 0, largest = 0, largest_run = 0;
    int n = a->ranks, others = a->messages ? n - 1 : 0;
    bool cut = a->stage == 3 && a->messages && n > 1;
    for (int u = 0; u < s.units; u++) {
        int64_t run = run_of(s.elements[u], n);
        p += s.elements[u];
        owned += run;
        if (!s.referred[u] && s.elements[u] > largest)
            largest = s.elements[u];
        if (!s.referred[u] && run > largest_run)
            largest_run = run;
        /* Buffers of their own. */
        if (a->stage == 1 || s.referred[u]) {
            m.sent += 4 * s.elements[u];
            m.received += 4 * others * run;
        }
        if (cut && s.referred[u])
            m.parameters += c * s.elements[u];
    }
    int64_t kept = a->stage == 0 ? p : owned;
    m.parameters += cut ? c * owned + 2 * c * largest : c * p;
    m.masters = a->bfloat ? 4 * kept : 0;
    m.moments = 8 * kept;
    m.sums = 4 * kept;
    if (a->stage != 1) {
        m.sent += 2 * 4 * largest;
        m.received += 2 * 4 * others * largest_run;
    }
    m.parameters_shared = !a->messages && n > 1 && a->stage > 0;
    m.sums_shared = !a->messages && n > 1 && a->stage == 0;
    return m;
}

static void assert_bytes(const struct shard_memory *m, const struct shard_memory *w)
{
    assert_int_equal(m->parameters, w->parameters);
    assert_int_equal(m->masters, w->masters);
    assert_int_equal(m->moments, w->moments);
    assert_int_equal(m->sums, w->sums);
    assert_int_equal(m->sent, w->sent);
    assert_int_equal(m->received, w->received);
    assert_int_equal(m->parameters_shared, w->parameters_shared);
    assert_int_equal(m->sums_shared, w->sums_shared);
}

/* Micro-batches of `rank` in the first steps of a run. */
static int64_t expected_micro_batches(const struct runs_table *t, int rank)
{
    int64_t batch = runs_or(t->ask.global_batch, 5), size = runs_or(t->ask.micro_batch, 1), sum = 0, row = 0;
    for (int64_t step = 0; step < runs_or(t->ask.steps, 2); step++) {
        int64_t left = t->rows_per_epoch - row, rows = left < batch ? left : batch;
        for (int64_t m = 0; m < (rows + size - 1) / size; m++)
            sum += m % t->ask.ranks == rank;
        row = rows == left ? 0 : row + rows;
    }
    return sum;
}

/* Rounds of micro-batches, which all ranks go through together. */
static int64_t expected_rounds(const struct runs_table *t)
{
    return expected_micro_batches(t, 0);
}

static int64_t sum_of(const int64_t ops[OP_COUNT])
{
    int64_t sum = 0;
    for (int i = 0; i < OP_COUNT; i++)
        sum += ops[i];
    return sum;
}

/* Each rank of a run that has just ended: its bytes by the formula, its micro-batches and no others, its ops.
 */
static void check_ranks(struct runs *r)
{
    struct runs_table *t = r->table;
    const struct ask *a = &t->ask;
    struct sizes sizes = sizes_of(a);
    int64_t layers = runs_or(a->layers, 3), all = 0;
    struct shard_memory expected = expected_bytes(a);
    for (int u = 0; u < sizes.units; u++)
        all += sizes.elements[u];
    assert_int_equal(t->parameters, all);
    assert_bytes(&t->planned.shard, &expected);
    for (int k = 0; k < a->ranks; k++) {
        const struct seen *s = runs_record(t, k);
        int64_t mine = expected_micro_batches(t, k);
        assert_int_equal(s->steps, runs_or(a->steps, 2));
        assert_bytes(&s->memory.shard, &expected);
        struct engine_memory whole = s->memory; /* the engine's, and what saves it */
        whole.saving = saver_bytes() + BACKGROUND_STACK;
        whole.private_total += whole.saving;
        assert_memory_equal(&whole, &t->planned, sizeof t->planned);
        assert_int_equal(s->micro_batches, mine);
        assert_int_equal(s->ops[OP_EMBED], mine);
        assert_int_equal(s->ops[OP_ATTENTION] - s->recomputed[OP_ATTENTION], layers * mine);
        assert_int_equal(s->ops[OP_ATTENTION_GRAD], layers * mine);
        assert_int_equal(s->ops[OP_SWIGLU_GRAD], layers * mine);
        assert_int_equal(s->ops[OP_LOSS], 0); /* the gradient gives it too */
        assert_int_equal(s->ops[OP_LOSS_GRAD], mine);
        assert_int_equal(s->ops[OP_EMBED_GRAD], mine);
    }
}

static void run(struct runs *r, const struct ask *ask)
{
    runs_train(r, ask, watch);
    check_ranks(r);
}

/* ---- the tests ---- */

static void test_one_rank(void **state)
{
    for (int stage = 0; stage <= 3; stage++)
        run(*state, &(struct ask){.ranks = 1, .stage = stage, .bfloat = stage % 2});
}

/* The machine's total is smaller than the ranks' sum: what is shared counts once. */
static void test_shared_memory(void **state)
{
    struct runs *r = *state;
    for (int ranks = 2; ranks <= 3; ranks++) {
        for (int kind = 0; kind < 4 * 2 * 2; kind++) {
            struct ask ask = {.ranks = ranks, .stage = kind % 4, .bfloat = kind & 4, .untied = kind & 8};
            run(r, &ask);
            const struct engine_memory *m = &r->table->planned;
            const struct shard_memory *s = &m->shard;
            int64_t once = ask.stage > 0 ? s->parameters : s->sums;
            assert_int_equal(m->shared_total, once);
            assert_int_equal(m->private_total, s->parameters + s->masters + s->moments + s->sums + s->sent -
                                                   once + m->hidden + m->saved + m->work + m->inputs +
                                                   m->saving);
        }
    }
}

static void test_messages(void **state)
{
    if (!runs_have_messages())
        skip();
    for (int ranks = 2; ranks <= 3; ranks++)
        for (int stage = 0; stage <= 3; stage++)
            run(*state, &(struct ask){.ranks = ranks,
                                      .messages = true,
                                      .stage = stage,
                                      .bfloat = (ranks + stage) % 2,
                                      .untied = ranks == 2});
}

/* A short batch at the end of an epoch, rounds in which ranks have nothing to do, several rows a micro-batch.
 */
static void test_share_of_work(void **state)
{
    struct runs *r = *state;
    for (int ranks = 1; ranks <= 5; ranks += 2) {
        struct ask ask = {.ranks = ranks, .stage = 3, .steps = 12, .global_batch = 14, .micro_batch = 2};
        run(r, &ask);
        int64_t most = expected_micro_batches(r->table, 0),
                least = expected_micro_batches(r->table, ranks - 1);
        assert_true(r->table->rows_per_epoch < 12 * 14 && r->table->rows_per_epoch % 14 != 0);
        assert_true(ranks == 1 ? most == least : most > least);
    }
}

/* A model that is large beside whatever else a process holds. The pages that it takes are those of the plan.
 */
static void test_operating_system(void **state)
{
    struct runs *r = *state;
    const struct seen *s = runs_record(r->table, 0);
    bool messages = runs_have_messages();
    const int64_t slack = 5 << 20; /* heap that was free already, the library's code, messages on their way */
    if (SANITIZED) {
        print_message("SKIP: a sanitizer's own memory is in the way\n");
        skip();
    }
    for (int kind = 0; kind < (messages ? 8 : 4); kind++) {
        struct ask ask = {.ranks = kind % 2 + 2,
                          .messages = kind >= 4,
                          .stage = kind % 4,
                          .bfloat = kind % 2,
                          .hidden = 400,
                          .intermediate = 1000,
                          .layers = 4};
        run(r, &ask);
        const struct engine_memory *m = &r->table->planned;
        int64_t own = m->private_total;
        if (!ask.messages) { /* gradients that are sent lie in windows */
            int64_t windows = m->shared_total + ask.ranks * m->shard.sent;
            own -= m->shard.sent;
            assert_in_range(s->windows, windows, windows + slack);
        }
        for (int k = 0; k < ask.ranks; k++) {
            s = runs_record(r->table, k);
            if (s->anonymous[0] < 0) {
                print_message("SKIP: the system does not tell how many pages a process has\n");
                skip();
            }
            if (s->anonymous[1] - s->anonymous[0] < own - slack ||
                s->anonymous[1] - s->anonymous[0] > own + slack)
                fail_msg("stage %d, rank %d of %d%s: %lld bytes were taken, %lld are planned", ask.stage, k,
                         ask.ranks, ask.messages ? " with messages" : "",
                         (long long)(s->anonymous[1] - s->anonymous[0]), (long long)own);
        }
        s = runs_record(r->table, 0);
    }
}

static void test_recompute(void **state)
{
    struct runs *r = *state;
    struct runs_table *t = r->table;
    const struct seen *s = runs_record(t, 1);
    struct ask ask = {.ranks = 2, .stage = 2};
    int64_t layers = 3;
    run(r, &ask);
    struct seen none = *s;
    double loss = t->report.last_loss;
    /* The norm of the head, whose forward part is not run. */
    int64_t n = s->micro_batches;
    assert_int_equal(none.recomputed[OP_RMSNORM], n);
    assert_int_equal(sum_of(none.recomputed), n);
    ask.recompute = RECOMPUTE_FULL;
    run(r, &ask);
    assert_int_equal(s->micro_batches, n);
    /* All of a block but its last product and addition, which nobody reads. */
    static const struct {
        enum op op;
        int blocks;
    } again[] = {{OP_RMSNORM, 2},   {OP_LINEAR, 6}, {OP_ROPE, 2},
                 {OP_ATTENTION, 1}, {OP_SWIGLU, 1}, {OP_ADD, 1}};
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof again / sizeof *again; i++) {
        int64_t wanted = n * layers * again[i].blocks;
        assert_int_equal(s->recomputed[again[i].op] - none.recomputed[again[i].op], wanted);
        assert_int_equal(s->ops[again[i].op] - none.ops[again[i].op], wanted);
        sum += wanted;
    }
    assert_int_equal(sum_of(s->recomputed) - n, sum);
    assert_int_equal(sum_of(s->ops) - sum_of(none.ops), sum);
    /* Before, a block alone kept more than nine rows of the width. */
    assert_int_equal(s->memory.saved, 0);
    assert_true(none.memory.saved > layers * 19 * 4 * 9 * 60);
    assert_true(t->report.last_loss == loss);
}

/* With messages a gather is begun before the unit ahead of it is computed: for all but the first. */
static void test_overlap(void **state)
{
    struct runs *r = *state;
    if (!runs_have_messages())
        skip();
    for (int kind = 0; kind < 4; kind++) {
        struct ask ask = {.ranks = kind < 2 ? 2 : 3, .messages = true, .stage = 3, .untied = kind >= 2};
        ask.no_overlap = kind % 2;
        run(r, &ask);
        struct sizes sizes = sizes_of(&ask);
        for (int k = 0; k < ask.ranks; k++) {
            const struct seen *s = runs_record(r->table, k);
            int64_t rounds = expected_rounds(r->table), ahead = rounds * (sizes.units - 1);
            assert_true(s->bytes_sent > 0 && s->exchanges == rounds * sizes.units);
            assert_true(s->gathers > ahead);
            assert_int_equal(s->gathers_ahead, ask.no_overlap ? 0 : ahead);
        }
    }
}

/* As many threads as were asked for take part; the run goes on until they have been seen. */
static void watch_threads(struct runs_table *table, int rank, struct engine *e, int64_t step)
{
    (void)step;
    if (!e)
        return;
    struct seen *s = runs_record(table, rank);
    s->threads = backend_threads_seen(e->backend);
    if (rank == 0 && s->threads >= table->ask.threads) {
        char path[300];
        snprintf(path, sizeof path, "%s/out/stop", table->directory);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0)
            close(fd);
    }
}

static void test_threads(void **state)
{
    struct runs *r = *state;
    const struct seen *s = runs_record(r->table, 0);
    for (int threads = 1; threads <= 3; threads++) {
        struct ask ask = {
            .threads = threads, .steps = 2000, .micro_batch = 5, .hidden = 160, .intermediate = 400};
        runs_train(r, &ask, watch_threads);
        assert_int_equal(s->threads, threads);
        assert_int_equal(r->table->report.stopped_by_file, 1);
    }
    /* And no more, however long it goes on. */
    runs_train(r, &(struct ask){.threads = 2, .steps = 30, .micro_batch = 5}, watch);
    assert_in_range(s->threads, 1, 2);
}

static void test_bf16(void **state)
{
    struct runs *r = *state;
    run(r, &(struct ask){.steps = 1});
    double loss = r->table->report.last_loss;
    run(r, &(struct ask){.steps = 1, .bfloat = true});
    double other = r->table->report.last_loss;
    assert_true(other != loss);
    /* log 331 is 5.80: near a model that knows nothing, both of them. */
    assert_true(loss > 5.6 && loss < 6.0 && other - loss < 0.02 && loss - other < 0.02);
}

static int open_runs(void **state)
{
    *state = runs_open();
    return 0;
}

static int close_runs(void **state)
{
    runs_close(*state);
    return 0;
}

int main(int argc, char **argv)
{
    if (runs_is_rank(argc, argv))
        return runs_rank(argv, watch);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_shared_memory),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_share_of_work),
        cmocka_unit_test(test_operating_system),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests_name("acts", tests, open_runs, close_runs);
}
