#include "infer/decoder.h"

#include "exec/exec.h"
#include "shard/shard.h"
#include "train/specs.h"
#include "train/weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, HIDDEN_BUFFERS = 2 };

/* What a pass reads and leaves, on the device and, staged on its way, on the host. */
struct inputs {
    int32_t *ids, *positions, *slots; /* [chunk] */
    int32_t *piece;                   /* [4]: the one piece of the chunk */
    int32_t *picked;                  /* [logits_rows] */
    float *inv_freq;                  /* [head_dim / 2] */
    float *logits;                    /* [logits_rows, vocab_size] */
};

/* What the device holds besides. */
struct regions {
    struct inputs inputs;
    void *rope;
    void *hidden[HIDDEN_BUFFERS]; /* a unit reads one and writes the other */
    char *work;
    char *cache; /* of all units, one after the other */
};

struct unit {
    const struct program *program;
    void **io;    /* [io_count] addresses, fixed */
    void **param; /* [param_count] */
};

struct decoder {
    const struct model *model;
    struct backend *backend;
    struct decoder_options options;
    struct exec exec;
    struct shard *shard;
    struct program **programs; /* [kinds] */
    struct unit *units;
    struct decoder_memory memory;
    char *arena, *host;
    struct regions device;
    struct inputs staged;
    int64_t length;
};

/* The most of everything: what memory is planned for. */
static struct graph_counts bounds_of(const struct decoder_options *o)
{
    return (struct graph_counts){
        .tokens = o->chunk, .pieces = 1, .cache = o->capacity, .picked = o->logits_rows};
}

static int compile_kind(struct decoder *d, int unit, struct error *err)
{
    int kind = d->model->units[unit].kind;
    struct graph *g = NULL;
    if (model_graph(d->model, kind, MODEL_DECODE, d->options.compute, &g, err) != 0)
        return -1;
    struct program_options options = {
        .bounds = bounds_of(&d->options), .workspace = exec_workspace, .context = d->backend};
    int status = program_compile(&d->programs[kind], g, &options, err);
    graph_free(g);
    return status;
}

static int compile(struct decoder *d, struct error *err)
{
    d->programs = calloc((size_t)d->model->kinds, sizeof(struct program *));
    if (!d->programs)
        return error_memory(err, (size_t)d->model->kinds * sizeof(struct program *), "a decoder");
    for (int u = 0; u < d->model->unit_count; u++)
        if (!d->programs[d->model->units[u].kind] && compile_kind(d, u, err) != 0)
            return -1;
    return 0;
}

/* Takes `bytes` of the region that ends at *end, whose start is `base`: NULL while the region is measured
 * and not yet allocated. */
static void *cut(char *base, int64_t *end, int64_t bytes)
{
    int64_t at = *end;
    *end += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return base ? base + at : NULL;
}

static void cut_inputs(const struct decoder *d, char *base, int64_t *end, struct inputs *out)
{
    const struct decoder_options *o = &d->options;
    const struct model_config *c = &d->model->config;
    out->ids = cut(base, end, 4 * o->chunk);
    out->positions = cut(base, end, 4 * o->chunk);
    out->slots = cut(base, end, 4 * o->chunk);
    out->piece = cut(base, end, 4 * 4);
    out->picked = cut(base, end, 4 * o->logits_rows);
    out->inv_freq = cut(base, end, 4 * (c->head_dim / 2));
    out->logits = cut(base, end, 4 * o->logits_rows * c->vocab_size);
}

static void cut_regions(struct decoder *d, char *base, int64_t *end, struct regions *out)
{
    const struct decoder_options *o = &d->options;
    const struct model_config *c = &d->model->config;
    int64_t work = 0;
    for (int k = 0; k < d->model->kinds; k++)
        if (d->programs[k] && d->programs[k]->part[PROGRAM_FORWARD].work_bytes > work)
            work = d->programs[k]->part[PROGRAM_FORWARD].work_bytes;
    cut_inputs(d, base, end, &out->inputs);
    out->rope = cut(base, end, 4 * o->chunk * c->head_dim);
    for (int i = 0; i < HIDDEN_BUFFERS; i++)
        out->hidden[i] = cut(base, end, dtype_bytes(o->compute, o->chunk * c->hidden_size));
    out->work = cut(base, end, work);
    out->cache = cut(base, end, d->memory.cache);
}

