#include "graph/op.h"

#include "graph/graph.h"

int64_t operand_elements(const struct operand *x)
{
    if (x->ndim == 0)
        return 0;
    int64_t n = 1;
    for (int i = 0; i < x->ndim; i++)
        n *= x->dim[i];
    return n;
}

int64_t operand_bytes(const struct operand *x)
{
    return dtype_bytes(x->type, operand_elements(x));
}

const char *op_name(enum op op)
{
    const struct graph_rule *rule = graph_rule(op);
    return rule ? rule->name : "unknown op";
}

int op_output_is_inout(const struct op_call *call, int output)
{
    switch (call->op) {
    case OP_CACHE_WRITE:
        return output == 0;
    case OP_ACCUMULATE:
        return !call->attr.first;
    case OP_ADAMW:
        return output < 3;
    default:
        return 0;
    }
}

/* Pairs of query and key that attention computes, were all tokens one piece: the bound. */
static double causal_pairs(double tokens)
{
    return tokens * (tokens + 1) / 2;
}

struct op_cost op_cost(const struct op_call *call)
{
    struct op_cost cost = {0};
    for (int i = 0; i < call->inputs; i++)
        cost.bytes += (double)operand_bytes(&call->in[i]);
    for (int i = 0; i < call->outputs; i++)
        cost.bytes += (double)operand_bytes(&call->out[i]) * (op_output_is_inout(call, i) ? 2 : 1);

    const struct operand *in = call->in, *out = call->out;
    double n = call->outputs > 0 ? (double)operand_elements(&out[0]) : 0;
    double width = (double)(call->attr.heads * call->attr.head_dim);
    switch (call->op) {
    case OP_LINEAR:
    case OP_LINEAR_GRAD_INPUT:
        cost.product_flops = 2.0 * (double)in[0].dim[0] * (double)in[1].dim[0] * (double)in[1].dim[1];
        break;
    case OP_LINEAR_GRAD_WEIGHT:
        cost.product_flops = 2.0 * (double)in[0].dim[0] * n;
        break;
    case OP_ATTENTION:
        cost.product_flops = 4.0 * causal_pairs((double)in[0].dim[0]) * width;
        cost.other_flops = 4.0 * causal_pairs((double)in[0].dim[0]) * (double)call->attr.heads;
        break;
    case OP_ATTENTION_GRAD:
        cost.product_flops = 10.0 * causal_pairs((double)in[0].dim[0]) * width;
        cost.other_flops = 6.0 * causal_pairs((double)in[0].dim[0]) * (double)call->attr.heads;
        break;
    case OP_LOSS:
        cost.product_flops = 2.0 * (double)operand_elements(&in[0]) * (double)in[1].dim[0];
        cost.other_flops = 4.0 * (double)in[0].dim[0] * (double)in[1].dim[0];
        break;
    case OP_LOSS_GRAD: /* the logits, then both gradients */
        cost.product_flops = 6.0 * (double)operand_elements(&in[0]) * (double)in[1].dim[0];
        cost.other_flops = 4.0 * (double)in[0].dim[0] * (double)in[1].dim[0];
        break;
    case OP_RMSNORM:
    case OP_ROPE:
        cost.other_flops = 4.0 * n;
        break;
    case OP_RMSNORM_GRAD_INPUT:
    case OP_SWIGLU:
        cost.other_flops = 8.0 * n;
        break;
    case OP_SWIGLU_GRAD:
    case OP_ADAMW:
        cost.other_flops = 14.0 * n;
        break;
    case OP_ROPE_TABLE:
        cost.other_flops = 20.0 * n;
        break;
    default: /* one operation an element */
        cost.other_flops = call->outputs > 0 ? n : 0;
        break;
    }
    return cost;
}

int op_is_cheap(const struct op_call *call, const struct operand *value)
{
    struct op_cost cost = op_cost(call);
    return cost.product_flops + cost.other_flops <= 32 * (double)operand_bytes(value);
}
