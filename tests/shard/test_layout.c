/* The flat layout: blocks, runs and cuts for odd sizes and 1 to 9 ranks. */
#include "support/cmocka.h"

#include "shard/layout.h"
#include "support/allocations.h"

static struct flat_layout layout_of(int count, const int64_t *elements)
{
    struct flat_layout l;
    struct error err = {0};
    if (flat_layout_create(&l, count, elements, &err) != 0)
        fail_msg("%s", err.what);
    return l;
}

static void test_offsets(void **state)
{
    (void)state;
    struct flat_layout l = layout_of(4, (int64_t[]){255, 7, 1, 1024});
    const int64_t offsets[] = {0, 255, 262, 263, 1287};
    for (int i = 0; i < 5; i++)
        assert_int_equal(l.offset[i], offsets[i]);
    assert_int_equal(l.param_count, 4);
    assert_int_equal(l.elements, 1287);
    assert_int_equal(l.blocks, 2);
    flat_layout_free(&l);
    assert_null(l.offset);
    flat_layout_free(&l);

    const int64_t sizes[] = {1, 1023, 1024, 1025, 2048, 2049};
    const int64_t blocks[] = {1, 1, 1, 2, 2, 3};
    for (int i = 0; i < 6; i++) {
        l = layout_of(1, &sizes[i]);
        assert_int_equal(l.blocks, blocks[i]);
        flat_layout_free(&l);
    }
}

/* 5 blocks and a bit: who owns what, by hand. */
static void test_runs(void **state)
{
    (void)state;
    struct flat_layout l = layout_of(2, (int64_t[]){5000, 121});
    assert_int_equal(l.blocks, 6);
    const int64_t run[] = {0, 6144, 3072, 2048, 2048, 2048, 1024, 1024, 1024, 1024};
    for (int n = 1; n <= 9; n++)
        assert_int_equal(flat_layout_run(&l, n), run[n]);
    const int64_t four[][2] = {
        {0, 2048}, {2048, 4096}, {4096, 5121}, {5121, 5121}}; /* the last owns nothing */
    for (int r = 0; r < 4; r++) {
        int64_t first, end;
        flat_layout_range(&l, 4, r, &first, &end);
        assert_int_equal(first, four[r][0]);
        assert_int_equal(end, four[r][1]);
    }
    flat_layout_free(&l);
}

/* Every element has one owner, at a place that is the same block wherever it lies. */
static void test_every_element_once(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 2, 7, 255, 1023, 1024, 1025, 3089, 5121, 8192, 9217, 70001};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct flat_layout l = layout_of(1, &sizes[s]);
        for (int n = 1; n <= 9; n++) {
            int64_t at = 0, run = flat_layout_run(&l, n), cuts[10];
            assert_true(run % SHARD_BLOCK == 0 && run * n >= l.elements);
            assert_true((run - SHARD_BLOCK) * n < l.blocks * SHARD_BLOCK);
            for (int element_bytes = 2; element_bytes <= 4; element_bytes += 2) {
                flat_layout_cuts(&l, n, element_bytes, cuts);
                assert_int_equal(cuts[0], 0);
                assert_int_equal(cuts[n], l.elements * element_bytes);
            }
            for (int r = 0; r < n; r++) {
                int64_t first, end;
                flat_layout_range(&l, n, r, &first, &end);
                assert_int_equal(first, at);
                assert_true(end >= first && end - first <= run);
                assert_true(first % SHARD_BLOCK == 0 || first == l.elements);
                assert_int_equal(cuts[r], 4 * first);
                assert_int_equal(cuts[r + 1], 4 * end);
                at = end;
            }
            assert_int_equal(at, l.elements);
        }
        flat_layout_free(&l);
    }
}

static void test_memory(void **state)
{
    (void)state;
    struct flat_layout l;
    struct error err = {0};
    allocations_fail_after(0);
    int status = flat_layout_create(&l, 1, (int64_t[]){5}, &err);
    allocations_fail_after(-1);
    assert_int_equal(status, -1);
    assert_null(l.offset);
    assert_int_equal(err.kind, ERROR_RUN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_offsets), cmocka_unit_test(test_runs),
                                       cmocka_unit_test(test_every_element_once),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
