#include "formats/safetensors.h"
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include "base/strbuf.h"

#include <math.h>
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

/* Writes a file from its parts: the length field, the header, `n` bytes of data counting up from 0. */
static void make_file(const char *path, uint64_t length, const char *header, size_t n)
{
    struct strbuf b = {0};
    struct error err;
    strbuf_append(&b, &length, sizeof length);
    strbuf_puts(&b, header);
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)i;
        strbuf_append(&b, &byte, 1);
    }
    assert_int_equal(file_write_all(path, b.data, b.length, &err), 0);
    strbuf_free(&b);
}

static void assert_open_fails(const char *path, const char *what)
{
    struct safetensors file;
    struct error err = {0};
    assert_int_equal(safetensors_open(&file, path, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    if (strncmp(err.where, path, strlen(path)) != 0)
        fail_msg("\"%s\" does not begin with \"%s\"", err.where, path);
    if (strstr(err.what, what) == NULL)
        fail_msg("\"%s\" not in \"%s\"", what, err.what);
    assert_null(file.tensors);
    safetensors_close(&file); /* does no harm */
}

/* Headers that lie about the data behind them. */
static void lying_headers(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "lies.safetensors");
    static const struct {
        const char *header;
        size_t data;
        const char *what;
    } cases[] = {
#define T(dtype, shape, offsets) "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"a\":" T("\"F32\"", "[2]", "[8,16]") "}", 16, "duplicate"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "", 8, "not valid JSON"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "} x", 8, "not valid JSON"},
        {"{\"\xff\":" T("\"F32\"", "[2]", "[0,8]") "}", 8, "not valid JSON"},
        {"{\"a\":" T("\"F8_E4M3\"", "[2]", "[0,2]") "}", 2, "tensor \"a\": dtype F8_E4M3 is not supported"},
        {"{\"a\":" T("\"fp32\"", "[2]", "[0,8]") "}", 8, "dtype fp32 is not supported"},
        {"{\"a\":" T("3", "[2]", "[0,8]") "}", 8, "dtype an integer is not supported"},
        {"{\"a\":" T("\"F32\"", "2", "[0,8]") "}", 8, "its shape is an integer"},
        {"{\"a\":" T("\"F32\"", "[2.0]", "[0,8]") "}", 8, "dimension 0 of its shape"},
        {"{\"a\":" T("\"F32\"", "[1,-2]", "[0,8]") "}", 8, "dimension 1 of its shape"},
        {"{\"a\":" T("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions"},
        {"{\"a\":" T("\"F32\"", "[4294967296,4294967296]", "[0,8]") "}", 8, "overflows"},
        {"{\"a\":" T("\"F32\"", "[4294967296,4294967296,0]", "[0,0]") "}", 0, "overflows"},
        {"{\"a\":" T("\"F64\"", "[2305843009213693953]", "[0,8]") "}", 8, "overflows"},
        {"{\"a\":" T("\"F32\"", "[99999999999999999999]", "[0,8]") "}", 8, "dimension 0"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0]") "}", 8, "not two whole numbers"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8,9]") "}", 8, "not two whole numbers"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8.0]") "}", 8, "not two whole numbers"},
        {"{\"a\":" T("\"F32\"", "[2]", "[8,0]") "}", 8, "wrong order"},
        {"{\"a\":" T("\"F32\"", "[2]", "[-8,0]") "}", 8, "wrong order"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "}", 7, "end at byte 8 of 7"},
        {"{\"a\":" T("\"F32\"", "[2]", "[9223372036854775800,9223372036854775807]") "}", 8, "truncated"},
        {"{\"a\":" T("\"F32\"", "[3,1]", "[0,8]") "}", 8, "F32 [3, 1] has 12 bytes, its data_offsets say 8"},
        {"{\"a\":" T("\"BF16\"", "[2]", "[0,8]") "}", 8, "BF16 [2] has 4 bytes"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"b\":" T("\"F32\"", "[2]", "[4,12]") "}", 12,
         "tensors \"a\" and \"b\" overlap at byte 4"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"b\":" T("\"F32\"", "[2]", "[0,8]") "}", 8,
         "overlap at byte 0"},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") ",\"b\":" T("\"F32\"", "[2]", "[12,20]") "}", 20,
         "4 bytes before tensor \"b\" belong to no tensor"},
        {"{\"a\":" T("\"F32\"", "[1]", "[4,8]") "}", 8, "4 bytes before tensor \"a\""},
        {"{\"a\":" T("\"F32\"", "[2]", "[0,8]") "}", 9, "1 bytes follow the last tensor"},
        {"{}", 3, "3 bytes follow"},
        {"{\"a\":[]}", 0, "its entry is an array"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0]}}", 0, "has no \"data_offsets\""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0],\"more\":1}}", 0, "has keys beside"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is an array"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "\"a\" is an integer, not a string"},
        {"{\"__metadata__\":{\"a\":\"b\\u0000\"}}", 0, "U+0000"},
