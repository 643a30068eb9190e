#include "formats/yaml.h"
#include "support/cmocka.h"

#include <float.h>
#include <math.h>
#include <string.h>

static void types(void **state)
{
    (void)state;
    static const char *const of_type[][24] = {
        [YAML_TYPE_NULL] = {"", "~", "null", "Null", "NULL"},
        [YAML_TYPE_BOOL] = {"true", "True", "TRUE", "false", "False", "FALSE"},
        [YAML_TYPE_INT] = {"0", "5", "-5", "+5", "007", "0x1F", "0o17", "99999999999999999999"},
        [YAML_TYPE_FLOAT] = {"5e8", "5e-5", "5E+5", "1.", ".5", "-.5e1", "1.5", "+1.5e-10", ".inf", "-.INF",
                             "+.Inf", ".nan", ".NaN"},
        [YAML_TYPE_TEXT] = {"yes",  "no",    "on",   "off", "nUll",  "tRue", "e5",   ".",
                            "-",    "+",     "1e",   "1e+", "1_000", "0x",   "0xg",  "0o8",
                            "-0x1", "1.2.3", "1:30", ".e5", "inf",   "nan",  "-.nan"},
    };
    for (int type = YAML_TYPE_NULL; type <= YAML_TYPE_TEXT; type++)
        for (int i = 0; i < 24 && of_type[type][i] != NULL; i++)
            if (yaml_scalar_type(of_type[type][i]) != (enum yaml_type)type)
                fail_msg("\"%s\" is not of type %d", of_type[type][i], type);
}

static struct yaml_tree parse_value(const char *value)
{
    struct strbuf b = {0};
    struct yaml_tree tree;
    struct error_list errors = {0};
    strbuf_printf(&b, "\nkey: %s\n", value);
    if (yaml_tree_parse(&tree, "run.yaml", b.data, b.length, &errors) != 0)
        fail_msg("%s", errors.items[0].what);
    strbuf_free(&b);
    return tree;
}

static void ints(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"5", 5},
        {"-7", -7},
        {"+3", 3},
        {"007", 7},
        {"0x1F", 31},
        {"0o17", 15},
        {"5e8", 500000000},
        {"1.5e3", 1500},
        {"4.0", 4},
        {"-2E2", -200},
        {"9007199254740992.0", 9007199254740992},
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
    };
    static const struct {
        const char *text, *what;
    } bad[] = {
        {"9223372036854775808", "the number 9223372036854775808 is too large"},
        {"0x8000000000000000", "the number 0x8000000000000000 is too large"},
        {"1e16", "the number 1e16 is too large to be whole for sure"},
        {"5.5", "expected a whole number, found the number 5.5"},
        {"1e-3", "expected a whole number, found the number 1e-3"},
        {".inf", "expected a finite number, found the number .inf"},
        {"1e999", "expected a finite number, found the number 1e999"},
        {"true", "expected a whole number, found true"},
        {"", "expected a whole number, found nothing (null)"},
        {"'5'", "expected a whole number, found text \"5\""},
        {"1_000", "expected a whole number, found text \"1_000\""},
        {"[5]", "expected a whole number, found a list"},
        {"{a: 5}", "expected a whole number, found a map"},
    };
    struct error err;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct yaml_tree tree = parse_value(good[i].text);
        int64_t value = 0;
        assert_int_equal(yaml_int(yaml_get(tree.root, "key"), &value, &err), 0);
        assert_true(value == good[i].value);
        yaml_tree_free(&tree);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct yaml_tree tree = parse_value(bad[i].text);
        int64_t value = 42;
        assert_int_equal(yaml_int(yaml_get(tree.root, "key"), &value, &err), -1);
        assert_int_equal(value, 42);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_string_equal(err.where, "run.yaml:2");
        assert_string_equal(err.what, bad[i].what);
        yaml_tree_free(&tree);
    }
}

static void doubles(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"5e-5", 5e-5}, {"1", 1},         {"-.5", -0.5}, {"1.", 1},
                {"0x10", 16},   {"1e308", 1e308}, {"0.1", 0.1}};
    static const char *const bad[] = {".nan", "-.inf", "1e309", "fast", "\"1\"", "null", "false", "[1]"};
    struct error err;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct yaml_tree tree = parse_value(good[i].text);
        double value = 0;
        assert_int_equal(yaml_double(yaml_get(tree.root, "key"), &value, &err), 0);
        assert_true(value == good[i].value);
        yaml_tree_free(&tree);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct yaml_tree tree = parse_value(bad[i]);
        double value;
        assert_int_equal(yaml_double(yaml_get(tree.root, "key"), &value, &err), -1);
        assert_string_equal(err.where, "run.yaml:2");
        yaml_tree_free(&tree);
    }
}

