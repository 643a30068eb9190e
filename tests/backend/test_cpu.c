/* The cpu backend against the reference, and against itself: threads, number of rows, instruction sets.
 *
 * Bounds. u = 2^-24 is the unit roundoff of fp32, r that of the storage (2^-8 for bf16, u for fp32). Both
 * sides round their result to storage, so they may differ by 2 r |value| where the exact results agree. A
 * sum of n products of fp32 numbers, in any order, errs by at most n u S, S being the sum of the products'
 * absolute values; with rounding errors of random sign by 6 sqrt(n) u S, but for a probability of
 * about 2n exp(-18) (Higham & Mary, "A new approach to probabilistic rounding error analysis", 2019).
 * The numbers here are always the same, so either it holds or it does not. Inputs lie in [-1, 1). */
#include "shapes.h"

#include <sys/wait.h>
#include <unistd.h>

static const double u = 0x1p-24;

static double sum_error(double n, double magnitude)
{
    return (6 * sqrt(n) + 2) * u * magnitude;
}

/* Replaces inputs by their absolute values: the reference then gives S of each element. */
static void absolute(struct trial *t)
{
    for (int i = 0; i < t->call.inputs; i++)
        for (int64_t k = 0; k < operand_elements(&t->call.in[i]); k++)
            operand_set(&t->call.in[i], k, fabs(operand_get(&t->call.in[i], k)));
}

/* Largest reciprocal deviation among the inputs of an rmsnorm gradient. */
static double largest(const struct operand *x)
{
    double most = 0;
    for (int64_t i = 0; i < operand_elements(x); i++)
        most = fmax(most, fabs(operand_get(x, i)));
    return most;
}

/* Error of a softmax weight, relative: that of its score (of lse as well), of exp (2 ulp), of the sum. */
static double weight_error(const struct trial *t)
{
    double dim = (double)t->call.attr.head_dim, scores = (double)t->call.attr.scale * dim;
    return 2 * sum_error(dim, scores) + 8 * u;
}

/* Of a loss: twice a logit's error, 2 ulp of exp, rounding of the logarithm. */
static double loss_error(const struct op_call *c, double value)
{
    double width = (double)c->in[0].dim[1];
    return 2 * sum_error(width, width) + 16 * u + 4 * u * fabs(value);
}

/* Absolute error of the fp32 arithmetic of an output element; negative: bits must be equal. */
static double arithmetic_error(const struct trial *t, int output, double value, double magnitude)
{
    const struct op_call *c = &t->call;
    double tokens = (double)c->in[0].dim[0], keys = c->op == OP_ATTENTION ? (double)c->in[1].dim[0] : tokens;
    double bf16 = c->in[0].type == DTYPE_BF16 ? 0x1p-8 : 0;
    double group = c->attr.kv_heads ? (double)(c->attr.heads / c->attr.kv_heads) : 1;
    double dim = (double)c->attr.head_dim;
    switch (c->op) {
    case OP_LINEAR:
        return sum_error((double)c->in[0].dim[1] + 1, magnitude);
    case OP_LINEAR_GRAD_INPUT:
        return sum_error((double)c->in[1].dim[0], magnitude);
    case OP_LINEAR_GRAD_WEIGHT:
    case OP_LINEAR_GRAD_BIAS:
        return sum_error(tokens, magnitude);
    case OP_RMSNORM: /* 16 lanes; the normalised x may fall to the other side of a bf16 rounding */
        return fabs(value) *
               (sum_error((double)c->in[0].dim[1] / 16 + 16, 1) + 8 * u + (output ? 0 : 2 * bf16));
    case OP_RMSNORM_GRAD_INPUT: { /* r (g - x r^2 mean(g x)), |g|, |x| <= 1 */
        double r = largest(&c->in[3]);
        return r * (1 + r * r) * (sum_error((double)c->in[0].dim[1] / 16 + 16, 1) + 8 * u);
    }
    case OP_RMSNORM_GRAD_WEIGHT:
        return sum_error(tokens, tokens * largest(&c->in[2]));
    case OP_ROPE: /* two products and a sum, of at most 1 each */
        return 4 * u;
    case OP_SWIGLU:
        return 16 * u;
    case OP_SWIGLU_GRAD:
        return 32 * u;
    case OP_ATTENTION: /* an average of values of at most 1; output 1 is the logarithm of the sum */
        return 2 * weight_error(t) + sum_error(keys, 1) + (output ? 4 * u * fabs(value) : 0);
    case OP_ATTENTION_GRAD: /* weights; for dq and dk also dout v and delta, two sums over a head */
        return magnitude * (weight_error(t) + (output < 2 ? 2 * sum_error(dim, 1) : 0)) +
               sum_error(output == 0 ? tokens : tokens * group, magnitude);
    case OP_LOSS:
        return loss_error(c, value);
    case OP_LOSS_GRAD: { /* output 2 is the loss; gradients of logits are stored in the compute type: relative
                            error bf16 */
        double width = (double)c->in[0].dim[1], logit = 2 * sum_error(width, width) + 8 * u + bf16;
        if (output == 2)
            return loss_error(c, value);
        return magnitude * logit + sum_error(output == 0 ? (double)c->in[1].dim[0] : tokens, magnitude);
    }
    default:
        return -1;
    }
}

