#include "models/model.h"

#include "base/file.h"
#include "base/rng.h"
#include "models/config_keys.h"
#include "models/family.h"
#include "models/rope.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A config.json is small; a larger file is something else. */
#define CONFIG_FILE_LIMIT ((size_t)16 << 20)
/* So that bytes of masters and states, and sums of them, fit int64_t with room to spare. */
#define MAX_PARAMETERS ((int64_t)1 << 52)

static const struct model_family *const families[] = {&model_family_llama};
enum { FAMILIES = sizeof families / sizeof families[0] };

static const struct model_family *family_of(const char *model_type)
{
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(families[i]->model_type, model_type) == 0)
            return families[i];
    return NULL;
}

/* Adds to the unit's list; `*out` is the new, zeroed entry. */
static int grow(struct model_unit *unit, struct model_param **out)
{
    struct model_param *grown = realloc(unit->params, ((size_t)unit->param_count + 1) * sizeof *unit->params);
    if (grown == NULL)
        return -1;
    unit->params = grown;
    *out = &grown[unit->param_count];
    memset(*out, 0, sizeof **out);
    return 0;
}

int model_unit_add(struct model_unit *unit, int number, const char *prefix, const char *name, int64_t dim0,
                   int64_t dim1, enum model_init init, bool decay)
{
    struct model_param *p;
    if (grow(unit, &p) != 0)
        return -1;
    int length = snprintf(p->name, sizeof p->name, "%s%s", prefix, name);
    if (length < 0 || (size_t)length >= sizeof p->name)
        return -1;
    p->ndim = dim1 > 0 ? 2 : 1;
    p->dim[0] = dim0;
    p->dim[1] = dim1;
    p->init = init;
    p->decay = decay;
    p->unit = number;
    p->index = unit->param_count++;
    return 0;
}

int model_unit_add_tied(struct model_unit *unit, const struct model_param *owner)
{
    struct model_param copy = *owner; /* before the list moves */
    struct model_param *p;
    if (grow(unit, &p) != 0)
        return -1;
    *p = copy;
    unit->param_count++;
    return 0;
}

/* The class in "architectures", when there is one, must be the one whose tensors the family knows. */
static int check_architecture(struct config_keys *keys, const struct model_family *family, struct error *err)
{
    const json_t *list = config_keys_value(keys, "architectures");
    if (list == NULL)
        return 0;
    if (!json_is_array(list))
        return config_keys_error(keys, "architectures", err, NULL, "expected an array of strings, found %s",
                                 json_kind_name(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name != NULL && strcmp(name, family->architecture) == 0)
            return 0;
    }
    const char *first = json_string_value(json_array_get(list, 0));
    if (json_array_size(list) == 0)
        return 0;
    return config_keys_error(keys, "architectures", err, "take a model of that class, or correct the name",
                             "\"%s\" is not supported; a %s model here is a %s", first != NULL ? first : "?",
                             family->model_type, family->architecture);
}

static int read_token_ids(struct config_keys *keys, struct model_config *config, struct error *err)
{
    /* Llama's class defaults; null means that there is none. */
    config->bos = json_object_get(keys->object, "bos_token_id") != NULL ? -1 : 1;
    if (config_keys_int_or_null(keys, "bos_token_id", 0, INT32_MAX, config->bos, &config->bos, err) != 0 ||
        config_keys_int_or_null(keys, "pad_token_id", -1, INT32_MAX, -1, &config->pad, err) != 0)
        return -1;
    const json_t *eos = config_keys_value(keys, "eos_token_id");
    if (!json_is_array(eos)) {
        int64_t id;
        int64_t fallback = json_object_get(keys->object, "eos_token_id") != NULL ? -1 : 2;
        if (config_keys_int_or_null(keys, "eos_token_id", 0, INT32_MAX, fallback, &id, err) != 0)
            return -1;
        config->eos_count = id >= 0 ? 1 : 0;
        config->eos[0] = id;
        return 0;
    }
    size_t count = json_array_size(eos), limit = sizeof config->eos / sizeof config->eos[0];
    if (count > limit)
        return config_keys_error(keys, "eos_token_id", err, NULL, "more than %zu ids are not supported",
                                 limit);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(eos, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return config_keys_error(keys, "eos_token_id", err, NULL,
                                     "expected a token id or an array of them, found %s among them",
                                     json_is_integer(id) ? "an impossible number" : json_kind_name(id));
        config->eos[i] = json_integer_value(id);
    }
    config->eos_count = (int)count;
    return 0;
}

/* Ids of special tokens that no row of the embedding stands for. They are wrong, but harm only where
 * they are used, and there the data says so. */
