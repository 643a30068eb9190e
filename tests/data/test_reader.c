#include "data/fixture.h"

#include "data/reader.h"

#include <sys/stat.h>

/* Everything that a list of files holds, joined: each document as its length and its text. */
struct all {
    char *bytes;
    size_t size, capacity;
    int64_t documents;
    int64_t last_line;
    struct data_summary summary;
    struct error err;
};

static int read_all(const char *const *patterns, int64_t count, enum data_bad_lines bad_lines,
                    struct all *out)
{
    memset(out, 0, sizeof *out);
    struct text_files files;
    if (text_files_find(patterns, count, &files, &out->err) != 0)
        return -1;
    struct text_reader *reader;
    assert_int_equal(text_reader_open(&reader, &files, &out->err), 0);
    struct document d;
    int got;
    while ((got = document_next(reader, "text", bad_lines, &out->summary, &d, &out->err)) == 1) {
        if (out->capacity < out->size + d.size + sizeof d.size) {
            out->capacity = 2 * (out->size + d.size + sizeof d.size);
            out->bytes = realloc(out->bytes, out->capacity);
            assert_non_null(out->bytes);
        }
        memcpy(out->bytes + out->size, &d.size, sizeof d.size);
        if (d.size > 0)
            memcpy(out->bytes + out->size + sizeof d.size, d.text, d.size);
        out->size += d.size + sizeof d.size;
        out->documents++;
        out->last_line = d.line;
        document_free(&d);
    }
    if (got == 0)
        assert_int_equal(text_reader_bytes(reader), text_reader_total_bytes(reader));
    text_reader_close(reader);
    text_files_free(&files);
    return got;
}

static int read_one(const char *path, enum data_bad_lines bad_lines, struct all *out)
{
    return read_all(&path, 1, bad_lines, out);
}

static void expect_text(const struct all *all, int64_t index, const char *text, size_t n)
{
    const char *at = all->bytes;
    size_t size;
    for (int64_t i = 0;; i++) {
        assert_true(at < all->bytes + all->size);
        memcpy(&size, at, sizeof size);
        at += sizeof size;
        if (i == index)
            break;
        at += size;
    }
    assert_int_equal(size, n);
    assert_memory_equal(at, text, n);
}

static const char odd_lines[] =
    "\xef\xbb\xbf{\"text\": \"first\"}\r\n"
    "\r\n"
    "  \t\n"
    "{\"id\": 12345678901234567890123, \"text\": \"a\xe2\x80\xa8z\", \"n\": null}\n"
    "{\"text\": \"nul \\u0000 in it\", \"x\": {\"text\": 5}}\n"
    "{\"text\": \"\"}\n"
    "{\"text\": \"last, without an end\"}";

static void check_odd_lines(const char *path)
{
    struct all all;
    assert_int_equal(read_one(path, DATA_BAD_LINES_ERROR, &all), 0);
    assert_int_equal(all.documents, 5);
    expect_text(&all, 0, "first", 5);
    expect_text(&all, 1, "a\xe2\x80\xa8z", 5);
    expect_text(&all, 2, "nul \0 in it", 11);
    expect_text(&all, 3, "", 0);
    expect_text(&all, 4, "last, without an end", 20);
    assert_int_equal(all.last_line, 7);
    assert_int_equal(all.summary.documents, 5);
    assert_int_equal(all.summary.blank_lines, 2);
    assert_int_equal(all.summary.text_bytes, 41);
    assert_int_equal(data_summary_dropped(&all.summary), 0);
    free(all.bytes);
}

static void test_odd_but_normal(void **state)
{
    (void)state;
    put_packed("a.jsonl", odd_lines, sizeof odd_lines - 1);
    put_packed("a.jsonl.gz", odd_lines, sizeof odd_lines - 1);
    put_packed("a.json-lines.zst", odd_lines, sizeof odd_lines - 1);
    put_packed("a.NDJSON.xz", odd_lines, sizeof odd_lines - 1);
    check_odd_lines("a.jsonl");
    check_odd_lines("a.jsonl.gz");
    check_odd_lines("a.json-lines.zst");
    check_odd_lines("a.NDJSON.xz");
}

static void test_text_files(void **state)
{
    (void)state;
    struct all all;
    put_text("one.txt", "\xef\xbb\xbfline one\r\n\nline \xe4\xb8\x89\n");
    put_file("two.txt", "a\0b", 3);
    put_packed("three.txt.gz", "packed\n", 7);
    const char *paths[] = {"two.txt", "one.txt", "three.txt.gz"};
    assert_int_equal(read_all(paths, 3, DATA_BAD_LINES_ERROR, &all), 0);
    assert_int_equal(all.documents, 3);
    expect_text(&all, 0, "a\0b", 3);
    expect_text(&all, 1, "line one\r\n\nline \xe4\xb8\x89\n", 20);
    expect_text(&all, 2, "packed\n", 7);
    assert_int_equal(all.last_line, 0);
    free(all.bytes);
}