#undef T
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_file(path, strlen(cases[i].header), cases[i].header, cases[i].data);
        assert_open_fails(path, cases[i].what);
    }
}

static void lying_lengths(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "lengths.safetensors");
    struct error err;
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    assert_open_fails(scratch_path(s, "absent"), "");
    assert_open_fails(s->directory, "");
    assert_int_equal(file_write_all(path, "", 0, &err), 0);
    assert_open_fails(path, "too short");
    assert_int_equal(file_write_all(path, "\2\0\0\0\0\0\0", 7, &err), 0);
    assert_open_fails(path, "too short");
    assert_int_equal(file_write_all(path, lfs, sizeof lfs - 1, &err), 0);
    assert_open_fails(path, "Git LFS pointer");
    make_file(path, 0, "", 0);
    assert_open_fails(path, "does not begin with {");
    make_file(path, 4, " {} ", 0);
    assert_open_fails(path, "does not begin with {");
    make_file(path, 3, "{}", 0);
    assert_open_fails(path, "should have 3 bytes, but only 2 follow");
    make_file(path, 100000001, "{}", 0);
    assert_open_fails(path, "at most 100000000");
    make_file(path, UINT64_MAX - 4, "{}", 0);
    assert_open_fails(path, "at most 100000000");
}

/* Every cut of a sound file is refused. */
static void truncation(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "cut.safetensors");
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    struct file_map map;
    struct error err;
    make_file(path, sizeof header - 1, header, 8);
    assert_int_equal(file_map(path, &map, &err), 0);
    char *cut = scratch_path(s, "part");
    for (size_t n = 0; n < map.size; n++) {
        assert_int_equal(file_write_all(cut, map.data, n, &err), 0);
        assert_open_fails(cut, "");
    }
    file_unmap(&map);
}

static const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"é\":\"\"},"
                             "\"z\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                             "\"m.scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[19,23]},"
                             "\"empty\":{\"shape\":[4,0,2],\"dtype\":\"BF16\",\"data_offsets\":[3,3]},"
                             "\"a\":{\"data_offsets\":[3,19],\"dtype\":\"F32\",\"shape\":[1,4]}}   ";

/* Everything a reader may see: tensors out of order in the header, an empty one, a scalar, data at odd
 * addresses. */
static void sound_file(void **state)
{
    struct scratch *s = *state;
    struct safetensors file;
    struct error err;
    char text[64];
    char *path = scratch_path(s, "sound.safetensors");
    make_file(path, strlen(header), header, 23);
    assert_int_equal(safetensors_open(&file, path, &err), 0);
    static const char *const order[] = {"z", "empty", "a", "m.scalar"};
    static const int64_t offsets[] = {0, 3, 3, 19}, bytes[] = {3, 0, 16, 4}, elements[] = {3, 0, 4, 1};
    assert_int_equal(file.count, 4);
    assert_int_equal(file.data_bytes, 23);
    for (int i = 0; i < 4; i++) {
        const struct safetensors_tensor *t = &file.tensors[i];
        assert_string_equal(t->name, order[i]);
        assert_int_equal(t->offset, 8 + (int64_t)strlen(header) + offsets[i]);
        assert_int_equal(t->bytes, bytes[i]);
        assert_int_equal(t->elements, elements[i]);
        assert_ptr_equal(safetensors_find(&file, order[i]), t);
        assert_string_equal(t->path, path);
    }
    assert_null(safetensors_find(&file, "b"));
    assert_null(safetensors_find(&file, ""));
    assert_null(safetensors_find(&file, "__metadata__"));
    assert_int_equal(file.metadata_count, 2);
    assert_string_equal(safetensors_metadata(&file, "format"), "pt");
    assert_string_equal(safetensors_metadata(&file, "é"), "");
    assert_null(safetensors_metadata(&file, "other"));
    assert_string_equal(safetensors_describe(&file.tensors[1], text, sizeof text), "BF16 [4, 0, 2]");
    assert_string_equal(safetensors_describe(&file.tensors[3], text, sizeof text), "F32 []");
    assert_string_equal(safetensors_describe(&file.tensors[1], text, 9), "BF16 [4,");
    const uint8_t *first = file.tensors[2].data;
    assert_int_equal(first[0], 3);
    assert_int_equal(first[15], 18);
    safetensors_close(&file);
    safetensors_close(&file); /* once more does no harm */
}

