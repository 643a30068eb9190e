#include "backend/signature.h"

#include <string.h>

struct signature {
    const char *in, *out;
};

/* In-out operands may stand among the inputs too; they then have to be the same memory. */
static const struct signature signatures[OP_COUNT] = {
    [OP_EMBED] = {"iT fVD", "fTD"},
    [OP_EMBED_GRAD] = {"iT fTD", "sVD"},
    [OP_LINEAR] = {"fTI fOI ?fO", "yTO"},
    [OP_LINEAR_GRAD_INPUT] = {"fTO fOI", "fTI"},
    [OP_LINEAR_GRAD_WEIGHT] = {"fTO fTI", "sOI"},
    [OP_LINEAR_GRAD_BIAS] = {"fTO", "sO"},
    [OP_RMSNORM] = {"fTD fD", "fTD sT"},
    [OP_RMSNORM_GRAD_INPUT] = {"fTD fTD fD sT", "fTD"},
    [OP_RMSNORM_GRAD_WEIGHT] = {"fTD fTD sT", "sD"},
    [OP_ROPE_TABLE] = {"iT sG", "sTH"},
    [OP_ROPE] = {"fTQ sTH", "fTQ"},
    [OP_ATTENTION] = {"fTQ fCK fCK iP4", "fTQ sTh"},
    [OP_ATTENTION_GRAD] = {"fTQ fTQ fTK fTK fTQ sTh iP4", "fTQ fTK fTK"},
    [OP_CACHE_WRITE] = {"fTW iT fCW", "fCW"},
    [OP_SWIGLU] = {"fn fn", "fn"},
    [OP_SWIGLU_GRAD] = {"fn fn fn", "fn fn"},
    [OP_ADD] = {"fn fn", "fn"},
    [OP_LOSS] = {"fTD fVD iT", "sT"},
    [OP_LOSS_GRAD] = {"fTD fVD iT s1", "fTD sVD sT"},
    [OP_GATHER_ROWS] = {"fTD iN", "fND"},
    [OP_ACCUMULATE] = {"sn ?sn", "sn"},
    [OP_SUM_SQUARES] = {"sn", "dB"},
    [OP_ADAMW] = {"sn ?sn ?sn ?sn", "sn sn sn ?fn"},
    [OP_CAST] = {"an", "an"},
};

bool operand_present(const struct operand *x)
{
    return x->ndim > 0;
}

void *operand_at(const struct operand *x, int64_t element)
{
    return (char *)x->data + dtype_bytes(x->type, element);
}

static int wrong(const struct op_call *call, bool output, int number, struct error *err, const char *what)
{
    return error_set(err, ERROR_RUN, op_name(call->op), "this is a bug of the program: please report it",
                     "%s %d: %s", output ? "output" : "input", number, what);
}

static bool type_fits(char letter, enum dtype type, struct signature_sizes *sizes, bool *compute_known)
{
    switch (letter) {
    case 'f':
        if (!*compute_known) {
            sizes->compute = type;
            *compute_known = true;
        }
        return type == sizes->compute && (type == DTYPE_F32 || type == DTYPE_BF16);
    case 's':
        return type == DTYPE_F32;
    case 'i':
        return type == DTYPE_I32;
    case 'd':
        return type == DTYPE_F64;
    case 'y':
        return type == DTYPE_F32 || type == sizes->compute;
    case 'a':
        return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64;
    default:
        return false;
    }
}

/* A dimension has the size its letter got first; literals have theirs. */
static bool size_fits(char letter, int64_t size, struct signature_sizes *sizes, bool *known)
{
    if (size < 0)
        return false;
    if (letter >= '0' && letter <= '9')
        return size == letter - '0';
    if (known[(int)letter])
        return size == sizes->of[(int)letter];
    known[(int)letter] = true;
    sizes->of[(int)letter] = size;
    return true;
}

static int check_operand(const struct op_call *call, bool output, int number, const char *spec, size_t length,
                         struct signature_sizes *sizes, bool *known, bool *compute_known, struct error *err)
{
    const struct operand *x = output ? &call->out[number] : &call->in[number];
    if (!type_fits(spec[0], x->type, sizes, compute_known))
        return wrong(call, output, number, err, "wrong element type");
    if (spec[1] == 'n') {
        int64_t n = operand_elements(x);
        return size_fits('n', n, sizes, known) ? 0
                                               : wrong(call, output, number, err, "wrong number of elements");
    }
    if (x->ndim != (int)length - 1)
        return wrong(call, output, number, err, "wrong number of dimensions");
    for (int i = 0; i < x->ndim; i++)
        if (!size_fits(spec[i + 1], x->dim[i], sizes, known))
            return wrong(call, output, number, err, "a dimension does not match");
    return 0;
}