/* Lines that straddle the reader's chunks, and one of 30 MB. */
static void test_long_lines(void **state)
{
    (void)state;
    /* The first LF is the first byte of the second chunk. */
    const size_t sizes[] = {(1 << 20) - 12, (1 << 20) - 11, 1 << 20, 5, 30000000, 0, 3 << 20};
    const size_t count = sizeof sizes / sizeof sizes[0];
    char *text = malloc(40000000);
    assert_non_null(text);
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        n += (size_t)sprintf(text + n, "{\"text\": \"");
        for (size_t k = 0; k < sizes[i]; k++)
            text[n++] = (char)('a' + (k * 7 + i) % 26);
        n += (size_t)sprintf(text + n, "\"}%s\n", i % 2 ? "\r" : "");
    }
    put_packed("long.jsonl", text, n);
    put_packed("long.jsonl.zst", text, n);
    const char *paths[] = {"long.jsonl", "long.jsonl.zst"};
    for (int p = 0; p < 2; p++) {
        struct all all;
        assert_int_equal(read_one(paths[p], DATA_BAD_LINES_ERROR, &all), 0);
        assert_int_equal(all.documents, count);
        size_t at = 0;
        for (size_t i = 0; i < count; i++) {
            size_t size;
            memcpy(&size, all.bytes + at, sizeof size);
            assert_int_equal(size, sizes[i]);
            at += sizeof size;
            for (size_t k = 0; k < size; k++)
                if (all.bytes[at + k] != (char)('a' + (k * 7 + i) % 26))
                    fail_msg("byte %zu of document %zu", k, i);
            at += size;
        }
        free(all.bytes);
    }
    free(text);
}

/* Many short lines: chunk boundaries fall everywhere. */
static void test_many_lines(void **state)
{
    (void)state;
    const int lines = 150000;
    char *text = malloc((size_t)lines * 64);
    assert_non_null(text);
    size_t n = 0;
    for (int i = 0; i < lines; i++)
        n += (size_t)sprintf(text + n, "{\"text\": \"%d %.*s\"}%s\n", i, i % 17, "xxxxxxxxxxxxxxxxx",
                             i % 3 ? "\r" : "");
    put_packed("many.jsonl.gz", text, n);
    free(text);
    struct all all;
    assert_int_equal(read_one("many.jsonl.gz", DATA_BAD_LINES_ERROR, &all), 0);
    assert_int_equal(all.documents, lines);
    assert_int_equal(all.last_line, lines);
    size_t at = 0;
    for (int i = 0; i < lines; i++) {
        char want[64];
        size_t size, length = (size_t)sprintf(want, "%d %.*s", i, i % 17, "xxxxxxxxxxxxxxxxx");
        memcpy(&size, all.bytes + at, sizeof size);
        assert_int_equal(size, length);
        assert_memory_equal(all.bytes + at + sizeof size, want, length);
        at += sizeof size + size;
    }
    free(all.bytes);
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        enum data_reason reason;
        const char *what;
    } cases[] = {
        {"{\"text\": \"open", DATA_BAD_JSON, "JSON"},
        {"{\"text\": \"a\"} x", DATA_BAD_JSON, "JSON"},
        {"not json", DATA_BAD_JSON, "JSON"},
        {"{\"text\": \"lone \\ud800 surrogate\"}", DATA_BAD_JSON, "JSON"},
        {"{\"text\": \"a\", \"text\": \"b\"}", DATA_BAD_JSON, "JSON"},
        {"[\"text\"]", DATA_NOT_OBJECT, "array"},
        {"\"text\"", DATA_NOT_OBJECT, "string"},
        {"{\"txt\": \"a\"}", DATA_MISSING_FIELD, "no field \"text\""},
        {"{}", DATA_MISSING_FIELD, "no field \"text\""},
        {"{\"text\": null}", DATA_NOT_STRING, "null"},
        {"{\"text\": 12}", DATA_NOT_STRING, "integer"},
        {"{\"text\": [\"a\"]}", DATA_NOT_STRING, "array"},
        {"{\"text\": \"\xff\"}", DATA_INVALID_UTF8, "0xff"},
        {"{\"text\": \"\xed\xa0\x80\"}", DATA_INVALID_UTF8, "UTF-8"},
        {"{\"text\": \"\xc0\x80\"}", DATA_INVALID_UTF8, "UTF-8"},
        {"{\"text\": \"cut \xe4\xb8", DATA_INVALID_UTF8, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        struct all all;
        snprintf(text, sizeof text, "{\"text\": \"one\"}\n\n%s\n{\"text\": \"two\"}\n%s\n", cases[i].line,
                 cases[i].line);
        put_text("bad.jsonl", text);
        assert_int_equal(read_one("bad.jsonl", DATA_BAD_LINES_ERROR, &all), -1);
        assert_int_equal(all.err.kind, ERROR_INPUT);
        assert_contains(all.err.where, "bad.jsonl:3");
        assert_contains(all.err.what, cases[i].what);
        assert_contains(all.err.remedy, "data.bad_lines: skip");
        assert_int_equal(all.documents, 1);
        free(all.bytes);
        assert_int_equal(read_one("bad.jsonl", DATA_BAD_LINES_SKIP, &all), 0);
        assert_int_equal(all.documents, 2);
        expect_text(&all, 1, "two", 3);
        for (int r = 0; r < DATA_REASONS; r++)
            assert_int_equal(all.summary.dropped[r].count, r == (int)cases[i].reason ? 2 : 0);
        assert_string_equal(all.summary.dropped[cases[i].reason].first, "bad.jsonl:3");
        free(all.bytes);
    }
}

