/* How pieces are handed out. One 64-bit word, the ticket, holds the number of the job and the next piece
 * of it; a thread takes a piece by adding one to the word with compare-and-swap. A thread that comes late,
 * with an old ticket in hand, fails the swap: so pool_run() waits for the pieces, not for every
 * thread to have woken up, which matters where there are more threads than CPUs. The job's function and
 * context are written while the ticket says "closed", and are thus whole whenever a swap succeeds.
 *
 * Idle threads spin for some microseconds, then sleep on a condition variable. Whoever goes to sleep first
 * says so, then looks at the word once more; whoever changes the word looks afterwards for sleepers
 * (both sequentially consistent): one of the two sees the other. */
#include "base/pool.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SPIN_TURNS = 1000, CACHE_LINE = 64 };

#define PIECES_PER_JOB INT64_C(0x7fffffff) /* fits the lower half of the ticket, with "closed" above */
#define TICKET_CLOSED UINT64_C(0xffffffff)
#define TICKET_JOB UINT64_C(0x100000000)

struct worker {
    struct pool *pool;
    int index;
    pthread_t thread;
};

typedef void piece_function(void *context, int64_t piece, int thread);

struct pool {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    _Alignas(CACHE_LINE) _Atomic int64_t done; /* pieces of this job that are finished */
    _Alignas(CACHE_LINE) _Atomic(piece_function *) function;
    _Atomic(void *) context;
    _Atomic int64_t first;  /* number of the job's piece 0, where one call is several jobs */
    _Atomic int64_t pieces; /* of the job */
    atomic_bool running, stop, caller_sleeps;
    atomic_int sleepers;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    _Atomic(const struct pool_watch *) watch;
    int started; /* workers past on_start, under the lock */
    int threads, spin_turns;
    void (*on_start)(void);
    struct worker *workers; /* threads - 1 */
    atomic_bool *seen;      /* threads */
    cpu_set_t *caller_cpus; /* to put back, where the caller was pinned */
    size_t cpu_set_bytes;
};

static void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Takes pieces of the job in *ticket until none is left or the job is another. Returns how many. */
static int64_t take_pieces(struct pool *pool, int thread)
{
    int64_t taken = 0;
    uint64_t ticket = atomic_load(&pool->ticket);
    uint64_t job = ticket / TICKET_JOB;
    for (;;) {
        int64_t piece = (int64_t)(ticket % TICKET_JOB);
        if (ticket / TICKET_JOB != job || piece >= atomic_load_explicit(&pool->pieces, memory_order_relaxed))
            return taken;
        piece_function *function = atomic_load_explicit(&pool->function, memory_order_relaxed);
        void *context = atomic_load_explicit(&pool->context, memory_order_relaxed);
        int64_t first = atomic_load_explicit(&pool->first, memory_order_relaxed);
        if (!atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket + 1))
            continue;
        if (taken == 0 && !atomic_load_explicit(&pool->seen[thread], memory_order_relaxed))
            atomic_store_explicit(&pool->seen[thread], true, memory_order_relaxed);
        function(context, first + piece, thread);
        taken++;
        ticket = atomic_load(&pool->ticket);
    }
}

/* Is there another job than `job`, open, or the end? */
static bool work_waits(struct pool *pool, uint64_t job)
{
    uint64_t ticket = atomic_load(&pool->ticket);
    return (ticket / TICKET_JOB != job && ticket % TICKET_JOB != TICKET_CLOSED) || atomic_load(&pool->stop);
}

static void wait_for_work(struct pool *pool, uint64_t job)
{
    for (int i = 0; i < pool->spin_turns; i++) {
        if (work_waits(pool, job))
            return;
        spin_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!work_waits(pool, job))
        pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    struct pool *pool = worker->pool;
    if (pool->on_start)
        pool->on_start();
    pthread_mutex_lock(&pool->lock);
    pool->started++;
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->lock);
    uint64_t job = 0;
    while (!atomic_load(&pool->stop)) {
        wait_for_work(pool, job);
        job = atomic_load(&pool->ticket) / TICKET_JOB;
        const struct pool_watch *watch = atomic_load_explicit(&pool->watch, memory_order_acquire);
        double begin = watch ? clock_seconds() : 0;
        int64_t taken = take_pieces(pool, worker->index);
        if (taken == 0)
            continue;
        if (watch)
            watch->took(watch->context, worker->index, begin, clock_seconds());
        /* The caller cannot start another job before these are counted, so `pieces` is still ours. */
        int64_t pieces = atomic_load_explicit(&pool->pieces, memory_order_relaxed);
        if (atomic_fetch_add(&pool->done, taken) + taken == pieces && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
    }
    return NULL;
}

