#include "data/fixture.h"

#include "data/cache_lock.h"

#include <sys/wait.h>

static enum cache_lock_state try_lock(struct cache_lock *lock)
{
    enum cache_lock_state state = CACHE_LOCK_ABSENT;
    struct error err;
    if (cache_lock_try(".", "name", lock, &state, &err) != 0)
        fail_msg("%s", err.what);
    return state;
}

static void test_one_owner(void **state)
{
    (void)state;
    struct cache_lock first, second;
    assert_int_equal(try_lock(&first), CACHE_LOCKED);
    assert_true(file_exists("name.lock"));
    assert_int_equal(try_lock(&second), CACHE_LOCK_BUSY);
    cache_lock_release(&second); /* was not held: harmless */
    assert_int_equal(try_lock(&second), CACHE_LOCK_BUSY);
    cache_lock_release(&first);
    assert_false(file_exists("name.lock"));
    assert_int_equal(try_lock(&second), CACHE_LOCKED);
    cache_lock_release(&second);
    cache_lock_release(&second);
}

/* The lock of a dead process is free, though its file is still there. */
static void test_dead_owner(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct cache_lock lock;
        _exit(try_lock(&lock) == CACHE_LOCKED ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(file_exists("name.lock"));
    struct cache_lock lock;
    assert_int_equal(try_lock(&lock), CACHE_LOCKED);
    cache_lock_release(&lock);
    assert_false(file_exists("name.lock"));
}

static void test_no_directory(void **state)
{
    (void)state;
    struct cache_lock lock;
    enum cache_lock_state lock_state;
    struct error err;
    assert_int_equal(cache_lock_try("nowhere", "name", &lock, &lock_state, &err), -1);
    assert_contains(err.where, "nowhere/name.lock");
    cache_lock_release(&lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_owner, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_dead_owner, enter_directory, leave_directory),
        cmocka_unit_test_setup_teardown(test_no_directory, enter_directory, leave_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
