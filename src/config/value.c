/* One key's value: from YAML into struct run_config, back to YAML, and freed. */
#include "config/schema.h"
#include "formats/json.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *place_of(const struct schema_key *key, const struct run_config *config)
{
    return (char *)(uintptr_t)config + key->offset;
}

static int problem(struct error *err, const char *remedy, const char *what)
{
    return error_set(err, ERROR_INPUT, NULL, remedy, "%s", what);
}

static int mistyped(const struct yaml_node *node, struct error *err, const char *expected)
{
    char found[256];
    return error_set(err, ERROR_INPUT, NULL, NULL, "expected %s, found %s", expected,
                     yaml_describe(node, found, sizeof found));
}

static int copy_text(const char *text, char **out, struct error *err)
{
    free(*out);
    *out = strdup(text);
    return *out != NULL ? 0 : error_memory(err, strlen(text) + 1, "the run file");
}

/* ---- Bounds ---- */

static int check_bounds(const struct schema_key *key, double value, struct error *err)
{
    char found[32], low[32], high[32], what[256];
    bool too_low = value < key->min || (key->above_min && value <= key->min);
    bool too_high = value > key->max || (key->below_max && value >= key->max);
    if (!too_low && !too_high)
        return 0;
    bool whole = key->type == KEY_INT;
    snprintf(found, sizeof found, whole ? "%.0f" : "%g", value);
    snprintf(low, sizeof low, whole ? "%.0f" : "%g", key->min);
    snprintf(high, sizeof high, whole ? "%.0f" : "%g", key->max);
    if (too_low)
        snprintf(what, sizeof what, "%s is too small, it must be %s %s", found,
                 key->above_min ? "above" : "at least", low);
    else
        snprintf(what, sizeof what, "%s is too large, it must be %s %s", found,
                 key->below_max ? "below" : "at most", high);
    return problem(err, NULL, what);
}

/* ---- Choices ---- */

static void list_choices(const struct choice *choices, char *out, size_t size)
{
    size_t used = 0;
    for (out[0] = '\0'; choices->name != NULL; choices++) {
        if (choices->later)
            continue;
        int n = snprintf(out + used, size - used, "%s%s", used > 0 ? ", " : "", choices->name);
        if (n < 0 || (size_t)n >= size - used)
            return;
        used += (size_t)n;
    }
}

/* true and false may be choices too, so a bool's text counts, in any of its spellings. */
static const char *choice_text(const struct yaml_node *node)
{
    if (node->kind != YAML_KIND_SCALAR)
        return NULL;
    if (node->type != YAML_TYPE_BOOL)
        return node->text;
    return node->text[0] == 't' || node->text[0] == 'T' ? "true" : "false";
}

static int find_choice(const struct schema_key *key, const struct yaml_node *node, const struct choice **out,
                       struct error *err)
{
    char list[256], remedy[400], found[256];
    const char *text = choice_text(node);
    list_choices(key->choices, list, sizeof list);
    for (const struct choice *c = key->choices; text != NULL && c->name != NULL; c++) {
        if (strcmp(c->name, text) != 0)
            continue;
        *out = c;
        if (!c->later)
            return 0;
        snprintf(remedy, sizeof remedy, "this version has %s", list);
        return error_set(err, ERROR_INPUT, NULL, remedy, "%s is not available in this version", text);
    }
    const char *near = text != NULL ? schema_nearest_choice(key->choices, text) : NULL;
    snprintf(remedy, sizeof remedy, "did you mean %s?", near != NULL ? near : "");
    return error_set(err, ERROR_INPUT, NULL, near != NULL ? remedy : NULL, "expected one of %s, found %s",
                     list, yaml_describe(node, found, sizeof found));
}

static int set_choice(const struct schema_key *key, void *place, const struct yaml_node *node,
                      struct error *err)
{
    const struct choice *choice;
    static_assert(sizeof(enum run_schedule) == sizeof(int), "enums of the run file are as wide as int");
    if (find_choice(key, node, &choice, err) != 0)
        return -1;
    if (key->type == KEY_TEXT)
        return copy_text(choice->name, place, err);
    memcpy(place, &choice->value, sizeof choice->value);
    return 0;
}

static const char *choice_name(const struct schema_key *key, const void *place)
{
    int value;
    memcpy(&value, place, sizeof value);
    for (const struct choice *c = key->choices; c->name != NULL; c++)
        if (c->value == value)
            return c->name;
    return "null";
}

/* ---- Texts ---- */

