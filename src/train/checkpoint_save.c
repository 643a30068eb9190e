/* Writing a checkpoint. The format is told in checkpoint.h. */
#include "train/checkpoint_files.h"

#include "formats/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Files beyond this size are cut in shards, as Transformers does. */
enum { SHARD_LIMIT_GB = 5 };
/* Small files: config, tokenizer, manifest; tokenizers of today stay below. */
enum { SMALL_FILES_BYTES = 64 << 20 };

struct saver {
    struct engine *e;
    const struct checkpoint_options *options;
    const struct checkpoint_state *state;
    char *final, *temporary, *training; /* directories */
    struct manifest_list list;
};

int64_t checkpoint_bytes(const struct model *model, enum dtype type)
{
    int64_t states = type == DTYPE_F32 ? 2 : 3;
    return weights_bytes(model, type) + states * weights_bytes(model, DTYPE_F32) + SMALL_FILES_BYTES;
}

int checkpoint_check_space(const char *output, const struct model *model, enum dtype type, struct error *err)
{
    int64_t free_bytes, need = checkpoint_bytes(model, type);
    char need_text[32], free_text[32];
    if (file_free_space(output, &free_bytes, err) != 0)
        return -1;
    if (free_bytes >= need)
        return 0;
    return error_set(err, ERROR_RUN, output,
                     "free some space, or keep fewer checkpoints (checkpoint.keep), then go on with --resume",
                     "a checkpoint takes %s, but only %s are free", format_bytes(need, need_text),
                     format_bytes(free_bytes, free_text));
}

static int write_small(struct saver *s, const char *name, const char *text, size_t n, struct error *err)
{
    char *path = file_join(s->temporary, name);
    int status = path ? file_write_all(path, text, n, err) : error_memory(err, 0, "a path");
    if (status == 0)
        status = manifest_list_add(&s->list, name, (int64_t)n, hash_bytes(text, n, 0), err);
    free(path);
    return status;
}

static int write_config(struct saver *s, struct error *err)
{
    const struct checkpoint_options *o = s->options;
    json_t *config = model_config_json(s->e->model, o->type, o->bos, o->eos, o->pad);
    struct strbuf text = {0};
    struct json_writer w;
    if (!config)
        return error_memory(err, 0, "config.json");
    json_writer_start(&w, &text, 2);
    json_write_value(&w, NULL, config);
    strbuf_puts(&text, "\n");
    int status = text.failed ? error_memory(err, text.length, "config.json")
                             : write_small(s, "config.json", text.data, text.length, err);
    strbuf_free(&text);
    json_decref(config);
    return status;
}

/* GPT-2's oldest form has vocab.json and merges.txt alone, which AutoTokenizer cannot tell the class of. */
static int write_legacy_config(struct saver *s, const char *directory, struct error *err)
{
    static const char text[] = "{\n"
                               "  \"tokenizer_class\": \"GPT2Tokenizer\",\n"
                               "  \"add_prefix_space\": false,\n"
                               "  \"bos_token\": \"<|endoftext|>\",\n"
                               "  \"eos_token\": \"<|endoftext|>\",\n"
                               "  \"unk_token\": \"<|endoftext|>\"\n"
                               "}\n";
    static const char *const newer[] = {"tokenizer.json", "tokenizer_config.json"};
    bool needed = directory != NULL;
    for (size_t i = 0; needed && i < sizeof newer / sizeof *newer; i++) {
        char *path = file_join(directory, newer[i]);
        if (!path)
            return error_memory(err, 0, "a path");
        needed = !file_exists(path);
        free(path);
    }
    return needed ? write_small(s, newer[1], text, sizeof text - 1, err) : 0;
}

/* Copies the tokenizer's files, as they are. */
static int write_tokenizer(struct saver *s, struct error *err)
{
    static const char *const names[] = {
        "tokenizer.json",      "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
        "chat_template.jinja", "generation_config.json"};
    const char *source = s->options->tokenizer;
    if (!source)
        return 0;
    bool directory = file_is_directory(source);
    int status = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && status == 0; i++) {
        if (!directory && i > 0)
            break;
        if (s->options->no_generation_config && strcmp(names[i], "generation_config.json") == 0)
            continue;
        char *path = directory ? file_join(source, names[i]) : strdup(source), *text = NULL;
        size_t n;
        if (!path)
            return error_memory(err, 0, "a path");
        if (file_exists(path)) {
            status = file_read(path, JSON_FILE_LIMIT, &text, &n, err);
            if (status == 0)
                status = write_small(s, names[i], text, n, err);
        }
        free(text);
        free(path);
    }
    return status == 0 ? write_legacy_config(s, directory ? source : NULL, err) : -1;
}

static int write_state(struct saver *s, struct error *err)
{
    struct strbuf text = {0};
    struct json_writer w;
    char hash[20];
    json_writer_start(&w, &text, 2);
    json_write_object(&w, NULL);
    json_write_int(&w, "version", CHECKPOINT_VERSION);
    json_write_int(&w, "step", s->state->step);
    json_write_int(&w, "tokens_seen", s->state->tokens_seen);
    snprintf(hash, sizeof hash, "%016" PRIx64, s->state->data_hash);
    json_write_string(&w, "data_hash", hash);
    snprintf(hash, sizeof hash, "%016" PRIx64, s->state->probe);
    json_write_string(&w, "probe", hash);
    json_write_end(&w);
    strbuf_puts(&text, "\n");
    int status = text.failed ? error_memory(err, text.length, "state.json")
                             : write_small(s, "training/state.json", text.data, text.length, err);
    strbuf_free(&text);
    return status;
}

