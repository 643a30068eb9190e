/* Every gradient op of the reference against differences of its forward op.
 *
 * The objective is J = sum(dy * y), y from the forward op in fp32, summed in double. Its derivative by one
 * input element comes from central differences D(h) and D(2h) by Richardson's rule (4 D(h) - D(2h)) / 3.
 * Error: each y is rounded once (relative u = 2^-24), so J errs by at most u S with S = sum |dy y|, D(h) by
 * u S / h, the rule by (4/3 + 1/6) u S / h < 2 u S / h. Truncation is 4 h^4 J'''''/120 of the fifth
 * derivative, taken below 300 for these smooth ops on inputs in [-1, 1). The gradient itself is rounded
 * once, and uses rounded results of the forward op (lse, rstd, o): 16 u times the size of its terms. */
#include "calls.h"

static const double u = 0x1p-24, h = 1.0 / 64;

/* One input of a forward op whose gradient some op computes. */
struct checked {
    int forward_input, gradient_output;
};

struct rule {
    enum op forward, gradient;
    struct trial_shape shape;
    /* Inputs of the gradient op: 'd' is dy, digits are the forward op's inputs, 'o' and 'l' its outputs
     * 0 and 1, 's' the scale. */
    const char *inputs;
    struct checked checked[3];
    int count;
};

static const struct rule rules[] = {
    {OP_EMBED, OP_EMBED_GRAD, {.tokens = 9, .width = 5, .vocabulary = 6}, "0d", {{1, 0}}, 1},
    {OP_LINEAR,
     OP_LINEAR_GRAD_INPUT,
     {.tokens = 3, .width = 5, .out = 4, .optional = true},
     "d1",
     {{0, 0}},
     1},
    {OP_LINEAR,
     OP_LINEAR_GRAD_WEIGHT,
     {.tokens = 3, .width = 5, .out = 4, .optional = true},
     "d0",
     {{1, 0}},
     1},
    {OP_LINEAR, OP_LINEAR_GRAD_BIAS, {.tokens = 3, .width = 5, .out = 4, .optional = true}, "d", {{2, 0}}, 1},
    {OP_RMSNORM, OP_RMSNORM_GRAD_INPUT, {.tokens = 3, .width = 7}, "d01l", {{0, 0}}, 1},
    {OP_RMSNORM, OP_RMSNORM_GRAD_WEIGHT, {.tokens = 3, .width = 7}, "d0l", {{1, 0}}, 1},
    {OP_ATTENTION,
     OP_ATTENTION_GRAD,
     {.tokens = 12,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 3,
      .pieces = {{0, 5, 0, 5}, {5, 1, 5, 1}, {7, 4, 7, 4}},
      .piece_count = 3},
     "d012ol3",
     {{0, 0}, {1, 1}, {2, 2}},
     3},
    {OP_SWIGLU, OP_SWIGLU_GRAD, {.elements = 13}, "d01", {{0, 0}, {1, 1}}, 2},
    {OP_LOSS, OP_LOSS_GRAD, {.tokens = 6, .width = 5, .vocabulary = 7}, "012s", {{0, 0}, {1, 1}}, 2},
};

static void fresh_operand(struct operand *x, const struct operand *like)
{
    *x = *like;
    x->data = test_memory((size_t)operand_bytes(like));
}

static double objective(struct backend *b, const struct trial *forward, const struct operand *dy,
                        double *size)
{
    struct result r;
    double sum = 0;
    trial_run(b, forward, &r);
    *size = 0;
    for (int64_t i = 0; i < operand_elements(dy); i++) {
        double term = operand_get(dy, i) * operand_get(&r.out[0], i);
        sum += term;
        *size += fabs(term);
    }
    result_free(&r);
    return sum;
}

/* Central difference with the step that fp32 really makes. */
static double difference(struct backend *b, struct trial *forward, int input, int64_t element, double step,
                         const struct operand *dy, double *size)
{
    struct operand *x = &forward->call.in[input];
    double old = operand_get(x, element);
    operand_set(x, element, old + step);
    double above = operand_get(x, element), up = objective(b, forward, dy, size);
    operand_set(x, element, old - step);
    double below = operand_get(x, element), down = objective(b, forward, dy, size);
    operand_set(x, element, old);
    return (up - down) / (above - below);
}

/* dy of the forward output: random; for the loss all the same, as its gradient takes one scale. */
static void make_dy(struct operand *dy, enum op forward, const struct operand *y)
{
    fresh_operand(dy, y);
    for (int64_t i = 0; i < operand_elements(y); i++)
        operand_set(dy, i, forward == OP_LOSS ? 0.75 : test_number(50, i));
}

