#include "formats/json.h"
#include "support/cmocka.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void shortest_doubles(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.1, "0.1"},
        {0.1 + 0.2, "0.30000000000000004"},
        {1.0, "1.0"},
        {-3.0, "-3.0"},
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {5e-5, "5e-05"},
        {1e22, "1e+22"},
        {500.5, "500.5"},
        {1.0 / 3, "0.3333333333333333"},
        {5e-324, "4.94065645841247e-324"},
        {DBL_MAX, "1.7976931348623157e+308"},
        {NAN, "nan"},
        {-INFINITY, "-inf"},
    };
    char out[32];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(format_double(cases[i].value, out), cases[i].text);
    assert_string_equal(format_float(0.1f, out), "0.1");
    assert_string_equal(format_float(16777216.0f, out), "16777216.0");
    assert_string_equal(format_float(3.4028235e38f, out), "3.4028235e+38");
    assert_string_equal(format_float(INFINITY, out), "inf");
}

static void numbers_read_back(void **state)
{
    (void)state;
    uint64_t bits = 88172645463325252u;
    char out[32];
    for (int i = 0; i < 200000; i++) {
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17; /* xorshift64 */
        double d, back;
        float f, back_f;
        uint32_t half = (uint32_t)(bits >> 32);
        memcpy(&d, &bits, sizeof d);
        memcpy(&f, &half, sizeof f);
        if (isfinite(d)) {
            back = strtod(format_double(d, out), NULL);
            assert_memory_equal(&back, &d, sizeof d);
            assert_true(strlen(out) < 26);
        }
        if (isfinite(f)) {
            back_f = strtof(format_float(f, out), NULL);
            assert_memory_equal(&back_f, &f, sizeof f);
            assert_true(strlen(out) < 17);
        }
    }
}

static void write_sample(struct json_writer *w)
{
    json_write_object(w, NULL);
    json_write_int(w, "step", -12);
    json_write_uint(w, "hash", UINT64_MAX);
    json_write_double(w, "loss", 3.25);
    json_write_float(w, "lr", 0.1f);
    json_write_double(w, "share", NAN);
    json_write_array(w, "list");
    json_write_bool(w, NULL, true);
    json_write_array(w, NULL);
    json_write_end(w);
    json_write_object(w, NULL);
    json_write_null(w, "k");
    json_write_end(w);
    json_write_end(w);
    json_write_object(w, "empty");
    json_write_end(w);
    json_write_string(w, "no", NULL);
    json_write_end(w);
}

static void one_line(void **state)
{
    (void)state;
    struct strbuf b = {0};
    struct json_writer w;
    json_writer_start(&w, &b, 0);
    write_sample(&w);
    assert_false(b.failed);
    assert_string_equal(b.data,
                        "{\"step\": -12, \"hash\": 18446744073709551615, \"loss\": 3.25, \"lr\": 0.1, "
                        "\"share\": null, \"list\": [true, [], {\"k\": null}], \"empty\": {}, "
                        "\"no\": null}");
    strbuf_free(&b);
}

static void indented(void **state)
{
    (void)state;
    struct strbuf b = {0};
    struct json_writer w;
    json_writer_start(&w, &b, 2);
    write_sample(&w);
    assert_string_equal(b.data,
                        "{\n  \"step\": -12,\n  \"hash\": 18446744073709551615,\n  \"loss\": 3.25,\n"
                        "  \"lr\": 0.1,\n  \"share\": null,\n  \"list\": [\n    true,\n    [],\n    {\n"
                        "      \"k\": null\n    }\n  ],\n  \"empty\": {},\n  \"no\": null\n}");
    strbuf_free(&b);
}

static void strings(void **state)
{
    (void)state;
    static const char hostile[] = "\"\\\b\f\n\r\t\x01\0\x7f é \xff\xc3 床\xe2\x80\xa8😀";
    struct strbuf b = {0};
    json_quote(&b, hostile, sizeof hostile - 1);
    assert_string_equal(b.data, "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u0000\x7f é \xef\xbf\xbd\xef\xbf\xbd 床"
                                "\xe2\x80\xa8😀\"");
    strbuf_free(&b);
}

/* What was parsed and written again is the same tree, with members in the same order. */
static void trees(void **state)
{
    (void)state;
    static const char text[] =
        "{\"z\": [1, 2.0, 1e-05, -0.0], \"a\": {\"\\u0001\": \"x\\u0000y\", \"t\": true, "
        "\"f\": false, \"n\": null}, \"big\": 1e+30, \"e\": []}";
    json_t *tree;
    struct error err;
    assert_int_equal(json_parse("x", 1, text, strlen(text), &tree, &err), 0);
    struct strbuf b = {0};
    struct json_writer w;
    json_writer_start(&w, &b, 0);
    json_write_value(&w, NULL, tree);
    assert_string_equal(b.data, text);
    strbuf_free(&b);
    json_decref(tree);
}

static void depth(void **state)
{
    (void)state;
    struct strbuf b = {0};
    struct json_writer w;
    json_t *tree;
    struct error err;
    static char text[4000];
    memset(text, '[', 2000);
    memset(text + 2000, ']', 2000);
    assert_int_equal(json_parse("x", 1, text, sizeof text, &tree, &err), 0);
    json_writer_start(&w, &b, 0);
    json_write_value(&w, NULL, tree);
    assert_false(b.failed);
    assert_int_equal(b.length, sizeof text);
    assert_memory_equal(b.data, text, sizeof text);
    json_decref(tree);
    strbuf_free(&b);
    json_writer_start(&w, &b, 0);
    for (int i = 0; i < JSON_WRITER_DEPTH; i++)
        json_write_array(&w, NULL);
    assert_false(b.failed);
    json_write_array(&w, NULL);
    assert_true(b.failed);
    strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shortest_doubles),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(one_line),
        cmocka_unit_test(indented),
        cmocka_unit_test(strings),
        cmocka_unit_test(trees),
        cmocka_unit_test(depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
