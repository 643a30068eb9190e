/* The accumulator is one long two's-complement number in units of 2^-1074, the smallest subnormal.
 * Limb i weighs 2^(32 i). A term of 53 bits touches at most three limbs, each by less than 2^32, and
 * carries are put off: limbs are signed and 64 bits wide. The largest double ends at bit 2097; the
 * 206 bits above it hold any number of terms that can be counted. */
#include "base/exact_sum.h"

#include <math.h>
#include <string.h>

/* Carried long before the 2^30 additions that limbs can take, so that a thousand accumulators can be
 * added limb by limb, without carrying, where ranks reduce. */
enum { CARRY_AFTER = 1 << 20 };

/* Brings limbs to 0 … 2^32-1, the top one to the sign and what is above: the unique form of the
 * number. That form counts as one addition. */
static void carry_limbs(struct exact_sum *s)
{
    int64_t carry = 0;
    for (int i = 0; i < EXACT_SUM_LIMBS - 1; i++) {
        int64_t v = s->limb[i] + carry;
        s->limb[i] = v & INT64_C(0xffffffff);
        carry = v >> 32; /* floor, also below zero */
    }
    s->limb[EXACT_SUM_LIMBS - 1] += carry;
    s->pending = 1;
}

void exact_sum_clear(struct exact_sum *s)
{
    memset(s, 0, sizeof *s);
}

void exact_sum_add(struct exact_sum *s, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    unsigned exponent = (unsigned)(bits >> 52) & 0x7ffu;
    uint64_t significand = bits & ((UINT64_C(1) << 52) - 1);
    int negative = (int)(bits >> 63);
    if (exponent == 0x7ff) {
        if (significand != 0)
            s->nan++;
        else if (negative)
            s->neg_inf++;
        else
            s->pos_inf++;
        return;
    }
    if (exponent != 0)
        significand |= UINT64_C(1) << 52;
    if (significand == 0)
        return;
    unsigned position = exponent != 0 ? exponent - 1 : 0; /* of the lowest bit */
    unsigned shift = position % 32;
    uint64_t rest = significand >> (32 - shift);
    int64_t low = (int64_t)((significand << shift) & UINT64_C(0xffffffff));
    int64_t middle = (int64_t)(rest & UINT64_C(0xffffffff));
    int64_t high = (int64_t)(rest >> 32);
    int64_t *limb = s->limb + position / 32;
    limb[0] += negative ? -low : low;
    limb[1] += negative ? -middle : middle;
    limb[2] += negative ? -high : high;
    if (++s->pending >= CARRY_AFTER)
        carry_limbs(s);
}

void exact_sum_merge(struct exact_sum *into, const struct exact_sum *from)
{
    struct exact_sum addend = *from; /* a copy: it is carried, and may be `into` itself */
    carry_limbs(&addend);
    for (int i = 0; i < EXACT_SUM_LIMBS; i++)
        into->limb[i] += addend.limb[i];
    into->nan += addend.nan;
    into->pos_inf += addend.pos_inf;
    into->neg_inf += addend.neg_inf;
    into->pending += addend.pending;
    if (into->pending >= CARRY_AFTER)
        carry_limbs(into);
}

/* 64 bits of the carried, non-negative number from bit `position` (may be negative: zeros below). */
static uint64_t bits_from(const struct exact_sum *s, int position)
{
    uint64_t out = 0;
    for (int i = 0; i < 64; i++) {
        int p = position + i;
        if (p >= 0 && p < 32 * EXACT_SUM_LIMBS)
            out |= (((uint64_t)s->limb[p / 32] >> (p % 32)) & 1u) << i;
    }
    return out;
}

static int any_bit_below(const struct exact_sum *s, int position)
{
    if (position <= 0)
        return 0;
    for (int i = 0; i < position / 32; i++) {
        if (s->limb[i] != 0)
            return 1;
    }
    uint64_t mask = (UINT64_C(1) << (position % 32)) - 1;
    return ((uint64_t)s->limb[position / 32] & mask) != 0;
}

double exact_sum_value(const struct exact_sum *s)
{
    if (s->nan > 0 || (s->pos_inf > 0 && s->neg_inf > 0))
        return NAN;
    if (s->pos_inf > 0)
        return INFINITY;
    if (s->neg_inf > 0)
        return -INFINITY;
    struct exact_sum t = *s;
    carry_limbs(&t);
    int negative = t.limb[EXACT_SUM_LIMBS - 1] < 0;
    if (negative) {
        for (int i = 0; i < EXACT_SUM_LIMBS; i++)
            t.limb[i] = -t.limb[i];
        carry_limbs(&t);
    }
    int top = EXACT_SUM_LIMBS - 1;
    while (top >= 0 && t.limb[top] == 0)
        top--;
    if (top < 0)
        return 0.0;
    int highest = 32 * top + 63 - __builtin_clzll((uint64_t)t.limb[top]);
    /* 53 bits are kept; a subnormal, or the lowest normals, have none to round away. */
    int lowest = highest > 52 ? highest - 52 : 0;
    uint64_t significand = bits_from(&t, lowest) & ((UINT64_C(1) << 53) - 1);
    if (lowest > 0) {
        int half = (int)(bits_from(&t, lowest - 1) & 1u);
        if (half && ((significand & 1u) || any_bit_below(&t, lowest - 1)))
            significand++;
    }
    double value = ldexp((double)significand, lowest - 1074);
    return negative ? -value : value;
}
