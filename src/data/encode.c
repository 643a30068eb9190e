#include "data/encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 64 << 10,
    ROUND_BYTES = 2 << 20,  /* for each thread … */
    ROUND_LIMIT = 64 << 20, /* … and at most */
    ROUND_ITEMS = 1 << 16,
    KEPT_TOKENS = 1 << 20, /* a piece's buffer that grew larger is given back after the round */
};

struct item_slot {
    size_t offset, size; /* in the round's bytes */
    const char *path;
    int64_t file, line;
    int64_t tokens; /* of the encoded document */
    int64_t text_bytes;
    enum data_reason reason; /* DATA_REASONS: kept */
};

/* Lines as read, waiting to be encoded. */
struct text_round {
    char *bytes;
    size_t fill, capacity;
    struct item_slot *items;
    int64_t count, item_capacity;
    int64_t blank_lines, bytes_read; /* of the reader when the round was full */
    int more;                        /* 1: the reader has more, 0: the end, -1: error */
    struct error error;
};

struct encode_piece {
    int64_t first, count; /* items */
    struct token_buffer tokens;
    int64_t failed; /* item, -1 when none */
    struct error error;
};

struct encode_job {
    const struct token_cache_options *options;
    struct text_reader *reader;
    size_t round_bytes;
    struct text_round rounds[2], *current, *next;
    struct encode_piece *pieces;
    int64_t piece_count, piece_capacity;
};

static int round_add(struct text_round *round, const struct text_item *item, struct error *err)
{
    if (round->capacity - round->fill < item->size) {
        size_t capacity =
            round->capacity * 2 > round->fill + item->size ? round->capacity * 2 : round->fill + item->size;
        char *bytes = realloc(round->bytes, capacity);
        if (!bytes)
            return error_memory(err, capacity, "lines of text");
        round->bytes = bytes;
        round->capacity = capacity;
    }
    if (round->count == round->item_capacity) {
        int64_t capacity = round->item_capacity ? 2 * round->item_capacity : 1024;
        struct item_slot *items = realloc(round->items, (size_t)capacity * sizeof *items);
        if (!items)
            return error_memory(err, (size_t)capacity * sizeof *items, "lines of text");
        round->items = items;
        round->item_capacity = capacity;
    }
    memcpy(round->bytes + round->fill, item->data, item->size);
    round->items[round->count++] = (struct item_slot){.offset = round->fill,
                                                      .size = item->size,
                                                      .path = item->path,
                                                      .file = item->file,
                                                      .line = item->line,
                                                      .reason = DATA_REASONS};
    round->fill += item->size;
    return 0;
}

static void round_read(struct encode_job *job, struct text_round *round)
{
    if (round->capacity > 2 * job->round_bytes && round->capacity > ROUND_LIMIT) {
        free(round->bytes); /* a giant line went through */
        round->bytes = NULL;
        round->capacity = 0;
    }
    round->fill = 0;
    round->count = 0;
    round->more = 1;
    while (round->more == 1 && round->fill < job->round_bytes && round->count < ROUND_ITEMS) {
        struct text_item item;
        round->more = text_reader_next(job->reader, &item, &round->error);
        if (round->more == 1 && round_add(round, &item, &round->error) != 0)
            round->more = -1;
    }
    round->blank_lines = text_reader_blank_lines(job->reader);
    round->bytes_read = text_reader_bytes(job->reader);
}

static void slot_place(const struct item_slot *slot, char out[512])
{
    if (slot->line > 0)
        snprintf(out, 512, "%s:%lld", slot->path, (long long)slot->line);
    else
        snprintf(out, 512, "%s", slot->path);
}

static int check_ids(const struct token_cache_options *o, const struct item_slot *slot, const uint32_t *ids,
                     int64_t n, struct error *err)
{
    if (o->vocab_limit <= 0)
        return 0;
    for (int64_t i = 0; i < n; i++) {
        if ((int64_t)ids[i] >= o->vocab_limit) {
            char place[512];
            slot_place(slot, place);
            return vocabulary_error(o, ids[i], place, err);
        }
    }
    return 0;
}