/* Adds |a| to an element of a result that is being collected in double. */
static void collect(struct operand *x, int64_t i, double a)
{
    ((double *)x->data)[i] += fabs(a);
}

static double logit_of(const struct operand *in, int64_t row, int64_t v)
{
    double logit = 0;
    int64_t width = in[0].dim[1];
    for (int64_t d = 0; d < width; d++)
        logit += operand_get(&in[0], row * width + d) * operand_get(&in[1], v * width + d);
    return logit;
}

/* Sums of the absolute values of the terms of dx and dw: a term's weight is the softmax's, and 1 more at the
 * target. */
static void loss_magnitudes(const struct trial *t, struct result *m)
{
    const struct operand *in = t->call.in;
    int64_t width = in[0].dim[1];
    double scale = fabs(operand_get(&in[3], 0));
    for (int64_t row = 0; row < in[0].dim[0]; row++) {
        int64_t target = (int64_t)operand_get(&in[2], row);
        double sum = 0;
        for (int64_t v = 0; v < in[1].dim[0]; v++)
            sum += exp(logit_of(in, row, v));
        for (int64_t v = 0; v < in[1].dim[0]; v++) {
            double g = target < 0 ? 0 : scale * (exp(logit_of(in, row, v)) / sum + (target == v ? 1 : 0));
            for (int64_t d = 0; d < width; d++) {
                collect(&m->out[0], row * width + d, g * operand_get(&in[1], v * width + d));
                collect(&m->out[1], v * width + d, g * operand_get(&in[0], row * width + d));
            }
        }
    }
}

/* The same for one query and key of attention: dv collects p dout, dq and dk p (|dout| |v| + |dout| |o|). */
static void pair_magnitudes(const struct trial *t, struct result *m, int64_t i, int64_t j, int64_t head)
{
    const struct operand *in = t->call.in;
    int64_t dim = t->call.attr.head_dim, heads = t->call.attr.heads, kv_heads = t->call.attr.kv_heads;
    int64_t q = (i * heads + head) * dim, k = (j * kv_heads + head / (heads / kv_heads)) * dim;
    double score = 0, slope = 0, scale = (double)t->call.attr.scale;
    for (int64_t d = 0; d < dim; d++) {
        score += operand_get(&in[1], q + d) * operand_get(&in[2], k + d);
        slope += fabs(operand_get(&in[0], q + d)) *
                 (fabs(operand_get(&in[3], k + d)) + fabs(operand_get(&in[4], q + d)));
    }
    double p = exp(scale * score - operand_get(&in[5], i * heads + head));
    for (int64_t d = 0; d < dim; d++) {
        collect(&m->out[0], q + d, p * slope * scale * operand_get(&in[2], k + d));
        collect(&m->out[1], k + d, p * slope * scale * operand_get(&in[1], q + d));
        collect(&m->out[2], k + d, p * operand_get(&in[0], q + d));
    }
}

static void attention_magnitudes(const struct trial *t, struct result *m)
{
    const struct operand *pieces = &t->call.in[6];
    for (int64_t piece = 0; piece < pieces->dim[0]; piece++) {
        int64_t start = (int64_t)operand_get(pieces, 4 * piece);
        int64_t end = start + (int64_t)operand_get(pieces, 4 * piece + 1);
        for (int64_t head = 0; head < t->call.attr.heads; head++)
            for (int64_t i = start; i < end; i++)
                for (int64_t j = start; j <= i; j++)
                    pair_magnitudes(t, m, i, j, head);
    }
}

static bool is_linear(enum op op)
{
    return op >= OP_LINEAR && op <= OP_LINEAR_GRAD_BIAS;
}

/* For ops that are sums: of each output element, the sum of the absolute values of its terms, in double or
 * as the reference gives it. Spoils the inputs of the trial. False: the op is none of these. */
static bool magnitudes_of(struct backend *reference, struct trial *t, struct result *m)
{
    if (is_linear(t->call.op)) {
        absolute(t);
        trial_run(reference, t, m);
        return true;
    }
    if (t->call.op != OP_LOSS_GRAD && t->call.op != OP_ATTENTION_GRAD)
        return false;
    m->outputs = t->call.outputs;
    for (int i = 0; i < m->outputs; i++) {
        m->out[i] = t->call.out[i];
        m->out[i].type = DTYPE_F64;
        m->out[i].data = test_memory((size_t)operand_bytes(&m->out[i]));
    }
    if (t->call.op == OP_LOSS_GRAD)
        loss_magnitudes(t, m);
    else
        attention_magnitudes(t, m);
    return true;
}

