/* What the table has to say: the resolved run file, help for a terminal, a page of Markdown, and what
 * differs between two runs. */
#include "config/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Length of a key's section when it is another one than that of the key before; else -1. */
static int new_section(int key)
{
    size_t length, before;
    schema_leaf(schema_keys[key].name, &length);
    if (key == 0)
        return (int)length;
    schema_leaf(schema_keys[key - 1].name, &before);
    bool same = length == before && strncmp(schema_keys[key].name, schema_keys[key - 1].name, length) == 0;
    return same ? -1 : (int)length;
}

void run_config_write(const struct run_config *config, struct strbuf *out)
{
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        size_t length;
        const char *leaf = schema_leaf(schema_keys[i].name, &length);
        int section = new_section(i);
        if (section > 0)
            strbuf_printf(out, "%.*s:\n", section, schema_keys[i].name);
        strbuf_printf(out, "%s%s: ", length > 0 ? "  " : "", leaf);
        value_write(&schema_keys[i], config, out);
        strbuf_puts(out, "\n");
    }
}

/* ---- Help ---- */

static void describe_choices(const struct choice *choices, struct strbuf *out)
{
    const char *between = "";
    for (; choices->name != NULL; choices++) {
        if (choices->later)
            continue;
        strbuf_printf(out, "%s%s", between, choices->name);
        between = " | ";
    }
}

static void describe_type(const struct schema_key *key, struct strbuf *out)
{
    static const char *const names[] = {
        [KEY_BOOL] = "true | false",      [KEY_INT] = "whole number",
        [KEY_NUMBER] = "number",          [KEY_TEXT] = "text",
        [KEY_TEXTS] = "text or list",     [KEY_PAIR] = "two numbers",
        [KEY_NUMBERS] = "number or list", [KEY_CHOICE] = "choice",
        [KEY_MODEL] = "path or map",
    };
    if (key->choices != NULL)
        describe_choices(key->choices, out);
    else
        strbuf_puts(out, names[key->type]);
}

static void describe_default(const struct schema_key *key, struct strbuf *out)
{
    if (key->required)
        strbuf_puts(out, "required");
    else if (key->initial != NULL)
        strbuf_puts(out, key->initial);
    else if (key->shown != NULL)
        strbuf_puts(out, key->shown);
    else
        strbuf_puts(out, "none");
}

void run_config_help(struct strbuf *out)
{
    strbuf_puts(out,
                "Keys of the run file: name (default), what it takes, what it means.\n"
                "On the command line: key=value, for example optimizer.lr=1e-4; key=null unsets a key.\n");
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        const struct schema_key *key = &schema_keys[i];
        int section = new_section(i);
        if (section >= 0)
            strbuf_printf(out, "\n%s\n", schema_section_help(key->name, (size_t)section));
        strbuf_printf(out, "  %s (", key->name);
        describe_default(key, out);
        strbuf_puts(out, "): ");
        describe_type(key, out);
        strbuf_printf(out, "\n      %s\n", key->help);
    }
}

/* A bar would end a cell of the table. */
static void put_cell(struct strbuf *out, const char *text)
{
    for (; *text != '\0'; text++)
        strbuf_printf(out, *text == '|' ? "\\%c" : "%c", *text);
}

void run_config_markdown(struct strbuf *out)
{
    struct strbuf type = {0};
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        const struct schema_key *key = &schema_keys[i];
        int section = new_section(i);
        if (section > 0)
            strbuf_printf(out, "\n## %.*s\n\n%s\n", section, key->name,
                          schema_section_help(key->name, (size_t)section));
        if (section >= 0)
            strbuf_puts(out, "\n| key | default | takes | meaning |\n|---|---|---|---|\n");
        strbuf_clear(&type);
        describe_type(key, &type);
        strbuf_printf(out, "| `%s` | ", key->name);
        describe_default(key, out);
        strbuf_puts(out, " | ");
        put_cell(out, type.data != NULL ? type.data : "");
        strbuf_puts(out, " | ");
        put_cell(out, key->help);
        strbuf_puts(out, " |\n");
    }
    out->failed |= type.failed;
    strbuf_free(&type);
}

