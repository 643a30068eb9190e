#include "base/file.h"
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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

static uint8_t *pattern(size_t n)
{
    uint8_t *bytes = malloc(n + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    return bytes;
}

static void assert_content(const char *path, const uint8_t *bytes, size_t n)
{
    struct file_map map;
    struct error err;
    assert_int_equal(file_map(path, &map, &err), 0);
    assert_int_equal(map.size, n);
    if (n > 0)
        assert_memory_equal(map.data, bytes, n);
    file_unmap(&map);
    file_unmap(&map); /* once more does no harm */
}

static void writes_of_every_size(void **state)
{
    struct scratch *s = *state;
    const size_t mega = 1 << 20;
    const size_t sizes[] = {0, 1, 4097, mega - 1, mega, mega + 1, 3 * mega + 17};
    struct error err;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *path = scratch_path(s, "sizes");
        uint8_t *bytes = pattern(sizes[i]);
        assert_int_equal(file_write_all(path, bytes, sizes[i], &err), 0);
        assert_content(path, bytes, sizes[i]);
        int64_t length;
        uint64_t hash;
        assert_int_equal(file_hash(path, &length, &hash, &err), 0);
        assert_int_equal(length, sizes[i]);
        assert_true(hash == hash_bytes(bytes, sizes[i], 0));
        char *text;
        size_t size;
        assert_int_equal(file_read(path, sizes[i], &text, &size, &err), 0);
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(text, bytes, size);
        assert_int_equal(text[size], '\0');
        free(text);
        free(bytes);
    }
    assert_int_equal(scratch_entries(s), 1);
}

static void pieces_add_up(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "pieces");
    const size_t n = (5 << 20) + 3;
    uint8_t *bytes = pattern(n);
    struct error err;
    struct file_writer w;
    assert_int_equal(file_writer_open(&w, path, &err), 0);
    size_t done = 0;
    for (size_t step = 1; done < n; step = step * 3 + 1) { /* below, at and above the buffer's size */
        size_t piece = step < n - done ? step : n - done;
        assert_int_equal(file_writer_write(&w, bytes + done, piece, &err), 0);
        done += piece;
        assert_int_equal(w.bytes, done);
        assert_true(file_writer_hash(&w) == hash_bytes(bytes, done, 0));
    }
    assert_false(file_exists(path)); /* not before it is whole */
    assert_int_equal(file_writer_commit(&w, &err), 0);
    assert_content(path, bytes, n);
    file_writer_abort(&w);
    assert_true(file_exists(path));
    free(bytes);
}

static void abort_leaves_the_old_file(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "old");
    struct error err;
    assert_int_equal(file_write_all(path, "old", 3, &err), 0);
    struct file_writer w;
    assert_int_equal(file_writer_open(&w, path, &err), 0);
    assert_int_equal(file_writer_write(&w, "new", 3, &err), 0);
    assert_content(path, (const uint8_t *)"old", 3);
    assert_int_equal(scratch_entries(s), 2);
    file_writer_abort(&w);
    file_writer_abort(&w);
    assert_int_equal(scratch_entries(s), 1);
    assert_content(path, (const uint8_t *)"old", 3);
    struct file_writer zeroed = {0};
    file_writer_abort(&zeroed);
}

static void stale_temporary_is_replaced(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "stale");
    char name[64];
    struct error err;
    snprintf(name, sizeof name, "stale.tmp-%ld", (long)getpid());
    /* A link in its place must not be followed. */
    char *victim = scratch_path(s, "victim");
    assert_int_equal(file_write_all(victim, "safe", 4, &err), 0);
    assert_int_equal(symlink(victim, scratch_path(s, name)), 0);
    assert_int_equal(file_write_all(path, "x", 1, &err), 0);
    assert_content(path, (const uint8_t *)"x", 1);
    assert_content(victim, (const uint8_t *)"safe", 4);
    assert_int_equal(scratch_entries(s), 2);
}

/* A file-size limit stands for a full disk: the system refuses to write on. */
static void failed_write_leaves_nothing(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "full");
    const size_t n = 3 << 20;
    uint8_t *bytes = pattern(n);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1500000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct error err = {0}, late = {0};
    int whole = file_write_all(path, bytes, n, &err);
    struct file_writer w;
    int opened = file_writer_open(&w, path, NULL);
    int written = 0; /* in small pieces, the failure comes at some flush … */
    for (int i = 0; i < 30 && written == 0; i++)
        written = file_writer_write(&w, bytes, 100000, &late);
    int again = file_writer_write(&w, bytes, 2 << 20, NULL);
    int commit = file_writer_commit(&w, NULL); /* … and the file must not appear for all that */
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(whole, -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_string_equal(err.where, path);
    assert_int_equal(opened, 0);
    assert_int_equal(written, -1);
    assert_string_equal(late.where, path);
    assert_int_equal(again, -1);
    assert_int_equal(commit, -1);
    assert_int_equal(scratch_entries(s), 0);
    free(bytes);
}