static void compare(const struct trial *t, const struct result *cpu, const struct result *reference,
                    const struct result *magnitudes)
{
    for (int o = 0; o < cpu->outputs; o++) {
        if (!operand_present(&cpu->out[o]))
            continue;
        double r = cpu->out[o].type == DTYPE_BF16 ? 0x1p-8 : u;
        for (int64_t i = 0; i < operand_elements(&cpu->out[o]); i++) {
            double a = operand_get(&cpu->out[o], i), b = operand_get(&reference->out[o], i);
            double magnitude = magnitudes ? operand_get(&magnitudes->out[o], i) : 0;
            double bound = arithmetic_error(t, o, b, magnitude);
            bool good = bound < 0 ? memcmp(operand_at(&cpu->out[o], i), operand_at(&reference->out[o], i),
                                           (size_t)dtype_bytes(cpu->out[o].type, 1)) == 0
                                  : a == b || fabs(a - b) <= bound + 2 * r * fabs(b);
            if (!good)
                fail_msg("%s, %s, output %d, element %lld: %.9g, reference %.9g, bound %.3g",
                         op_name(t->call.op), dtype_info(t->call.in[0].type)->name, o, (long long)i, a, b,
                         bound);
        }
    }
}

static void compare_all(const char *isa, const char *products)
{
    struct backend *reference = test_backend("reference", NULL, 1),
                   *cpu = test_backend_with("cpu", isa, products, 2);
    for (int type = 0; type < 2; type++)
        for (int i = 0; i < TRIALS; i++) {
            struct trial t;
            struct result of_cpu, of_reference, magnitudes;
            trial_make(&t, trials[i].op, &trials[i].shape, type ? DTYPE_BF16 : DTYPE_F32);
            trial_complete(reference, &t);
            trial_run(reference, &t, &of_reference);
            trial_run(cpu, &t, &of_cpu);
            bool sums = magnitudes_of(reference, &t, &magnitudes);
            compare(&t, &of_cpu, &of_reference, sums ? &magnitudes : NULL);
            if (sums)
                result_free(&magnitudes);
            result_free(&of_cpu);
            result_free(&of_reference);
            trial_free(&t);
        }
    backend_destroy(cpu);
    backend_destroy(reference);
}

static void test_cpu_matches_reference(void **state)
{
    (void)state;
    compare_all("auto", NULL);
    compare_all("auto", "onednn");
}

static void threads_leave_no_trace(const char *products)
{
    struct backend *reference = test_backend("reference", NULL, 1), *cpu[4];
    for (int n = 0; n < 4; n++)
        cpu[n] = test_backend_with("cpu", NULL, products, n + 1);
    for (int type = 0; type < 2; type++)
        for (int i = 0; i < TRIALS; i++) {
            struct trial t;
            struct result first, other;
            trial_make(&t, trials[i].op, &trials[i].shape, type ? DTYPE_BF16 : DTYPE_F32);
            trial_complete(reference, &t);
            trial_run(cpu[0], &t, &first);
            for (int n = 1; n < 4; n++) {
                trial_run(cpu[n], &t, &other);
                assert_same_bits(&first, &other, op_name(t.call.op));
                result_free(&other);
            }
            result_free(&first);
            trial_free(&t);
        }
    for (int n = 0; n < 4; n++) {
        assert_true(backend_threads_seen(cpu[n]) <= n + 1);
        backend_destroy(cpu[n]);
    }
    backend_destroy(reference);
}

static void test_threads_leave_no_trace(void **state)
{
    (void)state;
    threads_leave_no_trace("own");
    threads_leave_no_trace("onednn");
}

/* The first rows of a call are a smaller call's rows. */
static void rows_agree(struct backend *cpu, enum op op, struct trial_shape shape, enum dtype type)
{
    static const int64_t counts[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 64, 65, 127, 255, 256, 257, 300};
    struct trial whole;
    struct result all, some;
    shape.tokens = 515;
    trial_make(&whole, op, &shape, type);
    trial_run(cpu, &whole, &all);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct trial part;
        shape.tokens = counts[i];
        trial_make(&part, op, &shape, type); /* numbers depend on the place alone: the same rows */
        trial_run(cpu, &part, &some);
        if (memcmp(some.out[0].data, all.out[0].data, (size_t)operand_bytes(&some.out[0])) != 0)
            fail_msg("%s %s: rows change where %lld are computed", op_name(op), dtype_info(type)->name,
                     (long long)counts[i]);
        result_free(&some);
        trial_free(&part);
    }
    result_free(&all);
    trial_free(&whole);
}