static void warn_of_ids(const struct config_keys *keys, const struct model_config *config)
{
    const char *const names[] = {"bos_token_id", "pad_token_id", "eos_token_id"};
    int64_t highest[] = {config->bos, config->pad, -1};
    for (int i = 0; i < config->eos_count; i++)
        highest[2] = config->eos[i] > highest[2] ? config->eos[i] : highest[2];
    for (int i = 0; i < 3; i++) {
        if (json_object_get(keys->object, names[i]) != NULL && highest[i] >= config->vocab_size)
            log_warning(keys->log, "%s: %s: %" PRId64 " is beyond the vocabulary of %" PRId64, keys->file,
                        names[i], highest[i], config->vocab_size);
    }
}

/* Keys with no effect on what a model computes or how it is trained. */
static void accept_notes(struct config_keys *keys)
{
    static const char *const notes[] = {"torch_dtype",
                                        "dtype",
                                        "transformers_version",
                                        "_name_or_path",
                                        "use_cache",
                                        "_commit_hash",
                                        "output_hidden_states",
                                        "output_attentions",
                                        "return_dict",
                                        "_attn_implementation_autoset"};
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++)
        config_keys_accept(keys, notes[i]);
}

/* The family, or NULL with err filled. */
static const struct model_family *read_config(struct config_keys *keys, struct model_config *config,
                                              struct error *err)
{
    const char *type;
    if (config_keys_string(keys, "model_type", NULL, &type, err) != 0)
        return NULL;
    if (type == NULL) {
        config_keys_error(keys, "model_type", err, "add \"model_type\": \"llama\"", "it is missing");
        return NULL;
    }
    const struct model_family *family = family_of(type);
    if (family == NULL) {
        config_keys_error(keys, "model_type", err, "the families known here: llama",
                          "\"%.40s\" is not supported", type);
        return NULL;
    }
    snprintf(config->model_type, sizeof config->model_type, "%s", type);
    accept_notes(keys);
    if (check_architecture(keys, family, err) != 0 || read_token_ids(keys, config, err) != 0)
        return NULL;
    if (config_keys_value(keys, "quantization_config") != NULL) {
        config_keys_error(keys, "quantization_config", err,
                          "use a model directory with plain bf16, fp16 or fp32 weights",
                          "quantized weights are not supported");
        return NULL;
    }
    if (family->read(keys, config, err) != 0)
        return NULL;
    warn_of_ids(keys, config);
    config_keys_report(keys);
    return family;
}

static int add_elements(int64_t *total, const struct model_param *p)
{
    int64_t n = p->dim[0];
    if (p->ndim == 2 && __builtin_mul_overflow(n, p->dim[1], &n))
        return -1;
    return __builtin_add_overflow(*total, n, total) || *total > MAX_PARAMETERS ? -1 : 0;
}

/* The list of units, and that their sizes stay within what can be counted. */
static int describe(struct model *m, const struct model_family *family, const char *where, struct error *err)
{
    m->kinds = family->kinds;
    m->units = calloc((size_t)m->config.layers + 2, sizeof *m->units);
    if (m->units == NULL)
        return error_memory(err, ((size_t)m->config.layers + 2) * sizeof *m->units, "the model's units");
    m->unit_count = (int)m->config.layers + 2;
    int64_t total = 0;
    for (int u = 0; u < m->unit_count; u++) {
        struct model_unit *unit = &m->units[u];
        if (family->describe(&m->config, u, unit) != 0)
            return error_memory(err, sizeof *unit->params * 16, "the model's parameters");
        if (u == m->unit_count - 1 && m->config.tied &&
            model_unit_add_tied(unit, &m->units[0].params[0]) != 0)
            return error_memory(err, sizeof *unit->params, "the model's parameters");
        for (int i = 0; i < unit->param_count; i++)
            if (unit->params[i].unit == u && add_elements(&total, &unit->params[i]) != 0)
                return error_set(err, ERROR_INPUT, where, "make it smaller",
                                 "the model would have more than %" PRId64 " parameters", MAX_PARAMETERS);
    }
    return 0;
}

static int create(struct model **out, const json_t *object, const char *where,
                  const struct json_document *document, const struct log *log, struct error *err)
{
    struct config_keys keys;
    *out = NULL;
    if (!json_is_object(object))
        return error_set(err, ERROR_INPUT, where, NULL, "a model's configuration is an object, this is %s",
                         json_kind_name(object));
    struct model *m = calloc(1, sizeof *m);
    if (m == NULL)
        return error_memory(err, sizeof *m, "a model");
    config_keys_start(&keys, object, where, document, log);
    const struct model_family *family = read_config(&keys, &m->config, err);
    if (family == NULL || describe(m, family, where, err) != 0)
        goto fail;
    m->config.source = json_deep_copy(object);
    m->inv_freq = malloc((size_t)(m->config.head_dim / 2) * sizeof *m->inv_freq);
    if (m->config.source == NULL || m->inv_freq == NULL) {
        error_memory(err, (size_t)m->config.head_dim * 2, "a model");
        goto fail;
    }
    rope_frequencies(&m->config, m->inv_freq);
    *out = m;
    return 0;
fail:
    model_free(m);
    return -1;
}

