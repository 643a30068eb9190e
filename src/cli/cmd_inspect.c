/* tercet inspect: what a model directory, a checkpoint, a safetensors file or an event file holds. */
#include "cli/cli.h"

#include "base/file.h"
#include "cli/inspect.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "models/model.h"
#include "text/tokenizer.h"
#include "train/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_VERIFY = CLI_OWN };

struct inspect_arguments {
    const char *path;
    bool json, verify;
};

/* A model directory; what it lacks stays zeroed. */
struct directory_contents {
    struct json_document config;
    struct model *model; /* NULL: no configuration that this program can compute with, see model_error */
    struct error model_error;
    struct safetensors_set weights;
    bool has_config, has_weights, has_tokenizer, has_training;
    int64_t parameters; /* elements of all tensors, or what the configuration comes to */
    int64_t vocabulary, bos, eos;
    struct checkpoint_state state;
    const char *verified; /* NULL: not asked for */
};

static error_t parse_inspect(int key, char *value, struct argp_state *state)
{
    struct inspect_arguments *a = state->input;
    switch (key) {
    case CLI_JSON:
        a->json = true;
        return 0;
    case OPTION_VERIFY:
        a->verify = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->path)
            argp_error(state, "one thing at a time; \"%s\" is too many", value);
        a->path = value;
        return 0;
    case ARGP_KEY_END:
        if (!a->path)
            argp_error(state, "what should be inspected? Give a directory or a file");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option inspect_options[] = {
    {"verify", OPTION_VERIFY, NULL, 0, "Compare all files of a checkpoint with its manifest's checksums", 0},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object", 0},
    {0}};
static const struct argp inspect_argp = {
    inspect_options,
    parse_inspect,
    "DIR_OR_FILE",
    "Example:\n  tercet inspect runs/demo/last\n\n"
    "Shows what a model directory, a checkpoint, a safetensors file or a TensorBoard event file holds: "
    "configuration, "
    "tensors with types, shapes and sizes, number of parameters, state of training.",
    NULL,
    NULL,
    NULL};

/* ---- tensors ---- */

static void shape_text(const struct safetensors_tensor *t, char out[256])
{
    size_t used = (size_t)snprintf(out, 256, "[");
    for (int i = 0; i < t->rank; i++)
        used += (size_t)snprintf(out + used, 256 - used, i > 0 ? ", %" PRId64 : "%" PRId64, t->shape[i]);
    snprintf(out + used, 256 - used, "]");
}

/* One line a tensor, in columns. */
static void put_tensors(struct strbuf *out, const struct safetensors_tensor *const *tensors, int64_t count)
{
    int name_width = 0, shape_width = 0;
    char shape[256], bytes[32];
    for (int64_t i = 0; i < count; i++) {
        int n = (int)strnlen(tensors[i]->name, 80);
        name_width = n > name_width ? n : name_width;
        shape_text(tensors[i], shape);
        n = (int)strlen(shape);
        shape_width = n > shape_width ? n : shape_width;
    }
    for (int64_t i = 0; i < count; i++) {
        const struct safetensors_tensor *t = tensors[i];
        size_t start = out->length;
        cli_put_text(out, t->name);
        int written = (int)(out->length - start);
        shape_text(t, shape);
        strbuf_printf(out, "%*s  %-4s  %-*s  %9s\n", name_width > written ? name_width - written : 0, "",
                      dtype_info(t->dtype)->safetensors, shape_width, shape, format_bytes(t->bytes, bytes));
    }
}

static void write_tensors(struct json_writer *w, const struct safetensors_tensor *const *tensors,
                          int64_t count, bool with_file)
{
    json_write_array(w, "tensors");
    for (int64_t i = 0; i < count; i++) {
        const struct safetensors_tensor *t = tensors[i];
        json_write_object(w, NULL);
        json_write_string(w, "name", t->name);
        json_write_string(w, "dtype", dtype_info(t->dtype)->safetensors);
        json_write_array(w, "shape");
        for (int k = 0; k < t->rank; k++)
            json_write_int(w, NULL, t->shape[k]);
        json_write_end(w);
        json_write_int(w, "bytes", t->bytes);
        if (with_file) {
            const char *slash = strrchr(t->path, '/');
            json_write_string(w, "file", slash ? slash + 1 : t->path);
        }
        json_write_end(w);
    }
    json_write_end(w);
}

static int64_t count_elements(const struct safetensors_tensor *const *tensors, int64_t count)
{
    int64_t n = 0; /* cannot overflow: the files' sizes bound it */
    for (int64_t i = 0; i < count; i++)
        n += tensors[i]->elements;
    return n;
}

/* ---- a safetensors file ---- */

static void put_safetensors(struct strbuf *out, const struct safetensors *file,
                            const struct safetensors_tensor *const *tensors)
{
    char number[32];
    cli_put_field(out, "safetensors", "%s", file->path);
    cli_put_field(out, "tensors", "%s", format_count(file->count, number));
    cli_put_field(out, "elements", "%s", format_count(count_elements(tensors, file->count), number));
    cli_put_field(out, "data", "%s", format_bytes(file->data_bytes, number));
    for (int64_t i = 0; i < file->metadata_count; i++)
        cli_put_field(out, "metadata", "%s: %s", file->metadata[i].key, file->metadata[i].value);
    strbuf_puts(out, "\n");
    put_tensors(out, tensors, file->count);
}

static void write_safetensors(struct strbuf *out, const struct safetensors *file,
                              const struct safetensors_tensor *const *tensors)
{
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_string(&w, "kind", "safetensors");
    json_write_string(&w, "path", file->path);
    json_write_int(&w, "parameters", count_elements(tensors, file->count));
    json_write_int(&w, "bytes", file->data_bytes);
    json_write_object(&w, "metadata");
    for (int64_t i = 0; i < file->metadata_count; i++)
        json_write_string(&w, file->metadata[i].key, file->metadata[i].value);
    json_write_end(&w);
    write_tensors(&w, tensors, file->count, false);
    json_write_end(&w);
}

static int inspect_safetensors(const struct inspect_arguments *a, struct strbuf *out, struct error *err)
{
    struct safetensors file;
    if (safetensors_open(&file, a->path, err) != 0)
        return -1;
    const struct safetensors_tensor **tensors =
        calloc((size_t)file.count + 1, sizeof(struct safetensors_tensor *));
    int status = tensors ? 0 : error_memory(err, (size_t)file.count * sizeof(void *), "a list of tensors");
    for (int64_t i = 0; status == 0 && i < file.count; i++)
        tensors[i] = &file.tensors[i];
    if (status == 0)
        (a->json ? write_safetensors : put_safetensors)(out, &file, tensors);
    free(tensors);
    safetensors_close(&file);
    return status;
}

/* ---- a directory ---- */

/* Sets *there when the directory holds a file of this name. */
static int holds(const char *directory, const char *name, bool *there, struct error *err)
{
    char *path = file_join(directory, name);
    if (!path)
        return error_memory(err, strlen(directory), "a path");
    *there = *there || file_exists(path);
    free(path);
    return 0;
}

/* What is wrong with the input is shown; that looking at it failed ends the verb. */
static int pass_on(const struct error *problem, struct error *err)
{
    if (problem->kind == ERROR_INPUT)
        return 0;
    *err = *problem;
    return -1;
}

static int open_config(struct directory_contents *d, const char *path, struct error *err)
{
    char *file = file_join(path, "config.json");
    int status = file ? json_open(&d->config, file, JSON_FILE_LIMIT, err) : error_memory(err, 0, "a path");
    free(file);
    if (status != 0)
        return -1;
    if (!json_is_object(d->config.root))
        return error_set(err, ERROR_INPUT, d->config.name, "check the file",
                         "expected a JSON object, found %s", json_kind_name(d->config.root));
    /* Of a family that is not known here, tensors and keys can be shown all the same. */
    if (model_load_config(&d->model, path, NULL, &d->model_error) == 0)
        return 0;
    d->model = NULL;
    return pass_on(&d->model_error, err);
}

static int open_tokenizer(struct directory_contents *d, const char *path, const struct log *log,
                          struct error *err)
{
    struct tokenizer *tokenizer;
    struct error problem;
    if (tokenizer_load(path, &tokenizer, &problem) != 0) {
        if (pass_on(&problem, err) != 0)
            return -1;
        log_warning(log, "the tokenizer cannot be used: %s: %s", problem.where, problem.what);
        return 0;
    }
    d->has_tokenizer = true;
    d->vocabulary = tokenizer_vocab_size(tokenizer);
    d->bos = tokenizer_bos(tokenizer);
    d->eos = tokenizer_eos(tokenizer);
    tokenizer_free(tokenizer);
    return 0;
}

static int open_directory(struct directory_contents *d, const struct inspect_arguments *a,
                          const struct log *log, struct error *err)
{
    const char *path = a->path;
    bool tokenizer = false, last = false;
    if (holds(path, "config.json", &d->has_config, err) != 0 ||
        holds(path, "model.safetensors", &d->has_weights, err) != 0 ||
        holds(path, "model.safetensors.index.json", &d->has_weights, err) != 0 ||
        holds(path, "training/manifest.json", &d->has_training, err) != 0 ||
        holds(path, "tokenizer.json", &tokenizer, err) != 0 ||
        holds(path, "vocab.json", &tokenizer, err) != 0 || holds(path, "last", &last, err) != 0)
        return -1;
    if (!d->has_config && !d->has_weights && !d->has_training && !tokenizer)
        return error_set(err, ERROR_INPUT, path,
                         last ? "this is the output of a run: inspect its checkpoints, as in last"
                              : "give a model directory, a checkpoint, a safetensors or an event file",
                         "there is no config.json, no model.safetensors and no tokenizer in this directory");
    if ((d->has_config && open_config(d, path, err) != 0) ||
        (d->has_weights && safetensors_set_open(&d->weights, path, err) != 0) ||
        (tokenizer && open_tokenizer(d, path, log, err) != 0) ||
        (d->has_training && checkpoint_read_state(path, &d->state, err) != 0))
        return -1;
    if (a->verify && !d->has_training)
        return error_set(err, ERROR_INPUT, path, "leave --verify out",
                         "there is no training/manifest.json to compare the files with");
    if (a->verify && checkpoint_verify(path, err) != 0)
        return -1;
    d->verified = a->verify ? "all files match the manifest" : NULL;
    if (d->has_weights)
        d->parameters = count_elements(d->weights.tensors, d->weights.count);
    else if (d->model)
        d->parameters = model_parameter_count(d->model);
    return 0;
}

static void close_directory(struct directory_contents *d)
{
    safetensors_set_close(&d->weights);
    model_free(d->model);
    json_close(&d->config);
}

static void put_config(struct strbuf *out, const struct directory_contents *d)
{
    const char *key;
    json_t *value;
    strbuf_puts(out, "\nconfig.json\n");
    json_object_foreach(d->config.root, key, value)
    {
        struct strbuf text = {0};
        struct json_writer w;
        json_writer_start(&w, &text, 0);
        json_write_value(&w, NULL, value);
        strbuf_puts(out, "  ");
        cli_put_text(out, key);
        strbuf_puts(out, ": ");
        cli_put_text(out, text.data ? text.data : "");
        strbuf_puts(out, "\n");
        if (text.failed)
            out->failed = 1;
        strbuf_free(&text);
    }
}

static void put_training(struct strbuf *out, const struct directory_contents *d)
{
    char number[32];
    cli_put_field(out, "step", "%s", format_count(d->state.step, number));
    cli_put_field(out, "tokens seen", "%s", format_count(d->state.tokens_seen, number));
    cli_put_field(out, "data hash", "%016" PRIx64, d->state.data_hash);
    cli_put_field(out, "machine probe", "%016" PRIx64, d->state.probe);
    if (d->verified)
        cli_put_field(out, "verified", "%s", d->verified);
}

static void put_directory(struct strbuf *out, const struct directory_contents *d, const char *path)
{
    char number[32];
    cli_put_field(out, d->has_training ? "checkpoint" : d->has_config ? "model" : "directory", "%s", path);
    if (d->model)
        cli_put_field(out, "family", "%s", d->model->config.model_type);
    else if (d->has_config)
        cli_put_field(out, "family", "not usable here: %s", d->model_error.what);
    if (d->has_weights || d->model)
        cli_put_field(out, "parameters", "%s%s", format_count(d->parameters, number),
                      d->has_weights ? "" : " (from config.json; there are no weights)");
    if (d->has_weights) {
        cli_put_field(out, "weights", "%s in %" PRId64 " file%s", format_bytes(d->weights.data_bytes, number),
                      d->weights.file_count, d->weights.file_count == 1 ? "" : "s");
        cli_put_field(out, "tensors", "%s", format_count(d->weights.count, number));
    }
    if (d->has_tokenizer)
        cli_put_field(out, "tokenizer", "%s tokens, BOS %" PRId64 ", EOS %" PRId64 " (-1: none)",
                      format_count(d->vocabulary, number), d->bos, d->eos);
    if (d->has_training)
        put_training(out, d);
    if (d->has_config)
        put_config(out, d);
    if (d->has_weights) {
        strbuf_puts(out, "\n");
        put_tensors(out, d->weights.tensors, d->weights.count);
    }
}

static void write_id(struct json_writer *w, const char *key, int64_t id)
{
    if (id >= 0)
        json_write_int(w, key, id);
    else
        json_write_null(w, key);
}

static void write_training(struct json_writer *w, const struct directory_contents *d)
{
    char hash[32];
    json_write_object(w, "training");
    json_write_int(w, "step", d->state.step);
    json_write_int(w, "tokens_seen", d->state.tokens_seen);
    snprintf(hash, sizeof hash, "%016" PRIx64, d->state.data_hash);
    json_write_string(w, "data_hash", hash);
    snprintf(hash, sizeof hash, "%016" PRIx64, d->state.probe);
    json_write_string(w, "probe", hash);
    if (d->verified)
        json_write_bool(w, "verified", true);
    json_write_end(w);
}

static void write_directory(struct strbuf *out, const struct directory_contents *d, const char *path)
{
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_string(&w, "kind", d->has_training ? "checkpoint" : d->has_config ? "model" : "directory");
    json_write_string(&w, "path", path);
    json_write_bool(&w, "supported", d->model != NULL);
    if (d->has_config && !d->model)
        json_write_string(&w, "problem", d->model_error.what);
    if (d->has_weights || d->model)
        json_write_int(&w, "parameters", d->parameters);
    if (d->has_tokenizer) {
        json_write_object(&w, "tokenizer");
        json_write_int(&w, "vocab_size", d->vocabulary);
        write_id(&w, "bos", d->bos);
        write_id(&w, "eos", d->eos);
        json_write_end(&w);
    }
    if (d->has_training)
        write_training(&w, d);
    if (d->has_config)
        json_write_value(&w, "config", d->config.root);
    if (d->has_weights) {
        json_write_int(&w, "bytes", d->weights.data_bytes);
        write_tensors(&w, d->weights.tensors, d->weights.count, true);
    }
    json_write_end(&w);
}

static int inspect_directory(const struct inspect_arguments *a, const struct log *log, struct strbuf *out,
                             struct error *err)
{
    struct directory_contents d = {0};
    int status = open_directory(&d, a, log, err);
    if (status == 0)
        (a->json ? write_directory : put_directory)(out, &d, a->path);
    close_directory(&d);
    return status;
}

/* ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static int inspect_path(const struct inspect_arguments *a, const struct log *log, struct strbuf *out,
                        struct error *err)
{
    if (file_is_directory(a->path))
        return inspect_directory(a, log, out, err);
    if (!file_exists(a->path))
        return error_set(err, ERROR_INPUT, a->path, "check the path", "there is no such file or directory");
    if (a->verify)
        return error_set(err, ERROR_INPUT, a->path, "leave --verify out", "only checkpoints have a manifest");
    const char *slash = strrchr(a->path, '/');
    if (strstr(slash ? slash : a->path, "tfevents"))
        return inspect_events(a->path, a->json, out, err);
    if (ends_with(a->path, ".safetensors"))
        return inspect_safetensors(a, out, err);
    return error_set(
        err, ERROR_INPUT, a->path,
        "give a model directory, a checkpoint, a .safetensors file or an events.out.tfevents file",
        "this kind of file cannot be inspected");
}

int cmd_inspect(int argc, char **argv, struct cli *cli)
{
    struct inspect_arguments a = {0};
    struct strbuf text = {0};
    struct error err = {0};
    int status = cli_parse(cli, &inspect_argp, argc, argv, &a);
    if (status != 0)
        return status;
    bool failed = inspect_path(&a, &cli->log, &text, &err) != 0;
    if (!failed || text.length > 0) /* of a damaged event file, what could be read */
        status = cli_print(cli, &text);
    strbuf_free(&text);
    return failed ? cli_fail(cli, &err) : status;
}
