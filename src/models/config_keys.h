/* Reading a config.json key by key, so that no key is passed over in silence.
 *
 *     struct config_keys keys;
 *     config_keys_start(&keys, object, "config.json", document, log);
 *     if (config_keys_int(&keys, "hidden_size", 1, 1 << 24, 4096, &hidden, err) != 0)
 *         return -1;
 *     config_keys_accept(&keys, "use_cache");      // known, and without effect here
 *     config_keys_report(&keys);                   // every other key, by name, through the log
 *
 * A key that is absent has its fallback: the default of Hugging Face's class. A null is refused where a
 * function does not say otherwise, because Hugging Face would not take its default for it either.
 * Messages name file, line (when read from a document) and the key's whole path. */
#ifndef TERCET_MODELS_CONFIG_KEYS_H
#define TERCET_MODELS_CONFIG_KEYS_H

#include "base/error.h"
#include "base/log.h"
#include "formats/json.h"

#include <stdbool.h>
#include <stdint.h>

enum { CONFIG_KEYS_MAX = 64 };

struct config_keys {
    const json_t *object;
    const char *file, *path;              /* path: "" or that of the object, "rope_scaling" */
    const struct json_document *document; /* for line numbers; NULL when there is none */
    const struct log *log;
    const char *known[CONFIG_KEYS_MAX];
    int known_count;
};

/* Nothing is copied: all arguments must outlive `keys`. */
void config_keys_start(struct config_keys *keys, const json_t *object, const char *file,
                       const struct json_document *document, const struct log *log);
/* The same for a member object of `outer`, whose key is `path`. */
void config_keys_start_inner(struct config_keys *keys, const struct config_keys *outer, const json_t *object,
                             const char *path);

/* The value of a key, which counts as understood from now on; NULL where it is absent or null. */
const json_t *config_keys_value(struct config_keys *keys, const char *key);
/* Marks a key as understood, whatever it holds. */
void config_keys_accept(struct config_keys *keys, const char *key);

/* Each returns 0, or -1 with ERROR_INPUT. */
int config_keys_int(struct config_keys *keys, const char *key, int64_t min, int64_t max, int64_t fallback,
                    int64_t *out, struct error *err);
/* null counts as absent. */
int config_keys_int_or_null(struct config_keys *keys, const char *key, int64_t min, int64_t max,
                            int64_t fallback, int64_t *out, struct error *err);
/* A finite number above 0, or equal to it where `zero` is allowed. */
int config_keys_double(struct config_keys *keys, const char *key, bool zero, double fallback, double *out,
                       struct error *err);
int config_keys_bool(struct config_keys *keys, const char *key, bool fallback, bool *out, struct error *err);
/* Belongs to the object. */
int config_keys_string(struct config_keys *keys, const char *key, const char *fallback, const char **out,
                       struct error *err);

/* Fills err with ERROR_INPUT, the place of `key` and "path.key: problem". Returns -1. */
int config_keys_error(const struct config_keys *keys, const char *key, struct error *err, const char *remedy,
                      const char *what_format, ...) __attribute__((format(printf, 5, 6)));

/* One warning for every key that nobody asked for. */
void config_keys_report(const struct config_keys *keys);

#endif