static void bools_nulls_and_text(void **state)
{
    (void)state;
    struct error err;
    bool b;
    const char *text;
    static const char *const bools[] = {"true", "False", "TRUE", "false"};
    for (int i = 0; i < 4; i++) {
        struct yaml_tree tree = parse_value(bools[i]);
        assert_int_equal(yaml_bool(yaml_get(tree.root, "key"), &b, &err), 0);
        assert_int_equal(b, i % 2 == 0);
        assert_int_equal(yaml_text(yaml_get(tree.root, "key"), &text, &err), -1);
        assert_string_equal(err.remedy, "put it in quotes if it is meant as text");
        yaml_tree_free(&tree);
    }
    struct yaml_tree tree = parse_value("Yes");
    assert_int_equal(yaml_bool(yaml_get(tree.root, "key"), &b, &err), -1);
    assert_string_equal(err.what, "expected true or false, found text \"Yes\"");
    assert_string_equal(err.remedy, "YAML 1.2 knows only true and false");
    assert_int_equal(yaml_text(yaml_get(tree.root, "key"), &text, &err), 0);
    assert_string_equal(text, "Yes");
    assert_false(yaml_is_null(yaml_get(tree.root, "key")));
    yaml_tree_free(&tree);
    tree = parse_value("1");
    assert_int_equal(yaml_bool(yaml_get(tree.root, "key"), &b, &err), -1);
    assert_string_equal(err.what, "expected true or false, found the number 1");
    yaml_tree_free(&tree);
    tree = parse_value("~");
    assert_true(yaml_is_null(yaml_get(tree.root, "key")));
    assert_int_equal(yaml_text(yaml_get(tree.root, "key"), &text, &err), -1);
    assert_string_equal(err.remedy, "");
    yaml_tree_free(&tree);
    tree = parse_value("'null'");
    assert_false(yaml_is_null(yaml_get(tree.root, "key")));
    yaml_tree_free(&tree);
}

static void long_text_is_cut_between_characters(void **state)
{
    (void)state;
    struct yaml_tree tree = parse_value("床前明月光疑是地上霜举头望明月低头思故乡床前明月光");
    struct error err;
    int64_t i;
    assert_int_equal(yaml_int(yaml_get(tree.root, "key"), &i, &err), -1);
    assert_string_equal(err.what, "expected a whole number, found text "
                                  "\"床前明月光疑是地上霜举头望明月低头思故乡…\"");
    yaml_tree_free(&tree);
}

static void quoting(void **state)
{
    (void)state;
    static const struct {
        const char *text, *quoted;
    } cases[] = {
        {"runs/demo", "runs/demo"},
        {"/a/b-c_d.e+f", "/a/b-c_d.e+f"},
        {"llama3", "llama3"},
        {"", "\"\""},
        {"true", "\"true\""},
        {"No", "\"No\""},
        {"y", "\"y\""},
        {"NULL", "\"NULL\""},
        {"5e-5", "\"5e-5\""},
        {"1:30", "\"1:30\""},
        {"a b", "\"a b\""},
        {"a: b", "\"a: b\""},
        {"- a", "\"- a\""},
        {".inf", "\".inf\""},
        {"~", "\"~\""},
        {"a#b", "\"a#b\""},
        {"\"\\", "\"\\\"\\\\\""},
        {"a\nb\t\r\x7f", "\"a\\nb\\t\\x0d\\x7f\""},
        {"床é", "\"床é\""},
        {"\xc2\x85\xe2\x80\xa8\xef\xbb\xbf", "\"\\x85\\u2028\\ufeff\""},
        {"😀", "\"😀\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct strbuf b = {0};
        struct error err;
        const char *back;
        yaml_quote(&b, cases[i].text);
        assert_string_equal(b.data, cases[i].quoted);
        struct yaml_tree tree = parse_value(b.data);
        assert_int_equal(yaml_text(yaml_get(tree.root, "key"), &back, &err), 0);
        assert_string_equal(back, cases[i].text);
        yaml_tree_free(&tree);
        strbuf_free(&b);
    }
    struct strbuf b = {0};
    yaml_quote(&b, "a\xff");
    assert_string_equal(b.data, "\"a\\ufffd\"");
    strbuf_free(&b);
}

/* Every single byte and every character up to U+FFFF comes back. */
static void every_character(void **state)
{
    (void)state;
    struct strbuf all = {0}, b = {0};
    for (uint32_t c = 1; c < 0x10000; c++) {
        char utf8[3] = {(char)(0xe0 | c >> 12), (char)(0x80 | (c >> 6 & 0x3f)), (char)(0x80 | (c & 0x3f))};
        if (c < 0x80)
            utf8[0] = (char)c;
        else if (c < 0x800)
            utf8[0] = (char)(0xc0 | c >> 6), utf8[1] = utf8[2];
        if (c < 0xd800 || c > 0xdfff)
            strbuf_append(&all, utf8, c < 0x80 ? 1 : c < 0x800 ? 2 : 3);
    }
    yaml_quote(&b, all.data);
    struct yaml_tree tree = parse_value(b.data);
    assert_string_equal(yaml_get(tree.root, "key")->text, all.data);
    yaml_tree_free(&tree);
    strbuf_free(&all);
    strbuf_free(&b);
}

static void written_doubles(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{5e-5, "5.0e-05"},
                 {0.9, "0.9"},
                 {1e8, "100000000.0"},
                 {1e20, "1.0e+20"},
                 {-1.5e-9, "-1.5e-09"},
                 {1.0 / 3, "0.3333333333333333"},
                 {DBL_MIN, "2.2250738585072014e-308"},
                 {0, "0.0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct strbuf b = {0};
        struct error err;
        double back;
        yaml_put_double(&b, cases[i].value);
        assert_string_equal(b.data, cases[i].text);
        struct yaml_tree tree = parse_value(b.data);
        assert_int_equal(yaml_double(yaml_get(tree.root, "key"), &back, &err), 0);
        assert_memory_equal(&back, &cases[i].value, sizeof back);
        yaml_tree_free(&tree);
        strbuf_free(&b);
    }
    struct strbuf b = {0};
    yaml_put_double(&b, -INFINITY);
    assert_string_equal(b.data, "-.inf");
    strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types),
        cmocka_unit_test(ints),
        cmocka_unit_test(doubles),
        cmocka_unit_test(bools_nulls_and_text),
        cmocka_unit_test(long_text_is_cut_between_characters),
        cmocka_unit_test(quoting),
        cmocka_unit_test(every_character),
        cmocka_unit_test(written_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
