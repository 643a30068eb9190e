/* Reading: the file's tree and the overrides give each key a node; each node gives its key a value; then
 * the whole is checked. Nothing stops at the first mistake. */
#include "config/schema.h"
#include "formats/utf8.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where something stands: in the file, or in an argument of the command line, counted from 1. */
struct place {
    int64_t argument; /* 0: in the file */
    int64_t line, column;
};

struct override {
    char *key;
    struct yaml_tree tree;
    struct yaml_node literal; /* text that is taken as it stands */
    const struct yaml_node *value;
};

struct mistake {
    struct place place;
    int64_t number; /* in the order in which they were found */
    struct error err;
};

struct reader {
    const char *file;
    struct run_config *config;
    const struct yaml_node *node[SCHEMA_KEYS]; /* NULL: not given */
    int64_t argument[SCHEMA_KEYS];             /* that gave it; 0: the file */
    bool given[SCHEMA_KEYS], sound[SCHEMA_KEYS];
    struct mistake *mistakes;
    int64_t mistake_count;
    struct error_list *errors;
};

/* ---- Mistakes, reported in the order of the file, then of the command line ---- */

static void add_mistake(struct reader *r, struct place place, const struct error *err)
{
    struct mistake *grown = realloc(r->mistakes, (size_t)(r->mistake_count + 1) * sizeof *grown);
    if (grown == NULL) {
        error_list_add(r->errors, err);
        return;
    }
    r->mistakes = grown;
    grown[r->mistake_count] = (struct mistake){place, r->mistake_count, *err};
    r->mistake_count++;
}

static void __attribute__((format(printf, 4, 5)))
report(struct reader *r, struct place place, const char *remedy, const char *format, ...)
{
    char where[512] = "command line", what[900];
    struct error err = {0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (place.argument == 0)
        snprintf(where, sizeof where, "%.460s:%" PRId64 ":%" PRId64, r->file, place.line, place.column);
    error_set(&err, ERROR_INPUT, where, remedy, "%s", what);
    add_mistake(r, place, &err);
}

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int compare_mistakes(const void *a, const void *b)
{
    const struct mistake *x = a, *y = b;
    int order = compare(x->place.argument, y->place.argument);
    if (order == 0 && x->place.argument == 0)
        order = compare(x->place.line, y->place.line);
    if (order == 0 && x->place.argument == 0)
        order = compare(x->place.column, y->place.column);
    return order != 0 ? order : compare(x->number, y->number);
}

static void hand_over(struct reader *r)
{
    if (r->mistake_count > 0)
        qsort(r->mistakes, (size_t)r->mistake_count, sizeof *r->mistakes, compare_mistakes);
    for (int64_t i = 0; i < r->mistake_count; i++)
        error_list_add(r->errors, &r->mistakes[i].err);
    free(r->mistakes);
}

static void report_unknown(struct reader *r, struct place place, const char *key)
{
    char remedy[160];
    const char *near = schema_nearest(key), *dot = strchr(key, '.');
    if (schema_find(key) >= 0 && dot != NULL) /* dotted in the file, where it must be nested */
        snprintf(remedy, sizeof remedy, "write %s: within %.*s:", dot + 1, (int)(dot - key), key);
    else if (near != NULL)
        snprintf(remedy, sizeof remedy, "did you mean %s?", near);
    else
        snprintf(remedy, sizeof remedy, "tercet train --help-config lists all keys");
    report(r, place, remedy, "%.200s: unknown key", key);
}

/* ---- From the tree to keys ---- */

static void take_map(struct reader *r, const struct yaml_node *map, const char *section, int64_t argument);

static void unset_section(struct reader *r, const char *section)
{
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        size_t length;
        schema_leaf(schema_keys[i].name, &length);
        if (length == strlen(section) && strncmp(schema_keys[i].name, section, length) == 0)
            r->node[i] = NULL;
    }
}

static void take(struct reader *r, const char *name, const struct yaml_node *value, struct place place)
{
    char found[256];
    int key = schema_find(name);
    if (key >= 0) {
        r->node[key] = value;
        r->argument[key] = place.argument;
    } else if (!schema_is_section(name)) {
        report_unknown(r, place, name);
    } else if (value->kind == YAML_KIND_MAP) {
        take_map(r, value, name, place.argument);
    } else if (yaml_is_null(value)) {
        unset_section(r, name);
    } else {
        bool model = strcmp(name, "model") == 0;
        report(r, place, model ? "write model: {from: DIR} or model: {config: FILE}" : NULL,
               "%s: expected a map of keys, found %s", name, yaml_describe(value, found, sizeof found));
    }
}

static void take_map(struct reader *r, const struct yaml_node *map, const char *section, int64_t argument)
{
    for (int64_t i = 0; i < map->count; i++) {
        const struct yaml_key *key = &map->keys[i];
        struct place place = {argument, key->line, key->column};
        char name[256];
        snprintf(name, sizeof name, "%s%s%.128s", section, section[0] != '\0' ? "." : "", key->text);
        /* A key with a dot in it is none of ours, though its spelling may look like one. */
        if (strchr(key->text, '.') != NULL)
            report_unknown(r, place, name);
        else
            take(r, name, map->children[i], place);
    }
}

