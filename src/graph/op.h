/* Ops: what a graph is made of, and the form in which one is handed to a backend.
 *
 * This is the list that every backend implements. For each op: operands in order, shapes, types.
 * T is the number of tokens of the micro-batch, P the number of document pieces, V the vocabulary.
 * "float" stands for the compute type (fp32 or bf16; both for all float operands of a call unless a
 * type is given). Sums run in fp32 at least, whatever the storage.
 *
 * A batch has one form for packing, padding, ragged batches and cached decoding: T tokens, and a
 * table pieces[P][4] of int32 = {q_start, q_len, kv_start, kv_len}. Query q_start+i of a piece stands
 * at place kv_len-q_len+i of the piece's keys (rows kv_start … kv_start+kv_len-1 of k and v) and sees
 * the keys at places up to its own. In training kv_* equals q_*. Tokens in no piece are padding:
 * attention gives them zeros. */
#ifndef TERCET_GRAPH_OP_H
#define TERCET_GRAPH_OP_H

#include "base/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum op {
    /* ids[T] i32, table[V,D] -> y[T,D]. An id outside 0 … V-1 is a bug of the caller. */
    OP_EMBED,
    /* ids[T] i32, dy[T,D] -> dtable[V,D] f32 (all of it written; rows added in token order). */
    OP_EMBED_GRAD,
    /* x[T,I], w[O,I], (bias[O]) -> y[T,O] = x w^T + bias. y may be f32 where x and w are bf16. */
    OP_LINEAR,
    /* dy[T,O], w[O,I] -> dx[T,I] = dy w. */
    OP_LINEAR_GRAD_INPUT,
    /* dy[T,O], x[T,I] -> dw[O,I] f32 = dy^T x. */
    OP_LINEAR_GRAD_WEIGHT,
    /* dy[T,O] -> db[O] f32 = column sums. */
    OP_LINEAR_GRAD_BIAS,
    /* x[T,D], w[D] -> y[T,D] = x * rstd * w, rstd[T] f32 = 1/sqrt(mean(x^2) + attr.eps).
     * The normalised x is rounded to the compute type before it is multiplied by w. */
    OP_RMSNORM,
    /* dy[T,D], x[T,D], w[D], rstd[T] f32 -> dx[T,D]. */
    OP_RMSNORM_GRAD_INPUT,
    /* dy[T,D], x[T,D], rstd[T] f32 -> dw[D] f32. */
    OP_RMSNORM_GRAD_WEIGHT,
    /* positions[T] i32, inv_freq[H/2] f32 -> table[T,H] f32: cos in columns 0 … H/2-1, sin after. */
    OP_ROPE_TABLE,
    /* x[T, heads*H], table[T,H] f32 -> y like x: pairs (i, i+H/2) of each head turned by +angle, or
     * by -angle where attr.inverse (which is the gradient). */
    OP_ROPE,
    /* q[T, heads*H], k[C, kv_heads*H], v[C, kv_heads*H], pieces[P,4] i32 -> o[T, heads*H],
     * lse[T, heads] f32 (log of the sum of exp of the scaled scores; +inf for padding). C is T in
     * training, the rows of the cache in decoding. Scores are scaled by attr.scale. */
    OP_ATTENTION,
    /* dout[T,heads*H], q, k, v, o, lse, pieces -> dq, dk, dv (all of them written, zeros for padding).
     * Training form only (kv_* == q_*). */
    OP_ATTENTION_GRAD,
    /* rows[T, W], slots[T] i32, cache[C, W] (in-out, the output aliases it) -> cache: row t is copied
     * to row slots[t] of the cache. */
    OP_CACHE_WRITE,
    /* gate[T,F], up[T,F] -> y[T,F] = silu(gate) * up. */
    OP_SWIGLU,
    /* dy, gate, up -> dgate, dup. */
    OP_SWIGLU_GRAD,
    /* a, b -> y = a + b, any shape. */
    OP_ADD,
    /* x[T,D], w[V,D], targets[T] i32 (-1: none) -> loss[T] f32 (0 where no target).
     * Cross entropy of the logits x w^T; logits and their exps are fp32 and never stored for all T. */
    OP_LOSS,
    /* x[T,D], w[V,D], targets[T], scale[1] f32 -> dx[T,D], dw[V,D] f32, loss[T] f32: the gradient of
     * scale * sum(loss), and the loss too: who runs this need not run OP_LOSS, and makes the logits once. */
    OP_LOSS_GRAD,
    /* rows[T,D], index[N] i32 -> y[N,D]: picks rows (the last tokens before a decoding head). */
    OP_GATHER_ROWS,

    /* What sharding and optimizers run; no graph holds them. Flat ranges of n elements. */
    /* part[n] f32, acc[n] f32 (in-out) -> acc: acc += part, one addition an element. Where
     * attr.first is set, acc = part. */
    OP_ACCUMULATE,
    /* x[n] f32 -> sums[ceil(n/1024)] f64: the sum of squares of each block of 1,024 elements, by 16
     * interleaved partial sums added in order. */
    OP_SUM_SQUARES,
    /* gradient[n] f32, master[n], m[n], v[n] (f32, in-out), (copy[n] in the compute type, out)
     * -> master, m, v, copy: one AdamW update with attr.adamw. */
    OP_ADAMW,
    /* x[n] -> y[n] of another type. */
    OP_CAST,
    OP_COUNT
};

enum { OP_MAX_INPUTS = 8, OP_MAX_OUTPUTS = 4, OP_MAX_DIMS = 4 };

struct op_adamw {
    float lr, beta1, beta2, eps, weight_decay; /* decoupled: master *= 1 - lr*weight_decay first */
    float correction1, correction2;            /* 1 - beta^t for both moments, t from 1 */
    float gradient_scale;                      /* the clip coefficient */
};

/* Numbers that shape an op; unused fields are zero. */
struct op_attr {
    float eps, scale;
    int64_t heads, kv_heads, head_dim;
    int64_t rows; /* of the table that embed_grad writes */
    int inverse, first;
    struct op_adamw adamw;
};

/* An operand of a call: row-major, dense. data is a device address: nothing above backend/ and comm/
 * reads through it. An absent optional operand has data NULL and ndim 0. */
struct operand {
    void *data;
    enum dtype type;
    int ndim;
    int64_t dim[OP_MAX_DIMS];
};

struct op_call {
    enum op op;
    int inputs, outputs;
    struct operand in[OP_MAX_INPUTS], out[OP_MAX_OUTPUTS];
    struct op_attr attr;
    void *workspace;        /* at least what the backend asked for; 64-byte aligned; contents undefined */
    size_t workspace_bytes; /* of that memory */
};

int64_t operand_elements(const struct operand *x);
int64_t operand_bytes(const struct operand *x);

const char *op_name(enum op op);

/* An output that is also read (an accumulator, a cache, optimizer state): its old contents matter. */
int op_output_is_inout(const struct op_call *call, int output);

/* Work of a call: floating-point operations of its matrix products, all other operations, and bytes
 * of all operands, each passed over once. */
struct op_cost {
    double product_flops, other_flops, bytes;
};
struct op_cost op_cost(const struct op_call *call);
/* Computing the outputs again costs little for the bytes of `value` that need not be kept: at most 32
 * floating-point operations a byte, so no product. (A core does some 10 to 100 operations in the time in
 * which it moves a byte.) */
int op_is_cheap(const struct op_call *call, const struct operand *value);

#endif
