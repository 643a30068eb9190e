#include "formats/safetensors.h"
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_scratch(void **state)
{
    static struct scratch scratch;
    scratch_open(&scratch);
    *state = &scratch;
    return 0;
}

static int close_scratch(void **state)
{
    scratch_close(*state);
    return 0;
}

static void add(struct safetensors_plan *plan, const char *name, enum dtype dtype, int rank, int64_t a,
                int64_t b)
{
    struct error err;
    const int64_t shape[2] = {a, b};
    assert_int_equal(safetensors_plan_add(plan, name, dtype, rank, shape, &err), 0);
}

static void known_bytes(void **state)
{
    struct scratch *s = *state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"w\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[0,6]},"
                                 "\"a \\\"q\\\"\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[6,7]}}";
    struct safetensors_plan plan = {0};
    struct safetensors_writer w;
    struct file_map map;
    struct error err;
    int64_t size;
    uint64_t hash, length;
    assert_int_equal(safetensors_plan_metadata(&plan, "format", "pt", &err), 0);
    add(&plan, "w", DTYPE_BF16, 2, 1, 3);
    add(&plan, "a \"q\"", DTYPE_U8, 0, 0, 0);
    const size_t padded = (sizeof header - 1 + 7) / 8 * 8;
    assert_int_not_equal(padded, sizeof header - 1); /* there is padding to see */
    assert_int_equal(safetensors_plan_bytes(&plan), 8 + (int64_t)padded + 7);
    char *path = scratch_path(s, "known.safetensors");
    assert_int_equal(safetensors_writer_open(&w, path, &plan, &err), 0);
    assert_false(file_exists(path));
    assert_int_equal(safetensors_writer_write(&w, "123", 3, &err), 0);
    assert_int_equal(safetensors_writer_write(&w, "4567", 4, &err), 0);
    assert_int_equal(safetensors_writer_commit(&w, &size, &hash, &err), 0);
    safetensors_writer_abort(&w); /* does no harm */
    safetensors_plan_free(&plan);
    assert_int_equal(file_map(path, &map, &err), 0);
    assert_int_equal(map.size, 8 + padded + 7);
    assert_int_equal(size, map.size);
    assert_true(hash == hash_bytes(map.data, map.size, 0));
    memcpy(&length, map.data, 8);
    assert_int_equal(length, padded);
    assert_memory_equal(map.data + 8, header, sizeof header - 1);
    for (size_t i = sizeof header - 1; i < padded; i++)
        assert_int_equal(map.data[8 + i], ' ');
    assert_memory_equal(map.data + 8 + padded, "1234567", 7);
    file_unmap(&map);
    assert_int_equal(scratch_entries(s), 1);
}

/* Many tensors of every dtype and odd shapes, written in pieces that respect no border. */
static void round_trip(void **state)
{
    struct scratch *s = *state;
    enum { N = 210 };
    struct safetensors_plan plan = {0};
    struct safetensors_writer w;
    struct safetensors file;
    struct error err;
    char name[32];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%d", i * 7919 % N);
        add(&plan, name, (enum dtype)(i % DTYPE_COUNT), i % 3, i % 17, i % 5);
    }
    size_t n = (size_t)plan.data_bytes;
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 256);
    char *path = scratch_path(s, "many.safetensors");
    assert_int_equal(safetensors_writer_open(&w, path, &plan, &err), 0);
    size_t piece = 1;
    for (size_t done = 0; done < n; done += piece) {
        piece = done * 13 % 997 + 1;
        piece = piece < n - done ? piece : n - done;
        assert_int_equal(safetensors_writer_write(&w, bytes + done, piece, &err), 0);
    }
    assert_int_equal(safetensors_writer_at(&w), N);
    assert_int_equal(safetensors_writer_commit(&w, NULL, NULL, &err), 0);
    assert_int_equal(safetensors_open(&file, path, &err), 0);
    assert_int_equal(file.map.size, safetensors_plan_bytes(&plan));
    assert_int_equal(file.count, N);
    assert_int_equal(file.data_bytes, n);
    assert_int_equal((file.map.size - n) % 8, 0);
    int64_t offset = 0;
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%d", i * 7919 % N);
        const struct safetensors_tensor *t = safetensors_find(&file, name);
        assert_non_null(t);
        assert_int_equal(t->dtype, i % DTYPE_COUNT);
        assert_int_equal(t->rank, i % 3);
        for (int k = 0; k < t->rank; k++)
            assert_int_equal(t->shape[k], k == 0 ? i % 17 : i % 5);
        if (t->bytes > 0)
            assert_memory_equal(t->data, bytes + offset, (size_t)t->bytes);
        offset += t->bytes;
    }
    assert_int_equal(offset, n);
    safetensors_close(&file);
    safetensors_plan_free(&plan);
    free(bytes);
}