int vocabulary_error(const struct token_cache_options *o, int64_t id, const char *where, struct error *err)
{
    return error_set(err, ERROR_INPUT, where,
                     "use the tokenizer that belongs to the model, or raise vocab_size in model.config",
                     "the tokenizer %s gives the id %lld, but the embedding of the model %s ends at %lld",
                     o->tokenizer_name ? o->tokenizer_name : "of this run", (long long)id,
                     o->model_name ? o->model_name : "of this run", (long long)o->vocab_limit - 1);
}

static int add_id(struct token_buffer *tokens, int64_t id, struct error *err)
{
    if (token_buffer_reserve(tokens, 1, err) != 0)
        return -1;
    tokens->ids[tokens->count++] = (uint32_t)id;
    return 0;
}

/* One line: parsed, encoded, appended to the piece's tokens; or dropped with a reason. */
static int encode_item(const struct encode_job *job, struct item_slot *slot, int thread,
                       struct token_buffer *tokens, struct error *err)
{
    const struct token_cache_options *o = job->options;
    struct text_item item = {.data = job->current->bytes + slot->offset,
                             .size = slot->size,
                             .path = slot->path,
                             .file = slot->file,
                             .line = slot->line};
    struct document document;
    if (document_extract(&item, o->field, &document, &slot->reason, err) != 0)
        return slot->reason == DATA_REASONS || o->bad_lines != DATA_BAD_LINES_SKIP ? -1 : 0;
    int64_t start = tokens->count;
    int result = o->bos_id >= 0 ? add_id(tokens, o->bos_id, err) : 0;
    if (result == 0 && o->encode(o->encode_context, thread, document.text, document.size, o->special_in_text,
                                 tokens, err) != 0) {
        char place[512];
        slot_place(slot, place);
        if (err->where[0] == '\0')
            snprintf(err->where, sizeof err->where, "%s", place);
        result = -1;
    }
    slot->text_bytes = (int64_t)document.size;
    document_free(&document);
    if (result == 0 && o->eos_id >= 0 &&
        (tokens->count == start || tokens->ids[tokens->count - 1] != (uint32_t)o->eos_id))
        result = add_id(tokens, o->eos_id, err);
    if (result != 0)
        return -1;
    slot->tokens = tokens->count - start;
    if (slot->tokens == 0)
        slot->reason = DATA_NO_TOKENS;
    return check_ids(o, slot, tokens->ids + start, slot->tokens, err);
}

static void run_piece(void *context, int64_t index, int thread)
{
    struct encode_job *job = context;
    if (index == 0) {
        if (job->current->more == 1)
            round_read(job, job->next);
        return;
    }
    struct encode_piece *piece = &job->pieces[index - 1];
    piece->tokens.count = 0;
    piece->failed = -1;
    for (int64_t i = piece->first; i < piece->first + piece->count; i++) {
        if (encode_item(job, &job->current->items[i], thread, &piece->tokens, &piece->error) != 0) {
            piece->failed = i;
            return;
        }
    }
}

/* Cuts the current round in pieces of about PIECE_BYTES. */
static int cut_pieces(struct encode_job *job, struct error *err)
{
    const struct text_round *round = job->current;
    job->piece_count = 0;
    int64_t i = 0;
    while (i < round->count) {
        if (job->piece_count == job->piece_capacity) {
            int64_t capacity = job->piece_capacity ? 2 * job->piece_capacity : 64;
            struct encode_piece *pieces = realloc(job->pieces, (size_t)capacity * sizeof *pieces);
            if (!pieces)
                return error_memory(err, (size_t)capacity * sizeof *pieces, "pieces of text");
            memset(pieces + job->piece_capacity, 0,
                   (size_t)(capacity - job->piece_capacity) * sizeof *pieces);
            job->pieces = pieces;
            job->piece_capacity = capacity;
        }
        struct encode_piece *piece = &job->pieces[job->piece_count++];
        piece->first = i;
        size_t bytes = 0;
        while (i < round->count && bytes < PIECE_BYTES)
            bytes += round->items[i++].size;
        piece->count = i - piece->first;
    }
    return 0;
}