static int check_list(const struct op_call *call, bool output, struct signature_sizes *sizes, bool *known,
                      bool *compute_known, struct error *err)
{
    const char *spec = output ? signatures[call->op].out : signatures[call->op].in;
    const struct operand *list = output ? call->out : call->in;
    int count = output ? call->outputs : call->inputs, number = 0;
    for (; *spec; number++) {
        size_t length = strcspn(spec, " ");
        bool optional = *spec == '?';
        if (number < count && operand_present(&list[number])) {
            if (check_operand(call, output, number, spec + optional, length - optional, sizes, known,
                              compute_known, err) != 0)
                return -1;
        } else if (!optional) {
            return wrong(call, output, number, err, "absent");
        }
        spec += length + (spec[length] == ' ');
    }
    return count <= number ? 0 : wrong(call, output, number, err, "not an operand of this op");
}

static int check_attributes(const struct op_call *call, struct signature_sizes *sizes, const bool *known,
                            struct error *err)
{
    const struct op_attr *a = &call->attr;
    int64_t *of = sizes->of;
    const char *problem = NULL;
    if (call->op == OP_ROPE_TABLE) {
        if (of['H'] != 2 * of['G'])
            problem = "the table is not twice as wide as the frequencies";
    } else if (call->op == OP_ROPE) {
        if (a->heads < 1 || of['Q'] != a->heads * of['H'] || of['H'] % 2 != 0)
            problem = "heads and table do not make up the rows";
    } else if (call->op == OP_ATTENTION || call->op == OP_ATTENTION_GRAD) {
        if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads != 0 || of['h'] != a->heads ||
            of['Q'] % a->heads != 0 || of['K'] != of['Q'] / a->heads * a->kv_heads || of['Q'] == 0)
            problem = "heads do not make up the rows";
        else
            of['H'] = of['Q'] / a->heads;
    } else if (call->op == OP_SUM_SQUARES) {
        if (of['B'] != of['n'] / SUM_SQUARES_BLOCK + (of['n'] % SUM_SQUARES_BLOCK != 0))
            problem = "sums do not match the number of blocks";
    }
    /* Counts may be zero; widths may not. */
    for (const char *letter = "DIOVWHQK"; *letter && !problem; letter++)
        if (known[(int)*letter] && of[(int)*letter] == 0)
            problem = "a width is zero";
    if (!problem && a->head_dim != 0 && of['H'] != 0 && a->head_dim != of['H'])
        problem = "head_dim does not match";
    if (!problem)
        return 0;
    return error_set(err, ERROR_RUN, op_name(call->op), "this is a bug of the program: please report it",
                     "%s", problem);
}

/* The input that an in-out output is, or -1. */
static int inout_input(const struct op_call *call, int output)
{
    switch (call->op) {
    case OP_CACHE_WRITE:
        return 2;
    case OP_ACCUMULATE:
        return 1;
    case OP_ADAMW:
        return output < 3 ? output + 1 : -1;
    default:
        return -1;
    }
}

static int check_pointers(const struct op_call *call, struct error *err)
{
    for (int i = 0; i < call->inputs; i++)
        if (operand_elements(&call->in[i]) > 0 && !call->in[i].data)
            return wrong(call, false, i, err, "no memory");
    for (int i = 0; i < call->outputs; i++) {
        if (operand_elements(&call->out[i]) > 0 && !call->out[i].data)
            return wrong(call, true, i, err, "no memory");
        int input = inout_input(call, i);
        if (input >= 0 && input < call->inputs && operand_present(&call->in[input]) &&
            call->in[input].data != call->out[i].data)
            return wrong(call, true, i, err, "is not the memory of the input that it updates");
    }
    if (call->workspace_bytes > 0 && !call->workspace)
        return error_set(err, ERROR_RUN, op_name(call->op), NULL, "no workspace");
    return 0;
}