static void gradient_inputs(struct trial *gradient, const struct rule *rule, const struct trial *forward,
                            const struct result *y, const struct operand *dy)
{
    memset(gradient, 0, sizeof *gradient);
    gradient->call.op = rule->gradient;
    gradient->call.attr = forward->call.attr;
    for (const char *c = rule->inputs; *c; c++) {
        struct operand *x = &gradient->call.in[gradient->call.inputs++];
        struct operand scale = {.type = DTYPE_F32, .ndim = 1, .dim = {1}};
        const struct operand *from = *c == 'd'   ? dy
                                     : *c == 'o' ? &y->out[0]
                                     : *c == 'l' ? &y->out[1]
                                     : *c == 's' ? &scale
                                                 : &forward->call.in[*c - '0'];
        fresh_operand(x, from);
        if (*c == 's')
            operand_set(x, 0, 0.75);
        else
            memcpy(x->data, from->data, (size_t)operand_bytes(from));
    }
}

static void check_element(struct backend *b, const struct rule *rule, struct trial *forward,
                          const struct operand *dy, int which, int64_t i, double got)
{
    double size;
    int input = rule->checked[which].forward_input;
    double near = difference(b, forward, input, i, h, dy, &size);
    double far = difference(b, forward, input, i, 2 * h, dy, &size);
    double expected = (4 * near - far) / 3;
    double bound = 2 * u * size / h + 4 * h * h * h * h * 300 / 120 + 16 * u * (size + fabs(got));
    if (!(fabs(got - expected) <= bound))
        fail_msg("%s, input %d, element %lld: %.9g, differences say %.9g, bound %.3g",
                 op_name(rule->gradient), input, (long long)i, got, expected, bound);
}

static void test_gradients_match_differences(void **state)
{
    (void)state;
    struct backend *b = test_backend("reference", NULL, 1);
    for (size_t n = 0; n < sizeof rules / sizeof rules[0]; n++) {
        const struct rule *rule = &rules[n];
        struct trial forward, gradient;
        struct result y, g;
        struct operand dy;
        trial_make(&forward, rule->forward, &rule->shape, DTYPE_F32);
        trial_run(b, &forward, &y);
        make_dy(&dy, rule->forward, &y.out[0]);
        gradient_inputs(&gradient, rule, &forward, &y, &dy);
        for (int k = 0; k < rule->count; k++) {
            fresh_operand(&gradient.call.out[k], &forward.call.in[rule->checked[k].forward_input]);
            gradient.call.outputs++;
        }
        bool again = rule->gradient == OP_LOSS_GRAD; /* its last output is the loss */
        if (again)
            fresh_operand(&gradient.call.out[gradient.call.outputs++], &forward.call.out[0]);
        trial_run(b, &gradient, &g);
        if (again)
            assert_memory_equal(g.out[rule->count].data, y.out[0].data, (size_t)operand_bytes(&y.out[0]));
        for (int k = 0; k < rule->count; k++)
            for (int64_t i = 0; i < operand_elements(&g.out[k]); i++)
                check_element(b, rule, &forward, &dy, k, i,
                              operand_get(&g.out[rule->checked[k].gradient_output], i));
        free(dy.data);
        result_free(&y);
        result_free(&g);
        trial_free(&forward);
        trial_free(&gradient);
    }
    backend_destroy(b);
}

/* Turning back is the gradient: J is linear in x, so its derivative is the inverse turn of dy. */
static void test_rope_gradient(void **state)
{
    (void)state;
    struct backend *b = test_backend("reference", NULL, 1);
    struct trial forward, gradient;
    struct result g;
    struct operand dy;
    double size;
    struct trial_shape shape = {.tokens = 3, .heads = 2, .head_dim = 6};
    trial_make(&forward, OP_ROPE, &shape, DTYPE_F32);
    make_dy(&dy, OP_ROPE, &forward.call.out[0]);
    shape.inverse = true;
    trial_make(&gradient, OP_ROPE, &shape, DTYPE_F32);
    memcpy(gradient.call.in[0].data, dy.data, (size_t)operand_bytes(&dy));
    trial_run(b, &gradient, &g);
    for (int64_t i = 0; i < operand_elements(&dy); i++) {
        double expected = difference(b, &forward, 0, i, h, &dy, &size);
        assert_true(fabs(operand_get(&g.out[0], i) - expected) <= 2 * u * size / h);
    }
    free(dy.data);
    result_free(&g);
    trial_free(&forward);
    trial_free(&gradient);
    backend_destroy(b);
}