static int set_text(void *place, const struct yaml_node *node, struct error *err)
{
    const char *text;
    if (yaml_text(node, &text, err) != 0)
        return -1;
    if (text[0] == '\0')
        return problem(err, NULL, "it is empty");
    return copy_text(text, place, err);
}

static void free_texts(struct run_texts *texts)
{
    for (int64_t i = 0; i < texts->count; i++)
        free(texts->items[i]);
    free(texts->items);
    *texts = (struct run_texts){0};
}

static int set_texts(struct run_texts *texts, const struct yaml_node *node, struct error *err)
{
    const struct yaml_node *single[] = {node};
    const struct yaml_node *const *items = single;
    int64_t count = 1;
    if (node->kind == YAML_KIND_MAP)
        return mistyped(node, err, "text or a list of texts");
    if (node->kind == YAML_KIND_LIST) {
        items = (const struct yaml_node *const *)node->children;
        count = node->count;
    }
    free_texts(texts);
    texts->items = calloc((size_t)count + 1, sizeof *texts->items);
    if (texts->items == NULL)
        return error_memory(err, (size_t)count * sizeof *texts->items, "the run file");
    for (int64_t i = 0; i < count; i++) {
        if (set_text(&texts->items[i], items[i], err) != 0)
            return -1;
        texts->count = i + 1;
    }
    return 0;
}

/* ---- The model's configuration ---- */

static json_t *scalar_to_json(const struct yaml_node *node, struct error *err)
{
    int64_t integer;
    double number;
    bool truth;
    switch (node->type) {
    case YAML_TYPE_NULL:
        return json_null();
    case YAML_TYPE_BOOL:
        return yaml_bool(node, &truth, err) == 0 ? json_boolean(truth) : NULL;
    case YAML_TYPE_INT:
        return yaml_int(node, &integer, err) == 0 ? json_integer(integer) : NULL;
    case YAML_TYPE_FLOAT:
        return yaml_double(node, &number, err) == 0 ? json_real(number) : NULL;
    case YAML_TYPE_TEXT:
        break;
    }
    return json_string(node->text);
}

