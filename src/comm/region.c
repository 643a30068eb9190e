#include "comm/region.h"

#include "base/pool.h"
#include "comm/transport.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int region_create(int ranks, struct region **out, struct error *err)
{
    size_t head = sizeof(struct region) + (size_t)ranks * sizeof(struct region_rank);
    size_t mail = (head + 4095) / 4096 * 4096;
    size_t bytes = mail + (size_t)ranks * REGION_MAILBOXES * REGION_MAIL_BYTES;
    struct region *g = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED)
        return error_memory(err, bytes, "the memory that ranks share");
    g->bytes = bytes;
    g->mail = mail;
    g->size = ranks;
    /* Spinning helps only when the awaited rank has a core of its own to go on with. */
    g->spins = ranks <= pool_cpus() ? 200 : 0;
    g->windows_fd = -1;
    atomic_init(&g->first_failed, -1);
    if (ranks > 1) {
        g->windows_fd = memfd_create("tercet-windows", MFD_CLOEXEC);
        if (g->windows_fd < 0) {
            int problem = errno;
            region_free(g);
            return error_errno(err, problem, NULL, "create the memory that ranks share (memfd)");
        }
    }
    *out = g;
    return 0;
}

void region_free(struct region *g)
{
    if (!g)
        return;
    if (g->windows_fd >= 0)
        close(g->windows_fd);
    munmap(g, g->bytes);
}

void *region_mail(struct region *g, int rank, int box)
{
    size_t index = (size_t)rank * REGION_MAILBOXES + (size_t)box;
    return (char *)g + g->mail + index * REGION_MAIL_BYTES;
}

void word_wake(struct word *w)
{
    /* Sequentially consistent with region_wait: either the waiter is counted here, or it sees the value. */
    if (atomic_load(&w->waiters) != 0)
        syscall(SYS_futex, (void *)&w->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void word_set(struct word *w, uint32_t value)
{
    atomic_store(&w->value, value);
    word_wake(w);
}

uint32_t word_add(struct word *w)
{
    uint32_t value = atomic_fetch_add(&w->value, 1) + 1;
    word_wake(w);
    return value;
}

static bool holds(uint32_t value, enum word_condition condition, uint32_t target)
{
    return condition == WORD_EQUALS ? value == target : (int32_t)(value - target) >= 0;
}

static int other_failed(struct comm *c, struct error *err)
{
    c->secondary = true;
    return error_set(err, ERROR_RUN, NULL, NULL, "another rank failed");
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static int sleep_for(struct comm *c, struct region *g, int peer, struct word *w,
                     enum word_condition condition, uint32_t target, struct error *err)
{
    static const struct timespec look = {.tv_nsec = REGION_LOOK_MS * 1000000L};
    for (;;) {
        if (atomic_load(&g->abort) != 0)
            return other_failed(c, err);
        bool ended = atomic_load(&g->rank[peer].ended) != 0;
        uint32_t value = atomic_load(&w->value);
        if (holds(value, condition, target))
            return 0;
        if (ended) {
            /* A failing rank raises the abort word before it counts as ended. */
            if (atomic_load(&g->abort) != 0)
                return other_failed(c, err);
            return error_set(err, ERROR_RUN, NULL, NULL, "rank %d has ended while rank %d waits for it", peer,
                             c->rank);
        }
        syscall(SYS_futex, (void *)&w->value, FUTEX_WAIT, value, &look, NULL, 0);
    }
}

int region_wait(struct comm *c, struct region *g, int peer, struct word *w, enum word_condition condition,
                uint32_t target, struct error *err)
{
    for (int i = 0; i <= g->spins; i++) {
        if (holds(atomic_load_explicit(&w->value, memory_order_acquire), condition, target))
            return 0;
        relax();
    }
    atomic_fetch_add(&w->waiters, 1);
    int result = sleep_for(c, g, peer, w, condition, target, err);
    atomic_fetch_sub(&w->waiters, 1);
    return result;
}
