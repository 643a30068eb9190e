/* SIGTERM and SIGINT as requests to stop, read with sigtimedwait: no handlers, no globals.
 *
 * signals_block() first, before threads start, so that they inherit the mask. A terminal's Ctrl-C or
 * `timeout` may deliver one request twice, to the process and to its group: a repetition within
 * SIGNALS_REPEAT_SECONDS counts as the same request. */
#ifndef TERCET_COMM_SIGNALS_H
#define TERCET_COMM_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

#define SIGNALS_REPEAT_SECONDS 0.2

struct signals {
    sigset_t wanted, before; /* what is read; the caller's mask */
    int first;               /* the first request, 0 when none */
    double first_time;
    bool second_kills; /* unblock after the first request, so that a second one ends the process */
    bool unblocked;
};

/* Blocks SIGTERM and SIGINT, and SIGCHLD when `children`, in the calling thread. */
void signals_block(struct signals *s, bool children, bool second_kills);
/* The first request so far; 0 when none. Does not wait. */
int signals_poll(struct signals *s);
/* Takes one signal, waiting at most `seconds`; 0 when none came. Counts requests: *second is set when this
 * is one after the first. SIGCHLD is returned like the others. */
int signals_wait(struct signals *s, double seconds, bool *second);
/* Drops requests that are still pending and gives the caller's mask back. */
void signals_restore(struct signals *s);

#endif
