/* Order and rows against a naive reimplementation: the epoch is written out as one list of tokens, each
 * with its document, and rows are cut from that. */
#include "base/rng.h"
#include "data/order.h"
#include "data/rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cache in memory: ids are unique, so a wrong token cannot pass for the right one. */
static void make_cache(struct token_cache *cache, const int64_t *lengths, int64_t documents)
{
    memset(cache, 0, sizeof *cache);
    cache->documents = documents;
    uint64_t *ends = calloc((size_t)documents, sizeof *ends);
    assert_non_null(ends);
    for (int64_t i = 0; i < documents; i++) {
        assert_true(lengths[i] >= 1);
        cache->tokens += lengths[i];
        ends[i] = (uint64_t)cache->tokens;
    }
    uint32_t *ids = calloc((size_t)cache->tokens, sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < cache->tokens; i++)
        ids[i] = (uint32_t)(1000 + i);
    cache->ids = ids;
    cache->ends = ends;
    cache->max_id = 1000 + cache->tokens - 1;
}

static void free_cache(struct token_cache *cache)
{
    free((void *)(uintptr_t)cache->ids);
    free((void *)(uintptr_t)cache->ends);
}

struct token {
    int64_t document, index, last; /* `last`: index of the last one kept */
    int32_t id, target;
    bool present;
};

/* One epoch as [rows][seq_len] tokens, the naive way. */
static struct token *naive_epoch(const struct token_cache *cache, const struct row_options *o, int64_t epoch,
                                 int64_t *rows)
{
    int64_t n = cache->documents;
    uint32_t *order = calloc((size_t)n, sizeof *order);
    assert_non_null(order);
    if (o->shuffle) {
        char name[64];
        snprintf(name, sizeof name, "data:epoch:%lld", (long long)epoch);
        rng_permutation(o->seed, rng_stream(name), n, order);
    } else {
        for (int64_t i = 0; i < n; i++)
            order[i] = (uint32_t)i;
    }
    int64_t most = (cache->tokens + n + 1) * o->seq_len;
    struct token *tokens = calloc((size_t)most, sizeof *tokens);
    assert_non_null(tokens);
    int64_t at = 0;
    for (int64_t d = 0; d < n; d++) {
        int64_t document = order[d], length = 0, first = 0;
        for (int64_t i = 0; i < document; i++)
            first = (int64_t)cache->ends[i];
        length = (int64_t)cache->ends[document] - first;
        if (!o->pack && length > o->seq_len)
            length = o->seq_len;
        for (int64_t i = 0; i < length; i++) {
            struct token *t = &tokens[at++];
            t->present = true;
            t->document = document;
            t->index = i;
            t->id = (int32_t)cache->ids[first + i];
            t->target = i + 1 < length ? (int32_t)cache->ids[first + i + 1] : -1;
        }
        if (!o->pack)
            while (at % o->seq_len != 0)
                at++;
    }
    while (at % o->seq_len != 0)
        at++;
    *rows = at / o->seq_len;
    free(order);
    return tokens;
}

static void check_batch(const struct batch *batch, const struct token *want, int32_t pad)
{
    int64_t tokens = 0, targets = 0, piece = 0;
    for (int64_t i = 0; i < batch->rows * batch->seq_len; i++) {
        if (!want[i].present) {
            assert_int_equal(batch->ids[i], pad);
            assert_int_equal(batch->targets[i], -1);
            assert_int_equal(batch->positions[i], 0);
            continue;
        }
        assert_int_equal(batch->ids[i], want[i].id);
        assert_int_equal(batch->targets[i], want[i].target);
        bool starts =
            i % batch->seq_len == 0 || !want[i - 1].present || want[i - 1].document != want[i].document;
        assert_int_equal(batch->positions[i], starts ? 0 : batch->positions[i - 1] + 1);
        if (starts) {
            int64_t stop = i + 1;
            while (stop % batch->seq_len != 0 && want[stop].present &&
                   want[stop].document == want[i].document)
                stop++;
            assert_true(piece < batch->piece_count);
            const struct batch_piece *p = &batch->pieces[piece++];
            assert_int_equal(p->q_start, i);
            assert_int_equal(p->q_len, stop - i);
            assert_int_equal(p->kv_start, p->q_start);
            assert_int_equal(p->kv_len, p->q_len);
        }
        tokens++;
        targets += want[i].target >= 0;
    }
    assert_int_equal(batch->piece_count, piece);
    assert_int_equal(batch->token_count, tokens);
    assert_int_equal(batch->target_count, targets);
}

