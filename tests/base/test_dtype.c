#include "base/dtype.h"
#include "base/rng.h"
#include "support/cmocka.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static void table_and_names(void **state)
{
    (void)state;
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        enum dtype found;
        assert_int_equal(dtype_from_name(info->name, &found), 0);
        assert_int_equal(found, i);
        assert_int_equal(dtype_from_name(info->safetensors, &found), 0);
        assert_int_equal(found, i);
        assert_int_equal(dtype_bytes((enum dtype)i, 24), 24 * info->bits / 8);
        assert_int_equal(dtype_bytes((enum dtype)i, 0), 0);
    }
    enum dtype unchanged = DTYPE_U8;
    assert_int_equal(dtype_from_name("float32", &unchanged), -1);
    assert_int_equal(dtype_from_name("", &unchanged), -1);
    assert_int_equal(unchanged, DTYPE_U8);
    assert_int_equal(dtype_bytes(DTYPE_F64, INT64_MAX / 2), INT64_MAX);
    assert_int_equal(dtype_bytes(DTYPE_U8, INT64_MAX), INT64_MAX);
}

/* What the bits of a 16-bit float mean, by the definition of the format. */
static double meaning(uint16_t h, int exponent_bits)
{
    int fraction_bits = 15 - exponent_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (h & 0x7fff) >> fraction_bits;
    int fraction = h & ((1 << fraction_bits) - 1);
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

static void every_half_widens_exactly_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x10000; i++) {
        uint16_t h = (uint16_t)i;
        double f16 = meaning(h, 5), bf16 = meaning(h, 8);
        if (isnan(f16)) {
            assert_true(isnan(f16_to_f32(h)));
            assert_true(isnan(f16_to_f32(f32_to_f16(f16_to_f32(h)))));
        } else {
            assert_true((double)f16_to_f32(h) == f16);
            assert_int_equal(signbit(f16_to_f32(h)) != 0, h >> 15);
            assert_int_equal(f32_to_f16(f16_to_f32(h)), h);
        }
        if (isnan(bf16)) {
            assert_true(isnan(bf16_to_f32(h)));
            assert_true(isnan(bf16_to_f32(f32_to_bf16(bf16_to_f32(h)))));
        } else {
            assert_true((double)bf16_to_f32(h) == bf16);
            assert_int_equal(f32_to_bf16(bf16_to_f32(h)), h);
        }
    }
}

/* The nearest 16-bit float to x, ties to the even one, found among its neighbours by their meaning. */
static uint16_t nearest(double x, int exponent_bits)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)(((1 << exponent_bits) - 1) << (15 - exponent_bits));
    double magnitude = fabs(x);
    uint16_t low = 0, high = infinity; /* meaning(low) <= magnitude < meaning(high) */
    if (magnitude >= (double)INFINITY)
        return sign | infinity;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (meaning(middle, exponent_bits) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    /* Above the largest one, the next step is the one that would follow were there more exponents. */
    double below = meaning(low, exponent_bits);
    double step = low + 1 == infinity ? below - meaning(low - 1, exponent_bits)
                                      : meaning(low + 1, exponent_bits) - below;
    double rest = magnitude - below;
    int up = rest > step / 2 || (rest == step / 2 && (low & 1));
    return (uint16_t)(sign | (low + up));
}

static void narrowing_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 300000; i++) {
        uint64_t r = rng_bits(3, 1, i);
        uint32_t bits = (uint32_t)r;
        if (i % 3 == 0) /* around fp16's range, and near ties */
            bits = (bits & 0x80000fffu) | (uint32_t)(100 + (r >> 32) % 45) << 23 |
                   (uint32_t)((r >> 40) & 0x3ff) << 13;
        if (i % 5 == 0)
            bits &= 0xffff8000u; /* ties of bf16 */
        if (i % 7 == 0)
            bits &= 0xfffff000u; /* ties of fp16 */
        float f = float_of(bits);
        if (isnan(f))
            continue;
        assert_int_equal(f32_to_f16(f), nearest((double)f, 5));
        assert_int_equal(f32_to_bf16(f), nearest((double)f, 8));
    }
    for (uint32_t i = 0; i < 0x7c00; i++) { /* each fp16 boundary, and its neighbours in fp32 */
        double tie = i < 0x7bff ? (meaning((uint16_t)i, 5) + meaning((uint16_t)(i + 1), 5)) / 2 : 65520.0;
        float f = (float)tie;
        float around[] = {f, nextafterf(f, 0.0f), nextafterf(f, INFINITY), -f};
        for (int k = 0; k < 4; k++)
            assert_int_equal(f32_to_f16(around[k]), nearest((double)around[k], 5));
    }
}

