#include "comm/heartbeat.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* The thread calls nothing deep. */
enum { STACK_BYTES = 64 * 1024, BEATS_PER_LIMIT = 8 };

static double lesser(double a, double b)
{
    return a < b ? a : b;
}

/* ---- in a rank ---- */

static void *heart_run(void *context)
{
    struct heart *h = context;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        atomic_fetch_add(h->beat, 1);
        double next = clock_seconds() + h->every;
        struct timespec until = {.tv_sec = (time_t)next};
        until.tv_nsec = (long)((next - (double)until.tv_sec) * 1e9);
        int why = 0;
        while (!h->stop && why == 0)
            why = pthread_cond_timedwait(&h->wake, &h->lock, &until);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Returns an errno. */
static int start_thread(struct heart *h)
{
    pthread_attr_t attributes;
    int why = pthread_attr_init(&attributes);
    if (why != 0)
        return why;
    why = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (why == 0)
        why = pthread_create(&h->thread, &attributes, heart_run, h);
    pthread_attr_destroy(&attributes);
    if (why ==
        EINVAL) /* libraries' thread-local data, which lies on the stack too, is too large for that one */
        why = pthread_create(&h->thread, NULL, heart_run, h);
    return why;
}

int heart_start(struct heart *h, _Atomic uint32_t *beat, double limit, struct error *err)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    *h = (struct heart){.beat = beat, .every = lesser(1, limit / BEATS_PER_LIMIT)};
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = start_thread(h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why == 0)
        return 0;
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    return error_errno(err, why, NULL, "start the thread that tells that this rank is alive");
}

void heart_stop(struct heart *h)
{
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
}

/* ---- in the launcher ---- */

double watchdog_interval(double limit)
{
    return lesser(0.5, limit / BEATS_PER_LIMIT);
}

static void restart(struct watchdog *w, double now)
{
    for (int r = 0; r < w->ranks; r++)
        w->sign[r].since = now;
}

int watchdog_create(struct watchdog *w, int ranks, double limit, double now, struct error *err)
{
    *w = (struct watchdog){.ranks = ranks, .limit = limit, .turn = now};
    w->sign = calloc((size_t)ranks, sizeof *w->sign);
    if (!w->sign)
        return error_memory(err, (size_t)ranks * sizeof *w->sign, "the ranks' signs of life");
    restart(w, now);
    return 0;
}

void watchdog_free(struct watchdog *w)
{
    free(w->sign);
    w->sign = NULL;
}

void watchdog_turn(struct watchdog *w, double now)
{
    if (now - w->turn > w->limit / 2)
        restart(w, now);
    w->turn = now;
}

double watchdog_silence(struct watchdog *w, int rank, uint32_t beat, double now)
{
    struct sign *s = &w->sign[rank];
    if (s->beat != beat)
        *s = (struct sign){.beat = beat, .since = now};
    return now - s->since;
}