json_t *yaml_to_json(const struct yaml_node *node, struct error *err)
{
    error_memory(err, sizeof *node, "the run file"); /* unless something else turns out to be wrong */
    if (node->kind == YAML_KIND_SCALAR)
        return scalar_to_json(node, err);
    json_t *out = node->kind == YAML_KIND_MAP ? json_object() : json_array();
    for (int64_t i = 0; out != NULL && i < node->count; i++) {
        json_t *child = yaml_to_json(node->children[i], err);
        int failed = child == NULL                 ? -1
                     : node->kind == YAML_KIND_MAP ? json_object_set_new(out, node->keys[i].text, child)
                                                   : json_array_append_new(out, child);
        if (failed != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static int set_model(struct run_config *config, const struct yaml_node *node, struct error *err)
{
    if (node->kind == YAML_KIND_LIST)
        return mistyped(node, err, "the path of a config.json or a map of its keys");
    if (node->kind == YAML_KIND_SCALAR)
        return set_text(&config->model.config, node, err);
    json_decref(config->model.config_inline);
    config->model.config_inline = yaml_to_json(node, err);
    return config->model.config_inline != NULL ? 0 : -1;
}

/* ---- Numbers ---- */

static int set_number(const struct schema_key *key, double *place, const struct yaml_node *node,
                      struct error *err)
{
    return yaml_double(node, place, err) != 0 ? -1 : check_bounds(key, *place, err);
}

static int set_pair(const struct schema_key *key, double *place, const struct yaml_node *node,
                    struct error *err)
{
    if (node->kind != YAML_KIND_LIST)
        return mistyped(node, err, "a list of two numbers");
    if (node->count != 2)
        return error_set(err, ERROR_INPUT, NULL, NULL, "expected a list of two numbers, found %lld of them",
                         (long long)node->count);
    for (int i = 0; i < 2; i++)
        if (set_number(key, &place[i], node->children[i], err) != 0)
            return -1;
    return 0;
}

static int set_numbers(const struct schema_key *key, struct run_numbers *numbers,
                       const struct yaml_node *node, struct error *err)
{
    if (node->kind == YAML_KIND_MAP)
        return mistyped(node, err, "a number or a list of numbers");
    bool list = node->kind == YAML_KIND_LIST;
    numbers->count = 0;
    if (list && (node->count == 0 || node->count > RUN_MOST_NUMBERS))
        return error_set(err, ERROR_INPUT, NULL, NULL, "expected 1 to %d numbers, found %lld of them",
                         RUN_MOST_NUMBERS, (long long)node->count);
    for (int64_t i = 0; i < (list ? (int64_t)node->count : 1); i++) {
        if (set_number(key, &numbers->items[i], list ? node->children[i] : node, err) != 0)
            return -1;
        numbers->count = i + 1;
    }
    return 0;
}

static void write_numbers(const double *items, int64_t count, struct strbuf *out)
{
    strbuf_puts(out, "[");
    for (int64_t i = 0; i < count; i++) {
        strbuf_puts(out, i > 0 ? ", " : "");
        yaml_put_double(out, items[i]);
    }
    strbuf_puts(out, "]");
}

/* ---- All types ---- */

int value_set(const struct schema_key *key, struct run_config *config, const struct yaml_node *node,
              struct error *err)
{
    void *place = place_of(key, config);
    int64_t *integer = place;
    double *number = place;
    if (key->choices != NULL)
        return set_choice(key, place, node, err);
    switch (key->type) {
    case KEY_BOOL:
        return yaml_bool(node, place, err);
    case KEY_INT:
        return yaml_int(node, integer, err) != 0 ? -1 : check_bounds(key, (double)*integer, err);
    case KEY_NUMBER:
        return set_number(key, number, node, err);
    case KEY_TEXT:
        return set_text(place, node, err);
    case KEY_TEXTS:
        return set_texts(place, node, err);
    case KEY_PAIR:
        return set_pair(key, place, node, err);
    case KEY_NUMBERS:
        return set_numbers(key, place, node, err);
    case KEY_MODEL:
        return set_model(config, node, err);
    case KEY_CHOICE:
        break;
    }
    assert(key->choices != NULL); /* only a choice without choices comes here */
    return -1;
}

static void write_json(const json_t *value, struct strbuf *out)
{
    struct strbuf text = {0};
    struct json_writer w;
    json_writer_start(&w, &text, 0);
    json_write_value(&w, NULL, value);
    yaml_put_json(out, text.data ? text.data : "", text.length);
    out->failed |= text.failed;
    strbuf_free(&text);
}

static void write_texts(const struct run_texts *texts, struct strbuf *out)
{
    strbuf_puts(out, "[");
    for (int64_t i = 0; i < texts->count; i++) {
        strbuf_puts(out, i > 0 ? ", " : "");
        yaml_quote(out, texts->items[i]);
    }
    strbuf_puts(out, "]");
}

static void write_text(const char *text, struct strbuf *out)
{
    if (text != NULL)
        yaml_quote(out, text);
    else
        strbuf_puts(out, "null");
}

void value_write(const struct schema_key *key, const struct run_config *config, struct strbuf *out)
{
    const void *place = place_of(key, config);
    const double *number = place;
    int64_t integer;
    bool unset_number = key->initial == NULL && !key->required; /* train.steps or train.epochs */
    switch (key->type) {
    case KEY_BOOL:
        strbuf_puts(out, *(const bool *)place ? "true" : "false");
        break;
    case KEY_INT:
        integer = *(const int64_t *)place;
        if (unset_number && integer == 0)
            strbuf_puts(out, "null");
        else
            strbuf_printf(out, "%lld", (long long)integer);
        break;
    case KEY_NUMBER:
        if (unset_number && !(*number > 0))
            strbuf_puts(out, "null");
        else
            yaml_put_double(out, *number);
        break;
    case KEY_PAIR:
        write_numbers(number, 2, out);
        break;
    case KEY_NUMBERS: {
        const struct run_numbers *numbers = place;
        if (numbers->count > 0)
            write_numbers(numbers->items, numbers->count, out);
        else
            strbuf_puts(out, "null");
        break;
    }
    case KEY_TEXT:
        write_text(*(char *const *)place, out);
        break;
    case KEY_TEXTS:
        write_texts(place, out);
        break;
    case KEY_CHOICE:
        strbuf_puts(out, choice_name(key, place));
        break;
    case KEY_MODEL:
        if (config->model.config_inline != NULL)
            write_json(config->model.config_inline, out);
        else
            write_text(config->model.config, out);
        break;
    }
}

void value_free(const struct schema_key *key, struct run_config *config)
{
    void *place = place_of(key, config);
    if (key->type == KEY_TEXT || key->type == KEY_MODEL) {
        free(*(char **)place);
        *(char **)place = NULL;
    }
    if (key->type == KEY_TEXTS)
        free_texts(place);
    if (key->type == KEY_MODEL) {
        json_decref(config->model.config_inline);
        free(config->model.config_place);
        config->model.config_inline = NULL;
        config->model.config_place = NULL;
    }
}