static void test_bad_text(void **state)
{
    (void)state;
    struct all all;
    put_file("bad.txt", "good so far \x80 but", 17);
    put_file("utf16.txt",
             "\xff\xfe"
             "a\0b\0",
             6);
    put_text("good.txt", "good");
    assert_int_equal(read_one("bad.txt", DATA_BAD_LINES_ERROR, &all), -1);
    assert_string_equal(all.err.where, "bad.txt");
    assert_contains(all.err.what, "byte 13 ");
    assert_contains(all.err.remedy, "data.bad_lines: skip");
    assert_int_equal(read_one("utf16.txt", DATA_BAD_LINES_ERROR, &all), -1);
    assert_contains(all.err.what, "UTF-16");
    const char *paths[] = {"bad.txt", "good.txt", "utf16.txt"};
    assert_int_equal(read_all(paths, 3, DATA_BAD_LINES_SKIP, &all), 0);
    assert_int_equal(all.documents, 1);
    assert_int_equal(all.summary.dropped[DATA_INVALID_UTF8].count, 2);
    assert_string_equal(all.summary.dropped[DATA_INVALID_UTF8].first, "bad.txt");
    free(all.bytes);
}

static void expect_refused(const char *path, const char *what)
{
    /* bad_lines is about lines: a file that is wrong as a whole is refused in any case. */
    for (int skip = 0; skip < 2; skip++) {
        struct all all;
        assert_int_equal(read_one(path, skip ? DATA_BAD_LINES_SKIP : DATA_BAD_LINES_ERROR, &all), -1);
        assert_int_equal(all.err.kind, ERROR_INPUT);
        assert_contains(all.err.where, path);
        assert_contains(all.err.what, what);
        assert_true(all.err.remedy[0] != '\0');
        free(all.bytes);
    }
}

static void test_empty(void **state)
{
    (void)state;
    put_text("empty.jsonl", "");
    put_text("bom.jsonl", "\xef\xbb\xbf");
    put_text("blank.jsonl", "\n \r\n\n");
    put_text("empty.txt", "");
    put_text("empty.jsonl.gz", "");
    put_packed("nothing.jsonl.zst", "", 0);
    expect_refused("empty.jsonl", "empty");
    expect_refused("bom.jsonl", "empty");
    expect_refused("blank.jsonl", "blank");
    expect_refused("empty.txt", "empty");
    expect_refused("empty.jsonl.gz", "");
    expect_refused("nothing.jsonl.zst", "");
}

/* A compressed file that ends at any byte but its last is refused: nothing that is missing goes
 * unnoticed. */