static void declared_bytes_only(void **state)
{
    struct scratch *s = *state;
    struct safetensors_plan plan = {0};
    struct safetensors_writer w;
    struct error err;
    add(&plan, "first", DTYPE_F32, 1, 2, 0);
    add(&plan, "none", DTYPE_F32, 1, 0, 0);
    add(&plan, "last", DTYPE_F32, 1, 1, 0);
    char *path = scratch_path(s, "short.safetensors");
    assert_int_equal(safetensors_writer_open(&w, path, &plan, &err), 0);
    assert_int_equal(safetensors_writer_write(&w, "12345678", 7, &err), 0);
    assert_int_equal(safetensors_writer_at(&w), 0);
    assert_int_equal(safetensors_writer_write(&w, "8", 1, &err), 0);
    assert_int_equal(safetensors_writer_at(&w), 2);
    assert_int_equal(safetensors_writer_write(&w, "12345", 5, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_non_null(strstr(err.what, "1 more bytes"));
    assert_int_equal(safetensors_writer_write(&w, "123", 3, &err), 0);
    assert_int_equal(safetensors_writer_commit(&w, NULL, NULL, &err), -1);
    assert_non_null(strstr(err.what, "1 bytes of tensor data were not written, from tensor \"last\" on"));
    assert_int_equal(scratch_entries(s), 0);
    assert_int_equal(safetensors_writer_open(&w, path, &plan, &err), 0);
    safetensors_writer_abort(&w);
    safetensors_writer_abort(&w);
    assert_int_equal(scratch_entries(s), 0);
    safetensors_plan_free(&plan);
}

static void wrong_plans(void **state)
{
    struct scratch *s = *state;
    struct safetensors_plan plan = {0};
    struct safetensors_writer w;
    struct error err;
    const int64_t ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const int64_t huge[2] = {INT64_C(1) << 40, INT64_C(1) << 40}, large[1] = {INT64_MAX / 64},
                  negative[1] = {-1};
    assert_int_equal(safetensors_plan_add(&plan, "", DTYPE_F32, 0, NULL, &err), -1);
    assert_int_equal(safetensors_plan_add(&plan, "__metadata__", DTYPE_F32, 0, NULL, &err), -1);
    assert_int_equal(safetensors_plan_add(&plan, "a\xff", DTYPE_F32, 0, NULL, &err), -1);
    assert_int_equal(safetensors_plan_add(&plan, "a", DTYPE_F32, 9, ones, &err), -1);
    assert_int_equal(safetensors_plan_add(&plan, "a", DTYPE_F32, 2, huge, &err), -1);
    assert_int_equal(safetensors_plan_add(&plan, "a", DTYPE_F32, 1, negative, &err), -1);
    assert_int_equal(plan.count, 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(safetensors_plan_add(&plan, "a", DTYPE_F64, 1, large, &err), 0);
    assert_int_equal(safetensors_plan_add(&plan, "a", DTYPE_F64, 1, large, &err), -1);
    assert_non_null(strstr(err.what, "size of the file overflows"));
    safetensors_plan_free(&plan);
    assert_int_equal(safetensors_plan_metadata(&plan, "a", "b\xff", &err), -1);
    assert_int_equal(safetensors_plan_metadata(&plan, "a", "b", &err), 0);
    assert_int_equal(safetensors_plan_metadata(&plan, "a", "c", &err), -1);
    add(&plan, "x", DTYPE_F32, 0, 0, 0);
    add(&plan, "y", DTYPE_F32, 0, 0, 0);
    add(&plan, "x", DTYPE_U8, 0, 0, 0);
    assert_int_equal(safetensors_writer_open(&w, scratch_path(s, "twice"), &plan, &err), -1);
    assert_non_null(strstr(err.what, "\"x\" is declared twice"));
    assert_int_equal(scratch_entries(s), 0);
    safetensors_plan_free(&plan);
}

static void empty_plan(void **state)
{
    struct scratch *s = *state;
    struct safetensors_plan plan = {0};
    struct safetensors_writer w;
    struct safetensors file;
    struct error err;
    char *path = scratch_path(s, "empty.safetensors");
    assert_int_equal(safetensors_writer_open(&w, path, &plan, &err), 0);
    assert_int_equal(safetensors_writer_at(&w), 0);
    assert_int_equal(safetensors_writer_commit(&w, NULL, NULL, &err), 0);
    assert_int_equal(safetensors_open(&file, path, &err), 0);
    assert_int_equal(file.count, 0);
    assert_int_equal(file.map.size, 16);
    safetensors_close(&file);
}

static int write_small(const char *path, struct error *err)
{
    struct safetensors_plan plan = {0};
    struct safetensors_writer w;
    const int64_t shape[1] = {3};
    int status = safetensors_plan_metadata(&plan, "format", "pt", err);
    if (status == 0)
        status = safetensors_plan_add(&plan, "a", DTYPE_U8, 1, shape, err);
    if (status == 0)
        status = safetensors_writer_open(&w, path, &plan, err);
    if (status == 0) {
        status = safetensors_writer_write(&w, "abc", 3, err);
        if (status == 0)
            status = safetensors_writer_commit(&w, NULL, NULL, err);
        else
            safetensors_writer_abort(&w);
    }
    safetensors_plan_free(&plan);
    return status;
}

static void out_of_memory(void **state)
{
    struct scratch *s = *state;
    struct error err;
    char *path = scratch_path(s, "small.safetensors");
    int64_t failures = 0;
    for (;; failures++) {
        allocations_fail_after(failures);
        int status = write_small(path, &err);
        allocations_fail_after(-1);
        if (status == 0)
            break;
        assert_int_equal(err.kind, ERROR_RUN);
        assert_int_equal(scratch_entries(s), 0);
    }
    assert_true(failures >= 4);
    assert_true(file_exists(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(known_bytes, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(round_trip, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(declared_bytes_only, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(wrong_plans, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(empty_plan, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(out_of_memory, open_scratch, close_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
