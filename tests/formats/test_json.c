#include "formats/json.h"
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include "base/file.h"

#include <string.h>

static void assert_refused(const char *text, size_t size, const char *where, const char *what)
{
    json_t *value;
    struct error err;
    assert_int_equal(json_parse("f.json", 1, text, size, &value, &err), -1);
    assert_null(value);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_string_equal(err.where, where);
    if (strstr(err.what, what) == NULL)
        fail_msg("\"%s\" not in \"%s\"", what, err.what);
}

static void broken_text(void **state)
{
    (void)state;
    static const struct {
        const char *text, *where, *what;
    } cases[] = {
        {"", "f.json:1", "found nothing"},
        {" \n\t ", "f.json:1", "found nothing"},
        {"\xef\xbb\xbf", "f.json:1", "found nothing"},
        {"{\"a\": 1,\n \"a\": 2}", "f.json:2:4", "duplicate"},
        {"{\"a\": 1} x", "f.json:1:10", "end of file expected"},
        {"{\"a\":\n\n tru}", "f.json:3:4", "invalid token"},
        {"[1, 2", "f.json:1:5", "near end of file"},
        {"[\"\xff\"]", "f.json:1:2", "decode byte 0xff"},
        {"[\"\xed\xa0\x80\"]", "f.json:1:2", "decode byte 0xed"},
        {"[\"\\ud800\"]", "f.json:1:9", "Unicode"},
        {"[NaN]", "f.json:1:4", "invalid token"},
        {"[01]", "f.json:1:2", "invalid token"},
        {"[1e999]", "f.json:1:6", "overflow"},
        {"{'a': 1}", "f.json:1:2", "string or '}' expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_refused(cases[i].text, strlen(cases[i].text), cases[i].where, cases[i].what);
}

static void depth_is_limited(void **state)
{
    (void)state;
    static char text[200000];
    memset(text, '[', sizeof text);
    json_t *value;
    struct error err;
    assert_int_equal(json_parse("f.json", 1, text, sizeof text, &value, &err), -1);
    assert_non_null(strstr(err.what, "depth"));
}

static void lines_start_where_told(void **state)
{
    (void)state;
    json_t *value;
    struct error err;
    assert_int_equal(json_parse("a.jsonl", 41, "\n{\"text\" 3}", 11, &value, &err), -1);
    assert_string_equal(err.where, "a.jsonl:42:9");
}

static void any_value(void **state)
{
    (void)state;
    json_t *value;
    struct error err;
    assert_int_equal(json_parse("x", 1, " \"a\\u0000b\" \n", 13, &value, &err), 0);
    assert_int_equal(json_string_length(value), 3);
    assert_memory_equal(json_string_value(value), "a\0b", 3);
    json_decref(value);
    assert_int_equal(json_parse("x", 1, "\xef\xbb\xbf[7]", 6, &value, &err), 0);
    assert_int_equal(json_integer_value(json_array_get(value, 0)), 7);
    json_decref(value);
}

static void large_whole_numbers(void **state)
{
    (void)state;
    static const char text[] = "{\"in \\\" 99999999999999999999\": \"99999999999999999999\",\n"
                               "\"m\": 1000000000000000019884624838656, \"n\": -9223372036854775808,"
                               "\"o\":-9223372036854775809,\"p\": [18446744073709551615,9223372036854775807],"
                               "\"q\": 12345678901234567890.5, \"r\": 12345678901234567890e2}";
    json_t *value;
    struct error err;
    assert_int_equal(json_parse("x", 1, text, strlen(text), &value, &err), 0);
    assert_string_equal(json_string_value(json_object_get(value, "in \" 99999999999999999999")),
                        "99999999999999999999");
    assert_true(json_real_value(json_object_get(value, "m")) == 1e30);
    assert_true(json_integer_value(json_object_get(value, "n")) == INT64_MIN);
    assert_true(json_real_value(json_object_get(value, "o")) == -9223372036854775808.0);
    const json_t *p = json_object_get(value, "p");
    assert_true(json_real_value(json_array_get(p, 0)) == 18446744073709551616.0);
    assert_true(json_integer_value(json_array_get(p, 1)) == INT64_MAX);
    assert_true(json_real_value(json_object_get(value, "q")) == 12345678901234567890.5);
    assert_true(json_real_value(json_object_get(value, "r")) == 12345678901234567890e2);
    json_decref(value);
}

static const char config[] = "\n{\n"
                             "  \"hidden_size\": \"64\",\n"
                             "  \"tied\": true, \"eps\": 1e-5,\n"
                             "  \"heads\": 0, \"whole\": 2.0, \"none\": null,\n"
                             "  \"rope\": {\"weird : ,\\\"key\": [1,\n"
                             "    {\"deep\": [ ], \"factor\": 8}, \"x\"],\n"
                             "\"type\": \"llama3\"\n"
                             "},\n"
                             "  \"nul\": \"a\\u0000\"\n"
                             "}\n";

static struct json_document open_config(void)
{
    struct json_document doc;
    struct error err;
    assert_int_equal(json_open_text(&doc, "config.json", config, strlen(config), &err), 0);
    return doc;
}

static void assert_error(const struct error *err, const char *where, const char *what)
{
    assert_int_equal(err->kind, ERROR_INPUT);
    assert_string_equal(err->where, where);
    assert_string_equal(err->what, what);
}

static void mistakes_have_their_place(void **state)
{
    (void)state;
    struct json_document doc = open_config();
    struct error err;
    int64_t i;
    double d;
    bool b;
    const char *s;
    json_t *rope, *list, *o;
    assert_int_equal(json_get_int(&doc, doc.root, "hidden_size", 1, 9, &i, &err), -1);
    assert_error(&err, "config.json:3", "hidden_size: expected an integer, found a string");
    assert_int_equal(json_get_int(&doc, doc.root, "heads", 1, 9, &i, &err), -1);
    assert_error(&err, "config.json:5", "heads: expected an integer of at least 1, found 0");
    assert_int_equal(json_get_int(&doc, doc.root, "heads", -9, -1, &i, &err), -1);
    assert_error(&err, "config.json:5", "heads: expected an integer of at most -1, found 0");
    assert_int_equal(json_get_int(&doc, doc.root, "whole", 1, 9, &i, &err), -1);
    assert_error(&err, "config.json:5",
                 "whole: expected an integer, found a number with a fraction or exponent");
    assert_int_equal(json_get_int(&doc, doc.root, "none", 1, 9, &i, &err), -1);
    assert_error(&err, "config.json:5", "none: expected an integer, found null");
    assert_int_equal(json_get_int(&doc, doc.root, "absent", 1, 9, &i, &err), -1);
    assert_error(&err, "config.json:2", "absent: this key is missing (expected an integer)");
    assert_int_equal(json_get_double(&doc, doc.root, "tied", &d, &err), -1);
    assert_error(&err, "config.json:4", "tied: expected a number, found true");
    assert_int_equal(json_get_bool(&doc, doc.root, "eps", &b, &err), -1);
    assert_int_equal(json_get_string(&doc, doc.root, "nul", &s, &err), -1);
    assert_error(&err, "config.json:10", "nul: this string has U+0000 in it");
    assert_int_equal(json_get_object(&doc, doc.root, "rope", &rope, &err), 0);
    assert_int_equal(json_get_array(&doc, rope, "type", &list, &err), -1);
    assert_error(&err, "config.json:8", "rope.type: expected an array, found a string");
    assert_int_equal(json_get_array(&doc, rope, "weird : ,\"key", &list, &err), 0);
    assert_int_equal(json_get_string(&doc, json_array_get(list, 1), "factor", &s, &err), -1);
    assert_error(&err, "config.json:7", "rope.weird : ,\"key[1].factor: expected a string, found an integer");
    assert_int_equal(json_get_object(&doc, list, "k", &o, &err), -1);
    assert_error(&err, "config.json:6",
                 "rope.weird : ,\"key: expected an object with the key \"k\", found an array");
    json_error_at_index(&doc, list, 2, &err, "remedy", "%s", "wrong");
    assert_error(&err, "config.json:7", "rope.weird : ,\"key[2]: wrong");
    assert_string_equal(err.remedy, "remedy");
    json_close(&doc);
    json_close(&doc); /* once more does no harm */
}

static void lines_of_keys(void **state)
{
    (void)state;
    struct json_document doc = open_config();
    const json_t *rope = json_object_get(doc.root, "rope");
    assert_int_equal(json_line_of(&doc, doc.root, "hidden_size"), 3);
    assert_int_equal(json_line_of(&doc, doc.root, "eps"), 4);
    assert_int_equal(json_line_of(&doc, rope, "type"), 8);
    assert_int_equal(json_line_of(&doc, doc.root, "nul"), 10);
    assert_int_equal(json_line_of(&doc, doc.root, "absent"), 0);
    json_t *foreign = json_pack("{s:i}", "hidden_size", 3);
    assert_int_equal(json_line_of(&doc, foreign, "hidden_size"), 0);
    json_decref(foreign);
    json_close(&doc);
}

static void values_and_fallbacks(void **state)
{
    (void)state;
    struct json_document doc = open_config();
    struct error err;
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s;
    json_t *o = doc.root;
    assert_int_equal(json_get_int(&doc, doc.root, "heads", 0, 0, &i, &err), 0);
    assert_int_equal(i, 0);
    assert_int_equal(json_get_int_or(&doc, doc.root, "none", 1, 9, 5, &i, &err), 0);
    assert_int_equal(i, 5);
    assert_int_equal(json_get_int_or(&doc, doc.root, "absent", 1, 9, 77, &i, &err), 0);
    assert_int_equal(i, 77);
    assert_int_equal(json_get_int_or(&doc, doc.root, "heads", 1, 9, 5, &i, &err), -1);
    assert_int_equal(json_get_double(&doc, doc.root, "eps", &d, &err), 0);
    assert_true(d == 1e-5);
    assert_int_equal(json_get_double(&doc, doc.root, "heads", &d, &err), 0);
    assert_true(d == 0);
    assert_int_equal(json_get_double_or(&doc, doc.root, "none", 2.5, &d, &err), 0);
    assert_true(d == 2.5);
    assert_int_equal(json_get_bool(&doc, doc.root, "tied", &b, &err), 0);
    assert_true(b);
    assert_int_equal(json_get_bool_or(&doc, doc.root, "absent", false, &b, &err), 0);
    assert_false(b);
    assert_int_equal(json_get_string_or(&doc, doc.root, "absent", "fall", &s, &err), 0);
    assert_string_equal(s, "fall");
    assert_int_equal(json_get_object_or(&doc, doc.root, "absent", &o, &err), 0);
    assert_null(o);
    assert_int_equal(json_get_object_or(&doc, doc.root, "heads", &o, &err), -1);
    assert_int_equal(json_get_array_or(&doc, doc.root, "none", &o, &err), 0);
    assert_null(o);
    /* A container that is no object is a mistake for the _or forms too. */
    assert_int_equal(json_get_int_or(&doc, json_object_get(doc.root, "tied"), "k", 1, 9, 5, &i, &err), -1);
    json_close(&doc);
}

static void files(void **state)
{
    (void)state;
    struct scratch s;
    struct json_document doc;
    struct error err;
    scratch_open(&s);
    char *path = scratch_path(&s, "a.json");
    assert_int_equal(json_open(&doc, path, 100, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_int_equal(file_write_all(path, "{\"a\": 3}", 8, &err), 0);
    assert_int_equal(json_open(&doc, path, 7, &err), -1);
    assert_int_equal(json_open(&doc, path, 8, &err), 0);
    assert_int_equal(json_integer_value(json_object_get(doc.root, "a")), 3);
    json_close(&doc);
    scratch_close(&s);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct json_document doc;
    struct error err;
    int64_t failures = 0;
    for (;; failures++) {
        allocations_fail_after(failures);
        int status = json_open_text(&doc, "x", "[99999999999999999999]", 22, &err);
        allocations_fail_after(-1);
        if (status == 0)
            break;
        assert_int_equal(err.kind, ERROR_RUN);
        assert_null(doc.root);
    }
    assert_true(failures >= 2);
    json_close(&doc);
}

/* One allocation of the library fails: nothing of a text is lost without a word. */
static void out_of_memory_in_the_library(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a long name of a member\": [\"a string, longer still, of more than 32 bytes\", "
        "1.23456789012345678901234567890123456789012345678901234567890]}";
    int64_t n = 0;
    for (int status = -1; status != 0; n++) {
        json_t *value;
        struct error err;
        allocations_fail_once(n);
        status = json_parse("f.json", 1, text, sizeof text - 1, &value, &err);
        allocations_fail_after(-1);
        if (status == 0) {
            assert_float_equal(
                json_real_value(json_array_get(json_object_get(value, "a long name of a member"), 1)),
                1.2345678901234567, 0);
            json_decref(value);
            continue;
        }
        assert_null(value);
        assert_int_equal(err.kind, ERROR_RUN);
        assert_string_equal(err.what, "cannot allocate memory for the JSON tree");
    }
    assert_true(n > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_text),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(lines_start_where_told),
        cmocka_unit_test(any_value),
        cmocka_unit_test(large_whole_numbers),
        cmocka_unit_test(mistakes_have_their_place),
        cmocka_unit_test(lines_of_keys),
        cmocka_unit_test(values_and_fallbacks),
        cmocka_unit_test(files),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(out_of_memory_in_the_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
