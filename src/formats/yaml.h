/* YAML: a document as a tree whose every node knows where it stands.
 *
 *     struct yaml_tree tree;
 *     struct error_list errors = {0};
 *     if (yaml_tree_open(&tree, "run.yaml", &errors) != 0)
 *         // all that is wrong with the file as YAML, each with its line
 *     const struct yaml_node *lr = yaml_get(yaml_get(tree.root, "optimizer"), "lr");
 *     if (lr != NULL && yaml_double(lr, &value, &err) != 0)
 *         // "run.yaml:9: expected a number, found text \"fast\""
 *     yaml_tree_free(&tree);
 *
 * Scalars are read as YAML 1.2's core schema has it, whatever YAML 1.1 says: 5e-5 is a number, yes is
 * text. JSON is YAML. Anchors and aliases are expanded, within limits. Refused: several documents in
 * one file, keys that are no scalars, merge keys (<<), tags other than the core schema's, nesting
 * deeper than YAML_MAX_DEPTH, more than YAML_MAX_NODES nodes after expansion. */
#ifndef TERCET_FORMATS_YAML_H
#define TERCET_FORMATS_YAML_H

#include "base/error.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { YAML_MAX_DEPTH = 64, YAML_MAX_NODES = 1 << 17 };
#define YAML_FILE_LIMIT ((size_t)4 << 20)

enum yaml_kind { YAML_KIND_SCALAR, YAML_KIND_LIST, YAML_KIND_MAP };

/* What a scalar is by the core schema. A quoted or block scalar, or one tagged !!str, is text. */
enum yaml_type { YAML_TYPE_NULL, YAML_TYPE_BOOL, YAML_TYPE_INT, YAML_TYPE_FLOAT, YAML_TYPE_TEXT };

struct yaml_key {
    const char *text; /* without U+0000 */
    int64_t line, column;
};

struct yaml_node {
    enum yaml_kind kind;
    enum yaml_type type;  /* of a scalar */
    const char *file;     /* its name in messages */
    int64_t line, column; /* from 1; of an aliased node, those of the anchor */
    const char *text;     /* of a scalar, UTF-8 without U+0000 */
    struct yaml_node **children;
    struct yaml_key *keys; /* of a map: keys[i] names children[i] */
    int64_t count;
};

struct yaml_tree {
    struct yaml_node *root; /* an empty file gives a null scalar */
    void *memory;           /* private: owns all nodes */
};

/* Reads a file of at most YAML_FILE_LIMIT bytes. On failure every mistake that could be found (all
 * duplicate keys, for one) is added to `errors`, -1 is returned and *tree is zeroed. */
int yaml_tree_open(struct yaml_tree *tree, const char *path, struct error_list *errors);
/* The same from memory; `name` stands in messages for the file's name. Nothing of it is kept. */
int yaml_tree_parse(struct yaml_tree *tree, const char *name, const void *bytes, size_t size,
                    struct error_list *errors);
/* Safe on a zeroed or freed tree. */
void yaml_tree_free(struct yaml_tree *tree);

/* What a plain scalar of this text is. */
enum yaml_type yaml_scalar_type(const char *text);

/* The member of a map, or NULL: no such key, not a map, or map is NULL. */
const struct yaml_node *yaml_get(const struct yaml_node *map, const char *key);

/* Fills err (ERROR_INPUT) with "file:line" and the problem. Returns -1. */
int yaml_error(const struct yaml_node *node, struct error *err, const char *remedy, const char *what_format,
               ...) __attribute__((format(printf, 4, 5)));

/* "a map", "a list", "text \"fast\"", "the number 5", "true", "nothing (null)": into out, returned. */
char *yaml_describe(const struct yaml_node *node, char *out, size_t size);

/* Typed reading; ERROR_INPUT with the place where the node is something else. */
bool yaml_is_null(const struct yaml_node *node);
int yaml_bool(const struct yaml_node *node, bool *out, struct error *err);
/* Whole numbers, also written 5e8 or 4.0; decimal, 0x and 0o. Beyond int64 is refused. */
int yaml_int(const struct yaml_node *node, int64_t *out, struct error *err);
/* Any finite number. */
int yaml_double(const struct yaml_node *node, double *out, struct error *err);
/* Text; a number, true or null must be quoted to be one. Belongs to the tree. */
int yaml_text(const struct yaml_node *node, const char **out, struct error *err);

/* Writing: a scalar that yaml_text (and YAML 1.1 readers) give back as the same text: plain where that
 * is safe, else in double quotes. */
void yaml_quote(struct strbuf *out, const char *text);
/* n bytes of JSON as a value in YAML: what JSON lets stand in a string and YAML does not, as \u escapes,
 * which both take. */
void yaml_put_json(struct strbuf *out, const char *json, size_t n);
/* A number that yaml_double gives back bit for bit, and that YAML 1.1 readers take for a number too. */
void yaml_put_double(struct strbuf *out, double value);

#endif
