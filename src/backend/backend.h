/* Backends: where ops are computed. One table of functions; cpu, reference and guarded fill it.
 *
 *     struct backend *b;
 *     backend_create(&b, &(struct backend_options){.name = "cpu", .threads = 2}, err);
 *     void *x; backend_alloc(b, MEMORY_DEVICE, bytes, &x, err);
 *     backend_upload(b, 0, x, host, bytes, err);
 *     backend_run(b, 0, &call, err);
 *     backend_download(b, 0, host, y, bytes, err);   // enqueued, too
 *     backend_sync(b, 0, err);                        // now host may be read
 *     backend_free(b, x); backend_destroy(b);
 *
 * Contract. Streams are numbered 0 … BACKEND_STREAMS-1 (0 compute, 1 transfers); work on one stream
 * runs in order. run, upload, download and copy only enqueue: nothing has happened, and neither
 * source nor target may be touched, until backend_sync() or backend_event_sync() returned. Device
 * memory is never read or written by the host but through these functions. All calls come from one thread,
 * but for backend_read. Errors of an enqueued
 * op may be reported by the waiting call. Nothing is allocated by any call between create and destroy
 * except backend_alloc and the first backend_prepare of a call's shape. */
#ifndef TERCET_BACKEND_BACKEND_H
#define TERCET_BACKEND_BACKEND_H

#include "base/error.h"
#include "base/profile.h"
#include "graph/op.h"

#include <stdbool.h>

enum memory_kind {
    MEMORY_DEVICE, /* operands of ops */
    MEMORY_HOST,   /* pinned host memory: the host reads and writes it; source or target of copies */
};

enum { BACKEND_STREAMS = 2, BACKEND_EVENTS = 64 };

struct backend_options {
    const char *name; /* "auto" (cpu), "cpu", "reference", "guarded" (around cpu), "guarded-reference" */
    const char *isa;  /* "auto" or a cap: "portable", "avx2", "avx512", "avx512_bf16"; cpu only */
    /* "auto", "own" or "onednn": whose kernels make matrix products; NULL is auto; cpu only */
    const char *products;
    int threads; /* >= 1 */
    bool pin;    /* bind threads to CPUs first_cpu … */
    int first_cpu;
};

struct backend;

/* What the speed and the bits of its products depend on, besides the machine. */
struct backend_description {
    char isa[24];     /* the instruction set in use: "portable", "avx2", "avx512", "avx512_bf16"; "none" */
    char library[40]; /* what makes products: "own kernels", "oneDNN 2.6.3"; "none" */
};

struct backend_vtable {
    const char *name;
    void (*destroy)(struct backend *b);
    int (*alloc)(struct backend *b, enum memory_kind kind, size_t bytes, void **out, struct error *err);
    void (*free)(struct backend *b, void *memory);
    int (*adopt)(struct backend *b, void *memory, size_t bytes, struct error *err);
    void (*disown)(struct backend *b, void *memory);
    int (*upload)(struct backend *b, int stream, void *device, const void *host, size_t bytes,
                  struct error *err);
    int (*download)(struct backend *b, int stream, void *host, const void *device, size_t bytes,
                    struct error *err);
    int (*read)(struct backend *b, void *host, const void *device, size_t bytes, struct error *err);
    int (*copy)(struct backend *b, int stream, void *to, const void *from, size_t bytes, struct error *err);
    int (*prepare)(struct backend *b, const struct op_call *call, size_t *workspace, struct error *err);
    int (*run)(struct backend *b, int stream, const struct op_call *call, struct error *err);
    int (*record)(struct backend *b, int stream, int event, struct error *err);
    int (*stream_wait)(struct backend *b, int stream, int event, struct error *err);
    int (*event_sync)(struct backend *b, int event, struct error *err);
    int (*sync)(struct backend *b, int stream, struct error *err);
    int (*begin_access)(struct backend *b, void *memory, size_t bytes, struct error *err);
    int (*end_access)(struct backend *b, void *memory, size_t bytes, struct error *err);
    int (*threads_seen)(const struct backend *b);
    void (*describe)(const struct backend *b, struct backend_description *out); /* NULL: nothing to tell */
    void (*profile)(struct backend *b, struct profile *p); /* NULL: it has no threads of its own to tell of */
};

/* The first member of every backend's own struct. */
struct backend {
    const struct backend_vtable *v;
    struct profile *profile; /* NULL: none */
};

int backend_create(struct backend **out, const struct backend_options *options, struct error *err);
void backend_destroy(struct backend *b); /* NULL is allowed */

/* Zeroed, 64-byte aligned (device memory at least). */
int backend_alloc(struct backend *b, enum memory_kind kind, size_t bytes, void **out, struct error *err);
void backend_free(struct backend *b, void *memory); /* NULL is allowed */

/* Memory that somebody else made (a window that ranks share) becomes device memory of this backend, so
 * that ops may use it, until disowned. `memory` is page-aligned. */
int backend_adopt(struct backend *b, void *memory, size_t bytes, struct error *err);
void backend_disown(struct backend *b, void *memory);

int backend_upload(struct backend *b, int stream, void *device, const void *host, size_t bytes,
                   struct error *err);
int backend_download(struct backend *b, int stream, void *host, const void *device, size_t bytes,
                     struct error *err);
int backend_copy(struct backend *b, int stream, void *to, const void *from, size_t bytes, struct error *err);
/* A download outside all streams, done when it returns, which any one thread may make while another uses the
 * backend. From its beginning to its end nothing that is enqueued may write this device memory. */
int backend_read(struct backend *b, void *host, const void *device, size_t bytes, struct error *err);

/* Bytes of workspace that running `call` needs, for any smaller first dimension too (operand data
 * pointers are not looked at). Refuses what the backend has no kernel for. */
int backend_prepare(struct backend *b, const struct op_call *call, size_t *workspace, struct error *err);
int backend_run(struct backend *b, int stream, const struct op_call *call, struct error *err);

/* Events are numbers below BACKEND_EVENTS, chosen by the caller. */
int backend_record(struct backend *b, int stream, int event, struct error *err);
int backend_stream_wait(struct backend *b, int stream, int event, struct error *err);
int backend_event_sync(struct backend *b, int event, struct error *err);
int backend_sync(struct backend *b, int stream, struct error *err);

/* A transfer of comm/ (a message, another rank's read through a window) uses this device memory from
 * begin to end. The caller has synced the streams that touch it. */
int backend_begin_access(struct backend *b, void *memory, size_t bytes, struct error *err);
int backend_end_access(struct backend *b, void *memory, size_t bytes, struct error *err);

/* Threads that have taken part in ops so far. */
int backend_threads_seen(const struct backend *b);

/* Records each op that is run from here on (base/profile.h) under its name, with its cost; NULL ends that.
 * While the profile records, an op is waited for: that time is its own, but nothing goes on beside it. */
void backend_profile(struct backend *b, struct profile *p);

void backend_describe(const struct backend *b, struct backend_description *out);

/* A hash of the bits of a probe product and of every kind of kernel: equal where results are equal. */
int backend_probe(struct backend *b, uint64_t *hash, struct error *err);

#endif