static int64_t pairs_of(const struct batch *batch)
{
    int64_t pairs = 0;
    for (int64_t i = 0; i < batch->piece_count; i++)
        for (int64_t n = 1; n <= batch->pieces[i].q_len; n++)
            pairs += n;
    return pairs;
}

/* Every step of every epoch, in batches of every size, and counts of random ranges. */
static void check_setting(const struct token_cache *cache, const struct row_options *o)
{
    struct row_plan plan;
    struct error err;
    assert_int_equal(row_plan_create(&plan, cache, o, &err), 0);
    struct batch batch;
    assert_int_equal(batch_create(&batch, o->global_batch, o->seq_len, &err), 0);
    int64_t step = 0;
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        int64_t rows;
        struct token *want = naive_epoch(cache, o, epoch, &rows);
        assert_int_equal(plan.rows_per_epoch, rows);
        assert_int_equal(plan.steps_per_epoch, (rows + o->global_batch - 1) / o->global_batch);
        int64_t row = 0, targets = 0, tokens = 0;
        while (row < rows) {
            struct row_range range;
            row_plan_locate(&plan, step++, &range);
            assert_int_equal(range.epoch, epoch);
            assert_int_equal(range.row, row);
            assert_int_equal(range.rows, rows - row < o->global_batch ? rows - row : o->global_batch);
            struct row_counts counts;
            row_plan_count(&plan, epoch, row, range.rows, &counts);
            int64_t batch_targets = 0, batch_tokens = 0;
            /* As one batch, and in micro-batches of one row. */
            assert_int_equal(rows_read(&plan, epoch, row, range.rows, &batch, &err), 0);
            check_batch(&batch, want + row * o->seq_len, (int32_t)o->pad_id);
            assert_int_equal(batch.target_count, counts.targets);
            assert_int_equal(batch.token_count, counts.tokens);
            assert_int_equal(pairs_of(&batch), counts.pairs);
            for (int64_t r = row; r < row + range.rows; r++) {
                assert_int_equal(rows_read(&plan, epoch, r, 1, &batch, &err), 0);
                check_batch(&batch, want + r * o->seq_len, (int32_t)o->pad_id);
                struct row_counts one;
                row_plan_count(&plan, epoch, r, 1, &one);
                assert_int_equal(one.targets, batch.target_count);
                assert_int_equal(one.tokens, batch.token_count);
                assert_int_equal(one.pairs, pairs_of(&batch));
                batch_targets += batch.target_count;
                batch_tokens += batch.token_count;
            }
            assert_int_equal(batch_targets, counts.targets);
            assert_int_equal(batch_tokens, counts.tokens);
            targets += batch_targets;
            tokens += batch_tokens;
            row += range.rows;
        }
        assert_int_equal(targets, plan.targets_per_epoch);
        assert_int_equal(tokens, plan.tokens_per_epoch);
        free(want);
    }
    batch_free(&batch);
    row_plan_free(&plan);
}

static void test_random_settings(void **state)
{
    (void)state;
    const uint64_t seed = 20240607;
    uint64_t draw = 0;
    for (int trial = 0; trial < 400; trial++) {
        int64_t lengths[40];
        int64_t documents = 1 + (int64_t)rng_below(seed, 1, draw++, 40);
        int64_t longest = 1 + (int64_t)rng_below(seed, 1, draw++, 30);
        for (int64_t i = 0; i < documents; i++)
            lengths[i] = 1 + (int64_t)rng_below(seed, 1, draw++, (uint64_t)longest);
        lengths[rng_below(seed, 1, draw++, (uint64_t)documents)] = 2 + longest; /* some target */
        struct token_cache cache;
        make_cache(&cache, lengths, documents);
        struct row_options o = {0};
        o.seq_len = 1 + (int64_t)rng_below(seed, 1, draw++, 12);
        o.seed = rng_bits(seed, 1, draw++);
        o.global_batch = 1 + (int64_t)rng_below(seed, 1, draw++, 9);
        o.pad_id = (int64_t)rng_below(seed, 1, draw++, 3);
        for (int variant = 0; variant < 4; variant++) {
            o.pack = variant & 1;
            o.shuffle = variant & 2;
            if (!o.pack && o.seq_len == 1)
                continue; /* no target: refused, see below */
            check_setting(&cache, &o);
        }
        free_cache(&cache);
    }
}

