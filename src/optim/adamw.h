/* AdamW (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019) with global-norm clipping:
 * the numbers of one update; the kernel is OP_ADAMW. */
#ifndef TERCET_OPTIM_ADAMW_H
#define TERCET_OPTIM_ADAMW_H

#include "graph/op.h"

struct adamw {
    double beta1, beta2, eps, weight_decay;
    double clip; /* largest global norm; 0: no clipping */
};

/* The kernel's numbers for update `update` (from 0) at learning rate lr, gradients having the given global
 * norm. The clip coefficient is min(1, clip / (norm + 1e-6)), as PyTorch's clip_grad_norm_ has it. */
void adamw_update(const struct adamw *a, double lr, int64_t update, double norm, struct op_adamw *out);

#endif
