/* What the environment says about an MPI launcher, what comm_run refuses, and places in the windows' file. */
#include "base/rng.h"
#include "comm/comm.h"
#include "comm/extents.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const variables[] = {
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE",     "PMI_RANK",
    "MV2_COMM_WORLD_SIZE",  "MV2_COMM_WORLD_RANK",  "PMIX_RANK",    "SLURM_PROCID",
    "SLURM_STEP_ID",        "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",
};

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    return 0;
}

static void set(const char *name, const char *value)
{
    assert_int_equal(setenv(name, value, 1), 0);
}

static void test_environment(void **state)
{
    assert_false(comm_under_launcher());
    assert_int_equal(comm_launcher_rank(), 0);
    set("OMPI_COMM_WORLD_SIZE", "3");
    set("OMPI_COMM_WORLD_RANK", "2");
    assert_true(comm_under_launcher());
    assert_int_equal(comm_launcher_rank(), 2);
    clear(state);
    set("PMI_SIZE", "2");
    set("PMI_RANK", "1");
    assert_true(comm_under_launcher());
    assert_int_equal(comm_launcher_rank(), 1);
    clear(state);
    set("PMI_SIZE", "two"); /* not a number: not a launcher */
    assert_false(comm_under_launcher());
    clear(state);
    set("PMIX_RANK", "4");
    assert_true(comm_under_launcher());
    assert_int_equal(comm_launcher_rank(), 4);
}

static void test_slurm(void **state)
{
    /* A batch script is no step, and a step of one task leaves -n to Tercet. */
    set("SLURM_PROCID", "0");
    set("SLURM_NTASKS", "4");
    assert_false(comm_under_launcher());
    set("SLURM_STEP_ID", "0");
    set("SLURM_PROCID", "3");
    assert_true(comm_under_launcher());
    assert_int_equal(comm_launcher_rank(), 3);
    set("SLURM_STEP_NUM_TASKS", "1");
    set("SLURM_PROCID", "0");
    assert_false(comm_under_launcher());
    set("PMIX_RANK", "0");
    assert_false(comm_under_launcher());
    clear(state);
}

static int body_never(struct comm *c, void *context, struct error *err)
{
    (void)c, (void)context, (void)err;
    return 0;
}

static void refused(int ranks, enum comm_transport transport, const char *text)
{
    struct error err;
    int ran = comm_run(ranks, transport, NULL, body_never, NULL, &err);
    assert_int_equal(ran, 2);
    assert_int_equal(err.kind, ERROR_INPUT);
    if (!strstr(err.what, text))
        fail_msg("\"%s\" is not in \"%s\"", text, err.what);
    if (err.where[0] == '\0')
        assert_true(err.remedy[0] != '\0');
}

static void test_refusals(void **state)
{
    struct error err;
    refused(-1, COMM_AUTO, "not a number of ranks");
    refused(COMM_MAX_LOCAL_RANKS + 1, COMM_AUTO, "not a number of ranks");
    refused(2, COMM_MPI, "transport mpi needs an MPI launcher");
    refused(0, COMM_MPI, "transport mpi needs an MPI launcher");
    set("PMI_SIZE", "3");
    set("PMI_RANK", "0");
    refused(2, COMM_AUTO, "-n asks for more");
    refused(1, COMM_SHM, "-n asks for more");
    refused(0, COMM_SHM, "transport shm cannot join");
    if (!comm_has_mpi())
        refused(0, COMM_AUTO, "this build has no MPI");
    /* One process of the group speaks, the others leave it to that one. */
    set("PMI_RANK", "1");
    assert_int_equal(comm_run(2, COMM_AUTO, NULL, body_never, NULL, &err), 2);
    assert_int_equal(err.kind, ERROR_NONE);
    clear(state);
    assert_int_equal(comm_run(0, COMM_SHM, NULL, body_never, NULL, &err), 0);
    assert_int_equal(err.kind, ERROR_NONE);
}

/* Random takes and gives against a map of bytes: the lowest gap that fits, never an overlap. */
static void test_extents(void **state)
{
    enum { BYTES = 400, LIVE = 30 };
    (void)state;
    bool used[BYTES] = {false};
    size_t offset[LIVE], bytes[LIVE] = {0};
    struct extents e = {0};
    for (uint64_t i = 0; i < 3000; i++) {
        size_t k = (size_t)rng_below(3, 1, i, LIVE);
        bool take = bytes[k] == 0;
        if (take) {
            size_t lowest = 0, free_bytes = 0;
            bytes[k] = 1 + (size_t)rng_below(3, 2, i, 9);
            for (size_t b = 0; b < BYTES && free_bytes < bytes[k]; b++) {
                free_bytes = used[b] ? 0 : free_bytes + 1;
                lowest = b + 1 - free_bytes;
            }
            assert_int_equal(extents_take(&e, bytes[k], &offset[k]), 0);
            assert_int_equal(offset[k], lowest);
        } else
            extents_give(&e, offset[k]);
        for (size_t b = offset[k]; b < offset[k] + bytes[k]; b++)
            used[b] = take;
        bytes[k] = take ? bytes[k] : 0;
    }
    size_t place;
    assert_int_equal(extents_take(&e, (size_t)INT64_MAX, &place), e.count == 0 ? 0 : -1);
    extents_free(&e);
    assert_int_equal(e.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_environment, clear, clear),
        cmocka_unit_test_setup_teardown(test_slurm, clear, clear),
        cmocka_unit_test_setup_teardown(test_refusals, clear, clear),
        cmocka_unit_test(test_extents),
    };
    return cmocka_run_group_tests_name("launcher", tests, NULL, NULL);
}
