#include "formats/yaml.h"

#include "base/file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* The tree is built from libyaml's events rather than its own documents: those do not tell a scalar
 * tagged !!str from a plain one, and build the whole of a hostile file before anything can be refused. */

/* ---- Memory: blocks that live and go with the tree ---- */

struct block {
    struct block *next;
    size_t used, size;
    _Alignas(16) char data[];
};

enum { BLOCK_SIZE = 1 << 14, ERRORS_MAX = 100 };

static void *take(struct yaml_tree *tree, size_t n)
{
    struct block *block = tree->memory;
    n = (n + 15) & ~(size_t)15;
    if (block == NULL || block->size - block->used < n) {
        size_t size = n > BLOCK_SIZE ? n : BLOCK_SIZE;
        struct block *fresh = malloc(sizeof *fresh + size);
        if (fresh == NULL)
            return NULL;
        *fresh = (struct block){.next = block, .size = size};
        tree->memory = block = fresh;
    }
    void *p = block->data + block->used;
    block->used += n;
    return p;
}

void yaml_tree_free(struct yaml_tree *tree)
{
    for (struct block *block = tree->memory; block != NULL;) {
        struct block *next = block->next;
        free(block);
        block = next;
    }
    *tree = (struct yaml_tree){0};
}

/* ---- Building ---- */

struct anchor {
    char *name;
    struct yaml_node *node;
    bool open; /* its node is still being read */
};

struct builder {
    yaml_parser_t parser;
    struct yaml_tree tree;
    const char *file;
    const char *bytes;
    size_t size;
    struct error_list *errors;
    int64_t nodes, mistakes;
    struct anchor *anchors;
    int64_t anchor_count, anchor_capacity;
};

/* Adds a mistake. Returns 0 to read on for more of them, -1 when there are enough. */
static int mistake(struct builder *b, yaml_mark_t mark, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static int mistake(struct builder *b, yaml_mark_t mark, const char *remedy, const char *format, ...)
{
    char where[512], what[1024];
    struct error err;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(where, sizeof where, "%s:%zu:%zu", b->file, mark.line + 1, mark.column + 1);
    error_set(&err, ERROR_INPUT, where, remedy, "%s", what);
    error_list_add(b->errors, &err);
    return ++b->mistakes < ERRORS_MAX ? 0 : -1;
}

static int no_memory(struct builder *b)
{
    struct error err;
    error_memory(&err, BLOCK_SIZE, "a YAML tree");
    error_list_add(b->errors, &err);
    b->mistakes++;
    return -1;
}

/* Whether a line is indented with tabs, a common cause of what libyaml calls a strange token. */
static bool tab_indented(const struct builder *b, size_t line)
{
    const char *p = b->bytes, *end = b->bytes + b->size;
    for (; line > 0 && p < end; line--) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        p = newline != NULL ? newline + 1 : end;
    }
    while (p < end && *p == ' ')
        p++;
    return p < end && *p == '\t';
}

static int syntax_error(struct builder *b)
{
    const yaml_parser_t *p = &b->parser;
    yaml_mark_t mark = p->problem_mark;
    if (p->error == YAML_MEMORY_ERROR)
        return no_memory(b);
    if (p->error == YAML_READER_ERROR) { /* it has a byte offset in place of a mark */
        mark = (yaml_mark_t){0};
        for (size_t i = 0; i < p->problem_offset && i < b->size; i++) {
            mark.column++;
            if (b->bytes[i] == '\n') {
                mark.line++;
                mark.column = 0;
            }
        }
        mistake(b, mark, "store the file as UTF-8 without control characters", "this is not valid YAML: %s",
                p->problem);
        return -1;
    }
    const char *remedy = tab_indented(b, mark.line) ? "indent with spaces, not tabs" : NULL;
    if (p->context != NULL)
        mistake(b, mark, remedy, "this is not valid YAML: %s %s that begins on line %zu", p->problem,
                p->context, p->context_mark.line + 1);
    else
        mistake(b, mark, remedy, "this is not valid YAML: %s", p->problem);
    return -1;
}