static bool is_cache(const struct program_io *io)
{
    return strcmp(io->name, "cache_k") == 0 || strcmp(io->name, "cache_v") == 0;
}

/* Bytes of one cache, rounded up to where the next may begin; -1 when they cannot be counted. */
static int64_t cache_bytes(const struct program_io *io, const struct graph_counts *bounds)
{
    int64_t bits = dtype_info(io->type)->bits;
    for (int i = 0; i < io->ndim; i++)
        if (__builtin_mul_overflow(bits, graph_dim(io->dim[i], bounds), &bits))
            return -1;
    return (bits / 8 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int measure_cache(struct decoder *d, struct error *err)
{
    struct graph_counts bounds = bounds_of(&d->options);
    for (int u = 0; u < d->model->unit_count; u++) {
        const struct program *p = d->programs[d->model->units[u].kind];
        for (int i = 0; i < p->io_count; i++) {
            int64_t bytes = is_cache(&p->io[i]) ? cache_bytes(&p->io[i], &bounds) : 0;
            if (bytes < 0 || __builtin_add_overflow(d->memory.cache, bytes, &d->memory.cache))
                return error_set(err, ERROR_INPUT, "model", "ask for a shorter context",
                                 "a cache of %" PRId64 " tokens is larger than any memory",
                                 d->options.capacity);
        }
    }
    return 0;
}

/* The address behind a named slot of unit u; the next cache begins at *cache. */
static void *slot_address(const struct decoder *d, const struct program_io *io, int u, int64_t *cache)
{
    const struct regions *r = &d->device;
    if (is_cache(io)) {
        struct graph_counts bounds = bounds_of(&d->options);
        return cut(r->cache, cache, cache_bytes(io, &bounds));
    }
    if (strcmp(io->name, "hidden") == 0)
        return r->hidden[(io->output ? u : u + 1) % HIDDEN_BUFFERS];
    const struct {
        const char *name;
        void *address;
    } known[] = {{"ids", r->inputs.ids},       {"positions", r->inputs.positions},
                 {"slots", r->inputs.slots},   {"pieces", r->inputs.piece},
                 {"picked", r->inputs.picked}, {"inv_freq", r->inputs.inv_freq},
                 {"logits", r->inputs.logits}, {"rope", r->rope}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(io->name, known[i].name) == 0)
            return known[i].address;
    return NULL;
}

static int bind_unit(struct decoder *d, int u, int64_t *cache, struct error *err)
{
    const struct model_unit *mu = &d->model->units[u];
    const struct program *p = d->programs[mu->kind];
    struct unit *unit = &d->units[u];
    unit->program = p;
    unit->io = calloc((size_t)p->io_count + 1, sizeof *unit->io);
    unit->param = calloc((size_t)mu->param_count + 1, sizeof *unit->param);
    if (!unit->io || !unit->param)
        return error_memory(err, (size_t)p->io_count * sizeof *unit->io, "a decoder");
    for (int i = 0; i < p->io_count; i++) {
        unit->io[i] = slot_address(d, &p->io[i], u, cache);
        if (!unit->io[i])
            return error_set(err, ERROR_RUN, mu->name, NULL, "no memory is known for '%s'", p->io[i].name);
    }
    return 0;
}

static int allocate(struct decoder *d, struct error *err)
{
    int64_t device = 0, host = 0, cache = 0;
    void *memory;
    if (measure_cache(d, err) != 0)
        return -1;
    cut_regions(d, NULL, &device, &d->device);
    cut_inputs(d, NULL, &host, &d->staged);
    d->memory.work = device - d->memory.cache + host;
    if (backend_alloc(d->backend, MEMORY_DEVICE, (size_t)device, &memory, err) != 0)
        return -1;
    d->arena = memory;
    if (backend_alloc(d->backend, MEMORY_HOST, (size_t)host, &memory, err) != 0)
        return -1;
    d->host = memory;
    device = host = 0;
    cut_regions(d, d->arena, &device, &d->device);
    cut_inputs(d, d->host, &host, &d->staged);
    d->units = calloc((size_t)d->model->unit_count, sizeof *d->units);
    if (!d->units)
        return error_memory(err, (size_t)d->model->unit_count * sizeof *d->units, "a decoder");
    for (int u = 0; u < d->model->unit_count; u++)
        if (bind_unit(d, u, &cache, err) != 0)
            return -1;
    return 0;
}

/* Stage 0: every rank has the whole model at addresses that stay. */
static int make_shard(struct decoder *d, struct comm *comm, struct error *err)
{
    struct model_specs specs;
    struct shard_options options = {.stage = 0, .compute = d->options.compute, .inference = true};
    if (model_specs_create(&specs, d->model, err) != 0)
        return -1;
    int status = shard_create(&d->shard, comm, d->backend, &options, specs.units, d->model->unit_count, err);
    model_specs_free(&specs);
    if (status == 0)
        d->memory.weights = shard_memory_held(d->shard)->parameters;
    return status;
}

static int bind_params(struct decoder *d, struct error *err)
{
    for (int u = 0; u < d->model->unit_count; u++) {
        const struct model_unit *mu = &d->model->units[u];
        for (int k = 0; k < mu->param_count; k++) {
            int owner = mu->params[k].unit; /* another unit for a tied head */
            int64_t offset = shard_layout(d->shard, owner)->offset[mu->params[k].index];
            void *base;
            if (shard_gather(d->shard, owner, &base, err) != 0)
                return -1;
            d->units[u].param[k] = (char *)base + dtype_bytes(d->options.compute, offset);
        }
    }
    return 0;
}

static int upload_constants(struct decoder *d, struct error *err)
{
    size_t bytes = (size_t)(d->model->config.head_dim / 2) * sizeof(float);
    memcpy(d->staged.inv_freq, d->model->inv_freq, bytes);
    if (backend_upload(d->backend, 0, d->device.inputs.inv_freq, d->staged.inv_freq, bytes, err) != 0)
        return -1;
    return backend_sync(d->backend, 0, err);
}

static int check_options(struct decoder_options *o, const struct model *model, struct error *err)
{
    if (o->capacity < 1)
        return error_set(err, ERROR_INPUT, NULL, NULL, "a context of %" PRId64 " tokens is too short",
                         o->capacity);
    if (decoder_check_length(model, o->capacity, err) != 0)
        return -1;
    if (o->compute != DTYPE_F32 && o->compute != DTYPE_BF16)
        return error_set(err, ERROR_INPUT, NULL, "use fp32 or bf16", "computing in %s is not supported",
                         dtype_info(o->compute)->name);
    if (o->chunk == 0)
        o->chunk = DECODER_CHUNK;
    if (o->chunk > DECODER_MAX_CHUNK)
        o->chunk = DECODER_MAX_CHUNK;
    if (o->chunk > o->capacity)
        o->chunk = o->capacity;
    if (o->logits_rows == 0)
        o->logits_rows = 1;
    if (o->logits_rows > o->chunk)
        o->logits_rows = o->chunk;
    return 0;
}

int decoder_create(struct decoder **out, const struct model *model, struct comm *comm,
                   struct backend *backend, const struct decoder_options *options, struct error *err)
{
    struct decoder_options resolved = *options;
    *out = NULL;
    if (check_options(&resolved, model, err) != 0)
        return -1;
    struct decoder *d = calloc(1, sizeof *d);
    if (!d)
        return error_memory(err, sizeof *d, "a decoder");
    d->model = model;
    d->backend = backend;
    d->options = resolved;
    d->exec.backend = backend;
    if (compile(d, err) != 0 || make_shard(d, comm, err) != 0 || allocate(d, err) != 0 ||
        bind_params(d, err) != 0 || upload_constants(d, err) != 0) {
        decoder_free(d);
        return -1;
    }
    *out = d;
    return 0;
}

void decoder_free(struct decoder *d)
{
    if (!d)
        return;
    for (int u = 0; d->units && u < d->model->unit_count; u++) {
        free(d->units[u].io);
        free(d->units[u].param);
    }
    for (int k = 0; d->programs && k < d->model->kinds; k++)
        program_free(d->programs[k]);
    free(d->units);
    free(d->programs);
    shard_free(d->shard);
    backend_free(d->backend, d->arena);
    backend_free(d->backend, d->host);
    free(d);
}

int decoder_load(struct decoder *d, const struct safetensors_set *set, struct error *err)
{
    return weights_load_shard(d->shard, d->model, SHARD_MASTER, set, err);
}

const struct decoder_memory *decoder_memory(const struct decoder *d)
{
    return &d->memory;
}

int64_t decoder_length(const struct decoder *d)
{
    return d->length;
}

void decoder_reset(struct decoder *d)
{
    d->length = 0;
}

int decoder_check_ids(const struct model *model, const uint32_t *ids, int64_t n, struct error *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= model->config.vocab_size)
            return error_set(err, ERROR_INPUT, NULL, "use the tokenizer that belongs to this model",
                             "token id %" PRIu32 " at place %" PRId64
                             " is beyond the model's vocabulary of %" PRId64,
                             ids[i], i, model->config.vocab_size);
    return 0;
}

int decoder_check_length(const struct model *model, int64_t tokens, struct error *err)
{
    if (tokens <= model->config.max_positions)
        return 0;
    return error_set(err, ERROR_INPUT, NULL, "give a shorter text, or ask for fewer tokens",
                     "a context of %" PRId64 " tokens is longer than the model's %" PRId64
                     " positions (max_position_embeddings)",
                     tokens, model->config.max_positions);
}

static int upload_chunk(struct decoder *d, const uint32_t *ids, int64_t n, struct error *err)
{
    struct inputs *h = &d->staged, *to = &d->device.inputs;
    size_t bytes = (size_t)n * sizeof(int32_t);
    for (int64_t i = 0; i < n; i++) {
        h->ids[i] = (int32_t)ids[i];
        h->positions[i] = h->slots[i] = (int32_t)(d->length + i);
    }
    h->piece[0] = h->piece[2] = 0;
    h->piece[1] = (int32_t)n;
    h->piece[3] = (int32_t)(d->length + n);
    if (backend_upload(d->backend, 0, to->ids, h->ids, bytes, err) != 0 ||
        backend_upload(d->backend, 0, to->positions, h->positions, bytes, err) != 0 ||
        backend_upload(d->backend, 0, to->slots, h->slots, bytes, err) != 0)
        return -1;
    return backend_upload(d->backend, 0, to->piece, h->piece, 4 * sizeof(int32_t), err);
}

static int run_unit(struct decoder *d, int u, int64_t tokens, int64_t picked, struct error *err)
{
    const struct unit *unit = &d->units[u];
    struct exec_bindings b = {.io = unit->io, .param = (void *const *)unit->param, .work = d->device.work};
    struct graph_counts counts = {
        .tokens = tokens, .pieces = 1, .cache = d->options.capacity, .picked = picked};
    return exec_run(&d->exec, unit->program, PROGRAM_FORWARD, &b, &counts, err);
}

/* All units but the head. When it returns, the inputs have been read and may be staged anew. */
static int run_chunk(struct decoder *d, const uint32_t *ids, int64_t n, struct error *err)
{
    if (upload_chunk(d, ids, n, err) != 0)
        return -1;
    for (int u = 0; u < d->model->unit_count - 1; u++)
        if (run_unit(d, u, n, 0, err) != 0)
            return -1;
    return backend_sync(d->backend, 0, err);
}

static int check_finite(const float *logits, int64_t vocab, int64_t position, struct error *err)
{
    for (int64_t i = 0; i < vocab; i++)
        if (!isfinite(logits[i]))
            return error_set(
                err, ERROR_RUN, "model",
                "its weights hold values that are not finite, or numbers overflow on the way: look at "
                "the weights, and try fp32 if this was another type",
                "the logit of token %" PRId64 " at position %" PRId64 " is %f", i, position,
                (double)logits[i]);
    return 0;
}

/* The head on rows first … end-1 of a chunk of n tokens that starts at position d->length. */
static int run_head(struct decoder *d, int64_t n, int64_t first, int64_t end, decoder_sink *sink,
                    void *context, struct error *err)
{
    int64_t vocab = d->model->config.vocab_size;
    for (int64_t at = first; at < end; at += d->options.logits_rows) {
        int64_t rows = end - at < d->options.logits_rows ? end - at : d->options.logits_rows;
        for (int64_t i = 0; i < rows; i++)
            d->staged.picked[i] = (int32_t)(at + i);
        if (backend_upload(d->backend, 0, d->device.inputs.picked, d->staged.picked, (size_t)rows * 4, err) !=
                0 ||
            run_unit(d, d->model->unit_count - 1, n, rows, err) != 0 ||
            backend_download(d->backend, 0, d->staged.logits, d->device.inputs.logits,
                             (size_t)(4 * rows * vocab), err) != 0 ||
            backend_sync(d->backend, 0, err) != 0)
            return -1;
        for (int64_t i = 0; i < rows; i++) {
            const float *row = d->staged.logits + i * vocab;
            if (check_finite(row, vocab, d->length + at + i, err) != 0 ||
                sink(context, d->length + at + i, row, err) != 0)
                return -1;
        }
    }
    return 0;
}

/* `all`: the sink gets every position, else the last one alone. */
static int feed(struct decoder *d, const uint32_t *ids, int64_t n, bool all, decoder_sink *sink,
                void *context, struct error *err)
{
    if (n < 1)
        return error_set(err, ERROR_INPUT, NULL, "give at least one token", "there are no tokens");
    if (decoder_check_ids(d->model, ids, n, err) != 0)
        return -1;
    if (n > d->options.capacity - d->length)
        return error_set(err, ERROR_INPUT, NULL, "make the context larger, or feed fewer tokens",
                         "%" PRId64 " tokens after %" PRId64 " are more than the context of %" PRId64, n,
                         d->length, d->options.capacity);
    for (int64_t at = 0; at < n; at += d->options.chunk) {
        int64_t count = n - at < d->options.chunk ? n - at : d->options.chunk;
        bool last = at + count == n;
        if (run_chunk(d, ids + at, count, err) != 0)
            return -1;
        if (sink && (all || last) && run_head(d, count, all ? 0 : count - 1, count, sink, context, err) != 0)
            return -1;
        d->length += count;
    }
    return 0;
}

struct copy {
    float *to;
    int64_t vocab;
};

static int copy_logits(void *context, int64_t position, const float *logits, struct error *err)
{
    const struct copy *copy = context;
    (void)position;
    (void)err;
    memcpy(copy->to, logits, (size_t)copy->vocab * sizeof *logits);
    return 0;
}

int decoder_feed(struct decoder *d, const uint32_t *ids, int64_t n, float *logits, struct error *err)
{
    struct copy copy = {logits, d->model->config.vocab_size};
    return feed(d, ids, n, false, logits ? copy_logits : NULL, &copy, err);
}

int decoder_feed_all(struct decoder *d, const uint32_t *ids, int64_t n, decoder_sink *sink, void *context,
                     struct error *err)
{
    return feed(d, ids, n, true, sink, context, err);
}