static double get(const struct result *r, int output, int64_t i)
{
    return operand_get(&r->out[output], i);
}

/* A few results by hand, so that forward and backward cannot be wrong together. */
static void test_known_values(void **state)
{
    (void)state;
    struct backend *b = test_backend("reference", NULL, 1);
    struct trial t;
    struct result r;
    trial_make(&t, OP_LOSS, &(struct trial_shape){.tokens = 2, .width = 1, .vocabulary = 3}, DTYPE_F32);
    const double x[] = {1, 2}, w[] = {0, 1, -1}, targets[] = {1, -1};
    for (int i = 0; i < 2; i++) {
        operand_set(&t.call.in[0], i, x[i]);
        operand_set(&t.call.in[2], i, targets[i]);
    }
    for (int i = 0; i < 3; i++)
        operand_set(&t.call.in[1], i, w[i]);
    trial_run(b, &t, &r);
    double lse = log(1 + exp(1) + exp(-1));
    assert_true(fabs(get(&r, 0, 0) - (lse - 1)) < 1e-6);
    assert_true(get(&r, 0, 1) == 0);
    result_free(&r);
    trial_free(&t);

    trial_make(&t, OP_ROPE_TABLE, &(struct trial_shape){.tokens = 3, .head_dim = 2}, DTYPE_F32);
    trial_run(b, &t, &r);
    assert_true(fabs(get(&r, 0, 2) - cos(3)) < 1e-6 && fabs(get(&r, 0, 3) - sin(3)) < 1e-6);
    result_free(&r);
    trial_free(&t);

    /* Two keys: equal scores would give the mean of the values; the first query sees one key only. */
    struct trial_shape pair = {
        .tokens = 3, .heads = 1, .kv_heads = 1, .head_dim = 1, .pieces = {{0, 2, 0, 2}}, .piece_count = 1};
    trial_make(&t, OP_ATTENTION, &pair, DTYPE_F32);
    const double q[] = {0, 2, 1}, k[] = {0, 1, 1}, v[] = {3, 5, 7};
    for (int i = 0; i < 3; i++) {
        operand_set(&t.call.in[0], i, q[i]);
        operand_set(&t.call.in[1], i, k[i]);
        operand_set(&t.call.in[2], i, v[i]);
    }
    trial_run(b, &t, &r);
    double p = 1 / (1 + exp(2.0));
    assert_true(get(&r, 0, 0) == 3);
    assert_true(fabs(get(&r, 0, 1) - (3 * p + 5 * (1 - p))) < 1e-6);
    assert_true(get(&r, 0, 2) == 0 && isinf(get(&r, 1, 2))); /* padding */
    assert_true(fabs(get(&r, 1, 1) - log(1 + exp(2.0))) < 1e-6);
    result_free(&r);
    trial_free(&t);
    backend_destroy(b);
}

/* One AdamW step from zero moments: m = (1-b1) g, v = (1-b2) g^2, so that the step is lr g / (|g| + eps). */
static void test_adamw_first_step(void **state)
{
    (void)state;
    struct backend *b = test_backend("reference", NULL, 1);
    struct trial t;
    struct result r;
    trial_make(&t, OP_ADAMW, &(struct trial_shape){.elements = 2, .optional = true}, DTYPE_BF16);
    t.call.attr.adamw.correction1 = 0.1f;
    t.call.attr.adamw.correction2 = 0.05f;
    for (int i = 0; i < 2; i++) {
        operand_set(&t.call.in[0], i, i ? -4 : 2); /* the clip coefficient is 0.5 */
        operand_set(&t.call.out[0], i, 1);
        operand_set(&t.call.out[1], i, 0);
        operand_set(&t.call.out[2], i, 0);
    }
    trial_run(b, &t, &r);
    for (int i = 0; i < 2; i++) {
        double expected = 1 * (1 - 1e-3 * 0.1) - 1e-3 * (i ? -1 : 1);
        assert_true(fabs(get(&r, 0, i) - expected) < 2e-7);
        assert_true(fabs(get(&r, 1, i) - 0.1 * (i ? -2 : 1)) < 1e-7);
        assert_true(fabs(get(&r, 2, i) - 0.05 * (i ? 4 : 1)) < 1e-7);
        assert_true(get(&r, 3, i) == (double)bf16_to_f32(f32_to_bf16((float)get(&r, 0, i))));
    }
    result_free(&r);
    trial_free(&t);
    backend_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_match_differences),
        cmocka_unit_test(test_rope_gradient),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_adamw_first_step),
    };
    return cmocka_run_group_tests_name("gradients", tests, NULL, NULL);
}
