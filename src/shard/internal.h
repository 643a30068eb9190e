/* What the files of this room share. */
#ifndef TERCET_SHARD_INTERNAL_H
#define TERCET_SHARD_INTERNAL_H

#include "shard/shard.h"

/* Memory of one buffer: allocated by the backend, or a window that the backend adopted. */
struct shard_buffer {
    void *memory;
    int64_t bytes;
    struct comm_window window; /* where it came from, when not from the backend */
};

/* One exchange object and who uses it at present. */
struct shard_sender {
    struct comm_exchange exchange;
    bool made;
    bool writable;    /* this rank may write `send` */
    bool lent;        /* begun: the others may be reading `send` */
    int contributors; /* of the exchange that is open */
};

struct shard_unit {
    struct flat_layout layout;
    bool *decay;
    bool referred;
    int64_t first, end;         /* the elements that this rank keeps states of: its run; all at stage 0 */
    int64_t own_first, own_end; /* the elements that this rank owns, adds up, and sums squares of */

    struct shard_buffer full;  /* compute type, all elements; none where slots serve (stage 3, messages) */
    struct shard_buffer piece; /* compute type, own run (stage 3, messages) */
    struct shard_buffer master, moment[2], sums;
    struct comm_gather gather, gather_sums;
    bool gathering, ready; /* parameters under way; complete */
    int slot;              /* of the gather slots, -1 none */
    int sender;            /* of the senders */
};

enum { SHARD_SLOTS = 2 };

struct shard {
    struct comm *comm;
    struct backend *backend;
    struct shard_options options;
    int unit_count;
    struct shard_unit *units;
    struct shard_buffer slot[SHARD_SLOTS]; /* gathered units of stage 3 with messages */
    int slot_unit[SHARD_SLOTS];            /* -1: free */
    struct shard_sender *senders;
    int sender_count;
    struct shard_buffer squares; /* f64 a block of the largest run */
    double *host_squares;        /* MEMORY_HOST */
    void *staging;               /* MEMORY_HOST, SHARD_STAGING floats */
    float *values;               /* [SHARD_STAGING], plain */
    int64_t *cuts;               /* [ranks+1], scratch */
    struct shard_memory held;
    bool share; /* parameters are windows shared by the ranks */
};

enum { SHARD_STAGING = 1 << 16 };

/* The own run (all at stage 0) of the compute-type parameters. */
void *shard_compute_run(const struct shard *s, const struct shard_unit *u);
/* With fp32 compute the masters are the parameters. */
float *shard_master_run(const struct shard *s, const struct shard_unit *u);
/* The own run of the parameters has new values, and they are complete. In shared memory saying so is all
 * there is to a gather, and is done at once. */
int shard_run_written(struct shard *s, int unit, struct error *err);
/* What this rank keeps of `kind`: elements first … end-1 of the unit. */
float *shard_state_run(const struct shard *s, const struct shard_unit *u, enum shard_kind kind);

#endif