/* Two writers, each with what it has, in no order. */
static void parts_make_a_file(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "parts");
    const size_t n = (3 << 20) + 5, cut = 1000003;
    uint8_t *bytes = pattern(n);
    struct error err;
    struct file_part a, b;
    assert_int_equal(file_part_open(&a, path, false, &err), -1);
    assert_string_equal(err.where, path);
    assert_int_equal(file_part_open(&a, path, true, &err), 0);
    assert_true(file_exists(path));
    assert_int_equal(file_part_open(&b, path, true, &err), -1);
    assert_int_equal(file_part_open(&b, path, false, &err), 0);
    assert_int_equal(file_part_write(&b, (int64_t)cut, bytes + cut, n - cut, &err), 0);
    assert_int_equal(file_part_write(&a, 17, bytes + 17, cut - 17, &err), 0);
    assert_int_equal(file_part_sync(&b, &err), 0);
    assert_int_equal(file_part_close(&b, &err), 0);
    assert_int_equal(file_part_close(&b, &err), 0);
    assert_int_equal(file_part_write(&a, 0, bytes, 17, &err), 0);
    assert_int_equal(file_part_write(&a, 5, NULL, 0, &err), 0);
    assert_int_equal(file_part_sync(&a, &err), 0);
    assert_int_equal(file_part_close(&a, &err), 0);
    assert_content(path, bytes, n);
    assert_int_equal(scratch_entries(s), 1);
    assert_int_equal(symlink(path, scratch_path(s, "link")), 0); /* not followed */
    assert_int_equal(file_part_open(&a, scratch_path(s, "link"), false, &err), -1);
    struct file_part zeroed = {0};
    assert_int_equal(file_part_close(&zeroed, &err), 0);
    free(bytes);
}

static void failed_parts_tell(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "full");
    uint8_t bytes[4096] = {0};
    struct file_part f;
    struct error err = {0}, late = {0};
    struct rlimit before, small;
    assert_int_equal(file_part_open(&f, path, true, &err), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int first = file_part_write(&f, 0, bytes, sizeof bytes, &err);
    int over = file_part_write(&f, 4000, bytes, sizeof bytes, &err); /* in part */
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(first, 0);
    assert_int_equal(over, -1);
    assert_string_equal(err.where, path);
    assert_int_equal(err.kind, ERROR_RUN);
    close(f.fd); /* as a device that is lost */
    assert_int_equal(file_part_write(&f, 0, bytes, 1, &late), -1);
    assert_int_equal(file_part_sync(&f, &late), -1);
    assert_int_equal(file_part_close(&f, &late), -1);
    assert_string_equal(late.where, path);
}