static void nan_is_never_infinity(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7f800001u, 0x7fffffffu, 0xff800001u,
                                    0xffffffffu, 0x7fc00000u, 0x7f801fffu};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        float f = float_of(nans[i]);
        assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
        assert_true(isnan(f16_to_f32(f32_to_f16(f))));
    }
    assert_int_equal(f32_to_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(f32_to_bf16(-INFINITY), 0xff80);
    assert_int_equal(f32_to_f16(-FLT_MAX), 0xfc00);
}

/* Doubles just beside a tie: rounding to fp32 first would land on the tie. */
static void doubles_are_rounded_once(void **state)
{
    (void)state;
    const enum dtype types[] = {DTYPE_BF16, DTYPE_F16};
    const int exponent_bits[] = {8, 5};
    for (int t = 0; t < 2; t++) {
        for (uint64_t i = 0; i < 20000; i++) {
            uint16_t h = (uint16_t)rng_below(9, (uint64_t)t, i, t == 0 ? 0x7f7f : 0x7bff);
            double tie = (meaning(h, exponent_bits[t]) + meaning((uint16_t)(h + 1), exponent_bits[t])) / 2;
            double x[] = {tie, tie * (1 + 0x1p-45), tie * (1 - 0x1p-45), -tie * (1 + 0x1p-52), tie / 3};
            uint16_t out[5];
            dtype_convert(types[t], out, DTYPE_F64, x, 5);
            for (int k = 0; k < 5; k++)
                assert_int_equal(out[k], nearest(x[k], exponent_bits[t]));
        }
    }
    double special[] = {1e300, -1e300, 1e-320, NAN, INFINITY};
    uint16_t out[5];
    dtype_convert(DTYPE_BF16, out, DTYPE_F64, special, 5);
    assert_int_equal(out[0], 0x7f80);
    assert_int_equal(out[1], 0xff80);
    assert_int_equal(out[2], 0);
    assert_true(isnan(bf16_to_f32(out[3])));
    assert_int_equal(out[4], 0x7f80);
}

/* All pairs, a length that is no multiple of anything, unaligned on both sides, nothing written beyond. */
static void converts_between_all_pairs(void **state)
{
    (void)state;
    enum { N = 1000 + 13 };
    static const enum dtype floats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    double exact[N]; /* values that every type holds */
    for (int i = 0; i < N; i++)
        exact[i] = (double)(i % 255 - 127) / 8.0;
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++) {
            uint8_t *from = malloc(N * 8 + 1), *to = malloc(N * 8 + 9);
            double back[N];
            memset(to, 0xa5, N * 8 + 9);
            dtype_convert(floats[a], from + 1, DTYPE_F64, exact, N);
            dtype_convert(floats[b], to + 1, floats[a], from + 1, N);
            int64_t end = 1 + dtype_bytes(floats[b], N);
            assert_int_equal(to[0], 0xa5);
            assert_int_equal(to[end], 0xa5);
            dtype_convert(DTYPE_F64, back, floats[b], to + 1, N);
            assert_memory_equal(back, exact, sizeof exact);
            free(from);
            free(to);
        }
    }
    int64_t numbers[3] = {1, -2, INT64_MAX}, copy[3];
    dtype_convert(DTYPE_I64, copy, DTYPE_I64, numbers, 3);
    assert_memory_equal(copy, numbers, sizeof copy);
    dtype_convert(DTYPE_I64, copy, DTYPE_I64, copy, 3);
    assert_memory_equal(copy, numbers, sizeof copy);
    float f = 0.1f;
    double d;
    dtype_convert(DTYPE_F64, &d, DTYPE_F32, &f, 1);
    assert_true(d == (double)0.1f);
    dtype_convert(DTYPE_F32, &f, DTYPE_F64, &(double){0.1}, 1);
    assert_int_equal(bits_of(f), bits_of(0.1f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_and_names),
        cmocka_unit_test(every_half_widens_exactly_and_comes_back),
        cmocka_unit_test(narrowing_rounds_to_nearest_even),
        cmocka_unit_test(nan_is_never_infinity),
        cmocka_unit_test(doubles_are_rounded_once),
        cmocka_unit_test(converts_between_all_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
