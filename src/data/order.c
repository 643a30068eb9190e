#include "data/order.h"
#include "base/rng.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t document_length(const struct token_cache *cache, int64_t i)
{
    int64_t length;
    token_cache_document(cache, i, &length);
    return length;
}

/* Everything that holds for every epoch alike. */
static void count_epoch(struct row_plan *plan)
{
    const struct token_cache *cache = plan->cache;
    int64_t seq_len = plan->options.seq_len;
    plan->first_truncated = -1;
    if (plan->options.pack) {
        plan->rows_per_epoch = cache->tokens / seq_len + (cache->tokens % seq_len != 0);
        plan->tokens_per_epoch = cache->tokens;
    } else {
        plan->rows_per_epoch = cache->documents;
        for (int64_t i = 0; i < cache->documents; i++) {
            int64_t length = document_length(cache, i);
            if (length > seq_len) {
                if (plan->truncated_documents++ == 0)
                    plan->first_truncated = i;
                plan->truncated_tokens += length - seq_len;
            }
        }
        plan->tokens_per_epoch = cache->tokens - plan->truncated_tokens;
    }
    plan->targets_per_epoch = plan->tokens_per_epoch - cache->documents;
    int64_t batch = plan->options.global_batch;
    plan->steps_per_epoch = plan->rows_per_epoch / batch + (plan->rows_per_epoch % batch != 0);
}

static int allocate_index(struct row_plan *plan, struct error *err)
{
    if (!plan->options.shuffle)
        return 0;
    size_t n = (size_t)plan->cache->documents;
    plan->permutation = calloc(n, sizeof *plan->permutation);
    if (!plan->permutation)
        return error_memory(err, n * sizeof *plan->permutation, "the order of documents");
    if (!plan->options.pack)
        return 0;
    plan->ends = calloc(n, sizeof *plan->ends);
    if (!plan->ends)
        return error_memory(err, n * sizeof *plan->ends, "the order of documents");
    return 0;
}

int row_plan_create(struct row_plan *plan, const struct token_cache *cache, const struct row_options *options,
                    struct error *err)
{
    memset(plan, 0, sizeof *plan);
    assert(options->seq_len >= 1 && options->global_batch >= 1);
    plan->cache = cache;
    plan->options = *options;
    plan->epoch = -1;
    if (cache->documents > (int64_t)UINT32_MAX)
        return error_set(err, ERROR_INPUT, NULL, "join short documents, or train on parts of them",
                         "%lld documents are more than one run can put in order",
                         (long long)cache->documents);
    count_epoch(plan);
    if (plan->targets_per_epoch <= 0) {
        bool cut = plan->truncated_documents > 0;
        return error_set(err, ERROR_INPUT, cut ? "data.seq_len" : "data",
                         cut ? "raise seq_len to 2 or more, or pack documents"
                             : "give documents of two tokens or more",
                         "an epoch holds no target token: each of the %lld documents %s one token, and the "
                         "last token of a document has no target",
                         (long long)cache->documents, cut ? "is cut to" : "has only");
    }
    if (allocate_index(plan, err) != 0) {
        row_plan_free(plan);
        return -1;
    }
    return 0;
}

void row_plan_free(struct row_plan *plan)
{
    free(plan->permutation);
    free(plan->ends);
    memset(plan, 0, sizeof *plan);
}

int row_plan_total_steps(const struct row_plan *plan, double epochs, int64_t *steps, struct error *err)
{
    double product = epochs * (double)plan->steps_per_epoch;
    if (!(epochs > 0) || !(product < 0x1p53))
        return error_set(err, ERROR_INPUT, "train.epochs", "give a positive number",
                         "cannot train for %g epochs", epochs);
    /* 0.07 x 100 is 7.000000000000001 in binary, and means 7. */
    double whole = nearbyint(product);
    if (whole < 1 || fabs(product - whole) > 1e-9 * whole)
        whole = ceil(product);
    *steps = (int64_t)whole;
    return 0;
}

void row_plan_locate(const struct row_plan *plan, int64_t step, struct row_range *out)
{
    assert(step >= 0);
    out->epoch = step / plan->steps_per_epoch;
    out->row = step % plan->steps_per_epoch * plan->options.global_batch;
    int64_t left = plan->rows_per_epoch - out->row;
    out->rows = left < plan->options.global_batch ? left : plan->options.global_batch;
}

void row_plan_load_epoch(struct row_plan *plan, int64_t epoch)
{
    assert(epoch >= 0);
    if (plan->epoch == epoch)
        return;
    plan->epoch = epoch;
    if (!plan->permutation)
        return;
    char name[64];
    snprintf(name, sizeof name, "data:epoch:%lld", (long long)epoch);
    int64_t n = plan->cache->documents;
    rng_permutation(plan->options.seed, rng_stream(name), n, plan->permutation);
    if (plan->ends) {
        uint64_t total = 0;
        for (int64_t i = 0; i < n; i++) {
            total += (uint64_t)document_length(plan->cache, plan->permutation[i]);
            plan->ends[i] = total;
        }
    }
}

int64_t row_plan_find(const struct row_plan *plan, int64_t position)
{
    const uint64_t *ends = row_plan_ends(plan);
    int64_t low = 0, high = plan->cache->documents;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ends[middle] <= (uint64_t)position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t piece_pairs(int64_t n)
{
    return n * (n + 1) / 2;
}

/* Packed: of the tokens first … stop-1 of the epoch's stream, where `first` begins a row. */
static int64_t packed_pairs(const struct row_plan *plan, int64_t first, int64_t stop)
{
    const uint64_t *ends = row_plan_ends(plan);
    int64_t seq_len = plan->options.seq_len, pairs = 0, place = row_plan_find(plan, first);
    int64_t row_end = first + seq_len;
    while (first < stop) {
        int64_t end = (int64_t)ends[place];
        if (end <= row_end)
            place++;
        else
            end = row_end;
        end = end < stop ? end : stop;
        pairs += piece_pairs(end - first);
        first = end;
        if (first == row_end)
            row_end += seq_len;
    }
    return pairs;
}

void row_plan_count(struct row_plan *plan, int64_t epoch, int64_t row, int64_t rows, struct row_counts *out)
{
    assert(row >= 0 && rows >= 0 && rows <= plan->rows_per_epoch - row);
    memset(out, 0, sizeof *out);
    if (rows == 0)
        return;
    row_plan_load_epoch(plan, epoch);
    int64_t seq_len = plan->options.seq_len;
    if (plan->options.pack) {
        int64_t first = row * seq_len; /* fits: the row holds a token */
        int64_t stop =
            plan->cache->tokens - first < rows * seq_len ? plan->cache->tokens : first + rows * seq_len;
        out->tokens = stop - first;
        /* Without a target: the last token of each document that ends in first+1 … stop. */
        out->targets = out->tokens - (row_plan_find(plan, stop) - row_plan_find(plan, first));
        out->pairs = packed_pairs(plan, first, stop);
        return;
    }
    for (int64_t i = row; i < row + rows; i++) {
        int64_t length = document_length(plan->cache, row_plan_document(plan, i));
        int64_t kept = length < seq_len ? length : seq_len;
        out->tokens += kept;
        out->pairs += piece_pairs(kept);
    }
    out->targets = out->tokens - rows;
}