/* The CPUs of the calling thread, in a set of the size that this machine needs. NULL: errno says why. */
static cpu_set_t *allowed_cpus(size_t *bytes)
{
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (!set)
            return NULL;
        *bytes = CPU_ALLOC_SIZE((size_t)cpus);
        if (sched_getaffinity(0, *bytes, set) == 0)
            return set;
        int why = errno;
        CPU_FREE(set);
        errno = why;
        if (why != EINVAL) /* EINVAL: the set is too small */
            return NULL;
    }
    return NULL;
}

int pool_cpus(void)
{
    size_t bytes;
    cpu_set_t *set = allowed_cpus(&bytes);
    if (!set)
        return 1;
    int count = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    return count > 0 ? count : 1;
}

/* Leaves in *set only the n-th (modulo their number) of the CPUs in *allowed. */
static void choose_cpu(const cpu_set_t *allowed, size_t bytes, int n, cpu_set_t *set)
{
    int wanted = n % CPU_COUNT_S(bytes, allowed);
    CPU_ZERO_S(bytes, set);
    for (size_t cpu = 0; cpu < 8 * bytes; cpu++) {
        if (CPU_ISSET_S(cpu, bytes, allowed) && wanted-- == 0) {
            CPU_SET_S(cpu, bytes, set);
            return;
        }
    }
}

/* Starts worker i, on its CPU where pool->caller_cpus is set; `set` is scratch. Returns an errno. */
static int start_worker(struct pool *pool, int i, int first_cpu, cpu_set_t *set)
{
    pthread_attr_t attributes;
    int why = pthread_attr_init(&attributes);
    if (why != 0)
        return why;
    if (set) {
        choose_cpu(pool->caller_cpus, pool->cpu_set_bytes, first_cpu + i + 1, set);
        why = pthread_attr_setaffinity_np(&attributes, pool->cpu_set_bytes, set);
    }
    struct worker *worker = &pool->workers[i];
    worker->pool = pool;
    worker->index = i + 1;
    if (why == 0)
        why = pthread_create(&worker->thread, &attributes, worker_main, worker);
    pthread_attr_destroy(&attributes);
    return why;
}

/* Stops and joins the first `count` workers. */
static void stop_workers(struct pool *pool, int count)
{
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < count; i++)
        pthread_join(pool->workers[i].thread, NULL);
}

static void free_memory(struct pool *pool)
{
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    if (pool->caller_cpus)
        CPU_FREE(pool->caller_cpus);
    free(pool->seen);
    free(pool->workers);
    free(pool);
}