/* One set of tensors into `directory`, its files entered into the list under `prefix`. Collective. */
static int write_tensors(struct saver *s, enum shard_kind kind, enum dtype type, const char *directory,
                         const char *prefix, const char *stem, struct error *err)
{
    struct weights_file *files;
    int count;
    if (weights_save(s->e, kind, type, directory, stem, (int64_t)SHARD_LIMIT_GB * 1000000000, &files, &count,
                     err) != 0)
        return -1;
    int status = 0;
    for (int i = 0; comm_rank(s->e->comm) == 0 && i < count && status == 0; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", prefix, files[i].name);
        status = manifest_list_add(&s->list, name, files[i].bytes, files[i].hash, err);
    }
    free(files);
    return status;
}

static int prepare(struct saver *s, struct error *err)
{
    if (checkpoint_check_space(s->options->output, s->e->model, s->options->type, err) != 0 ||
        file_remove_tree(s->temporary, err) != 0 || file_make_directories(s->training, err) != 0)
        return -1;
    return write_config(s, err) != 0 || write_tokenizer(s, err) != 0 ? -1 : 0;
}

/* Takes a checkpoint away: by one rename it is none any more, and what is left of it when the removal is
 * interrupted is removed by checkpoint_clean. */
static int retire(const char *path, struct error *err)
{
    char *doomed = NULL;
    if (asprintf(&doomed, "%s.tmp-old", path) < 0)
        return error_memory(err, 0, "a path");
    int status = file_remove_tree(doomed, err);
    if (status == 0)
        status = file_rename(path, doomed, err);
    if (file_remove_tree(doomed, status == 0 ? err : NULL) != 0)
        status = -1;
    free(doomed);
    return status;
}

/* Gives the new directory its name. What has it already is no checkpoint that anyone can still want: one
 * without a manifest, or one that this run, resumed before it, does again. */
static int publish(const struct saver *s, struct error *err)
{
    if (file_exists(s->final) && retire(s->final, err) != 0)
        return -1;
    return file_rename(s->temporary, s->final, err);
}

static int finish(struct saver *s, struct error *err)
{
    if (write_state(s, err) != 0 ||
        write_small(s, "training/run.yaml", s->options->run_yaml, strlen(s->options->run_yaml), err) != 0 ||
        manifest_list_write(&s->list, s->temporary, err) != 0 || file_sync_directory(s->training, err) != 0 ||
        file_sync_directory(s->temporary, err) != 0)
        return -1;
    return publish(s, err) != 0 ? -1 : checkpoint_point_last(s->options->output, s->final, err);
}

static int retain(const struct checkpoint_options *options, struct error *err)
{
    struct checkpoint_listing listing;
    if (options->keep <= 0)
        return 0;
    if (checkpoint_list(options->output, &listing, err) != 0)
        return -1;
    int status = 0;
    for (int64_t i = 0; i < listing.count - options->keep && status == 0; i++)
        status = retire(listing.items[i].path, err);
    checkpoint_listing_free(&listing);
    return status == 0 ? checkpoint_drop_aside(options->output, err) : status;
}

static int names_make(struct saver *s, struct error *err)
{
    const char *output = s->options->output;
    if (asprintf(&s->final, "%s/checkpoint-%06lld", output, (long long)s->state->step) < 0)
        s->final = NULL;
    if (!s->final || asprintf(&s->temporary, "%s.tmp-%lld", s->final, (long long)getpid()) < 0)
        s->temporary = NULL;
    if (s->temporary)
        s->training = file_join(s->temporary, "training");
    return s->training ? 0 : error_memory(err, 0, "a path");
}

int checkpoint_save(struct engine *e, const struct checkpoint_options *options,
                    const struct checkpoint_state *state, char **path, struct error *err)
{
    struct saver s = {.e = e, .options = options, .state = state};
    bool root = comm_rank(e->comm) == 0;
    int status = names_make(&s, err);
    if (status == 0 && root)
        status = prepare(&s, err);
    if (status == 0)
        status = write_tensors(&s, SHARD_MASTER, options->type, s.temporary, "", "model", err);
    if (status == 0 && options->type != DTYPE_F32)
        status = write_tensors(&s, SHARD_MASTER, DTYPE_F32, s.training, "training/", "master", err);
    if (status == 0)
        status = write_tensors(&s, SHARD_MOMENT1, DTYPE_F32, s.training, "training/", "moment1", err);
    if (status == 0)
        status = write_tensors(&s, SHARD_MOMENT2, DTYPE_F32, s.training, "training/", "moment2", err);
    if (status == 0 && root)
        status = finish(&s, err);
    if (status == 0 && root)
        status = retain(options, err);
    if (status != 0 && root && s.temporary)
        file_remove_tree(s.temporary, NULL);
    /* No rank goes on before the checkpoint is there: a step after it must not be lost with it. */
    if (status == 0)
        status = comm_barrier(e->comm, err);
    if (path)
        *path = NULL;
    if (status == 0 && root && path) {
        *path = s.final;
        s.final = NULL;
    }
    free(s.final);
    free(s.temporary);
    free(s.training);
    manifest_list_free(&s.list);
    return status;
}
