/* Measuring this machine: the rate of matrix products through a backend, and the bandwidth of memory. Both
 * take what else runs on the machine into account by being slower: measure on an idle one. */
#ifndef TERCET_PLAN_MEASURE_H
#define TERCET_PLAN_MEASURE_H

#include "backend/backend.h"

/* Floating-point operations a second (a multiplication and an addition count as two) of the three products
 * that training a linear layer needs, each the best of several runs on a large layer: other work on the
 * machine makes single runs slower, never faster. */
struct measured_products {
    double linear, grad_input, grad_weight;
};

/* Through OP_LINEAR and its two gradients, on all of the backend's `threads` threads; sizes and time grow
 * with the threads, to a few hundred milliseconds a product. */
int measure_products(struct backend *backend, enum dtype type, int threads, struct measured_products *out,
                     struct error *err);

/* The best of the three: no step of training can have a higher share of them than 1. */
double measured_peak(const struct measured_products *m);

/* Bytes a second of a[i] = b[i] + s c[i] over three arrays that together are well beyond the last cache
 * (last_cache bytes, 0: unknown) and take at most `memory` bytes: two reads and a write an element, the
 * best of several passes, on so many threads of a pool. */
int measure_bandwidth(int threads, int64_t last_cache, int64_t memory, double *bytes_per_second,
                      struct error *err);

#endif