/* ---- Overrides ---- */

/* Text is taken as it stands unless it is quoted or in brackets: globs and paths need no YAML quotes. */
static bool is_literal(const char *key, const char *value)
{
    int i = schema_find(key);
    if (i < 0 || strchr("[{\"'", value[0]) != NULL || strcmp(value, "null") == 0 || strcmp(value, "~") == 0)
        return false;
    enum key_type type = schema_keys[i].type;
    return (type == KEY_TEXT && schema_keys[i].choices == NULL) || type == KEY_TEXTS || type == KEY_MODEL;
}

static int parse_override(struct reader *r, const char *text, int64_t number, struct override *out)
{
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text) {
        report(r, (struct place){.argument = number}, "write key=value, for example train.steps=100",
               "\"%.100s\" is not of the form key=value", text);
        return -1;
    }
    out->key = strndup(text, (size_t)(equals - text));
    if (out->key == NULL)
        return -1;
    const char *value = equals + 1;
    size_t size = strlen(value);
    if (size == 0) {
        report(r, (struct place){.argument = number}, "key=null unsets a key",
               "%.200s: no value behind the =", out->key);
        return -1;
    }
    if (is_literal(out->key, value) && utf8_valid(value, size)) {
        out->literal = (struct yaml_node){.kind = YAML_KIND_SCALAR,
                                          .type = YAML_TYPE_TEXT,
                                          .file = "command line",
                                          .line = 1,
                                          .column = 1,
                                          .text = value};
        out->value = &out->literal;
        return 0;
    }
    struct error_list found = {0};
    int result = yaml_tree_parse(&out->tree, "command line", value, size, &found);
    if (result != 0)
        report(r, (struct place){.argument = number}, found.count > 0 ? found.items[0].remedy : NULL,
               "%.200s: %s", out->key, found.count > 0 ? found.items[0].what : "out of memory");
    error_list_free(&found);
    out->value = out->tree.root;
    return result;
}

/* A key within model.config's map: set in place of the file's. */
static const char config_prefix[] = "model.config.";

static bool is_inner(const char *key)
{
    return strncmp(key, config_prefix, sizeof config_prefix - 1) == 0 &&
           key[sizeof config_prefix - 1] != '\0';
}

static void apply_override(struct reader *r, const struct override *o, int64_t number)
{
    if (!is_inner(o->key)) /* those wait until the map itself has been read */
        take(r, o->key, o->value, (struct place){.argument = number});
}

static void apply_inner(struct reader *r, const struct override *o, int64_t number)
{
    const char *path = o->key + sizeof config_prefix - 1;
    json_t *object = r->config->model.config_inline;
    struct error err = {0};
    if (object == NULL) {
        report(r, (struct place){.argument = number}, "give model.config as a map",
               "%.200s: model.config is no map", o->key);
        return;
    }
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        char part[128];
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        json_t *inner = json_object_get(object, part);
        if (!json_is_object(inner)) {
            report(r, (struct place){.argument = number}, NULL, "%.200s: %s is no map", o->key, part);
            return;
        }
        object = inner;
    }
    if (yaml_is_null(o->value)) {
        json_object_del(object, path);
        return;
    }
    json_t *value = yaml_to_json(o->value, &err);
    if (value == NULL || json_object_set_new(object, path, value) != 0)
        report(r, (struct place){.argument = number}, err.remedy, "%.200s: %s", o->key, err.what);
}

/* ---- Values ---- */

static int set_default(struct run_config *config, const struct schema_key *key, struct error *err)
{
    struct yaml_tree tree;
    struct error_list found = {0};
    if (key->initial == NULL)
        return 0;
    if (yaml_tree_parse(&tree, key->name, key->initial, strlen(key->initial), &found) != 0) {
        error_list_free(&found);
        return error_memory(err, strlen(key->initial), "the run file");
    }
    int result = value_set(key, config, tree.root, err);
    yaml_tree_free(&tree);
    return result;
}

static void set_values(struct reader *r)
{
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        const struct schema_key *key = &schema_keys[i];
        const struct yaml_node *node = r->node[i];
        struct error err = {0};
        r->sound[i] = true;
        if (node == NULL || yaml_is_null(node)) {
            if (set_default(r->config, key, &err) != 0)
                add_mistake(r, (struct place){0}, &err);
            continue;
        }
        struct place place = {r->argument[i], node->line, node->column};
        bool empty = key->required && node->kind == YAML_KIND_LIST && node->count == 0;
        r->sound[i] = value_set(key, r->config, node, &err) == 0;
        r->given[i] = r->sound[i] && !empty;
        if (!r->sound[i])
            report(r, place, err.remedy, "%s: %s", key->name, err.what);
    }
}