int call_check(const struct op_call *call, bool run, struct signature_sizes *sizes, struct error *err)
{
    bool known[128] = {false}, compute_known = false;
    memset(sizes, 0, sizeof *sizes);
    sizes->compute = DTYPE_F32;
    if ((int)call->op < 0 || call->op >= OP_COUNT || !signatures[call->op].in || call->inputs < 0 ||
        call->inputs > OP_MAX_INPUTS || call->outputs < 0 || call->outputs > OP_MAX_OUTPUTS)
        return error_set(err, ERROR_RUN, NULL, "this is a bug of the program: please report it",
                         "a call of an unknown op (%d)", (int)call->op);
    for (int i = 0; i < call->inputs + call->outputs; i++) {
        const struct operand *x = i < call->inputs ? &call->in[i] : &call->out[i - call->inputs];
        if (x->ndim < 0 || x->ndim > OP_MAX_DIMS)
            return wrong(call, i >= call->inputs, i < call->inputs ? i : i - call->inputs, err,
                         "wrong number of dimensions");
    }
    if (check_list(call, false, sizes, known, &compute_known, err) != 0 ||
        check_list(call, true, sizes, known, &compute_known, err) != 0 ||
        check_attributes(call, sizes, known, err) != 0)
        return -1;
    return run ? check_pointers(call, err) : 0;
}

static int check_range(const struct op_call *call, int input, int64_t low, int64_t high, struct error *err)
{
    const int32_t *index = call->in[input].data;
    int64_t n = operand_elements(&call->in[input]);
    for (int64_t i = 0; i < n; i++)
        if (index[i] < low || index[i] >= high)
            return error_set(err, ERROR_RUN, op_name(call->op), NULL,
                             "index %d at place %lld is outside %lld … %lld", (int)index[i], (long long)i,
                             (long long)low, (long long)high - 1);
    return 0;
}

static int check_pieces(const struct op_call *call, int input, int64_t tokens, int64_t rows,
                        struct error *err)
{
    const int32_t *piece = call->in[input].data;
    bool training = call->op == OP_ATTENTION_GRAD;
    for (int64_t i = 0; i < call->in[input].dim[0]; i++, piece += 4) {
        int64_t q = piece[0], q_len = piece[1], kv = piece[2], kv_len = piece[3];
        bool bad = q < 0 || q_len < 0 || kv < 0 || q + q_len > tokens || kv + kv_len > rows ||
                   kv_len < q_len || (training && (q != kv || q_len != kv_len));
        if (bad)
            return error_set(err, ERROR_RUN, op_name(call->op), NULL,
                             "piece %lld {%d, %d, %d, %d} does not lie in %lld queries and %lld keys",
                             (long long)i, piece[0], piece[1], piece[2], piece[3], (long long)tokens,
                             (long long)rows);
    }
    return 0;
}

int call_check_indices(const struct op_call *call, const struct signature_sizes *sizes, struct error *err)
{
    switch (call->op) {
    case OP_EMBED:
    case OP_EMBED_GRAD:
        return check_range(call, 0, 0, sizes->of['V'], err);
    case OP_GATHER_ROWS:
        return check_range(call, 1, 0, sizes->of['T'], err);
    case OP_CACHE_WRITE:
        return check_range(call, 1, 0, sizes->of['C'], err);
    case OP_LOSS:
    case OP_LOSS_GRAD:
        return check_range(call, 2, -1, sizes->of['V'], err);
    case OP_ATTENTION:
        return check_pieces(call, 3, sizes->of['T'], sizes->of['C'], err);
    case OP_ATTENTION_GRAD:
        return check_pieces(call, 6, sizes->of['T'], sizes->of['T'], err);
    default:
        return 0;
    }
}

static enum dtype type_of(char letter, enum dtype compute)
{
    switch (letter) {
    case 's':
        return DTYPE_F32;
    case 'i':
        return DTYPE_I32;
    case 'd':
        return DTYPE_F64;
    default:
        return compute;
    }
}

static int fill_list(const char *spec, const struct signature_sizes *sizes, bool optional,
                     struct operand *list)
{
    int number = 0;
    for (; *spec; number++) {
        size_t length = strcspn(spec, " ");
        size_t skip = *spec == '?';
        struct operand *x = &list[number];
        if (!skip || optional) {
            x->type = type_of(spec[skip], sizes->compute);
            x->ndim = (int)(length - skip) - 1;
            for (int i = 0; i < x->ndim; i++) {
                char letter = spec[skip + 1 + (size_t)i];
                x->dim[i] = letter >= '0' && letter <= '9' ? letter - '0' : sizes->of[(int)letter];
            }
        }
        spec += length + (spec[length] == ' ');
    }
    return number;
}

void call_from_sizes(struct op_call *call, enum op op, const struct signature_sizes *sizes, bool optional)
{
    memset(call, 0, sizeof *call);
    call->op = op;
    call->inputs = fill_list(signatures[op].in, sizes, optional, call->in);
    call->outputs = fill_list(signatures[op].out, sizes, optional, call->out);
}