static int next_event(struct builder *b, yaml_event_t *event)
{
    return yaml_parser_parse(&b->parser, event) ? 0 : syntax_error(b);
}

static struct yaml_node *new_node(struct builder *b, enum yaml_kind kind, yaml_mark_t mark)
{
    if (b->nodes >= YAML_MAX_NODES) {
        mistake(b, mark, NULL, "the document has more than %d values, aliases expanded", YAML_MAX_NODES);
        return NULL;
    }
    struct yaml_node *node = take(&b->tree, sizeof *node);
    if (node == NULL) {
        no_memory(b);
        return NULL;
    }
    b->nodes++;
    *node = (struct yaml_node){.kind = kind,
                               .file = b->file,
                               .line = (int64_t)mark.line + 1,
                               .column = (int64_t)mark.column + 1,
                               .text = ""};
    return node;
}

/* ---- Anchors and aliases ---- */

static int declare_anchor(struct builder *b, const yaml_char_t *name, struct yaml_node *node)
{
    if (name == NULL)
        return 0;
    if (b->anchor_count == b->anchor_capacity) {
        int64_t capacity = b->anchor_capacity > 0 ? b->anchor_capacity * 2 : 16;
        struct anchor *larger = realloc(b->anchors, (size_t)capacity * sizeof *larger);
        if (larger == NULL)
            return no_memory(b);
        b->anchors = larger;
        b->anchor_capacity = capacity;
    }
    struct anchor *anchor = &b->anchors[b->anchor_count];
    anchor->name = strdup((const char *)name);
    anchor->node = node;
    anchor->open = true;
    if (anchor->name == NULL)
        return no_memory(b);
    b->anchor_count++;
    return 0;
}

static void close_anchor(struct builder *b, const struct yaml_node *node)
{
    for (int64_t i = b->anchor_count - 1; i >= 0; i--) {
        if (b->anchors[i].node == node) {
            b->anchors[i].open = false;
            return;
        }
    }
}

static struct yaml_node *copy_node(struct builder *b, const struct yaml_node *from, yaml_mark_t mark,
                                   int depth)
{
    if (depth > YAML_MAX_DEPTH) {
        mistake(b, mark, NULL, "values are nested deeper than %d", YAML_MAX_DEPTH);
        return NULL;
    }
    struct yaml_node *node = new_node(b, from->kind, mark);
    if (node == NULL)
        return NULL;
    *node = *from; /* text and keys do not change any more: they are shared */
    if (from->count > 0) {
        node->children = take(&b->tree, (size_t)from->count * sizeof *node->children);
        if (node->children == NULL) {
            no_memory(b);
            return NULL;
        }
    }
    for (int64_t i = 0; i < from->count; i++) {
        node->children[i] = copy_node(b, from->children[i], mark, depth + 1);
        if (node->children[i] == NULL)
            return NULL;
    }
    return node;
}

static struct yaml_node *expand_alias(struct builder *b, const yaml_event_t *event, int depth)
{
    const char *name = (const char *)event->data.alias.anchor;
    for (int64_t i = b->anchor_count - 1; i >= 0; i--) {
        if (strcmp(b->anchors[i].name, name) != 0)
            continue;
        if (!b->anchors[i].open)
            return copy_node(b, b->anchors[i].node, event->start_mark, depth);
        mistake(b, event->start_mark, NULL, "the alias *%s stands inside the value that it stands for", name);
        return NULL;
    }
    mistake(b, event->start_mark, NULL, "there is no anchor &%s before this alias", name);
    return NULL;
}

/* ---- Scalars ---- */

#define TAG_PREFIX "tag:yaml.org,2002:"

