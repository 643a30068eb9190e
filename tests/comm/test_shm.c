/* Every collective on one rank (self) and on forked ranks that share memory. */
#include "comm/bodies.h"
#include "comm/group.h"

#include <sys/stat.h>

static const int rank_counts[] = {1, 2, 3, 5};

static void run_body(void **state)
{
    const struct named_body *b = *state;
    for (size_t i = 0; i < sizeof rank_counts / sizeof rank_counts[0]; i++) {
        struct shared *s = group_shared();
        struct outcome out = group_run(rank_counts[i], b->body, s, NULL);
        if (out.status != 0)
            fail_msg("%s on %d ranks: status %d, %s: %s", b->name, rank_counts[i], out.status, out.err.where,
                     out.err.what);
        assert_int_equal(out.err.kind, ERROR_NONE);
        assert_int_equal(out.lines, 0);
        munmap(s, sizeof *s);
    }
}

/* A window that cannot be had is an error on all ranks, and the next one works. */
static int body_too_large(struct comm *c, void *context, struct error *err)
{
    (void)context;
    struct comm_window w;
    CHECK(comm_window_create(c, (size_t)1 << 45, false, &w, err) != 0);
    CHECK(err->kind == ERROR_RUN && strstr(err->what, "cannot reserve") && err->remedy[0] != '\0');
    *err = (struct error){0};
    CHECK(comm_window_create(c, 5000, false, &w, err) == 0);
    if (use_window(c, &w, 5000, false, 1, err) != 0)
        return ERROR_RUN;
    comm_window_free(c, &w);
    return 0;
}

/* The same where only one rank meets the limit: the last, whose share makes the file longer. */
static int body_one_lacks(struct comm *c, void *context, struct error *err)
{
    (void)context;
    struct comm_window w;
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    signal(SIGXFSZ, SIG_IGN);
    if (comm_rank(c) == comm_size(c) - 1)
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    CHECK(comm_window_create(c, 5000, false, &w, err) != 0);
    CHECK(strstr(err->what, "cannot reserve") && strstr(err->what, "File too large"));
    *err = (struct error){0};
    if (comm_rank(c) == comm_size(c) - 1)
        CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(comm_window_create(c, 5000, true, &w, err) == 0);
    if (use_window(c, &w, 5000, true, 1, err) != 0)
        return ERROR_RUN;
    comm_window_free(c, &w);
    return 0;
}

static void test_no_memory(void **state)
{
    (void)state;
    comm_body *const bodies[] = {body_too_large, body_one_lacks};
    for (size_t i = 0; i < 2; i++) {
        struct shared *s = group_shared();
        struct outcome out = group_run(3, bodies[i], s, NULL);
        if (out.status != 0)
            fail_msg("status %d, %s: %s", out.status, out.err.where, out.err.what);
        munmap(s, sizeof *s);
    }
}

/* Kilobytes of shared memory that this process has in RAM. */
static long shared_kilobytes(void)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    long value = -1;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssShmem: %ld kB", &value) == 1)
            break;
    if (f)
        fclose(f);
    return value;
}

/* Bytes of the windows' file that exist, seen through this process's own descriptors. */
static int64_t reserved_bytes(void)
{
    int64_t total = -1;
    for (int fd = 3; fd < 64; fd++) {
        char link[64], name[128];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, name, sizeof name - 1);
        if (n <= 0)
            continue;
        name[n] = '\0';
        struct stat st;
        if (strstr(name, "memfd:tercet-windows") && fstat(fd, &st) == 0)
            total = (int64_t)st.st_blocks * 512;
    }
    return total;
}

/* Pages are reserved when a window is made and are gone when all have freed it. */
static int body_reserves(struct comm *c, void *context, struct error *err)
{
    (void)context;
    enum { BYTES = 1 << 20 };
    struct comm_window own, common;
    CHECK(reserved_bytes() == 0);
    CHECK(comm_barrier(c, err) == 0);
    CHECK(comm_window_create(c, BYTES, false, &own, err) == 0);
    CHECK(comm_window_create(c, BYTES, true, &common, err) == 0);
    CHECK(reserved_bytes() == (int64_t)BYTES * (comm_size(c) + 1));
    memset(own.memory, 1, BYTES);
    CHECK(shared_kilobytes() >= BYTES / 1024);
    CHECK(comm_barrier(c, err) == 0);
    comm_window_free(c, &own);
    CHECK(comm_barrier(c, err) == 0);
    CHECK(reserved_bytes() == BYTES);
    CHECK(comm_barrier(c, err) == 0);
    CHECK(comm_window_create(c, 3 * BYTES, true, &own, err) == 0); /* the freed place again */
    CHECK(all_zero(own.memory, 3 * BYTES));
    CHECK(comm_barrier(c, err) == 0);
    comm_window_free(c, &own);
    comm_window_free(c, &common);
    CHECK(comm_barrier(c, err) == 0);
    CHECK(reserved_bytes() == 0);
    return 0;
}

/* What ranks share has no name in any file system, so nothing can be left behind. */
static int body_nameless(struct comm *c, void *context, struct error *err)
{
    (void)context;
    struct comm_window w;
    CHECK(comm_window_create(c, 100000, true, &w, err) == 0);
    FILE *f = fopen("/proc/self/maps", "re");
    CHECK(f);
    char line[1024];
    int windows = 0;
    while (fgets(line, sizeof line, f)) {
        CHECK(!strstr(line, "/dev/shm/"));
        CHECK(!strstr(line, "rw-s") || strstr(line, "(deleted)"));
        windows += strstr(line, "/memfd:tercet-windows (deleted)") != NULL;
    }
    fclose(f);
    CHECK(windows == 1);
    comm_window_free(c, &w);
    return 0;
}

static void test_reserves(void **state)
{
    (void)state;
    comm_body *const bodies[] = {body_reserves, body_nameless};
    for (size_t i = 0; i < 2; i++) {
        struct shared *s = group_shared();
        struct outcome out = group_run(3, bodies[i], s, NULL);
        if (out.status != 0)
            fail_msg("status %d, %s: %s", out.status, out.err.where, out.err.what);
        munmap(s, sizeof *s);
    }
}

int main(void)
{
    struct CMUnitTest tests[BODIES + 2];
    for (int i = 0; i < BODIES; i++)
        tests[i] = (struct CMUnitTest){all_bodies[i].name, run_body, NULL, NULL, (void *)&all_bodies[i]};
    tests[BODIES] = (struct CMUnitTest)cmocka_unit_test(test_no_memory);
    tests[BODIES + 1] = (struct CMUnitTest)cmocka_unit_test(test_reserves);
    return cmocka_run_group_tests_name("shm", tests, NULL, NULL);
}
