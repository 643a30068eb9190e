/* The numbers of an AdamW update, and the update itself through the kernel, against one computed by hand. */
#include "support/cmocka.h"

#include "optim/adamw.h"

#include "backend/backend.h"

#include <math.h>

static const struct adamw settings = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1.0};

static void near(double got, double wanted, double bound)
{
    if (!(fabs(got - wanted) <= bound * fabs(wanted)))
        fail_msg("%.17g instead of %.17g", got, wanted);
}

static void test_numbers(void **state)
{
    (void)state;
    struct op_adamw u;
    adamw_update(&settings, 5e-5, 0, 0.5, &u);
    assert_true(u.lr == 5e-5f && u.beta1 == 0.9f && u.beta2 == 0.95f && u.eps == 1e-8f &&
                u.weight_decay == 0.1f);
    /* 1 - 0.9 and 1 - 0.95, computed in double and rounded once. */
    near((double)u.correction1, 0.1, 0x1p-24);
    near((double)u.correction2, 0.05, 0x1p-24);
    adamw_update(&settings, 5e-5, 2, 0.5, &u);
    near((double)u.correction1, 1 - 0.729, 0x1p-24);
    near((double)u.correction2, 1 - 0.857375, 0x1p-24);
    adamw_update(&settings, 5e-5, 100000, 0.5, &u);
    assert_true(u.correction1 == 1 && u.correction2 == 1);
}

static float scale_at(double clip, double norm)
{
    struct adamw a = settings;
    struct op_adamw u;
    a.clip = clip;
    adamw_update(&a, 1e-3, 0, norm, &u);
    return u.gradient_scale;
}

static void test_clip(void **state)
{
    (void)state;
    assert_true(scale_at(1, 0) == 1);
    assert_true(scale_at(1, 0.5) == 1);
    near((double)scale_at(1, 4), 1 / (4 + 1e-6), 0x1p-24);
    near((double)scale_at(0.25, 4), 0.25 / (4 + 1e-6), 0x1p-24);
    /* PyTorch's epsilon: a norm of exactly the limit is scaled a little. */
    assert_true(scale_at(1, 1) < 1 && scale_at(1, 1) > 0.999998f);
    assert_true(scale_at(1, 1 - 2e-6) == 1);
    assert_true(scale_at(0, 1e9) == 1); /* no clipping */
}

/* Two updates of one element, w = 2, gradients 0.5 and -1 of norms below the limit, lr 0.1:
 *   w *= 1 - 0.1*0.1 = 0.99; m = 0.1 g, v = 0.05 g^2; the step is lr * (m/0.1) / (sqrt(v/0.05) + eps).
 *   1: w = 1.98 - 0.1 * 0.5/0.5 = 1.88
 *   2: m = 0.9*0.05 - 0.1 = -0.055, v = 0.95*0.0125 + 0.05 = 0.061875; w = 1.8612
 *      + 0.1 * (0.055/0.19) / sqrt(0.061875/0.0975) */
static void test_two_updates(void **state)
{
    (void)state;
    static const char *const names[] = {"reference", "cpu"};
    const float gradients[] = {0.5f, -1};
    const double second = 1.88 * 0.99 + 0.1 * (0.055 / 0.19) / sqrt(0.061875 / 0.0975);
    for (int i = 0; i < 2; i++) {
        struct backend *b;
        struct backend_options options = {.name = names[i], .isa = "auto", .threads = 1};
        assert_int_equal(backend_create(&b, &options, NULL), 0);
        float *x[4];
        void *memory;
        for (int k = 0; k < 4; k++) {
            assert_int_equal(backend_alloc(b, MEMORY_DEVICE, sizeof(float), &memory, NULL), 0);
            x[k] = memory;
        }
        float w = 2;
        assert_int_equal(backend_upload(b, 0, x[1], &w, sizeof w, NULL), 0);
        for (int64_t update = 0; update < 2; update++) {
            struct op_call call = {.op = OP_ADAMW, .inputs = 1, .outputs = 3};
            adamw_update(&settings, 0.1, update, 0.9, &call.attr.adamw);
            call.in[0] = (struct operand){.data = x[0], .type = DTYPE_F32, .ndim = 1, .dim = {1}};
            for (int k = 0; k < 3; k++)
                call.out[k] = (struct operand){.data = x[k + 1], .type = DTYPE_F32, .ndim = 1, .dim = {1}};
            size_t workspace;
            assert_int_equal(backend_upload(b, 0, x[0], &gradients[update], sizeof(float), NULL), 0);
            assert_int_equal(backend_prepare(b, &call, &workspace, NULL), 0);
            assert_int_equal(backend_run(b, 0, &call, NULL), 0);
            assert_int_equal(backend_download(b, 0, &w, x[1], sizeof w, NULL), 0);
            assert_int_equal(backend_sync(b, 0, NULL), 0);
            near((double)w, update == 0 ? 1.88 : second, 4 * 0x1p-24);
        }
        for (int k = 0; k < 4; k++)
            backend_free(b, x[k]);
        backend_destroy(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_clip),
                                       cmocka_unit_test(test_two_updates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
