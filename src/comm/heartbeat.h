/* Signs of life of ranks that a launcher started.
 *
 * A rank that is stopped (SIGSTOP, a debugger) or that the machine does not let run neither fails nor goes
 * on: the others would wait for it for ever. So a thread of its own raises a counter in each rank, whatever
 * else the rank computes, writes or waits for, and the launcher looks at the counters:
 *
 *     heart_start(&heart, &mine->beat, limit, &err);      // in a rank
 *     … the rank's work …
 *     heart_stop(&heart);
 *
 *     watchdog_create(&w, ranks, limit, &err);            // in the launcher
 *     every watchdog_interval(limit) seconds:
 *         watchdog_turn(&w, now);
 *         for each rank that is alive:
 *             if (watchdog_silence(&w, r, beat of rank r, now) > limit) … it is lost …
 *     watchdog_free(&w);
 *
 * `limit` is in seconds, > 0: how long a rank may be silent; a counter is raised at least eight times
 * meanwhile. Times are clock_seconds(). */
#ifndef TERCET_COMM_HEARTBEAT_H
#define TERCET_COMM_HEARTBEAT_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct heart {
    _Atomic uint32_t *beat;
    double every; /* seconds */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop; /* under the lock */
};

/* Starts the thread, which blocks all signals and allocates nothing; *beat is raised at once. `h` and `beat`
 * stay where they are until heart_stop, which raises it no more. */
int heart_start(struct heart *h, _Atomic uint32_t *beat, double limit, struct error *err);
void heart_stop(struct heart *h);

struct watchdog {
    int ranks;
    double limit;
    double turn; /* when the launcher last looked */
    struct sign {
        uint32_t beat;
        double since; /* when the counter was first seen at this value */
    } * sign;         /* [ranks] */
};

/* Seconds between two looks. */
double watchdog_interval(double limit);
/* All ranks have a whole `limit` from `now` on. */
int watchdog_create(struct watchdog *w, int ranks, double limit, double now, struct error *err);
void watchdog_free(struct watchdog *w);
/* A turn of the launcher begins. When the one before is long ago, the launcher itself was stopped, as a rule
 * with its ranks (Ctrl-Z in a terminal, a batch system, a suspended machine): then all ranks have a whole
 * `limit` again. */
void watchdog_turn(struct watchdog *w, double now);
/* For how many seconds this rank's counter, `beat` now, has not changed. */
double watchdog_silence(struct watchdog *w, int rank, uint32_t beat, double now);

#endif
