/* Memory during steps: Tercet allocates nothing in them, and in its arena it writes up to the last byte that
 * was planned and not one further.
 *
 * Allocations are counted twice: calls from Tercet's own code by the linker's wrapping
 * (support/allocations.h), and, without a sanitizer, all calls of the process by the object they come from,
 * for this program's malloc takes the place of the C library's. So what strdup, asprintf or realpath ask for
 * is seen, and what oneDNN and the MPI library ask for is counted apart. Aligned memory, which is where
 * backends keep everything, gets guard bytes behind it. */
#include "support/allocations.h"
#include "train/runs.h"

#include <link.h>
#include <stdatomic.h>

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

/* ---- who allocates ---- */

enum source { FROM_PROGRAM, FROM_C_LIBRARY, FROM_ONEDNN, FROM_OTHERS, SOURCES };

struct range {
    uintptr_t first, end;
    enum source source;
};

enum { RANGES = 64, GUARDED = 4096, GUARD_BYTES = 256, GUARD = 0xC7 };

/* Of this process, set up before anything is counted. */
static struct {
    struct range ranges[RANGES];
    int range_count;
    _Atomic int64_t calls[SOURCES];
    atomic_flag lock;
    _Atomic int guarded_count;
    struct {
        unsigned char *memory;
        size_t bytes;
    } guarded[GUARDED];
} heap = {.lock = ATOMIC_FLAG_INIT};

static int note_object(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size, (void)context;
    enum source source = FROM_OTHERS;
    if (info->dlpi_name[0] == '\0')
        source = FROM_PROGRAM;
    else if (strstr(info->dlpi_name, "libc.so"))
        source = FROM_C_LIBRARY;
    else if (strstr(info->dlpi_name, "libdnnl") || strstr(info->dlpi_name, "libstdc++"))
        source = FROM_ONEDNN;
    for (int i = 0; i < info->dlpi_phnum && heap.range_count < RANGES; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t first = (uintptr_t)(info->dlpi_addr + p->p_vaddr);
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X))
            heap.ranges[heap.range_count++] = (struct range){first, first + (uintptr_t)p->p_memsz, source};
    }
    return 0;
}

#if !SANITIZED
static void count_call(const void *caller)
{
    enum source source = FROM_OTHERS;
    for (int i = 0; i < heap.range_count; i++)
        if ((uintptr_t)caller >= heap.ranges[i].first && (uintptr_t)caller < heap.ranges[i].end)
            source = heap.ranges[i].source;
    atomic_fetch_add(&heap.calls[source], 1);
}

static void lock_guarded(void)
{
    while (atomic_flag_test_and_set(&heap.lock))
        ;
}

static void guard(unsigned char *memory, size_t bytes)
{
    memset(memory + bytes, GUARD, GUARD_BYTES);
    lock_guarded();
    int n = atomic_load(&heap.guarded_count);
    if (n < GUARDED) {
        heap.guarded[n].memory = memory;
        heap.guarded[n].bytes = bytes;
        atomic_store(&heap.guarded_count, n + 1);
    }
    atomic_flag_clear(&heap.lock);
}

static void unguard(const void *memory)
{
    if (atomic_load(&heap.guarded_count) == 0)
        return;
    lock_guarded();
    int n = atomic_load(&heap.guarded_count);
    for (int i = 0; i < n; i++)
        if (heap.guarded[i].memory == memory) {
            heap.guarded[i] = heap.guarded[n - 1];
            atomic_store(&heap.guarded_count, n - 1);
            break;
        }
    atomic_flag_clear(&heap.lock);
}

/* The C library's own, under their second names. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);
/* NOLINTEND(bugprone-reserved-identifier) */

