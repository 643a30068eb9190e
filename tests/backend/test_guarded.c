/* The guarded backend: same bits as the one it wraps, and it catches what breaks the contract. */
#include "shapes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void same_bits_as(const char *guarded_name, const char *bare_name)
{
    struct backend *reference = test_backend("reference", NULL, 1);
    struct backend *guarded = test_backend(guarded_name, NULL, 2), *bare = test_backend(bare_name, NULL, 2);
    for (int type = 0; type < 2; type++)
        for (int i = 0; i < TRIALS; i++) {
            struct trial t;
            struct result a, b;
            trial_make(&t, trials[i].op, &trials[i].shape, type ? DTYPE_BF16 : DTYPE_F32);
            trial_complete(reference, &t);
            trial_run(bare, &t, &a);
            trial_run(guarded, &t, &b);
            assert_same_bits(&a, &b, op_name(t.call.op));
            result_free(&a);
            result_free(&b);
            trial_free(&t);
        }
    backend_destroy(guarded);
    backend_destroy(bare);
    backend_destroy(reference);
}

static void test_guarded_cpu_equals_cpu(void **state)
{
    (void)state;
    same_bits_as("guarded", "cpu");
}

static void test_guarded_reference_equals_reference(void **state)
{
    (void)state;
    same_bits_as("guarded-reference", "reference");
}

/* Runs an access in a child, which must die of it. */
static void assert_faults(void (*access)(char *memory), char *memory)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        access(memory);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
}

static void read_it(char *memory)
{
    (void)*(volatile char *)memory;
}

static void write_it(char *memory)
{
    *(volatile char *)memory = 1;
}

static void test_host_access_faults(void **state)
{
    (void)state;
    struct backend *b = test_backend("guarded-reference", NULL, 1);
    struct error err = {0};
    void *device, *host;
    must(backend_alloc(b, MEMORY_DEVICE, 10000, &device, &err), &err);
    must(backend_alloc(b, MEMORY_HOST, 10000, &host, &err), &err);
    assert_faults(read_it, device);
    assert_faults(write_it, (char *)device + 9999);
    memset(host, 3, 10000);
    must(backend_upload(b, 1, device, host, 10000, &err), &err);
    assert_faults(read_it, device);
    must(backend_sync(b, 1, &err), &err);
    assert_faults(read_it, device);

    must(backend_begin_access(b, device, 100, &err), &err);
    assert_int_equal(*(char *)device, 3);
    must(backend_begin_access(b, (char *)device + 50, 100, &err), &err); /* two transfers on one page */
    must(backend_end_access(b, device, 100, &err), &err);
    assert_int_equal(*(char *)device, 3);
    must(backend_end_access(b, (char *)device + 50, 100, &err), &err);
    assert_faults(read_it, device);
    assert_int_equal(backend_end_access(b, device, 100, &err), -1);
    backend_free(b, device);
    backend_free(b, host);
    backend_destroy(b);
}

static void test_adopted_memory_is_guarded(void **state)
{
    (void)state;
    struct backend *b = test_backend("guarded-reference", NULL, 1);
    struct error err = {0};
    size_t bytes = 3 * (size_t)sysconf(_SC_PAGESIZE);
    char *window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(window != MAP_FAILED);
    assert_int_equal(backend_adopt(b, window + 64, 64, &err), -1);
    must(backend_adopt(b, window, bytes, &err), &err);
    assert_faults(read_it, window);
    backend_disown(b, window);
    read_it(window);
    assert_int_equal(munmap(window, bytes), 0);
    backend_destroy(b);
}

/* y = a + a, four floats. */
struct sum {
    float *a, *y;
    struct op_call call;
};

static void sum_make(struct backend *b, struct sum *s)
{
    struct error err = {0};
    const float numbers[4] = {1, 2, 3, 4};
    void *a, *y;
    must(backend_alloc(b, MEMORY_DEVICE, sizeof numbers, &a, &err), &err);
    must(backend_alloc(b, MEMORY_DEVICE, sizeof numbers, &y, &err), &err);
    must(backend_upload(b, 0, a, numbers, sizeof numbers, &err), &err);
    must(backend_sync(b, 0, &err), &err);
    s->a = a;
    s->y = y;
    struct operand x = {.data = a, .type = DTYPE_F32, .ndim = 1, .dim = {4}};
    s->call = (struct op_call){.op = OP_ADD, .inputs = 2, .outputs = 1, .in = {x, x}, .out = {x}};
    s->call.out[0].data = y;
}

