/* The table behind the run file: one entry a key. Private to config/. */
#ifndef TERCET_CONFIG_SCHEMA_H
#define TERCET_CONFIG_SCHEMA_H

#include "config/runfile.h"
#include "formats/yaml.h"

enum key_type {
    KEY_BOOL,    /* bool */
    KEY_INT,     /* int64_t, min … max */
    KEY_NUMBER,  /* double, min … max */
    KEY_TEXT,    /* char *; with choices, one of them */
    KEY_TEXTS,   /* struct run_texts: one text or a list of them */
    KEY_PAIR,    /* double[2], each min … max */
    KEY_NUMBERS, /* struct run_numbers: one number or a list of them, each min … max */
    KEY_CHOICE,  /* an enum */
    KEY_MODEL,   /* model.config: a path, or a map */
};

struct choice {
    const char *name;
    int value;
    bool later; /* known, and not available in this version */
};

struct schema_key {
    const char *name; /* dotted */
    enum key_type type;
    size_t offset;       /* in struct run_config */
    const char *initial; /* default as YAML text; NULL: none */
    const char *shown;   /* what help says of the default where `initial` does not tell */
    bool required;
    bool free;                    /* may change when a run is resumed */
    bool path;                    /* names files or directories */
    double min, max;              /* of KEY_INT, KEY_NUMBER, KEY_PAIR, KEY_NUMBERS */
    bool above_min;               /* min itself is not allowed */
    bool below_max;               /* max itself is not allowed */
    const struct choice *choices; /* ended by a NULL name */
    const char *help;
};

enum { SCHEMA_KEYS = 54 };
extern const struct schema_key schema_keys[SCHEMA_KEYS];

/* By dotted name; -1 when there is none. */
int schema_find(const char *name);
/* The name of section i, from 0; NULL behind the last. */
const char *schema_section(int i);
/* Whether `name` is a map that holds keys: "optimizer". */
bool schema_is_section(const char *name);
/* The part of a key's name after its section, and the length of the section (0: none). */
const char *schema_leaf(const char *name, size_t *section_length);
const char *schema_section_help(const char *section, size_t length);

/* The key or section that someone who typed `name` most likely meant; NULL when nothing is near. */
const char *schema_nearest(const char *name);
/* The same among the choices of a key. */
const char *schema_nearest_choice(const struct choice *choices, const char *text);

/* One key's value (value.c). Setting checks type, bounds and choices; on failure err->what is the problem
 * without place and key. */
int value_set(const struct schema_key *key, struct run_config *config, const struct yaml_node *node,
              struct error *err);
/* Appends it as one line of YAML; "null" when it is not given. */
void value_write(const struct schema_key *key, const struct run_config *config, struct strbuf *out);
void value_free(const struct schema_key *key, struct run_config *config);

/* What no single key shows (check.c). `given[i]` tells that key i has a sound value that was given,
 * `sound[i]` that its value, given or not, may be looked at. Adds to errors. */
void check_together(const struct run_config *config, const bool *given, const bool *sound, const char *file,
                    struct error_list *errors);

/* A tree of JSON from one of YAML; NULL with err filled. The caller json_decref()s. */
json_t *yaml_to_json(const struct yaml_node *node, struct error *err);

#endif
