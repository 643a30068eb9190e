/* The description of a machine from made-up /proc and /sys, the key, the file of measured peaks, and the
 * measuring itself as far as it can be judged without a clock. */
#include "base/file.h"
#include "plan/machine.h"
#include "plan/measure.h"
#include "plan/peaks.h"
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
    struct scratch scratch;
    struct backend *backend;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct error err;
    assert_non_null(f);
    scratch_open(&f->scratch);
    assert_int_equal(backend_create(&f->backend, &(struct backend_options){.threads = 2}, &err), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    backend_destroy(f->backend);
    scratch_close(&f->scratch);
    free(f);
    return 0;
}

/* Writes a file below the scratch directory, with the directories above it. */
static void put(struct fixture *f, const char *path, const char *text)
{
    char full[1024];
    struct error err;
    snprintf(full, sizeof full, "%s%s", f->scratch.directory, path);
    *strrchr(full, '/') = '\0';
    assert_int_equal(file_make_directories(full, &err), 0);
    snprintf(full, sizeof full, "%s%s", f->scratch.directory, path);
    assert_int_equal(file_write_all(full, text, strlen(text), &err), 0);
}

static struct machine describe(struct fixture *f)
{
    struct machine m;
    machine_describe(f->scratch.directory, f->backend, &m);
    return m;
}

static void test_cpu(void **state)
{
    struct fixture *f = *state;
    put(f, "/proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
        "model name\t: AMD EPYC 9V74\nflags\t\t: fpu avx avx2 avx512f avx512_bf16x fma\n\nprocessor\t: 1\n"
        "model name\t: another\n");
    struct machine m = describe(f);
    assert_string_equal(m.cpu, "AMD EPYC 9V74, family 25, model 17");
    assert_string_equal(m.features, "avx avx2 fma avx512f");
    assert_true(machine_has(&m, "avx2"));
    assert_true(machine_has(&m, "avx512f"));
    assert_false(machine_has(&m, "avx512"));
    assert_false(machine_has(&m, "avx512_bf16"));
    assert_true(m.cores >= 1 && m.cores_online >= m.cores);
    assert_true(strcmp(m.products.library, "own kernels") == 0 ||
                strncmp(m.products.library, "oneDNN ", 7) == 0);

    put(f, "/proc/cpuinfo",
        "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n");
    m = describe(f);
    assert_non_null(strstr(m.cpu, " CPU, family 0x41, model 0xd0c"));
    assert_string_equal(m.features, "asimd bf16");
}

static void test_memory(void **state)
{
    struct fixture *f = *state;
    struct machine m = describe(f);
    assert_int_equal(m.limits.memory, -1);
    assert_int_equal(m.limits.memory_available, -1);
    put(f, "/proc/meminfo", "MemTotal:       24609468 kB\nMemFree:  1 kB\nMemAvailable:   23091234 kB\n");
    m = describe(f);
    assert_int_equal(m.limits.memory, INT64_C(24609468) * 1024);
    assert_int_equal(m.limits.memory_available, INT64_C(23091234) * 1024);
    put(f, "/proc/meminfo", "MemTotal: many\nMemAvailable: -5 kB");
    m = describe(f);
    assert_int_equal(m.limits.memory, -1);
    assert_int_equal(m.limits.memory_available, -1);
}

