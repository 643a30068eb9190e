#include "base/error.h"
#include "support/allocations.h"
#include "support/cmocka.h"

#include <errno.h>
#include <string.h>

static void fills_every_field(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(error_set(&err, ERROR_INPUT, "run.yaml:12", "write a number", "%s is not %d", "x", 3),
                     -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_string_equal(err.where, "run.yaml:12");
    assert_string_equal(err.what, "x is not 3");
    assert_string_equal(err.remedy, "write a number");
}

static void null_error_is_allowed(void **state)
{
    (void)state;
    assert_int_equal(error_set(NULL, ERROR_RUN, "a", "b", "c"), -1);
    assert_int_equal(error_errno(NULL, ENOENT, "a", "open it"), -1);
    assert_int_equal(error_memory(NULL, 12, "x"), -1);
}

static void arguments_may_point_into_the_error(void **state)
{
    (void)state;
    struct error err;
    error_set(&err, ERROR_INPUT, "inner", "mend it", "broken");
    error_set(&err, ERROR_RUN, err.where, err.remedy, "rank 2: %s", err.what);
    assert_string_equal(err.where, "inner");
    assert_string_equal(err.what, "rank 2: broken");
    assert_string_equal(err.remedy, "mend it");
}

static void long_texts_are_cut_between_characters(void **state)
{
    (void)state;
    struct error err;
    char text[4096];
    /* Four-byte characters after 0 … 3 plain ones: the cut falls on each byte of a character in turn. */
    for (size_t offset = 0; offset < 4; offset++) {
        memset(text, 'a', sizeof text);
        for (size_t i = offset; i + 4 < sizeof text; i += 4)
            memcpy(text + i, "\xf0\x9f\x8c\x8d", 4);
        text[sizeof text - 1] = '\0';
        error_set(&err, ERROR_RUN, text, text, "%s", text);
        const char *fields[] = {err.where, err.what, err.remedy};
        const size_t sizes[] = {sizeof err.where, sizeof err.what, sizeof err.remedy};
        for (int i = 0; i < 3; i++) {
            size_t n = strlen(fields[i]);
            assert_true(n < sizes[i] && n + 4 >= sizes[i]);
            assert_int_equal((n - offset) % 4, 0);
        }
    }
}

static void errno_has_text_and_remedy(void **state)
{
    (void)state;
    static const int with_remedy[] = {ENOSPC, EACCES, ENOENT, ENOMEM, EMFILE, EROFS};
    struct error err;
    for (size_t i = 0; i < sizeof with_remedy / sizeof with_remedy[0]; i++) {
        assert_int_equal(error_errno(&err, with_remedy[i], "a.txt", "open it"), -1);
        assert_int_equal(err.kind, ERROR_RUN);
        assert_non_null(strstr(err.what, strerror(with_remedy[i])));
        assert_true(err.remedy[0] != '\0');
    }
    error_errno(&err, ENOENT, "a.txt", "open it");
    assert_string_equal(err.what, "cannot open it: No such file or directory");
    error_memory(&err, 123, "the arena");
    assert_string_equal(err.what, "cannot allocate 123 bytes for the arena");
}

static void format_leaves_out_empty_parts(void **state)
{
    (void)state;
    struct error err;
    char out[64];
    error_set(&err, ERROR_RUN, "w", "r", "x");
    error_format(&err, out, sizeof out);
    assert_string_equal(out, "w: x; r");
    error_set(&err, ERROR_RUN, NULL, "r", "x");
    error_format(&err, out, sizeof out);
    assert_string_equal(out, "x; r");
    error_set(&err, ERROR_RUN, "w", NULL, "x");
    error_format(&err, out, sizeof out);
    assert_string_equal(out, "w: x");
    error_format(&err, out, 3);
    assert_string_equal(out, "w:");
    memset(out, 'z', sizeof out);
    error_format(&err, out, 0);
    assert_int_equal(out[0], 'z');
}

static void list_keeps_order_and_counts_losses(void **state)
{
    (void)state;
    struct error_list list = {0};
    struct error err;
    for (int i = 0; i < 13; i++) {
        error_set(&err, ERROR_INPUT, NULL, NULL, "%d", i);
        error_list_add(&list, &err);
    }
    assert_int_equal(list.count, 13);
    assert_int_equal(list.lost, 0);
    assert_string_equal(list.items[0].what, "0");
    assert_string_equal(list.items[12].what, "12");
    allocations_fail_after(0);
    for (int i = 0; i < 10; i++)
        error_list_add(&list, &err); /* three more fit in what is there */
    allocations_fail_after(-1);
    assert_int_equal(list.count, 23);
    assert_int_equal(list.lost, 7);
    error_list_free(&list);
    assert_null(list.items);
    assert_int_equal(list.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_every_field),
        cmocka_unit_test(null_error_is_allowed),
        cmocka_unit_test(arguments_may_point_into_the_error),
        cmocka_unit_test(long_texts_are_cut_between_characters),
        cmocka_unit_test(errno_has_text_and_remedy),
        cmocka_unit_test(format_leaves_out_empty_parts),
        cmocka_unit_test(list_keeps_order_and_counts_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
