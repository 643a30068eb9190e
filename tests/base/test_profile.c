/* Spans inside spans, what is kept, and the trace. Times are real ones, so their sums are looked at, which
 * hold for any. */
#include "base/clock.h"
#include "base/profile.h"
#include "support/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char outer[] = "outer", inner[] = "inner";

static void spend(double seconds)
{
    for (double end = clock_seconds() + seconds; clock_seconds() < end;)
        ;
}

static const struct profile_row *row(const struct profile *p, const char *name)
{
    int count;
    const struct profile_row *rows = profile_rows(p, &count);
    for (int i = 0; i < count; i++)
        if (rows[i].name == name)
            return &rows[i];
    return NULL;
}

static void test_inside(void **state)
{
    (void)state;
    struct profile *p;
    struct error err;
    assert_int_equal(profile_create(&p, 1, 100, &err), 0);
    profile_end(p, outer, profile_begin(p), NULL); /* not yet started */
    profile_start(p);
    double before = clock_seconds();
    struct profile_mark whole = profile_begin(p);
    double inside = 0;
    for (int i = 0; i < 3; i++) {
        struct profile_mark part = profile_begin(p);
        double begin = clock_seconds();
        spend(0.002);
        inside += clock_seconds() - begin;
        profile_end(p, inner, part, &(struct profile_cost){1, 2, 3});
    }
    spend(0.001);
    profile_end(p, outer, whole, NULL);
    double all = clock_seconds() - before;
    profile_stop(p);
    profile_end(p, outer, profile_begin(p), NULL); /* no longer */
    assert_false(profile_records(p));

    const struct profile_row *i = row(p, inner), *o = row(p, outer);
    assert_non_null(i);
    assert_non_null(o);
    assert_int_equal(i->calls, 3);
    assert_int_equal(o->calls, 1);
    assert_true(i->seconds >= inside && i->seconds >= 0.006);
    assert_true(o->seconds >= 0.001 && i->seconds + o->seconds <= all);
    assert_true(profile_seconds(p) >= all);
    assert_true(i->cost.product_flops == 3 && i->cost.other_flops == 6 && i->cost.bytes == 9);
    assert_true(o->cost.bytes == 0);

    /* A span that began before the start is nobody's. */
    profile_start(p);
    struct profile_mark old = profile_begin(p);
    profile_start(p);
    spend(1e-4);
    profile_end(p, outer, old, NULL);
    int count;
    profile_rows(p, &count);
    assert_int_equal(count, 0);
    profile_free(p);
}

static void test_none(void **state)
{
    (void)state;
    profile_start(NULL);
    profile_end(NULL, outer, profile_begin(NULL), NULL);
    profile_add(NULL, 0, outer, 0, 1);
    profile_stop(NULL);
    assert_false(profile_records(NULL));
    profile_free(NULL);
}

/* More names than rows: the last row has what is too much. */
static void test_names(void **state)
{
    (void)state;
    struct profile *p;
    struct error err;
    char names[PROFILE_MAX_ROWS + 3][8];
    assert_int_equal(profile_create(&p, 1, 10, &err), 0);
    profile_start(p);
    for (int i = 0; i < PROFILE_MAX_ROWS + 3; i++)
        profile_end(p, names[i], profile_begin(p), NULL);
    int count;
    const struct profile_row *rows = profile_rows(p, &count);
    assert_int_equal(count, PROFILE_MAX_ROWS);
    assert_ptr_equal(rows[0].name, names[0]);
    assert_string_equal(rows[count - 1].name, "others");
    assert_int_equal(rows[count - 1].calls, 4);
    assert_int_equal(profile_lost(p), PROFILE_MAX_ROWS + 3 - 10);
    profile_free(p);
}

static void test_trace(void **state)
{
    (void)state;
    struct profile *p;
    struct error err;
    assert_int_equal(profile_create(&p, 2, 4, &err), 0);
    assert_true(profile_bytes(2, 4) > 8 * 16);
    profile_start(p);
    double start = clock_seconds();
    profile_end(p, outer, profile_begin(p), NULL);
    for (int i = 0; i < 6; i++)
        profile_add(p, 1, inner, start + i, start + i + 0.25);
    profile_add(p, 2, inner, start, start + 1); /* there is no such thread */
    profile_stop(p);
    assert_int_equal(profile_lost(p), 2);

    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_non_null(f);
    fputs("[\n", f);
    profile_write_trace(p, f, 7);
    fputs("{}]", f);
    fclose(f);
    int spans[2] = {0, 0}, lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        char name[16];
        int rank, thread, end = 0;
        double at, length;
        if (sscanf(line,
                   "{\"ph\": \"X\", \"name\": \"%15[a-z]\", \"pid\": %d, \"tid\": %d, \"ts\": %lf, \"dur\": "
                   "%lf},%n",
                   name, &rank, &thread, &at, &length, &end) != 5)
            continue;
        assert_int_equal(line[end], '\0');
        assert_int_equal(rank, 7);
        assert_in_range(thread, 0, 1);
        spans[thread]++;
        assert_string_equal(name, thread ? inner : outer);
        assert_true(thread == 0 || fabs(length - 0.25e6) < 0.01);
        assert_true(at >= 0 && at < 7e6);
    }
    assert_int_equal(lines, 1 + 3 + 5 + 1); /* the names of a process and two threads */
    assert_int_equal(spans[0], 1);
    assert_int_equal(spans[1], 4);
    free(text);
    profile_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_inside), cmocka_unit_test(test_none),
                                       cmocka_unit_test(test_names), cmocka_unit_test(test_trace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