static void test_truncated(void **state)
{
    (void)state;
    static const char *const names[] = {"cut.jsonl.gz", "cut.jsonl.zst", "cut.jsonl.xz", "cut.txt.gz"};
    char text[4096];
    size_t n = 0;
    for (int i = 0; n < sizeof text - 64; i++)
        n += (size_t)sprintf(text + n, "{\"text\": \"%d %d\"}\n", i, i * i * 7919);
    for (size_t f = 0; f < sizeof names / sizeof names[0]; f++) {
        size_t size = put_packed(names[f], text, n);
        char *packed;
        assert_int_equal(file_read(names[f], 1 << 20, &packed, &size, NULL), 0);
        struct all all;
        assert_int_equal(read_one(names[f], DATA_BAD_LINES_ERROR, &all), 0);
        free(all.bytes);
        for (size_t cut = 0; cut < size; cut++) {
            put_file(names[f], packed, cut);
            if (read_one(names[f], DATA_BAD_LINES_SKIP, &all) != -1)
                fail_msg("%s cut to %zu of %zu bytes went through", names[f], cut, size);
            assert_int_equal(all.err.kind, ERROR_INPUT);
            assert_string_equal(all.err.where, names[f]);
            free(all.bytes);
        }
        free(packed);
    }
}

static void test_damaged(void **state)
{
    (void)state;
    static const char text[] = "{\"text\": \"abcdefgh\"}\n{\"text\": \"ijklmnop\"}\n";
    put_packed("a.jsonl.gz", text, sizeof text - 1);
    assert_int_equal(rename("a.jsonl.gz", "b.jsonl.zst"), 0);
    expect_refused("b.jsonl.zst", "zstd");
    put_text("c.jsonl.gz", text);
    expect_refused("c.jsonl.gz", "gzip");
    put_packed("d.jsonl.gz", text, sizeof text - 1);
    assert_int_equal(rename("d.jsonl.gz", "d.jsonl"), 0);
    struct all all;
    assert_int_equal(read_one("d.jsonl", DATA_BAD_LINES_ERROR, &all), -1);
    assert_int_equal(all.err.kind, ERROR_INPUT);
}

/* Compressed files joined end to end are one text. */
static void test_members(void **state)
{
    (void)state;
    static const char *const names[] = {"a.jsonl.gz", "a.jsonl.zst"};
    for (int f = 0; f < 2; f++) {
        char joined[1024];
        size_t n = 0;
        for (int i = 0; i < 3; i++) {
            char line[64], *packed;
            size_t size;
            put_packed(names[f], line, (size_t)sprintf(line, "{\"text\": \"part %d\"}\n", i));
            assert_int_equal(file_read(names[f], 1 << 20, &packed, &size, NULL), 0);
            memcpy(joined + n, packed, size);
            n += size;
            free(packed);
        }
        put_file(names[f], joined, n);
        struct all all;
        assert_int_equal(read_one(names[f], DATA_BAD_LINES_ERROR, &all), 0);
        assert_int_equal(all.documents, 3);
        expect_text(&all, 2, "part 2", 6);
        free(all.bytes);
    }
}

static void test_find(void **state)
{
    (void)state;
    static const char *const names[] = {"a2.jsonl",       "a10.jsonl",  "B.jsonl",
                                        "\xc3\xa9.jsonl", "x[1].jsonl", "z.md"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        put_text(names[i], "{\"text\": \"a\"}\n");
    assert_int_equal(mkdir("d.jsonl", 0777), 0);
    struct text_files files;
    struct error err;
    const char *some[] = {"x[1].jsonl", "[!dx]*.jsonl", "a2.jsonl"};
    assert_int_equal(text_files_find(some, 3, &files, &err), 0);
    static const char *const want[] = {"x[1].jsonl", "B.jsonl",        "a10.jsonl",
                                       "a2.jsonl",   "\xc3\xa9.jsonl", "a2.jsonl"};
    assert_int_equal(files.count, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(files.paths[i], want[i]);
    text_files_free(&files);

    static const struct {
        const char *pattern, *what;
    } wrong[] = {{"missing.jsonl", "No such file"}, {"no*match.jsonl", "no file matches"},
                 {"d.jsonl", "directory"},          {"d*.jsonl", "directory"},
                 {"z.md", "kind of text"},          {"nowhere/*.txt", "no file matches"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const char *list[] = {"B.jsonl", wrong[i].pattern};
        assert_int_equal(text_files_find(list, 2, &files, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_contains(err.where, i == 3 ? "d.jsonl" : wrong[i].pattern);
        assert_contains(err.what, wrong[i].what);
        assert_true(err.remedy[0] != '\0');
        text_files_free(&files);
    }
    assert_int_equal(text_files_find(NULL, 0, &files, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    if (geteuid() != 0) {
        assert_int_equal(chmod("B.jsonl", 0), 0);
        const char *unreadable = "B.jsonl";
        assert_int_equal(text_files_find(&unreadable, 1, &files, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_contains(err.what, "Permission");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_odd_but_normal, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_text_files, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_long_lines, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_many_lines, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_bad_lines, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_bad_text, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_empty, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_truncated, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_damaged, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_members, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_find, enter_directory, leave_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
