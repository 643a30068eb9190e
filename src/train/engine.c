/* Making an engine: programs, plan, arena. */
#include "train/engine.h"

#include "train/specs.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

static int64_t align(int64_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t max_tokens(const struct engine_options *o)
{
    return o->micro_batch * o->seq_len;
}

/* One program for each kind of unit, compiled from the first unit of that kind. */
static int compile_kind(const struct model *m, struct backend *backend, const struct engine_options *o,
                        int unit, struct program **out, struct error *err)
{
    struct graph *g = NULL;
    const struct model_unit *u = &m->units[unit];
    if (model_graph(m, u->kind, MODEL_TRAIN, o->compute, &g, err) != 0)
        return -1;
    bool *adds = calloc((size_t)u->param_count + 1, sizeof *adds);
    int status = adds ? 0 : error_memory(err, (size_t)u->param_count, "a program");
    for (int k = 0; status == 0 && k < u->param_count; k++)
        /* The other unit's backward has come before, and this one adds to its gradient. */
        adds[k] = model_specs_owns(m, unit, k) && model_specs_referred(m, unit, k);
    if (status == 0 && !o->inference)
        status = graph_differentiate(g, err);
    int64_t tokens = max_tokens(o);
    struct program_options options = {.bounds = {.tokens = tokens, .pieces = tokens},
                                      /* Its forward part is not run before a backward part: pass.c. */
                                      .recompute = unit == m->unit_count - 1 ? RECOMPUTE_FULL : o->recompute,
                                      .grad_adds = adds,
                                      .workspace = exec_workspace,
                                      .context = backend};
    if (status == 0)
        status = program_compile(out, g, &options, err);
    free(adds);
    graph_free(g);
    return status;
}

/* All figures of a plan fit an int64_t: a unit keeps at most some tens of values a token, each at most as
 * wide as the widest projection, and ranks of one machine are at most COMM_MAX_LOCAL_RANKS. */
static bool countable(const struct model *m, const struct engine_options *o)
{
    const struct model_config *c = &m->config;
    const int64_t widths[] = {c->hidden_size, c->intermediate_size, c->heads * c->head_dim,
                              c->kv_heads * c->head_dim};
    double widest = 1, most = 0x1p62 / COMM_MAX_LOCAL_RANKS;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if ((double)widths[i] > widest)
            widest = (double)widths[i];
    double activations = (double)max_tokens(o) * widest * m->unit_count * 4 * 64;
    return activations + 64.0 * (double)model_parameter_count(m) < most;
}

static int compile(const struct model *m, struct backend *backend, const struct engine_options *o,
                   struct program **programs, struct error *err)
{
    if (o->seq_len > INT32_MAX / o->micro_batch)
        return error_set(err, ERROR_INPUT, "train.micro_batch", "make micro_batch or seq_len smaller",
                         "%lld rows of %lld positions are more than 2^31-1", (long long)o->micro_batch,
                         (long long)o->seq_len);
    if (!countable(m, o))
        return error_set(
            err, ERROR_INPUT, "train.micro_batch", "make micro_batch, seq_len or the model smaller",
            "%lld rows of %lld positions in a model of this size are more bytes than can be counted",
            (long long)o->micro_batch, (long long)o->seq_len);
    if (m->kinds > ENGINE_MAX_KINDS)
        return error_set(err, ERROR_RUN, "model", NULL, "more than %d kinds of units", ENGINE_MAX_KINDS);
    for (int u = 0; u < m->unit_count; u++) {
        int kind = m->units[u].kind;
        if (!programs[kind] && compile_kind(m, backend, o, u, &programs[kind], err) != 0)
            return -1;
    }
    return 0;
}

static int64_t inputs_bytes(const struct model *m, const struct engine_options *o)
{
    int64_t t = max_tokens(o);
    return align(4 * t) * 3 + align(16 * t) + align(4 * t) + align(4) + align(2 * m->config.head_dim) +
           align(4 * t * m->config.head_dim);
}

static int64_t staged_bytes(const struct model *m, const struct engine_options *o)
{
    int64_t t = max_tokens(o);
    return align(4 * t) * 3 + align(16 * t) + align(4 * t) + align(4) + align(2 * m->config.head_dim);
}

static int64_t hidden_bytes(const struct model *m, const struct engine_options *o)
{
    return align(dtype_bytes(o->compute, max_tokens(o) * m->config.hidden_size));
}

static void memory_of(const struct model *m, const struct engine_options *o, struct program *const *programs,
                      struct engine_memory *out)
{
    int outputs = m->unit_count - 1; /* the head's output is the loss */
    out->hidden = hidden_bytes(m, o) * (outputs + (o->inference ? 0 : 2));
    out->saved = out->work = 0;
    for (int u = 0; u < m->unit_count; u++) {
        const struct program *p = programs[m->units[u].kind];
        out->saved += align(p->saved_bytes);
        for (int part = 0; part < PROGRAM_PARTS; part++)
            if (p->part[part].work_bytes > out->work)
                out->work = p->part[part].work_bytes;
    }
    out->inputs = inputs_bytes(m, o) + staged_bytes(m, o);
    const struct shard_memory *s = &out->shard;
    out->shared_total = (s->parameters_shared ? s->parameters : 0) + (s->sums_shared ? s->sums : 0);
    out->private_total = s->parameters + s->masters + s->moments + s->sums + s->sent + s->received +
                         out->hidden + out->saved + out->work + out->inputs - out->shared_total;
}

static void programs_free(struct program **programs)
{
    for (int k = 0; k < ENGINE_MAX_KINDS; k++)
        program_free(programs[k]);
}

static struct shard_options shard_options_of(const struct engine_options *o)
{
    return (struct shard_options){.stage = o->stage, .compute = o->compute, .inference = o->inference};
}

int engine_plan(const struct model *model, struct backend *backend, const struct engine_options *options,
                int ranks, bool shares_memory, struct engine_memory *out, struct error *err)
{
    struct program *programs[ENGINE_MAX_KINDS] = {0};
    struct model_specs specs = {0};
    struct shard_options shard = shard_options_of(options);
    *out = (struct engine_memory){0};
    int status = compile(model, backend, options, programs, err);
    if (status == 0)
        status = model_specs_create(&specs, model, err);
    if (status == 0)
        status = shard_plan(&shard, specs.units, model->unit_count, ranks, shares_memory, &out->shard, err);
    if (status == 0)
        memory_of(model, options, programs, out);
    model_specs_free(&specs);
    programs_free(programs);
    return status;
}

static char *cut(char **at, int64_t bytes)
{
    char *p = *at;
    *at += align(bytes);
    return p;
}

static void inputs_cut(const struct engine *e, struct engine_inputs *in, char **at)
{
    int64_t t = max_tokens(&e->options);
    in->ids = (int32_t *)cut(at, 4 * t);
    in->positions = (int32_t *)cut(at, 4 * t);
    in->targets = (int32_t *)cut(at, 4 * t);
    in->pieces = (int32_t *)cut(at, 16 * t);
    in->loss = (float *)cut(at, 4 * t);
    in->loss_scale = (float *)cut(at, 4);
    in->inv_freq = (float *)cut(at, 2 * e->model->config.head_dim);
}

/* The address behind a program's named slot, for unit u. */
static void *slot_address(const struct engine *e, const char *name, bool output, int u, char *const *hidden,
                          char *const *gradient, void *rope)
{
    const struct engine_inputs *d = &e->device;
    if (strcmp(name, "hidden") == 0)
        return output ? hidden[u] : u > 0 ? hidden[u - 1] : NULL;
    if (strcmp(name, "grad:hidden") ==
        0) /* an input is what the next unit wrote; an output is for the one before */
        return output ? gradient[u % 2] : gradient[(u + 1) % 2];
    const struct {
        const char *name;
        void *address;
    } known[] = {{"ids", d->ids},
                 {"positions", d->positions},
                 {"pieces", d->pieces},
                 {"targets", d->targets},
                 {"loss", d->loss},
                 {"backward:loss", d->loss},
                 {"loss_scale", d->loss_scale},
                 {"inv_freq", d->inv_freq},
                 {"rope", rope}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].address;
    return NULL;
}

static int unit_bind(struct engine *e, int u, char *const *hidden, char *const *gradient, void *rope,
                     char **at, struct error *err)
{
    struct engine_unit *unit = &e->units[u];
    const struct program *p = e->programs[e->model->units[u].kind];
    unit->program = p;
    unit->io = calloc((size_t)p->io_count + 1, sizeof *unit->io);
    unit->param = calloc((size_t)e->model->units[u].param_count + 1, sizeof *unit->param);
    unit->grad = calloc((size_t)e->model->units[u].param_count + 1, sizeof *unit->grad);
    if (!unit->io || !unit->param || !unit->grad)
        return error_memory(err, (size_t)p->io_count * sizeof *unit->io, "an engine");
    unit->saved = cut(at, p->saved_bytes);
    for (int i = 0; i < p->io_count; i++) {
        unit->io[i] = slot_address(e, p->io[i].name, p->io[i].output, u, hidden, gradient, rope);
        if (!unit->io[i])
            return error_set(err, ERROR_RUN, e->model->units[u].name, NULL, "no memory is known for '%s'",
                             p->io[i].name);
    }
    return 0;
}

static int arena_make(struct engine *e, struct error *err)
{
    const struct model *m = e->model;
    int outputs = m->unit_count - 1;
    int64_t staged = staged_bytes(m, &e->options), t = max_tokens(&e->options);
    e->arena_bytes = e->memory.hidden + e->memory.saved + e->memory.work + e->memory.inputs - staged;
    void *arena;
    if (backend_alloc(e->backend, MEMORY_DEVICE, (size_t)e->arena_bytes, &arena, err) != 0)
        return -1;
    e->arena = arena;
    if (backend_alloc(e->backend, MEMORY_HOST, (size_t)staged, &e->host, err) != 0)
        return -1;
    char **hidden = calloc((size_t)m->unit_count, sizeof *hidden), *gradient[2] = {NULL, NULL};
    e->units = calloc((size_t)m->unit_count, sizeof *e->units);
    if (!hidden || !e->units) {
        free(hidden);
        return error_memory(err, (size_t)m->unit_count * sizeof *e->units, "an engine");
    }
    char *at = e->arena, *host_at = e->host;
    inputs_cut(e, &e->device, &at);
    inputs_cut(e, &e->staged, &host_at);
    void *rope = cut(&at, 4 * t * m->config.head_dim);
    for (int u = 0; u < outputs; u++)
        hidden[u] = cut(&at, hidden_bytes(m, &e->options));
    for (int i = 0; !e->options.inference && i < 2; i++)
        gradient[i] = cut(&at, hidden_bytes(m, &e->options));
    int status = 0;
    for (int u = 0; u < m->unit_count && status == 0; u++)
        status = unit_bind(e, u, hidden, gradient, rope, &at, err);
    e->work = at;
    assert(status != 0 || at + e->memory.work <= e->arena + e->arena_bytes);
    free(hidden);
    return status;
}

static int constants_upload(struct engine *e, struct error *err)
{
    size_t bytes = (size_t)(e->model->config.head_dim / 2) * sizeof(float);
    memcpy(e->staged.inv_freq, e->model->inv_freq, bytes);
    if (backend_upload(e->backend, 0, e->device.inv_freq, e->staged.inv_freq, bytes, err) != 0)
        return -1;
    return backend_sync(e->backend, 0, err);
}

int engine_create(struct engine **out, const struct model *model, struct comm *comm, struct backend *backend,
                  const struct engine_options *options, struct error *err)
{
    *out = NULL;
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_memory(err, sizeof *e, "an engine");
    e->model = model;
    e->comm = comm;
    e->backend = backend;
    e->options = *options;
    e->exec.backend = backend;
    e->found_at = -1;
    struct model_specs specs = {0};
    struct shard_options shard = shard_options_of(options);
    int status = compile(model, backend, options, e->programs, err);
    if (status == 0)
        status = model_specs_create(&specs, model, err);
    if (status == 0)
        status = shard_create(&e->shard, comm, backend, &shard, specs.units, model->unit_count, err);
    if (status == 0) {
        e->memory.shard = *shard_memory_held(e->shard);
        memory_of(model, options, e->programs, &e->memory);
        status = arena_make(e, err);
    }
    if (status == 0)
        status = constants_upload(e, err);
    model_specs_free(&specs);
    if (status != 0) {
        engine_free(e);
        return -1;
    }
    *out = e;
    return 0;
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    for (int u = 0; e->units && u < e->model->unit_count; u++) {
        free(e->units[u].io);
        free(e->units[u].param);
        free(e->units[u].grad);
    }
    free(e->units);
    shard_free(e->shard);
    backend_free(e->backend, e->arena);
    backend_free(e->backend, e->host);
    programs_free(e->programs);
    free(e);
}

struct initial {
    const struct model *model;
    uint64_t seed;
};

static int fill_initial(void *context, int unit, int param, int64_t first, int64_t n, float *out,
                        struct error *err)
{
    (void)err;
    const struct initial *initial = context;
    const struct model *m = initial->model;
    model_init_values(m, &m->units[unit].params[param], initial->seed, first, n, out);
    return 0;
}

int engine_init_weights(struct engine *e, uint64_t seed, struct error *err)
{
    struct initial initial = {e->model, seed};
    return shard_fill(e->shard, SHARD_MASTER, fill_initial, &initial, err);
}

void engine_check(struct engine *e)
{
    e->exec.check = true;
    e->found_at = -1;
}

void engine_check_off(struct engine *e)
{
    e->exec.check = false;
}