static void test_edges(void **state)
{
    (void)state;
    static const struct {
        int64_t lengths[6];
        int64_t documents, seq_len;
    } cases[] = {
        {{5, 5, 5}, 3, 5},            /* every boundary of rows is one of documents */
        {{1, 1, 1, 1, 2}, 5, 3},      /* documents of one token */
        {{23}, 1, 4},                 /* one document over several rows */
        {{4, 8, 1, 3}, 4, 4},         /* boundaries now and then */
        {{2, 1, 1, 1, 1, 1}, 6, 100}, /* all in a part of one row */
        {{7, 2}, 2, 1},               /* rows of one position, packed */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct token_cache cache;
        make_cache(&cache, cases[i].lengths, cases[i].documents);
        for (int variant = 0; variant < 4; variant++) {
            struct row_options o = {.seq_len = cases[i].seq_len,
                                    .pack = variant & 1,
                                    .shuffle = variant & 2,
                                    .seed = 42,
                                    .global_batch = 2};
            if (o.pack || o.seq_len > 1)
                check_setting(&cache, &o);
        }
        free_cache(&cache);
    }
}

/* Written out by hand, so that both implementations cannot be wrong together. */
static void test_by_hand(void **state)
{
    (void)state;
    struct token_cache cache;
    make_cache(&cache, (int64_t[]){3, 6, 1}, 3); /* ids 1000-1002, 1003-1008, 1009 */
    struct row_plan plan;
    struct error err;
    struct batch batch;
    assert_int_equal(row_plan_create(&plan, &cache,
                                     &(struct row_options){.seq_len = 4, .pack = true, .global_batch = 2},
                                     &err),
                     0);
    assert_int_equal(plan.rows_per_epoch, 3);
    assert_int_equal(plan.steps_per_epoch, 2);
    assert_int_equal(plan.targets_per_epoch, 7);
    assert_int_equal(batch_create(&batch, 3, 4, &err), 0);
    assert_int_equal(rows_read(&plan, 0, 0, 3, &batch, &err), 0);
    static const int32_t ids[] = {1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 0, 0};
    static const int32_t targets[] = {1001, 1002, -1, 1004, 1005, 1006, 1007, 1008, -1, -1, -1, -1};
    static const int32_t positions[] = {0, 1, 2, 0, 0, 1, 2, 3, 0, 0, 0, 0};
    static const int32_t starts[] = {0, 3, 4, 8, 9}, sizes[] = {3, 1, 4, 1, 1};
    assert_memory_equal(batch.ids, ids, sizeof ids);
    assert_memory_equal(batch.targets, targets, sizeof targets);
    assert_memory_equal(batch.positions, positions, sizeof positions);
    assert_int_equal(batch.piece_count, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(batch.pieces[i].q_start, starts[i]);
        assert_int_equal(batch.pieces[i].q_len, sizes[i]);
    }
    row_plan_free(&plan);

    assert_int_equal(row_plan_create(&plan, &cache,
                                     &(struct row_options){.seq_len = 4, .global_batch = 5, .pad_id = 7},
                                     &err),
                     0);
    assert_int_equal(plan.rows_per_epoch, 3);
    assert_int_equal(plan.steps_per_epoch, 1);
    assert_int_equal(plan.truncated_documents, 1);
    assert_int_equal(plan.truncated_tokens, 2);
    assert_int_equal(plan.first_truncated, 1);
    assert_int_equal(rows_read(&plan, 5, 0, 3, &batch, &err), 0);
    static const int32_t padded[] = {1000, 1001, 1002, 7, 1003, 1004, 1005, 1006, 1009, 7, 7, 7};
    static const int32_t cut[] = {1001, 1002, -1, -1, 1004, 1005, 1006, -1, -1, -1, -1, -1};
    assert_memory_equal(batch.ids, padded, sizeof padded);
    assert_memory_equal(batch.targets, cut, sizeof cut);
    assert_int_equal(batch.target_count, 5);
    assert_int_equal(batch.token_count, 8);
    row_plan_free(&plan);
    batch_free(&batch);
    free_cache(&cache);
}