/* 3,001 values: more than one piece, and data at an odd address. */
static void conversion(void **state)
{
    struct scratch *s = *state;
    enum { N = 3001 };
    static float in[N], out[N];
    static double wide[N];
    static uint16_t half[N];
    static const char head[] = "{\"p\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                               "\"x\":{\"dtype\":\"F32\",\"shape\":[3001],\"data_offsets\":[1,12005]}}";
    struct strbuf b = {0};
    struct safetensors file;
    struct error err;
    uint64_t length = sizeof head - 1;
    for (int i = 0; i < N; i++)
        in[i] = (float)(i - 1500) / 7;
    strbuf_append(&b, &length, 8);
    strbuf_puts(&b, head);
    strbuf_append(&b, "!", 1);
    strbuf_append(&b, in, sizeof in);
    char *path = scratch_path(s, "convert.safetensors");
    assert_int_equal(file_write_all(path, b.data, b.length, &err), 0);
    strbuf_free(&b);
    assert_int_equal(safetensors_open(&file, path, &err), 0);
    const struct safetensors_tensor *x = safetensors_find(&file, "x");
    assert_int_equal(safetensors_get(x, 0, N, DTYPE_F32, out, &err), 0);
    assert_memory_equal(out, in, sizeof in);
    assert_int_equal(safetensors_get(x, 0, N, DTYPE_F64, wide, &err), 0);
    assert_int_equal(safetensors_get(x, 0, N, DTYPE_BF16, half, &err), 0);
    for (int i = 0; i < N; i++) {
        assert_true(wide[i] == (double)in[i]);
        assert_int_equal(half[i], f32_to_bf16(in[i]));
    }
    memset(wide, 0, sizeof wide);
    assert_int_equal(safetensors_get(x, 2990, 11, DTYPE_F64, wide, &err), 0);
    for (int i = 0; i < 12; i++)
        assert_true(wide[i] == (i < 11 ? (double)in[2990 + i] : 0));
    assert_int_equal(safetensors_get(x, N, 0, DTYPE_F32, out, &err), 0);
    assert_int_equal(safetensors_get(x, 0, 1, DTYPE_I32, out, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_non_null(strstr(err.what, "F32 [3001] cannot be read as I32"));
    const struct safetensors_tensor *p = safetensors_find(&file, "p");
    assert_int_equal(safetensors_get(p, 0, 1, DTYPE_F32, out, &err), -1);
    assert_int_equal(safetensors_get(p, 0, 1, DTYPE_U8, out, &err), 0);
    safetensors_close(&file);
}

/* Damage one byte of the header after another: refused or read, but never out of bounds (sanitizers
 * watch). */
static void random_damage(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "damage.safetensors");
    char broken[sizeof header];
    uint32_t random = 12345;
    int refused = 0;
    for (int i = 0; i < 2000; i++) {
        struct safetensors file;
        struct error err;
        memcpy(broken, header, sizeof header);
        for (int k = 0; k < 2; k++) {
            random = random * 1664525 + 1013904223;
            broken[1 + (random >> 8) % (sizeof header - 2)] = "0123456789-[]{},:\"ax"[(random >> 24) % 20];
        }
        make_file(path, strlen(header), broken, 23);
        if (safetensors_open(&file, path, &err) != 0) {
            refused++;
            continue;
        }
        for (int64_t k = 0; k < file.count; k++) {
            uint8_t sum[64];
            assert_true(file.tensors[k].bytes <= 23);
            assert_int_equal(safetensors_get(&file.tensors[k], 0, file.tensors[k].elements,
                                             file.tensors[k].dtype, sum, &err),
                             0);
        }
        safetensors_close(&file);
    }
    assert_true(refused > 1000 && refused < 2000);
}

static void shapes(void **state)
{
    (void)state;
    int64_t n;
    assert_int_equal(safetensors_shape_elements(0, NULL, &n), 0);
    assert_int_equal(n, 1);
    assert_int_equal(safetensors_shape_elements(3, (const int64_t[]){15, 17, 7}, &n), 0);
    assert_int_equal(n, 15 * 17 * 7);
    assert_int_equal(safetensors_shape_elements(2, (const int64_t[]){0, INT64_C(1) << 50}, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(safetensors_shape_elements(1, (const int64_t[]){-1}, &n), -1);
    assert_int_equal(safetensors_shape_elements(2, (const int64_t[]){INT64_MAX, 2}, &n), -1);
    assert_int_equal(safetensors_shape_elements(1, (const int64_t[]){INT64_MAX / 64 + 1}, &n), -1);
}

static void out_of_memory(void **state)
{
    struct scratch *s = *state;
    struct safetensors file;
    struct error err;
    char *path = scratch_path(s, "sound.safetensors");
    make_file(path, strlen(header), header, 23);
    int64_t failures = 0;
    for (;; failures++) {
        allocations_fail_after(failures);
        int status = safetensors_open(&file, path, &err);
        allocations_fail_after(-1);
        if (status == 0)
            break;
        assert_null(file.path);
    }
    assert_true(failures >= 3);
    safetensors_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lying_headers, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(lying_lengths, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(truncation, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(sound_file, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(conversion, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(random_damage, open_scratch, close_scratch),
        cmocka_unit_test(shapes),
        cmocka_unit_test_setup_teardown(out_of_memory, open_scratch, close_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