/* Applies an explicit tag to a scalar whose type was found from its text. */
static int apply_tag(struct builder *b, struct yaml_node *node, const char *tag, yaml_mark_t mark)
{
    static const struct {
        const char *tag;
        enum yaml_type type;
    } known[] = {{TAG_PREFIX "null", YAML_TYPE_NULL},
                 {TAG_PREFIX "bool", YAML_TYPE_BOOL},
                 {TAG_PREFIX "int", YAML_TYPE_INT},
                 {TAG_PREFIX "float", YAML_TYPE_FLOAT}};
    if (strcmp(tag, "!") == 0 || strcmp(tag, TAG_PREFIX "str") == 0) {
        node->type = YAML_TYPE_TEXT;
        return 0;
    }
    enum yaml_type type = yaml_scalar_type(node->text);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(tag, known[i].tag) != 0)
            continue;
        if (type != known[i].type && !(type == YAML_TYPE_INT && known[i].type == YAML_TYPE_FLOAT))
            return mistake(b, mark, NULL, "\"%s\" does not fit its tag !!%s", node->text,
                           tag + strlen(TAG_PREFIX));
        node->type = known[i].type;
        return 0;
    }
    return mistake(b, mark, "remove it", "the tag %s is not supported", tag);
}

/* The scalar's text in the tree's memory, or NULL. */
static const char *keep_text(struct builder *b, const yaml_event_t *event)
{
    size_t n = event->data.scalar.length;
    const char *value = (const char *)event->data.scalar.value;
    if (strlen(value) != n) {
        n = strlen(value);
        if (mistake(b, event->start_mark, NULL, "this text has U+0000 in it") != 0)
            return NULL;
    }
    char *text = take(&b->tree, n + 1);
    if (text == NULL) {
        no_memory(b);
        return NULL;
    }
    memcpy(text, value, n + 1);
    return text;
}

static struct yaml_node *build_scalar(struct builder *b, const yaml_event_t *event)
{
    struct yaml_node *node = new_node(b, YAML_KIND_SCALAR, event->start_mark);
    if (node == NULL)
        return NULL;
    node->text = keep_text(b, event);
    if (node->text == NULL)
        return NULL;
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    node->type = plain ? yaml_scalar_type(node->text) : YAML_TYPE_TEXT;
    const char *tag = (const char *)event->data.scalar.tag;
    if (tag != NULL && apply_tag(b, node, tag, event->start_mark) != 0)
        return NULL;
    return node;
}

/* ---- Lists and maps ---- */

struct members {
    struct yaml_node **children;
    struct yaml_key *keys;
    int64_t count, capacity;
};

static int add_member(struct builder *b, struct members *m, struct yaml_key key, struct yaml_node *child)
{
    if (m->count == m->capacity) {
        int64_t capacity = m->capacity > 0 ? m->capacity * 2 : 16;
        struct yaml_node **children = realloc(m->children, (size_t)capacity * sizeof *children);
        if (children != NULL)
            m->children = children;
        struct yaml_key *keys = realloc(m->keys, (size_t)capacity * sizeof *keys);
        if (keys != NULL)
            m->keys = keys;
        if (children == NULL || keys == NULL)
            return no_memory(b);
        m->capacity = capacity;
    }
    m->keys[m->count] = key;
    m->children[m->count++] = child;
    return 0;
}

static int compare_keys(const void *left, const void *right, void *context)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    const struct yaml_key *keys = context;
    int order = strcmp(keys[a].text, keys[b].text);
    return order != 0 ? order : a < b ? -1 : a > b;
}

/* Reports every key that stood in the map before, in the order of the text. */
static int report_duplicates(struct builder *b, const struct members *m)
{
    if (m->count < 2)
        return 0;
    size_t n = (size_t)m->count;
    int64_t *sorted = malloc(2 * n * sizeof *sorted);
    if (sorted == NULL)
        return no_memory(b);
    int64_t *first = sorted + n; /* of each key, the first one with its text */
    for (size_t i = 0; i < n; i++)
        sorted[i] = (int64_t)i;
    qsort_r(sorted, n, sizeof *sorted, compare_keys, m->keys);
    for (size_t i = 0; i < n; i++) {
        bool same = i > 0 && strcmp(m->keys[sorted[i]].text, m->keys[sorted[i - 1]].text) == 0;
        first[sorted[i]] = same ? first[sorted[i - 1]] : sorted[i];
    }
    int status = 0;
    for (int64_t i = 0; i < m->count && status == 0; i++) {
        const struct yaml_key *key = &m->keys[i];
        yaml_mark_t mark = {0, (size_t)key->line - 1, (size_t)key->column - 1};
        if (first[i] != i)
            status = mistake(b, mark, "keep one of them", "the key \"%s\" stands on line %" PRId64 " already",
                             key->text, m->keys[first[i]].line);
    }
    free(sorted);
    return status;
}