/* Starts all workers and waits until each has run on_start. Returns an errno; none runs then. */
static int start_workers(struct pool *pool, int first_cpu, cpu_set_t *set)
{
    /* Signals are for the thread that made the pool; those that a fault raises stay with the faulting one. */
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int why = 0;
    for (int i = 0; i < pool->threads - 1 && why == 0; i++) {
        why = start_worker(pool, i, first_cpu, set);
        if (why != 0)
            stop_workers(pool, i);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why != 0)
        return why;
    pthread_mutex_lock(&pool->lock);
    while (pool->started < pool->threads - 1)
        pthread_cond_wait(&pool->finished, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

/* Pins the caller and starts the workers. */
static int start_pool(struct pool *pool, bool pin, int first_cpu, struct error *err)
{
    static const char doing[] = "pin a thread to a CPU";
    cpu_set_t *set = NULL;
    if (pin) {
        pool->caller_cpus = allowed_cpus(&pool->cpu_set_bytes);
        if (!pool->caller_cpus)
            return error_errno(err, errno, NULL, "ask which CPUs may be used");
        set = malloc(pool->cpu_set_bytes);
        if (!set)
            return error_memory(err, pool->cpu_set_bytes, "a set of CPUs");
        choose_cpu(pool->caller_cpus, pool->cpu_set_bytes, first_cpu, set);
        if (sched_setaffinity(0, pool->cpu_set_bytes, set) != 0) {
            int why = errno;
            free(set);
            return error_errno(err, why, NULL, doing);
        }
    }
    int why = start_workers(pool, first_cpu, set);
    if (why != 0 && set)
        sched_setaffinity(0, pool->cpu_set_bytes, pool->caller_cpus);
    free(set);
    if (why != 0)
        return error_errno(err, why, NULL, why == EINVAL && pin ? doing : "start a thread");
    if (pool->on_start)
        pool->on_start();
    return 0;
}

int pool_create(struct pool **out, int threads, bool pin, int first_cpu, void (*on_start)(void),
                struct error *err)
{
    *out = NULL;
    if (threads < 1 || threads > 4096 || first_cpu < 0 || first_cpu > 1 << 20)
        return error_set(err, ERROR_INPUT, NULL, "use a number from 1 to 4096",
                         "a pool of %d threads from CPU %d on is not possible", threads, first_cpu);
    struct pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool)
        return error_memory(err, sizeof *pool, "a thread pool");
    memset(pool, 0, sizeof *pool);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->threads = threads;
    pool->on_start = on_start;
    /* Spinning takes the CPU from the one waited for where there are fewer CPUs than threads. */
    pool->spin_turns = threads <= pool_cpus() ? SPIN_TURNS : 0;
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    pool->seen = calloc((size_t)threads, sizeof *pool->seen);
    if (!pool->workers || !pool->seen) {
        free_memory(pool);
        return error_memory(err, (size_t)threads * sizeof *pool->workers, "a thread pool");
    }
    if (start_pool(pool, pin, first_cpu, err) != 0) {
        free_memory(pool);
        return -1;
    }
    *out = pool;
    return 0;
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    assert(!atomic_load(&pool->running));
    stop_workers(pool, pool->threads - 1);
    if (pool->caller_cpus)
        sched_setaffinity(0, pool->cpu_set_bytes, pool->caller_cpus);
    free_memory(pool);
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

void pool_set_watch(struct pool *pool, const struct pool_watch *watch)
{
    atomic_store_explicit(&pool->watch, watch, memory_order_release);
}

int pool_threads_seen(const struct pool *pool)
{
    int count = 0;
    for (int i = 0; i < pool->threads; i++)
        count += atomic_load_explicit(&pool->seen[i], memory_order_relaxed);
    return count;
}

/* Wakes at most `wanted` sleeping workers: the others would find nothing left. */
static void wake_workers(struct pool *pool, int64_t wanted)
{
    if (wanted <= 0 || atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    if (wanted >= atomic_load(&pool->sleepers))
        pthread_cond_broadcast(&pool->work);
    else
        for (int64_t i = 0; i < wanted; i++)
            pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static void wait_until_done(struct pool *pool, int64_t pieces)
{
    for (int i = 0; i < pool->spin_turns; i++) {
        if (atomic_load(&pool->done) == pieces)
            return;
        spin_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, true);
    while (atomic_load(&pool->done) != pieces)
        pthread_cond_wait(&pool->finished, &pool->lock);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->lock);
}

static void run_job(struct pool *pool, int64_t first, int64_t pieces, piece_function *function, void *context)
{
    uint64_t job = (atomic_load(&pool->ticket) / TICKET_JOB + 1) % TICKET_JOB;
    /* Closed first: a thread still holding the last job's ticket must not pair it with the new fields. */
    atomic_store(&pool->ticket, job * TICKET_JOB + TICKET_CLOSED);
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->function, function, memory_order_relaxed);
    atomic_store_explicit(&pool->context, context, memory_order_relaxed);
    atomic_store_explicit(&pool->first, first, memory_order_relaxed);
    atomic_store_explicit(&pool->pieces, pieces, memory_order_relaxed);
    atomic_store(&pool->ticket, job * TICKET_JOB);
    wake_workers(pool, pieces - 1);
    int64_t taken = take_pieces(pool, 0);
    atomic_fetch_add(&pool->done, taken);
    wait_until_done(pool, pieces);
}

void pool_run(struct pool *pool, int64_t pieces, void (*fn)(void *context, int64_t piece, int thread),
              void *context)
{
    bool already = atomic_exchange(&pool->running, true);
    assert(!already && "pool_run from inside a piece, or from two threads at once");
    (void)already;
    for (int64_t first = 0; first < pieces; first += PIECES_PER_JOB)
        run_job(pool, first, pieces - first < PIECES_PER_JOB ? pieces - first : PIECES_PER_JOB, fn, context);
    atomic_store(&pool->running, false);
}
