#include "data/fixture.h"

#include "data/checksums.h"

#include <fcntl.h>
#include <sys/stat.h>

static char *absolute(const char *name)
{
    char *path = realpath(name, NULL);
    assert_non_null(path);
    return path;
}

static uint64_t checksum_of(struct checksum_record *record, const char *path)
{
    struct file_identity identity;
    uint64_t checksum;
    assert_int_equal(checksums_of(record, path, &identity, &checksum, NULL), 0);
    return checksum;
}

/* A remembered file is not read again, and what counts as the same file is not fooled by a modification
 * time that was put back. */
static void test_remembers(void **state)
{
    (void)state;
    struct checksum_record record;
    put_text("a", "some text");
    char *path = absolute("a");
    struct stat before;
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(checksums_load(&record, ".", NULL), 0);
    record.settled_seconds = -1e9;
    uint64_t first = checksum_of(&record, path);
    assert_int_equal(first, hash_bytes("some text", 9, 0));
    assert_true(record.changed);
    assert_int_equal(checksums_save(&record, NULL), 0);
    checksums_free(&record);

    assert_int_equal(checksums_load(&record, ".", NULL), 0);
    assert_int_equal(record.count, 1);
    record.entries[0].checksum = 77; /* shows that it is the record that answers */
    assert_int_equal(checksum_of(&record, path), 77);

    put_text("a", "same size");
    const struct timespec times[2] = {before.st_atim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    record.settled_seconds = -1e9;
    assert_int_equal(checksum_of(&record, path), hash_bytes("same size", 9, 0));
    assert_int_equal(record.count, 1);
    checksums_free(&record);
    free(path);
}

static void test_fresh_files_are_read_again(void **state)
{
    (void)state;
    struct checksum_record record;
    put_text("a", "some text");
    char *path = absolute("a");
    assert_int_equal(checksums_load(&record, ".", NULL), 0);
    record.settled_seconds = 1e9;
    assert_int_equal(checksum_of(&record, path), hash_bytes("some text", 9, 0));
    assert_int_equal(record.count, 0);
    assert_false(record.changed);
    checksums_free(&record);
    free(path);
}

static void test_many_and_gone(void **state)
{
    (void)state;
    struct checksum_record record;
    struct error err;
    assert_int_equal(checksums_load(&record, ".", NULL), 0);
    record.settled_seconds = -1e9;
    for (int i = 0; i < 150; i++) {
        char name[32];
        snprintf(name, sizeof name, "file-%d", i * 37 % 150);
        put_text(name, name);
        char *path = absolute(name);
        (void)checksum_of(&record, path);
        free(path);
    }
    assert_int_equal(unlink("file-20"), 0);
    assert_int_equal(checksums_save(&record, &err), 0);
    checksums_free(&record);
    assert_int_equal(checksums_load(&record, ".", NULL), 0);
    assert_int_equal(record.count, 149);
    for (int64_t i = 0; i < record.count; i++)
        record.entries[i].checksum = 5;
    for (int i = 0; i < 150; i++) {
        char name[32];
        snprintf(name, sizeof name, "file-%d", i);
        if (i == 20)
            continue;
        char *path = absolute(name);
        assert_int_equal(checksum_of(&record, path), 5);
        free(path);
    }
    checksums_free(&record);

    struct file_identity identity;
    uint64_t checksum;
    assert_int_equal(checksums_load(&record, ".", NULL), 0);
    assert_int_equal(checksums_of(&record, "/nowhere/at/all", &identity, &checksum, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    checksums_free(&record);
}

static void test_damaged_record(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{\"files\": 3}",
        "{\"files\": [{\"path\": \"/a\", \"device\": 1}]}",
        ("{\"files\": [{\"path\": \"/a\", \"device\": 1, \"inode\": 1, \"size\": 1, "
         "\"mtime_ns\": 1, \"ctime_ns\": 1, \"checksum\": \"xyz\"}]}"),
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct checksum_record record;
        put_text("checksums.json", texts[i]);
        assert_int_equal(checksums_load(&record, ".", NULL), 0);
        assert_int_equal(record.count, 0);
        checksums_free(&record);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_remembers, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_fresh_files_are_read_again, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_many_and_gone, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_damaged_record, enter_directory, leave_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