static void impossible_targets(void **state)
{
    struct scratch *s = *state;
    struct error err;
    char *inside = scratch_path(s, "no/such/file");
    assert_int_equal(file_write_all(inside, "x", 1, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_string_equal(err.where, inside);
    assert_true(err.remedy[0] != '\0');
    char *directory = scratch_path(s, "directory");
    assert_int_equal(file_make_directories(directory, &err), 0);
    assert_int_equal(file_write_all(directory, "x", 1, &err), -1);
    assert_int_equal(scratch_entries(s), 1);
}

static void failed_allocations_leave_nothing(void **state)
{
    struct scratch *s = *state;
    char *path = scratch_path(s, "memory");
    struct error err;
    int64_t n = 0;
    for (int status = -1; status != 0; n++) {
        allocations_fail_after(n);
        status = file_write_all(path, "x", 1, &err);
        allocations_fail_after(-1);
        assert_int_equal(scratch_entries(s), status == 0 ? 1 : 0);
    }
    assert_true(n >= 2);
    for (int status = -1; status != 0;) {
        char *text = NULL;
        size_t size;
        int64_t bytes;
        uint64_t hash;
        allocations_fail_after(0);
        assert_int_equal(file_read(path, 10, &text, &size, &err), -1);
        assert_null(text);
        assert_int_equal(file_hash(path, &bytes, &hash, &err), -1);
        assert_int_equal(err.kind, ERROR_RUN);
        allocations_fail_after(-1);
        status = file_read(path, 10, &text, &size, &err);
        free(text);
    }
}

static void wrong_inputs(void **state)
{
    struct scratch *s = *state;
    struct error err;
    struct file_map map;
    char *text, *missing = scratch_path(s, "missing"), *pipe = scratch_path(s, "pipe");
    size_t size;
    int64_t bytes;
    uint64_t hash;
    assert_int_equal(mkfifo(pipe, 0600), 0);
    const char *paths[] = {missing, s->directory, pipe};
    for (int i = 0; i < 3; i++) {
        memset(&err, 0, sizeof err);
        assert_int_equal(file_map(paths[i], &map, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_string_equal(err.where, paths[i]);
        assert_true(err.remedy[0] != '\0');
        assert_null(map.data);
        assert_int_equal(file_hash(paths[i], &bytes, &hash, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(file_read(paths[i], 100, &text, &size, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
    }
    char *big = scratch_path(s, "big");
    assert_int_equal(file_write_all(big, "0123456789", 10, &err), 0);
    assert_int_equal(file_read(big, 9, &text, &size, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    assert_null(text);
    assert_int_equal(file_read(big, 10, &text, &size, &err), 0);
    assert_string_equal(text, "0123456789");
    free(text);
}

/* Files of /proc say that their size is 0 and are read all the same, as pipes are. */
static void size_unknown_beforehand(void **state)
{
    (void)state;
    struct error err;
    char *text;
    size_t size;
    assert_int_equal(file_read("/proc/self/maps", 1 << 24, &text, &size, &err), 0);
    assert_true(size > 100);
    assert_int_equal(strlen(text), size);
    free(text);
    assert_int_equal(file_read("/dev/zero", 100000, &text, &size, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
}

static void directories(void **state)
{
    struct scratch *s = *state;
    struct error err;
    char *deep = scratch_path(s, "a//b/c/d/"), *file = scratch_path(s, "a/b/file");
    assert_int_equal(file_make_directories(deep, &err), 0);
    assert_int_equal(file_make_directories(deep, &err), 0);
    assert_true(file_is_directory(deep));
    assert_int_equal(file_write_all(file, "x", 1, &err), 0);
    assert_false(file_is_directory(file));
    assert_true(file_exists(file));
    assert_int_equal(file_make_directories(scratch_path(s, "a/b/file/x"), &err), -1);
    assert_int_equal(file_make_directories(file, &err), -1);
    assert_non_null(strstr(err.what, "Not a directory"));
    assert_int_equal(file_make_directories("", &err), -1);
    char *renamed = scratch_path(s, "renamed");
    assert_int_equal(file_rename(file, renamed, &err), 0);
    assert_false(file_exists(file));
    assert_content(renamed, (const uint8_t *)"x", 1);
    assert_int_equal(file_rename(file, renamed, &err), -1);
    assert_string_equal(err.where, file);
    assert_int_equal(file_sync_directory(s->directory, &err), 0);
    assert_int_equal(file_sync_directory(renamed, &err), -1);
}

/* Found without making anything: what file_make_directories, or a file in the directory, would stumble over.
 */
static void directories_that_can_be_made(void **state)
{
    struct scratch *s = *state;
    struct error err;
    char *file = scratch_path(s, "file"), *link = scratch_path(s, "link"), *loop = scratch_path(s, "loop");
    assert_int_equal(file_write_all(file, "x", 1, &err), 0);
    assert_int_equal(symlink("nowhere", link), 0);
    assert_int_equal(symlink(loop, loop), 0);
    assert_int_equal(file_check_directory(s->directory, 0, &err), 0);
    assert_int_equal(file_check_directory(".", 0, &err), 0);
    assert_int_equal(file_check_directory("relative/not/there/", 0, &err), 0);
    assert_int_equal(file_check_directory(scratch_path(s, "not/../yet/there"), 0, &err), 0);
    char name[300];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    const char *wrong[] = {"",   file, scratch_path(s, "file/x"), link, scratch_path(s, "link/x/y"),
                           loop, name};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memset(&err, 0, sizeof err);
        assert_int_equal(file_check_directory(wrong[i], 0, &err), -1);
        assert_int_equal(err.kind, ERROR_INPUT);
        assert_string_equal(err.where, wrong[i]);
    }
    assert_int_equal(file_check_directory(s->directory, 4096 - strlen(s->directory), &err), -1);
    assert_non_null(strstr(err.what, "too long"));
    assert_false(file_exists(scratch_path(s, "yet")));
}

static void remove_tree_stays_inside(void **state)
{
    struct scratch *s = *state;
    struct error err;
    char *outside = scratch_path(s, "outside"), *kept = scratch_path(s, "outside/kept");
    char *tree = scratch_path(s, "tree"), *inner = scratch_path(s, "tree/x/y/z");
    assert_int_equal(file_make_directories(outside, &err), 0);
    assert_int_equal(file_write_all(kept, "k", 1, &err), 0);
    assert_int_equal(file_make_directories(inner, &err), 0);
    for (int i = 0; i < 100; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s/%d", inner, i);
        assert_int_equal(file_write_all(name, name, strlen(name), &err), 0);
    }
    assert_int_equal(symlink(outside, scratch_path(s, "tree/x/link")), 0);
    assert_int_equal(symlink("nowhere", scratch_path(s, "tree/dangling")), 0);
    assert_int_equal(file_remove_tree(tree, &err), 0);
    assert_false(file_exists(tree));
    assert_true(file_exists(kept));
    assert_int_equal(file_remove_tree(tree, &err), 0); /* gone already */

    /* A link itself, also with a slash behind: the link goes, its target stays. */
    char *link = scratch_path(s, "link"), *slash = scratch_path(s, "link/");
    assert_int_equal(symlink(outside, link), 0);
    assert_int_equal(file_remove_tree(slash, &err), 0);
    assert_false(file_exists(link));
    assert_true(file_exists(kept));
    assert_int_equal(file_remove_tree(kept, &err), 0);
    assert_false(file_exists(kept));
}

static void names_in_a_directory(void **state)
{
    struct scratch *s = *state;
    struct error err;
    const char *name;
    assert_int_equal(file_write_all(scratch_path(s, "one"), "1", 1, &err), 0);
    DIR *directory = opendir(s->directory);
    assert_non_null(directory);
    assert_int_equal(file_next_name(directory, s->directory, &name, &err), 0);
    assert_string_equal(name, "one");
    assert_int_equal(file_next_name(directory, s->directory, &name, &err), 0);
    assert_null(name);
    closedir(directory);

    /* One that cannot be read on is not taken for one that ends. */
    directory = opendir(s->directory);
    assert_non_null(directory);
    close(dirfd(directory));
    assert_int_equal(file_next_name(directory, s->directory, &name, &err), -1);
    assert_null(name);
    assert_string_equal(err.where, s->directory);
    closedir(directory);
}

static void absent_or_unknown(void **state)
{
    (void)state;
    static const int absent[] = {ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG};
    static const int unknown[] = {EIO, ENOMEM, EMFILE, ESTALE};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_true(file_says_absent(absent[i]));
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_false(file_says_absent(unknown[i]));
}

static void free_space_of_paths_to_come(void **state)
{
    struct scratch *s = *state;
    struct error err;
    int64_t here = -1, below = -1;
    assert_int_equal(file_free_space(s->directory, &here, &err), 0);
    assert_true(here > 0);
    assert_int_equal(file_free_space(scratch_path(s, "not/yet/there"), &below, &err), 0);
    assert_true(below > 0);
    assert_int_equal(file_free_space("relative/not/there", &below, &err), 0);
    assert_int_equal(file_free_space("/", &below, &err), 0);
    assert_int_equal(file_free_space("", &below, &err), 0);
}

static void joining(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}, {"a/b", "c/d", "a/b/c/d"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *joined = file_join(cases[i][0], cases[i][1]);
        assert_string_equal(joined, cases[i][2]);
        free(joined);
    }
}

static void hash_is_xxh3(void **state)
{
    (void)state;
    assert_true(hash_bytes("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(hash_bytes("abc", 3, 0) == UINT64_C(0x78af5f94892f3950));
    assert_true(hash_bytes("abc", 3, 1) != hash_bytes("abc", 3, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(writes_of_every_size, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(pieces_add_up, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(abort_leaves_the_old_file, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(stale_temporary_is_replaced, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(failed_write_leaves_nothing, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(parts_make_a_file, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(failed_parts_tell, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(impossible_targets, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(failed_allocations_leave_nothing, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(wrong_inputs, open_scratch, close_scratch),
        cmocka_unit_test(size_unknown_beforehand),
        cmocka_unit_test_setup_teardown(directories, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(directories_that_can_be_made, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(remove_tree_stays_inside, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(names_in_a_directory, open_scratch, close_scratch),
        cmocka_unit_test(absent_or_unknown),
        cmocka_unit_test_setup_teardown(free_space_of_paths_to_come, open_scratch, close_scratch),
        cmocka_unit_test(joining),
        cmocka_unit_test(hash_is_xxh3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
