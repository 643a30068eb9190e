/* Ranks: starting them, waiting for them, and the few collectives that training needs.
 *
 * A `struct comm` is one rank's end of its group. Three transports: `self` (one rank), `shm` (ranks
 * forked on this machine that share memfd windows and wait on futexes) and `mpi` (messages; joined
 * when an MPI launcher started the program). All calls named collective are made by every rank in the
 * same order. All waits end when another rank has failed. No order of additions is hidden in here:
 * comm moves bytes, and sums only integers.
 *
 * One process per rank; a comm is used from the thread that made it. */
#ifndef TERCET_COMM_COMM_H
#define TERCET_COMM_COMM_H

#include "base/error.h"
#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;

enum comm_transport { COMM_AUTO, COMM_SHM, COMM_MPI };

/* The most ranks that `-n` may ask for. */
enum { COMM_MAX_LOCAL_RANKS = 1024 };
/* How long a rank may be silent where nobody says. */
enum { COMM_WATCHDOG_SECONDS = 60 };

/* What every rank runs. Returns the rank's exit status; when that is 1 or 2, it has filled *err. A status
 * of 128+N says that signal N asked for the end and that everything is saved; all ranks return the same. */
typedef int comm_body(struct comm *comm, void *context, struct error *err);

/* Runs `body` on every rank and returns the exit status of the whole run.
 *
 * ranks >= 1 asks for that many on this machine (`-n`): with 1, body runs in this process; with more,
 * they are forked (call before any thread exists) and this process becomes the launcher, which passes
 * SIGTERM and SIGINT on as a request to stop (a second one, more than 0.2 seconds later, kills all ranks:
 * 128+N), and ends all ranks when one fails, is killed or when it is itself killed. ranks == 0: 1, or the
 * group of the MPI launcher that started this process. Refused, status 2: transport shm or -n under a
 * launcher, mpi without one, mpi with -n.
 *
 * When a rank fails, every other rank is ended within five seconds and *err says what the first failure
 * was and which rank it struck; the caller reports it. err->kind is ERROR_NONE when there is nothing
 * left to report: status 0 or 128+N; and under an MPI launcher, where MPI_Abort ends this process too,
 * the failing rank reports through `log` (LOG_ERROR) itself, and a refusal is left to the process of rank 0.
 *
 * A rank that does not get to run for longer than `watchdog` seconds (stopped by SIGSTOP, held by a debugger,
 * swapped out) counts as failed; one that computes, writes or waits may take as long as it likes. Where the
 * launcher is stopped with its ranks (Ctrl-Z), none has failed. Only forked ranks are watched so: neither a
 * single one nor those of an MPI launcher.
 *
 * SIGTERM and SIGINT are blocked in ranks: see comm_stop_signal. Standard streams are flushed before
 * forking. Under MPI only one comm_run a process. */
struct comm_options {
    int ranks;
    enum comm_transport transport;
    double watchdog; /* 0: COMM_WATCHDOG_SECONDS */
    const struct log *log;
};
int comm_run_with(const struct comm_options *options, comm_body *body, void *context, struct error *err);
/* The same with the standard watchdog. */
int comm_run(int ranks, enum comm_transport transport, const struct log *log, comm_body *body, void *context,
             struct error *err);

/* True when an MPI launcher (Open MPI, MPICH/Hydra, Slurm's srun) started this process. */
bool comm_under_launcher(void);
/* This process's number among those that the launcher started; 0 without a launcher. What is found before
 * comm_run (a mistake in the run file) is best reported by number 0 alone. */
int comm_launcher_rank(void);
/* This build can join the ranks of an MPI launcher. */
bool comm_has_mpi(void);
/* The MPI library of this build, as it calls itself ("Open MPI v4.1.4"); empty without MPI. */
void comm_mpi_library(char *out, size_t size);

int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);
/* Ranks on this machine, and this rank's number among them. */
int comm_local_size(const struct comm *c);
int comm_local_rank(const struct comm *c);
const char *comm_name(const struct comm *c); /* "self", "shm", "mpi" */
/* Ranks see each other's windows: gather is a wait, not a copy. True for self and shm. */
bool comm_shares_memory(const struct comm *c);

/* The signal (SIGTERM, SIGINT) that has asked this rank, or its launcher, to stop; 0 when none. Not
 * collective: ranks must agree on it (comm_max_i64) before acting. Long work that is not a training step
 * should ask too. With one rank, a second signal ends the process once the first was seen here. */
int comm_stop_signal(struct comm *c);

/* Collectives over host memory, all small. Sums wrap around. all[size * bytes] is in rank order and may not
 * overlap `mine`. */
int comm_barrier(struct comm *c, struct error *err);
int comm_broadcast(struct comm *c, void *data, size_t bytes, int root, struct error *err);
int comm_sum_i64(struct comm *c, int64_t *values, int64_t n, struct error *err);
int comm_max_i64(struct comm *c, int64_t *values, int64_t n, struct error *err);
int comm_all_gather(struct comm *c, const void *mine, size_t bytes, void *all, struct error *err);
/* Rank `root` gets `bytes` bytes of rank `from` (both call; the others do not). `source` is read on rank
 * `from`, `target` written on rank `root`; where both are the same rank the two may be the same place. */