/* The results of one piece, in the order of its items. */
static int write_piece(const struct encode_job *job, struct encode_piece *piece, struct file_writer *writers,
                       struct cache_manifest *manifest, struct error *err)
{
    if (piece->failed >= 0) {
        *err = piece->error;
        return -1;
    }
    struct data_summary *s = &manifest->summary;
    for (int64_t i = piece->first; i < piece->first + piece->count; i++) {
        const struct item_slot *slot = &job->current->items[i];
        if (slot->reason != DATA_REASONS) {
            data_summary_drop(s, slot->reason, slot->path, slot->line);
            continue;
        }
        s->documents++;
        s->text_bytes += slot->text_bytes;
        s->tokens += slot->tokens;
        uint64_t end = (uint64_t)s->tokens;
        uint64_t place = cache_place(slot->file, slot->line);
        if (file_writer_write(&writers[CACHE_ENDS], &end, sizeof end, err) != 0 ||
            file_writer_write(&writers[CACHE_PLACES], &place, sizeof place, err) != 0)
            return -1;
    }
    const struct token_buffer *tokens = &piece->tokens;
    for (int64_t i = 0; i < tokens->count; i++)
        if ((int64_t)tokens->ids[i] > manifest->max_id)
            manifest->max_id = tokens->ids[i];
    if (file_writer_write(&writers[CACHE_TOKENS], tokens->ids, (size_t)tokens->count * sizeof *tokens->ids,
                          err) != 0)
        return -1;
    if (tokens->capacity > KEPT_TOKENS)
        token_buffer_free(&piece->tokens);
    return 0;
}

static int run_rounds(struct encode_job *job, struct pool *pool, const struct log *log,
                      struct file_writer *writers, struct cache_manifest *manifest, struct error *err)
{
    const struct token_cache_options *o = job->options;
    int64_t total = text_reader_total_bytes(job->reader);
    round_read(job, job->current);
    for (;;) {
        if (cut_pieces(job, err) != 0)
            return -1;
        pool_run(pool, 1 + job->piece_count, run_piece, job);
        for (int64_t i = 0; i < job->piece_count; i++)
            if (write_piece(job, &job->pieces[i], writers, manifest, err) != 0)
                return -1;
        if (job->current->more < 0) {
            *err = job->current->error;
            return -1;
        }
        manifest->summary.blank_lines = job->current->blank_lines;
        char documents[32], tokens[32];
        log_progress(log, job->current->more == 0, "tokenizing: %3d%%, %s documents, %s tokens",
                     total > 0 ? (int)(100.0 * (double)job->current->bytes_read / (double)total) : 100,
                     format_count(manifest->summary.documents, documents),
                     format_count(manifest->summary.tokens, tokens));
        if (job->current->more == 0)
            return 0;
        if (o->stopped && o->stopped(o->stopped_context))
            return error_set(err, ERROR_RUN, NULL, "start again: nothing was kept",
                             "stopped while tokenizing");
        struct text_round *swap = job->current;
        job->current = job->next;
        job->next = swap;
    }
}

int encode_files(const struct token_cache_options *options, const struct text_files *files, struct pool *pool,
                 const struct log *log, struct file_writer *writers, struct cache_manifest *manifest,
                 struct error *err)
{
    struct encode_job job = {.options = options};
    job.current = &job.rounds[0];
    job.next = &job.rounds[1];
    job.round_bytes = (size_t)pool_threads(pool) * ROUND_BYTES;
    if (job.round_bytes > ROUND_LIMIT)
        job.round_bytes = ROUND_LIMIT;
    struct error local; /* pieces report through it, whether the caller wants to know or not */
    int result = text_reader_open(&job.reader, files, &local);
    if (result == 0)
        result = run_rounds(&job, pool, log, writers, manifest, &local);
    if (result != 0 && err)
        *err = local;
    text_reader_close(job.reader);
    for (int i = 0; i < 2; i++) {
        free(job.rounds[i].bytes);
        free(job.rounds[i].items);
    }
    for (int64_t i = 0; i < job.piece_capacity; i++)
        token_buffer_free(&job.pieces[i].tokens);
    free(job.pieces);
    return result;
}
