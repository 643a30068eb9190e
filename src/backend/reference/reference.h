/* The reference backend: every op in plain C, single-threaded, the judge of all other kernels.
 *
 * Storage is fp32 or bf16; a kernel loads elements as double, sums in double and rounds once when it
 * stores, save where op.h fixes an fp32 order (embed_grad, accumulate, adamw). A kernel takes pointers
 * and sizes; `type` is the storage type of all operands that op.h calls float. */
#ifndef TERCET_BACKEND_REFERENCE_REFERENCE_H
#define TERCET_BACKEND_REFERENCE_REFERENCE_H

#include "backend/backend.h"

int reference_create(struct backend **out, struct error *err);

#endif