static void sum_free(struct backend *b, struct sum *s)
{
    backend_free(b, s->a);
    backend_free(b, s->y);
}

static void assert_floats(const float *got, double first, double last)
{
    assert_true((double)got[0] == first && (double)got[3] == last);
}

static void assert_poison(const float *got)
{
    for (int i = 0; i < 4; i++)
        assert_true(isnan(got[i]));
}

static void test_missing_wait_reads_poison(void **state)
{
    (void)state;
    struct backend *b = test_backend("guarded-reference", NULL, 1);
    struct error err = {0};
    struct sum s;
    float host[4] = {0};
    sum_make(b, &s);
    /* The download is on another stream and waits for nothing. */
    must(backend_run(b, 0, &s.call, &err), &err);
    must(backend_download(b, 1, host, s.y, sizeof host, &err), &err);
    must(backend_sync(b, 1, &err), &err);
    assert_poison(host);
    /* With the wait it is right. */
    must(backend_record(b, 0, 5, &err), &err);
    must(backend_stream_wait(b, 1, 5, &err), &err);
    must(backend_download(b, 1, host, s.y, sizeof host, &err), &err);
    assert_poison(host); /* not synced yet */
    must(backend_sync(b, 1, &err), &err);
    assert_floats(host, 2, 8);
    /* A transfer may not begin under queued work. */
    must(backend_run(b, 0, &s.call, &err), &err);
    assert_int_equal(backend_begin_access(b, s.y, 4, &err), -1);
    must(backend_record(b, 0, 6, &err), &err);
    must(backend_event_sync(b, 6, &err), &err);
    must(backend_begin_access(b, s.y, 4, &err), &err);
    must(backend_end_access(b, s.y, 4, &err), &err);
    sum_free(b, &s);
    backend_destroy(b);
}

/* The target of queued work is not poisoned while older queued work reads it: chains through one buffer. */
static void test_reused_memory_in_one_stream(void **state)
{
    (void)state;
    struct backend *b = test_backend("guarded-reference", NULL, 1);
    struct error err = {0};
    struct sum s;
    float host[4];
    sum_make(b, &s);
    struct op_call back = s.call; /* a = y + y, then y = a + a again */
    back.in[0].data = back.in[1].data = s.y;
    back.out[0].data = s.a;
    for (int i = 0; i < 3; i++) {
        must(backend_run(b, 0, &s.call, &err), &err);
        must(backend_run(b, 0, &back, &err), &err);
    }
    must(backend_download(b, 0, host, s.a, sizeof host, &err), &err);
    must(backend_sync(b, 0, &err), &err);
    assert_floats(host, 64, 256);
    /* In place: the output is an input. */
    back.in[0].data = back.in[1].data = s.a;
    must(backend_run(b, 0, &back, &err), &err);
    must(backend_download(b, 0, host, s.a, sizeof host, &err), &err);
    must(backend_sync(b, 0, &err), &err);
    assert_floats(host, 128, 512);
    sum_free(b, &s);
    backend_destroy(b);
}

static void test_full_queue_runs_the_oldest(void **state)
{
    (void)state;
    struct backend *b = test_backend("guarded-reference", NULL, 1);
    struct error err = {0};
    void *acc, *part;
    const float zero[4] = {0}, one[4] = {1, 1, 1, 1};
    float host[4];
    must(backend_alloc(b, MEMORY_DEVICE, sizeof zero, &acc, &err), &err);
    must(backend_alloc(b, MEMORY_DEVICE, sizeof one, &part, &err), &err);
    must(backend_upload(b, 0, acc, zero, sizeof zero, &err), &err);
    must(backend_upload(b, 0, part, one, sizeof one, &err), &err);
    struct operand x = {.type = DTYPE_F32, .ndim = 1, .dim = {4}};
    struct op_call call = {.op = OP_ACCUMULATE, .inputs = 1, .outputs = 1, .in = {x}, .out = {x}};
    call.in[0].data = part;
    call.out[0].data = acc;
    for (int i = 0; i < 1000; i++)
        must(backend_run(b, 0, &call, &err), &err);
    must(backend_download(b, 0, host, acc, sizeof host, &err), &err);
    must(backend_sync(b, 0, &err), &err);
    assert_floats(host, 1000, 1000);
    backend_free(b, acc);
    backend_free(b, part);
    backend_destroy(b);
}

