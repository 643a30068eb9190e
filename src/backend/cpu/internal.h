/* What the files of the cpu backend share. */
#ifndef TERCET_BACKEND_CPU_INTERNAL_H
#define TERCET_BACKEND_CPU_INTERNAL_H

#include "backend/backend.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels.h"
#include "backend/signature.h"
#include "base/pool.h"

#include <pthread.h>

enum products_by { PRODUCTS_AUTO, PRODUCTS_OWN, PRODUCTS_ONEDNN };

struct cpu {
    struct backend base;
    struct pool *pool;
    struct gemm_library *gemms;
    const struct cpu_kernels *kernels;
    enum products_by products;
    pthread_mutex_t lock; /* one op, or one prepare, at a time */
    int threads;
    enum op running; /* or the last that ran; under the lock */
    struct pool_watch watch;
};

/* Cuts a workspace in 64-byte aligned parts; with base NULL it only counts. */
struct carve {
    char *base;
    size_t used;
};

static inline void *carve_take(struct carve *c, size_t bytes)
{
    void *at = c->base ? c->base + c->used : NULL;
    c->used += (bytes + 63) / 64 * 64;
    return at;
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- products of whole operands (product.c) ----
 *
 * Rows: c[m,n] = a[m,k] b[k,n] (+ bias[n]), where m counts tokens; a row's bits do not depend on m.
 * Sums: c[m,n] = a[k,m]^T b[k,n], where k counts tokens.
 *
 * They are made by our own kernels (panels.c) or by the library: in tiles of up to 256 rows, the last one's
 * rows padded to one of few sizes; sums in chunks of fixed sizes, the last one padded with zero rows, added
 * in order. */
struct product {
    int64_t m, n, k;
    const void *a, *b, *bias; /* bias may be NULL; rows only */
    void *c;
    bool b_transposed; /* b is stored [n,k]; rows only */
    bool has_bias;     /* stands for `bias` while workspace is counted */
    bool sum_over_tokens;
    bool accumulate; /* c += …; c is fp32 and there is no bias */
    enum dtype in, out;
};

/* Adds to *bytes (at least) what product_run needs, for any smaller number of tokens too. */
int product_workspace(struct cpu *cpu, const struct product *p, size_t *bytes, struct error *err);
int product_run(struct cpu *cpu, const struct product *p, void *workspace, struct error *err);

/* Whether our own kernels make products of operands of this type (of product_type()). By default they do
 * where they measured better than the library: not on the portable instruction set, nor where it has AMX. */
bool product_uses_own(const struct cpu *cpu, enum dtype type);
/* By our own kernels: operands are of one type, of product_type(). */
size_t panels_workspace(struct cpu *cpu, const struct product *p);
void panels_run(struct cpu *cpu, const struct product *p, void *workspace);

/* The type that products compute with: bf16 where the CPU has it, else operands are converted. */
enum dtype product_type(const struct cpu *cpu, enum dtype type);
/* to[n] = from[n], on all threads. */
void convert_parallel(struct cpu *cpu, void *to, enum dtype to_type, const void *from, enum dtype from_type,
                      int64_t n);
void zero_parallel(struct cpu *cpu, void *data, int64_t bytes);

/* ---- ops with more than one step; each has its workspace ---- */
int loss_workspace(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s,
                   size_t *bytes, struct error *err);
int loss_run(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s, struct error *err);

size_t attention_workspace(const struct cpu *cpu, const struct op_call *call,
                           const struct signature_sizes *s);
void attention_run(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s);

size_t simple_workspace(const struct op_call *call, const struct signature_sizes *s);
void simple_run(struct cpu *cpu, const struct op_call *call, const struct signature_sizes *s);

#endif