static void test_epochs_differ(void **state)
{
    (void)state;
    int64_t lengths[50];
    for (int i = 0; i < 50; i++)
        lengths[i] = 1 + i % 3;
    struct token_cache cache;
    make_cache(&cache, lengths, 50);
    struct row_options o = {.seq_len = 8, .pack = true, .shuffle = true, .seed = 1, .global_batch = 4};
    struct row_plan plan;
    struct error err;
    assert_int_equal(row_plan_create(&plan, &cache, &o, &err), 0);
    uint32_t first[50];
    row_plan_load_epoch(&plan, 0);
    memcpy(first, plan.permutation, sizeof first);
    row_plan_load_epoch(&plan, 1);
    assert_memory_not_equal(first, plan.permutation, sizeof first);
    row_plan_load_epoch(&plan, 0);
    assert_memory_equal(first, plan.permutation, sizeof first);
    row_plan_free(&plan);
    o.seed = 2;
    assert_int_equal(row_plan_create(&plan, &cache, &o, &err), 0);
    row_plan_load_epoch(&plan, 0);
    assert_memory_not_equal(first, plan.permutation, sizeof first);
    row_plan_free(&plan);
    free_cache(&cache);
}

static void test_total_steps(void **state)
{
    (void)state;
    struct row_plan plan = {.steps_per_epoch = 100};
    struct error err;
    static const struct {
        double epochs;
        int64_t steps;
    } cases[] = {{3, 300}, {0.07, 7}, {0.071, 8}, {1e-9, 1}, {2.5, 250}, {2.501, 251}, {1.0 / 3, 34}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t steps = -1;
        assert_int_equal(row_plan_total_steps(&plan, cases[i].epochs, &steps, &err), 0);
        assert_int_equal(steps, cases[i].steps);
    }
    int64_t steps;
    static const double wrong[] = {0, -1, 1e300};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(row_plan_total_steps(&plan, wrong[i], &steps, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
    }
    assert_int_equal(row_plan_total_steps(&plan, strtod("nan", NULL), &steps, &err), -1);
}

static void test_no_target(void **state)
{
    (void)state;
    struct token_cache cache;
    struct row_plan plan;
    struct error err;
    make_cache(&cache, (int64_t[]){1, 1, 1}, 3);
    assert_int_equal(row_plan_create(&plan, &cache,
                                     &(struct row_options){.seq_len = 8, .pack = true, .global_batch = 1},
                                     &err),
                     -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_non_null(strstr(err.what, "no target"));
    free_cache(&cache);
    make_cache(&cache, (int64_t[]){5, 1, 1}, 3);
    assert_int_equal(
        row_plan_create(&plan, &cache, &(struct row_options){.seq_len = 1, .global_batch = 1}, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_non_null(strstr(err.remedy, "seq_len"));
    row_plan_free(&plan);
    free_cache(&cache);
}

static void test_damaged_id(void **state)
{
    (void)state;
    struct token_cache cache;
    struct row_plan plan;
    struct batch batch;
    struct error err;
    make_cache(&cache, (int64_t[]){5, 4}, 2);
    assert_int_equal(row_plan_create(&plan, &cache,
                                     &(struct row_options){.seq_len = 3, .pack = true, .global_batch = 1},
                                     &err),
                     0);
    assert_int_equal(batch_create(&batch, 1, 3, &err), 0);
    /* The id at position 3 is the target of the first row, and a token of the second. */
    ((uint32_t *)(uintptr_t)cache.ids)[3] = 5000;
    assert_int_equal(rows_read(&plan, 0, 0, 1, &batch, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_int_equal(rows_read(&plan, 0, 1, 1, &batch, &err), -1);
    assert_int_equal(rows_read(&plan, 0, 2, 1, &batch, &err), 0);
    batch_free(&batch);
    row_plan_free(&plan);
    free_cache(&cache);
}

static void test_batch_too_large(void **state)
{
    (void)state;
    struct batch batch;
    struct error err;
    assert_int_equal(batch_create(&batch, 1 << 20, 1 << 12, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    batch_free(&batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),     cmocka_unit_test(test_random_settings),
        cmocka_unit_test(test_edges),       cmocka_unit_test(test_epochs_differ),
        cmocka_unit_test(test_total_steps), cmocka_unit_test(test_no_target),
        cmocka_unit_test(test_damaged_id),  cmocka_unit_test(test_batch_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
