#include "formats/yaml.h"
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct yaml_tree parse(const char *text)
{
    struct yaml_tree tree;
    struct error_list errors = {0};
    if (yaml_tree_parse(&tree, "run.yaml", text, strlen(text), &errors) != 0)
        fail_msg("%s: %s", errors.items[0].where, errors.items[0].what);
    assert_int_equal(errors.count, 0);
    error_list_free(&errors);
    return tree;
}

/* Parses what must be refused, with at least one error, the first of which is given. */
static struct error_list refuse(const char *text, size_t size, const char *where, const char *what)
{
    struct yaml_tree tree;
    struct error_list errors = {0};
    assert_int_equal(yaml_tree_parse(&tree, "run.yaml", text, size, &errors), -1);
    assert_null(tree.root);
    assert_true(errors.count > 0);
    assert_int_equal(errors.items[0].kind, ERROR_INPUT);
    assert_string_equal(errors.items[0].where, where);
    if (strstr(errors.items[0].what, what) == NULL)
        fail_msg("\"%s\" not in \"%s\"", what, errors.items[0].what);
    return errors;
}

static void assert_at(const struct yaml_node *node, int64_t line, int64_t column)
{
    assert_non_null(node);
    assert_int_equal(node->line, line);
    assert_int_equal(node->column, column);
    assert_string_equal(node->file, "run.yaml");
}

static void positions(void **state)
{
    (void)state;
    struct yaml_tree tree = parse("# a run\n"
                                  "output: runs/demo   # directory\n"
                                  "\n"
                                  "data:\n"
                                  "  train: [a.jsonl,\n"
                                  "          b.jsonl]\n"
                                  "  text: |\n"
                                  "    two\n"
                                  "    lines\n"
                                  "  词: \"é\\n\"\n"
                                  "  list:\n"
                                  "    - 1\n"
                                  "    - {name: adamw, lr: 5e-5}\n"
                                  "    -\n");
    const struct yaml_node *root = tree.root, *data = yaml_get(root, "data"), *list = yaml_get(data, "list");
    assert_int_equal(root->kind, YAML_KIND_MAP);
    assert_int_equal(root->count, 2);
    assert_string_equal(root->keys[0].text, "output");
    assert_string_equal(root->keys[1].text, "data");
    assert_int_equal(root->keys[1].line, 4);
    assert_int_equal(root->keys[1].column, 1);
    assert_at(yaml_get(root, "output"), 2, 9);
    assert_string_equal(yaml_get(root, "output")->text, "runs/demo");
    assert_at(data, 5, 3);
    const struct yaml_node *train = yaml_get(data, "train");
    assert_int_equal(train->kind, YAML_KIND_LIST);
    assert_at(train, 5, 10);
    assert_int_equal(train->count, 2);
    assert_at(train->children[1], 6, 11);
    assert_string_equal(yaml_get(data, "text")->text, "two\nlines\n");
    assert_int_equal(yaml_get(data, "text")->type, YAML_TYPE_TEXT);
    assert_at(yaml_get(data, "词"), 10, 6);
    assert_string_equal(yaml_get(data, "词")->text, "é\n");
    assert_int_equal(list->count, 3);
    assert_at(list->children[0], 12, 7);
    assert_int_equal(list->children[0]->type, YAML_TYPE_INT);
    assert_int_equal(list->children[1]->keys[1].column, 21);
    assert_int_equal(yaml_get(list->children[1], "lr")->type, YAML_TYPE_FLOAT);
    assert_int_equal(list->children[2]->type, YAML_TYPE_NULL);
    assert_null(yaml_get(root, "absent"));
    assert_null(yaml_get(list, "absent"));
    assert_null(yaml_get(yaml_get(root, "absent"), "deeper"));
    yaml_tree_free(&tree);
    yaml_tree_free(&tree); /* once more does no harm */
}

static void json_is_yaml(void **state)
{
    (void)state;
    struct yaml_tree tree =
        parse("\xef\xbb\xbf{\"a\": [1, true, null, \"true\", \"\\u00e9\"],\n\t\"b\": {}}\n");
    const struct yaml_node *a = yaml_get(tree.root, "a");
    static const enum yaml_type types[] = {YAML_TYPE_INT, YAML_TYPE_BOOL, YAML_TYPE_NULL, YAML_TYPE_TEXT,
                                           YAML_TYPE_TEXT};
    for (int i = 0; i < 5; i++)
        assert_int_equal(a->children[i]->type, types[i]);
    assert_string_equal(a->children[4]->text, "é");
    assert_int_equal(yaml_get(tree.root, "b")->kind, YAML_KIND_MAP);
    assert_int_equal(yaml_get(tree.root, "b")->count, 0);
    yaml_tree_free(&tree);
}