/* Moves what was gathered into the node. */
static int settle(struct builder *b, struct yaml_node *node, const struct members *m)
{
    size_t n = (size_t)m->count;
    node->count = m->count;
    if (n == 0)
        return 0;
    node->children = take(&b->tree, n * sizeof *node->children);
    if (node->children == NULL)
        return no_memory(b);
    memcpy(node->children, m->children, n * sizeof *node->children);
    if (node->kind != YAML_KIND_MAP)
        return 0;
    node->keys = take(&b->tree, n * sizeof *node->keys);
    if (node->keys == NULL)
        return no_memory(b);
    memcpy(node->keys, m->keys, n * sizeof *node->keys);
    return report_duplicates(b, m);
}

static struct yaml_node *build_node(struct builder *b, const yaml_event_t *event, int depth);

/* Reads one event and builds the node that begins with it; *end is set, and NULL returned without a
 * mistake, where the event closes the collection. */
static struct yaml_node *build_next(struct builder *b, int depth, bool *end)
{
    yaml_event_t event;
    struct yaml_node *node = NULL;
    if (next_event(b, &event) != 0)
        return NULL;
    if (event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT)
        *end = true;
    else
        node = build_node(b, &event, depth);
    yaml_event_delete(&event);
    return node;
}

static int read_list(struct builder *b, struct members *m, int depth)
{
    for (;;) {
        bool end = false;
        struct yaml_node *child = build_next(b, depth + 1, &end);
        if (end)
            return 0;
        if (child == NULL || add_member(b, m, (struct yaml_key){0}, child) != 0)
            return -1;
    }
}

static int read_map(struct builder *b, struct members *m, int depth)
{
    for (;;) {
        bool end = false;
        const struct yaml_node *key = build_next(b, depth + 1, &end);
        if (end)
            return 0;
        struct yaml_node *child = key != NULL ? build_next(b, depth + 1, &end) : NULL;
        if (child == NULL)
            return -1;
        yaml_mark_t mark = {0, (size_t)key->line - 1, (size_t)key->column - 1};
        int status;
        if (key->kind != YAML_KIND_SCALAR)
            status = mistake(b, mark, NULL, "a key must be a single word or text, not %s",
                             key->kind == YAML_KIND_MAP ? "a map" : "a list");
        else if (strcmp(key->text, "<<") == 0)
            status = mistake(b, mark, "write the keys out", "merge keys (<<) are not supported");
        else
            status = add_member(b, m, (struct yaml_key){key->text, key->line, key->column}, child);
        if (status != 0)
            return -1;
    }
}

static struct yaml_node *build_collection(struct builder *b, const yaml_event_t *event, int depth)
{
    bool map = event->type == YAML_MAPPING_START_EVENT;
    const yaml_char_t *anchor = map ? event->data.mapping_start.anchor : event->data.sequence_start.anchor;
    const char *tag = (const char *)(map ? event->data.mapping_start.tag : event->data.sequence_start.tag);
    struct members m = {0};
    if (tag != NULL && strcmp(tag, "!") != 0 && strcmp(tag, map ? TAG_PREFIX "map" : TAG_PREFIX "seq") != 0 &&
        mistake(b, event->start_mark, "remove it", "the tag %s is not supported", tag) != 0)
        return NULL;
    struct yaml_node *node = new_node(b, map ? YAML_KIND_MAP : YAML_KIND_LIST, event->start_mark);
    if (node == NULL || declare_anchor(b, anchor, node) != 0)
        return NULL;
    int status = map ? read_map(b, &m, depth) : read_list(b, &m, depth);
    if (status == 0)
        status = settle(b, node, &m);
    free(m.children);
    free(m.keys);
    if (status != 0)
        return NULL;
    if (anchor != NULL)
        close_anchor(b, node);
    return node;
}

