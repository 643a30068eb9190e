/* What stands behind comm.h: a `struct comm` and the table of functions that a transport fills.
 *
 * comm.c checks arguments and order of calls, keeps the counts and calls the table; a transport moves the
 * bytes. shm.c serves ranks of one machine and, with one rank, `self`; mpi.c serves messages. */
#ifndef TERCET_COMM_TRANSPORT_H
#define TERCET_COMM_TRANSPORT_H

#include "comm/comm.h"
#include "comm/signals.h"

/* One exchange's state that all transports share. The phases: idle, (reuse) writable, (begin) open, (end)
 * idle. */
enum exchange_phase { EXCHANGE_IDLE, EXCHANGE_WRITABLE, EXCHANGE_OPEN };
struct exchange_state {
    int64_t *offset; /* [size+1]; all zero before the first layout */
    size_t part_capacity;
    enum exchange_phase phase;
    int contributors; /* of the open round */
    struct comm_window send;
    void *transport; /* the transport's own part */
};

struct comm_ops {
    const char *name;
    bool shares_memory;
    int (*stop_signal)(struct comm *c); /* NULL: signals reach this process itself */
    int (*barrier)(struct comm *c, struct error *err);
    int (*broadcast)(struct comm *c, void *data, size_t bytes, int root, struct error *err);
    int (*sum)(struct comm *c, int64_t *values, int64_t n, struct error *err);
    int (*max)(struct comm *c, int64_t *values, int64_t n, struct error *err);
    int (*all_gather)(struct comm *c, const void *mine, size_t bytes, void *all, struct error *err);
    int (*send)(struct comm *c, int to, const void *source, size_t bytes, struct error *err);
    int (*receive)(struct comm *c, int from, void *target, size_t bytes, struct error *err);
    /* Fills memory, part and place of a window whose part[size] is allocated. bytes > 0. */
    int (*window_create)(struct comm *c, bool shared, struct comm_window *w, struct error *err);
    void (*window_free)(struct comm *c, struct comm_window *w);
    int (*gather_create)(struct comm_gather *g, struct error *err);
    void (*gather_free)(struct comm_gather *g);
    int (*gather_begin)(struct comm_gather *g, const void *mine, void *full, struct error *err);
    int (*gather_wait)(struct comm_gather *g, struct error *err);
    /* send, capacity and the state are there. */
    int (*exchange_create)(struct comm_exchange *x, struct exchange_state *s, struct error *err);
    void (*exchange_free)(struct comm_exchange *x, struct exchange_state *s);
    int (*exchange_reuse)(struct comm_exchange *x, struct exchange_state *s, struct error *err);
    int (*exchange_begin)(struct comm_exchange *x, struct exchange_state *s, struct error *err);
    int (*exchange_part)(struct comm_exchange *x, struct exchange_state *s, int rank, const void **part,
                         struct error *err);
    int (*exchange_end)(struct comm_exchange *x, struct exchange_state *s, struct error *err);
};

struct comm {
    const struct comm_ops *ops;
    const char *name;
    int rank, size, local_rank, local_size;
    bool secondary;          /* a wait ended because of another rank's failure: not the one to report */
    int gathers_pending;     /* of messages */
    struct signals *signals; /* NULL where a launcher reads them */
    struct comm_stats stats;
    void *transport;
};

/* Bytes of rank r's run. */
static inline size_t run_bytes(const int64_t *offset, int r)
{
    return (size_t)(offset[r + 1] - offset[r]);
}

/* The exit status of a rank whose body returned `status`: 0, 1, 2 or 128 … 255. A failure gets a text where
 * it has none. */
int comm_body_status(int status, struct error *err);
/* Puts "rank 2: " in front of the place. */
void comm_name_rank(struct error *err, int rank);

#endif
