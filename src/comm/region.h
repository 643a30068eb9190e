/* The memory that a launcher and its ranks share from the fork on: how each rank is doing, the words that
 * they wait on, mailboxes for small collectives, and the file that windows are cut from.
 *
 * A `struct word` is a counter that one rank raises and others wait for with a futex. Whatever was written
 * before word_set/word_add is visible to those whose region_wait returned. Waits look at the abort word and
 * at the awaited rank every REGION_LOOK_MS, so none outlives the failure of another rank. */
#ifndef TERCET_COMM_REGION_H
#define TERCET_COMM_REGION_H

#include "base/error.h"
#include "comm/comm.h"

#include <stdatomic.h>

enum { REGION_LOOK_MS = 50, REGION_MAIL_BYTES = 64 * 1024, REGION_MAILBOXES = 3 };

struct word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t waiters; /* may be too high after a waiter was killed: costs a wake, no more */
};

/* A rank's own part, written by that rank. */
struct region_rank {
    struct word barrier;                /* arrivals */
    struct word gate;                   /* the move mailbox: 0 empty, 1 + r holds bytes for rank r */
    struct word freed;                  /* windows given back */
    _Alignas(64) _Atomic uint32_t beat; /* raised while the rank lives, see heartbeat.h */
    _Atomic uint32_t ended;
    int status;         /* valid once ended */
    struct error error; /* valid once ended with status 1 or 2 */
};

struct region {
    size_t bytes;
    size_t mail; /* offset of the mailboxes */
    int size;
    int spins;      /* looks before sleeping */
    int windows_fd; /* a memfd, the same number in every rank; -1 with one rank */
    struct word go; /* 1: all ranks are started */
    _Atomic uint32_t abort;
    _Atomic uint32_t stop;        /* the signal that asks to stop */
    _Atomic int32_t first_failed; /* rank whose own failure came first, -1 when none */
    struct region_rank rank[];
};

int region_create(int ranks, struct region **out, struct error *err);
void region_free(struct region *g); /* NULL is allowed */
/* Mailbox `box` (0 … REGION_MAILBOXES-1) of a rank, REGION_MAIL_BYTES long. */
void *region_mail(struct region *g, int rank, int box);

void word_set(struct word *w, uint32_t value);
uint32_t word_add(struct word *w); /* adds one, returns the new value */
void word_wake(struct word *w);

/* WORD_REACHES: the counter is at or past the target (it may wrap around); WORD_EQUALS: exactly there. */
enum word_condition { WORD_REACHES, WORD_EQUALS };
/* Waits for a word that rank `peer` changes. Fails with "another rank failed" (and marks c as secondary)
 * when the run is being ended, and when `peer` has ended without doing its part. */
int region_wait(struct comm *c, struct region *g, int peer, struct word *w, enum word_condition condition,
                uint32_t target, struct error *err);

#endif