/* NULL after a mistake that ends the reading. */
static struct yaml_node *build_node(struct builder *b, const yaml_event_t *event, int depth)
{
    if (depth > YAML_MAX_DEPTH) {
        mistake(b, event->start_mark, NULL, "values are nested deeper than %d", YAML_MAX_DEPTH);
        return NULL;
    }
    if (event->type == YAML_ALIAS_EVENT)
        return expand_alias(b, event, depth);
    if (event->type != YAML_SCALAR_EVENT)
        return build_collection(b, event, depth);
    struct yaml_node *node = build_scalar(b, event);
    if (node == NULL || declare_anchor(b, event->data.scalar.anchor, node) != 0)
        return NULL;
    if (event->data.scalar.anchor != NULL)
        close_anchor(b, node);
    return node;
}

/* ---- Documents ---- */

/* Reads the next event, which must be of one of two types, and says which; -1 after a mistake. */
static int expect(struct builder *b, yaml_event_type_t one, yaml_event_type_t other)
{
    yaml_event_t event;
    if (next_event(b, &event) != 0)
        return -1;
    int status = -1;
    if (event.type == one || event.type == other)
        status = event.type == one ? 1 : 2;
    else
        mistake(b, event.start_mark, "keep one document in the file", "a second document begins here");
    yaml_event_delete(&event);
    return status;
}

static int build_document(struct builder *b)
{
    bool end = false;
    if (expect(b, YAML_STREAM_START_EVENT, YAML_STREAM_START_EVENT) < 0)
        return -1;
    int first = expect(b, YAML_DOCUMENT_START_EVENT, YAML_STREAM_END_EVENT);
    if (first < 0)
        return -1;
    if (first == 2) {
        b->tree.root = new_node(b, YAML_KIND_SCALAR, (yaml_mark_t){0});
        return b->tree.root != NULL ? 0 : -1;
    }
    b->tree.root = build_next(b, 1, &end);
    if (b->tree.root == NULL || expect(b, YAML_DOCUMENT_END_EVENT, YAML_DOCUMENT_END_EVENT) < 0 ||
        expect(b, YAML_STREAM_END_EVENT, YAML_STREAM_END_EVENT) < 0)
        return -1;
    return 0;
}

int yaml_tree_parse(struct yaml_tree *tree, const char *name, const void *bytes, size_t size,
                    struct error_list *errors)
{
    /* Editors put a byte order mark there; libyaml takes it for text where it is told the encoding. */
    if (size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {
        bytes = (const char *)bytes + 3;
        size -= 3;
    }
    struct builder b = {.bytes = bytes, .size = size, .errors = errors};
    *tree = (struct yaml_tree){0};
    char *file = take(&b.tree, strlen(name) + 1);
    if (file == NULL || !yaml_parser_initialize(&b.parser)) {
        yaml_tree_free(&b.tree);
        return no_memory(&b);
    }
    memcpy(file, name, strlen(name) + 1);
    b.file = file;
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b.parser, size > 0 ? bytes : (const unsigned char *)"", size);
    int status = build_document(&b);
    yaml_parser_delete(&b.parser);
    for (int64_t i = 0; i < b.anchor_count; i++)
        free(b.anchors[i].name);
    free(b.anchors);
    if (status != 0 || b.mistakes > 0) {
        yaml_tree_free(&b.tree);
        return -1;
    }
    *tree = b.tree;
    return 0;
}

int yaml_tree_open(struct yaml_tree *tree, const char *path, struct error_list *errors)
{
    char *bytes;
    size_t size;
    struct error err;
    *tree = (struct yaml_tree){0};
    if (file_read(path, YAML_FILE_LIMIT, &bytes, &size, &err) != 0) {
        error_list_add(errors, &err);
        return -1;
    }
    int status = yaml_tree_parse(tree, path, bytes, size, errors);
    free(bytes);
    return status;
}