/* As some editors write it: the mark is no part of the first key, and shifts none of its lines. */
static void byte_order_mark(void **state)
{
    (void)state;
    struct yaml_tree tree = parse("\xef\xbb\xbf"
                                  "a: 1\r\nb:\r\n  c: 2\r\n");
    assert_int_equal(tree.root->count, 2);
    assert_string_equal(tree.root->keys[0].text, "a");
    assert_int_equal(tree.root->keys[0].column, 1);
    assert_int_equal(yaml_get(yaml_get(tree.root, "b"), "c")->line, 3);
    yaml_tree_free(&tree);
}

static void empty_files(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "# nothing\n", "---\n", "\n\n"};
    for (int i = 0; i < 4; i++) {
        struct yaml_tree tree = parse(texts[i]);
        assert_int_equal(tree.root->kind, YAML_KIND_SCALAR);
        assert_int_equal(tree.root->type, YAML_TYPE_NULL);
        yaml_tree_free(&tree);
    }
    struct yaml_tree tree;
    struct error_list errors = {0};
    assert_int_equal(yaml_tree_parse(&tree, "run.yaml", NULL, 0, &errors), 0);
    yaml_tree_free(&tree);
}

static void all_duplicates(void **state)
{
    (void)state;
    static const char text[] = "b: 1\na: 2\nb: 3\nc: {x: 1, y: 2,\n  x: 3}\n\"a\": 4\nb: 5\n";
    struct error_list errors =
        refuse(text, strlen(text), "run.yaml:5:3", "the key \"x\" stands on line 4 already");
    assert_int_equal(errors.count, 4);
    assert_string_equal(errors.items[1].where, "run.yaml:3:1");
    assert_string_equal(errors.items[1].what, "the key \"b\" stands on line 1 already");
    assert_string_equal(errors.items[2].where, "run.yaml:6:1");
    assert_string_equal(errors.items[3].where, "run.yaml:7:1");
    assert_string_equal(errors.items[3].what, "the key \"b\" stands on line 1 already");
    error_list_free(&errors);
}

static void mistakes_of_many_kinds_at_once(void **state)
{
    (void)state;
    static const char text[] =
        "a: !color red\nb: 1\nb: \"x\\0\"\n<<: {c: 1}\n? [k]\n: v\nd: !!int x\ne: !thing [1]\n";
    struct error_list errors = refuse(text, strlen(text), "run.yaml:1:4", "the tag !color is not supported");
    static const char *const rest[] = {"U+0000",
                                       "merge keys",
                                       "not a list",
                                       "does not fit its tag !!int",
                                       "the tag !thing is not",
                                       "\"b\" stands on line 2"};
    assert_int_equal(errors.count, 7);
    for (int i = 0; i < 6; i++)
        if (strstr(errors.items[i + 1].what, rest[i]) == NULL)
            fail_msg("\"%s\" not in \"%s\"", rest[i], errors.items[i + 1].what);
    error_list_free(&errors);
}

static void too_many_mistakes_stop(void **state)
{
    (void)state;
    struct strbuf b = {0};
    for (int i = 0; i < 5000; i++)
        strbuf_puts(&b, "a: 1\n");
    struct error_list errors = refuse(b.data, b.length, "run.yaml:2:1", "\"a\" stands on line 1");
    assert_int_equal(errors.count, 100);
    error_list_free(&errors);
    strbuf_free(&b);
}