void *malloc(size_t size)
{
    count_call(__builtin_return_address(0));
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    count_call(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    count_call(__builtin_return_address(0));
    unguard(old);
    return __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count_call(__builtin_return_address(0));
    unsigned char *memory = __libc_memalign(alignment, size + GUARD_BYTES);
    if (memory)
        guard(memory, size);
    return memory;
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    count_call(__builtin_return_address(0));
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
}

void free(void *memory)
{
    unguard(memory);
    __libc_free(memory);
}
#endif

/* Blocks whose guard bytes have changed. */
static int64_t overrun_blocks(void)
{
    int64_t n = 0;
    for (int i = 0; i < atomic_load(&heap.guarded_count); i++)
        for (int b = 0; b < GUARD_BYTES; b++)
            if (heap.guarded[i].memory[heap.guarded[i].bytes + (size_t)b] != GUARD) {
                n++;
                break;
            }
    return n;
}

/* ---- what a rank looks at ---- */

struct seen {
    int64_t wrapped; /* at the last look */
    int64_t at[SOURCES];
    int64_t wrapped_in_steps; /* in steps 2 … N, with what is written about steps 1 … N-1 */
    int64_t in_steps[SOURCES];
    int64_t looks, guarded_blocks, overrun;

    /* Of the arena, where the test may write in it (hosts' backends): bytes from the start of the region. */
    bool arena_ends_with_work;
    int64_t work_planned, work_written;    /* all; up to the last one that changed */
    int64_t work_outputs, work_workspaces; /* up to the end of ops' outputs, of ops' workspaces */
    int64_t saved_planned, saved_written;  /* the same, summed over the units */
};

static void look_at_allocations(struct seen *s)
{
    int64_t wrapped = allocations_count();
    if (s->looks++ > 0)
        s->wrapped_in_steps += wrapped - s->wrapped;
    s->wrapped = wrapped;
    for (int i = 0; i < SOURCES; i++) {
        int64_t now = atomic_load(&heap.calls[i]);
        if (s->looks > 1)
            s->in_steps[i] += now - s->at[i];
        s->at[i] = now;
    }
    s->guarded_blocks = atomic_load(&heap.guarded_count);
    s->overrun += overrun_blocks();
}

/* Bytes up to and including the last that is not `pattern`. */
static int64_t changed(const void *memory, int64_t bytes, int pattern)
{
    const unsigned char *m = memory;
    while (bytes > 0 && m[bytes - 1] == pattern)
        bytes--;
    return bytes;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Where outputs and workspaces of ops end in the work region, when all tokens are there. */
static void find_ends(const struct program *p, int64_t *outputs, int64_t *workspaces)
{
    for (int part = 0; part < PROGRAM_PARTS; part++)
        for (int i = 0; i < p->part[part].count; i++) {
            const struct program_step *step = &p->part[part].steps[i];
            struct op_call call;
            program_call(step, &p->bounds, &call);
            for (int k = 0; k < call.outputs; k++)
                if (step->out[k].place == PLACE_WORK)
                    *outputs = most(*outputs, step->out[k].offset + operand_bytes(&call.out[k]));
            if (step->workspace_bytes > 0)
                *workspaces = most(*workspaces, step->workspace + step->workspace_bytes);
        }
}

/* Between steps nothing in work and saved is alive: whatever is written there is overwritten before it is
 * read. */
static void look_at_arena(struct seen *s, struct engine *e, int64_t step)
{
    const int patterns[] = {0xA5, 0x5A};
    int64_t saved_planned = 0, saved_written = 0;
    s->arena_ends_with_work = e->work + e->memory.work == e->arena + e->arena_bytes;
    s->work_planned = e->memory.work;
    if (step > 1) /* two looks, since a byte that is written may be the pattern */
        s->work_written = most(s->work_written, changed(e->work, e->memory.work, patterns[(step - 1) % 2]));
    memset(e->work, patterns[step % 2], (size_t)e->memory.work);
    for (int u = 0; u < e->model->unit_count; u++) {
        const struct program *p = e->units[u].program;
        find_ends(p, &s->work_outputs, &s->work_workspaces);
        saved_planned += p->saved_bytes;
        saved_written += changed(e->units[u].saved, p->saved_bytes, patterns[(step - 1) % 2]);
        memset(e->units[u].saved, patterns[step % 2], (size_t)p->saved_bytes);
    }
    s->saved_planned = saved_planned;
    if (step > 1)
        s->saved_written = most(s->saved_written, saved_written);
}

static void watch(struct runs_table *table, int rank, struct engine *e, int64_t step)
{
    struct seen *s = runs_record(table, rank);
    if (!e)
        return;
    look_at_allocations(s);
    if (strcmp(table->ask.backend, "guarded") != 0 && table->ask.ranks == 1)
        look_at_arena(s, e, step);
}

static void watch_nothing(struct runs_table *table, int rank, struct engine *e, int64_t step)
{
    (void)table, (void)rank, (void)e, (void)step;
}

/* ---- the tests ---- */

static void check_allocations(struct runs *r, const struct ask *ask)
{
    runs_train(r, ask, watch);
    for (int k = 0; k < r->table->ask.ranks; k++) {
        const struct seen *s = runs_record(r->table, k);
        assert_int_equal(s->looks, ask->steps);
        assert_int_equal(s->wrapped_in_steps, 0);
        assert_int_equal(s->in_steps[FROM_PROGRAM], 0);
        /* The MPI library has the C library allocate for it. */
        if (!ask->messages)
            assert_int_equal(s->in_steps[FROM_C_LIBRARY], 0);
        assert_int_equal(s->overrun, 0);
        if (k == 0)
            print_message("steps 2 to %lld%s%s: oneDNN %lld, others %lld allocations\n",
                          (long long)ask->steps, ask->messages ? ", messages, " : ", ",
                          ask->backend[0] ? ask->backend : "cpu", (long long)s->in_steps[FROM_ONEDNN],
                          (long long)s->in_steps[FROM_OTHERS]);
    }
}

/* Over the end of an epoch, with its short batch, with evaluations and everything that is written about a
 * step. */
static void test_no_allocation(void **state)
{
    struct runs *r = *state;
    static const char *const backends[] = {"cpu", "reference", "guarded"};
    for (int kind = 0; kind < 6; kind++) {
        struct ask ask = {.ranks = kind / 3 + 1,
                          .threads = 2,
                          .stage = kind < 3 ? 3 : kind - 3,
                          .recompute = kind % 2 ? RECOMPUTE_FULL : RECOMPUTE_NONE,
                          .bfloat = kind % 2,
                          .steps = 14,
                          .global_batch = 14,
                          .micro_batch = 2,
                          .eval_every = 5};
        snprintf(ask.backend, sizeof ask.backend, "%s", backends[kind % 3]);
        check_allocations(r, &ask);
        assert_true(r->table->rows_per_epoch < 14 * 13 && r->table->rows_per_epoch % 14 != 0);
        if (SANITIZED)
            continue;
        /* The counting counts, and there was something to guard. */
        const struct seen *s = runs_record(r->table, 0);
        assert_true(s->at[FROM_PROGRAM] > 100 && s->at[FROM_C_LIBRARY] > 0);
        assert_true(s->guarded_blocks > 0 || strcmp(ask.backend, "guarded") == 0);
    }
}

static void test_no_allocation_with_messages(void **state)
{
    if (!runs_have_messages())
        skip();
    for (int stage = 1; stage <= 3; stage += 2)
        check_allocations(
            *state,
            &(struct ask){.ranks = 2, .messages = true, .stage = stage, .steps = 14, .global_batch = 7});
}

static void test_arena(void **state)
{
    struct runs *r = *state;
    const struct seen *s = runs_record(r->table, 0);
    for (int kind = 0; kind < 8; kind++) {
        struct ask ask = {.ranks = 1,
                          .stage = 2,
                          .threads = 2,
                          .steps = 5,
                          .micro_batch = 5,
                          .recompute = kind & 1 ? RECOMPUTE_FULL : RECOMPUTE_NONE,
                          .bfloat = kind & 2,
                          .untied = kind & 1};
        snprintf(ask.backend, sizeof ask.backend, "%s", kind & 4 ? "reference" : "cpu");
        runs_train(r, &ask, watch_nothing);
        double loss = r->table->report.last_loss;
        runs_train(r, &ask, watch);
        /* What the test wrote between the steps was read by nobody. */
        assert_true(r->table->report.last_loss == loss);
        assert_true(s->arena_ends_with_work);
        /* The plan ends where its topmost user ends, rounded up; all outputs are written to their end. A
         * workspace is the op's to use as far as it needs. */
        int64_t top = most(s->work_outputs, s->work_workspaces);
        assert_int_equal(s->work_planned, (top + 63) / 64 * 64);
        assert_in_range(s->work_written, s->work_outputs, top);
        assert_in_range(s->saved_written, most(0, s->saved_planned - 63 * 5), s->saved_planned);
        assert_int_equal(s->overrun, 0);
    }
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
    dl_iterate_phdr(note_object, NULL);
    if (runs_is_rank(argc, argv))
        return runs_rank(argv, watch);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_no_allocation_with_messages),
        cmocka_unit_test(test_arena),
    };
    return cmocka_run_group_tests_name("memory", tests, open_runs, close_runs);
}