int comm_move(struct comm *c, int from, int root, const void *source, void *target, size_t bytes,
              struct error *err);

/* A window: memory that ranks can see where the transport allows it. Collective; bytes are the same on all
 * ranks. shared: one memory for all ranks (comm_shares_memory), else private. not shared: one a rank, and
 * `part[r]` is rank r's (NULL for other ranks when they cannot be seen). Page-aligned, zeroed, its pages
 * reserved: a lack of memory is an error here, not a signal later.
 *
 * Freeing is collective in order but waits for nobody, so a rank that failed can clean up; *w is zeroed. */
struct comm_window {
    void *memory; /* mine, or the shared one */
    size_t bytes;
    void **part;   /* [size] */
    int64_t place; /* private */
};
int comm_window_create(struct comm *c, size_t bytes, bool shared, struct comm_window *out, struct error *err);
void comm_window_free(struct comm *c, struct comm_window *w); /* zeroed w is allowed */

/* All-gather of one flat buffer cut in consecutive runs, rank r's being [offset[r], offset[r+1])
 * bytes (offset has size+1 entries, the first 0; runs may be empty).
 *
 * Messages: begin() sends `mine` (this rank's run; may lie inside full at its place) and receives
 * into `full`, without waiting; wait() returns when full is complete. Both buffers are left alone between.
 * Shared windows: full is a shared window in which each rank writes its run in place. begin() says
 * that this rank's run is written, wait() returns when every rank has said so; mine and full are not
 * looked at. Which of the two: `shared` is comm_shares_memory(c), anything else is refused.
 *
 * Gathers are begun and waited for in the same order on all ranks, with messages at most COMM_REQUESTS of a
 * comm begun and not yet waited for; one object may be begun several times over, its waits then come in the
 * order of its begins. Creating is collective; freeing waits for nobody. */
enum { COMM_REQUESTS = 8 };
struct comm_gather {
    struct comm *comm;
    int64_t *offset; /* [size+1], a copy */
    bool shared;
    int pending;    /* begun and not yet waited for */
    void *internal; /* private */
};
int comm_gather_create(struct comm *c, const int64_t *offset, bool shared, struct comm_gather *out,
                       struct error *err);
void comm_gather_free(struct comm_gather *g);
int comm_gather_begin(struct comm_gather *g, const void *mine, void *full, struct error *err);
int comm_gather_wait(struct comm_gather *g, struct error *err);

/* The exchange under an ordered reduce: each of the first k ranks has written a full-sized send
 * buffer, cut in runs like a gather's; every rank reads, rank by rank, what the others wrote in its own run.
 *
 *     comm_exchange_reuse(x)                    // my send buffer may be written again
 *     … write x->send …
 *     comm_exchange_begin(x, k)                 // ranks 0 … k-1 contribute; all ranks call
 *     for (r = 0; r < k; r++) {
 *         comm_exchange_part(x, r, &part, err); // waits for rank r's part of my run
 *         acc += part                           // in rank order
 *     }
 *     comm_exchange_end(x)                      // all parts read; the others may reuse their buffers
 *
 * Shared memory: send is a per-rank window and part points into rank r's. Messages: begin() sends to
 * each owner its part and posts receives into staging; part points there (own part: into send).
 * When an x is reused for buffers of several units in turn, `offset` may be changed between end and
 * begin with comm_exchange_layout (bytes <= the created capacity). */
struct comm_exchange {
    struct comm *comm;
    void *send; /* capacity bytes, page-aligned; device memory once adopted by a backend */
    size_t capacity;
    void *const *peers; /* [size]: each rank's send buffer as seen from here, for a backend to adopt: all
                           of them in shared memory, else the own one alone; NULL where it cannot be seen */
    void *staging; /* messages: (size-1) * staging_part bytes for received parts; else (and alone) NULL */
    size_t staging_bytes;
    void *internal; /* private */
};
/* Collective. capacity: the largest total bytes; part_capacity: the largest run of one rank. Freeing is
 * collective in order but waits for nobody. */
int comm_exchange_create(struct comm *c, size_t capacity, size_t part_capacity, struct comm_exchange *out,
                         struct error *err);
void comm_exchange_free(struct comm_exchange *x);
int comm_exchange_layout(struct comm_exchange *x, const int64_t *offset,
                         struct error *err); /* bytes, [size+1], copied */
int comm_exchange_reuse(struct comm_exchange *x, struct error *err);
int comm_exchange_begin(struct comm_exchange *x, int contributors, struct error *err);
int comm_exchange_part(struct comm_exchange *x, int rank, const void **part, struct error *err);
int comm_exchange_end(struct comm_exchange *x, struct error *err);

/* What the transport moved and when, for tests: gathers and exchanges begun, bytes of both that left as
 * messages, and the clock_seconds() at which the last gather began. */
struct comm_stats {
    int64_t gathers, exchanges, bytes_sent;
    double last_gather_begin;
};
const struct comm_stats *comm_stats(const struct comm *c);

#endif