/* ---- Key by key ---- */

bool run_config_key(int i, struct run_key *out)
{
    if (i < 0 || i >= SCHEMA_KEYS)
        return false;
    const struct schema_key *key = &schema_keys[i];
    int section = new_section(i);
    *out = (struct run_key){
        .name = key->name,
        .help = key->help,
        .section = section >= 0 ? schema_section_help(key->name, (size_t)section) : NULL,
        .path = key->path,
    };
    return true;
}

void run_config_key_takes(int i, struct strbuf *out)
{
    describe_type(&schema_keys[i], out);
}

void run_config_key_default(int i, struct strbuf *out)
{
    describe_default(&schema_keys[i], out);
}

const char *run_config_key_word(int i, int n)
{
    static const char *const truths[] = {"true", "false"};
    const struct schema_key *key = &schema_keys[i];
    if (key->type == KEY_BOOL)
        return n < 2 ? truths[n] : NULL;
    for (const struct choice *choice = key->choices; choice != NULL && choice->name != NULL; choice++)
        if (!choice->later && n-- == 0)
            return choice->name;
    return NULL;
}

/* ---- Differences ---- */

/* A key itself, or its section. */
static bool covers(const char *allowed, const char *key)
{
    size_t n = strlen(allowed);
    return strncmp(allowed, key, n) == 0 && (key[n] == '\0' || key[n] == '.');
}

static bool is_allowed(const char *const *allow, int64_t count, const char *key)
{
    for (int64_t i = 0; i < count; i++)
        if (covers(allow[i], key))
            return true;
    return false;
}

/* cpu and guarded compute the same bits, and auto is cpu. */
static bool same_backend(const char *a, const char *b)
{
    bool reference_a = strcmp(a, "reference") == 0, reference_b = strcmp(b, "reference") == 0;
    return reference_a == reference_b;
}

static void add_difference(const char *key, const char *old, const char *current, struct error_list *errors)
{
    struct error err = {0};
    char remedy[256];
    snprintf(remedy, sizeof remedy, "set it back, or allow it with --allow-change %s", key);
    error_set(&err, ERROR_INPUT, NULL, remedy, "%s was %.300s when the run began, and is %.300s now", key,
              old, current);
    error_list_add(errors, &err);
}

static void check_allowed(const char *const *allow, int64_t count, struct error_list *errors)
{
    for (int64_t i = 0; i < count; i++) {
        char remedy[160] = "";
        struct error err = {0};
        if (schema_find(allow[i]) >= 0 || schema_is_section(allow[i]))
            continue;
        const char *near = schema_nearest(allow[i]);
        if (near != NULL)
            snprintf(remedy, sizeof remedy, "did you mean %s?", near);
        error_set(&err, ERROR_INPUT, "command line", remedy, "--allow-change %.200s: unknown key", allow[i]);
        error_list_add(errors, &err);
    }
}

int64_t run_config_difference(const struct run_config *old, const struct run_config *current,
                              const char *const *allow, int64_t allow_count, struct error_list *errors)
{
    struct strbuf a = {0}, b = {0};
    int64_t before = errors->count;
    check_allowed(allow, allow_count, errors);
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        const struct schema_key *key = &schema_keys[i];
        if (key->free || is_allowed(allow, allow_count, key->name))
            continue;
        if (strcmp(key->name, "backend.name") == 0 && same_backend(old->backend.name, current->backend.name))
            continue;
        strbuf_clear(&a);
        strbuf_clear(&b);
        value_write(key, old, &a);
        value_write(key, current, &b);
        if (a.failed || b.failed || a.length != b.length || memcmp(a.data, b.data, a.length) != 0)
            add_difference(key->name, a.failed ? "?" : a.data, b.failed ? "?" : b.data, errors);
    }
    strbuf_free(&a);
    strbuf_free(&b);
    return errors->count - before;
}