/* Where messages about an inline configuration point. */
static int note_place(struct reader *r, struct error *err)
{
    char place[512];
    int key = schema_find("model.config");
    if (r->config->model.config_inline == NULL)
        return 0;
    if (r->argument[key] > 0)
        snprintf(place, sizeof place, "command line: model.config");
    else
        snprintf(place, sizeof place, "%.460s:%" PRId64 ": model.config", r->file, r->node[key]->line);
    r->config->model.config_place = strdup(place);
    return r->config->model.config_place != NULL ? 0 : error_memory(err, sizeof place, "the run file");
}

/* ---- What is left open in the file, and follows from the rest ---- */

static char *beside(const char *path, const char *name)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    size_t size = n + strlen(name) + 1;
    char *out = malloc(size);
    if (out != NULL)
        snprintf(out, size, "%.*s%s", (int)n, path, name);
    return out;
}

static int resolve(struct run_config *config, struct error *err)
{
    for (size_t n = strlen(config->output); n > 1 && config->output[n - 1] == '/'; n--)
        config->output[n - 1] = '\0';
    if (config->tokenizer == NULL && config->model.from != NULL) {
        config->tokenizer = strdup(config->model.from);
        if (config->tokenizer == NULL)
            return error_memory(err, strlen(config->model.from), "the run file");
    }
    if (config->data.cache == NULL) {
        config->data.cache = beside(config->output, "token-cache");
        if (config->data.cache == NULL)
            return error_memory(err, strlen(config->output), "the run file");
    }
    return 0;
}

static void read_all(struct reader *r, const struct yaml_tree *tree, const char *const *texts,
                     struct override *overrides, int64_t count)
{
    char found[256];
    if (tree->root->kind == YAML_KIND_MAP)
        take_map(r, tree->root, "", 0);
    else if (!yaml_is_null(tree->root))
        report(r, (struct place){0, tree->root->line, tree->root->column},
               "tercet train --help-config lists all keys", "expected a map of keys, found %s",
               yaml_describe(tree->root, found, sizeof found));
    for (int64_t i = 0; i < count; i++)
        if (parse_override(r, texts[i], i + 1, &overrides[i]) == 0)
            apply_override(r, &overrides[i], i + 1);
    set_values(r);
    for (int64_t i = 0; i < count; i++)
        if (overrides[i].value != NULL && is_inner(overrides[i].key))
            apply_inner(r, &overrides[i], i + 1);
}

static int from_tree(const struct yaml_tree *tree, const char *file, const char *const *texts, int64_t count,
                     struct run_config *out, struct error_list *errors)
{
    struct error err = {0};
    int64_t before = errors->count;
    struct reader r = {.file = file, .config = out, .errors = errors};
    struct override *overrides = calloc((size_t)count + 1, sizeof *overrides);
    if (overrides == NULL) {
        error_memory(&err, (size_t)count * sizeof *overrides, "the run file");
        error_list_add(errors, &err);
        return -1;
    }
    read_all(&r, tree, texts, overrides, count);
    hand_over(&r);
    if (tree->root->kind == YAML_KIND_MAP || yaml_is_null(tree->root)) /* else no key can be there */
        check_together(out, r.given, r.sound, file, errors);
    if (errors->count == before && (note_place(&r, &err) != 0 || resolve(out, &err) != 0))
        error_list_add(errors, &err);
    for (int64_t i = 0; i < count; i++) {
        free(overrides[i].key);
        yaml_tree_free(&overrides[i].tree);
    }
    free(overrides);
    return errors->count == before ? 0 : -1;
}

static int finish(struct yaml_tree *tree, int read, const char *file, const char *const *texts, int64_t count,
                  struct run_config *out, struct error_list *errors)
{
    *out = (struct run_config){0};
    if (read != 0)
        return -1;
    int result = from_tree(tree, file, texts, count, out, errors);
    yaml_tree_free(tree);
    if (result != 0)
        run_config_free(out);
    return result;
}

int run_config_load(const char *path, const char *const *overrides, int64_t override_count,
                    struct run_config *out, struct error_list *errors)
{
    struct yaml_tree tree;
    int read = yaml_tree_open(&tree, path, errors);
    return finish(&tree, read, path, overrides, override_count, out, errors);
}

int run_config_parse(const char *name, const void *bytes, size_t size, const char *const *overrides,
                     int64_t override_count, struct run_config *out, struct error_list *errors)
{
    struct yaml_tree tree;
    int read = yaml_tree_parse(&tree, name, bytes, size, errors);
    return finish(&tree, read, name, overrides, override_count, out, errors);
}

void run_config_free(struct run_config *config)
{
    for (int i = 0; i < SCHEMA_KEYS; i++)
        value_free(&schema_keys[i], config);
    *config = (struct run_config){0};
}

static enum dtype element_type(enum run_dtype type)
{
    return type == RUN_DTYPE_FP32 ? DTYPE_F32 : type == RUN_DTYPE_FP16 ? DTYPE_F16 : DTYPE_BF16;
}

enum dtype run_config_train_dtype(const struct run_config *config)
{
    return element_type(config->train.dtype);
}

enum dtype run_config_checkpoint_dtype(const struct run_config *config)
{
    return element_type(config->checkpoint.dtype == RUN_DTYPE_AUTO ? config->train.dtype
                                                                   : config->checkpoint.dtype);
}
