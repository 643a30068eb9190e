/* A sum of doubles that does not depend on their order or grouping: a fixed-point accumulator wide
 * enough for every finite double (after Kulisch; Demmel & Nguyen, "Fast reproducible floating-point
 * summation", 2013, discuss alternatives). Two accumulators add limb by limb, so ranks can combine
 * theirs with an integer all-reduce and all get the same bits. */
#ifndef TERCET_BASE_EXACT_SUM_H
#define TERCET_BASE_EXACT_SUM_H

#include <stdint.h>

enum { EXACT_SUM_LIMBS = 72 };

struct exact_sum {
    int64_t limb[EXACT_SUM_LIMBS]; /* 32 bits each plus head room for 2^30 additions before carrying */
    int64_t pending;               /* additions since the last carry */
    int64_t nan, pos_inf, neg_inf; /* counts of non-finite terms */
};

/* All members are integers that add: up to 1,000 accumulators are merged by adding them as arrays of
 * this many int64_t. */
enum { EXACT_SUM_WORDS = sizeof(struct exact_sum) / sizeof(int64_t) };

void exact_sum_clear(struct exact_sum *s);
void exact_sum_add(struct exact_sum *s, double x);
void exact_sum_merge(struct exact_sum *into, const struct exact_sum *from);
/* The exact sum, rounded once to the nearest double (ties to even); NaN or infinity when such terms
 * were added. */
double exact_sum_value(const struct exact_sum *s);

#endif
