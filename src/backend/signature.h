/* Signatures: the operands of every op, as a table, and the checks that follow from it.
 *
 * An operand is a type letter followed by one letter a dimension, e.g. "fTD":
 *   f compute type (fp32 or bf16, the same for all f of a call), s fp32, i int32, d fp64,
 *   y compute type or fp32, a any floating type; a leading ? marks an operand that may be absent.
 *   T tokens, P pieces, V vocabulary, C cache rows, H head_dim, G H/2, Q heads*H, K kv_heads*H,
 *   h heads, N picked rows, n elements of any shape, B blocks of n, 4 and 1 themselves;
 *   D, I, O, F, W widths.
 * Backends check a call once with call_check() and then trust it: kernels check nothing. */
#ifndef TERCET_BACKEND_SIGNATURE_H
#define TERCET_BACKEND_SIGNATURE_H

#include "base/error.h"
#include "graph/op.h"

#include <stdbool.h>

/* Elements of one block of OP_SUM_SQUARES. */
enum { SUM_SQUARES_BLOCK = 1024 };

/* Sizes by their letter; 0 to begin with. */
struct signature_sizes {
    int64_t of[128];
    enum dtype compute;
};

/* Checks number, types, shapes and attributes of a call and reads its sizes; with `run`, pointers
 * and workspace too. ERROR_RUN naming op and operand: a wrong call is a bug of the program. */
int call_check(const struct op_call *call, bool run, struct signature_sizes *sizes, struct error *err);

/* Checks what int32 operands point at (ids, targets, slots, pieces); they are read by the host. */
int call_check_indices(const struct op_call *call, const struct signature_sizes *sizes, struct error *err);

/* Fills op, operand counts, types and dimensions (data stay NULL) for given sizes and compute type;
 * `optional` tells whether operands that may be absent are there. The caller sets attributes. */
void call_from_sizes(struct op_call *call, enum op op, const struct signature_sizes *sizes, bool optional);

/* Address of an element of an operand. */
void *operand_at(const struct operand *x, int64_t element);
bool operand_present(const struct operand *x);

#endif
