/* A checkpoint from its empty directory to its name, but for its tensors. checkpoint.h tells the format. */
#include "train/checkpoint_files.h"

#include "formats/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Small files: config, tokenizer, manifest; tokenizers of today stay below. */
enum { SMALL_FILES_BYTES = 64 << 20 };

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

static int write_small(struct checkpoint_draft *d, const char *name, const char *text, size_t n,
                       struct error *err)
{
    char *path = file_join(d->temporary, name);
    int status = path ? file_write_all(path, text, n, err) : error_memory(err, 0, "a path");
    if (status == 0)
        status = manifest_list_add(&d->list, name, (int64_t)n, hash_bytes(text, n, 0), err);
    free(path);
    return status;
}

static int write_config(struct checkpoint_draft *d, struct error *err)
{
    const struct checkpoint_options *o = &d->options;
    json_t *config = model_config_json(d->model, o->type, o->bos, o->eos, o->pad);
    struct strbuf text = {0};
    struct json_writer w;
    if (!config)
        return error_memory(err, 0, "config.json");
    json_writer_start(&w, &text, 2);
    json_write_value(&w, NULL, config);
    strbuf_puts(&text, "\n");
    int status = text.failed ? error_memory(err, text.length, "config.json")
                             : write_small(d, "config.json", text.data, text.length, err);
    strbuf_free(&text);
    json_decref(config);
    return status;
}

/* GPT-2's oldest form has vocab.json and merges.txt alone, which AutoTokenizer cannot tell the class of. */
static int write_legacy_config(struct checkpoint_draft *d, const char *directory, struct error *err)
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
    return needed ? write_small(d, newer[1], text, sizeof text - 1, err) : 0;
}

/* Copies the tokenizer's files, as they are. */
static int write_tokenizer(struct checkpoint_draft *d, struct error *err)
{
    static const char *const names[] = {
        "tokenizer.json",      "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
        "chat_template.jinja", "generation_config.json"};
    const char *source = d->options.tokenizer;
    if (!source)
        return 0;
    bool directory = file_is_directory(source);
    int status = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && status == 0; i++) {
        if (!directory && i > 0)
            break;
        if (d->options.no_generation_config && strcmp(names[i], "generation_config.json") == 0)
            continue;
        char *path = directory ? file_join(source, names[i]) : strdup(source), *text = NULL;
        size_t n;
        if (!path)
            return error_memory(err, 0, "a path");
        if (file_exists(path)) {
            status = file_read(path, JSON_FILE_LIMIT, &text, &n, err);
            if (status == 0)
                status = write_small(d, names[i], text, n, err);
        }
        free(text);
        free(path);
    }
    return status == 0 ? write_legacy_config(d, directory ? source : NULL, err) : -1;
}

static int write_state(struct checkpoint_draft *d, struct error *err)
{
    struct strbuf text = {0};
    struct json_writer w;
    char hash[20];
    json_writer_start(&w, &text, 2);
    json_write_object(&w, NULL);
    json_write_int(&w, "version", CHECKPOINT_VERSION);
    json_write_int(&w, "step", d->state.step);
    json_write_int(&w, "tokens_seen", d->state.tokens_seen);
    snprintf(hash, sizeof hash, "%016" PRIx64, d->state.data_hash);
    json_write_string(&w, "data_hash", hash);
    snprintf(hash, sizeof hash, "%016" PRIx64, d->state.probe);
    json_write_string(&w, "probe", hash);
    json_write_end(&w);
    strbuf_puts(&text, "\n");
    int status = text.failed ? error_memory(err, text.length, "state.json")
                             : write_small(d, "training/state.json", text.data, text.length, err);
    strbuf_free(&text);
    return status;
}

static int write_index(struct checkpoint_draft *d, const struct checkpoint_set *set, struct error *err)
{
    char name[sizeof set->layout.index_name + 16];
    snprintf(name, sizeof name, "%s%s", set->prefix, set->layout.index_name);
    return write_small(d, name, set->layout.index.data, set->layout.index.length, err);
}

/* The files of tensors are there; what they hold is looked at once more, for the list. */
static int list_tensors(struct checkpoint_draft *d, const struct checkpoint_set *set, struct error *err)
{
    for (int i = 0; i < set->layout.file_count; i++) {
        const struct weights_file *f = &set->layout.files[i];
        char name[sizeof f->name + 16];
        int64_t bytes;
        uint64_t hash;
        snprintf(name, sizeof name, "%s%s", set->prefix, f->name);
        char *path = file_join(d->temporary, name);
        int status = path ? file_hash(path, &bytes, &hash, err) : error_memory(err, 0, "a path");
        if (status == 0 && bytes != f->bytes)
            status = error_set(err, ERROR_RUN, path, "look at the file system, and save again with --resume",
                               "the file was written with %lld bytes and now has %lld", (long long)f->bytes,
                               (long long)bytes);
        free(path);
        if (status != 0 || manifest_list_add(&d->list, name, bytes, hash, err) != 0)
            return -1;
    }
    return set->layout.index.length == 0 ? 0 : write_index(d, set, err);
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
static int publish(const struct checkpoint_draft *d, struct error *err)
{
    if (file_exists(d->final) && retire(d->final, err) != 0)
        return -1;
    return file_rename(d->temporary, d->final, err);
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

int checkpoint_draft_name(struct checkpoint_draft *d, int64_t owner, struct error *err)
{
    if (asprintf(&d->final, "%s/checkpoint-%06lld", d->options.output, (long long)d->state.step) < 0)
        d->final = NULL;
    if (!d->final || asprintf(&d->temporary, "%s.tmp-%lld", d->final, (long long)owner) < 0)
        d->temporary = NULL;
    if (d->temporary)
        d->training = file_join(d->temporary, "training");
    return d->training ? 0 : error_memory(err, 0, "a path");
}

int checkpoint_draft_begin(struct checkpoint_draft *d, struct error *err)
{
    if (checkpoint_check_space(d->options.output, d->model, d->options.type, err) != 0 ||
        file_remove_tree(d->temporary, err) != 0)
        return -1;
    return file_make_directories(d->training, err);
}

int checkpoint_draft_seal(struct checkpoint_draft *d, const struct checkpoint_set *sets, int count,
                          struct error *err)
{
    if (write_config(d, err) != 0 || write_tokenizer(d, err) != 0)
        return -1;
    for (int i = 0; i < count; i++)
        if (list_tensors(d, &sets[i], err) != 0)
            return -1;
    if (write_state(d, err) != 0 ||
        write_small(d, "training/run.yaml", d->options.run_yaml, strlen(d->options.run_yaml), err) != 0 ||
        manifest_list_write(&d->list, d->temporary, err) != 0 || file_sync_directory(d->training, err) != 0 ||
        file_sync_directory(d->temporary, err) != 0)
        return -1;
    if (publish(d, err) != 0 || checkpoint_point_last(d->options.output, d->final, err) != 0)
        return -1;
    return retain(&d->options, err);
}

void checkpoint_draft_drop(struct checkpoint_draft *d)
{
    if (d->temporary)
        file_remove_tree(d->temporary, NULL);
}

void checkpoint_draft_free(struct checkpoint_draft *d)
{
    free(d->final);
    free(d->temporary);
    free(d->training);
    manifest_list_free(&d->list);
    *d = (struct checkpoint_draft){0};
}