int model_create(struct model **out, const json_t *config, const char *where, const struct log *log,
                 struct error *err)
{
    return create(out, config, where, NULL, log, err);
}

int model_load_config(struct model **out, const char *path, const struct log *log, struct error *err)
{
    struct json_document document;
    char *file = file_is_directory(path) ? file_join(path, "config.json") : strdup(path);
    *out = NULL;
    if (file == NULL)
        return error_memory(err, strlen(path), "a path");
    if (json_open(&document, file, CONFIG_FILE_LIMIT, err) != 0) {
        free(file);
        return -1;
    }
    int result = create(out, document.root, file, &document, log, err);
    json_close(&document);
    free(file);
    return result;
}

void model_free(struct model *m)
{
    if (m == NULL)
        return;
    for (int u = 0; u < m->unit_count; u++)
        free(m->units[u].params);
    free(m->units);
    free(m->inv_freq);
    json_decref(m->config.source);
    free(m);
}

int model_graph(const struct model *m, int kind, enum model_mode mode, enum dtype type, struct graph **out,
                struct error *err)
{
    *out = NULL;
    struct graph *g = graph_create();
    if (g == NULL)
        return error_memory(err, sizeof *g, "a graph");
    family_of(m->config.model_type)->build(m, kind, mode, type, g);
    if (graph_check(g, err) != 0) {
        graph_free(g);
        return -1;
    }
    *out = g;
    return 0;
}

int64_t model_param_elements(const struct model_param *p)
{
    return p->ndim == 2 ? p->dim[0] * p->dim[1] : p->dim[0];
}

int64_t model_parameter_count(const struct model *m)
{
    int64_t total = 0;
    for (int u = 0; u < m->unit_count; u++)
        for (int i = 0; i < m->units[u].param_count; i++)
            if (m->units[u].params[i].unit == u)
                total += model_param_elements(&m->units[u].params[i]);
    return total;
}

double model_flops_per_token(const struct model *m, double context)
{
    return family_of(m->config.model_type)->flops_per_token(&m->config, context);
}

static int set_id(json_t *object, const char *key, int64_t id)
{
    if (id < 0)
        return 0;
    /* One of several that the file lists stays one of several: chat models end on more than one. */
    const json_t *old = json_object_get(object, key);
    for (size_t i = 0; i < json_array_size(old); i++)
        if (json_integer_value(json_array_get(old, i)) == id)
            return 0;
    return json_object_set_new(object, key, json_integer(id));
}

json_t *model_config_json(const struct model *m, enum dtype type, int64_t bos, int64_t eos, int64_t pad)
{
    const struct model_family *family = family_of(m->config.model_type);
    const char *torch = type == DTYPE_F32   ? "float32"
                        : type == DTYPE_F16 ? "float16"
                        : type == DTYPE_F64 ? "float64"
                                            : "bfloat16";
    json_t *object = json_deep_copy(m->config.source);
    if (object == NULL)
        return NULL;
    if (json_object_set_new(object, "architectures", json_pack("[s]", family->architecture)) != 0 ||
        json_object_set_new(object, "torch_dtype", json_string(torch)) != 0 ||
        json_object_set_new(object, "dtype", json_string(torch)) != 0 ||
        family->write(&m->config, object) != 0 || set_id(object, "bos_token_id", bos) != 0 ||
        set_id(object, "eos_token_id", eos) != 0 || set_id(object, "pad_token_id", pad) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

void model_init_values(const struct model *m, const struct model_param *p, uint64_t seed, int64_t first,
                       int64_t n, float *out)
{
    char stream[sizeof p->name + 8];
    switch (p->init) {
    case MODEL_INIT_NORMAL:
        snprintf(stream, sizeof stream, "init:%s", p->name);
        rng_normal(seed, rng_stream(stream), first, n, (float)m->config.initializer_range, out);
        break;
    case MODEL_INIT_ONES:
        for (int64_t i = 0; i < n; i++)
            out[i] = 1;
        break;
    case MODEL_INIT_ZEROS:
        memset(out, 0, (size_t)n * sizeof *out);
        break;
    }
}
