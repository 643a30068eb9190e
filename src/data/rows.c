#include "data/rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int batch_create(struct batch *batch, int64_t max_rows, int64_t seq_len, struct error *err)
{
    memset(batch, 0, sizeof *batch);
    assert(max_rows >= 1 && seq_len >= 1);
    if (seq_len > INT32_MAX / max_rows)
        return error_set(err, ERROR_INPUT, "train.micro_batch", "lower micro_batch or seq_len",
                         "%lld rows of %lld positions are more than one batch can hold", (long long)max_rows,
                         (long long)seq_len);
    size_t n = (size_t)(max_rows * seq_len);
    batch->seq_len = seq_len;
    batch->max_rows = max_rows;
    batch->ids = calloc(n, sizeof *batch->ids);
    batch->targets = calloc(n, sizeof *batch->targets);
    batch->positions = calloc(n, sizeof *batch->positions);
    batch->pieces = calloc(n, sizeof *batch->pieces);
    if (!batch->ids || !batch->targets || !batch->positions || !batch->pieces) {
        batch_free(batch);
        return error_memory(err, n * (3 * sizeof(int32_t) + sizeof(struct batch_piece)), "a batch");
    }
    return 0;
}

void batch_free(struct batch *batch)
{
    free(batch->ids);
    free(batch->targets);
    free(batch->positions);
    free(batch->pieces);
    memset(batch, 0, sizeof *batch);
}

static void add_padding(const struct row_plan *plan, struct batch *batch, int64_t start, int64_t n)
{
    for (int64_t i = start; i < start + n; i++) {
        batch->ids[i] = (int32_t)plan->options.pad_id;
        batch->targets[i] = -1;
        batch->positions[i] = 0;
    }
}

/* Puts n tokens, from `offset` within a document of `length` tokens, at element `start`: one piece.
 * Tokens at and beyond `length` do not exist for the targets. Returns the highest id met. */
static uint32_t add_piece(struct batch *batch, int64_t start, const uint32_t *document, int64_t length,
                          int64_t offset, int64_t n)
{
    const uint32_t *from = document + offset;
    int32_t *ids = batch->ids + start, *targets = batch->targets + start,
            *positions = batch->positions + start;
    int64_t with_target = length - offset > n ? n : n - 1;
    uint32_t highest = from[0];
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)from[i];
        positions[i] = (int32_t)i;
        highest = from[i] > highest ? from[i] : highest;
    }
    for (int64_t i = 0; i < with_target; i++)
        targets[i] = (int32_t)from[i + 1];
    if (with_target < n)
        targets[with_target] = -1;
    else
        highest = from[n] > highest ? from[n] : highest; /* seen as a target only */
    struct batch_piece *piece = &batch->pieces[batch->piece_count++];
    piece->q_start = piece->kv_start = (int32_t)start;
    piece->q_len = piece->kv_len = (int32_t)n;
    batch->token_count += n;
    batch->target_count += with_target;
    return highest;
}

static uint32_t read_packed(const struct row_plan *plan, int64_t row, struct batch *batch)
{
    const struct token_cache *cache = plan->cache;
    const uint64_t *ends = row_plan_ends(plan);
    int64_t seq_len = batch->seq_len, n = batch->rows * seq_len;
    int64_t position = row * seq_len;
    int64_t place = row_plan_find(plan, position);
    int64_t at = 0;
    uint32_t highest = 0;
    while (at < n && place < cache->documents) {
        int64_t length;
        const uint32_t *document = token_cache_document(cache, row_plan_document(plan, place), &length);
        int64_t left = (int64_t)ends[place] - position; /* of this document */
        int64_t room = seq_len - at % seq_len;          /* in this row */
        int64_t take = left < room ? left : room;
        uint32_t id = add_piece(batch, at, document, length, length - left, take);
        highest = id > highest ? id : highest;
        at += take;
        position += take;
        if (take == left)
            place++;
    }
    add_padding(plan, batch, at, n - at);
    return highest;
}

static uint32_t read_unpacked(const struct row_plan *plan, int64_t row, struct batch *batch)
{
    uint32_t highest = 0;
    for (int64_t r = 0; r < batch->rows; r++) {
        int64_t length;
        const uint32_t *document =
            token_cache_document(plan->cache, row_plan_document(plan, row + r), &length);
        int64_t kept = length < batch->seq_len ? length : batch->seq_len;
        int64_t start = r * batch->seq_len;
        uint32_t id = add_piece(batch, start, document, kept, 0, kept);
        highest = id > highest ? id : highest;
        add_padding(plan, batch, start + kept, batch->seq_len - kept);
    }
    return highest;
}

int rows_read(struct row_plan *plan, int64_t epoch, int64_t row, int64_t rows, struct batch *batch,
              struct error *err)
{
    assert(rows >= 1 && rows <= batch->max_rows && batch->seq_len == plan->options.seq_len);
    assert(row >= 0 && rows <= plan->rows_per_epoch - row);
    row_plan_load_epoch(plan, epoch);
    batch->rows = rows;
    batch->piece_count = batch->token_count = batch->target_count = 0;
    uint32_t highest = plan->options.pack ? read_packed(plan, row, batch) : read_unpacked(plan, row, batch);
    if ((int64_t)highest > plan->cache->max_id)
        return error_set(err, ERROR_RUN, "token cache", "delete the cache: the next run makes it anew",
                         "it is damaged: it holds the id %lu, where the highest was %lld",
                         (unsigned long)highest, (long long)plan->cache->max_id);
    return 0;
}
