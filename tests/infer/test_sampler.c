/* Sampling: greedy and its ties, what top-k and top-p keep, and that draws follow the probabilities of what
 * is kept. Draws are compared with a second implementation that sorts the whole vocabulary. */
#include "infer/sampler.h"

#include "base/rng.h"
#include "support/allocations.h"
#include "support/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 97 };

static void make(struct sampler *s, int64_t vocab, struct sampler_options options)
{
    assert_int_equal(sampler_create(s, vocab, &options, NULL), 0);
}

static void random_logits(float *logits, int64_t n, uint64_t seed)
{
    rng_normal(seed, 1, 0, n, 3.0f, logits);
    for (int64_t i = 0; i + 10 < n; i += 10) /* some that are equal */
        logits[i + 7] = logits[i + 2];
}

static void test_greedy(void **state)
{
    (void)state;
    float ties[] = {-1, 2.5f, 0, 2.5f, 2.5f, -7};
    float low[] = {-3e38f, -2e38f, -2e38f};
    struct sampler s;
    make(&s, 6, (struct sampler_options){0});
    assert_int_equal(sampler_pick(&s, ties), 1);
    ties[5] = 3;
    assert_int_equal(sampler_pick(&s, ties), 5);
    assert_int_equal(s.draws, 0);
    sampler_free(&s);
    make(&s, 3, (struct sampler_options){.top_k = 2, .top_p = 0.5});
    assert_int_equal(sampler_pick(&s, low), 1);
    sampler_free(&s);
    make(&s, 1, (struct sampler_options){.temperature = 2});
    assert_int_equal(sampler_pick(&s, low), 0);
    sampler_free(&s);
}

/* Both keep one token, the likeliest with the lowest id, at any temperature. */
static void test_one_is_kept(void **state)
{
    (void)state;
    float logits[VOCAB];
    struct sampler k, p, greedy;
    make(&k, VOCAB, (struct sampler_options){.temperature = 5, .top_k = 1, .seed = 3});
    make(&p, VOCAB, (struct sampler_options){.temperature = 5, .top_p = 1e-9, .seed = 3});
    make(&greedy, VOCAB, (struct sampler_options){0});
    for (uint64_t seed = 0; seed < 200; seed++) {
        random_logits(logits, VOCAB, seed);
        logits[13] = logits[81] = 20; /* a tie at the top */
        assert_int_equal(sampler_pick(&greedy, logits), 13);
        assert_int_equal(sampler_pick(&k, logits), 13);
        assert_int_equal(sampler_pick(&p, logits), 13);
    }
    sampler_free(&k);
    sampler_free(&p);
    sampler_free(&greedy);
}

struct entry {
    double weight;
    int id;
};

static int by_weight(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->id - y->id;
}

/* The distribution that is drawn from: probability[id], and how many ids have one. */
static int kept(const float *logits, int n, const struct sampler_options *o, double *probability)
{
    struct entry entries[VOCAB];
    double total = 0, sum = 0;
    int count = o->top_k > 0 && o->top_k < n ? (int)o->top_k : n, last = 0;
    for (int i = 0; i < n; i++) {
        entries[i] = (struct entry){exp((double)logits[i] / o->temperature), i};
        probability[i] = 0;
    }
    qsort(entries, (size_t)n, sizeof *entries, by_weight);
    for (int i = 0; i < count; i++)
        total += entries[i].weight;
    double p = o->top_p > 0 ? o->top_p : 1;
    while (last < count && (last == 0 || sum < p * total))
        sum += entries[last++].weight;
    for (int i = 0; i < last; i++)
        probability[entries[i].id] = entries[i].weight / sum;
    return last;
}

/* Counts of 20,000 draws against the probabilities: each within 5 standard deviations. Draws are fixed by the
 * seed, so this either always passes or never. */
static void test_distribution(void **state)
{
    (void)state;
    static const struct sampler_options cases[] = {
        {.temperature = 1, .seed = 1},
        {.temperature = 0.5, .seed = 2},
        {.temperature = 3, .top_k = 12, .seed = 3},
        {.temperature = 2, .top_p = 0.8, .seed = 4},
        {.temperature = 4, .top_k = 30, .top_p = 0.6, .seed = 5},
        {.temperature = 1, .top_k = 1000, .top_p = 1, .seed = 6},
    };
    enum { DRAWS = 20000 };
    float logits[VOCAB];
    random_logits(logits, VOCAB, 99);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        double probability[VOCAB];
        int count[VOCAB] = {0};
        struct sampler s;
        int allowed = kept(logits, VOCAB, &cases[c], probability);
        if (cases[c].top_k == 12)
            assert_int_equal(allowed, 12);
        if (cases[c].top_p > 0 && cases[c].top_p < 1)
            assert_in_range(allowed, 2, 60);
        make(&s, VOCAB, cases[c]);
        for (int i = 0; i < DRAWS; i++)
            count[sampler_pick(&s, logits)]++;
        for (int i = 0; i < VOCAB; i++) {
            double p = probability[i], deviation = sqrt(DRAWS * p * (1 - p));
            if (p == 0)
                assert_int_equal(count[i], 0);
            else
                assert_true(fabs(count[i] - DRAWS * p) <= 5 * deviation + 1);
        }
        assert_int_equal(s.draws, DRAWS);
        sampler_free(&s);
    }
}

static void draw_many(uint64_t seed, uint32_t *out, int n)
{
    float logits[VOCAB];
    struct sampler s;
    make(&s, VOCAB, (struct sampler_options){.temperature = 2, .top_p = 0.95, .seed = seed});
    for (int i = 0; i < n; i++) {
        random_logits(logits, VOCAB, (uint64_t)i);
        out[i] = sampler_pick(&s, logits);
    }
    sampler_free(&s);
}

static void test_seed(void **state)
{
    (void)state;
    uint32_t a[64], b[64], c[64];
    draw_many(7, a, 64);
    draw_many(7, b, 64);
    draw_many(8, c, 64);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        struct sampler_options options;
        const char *where;
    } wrong[] = {
        {{.temperature = -0.1}, "temperature"},
        {{.temperature = INFINITY}, "temperature"},
        {{.temperature = NAN}, "temperature"},
        {{.top_k = -1}, "top_k"},
        {{.top_p = 1.5}, "top_p"},
        {{.top_p = -0.1}, "top_p"},
        {{.top_p = NAN}, "top_p"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sampler s;
        struct error err = {0};
        assert_int_equal(sampler_create(&s, 5, &wrong[i].options, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_string_equal(err.where, wrong[i].where);
        sampler_free(&s);
    }
}

static void test_memory(void **state)
{
    (void)state;
    float logits[VOCAB];
    struct sampler s;
    struct error err = {0};
    struct sampler_options options = {.temperature = 1, .top_k = 9, .top_p = 0.9};
    random_logits(logits, VOCAB, 1);
    allocations_fail_after(0);
    int status = sampler_create(&s, VOCAB, &options, &err);
    allocations_fail_after(-1);
    assert_int_equal(status, -1);
    assert_int_equal(err.kind, ERROR_RUN);
    make(&s, VOCAB, options);
    int64_t before = allocations_count();
    for (int i = 0; i < 100; i++)
        sampler_pick(&s, logits);
    assert_int_equal(allocations_count(), before);
    sampler_free(&s);
    sampler_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),       cmocka_unit_test(test_one_is_kept),
        cmocka_unit_test(test_distribution), cmocka_unit_test(test_seed),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
