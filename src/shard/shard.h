/* Sharding: who keeps which part of parameters, gradients and optimizer states, and how the whole comes
 * together when a unit is computed. A shard knows units as lists of sizes, not what they compute.
 *
 *     forward and backward of unit u:                after the backward of unit u:
 *         shard_gather_begin(s, u+1, err)                shard_grads(s, u, &base, err) before it
 *         shard_gather(s, u, &base, err)                 shard_reduce_begin(s, u, contributors, err)
 *         … run …                                        … something else …
 *         shard_release(s, u)                            shard_reduce_finish(s, u, first, err)
 *     end of the step:
 *         shard_sum_squares(s, &sum, err); shard_update(s, &update, err)
 *
 * The order of additions is the promise: the owner of a block adds the gradients of micro-batch 0, 1, 2 …
 * of the global batch one at a time to an fp32 accumulator, whatever the number of ranks and the stage.
 * ZeRO stages (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
 * SC 2020) differ in what is kept where. With c bytes an element in the compute type, P elements of all
 * units, S of all owned runs, L of the largest unit that no other unit refers to:
 *
 *   stage               0               1           2           3
 *   parameters          cP              cP          cP          messages: cS + 2cL; shared memory: cP
 *   masters (c != 4)    4P              4S          4S          4S
 *   moments             8P              8S          8S          8S
 *   gradient sums       4P              4S          4S          4S
 *   gradients sent      2 x 4L          4P          2 x 4L      2 x 4L
 *
 * With fp32 compute the parameters are the masters. Where ranks share memory, the parameters of stages
 * 1-3 and the sums of stage 0 are there once for all of them. A unit that another one refers to (a tied
 * embedding) has buffers of its own, full-sized, for parameters (stage 3) and for gradients, since both
 * are in use for longer; they come on top. Messages also need room to receive in: (n-1) runs for each
 * gradient buffer.
 *
 * All calls are collective: every rank makes them in the same order, also one that has no micro-batch. */
#ifndef TERCET_SHARD_SHARD_H
#define TERCET_SHARD_SHARD_H

#include "backend/backend.h"
#include "base/exact_sum.h"
#include "comm/comm.h"
#include "shard/layout.h"

/* Gradient sums can be fetched, not filled. */
enum shard_kind { SHARD_MASTER, SHARD_MOMENT1, SHARD_MOMENT2, SHARD_SUMS };

struct shard_unit_spec {
    int param_count;
    const int64_t *elements; /* [param_count] */
    const bool *decay;       /* [param_count] weight decay applies */
    bool referred;           /* another unit uses one of its parameters */
};

struct shard_options {
    int stage; /* 0 … 3 */
    enum dtype compute;
    bool inference; /* parameters alone: no masters, moments or gradients */
};

/* Bytes that one rank keeps; `shared` bytes are there once for all ranks of a machine. */
struct shard_memory {
    int64_t parameters, masters, moments, sums, sent, received;
    bool parameters_shared, sums_shared;
};
/* Nothing is allocated. `shares_memory` as comm_shares_memory. */
int shard_plan(const struct shard_options *options, const struct shard_unit_spec *units, int unit_count,
               int ranks, bool shares_memory, struct shard_memory *out, struct error *err);

struct shard;
int shard_create(struct shard **out, struct comm *comm, struct backend *backend,
                 const struct shard_options *options, const struct shard_unit_spec *units, int unit_count,
                 struct error *err);
void shard_free(struct shard *s); /* NULL is allowed */

/* Bytes in fact allocated, by the same items. */
const struct shard_memory *shard_memory_held(const struct shard *s);

/* Writes every element of `kind` that this rank keeps: fill() gives elements first … first+n-1 of one
 * parameter, as floats. Masters also set the compute copies. No rank may still be using the parameters. */
int shard_fill(struct shard *s, enum shard_kind kind,
               int (*fill)(void *context, int unit, int param, int64_t first, int64_t n, float *out,
                           struct error *err),
               void *context, struct error *err);
/* The elements *first … *end-1 of a parameter that this rank owns; equal where it owns none of them. The runs
 * of all ranks make up the whole. */
void shard_owned(const struct shard *s, int unit, int param, int64_t *first, int64_t *end);
/* Elements first … first+n-1 of a parameter, owned by this rank, to `out` in MEMORY_HOST. Not collective, and
 * one other thread may call it while passes go on: what `kind` names changes in shard_fill and shard_update
 * alone (gradient sums in every reduce: they cannot be read). */
int shard_read(const struct shard *s, enum shard_kind kind, int unit, int param, int64_t first, int64_t n,
               float *out, struct error *err);
/* To look at states whole: brings one parameter of `kind` to rank 0, piece by piece in order. Only rank 0's
 * sink is called. Sums are those of reduces that all ranks have finished. */
int shard_fetch(struct shard *s, enum shard_kind kind, int unit, int param,
                int (*sink)(void *context, const float *values, int64_t n, struct error *err), void *context,
                struct error *err);

int shard_gather_begin(struct shard *s, int unit, struct error *err);
/* *base: the unit's flat range in the compute type; parameter k stands at element offset[k] of its layout. */
int shard_gather(struct shard *s, int unit, void **base, struct error *err);
void shard_release(struct shard *s, int unit);
const struct flat_layout *shard_layout(const struct shard *s, int unit);

/* *base: this rank's buffer for the unit's fp32 gradients of one micro-batch, free to write. */
int shard_grads(struct shard *s, int unit, float **base, struct error *err);
/* The buffers of ranks 0 … contributors-1 are written (the backend synced); this rank's is lent out. */
int shard_reduce_begin(struct shard *s, int unit, int contributors, struct error *err);
/* The owner's additions, in rank order. `first`: the sums start here (micro-batch 0). */
int shard_reduce_finish(struct shard *s, int unit, bool first, struct error *err);

/* *sum: the squares of the summed gradients that this rank owns. Adding those of all ranks (integers,
 * see exact_sum.h) gives the square of the global norm, the same bits for any number of them. */
int shard_sum_squares(struct shard *s, struct exact_sum *sum, struct error *err);
/* One AdamW step on what this rank keeps; weight_decay of `adamw` goes where the unit's spec says. In shared
 * memory other ranks see the change at once, so all must be done with their passes: adding up the norm has
 * waited for them. Afterwards the parameters are those of the next step, for gather to bring. */
int shard_update(struct shard *s, const struct op_adamw *adamw, struct error *err);

#endif