static void rows_agree_everywhere(const char *isa, const char *products)
{
    static const struct trial_shape shapes[] = {
        {.width = 15, .out = 7, .optional = true},
        {.width = 60, .out = 331},
        {.width = 576, .out = 200},
        {.width = 331, .out = 1100, .optional = true},
    };
    struct backend *cpu = test_backend_with("cpu", isa, products, 2);
    for (int type = 0; type < 2; type++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            rows_agree(cpu, OP_LINEAR, shapes[i], type ? DTYPE_BF16 : DTYPE_F32);
            rows_agree(cpu, OP_LINEAR_GRAD_INPUT, shapes[i], type ? DTYPE_BF16 : DTYPE_F32);
        }
        rows_agree(cpu, OP_LOSS, (struct trial_shape){.width = 60, .vocabulary = 1100},
                   type ? DTYPE_BF16 : DTYPE_F32);
        rows_agree(cpu, OP_RMSNORM, (struct trial_shape){.width = 60}, type ? DTYPE_BF16 : DTYPE_F32);
    }
    backend_destroy(cpu);
}

static void test_rows_do_not_depend_on_their_number(void **state)
{
    (void)state;
    rows_agree_everywhere(NULL, NULL);
    rows_agree_everywhere(NULL, "onednn");
}

/* A token decoded over a cache has the bits that it has in the whole piece. */
static void decoding_agrees(struct backend *cpu, enum dtype type, int64_t heads, int64_t kv_heads,
                            int64_t dim)
{
    enum { LENGTH = 150 };
    struct trial_shape shape = {.tokens = LENGTH,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = dim,
                                .pieces = {{0, LENGTH, 0, LENGTH}},
                                .piece_count = 1};
    struct trial whole;
    struct result all;
    int64_t width = heads * dim;
    size_t bytes = (size_t)dtype_bytes(type, width);
    trial_make(&whole, OP_ATTENTION, &shape, type);
    trial_run(cpu, &whole, &all);
    for (int32_t at = 0; at < LENGTH; at += 7) {
        struct trial one;
        struct result r;
        shape.tokens = 1;
        shape.rows = LENGTH;
        shape.pieces[0][1] = 1;
        shape.pieces[0][3] = at + 1;
        trial_make(&one, OP_ATTENTION, &shape, type);
        memcpy(one.call.in[0].data, operand_at(&whole.call.in[0], at * width), bytes);
        trial_run(cpu, &one, &r);
        assert_memory_equal(r.out[0].data, operand_at(&all.out[0], at * width), bytes);
        assert_memory_equal(r.out[1].data, operand_at(&all.out[1], at * heads),
                            (size_t)heads * sizeof(float));
        result_free(&r);
        trial_free(&one);
    }
    result_free(&all);
    trial_free(&whole);
}

static void decoding_agrees_everywhere(const char *isa)
{
    struct backend *cpu = test_backend("cpu", isa, 2);
    for (int type = 0; type < 2; type++) {
        decoding_agrees(cpu, type ? DTYPE_BF16 : DTYPE_F32, 4, 2, 12);
        decoding_agrees(cpu, type ? DTYPE_BF16 : DTYPE_F32, 3, 1, 65);
        decoding_agrees(cpu, type ? DTYPE_BF16 : DTYPE_F32, 7, 7, 17);
    }
    backend_destroy(cpu);
}

static void test_decoding_equals_prefill(void **state)
{
    (void)state;
    decoding_agrees_everywhere(NULL);
}

/* Runs this program again with a cap as its argument: a cap holds for a process and stands at its start. */
static void test_capped(void **state)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_cpu", (const char *)*state, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_matches_reference_capped(void **state)
{
    compare_all(*state, "own");
    compare_all(*state, "onednn");
}

static void test_rows_capped(void **state)
{
    rows_agree_everywhere(*state, "own");
    rows_agree_everywhere(*state, "onednn");
}

static void test_decoding_capped(void **state)
{
    decoding_agrees_everywhere(*state);
}

static int run_capped(char *isa)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_matches_reference_capped, isa),
        cmocka_unit_test_prestate(test_rows_capped, isa),
        cmocka_unit_test_prestate(test_decoding_capped, isa),
    };
    return cmocka_run_group_tests_name(isa, tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    static char portable[] = "portable", avx2[] = "avx2", avx512[] = "avx512";
    if (argc > 1)
        return run_capped(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_matches_reference),
        cmocka_unit_test(test_threads_leave_no_trace),
        cmocka_unit_test(test_rows_do_not_depend_on_their_number),
        cmocka_unit_test(test_decoding_equals_prefill),
        cmocka_unit_test_prestate(test_capped, portable),
        cmocka_unit_test_prestate(test_capped, avx2),
        cmocka_unit_test_prestate(test_capped, avx512),
    };
    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}