/* An error of a queued op comes out of the wait, once. */
static void test_error_comes_from_the_wait(void **state)
{
    (void)state;
    struct backend *b = test_backend("guarded-reference", NULL, 1);
    struct error err = {0};
    struct trial t;
    struct placed p;
    trial_make(&t, OP_EMBED, &(struct trial_shape){.tokens = 3, .width = 2, .vocabulary = 5}, DTYPE_F32);
    operand_set(&t.call.in[0], 1, 5);
    place(b, &t, &p);
    must(backend_run(b, 0, &p.call, &err), &err);
    assert_int_equal(backend_sync(b, 0, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_non_null(strstr(err.what, "index 5 at place 1"));
    must(backend_sync(b, 0, &err), &err);
    unplace(b, &p);
    trial_free(&t);
    backend_destroy(b);
}

/* What was neither allocated nor adopted here (another rank's window, say) is refused, not silently used. */
static void test_foreign_memory_is_refused(void **state)
{
    (void)state;
    struct backend *b = test_backend("guarded-reference", NULL, 1);
    struct error err = {0};
    struct sum s;
    float foreign[4] = {1, 2, 3, 4}, out[4];
    sum_make(b, &s);
    must(backend_run(b, 0, &s.call, &err), &err);
    must(backend_sync(b, 0, &err), &err);
    struct op_call call = s.call;
    call.in[1].data = foreign;
    assert_int_equal(backend_run(b, 0, &call, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_non_null(strstr(err.what, "not the device's"));
    call = s.call;
    call.out[0].data = out;
    assert_int_equal(backend_run(b, 0, &call, &err), -1);
    assert_int_equal(backend_upload(b, 0, out, foreign, sizeof foreign, &err), -1);
    assert_int_equal(backend_download(b, 0, out, foreign, sizeof foreign, &err), -1);
    sum_free(b, &s);
    backend_destroy(b);
}

/* A read sees what is there although other work is queued, and leaves the memory closed; what queued work is
 * to write is refused. */
static void test_read_beside_work(void **state)
{
    (void)state;
    struct backend *b = test_backend("guarded-reference", NULL, 1);
    struct error err = {0};
    struct sum s;
    float values[4], foreign[4];
    sum_make(b, &s);
    must(backend_run(b, 0, &s.call, &err), &err);
    must(backend_read(b, values, s.a, sizeof values, &err), &err);
    assert_true(values[0] == 1 && values[3] == 4);
    assert_faults(read_it, (char *)s.a);
    assert_int_equal(backend_read(b, values, s.y, sizeof values, &err), -1);
    assert_non_null(strstr(err.what, "queued work is to write"));
    must(backend_sync(b, 0, &err), &err);
    must(backend_read(b, values, s.y + 1, 3 * sizeof *values, &err), &err);
    assert_true(values[0] == 4 && values[2] == 8);
    must(backend_read(b, values, s.y, 0, &err), &err);
    assert_int_equal(backend_read(b, values, foreign, sizeof foreign, &err), -1);
    /* Where a transfer has it open, it stays open. */
    must(backend_begin_access(b, s.a, 16, &err), &err);
    must(backend_read(b, values, s.a, sizeof values, &err), &err);
    assert_true(s.a[1] == 2);
    must(backend_end_access(b, s.a, 16, &err), &err);
    sum_free(b, &s);
    backend_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guarded_cpu_equals_cpu),
        cmocka_unit_test(test_guarded_reference_equals_reference),
        cmocka_unit_test(test_host_access_faults),
        cmocka_unit_test(test_adopted_memory_is_guarded),
        cmocka_unit_test(test_foreign_memory_is_refused),
        cmocka_unit_test(test_missing_wait_reads_poison),
        cmocka_unit_test(test_read_beside_work),
        cmocka_unit_test(test_reused_memory_in_one_stream),
        cmocka_unit_test(test_full_queue_runs_the_oldest),
        cmocka_unit_test(test_error_comes_from_the_wait),
    };
    return cmocka_run_group_tests_name("guarded", tests, NULL, NULL);
}
