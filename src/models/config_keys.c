#include "models/config_keys.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void config_keys_start(struct config_keys *keys, const json_t *object, const char *file,
                       const struct json_document *document, const struct log *log)
{
    *keys =
        (struct config_keys){.object = object, .file = file, .path = "", .document = document, .log = log};
}

void config_keys_start_inner(struct config_keys *keys, const struct config_keys *outer, const json_t *object,
                             const char *path)
{
    config_keys_start(keys, object, outer->file, outer->document, outer->log);
    keys->path = path;
}

static bool is_known(const struct config_keys *keys, const char *key)
{
    for (int i = 0; i < keys->known_count; i++)
        if (strcmp(keys->known[i], key) == 0)
            return true;
    return false;
}

void config_keys_accept(struct config_keys *keys, const char *key)
{
    if (is_known(keys, key))
        return;
    assert(keys->known_count < CONFIG_KEYS_MAX);
    keys->known[keys->known_count++] = key;
}

const json_t *config_keys_value(struct config_keys *keys, const char *key)
{
    config_keys_accept(keys, key);
    const json_t *value = json_object_get(keys->object, key);
    return json_is_null(value) ? NULL : value;
}

int config_keys_error(const struct config_keys *keys, const char *key, struct error *err, const char *remedy,
                      const char *what_format, ...)
{
    char where[512], what[900];
    int64_t line = keys->document != NULL ? json_line_of(keys->document, keys->object, key) : 0;
    if (line > 0)
        snprintf(where, sizeof where, "%s:%" PRId64, keys->file, line);
    else
        snprintf(where, sizeof where, "%s", keys->file);
    va_list arguments;
    va_start(arguments, what_format);
    vsnprintf(what, sizeof what, what_format, arguments);
    va_end(arguments);
    return error_set(err, ERROR_INPUT, where, remedy, "%s%s%s: %s", keys->path,
                     keys->path[0] != '\0' ? "." : "", key, what);
}

/* The value of a key that is there; a null is a mistake. 1: there, 0: absent, -1: null. */
static int present(struct config_keys *keys, const char *key, const json_t **value, struct error *err)
{
    config_keys_accept(keys, key);
    *value = json_object_get(keys->object, key);
    if (*value == NULL)
        return 0;
    if (json_is_null(*value))
        return config_keys_error(keys, key, err, "give it a value, or leave it out to get the default",
                                 "it is null");
    return 1;
}

int config_keys_int(struct config_keys *keys, const char *key, int64_t min, int64_t max, int64_t fallback,
                    int64_t *out, struct error *err)
{
    const json_t *value;
    *out = fallback;
    int there = present(keys, key, &value, err);
    if (there <= 0)
        return there;
    if (!json_is_integer(value))
        return config_keys_error(keys, key, err, NULL, "expected an integer, found %s",
                                 json_kind_name(value));
    int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return config_keys_error(keys, key, err, NULL,
                                 "%" PRId64 " is impossible, it must lie between %" PRId64 " and %" PRId64,
                                 number, min, max);
    *out = number;
    return 0;
}

int config_keys_int_or_null(struct config_keys *keys, const char *key, int64_t min, int64_t max,
                            int64_t fallback, int64_t *out, struct error *err)
{
    *out = fallback;
    if (config_keys_value(keys, key) == NULL)
        return 0;
    return config_keys_int(keys, key, min, max, fallback, out, err);
}

int config_keys_double(struct config_keys *keys, const char *key, bool zero, double fallback, double *out,
                       struct error *err)
{
    const json_t *value;
    *out = fallback;
    int there = present(keys, key, &value, err);
    if (there <= 0)
        return there;
    if (!json_is_number(value))
        return config_keys_error(keys, key, err, NULL, "expected a number, found %s", json_kind_name(value));
    double number = json_number_value(value);
    if (!isfinite(number) || number < 0 || (number == 0 && !zero))
        return config_keys_error(keys, key, err, NULL, "%g is impossible, it must be %s 0", number,
                                 zero ? "at least" : "above");
    if (number > FLT_MAX) /* models are computed with floats at most this large */
        return config_keys_error(keys, key, err, NULL, "%g is impossible, it must be below %g", number,
                                 (double)FLT_MAX);
    *out = number;
    return 0;
}

int config_keys_bool(struct config_keys *keys, const char *key, bool fallback, bool *out, struct error *err)
{
    const json_t *value;
    *out = fallback;
    int there = present(keys, key, &value, err);
    if (there <= 0)
        return there;
    if (!json_is_boolean(value))
        return config_keys_error(keys, key, err, NULL, "expected true or false, found %s",
                                 json_kind_name(value));
    *out = json_is_true(value);
    return 0;
}

int config_keys_string(struct config_keys *keys, const char *key, const char *fallback, const char **out,
                       struct error *err)
{
    const json_t *value;
    *out = fallback;
    int there = present(keys, key, &value, err);
    if (there <= 0)
        return there;
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return config_keys_error(keys, key, err, NULL, "expected a string, found %s", json_kind_name(value));
    *out = json_string_value(value);
    return 0;
}

void config_keys_report(const struct config_keys *keys)
{
    const char *key;
    json_t *value;
    /* jansson's iteration wants a json_t that is not const, and does not change it. */
    json_object_foreach((json_t *)(uintptr_t)keys->object, key, value)
    {
        if (!is_known(keys, key))
            log_warning(keys->log,
                        "%s: %s%s%s is not understood: it has no effect, and is kept in what is written",
                        keys->file, keys->path, keys->path[0] != '\0' ? "." : "", key);
    }
}
