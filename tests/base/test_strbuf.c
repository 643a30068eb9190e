#include "base/strbuf.h"
#include "support/allocations.h"
#include "support/cmocka.h"

#include <stdlib.h>
#include <string.h>

static void grows_and_stays_terminated(void **state)
{
    (void)state;
    struct strbuf b = {0};
    char expected[2001];
    for (size_t i = 0; i < 2000; i++) {
        char c = (char)('a' + i % 26);
        expected[i] = c;
        strbuf_append(&b, &c, 1);
        assert_int_equal(b.length, i + 1);
        assert_int_equal(b.data[b.length], '\0');
    }
    expected[2000] = '\0';
    assert_string_equal(b.data, expected);
    strbuf_clear(&b);
    assert_int_equal(b.length, 0);
    assert_string_equal(b.data, "");
    strbuf_free(&b);
    assert_null(b.data);
}

static void holds_zero_bytes(void **state)
{
    (void)state;
    struct strbuf b = {0};
    strbuf_append(&b, "a\0b", 3);
    assert_int_equal(b.length, 3);
    assert_memory_equal(b.data, "a\0b", 4);
    strbuf_free(&b);
}

static void empty_append_gives_an_empty_string(void **state)
{
    (void)state;
    struct strbuf b = {0};
    strbuf_clear(&b);
    assert_null(b.data);
    strbuf_append(&b, NULL, 0);
    assert_string_equal(b.data, "");
    strbuf_free(&b);
}

static void printf_of_every_length(void **state)
{
    (void)state;
    for (int width = 0; width < 300; width++) {
        struct strbuf b = {0};
        strbuf_puts(&b, "<");
        strbuf_printf(&b, "%*s|%d", width, "", width);
        strbuf_puts(&b, ">");
        assert_int_equal(b.failed, 0);
        assert_int_equal(b.length, strlen(b.data));
        assert_int_equal(b.data[width + 1], '|');
        assert_int_equal(atoi(b.data + width + 2), width);
        assert_int_equal(b.data[b.length - 1], '>');
        strbuf_free(&b);
    }
}

static void failure_is_sticky(void **state)
{
    (void)state;
    struct strbuf b = {0};
    strbuf_puts(&b, "kept");
    allocations_fail_after(0);
    strbuf_printf(&b, "%500s", "x");
    allocations_fail_after(-1);
    assert_int_equal(b.failed, 1);
    strbuf_puts(&b, "no");
    strbuf_printf(&b, "no");
    assert_string_equal(b.data, "kept");
    strbuf_free(&b);
    assert_int_equal(b.failed, 0);
}

static void impossible_size_fails(void **state)
{
    (void)state;
    struct strbuf b = {0};
    strbuf_puts(&b, "a");
    strbuf_append(&b, "a", SIZE_MAX - 1);
    assert_int_equal(b.failed, 1);
    assert_string_equal(b.data, "a");
    strbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_and_stays_terminated),
        cmocka_unit_test(holds_zero_bytes),
        cmocka_unit_test(empty_append_gives_an_empty_string),
        cmocka_unit_test(printf_of_every_length),
        cmocka_unit_test(failure_is_sticky),
        cmocka_unit_test(impossible_size_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
