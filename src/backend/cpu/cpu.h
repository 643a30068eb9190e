/* The cpu backend: own kernels (kernels.h), or a library's for matrix products (gemm.h), on a pool of
 * threads.
 *
 * An op is cut in pieces whose size depends on shapes alone (tiles of a product, blocks of rows, of
 * queries and keys, of elements); threads take pieces, and partial sums are added in piece order. So bits
 * do not depend on the number of threads, and a row's bits do not depend on how many rows are computed
 * with it. They do depend on the instruction set, and where a library makes products on its version. Ops are
 * computed when they are enqueued, one at a time. */
#ifndef TERCET_BACKEND_CPU_CPU_H
#define TERCET_BACKEND_CPU_CPU_H

#include "backend/backend.h"

int cpu_create(struct backend **out, const struct backend_options *options, struct error *err);

#endif