static void broken_text(void **state)
{
    (void)state;
    static const struct {
        const char *text, *where, *what, *remedy;
    } cases[] = {
        {"a: [1, 2\nb: 3\n", "run.yaml:2:2", "line 1", ""},
        {"a: 1\n  b: 2\n", "run.yaml:2:4", "not valid YAML", ""},
        {"a:\n\tb: 1\n", "run.yaml:2:1", "not valid YAML", "indent with spaces, not tabs"},
        {"a: 'open\n", "run.yaml:2:1", "not valid YAML", ""},
        {"a: 1\nb: \xff\n", "run.yaml:2:4", "UTF-8", "store the file as UTF-8 without control characters"},
        {"a: \x01\n", "run.yaml:1:4", "control characters",
         "store the file as UTF-8 without control characters"},
        {"a: 1\n---\nb: 2\n", "run.yaml:2:1", "second document", "keep one document in the file"},
        {"a: 1\n...\nb: 2\n", "run.yaml:3:1", "", ""},
        {"a: *b\n", "run.yaml:1:4", "no anchor &b", ""},
        {"a: &b [1, *b]\n", "run.yaml:1:11", "stands inside the value", ""},
        {"a: @x\n", "run.yaml:1:4", "not valid YAML", ""},
        {"a: \"\\ud800\"\n", "run.yaml:1:7", "not valid YAML", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error_list errors =
            refuse(cases[i].text, strlen(cases[i].text), cases[i].where, cases[i].what);
        if (cases[i].remedy[0] != '\0')
            assert_string_equal(errors.items[0].remedy, cases[i].remedy);
        error_list_free(&errors);
    }
}

static void anchors(void **state)
{
    (void)state;
    struct yaml_tree tree = parse("base: &base\n  lr: 1\n  list: [1, &two 2]\na: *base\nb: *two\n*two : key\n"
                                  "c: &base x\nd: *base\n");
    const struct yaml_node *base = yaml_get(tree.root, "base"), *a = yaml_get(tree.root, "a");
    assert_ptr_not_equal(base, a);
    assert_at(a, base->line, base->column);
    assert_string_equal(yaml_get(a, "lr")->text, "1");
    assert_int_equal(yaml_get(a, "list")->count, 2);
    assert_string_equal(yaml_get(a, "list")->children[1]->text, "2");
    assert_string_equal(yaml_get(tree.root, "b")->text, "2");
    assert_string_equal(yaml_get(tree.root, "2")->text, "key");
    assert_string_equal(yaml_get(tree.root, "d")->text, "x");
    yaml_tree_free(&tree);
}

/* Ten anchors, each ten times the one before: ten thousand million nodes if nobody counted. */
static void alias_bomb(void **state)
{
    (void)state;
    struct strbuf b = {0};
    strbuf_puts(&b, "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for (int i = 1; i < 10; i++) {
        strbuf_printf(&b, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++)
            strbuf_printf(&b, "%s*a%d", k > 0 ? "," : "", i - 1);
        strbuf_puts(&b, "]\n");
    }
    struct error_list errors = refuse(b.data, b.length, "run.yaml:6:10", "more than 131072 values");
    error_list_free(&errors);
    strbuf_free(&b);
}

static void nesting(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    char *text = malloc(MANY);
    assert_non_null(text);
    memset(text, '[', MANY);
    struct error_list errors = refuse(text, MANY, "run.yaml:1:65", "nested deeper than 64");
    error_list_free(&errors);
    memset(text + YAML_MAX_DEPTH, ']', YAML_MAX_DEPTH);
    text[2 * YAML_MAX_DEPTH] = '\0';
    struct yaml_tree tree = parse(text);
    yaml_tree_free(&tree);
    free(text);
    /* Aliases may not get around the limit. */
    struct strbuf b = {0};
    strbuf_puts(&b, "a0: &a0 x\n");
    for (int i = 1; i < 100; i++)
        strbuf_printf(&b, "a%d: &a%d [*a%d]\n", i, i, i - 1);
    errors = refuse(b.data, b.length, "run.yaml:64:12", "nested deeper than 64");
    error_list_free(&errors);
    strbuf_free(&b);
}

static void tags(void **state)
{
    (void)state;
    struct yaml_tree tree =
        parse("a: !!str 5\nb: ! 5\nc: !!float 5\nd: !!int \"5\"\ne: !!seq [1]\nf: !!map {}\n"
              "g: '5'\n");
    static const enum yaml_type types[] = {YAML_TYPE_TEXT, YAML_TYPE_TEXT, YAML_TYPE_FLOAT, YAML_TYPE_INT};
    for (int i = 0; i < 4; i++)
        assert_int_equal(tree.root->children[i]->type, types[i]);
    assert_int_equal(tree.root->children[6]->type, YAML_TYPE_TEXT);
    yaml_tree_free(&tree);
}

static void files(void **state)
{
    (void)state;
    struct scratch s;
    struct yaml_tree tree;
    struct error_list errors = {0};
    struct error err;
    scratch_open(&s);
    char *path = scratch_path(&s, "run.yaml");
    assert_int_equal(yaml_tree_open(&tree, path, &errors), -1);
    assert_int_equal(errors.count, 1);
    assert_int_equal(errors.items[0].kind, ERROR_INPUT);
    assert_int_equal(file_write_all(path, "a: [1]\n", 7, &err), 0);
    assert_int_equal(yaml_tree_open(&tree, path, &errors), 0);
    assert_string_equal(tree.root->file, path);
    yaml_tree_free(&tree);
    error_list_free(&errors);
    scratch_close(&s);
}

static void out_of_memory(void **state)
{
    (void)state;
    static const char text[] = "a: &x [1, {b: c}]\nd: *x\n";
    struct yaml_tree tree;
    int64_t failures = 0;
    for (;; failures++) {
        struct error_list errors = {0};
        allocations_fail_after(failures);
        int status = yaml_tree_parse(&tree, "x", text, strlen(text), &errors);
        allocations_fail_after(-1);
        assert_int_equal(errors.count > 0, status != 0);
        error_list_free(&errors);
        if (status == 0)
            break;
        assert_null(tree.root);
    }
    assert_true(failures >= 5);
    yaml_tree_free(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions),
        cmocka_unit_test(json_is_yaml),
        cmocka_unit_test(byte_order_mark),
        cmocka_unit_test(empty_files),
        cmocka_unit_test(all_duplicates),
        cmocka_unit_test(mistakes_of_many_kinds_at_once),
        cmocka_unit_test(too_many_mistakes_stop),
        cmocka_unit_test(broken_text),
        cmocka_unit_test(anchors),
        cmocka_unit_test(alias_bomb),
        cmocka_unit_test(nesting),
        cmocka_unit_test(tags),
        cmocka_unit_test(files),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