static void test_no_limits(void **state)
{
    struct fixture *f = *state;
    struct machine m = describe(f);
    assert_int_equal(m.limits.memory_limit, -1);
    assert_true(m.limits.quota == 0);
    put(f, "/proc/self/cgroup", "0::/user/a\n4:memory:/x\n1:cpu,cpuacct:/\ndamaged\n:\n");
    put(f, "/sys/fs/cgroup/user/a/memory.max", "max\n");
    put(f, "/sys/fs/cgroup/user/a/cpu.max", "max 100000\n");
    put(f, "/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
    put(f, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put(f, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    m = describe(f);
    assert_int_equal(m.limits.memory_limit, -1);
    assert_true(m.limits.quota == 0);
}

static void test_limits_of_version_2(void **state)
{
    struct fixture *f = *state;
    put(f, "/proc/self/cgroup", "0::/user/a/b\n");
    put(f, "/sys/fs/cgroup/user/a/b/memory.max", "9000\n");
    put(f, "/sys/fs/cgroup/user/a/memory.max", "5000\n"); /* the lower one, above */
    put(f, "/sys/fs/cgroup/user/memory.max", "7000\n");
    put(f, "/sys/fs/cgroup/user/a/b/cpu.max", "150000 100000\n");
    put(f, "/sys/fs/cgroup/user/cpu.max", "400000 100000\n");
    put(f, "/proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 90 kB\nSwapFree: 7 kB\n");
    struct machine m = describe(f);
    assert_int_equal(m.limits.memory_limit, 5000);
    assert_int_equal(m.limits.memory_available, 5000);
    assert_int_equal(m.limits.swap_free, 7 * 1024);
    /* What the groups have used counts, but for what they would give back; the one with the least left
     * decides. */
    put(f, "/sys/fs/cgroup/user/memory.current", "6000\n");
    put(f, "/sys/fs/cgroup/user/memory.stat", "anon 4\ninactive_file 1500\nactive_file 7\n");
    put(f, "/sys/fs/cgroup/user/a/memory.current", "1000\n");
    m = describe(f);
    assert_int_equal(m.limits.memory_available, 7000 - (6000 - 1500));
    put(f, "/sys/fs/cgroup/user/a/memory.current", "5001\n"); /* above its limit for a moment */
    m = describe(f);
    assert_int_equal(m.limits.memory_available, 0);
    put(f, "/proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 0 kB\n");
    put(f, "/sys/fs/cgroup/user/a/memory.current", "1\n");
    m = describe(f);
    assert_int_equal(m.limits.memory_available, 0); /* the machine has less than the group may take */
    assert_int_equal(m.limits.swap_free, 0);
    assert_true(m.limits.quota == 1.5);
    /* A path of the host: the container's own files are at the top. */
    put(f, "/proc/self/cgroup", "0::/../../elsewhere\n");
    put(f, "/sys/fs/cgroup/memory.max", "12345\n");
    m = describe(f);
    assert_int_equal(m.limits.memory_limit, 12345);
}

static void test_limits_of_version_1(void **state)
{
    struct fixture *f = *state;
    put(f, "/proc/self/cgroup", "5:cpuacct:/deep\n4:memory:/box\n3:cpuset:/\n1:cpuacct,cpu:/box\n0::/\n");
    put(f, "/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2147483648\n");
    put(f, "/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n");
    put(f, "/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    struct machine m = describe(f);
    assert_int_equal(m.limits.memory_limit, INT64_C(2147483648));
    assert_true(m.limits.quota == 0.5);
    put(f, "/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "2147483647\n");
    put(f, "/sys/fs/cgroup/memory/box/memory.stat", "inactive_file 5\ntotal_inactive_file 40\n");
    m = describe(f);
    assert_int_equal(m.limits.memory_available, 41);
}

static void key_of(const struct machine *m, char out[1024])
{
    struct strbuf key = {0};
    machine_key(m, &key);
    assert_int_equal(key.failed, 0);
    snprintf(out, 1024, "%s", key.data);
    strbuf_free(&key);
}

static void test_key(void **state)
{
    (void)state;
    const struct machine base = {
        .cpu = "X", .cores = 2, .cores_online = 4, .products = {.isa = "avx2", .library = "oneDNN 2.6.3"}};
    char first[1024], other[1024];
    key_of(&base, first);
    assert_string_equal(first, "X; 4 cores; oneDNN 2.6.3; avx2");
    struct machine same = base; /* what changes from minute to minute, and from process to process */
    same.limits.memory_available = 5;
    same.cores = 1;
    key_of(&same, other);
    assert_string_equal(first, other);
    struct machine changed[5] = {base, base, base, base, base};
    strcpy(changed[0].cpu, "Y");
    changed[1].cores_online = 5;
    changed[2].limits.quota = 1.5;
    strcpy(changed[3].products.library, "oneDNN 3.2.0");
    strcpy(changed[4].products.isa, "avx512");
    for (int i = 0; i < 5; i++) {
        key_of(&changed[i], other);
        assert_string_not_equal(first, other);
    }
}

static void test_path(void **state)
{
    (void)state;
    char *path;
    setenv("HOME", "/home/me", 1);
    setenv("XDG_CACHE_HOME", "/x/cache", 1);
    assert_string_equal(path = peaks_path(), "/x/cache/tercet/peaks.json");
    free(path);
    const char *const useless[] = {"", "relative/cache"};
    for (int i = 0; i < 2; i++) {
        setenv("XDG_CACHE_HOME", useless[i], 1);
        assert_string_equal(path = peaks_path(), "/home/me/.cache/tercet/peaks.json");
        free(path);
    }
    unsetenv("HOME");
    assert_null(peaks_path());
    unsetenv("XDG_CACHE_HOME");
    assert_null(peaks_path());
}

static struct peak peak_of(const char *machine, enum dtype dtype, int threads, double rate)
{
    return (struct peak){.machine = (char *)(uintptr_t)machine,
                         .dtype = dtype,
                         .threads = threads,
                         .rates = {rate, rate / 3, rate / 7},
                         .time = 1700000000};
}

static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    char path[512];
    struct error err;
    struct peaks p = {0}, read;
    bool damaged = true;
    snprintf(path, sizeof path, "%s/not/yet/there/peaks.json", f->scratch.directory);
    assert_int_equal(peaks_load(path, &read, &damaged, &err), 0);
    assert_int_equal(read.count, 0);
    assert_false(damaged);
    for (int t = 1; t <= 20; t++)
        for (int m = 0; m < 2; m++) {
            struct peak peak = peak_of(m ? "b \"quoted\"" : "a", m ? DTYPE_BF16 : DTYPE_F32, t, 1e11 * t / 3);
            assert_int_equal(peaks_put(&p, &peak, &err), 0);
        }
    struct peak again = peak_of("a", DTYPE_F32, 7, 5e12); /* replaces */
    assert_int_equal(peaks_put(&p, &again, &err), 0);
    assert_int_equal(p.count, 40);
    assert_int_equal(peaks_save(path, &p, &err), 0);
    *strrchr(path, '/') = '\0';
    assert_true(file_is_directory(path));
    snprintf(path, sizeof path, "%s/not/yet/there/peaks.json", f->scratch.directory);
    assert_int_equal(peaks_load(path, &read, &damaged, &err), 0);
    assert_false(damaged);
    assert_int_equal(read.count, 40);
    for (int64_t i = 0; i < p.count; i++) {
        const struct peak *a = &p.items[i], *b = peaks_find(&read, a->machine, a->dtype, a->threads);
        assert_non_null(b);
        assert_true(a->rates.linear == b->rates.linear && a->rates.grad_input == b->rates.grad_input &&
                    a->rates.grad_weight == b->rates.grad_weight && a->time == b->time);
    }
    assert_true(peaks_find(&read, "a", DTYPE_F32, 7)->rates.linear == 5e12);
    assert_null(peaks_find(&read, "a", DTYPE_F32, 21));
    assert_null(peaks_find(&read, "a", DTYPE_BF16, 7));
    assert_null(peaks_find(&read, "c", DTYPE_F32, 7));
    peaks_free(&p);
    peaks_free(&read);
}

static void test_damaged(void **state)
{
    struct fixture *f = *state;
    char *path = scratch_path(&f->scratch, "peaks.json");
    struct error err;
#define ENTRY(threads, linear)                                                                               \
    "{\"machine\": \"a\", \"dtype\": \"fp32\", \"threads\": " threads ", \"linear\": " linear                \
    ", \"grad_input\": 1.0, \"grad_weight\": 1.0, \"time\": 1}"
    const char *const bad[] = {
        "",
        "{",
        "[]",
        "null",
        "{}",
        "{\"format\": 1}",
        "{\"format\": 2, \"peaks\": []}",
        "{\"format\": 1, \"peaks\": {}}",
        "{\"format\": 1, \"peaks\": [1]}",
        "{\"format\": 1, \"peaks\": [{\"machine\": \"a\"}]}",
        "{\"format\": 1, \"peaks\": [" ENTRY("0", "1.0") "]}",
        "{\"format\": 1, \"peaks\": [" ENTRY("1", "0") "]}",
        "{\"format\": 1, \"peaks\": [" ENTRY("1", "-4.0") "]}",
        "{\"format\": 1, \"peaks\": [" ENTRY("1", "1e300") "]}",
        "{\"format\": 1, \"peaks\": [" ENTRY("1", "\"fast\"") "]}",
        "{\"format\": 1, \"peaks\": [" ENTRY("1", "1.0") ", " ENTRY("1.5", "1.0") "]}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct peaks p;
        bool damaged = false;
        assert_int_equal(file_write_all(path, bad[i], strlen(bad[i]), &err), 0);
        assert_int_equal(peaks_load(path, &p, &damaged, &err), 0);
        assert_true(damaged);
        assert_int_equal(p.count, 0);
        /* The next save makes it whole. */
        struct peak peak = peak_of("a", DTYPE_F32, 1, 2e11);
        assert_int_equal(peaks_put(&p, &peak, &err), 0);
        assert_int_equal(peaks_save(path, &p, &err), 0);
        peaks_free(&p);
        assert_int_equal(peaks_load(path, &p, &damaged, &err), 0);
        assert_false(damaged);
        assert_int_equal(p.count, 1);
        peaks_free(&p);
    }
    const char *good = "{\"format\": 1, \"peaks\": [" ENTRY("1", "1.0") "]}";
    struct peaks p;
    bool damaged = true;
    assert_int_equal(file_write_all(path, good, strlen(good), &err), 0);
    assert_int_equal(peaks_load(path, &p, &damaged, &err), 0);
    assert_false(damaged);
    assert_int_equal(p.count, 1);
    peaks_free(&p);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0777), 0); /* a directory in its place */
    assert_int_equal(peaks_load(path, &p, &damaged, &err), 0);
    assert_true(damaged);
    struct peak peak = peak_of("a", DTYPE_F32, 1, 2e11);
    assert_int_equal(peaks_put(&p, &peak, &err), 0);
    assert_int_equal(peaks_save(path, &p, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    peaks_free(&p);
}

/* What a run looks up is what was put under the same backend's key, and nothing else. */
static void test_of_backend(void **state)
{
    struct fixture *f = *state;
    struct error err;
    struct machine m;
    struct peaks p = {0};
    char key[1024];
    setenv("XDG_CACHE_HOME", f->scratch.directory, 1);
    assert_true(peaks_of_backend(f->backend, DTYPE_F32, 1) == 0);
    machine_describe("", f->backend, &m);
    key_of(&m, key);
    struct peak one = peak_of(key, DTYPE_F32, 1, 3e11), all = peak_of(key, DTYPE_F32, m.cores_online, 4e11);
    one.rates = (struct measured_products){1e11, 3e11, 2e11};
    assert_int_equal(peaks_put(&p, &all, &err), 0);
    if (m.cores_online > 1)
        assert_int_equal(peaks_put(&p, &one, &err), 0);
    char *path = peaks_path();
    assert_int_equal(peaks_save(path, &p, &err), 0);
    assert_true(peaks_of_backend(f->backend, DTYPE_F32, 1) == (m.cores_online > 1 ? 3e11 : 4e11));
    assert_true(peaks_of_backend(f->backend, DTYPE_F32, m.cores_online) == 4e11);
    assert_true(peaks_of_backend(f->backend, DTYPE_F32, m.cores_online + 3) == 4e11);
    assert_true(peaks_of_backend(f->backend, DTYPE_BF16, 1) == 0);
    struct backend *reference;
    assert_int_equal(
        backend_create(&reference, &(struct backend_options){.name = "reference", .threads = 1}, &err), 0);
    assert_true(peaks_of_backend(reference, DTYPE_F32, 1) == 0);
    backend_destroy(reference);
    assert_int_equal(file_write_all(path, "damaged", 7, &err), 0);
    assert_true(peaks_of_backend(f->backend, DTYPE_F32, 1) == 0);
    free(path);
    peaks_free(&p);
    unsetenv("XDG_CACHE_HOME");
}

static void test_no_memory(void **state)
{
    struct fixture *f = *state;
    char *path = scratch_path(&f->scratch, "peaks.json");
    struct error err;
    for (int64_t n = 0;; n++) {
        struct peaks p = {0}, read = {0};
        struct peak peak = peak_of("a", DTYPE_F32, 1, 2e11);
        allocations_fail_after(n);
        int status = peaks_put(&p, &peak, &err);
        if (status == 0)
            status = peaks_save(path, &p, &err);
        if (status == 0)
            status = peaks_load(path, &read, NULL, &err);
        allocations_fail_after(-1);
        /* A load without memory may also come out as a damaged file: empty. */
        if (status == 0 && read.count == 1) {
            peaks_free(&p);
            peaks_free(&read);
            break;
        }
        peaks_free(&p);
        peaks_free(&read);
        assert_true(n < 1000);
    }
}

static void test_measure(void **state)
{
    struct fixture *f = *state;
    struct error err;
    const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        struct measured_products rates;
        assert_int_equal(measure_products(f->backend, types[i], 2, &rates, &err), 0);
        assert_true(isfinite(rates.linear) && rates.linear > 0);
        assert_true(isfinite(rates.grad_input) && rates.grad_input > 0);
        assert_true(isfinite(rates.grad_weight) && rates.grad_weight > 0);
        double peak = measured_peak(&rates);
        assert_true(peak >= rates.linear && peak >= rates.grad_input && peak >= rates.grad_weight);
        assert_true(peak == rates.linear || peak == rates.grad_input || peak == rates.grad_weight);
    }
    assert_int_equal(backend_threads_seen(f->backend), 2);
    double bandwidth = 0;
    assert_int_equal(measure_bandwidth(2, 0, INT64_C(8) << 20, &bandwidth, &err), 0);
    assert_true(isfinite(bandwidth) && bandwidth > 0);
    assert_int_equal(measure_bandwidth(1, 0, 1000, &bandwidth, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cpu, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limits_of_version_2, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limits_of_version_1, setup, teardown),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_path),
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_of_backend, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_measure, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
