/* The cpu backend: matrix products by a library (gemm.h), own kernels for the rest (kernels.h), on a
 * pool of threads.
 *
 * An op is cut in pieces whose size depends on shapes alone (tiles of a product, blocks of rows, of
 * queries and keys, of elements); threads take pieces, and partial sums are added in piece order. So bits
 * do not depend on the number of threads, and a row's bits do not depend on how many rows are computed
 * with it. They do depend on the library's version and on the instruction set. Ops are computed when
 * they are enqueued, one at a time. */
#ifndef TERCET_BACKEND_CPU_CPU_H
#define TERCET_BACKEND_CPU_CPU_H

#include "backend/backend.h"

int cpu_create(struct backend **out, const struct backend_options *options, struct error *err);

#endif
